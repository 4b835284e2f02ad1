"""The truth of a scenario, kept apart from everything that an operator can see."""

from typing import Literal

import msgspec

from holdfast.signals.domains import Domain, Seam

Owner = Literal[
    "facilities", "network", "hardware", "platform", "storage", "serving", "training", "scheduling", "none"
]
"""The team that can mend it."""
Where = Literal["slowdown", "data_stall", "checkpoint_stall", "none"]
"""The category of the ledger that has most of the loss."""


class TrueCause(msgspec.Struct, frozen=True, kw_only=True):
    """subject: the loop, port, node ... at which it began."""

    subject: str
    domain: Domain
    mechanism: str
    owner: Owner


class MetricTrace(msgspec.Struct, frozen=True):
    """A metric that shows the incident, and the subjects at which it does."""

    metric: str
    subjects: tuple[str, ...]


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator sees first. at_ns: from when on; None if nothing shows."""

    what: str
    domain: Domain
    trace: MetricTrace
    at_ns: int | None


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a scenario.

    is_incident   False: nothing is wrong, and a diagnosis that finds a cause is mistaken
    ended_ns      None: it is not over when the record ends
    traces        where the cause itself shows
    affected      the members that it slows, one a node; for a cause that reaches all of them, all
    slowdown      time per step between beginning and end, waits and checkpoints included, over that of a
                  healthy run
    lost_s        the run's lost time; loss: the ledger's category with most of it
    decides       the one observation that would settle it
    """

    scenario: str
    seed: int
    is_incident: bool
    cause: TrueCause
    began_ns: int
    ended_ns: int | None
    seam: Seam
    surface: Surface
    traces: tuple[MetricTrace, ...]
    affected: tuple[str, ...]
    slowdown: float
    lost_s: float
    loss: Where
    decides: str
