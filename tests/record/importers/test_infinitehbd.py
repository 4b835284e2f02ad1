"""The published fault trace as events, and what becomes of one that is damaged."""

import json
from collections import Counter
from pathlib import Path

import pytest

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.errors import InputError
from holdfast.record.events import ActionTaken, AnyEvent, CostRate, FaultObserved
from holdfast.record.importers import Imported, Options, import_file
from holdfast.record.importers.infinitehbd import BEGAN_NS, DAYS, FILE_BYTES_MAX

TRACE = Path(__file__).parents[2] / "data" / "infinitehbd-fault-trace.json"
DAY_NS = 86_400 * 10**9


def told(path: Path, options: Options | None = None) -> tuple[list[AnyEvent], Imported]:
    with import_file(path, options or Options()) as reading:
        events = list(reading)
    return events, reading.imported()


def entry(kind: str = "fault_start", time: object = 1.5, node: str = "n1") -> dict[str, object]:
    fault = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}
    return {"node_id": node, "event_time": time, "event_type": kind, "fault_type": fault}


def written(path: Path, *entries: object) -> Path:
    path.write_text(json.dumps(entries, indent=4), encoding="utf-8")
    return path


def test_the_published_trace_is_read_whole() -> None:
    events, imported = told(TRACE)
    faults = [event for event in events if isinstance(event, FaultObserved)]
    assert imported.summary() == "1,168 lines, 0 runs"
    assert imported.skipped_count == 0
    assert len({event.id for event in events}) == len(events) == 584 + 584 + 584 + 2
    assert Counter(fault.fault.partition("/")[0] for fault in faults) == {
        "hardware": 298,
        "other": 262,
        "software": 24,
    }
    assert Counter(event.action for event in events if isinstance(event, ActionTaken)) == {
        "drain": 584,
        "restore": 584,
    }
    assert {event.run for event in events} == {""}


def test_an_entry_becomes_a_fault_with_its_moment_and_words(tmp_path: Path) -> None:
    events, _ = told(written(tmp_path / "trace", entry(), entry("fault_end", 2.0)))
    fault, drain, restore, began, ended = events
    assert isinstance(fault, FaultObserved)
    assert (fault.occurred_ns, fault.subject, fault.fault, fault.severity, fault.detail) == (
        BEGAN_NS + 3 * DAY_NS // 2,
        "n1",
        "hardware/GPU",
        "fatal",
        "GPU xid Error",
    )
    assert isinstance(drain, ActionTaken)
    assert isinstance(restore, ActionTaken)
    assert (drain.action, drain.gpus, restore.action, restore.reason) == (
        "drain",
        8,
        "restore",
        "hardware/GPU",
    )
    assert restore.occurred_ns - drain.occurred_ns == DAY_NS // 2
    assert isinstance(began, CostRate)
    assert isinstance(ended, CostRate)
    assert (began.occurred_ns, began.gpus) == (BEGAN_NS, 3_200)
    assert (ended.occurred_ns, ended.gpus) == (BEGAN_NS + DAYS * DAY_NS, 0)


def test_a_fault_that_was_over_at_once_began_before_it_ended(tmp_path: Path) -> None:
    events, _ = told(written(tmp_path / "trace", entry("fault_end", 1.5), entry("fault_start", 1.5)))
    moments = [event for event in events if isinstance(event, ActionTaken)]
    assert [event.action for event in sorted(moments, key=lambda event: event.id)] == ["drain", "restore"]


def test_parts_say_what_the_whole_says(tmp_path: Path) -> None:
    entries = json.loads(TRACE.read_bytes())
    parts = [written(tmp_path / "a", *entries[500:]), written(tmp_path / "b", *entries[:600])]
    assert {event for part in parts for event in told(part)[0]} == set(told(TRACE)[0])


@pytest.mark.parametrize("indent", [None, 4])
def test_an_array_in_one_line_is_the_same(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps(json.loads(TRACE.read_bytes()), indent=indent), encoding="utf-8")
    assert told(path)[0] == told(TRACE)[0]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (entry(time=-1), "event_time: Expected `float` >= 0.0"),
        (entry(time="soon"), "event_time: Expected `float`, got `str`"),
        (entry(kind="fault_pause"), "event_type: Invalid enum value 'fault_pause'"),
        (entry(node="n" * 257), "node_id has 257 characters, and a name at most 256"),
        (entry(node="n\0"), "it holds a NUL character, which no text has"),
        (5, "Expected `object`, got `int`"),
        ({"node_id": "n1"}, "Object missing required field `event_time`"),
    ],
)
def test_an_entry_that_cannot_be_used_costs_no_other(tmp_path: Path, broken: object, reason: str) -> None:
    path = written(tmp_path / "trace", entry(), broken, entry("fault_end", 2.0))
    events, imported = told(path)
    assert len(events) == 5
    (skipped,) = imported.skipped
    assert (skipped.line, skipped.reason) == (12, reason)  # the bracket has a line, and the entry before ten


def test_a_trace_of_which_nothing_can_be_used_says_nothing_about_nodes(tmp_path: Path) -> None:
    events, imported = told(written(tmp_path / "trace", entry(time=-1)))
    assert (events, imported.skipped_count) == ([], 1)


@pytest.mark.parametrize("end", [100, 1_000, 5_000])
def test_an_array_that_was_cut_off_is_refused(tmp_path: Path, end: int) -> None:
    path = tmp_path / "trace"
    path.write_bytes(TRACE.read_bytes()[:-end])
    with pytest.raises(InputError, match="is not a whole JSON array") as caught:
        told(path)
    assert caught.value.hint


def test_an_array_larger_than_memory_should_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps([entry()] * 5, indent=4)[:-1], encoding="utf-8")
    with path.open("r+b") as stream:
        stream.truncate(FILE_BYTES_MAX + 1)  # a hole, which takes no room on the disk
    with pytest.raises(InputError, match="is larger than"):
        told(path)


def test_the_options_say_what_the_file_does_not(tmp_path: Path) -> None:
    path = written(tmp_path / "trace", entry(), entry("fault_end", 2.0))
    events, _ = told(path, Options(run="hbd", gpus_per_node=4, usd_per_gpu_hour=2))
    assert {event.run for event in events} == {"hbd"}
    rates = [event for event in events if isinstance(event, CostRate)]
    assert [(rate.gpus, rate.usd_per_gpu_hour) for rate in rates] == [(1_600, None), (None, 2.0), (0, None)]


def test_as_a_run_it_pays_for_what_was_watched() -> None:
    events, _ = told(TRACE, Options(run="hbd"))
    ledger = Ledger()
    ledger.add(events)
    paid = report("hbd", ledger.fold)
    assert paid.paid_gpu_ns == sum(paid.partition.values()) == 3_200 * DAYS * DAY_NS
