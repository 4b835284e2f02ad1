"""Slurm's accounting: captured output, the shapes sacct prints in, and the lives jobs lead."""

import io
from pathlib import Path

import msgspec
import pytest

from holdfast.record.errors import InputError
from holdfast.record.events import (
    AnyEvent,
    CostRate,
    FaultObserved,
    GenerationOpened,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    RunSubmitted,
    kind_of,
)
from holdfast.record.importers import FileReading, Imported, Options, import_file
from holdfast.record.importers.intake import Lines, time_ns
from holdfast.record.importers.slurm import read

CAPTURED = Path(__file__).parents[2] / "data" / "slurm" / "sacct.txt"
FIELDS = "JobID|JobName|Account|State|Submit|Start|End|NNodes|NodeList|AllocTRES"
GPUS = "billing=64,cpu=64,gres/gpu=16,mem=1T,node=2"


def at(minute: int) -> str:
    return f"2025-03-01T10:{minute:02}:00"


def job(
    job_id: str = "77", state: str = "COMPLETED", *, times: tuple[str, str, str] = (at(0), at(5), at(9))
) -> str:
    submit, start, end = times
    return f"{job_id}|pretrain|research|{state}|{submit}|{start}|{end}|2|node[01-02]|{GPUS}"


class Told(Imported, frozen=True, kw_only=True):
    """A reading that was drawn to its end."""

    events: tuple[AnyEvent, ...]


def drawn(reading: FileReading) -> Told:
    events = tuple(reading)
    return Told(events=events, **msgspec.structs.asdict(reading.imported()))


def told(*rows: str, header: str = FIELDS, options: Options | None = None) -> Told:
    return told_bytes("\n".join([header, *rows]).encode(), options)


def told_bytes(data: bytes, options: Options | None = None) -> Told:
    return drawn(read(Lines(io.BytesIO(data), "log"), options or Options()))


def captured() -> Told:
    with import_file(CAPTURED, Options()) as reading:
        return drawn(reading)


def life(imported: Told) -> list[tuple[str, int]]:
    """Kind and minute of every event."""
    return [
        (kind_of(event), (event.occurred_ns - time_ns(at(0))) // 60_000_000_000) for event in imported.events
    ]


def by_time_and_id(imported: Told) -> list[AnyEvent]:
    """The events as the ledger orders them."""
    return sorted(imported.events, key=lambda event: (event.occurred_ns, event.id))


def test_the_captured_output_is_one_job_without_gpus() -> None:
    imported = captured()
    assert (imported.format, imported.summary()) == ("sacct", "68 lines, 1 run, no GPUs")
    assert imported.skipped_count == 0
    started, ended = imported.events
    assert isinstance(started, RunStarted)
    assert (started.run, started.name, started.team, started.gpus) == (
        "8012944_24093",
        "python3",
        "fairusers",
        0,
    )
    assert isinstance(ended, RunEnded)
    assert (ended.outcome, ended.reason) == ("completed", "COMPLETED")
    assert ended.occurred_ns - started.occurred_ns == 48_000_000_000


def test_the_captured_output_reads_the_same_with_another_delimiter_and_bytes_that_are_no_text() -> None:
    expected = captured()
    damaged = CAPTURED.read_bytes().replace(b"|", b"|#").replace(b"01:07.875", b"\xff\xfe caf\xe9")
    imported = told_bytes(damaged)
    assert imported.events == expected.events
    assert (imported.skipped_count, imported.replaced_count) == (0, 0)


def test_bytes_that_are_no_text_are_replaced_and_counted_in_a_field_that_is_used() -> None:
    imported = told_bytes(f"{FIELDS}\n{job()}".encode().replace(b"pretrain", b"pr\xe9train"))
    started = imported.events[1]
    assert isinstance(started, RunStarted)
    assert started.name == "pr\ufffdtrain"
    assert imported.replaced_count == 1


@pytest.mark.parametrize("delimiter", ["|", "|#", ";", "\t", "@@", "^"])
@pytest.mark.parametrize("trailing", [False, True])
def test_the_header_tells_the_delimiter(delimiter: str, trailing: bool) -> None:
    rows = [
        line.replace("|", delimiter) + delimiter * trailing for line in (FIELDS, job("1"), job("2", "FAILED"))
    ]
    imported = told(*rows[1:], header=rows[0])
    assert (imported.runs, imported.skipped_count) == (2, 0)
    assert imported.events == told(job("1"), job("2", "FAILED")).events


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("COMPLETED", "completed"),
        ("FAILED", "failed"),
        ("NODE_FAIL", "failed"),
        ("BOOT_FAIL", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("TIMEOUT", "stopped"),
        ("DEADLINE", "stopped"),
        ("CANCELLED", "stopped"),
        ("CANCELLED by 1000", "stopped"),
        ("PREEMPTED", "preempted"),
        ("REQUEUED", "preempted"),
    ],
)
def test_every_end_has_an_outcome_and_keeps_slurms_word(state: str, outcome: str) -> None:
    imported = told(job(state=state))
    submitted, started, *_, ended = imported.events
    assert isinstance(submitted, RunSubmitted)
    assert isinstance(started, RunStarted)
    assert isinstance(ended, RunEnded)
    assert (ended.outcome, ended.reason) == (outcome, state.split()[0])
    assert (submitted.gpus, started.gpus, started.team) == (16, 16, "research")
    assert life(imported)[-1] == ("run.ended", 9)


def test_a_node_that_fails_is_a_fault_of_that_node() -> None:
    fields = FIELDS.replace("NodeList", "FailedNode")
    imported = told(job(state="NODE_FAIL").replace("node[01-02]", "node02"), header=fields)
    fault, ended = imported.events[-2:]
    assert isinstance(fault, FaultObserved)
    assert (fault.fault, fault.severity, fault.subject) == ("node-fail", "fatal", "node02")
    assert (kind_of(ended), ended.occurred_ns, ended.id > fault.id) == ("run.ended", fault.occurred_ns, True)


@pytest.mark.parametrize(
    ("nodes", "subject"), [("node07", "node07"), ("node[07-08]", ""), ("a,b", ""), ("None assigned", "")]
)
def test_which_of_several_nodes_failed_is_not_guessed(nodes: str, subject: str) -> None:
    fault = told(job(state="NODE_FAIL").replace("node[01-02]", nodes)).events[-2]
    assert (kind_of(fault), fault.subject) == ("fault.observed", subject)


@pytest.mark.parametrize(
    ("state", "times", "expected"),
    [
        ("PENDING", (at(0), "Unknown", "Unknown"), [("run.submitted", 0)]),
        ("PENDING", (at(0), at(30), "Unknown"), [("run.submitted", 0)]),
        ("RUNNING", (at(0), at(5), "Unknown"), [("run.submitted", 0), ("run.started", 5)]),
        ("SUSPENDED", (at(0), at(5), "Unknown"), [("run.submitted", 0), ("run.started", 5)]),
        ("CANCELLED by 0", (at(0), "None", at(3)), [("run.submitted", 0), ("run.ended", 3)]),
        ("COMPLETED", ("", at(5), at(9)), [("run.started", 5), ("run.ended", 9)]),
    ],
)
def test_a_job_is_told_as_far_as_it_got(
    state: str, times: tuple[str, str, str], expected: list[tuple[str, int]]
) -> None:
    assert life(told(job(state=state, times=times))) == expected


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING"])
def test_a_job_that_has_not_ended_holds_its_gpus_until_the_newest_moment_in_the_file(state: str) -> None:
    going = job(state=state, times=(at(0), at(5), "Unknown"))
    newer = [
        job("78", times=(at(6), at(20), at(30))),
        job("79", "PENDING", times=(at(31), at(50), "Unknown")),
    ]
    for rows in ((going, *newer), (*newer, going)):
        events = [event for event in told(*rows).events if event.run == "77"]
        assert [kind_of(event) for event in events] == ["run.submitted", "run.started", "cost.rate"]
        held = events[-1]
        assert isinstance(held, CostRate)
        assert held.occurred_ns == time_ns(at(31))  # not when the waiting job may start
        assert (held.gpus, held.usd_per_gpu_hour) == (None, None)
    ended = [event for event in told(job(), *newer).events if isinstance(event, CostRate)]
    assert not ended


def test_a_job_cancelled_in_the_queue_never_started() -> None:
    row = job(state="CANCELLED by 0", times=(at(0), at(3), at(3))).replace("node[01-02]", "None assigned")
    assert life(told(row)) == [("run.submitted", 0), ("run.ended", 3)]


def test_steps_belong_to_their_job() -> None:
    steps = [job(f"77.{step}", "FAILED") for step in ("batch", "extern", "0", "interactive")]
    assert told(job(), *steps).events == told(*steps, job()).events == told(job()).events


def test_a_job_seen_only_through_its_steps_lasts_as_long_as_they_do() -> None:
    imported = told(
        job("77.batch", times=(at(2), at(2), at(8))),
        job("77.0", "FAILED", times=(at(3), at(3), at(9))),
        job("77.1", times=(at(4), at(4), at(5))),
    )
    assert life(imported) == [("run.started", 2), ("run.ended", 9)]
    assert [event.outcome for event in imported.events if isinstance(event, RunEnded)] == ["failed"]


def test_requeued_attempts_are_one_run_in_order_even_within_a_second() -> None:
    imported = told(
        job(state="COMPLETED", times=(at(9), at(9), at(20))),
        job(state="NODE_FAIL", times=(at(0), at(0), at(4))),
        job(state="PREEMPTED", times=(at(4), at(6), at(9))),
    )
    assert imported.runs == 1
    assert life(imported) == [
        ("run.submitted", 0),
        ("run.started", 0),
        ("fault.observed", 4),
        ("run.ended", 4),
        ("run.submitted", 4),
        ("run.started", 6),
        ("run.ended", 9),
        ("run.submitted", 9),
        ("run.started", 9),
        ("run.ended", 20),
    ]
    assert by_time_and_id(imported) == list(imported.events)


def test_an_attempt_reads_the_same_whatever_stands_around_it() -> None:
    rows = [
        job(state="NODE_FAIL", times=(at(0), at(0), at(4))),
        job(state="PREEMPTED", times=(at(4), at(4), at(9))),
        job(state="COMPLETED", times=(at(9), at(11), at(20))),
    ]
    together = told(*rows).events
    assert {event for row in rows for event in told(row).events} == set(together)
    assert all(event.causes == () for event in together)


def test_an_attempt_that_ended_in_the_second_it_began_in_began_first() -> None:
    for state in ("FAILED", "NODE_FAIL"):
        imported = told(job(state=state, times=(at(0), at(0), at(0))))
        assert by_time_and_id(imported) == list(imported.events)
    queued = told(job(state="CANCELLED", times=(at(0), "None", at(0))))
    assert [kind_of(event) for event in by_time_and_id(queued)] == ["run.submitted", "run.ended"]


def test_what_an_attempt_was_while_it_waited_says_nothing_else() -> None:
    """The same job in two outputs: first in the queue, with what was asked for, then running, with more."""
    header = f"{FIELDS}|ReqTRES"
    asked = "gres/gpu=8"
    waiting = job(state="PENDING", times=(at(0), at(30), "Unknown")).replace(GPUS, "") + f"|{asked}"
    running = job(state="RUNNING", times=(at(0), at(5), "Unknown")) + f"|{asked}"
    before, after = told(waiting, header=header), told(running, header=header)
    assert [event.gpus for event in after.events if isinstance(event, RunSubmitted | RunStarted)] == [8, 16]
    assert set(before.events) < set(after.events)
    for fields in (header, FIELDS):  # what was asked for may not be known
        rows = [row if fields == header else row.removesuffix(f"|{asked}") for row in (waiting, running)]
        alone = told(rows[1], header=fields).events
        assert told(*rows, header=fields).events == told(*reversed(rows), header=fields).events == alone


@pytest.mark.parametrize("submits", [(at(0), at(7), at(9)), (at(0), at(0), at(0))], ids=["slurmdbd", "same"])
def test_a_job_that_was_resized_goes_on_with_another_size(submits: tuple[str, str, str]) -> None:
    imported = told(
        job(state="COMPLETED", times=(submits[2], at(9), at(20))).replace("gpu=16", "gpu=24"),
        job(state="RESIZING", times=(submits[0], at(5), at(7))),
        job(state="RESIZING", times=(submits[1], at(7), at(9))).replace("gpu=16", "gpu=32"),
    )
    assert life(imported) == [
        ("run.submitted", 0),
        ("run.started", 5),
        ("generation.opened", 7),
        ("generation.opened", 9),
        ("run.ended", 20),
    ]
    sizes = [event.gpus for event in imported.events if isinstance(event, RunStarted | GenerationOpened)]
    assert sizes == [16, 32, 24]
    assert by_time_and_id(imported) == list(imported.events)


def test_a_job_resized_in_the_second_it_started_in_started_first() -> None:
    imported = told(job(state="RESIZING", times=(at(0), at(5), at(5))), job(times=(at(5), at(5), at(9))))
    kinds = [kind_of(event) for event in by_time_and_id(imported)]
    assert kinds == ["run.submitted", "run.started", "generation.opened", "run.ended"]


def test_a_job_that_starts_anew_after_a_resize_is_a_new_attempt() -> None:
    imported = told(
        job(state="RESIZING", times=(at(0), at(5), at(7))),
        job(state="COMPLETED", times=(at(8), at(8), at(9))),
    )
    assert [kind for kind, _ in life(imported)] == ["run.submitted", "run.started"] * 2 + ["run.ended"]


def test_outputs_put_into_one_file_tell_each_attempt_once_and_keep_its_end() -> None:
    running = job(state="RUNNING", times=(at(0), at(5), "Unknown"))
    imported = told(
        job(state="PENDING", times=(at(0), "Unknown", "Unknown")), FIELDS, running, job(), running
    )
    assert imported.events == told(job()).events
    assert (imported.lines, imported.skipped_count) == (4, 0)


def test_ids_stay_when_a_job_goes_on() -> None:
    running = told(job("5"), job(state="RUNNING", times=(at(0), at(5), "Unknown")))
    ended = told(job(), job("5"), job("6"))
    held = {event.id for event in running.events if isinstance(event, CostRate)}
    assert len(held) == 1
    assert {event.id for event in running.events} - held < {event.id for event in ended.events}
    assert len({event.id for event in ended.events}) == len(ended.events)


@pytest.mark.parametrize("job_id", ["77", "77_3", "77_[4-9%2]", "77_[1,3,5-...]", "77+1", "77_3+1"])
def test_every_form_of_job_id_is_a_run(job_id: str) -> None:
    assert {event.run for event in told(job(job_id), job(f"{job_id}.batch")).events} == {job_id}


def test_jobs_that_follow_each_other_can_be_one_run() -> None:
    imported = told(job("1"), job("2"), options=Options(run="llm", usd_per_gpu_hour=2, reference_step_s=5))
    assert imported.runs == 1
    assert len({event.id for event in imported.events}) == len(imported.events)
    assert [event.usd_per_gpu_hour for event in imported.events if isinstance(event, CostRate)] == [2.0]
    references = [event for event in imported.events if isinstance(event, ReferenceDeclared)]
    assert [(event.step_ns, event.gpus) for event in references] == [(5_000_000_000, 16)]


@pytest.mark.parametrize(
    ("field", "value", "gpus"),
    [
        ("AllocTRES", "billing=8,cpu=8,gres/gpu=8,mem=4G,node=1", 8),
        ("AllocTRES", "cpu=8,gres/gpu:h100=8,gres/gpu=8,node=1", 8),
        ("AllocTRES", "gres/gpu:h100=8,gres/gpu:a100=4", 12),
        ("AllocTRES", "gres/gpu=16K,node=2K", 16_384),
        ("AllocTRES", "gres/gpumem=40G,gres/gpuutil=80,gres/shard=4", 0),
        ("AllocTRES", "cpu=1,mem=64G,node=1", 0),
        ("AllocTRES", "", 0),
        ("ReqTRES", "billing=1,gres/gpu=24", 24),
        ("AllocGRES", "gpu:8", 8),
        ("AllocGRES", "gpu:a100:4(S:0-1),nvme:1", 4),
        ("AllocGRES", "gres:gpu:2(IDX:0,3)", 2),
        ("AllocGRES", "gpu", 1),
        ("AllocGRES", "craynetwork:1", 0),
    ],
)
def test_gpus_are_found_where_slurm_puts_them(field: str, value: str, gpus: int) -> None:
    imported = told(job().replace(GPUS, value), header=FIELDS.replace("AllocTRES", field))
    assert [event.gpus for event in imported.events if isinstance(event, RunStarted)] == [gpus]
    assert imported.runs_without_gpus == (gpus == 0)


def test_gpus_come_from_the_user_where_accounting_does_not_know_them() -> None:
    row = job().replace(GPUS, "cpu=64,node=2")
    for options, gpus in ((Options(gpus_per_node=8), 16), (Options(gpus=5), 5), (Options(), 0)):
        started = told(row, options=options).events[1]
        assert isinstance(started, RunStarted)
        assert started.gpus == gpus


def test_a_name_with_newlines_is_put_together_again() -> None:
    imported = told(job("1"), job("2").replace("pretrain", "pre\ntrain\nnow"), job("3"))
    assert (imported.runs, imported.skipped_count) == (3, 0)
    names = {event.run: event.name for event in imported.events if isinstance(event, RunStarted)}
    assert names["2"] == "pre\ntrain\nnow"


def test_a_broken_line_costs_no_other_line() -> None:
    imported = told(
        job("1"),
        "sacct: error: slurmdbd: connection refused",
        job("2"),
        job("3").replace("pretrain", "pre|train"),
        job("4")[:20],
        job("5"),
        job("6")[:20],
    )
    assert {event.run for event in imported.events} == {"1", "2", "5"}
    assert [(skipped.line, skipped.reason) for skipped in imported.skipped] == [
        (3, "it has 1 fields and the header 10"),
        (5, "it has 11 fields and the header 10: a name may hold the delimiter"),
        (6, "it has 4 fields and the header 10"),
        (8, "it has 4 fields and the header 10"),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (job("total"), "JobID 'total' is not a job"),
        (job(""), "JobID '' is not a job"),
        (job(f"7_[{'1,' * 200}]"), "JobID has 404 characters, and a name at most 256"),
        (
            job(state="NODE_FAIL").replace("node[01-02]", "n" * 257),
            "the node has 257 characters, and a name at most 256",
        ),
        (job(state="EXPLODED"), "State 'EXPLODED' is unknown"),
        (job(state=""), "State '' is unknown"),
        (job(times=(at(0), "yesterday", at(9))), "Start: 'yesterday' is not a time"),
        (job(state="PENDING", times=("", "Unknown", "Unknown")), "it has none of Submit, Start and End"),
        (
            job().replace("gres/gpu=16", "gres/gpu=999999999999"),
            "999999999999 GPUs exceed the limit of 2147483648",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_shown_with_its_number_and_reason(row: str, reason: str) -> None:
    imported = told(job("1"), row)
    assert imported.runs == 1
    assert [(skipped.line, skipped.reason) for skipped in imported.skipped] == [(3, reason)]


def test_a_subset_of_the_fields_is_enough() -> None:
    imported = told(f"77|COMPLETED|{at(5)}|{at(9)}", header="JobIDRaw|State|Start|End")
    assert life(imported) == [("run.started", 5), ("run.ended", 9)]


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("JobID|JobName|State", "log lacks sacct's Start and End."),
        ("JobID|Start|End", "log lacks sacct's State."),
        ("       JobID    JobName      State ", "log is sacct's output for people"),
        ("JobID JobName State", "log is sacct's output for people"),
    ],
)
def test_an_output_that_cannot_be_used_is_refused_with_the_command_that_helps(
    header: str, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        told(job(), header=header)
    assert caught.value.sentence.startswith(sentence)
    assert "sacct --allusers --duplicates --parsable2" in caught.value.hint
