"""The fabric: what errors and crowded uplinks leave of a node's bandwidth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drills import fabric
from holdfast.drills.levers import Lever, Levers, Turned
from holdfast.twin.cluster import Layout

LAYOUT = Layout(gpus=256, nodes_per_leaf=8)


def levers(lever: Lever, subjects: list[int], level: float) -> Levers:
    values = np.full((1, len(subjects)), level, np.float32)
    return Levers(LAYOUT, 1, [Turned(lever=lever, subjects=tuple(subjects), level=values)])


def test_a_healthy_fabric_has_all_of_its_bandwidth() -> None:
    assert (fabric.bandwidth_share(LAYOUT, Levers(LAYOUT, 1, []), 0) == 1.0).all()


@given(few=st.floats(0, 500), more=st.floats(0, 5_000), recoveries=st.floats(0, 2))
def test_more_errors_never_leave_more(few: float, more: float, recoveries: float) -> None:
    worse = np.array([few, few + more])
    share = fabric.port_share(worse, np.array([0.0, recoveries]))
    assert 0 < share[1] <= share[0] <= 1


def test_500_symbol_errors_a_second_halve_a_port() -> None:
    assert fabric.port_share(np.array([500.0]), np.zeros(1)) == pytest.approx(0.5)


def test_a_node_is_as_fast_as_its_worst_port() -> None:
    share = fabric.bandwidth_share(LAYOUT, levers("symbols", [5 * 8 + 3], 500), 0)
    assert share[5] == pytest.approx(0.5)
    assert np.flatnonzero(share < 1).tolist() == [5]


def test_a_crowded_leaf_slows_its_nodes_and_no_other() -> None:
    share = fabric.bandwidth_share(LAYOUT, levers("uplink", [1], 0.4), 0)
    assert np.flatnonzero(share < 1).tolist() == list(LAYOUT.nodes_of("leaf", 1))
    assert share[8] == pytest.approx(0.4)


def test_a_crowded_leaf_waits_to_send() -> None:
    waiting = fabric.waiting_share(levers("uplink", [1], 0.4))
    assert waiting[0, 1] > 50 * waiting[0, 0] > 0
