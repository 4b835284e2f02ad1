"""A Prometheus source that fetches only new samples: for repeated looks, as in `watch`.

Half an hour of a metric of 16,384 GPUs is 38 MB, and ten seconds more of it a twentieth. Fetched samples are
kept on a grid whose rows stay in place; a window is cut from it as if it had been fetched whole. The last
minute is fetched again each time, because a server may receive samples late.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.catalogue import Metric, describe
from holdfast.signals.frame import Floats, Frame, Labels
from holdfast.signals.grid import Comb, comb_of, may_grow, step_of
from holdfast.signals.prometheus import Prometheus, Raw
from holdfast.wording.units import SECOND_NS

OVERLAP_NS, OVERLAP_ROWS = 60 * SECOND_NS, 6
"""How much is fetched again: enough also of scrapes that are far apart to tell their interval."""
EARLY_SPARE_NS = 300 * SECOND_NS
"""How much more than requested is fetched before the beginning of an earlier window."""
ROWS_SPARE = 64
"""Rows that are added before the old ones are moved up."""
KEPT_BYTES_MAX = 4 << 30
"""For all metrics together; those requested longest ago go first. Twenty gauges and twenty counters of 16,384
GPUs over half an hour are 1.2 GB.
"""
MOVED_PHASE, MOVED_SHARE = 0.4, 0.2
"""If this share of samples is this far from their series' phase, in intervals, everything is fetched anew."""
MOVED_TIMES = 1.5
"""Samples at uneven intervals always are; then it takes this many times as many as at first."""
STEP_SHARE, STEP_GAPS_MIN = 0.1, 4
"""Everything is fetched anew as well if this many gaps tell a step that differs by this share."""
THIN_SHARE, THIN_ROWS = 0.6, 12
"""And if fewer of the cells in so many rows have a sample, because scrapes have become rarer."""
DEAD_SHARE_MAX = 0.5
"""Share of the columns: with this many ended series, everything is fetched anew."""
UNNAMED = -1


class IncrementalSource:
    """The same frames as the server's own. Besides the newest window of each metric it keeps an earlier one:
    the time before a problem began, which every look requests until the problem is over.
    """

    def __init__(self, server: Prometheus, *, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._server = server
        self._kept_bytes_max = kept_bytes_max
        self._kept: dict[str, _Kept] = {}
        self._early: dict[str, _Kept] = {}
        self._nothing: dict[str, tuple[int, int]] = {}

    def metrics(self) -> tuple[str, ...]:
        return self._server.metrics()

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        kept = self._kept.get(metric)
        if kept is not None and window_ns[1] < kept.end_ns:
            return kept.frame(window_ns) if kept.reaches(window_ns) else self._past(metric, window_ns)
        if kept is None or not kept.reaches(window_ns):
            kept = self._fetched(metric, window_ns)
        elif window_ns[1] > kept.end_ns:
            kept = self._grown(kept, window_ns)
        self._keep(metric, kept)
        return None if kept is None else kept.frame(window_ns)

    def _past(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        """A window that ends before the newest one: its samples do not change any more."""
        begin_ns, end_ns = self._nothing.get(metric, (0, 0))
        if begin_ns <= window_ns[0] and window_ns[1] <= end_ns:
            return None
        early = self._early.pop(metric, None)
        if early is None or not early.reaches(window_ns):
            # The estimated beginning of a problem moves a little at every look.
            wide_ns = (window_ns[0] - EARLY_SPARE_NS, window_ns[1])
            early = self._fetched(metric, wide_ns)
            if early is None:
                self._nothing[metric] = wide_ns
        elif window_ns[1] > early.end_ns:
            early = self._grown(early, window_ns, overlap_ns=2 * early.step_ns)
        if early is None:
            return None
        self._early[metric] = early
        self._bound()
        return early.frame(window_ns)

    def _fetched(self, metric: str, window_ns: tuple[int, int]) -> "_Kept | None":
        raw = self._server.raw(metric, window_ns)
        if raw is None:
            return None
        return _Kept(describe(metric), raw, window_ns, self._server.step_ns, self._labels(metric, window_ns))

    def _grown(
        self, kept: "_Kept", window_ns: tuple[int, int], *, overlap_ns: int | None = None
    ) -> "_Kept | None":
        again_ns = max(OVERLAP_NS, OVERLAP_ROWS * kept.step_ns) if overlap_ns is None else overlap_ns
        since_ns = max(window_ns[0], kept.end_ns - again_ns)
        raw = self._server.raw(kept.metric.name, (since_ns, window_ns[1]))
        if raw is None:
            kept.end_ns = window_ns[1]
            return kept
        fits = kept.take(raw, window_ns[1], self._labels(kept.metric.name, window_ns))
        if fits and not kept.is_thin:
            return kept
        return self._fetched(kept.metric.name, window_ns)

    def _labels(self, metric: str, window_ns: tuple[int, int]) -> "Named":
        name = self._server.namer(metric, window_ns)

        def named(key: bytes) -> tuple[Labels, str | None]:
            labels = self._server.labels(key)
            return labels, name(labels)

        return named

    def _keep(self, metric: str, kept: "_Kept | None") -> None:
        """Keep the metric as the last one: those requested longest ago stand first."""
        self._kept.pop(metric, None)
        if kept is not None and not kept.is_worn:
            self._kept[metric] = kept
        self._bound()

    def _bound(self) -> None:
        """Forget the metrics requested longest ago, earlier windows first, until the rest is small enough."""

        def size_bytes() -> int:
            return sum(one.size_bytes for one in (*self._kept.values(), *self._early.values()))

        while len(self._kept) + len(self._early) > 1 and size_bytes() > self._kept_bytes_max:
            oldest = self._early or self._kept
            del oldest[next(iter(oldest))]


Named = Callable[[bytes], tuple[Labels, str | None]]
"""From a series' labels as the server writes them to its labels and its subject."""


class _Kept:
    """One metric. Its rows are the cells of a comb, to which new series are added."""

    def __init__(
        self, metric: Metric, raw: Raw, window_ns: tuple[int, int], wanted_ns: int, named: Named
    ) -> None:
        self.metric = metric
        self.begin_ns, self.end_ns = window_ns
        self._fetched_ns, self._wanted_ns = window_ns[1], wanted_ns
        self.step_ns = step_of(raw.series, raw.times_ns, len(raw.keys), wanted_ns)
        self._comb = Comb(step_ns=self.step_ns, per=np.zeros(0, np.int64), phases=np.zeros(0))
        self._columns: dict[bytes, int] = {}
        self._labels: tuple[Labels, ...] = ()
        self._subjects: tuple[str, ...] = ()
        self._last = self._ended = np.zeros(0, np.int64)
        rows = self._comb.rows(window_ns)
        self._first = window_ns[1] // self.step_ns - rows - ROWS_SPARE
        self._values: Floats = np.full((rows + 2 * ROWS_SPARE, 0), np.nan, self._dtype)
        columns = self._columns_of(raw, named)[raw.series]
        inside = columns != UNNAMED
        self._moved_max = max(MOVED_SHARE, MOVED_TIMES * self._moved(columns[inside], raw.times_ns[inside]))
        self._put(columns[inside], raw.times_ns[inside], raw.values[inside])

    @property
    def _dtype(self) -> type[np.floating]:
        """A counter's growth is a difference of large numbers; a gauge is compared with itself."""
        return np.float64 if self.metric.kind == "counter" else np.float32

    @property
    def is_worn(self) -> bool:
        """Whether most of its series have ended: labels change with every job."""
        dead = (self._last < self._first + ROWS_SPARE).sum()
        return bool(dead > DEAD_SHARE_MAX * len(self._last))

    @property
    def is_thin(self) -> bool:
        """Whether most of the newest cells of its living series are empty, and this is news."""
        end = self.end_ns // self.step_ns - self._first
        alive = self._last >= self._first + end - THIN_ROWS
        if self.end_ns - self._fetched_ns < THIN_ROWS * self.step_ns or not alive.any():
            return False
        return bool(np.isfinite(self._values[end - THIN_ROWS : end, alive]).mean() < THIN_SHARE)

    @property
    def size_bytes(self) -> int:
        return self._values.nbytes

    def reaches(self, window_ns: tuple[int, int]) -> bool:
        """Whether it has the window's beginning, and not only older samples."""
        return self.begin_ns <= window_ns[0] < self.end_ns

    def take(self, raw: Raw, until_ns: int, named: Named) -> bool:
        """Add these samples. Return whether they come when their series' samples came before; if not, nothing
        is added.
        """
        if not self._has_step_of(raw):
            return False
        columns = self._columns_of(raw, named)[raw.series]
        inside = columns != UNNAMED
        columns, times_ns = columns[inside], raw.times_ns[inside]
        if self._moved(columns, times_ns) > self._moved_max:
            return False
        self._put(columns, times_ns, raw.values[inside])
        self.end_ns = until_ns
        return True

    def _has_step_of(self, raw: Raw) -> bool:
        if len(raw.times_ns) - len(raw.keys) < STEP_GAPS_MIN * len(raw.keys):
            return True
        step_ns = step_of(raw.series, raw.times_ns, len(raw.keys), self._wanted_ns)
        return abs(step_ns - self.step_ns) <= STEP_SHARE * self.step_ns

    def _moved(self, columns: NDArray[np.int64], times_ns: NDArray[np.int64]) -> float:
        """The share of these samples that come at another moment than their series' samples do."""
        strays = self._comb.strays(columns, times_ns)
        return float((strays > MOVED_PHASE).mean()) if len(strays) else 0.0

    def _put(self, columns: NDArray[np.int64], times_ns: NDArray[np.int64], values: Floats) -> None:
        cells = self._comb.cells(columns, times_ns)
        self._make_room(int(cells.max(initial=self._first)))
        there = cells >= self._first
        # The newest sample of a series comes last, and so it stays.
        self._values[cells[there] - self._first, columns[there]] = values[there]
        np.maximum.at(self._last, columns, cells)
        are_last = self._comb.are_last(columns, times_ns)
        np.maximum.at(self._ended, columns[are_last], cells[are_last])

    def frame(self, window_ns: tuple[int, int]) -> Frame | None:
        """The frame as of the window's end: the newest cell of every series is in the last row."""
        count = self._comb.rows(window_ns)
        newest = self._comb.newest(window_ns[1] - 1)
        top = (window_ns[1] - 1) // self.step_ns
        self._make_room(top)
        alive = np.flatnonzero(self._last > newest - count)
        if not len(alive):
            return None
        low = top - count + 1 - self._first
        values = self._values[max(low, 0) : low + count]
        # Series without a scrape yet in the newest cell are read one cell earlier.
        early = newest < top
        if early.any():
            before = self._values[max(low - 1, 0) : low - 1 + count]
            values = np.where(early, before[-len(values) :], values[-len(before) :])
        else:
            values = values.copy()  # the kept values will change
        if may_grow(self.metric):
            values[-1, self._ended < newest] = np.nan
        if window_ns[1] < self.end_ns:
            # Series that began later did not exist then.
            alive = np.flatnonzero(np.isfinite(values).any(axis=0))
            if not len(alive):
                return None
        is_whole = len(alive) == len(self._subjects)
        return Frame(
            metric=self.metric.name,
            kind=self.metric.kind,
            meaning=self.metric.meaning,
            subjects=self._subjects if is_whole else tuple(self._subjects[column] for column in alive),
            labels=self._labels if is_whole else tuple(self._labels[column] for column in alive),
            times_ns=self._comb.times_ns(window_ns, len(values)),
            values=values if is_whole else values[:, alive],
        )

    def _columns_of(self, raw: Raw, named: Named) -> NDArray[np.int64]:
        """The column of each series; a new series gets one, at the moment of its samples."""
        columns = [self._columns.get(key) for key in raw.keys]
        if fresh := [index for index, column in enumerate(columns) if column is None]:
            self._add(raw, fresh, named)
            columns = [self._columns[key] for key in raw.keys]
        return np.array(columns, np.int64)

    def _add(self, raw: Raw, fresh: list[int], named: Named) -> None:
        comb = comb_of(raw.series, raw.times_ns, len(raw.keys), self._wanted_ns, self.step_ns)
        labels, subjects, added = [*self._labels], [*self._subjects], []
        for index in fresh:
            own, subject = named(raw.keys[index])
            self._columns[raw.keys[index]] = len(subjects) if subject else UNNAMED
            if subject:
                labels.append(own)
                subjects.append(subject)
                added.append(index)
        self._labels, self._subjects = tuple(labels), tuple(subjects)
        self._comb = msgspec.structs.replace(
            self._comb,
            per=np.concatenate([self._comb.per, comb.per[added]]),
            phases=np.concatenate([self._comb.phases, comb.phases[added]]),
        )
        self._last = np.concatenate([self._last, np.full(len(added), self._first - 1)])
        self._ended = np.concatenate([self._ended, np.full(len(added), self._first - 1)])
        nothing = np.full((len(self._values), len(added)), np.nan, self._dtype)
        self._values = np.concatenate([self._values, nothing], axis=1)

    def _make_room(self, top: int) -> None:
        """Extend the rows up to this cell, and forget as many of the oldest."""
        over = top - (self._first + len(self._values) - 1)
        if over <= 0:
            return
        shift = min(over + ROWS_SPARE, len(self._values))
        self._values[:-shift] = self._values[shift:]
        self._values[-shift:] = np.nan
        self._first += shift
        self.begin_ns = max(self.begin_ns, self._first * self.step_ns)
