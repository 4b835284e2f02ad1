"""What is fetched bit by bit is what is fetched whole: held against real servers."""

from itertools import pairwise

import numpy as np
import pytest

from holdfast.signals.frame import Frame, Reading
from holdfast.signals.incremental import OVERLAP_NS, IncrementalSource
from holdfast.signals.prometheus import Prometheus, Raw

SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("prometheus", "victoria")]
S = 10**9
STEP_NS = 10 * S
TEMP, ENERGY = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
WINDOW_NS = 200 * S
EVERY_NS = 17 * S
"""No multiple of the step: every look lies elsewhere in it."""


class Counted(Prometheus):
    """How many samples each question got."""

    asked: list[int]

    def raw(self, metric: str, window_ns: tuple[int, int]) -> Raw | None:
        found = super().raw(metric, window_ns)
        self.asked.append(0 if found is None else len(found.times_ns))
        return found


@pytest.mark.parametrize("metric", [TEMP, ENERGY])
@pytest.mark.parametrize("server", SERVERS)
def test_every_look_sees_what_a_whole_one_would(
    request: pytest.FixtureRequest, history: tuple[Reading, ...], server: str, metric: str
) -> None:
    url = request.getfixturevalue(server)
    begin_ns = history[0].at_ns
    end_ns = max(reading.at_ns for reading in history)
    with Prometheus(url) as whole, Counted(url) as counted:
        counted.asked = []
        source = IncrementalSource(counted)
        for now_ns in range(begin_ns + WINDOW_NS, end_ns, EVERY_NS):
            window_ns = (now_ns - WINDOW_NS, now_ns + 1)
            expected, found = whole.frame(metric, window_ns), source.frame(metric, window_ns)
            assert expected is not None
            assert found is not None
            same(expected, found)
        first, *later = counted.asked
        assert max(later) <= first * (OVERLAP_NS + EVERY_NS + 2 * STEP_NS) / WINDOW_NS


def same(expected: Frame, found: Frame) -> None:
    order = [found.subjects.index(subject) for subject in expected.subjects]
    assert [found.labels[column] for column in order] == list(expected.labels)
    assert found.times_ns.tolist() == expected.times_ns.tolist()
    # What lies before the window's beginning is kept, and so may be in its first row.
    np.testing.assert_allclose(found.values[1:, order], expected.values[1:], rtol=1e-6)


def test_a_host_that_falls_silent_and_comes_back_is_seen_so(
    prometheus: str, history: tuple[Reading, ...]
) -> None:
    times_ns = sorted({reading.at_ns for reading in history if reading.labels["hostname"] == "n0"})
    last_ns, again_ns = max(pairwise(times_ns), key=lambda pair: pair[1] - pair[0])
    looks = ((last_ns + S, False), (again_ns - S, True), (again_ns + 4 * STEP_NS, False))
    with Prometheus(prometheus) as server:
        source = IncrementalSource(server)
        for now_ns, is_silent in looks:
            frame = source.frame(TEMP, (now_ns - WINDOW_NS, now_ns))
            assert frame is not None
            silent = np.isnan(frame.values[-3:]).all(axis=0).tolist()
            assert silent == [subject.startswith("n0.") and is_silent for subject in frame.subjects]


def test_the_past_and_a_longer_window_are_asked_for(prometheus: str, history: tuple[Reading, ...]) -> None:
    begin_ns = history[0].at_ns
    now_ns = begin_ns + 500 * S
    windows = [(now_ns - 100 * S, now_ns), (now_ns - 400 * S, now_ns), (begin_ns, begin_ns + 200 * S)]
    with Prometheus(prometheus) as server:
        source = IncrementalSource(server)
        for window_ns in [*windows, windows[0]]:
            expected, found = server.frame(TEMP, window_ns), source.frame(TEMP, window_ns)
            assert expected is not None
            assert found is not None
            same(expected, found)
        assert source.frame("no_such_metric", windows[0]) is None
        small = IncrementalSource(server, kept_bytes_max=1)
        for metric in (TEMP, ENERGY, TEMP):
            assert small.frame(metric, windows[0]) is not None


def test_what_was_before_is_fetched_once_however_often_it_is_looked_at(
    prometheus: str, history: tuple[Reading, ...]
) -> None:
    begin_ns = history[0].at_ns
    end_ns = max(reading.at_ns for reading in history)
    onset_ns = begin_ns + 300 * S
    with Prometheus(prometheus) as whole, Counted(prometheus) as counted:
        counted.asked = []
        source = IncrementalSource(counted)
        early: list[int] = []
        for number, now_ns in enumerate(range(onset_ns + WINDOW_NS, end_ns, EVERY_NS)):
            assert source.frame(TEMP, (now_ns - WINDOW_NS, now_ns + 1)) is not None
            asked = len(counted.asked)
            # When it began wavers a little, and the rows after that grow until the window has left them.
            since_ns = onset_ns - number % 3 * STEP_NS
            before_ns = (since_ns - 150 * S, min(since_ns + 40 * S, now_ns - WINDOW_NS))
            expected, found = whole.frame(TEMP, before_ns), source.frame(TEMP, before_ns)
            assert expected is not None
            assert found is not None
            same(expected, found)
            early.append(sum(counted.asked[asked:]))
        first, *later = early
        assert first > 0
        # A few rows at a time, and then nothing any more.
        assert max(later) <= first * (EVERY_NS + 4 * STEP_NS) / (150 * S)
        assert later[-1] == 0
        # Nor is it asked again what was not there.
        asked = len(counted.asked)
        for _ in range(3):
            assert source.frame(TEMP, (begin_ns - 900 * S, begin_ns - 800 * S)) is None
        assert len(counted.asked) == asked + 1
