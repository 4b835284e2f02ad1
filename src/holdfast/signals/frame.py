"""A frame: one metric of many subjects over a window of time; and the readings that it is made of."""

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.wording.units import SECOND_NS

Floats = NDArray[np.floating[Any]]
Labels = dict[str, str]
Kind = Literal["gauge", "counter"]


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A text in place of a number, at a time and a series given by their indices."""

    time: int
    series: int
    text: str


class Frame(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One metric over time. values: time by series, NaN without a number; `words`: the texts in their place.

    subjects: what each series is about, by its name in the topology; several series may share one. labels: as
    the exporter gave them.
    """

    metric: str
    kind: Kind
    meaning: str = ""
    subjects: tuple[str, ...]
    labels: tuple[Labels, ...]
    times_ns: NDArray[np.int64]
    values: Floats
    words: tuple[Word, ...] = ()

    def rows(self, first: int, end: int) -> "Frame":
        """The frame from one row to before another."""
        kept = (word for word in self.words if first <= word.time < end)
        return msgspec.structs.replace(
            self,
            times_ns=self.times_ns[first:end],
            values=self.values[first:end],
            words=tuple(msgspec.structs.replace(word, time=word.time - first) for word in kept),
        )


def joined(one: Frame | None, other: Frame, *, is_again: bool = False) -> Frame | None:
    """Both frames, at the times of the first. A subject that both have is taken from the first, unless
    `is_again`.

    Each metric is read separately, so rows may begin at other times, or be farther apart.
    """
    if one is None:
        return other if other.subjects else None
    known = set() if is_again else set(one.subjects)
    columns = [column for column, subject in enumerate(other.subjects) if subject not in known]
    if not columns or not len(other.times_ns):
        return one
    middles_ns = (other.times_ns[1:] + other.times_ns[:-1]) // 2
    rows = np.searchsorted(middles_ns, one.times_ns)
    step_ns = float(np.median(np.diff(one.times_ns))) if len(one.times_ns) > 1 else SECOND_NS
    near = np.abs(other.times_ns[rows] - one.times_ns) <= step_ns
    added = np.where(near[:, None], other.values[rows][:, columns], np.nan)
    return msgspec.structs.replace(
        one,
        subjects=(*one.subjects, *(other.subjects[column] for column in columns)),
        labels=(*one.labels, *(other.labels[column] for column in columns)),
        values=np.concatenate([one.values, added], axis=1),
    )


def per_second(frame: Frame) -> Frame:
    """The growth of each series since its previous value, per second.

    A fall is a reset: the counter began again at zero, so its whole value is growth. NaN in the first row and
    where a scrape is missing; the next value's growth covers the longer time.
    """
    rates = np.full(frame.values.shape, np.nan, np.float32)
    if len(frame.times_ns) > 1:
        _fill(rates, frame)
    return msgspec.structs.replace(frame, kind="gauge", values=rates, words=())


def _fill(rates: NDArray[np.float32], frame: Frame) -> None:
    # Row by row: a row of 16,384 series stays in the processor's cache, the whole window would not.
    values, seconds = frame.values, (frame.times_ns - frame.times_ns[0]) / SECOND_NS
    # The last known value and its time, for series that were missing in the previous scrape: usually few.
    last, last_s = np.full(values.shape[1], np.nan), np.zeros(values.shape[1])
    absent = np.flatnonzero(np.isnan(values[0]))
    growth = np.empty(values.shape[1])
    for time in range(1, len(seconds)):
        now, before = values[time], values[time - 1]
        np.subtract(now, before, out=growth, dtype=np.float64)
        growth[absent] = now[absent] - last[absent]
        fell = growth < 0
        if fell.any():
            np.copyto(growth, now, where=fell)
        elapsed_s = seconds[time] - seconds[time - 1]
        # A series that was missing in the last scrape has grown for longer.
        growth[absent] *= elapsed_s / (seconds[time] - last_s[absent])
        np.divide(growth, elapsed_s, out=rates[time], casting="same_kind")
        absent = np.flatnonzero(np.isnan(now))
        gone = absent[~np.isnan(before[absent])]
        last[gone], last_s[gone] = before[gone], seconds[time - 1]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a collector yields. value: None if there was no number; word: the text in its place."""

    metric: str
    labels: Labels
    at_ns: int
    value: float | None
    word: str = ""
