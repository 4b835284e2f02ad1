"""Failures of the simulated cluster: their classes, and all failures of a run drawn at once.

A class of failures has a rate per node and day, a reach (which nodes fail together) and a repair time. Its
failures are a Poisson process over the nodes' time, with a rate that may depend on age (a Weibull shape). The
draw takes as many numbers as there are failures and never loops over nodes or hours. The engine decides what
a failure does to a run, and ignores one on a node that is already out for repair.
"""

from operator import attrgetter
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.twin.cluster import Domain, Layout
from holdfast.wording.units import DAY_NS, HOUR_NS

Part = Literal[
    "gpu", "memory", "host", "fabric", "storage", "power", "cooling", "software", "planned", "unknown"
]
"""The part that caused the failure. planned: nothing broke, the stop was intended."""

Kind = Literal["crash", "hang", "gray", "planned"]
"""crash: the process dies visibly. hang: nothing moves, and nothing reports it. gray: the node goes on,
slower. planned: the stop is announced, so the run can save first."""


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
"""These limits are checked when hazards are read from a file."""


class FailureClass(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of failures.

    rate_per_1000_node_days  the rate at `Hazards.rated_age_days`, over all nodes, lemons included
    reach                    the domain that fails together: all nodes that share it with the node struck
    transient_share          share of failures after which the machine is fine for a new process at once
    slowdown                 factor on the node's step time while the failure lasts; gray only
    repair_median_h, _sigma  the lognormal repair time of a broken machine, once it has been taken out
    weibull_shape            below 1: more failures while the cluster is young. 1: age does not matter
    source                   the source of the rate, and which values are assumed
    """

    name: str
    part: Part
    rate_per_1000_node_days: NotNegative
    source: str
    reach: Domain = "node"
    kind: Kind = "crash"
    transient_share: Share = 0.0
    slowdown: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    repair_median_h: NotNegative = 0.0
    repair_sigma: NotNegative = 0.0
    weibull_shape: Positive = 1.0


class LemonShare(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that fail again and again: their share of all, and their rate as a multiple of the others'."""

    share: Share
    factor: Positive
    source: str

    @property
    def failures_share(self) -> float:
        """The share of single-node failures that strike lemons."""
        theirs = self.share * self.factor
        return theirs / (theirs + 1 - self.share)


class Hazards(msgspec.Struct, frozen=True, kw_only=True):
    """All failure classes. age_days: the cluster's age at the run's start; rates hold at `rated_age_days`."""

    classes: tuple[FailureClass, ...]
    lemons: LemonShare | None = None
    age_days: NotNegative = 0.0
    rated_age_days: Positive = 365.0

    @property
    def rate_per_1000_node_days(self) -> float:
        return sum(row.rate_per_1000_node_days for row in self.classes)

    def unplanned(self) -> "Hazards":
        """Without planned stops."""
        classes = tuple(row for row in self.classes if row.kind != "planned")
        return msgspec.structs.replace(self, classes=classes)

    def scaled(self, factor: float) -> "Hazards":
        """The same classes with rates multiplied by the factor."""
        classes = tuple(
            msgspec.structs.replace(row, rate_per_1000_node_days=row.rate_per_1000_node_days * factor)
            for row in self.classes
        )
        return msgspec.structs.replace(self, classes=classes)

    def expected(self, row: FailureClass, nodes: int, duration_ns: int) -> float:
        """The mean number of failures of a class on this many nodes in a run this long."""
        begin, end = self._ages(duration_ns)
        shape, rated = row.weibull_shape, self.rated_age_days
        aged_days: float = (end**shape - begin**shape) * rated ** (1 - shape) / shape
        return row.rate_per_1000_node_days / 1000 * nodes * aged_days

    def moments_ns(
        self, row: FailureClass, duration_ns: int, rng: np.random.Generator, count: int
    ) -> NDArray[np.int64]:
        """Moments of `count` failures of a class, unsorted, by the inverse of its cumulative intensity."""
        begin, end = self._ages(duration_ns)
        shape = row.weibull_shape
        ages = (begin**shape + rng.random(count) * (end**shape - begin**shape)) ** (1 / shape)
        moments: NDArray[np.int64] = ((ages - begin) * DAY_NS).astype(np.int64)
        return moments.clip(0, max(0, duration_ns - 1))

    def _ages(self, duration_ns: int) -> tuple[float, float]:
        return self.age_days, self.age_days + duration_ns / DAY_NS


class Failure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One failure: it strikes `nodes` consecutive nodes, beginning with `node`, at `at_ns` of the run.

    repair_ns: the repair time of each once it has been taken out; 0 if the failure is transient.
    """

    at_ns: int
    node: int
    nodes: int
    row: FailureClass
    is_transient: bool
    repair_ns: int

    @property
    def kind(self) -> Kind:
        return self.row.kind

    @property
    def slowdown(self) -> float:
        return self.row.slowdown


def draw(hazards: Hazards, layout: Layout, duration_ns: int, rng: np.random.Generator) -> list[Failure]:
    """Every failure of a run, in order of time; the same generator state gives the same list."""
    # Lemons can be anywhere: they are the first of all nodes in shuffled order.
    shuffled = rng.permutation(layout.nodes) if hazards.lemons else None
    failures: list[Failure] = []
    for row in hazards.classes:
        count = int(rng.poisson(hazards.expected(row, layout.nodes, duration_ns)))
        moments = hazards.moments_ns(row, duration_ns, rng, count)
        struck = _struck(row, hazards.lemons, layout, shuffled, rng, count)
        transient = rng.random(count) < row.transient_share
        repair_h = row.repair_median_h * np.exp(row.repair_sigma * rng.standard_normal(count))
        repair_ns = np.where(transient, 0, repair_h * HOUR_NS).astype(np.int64)
        columns = zip(moments.tolist(), struck.tolist(), transient.tolist(), repair_ns.tolist(), strict=True)
        for at_ns, node, is_transient, repair in columns:
            reached = layout.nodes_of(row.reach, layout.number(row.reach, node))
            failures.append(
                Failure(
                    at_ns=at_ns,
                    node=reached.start,
                    nodes=len(reached),
                    row=row,
                    is_transient=is_transient,
                    repair_ns=repair,
                )
            )
    failures.sort(key=attrgetter("at_ns"))
    return failures


def _struck(
    row: FailureClass,
    lemons: LemonShare | None,
    layout: Layout,
    shuffled: NDArray[np.int64] | None,
    rng: np.random.Generator,
    count: int,
) -> NDArray[np.int64]:
    """The node that each failure strikes. Only single-node failures prefer lemons, which are bad machines."""
    if lemons is None or shuffled is None or row.reach != "node":
        return rng.integers(0, layout.nodes, count)
    lemon_nodes = round(lemons.share * layout.nodes)
    if not 0 < lemon_nodes < layout.nodes:  # none or all nodes would be lemons
        return rng.integers(0, layout.nodes, count)
    of_lemons = rng.random(count) < lemons.failures_share
    places = np.where(
        of_lemons,
        rng.integers(0, lemon_nodes, count),
        rng.integers(lemon_nodes, layout.nodes, count),
    )
    return shuffled[places]
