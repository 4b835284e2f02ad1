"""Which attempt of a run all members continue, and which members cannot."""

import msgspec

from holdfast.train.histories import StateHistory, can_follow, is_astray, leading
from holdfast.train.shortage import AgreedSkips

FIRST = StateHistory("first", begun=0, before="", opened=1)
SECOND = StateHistory("second", begun=10, before="first", opened=4)
ANEW = StateHistory("anew", begun=0, before="", opened=4)


class Member(msgspec.Struct, frozen=True):
    version: int
    history: StateHistory
    fresh: bool = False
    settled: bool = False
    bound: AgreedSkips | None = None
    skipped: tuple[int, ...] = ()


def test_the_newest_attempt_with_progress_leads() -> None:
    old, new, newcomer = Member(12, FIRST), Member(11, SECOND), Member(0, ANEW, fresh=True)
    assert leading([old, Member(10, SECOND), new, newcomer]) is new
    assert leading([newcomer, old]) is old


def test_the_same_step_of_another_attempt_is_astray() -> None:
    leader = Member(1, ANEW)
    assert is_astray(Member(1, FIRST), leader)
    assert is_astray(Member(2, FIRST), leader)
    assert not is_astray(Member(1, ANEW), leader)
    assert not is_astray(Member(0, FIRST, fresh=True), leader)


def test_where_an_attempt_began_both_have_the_same() -> None:
    leader = Member(11, SECOND)
    assert not is_astray(Member(9, FIRST), leader)
    assert not is_astray(Member(10, FIRST), leader)
    assert is_astray(Member(11, FIRST), leader)
    assert not is_astray(Member(10, FIRST), Member(10, SECOND))


def test_a_sum_of_the_leaders_attempt_is_followed() -> None:
    leader = Member(11, SECOND)
    assert can_follow(Member(10, SECOND, settled=True), leader)
    assert not can_follow(Member(10, SECOND), leader)
    assert not can_follow(Member(9, SECOND, settled=True), leader)


def test_a_sum_of_another_attempt_is_followed_from_the_same_state() -> None:
    assert can_follow(Member(10, FIRST, settled=True), Member(11, SECOND))
    assert can_follow(Member(0, FIRST, fresh=True, settled=True), Member(1, ANEW))
    assert not can_follow(Member(1, FIRST, settled=True), Member(2, ANEW))


def test_a_leader_that_loaded_its_step_is_not_followed() -> None:
    """It does not know the norm of the gradients, which the others need to clip theirs."""
    assert not can_follow(Member(9, FIRST, settled=True), Member(10, SECOND))


def test_a_sum_that_skips_other_lanes_than_the_leader_did_is_not_followed() -> None:
    whole, half = AgreedSkips(3, ()), AgreedSkips(3, (1,))
    for history in (FIRST, ANEW):
        leader = Member(1, ANEW, skipped=(1,))
        assert not can_follow(Member(0, history, fresh=True, settled=True, bound=whole), leader)
        assert can_follow(Member(0, history, fresh=True, settled=True, bound=half), leader)
        assert not can_follow(Member(0, history, fresh=True, settled=True, bound=half), Member(1, ANEW))
