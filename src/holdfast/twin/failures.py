"""What breaks in the simulated cluster, how often, and what it takes with it: a run's failures drawn at once.

A class of failures has a rate per node and day, a reach (which nodes go together) and a repair time. Its
failures are a Poisson process over the nodes' time, denser where age makes it so (a Weibull shape), and only
as many numbers are drawn as there are failures: nothing walks over nodes or hours. The engine decides what a
failure does to a run, and ignores one that falls on a node which is out for repair already.
"""

from math import exp
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
"""What the cause is a part of. planned: nothing broke, it was done on purpose."""

Kind = Literal["crash", "hang", "gray", "planned"]
"""crash: the process dies, and that is seen. hang: nothing moves, and nobody is told. gray: the node goes on,
slower. planned: the stop is announced, so that the run can save first."""


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
"""Held where hazards are read from a file."""


class FailureClass(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of failures.

    rate_per_1000_node_days  how many begin at `Hazards.rated_age_days`, over all nodes, lemons included
    reach                    the nodes that go together: all that share this with the node struck
    transient_share          of these the machine is fine afterwards, and a new process can use it at once
    slowdown                 factor on the node's step time while the failure lasts; gray only
    repair_median_h, _sigma  the lognormal time a machine that is not fine is away, once it has been taken out
    weibull_shape            below 1: more failures while the cluster is young. 1: age does not matter
    source                   whose figure the rate is, and what here is assumed
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

    @property
    def repair_mean_h(self) -> float:
        return self.repair_median_h * exp(self.repair_sigma**2 / 2)


class LemonShare(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that fail again and again: their share of all, and their rate as a multiple of the others'."""

    share: Share
    factor: Positive
    source: str

    @property
    def failures_share(self) -> float:
        """How much of what strikes single nodes strikes them."""
        theirs = self.share * self.factor
        return theirs / (theirs + 1 - self.share)


class Hazards(msgspec.Struct, frozen=True, kw_only=True):
    """All that can break. age_days: the cluster's when the run begins. The rates hold at `rated_age_days`."""

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
        """The same classes, this many times as often."""
        classes = tuple(
            msgspec.structs.replace(row, rate_per_1000_node_days=row.rate_per_1000_node_days * factor)
            for row in self.classes
        )
        return msgspec.structs.replace(self, classes=classes)

    def expected(self, row: FailureClass, nodes: int, duration_ns: int) -> float:
        """How many failures of a class so many nodes have in a run this long, on average."""
        begin, end = self._ages(duration_ns)
        shape, rated = row.weibull_shape, self.rated_age_days
        aged_days: float = (end**shape - begin**shape) * rated ** (1 - shape) / shape
        return row.rate_per_1000_node_days / 1000 * nodes * aged_days

    def moments_ns(
        self, row: FailureClass, duration_ns: int, rng: np.random.Generator, count: int
    ) -> NDArray[np.int64]:
        """When `count` failures of a class happen, in no order: the inverse of its cumulative intensity."""
        begin, end = self._ages(duration_ns)
        shape = row.weibull_shape
        ages = (begin**shape + rng.random(count) * (end**shape - begin**shape)) ** (1 / shape)
        moments: NDArray[np.int64] = ((ages - begin) * DAY_NS).astype(np.int64)
        return moments.clip(0, max(0, duration_ns - 1))

    def _ages(self, duration_ns: int) -> tuple[float, float]:
        return self.age_days, self.age_days + duration_ns / DAY_NS


class Failure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One failure: `nodes` neighbours from `node` on are struck at `at_ns` of the run.

    repair_ns: how long each of them is away once it has been taken out; 0 where the failure is transient.
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
    # Lemons stand anywhere: the first of a shuffled row of all nodes are the lemons.
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
    """Which node each failure strikes. A lemon is a bad machine: what many nodes share does not prefer it."""
    if lemons is None or shuffled is None or row.reach != "node":
        return rng.integers(0, layout.nodes, count)
    lemon_nodes = round(lemons.share * layout.nodes)
    if not 0 < lemon_nodes < layout.nodes:  # a cluster too small to have any, or of nothing else
        return rng.integers(0, layout.nodes, count)
    of_lemons = rng.random(count) < lemons.failures_share
    places = np.where(
        of_lemons,
        rng.integers(0, lemon_nodes, count),
        rng.integers(lemon_nodes, layout.nodes, count),
    )
    return shuffled[places]
