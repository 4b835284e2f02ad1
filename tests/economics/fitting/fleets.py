"""Fleets with known truth, and how often the intervals of a fit hold it. Nothing here is from the fit itself.

Five kinds: nodes that are all alike; lemons, a twentieth of the nodes with ten times the rate of the others;
bursts, in which nodes of a rack fail together, a few of them again and again in the hours that follow; good
and bad weeks; and all of these in a fleet that ages. Size, time and rate differ from fleet to fleet.
"""

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.economics.fitting.fitting import FailureFit
from holdfast.economics.fitting.lemons import PERSISTENCE
from holdfast.economics.fitting.outages import Fault, Observation
from holdfast.wording.units import DAY_NS

HOUR_NS = DAY_NS // 24
KINDS = ("alike", "lemons", "bursts", "bad weeks", "mixed, ageing")
CLASSES = {
    "hardware/GPU": 0.4,
    "hardware/NIC": 0.2,
    "software/Driver": 0.2,
    "hardware/Fan": 0.1,
    "other/Unknown": 0.07,
    "hardware/Power": 0.03,
}
HARDWARE_SHARE = 0.73
RACK_NODES = 8
LEMON_SHARE, LEMON_FACTOR = 0.05, 10.0
BURST_NODES_MEAN, FLAPPING_SHARE, FLAPS_MEAN = 4.0, 0.2, 3.0
BURSTS_OF_FAULTS = 0.5
AGEING = 1.5
OUTAGE_SHAPE, OUTAGE_SCALE_H = 0.7, 12.0

INTERVALS = {
    "rate",
    "hardware",
    "class",
    "node",
    "worst node",
    "median outage",
    "outage shape",
    "growth",
    "bad nodes later",
}
"""Every interval of a fit, by what it is of; `worst node` is the first of the nodes."""

Array = NDArray[np.float64]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """faults: expected in all. by_node: expected of each node, early and late: in each half of the time."""

    seen: Observation
    faults: float
    early: Array
    late: Array
    growth: float

    @property
    def by_node(self) -> Array:
        return self.early + self.late


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """An interval that a fit gives, and whether it holds."""

    what: str
    holds: bool
    width: float


def fleet(kind: str, rng: np.random.Generator) -> Fleet:
    nodes, days = int(rng.integers(60, 401)), int(rng.integers(120, 401))
    single = float(rng.uniform(80, 500))
    is_mixed = kind == KINDS[4]
    weights = np.ones(nodes)
    if kind == "lemons" or is_mixed:
        weights[rng.permutation(nodes)[: math.ceil(LEMON_SHARE * nodes)]] = LEMON_FACTOR
    weights /= weights.sum()
    has_bursts = kind == "bursts" or is_mixed
    alone = single * (1 - BURSTS_OF_FAULTS if has_bursts else 1.0)
    growth = AGEING if is_mixed else 1.0
    intensity = _Intensity(days, growth, rng if kind == "bad weeks" or is_mixed else None)
    struck = [(at, [int(rng.choice(nodes, p=weights))], 0.0) for at in intensity.moments(alone, rng)]
    racks = nodes // RACK_NODES
    by_burst = np.zeros(nodes)
    if has_bursts:
        sizes = _burst_sizes()
        each = float(sizes @ np.arange(1, RACK_NODES + 1))
        per_fault = 1 + FLAPPING_SHARE * FLAPS_MEAN
        bursts = single * BURSTS_OF_FAULTS / each / per_fault
        for at in intensity.moments(bursts, rng):
            size = int(rng.choice(RACK_NODES, p=sizes)) + 1
            rack = int(rng.integers(racks))
            nodes_struck = rack * RACK_NODES + rng.permutation(RACK_NODES)[:size]
            struck.append((at, nodes_struck.tolist(), FLAPPING_SHARE))
        by_burst[: racks * RACK_NODES] = single * BURSTS_OF_FAULTS / (racks * RACK_NODES)
    faults = sorted(_faults(struck, days, rng), key=lambda fault: fault.at_ns)
    seen = Observation(
        faults=tuple(faults),
        nodes=nodes,
        node_days=float(nodes * days),
        from_ns=0,
        until_ns=days * DAY_NS,
        source="given",
        assumptions=(),
    )
    expected = alone * weights + by_burst
    half = 0.5**growth
    return Fleet(
        seen=seen,
        faults=float(expected.sum()),
        early=expected * half,
        late=expected * (1 - half),
        growth=growth,
    )


def _burst_sizes() -> Array:
    sizes = np.arange(1, RACK_NODES + 1)
    shares = (1 - 1 / BURST_NODES_MEAN) ** (sizes - 1)
    return np.array(shares / shares.sum())


class _Intensity:
    """Moments by a rate that grows with a power of time and, if there is a generator, differs by the week."""

    def __init__(self, days: int, growth: float, rng: np.random.Generator | None) -> None:
        self._days, self._growth = days, growth
        weeks = math.ceil(days / 7)
        self._weeks = np.ones(weeks) if rng is None else rng.gamma(1.0, 1.0, weeks)

    def moments(self, expected: float, rng: np.random.Generator) -> list[float]:
        most = float(self._weeks.max())
        asked = self._days * rng.uniform(0, 1, rng.poisson(expected * most)) ** (1 / self._growth)
        kept = rng.uniform(0, most, asked.size) < self._weeks[(asked // 7).astype(int)]
        return [float(at) for at in asked[kept]]


def _faults(
    struck: list[tuple[float, list[int], float]], days: int, rng: np.random.Generator
) -> Iterator[Fault]:
    """Those that are struck together fail within minutes, for one reason, and are repaired together."""
    for at, nodes, flapping in struck:
        kind = str(rng.choice(list(CLASSES), p=list(CLASSES.values())))
        outage_h = OUTAGE_SCALE_H * float(rng.weibull(OUTAGE_SHAPE))
        for node in nodes:
            moment = at + float(rng.uniform(0, 0.004))
            again = rng.poisson(FLAPS_MEAN) if rng.random() < flapping else 0
            for _ in range(1 + again):
                if moment < days:
                    yield _fault(node, kind, moment, outage_h, days)
                moment += outage_h / 24 + float(rng.uniform(0.01, 0.2))


def _fault(node: int, kind: str, at: float, outage_h: float, days: int) -> Fault:
    left_h = 24 * (days - at)
    return Fault(
        node=f"n{node}",
        kind=kind,
        at_ns=round(at * DAY_NS),
        outage_ns=round(min(outage_h, left_h) * HOUR_NS),
        is_open=outage_h > left_h,
    )


def intervals(made: Fleet, told: FailureFit) -> Iterator[Truth]:
    """Every interval of the fit, against the truth."""
    seen = made.seen
    per_node_day = 1000 / seen.node_days
    yield _truth("rate", made.faults * per_node_day, told.faults_interval)
    if told.hardware_interval is not None:
        yield _truth("hardware", HARDWARE_SHARE * made.faults * per_node_day, told.hardware_interval)
    for row in told.classes:
        yield _truth("class", CLASSES[row.name] * made.faults * per_node_day, row.interval)
    days = seen.node_days / seen.nodes
    worst = [
        _truth("node", 1000 * made.by_node[int(one.node[1:])] / days, one.interval)
        for one in told.worst_nodes
    ]
    yield from worst
    if worst:
        yield Truth(what="worst node", holds=worst[0].holds, width=worst[0].width)
    yield from _of_outages(told)
    if told.arrivals is not None:
        yield _truth("growth", made.growth, told.arrivals.growth_interval)
    yield from _of_persistence(made, told)


def _of_outages(told: FailureFit) -> Iterator[Truth]:
    if told.repairs is None:
        return
    if (median := told.repairs.median_interval_h) is not None:
        yield _truth("median outage", OUTAGE_SCALE_H * math.log(2) ** (1 / OUTAGE_SHAPE), median)
    if told.repairs.weibull is not None:
        yield _truth("outage shape", OUTAGE_SHAPE, told.repairs.weibull.shape_interval)


def _of_persistence(made: Fleet, told: FailureFit) -> Iterator[Truth]:
    """The nodes with three faults or more in the first half, over the others, in the second."""
    (sentence,) = (one.sentence for one in told.verdicts if one.question == PERSISTENCE)
    if " (" not in sentence:
        return
    low, high = (float(part) for part in sentence.rpartition(" (")[2].removesuffix(").").split(" to "))
    half_ns = made.seen.until_ns // 2
    early = [int(fault.node[1:]) for fault in made.seen.faults if fault.at_ns < half_ns]
    bad = np.bincount(early, minlength=made.seen.nodes) >= 3
    truth = float(made.late[bad].mean() / made.late[~bad].mean())
    yield _truth("bad nodes later", truth, (low - 0.05, high + 0.05))  # it is told with one decimal


def _truth(what: str, truth: float, interval: tuple[float, float]) -> Truth:
    low, high = interval
    return Truth(what=what, holds=low <= truth <= high, width=(high - low) / truth)
