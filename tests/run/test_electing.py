"""The rules of succession one by one; the simulation tests them together."""

import asyncio
from collections.abc import Callable

import pytest
from waiting import free_port

from holdfast.record.errors import InputError, StoreError
from holdfast.record.terms import PostgresTerms
from holdfast.run.arbiter import Arbiter, arbiter_at, chosen
from holdfast.run.succession import Candidacy, Elector, Electorate, Mandate, Memory, Reign, Stand
from holdfast.run.waits import ns

THREE = Electorate(machines=("a", "b", "c"), casting="a")
TWO = Electorate(machines=("a", "b"), casting="a")
LATER_NS = ns(60.0)


@pytest.mark.parametrize(
    ("electorate", "said", "is_quorum"),
    [
        (THREE, "ab", True),
        (THREE, "bc", True),
        (THREE, "a", False),
        (THREE, "axy", False),  # machines that are not electors do not count
        (TWO, "a", True),
        (TWO, "b", False),
        (Electorate(machines=("a",), casting="a"), "a", True),
        (Electorate(machines=("a", "b", "c", "d"), casting="a"), "ab", True),
        (Electorate(machines=("a", "b", "c", "d"), casting="a"), "cd", False),
        (Electorate(machines=("a", "b"), casting="a", has_arbiter=True), "a", False),
        (Electorate(machines=("a", "b"), casting="a", has_arbiter=True), "ab", True),
    ],
)
def test_a_quorum_is_a_majority_or_the_half_with_the_casting_voice(
    electorate: Electorate, said: str, *, is_quorum: bool
) -> None:
    assert electorate.is_quorum(said) is is_quorum


def test_an_arbiter_decides_between_halves_and_nothing_else() -> None:
    electorate = Electorate(machines=("a", "b"), has_arbiter=True)
    assert electorate.is_quorum("b", is_granted=True)
    assert not electorate.is_quorum("", is_granted=True)
    assert not THREE.is_quorum("a", is_granted=True)


def test_nothing_may_be_seen_before_a_quorum_has_it() -> None:
    reign = Reign("a", 1, Mandate(electorate=THREE), 0)
    assert reign.enter() == 1
    assert reign.committed == 0
    reign.acknowledged("b", 1)
    assert reign.committed == 1
    reign.acknowledged("c", 2)  # which was never entered
    assert reign.committed == 1


def test_a_coordinator_cannot_leave_out_the_majority_by_itself() -> None:
    reign = Reign("a", 1, Mandate(electorate=THREE), 0)
    reign.enter(TWO)  # of which it alone would be a quorum
    assert reign.committed == 0
    assert not reign.can_change
    reign.acknowledged("b", 1)
    assert reign.committed == 1
    reign.enter()
    assert reign.committed == 2  # from now on it is


def test_the_arbiters_word_does_not_stand_for_who_has_voted() -> None:
    """It chose a and b of four. Either may ask it next, so a shows nothing that b does not have."""
    four = Electorate(machines=("d", "a", "c", "b"), casting="d", has_arbiter=True)
    reign = Reign("a", 2, Mandate(electorate=four), 5)
    reign.is_granted = True
    reign.enter(Electorate(machines=("a", "b"), casting="a", has_arbiter=True))
    reign.acknowledged("c", 6)
    assert reign.committed == 0
    reign.acknowledged("b", 6)
    assert reign.committed == 6
    assert not reign.is_granted


def test_what_was_inherited_is_not_seen_before_this_term_has_begun() -> None:
    reign = Reign("b", 2, Mandate(electorate=THREE), 7)
    assert not reign.is_established
    reign.enter()
    reign.acknowledged("c", 8)
    assert reign.is_established


def _elector(known: Stand = Stand(1, 5), promised: int = 1) -> Elector:  # noqa: B008
    elector = Elector("b", Memory(), 0)
    elector.follows(known, THREE)
    elector.heard("a", promised, 0)
    return elector


@pytest.mark.parametrize(
    ("candidacy", "now_ns", "reason"),
    [
        (Candidacy(machine="c", term=2, known=Stand(1, 5)), LATER_NS, ""),
        (Candidacy(machine="c", term=1, known=Stand(1, 5)), LATER_NS, "term 1 is promised"),
        (Candidacy(machine="c", term=2, known=Stand(1, 4)), LATER_NS, "it lacks entries of the estate"),
        (Candidacy(machine="c", term=2, known=Stand(1, 5)), 1, "the coordinator was heard a moment ago"),
        (Candidacy(machine="a", term=2, known=Stand(1, 5)), 1, ""),  # the coordinator itself
    ],
)
def test_which_candidates_get_a_vote(candidacy: Candidacy, now_ns: int, reason: str) -> None:
    vote = _elector().vote(candidacy, now_ns)
    assert (vote.is_granted, vote.reason) == (not reason, reason)


def test_a_vote_is_a_promise_but_a_trial_is_not() -> None:
    elector = _elector()
    asked = Candidacy(machine="c", term=2, known=Stand(1, 5), is_trial=True)
    assert elector.vote(asked, LATER_NS).is_granted
    assert elector.memory.promised == 1
    assert elector.vote(Candidacy(machine="c", term=2, known=Stand(1, 5)), LATER_NS).is_granted
    assert not elector.heeds(1)
    assert not elector.vote(Candidacy(machine="a", term=2, known=Stand(1, 9)), LATER_NS).is_granted


def test_an_heir_stands_after_a_silence_in_the_order_of_the_line() -> None:
    elector = _elector()
    due_ns = elector.due_ns()
    assert due_ns == ns(4.0)  # the second in line
    trial = elector.try_out(due_ns)
    assert not elector.has_quorum(trial, ["b"])
    assert elector.has_quorum(trial, ["b", "c"])
    standing = elector.stand(trial)
    assert standing is not None
    assert (standing.term, standing.is_trial) == (2, False)
    assert elector.stand(trial) is None  # that term is promised
    restarted = Elector("b", elector.memory, 0)
    assert restarted.due_ns() is None  # it knows what it promised, and has no estate


def test_an_heir_that_voted_for_another_does_not_stand_at_once() -> None:
    elector = _elector()
    assert elector.vote(Candidacy(machine="c", term=2, known=Stand(1, 5)), LATER_NS).is_granted
    assert elector.due_ns() == LATER_NS + ns(4.0)


def test_an_heir_without_the_arbiters_choice_leaves_time_to_the_chosen_one() -> None:
    elector = _elector()
    elector.try_out(LATER_NS)
    assert elector.due_ns() == LATER_NS + ns(2.0)
    elector.undecided(LATER_NS)
    assert elector.due_ns() == LATER_NS + ns(11.0)


# ---- an arbiter ------------------------------------------------------------------------------------------


def test_of_two_machines_that_ask_the_arbiter_chooses_one(postgres_database: Callable[[], str]) -> None:
    url = postgres_database()
    arbiter = arbiter_at(url, "r", 1)
    assert arbiter is not None
    arbiter.prepare()
    arbiter.prepare()  # it is there already
    assert arbiter.choose("b", 1, 2)
    assert not arbiter.choose("a", 1, 2)
    assert not arbiter.choose("a", 1, 3)
    assert arbiter.choose("b", 1, 2)  # it was chosen, and did not hear it
    assert arbiter.choose("a", 2, 3)  # it has followed b meanwhile
    assert arbiter_at(url, "r", 2).choose("a", 1, 2)  # type: ignore[union-attr]  # a later run of that name


def test_an_arbiter_that_does_not_answer_says_so() -> None:
    arbiter: Arbiter = PostgresTerms(f"postgresql://holdfast@127.0.0.1:{free_port()}/x", "r")
    with pytest.raises(StoreError, match="The arbiter does not answer"):
        arbiter.choose("a", 1, 2)


def test_an_arbiter_that_refuses_has_not_chosen(postgres_database: Callable[[], str]) -> None:
    url = postgres_database()
    bare: Arbiter = PostgresTerms(url, "r")
    with pytest.raises(StoreError, match="The arbiter does not answer: relation"):
        bare.choose("a", 1, 2)  # the table does not exist
    assert not asyncio.run(chosen(bare, "a", 1, 2))


@pytest.mark.parametrize("url", ["redis://here", "/tmp/record.sqlite", "postgresql://["])
def test_an_unsupported_arbiter_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"^The arbiter"):
        arbiter_at(url, "r", 1)


def test_without_one_there_is_none() -> None:
    assert arbiter_at("", "r", 1) is None
