"""`holdfast events --follow`: what a live process records is seen as it comes, once, and damage is told."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import WAIT_S

from holdfast.cli.events import _line, _Lines
from holdfast.cli.record import DAMAGES_SHOWN_MAX, home_journal
from holdfast.cli.terminal import say
from holdfast.record.events import (
    AnyEvent,
    CheckpointSaved,
    IncidentDiagnosed,
    IncidentState,
    RunStarted,
    StepBegun,
    StepCommitted,
    StepWitnessed,
    encode,
)
from holdfast.record.following import following
from holdfast.record.journal import line_of
from holdfast.record.recorder import Recorder
from holdfast.record.sqlite import SqliteStore
from holdfast.record.store import EVERYTHING, Selection
from holdfast.wording import stamp

QUIET_S = 1.5
"""Longer than a follower sleeps: time for it to say something twice."""


def step(number: int) -> StepCommitted:
    return StepCommitted(id=f"a-{number:04}", occurred_ns=number, run="live", step=number)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The journal that the command finds by itself."""
    directory = tmp_path / "home" / "journal"
    directory.mkdir(parents=True)
    return directory


def follower(environment: dict[str, str], *further: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "events", "live", "--follow", *further],
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_is_recorded_on_this_machine_is_in_the_record(holdfast: Any, journal: Path) -> None:
    with Recorder(journal, run="live") as recorder:
        recorder.record(RunStarted, gpus=1)
        assert "run.started" in holdfast("events", "live").out  # while the process still runs
    assert len(holdfast("events", "live").out.splitlines()) == 1


def test_what_a_killed_process_had_no_time_to_write_out_is_in_the_record(
    holdfast: Any, tmp_path: Path
) -> None:
    program = """if True:
        import os, signal, sys
        from pathlib import Path
        from holdfast.record.events import RunStarted
        from holdfast.record.recorder import Recorder
        Recorder(Path(sys.argv[1]), run="live").record(RunStarted, gpus=1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    arguments = [sys.executable, "-c", program, str(tmp_path / "home" / "journal")]
    assert subprocess.run(arguments, timeout=WAIT_S, check=False).returncode == -signal.SIGKILL
    assert "run.started" in holdfast("events", "live").out


def test_following(holdfast: Any, environment: dict[str, str], journal: Path) -> None:
    with Recorder(journal, run="live") as recorder:
        recorder.record(RunStarted, gpus=1)
        holdfast("runs")
        with follower(environment) as process:
            assert process.stdout is not None
            try:
                assert "run.started" in process.stdout.readline()
                begun = time.monotonic()
                recorder.record(StepCommitted, step=1)
                assert "step.committed" in process.stdout.readline()
                assert time.monotonic() - begun < WAIT_S
            finally:
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=WAIT_S)
    assert (process.returncode, complaints) == (130, "")


def test_damage_in_the_own_journal_is_told_once(holdfast: Any, journal: Path) -> None:
    good, torn = line_of(encode(step(1))), line_of(encode(step(2)))[:-5]
    damaged = DAMAGES_SHOWN_MAX + 3
    (journal / "a-000000.journal").write_bytes(good + b"nonsense\x1b\n" * damaged + torn)
    first = holdfast("events")
    assert (first.code, len(first.out.splitlines())) == (0, 1)
    head, *shown, more = first.err.splitlines()
    assert head == f"holdfast: This machine's own journal could not be read in {damaged} places:"
    assert shown == [
        f"  {journal / 'a-000000.journal'}, line {line}: the checksum does not match"
        for line in range(2, 2 + DAMAGES_SHOWN_MAX)
    ]
    assert more == "  and 3 more"
    assert holdfast("runs").err == ""


def test_an_unfinished_line_is_no_news(holdfast: Any, journal: Path) -> None:
    (journal / "a-000000.journal").write_bytes(line_of(encode(step(1))) + line_of(encode(step(2)))[:-5])
    assert holdfast("runs").err == ""


def test_damage_is_told_while_following(environment: dict[str, str], journal: Path) -> None:
    path = journal / "a-000000.journal"
    path.write_bytes(line_of(encode(step(1))))
    unreadable = journal / "b-000000.journal"
    unreadable.mkdir()
    with follower(environment) as process:
        assert process.stdout is not None
        try:
            assert "step=1" in process.stdout.readline()
            with path.open("ab") as stream:
                stream.write(b"nonsense\n" + line_of(encode(step(2))))
            assert "step=2" in process.stdout.readline()
            time.sleep(QUIET_S)
        finally:
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=WAIT_S)
    assert complaints.splitlines() == [
        "holdfast: This machine's own journal could not be read in 1 place:",
        f"  {unreadable}: cannot be read: Is a directory",
        "holdfast: This machine's own journal could not be read in 1 place:",
        f"  {path}, line 2: the checksum does not match",
    ]


class BusyStore(SqliteStore):
    """A store that others write to: before and after each look at its end, one event of `coming` arrives.

    began_at: from where it was asked each time what arrived.
    """

    def __init__(self, path: Path, coming: Iterator[AnyEvent]) -> None:
        super().__init__(path)
        self.coming = coming
        self.began_at: list[int] = []

    def end(self) -> int:
        self.ingest(islice(self.coming, 1))
        end = super().end()
        self.ingest(islice(self.coming, 1))
        return end

    def since(self, cursor: int, selection: Selection = EVERYTHING) -> Iterator[tuple[int, AnyEvent]]:
        self.began_at.append(cursor)
        return super().since(cursor, selection)


def test_nothing_is_missed_or_shown_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    with BusyStore(tmp_path / "busy.sqlite", map(step, count(100))) as store:
        store.ingest(map(step, range(100)))
        events = list(islice(following(store, home_journal(store), Selection(run="live"), say), 108))
        assert [event.id for event in events] == [step(number).id for number in range(108)]
        assert min(store.began_at) > 100  # what was there at first is read by time, and not once more


def test_what_was_looked_at_in_vain_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    rare = RunStarted(id="rare", occurred_ns=1, run="live")
    with BusyStore(tmp_path / "busy.sqlite", chain(map(step, range(7)), [rare])) as store:
        selection = Selection(run="live", kinds=("run.started",))
        assert list(islice(following(store, home_journal(store), selection, say), 1)) == [rare]
        assert store.began_at == [1, 1, 5]


def test_a_stretch_of_steps_is_one_line(holdfast: Any, tmp_path: Path) -> None:
    second_ns = 10**9
    begun_ns = 1_700_000_000 * second_ns
    at: dict[str, Any] = {"run": "r"}
    events: list[AnyEvent] = [RunStarted(id="a", occurred_ns=begun_ns, gpus=8, **at)]
    for number in range(1, 1_501):
        ns = begun_ns + number * second_ns
        events.append(StepCommitted(id=f"b{number:05}", occurred_ns=ns, step=number, **at))
        if number % 500 == 0:
            saved = CheckpointSaved(
                id=f"c{number}",
                occurred_ns=ns + 1,
                step=number,
                stall_ns=1_250_000_000,
                size_bytes=10**10,
                **at,
            )
            events.append(saved)
    (tmp_path / "r.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    holdfast("import", "r.jsonl")
    lines = holdfast("events", "r").out.splitlines()
    assert [line.split("  ", 1)[1].split() for line in lines[1:3]] == [
        ["steps", "-", *["1", "to", "500,", "in", "8", "min", "19", "s,", "1", "s", "a", "step"]],
        ["checkpoint.saved", "-", "step=500", "stall=1.25s", "size=10.0GB"],
    ]
    assert len(lines) == 7
    assert holdfast("events", "r", "--limit", "2").out.splitlines() == lines[-2:]
    assert len(holdfast("events", "r", "--steps").out.splitlines()) == len(events)
    assert len(holdfast("events", "r", "--kind", "step.committed").out.splitlines()) == 1_500
    whole = holdfast("events", "r", "--json").out
    assert whole.encode() == b"".join(encode(event) + b"\n" for event in sorted(events, key=by_time))
    last = holdfast("events", "r", "--json", "--limit", "3").out
    assert whole.endswith(last)
    assert last.count("\n") == 3


def by_time(event: AnyEvent) -> tuple[int, str]:
    return event.occurred_ns, event.id


def test_since_takes_how_long_ago(holdfast: Any, tmp_path: Path) -> None:
    now_ns = time.time_ns()
    events = [
        StepCommitted(id=f"a{number}", occurred_ns=now_ns - hours * 3_600 * 10**9, run="r", step=number)
        for number, hours in enumerate((5, 3, 0))
    ]
    (tmp_path / "r.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    holdfast("import", "r.jsonl")
    for since, shown_count in (("1h", 1), ("4h", 2), ("2d", 3), ("90m", 1)):
        shown = holdfast("events", "r", "--steps", "--since", since)
        assert len(shown.out.splitlines()) == shown_count, since
    wrong = holdfast("events", "r", "--since", "1 fortnight")
    assert (wrong.code, "or as 1h for an hour ago" in wrong.err) == (2, True)


@given(
    st.lists(st.tuples(st.sampled_from("bcwo"), st.integers(0, 6), st.sampled_from([1, 2, 300])), max_size=30)
)
def test_every_event_is_in_one_line(told: list[tuple[str, int, int]]) -> None:
    """Each event but those of steps has its line, and the stretches have all steps in their order."""
    kinds = {"b": StepBegun, "c": StepCommitted, "w": StepWitnessed}
    events: list[AnyEvent] = []
    at_s = 0
    for kind, step, after_s in told:
        at_s += after_s
        envelope: dict[str, Any] = {"id": f"{at_s}", "occurred_ns": at_s * 10**9}
        events.append(RunStarted(**envelope) if kind == "o" else kinds[kind](step=step, **envelope))
    shown = shortened(events)
    begins = [events.index(one) for one in events if any(line.startswith(time_of(one)) for line in shown)]
    assert len(begins) == len(shown)
    for line, begin, end in zip(shown, begins, [*begins, len(events)][1:], strict=True):
        if isinstance(events[begin], RunStarted):
            assert ("run.started" in line, end) == (True, begin + 1)
            continue
        steps = [
            one.step
            for one in events[begin:end]
            if isinstance(one, StepBegun | StepCommitted | StepWitnessed)
        ]
        assert len(steps) == end - begin
        assert steps == sorted(steps)
        first, last = steps[0], steps[-1]
        if len(steps) > 1:
            assert f"  {first} to {last}," in line or (first == last and f"  {first}," in line)
        else:
            assert f"step={first}" in line
    assert len(list(chain.from_iterable(map(_Lines(_line, is_each=True).take, events)))) == len(events)
    if events and all((kind, after_s) == ("c", 1) for kind, _, after_s in told):
        falls = sum(later <= earlier for (_, earlier, _), (_, later, _) in pairwise(told))
        assert len(shown) == 1 + falls


def shortened(events: Iterable[AnyEvent]) -> list[str]:
    lines = _Lines(_line, is_each=False)
    return [str(line) for line in (*chain.from_iterable(map(lines.take, events)), *lines.rest())]


def time_of(event: AnyEvent) -> str:
    return stamp(event.occurred_ns)


def committed(*steps: tuple[int, float]) -> list[StepCommitted]:
    """These steps, at these seconds."""
    return [StepCommitted(id=f"{step}", occurred_ns=round(at_s * 10**9), step=step) for step, at_s in steps]


@pytest.mark.parametrize(
    ("steps", "lines"),
    [
        ([(step, step * 10.0) for step in range(1, 101)], ["1 to 100, in 16 min 30 s, 10 s a step"]),
        (
            [(step, step * 10.0) for step in range(100, 501, 100)],
            ["100 to 500, one in 100 recorded, in 1 h 6 min, 10 s a step"],
        ),
        (
            [(step, step * 1.0) for step in (*range(1, 41), *range(51, 101))],
            ["1 to 100, 90 of 100 recorded, in 1 min 39 s, 1 s a step"],
        ),
        (
            [(step, step + (900.0 if step > 50 else 0.0)) for step in range(1, 101)],
            [
                "1 to 50, in 49 s, 1 s a step",
                "51 to 100, in 49 s, 1 s a step, after 15 min 1 s without a step",
            ],
        ),
    ],
    ids=["each step", "every hundredth", "some missing", "a standstill"],
)
def test_a_stretch_says_how_long_a_step_takes(steps: list[tuple[int, float]], lines: list[str]) -> None:
    shown = [line.split(maxsplit=4)[-1] for line in shortened(committed(*steps))]
    assert shown == lines


def test_following_shows_the_last_lines_first(
    holdfast: Any, environment: dict[str, str], journal: Path
) -> None:
    with Recorder(journal, run="live") as recorder:
        for number in (1, 2, 3):
            recorder.record(StepCommitted, step=number)
            recorder.record(RunStarted, gpus=number)
        holdfast("runs")
        with follower(environment, "--limit", "2") as process:
            assert process.stdout is not None
            try:
                assert "step=3" in process.stdout.readline()
                assert "gpus=3" in process.stdout.readline()
                recorder.record(RunStarted, gpus=4)
                assert "gpus=4" in process.stdout.readline()
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=WAIT_S)


def test_an_incident_that_goes_on_is_not_said_again_and_cuts_no_steps() -> None:
    def diagnosed(number: int, mechanism: str, state: IncidentState) -> IncidentDiagnosed:
        told = f'{{"cause": {{"mechanism": "{mechanism}", "subject": "n1.0"}}}}'
        return IncidentDiagnosed(
            id=f"b-{number}",
            occurred_ns=number,
            run="live",
            incident="live/s1",
            state=state,
            diagnosis=told,
        )

    said: list[tuple[str, IncidentState]] = [
        ("unknown", "open"),
        ("unknown", "changed"),
        ("gpu-throttle", "changed"),
        ("gpu-throttle", "changed"),
        ("gpu-throttle", "resolved"),
    ]
    events: list[AnyEvent] = []
    for number, (mechanism, state) in enumerate(said):
        events += [step(2 * number), diagnosed(2 * number + 1, mechanism, state)]
    brief, whole = _Lines(_line, is_each=False), _Lines(_line, is_each=True)
    lines = [str(line) for line in chain(chain.from_iterable(map(brief.take, events)), brief.rest())]
    shown = [line.split("state=")[1].split()[:2] for line in lines if "state=" in line]
    assert shown == [
        ["open", "mechanism=unknown"],
        ["changed", "mechanism=gpu-throttle"],
        ["resolved", "mechanism=gpu-throttle"],
    ]
    assert len(lines) == len(shown) + 3
    assert len([*chain.from_iterable(map(whole.take, events))]) == len(events)


def test_no_such_event_is_said_and_a_fingerprint_is_short(holdfast: Any, journal: Path) -> None:
    with Recorder(journal, run="live") as recorder:
        recorder.record(RunStarted, gpus=1, script="t.py", script_sha256="0123456789abcdef" * 4)
    assert holdfast("events", "live").out.endswith(" script=t.py script_sha256=0123456789ab\n")
    done = holdfast("events", "live", "--until", "2020-01-01")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("holdfast: live has no such event; its newest is of 20")
    assert holdfast("events", "live", "--until", "2020-01-01", "--json").out == ""
    assert holdfast("events", "live", "--kind", "run.startd").err.endswith("Did you mean run.started?\n")
