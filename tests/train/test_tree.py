"""The tree over lanes: for any deal, every lane is there once and the additions are the same."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.train import tree

LANES = st.sampled_from([1, 2, 4, 8, 16, 64])


def lanes_of(node: tree.Node) -> range:
    level, index = node
    return range(index << level, (index + 1) << level)


@given(LANES, st.data())
def test_a_deal_hands_out_every_lane_once_and_evenly(lanes: int, data: st.DataObject) -> None:
    members = data.draw(st.integers(1, lanes))
    shares = tree.deal(lanes, members)
    assert [lane for share in shares for lane in share] == list(range(lanes))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_power_of_two_of_members_gets_one_subtree_each() -> None:
    for members in (1, 2, 4, 8):
        assert all(len(tree.cover(share)) == 1 for share in tree.deal(8, members))
    assert tree.cover(tree.deal(8, 4)[1]) == ((1, 1),)


@given(LANES, st.data())
def test_a_cover_holds_exactly_its_lanes_in_the_largest_subtrees(lanes: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, lanes - 1)))
    nodes = tree.cover(data.draw(st.permutations(sorted(chosen))))
    assert [lane for node in nodes for lane in lanes_of(node)] == sorted(chosen)
    assert not any(tree.sibling(node) in nodes for node in nodes)


@given(LANES, st.data())
def test_what_is_missing_is_dealt_once_and_nothing_held_is_dealt_again(
    lanes: int, data: st.DataObject
) -> None:
    members = data.draw(st.integers(1, min(lanes, 6)))
    owner = data.draw(st.lists(st.integers(-1, members - 1), min_size=lanes, max_size=lanes))
    held = [frozenset(lane for lane in range(lanes) if owner[lane] == rank) for rank in range(members)]
    dealt = tree.deal_missing(lanes, held)
    everything = sorted([*(lane for own in dealt for lane in own), *(lane for own in held for lane in own)])
    assert everything == list(range(lanes))
    missing = sum(map(len, dealt))
    assert max(map(len, dealt)) == -(-missing // members)  # else the step would end later than it could


@given(LANES, st.data())
def test_shares_hand_out_every_lane_once_and_move_no_more_than_they_must(
    lanes: int, data: st.DataObject
) -> None:
    members = data.draw(st.integers(1, min(lanes, 6)))
    order = data.draw(st.permutations(range(1, lanes)))
    cuts = sorted(order[: members - 1])
    shares = [stop - start for start, stop in zip([0, *cuts], [*cuts, lanes], strict=True)]
    dealt = tree.deal_shares(lanes, shares)
    assert list(map(len, dealt)) == shares
    assert sorted(lane for own in dealt for lane in own) == list(range(lanes))
    even = tree.deal(lanes, members)
    moved = sum(len(set(own) - set(run)) for own, run in zip(dealt, even, strict=True))
    assert moved == sum(max(0, count - len(run)) for count, run in zip(shares, even, strict=True))


def test_even_shares_are_dealt_as_always() -> None:
    for members in (1, 2, 3, 5, 16):
        runs = tree.deal(16, members)
        assert tree.deal_shares(16, list(map(len, runs))) == tuple(map(tuple, runs))


def test_a_slow_members_last_lanes_go_to_others() -> None:
    assert tree.deal_shares(8, (3, 1, 2, 2)) == ((0, 1, 3), (2,), (4, 5), (6, 7))


@given(LANES, st.data())
def test_skipped_lanes_are_not_dealt_and_no_more_are_skipped_than_necessary(
    lanes: int, data: st.DataObject
) -> None:
    room = data.draw(st.integers(1, lanes))
    members = data.draw(st.integers(1, min(lanes, 6)))
    owner = data.draw(st.lists(st.integers(-1, members - 1), min_size=lanes, max_size=lanes))
    held = [frozenset(lane for lane in range(lanes) if owner[lane] == rank) for rank in range(members)]
    computed = frozenset[int]().union(*held)
    skipped = tree.without(lanes, room, computed, dealt=())
    assert 0 not in skipped
    assert not skipped & computed
    assert len(skipped) == min(lanes - room, len(set(range(1, lanes)) - computed))
    dealt = tree.deal_missing(lanes, held, skipped)
    assert sorted([*computed, *skipped, *(lane for own in dealt for lane in own)]) == list(range(lanes))


def test_those_who_are_left_have_neighbours() -> None:
    assert tree.deal_missing(8, [frozenset()] * 3, frozenset({6, 7})) == ((0, 1), (2, 3), (4, 5))


def test_a_node_with_one_child_has_what_that_has() -> None:
    order, top = tree.additions(8, [(0, 0), (1, 1), (0, 5)])
    assert order == [((2, 0), (0, 0), (1, 1)), ((3, 0), (2, 0), (0, 5))]
    assert top == (3, 0)
    assert tree.additions(8, [(1, 1)]) == ([], (1, 1))


def test_with_nothing_held_the_missing_are_dealt_as_always() -> None:
    shares = tree.deal(16, 3)
    assert tree.deal_missing(16, [frozenset()] * 3) == tuple(tuple(share) for share in shares)


def test_a_lost_members_lanes_are_shared_out_to_all() -> None:
    """Its replacement would compute them one after the other while all others wait."""
    done, nothing = frozenset({0, 1, 2, 3}), frozenset[int]()
    assert tree.deal_missing(8, [done, nothing]) == ((6, 7), (4, 5))
    four = [frozenset({0, 1}), nothing, frozenset({4, 5}), frozenset({6, 7})]
    assert tree.deal_missing(8, four) == ((3,), (2,), (), ())


def test_a_member_with_own_lanes_left_gets_fewer_of_others() -> None:
    held = [frozenset({0, 1, 2, 3}), frozenset({4}), frozenset[int](), frozenset({12, 13, 14, 15})]
    assert tree.deal_missing(16, held) == ((7, 10), (5, 6), (8, 9), (11,))


def test_a_lane_each_goes_to_the_replacement_whole() -> None:
    held = [frozenset({0}), frozenset[int](), frozenset({2}), frozenset({3})]
    assert tree.deal_missing(4, held) == ((), (1,), (), ())
