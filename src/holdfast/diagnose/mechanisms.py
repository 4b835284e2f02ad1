"""The known ways in which something slows a run, as data: what shows at the cause, what follows, who is late.

They are in mechanisms.toml. A mechanism is no more than what an experienced engineer would look for. Weights
are in bans: an observation of weight 1 makes the cause ten times as likely, against any other, as it was
without it.
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
"""Who is slowed: the members that depend on the cause and no others; all of them; another one each time; or
nobody's step, but the time between steps."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a mechanism begins.

    kinds  of subject that it begins at
    seam   the border between teams that it crosses
    owner  the team that can mend it; empty: the one that owns the subject
    """

    domain: Domain
    kinds: tuple[Kind, ...]
    seam: Seam = "gpu-fabric-pool"
    owner: str = ""


class Mechanism(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to be slow.

    suspect   the part of a node that is checked before one that was drained for this comes back
    reach, slows: as most have them unless it is said
    shows     signs at the cause, or at all of what it consists of
    follows   signs further down, at some of what depends on it
    uneven    of these, that only some of what depends on it shows them is the point
    against   signs anywhere near it that speak for something else
    slows     the symptoms in the run that it explains
    clears    signs that are looked for and not found, where their absence says something
    needs     without one of these it is not thought of; those in `shows` where empty
    decisions what somebody had decided just before
    decides   the observation that would settle it
    is_owned  whether anybody can be told that it is theirs
    leads_s   it may come so long before the run is slower, as a restart may lie between
    grows     it comes bit by bit: its own signs may stand out from chance long after steps became longer
    rivals    signs of causes that look the same otherwise: where they are not measured, it is less sure; of
              what may be in a part of the run, only where it is all of it
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


def _told() -> dict[str, dict[str, object]]:
    return tomllib.loads(files("holdfast.diagnose").joinpath("mechanisms.toml").read_text("utf-8"))


MECHANISMS = tuple(msgspec.convert({"name": name, **told}, Mechanism) for name, told in _told().items())


def suspected(mechanism: str) -> SuspectPart:
    """Which part of a node this is about; all of it where no mechanism is called so."""
    return next((one.suspect for one in MECHANISMS if one.name == mechanism), "node")
