"""`holdfast events --follow`: what a live process records is seen as it comes, once, and damage is told."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pytest
from waiting import WAIT_S

from holdfast.cli.record import DAMAGES_SHOWN_MAX, home_journal
from holdfast.cli.terminal import say
from holdfast.record.events import AnyEvent, RunStarted, StepCommitted, encode
from holdfast.record.following import following
from holdfast.record.journal import line_of
from holdfast.record.recorder import Recorder
from holdfast.record.sqlite import SqliteStore
from holdfast.record.store import EVERYTHING, Selection

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


def follower(environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "events", "live", "--follow"],
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
