"""The ledger's identity, for any events whatsoever, in any order of arrival."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.ledger import ledger as ledger_module
from holdfast.ledger.fold import Fold
from holdfast.ledger.ledger import SNAPSHOT_EVENTS, Ledger, TooLate
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.events import (
    UNTIMED,
    ActionTaken,
    AnyEvent,
    CheckpointBegun,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CollectiveTimed,
    Correction,
    CostRate,
    DataMoved,
    FaultObserved,
    GenerationOpened,
    IncidentDiagnosed,
    MemberJoined,
    MemberLost,
    MembersTimed,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    RunSubmitted,
    StepBegun,
    StepCommitted,
)

pytestmark = pytest.mark.slow

S = 10**9
EVENTS_MAX = 25
gpus = st.integers(0, 20)
steps = st.integers(0, 12)
names = st.sampled_from(["a", "b", "c"])
moments = st.one_of(st.none(), st.integers(0, 100 * S))

_FIELDS: dict[Any, dict[str, st.SearchStrategy[Any]]] = {
    RunSubmitted: {"gpus": gpus},
    RunStarted: {"gpus": gpus},
    RunEnded: {"outcome": st.sampled_from(["completed", "failed", "stopped", "preempted"])},
    GenerationOpened: {
        "members": st.lists(names, max_size=3).map(tuple),
        "gpus": st.none() | gpus,
        "step": st.none() | steps,
    },
    MemberJoined: {"subject": names, "gpus": gpus, "role": st.sampled_from(["active", "spare"])},
    MemberLost: {"subject": names, "onset_ns": moments},
    StepBegun: {"step": steps, "subject": st.sampled_from(["", "a"])},
    StepCommitted: {"step": steps, "subject": st.sampled_from(["", "a"])},
    CheckpointBegun: {"step": steps, "blocking": st.booleans()},
    CheckpointSaved: {"step": steps, "stall_ns": moments},
    CheckpointLoaded: {"step": steps},
    CheckpointFailed: {"step": steps},
    PhaseEntered: {
        "phase": st.sampled_from(["launch", "init", "load", "step", "data", "eval", "check", "stop"])
    },
    FaultObserved: {
        "fault": st.just("xid"),
        "severity": st.sampled_from(["fatal", "degraded"]),
        "onset_ns": moments,
    },
    ActionTaken: {
        "action": st.sampled_from(["drain", "restore", "restart"]),
        "gpus": gpus,
        "subject": st.sampled_from(["", "a", "b"]),
    },
    CostRate: {"gpus": st.none() | gpus, "usd_per_gpu_hour": st.none() | st.floats(0, 1e6)},
    ReferenceDeclared: {
        "step_ns": st.none() | st.integers(1, 10 * S),
        "gpus": st.none() | gpus,
        "tokens_per_step": st.none() | st.integers(0, 2**62),
        "model_flops_per_step": st.none() | st.floats(0, 1e30),
        "hardware_flops_per_step": st.none() | st.floats(0, 1e30),
        "params": st.none() | st.integers(1, 2**62),
        "chip": st.none() | st.sampled_from(["h100", "a100", "abacus"]),
        "precision": st.none() | st.sampled_from(["bf16", "fp8"]),
    },
    CollectiveTimed: {
        "collective": st.just("all-reduce"),
        "size_bytes": st.integers(0, 2**62),
        "ranks": st.integers(0, 4),
        "duration_ns": st.integers(0, S),
    },
    MembersTimed: {
        "steps": st.integers(1, 100),
        "step_ns": st.integers(0, 10 * S),
        "quick_ns": st.integers(0, 10 * S),
        "slowest_ns": st.integers(0, 10 * S),
    },
    DataMoved: {
        "what": st.sampled_from(["dataset", "cold", "egress"]),
        "size_bytes": st.integers(0, 2**62),
        "usd": st.none() | st.floats(0, 1e6),
    },
    IncidentDiagnosed: {
        "incident": st.just("any/s1"),
        "state": st.sampled_from(["open", "changed", "resolved"]),
        "diagnosis": st.just("{}"),
    },
}


@st.composite
def histories(draw: st.DrawFn) -> list[AnyEvent]:
    """Any events at any times: plausible, contradictory or absurd, with some ids as causes of others."""
    events: list[AnyEvent] = []
    for number in range(draw(st.integers(1, EVENTS_MAX))):
        kind = draw(st.sampled_from(list(_FIELDS)))
        fields = {name: draw(strategy) for name, strategy in _FIELDS[kind].items()}
        causes = (
            draw(st.lists(st.integers(0, number - 1).map("e-{:02}".format), max_size=2)) if number else []
        )
        at_ns = draw(st.one_of(st.integers(0, 60 * S), st.integers(0, 60).map(lambda second: second * S)))
        events.append(kind(id=f"e-{number:02}", occurred_ns=at_ns, causes=tuple(causes), **fields))
    return events


def told(events: Iterable[AnyEvent], corrections: Iterable[Correction] = ()) -> Report:
    ledger = Ledger(corrections)
    ledger.add(events)
    return report("any", ledger.fold)


def in_order(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    return sorted(events, key=lambda event: (event.occurred_ns, event.id))


class Meter:
    """GPUs paid for, worked out on its own: the largest of what is held, meant and there, at any moment."""

    def __init__(self) -> None:
        self.held = self.size = self.last_size = 0
        self.members: dict[str, tuple[int, bool]] = {}  # name: GPUs, and whether it is a spare
        self.is_up = self.is_implied = self.has_ended = self.has_straggled = False

    def read(self, events: list[AnyEvent]) -> int:
        paid_gpu_ns = 0
        for event, following in zip(events, [*events[1:], events[-1]], strict=True):
            self.turn(event)
            spare = sum(gpus for gpus, is_spare in self.members.values() if is_spare)
            present = sum(gpus for gpus, _ in self.members.values())
            if present == spare:
                present += self.size or max(0, self.held - spare)
            gpus_now = max(self.held, self.size + spare, present)
            paid_gpu_ns += gpus_now * (following.occurred_ns - event.occurred_ns)
        return paid_gpu_ns

    def turn(self, event: AnyEvent) -> None:
        match event:
            case CostRate(gpus=int(held)):
                self.held = held
            case RunStarted() if self.is_up and self.is_implied:
                self.size, self.is_implied = event.gpus, False
            case RunStarted():
                self.start(event.gpus, implied=False)
            case RunEnded() if self.is_up:
                self.last_size, self.size, self.members = self.size, 0, {}
                self.is_up, self.has_ended, self.has_straggled = False, True, False
            case MemberJoined():
                if not self.is_up:
                    self.start(0, implied=True)
                self.members[event.subject] = (event.gpus, event.role == "spare")
            case MemberLost() if self.is_up:
                self.members.pop(event.subject, None)
            case StepCommitted() if not self.is_up and self.has_ended and not self.has_straggled:
                self.has_straggled = True
            case (
                StepBegun()
                | StepCommitted()
                | PhaseEntered()
                | CheckpointBegun()
                | CheckpointSaved()
                | CheckpointLoaded()
                | CheckpointFailed()
                | GenerationOpened()
            ):
                if not self.is_up:
                    self.start(self.last_size, implied=True)
                if isinstance(event, StepBegun | StepCommitted):
                    self.is_implied = False
                if isinstance(event, GenerationOpened):
                    self.size = self.size if event.gpus is None else event.gpus
                    self.regroup(event.members)

    def start(self, size: int, *, implied: bool) -> None:
        self.is_up, self.is_implied, self.size, self.members = True, implied, size, {}
        self.last_size, self.has_ended = 0, False

    def regroup(self, named: tuple[str, ...]) -> None:
        if named:
            self.members = {name: (gpus, name not in named) for name, (gpus, _) in self.members.items()}


@settings(max_examples=examples(80), deadline=None)
@given(histories())
def test_every_gpu_nanosecond_is_in_exactly_one_category(events: list[AnyEvent]) -> None:
    events = [event for event in events if not event.causes]
    own = [event for event in events if not isinstance(event, IncidentDiagnosed)]
    if not own:
        return
    read = told(events)
    assert sum(read.partition.values()) == read.paid_gpu_ns
    assert read.paid_gpu_ns == Meter().read(in_order(own))
    assert all(part >= 0 for part in read.partition.values())
    for key, part in read.partition.items():
        assert sum(bucket.get(key, 0) for bucket in read.course.buckets) == part
    assert all(part >= 0 for bucket in read.course.buckets for part in bucket.values())


@settings(max_examples=examples(50), deadline=None)
@given(histories())
def test_incidents_never_claim_more_than_was_lost(events: list[AnyEvent]) -> None:
    read = told(events)
    recorded = [incident for incident in read.incidents if incident.evidence]
    assert len(recorded) == read.counts.incidents
    for category, part in read.partition.items():
        assert 0 <= sum(incident.losses.get(category, 0) for incident in recorded) <= part
    for incident in recorded:
        assert incident.began_ns <= incident.noticed_ns
        assert incident.recovered_ns is None or incident.noticed_ns <= incident.recovered_ns


@settings(max_examples=examples(50), deadline=None)
@given(histories())
def test_no_incident_costs_more_than_its_time_was_paid_for(events: list[AnyEvent]) -> None:
    for incident in told(events).incidents:
        if incident.spent_ns is None:
            assert not incident.lost_gpu_ns
            continue
        from_ns, to_ns = incident.spent_ns
        ledger = Ledger(cuts_ns=incident.spent_ns)
        ledger.add(events)
        within = [one for one in report("any", ledger.fold).segments if from_ns <= one.from_ns < to_ns]
        assert incident.lost_gpu_ns <= sum(sum(one.partition.values()) for one in within)


@settings(max_examples=examples(60), deadline=None)
@given(histories(), st.randoms(use_true_random=False), st.integers(1, 7))
def test_the_order_of_arrival_does_not_matter(events: list[AnyEvent], rng: random.Random, batch: int) -> None:
    """Shuffled, in batches, some twice: the same report as in order and at once."""
    arriving = [*events, *rng.sample(events, len(events) // 2)]
    rng.shuffle(arriving)
    ledger = Ledger()
    for start in range(0, len(arriving), batch):
        ledger.add(arriving[start : start + batch])
    assert report("any", ledger.fold) == told(in_order(events))


@settings(max_examples=examples(40), deadline=None)
@given(histories(), st.randoms(use_true_random=False), st.integers(1, 7))
def test_what_has_no_dates_counts_only_by_itself(
    events: list[AnyEvent], rng: random.Random, batch: int
) -> None:
    """A log without dates of a run that the record knows changes nothing, whichever comes first."""
    dated = [RunStarted(id="e-99", occurred_ns=0, gpus=8), *events]
    undated = [
        StepCommitted(id=f"log-{step}", occurred_ns=at_ns, source=UNTIMED, step=step)
        for step, at_ns in ((7, 0), (8, 0), (9, 30 * S))
    ]
    arriving: list[AnyEvent] = [*dated, *undated]
    rng.shuffle(arriving)
    ledger = Ledger()
    for start in range(0, len(arriving), batch):
        ledger.add(arriving[start : start + batch])
    assert report("any", ledger.fold) == told(in_order(dated))
    assert told(undated).counts.steps == len(undated)


@settings(max_examples=examples(40), deadline=None)
@given(histories(), st.randoms(use_true_random=False), st.integers(1, 7))
def test_corrections_and_doubles_in_any_order(events: list[AnyEvent], rng: random.Random, batch: int) -> None:
    last_ns = max(event.occurred_ns for event in events)
    wrong = rng.sample(events, min(3, len(events)))
    corrections = [
        Correction(id=f"x-{number}", occurred_ns=last_ns + number, target=event.id)
        for number, event in enumerate(wrong)
    ]
    corrections.append(Correction(id="x-9", occurred_ns=last_ns + 9, target="x-0"))
    right = told([event for event in in_order(events) if event not in wrong[1:]])
    arriving = [*events, *rng.sample(events, len(events) // 2), *corrections]
    rng.shuffle(arriving)
    ledger = Ledger()
    for start in range(0, len(arriving), batch):
        ledger.add(arriving[start : start + batch])
    assert report("any", ledger.fold) == right
    assert told(arriving, corrections) == right


@settings(max_examples=examples(50), deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_a_correction_is_as_if_the_event_had_never_been(events: list[AnyEvent], rng: random.Random) -> None:
    events = [event for event in events if not event.causes]
    if len(events) < 2:
        return
    wrong = rng.choice(events)
    last_ns = max(event.occurred_ns for event in events)
    correction = Correction(id="z-correction", occurred_ns=last_ns, target=wrong.id)
    right = told([event for event in events if event is not wrong])
    assert told([*events, correction]) == right
    assert told([correction, *events]) == right
    assert told([*events, correction], [correction]) == right


class _Asking(Fold):
    """A fold that never takes the short way for a commit that needs no explanation."""

    def _is_calm(self) -> bool:
        return False


@settings(max_examples=examples(50), deadline=None)
@given(histories(), st.integers(1, 30))
def test_the_short_way_for_plain_commits_is_the_long_way(events: list[AnyEvent], steps_more: int) -> None:
    last_ns = max(event.occurred_ns for event in events)
    more: list[AnyEvent] = [
        StepCommitted(id=f"f-{step:02}", occurred_ns=last_ns + step * S, step=20 + step)
        for step in range(steps_more)
    ]
    short, long = Fold(), _Asking()
    for event in [*in_order(events), *more]:
        short.apply(event)
        long.apply(event)
    assert report("any", short) == report("any", long)


def test_an_effect_is_never_placed_before_its_cause() -> None:
    """The coordinator's clock is three seconds behind that of the node that failed."""
    common: list[AnyEvent] = [
        RunStarted(id="a-0", occurred_ns=0, gpus=1),
        StepBegun(id="a-1", occurred_ns=0, step=1),
        StepCommitted(id="a-2", occurred_ns=5 * S, step=1),
        StepBegun(id="a-3", occurred_ns=5 * S, step=2),
    ]
    fault = FaultObserved(id="n-0", occurred_ns=10 * S, fault="xid-79", onset_ns=8 * S)
    action = ActionTaken(id="c-0", occurred_ns=7 * S, action="restart", causes=("n-0",))
    end = RunEnded(id="n-1", occurred_ns=12 * S, outcome="failed")
    orders: list[list[AnyEvent]] = [[fault, action, end], [action, fault, end], [end, action, fault]]
    for arriving in orders:
        read = told([*common, *arriving])
        seconds = {key: part / S for key, part in read.partition.items() if part}
        # The action comes right after the fault it answers, not three seconds before.
        assert seconds == {"useful": 5, "discarded": 3, "dead_undetected": 2, "recovering": 2}


def _long_run(events: int) -> list[AnyEvent]:
    told_events: list[AnyEvent] = [RunStarted(id="r-0000000000", occurred_ns=0, gpus=8)]
    told_events += [
        StepCommitted(id=f"r-{number:010x}", occurred_ns=number * S, step=number)
        for number in range(1, events)
    ]
    return told_events


def test_a_late_event_far_back_finds_its_place() -> None:
    events = _long_run(3 * SNAPSHOT_EVENTS)
    late = CheckpointSaved(id="s-0", occurred_ns=SNAPSHOT_EVENTS * S + S // 2, step=1, stall_ns=S // 4)
    ledger = Ledger()
    ledger.add(events)
    ledger.add([late])
    assert report("any", ledger.fold) == told(in_order([*events, late]))
    assert report("any", ledger.fold).partition["checkpoint_stall"] == 8 * S // 4


def test_an_event_older_than_all_that_is_remembered_is_refused_and_not_misplaced() -> None:
    ledger = Ledger()
    ledger.add(_long_run(2 * ledger_module.WINDOW_EVENTS + 1))
    with pytest.raises(TooLate):
        ledger.add([CheckpointSaved(id="s-0", occurred_ns=S // 2, step=1)])
    with pytest.raises(TooLate):
        ledger.add([Correction(id="z-0", occurred_ns=10**18, target="r-0000000001")])


def test_a_correction_known_beforehand_reaches_back_any_distance() -> None:
    events = _long_run(2 * ledger_module.WINDOW_EVENTS + 1)
    correction = Correction(id="z-0", occurred_ns=events[-1].occurred_ns, target="r-0000000001")
    right = told([events[0], *events[2:]])
    assert told([*events, correction], [correction]) == right


def test_reading_does_not_change_what_is_read() -> None:
    ledger = Ledger()
    events = _long_run(100)
    for event in events:
        ledger.add([event])
        assert report("any", ledger.fold) == report("any", ledger.fold)
    assert report("any", ledger.fold) == told(events)


@settings(max_examples=examples(50), deadline=None)
@given(histories(), st.integers(0, 90 * S))
def test_an_opinion_about_a_run_changes_nothing_whenever_it_is_formed(
    events: list[AnyEvent], at_ns: int
) -> None:
    said = IncidentDiagnosed(
        id="o", occurred_ns=at_ns, run="any", incident="any/s1", state="open", diagnosis="{}"
    )
    rest = [event for event in events if not isinstance(event, IncidentDiagnosed)]
    assert told([said, *events]) == told(rest)
    ledger = Ledger()
    for event in in_order([*events, said]):
        ledger.add([event])
    assert report("any", ledger.fold) == told(in_order(rest))
