"""Repeat offenders: whether nodes that fail again and again are worse than chance would make them look.

If all nodes were alike, faults would fall on nodes as balls fall into boxes. The number of nodes with five or
more faults, and the faults of the worst node, are compared with that. A second count treats a flapping node,
which fails again within an hour of its return, as one episode. And the first half of the time is compared
with the second, since only a node that stays bad is worth removing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from holdfast.economics.fitting.clustering import clustering_of_each, design_effect, interval
from holdfast.economics.fitting.outages import Fault, Observation
from holdfast.economics.fitting.verdict import (
    CONFIDENCE,
    Answer,
    Interval,
    Verdict,
    chance,
    is_chance,
    unknown,
)
from holdfast.wording.units import DAY_NS, MINUTE_NS

FAULTS_MIN = 10
"""With fewer faults, nothing can be said about nodes."""

DRAWS, DRAWS_MIN = 9_999, 999
NUMBERS_AT_ONCE = 1_000_000
NUMBERS_MAX = 20_000_000
"""How many faults a test may deal in all; with many faults it makes fewer draws."""

FALSE_SHARE_MAX = 0.05
"""The share of nodes called bad that may be so by chance (Benjamini and Hochberg 1995)."""

RELAPSE_DAYS = 7
RELAPSE_DRAWS = 1_999
PERSISTENT_RATIO_MIN = 2.0
"""Formerly bad nodes that now fail less than twice as often as the others are not worth removing."""

JOB_NODES = 64
"""512 GPUs: Meta reports what removing lemons does for jobs of this size or more (Kokolis et al. 2024)."""

SHAPE_LOG_MIN, SHAPE_LOG_MAX = -4.0, 12.0

LEMONS = "lemons"
PERSISTENCE = "lemons stay bad"
REPAIRS_HOLD = "repairs hold"
QUESTIONS = (LEMONS, PERSISTENCE, REPAIRS_HOLD)

Counts = NDArray[np.int64]


class LemonNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with enough faults for a lemon.

    episodes        its faults, flapping counted once
    p_value         how often an average node has this many faults, corrected for testing every node
    is_bad          whether that is too rare for chance
    rate            expected faults per 1000 days: its own, weighed against those of all nodes
    interval        of that; its low end allows for the choice of the worst of all nodes
    """

    node: str
    faults: int
    episodes: int
    p_value: float
    is_bad: bool
    rate: float
    interval: Interval


class Crowding(msgspec.Struct, frozen=True, kw_only=True):
    """How unevenly faults or episodes fall on nodes, and how often they would by chance.

    nodes       nodes with enough for a lemon
    most        the count of the worst node
    dispersion  variance over mean of the nodes' counts: about 1 if nodes are alike
    p_value     of the most significant of the three, times three for three tests (Bonferroni)
    """

    count: int
    nodes: int
    nodes_expected: float
    most: int
    most_expected: float
    dispersion: float
    p_value: float


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """The rate per 1000 node-days with the lemons and without them: as observed, and as expected.

    job_percent  how often a job of 512 GPUs would have had a fault within a day
    """

    nodes: int
    rate: float
    rate_without: float
    rate_without_expected: float
    job_percent: float
    job_percent_without: float


class Lemons(msgspec.Struct, frozen=True, kw_only=True):
    """threshold: how many faults make a lemon.

    spread  shape of the gamma distribution of the nodes' rates; the larger, the more alike they are
    factor  expected rate of the lemons over that of the others; None without lemons
    """

    threshold: int
    faults: Crowding
    episodes: Crowding
    nodes: tuple[LemonNode, ...]
    spread: float
    factor: float | None
    removal: Removal | None
    verdicts: tuple[Verdict, ...]


def lemons(seen: Observation, threshold: int, flap_minutes: float, rng: np.random.Generator) -> Lemons | None:
    """None if too few faults name their node, or there is only one node."""
    placed = [fault for fault in seen.faults if fault.node]
    if len(placed) < FAULTS_MIN or seen.nodes < 2:
        return None
    merged = episodes(placed, flap_minutes)
    flaps_of = Counter(fault.node for fault in merged)
    names, counts = _by_node(placed, seen.nodes)
    faults, flaps_once = (
        _crowding(_by_node(counted, seen.nodes)[1], threshold, rng) for counted in (placed, merged)
    )
    expectations = _Expectations(counts, seen.node_days / seen.nodes)
    bad = counts >= threshold
    number_of = {name: number for number, name in enumerate(names)}
    clustered = clustering_of_each(
        np.array(seen.days_of(placed)), np.array([number_of[fault.node] for fault in placed]), seen.days
    )
    expected = expectations.means
    return Lemons(
        threshold=threshold,
        faults=faults,
        episodes=flaps_once,
        nodes=tuple(_named(_Ranked(names, counts, flaps_of, clustered), threshold, expectations)),
        spread=expectations.shape,
        factor=float(expected[bad].mean() / expected[~bad].mean()) if 0 < bad.sum() < bad.size else None,
        removal=_removal(counts, bad, expectations) if 0 < bad.sum() < bad.size else None,
        verdicts=(
            _judged(faults, flaps_once, threshold),
            _persistence(placed, seen, threshold),
            relapses(merged, seen, flap_minutes, rng),
        ),
    )


def episodes(faults: Sequence[Fault], flap_minutes: float) -> list[Fault]:
    """The faults, each merged with later ones of its node while it is away or soon after its return."""
    kept: list[Fault] = []
    last_of: dict[str, int] = {}
    for fault in faults:
        last = last_of.get(fault.node)
        if last is not None and fault.at_ns <= _end_ns(kept[last]) + flap_minutes * MINUTE_NS:
            kept[last] = _joined(kept[last], fault)
        else:
            last_of[fault.node] = len(kept)
            kept.append(fault)
    return kept


def _end_ns(fault: Fault) -> int:
    return fault.at_ns + (fault.outage_ns or 0)


def _joined(first: Fault, then: Fault) -> Fault:
    outage_ns = None
    if first.outage_ns is not None or then.outage_ns is not None:
        outage_ns = max(_end_ns(first), _end_ns(then)) - first.at_ns
    return msgspec.structs.replace(first, outage_ns=outage_ns, is_open=first.is_open or then.is_open)


def _by_node(faults: Sequence[Fault], nodes: int) -> tuple[list[str], Counts]:
    """The nodes with faults, the worst first, and the counts of all nodes in that order; the rest are 0."""
    ranked = Counter(fault.node for fault in faults).most_common()
    counts = np.zeros(nodes, dtype=np.int64)
    counts[: len(ranked)] = [count for _, count in ranked]
    return [node for node, _ in ranked], counts


def _crowding(counts: Counts, threshold: int, rng: np.random.Generator) -> Crowding:
    """Compare the counts with the same number of faults dealt to nodes at random, many times."""
    total, nodes = int(counts.sum()), counts.size
    draws = max(DRAWS_MIN, min(DRAWS, NUMBERS_MAX // total))
    at_once = max(1, NUMBERS_AT_ONCE // max(total, nodes))
    sizes = [min(at_once, draws - done) for done in range(0, draws, at_once)]
    dealt = np.concatenate([_unevenness(_dealt(total, nodes, size, rng), threshold) for size in sizes])
    observed = _unevenness(counts[np.newaxis], threshold)[0]
    full, most, dispersion = observed.tolist()
    p_values = ((dealt >= observed).sum(axis=0) + 1) / (draws + 1)
    full_expected, most_expected, _ = dealt.mean(axis=0).tolist()
    return Crowding(
        count=total,
        nodes=int(full),
        nodes_expected=full_expected,
        most=int(most),
        most_expected=most_expected,
        dispersion=dispersion,
        p_value=min(1.0, 3 * float(p_values.min())),
    )


def _dealt(faults: int, nodes: int, deals: int, rng: np.random.Generator) -> Counts:
    """The count of each node in each deal; a deal is a row."""
    places = rng.integers(0, nodes, (deals, faults)) + nodes * np.arange(deals)[:, np.newaxis]
    return np.bincount(places.ravel(), minlength=deals * nodes).reshape(deals, nodes)


def _unevenness(counts: Counts, threshold: int) -> NDArray[np.float64]:
    """For each row: the nodes with enough for a lemon, the largest count, and variance over mean."""
    dispersion = counts.var(axis=1, ddof=1) / counts.mean(axis=1)
    return np.stack([(counts >= threshold).sum(axis=1), counts.max(axis=1), dispersion], axis=1)


class _Expectations:
    """The expected rate of each node: a gamma distribution of rates over nodes, and the node's own faults.

    The distribution has the mean of all nodes and the likeliest shape. So a node without faults is not taken
    to be perfect, and the worst is not taken to be quite as bad as it looked.
    """

    def __init__(self, counts: Counts, days: float) -> None:
        self.days = days
        self._counts = counts
        self._mean = float(counts.mean())
        found = optimize.minimize_scalar(self._loss, bounds=(SHAPE_LOG_MIN, SHAPE_LOG_MAX), method="bounded")
        self.shape = float(np.exp(found.x))

    def _loss(self, shape_log: float) -> float:
        shape = np.exp(shape_log)
        return float(-stats.nbinom.logpmf(self._counts, shape, shape / (shape + self._mean)).sum())

    @property
    def means(self) -> NDArray[np.float64]:
        """Expected faults of each node, per 1000 days."""
        return (self._counts.astype(np.float64) + self.shape) * self._scale

    @property
    def _scale(self) -> float:
        return 1000 / self.days / (self.shape / self._mean + 1)


class _Ranked(NamedTuple):
    """The nodes, the worst first. clustered: how many faults of each tell as much as one."""

    names: list[str]
    counts: Counts
    merged: Counter[str]
    clustered: NDArray[np.float64]


def _named(ranked: _Ranked, threshold: int, expectations: _Expectations) -> Iterator[LemonNode]:
    counts = ranked.counts
    p_values = stats.false_discovery_control(stats.poisson.sf(counts - 1, counts.mean()))
    rows = zip(ranked.names, counts, p_values, expectations.means, ranked.clustered, strict=False)
    for node, count, p_value, mean, clustered in rows:
        if count < threshold:
            return
        low, high = interval(int(count), float(clustered), chosen_of=counts.size)
        rate, per_fault = float(mean), 1000 / expectations.days
        yield LemonNode(
            node=node,
            faults=int(count),
            episodes=ranked.merged[node],
            p_value=float(p_value),
            is_bad=bool(p_value < FALSE_SHARE_MAX),
            rate=rate,
            interval=(min(rate, low * per_fault), max(rate, high * per_fault)),
        )


def _removal(counts: Counts, bad: NDArray[np.bool_], expectations: _Expectations) -> Removal:
    rate, rate_without = (float(1000 * part.mean() / expectations.days) for part in (counts, counts[~bad]))
    return Removal(
        nodes=int(bad.sum()),
        rate=rate,
        rate_without=rate_without,
        rate_without_expected=float(expectations.means[~bad].mean()),
        job_percent=_job_percent(rate),
        job_percent_without=_job_percent(rate_without),
    )


def _job_percent(rate_per_1000_node_days: float) -> float:
    return -100 * math.expm1(-JOB_NODES * rate_per_1000_node_days / 1000)


def _judged(faults: Crowding, merged: Crowding, threshold: int) -> Verdict:
    """Yes only if it holds both with and without flapping."""
    certain = is_chance(faults.p_value) == is_chance(merged.p_value)
    nodes = (
        f"{faults.nodes} nodes had {threshold} faults or more, by chance {faults.nodes_expected:.1f} would"
    )
    most = f"the worst had {faults.most}, by chance {faults.most_expected:.1f}"
    flapping = f"with flapping counted once {merged.nodes} and {merged.most} ({chance(merged.p_value)})"
    return Verdict(
        question=LEMONS,
        answer="unknown" if not certain else "no" if is_chance(faults.p_value) else "yes",
        sentence=f"{nodes}; {most} ({chance(faults.p_value)}); {flapping}.",
        p_value=faults.p_value,
    )


def _persistence(faults: Sequence[Fault], seen: Observation, threshold: int) -> Verdict:
    """Whether the nodes that were bad in the first half are bad in the second."""
    middle_ns = (seen.from_ns + seen.until_ns) // 2
    early = Counter(fault.node for fault in faults if fault.at_ns < middle_ns)
    later = [fault for fault in faults if fault.at_ns >= middle_ns]
    enough = -(-threshold // 2)
    once_bad = {node for node, count in early.items() if count >= enough}
    total, theirs = len(later), sum(fault.node in once_bad for fault in later)
    if len(once_bad) < 2 or total < FAULTS_MIN:
        return unknown(PERSISTENCE, "Too few nodes were bad in the first half of the time.")
    if len(once_bad) == seen.nodes:
        return unknown(PERSISTENCE, "All nodes were bad in the first half of the time, so none can compare.")
    is_theirs = np.array([fault.node in once_bad for fault in later], dtype=float)
    low, ratio, high = (
        _ratio(part, len(once_bad), seen.nodes)
        for part in _share(is_theirs, design_effect(is_theirs, np.array(seen.days_of(later))))
    )
    second = (
        f"all {total:,} faults of the second"
        if theirs == total
        else f"{ratio:.1f} times the others' rate in the second ({low:.1f} to {high:.1f})"
    )
    sentence = f"The {len(once_bad)} nodes with {enough} faults or more in the first half had {second}."
    answer: Answer = "yes" if low > 1 else "no" if high < PERSISTENT_RATIO_MIN else "unknown"
    return Verdict(question=PERSISTENCE, answer=answer, sentence=sentence)


def _share(hits: NDArray[np.float64], clustered: float) -> tuple[float, float, float]:
    """The share of hits between the ends of its interval (Clopper and Pearson 1934), if some tell as one."""
    total, found = hits.size / clustered, hits.sum() / clustered
    tail = (1 - CONFIDENCE) / 2
    low = stats.beta.ppf(tail, found, total - found + 1) if found else 0.0
    high = stats.beta.ppf(1 - tail, found + 1, total - found) if found < total else 1.0
    return float(low), float(hits.mean()), float(high)


def _ratio(share: float, theirs: int, nodes: int) -> float:
    """The rate of `theirs` nodes over that of the others, if they have this share of all faults."""
    return math.inf if share >= 1 else (share / theirs) / ((1 - share) / (nodes - theirs))


def relapses(
    merged: Sequence[Fault], seen: Observation, flap_minutes: float, rng: np.random.Generator
) -> Verdict:
    """Whether nodes fail again within a week of their return more often than by their own rates.

    A node's faults are compared with the same number at random in its own time at work: a node that is always
    bad fails often after a repair, and before it as well. Flapping is left out.
    """
    week_days, flap_days = float(RELAPSE_DAYS), flap_minutes * MINUTE_NS / DAY_NS
    service = [found for found in _service(merged, seen) if len(found.gaps_days)]
    gaps = np.concatenate([found.gaps_days for found in service]) if service else np.zeros(0)
    if gaps.size < FAULTS_MIN:
        return unknown(REPAIRS_HOLD, "Too few nodes were seen to fail again after they came back.")
    again = int((gaps <= week_days).sum())
    drawn = _drawn_relapses(service, week_days, flap_days, rng)
    p_value = float(((drawn >= again).sum() + 1) / (drawn.size + 1))
    sentence = (
        f"{again} of {gaps.size} faults of nodes that had failed before came within {RELAPSE_DAYS} days of "
        f"their coming back; by each node's own rate {drawn.mean():.1f} would ({chance(p_value)})."
    )
    answer: Answer = "yes" if is_chance(p_value) else "no"
    return Verdict(question=REPAIRS_HOLD, answer=answer, sentence=sentence, p_value=p_value)


class _Service(msgspec.Struct, frozen=True, kw_only=True):
    """A node's time at work, and how long it worked from each return to its next fault."""

    days: float
    gaps_days: NDArray[np.float64]


def _service(merged: Sequence[Fault], seen: Observation) -> Iterator[_Service]:
    """The service of every node whose outages are all known; a node that is away does not fail."""
    by_node: defaultdict[str, list[Fault]] = defaultdict(list)
    for fault in merged:
        by_node[fault.node].append(fault)
    for faults in by_node.values():
        if any(fault.outage_ns is None for fault in faults):
            continue
        away_ns = sum(min(_end_ns(fault), seen.until_ns) - fault.at_ns for fault in faults)
        gaps_ns = [then.at_ns - _end_ns(first) for first, then in pairwise(faults)]
        yield _Service(
            days=(seen.until_ns - seen.from_ns - away_ns) / DAY_NS,
            gaps_days=np.array(gaps_ns, dtype=float) / DAY_NS,
        )


def _drawn_relapses(
    service: Sequence[_Service], week_days: float, flap_days: float, rng: np.random.Generator
) -> Counts:
    """How many gaps are a week at most if each node's faults are random in its time at work."""
    total = sum(len(found.gaps_days) + 1 for found in service)
    draws = max(DRAWS_MIN, min(RELAPSE_DRAWS, NUMBERS_MAX // total))
    again = np.zeros(draws, dtype=np.int64)
    for found in service:
        faults = len(found.gaps_days) + 1
        # No gap is shorter than flapping: deal the remaining time at random, then add that to each gap.
        room_days = max(found.days - flap_days * (faults - 1), 0.0)
        moments = np.sort(rng.uniform(0, room_days, (draws, faults)), axis=1)
        again += (np.diff(moments, axis=1) + flap_days <= week_days).sum(axis=1)
    return again
