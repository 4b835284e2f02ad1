"""Which lanes are computed twice, and which member is wrong: decisions that all members make alike."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.run.audits import RATE, compare_states, detection, judge, planned

LANES, MEMBERS = 16, 4
EVEN = tuple(frozenset(range(rank, LANES, MEMBERS)) for rank in range(MEMBERS))
RIGHT, WRONG, OTHER = 11, 22, 33


@given(
    seed=st.integers(0, 2**32),
    step=st.integers(1, 10**6),
    rate=st.floats(0, 1),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_a_plan_has_each_lane_once_and_no_member_audits_itself(
    seed: int, step: int, rate: float, sizes: list[int]
) -> None:
    lanes = iter(range(sum(sizes)))
    shares = [frozenset(next(lanes) for _ in range(size)) for size in sizes]
    plan = planned(seed, step, rate, shares)
    assert plan == planned(seed, step, rate, shares)
    assert len({audit.lane for audit in plan}) == len(plan)
    assert all(audit.lane in shares[audit.owner] for audit in plan)
    assert all(audit.auditor != audit.owner and 0 <= audit.auditor < len(sizes) for audit in plan)


def test_the_share_of_lanes_that_are_audited_is_the_rate_and_no_member_does_more() -> None:
    steps = 20_000
    plans = [planned(1, step, RATE, EVEN) for step in range(steps)]
    share = sum(map(len, plans)) / (steps * LANES)
    assert share == pytest.approx(RATE, rel=0.1)
    for plan in plans:
        assert len(set(Counter(audit.auditor for audit in plan).values())) <= 1
        assert len(plan) in (0, MEMBERS)
    by_lane = Counter(audit.lane for plan in plans for audit in plan)
    assert len(by_lane) == LANES
    pairs = {(audit.owner, audit.auditor) for plan in plans for audit in plan}
    assert len(pairs) == MEMBERS * (MEMBERS - 1)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_a_high_rate_audits_in_every_step(rate: float) -> None:
    assert len(planned(1, 7, rate, EVEN)) == rate * LANES


def test_a_single_member_is_not_audited() -> None:
    assert planned(1, 1, 1.0, [frozenset(range(8))]) == ()


@pytest.mark.parametrize(
    ("first", "again", "kind", "culprits"),
    [
        ({0: WRONG, 2: RIGHT}, [RIGHT] * 4, "lane", (0,)),  # once
        ({0: RIGHT, 2: WRONG}, [RIGHT] * 4, "lane", (2,)),  # the auditor
        ({0: WRONG, 2: RIGHT}, [WRONG, RIGHT, RIGHT, RIGHT], "lane", (0,)),  # always
        ({0: WRONG, 1: RIGHT}, [RIGHT] * 2, "lane", (0,)),  # once, of two
        ({0: WRONG, 1: RIGHT}, [WRONG, RIGHT], "undecided", (0, 1)),
        ({0: WRONG, 1: RIGHT}, [WRONG, WRONG, RIGHT, RIGHT], "undecided", (0, 1)),
        ({0: WRONG, 1: OTHER}, [RIGHT] * 3, "lane", (0, 1)),
        ({3: RIGHT}, [RIGHT] * 4, "lane", ()),  # an odd loss that all find
        ({3: WRONG}, [RIGHT] * 4, "lane", (3,)),
    ],
)
def test_most_members_are_right(
    first: dict[int, int], again: list[int], kind: str, culprits: tuple[int, ...]
) -> None:
    finding = judge(first, [(one, one) for one in again], step=5, lane=3)
    assert (finding.kind, finding.culprits) == (kind, culprits)
    assert finding.once == (kind == "lane" and set(again) == {RIGHT})


def test_a_member_that_cannot_repeat_itself_is_wrong_if_all_others_can() -> None:
    steady = (RIGHT, RIGHT)
    finding = judge({0: WRONG, 1: RIGHT}, [(OTHER, RIGHT), steady, steady], step=5, lane=3)
    assert (finding.kind, finding.culprits, finding.once) == ("lane", (0,), False)
    finding = judge({0: WRONG, 1: RIGHT}, [(OTHER, RIGHT), steady], step=5, lane=3)
    assert (finding.kind, finding.culprits) == ("lane", (0,))


def test_no_member_is_blamed_if_several_cannot_repeat_themselves() -> None:
    """A kernel that is not deterministic: two computations differ on every member."""
    again = [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert judge({0: 9, 1: 10}, again, step=5, lane=3).kind == "unsteady"
    assert judge({0: 9, 1: 10}, [(1, 2), (3, 3), (4, 4)], step=5, lane=3).kind == "unsteady"
    assert judge({0: 9, 1: 10}, [(1, 2), (3, 4)], step=5, lane=3).culprits == ()


def test_a_state_that_differs_from_most_is_wrong() -> None:
    assert compare_states([RIGHT] * 4, step=5) is None
    finding = compare_states([RIGHT, RIGHT, WRONG, RIGHT], step=5)
    assert finding is not None
    assert (finding.kind, finding.culprits) == ("state", (2,))
    for states in ([RIGHT, WRONG], [RIGHT, RIGHT, WRONG, WRONG], [1, 2, 3]):
        finding = compare_states(states, step=5)
        assert finding is not None
        assert (finding.kind, finding.culprits) == ("apart", tuple(range(len(states))))


def test_the_probability_of_detection() -> None:
    assert detection(0.01, 1) == pytest.approx(0.01)
    assert detection(0.01, 300) == pytest.approx(0.951, abs=1e-3)
