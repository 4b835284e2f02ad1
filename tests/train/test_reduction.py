"""The sum over lanes: bit by bit the sum along the tree, for any deal of lanes, any order and any buckets."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.train import tree
from holdfast.train.reduction import Reduction
from holdfast.train.sheets import BucketLayout, LaneFold, Sheet

pytestmark = pytest.mark.slow

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
SHAPES = ((7,), (3, 5), (), (0, 4), (40,), (2, 3, 4))
Together = Callable[..., list[Any]]


def layout_of(lanes: int, bucket_bytes: int) -> BucketLayout:
    parameters = [
        torch.nn.Parameter(torch.zeros(shape, dtype=DTYPES[number % 3]))
        for number, shape in enumerate(SHAPES)
    ]
    return BucketLayout(parameters, [torch.zeros(3), torch.tensor(0)], lanes, bucket_bytes=bucket_bytes)


def fill(sheet: Sheet, lane: int) -> None:
    """Numbers of very different sizes, whose sum depends on the order of additions."""
    generator = torch.Generator().manual_seed(lane)
    for flat in sheet.flats:
        numbers = torch.randn(flat.shape, generator=generator, dtype=torch.float64)
        scales = torch.randint(-8, 9, flat.shape, generator=generator)
        flat.copy_(torch.ldexp(numbers, scales) * 100)


def reference(layout: BucketLayout, node: tree.Node, skipped: Collection[int] = ()) -> list[torch.Tensor]:
    """The expected sum; empty if no lane below was computed."""
    if node[0] == 0:
        sheet = Sheet(layout)
        fill(sheet, node[1])
        return [] if node[1] in skipped else sheet.flats
    left, right = (reference(layout, child, skipped) for child in tree.children(node))
    return [a + b for a, b in zip(left, right, strict=True)] if left and right else left or right


def fold_of(layout: BucketLayout, lanes: Sequence[int]) -> LaneFold:
    fold = LaneFold(layout)
    for lane in lanes:
        sheet = fold.take()
        fill(sheet, lane)
        fold.open(lane, sheet)
        for bucket in range(layout.buckets):
            fold.merge(bucket)
        fold.close(keep=None)
    return fold


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_one_member_adds_along_the_tree_in_whatever_order_lanes_come(lanes: int, data: st.DataObject) -> None:
    layout = layout_of(lanes, bucket_bytes=64)
    fold = fold_of(layout, data.draw(st.permutations(range(lanes))))
    root = tree.root(lanes)
    assert list(fold.held) == [root]
    assert same(fold.held[root].flats, reference(layout, root))


@pytest.mark.parametrize("is_ordered", [False, True], ids=["gathered at the end", "bucket by bucket"])
def test_members_add_along_the_tree_for_any_deal_of_lanes(together: Together, is_ordered: bool) -> None:
    """Twice, leaving the held sheets unchanged: a step that breaks off is reduced again by others. No member
    holds skipped lanes.
    """

    @given(st.integers(1, 4), st.sampled_from([1, 2, 8, 16]), st.sampled_from([16, 100, 1 << 20]), st.data())
    @settings(max_examples=examples(40), deadline=None)
    def check(size: int, lanes: int, bucket_bytes: int, data: st.DataObject) -> None:
        layout = layout_of(lanes, bucket_bytes)
        least = data.draw(st.sampled_from([0, -1]))
        others = data.draw(st.lists(st.integers(least, size - 1), min_size=lanes - 1, max_size=lanes - 1))
        owners = [data.draw(st.integers(0, size - 1)), *others]
        shares = [[lane for lane in range(lanes) if owners[lane] == rank] for rank in range(size)]
        orders = [data.draw(st.permutations(share)) for share in shares]
        nodes = [tree.cover(share) for share in shares]

        def reduce(group: Any) -> list[list[torch.Tensor]]:
            fold = fold_of(layout, orders[group.rank])
            assert set(fold.held) == set(nodes[group.rank])
            reduction = Reduction(group, layout, nodes)
            sums = []
            for _ in range(2):
                reduction.begin(fold.held, total := Sheet(layout))
                for bucket in range(layout.buckets):
                    reduction.launch(bucket)
                reduction.finish()
                sums.append(total.flats)
            return sums

        skipped = [lane for lane in range(lanes) if owners[lane] < 0]
        expected = reference(layout, tree.root(lanes), skipped)
        for sums in together(size, reduce, is_ordered=is_ordered):
            assert all(same(flats, expected) for flats in sums)

    check()


@pytest.mark.parametrize(("is_ordered", "gathers"), [(False, "all"), (True, "the last")])
def test_on_a_gpu_a_bucket_s_sums_are_shared_with_the_next_bucket(
    together: Together, is_ordered: bool, gathers: str
) -> None:
    layout = layout_of(4, bucket_bytes=16)

    def exchanged(group: Any) -> list[int]:
        reduction = Reduction(group, layout, [tree.cover([0, 1]), tree.cover([2, 3])])
        reduction.begin(fold_of(layout, [2 * group.rank, 2 * group.rank + 1]).held, Sheet(layout))
        for bucket in range(layout.buckets):
            reduction.launch(bucket)
        reduction.finish()
        return list(group.tags)

    assert layout.buckets > 2
    slices = list(range(0, 2 * layout.buckets, 2))
    sums = list(range(1, 2 * layout.buckets, 2))
    expected = [*slices, *(sums if gathers == "all" else sums[-1:])]
    assert together(2, exchanged, is_ordered=is_ordered) == [expected] * 2


def test_types_that_take_turns_do_not_make_a_bucket_each() -> None:
    turns = [torch.float32, torch.bfloat16] * 50
    parameters = [torch.nn.Parameter(torch.zeros(64, dtype=dtype)) for dtype in turns]
    assert BucketLayout(parameters, [], 4).buckets <= 3


def test_a_fold_uses_its_sheets_again() -> None:
    layout = layout_of(16, bucket_bytes=64)
    fold = LaneFold(layout)
    sheets: set[int] = set()
    for _ in range(3):
        for lane in range(16):
            sheet = fold.take()
            sheets.add(id(sheet))
            fold.open(lane, sheet)
            fold.close(keep=None)
        fold.clear(keep=None)
    assert len(sheets) == 5  # log2(16) + 1
