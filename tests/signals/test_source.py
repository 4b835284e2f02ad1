"""The contract of a source, held by each: Prometheus, VictoriaMetrics, the embedded store and the twin."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.drills.scenarios import play
from holdfast.drills.telemetry import Telemetry
from holdfast.signals.frame import Frame, Reading
from holdfast.signals.prometheus import Prometheus
from holdfast.signals.source import Source
from holdfast.signals.store import SignalStore

pytestmark = pytest.mark.slow

METRIC = "DCGM_FI_DEV_GPU_TEMP"
STEP_NS = 10 * 10**9
MISSED = range(20, 26)
"""The scrapes of the history that its first host misses."""


class TwinSource:
    """The twin's telemetry as a source."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def metrics(self) -> tuple[str, ...]:
        return tuple(sorted(self._telemetry.metrics))

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        if metric not in self._telemetry.metrics:
            return None
        frame = self._telemetry.sample(metric, window_ns)
        return frame if len(frame.times_ns) else None


SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("prometheus", "victoria")]
Filled = tuple[Source, tuple[int, int]]
"""A source, and the window in which it has something."""


@pytest.fixture(params=[*SERVERS, "store", "twin"])
def filled(request: pytest.FixtureRequest, history: tuple[Reading, ...], tmp_path: Path) -> Iterator[Filled]:
    if request.param == "twin":
        telemetry = play("quiet", 1).telemetry
        times_ns = telemetry.sample(METRIC).times_ns
        yield TwinSource(telemetry), (int(times_ns[0]), int(times_ns[-1]) + STEP_NS)
        return
    with opened(request, history, tmp_path) as source:
        yield source, window_of(history)


@pytest.fixture(params=[*SERVERS, "store"])
def known(request: pytest.FixtureRequest, history: tuple[Reading, ...], tmp_path: Path) -> Iterator[Source]:
    """Those that can be given a history."""
    with opened(request, history, tmp_path) as source:
        yield source


def opened(
    request: pytest.FixtureRequest, history: tuple[Reading, ...], folder: Path
) -> Prometheus | SignalStore:
    if request.param == "store":
        store = SignalStore(folder / "signals")
        store.append(history[: len(history) // 2])
        store.append(history[len(history) // 2 :])
        return store
    return Prometheus(request.getfixturevalue(request.param))


def window_of(history: tuple[Reading, ...]) -> tuple[int, int]:
    begin_ns = min(reading.at_ns for reading in history) // STEP_NS * STEP_NS
    return begin_ns, begin_ns + 60 * STEP_NS


def test_what_is_there_is_named_in_order(filled: Filled) -> None:
    names = filled[0].metrics()
    assert METRIC in names
    assert list(names) == sorted(set(names))


def test_a_frame_is_what_it_says(filled: Filled) -> None:
    source, window_ns = filled
    frame = source.frame(METRIC, window_ns)
    assert frame is not None
    assert (frame.metric, frame.kind) == (METRIC, "gauge")
    assert frame.values.shape == (len(frame.times_ns), len(frame.subjects))
    assert len(frame.labels) == len(frame.subjects)
    assert frame.times_ns.dtype == np.int64
    assert (np.diff(frame.times_ns) == STEP_NS).all()
    assert window_ns[0] <= frame.times_ns[0]
    assert frame.times_ns[-1] < window_ns[1]
    assert all(
        subject == f"{labels['hostname']}.{labels['gpu']}"
        for subject, labels in zip(frame.subjects, frame.labels, strict=True)
    )


def test_what_is_not_there_is_none(filled: Filled) -> None:
    source, window_ns = filled
    long_ago_ns = window_ns[0] - 7 * 86_400 * 10**9
    assert source.frame("DCGM_FI_DEV_MOOD", window_ns) is None
    assert source.frame(METRIC, (long_ago_ns, long_ago_ns + 60 * 10**9)) is None


def test_a_counter_is_a_counter(filled: Filled) -> None:
    source, window_ns = filled
    frame = source.frame("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", window_ns)
    assert frame is not None
    assert frame.kind == "counter"
    assert np.nanmin(frame.values[-1] - frame.values[0]) > 0


def test_every_sample_is_at_its_place(known: Source, history: tuple[Reading, ...]) -> None:
    frame = known.frame(METRIC, window_of(history))
    assert frame is not None
    assert sorted(frame.subjects) == sorted(f"n{host}.{gpu}" for host in range(5) for gpu in range(2))
    expected = 40.0 + np.arange(60) % 7
    for index, subject in enumerate(frame.subjects):
        host = int(subject[1])
        there = np.array([host > 0 or scrape not in MISSED for scrape in range(60)])
        assert np.isnan(frame.values[~there, index]).all()
        assert frame.values[there, index].tolist() == (expected + host)[there].tolist()


def test_a_window_is_half_open(known: Source, history: tuple[Reading, ...]) -> None:
    first = next(reading for reading in history if reading.metric == METRIC)
    only = known.frame(METRIC, (first.at_ns, first.at_ns + 10**6))
    assert only is not None
    assert only.values.tolist() == [[first.value] * len(only.subjects)]
    before = known.frame(METRIC, (first.at_ns - 10**9, first.at_ns))
    assert before is None or f"{first.labels['hostname']}.{first.labels['gpu']}" not in before.subjects


def test_a_part_of_a_window_has_the_same_values(known: Source, history: tuple[Reading, ...]) -> None:
    begin_ns, end_ns = window_of(history)
    whole, part = (
        known.frame(METRIC, window_ns)
        for window_ns in ((begin_ns, end_ns), (begin_ns + 10 * STEP_NS, end_ns - 10 * STEP_NS))
    )
    assert whole is not None
    assert part is not None
    assert part.times_ns.tolist() == whole.times_ns[10:-10].tolist()
    columns = [whole.subjects.index(subject) for subject in part.subjects]
    assert np.array_equal(part.values, whole.values[10:-10, columns], equal_nan=True)
