"""Nothing is read twice, and no more is kept than may be."""

import numpy as np

from holdfast.signals.frame import Frame
from holdfast.signals.source import OnceSource

WINDOW_NS, LATER_NS = (0, 10), (10, 20)
FRAME_BYTES = 800


class CountingSource:
    """Has two metrics, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def metrics(self) -> tuple[str, ...]:
        self.asked.append("metrics")
        return ("a", "b")

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        self.asked.append(metric)
        if metric not in ("a", "b"):
            return None
        return Frame(
            metric=metric,
            kind="gauge",
            subjects=("n1",),
            labels=({},),
            times_ns=np.array([window_ns[0]]),
            values=np.zeros((1, FRAME_BYTES // 8)),
        )


def test_each_metric_of_a_window_is_read_once() -> None:
    counting = CountingSource()
    once = OnceSource(counting)
    assert once.metrics() == once.metrics() == ("a", "b")
    assert once.frame("a", WINDOW_NS) is once.frame("a", WINDOW_NS)
    later = once.frame("a", LATER_NS)
    assert later is not None
    assert later.times_ns[0] == LATER_NS[0]
    assert once.frame("c", WINDOW_NS) is once.frame("c", WINDOW_NS) is None
    assert counting.asked == ["metrics", "a", "a", "c"]


def test_the_oldest_frames_give_way() -> None:
    counting = CountingSource()
    once = OnceSource(counting, kept_bytes_max=FRAME_BYTES)
    for metric in ("a", "a", "b", "b", "a"):
        assert once.frame(metric, WINDOW_NS) is not None
    assert counting.asked == ["a", "b", "a"]


def test_a_frame_that_is_too_large_is_given_all_the_same() -> None:
    once = OnceSource(CountingSource(), kept_bytes_max=1)
    assert once.frame("a", WINDOW_NS) is not None
    assert once.frame("b", WINDOW_NS) is not None
