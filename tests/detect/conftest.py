"""Readings made by hand, a source that shows them, a small cluster, and one look at all of it."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from holdfast.detect.detecting import Detected, detect
from holdfast.detect.scene import Healthy, PlannedWork, scene
from holdfast.detect.xids import NO_OVERRIDES, Overrides
from holdfast.drills.wiring import topology_of
from holdfast.drills.world import cast
from holdfast.record.events import KnownEvent
from holdfast.signals.catalogue import describe
from holdfast.signals.frame import Floats, Frame, Labels, Word
from holdfast.signals.source import Source
from holdfast.topology.graph import Topology
from holdfast.twin.cluster import Layout

START_NS = 1_772_442_000 * 10**9
RUN = "pretrain"
LAYOUT = Layout(gpus=512, racks_per_loop=4, nodes_per_leaf=8, nodes_per_mount=32)


class Shown:
    """A source of frames that are there already."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = {frame.metric: frame for frame in frames}

    def metrics(self) -> tuple[str, ...]:
        return tuple(sorted(self._frames))

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        whole = self._frames.get(metric)
        if whole is None:
            return None
        first, end = np.searchsorted(whole.times_ns, window_ns).tolist()
        if first == end:
            return None
        words = tuple(
            msgspec.structs.replace(word, time=word.time - first)
            for word in whole.words
            if first <= word.time < end
        )
        return msgspec.structs.replace(
            whole, times_ns=whole.times_ns[first:end], values=whole.values[first:end], words=words
        )


@pytest.fixture(scope="session")
def framed() -> Callable[..., Frame]:
    """A frame of a metric, scraped every ten seconds from the beginning on."""

    def make(
        metric: str,
        values: Floats,
        subjects: Sequence[str],
        *,
        labels: Sequence[Labels] | None = None,
        every_s: float = 10.0,
        from_s: float = 0.0,
        words: tuple[Word, ...] = (),
    ) -> Frame:
        rows = np.atleast_2d(np.asarray(values, np.float64).T).T
        times_s = from_s + np.arange(len(rows)) * every_s
        return Frame(
            metric=metric,
            kind=describe(metric).kind,
            subjects=tuple(subjects),
            labels=tuple(labels) if labels is not None else tuple({} for _ in subjects),
            times_ns=START_NS + (times_s * 1e9).astype(np.int64),
            values=rows,
            words=words,
        )

    return make


@pytest.fixture(scope="session")
def noisy() -> Callable[..., Floats]:
    """Rows by series around a level, which scatter by a share of it."""

    def make(level: float, rows: int, series: int = 1, *, share: float = 0.004, seed: int = 0) -> Floats:
        scatter = np.random.default_rng(seed).standard_normal((rows, series))
        return np.asarray(level * (1 + share * scatter))

    return make


@pytest.fixture(scope="session")
def shown() -> Callable[..., Source]:
    def make(*frames: Frame) -> Source:
        return Shown(frames)

    return make


@pytest.fixture(scope="session")
def topology() -> Topology:
    """64 nodes in 16 racks on four loops, eight leaves and two mounts; the run is on all but the spares."""
    return topology_of(cast(LAYOUT, with_pools=True), RUN)


@pytest.fixture(scope="session")
def looked(topology: Topology) -> Callable[..., Detected]:
    """What there is to be found in these frames, and in the record of one run, at the last reading."""

    def look(
        *frames: Frame,
        events: Sequence[KnownEvent] = (),
        planned: Sequence[PlannedWork] = (),
        xids: Overrides = NO_OVERRIDES,
        now_ns: int | None = None,
        window_s: float = 1_800.0,
        healthy: Healthy | None = None,
    ) -> Detected:
        last_ns = max((int(frame.times_ns[-1]) for frame in frames), default=START_NS)
        now_ns = last_ns if now_ns is None else now_ns
        one = scene(RUN, events, planned, now_ns=now_ns, healthy=healthy)
        window_ns = (now_ns - round(window_s * 1e9), now_ns + 1)
        return detect(Shown(frames), topology, [one], window_ns=window_ns, xids=xids)

    return look
