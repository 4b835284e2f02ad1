"""Shared mounts: fairness, and what a crowd or a weak filer does to checkpoints and reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drills import storage
from holdfast.drills.levers import Lever, Levers, Turned
from holdfast.drills.training import STEP_S
from holdfast.twin.cluster import Layout

LAYOUT = Layout(gpus=512, nodes_per_mount=32)
CLASSES = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 50)), min_size=1, max_size=6)


def rates(lever: Lever, level: float) -> storage.Rates:
    turned = Turned(lever=lever, subjects=(1,), level=np.full((1, 1), level, np.float32))
    return storage.client_rates(LAYOUT, Levers(LAYOUT, 1, [turned]), 0)


@given(classes=CLASSES, capacity=st.floats(0.1, 5_000))
def test_shares_are_fair(classes: list[tuple[float, int]], capacity: float) -> None:
    demands, clients = (np.array(column, float) for column in zip(*classes, strict=True))
    given_out = storage.fair_rates(demands, clients, capacity)
    total = float((given_out * clients).sum())
    assert (given_out <= demands + 1e-9).all()
    assert total == pytest.approx(min(capacity, float((demands * clients).sum())))
    short = given_out < demands - 1e-6
    if short.any():  # a client that gets less than it wants gets as much as any other
        assert given_out[short] == pytest.approx(float(given_out.max()), abs=1e-6)


def test_a_checkpoint_takes_its_size_over_a_fair_share() -> None:
    alone = storage.write_s(LAYOUT, rates("neighbours", 0).write, 1.0)
    assert alone == pytest.approx(8 * 0.8e9 / 0.5e9)
    assert storage.write_s(LAYOUT, rates("neighbours", 3).write, 1.0) == pytest.approx(4 * alone)
    assert storage.write_s(LAYOUT, rates("neighbours", 0).write, 1.5) == pytest.approx(1.5 * alone)


def test_neighbours_slow_writes_and_not_reads() -> None:
    crowded = rates("neighbours", 5)
    assert crowded.write[1] < crowded.write[0]
    assert crowded.read[1] == crowded.read[0]
    assert (storage.timeouts_share(crowded.read) == 0).all()


def test_a_weak_filer_stalls_its_readers_and_times_out() -> None:
    weak = rates("capacity", 0.3)
    read_s = storage.read_s(weak.read)
    assert read_s[0] < STEP_S < read_s[1]
    assert storage.timeouts_share(weak.read)[1] > storage.timeouts_share(weak.read)[0] == 0
    assert storage.response_s(weak.read)[1] == pytest.approx(storage.RESPONSE_S / 0.3, rel=1e-5)
