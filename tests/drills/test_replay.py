"""A played scenario as a source: windows as asked for, words with them, and what is hidden not there."""

import functools

import numpy as np
import pytest

from holdfast.drills.scenarios import Played, play
from holdfast.drills.telemetry import Replay
from holdfast.signals.frame import Frame
from holdfast.signals.source import Source

pytestmark = pytest.mark.slow

S = 10**9
WHOLE = (0, 2**62)
METRIC = "DCGM_FI_DEV_GPU_TEMP"
WORDED = "FlowLitersPerMinute"


@functools.cache
def played() -> Played:
    return play("cooling-pump", 1, duration_s=900)


@functools.cache
def replay() -> Replay:
    return Replay(played().telemetry)


def frame(metric: str = METRIC, window_ns: tuple[int, int] = WHOLE) -> Frame:
    found = replay().frame(metric, window_ns)
    assert found is not None
    return found


def test_it_is_a_source() -> None:
    source: Source = replay()
    assert METRIC in source.metrics()
    assert len(set(source.metrics())) == len(source.metrics())


def test_a_window_is_half_open() -> None:
    times_ns = frame().times_ns
    part = frame(window_ns=(int(times_ns[3]), int(times_ns[9])))
    np.testing.assert_array_equal(part.times_ns, times_ns[3:9])
    np.testing.assert_array_equal(part.values, frame().values[3:9])
    assert len(frame(window_ns=(int(times_ns[3]), int(times_ns[3]) + 1)).times_ns) == 1


@pytest.mark.parametrize("metric", [METRIC, WORDED, "node_infiniband_symbol_error_total"])
def test_a_window_is_what_the_telemetry_has_of_it(metric: str) -> None:
    times_ns = frame(metric).times_ns
    window_ns = (int(times_ns[40]), int(times_ns[80]))
    expected = played().telemetry.sample(metric, window_ns)
    found = frame(metric, window_ns)
    np.testing.assert_array_equal(found.values, expected.values)
    assert (found.words, found.subjects, found.labels) == (expected.words, expected.subjects, expected.labels)


def test_words_are_where_there_is_no_number() -> None:
    whole = frame(WORDED)
    assert whole.words
    last = max(word.time for word in whole.words)
    part = frame(WORDED, (int(whole.times_ns[last]), WHOLE[1]))
    assert part.words
    for word in part.words:
        assert np.isnan(part.values[word.time, word.series])


def test_where_there_is_nothing_there_is_no_frame() -> None:
    first_ns, last_ns = int(frame().times_ns[0]), int(frame().times_ns[-1])
    assert replay().frame(METRIC, (0, first_ns)) is None
    assert replay().frame(METRIC, (last_ns + 1, last_ns + 100 * S)) is None
    assert replay().frame(METRIC, (first_ns + 1, first_ns + 2)) is None
    assert replay().frame("no_such_metric", WHOLE) is None


def test_what_is_hidden_is_not_there() -> None:
    hiding = Replay(played().telemetry, ("DCGM_FI_DEV_", "node_nfs"))
    gone = set(replay().metrics()) - set(hiding.metrics())
    assert METRIC in gone
    assert all(name.startswith(("DCGM_FI_DEV_", "node_nfs")) for name in gone)
    assert hiding.frame(METRIC, WHOLE) is None
    assert hiding.frame("holdfast_run_step_seconds", WHOLE) is not None


def test_it_is_the_same_however_often_it_is_asked() -> None:
    np.testing.assert_array_equal(frame().values, frame().values)
    again = Replay(played().telemetry).frame(METRIC, WHOLE)
    assert again is not None
    np.testing.assert_array_equal(frame().values, again.values)
