"""What a look reads of a metric: its values, their growth, and of those that stand still nothing."""

from collections.abc import Callable

import numpy as np

from holdfast.detect.panel import Panels
from holdfast.signals.frame import Frame

METRIC = "node_infiniband_symbol_error_total"
NAN = np.nan


class _Shown:
    """A source of one frame, whatever window is asked for."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def metrics(self) -> tuple[str, ...]:
        return (METRIC,)

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        return self._frame


def panels(framed: Callable[..., Frame]) -> Panels:
    """Of four ports one counts, one began again at zero, one stands still and one was missed once."""
    counted = np.array(
        [[5, 9, 3, 4], [5, 9, 3, NAN], [15, 9, 3, 4], [15, 2, 3, 4]],
        np.float64,
    )
    frame = framed(METRIC, counted, ["n0/mlx5_0", "n1/mlx5_0", "n2/mlx5_0", "n3/mlx5_0"])
    return Panels(_Shown(frame), (int(frame.times_ns[0]), int(frame.times_ns[-1]) + 1))


def test_of_counters_that_stand_still_nothing_is_read(framed: Callable[..., Frame]) -> None:
    grown, every = panels(framed).grown(METRIC), panels(framed).rate(METRIC)
    assert grown is not None
    assert every is not None
    assert grown.subjects == ("n0/mlx5_0", "n1/mlx5_0")
    assert np.array_equal(grown.values, every.values[:, :2], equal_nan=True)
    assert grown.values[1:].tolist() == [[0.0, 0.0], [1.0, 0.0], [0.0, np.float32(0.2)]]
    assert len(every.subjects) == 4


def test_rows_of_some_series_lie_together_in_memory(framed: Callable[..., Frame]) -> None:
    """Detectors go through them row by row: columns side by side would take ten times as long."""
    every = panels(framed).rate(METRIC)
    assert every is not None
    some = every.some(np.array([0, 2]))
    assert some.values.flags.c_contiguous
    assert some.subjects == ("n0/mlx5_0", "n2/mlx5_0")
