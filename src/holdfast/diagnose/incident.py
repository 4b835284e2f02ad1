"""An incident: the problem, its cause and evidence, its owner, its cost and what to do."""

from typing import Literal

import msgspec

from holdfast.signals.domains import Domain, Seam
from holdfast.wording import CPU_MEMBER, GPU, run_label

Verdict = Literal["cause", "not-hardware", "unknown"]
"""A cause in some system; software or data, with nothing wrong beneath; or no explanation."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """mechanism: how it does harm, a name in `mechanisms`; title: the same in a few words."""

    subject: str
    kind: str
    mechanism: str
    title: str
    domain: Domain
    owner: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One observation for the cause (weight above 0) or against it. weight: in bans, so ten to one is 1."""

    text: str
    weight: float
    metric: str = ""
    subjects: tuple[str, ...] = ()
    since_ns: int | None = None


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that was considered, and why it lost."""

    cause: Cause
    confidence: float
    lost_because: str


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The cost so far, and for each further hour. usd: None if the price of a GPU-hour is unknown.

    on_cpu: the hours are of members without a GPU, which have a price only if a rate gives them one.
    """

    lost_gpu_hours: float
    usd: float | None
    gpu_hours_per_hour: float
    usd_per_hour: float | None
    lost_run_s: float
    day_share_per_day: float
    assumed: bool
    on_cpu: bool = False

    @property
    def counted(self) -> str:
        """What is paid for by the hour."""
        return CPU_MEMBER if self.on_cpu else GPU


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One incident, however many findings it explains.

    name         `RUN/sN`, N in the order in which a run's incidents were noticed
    seam         the border between teams that it crosses; `path`: the subjects from cause to run
    confidence   that the named cause is right
    quality      of the telemetry behind it, between 0 and 1, with its flaws
    slowdown     time per step now over that of a healthy run; knows_pace: whether steps show it (if not, it
                 is 1, and there is no cost)
    run_name     of its run, if that is called otherwise than its id
    is_on_all_nodes  whether the run has no node without the cause, so that it cannot go on without those
    affected     members that it makes late; all members if it reaches all
    decides      the observation that would settle it
    action       what to do first; `runbook` has the rest
    """

    name: str
    run: str
    verdict: Verdict
    cause: Cause
    domain: Domain
    owner: str
    seam: Seam
    path: tuple[str, ...]
    confidence: float
    quality: float
    flaws: tuple[str, ...]
    began_ns: int
    noticed_ns: int
    ended_ns: int | None
    what: str
    slowdown: float
    affected: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    alternatives: tuple[Alternative, ...]
    decides: str
    action: str
    runbook: str
    cost: Price | None
    run_name: str = ""
    is_on_all_nodes: bool = False
    knows_pace: bool = True

    @property
    def run_label(self) -> str:
        return run_label(self.run, self.run_name)
