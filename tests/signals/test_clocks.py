"""Clocks that are off are told once for each host."""

import numpy as np

from holdfast.signals.coverage import OFFSETS, skewed
from holdfast.signals.frame import Frame


class Source:
    def metrics(self) -> tuple[str, ...]:
        return OFFSETS

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        values = np.array(
            [[0.002, -2.5, np.nan, 0.0], [0.001, -2.6, np.nan, 0.9], [0.003, -2.5, np.nan, 0.0]]
        )
        return Frame(
            metric=metric,
            kind="gauge",
            subjects=("n1", "n2", "n3", "n4"),
            labels=({}, {}, {}, {}),
            times_ns=np.arange(3, dtype=np.int64),
            values=values,
        )


def test_a_clock_that_is_off_for_minutes_is_told_once() -> None:
    (flaw,) = skewed(Source(), 10**18)
    assert (flaw.kind, flaw.subject, flaw.metric) == ("clock", "n2", OFFSETS[0])
    assert "off by 2.5 s" in flaw.text
