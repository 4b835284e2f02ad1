"""How many GPUs a run has: as many as its ledger says are paid for."""

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.ledger.fold import Fold
from holdfast.record.events import (
    AnyEvent,
    CostRate,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    RunEnded,
    RunStarted,
)
from holdfast.record.sizes import gpus_of

gpus, some_gpus = st.integers(0, 16), st.integers(1, 16)
members = st.sampled_from(["n0.0", "n0.1", "n1.0"])
told = st.lists(
    st.one_of(
        st.builds(RunStarted, id=st.just(""), occurred_ns=st.just(0), run=st.just("r"), gpus=some_gpus),
        st.builds(
            GenerationOpened,
            id=st.just(""),
            occurred_ns=st.just(0),
            run=st.just("r"),
            gpus=st.none() | gpus,
            members=st.lists(members, unique=True).map(tuple),
        ),
        st.builds(
            MemberJoined,
            id=st.just(""),
            occurred_ns=st.just(0),
            run=st.just("r"),
            subject=members,
            gpus=gpus,
            role=st.sampled_from(["active", "spare"]),
        ),
        st.builds(MemberLost, id=st.just(""), occurred_ns=st.just(0), run=st.just("r"), subject=members),
        st.builds(CostRate, id=st.just(""), occurred_ns=st.just(0), run=st.just("r"), gpus=st.none() | gpus),
    ),
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(told)
def test_it_is_what_the_ledger_has_as_paid_for(told: Sequence[AnyEvent]) -> None:
    started = RunStarted(id="", occurred_ns=0, run="r", gpus=4)
    events = [
        msgspec.structs.replace(event, id=f"{number}", occurred_ns=number)
        for number, event in enumerate((started, *told))
    ]
    fold = Fold()
    for event in events:
        fold.apply(event)
    assert gpus_of(events) == fold.accounts.shape.paid


def test_an_attempt_that_is_over_had_as_many() -> None:
    started = RunStarted(id="0", occurred_ns=0, run="r", gpus=4)
    ended = RunEnded(id="1", occurred_ns=1, run="r", outcome="completed")
    silent = RunStarted(id="2", occurred_ns=2, run="r")
    assert gpus_of([started, ended]) == gpus_of([started, ended, silent]) == 4
    assert gpus_of([ended]) == 0
