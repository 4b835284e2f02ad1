"""The record of a simulated run is read in the order in which it was written."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.events import (
    ActionTaken,
    FaultObserved,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    RunEnded,
    RunStarted,
)
from holdfast.twin.tape import Tape

START_NS = 1_000
SECOND_NS = 10**9


def test_events_are_stamped_by_the_simulated_clock() -> None:
    tape = Tape("r", START_NS)
    tape.record(FaultObserved, 5, subject="n1", fault="crash", onset_ns=3)
    (event,) = tape.events
    assert isinstance(event, FaultObserved)
    assert (event.occurred_ns, event.recorded_ns, event.onset_ns) == (1_005, 1_005, 1_003)
    assert (event.run, event.source) == ("r", "twin")


def test_the_memberships_keys_become_ids_and_its_members_gpus() -> None:
    tape = Tape("r", START_NS)
    tape.record(RunStarted, 0, gpus=64)
    tape.take(FaultObserved(id="fault a 7", occurred_ns=7, subject="a", fault="SIGKILL"), 16)
    lost = MemberLost(id="lost a", occurred_ns=7, subject="a", onset_ns=6, causes=("fault a 7", "not told"))
    tape.take(lost, 16)
    tape.take(MemberJoined(id="", occurred_ns=8, subject="b", gpus=1), 16)
    tape.take(
        GenerationOpened(id="", occurred_ns=9, generation=2, members=("b",), gpus=3, causes=("lost a",)), 16
    )
    _, fault, loss, joined, opened = tape.events
    assert loss.causes == (fault.id,)
    assert isinstance(loss, MemberLost)
    assert loss.onset_ns == START_NS + 6
    assert isinstance(joined, MemberJoined)
    assert joined.gpus == 16
    assert isinstance(opened, GenerationOpened)
    assert (opened.gpus, opened.causes) == (48, (loss.id,))


def test_no_cause_is_made_up_where_none_is_needed() -> None:
    tape = Tape("r", START_NS)
    fault = tape.record(FaultObserved, 5, subject="a", fault="x")
    tape.record(ActionTaken, 5, subject="a", action="drain", gpus=8)
    tape.record(MemberLost, 5, subject="a", causes=(fault,))
    tape.record(ActionTaken, 6, subject="a", action="restore")
    assert [event.causes for event in tape.events] == [(), (), (fault,), ()]


causes = st.lists(st.integers(1, 4), max_size=2)


@pytest.mark.parametrize("seed", [0, 1])
@given(st.lists(st.tuples(st.booleans(), causes), min_size=1, max_size=12))
def test_the_last_word_is_the_last_that_was_written(seed: int, words: list[tuple[bool, list[int]]]) -> None:
    """Each event says how many GPUs are spare, some at the same moment as the one before, some because of
    earlier ones; in whatever order they arrive.
    """
    tape, now_ns, spare, expected = Tape("r", START_NS), 0, 0, 0
    tape.record(RunStarted, 0, gpus=8)
    for gpus, (is_later, backs) in enumerate(words, start=1):
        if is_later:
            now_ns += SECOND_NS
            expected += spare * SECOND_NS
        known = tuple(dict.fromkeys(tape.events[-back].id for back in backs if back <= len(tape.events)))
        tape.record(MemberJoined, now_ns, causes=known, subject="spares", gpus=gpus, role="spare")
        spare = gpus
    tape.record(RunEnded, now_ns + SECOND_NS, outcome="stopped")
    events = list(tape.events)
    Random(seed).shuffle(events)
    ledger = Ledger()
    ledger.add(events)
    assert report("r", ledger.fold).partition["spare"] == expected + spare * SECOND_NS
