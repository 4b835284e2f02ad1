"""A panel: the readings of one metric as every detector gets them, cleaned, with the trust in each series.

`Panels` reads a source for one look. Nothing reaches a detector that was not inspected first, so that flawed
telemetry lowers the confidence of whatever is found in it.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.signals.frame import Floats, Frame, Labels, Word
from holdfast.signals.quality import Flaw, inspect
from holdfast.signals.rates import per_second
from holdfast.signals.source import Source

KEPT_MAX = 12
"""Panels that are kept for the next detector; some are read by several, one after the other."""


class Panel(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One metric, time by series. trust: by series, between 0 and 1.

    before: rows from before the window, where something has been wrong for longer than the window is wide;
    they have the same series. Without them the first third of the window tells what is usual.
    """

    metric: str
    subjects: tuple[str, ...]
    labels: tuple[Labels, ...]
    times_ns: NDArray[np.int64]
    values: Floats
    trust: Floats
    before: Floats | None = None
    words: tuple[Word, ...] = ()

    @cached_property
    def usual(self) -> Floats:
        """By series: what it showed before; NaN where nobody knows."""
        here = compare.usual(self.values)
        if self.before is None:
            return here
        past = compare.usual(self.before, np.arange(len(self.before)))
        return np.where(np.isfinite(past), past, here)

    @cached_property
    def scatter(self) -> float:
        """The standard deviation of a reading around what is usual for its series."""
        if self.before is None:
            return compare.spread(self.values, self.usual)
        return compare.spread(self.before, self.usual, np.arange(len(self.before)))

    def some(self, columns: NDArray[np.int64]) -> "Panel":
        """These series of it."""
        if len(columns) == len(self.subjects):
            return self
        return msgspec.structs.replace(
            self,
            subjects=tuple(self.subjects[column] for column in columns),
            labels=tuple(self.labels[column] for column in columns) if self.labels else (),
            values=self.values[:, columns],
            trust=self.trust[columns],
            before=None if self.before is None else self.before[:, columns],
            words=(),
        )

    def scaled(self, factor: float) -> "Panel":
        if factor == 1.0:
            return self
        by = np.float32(factor)
        before = None if self.before is None else self.before * by
        return msgspec.structs.replace(self, values=self.values * by, before=before)


class Panels:
    """What one look reads. flaws: of all that was read so far.

    past_ns: the time that tells what was usual, where the window does not.
    """

    def __init__(
        self, source: Source, window_ns: tuple[int, int], past_ns: tuple[int, int] | None = None
    ) -> None:
        self.window_ns = window_ns
        self.past_ns = past_ns
        self.flaws: dict[str, tuple[Flaw, ...]] = {}
        self._source = source
        self._there = frozenset(source.metrics())
        self._kept: dict[tuple[str, bool], Panel | None] = {}

    @property
    def metrics(self) -> frozenset[str]:
        return self._there

    def value(self, metric: str) -> Panel | None:
        """The readings; None where there are none in the window."""
        return self._panel(metric, False)

    def rate(self, metric: str) -> Panel | None:
        """The growth of a counter by second."""
        return self._panel(metric, True)

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        """The cleaned readings of another time than the window."""
        frame = self._source.frame(metric, window_ns) if metric in self._there else None
        if frame is None or not len(frame.times_ns):
            return None
        return inspect(frame).frame

    def _panel(self, metric: str, as_rate: bool) -> Panel | None:
        key = (metric, as_rate)
        if key not in self._kept:
            while len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._read(metric, as_rate)
        return self._kept[key]

    def _read(self, metric: str, as_rate: bool) -> Panel | None:
        frame = self._source.frame(metric, self.window_ns) if metric in self._there else None
        if frame is None or not len(frame.times_ns):
            return None
        inspected = inspect(frame, now_ns=self.window_ns[1])
        self.flaws[metric] = inspected.flaws
        clean = per_second(inspected.frame) if as_rate else inspected.frame
        return Panel(
            metric=metric,
            subjects=frame.subjects,
            labels=frame.labels,
            times_ns=frame.times_ns,
            values=clean.values,
            trust=inspected.trust,
            before=self._before(clean, as_rate),
            words=frame.words,
        )

    def _before(self, frame: Frame, as_rate: bool) -> Floats | None:
        if self.past_ns is None:
            return None
        past = self.frame(frame.metric, self.past_ns)
        if past is None:
            return None
        values = per_second(past).values if as_rate else past.values
        if past.labels == frame.labels and past.subjects == frame.subjects:
            return values
        place = {key: column for column, key in enumerate(_identities(past.subjects, past.labels))}
        columns = [place.get(key, -1) for key in _identities(frame.subjects, frame.labels)]
        missing = np.array([column < 0 for column in columns])
        return np.where(missing[None, :], np.nan, values[:, columns])


def _identities(subjects: Iterable[str], labels: Iterable[Labels]) -> Iterator[tuple[object, ...]]:
    for subject, known in zip(subjects, labels, strict=True):
        yield subject, *sorted(known.items())
