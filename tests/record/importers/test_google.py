"""Google's resiliency tracker: the published run of 112 nodes, and small logs with one peculiarity each."""

import io
import json
import random
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from holdfast.record.events import (
    NAME_CHARS_MAX,
    AnyEvent,
    CheckpointLoaded,
    CheckpointSaved,
    CostRate,
    MemberJoined,
    MemberLost,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    RunSubmitted,
    decode,
    encode,
    kind_of,
)
from holdfast.record.importers import FileReading, Imported, Options, import_file
from holdfast.record.importers.google import read
from holdfast.record.importers.intake import Lines

PUBLISHED = Path(__file__).parents[2] / "data" / "google-70b-112-nodes-events.jsonl"
RUN = "test-040104-goodput-n112-70b-a3m"
DAY = "2025-04-02T00:00:"


class Told(Imported, frozen=True, kw_only=True):
    """A reading that was drawn to its end."""

    events: tuple[AnyEvent, ...]


def drawn(reading: FileReading) -> Told:
    events = tuple(reading)
    return Told(events=events, **msgspec.structs.asdict(reading.imported()))


def told(*lines: str, options: Options | None = None) -> Told:
    return drawn(read(Lines(io.BytesIO("\n".join(lines).encode()), "log"), options or Options()))


def imported_from(path: Path) -> Told:
    with import_file(path, Options(reference_step_s=8, usd_per_gpu_hour=4)) as reading:
        return drawn(reading)


def line(event_type: str, second: float, number: float | None = None, job_name: str = "job") -> str:
    key = "step" if event_type.startswith("checkpoint") else "node_rank"
    detail = {} if number is None else {key: number}
    stamp = f"{DAY}{second:09.6f}"
    return json.dumps({"event_type": event_type, "job_name": job_name, "timestamp": stamp} | detail)


def kinds(imported: Told) -> list[str]:
    return [kind_of(event) for event in sorted(imported.events, key=lambda event: event.occurred_ns)]


@pytest.fixture(scope="module")
def published() -> Told:
    return imported_from(PUBLISHED)


def test_every_line_of_the_published_run_is_told(published: Told) -> None:
    assert (published.format, published.lines, published.skipped_count) == ("google-resiliency", 7_798, 0)
    assert published.summary() == "7,798 lines, 1 run"
    assert {event.run for event in published.events} == {RUN}
    assert Counter(kind_of(event) for event in published.events) == {
        "cost.rate": 2,
        "reference.declared": 1,
        "run.started": 68,
        "member.joined": 7_340,
        "member.lost": 318,
        "run.ended": 4,
        "checkpoint.loaded": 44,
        "checkpoint.saved": 96,
    }


def test_the_published_goodput_follows_from_the_events(published: Told) -> None:
    """The tracker's own calculator, applied to our events, gives its published figures."""
    events = sorted(published.events, key=lambda event: event.occurred_ns)
    total_ns = events[-1].occurred_ns - events[0].occurred_ns
    assert total_ns == 35_364_285_491_000
    loaded = [event.step for event in events if isinstance(event, CheckpointLoaded)]
    saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
    assert (len(loaded), min(loaded), len(saved), max(saved)) == (44, 40, 96, 1_960)
    reference = next(event for event in events if isinstance(event, ReferenceDeclared))
    assert reference.step_ns == 8_000_000_000
    goodput = (max(saved) - min(loaded)) * reference.step_ns / total_ns
    assert goodput == pytest.approx(0.4343365, abs=5e-8)


def test_the_published_number_of_starts_follows_from_the_events(published: Told) -> None:
    """Starts of nodes with nothing else in between count once there; declarations are ours, not the log's."""
    events = sorted(published.events, key=lambda event: event.occurred_ns)
    reported = [
        type(event) for event in events if not isinstance(event, (CostRate, ReferenceDeclared, RunStarted))
    ]
    before = [None, *reported[:-1]]
    pairs = zip(before, reported, strict=True)
    assert sum(now is MemberJoined and then is not MemberJoined for then, now in pairs) == 48


def test_a_launch_has_each_node_once_and_is_caused_by_nothing_before_it(published: Told) -> None:
    launches: list[list[AnyEvent]] = []
    for event in published.events:
        if isinstance(event, RunStarted):
            launches.append([event])
        elif isinstance(event, MemberJoined):
            launches[-1].append(event)
    assert [len(joined) for _, *joined in launches][-8:] == [108, 104, 104, 104, 108, 112, 112, 111]
    for start, first, *rest in launches:
        nodes = [event.subject for event in (first, *rest)]
        assert len(set(nodes)) == len(nodes)
        assert (first.occurred_ns, first.causes) == (start.occurred_ns, (start.id,))
        assert all(event.occurred_ns >= start.occurred_ns for event in rest)


def test_the_gpus_are_held_throughout(published: Told) -> None:
    rates = [event for event in published.events if isinstance(event, CostRate)]
    assert [(rate.gpus, rate.usd_per_gpu_hour) for rate in rates] == [(896, None), (None, 4.0)]
    assert rates[0].occurred_ns == min(event.occurred_ns for event in published.events)
    assert {event.gpus for event in published.events if isinstance(event, RunStarted)} == {896}
    assert {event.gpus for event in published.events if isinstance(event, MemberJoined)} == {8}


def test_every_event_can_be_kept_and_is_unique(published: Told) -> None:
    assert all(decode(encode(event)) == event for event in published.events)
    assert len({event.id for event in published.events}) == len(published.events)


def test_ids_depend_neither_on_the_place_nor_on_the_order_of_lines(published: Told, tmp_path: Path) -> None:
    lines = PUBLISHED.read_text(encoding="utf-8").splitlines(keepends=True)
    random.Random(7).shuffle(lines)
    elsewhere = tmp_path / "another-name.log"
    elsewhere.write_text("".join(lines), encoding="utf-8")
    again = imported_from(elsewhere)
    assert set(again.events) == set(published.events)


def test_a_file_that_has_grown_keeps_its_events(published: Told, tmp_path: Path) -> None:
    lines = sorted(
        PUBLISHED.read_text(encoding="utf-8").splitlines(), key=lambda line: json.loads(line)["timestamp"]
    )
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text("\n".join(lines[:2_000]), encoding="utf-8")
    before = imported_from(earlier)
    assert len(before.events) > 2_000
    assert set(before.events) < set(published.events)


def test_another_run_has_other_ids() -> None:
    logged = line("job_started", 1, 0)
    named = told(logged, options=Options(run="mine"))
    assert {event.run for event in named.events} == {"mine"}
    assert not {event.id for event in named.events} & {event.id for event in told(logged).events}


def test_a_launch_begins_when_a_node_starts_again_or_after_anything_else() -> None:
    imported = told(
        line("job_started", 1, 0),
        line("job_started", 2, 1),
        line("job_started", 3, 1),
        line("job_started", 4, 0),
        line("checkpoint_loaded", 5, 10.0),
        line("job_started", 6, 2),
    )
    assert kinds(imported)[1:] == [
        "run.started",
        "member.joined",
        "member.joined",
        "run.started",
        "member.joined",
        "member.joined",
        "checkpoint.loaded",
        "run.started",
        "member.joined",
    ]


def test_nodes_terminate_one_by_one_and_the_run_ends_once() -> None:
    imported = told(
        line("job_started", 1, 0),
        line("job_started", 1, 1),
        line("job_terminated", 2, 1),
        line("job_terminated", 3, 0),
    )
    ends = [event for event in imported.events if isinstance(event, RunEnded)]
    lost = [event for event in imported.events if isinstance(event, MemberLost)]
    assert [(end.outcome, end.occurred_ns, end.causes) for end in ends] == [
        ("failed", lost[0].occurred_ns, (lost[0].id,))
    ]
    assert [event.subject for event in lost] == ["node-1", "node-0"]


def test_a_node_that_terminates_late_does_not_end_the_next_launch() -> None:
    imported = told(
        line("job_started", 1, 0),
        line("job_started", 1, 1),
        line("job_started", 5, 0),
        line("job_terminated", 6, 1),
        line("job_started", 7, 1),
    )
    assert kinds(imported)[-4:] == ["run.started", "member.joined", "member.lost", "member.joined"]
    assert "run.ended" not in kinds(imported)


def test_what_the_user_did_is_told() -> None:
    imported = told(
        line("user_scheduled", 1),
        line("job_started", 2, 0),
        line("user_terminated", 3),
        line("job_terminated", 3, 0),
    )
    submitted = next(event for event in imported.events if isinstance(event, RunSubmitted))
    assert (submitted.gpus, submitted.name) == (8, "job")
    assert [event.outcome for event in imported.events if isinstance(event, RunEnded)] == ["stopped"]


def test_a_line_that_was_delivered_twice_happened_once() -> None:
    once = [line("job_started", 1, 0), line("job_started", 2, 1), line("checkpoint_saved", 3, 5)]
    assert told(*once, *once).events == told(*once).events


def test_jobs_are_runs_of_their_own_unless_told_otherwise() -> None:
    lines = [line("job_started", 1, 0, "a"), line("job_started", 2, 0, "b")]
    assert told(*lines).runs == 2
    assert told(*lines, options=Options(run="both")).runs == 1


def test_gpus_come_from_the_nodes_or_else_from_the_user() -> None:
    nodes = told(line("job_started", 1, 0), line("job_started", 1, 7), options=Options(gpus_per_node=4))
    assert [event.gpus for event in nodes.events if isinstance(event, CostRate)] == [8]
    saves = told(line("checkpoint_saved", 1, 5), options=Options(gpus=64))
    assert [event.gpus for event in saves.events if isinstance(event, CostRate)] == [64]
    assert kinds(told(line("checkpoint_saved", 1, 5))) == ["checkpoint.saved"]


def test_a_name_as_long_as_can_be_is_kept() -> None:
    imported = told(line("job_started", 1, 0, "j" * NAME_CHARS_MAX))
    assert imported.runs == 1
    assert all(decode(encode(event)) == event for event in imported.events)


def test_what_is_said_differently_about_a_run_has_the_same_id_so_that_it_shows() -> None:
    logged = line("job_started", 1, 0)
    cheap, dear = (told(logged, options=Options(usd_per_gpu_hour=usd)) for usd in (2, 3))
    differing = [(a, b) for a, b in zip(cheap.events, dear.events, strict=True) if a != b]
    assert [(a.id == b.id, kind_of(a)) for a, b in differing] == [(True, "cost.rate")]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (line("job_started", 1), "node_rank has to be a whole number"),
        (line("job_started", 1, -1), "node_rank has to be a whole number"),
        (line("job_started", 1, 0.5), "node_rank has to be a whole number"),
        (line("checkpoint_saved", 1, 1e300), "step has to be a whole number"),
        (line("job_exploded", 1), "event_type 'job_exploded' is not one of"),
        (line("job_started", 1, 0, ""), "job_name is empty"),
        (line("job_started", 1, 0, "j" * 257), "job_name has 257 characters, and a name at most 256"),
        (line("job_started", 1, 0).replace(DAY, "soon "), "is not a time"),
        (line("job_started", 1, 0)[:-5], "Input data was truncated"),
        ('{"event_type": "job_started", "timestamp": 5, "job_name": "a"}', "timestamp: Expected `str`"),
        ('{"event_type": "job_started"}', "missing required field"),
        ("[" * 100_000, "nested too deeply|Expected `object`"),
    ],
)
def test_a_line_that_cannot_be_used_is_shown_with_its_number_and_reason(bad: str, reason: str) -> None:
    imported = told(line("job_started", 1, 0), bad, line("job_started", 2, 1))
    assert (imported.lines, imported.skipped_count, imported.skipped[0].line) == (3, 1, 2)
    assert kinds(imported).count("member.joined") == 2
    assert re.search(reason, imported.skipped[0].reason)
