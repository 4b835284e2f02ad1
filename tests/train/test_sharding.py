"""Building blocks of sharded members: lanes that break, sums independent of the cut, lanes in common."""

import itertools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.errors import InputError
from holdfast.train import replica, tree
from holdfast.train.group import GroupBroken, Transfer, Work
from holdfast.train.replica import Agreed
from holdfast.train.sharding import Line
from holdfast.train.sheets import BucketLayout


class Breaking:
    """A group of two that breaks at one of its exchanges. Before that, it receives ones."""

    is_ordered = False
    rank, size = 0, 2

    def __init__(self, breaks_at: int) -> None:
        self._left = breaks_at

    def along(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int, *, is_kept: bool = True
    ) -> Work:
        self._left -= 1
        if self._left < 0:
            raise GroupBroken("rank 1 is gone")
        for tensor, _ in receives:
            tensor.fill_(1.0)
        return self

    def wait(self) -> None: ...

    def settle(self) -> None: ...

    def confirm(self, peers: Sequence[int] | None = None) -> None: ...

    def sending(self) -> tuple[Any, ...]:
        return ()

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_a_collective_that_breaks_in_a_lane_gives_zeros_and_the_lane_is_invalid() -> None:
    line = Line()
    line.carry(Breaking(1))
    line.begin()
    came = torch.full((3,), 7.0)
    line.exchange([], [(came, 1)])
    assert came.tolist() == [1.0, 1.0, 1.0]
    line.exchange([], [(came, 1)])
    assert came.tolist() == [0.0, 0.0, 0.0]
    assert isinstance(line.end(), GroupBroken)


def test_what_broke_stays_broken_until_another_group_carries_it() -> None:
    line = Line()
    line.carry(Breaking(0))
    for _ in range(2):
        line.begin()
        line.exchange([], [(torch.empty(1), 1)])
        assert line.end() is not None
    line.carry(Breaking(9))
    line.begin()
    line.exchange([], [(torch.empty(1), 1)])
    assert line.end() is None


def test_outside_a_lane_a_broken_collective_raises() -> None:
    line = Line()
    line.carry(Breaking(0))
    with pytest.raises(GroupBroken, match=r"outside lanes and run.share\(\).*rank 1 is gone.*use the model"):
        line.exchange([], [(torch.empty(1), 1)])


def test_a_commit_uses_no_collective() -> None:
    line = Line()
    line.carry(Breaking(9))
    with line.commit(), pytest.raises(InputError, match=r"called in step\.commit\(\)"):
        line.exchange([], [(torch.empty(1), 1)])
    line.exchange([], [(torch.empty(1), 1)])


def norm_of(parts: Sequence[torch.Tensor]) -> float:
    mine = Agreed(loss=1.0, pending=(0, 0), latest=(0.0, 0.0), norm=None, is_due=False)
    norm = replica.agree(None, mine, parts, torch.device("cpu")).norm
    assert norm is not None
    return norm


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=5),
    st.randoms(use_true_random=False),
)
def test_the_norm_does_not_depend_on_the_cut_nor_on_the_order(
    numbers: list[float], cuts: list[int], shuffled: Any
) -> None:
    whole = torch.tensor(numbers)
    ends = sorted({min(cut, len(numbers)) for cut in cuts} | {0, len(numbers)})
    parts = [whole[start:stop] for start, stop in itertools.pairwise(ends)]
    shuffled.shuffle(parts)
    assert norm_of(parts) == norm_of([whole])
    assert norm_of(parts) == pytest.approx(math.hypot(*numbers), rel=1e-6)


@pytest.mark.parametrize(("bad", "shown"), [(math.inf, math.inf), (math.nan, math.nan)])
def test_a_norm_that_is_not_a_number_is_told(bad: float, shown: float) -> None:
    assert str(norm_of([torch.tensor([1.0, bad])])) == str(shown)


LANES = st.lists(st.frozensets(st.integers(0, 15)), min_size=1, max_size=4)


@given(LANES)
def test_lanes_in_common_are_held_by_all_in_sums_of_nothing_else(held: list[frozenset[int]]) -> None:
    common = tree.in_common(held)
    for lanes in held:
        assert common <= lanes
        for node in tree.cover(lanes):
            below = set(tree.lanes_of(node))
            assert below <= common or not below & common


def test_what_is_whole_on_every_rank_is_in_the_buckets_that_are_added_up_between_them() -> None:
    kinds = [torch.bfloat16, torch.float32, torch.float32, torch.bfloat16]
    parameters = [torch.zeros(5, dtype=kind) for kind in kinds]
    layout = BucketLayout(parameters, [torch.zeros(3)], 2, slices=2, shared=[2, 3])
    assert all(layout.gradients[index].bucket < layout.shared for index in (0, 1))
    assert all(layout.gradients[index].bucket >= layout.shared for index in (2, 3))
    assert min(layout.losses.bucket, layout.moving[0].bucket) >= layout.shared
