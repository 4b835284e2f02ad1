"""Inference pools: a healthy transfer, and which pairs are slow when a port, a path or the router is bad."""

import numpy as np
import pytest

from holdfast.drills.levers import POOL_ENGINES, Floats
from holdfast.drills.pools import CACHE_USED_SHARE, TRANSFER_S, Exchange, exchange, spine_of
from holdfast.drills.training import STEP_S
from holdfast.twin.cluster import Layout

ONES = np.ones(POOL_ENGINES)
PATHS = np.ones((POOL_ENGINES, POOL_ENGINES))


def bad(engine: int, share: float) -> Floats:
    shares = ONES.copy()
    shares[engine] = share
    return shares


def slow_pairs(pools: Exchange) -> list[list[int]]:
    pairs: list[list[int]] = np.argwhere(pools.transfer_s > 1.01 * TRANSFER_S).tolist()
    return pairs


def test_healthy_pools_keep_up_with_the_run() -> None:
    pools = exchange(ONES, ONES, PATHS, ONES)
    assert pools.transfer_s == pytest.approx(TRANSFER_S)
    assert pools.requests.sum() == pytest.approx(1)
    assert pools.cache_share == pytest.approx(CACHE_USED_SHARE)
    assert 0.6 * STEP_S < pools.samples_s < 0.9 * STEP_S


def test_a_bad_port_is_a_row_or_a_column_of_pairs() -> None:
    row = exchange(bad(3, 0.2), ONES, PATHS, ONES)
    assert slow_pairs(row) == [[3, other] for other in range(POOL_ENGINES)]
    assert row.transfer_s[3, 0] == pytest.approx(5 * TRANSFER_S)
    column = exchange(ONES, bad(3, 0.2), PATHS, ONES)
    assert slow_pairs(column) == [[other, 3] for other in range(POOL_ENGINES)]
    assert row.samples_s > column.samples_s  # every request of one engine, or an eighth of everybody's


def test_a_bad_spine_is_every_engine_and_a_quarter_of_the_pairs() -> None:
    spines = spine_of(Layout(gpus=512))
    pools = exchange(ONES, ONES, np.where(spines == 2, 0.15, 1.0), ONES)
    pairs = np.array(slow_pairs(pools))
    assert len(pairs) == POOL_ENGINES**2 // 4
    assert set(pairs[:, 0]) == set(pairs[:, 1]) == set(range(POOL_ENGINES))
    assert pools.samples_s > STEP_S


def test_an_unfair_router_fills_one_engine_and_slows_no_transfer() -> None:
    pools = exchange(ONES, ONES, PATHS, bad(5, 3.0))
    assert slow_pairs(pools) == []
    assert pools.samples_s > STEP_S
    assert pools.cache_share.argmax() == pools.first_token_s.argmax() == 5
    assert pools.cache_share.max() <= 1
