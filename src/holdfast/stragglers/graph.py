"""What waits for what: the operations of some steps as a graph, in an order in which it can be computed.

A node is an operation, or a meeting: the moment at which the last participant of a communication arrives. A
communication waits for its meeting, and the meeting for everything that its participants wait for, so one
rule holds for the whole graph: a node ends its own duration after the last node that it waits for. The
duration of a communication is that of its transfer alone, from the meeting on.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.record.errors import InputError
from holdfast.stragglers import operations as op
from holdfast.stragglers.trace import Floats, Ints, Trace

PLACES_MAX = 4
"""Most operations wait for no more than these; a meeting may wait for all workers."""
CONTRADICTION_S = 0.01
"""An operation that began this long before another ended did not wait for it, and one that ended this long
before the last participant came did not take part: rows are missing or misnumbered. The published analysis
allows as much.
"""
CLOCK_ERROR_S = 5e-5
"""Times of one worker may be off by this much; the published analysis allows as much."""

Edges = list[tuple[Ints, Ints]]
Mask = NDArray[np.bool_]


class GraphLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that wait only for earlier levels: those from `first` to `last`, in the graph's order.

    Nodes that wait for the most come first. The n-th of `places` holds the n-th predecessor of each node that
    has so many. Nodes with more predecessors than fit there come first; all their predecessors are in
    `crowd`, those of each node from its offset on.
    """

    first: int
    last: int
    places: tuple[Ints, ...]
    crowd: Ints
    crowd_offsets: Ints


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """row: the operation of each node, -1 for a meeting; duration_s: of each operation, or of its transfer.

    ends: the nodes that nothing waits for, step by step; `end_offsets`: where those of a step begin.
    """

    rows: slice
    row: Ints
    duration_s: Floats
    levels: tuple[GraphLevel, ...]
    ends: Ints
    end_offsets: Ints


def build(trace: Trace, rows: slice) -> Graph:
    """The graph of these rows, which are all operations of some steps."""
    part = _Part(trace, rows)
    edges = [*part.computing(), *part.transferring(), *part.sharding(), *part.finishing(), *part.observed()]
    source = np.concatenate([before for before, _ in edges])
    target = np.concatenate([after for _, after in edges])
    waits = part.end_s[source] <= part.start_s[target] + CONTRADICTION_S
    source, target = source[waits], target[waits]
    meeting, durations_s = _met(part)
    # A meeting waits for everything that its participants wait for.
    target = np.where(meeting[target] >= 0, meeting[target] + part.count, target)
    participants = np.flatnonzero(meeting >= 0)
    source = np.concatenate([source, meeting[participants] + part.count])
    target = np.concatenate([target, participants])
    return _ordered(part, source, target, durations_s)


def _met(part: "_Part") -> tuple[Ints, Floats]:
    """The number of each row's meeting, -1 for none, and its duration, which for a communication begins when
    the last participant arrives.
    """
    meeting, count = part.meetings()
    durations_s = part.end_s - part.start_s
    there = np.flatnonzero(meeting >= 0)
    last_s = np.full(count, -np.inf)
    np.maximum.at(last_s, meeting[there], part.start_s[there])
    left = there[part.end_s[there] < last_s[meeting[there]] - CONTRADICTION_S]
    meeting[left] = -1
    there = np.flatnonzero(meeting >= 0)
    durations_s[there] = np.maximum(0.0, part.end_s[there] - last_s[meeting[there]])
    return _numbered_anew(meeting), durations_s


def _numbered_anew(meeting: Ints) -> Ints:
    """Number meetings without gaps: an empty meeting would be a node that nothing leads to."""
    found, number = np.unique(meeting, return_inverse=True)
    renumbered: Ints = number - (1 if len(found) and found[0] < 0 else 0)
    return renumbered


class _Part:
    """The columns of some rows, and the edges between them by origin.

    track: the number of a row's step and worker; rows are ordered by track and, within one, by start.
    """

    def __init__(self, trace: Trace, rows: slice) -> None:
        self.trace, self.rows = trace, rows
        self.kind, self.step, self.worker = trace.kind[rows], trace.step[rows], trace.worker[rows]
        self.seq, self.chunk = trace.seq[rows], trace.chunk[rows]
        self.global_chunk, self.microbatch = trace.global_chunk[rows], trace.microbatch[rows]
        self.start_s = trace.start_s[rows]
        self.end_s = self.start_s + trace.duration_s[rows]
        self.count = len(self.kind)
        self.track = (self.step - self.step[0]) * len(trace.workers) + self.worker
        self.tracks = int(self.track[-1]) + 1
        # Times that grow over all tracks, so that one search answers for every track.
        self.span_s = float(self.end_s.max()) + 1.0
        # The computations, which a worker does one after another.
        self.in_order = self._of(
            {*map(op.type_of, trace.kinds)}
            - {*op.TRANSFERS, *op.TAIL, *op.AMONG_REPLICAS, *op.IN_PROGRAM_ORDER}
        )
        # Ends of transfers with direction, border and microbatch, which `transferring` collects.
        self._pairs: list[tuple[Ints, Ints, Ints, Ints]] = []

    def _of(self, kinds: set[str] | frozenset[str]) -> Ints:
        """The rows of these types."""
        wanted = np.array([op.type_of(kind) in kinds for kind in self.trace.kinds], dtype=bool)
        return np.flatnonzero(wanted[self.kind])

    def _follow(self, rows: Ints) -> tuple[Ints, Ints]:
        """Each of these rows after the one before it in its track."""
        same = self.track[rows[1:]] == self.track[rows[:-1]]
        return rows[:-1][same], rows[1:][same]

    # -- computation -----------------------------------------------------------------------------------

    def computing(self) -> Edges:
        return [self._follow(self.in_order)]

    # -- transfers between stages ----------------------------------------------------------------------

    def transferring(self) -> Edges:
        """Each end of a transfer in order with others of its type, after the computation that made the data
        or before the one that needs them.
        """
        edges: Edges = []
        for direction in op.DIRECTIONS:
            for end in ("send", "recv"):
                rows = self._of({f"{direction}-{end}"})
                edges += [self._follow(rows), *self._bound(rows, direction, end)]
        return [*edges, *self._first_backward()]

    def _bound(self, rows: Ints, direction: str, end: str) -> Edges:
        """Ends of transfers with their computations; those with a peer are noted for the meetings."""
        computed = self._of({f"{direction}-compute"})
        if not len(rows) or not len(computed):
            return []
        boundary, has_peer = self._boundaries(computed, direction, end)
        rows, position = self._matched(rows, computed, has_peer, end)
        beside = has_peer[position]
        paired = position[beside]
        number = np.full(len(rows), op.DIRECTIONS.index(direction))
        self._pairs.append(
            (rows[beside], number[beside], boundary[paired], self._microbatches(computed)[paired])
        )
        if end == "send":
            return [(computed[position], rows)]
        before = position - 1
        waits = (position > 0) & (self.track[computed[before]] == self.track[rows])
        return [(rows, computed[position]), (computed[before[waits]], rows[waits])]

    def _boundaries(self, computed: Ints, direction: str, end: str) -> tuple[Ints, Mask]:
        """Which border between chunks of the model a transfer crosses, and whether there is one."""
        chunk, last = self._chunks(computed)
        leaves = (direction == "forward") == (end == "send")
        return (chunk, chunk < last) if leaves else (chunk - 1, chunk > 0)

    def _chunks(self, computed: Ints) -> tuple[Ints, int]:
        """The chunk of the whole model that each computation belongs to, and the last chunk."""
        stages = {stage: number for number, stage in enumerate(self.trace.stages)}
        stage = np.array([stages[worker.stage] for worker in self.trace.workers])[self.worker[computed]]
        derived = np.maximum(0, self.chunk[computed]) * len(stages) + stage
        told = self.global_chunk[computed]
        chunk = np.where(told >= 0, told, derived)
        return chunk, int(chunk.max())

    def _microbatches(self, computed: Ints) -> Ints:
        """Their numbers; without numbers, their order within the track and chunk."""
        told = self.microbatch[computed]
        if len(told) and told.min() >= 0:
            return told
        return _occurrence(np.stack([self.track[computed], self._chunks(computed)[0]]))

    def _matched(self, rows: Ints, computed: Ints, has_peer: Mask, end: str) -> tuple[Ints, Ints]:
        """Rows that belong to a computation, and its position in `computed`.

        In order, there are as many rows as computations of the track, or as those with a peer; or the one
        without a peer is missing at the very beginning or end. Otherwise times decide.
        """
        rows = self._launched(rows, computed, end)
        track = self.track[computed]
        is_edge = (
            np.diff(track, prepend=-1) != 0 if end == "recv" else np.diff(track, append=self.tracks) != 0
        )
        position = self._by_time(rows, computed, end)
        for expected in (has_peer | ~is_edge, has_peer, np.ones_like(has_peer)):
            turn = self._in_turn(rows, computed, expected)
            fits = (turn >= 0) & self._lanes_fit(rows, computed[turn], has_peer[turn], end)
            position = np.where(fits, turn, position)
        known = (position >= 0) & (position < len(computed))
        known &= track[np.clip(position, 0, len(computed) - 1)] == self.track[rows]
        return rows[known], position[known]

    def _launched(self, rows: Ints, computed: Ints, end: str) -> Ints:
        """Leave out transfers that a profiler wrote although they were never launched: receives after the
        last computation of their track has begun, sends before the first has ended.
        """
        tracks, count = self.track[computed], np.bincount(self.track[computed], minlength=self.tracks)
        rows = rows[count[self.track[rows]] > 0]
        first = np.searchsorted(tracks, self.track[rows])
        last = first + count[self.track[rows]] - 1
        launched: Mask = self.end_s[rows] >= self.end_s[computed[first]] - CLOCK_ERROR_S
        if end == "recv":
            launched = self.start_s[rows] <= self.start_s[computed[last]] + CLOCK_ERROR_S
        return rows[launched]

    def _in_turn(self, rows: Ints, computed: Ints, expected: Mask) -> Ints:
        """If a track has as many rows as expected computations, the n-th belongs to the n-th; else -1."""
        wanted = np.flatnonzero(expected)
        tracks = self.track[computed[wanted]]
        track = self.track[rows]
        count = np.bincount(tracks, minlength=self.tracks)
        agrees = (np.bincount(track, minlength=self.tracks) == count)[track]
        turn = np.full(len(rows), -1)
        place = np.searchsorted(tracks, track[agrees]) + _occurrence(track[np.newaxis])[agrees]
        turn[agrees] = wanted[place]
        return turn

    def _lanes_fit(self, rows: Ints, computed: Ints, has_peer: Mask, end: str) -> Mask:
        """Rows of tracks in which no data arrive after their use, or leave before they exist."""
        if end == "recv":
            contradicts = self.end_s[rows] > self.start_s[computed] + CONTRADICTION_S
        else:
            contradicts = self.start_s[rows] < self.end_s[computed] - CONTRADICTION_S
        wrong = np.zeros(self.tracks, dtype=bool)
        wrong[self.track[rows[contradicts & has_peer]]] = True
        fits: Mask = ~wrong[self.track[rows]]
        return fits

    def _by_time(self, rows: Ints, computed: Ints, end: str) -> Ints:
        """The first computation after a receive, or the last before a send."""
        if end == "recv":
            at = self._moment(rows, self.end_s) - CLOCK_ERROR_S
            return np.searchsorted(self._moment(computed, self.start_s), at, side="left")
        at = self._moment(rows, self.start_s) + CLOCK_ERROR_S
        return np.searchsorted(self._ended(computed), at, side="right") - 1

    def _moment(self, rows: Ints, times_s: Floats) -> Floats:
        moment: Floats = self.track[rows] * self.span_s + times_s[rows]
        return moment

    def _ended(self, rows: Ints) -> Floats:
        """When each of these and all before it have ended."""
        ended: Floats = np.maximum.accumulate(self._moment(rows, self.end_s))
        return ended

    def _first_backward(self) -> Edges:
        """The first backward transfers wait for the second computation before the first backward one."""
        computed = self.in_order
        backward = self._of({op.BACKWARD})
        first = backward[_occurrence(self.track[backward][np.newaxis]) == 0]
        place = np.searchsorted(computed, first) - 2
        first, place = first[place >= 0], place[place >= 0]
        same = self.track[computed[place]] == self.track[first]
        before = np.full(self.tracks, -1)
        before[self.track[first[same]]] = computed[place[same]]
        edges: Edges = []
        for end in ("send", "recv"):
            rows = self._of({f"backward-{end}"})
            rows = rows[_occurrence(self.track[rows][np.newaxis]) == 0]
            rows = rows[before[self.track[rows]] >= 0]
            edges.append((before[self.track[rows]], rows))
        return edges

    # -- parameters and gradients ----------------------------------------------------------------------

    def sharding(self) -> Edges:
        """Parameters are gathered before a chunk's first forward pass; gradients may be scattered early."""
        gathered, scattered = self._of({op.GATHER_PARAMS}), self._of({op.SCATTER_GRADS})
        forward, backward = self._of({op.FORWARD}), self._of({op.BACKWARD})
        early = scattered[self._is_early()[self.track[scattered]]]
        edges = [
            self._follow(np.sort(np.concatenate([gathered, scattered]))),
            self._joined(
                _last(self._chunk_key(gathered), gathered), _first(self._chunk_key(forward), forward)
            ),
            self._joined(_last(self._chunk_key(backward), backward), _first(self._chunk_key(early), early)),
        ]
        # A gather that does not name its chunk serves the worker's first computation.
        unsaid = gathered[self.chunk[gathered] < 0]
        edges.append(self._joined(_last(self.track[unsaid], unsaid), _first(self.track[forward], forward)))
        return edges

    def _is_early(self) -> Mask:
        """Tracks whose gradients are scattered while the backward pass still runs."""
        early = np.zeros(self.tracks, dtype=bool)
        early[self.track[self._of({op.SEPARATE_GRADS})]] = True
        return early

    def _chunk_key(self, rows: Ints) -> Ints:
        key: Ints = self.track[rows] * (int(self.chunk.max()) + 2) + self.chunk[rows] + 1
        return key

    @staticmethod
    def _joined(before: tuple[Ints, Ints], after: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        """Rows with the same key, one of each side."""
        _, left, right = np.intersect1d(before[0], after[0], assume_unique=True, return_indices=True)
        return before[1][left], after[1][right]

    # -- the end of the step ---------------------------------------------------------------------------

    def finishing(self) -> Edges:
        """The operations after the last computation, in the order of `TAIL`."""
        early = self._is_early()
        rows = self._of(frozenset(op.TAIL))
        order = np.array([op.TAIL.index(kind) if kind in op.TAIL else -1 for kind in self.trace.kinds])
        place = order[self.kind]
        scatters = op.TAIL.index(op.SCATTER_GRADS)
        rows = rows[~(early[self.track[rows]] & (place[rows] == scatters))]
        rows = rows[np.lexsort((self.start_s[rows], self.seq[rows], place[rows], self.track[rows]))]
        computed = self.in_order[np.lexsort((self.end_s[self.in_order], self.track[self.in_order]))]
        scattered = self._of({op.SCATTER_GRADS})
        scattered = scattered[early[self.track[scattered]]]
        after = rows[place[rows] > op.TAIL.index(op.COLLECTOR)]
        return [
            self._follow(rows),
            self._joined(_last(self.track[computed], computed), _first(self.track[rows], rows)),
            self._joined(_last(self.track[scattered], scattered), _first(self.track[after], after)),
        ]

    # -- program order ---------------------------------------------------------------------------------

    def observed(self) -> Edges:
        """Communication in a profiler's trace: it waited for the computation that had ended when it began,
        and a worker that had nothing else to do when it ended was waiting for it.
        """
        rows, computed = self._of(op.IN_PROGRAM_ORDER), self.in_order
        edges: Edges = [self._streams(rows)]
        if len(rows) and len(computed):
            edges += [self._before_launch(rows, computed), self._after_wait(rows, computed)]
        # Rows of a track are ordered by start: an earlier row cannot have waited for a later one.
        return [(before[before < after], after[before < after]) for before, after in edges]

    def _streams(self, rows: Ints) -> tuple[Ints, Ints]:
        """Each row after the one before it of its type and communicator: all ranks have that order."""
        types = [op.type_of(kind) for kind in self.trace.kinds]
        number = np.array([types.index(kind) for kind in types])[self.kind[rows]]
        keys = np.stack([self.track[rows], number, self.chunk[rows]])
        order = np.lexsort((rows, *keys[::-1]))
        same = (keys[:, order][:, 1:] == keys[:, order][:, :-1]).all(axis=0)
        return rows[order[:-1][same]], rows[order[1:][same]]

    def _before_launch(self, rows: Ints, computed: Ints) -> tuple[Ints, Ints]:
        begins = self._moment(rows, self.start_s) + CLOCK_ERROR_S
        at = np.searchsorted(self._ended(computed), begins, side="right") - 1
        launched = (at >= 0) & (self.track[computed[at]] == self.track[rows])
        return computed[at[launched]], rows[launched]

    def _after_wait(self, rows: Ints, computed: Ints) -> tuple[Ints, Ints]:
        end = self._moment(rows, self.end_s)
        at = np.searchsorted(self._moment(computed, self.start_s), end - CLOCK_ERROR_S, side="left")
        followed = at < len(computed)
        at, rows, end = at[followed], rows[followed], end[followed]
        idle = (at == 0) | (self._ended(computed)[at - 1] <= end + CLOCK_ERROR_S)
        waited = idle & (self.track[computed[at]] == self.track[rows])
        return rows[waited], computed[at[waited]]

    # -- meetings --------------------------------------------------------------------------------------

    def meetings(self) -> tuple[Ints, int]:
        """The number of each row's meeting, -1 for none, and the number of meetings."""
        meeting, count = np.full(self.count, -1), 0
        for rows, keys in self._gatherings():
            if len(rows):
                # No worker takes part twice: a second row belongs to another meeting.
                keys = np.vstack([keys, _occurrence(np.vstack([self.track[rows], keys]))])
                number = _numbered(keys)
                meeting[rows] = number + count
                count += int(number.max()) + 1
        return meeting, count

    def _gatherings(self) -> Iterator[tuple[Ints, Ints]]:
        """Rows that may meet, with the key that rows of one meeting share."""
        places = np.array([(one.dp_rank, one.stage, one.slot) for one in self.trace.workers]).T
        for kinds, shared in (
            (op.AMONG_REPLICAS, (1, 2)),
            (op.AMONG_STAGES, (0, 2)),
            (op.AMONG_ALL, ()),
            (op.IN_PROGRAM_ORDER - op.UNPAIRED, ()),
        ):
            rows = self._of(kinds)
            chunk = self.chunk[rows] if kinds & op.IN_PROGRAM_ORDER else np.zeros_like(rows)
            common = [places[axis][self.worker[rows]] for axis in shared]
            yield rows, np.stack([self.step[rows], self.kind[rows], self.seq[rows], chunk, *common])
        if self._pairs:
            rows, direction, boundary, microbatch = (
                np.concatenate(part) for part in zip(*self._pairs, strict=True)
            )
            common = [places[axis][self.worker[rows]] for axis in (0, 2)]
            yield rows, np.stack([self.step[rows], direction, boundary, microbatch, *common])


def _occurrence(keys: Ints) -> Ints:
    """How many columns before each one have the same key."""
    if not keys.shape[1]:
        return np.empty(0, np.int64)
    order = np.lexsort(keys[::-1])
    ordered = keys[:, order]
    is_first = np.concatenate([[True], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])
    begins = np.flatnonzero(is_first)
    occurrence = np.empty(keys.shape[1], np.int64)
    occurrence[order] = np.arange(keys.shape[1]) - np.repeat(begins, np.diff([*begins, keys.shape[1]]))
    return occurrence


def _numbered(keys: Ints) -> Ints:
    """A number from 0 on for each key; equal columns have the same."""
    order = np.lexsort(keys[::-1])
    ordered = keys[:, order]
    changes = np.concatenate([[False], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])
    number = np.empty(keys.shape[1], np.int64)
    number[order] = np.cumsum(changes)
    return number


def _first(keys: Ints, rows: Ints) -> tuple[Ints, Ints]:
    found, at = np.unique(keys, return_index=True)
    return found, rows[at]


def _last(keys: Ints, rows: Ints) -> tuple[Ints, Ints]:
    found, at = np.unique(keys[::-1], return_index=True)
    return found, rows[::-1][at]


# -- the order ---------------------------------------------------------------------------------------------


def _ordered(part: _Part, source: Ints, target: Ints, durations_s: Floats) -> Graph:
    """The graph with its nodes level by level."""
    nodes = max(part.count, int(max(source.max(initial=0), target.max(initial=0))) + 1)
    level = _levels(part, source, target, nodes)
    waits = np.bincount(target, minlength=nodes)
    order = np.lexsort((-waits, level))
    position = np.empty(nodes, np.int64)
    position[order] = np.arange(nodes)
    by_target = np.argsort(position[target], kind="stable")
    before = position[source[by_target]]
    bounds = np.searchsorted(level[order], np.arange(int(level.max()) + 2))
    row = np.where(order < part.count, order, -1)
    return Graph(
        rows=part.rows,
        row=row,
        duration_s=durations_s,
        levels=tuple(_sliced(bounds, before, waits[order])),
        **_endings(part, row, before),
    )


def _levels(part: _Part, source: Ints, target: Ints, nodes: int) -> Ints:
    """The length of the longest path to each node."""
    source_order = np.argsort(source, kind="stable")
    target = target[source_order]
    begins = np.searchsorted(source[source_order], np.arange(nodes + 1))
    waiting = np.bincount(target, minlength=nodes)
    level = np.full(nodes, -1)
    ready, depth = np.flatnonzero(waiting == 0), 0
    while len(ready):
        level[ready] = depth
        count = begins[ready + 1] - begins[ready]
        reached = target[np.repeat(begins[ready] - np.cumsum(count) + count, count) + np.arange(count.sum())]
        found, times = np.unique(reached, return_counts=True)
        waiting[found] -= times
        ready, depth = found[waiting[found] == 0], depth + 1
    if (level < 0).any():
        raise _circle(part, int(np.flatnonzero(level[: part.count] < 0)[0]))
    return level


def _circle(part: _Part, row: int) -> InputError:
    worker = part.trace.workers[part.worker[row]]
    kind, step = part.trace.kinds[part.kind[row]], part.trace.steps[part.step[row]]
    return InputError(
        f"In step {step} operations wait for each other in a circle: {kind} of {worker.title} is in it.",
        hint="Microbatches (mb_id), chunks (mc, gmc) or sequence numbers of the trace are not consistent.",
    )


def _sliced(bounds: Ints, before: Ints, waits: Ints) -> Iterator[GraphLevel]:
    """Levels from the second on; nodes of the first wait for nothing. before: of one node after another."""
    begins = np.concatenate([[0], np.cumsum(waits)])
    for first, last in pairwise(bounds[1:].tolist()):
        counts, offsets = waits[first:last], begins[first:last]
        crowded = int(np.count_nonzero(counts > PLACES_MAX))
        within = [int(np.count_nonzero(counts > number)) for number in range(min(PLACES_MAX, int(counts[0])))]
        yield GraphLevel(
            first=first,
            last=last,
            places=tuple(before[offsets[:count] + number] for number, count in enumerate(within)),
            crowd=before[begins[first] : begins[first + crowded]],
            crowd_offsets=offsets[:crowded] - begins[first],
        )


def _endings(part: _Part, row: Ints, before: Ints) -> dict[str, Ints]:
    is_end = np.ones(len(row), dtype=bool)
    is_end[before] = False
    ends = np.flatnonzero(is_end)  # all are operations: a meeting has its participants after it
    step = part.step[row[ends]] - part.step[0]
    order = np.argsort(step, kind="stable")
    steps = int(part.step[-1] - part.step[0]) + 1
    return {"ends": ends[order], "end_offsets": np.searchsorted(step[order], np.arange(steps))}
