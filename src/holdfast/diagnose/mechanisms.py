"""The known ways in which a run gets slow, as data: signs at the cause, consequences, late members.

They are in mechanisms.toml. A mechanism is what an experienced engineer would look for. Weights are in bans:
an observation of weight 1 makes the cause ten times as likely as it was before, compared with any other.
"""

import tomllib
from importlib.resources import files
from typing import Literal

import msgspec

from holdfast.detect.signs import Sign
from holdfast.detect.suspects import SuspectPart
from holdfast.diagnose.incident import Verdict
from holdfast.signals.domains import Domain, Seam
from holdfast.topology.graph import Kind

Reach = Literal["beneath", "everyone", "wandering", "stall"]
"""Which members are slowed: those that depend on the cause and no others; all; another one each time; or
none, but the time between steps grows.
"""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a mechanism begins.

    kinds  of subjects at which it can begin
    seam   the border between teams that it crosses
    owner  the team that can fix it; empty: the owner of the subject
    """

    domain: Domain
    kinds: tuple[Kind, ...]
    seam: Seam = "gpu-fabric-pool"
    owner: str = ""


class Mechanism(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to be slow. `reach` and `slows` default to what most mechanisms have.

    suspect   the part of a node to check before a node that was drained for this comes back
    shows     signs at the cause, or at all of its parts
    follows   signs further down, at some of its dependents
    uneven    those of them that count only if just some dependents show them
    against   signs anywhere near it that suggest another cause
    slows     the symptoms in the run that it explains
    clears    signs whose absence counts, if they are measured
    needs     it is considered only with one of these signs; empty: those in `shows`
    decisions  actions whose decision just before supports it
    decides   the observation that would settle it
    is_owned  whether a team can be named as its owner
    leads_s   how long before the slowdown it may begin, for example because of a restart in between
    grows     it develops bit by bit: its own signs may stand out only long after steps became longer
    rivals    signs of causes that otherwise look the same: if they are not measured, confidence is lower; for
              a mechanism that may hit a part of the run, only if it hits all of it
    """

    name: str
    title: str
    origin: Origin
    suspect: SuspectPart
    decides: str
    action: str
    reach: Reach = "beneath"
    slows: tuple[Sign, ...] = ("late-compute", "slow-step")
    verdict: Verdict = "cause"
    shows: dict[Sign, float] = {}
    follows: dict[Sign, float] = {}
    uneven: tuple[Sign, ...] = ()
    against: dict[Sign, float] = {}
    clears: dict[Sign, float] = {}
    needs: tuple[Sign, ...] = ()
    decisions: tuple[str, ...] = ()
    is_owned: bool = True
    leads_s: float = 0.0
    grows: bool = False
    rivals: tuple[Sign, ...] = ()

    @property
    def pointers(self) -> tuple[Sign, ...]:
        """The signs that it needs: without any of them it is not considered."""
        return self.needs or tuple(self.shows)


def _told() -> dict[str, dict[str, object]]:
    return tomllib.loads(files("holdfast.diagnose").joinpath("mechanisms.toml").read_text("utf-8"))


MECHANISMS = tuple(msgspec.convert({"name": name, **told}, Mechanism) for name, told in _told().items())


def suspected(mechanism: str) -> SuspectPart:
    """The part of a node that this mechanism concerns; the whole node if the mechanism is unknown."""
    return next((one.suspect for one in MECHANISMS if one.name == mechanism), "node")
