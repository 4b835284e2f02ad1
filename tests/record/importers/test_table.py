"""Tables: CSV and JSON lines of the documented form, and Holdfast's own events among them."""

import io
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.record.events import (
    AnyEvent,
    CheckpointVerified,
    CostRate,
    FaultObserved,
    GenerationOpened,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
    Unknown,
    decode,
    encode,
    kind_of,
)
from holdfast.record.importers import FileReading, Imported, Options
from holdfast.record.importers.intake import Lines
from holdfast.record.importers.table import read_csv, read_jsonl

NOON = "2025-04-02T12:00:00Z"
NOON_NS = 1_743_595_200 * 10**9


class Told(Imported, frozen=True, kw_only=True):
    """A reading that was drawn to its end."""

    events: tuple[AnyEvent, ...]


def drawn(reading: FileReading) -> Told:
    events = tuple(reading)
    return Told(events=events, **msgspec.structs.asdict(reading.imported()))


def csv_of(*rows: str, options: Options | None = None) -> Told:
    return drawn(read_csv(Lines(io.BytesIO("\n".join(rows).encode()), "log"), options or Options()))


def jsonl_of(*rows: object, options: Options | None = None) -> Told:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    return drawn(read_jsonl(Lines(io.BytesIO(text.encode()), "log"), options or Options()))


def the_event(imported: Told) -> AnyEvent:
    assert [skipped.reason for skipped in imported.skipped] == []
    (event,) = imported.events
    return event


def test_a_log_of_steps_is_a_table() -> None:
    imported = csv_of("step,time,loss", f"1,{NOON},2.5", "2,1743595208,2.4", options=Options(run="llm"))
    first, second = imported.events
    assert isinstance(first, StepCommitted)
    assert isinstance(second, StepCommitted)
    assert (first.run, first.step, first.occurred_ns) == ("llm", 1, NOON_NS)
    assert (second.step, second.occurred_ns, second.source) == (2, NOON_NS + 8 * 10**9, "table")
    assert imported.summary() == "2 lines, 1 run"


def test_what_the_user_knows_is_declared_at_the_first_event_of_the_run() -> None:
    options = Options(run="llm", gpus=64, usd_per_gpu_hour=2, reference_step_s=8)
    imported = csv_of("step,time", "2,1743595208", f"1,{NOON}", options=options)
    *steps, held, price, reference = imported.events
    assert [kind_of(event) for event in steps] == ["step.committed"] * 2
    assert isinstance(held, CostRate)
    assert (held.gpus, held.usd_per_gpu_hour) == (64, None)
    assert isinstance(price, CostRate)
    assert (price.gpus, price.usd_per_gpu_hour) == (None, 2.0)
    assert isinstance(reference, ReferenceDeclared)
    assert (reference.step_ns, reference.gpus) == (8 * 10**9, 64)
    assert {event.occurred_ns for event in (held, price, reference)} == {NOON_NS}


@pytest.mark.parametrize(
    ("cells", "is_declared"),
    [
        ("run.started,,32", False),
        ("member.joined,,4", False),
        ("generation.opened,,16", False),
        ("cost.rate,,16", False),
        ("run.started,,", True),
        ("run.submitted,,32", True),
        ("step.committed,2,", True),
    ],
)
def test_gpus_are_declared_only_where_the_table_does_not_tell_them(cells: str, is_declared: bool) -> None:
    rows = [f"{NOON},step.committed,1,", f"{NOON},{cells}"]
    plain = csv_of("time,kind,step,gpus", *rows, options=Options(run="a"))
    imported = csv_of("time,kind,step,gpus", *rows, options=Options(run="a", gpus=8))
    assert imported.events[:2] == plain.events
    declared = imported.events[2:]
    assert [event.gpus for event in declared if isinstance(event, CostRate)] == [8] * is_declared
    assert len(declared) == is_declared


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_every_kind_has_its_own_columns(delimiter: str) -> None:
    rows = [
        "Time,Kind,Run,Subject,Step,Gpus,Outcome,Fault,Sound,Members",
        f"{NOON},run.started,llm,,,64,,,,",
        f"{NOON},fault.observed,,node7,,,,xid-79,,",
        f"{NOON},checkpoint.verified,llm,,20,,,,true,",
        f"{NOON},generation.opened,llm,,,,,,,a b c",
        f"{NOON},run.ended,llm,,,,failed,,,",
    ]
    imported = csv_of(*(row.replace(",", delimiter) for row in rows))
    assert imported.skipped_count == 0
    started, fault, verified, opened, ended = imported.events
    assert isinstance(started, RunStarted)
    assert started.gpus == 64
    assert isinstance(fault, FaultObserved)
    assert (fault.run, fault.subject, fault.fault) == ("", "node7", "xid-79")
    assert isinstance(verified, CheckpointVerified)
    assert (verified.step, verified.sound) == (20, True)
    assert isinstance(opened, GenerationOpened)
    assert opened.members == ("a", "b", "c")
    assert isinstance(ended, RunEnded)
    assert ended.outcome == "failed"


def test_json_lines_say_the_same_as_csv() -> None:
    table = csv_of("time,run,step,kind", f"{NOON},llm,1,", f"{NOON},llm,1,checkpoint.saved")
    lines = jsonl_of(
        {"time": NOON, "run": "llm", "step": 1, "loss": 2.5, "kind": None},
        {"time": 1743595200.0, "run": "llm", "step": "1", "kind": "checkpoint.saved"},
    )
    assert lines.events == table.events


def test_values_that_are_no_numbers_are_passed_over_but_where_they_are_needed() -> None:
    row = {"time": NOON, "kind": "step.committed", "run": "NaN, a run", "step": 3}
    expected = the_event(jsonl_of(row))
    assert expected.run == "NaN, a run"
    for value in (float("nan"), float("inf"), float("-inf")):
        event = the_event(jsonl_of({**row, "loss": value, "norms": [1.0, value]}))
        assert msgspec.structs.replace(event, id=expected.id) == expected
    assert jsonl_of({**row, "step": float("nan")}).events == ()


def test_quotes_are_read_and_an_open_one_costs_its_own_line_only() -> None:
    imported = csv_of(
        "time,kind,run,outcome,reason",
        f'{NOON},run.ended,a,failed,"one, and ""two"""',
        f'{NOON},run.ended,a,failed,"never closed',
        f"{NOON},run.ended,a,failed,three",
    )
    assert [event.reason for event in imported.events if isinstance(event, RunEnded)] == [
        'one, and "two"',
        "three",
    ]
    assert [(skipped.line, skipped.reason) for skipped in imported.skipped] == [
        (3, "it is not CSV: unexpected end of data")
    ]


def test_events_of_our_own_are_taken_as_they_are() -> None:
    own: list[AnyEvent] = [
        StepCommitted(id="host-01", occurred_ns=5, recorded_ns=6, source="host/1", run="llm", step=3),
        RunEnded(id="host-02", occurred_ns=9, run="llm", outcome="completed", causes=("host-01",)),
    ]
    imported = jsonl_of(*(encode(event).decode() for event in own), options=Options(run="another"))
    assert imported.events == tuple(own)


def test_an_event_of_a_newer_version_is_kept_byte_for_byte() -> None:
    line = '{"kind": "flux.capacitated",  "id": "host-3", "occurred_ns": 5, "jigawatts": 1.21}'
    event = the_event(jsonl_of(line))
    assert isinstance(event, Unknown)
    assert encode(event) == line.encode()


def test_an_id_that_is_not_an_events_is_passed_over() -> None:
    event = the_event(jsonl_of({"id": "1", "time": NOON, "run": "llm", "step": 1}))
    assert event == the_event(jsonl_of({"time": NOON, "run": "llm", "step": 1}))
    assert event.id.startswith("table-")


def test_own_events_can_come_as_csv() -> None:
    event = the_event(csv_of("id,kind,occurred_ns,run,step,causes", "h-1,step.committed,7,llm,3,h-0 g-9"))
    assert event == StepCommitted(id="h-1", occurred_ns=7, run="llm", step=3, causes=("h-0", "g-9"))


def test_a_line_is_the_same_event_wherever_it_stands() -> None:
    rows = [f"{NOON},1", f"{NOON},2", f"{NOON},1"]
    options = Options(run="a")
    first, second, again = csv_of("time,step", *rows, options=options).events
    assert again == first
    assert csv_of("time,step", *reversed(rows[:2]), options=options).events == (second, first)
    assert csv_of("step;time", f"1;{NOON}", options=options).events == (first,)


def test_names_and_ids_have_bounds() -> None:
    rows = [
        {"time": 1, "run": "r" * 256, "subject": "s" * 256, "step": 1},
        {"time": 1, "run": "r" * 257, "step": 1},
        {"time": 1, "run": "r", "subject": "s" * 257, "step": 1},
        {"time": 1, "run": "r", "source": "s" * 257, "step": 1},
        {"id": "i" * 129, "kind": "step.committed", "occurred_ns": 1, "run": "r", "step": 1},
    ]
    imported = jsonl_of(*rows)
    assert len(imported.events) == 1
    assert [(skipped.line, skipped.reason) for skipped in imported.skipped] == [
        (2, "run: Expected `str` of length <= 256"),
        (3, "subject: Expected `str` of length <= 256"),
        (4, "source: Expected `str` of length <= 256"),
        (5, "id: Expected `str` of length <= 128"),
    ]


@pytest.mark.parametrize("forged", [5, 5.5, True, [], ["step.committed"], {}, {"kind": "run.ended"}, "", "?"])
@pytest.mark.parametrize("own", [{}, {"id": "h-1"}])
def test_a_forged_kind_costs_its_own_line_only(own: dict[str, str], forged: object) -> None:
    good = {"time": 1, "run": "a", "step": 1}
    imported = jsonl_of(good, {"occurred_ns": 5, "run": "a", "step": 1, "kind": forged} | own, good)
    told = [type(event) for event in imported.events]
    # Text that names no kind, in an event with an id, may be what a newer version wrote.
    newer = [Unknown] if own and forged == "?" else []
    assert told == [StepCommitted, *newer, StepCommitted]
    assert imported.skipped_count == 1 - len(newer)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"time": NOON, "step": 1}, "run: it is missing, and `--run` is not given"),
        ({"run": "a", "step": 1}, "time: it is missing"),
        ({"run": "a", "step": 1, "time": "noon"}, "time: 'noon' is not a time"),
        ({"run": "a", "step": 1, "time": True}, "time: 'True' is not a time"),
        ({"run": "a", "step": -1, "time": 5}, "step: Expected `int` >= 0"),
        ({"run": "a", "step": "x", "time": 5}, "step: Expected `int`, got `str`"),
        ({"run": "a", "step": 1.5, "time": 5}, "step: Expected `int`, got `float`"),
        ({"run": "a", "time": 5}, "kind: it is missing"),
        ({"run": "a", "time": 5, "kind": "step.comitted"}, "kind: 'step.comitted' is unknown"),
        ({"run": "a", "time": 5, "kind": "run.ended", "outcome": "ok"}, "outcome: Invalid enum value 'ok'"),
        ({"run": "a", "time": 5, "kind": "run.ended"}, "Object missing required field `outcome`"),
        (
            {"time": 5, "kind": "cost.rate", "usd_per_gpu_hour": "inf"},
            "usd_per_gpu_hour: Expected `float` <= 1e+30",
        ),
        (
            {"time": 5, "kind": "cost.rate", "usd_per_gpu_hour": "nan"},
            "usd_per_gpu_hour: Expected `float` >= 0.0",
        ),
        ({"id": "x", "occurred_ns": -1, "kind": "step.begun"}, "occurred_ns: Expected `int` >= 0"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ("{", "Input data was truncated"),
        ('{"x": ' * 5_000, "it is nested too deeply"),
    ],
)
def test_a_line_that_cannot_be_used_is_shown_with_its_number_and_field(row: object, reason: str) -> None:
    imported = jsonl_of({"time": 1, "run": "a", "step": 1}, row, {"time": 9, "run": "a", "step": 2})
    assert len(imported.events) == 2
    assert [(skipped.line, skipped.reason) for skipped in imported.skipped] == [(2, reason)]


def test_a_newer_schema_cannot_come_as_csv() -> None:
    imported = csv_of("id,kind,occurred_ns,run,step,schema", "h-1,step.committed,7,llm,3,99")
    assert [skipped.reason for skipped in imported.skipped] == ["schema: 99 is newer than this version"]


def test_a_row_of_another_width_is_skipped() -> None:
    imported = csv_of("time,step", "1,2,3", "1", "1,2", options=Options(run="a"))
    assert [(skipped.line, skipped.reason) for skipped in imported.skipped] == [
        (2, "it has 3 cells and the header 2"),
        (3, "it has 1 cells and the header 2"),
    ]
    assert len(imported.events) == 1


def test_bytes_that_are_no_text_are_replaced_and_counted() -> None:
    lines = Lines(io.BytesIO(b"time,step,note\n1,1,caf\xe9\n2,2,tea\n"), "log")
    imported = drawn(read_csv(lines, Options(run="a")))
    assert (len(imported.events), imported.replaced_count) == (2, 1)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("kind,run", "log has no column `time`."),
        ("time,run", "log has neither a column `kind` nor a column `step`."),
        ("time,step", "log does not say which run it is of."),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(header: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        csv_of(header, "1,2")
    assert caught.value.sentence == sentence
    assert caught.value.hint


cell = st.text("a1.,;'\\\t\u00e9\u0663", max_size=6)
KINDS = {"run.started", "run.ended", "step.committed", "cost.rate", "generation.opened"}
kind = st.sampled_from([*sorted(KINDS), ""])
number = st.integers(-(2**70), 2**70) | st.floats() | cell


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(kind, number, number, number, cell), max_size=6))
def test_whatever_comes_out_can_be_kept_and_has_an_id_of_its_own(rows: list[tuple[object, ...]]) -> None:
    names = ("kind", "time", "step", "usd_per_gpu_hour", "reason")
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    table = csv_of(
        ",".join(names),
        *(",".join(f'"{value.replace(chr(34), "")}"' for value in row) for row in cells),
        options=Options(run="a"),
    )
    lines = jsonl_of(*(dict(zip(names, row, strict=True)) for row in cells), options=Options(run="a"))
    for imported in (table, lines):
        assert len(imported.events) + imported.skipped_count == imported.lines
        assert all(decode(encode(event)) == event for event in imported.events)
        assert len({event.id for event in imported.events}) == len(set(imported.events))
        assert {kind_of(event) for event in imported.events} <= KINDS
