"""The tree over lanes: whatever is dealt to whom, every lane is there once and the additions are the same."""

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
    assert max(map(len, dealt)) == -(-missing // members)  # or the step ends later than it could


def test_with_nothing_held_the_missing_are_dealt_as_always() -> None:
    shares = tree.deal(16, 3)
    assert tree.deal_missing(16, [frozenset()] * 3) == tuple(tuple(share) for share in shares)


def test_a_lost_members_lanes_are_shared_out_to_all() -> None:
    """Its replacement would compute them one after the other while everybody else waits."""
    done, nothing = frozenset({0, 1, 2, 3}), frozenset[int]()
    assert tree.deal_missing(8, [done, nothing]) == ((6, 7), (4, 5))
    four = [frozenset({0, 1}), nothing, frozenset({4, 5}), frozenset({6, 7})]
    assert tree.deal_missing(8, four) == ((3,), (2,), (), ())


def test_who_has_own_lanes_left_gets_fewer_of_others() -> None:
    held = [frozenset({0, 1, 2, 3}), frozenset({4}), frozenset[int](), frozenset({12, 13, 14, 15})]
    assert tree.deal_missing(16, held) == ((7, 10), (5, 6), (8, 9), (11,))


def test_a_lane_each_goes_to_the_replacement_whole() -> None:
    held = [frozenset({0}), frozenset[int](), frozenset({2}), frozenset({3})]
    assert tree.deal_missing(4, held) == ((), (1,), (), ())
