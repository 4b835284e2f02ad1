"""A panel: the readings of one metric, cleaned, with the trust in each series; the input of every detector.

`Panels` reads a source for one look. All readings are inspected before a detector sees them, so flaws in the
telemetry lower the confidence of the findings.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.signals.frame import Floats, Frame, Labels, Word, per_second
from holdfast.signals.quality import Flaw, inspect
from holdfast.signals.source import Source
from holdfast.topology.names import member_name

PAST_S, MARGIN_S, ONSET_S = 600.0, 150.0, 300.0
"""The baseline is the readings over `PAST_S` that end `MARGIN_S` before a problem began. Readings until
`ONSET_S` after its beginning show what came first.
"""
EARLIER_SHARE = 0.2
"""Share of the readings before the onset: their labels are those from before a change."""
View = Literal["value", "rate", "grown"]
KEPT_MAX = 24
"""Panels that are kept for the next detector, since several detectors may read one metric in turn."""


class Panel(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One metric, time by series. trust: by series, between 0 and 1.

    before: rows from before the problem, if it began before the window or at its beginning; they have the
    same series. Without them the first third of the window is the baseline. gap: the row before which time is
    left out, if the problem began long ago: the minutes around the onset come first, then the window. single:
    the readings themselves, if `values` are means over some rows. earlier: the subjects and labels of the
    series from before the problem.
    """

    metric: str
    subjects: tuple[str, ...]
    labels: tuple[Labels, ...]
    times_ns: NDArray[np.int64]
    values: Floats
    trust: Floats
    before: Floats | None = None
    words: tuple[Word, ...] = ()
    gap: int | None = None
    single: Floats | None = None
    earlier: tuple[tuple[str, Labels], ...] = ()

    @cached_property
    def clock_ns(self) -> NDArray[np.int64]:
        """The times as if nothing were left out: the state before the gap continues."""
        if self.gap is None:
            return self.times_ns
        left_out_ns = self.times_ns[self.gap] - self.times_ns[self.gap - 1] - compare.step_ns(self.times_ns)
        rows = np.arange(len(self.times_ns)) >= self.gap
        return np.asarray(self.times_ns - rows * left_out_ns, np.int64)

    @cached_property
    def usual(self) -> Floats:
        """By series: its value before the problem; NaN if unknown."""
        here = compare.usual(self.values)
        if self.before is None:
            return here
        past = compare.usual(self.before, np.arange(len(self.before)))
        return np.where(np.isfinite(past), past, here)

    @cached_property
    def scatter(self) -> float:
        """The standard deviation of a reading around the usual value of its series, by chance alone."""
        if self.before is None:
            return compare.spread(self.values, self.usual)
        return compare.spread(self.before, self.usual, np.arange(len(self.before)))

    def some(self, columns: NDArray[np.int64]) -> "Panel":
        """The panel with only these series."""
        if len(columns) == len(self.subjects):
            return self
        chosen = columns.tolist()
        return msgspec.structs.replace(
            self,
            subjects=tuple(map(self.subjects.__getitem__, chosen)),
            labels=tuple(map(self.labels.__getitem__, chosen)) if self.labels else (),
            values=self.values.take(columns, axis=1),
            trust=self.trust[columns],
            before=None if self.before is None else self.before.take(columns, axis=1),
            words=(),
        )

    def scaled(self, factor: float) -> "Panel":
        if factor == 1.0:
            return self
        by = np.float32(factor)
        before = None if self.before is None else self.before * by
        return msgspec.structs.replace(self, values=self.values * by, before=before)


class Panels:
    """The readings of one look. flaws: those of all readings so far.

    onset_ns: when the problem began, if the window does not show the time before. margin_s: how long before
    the onset everything was certainly well.
    """

    def __init__(
        self,
        source: Source,
        window_ns: tuple[int, int],
        onset_ns: int | None = None,
        margin_s: float = MARGIN_S,
    ) -> None:
        self.window_ns = window_ns
        self.onset_ns = onset_ns
        self._margin_ns = round(margin_s * 1e9)
        self.flaws: dict[str, tuple[Flaw, ...]] = {}
        self._source = source
        self._there = frozenset(source.metrics())
        self._kept: dict[tuple[str, View], Panel | None] = {}

    @property
    def from_ns(self) -> int:
        """The first moment that panels show."""
        if self.onset_ns is None:
            return self.window_ns[0]
        return min(self.window_ns[0], self.onset_ns - self._margin_ns)

    @property
    def metrics(self) -> frozenset[str]:
        return self._there

    def value(self, metric: str) -> Panel | None:
        """The readings; None if the window has none."""
        return self._panel(metric, "value")

    def rate(self, metric: str) -> Panel | None:
        """The growth of a counter per second."""
        return self._panel(metric, "rate")

    def grown(self, metric: str) -> Panel | None:
        """The growth of those series that grew at all: few error counters do."""
        return self._panel(metric, "grown")

    def of_run(
        self, metric: str, run: str, window_ns: tuple[int, int] | None = None, *, as_rate: bool = False
    ) -> Panel | None:
        """The run's series of a metric, one for each member; None if there are none.

        window_ns: a window other than that of the look.
        """
        view: View = "rate" if as_rate else "value"
        panel = self._panel(metric, view) if window_ns is None else self._read(metric, view, window_ns)
        return None if panel is None or len(panel.times_ns) < 2 else _by_member(panel, run)

    def _panel(self, metric: str, view: View) -> Panel | None:
        key = (metric, view)
        if key not in self._kept:
            while len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._read(metric, view, self.window_ns)
        return self._kept[key]

    def _read(self, metric: str, view: View, window_ns: tuple[int, int]) -> Panel | None:
        frame = self._source.frame(metric, window_ns) if metric in self._there else None
        if frame is None or not len(frame.times_ns):
            return None
        is_own = window_ns == self.window_ns
        past, gap = None, None
        earlier: tuple[tuple[str, Labels], ...] = ()
        if is_own and self.onset_ns is not None:
            early = self._early(metric, self.onset_ns)
            earlier = () if early is None else _shown_at_first(early)
            past, frame, gap = self._with_onset(early, frame, self.onset_ns)
        inspected = inspect(frame, now_ns=window_ns[1])
        if is_own:
            self.flaws[metric] = inspected.flaws
        clean, trust, as_rate = inspected.frame, inspected.trust, view != "value"
        if view == "grown":
            moved = np.fmin.reduce(clean.values, axis=0) != np.fmax.reduce(clean.values, axis=0)
            columns = np.flatnonzero(moved)
            clean, trust = _some(clean, columns), trust[columns]
            past = None if past is None else _some(past, columns)
        if as_rate:
            clean = per_second(clean)
        return Panel(
            metric=metric,
            subjects=clean.subjects,
            labels=clean.labels,
            times_ns=clean.times_ns,
            values=clean.values,
            trust=trust,
            before=None if past is None else _before(past, as_rate),
            words=() if view == "grown" else frame.words,
            gap=gap,
            earlier=earlier,
        )

    def _early(self, metric: str, onset_ns: int) -> Frame | None:
        """The readings before the onset, and in the minutes around it."""
        begin_ns = onset_ns - self._margin_ns - round(PAST_S * 1e9)
        return self._source.frame(metric, (begin_ns, self._until_ns(onset_ns)))

    def _until_ns(self, onset_ns: int) -> int:
        return min(onset_ns + round(ONSET_S * 1e9), self.window_ns[0])

    def _with_onset(
        self, early: Frame | None, frame: Frame, onset_ns: int
    ) -> tuple[Frame | None, Frame, int | None]:
        """The frame before the onset; the minutes around it with the window; the row after the gap."""
        end_ns = onset_ns - self._margin_ns
        until_ns = self._until_ns(onset_ns)
        if end_ns > self.window_ns[0]:
            # The problem began within the window, whose first rows are part of the baseline.
            rows = int(np.searchsorted(frame.times_ns, end_ns))
            early = _spliced(early, frame.rows(0, rows))
            frame = frame.rows(rows, len(frame.times_ns))
        if early is None or not len(early.times_ns) or not len(frame.times_ns):
            return None, frame, None
        early = _like(early, frame)
        rows = int(np.searchsorted(early.times_ns, end_ns))
        past, around = early.rows(0, rows), early.rows(rows, len(early.times_ns))
        if not len(around.times_ns):
            return past, frame, None
        is_near = until_ns >= self.window_ns[0]
        return past, _spliced(around, frame), None if is_near else len(around.times_ns)


def _shown_at_first(early: Frame) -> tuple[tuple[str, Labels], ...]:
    """The subjects and labels of the series some minutes before the onset: a change may precede it."""
    rows = max(1, round(EARLIER_SHARE * len(early.times_ns)))
    alive = np.flatnonzero(np.isfinite(early.values[:rows]).any(axis=0)).tolist()
    return tuple((early.subjects[column], early.labels[column]) for column in alive)


def _before(past: Frame, as_rate: bool) -> Floats | None:
    if len(past.times_ns) < compare.PAST_KNOWN_MIN:
        return None
    clean = inspect(past).frame
    return per_second(clean).values if as_rate else clean.values


def _some(frame: Frame, columns: NDArray[np.int64]) -> Frame:
    """The frame with only these series."""
    chosen = columns.tolist()
    return msgspec.structs.replace(
        frame,
        subjects=tuple(map(frame.subjects.__getitem__, chosen)),
        labels=tuple(map(frame.labels.__getitem__, chosen)),
        values=frame.values.take(columns, axis=1),
        words=(),
    )


def _like(frame: Frame, other: Frame) -> Frame:
    """The frame with the series of the other one, in their order; NaN for series that it lacks."""
    if frame.subjects == other.subjects and frame.labels == other.labels:
        return frame
    place = {key: column for column, key in enumerate(_identities(frame.subjects, frame.labels))}
    columns = [place.get(key, -1) for key in _identities(other.subjects, other.labels)]
    missing = np.array(columns) < 0
    return msgspec.structs.replace(
        other, times_ns=frame.times_ns, values=np.where(missing, np.nan, frame.values[:, columns]), words=()
    )


def _spliced(first: Frame | None, then: Frame) -> Frame:
    """One frame after the other, with the series of the second."""
    if first is None or not len(first.times_ns):
        return then
    first = _like(first, then)
    shift = len(first.times_ns)
    moved = (msgspec.structs.replace(word, time=word.time + shift) for word in then.words)
    return msgspec.structs.replace(
        then,
        times_ns=np.concatenate((first.times_ns, then.times_ns)),
        values=np.concatenate((first.values, then.values)),
        words=(*first.words, *moved),
    )


def _by_member(panel: Panel, run: str) -> Panel | None:
    columns: dict[str, list[int]] = {}
    for column, labels in enumerate(panel.labels):
        if labels.get("run") == run:
            subject = member_name(run, labels["member"]) if "member" in labels else run
            columns.setdefault(subject, []).append(column)
    if not columns:
        return None
    if len(columns) == len(panel.labels) == sum(map(len, columns.values())):
        return msgspec.structs.replace(panel, subjects=tuple(columns), labels=(), words=())
    groups = tuple(columns.values())
    return msgspec.structs.replace(
        panel,
        subjects=tuple(columns),
        labels=(),
        values=_together(panel.values, groups),
        before=None if panel.before is None else _together(panel.before, groups),
        trust=np.array([panel.trust[own].min() for own in groups], np.float32),
        words=(),
    )


def _together(values: Floats, groups: Iterable[list[int]]) -> Floats:
    """The largest value of each group: if an exporter moved, a member has several series."""
    known = np.where(np.isfinite(values), values, np.nan)
    return np.stack([np.fmax.reduce(known[:, own], axis=1) for own in groups], axis=1)


def _identities(subjects: Iterable[str], labels: Iterable[Labels]) -> Iterator[tuple[object, ...]]:
    for subject, known in zip(subjects, labels, strict=True):
        yield subject, *sorted(known.items())
