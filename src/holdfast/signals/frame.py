"""A frame: one metric of many subjects over a window of time, wherever it came from."""

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Labels = dict[str, str]
Kind = Literal["gauge", "counter"]


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A text in place of a number: at which time and for which series, by their indices."""

    time: int
    series: int
    text: str


class Frame(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One metric over time. values: time by series, NaN where there is no number; `words`: what is there.

    subjects: what each series is about, by its name in the topology; several series may share one.
    labels: as the exporter gave them.
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
        """Of its times, from one to before another."""
        kept = (word for word in self.words if first <= word.time < end)
        return msgspec.structs.replace(
            self,
            times_ns=self.times_ns[first:end],
            values=self.values[first:end],
            words=tuple(msgspec.structs.replace(word, time=word.time - first) for word in kept),
        )
