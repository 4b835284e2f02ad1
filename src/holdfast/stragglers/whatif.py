"""What-ifs on a trace: the step at its ideal, and how much of the slowdown each part explains.

ideal        every computation takes the mean of its type over all workers, stages and steps, and every
             communication the median of its type's transfers: one slow worker does not move a median, and a
             mean preserves the amount of work
slowdown     of a part: the step with everything ideal except this part, over the ideal step
share        of a part: how much of the slowdown disappears when it alone gets its ideal durations. Parts that
             wait for each other share an explanation, so shares need not add up to one
score        of a worker: the smaller of the slowdowns of its replica and of its stage, which needs no what-if
             per worker; the few with the highest are then examined one by one
"""

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.stragglers import operations as op
from holdfast.stragglers.graph import Graph, build
from holdfast.stragglers.pattern import Pattern, evened_s, pattern_of, without_pauses_s
from holdfast.stragglers.trace import Floats, Ints, Trace

SLOWEST_SHARE = 0.03
"""M_W covers this share of the workers, rounded up (the paper, equation 5)."""
WORKERS_RANKED_MAX = 64
"""How many workers get what-ifs of their own."""
REPLICAS_FIXED_MAX = 16
"""How many data-parallel ranks are tried with ideal durations, the slowest first."""
SUSPECTS_MAX = 8
"""Up to this many workers are tried together, the slowest first,"""
HALF = 0.5
"""until they explain this share of the slowdown: the paper's threshold for M_W and M_S."""
ROWS_AT_ONCE = 2**17
"""Steps are computed together up to about this many operations, which fit into the caches,"""
COLUMNS_AT_ONCE = 64
"""and this many what-ifs."""

ROUNDING = 1e-9
"""A slowdown below this is rounding error."""

Table = NDArray[np.bool_]


class RankedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """share: None if there is no slowdown to explain."""

    name: str
    rank: int
    dp_rank: int
    stage: int
    score: float
    slowdown: float
    share: float | None


class RankedStage(msgspec.Struct, frozen=True, kw_only=True):
    stage: int
    slowdown: float
    share: float | None


class RankedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """All workers of one data-parallel rank. share: also None if its slowdown is not among the highest."""

    dp_rank: int
    slowdown: float
    share: float | None


class Suspects(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest of the slowest workers that together explain half of the slowdown, or the most tried."""

    names: tuple[str, ...]
    fixed_s: float
    share: float | None


class RankedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """count: the number of operations of this type; both ends of a transfer count."""

    type: str
    is_communication: bool
    count: int
    ideal_s: float
    slowdown: float
    share: float | None


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a trace, in seconds a step, the mean over its steps.

    recorded_s   the recorded step time; `step_s`: simulated with its own durations, but without the gaps in
                 which a worker did nothing although it could; `ideal_s`: with everything at its ideal
    m_w, m_s     the shares that the slowest 3 % of the workers and the last stage explain; None for m_s with
                 one stage, and for both if the step is at its ideal
    slowest      the workers behind m_w, and the step with their durations at the ideal
    variation_share       the share of variation between microbatches on the same worker,
    pauses_share          of operations that took far longer than usual there,
    communication_share   and of all communication
    workers      those with the highest scores, ranked by the slowdown each makes alone
    scores       of all workers, in the trace's order
    """

    recorded_s: float
    step_s: float
    ideal_s: float
    slowdown: float
    m_w: float | None
    m_s: float | None
    variation_share: float | None
    pauses_share: float | None
    communication_share: float | None
    steps: int
    operation_count: int
    worker_count: int
    pattern: Pattern
    slowest: Suspects
    suspects: Suspects
    workers: tuple[RankedWorker, ...]
    stages: tuple[RankedStage, ...]
    replicas: tuple[RankedReplica, ...]
    operations: tuple[RankedOperation, ...]
    scores: tuple[float, ...]


def analyse(trace: Trace) -> Analysis:
    simulated = _Simulated(trace)
    broad = _Broad(simulated)
    scores = broad.scores()
    by_score = sorted(range(len(scores)), key=lambda worker: (-scores[worker], trace.workers[worker].rank))
    slowest = _fixed(simulated, broad, [by_score[: math.ceil(SLOWEST_SHARE * len(scores))]])[0]
    workers = _workers(simulated, broad, by_score[:WORKERS_RANKED_MAX], scores)
    stages = broad.stages()
    return Analysis(
        recorded_s=_recorded_s(trace),
        step_s=broad.step_s,
        ideal_s=broad.ideal_s,
        slowdown=broad.slowdown,
        m_w=slowest.share,
        m_s=stages[-1].share if len(stages) > 1 else None,
        variation_share=broad.share(simulated.mean_with_s(evened_s(trace, simulated.duration_s))),
        pauses_share=broad.share(simulated.mean_with_s(without_pauses_s(trace, simulated.duration_s))),
        communication_share=broad.share(broad.without_communication_s),
        steps=len(trace.steps),
        operation_count=len(trace),
        worker_count=len(trace.workers),
        pattern=pattern_of(trace),
        slowest=slowest,
        suspects=_suspects(simulated, broad, workers),
        workers=tuple(worker for _, worker in workers),
        stages=stages,
        replicas=broad.replicas(),
        operations=tuple(sorted(broad.operations(), key=lambda one: (-one.slowdown, one.type))),
        scores=scores,
    )


def _workers(
    simulated: "_Simulated", broad: "_Broad", chosen: Sequence[int], scores: Sequence[float]
) -> list[tuple[int, RankedWorker]]:
    """These workers, each with its what-ifs, ranked by the slowdown it makes alone."""
    alone = [[worker] for worker in chosen]
    kept_s, fixed = simulated.means_s(simulated.worker, alone), _fixed(simulated, broad, alone)
    ranked = []
    for number, added_s, one in zip(chosen, kept_s, fixed, strict=True):
        worker = simulated.trace.workers[number]
        found = RankedWorker(
            name=worker.title,
            rank=worker.rank,
            dp_rank=worker.dp_rank,
            stage=worker.stage,
            score=scores[number],
            slowdown=added_s / (broad.ideal_s or 1.0),
            share=one.share,
        )
        ranked.append((number, found))
    return sorted(ranked, key=lambda one: (-one[1].slowdown, one[1].rank))


def _suspects(
    simulated: "_Simulated", broad: "_Broad", workers: Sequence[tuple[int, RankedWorker]]
) -> Suspects:
    numbers = [number for number, _ in workers]
    most = max(1, min(SUSPECTS_MAX, len(simulated.trace.workers) // 2))
    tried = _fixed(simulated, broad, [numbers[:count] for count in range(1, most + 1)])
    return next((one for one in tried if (one.share or 0.0) >= HALF), tried[-1])


def _fixed(simulated: "_Simulated", broad: "_Broad", sets: Sequence[Sequence[int]]) -> list[Suspects]:
    """What each set of workers explains, if only that set is ideal."""
    count = len(simulated.trace.workers)
    fixed_s = simulated.means_s(simulated.worker, [_others(count, one) for one in sets])
    return [
        Suspects(
            names=tuple(simulated.trace.workers[number].title for number in one),
            fixed_s=time_s,
            share=broad.share(time_s),
        )
        for one, time_s in zip(sets, fixed_s, strict=True)
    ]


def _others(count: int, without: Sequence[int]) -> list[int]:
    gone = set(without)
    return [number for number in range(count) if number not in gone]


def _recorded_s(trace: Trace) -> float:
    """From a step's first start to its last end, the mean over the steps."""
    last_s = np.zeros(len(trace.steps))
    np.maximum.at(last_s, trace.step, trace.end_s)
    return float(last_s.mean())


class _Simulated:
    """The graphs of a trace, and what-ifs on all of them.

    duration_s: of each operation, or of its transfer; ideal_s: its ideal duration. The other columns say what
    each operation belongs to.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.graphs = tuple(build(trace, rows) for rows in _batches(trace))
        self.duration_s = np.concatenate([graph.duration_s for graph in self.graphs])
        self.type_ideal_s = _ideals_s(trace, self.duration_s)
        self.ideal_s = self.type_ideal_s[trace.kind]
        self.groups = tuple(sorted({op.group_of(kind) for kind in trace.kinds}))
        group = np.array([self.groups.index(op.group_of(kind)) for kind in trace.kinds])
        stages, dp_ranks = trace.stages, trace.dp_ranks
        self.group: Ints = group[trace.kind]
        self.worker = trace.worker
        self.stage_of = np.array([stages.index(worker.stage) for worker in trace.workers])
        self.dp_of = np.array([dp_ranks.index(worker.dp_rank) for worker in trace.workers])

    def means_s(self, belongs: Ints, what_ifs: Sequence[Sequence[int]]) -> list[float]:
        """The mean step time of each what-if: only what belongs to it keeps its own durations."""
        table: Table = np.zeros((int(belongs.max()) + 1, len(what_ifs)), dtype=bool)
        for column, kept in enumerate(what_ifs):
            table[list(kept), column] = True
        means: list[float] = []
        for first in range(0, table.shape[1], COLUMNS_AT_ONCE):
            columns = table[:, first : first + COLUMNS_AT_ONCE]
            times = [step_times_s(graph, self._durations_s(graph, belongs, columns)) for graph in self.graphs]
            means += np.concatenate(times).mean(axis=0).tolist()
        return means

    def mean_with_s(self, durations_s: Floats) -> float:
        """The mean step time with these durations of the operations."""
        times = [
            step_times_s(graph, _on_nodes(graph, durations_s[graph.rows])[:, np.newaxis])
            for graph in self.graphs
        ]
        return float(np.concatenate(times).mean())

    def _durations_s(self, graph: Graph, belongs: Ints, table: Table) -> Floats:
        kept = table[belongs[graph.rows][graph.row]]
        own, ideal = _on_nodes(graph, graph.duration_s), _on_nodes(graph, self.ideal_s[graph.rows])
        return np.where(kept, own[:, np.newaxis], ideal[:, np.newaxis])


def _on_nodes(graph: Graph, of_rows_s: Floats) -> Floats:
    """Values of operations for the nodes, in their order; a meeting takes no time."""
    return np.where(graph.row >= 0, of_rows_s[graph.row], 0.0)


def _batches(trace: Trace) -> Iterator[slice]:
    """Whole steps, grouped until there are enough rows."""
    begins = np.searchsorted(trace.step, np.arange(len(trace.steps) + 1)).tolist()
    first = begins[0]
    for end, after in zip(begins[1:], [*begins[2:], None], strict=True):
        if after is None or after - first > ROWS_AT_ONCE:
            yield slice(first, end)
            first = end


def _ideals_s(trace: Trace, durations_s: Floats) -> Floats:
    order = np.argsort(trace.kind, kind="stable")
    bounds = np.searchsorted(trace.kind[order], np.arange(len(trace.kinds) + 1))
    ordered = durations_s[order]
    ideals = np.zeros(len(trace.kinds))
    for number, (kind, first, last) in enumerate(zip(trace.kinds, bounds, bounds[1:], strict=False)):
        if first < last:
            typical = np.median if op.is_communication(kind) else np.mean
            ideals[number] = typical(ordered[first:last])
    return ideals


class _Broad:
    """The what-ifs of every trace: by type of operation, stage and replica."""

    def __init__(self, simulated: _Simulated) -> None:
        self._simulated = simulated
        trace, groups = simulated.trace, simulated.groups
        everything = range(len(groups))
        computation = [number for number, group in enumerate(groups) if not op.is_communication(group)]
        self.step_s, self.ideal_s, self.without_communication_s, *by_type = simulated.means_s(
            simulated.group,
            [
                everything,
                [],
                computation,
                *([number] for number in everything),
                *(_others(len(groups), [number]) for number in everything),
            ],
        )
        self._by_type = np.array(by_type).reshape(2, len(groups))
        self._by_stage = _both(simulated, simulated.stage_of, len(trace.stages))
        dp, count = simulated.dp_of[simulated.worker], len(trace.dp_ranks)
        self._by_dp = np.array(simulated.means_s(dp, [[number] for number in range(count)]))
        slowest = np.argsort(-self._by_dp, kind="stable")[:REPLICAS_FIXED_MAX].tolist()
        fixed_s = simulated.means_s(dp, [_others(count, [number]) for number in slowest])
        self._without_dp = dict(zip(slowest, fixed_s, strict=True))

    @property
    def slowdown(self) -> float:
        return self.step_s / self.ideal_s if self.ideal_s else 1.0

    def share(self, fixed_s: float) -> float | None:
        """The share of the slowdown that is gone if the step takes this long; None without a slowdown."""
        is_slower = self.step_s > self.ideal_s * (1 + ROUNDING)
        return (self.step_s - fixed_s) / (self.step_s - self.ideal_s) if is_slower else None

    def scores(self) -> tuple[float, ...]:
        simulated = self._simulated
        of_worker = np.minimum(self._by_dp[simulated.dp_of], self._by_stage[0][simulated.stage_of])
        return tuple((of_worker / (self.ideal_s or 1.0)).tolist())

    def stages(self) -> tuple[RankedStage, ...]:
        """In order."""
        return tuple(
            RankedStage(stage=stage, slowdown=self._relative(added_s), share=self.share(removed_s))
            for stage, added_s, removed_s in zip(
                self._simulated.trace.stages, *self._by_stage.tolist(), strict=True
            )
        )

    def replicas(self) -> tuple[RankedReplica, ...]:
        """In order."""
        shares = {number: self.share(fixed_s) for number, fixed_s in self._without_dp.items()}
        return tuple(
            RankedReplica(dp_rank=dp_rank, slowdown=self._relative(added_s), share=shares.get(number))
            for number, (dp_rank, added_s) in enumerate(
                zip(self._simulated.trace.dp_ranks, self._by_dp.tolist(), strict=True)
            )
        )

    def operations(self) -> Iterator[RankedOperation]:
        counts = np.bincount(self._simulated.group, minlength=len(self._simulated.groups))
        ideals = dict(zip(self._simulated.trace.kinds, self._simulated.type_ideal_s.tolist(), strict=True))
        for number, group in enumerate(self._simulated.groups):
            added_s, removed_s = self._by_type[:, number].tolist()
            yield RankedOperation(
                type=group,
                is_communication=op.is_communication(group),
                count=int(counts[number]),
                ideal_s=max(ideal for kind, ideal in ideals.items() if op.group_of(kind) == group),
                slowdown=self._relative(added_s),
                share=self.share(removed_s),
            )

    def _relative(self, time_s: float) -> float:
        return time_s / self.ideal_s if self.ideal_s else 1.0


def _both(simulated: _Simulated, of_worker: Ints, count: int) -> Floats:
    """The mean step time with one of `count` kept and the rest ideal; and with it alone ideal."""
    what_ifs = [[number] for number in range(count)] + [_others(count, [number]) for number in range(count)]
    return np.array(simulated.means_s(of_worker[simulated.worker], what_ifs)).reshape(2, count)


def step_times_s(graph: Graph, durations_s: Floats) -> Floats:
    """How long each step takes (rows) in each what-if (columns).

    durations_s: of the graph's nodes in their order, a column a what-if; it is overwritten, because it may be
    large.
    """
    ended_s = durations_s
    for level in graph.levels:
        last_s = ended_s[level.places[0]]
        for before in level.places[1:]:
            some = last_s[: len(before)]
            np.maximum(some, ended_s[before], out=some)
        if len(level.crowd):
            crowd_s = np.maximum.reduceat(ended_s[level.crowd], level.crowd_offsets, axis=0)
            last_s[: len(crowd_s)] = crowd_s
        ended_s[level.first : level.last] += last_s
    times_s: Floats = np.maximum.reduceat(ended_s[graph.ends], graph.end_offsets, axis=0)
    return times_s
