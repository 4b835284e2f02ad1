"""Whether nodes fail together: faults of different nodes at nearly the same time, compared with chance.

To simulate chance, all faults of a node are moved by the same whole number of days, different for each node.
That keeps each node's pattern, the time of day and a slow drift of the rate, and breaks only the ties between
nodes. If racks or switches are known, a second test asks whether the nodes that share one fail together.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast import wording
from holdfast.economics.fitting.outages import Observation
from holdfast.economics.fitting.verdict import Verdict, chance, is_chance, unknown
from holdfast.wording.units import DAY_NS

FAULTS_MIN = 20
DAYS_MIN = 28.0
SHIFT_DAYS_MAX = 14
"""Far enough to separate coincident faults; near enough to keep a slow drift of the rate."""

DRAWS = 999
PAIRS_MAX = 1_000_000
"""With more pairs, everything coincides, and counting shared domains would take long."""

MINUTES_PER_DAY = 1_440

TOGETHER = "nodes fail together"
DOMAINS = "by shared domain"
QUESTIONS = (TOGETHER, DOMAINS)

_PLACED = re.compile(r"(.*[A-Za-z]+[-_]?[0-9]+)[-_.]+[A-Za-z]*[-_]?[0-9]+")
"""A name with two numbers, such as `rack07-node3`, `r7.n03`: the first part names the node's domain."""


class Coincidences(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of faults of different nodes that begin within `window_minutes` of each other.

    largest_nodes        nodes struck by the largest burst
    same_domain_percent  of the pairs; None if domains are unknown
    """

    window_minutes: float
    pairs: int
    largest_nodes: int
    same_domain_percent: float | None
    verdicts: tuple[Verdict, ...]


def domains_by_name(nodes: Sequence[str]) -> dict[str, str]:
    """The domain of each node by its name; empty unless all names have one and some nodes share theirs."""
    found = {node: named[1] for node in nodes if (named := _PLACED.fullmatch(node))}
    shared = 1 < len(set(found.values())) < len(found)
    return found if shared and len(found) == len(set(nodes)) else {}


def coincidences(
    seen: Observation, domains: Mapping[str, str], window_minutes: float, rng: np.random.Generator
) -> Coincidences | None:
    """None if there are too few faults or days. domains: the domain of each node; others are left out."""
    placed = [fault for fault in seen.faults if fault.node]
    if len(placed) < FAULTS_MIN or seen.days < DAYS_MIN:
        return None
    names = sorted({fault.node for fault in placed})
    number_of = {name: number for number, name in enumerate(names)}
    times = np.array([(fault.at_ns - seen.from_ns) / DAY_NS for fault in placed])
    nodes = np.array([number_of[fault.node] for fault in placed])
    window_days = window_minutes / MINUTES_PER_DAY
    observed, drawn = _pairs(times, nodes, seen.days, window_days, rng)
    largest = _largest(times, nodes, window_days)
    p_value = float(((drawn >= observed).sum() + 1) / (DRAWS + 1))
    shared = _shared(times, nodes, [domains.get(name, "") for name in names], window_days, rng)
    return Coincidences(
        window_minutes=window_minutes,
        pairs=observed,
        largest_nodes=largest,
        same_domain_percent=None if shared is None else shared.percent,
        verdicts=(
            Verdict(
                question=TOGETHER,
                answer="no" if is_chance(p_value) else "yes",
                sentence=f"{observed:,} pair{'s' * (observed != 1)} of nodes failed within "
                f"{wording.number(window_minutes)} minutes, by chance {drawn.mean():,.0f} would "
                f"({chance(p_value)}); one burst struck {largest} nodes.",
                p_value=p_value,
            ),
            _by_domain(shared),
        ),
    )


def _pairs(
    times: NDArray[np.float64],
    nodes: NDArray[np.int64],
    days: float,
    window_days: float,
    rng: np.random.Generator,
) -> tuple[int, NDArray[np.int64]]:
    """The number of pairs, and the numbers after each node is moved by its own days; faults moved beyond one
    end of the time re-enter at the other."""
    whole_days = np.ceil(days)
    of_one_node = sum(_close(np.sort(times[nodes == node]), window_days) for node in np.unique(nodes))
    drawn = np.empty(DRAWS, dtype=np.int64)
    for draw in range(DRAWS):
        shifts = rng.integers(-SHIFT_DAYS_MAX, SHIFT_DAYS_MAX + 1, nodes.max() + 1)
        drawn[draw] = _close(np.sort((times + shifts[nodes]) % whole_days), window_days) - of_one_node
    return _close(times, window_days) - of_one_node, drawn


def _close(times: NDArray[np.float64], window_days: float) -> int:
    """Number of pairs among sorted times that are no further apart than this."""
    behind = np.searchsorted(times, times + window_days, side="right")
    return int((behind - np.arange(1, times.size + 1)).sum())


def _largest(times: NDArray[np.float64], nodes: NDArray[np.int64], window_days: float) -> int:
    """The most nodes that fail within the window after some moment."""
    behind = np.searchsorted(times, times + window_days, side="right")
    return max(len(set(nodes[i:end].tolist())) for i, end in enumerate(behind))


class _Shared(NamedTuple):
    percent: float
    percent_expected: float
    p_value: float


def _shared(
    times: NDArray[np.float64],
    nodes: NDArray[np.int64],
    domains: Sequence[str],
    window_days: float,
    rng: np.random.Generator,
) -> _Shared | None:
    """The share of pairs in one domain, compared with nodes dealt to domains at random."""
    if len(set(domains) - {""}) < 2:
        return None
    behind = np.searchsorted(times, times + window_days, side="right")
    if (behind - np.arange(times.size) - 1).sum() > PAIRS_MAX:
        return None
    near = [(i, j) for i, end in enumerate(behind) for j in range(i + 1, end)]
    pairs = np.array(near, dtype=np.int64).reshape(-1, 2)
    left, right = nodes[pairs[:, 0]], nodes[pairs[:, 1]]
    _, labels = np.unique(np.array(domains), return_inverse=True)
    known = np.array([bool(domain) for domain in domains])
    of_two = (left != right) & known[left] & known[right]
    left, right = left[of_two], right[of_two]
    if not left.size:
        return None
    shares = np.empty(DRAWS)
    for draw in range(DRAWS):
        dealt = labels.copy()
        dealt[known] = rng.permutation(labels[known])
        shares[draw] = (dealt[left] == dealt[right]).mean()
    observed = (labels[left] == labels[right]).mean()
    p_value = float(((shares >= observed).sum() + 1) / (DRAWS + 1))
    return _Shared(float(100 * observed), float(100 * shares.mean()), p_value)


def _by_domain(shared: _Shared | None) -> Verdict:
    if shared is None:
        return unknown(DOMAINS, "Racks and switches are unknown; give them with `--domains`.")
    return Verdict(
        question=DOMAINS,
        answer="no" if is_chance(shared.p_value) else "yes",
        sentence=f"{shared.percent:.0f} % of pairs that failed together share a domain, by chance"
        f" {shared.percent_expected:.0f} % would ({chance(shared.p_value)}).",
        p_value=shared.p_value,
    )
