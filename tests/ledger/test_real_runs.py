"""The ledger of real runs, whose outcome is known and which the ledger must report."""

from pathlib import Path

import msgspec
import pytest

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.events import AnyEvent, FaultObserved, MemberLost, StepCommitted, decode

pytestmark = pytest.mark.slow

RUNS = Path(__file__).parents[1] / "data" / "runs"
S = 10**9


def events_of(name: str) -> list[AnyEvent]:
    lines = (RUNS / name).read_bytes().splitlines()
    return [decode(line) for line in lines]


def told(events: list[AnyEvent]) -> Report:
    ledger = Ledger()
    ledger.add(events)
    found = report("real", ledger.fold)
    assert sum(found.partition.values()) == found.paid_gpu_ns
    return found


def test_a_hang_of_ten_minutes_lasts_ten_minutes() -> None:
    """The run did not say since when; from its last commit on nothing moved."""
    found = told(events_of("hang.jsonl"))
    (incident,) = found.incidents
    assert incident.what == "no commit for too long"
    assert incident.recovered_ns is not None
    assert 599 * S < incident.recovered_ns - incident.began_ns < 601 * S
    assert incident.losses["dead_undetected"] > 2 * 599 * S
    assert incident.lost_gpu_ns > 2 * 599 * S
    assert found.partition["unattributed"] == found.partition["planned_stop"] == 0


def test_a_hang_whose_onset_is_recorded_begins_there() -> None:
    events = events_of("hang.jsonl")
    lost_ns = next(event.occurred_ns for event in events if isinstance(event, MemberLost))
    commits_ns = [event.occurred_ns for event in events if isinstance(event, StepCommitted)]
    last_ns = max(at_ns for at_ns in commits_ns if at_ns < lost_ns)
    dated: list[AnyEvent] = [
        msgspec.structs.replace(event, onset_ns=last_ns)
        if isinstance(event, FaultObserved | MemberLost)
        else event
        for event in events
    ]
    found = told(dated)
    (incident,) = found.incidents
    assert incident.began_ns == last_ns
    assert incident.losses["dead_undetected"] == 2 * (lost_ns - last_ns)
    assert found.partition["discarded"] == 0
