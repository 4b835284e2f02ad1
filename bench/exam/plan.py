"""What a case is: a cluster, what is wrong with it, and which answers are right at which level."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from bench.exam.plant import Plant

Level = Literal["full", "default", "step"]
LEVELS: tuple[Level, ...] = ("full", "default", "step")
Onset = Literal["sudden", "ramp", "hours", "start", "before"]
"""sudden: within a scrape. ramp: over 30 minutes. hours: over 150 minutes. start: slow from the first sample
on. before: it began five minutes after the first sample, so there is hardly a healthy past.
"""
RAMP_S: dict[Onset, float] = {"sudden": 0.0, "ramp": 1_800.0, "hours": 9_000.0, "start": 0.0, "before": 0.0}
Pair = tuple[str, str]
"""A mechanism and its subject."""
RUN = "pretrain-8b"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and its run. The run has the first `run_nodes` nodes; others have the rest.

    told: members tell their own part of an exchange apart from waiting, as Holdfast's transport does. With
    NCCL they cannot: a member that comes early waits inside the collective. names: how exporters name a host:
    as the topology does, by its full name, or by an address. reference: whether the record has a declared
    healthy step time. history: whether the record has the steps from before the first sample.
    """

    nodes: int = 16
    run_nodes: int = 0
    cooling: Literal["liquid", "air"] = "liquid"
    fabric: Literal["ib", "roce"] = "ib"
    chip: Literal["h200", "mi300x"] = "h200"
    member_per: Literal["gpu", "node"] = "gpu"
    told: bool = False
    rail: bool = False
    names: Literal["plain", "fqdn", "address"] = "plain"
    step_s: float = 6.0
    scrape_s: tuple[float, float, float] = (15.0, 15.0, 10.0)
    reference: bool = False
    history: bool = False
    eval_every: int = 0
    eval_s: float = 40.0
    eval_in_step: bool = False
    save_every: int = 0
    save_s: float = 8.0
    pools: bool = False


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and what may be said of it.

    accepted: right answers by level; none where telemetry of that level cannot tell. why: the reason for
    that. hang: no step is made, so there is no slowdown to compare.
    """

    kind: str
    accepted: dict[Level, tuple[Pair, ...]]
    why: str
    hang: bool = False
    first: tuple[str, ...] = ()


Inject = Callable[["Plant"], list[Cause]]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """inject: makes it go wrong, and says what that was. Healthy hours have no causes."""

    name: str
    spec: Spec
    inject: Inject
    onset: Onset = "sudden"
    healthy: bool = False
    quick: bool = False
    tolerated: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]
