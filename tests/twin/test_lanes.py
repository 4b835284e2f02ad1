from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.twin.lanes import idle_share, lanes_for, rounds, step_rounds

FACTORS = st.fractions(1, 4, max_denominator=20)


@pytest.mark.parametrize(("lanes", "members", "busiest"), [(16, 4, 4), (16, 3, 6), (16, 16, 1), (7, 1, 7)])
def test_the_busiest_member_decides(lanes: int, members: int, busiest: int) -> None:
    assert rounds(lanes, members) == busiest
    assert step_rounds(lanes, members, [], rebalances=True) == busiest


def test_a_slow_member_gets_fewer_lanes_or_everybody_waits_for_it() -> None:
    slow = [Fraction(2)]
    assert step_rounds(32, 4, slow, rebalances=False) == 16
    assert step_rounds(32, 4, slow, rebalances=True) == 10  # 9 for each healthy one, 5 for the slow one


@given(st.integers(1, 40), st.data())
def test_rebalancing_is_between_all_healthy_and_no_rebalancing(members: int, data: st.DataObject) -> None:
    lanes = data.draw(st.integers(members, 8 * members))
    slow = data.draw(st.lists(FACTORS, max_size=members))
    found = step_rounds(lanes, members, slow, rebalances=True)
    assert found >= rounds(lanes, members)
    assert found * (members - len(slow) + sum(1 / factor for factor in slow)) >= lanes
    assert found <= step_rounds(lanes, members, slow, rebalances=False)


@given(st.integers(1, 3), st.data())
def test_no_way_to_deal_lanes_is_quicker(members: int, data: st.DataObject) -> None:
    lanes = data.draw(st.integers(members, 8))
    slow = data.draw(st.lists(FACTORS, max_size=members))
    factors = [*slow, *[Fraction(1)] * (members - len(slow))]
    dealt = (counts for counts in product(range(lanes + 1), repeat=members) if sum(counts) == lanes)
    best = min(max(map(Fraction.__mul__, factors, map(Fraction, counts))) for counts in dealt)
    assert step_rounds(lanes, members, slow, rebalances=True) == best


@pytest.mark.parametrize(
    ("sequences", "members", "lanes"),
    [
        (2048, 128, 2048),  # Llama 3: one sequence each, 16 a replica, and one more where one is missing
        (16_384, 1024, 16_384),
        (1536, 48, 512),  # divides the batch into threes
        (100, 64, 64),  # no even division: one for each member
        (1 << 20, 8, 1 << 16),
    ],
)
def test_as_many_lanes_as_the_batch_allows(sequences: int, members: int, lanes: int) -> None:
    assert lanes_for(sequences, members) == lanes


@pytest.mark.parametrize(
    ("lanes", "members", "percent"), [(1024, 128, 0.0), (1024, 127, 10.4), (2048, 127, 5.1), (2048, 64, 0.0)]
)
def test_what_a_batch_that_stays_costs_the_others(lanes: int, members: int, percent: float) -> None:
    # 1,024 lanes on 127 replicas are 9 rounds of which 8.06 are full.
    assert 100 * idle_share(lanes, members) == pytest.approx(percent, abs=0.05)
