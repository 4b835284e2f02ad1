import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast.record.clock import ManualClock
from holdfast.record.events import (
    AnyEvent,
    CheckpointSaved,
    FaultObserved,
    KnownEvent,
    RunEnded,
    RunStarted,
    StepCommitted,
)
from holdfast.record.journal import Damage, read_directory
from holdfast.record.recorder import CLOSE_WAIT_S, HELD_MAX, OPEN_WAIT_S, RETRY_INTERVAL_S, Recorder
from holdfast.record.spool import SHARED_MEMORY

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
"""How long a test waits for what should happen at once."""
SLACK_S = 10.0
"""What a thousand calls that do not wait may take on a busy machine: less than any wait of theirs would."""


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    """A place for spools where what is left behind can be seen."""
    path = tmp_path / "spools"
    path.mkdir()
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def _events(directory: Path, spools: Path = SHARED_MEMORY) -> list[AnyEvent]:
    items = read_directory(directory, spool_directory=spools)
    return [item for item in items if not isinstance(item, Damage)]


def _steps(directory: Path, spools: Path = SHARED_MEMORY) -> set[int]:
    return {event.step for event in _events(directory, spools) if isinstance(event, StepCommitted)}


def _notices(directory: Path) -> list[FaultObserved]:
    return [event for event in _events(directory) if isinstance(event, FaultObserved)]


def _python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, where it may fork, exit and kill itself."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_events_are_stamped_and_found_in_order(journal: Path, spools: Path) -> None:
    clock = ManualClock(1_000)
    with Recorder(journal, run="night", clock=clock, spool_directory=spools) as recorder:
        started = recorder.record(RunStarted, gpus=8)
        clock.advance_ns(5)
        saved = recorder.record(CheckpointSaved, step=3, occurred_ns=700, causes=(started,))
        ended = recorder.record(RunEnded, outcome="completed", run="another")
    assert recorder.dropped == 0
    token, count = started.split("-")
    assert (len(token), count) == (12, "0000000000")
    assert started < saved < ended
    source = f"{os.uname().nodename}/{os.getpid()}"
    assert _events(journal) == [
        RunStarted(id=started, occurred_ns=1_000, recorded_ns=1_000, source=source, run="night", gpus=8),
        CheckpointSaved(
            id=saved,
            occurred_ns=700,
            recorded_ns=1_005,
            source=source,
            run="night",
            step=3,
            causes=(started,),
        ),
        RunEnded(
            id=ended, occurred_ns=1_005, recorded_ns=1_005, source=source, run="another", outcome="completed"
        ),
    ]


def test_closing_leaves_the_journal_and_nothing_else(journal: Path, spools: Path) -> None:
    recorder = Recorder(journal, spool_directory=spools)
    assert len(list(spools.iterdir())) == 1
    recorder.record(StepCommitted, step=1)
    recorder.close()
    recorder.close()
    assert list(spools.iterdir()) == []
    assert [path.suffix for path in journal.iterdir()] == [".journal"]


def test_an_event_is_found_as_soon_as_it_is_recorded(journal: Path) -> None:
    """Between the two there is no time for the thread to do anything."""
    with Recorder(journal) as recorder:
        for step in range(50):
            recorder.record(StepCommitted, step=step)
            assert step in _steps(journal)


def test_a_clock_that_was_set_shows_in_the_distance_of_the_two_times(journal: Path, spools: Path) -> None:
    class SetClock(ManualClock):
        def wall_ns(self) -> int:
            return self.now_ns() - 300

    with Recorder(journal, clock=SetClock(1_000), spool_directory=spools) as recorder:
        recorder.record(StepCommitted, step=1)
    (event,) = _events(journal)
    assert (event.occurred_ns, event.recorded_ns) == (1_000, 700)


def test_both_times_are_the_time_of_day(journal: Path, spools: Path) -> None:
    before_ns = time.time_ns()
    with Recorder(journal, spool_directory=spools) as recorder:
        recorder.record(StepCommitted, step=1, occurred_ns=5)
        recorder.record(StepCommitted, step=2)
    told, stamped = _events(journal)
    assert told.occurred_ns == 5
    assert before_ns <= told.recorded_ns <= stamped.recorded_ns <= time.time_ns()
    assert abs(stamped.recorded_ns - stamped.occurred_ns) < 1e9


class _Indescribable(ValueError):
    def __str__(self) -> str:
        raise ValueError("not even its message can be had")


class _BrokenClock(ManualClock):
    def now_ns(self) -> int:
        raise _Indescribable


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (StepCommitted, {}),
        (StepCommitted, {"step": "one"}),
        (StepCommitted, {"step": -1}),
        (StepCommitted, {"step": object()}),
        (StepCommitted, {"step": 1, "colour": "red"}),
        (StepCommitted, {"step": 1, "\ud800": "a name that cannot be encoded"}),
        (StepCommitted, {"step": 1, "x" * 2**21: "a name that does not fit"}),
        (StepCommitted, {"step": 1, "id": "mine"}),
        (StepCommitted, {"step": 1, "subject": "\ud800"}),
        (StepCommitted, {"step": 1, "subject": "x" * 2**21}),
        (int, {"step": 1}),
        (None, {}),
    ],
)
def test_garbage_is_dropped_counted_and_told(
    journal: Path, spools: Path, kind: type[KnownEvent], fields: dict[str, Any]
) -> None:
    with Recorder(journal, run="night", spool_directory=spools) as recorder:
        recorder.record(kind, **fields)
        recorder.record(StepCommitted, step=7)
        assert recorder.dropped == 1
    assert _steps(journal) == {7}
    (notice,) = _notices(journal)
    assert (notice.fault, notice.severity, notice.run) == ("recorder-dropped", "degraded", "night")
    assert notice.detail.startswith("events dropped: 1, the last one because: ")


def test_not_even_a_broken_clock_raises(journal: Path, spools: Path) -> None:
    with Recorder(journal, clock=_BrokenClock(), spool_directory=spools) as recorder:
        recorder.record(StepCommitted, step=1)
        assert recorder.dropped == 1
    assert _notices(journal)[0].detail == "events dropped: 1, the last one because: _Indescribable"
    assert list(spools.iterdir()) == []


class _Interrupted(Exception):
    """What a handler of the caller's raises, as elastic launchers' do on SIGTERM."""


class _InterruptingClock(ManualClock):
    """Brings a signal into the middle of recording, at its n-th reading."""

    readings_left = -1

    def now_ns(self) -> int:
        self.readings_left -= 1
        if self.readings_left == 0:
            signal.raise_signal(signal.SIGTERM)
        return super().now_ns()


def _interrupt(_signal: int, _frame: object) -> None:
    raise _Interrupted


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGTERM and SIGALRM raise in whatever the main thread is doing."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(("fields", "reading"), [({"step": 2}, 1), ({"step": "in a drop"}, 2)])
def test_what_a_signal_handler_raises_reaches_the_caller(
    journal: Path, spools: Path, fields: dict[str, Any], reading: int
) -> None:
    clock = _InterruptingClock(1_000)
    with Recorder(journal, clock=clock, spool_directory=spools) as recorder:
        recorder.record(StepCommitted, step=1)
        clock.readings_left = reading
        with pytest.raises(_Interrupted):
            recorder.record(StepCommitted, **fields)
        assert recorder.dropped == 0
        other = threading.Thread(target=recorder.record, args=(StepCommitted,), kwargs={"step": 3})
        other.start()
        other.join(PATIENCE_S)
        assert not other.is_alive()  # no lock is held
    assert _steps(journal) == {1, 3}


@pytest.mark.usefixtures("interrupts")
def test_signals_at_any_moment_of_recording_all_arrive_and_break_nothing(journal: Path, spools: Path) -> None:
    vouched, arrived = set(), 0
    with Recorder(journal, spool_directory=spools) as recorder:
        for attempt in range(300):
            step = attempt * 1_000_000
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + attempt * 1e-6)
                while step < (attempt + 1) * 1_000_000 - 1:
                    step += 1
                    recorder.record(StepCommitted, step=step)
                    vouched.add(step)
            except _Interrupted:
                arrived += 1
        assert recorder.dropped == 0
    assert arrived == 300
    items = list(read_directory(journal))
    assert [item for item in items if isinstance(item, Damage)] == []
    assert vouched <= _steps(journal)


_SIGNAL_WHILE_OPENING = """
import os, signal, sys, time
from pathlib import Path
from holdfast.record.events import StepCommitted
from holdfast.record.recorder import OPEN_WAIT_S, Recorder

SLOW = 200

class Interrupted(Exception): ...

def interrupt(number, frame):
    global signals
    signals += 1
    if sys.argv[3] == "raises":
        raise Interrupted
    recorder.record(StepCommitted, step=attempt)

def count_down(frame, event, argument):
    global calls_left
    calls_left -= event == "call"
    if calls_left == 0:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGTERM)

def record_first():
    try:
        sys.setprofile(count_down)
        recorder.record(StepCommitted, step=0)
    except Exception as error:
        # Interrupted at certain points, Python's own locks fail in turn and hide what interrupted them.
        assert isinstance(error, Interrupted) or isinstance(error.__context__, Interrupted)
        recorder.record(StepCommitted, step=attempt)
    finally:
        sys.setprofile(None)

signals = 0
signal.signal(signal.SIGTERM, interrupt)
recorder = Recorder(Path(sys.argv[1]), spool_directory=Path(sys.argv[2]))
for attempt in range(1, 1_000):
    calls_left = attempt
    for _ in range(5):  # what waits for a lock is slow each time; on a busy machine anything may be, once
        child = os.fork()
        if child == 0:
            begin_s = time.monotonic()
            record_first()
            is_slow = time.monotonic() - begin_s > OPEN_WAIT_S / 2
            recorder.close()
            os._exit(SLOW if is_slow else 10 * signals + recorder.dropped)
        signals_and_drops = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if signals_and_drops != SLOW:
            break
    print(signals_and_drops)
    if signals_and_drops == 0:
        break
"""


def _outcomes_of_signals_while_opening(journal: Path, spools: Path, handler: str) -> list[int]:
    """Ten for the signal and one for each drop, for a signal at every single call that opening makes.

    In processes that were forked, because opening belongs to their first event.
    """
    done = _python(_SIGNAL_WHILE_OPENING, journal, spools, handler)
    *outcomes, last = map(int, done.stdout.split())
    assert last == 0, done.stderr  # it was at its end before its signal could come
    assert len(outcomes) > 20
    assert "no spool" not in done.stderr  # no spool was made twice
    return outcomes


def test_a_signal_handler_that_raises_while_a_spool_is_opened_costs_no_event(
    journal: Path, spools: Path
) -> None:
    outcomes = _outcomes_of_signals_while_opening(journal, spools, "raises")
    assert set(outcomes) == {10}
    assert _steps(journal, spools) >= set(range(1, len(outcomes) + 1))
    assert list(spools.iterdir()) == []


def test_a_signal_handler_that_records_while_a_spool_is_opened_does_not_wait_for_itself(
    journal: Path, spools: Path
) -> None:
    outcomes = _outcomes_of_signals_while_opening(journal, spools, "records")
    assert set(outcomes) == {10}
    assert _steps(journal, spools) == set(range(len(outcomes) + 1))


def test_after_closing_events_are_counted_as_dropped(journal: Path, spools: Path) -> None:
    recorder = Recorder(journal, spool_directory=spools)
    recorder.close()
    recorder.record(StepCommitted, step=1)
    assert recorder.dropped == 1
    assert list(spools.iterdir()) == []


def test_storage_that_refuses_costs_only_what_the_spool_cannot_hold(tmp_path: Path, spools: Path) -> None:
    """A file lies where the journal's directory should be; then it is taken away."""
    obstacle = tmp_path / "storage"
    obstacle.write_bytes(b"")
    journal = obstacle / "journal"
    recorder = Recorder(journal, spool_directory=spools, spool_bytes=16_384)
    kept = set()
    for step in range(500):
        dropped = recorder.dropped
        recorder.record(StepCommitted, step=step)
        if recorder.dropped == dropped:
            kept.add(step)
    assert 0 < len(kept) < 500
    obstacle.unlink()
    until(lambda: journal.exists() and _notices(journal))
    recorder.close()
    assert _steps(journal) == kept
    (notice,) = _notices(journal)
    dropped = 500 - len(kept)
    assert notice.detail == f"events dropped: {dropped}, the last one because: no room in the spool"
    assert list(spools.iterdir()) == []


class _Heard:
    """What a recorder says about its storage."""

    def __init__(self) -> None:
        self.words: list[object] = []

    def refused(self, error: Exception) -> None:
        self.words.append(type(error))

    def accepted(self, dropped: int) -> None:
        self.words.append(dropped)

    def left(self, size_bytes: int, path: Path) -> None:
        self.words.append((size_bytes > 0, path.exists()))


def test_storage_that_refuses_is_told_of_once_each_time(tmp_path: Path, spools: Path) -> None:
    obstacle, heard = tmp_path / "storage", _Heard()
    obstacle.write_bytes(b"")
    recorder = Recorder(obstacle / "journal", spool_directory=spools, listener=heard)
    recorder.record(StepCommitted, step=1)
    until(lambda: heard.words)
    time.sleep(2.5 * RETRY_INTERVAL_S)
    assert heard.words == [NotADirectoryError]
    obstacle.unlink()
    until(lambda: len(heard.words) == 2)
    assert heard.words[1] == 0
    shutil.rmtree(obstacle)
    obstacle.write_bytes(b"")
    recorder.record(StepCommitted, step=2)
    recorder.close()
    assert heard.words[2:] == [NotADirectoryError, (True, True)]


class _Hang(logging.Handler):
    """Holds the thread that writes the journal as storage that hangs would: in the middle of its work."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def createLock(self) -> None:  # noqa: N802, the name is the base class's
        self.lock = None  # the others may log meanwhile

    def emit(self, record: logging.LogRecord) -> None:
        if record.threadName == "holdfast-recorder":
            self.reached.set()
            self.go_on.wait(PATIENCE_S)


@pytest.fixture
def hang() -> Iterator[_Hang]:
    handler = _Hang()
    logger = logging.getLogger("holdfast.record.recorder")
    logger.addHandler(handler)
    yield handler
    handler.go_on.set()
    logger.removeHandler(handler)


def test_a_thread_that_hangs_does_not_stop_the_loop(tmp_path: Path, spools: Path, hang: _Hang) -> None:
    obstacle = tmp_path / "storage"
    obstacle.write_bytes(b"")
    journal = obstacle / "journal"
    recorder = Recorder(journal, spool_directory=spools, spool_bytes=16_384)
    recorder.record(StepCommitted, step=0)
    assert hang.reached.wait(PATIENCE_S)
    begin_s = time.monotonic()
    for step in range(1, 2_000):
        recorder.record(StepCommitted, step=step)
    assert time.monotonic() - begin_s < SLACK_S
    assert 0 < recorder.dropped < 2_000
    begin_s = time.monotonic()
    recorder.close()
    assert time.monotonic() - begin_s < CLOSE_WAIT_S + SLACK_S

    obstacle.unlink()
    hang.go_on.set()
    until(lambda: list(spools.iterdir()) == [])
    assert len(_steps(journal)) == 2_000 - recorder.dropped
    assert _notices(journal)[0].detail.startswith(f"events dropped: {recorder.dropped},")


def test_opening_on_storage_that_hangs_does_not_stop_the_loop(
    journal: Path, tmp_path: Path, hang: _Hang
) -> None:
    """Without room in shared memory the spool is made on storage. Until it is there events are held in
    memory, in their order, and more than that are dropped and counted.
    """
    begin_s = time.monotonic()
    recorder = Recorder(journal, spool_directory=tmp_path / "missing", spool_bytes=16_384)
    for step in range(HELD_MAX + 10):
        recorder.record(StepCommitted, step=step)
    assert time.monotonic() - begin_s < OPEN_WAIT_S + SLACK_S
    assert recorder.dropped == 10
    hang.go_on.set()
    recorder.close()
    found = [event.step for event in _events(journal) if isinstance(event, StepCommitted)]
    assert found == list(range(HELD_MAX))
    assert _notices(journal)[0].detail.startswith("events dropped: 10,")


def test_a_held_event_that_is_larger_than_the_spool_holds_up_nothing(
    journal: Path, tmp_path: Path, hang: _Hang
) -> None:
    recorder = Recorder(journal, spool_directory=tmp_path / "missing", spool_bytes=16_384)
    recorder.record(StepCommitted, step=1)
    recorder.record(FaultObserved, subject="n1", fault="large", detail="x" * 20_000)
    recorder.record(StepCommitted, step=2)
    hang.go_on.set()
    recorder.close()
    assert recorder.dropped == 1
    assert _steps(journal) == {1, 2}


def test_events_held_for_a_spool_that_cannot_be_made_are_dropped_and_counted(
    tmp_path: Path, hang: _Hang
) -> None:
    obstacle = tmp_path / "storage"
    obstacle.write_bytes(b"")
    recorder = Recorder(obstacle / "journal", spool_directory=tmp_path / "missing")
    for step in range(10):
        recorder.record(StepCommitted, step=step)
    assert recorder.dropped == 0
    hang.go_on.set()
    until(lambda: recorder.dropped == 10)
    recorder.record(StepCommitted, step=10)
    assert recorder.dropped == 11
    recorder.close()


def test_events_held_when_storage_never_answered_are_dropped_and_counted(
    journal: Path, tmp_path: Path, hang: _Hang
) -> None:
    recorder = Recorder(journal, spool_directory=tmp_path / "missing")
    for step in range(10):
        recorder.record(StepCommitted, step=step)
    recorder.close()
    assert recorder.dropped == 10
    hang.go_on.set()


def _file_begun(journal: Path, spools: Path) -> Recorder:
    """A recorder at work for a while, whose first event is in a file that is not synced yet."""
    recorder = Recorder(journal, spool_directory=spools, spool_bytes=98_304)
    time.sleep(0.1)
    recorder.record(StepCommitted, step=0)
    until(lambda: list(journal.glob("*.journal")))
    return recorder


def test_only_what_was_deleted_is_lost_when_the_journal_is(journal: Path, spools: Path) -> None:
    with _file_begun(journal, spools) as recorder:
        shutil.rmtree(journal)
        for step in range(1, 150):
            recorder.record(StepCommitted, step=step)
            time.sleep(0.01)
        until(lambda: list(journal.glob("*.journal")))  # before it is closed
        assert recorder.dropped == 0
    assert _steps(journal) == set(range(1, 150))


def test_a_journal_that_is_moved_away_costs_nothing(journal: Path, spools: Path) -> None:
    with _file_begun(journal, spools) as recorder:
        moved = journal.rename(journal.with_name("journal.old"))
        for step in range(1, 1_200):  # more than twice what the spool holds
            recorder.record(StepCommitted, step=step)
            time.sleep(0.001)
        assert recorder.dropped == 0
    assert _steps(moved) == {0}
    assert _steps(journal) == set(range(1, 1_200))


@pytest.mark.root
def test_a_sync_that_fails_does_not_slow_the_rest() -> None:
    with tempfile.TemporaryDirectory() as name:
        another_uid = 65_534
        os.chown(name, another_uid, another_uid)
        Path(name).chmod(0o300)  # to be written to, but not to be opened itself
        os.seteuid(another_uid)
        try:
            with Recorder(Path(name), spool_bytes=98_304) as recorder:
                for step in range(1_200):  # more than twice what the spool holds
                    recorder.record(StepCommitted, step=step)
                    time.sleep(0.001)
                assert recorder.dropped == 0
        finally:
            os.seteuid(0)
        assert _steps(Path(name)) == set(range(1_200))
        assert len(list(Path(name).iterdir())) > 1


def test_threads_share_a_recorder(journal: Path, spools: Path) -> None:
    ids: dict[int, list[str]] = {worker: [] for worker in range(8)}
    with Recorder(journal, spool_directory=spools) as recorder:

        def record(worker: int) -> None:
            ids[worker] += [
                recorder.record(StepCommitted, step=step, subject=f"{worker}") for step in range(300)
            ]

        threads = [threading.Thread(target=record, args=(worker,)) for worker in ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert recorder.dropped == 0
    events = _events(journal)
    assert len({event.id for event in events}) == len(events) == 8 * 300
    for worker, recorded in ids.items():
        assert recorded == sorted(recorded)
        assert [event.id for event in events if event.subject == f"{worker}"] == recorded


def test_a_signal_handler_may_record_in_the_middle_of_recording(journal: Path, spools: Path) -> None:
    handled = 0

    def record(_signal: int, _frame: object) -> None:
        nonlocal handled
        handled += 1
        recorder.record(StepCommitted, step=0, subject="handler")

    before = signal.signal(signal.SIGALRM, record)
    try:
        with Recorder(journal, spool_directory=spools) as recorder:
            signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
            for step in range(10_000):
                recorder.record(StepCommitted, step=step, subject="loop")
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert handled > 50
    assert recorder.dropped == 0
    items = list(read_directory(journal))
    assert [item for item in items if isinstance(item, Damage)] == []
    assert len(items) == 10_000 + handled


def test_a_long_record_is_rotated(journal: Path, spools: Path) -> None:
    steps = 0
    with Recorder(journal, spool_directory=spools, rotate_bytes=1_000) as recorder:
        until_s = time.monotonic() + PATIENCE_S
        while len(list(journal.glob("*.journal"))) <= 2 and time.monotonic() < until_s:
            recorder.record(StepCommitted, step=steps)
            steps += 1
            time.sleep(0.005)
    assert len(list(journal.glob("*.journal"))) > 2
    assert [event.id for event in _events(journal)] == sorted(event.id for event in _events(journal))
    assert _steps(journal) == set(range(steps))


def test_without_a_place_in_memory_the_spool_is_in_the_journal(journal: Path, tmp_path: Path) -> None:
    recorder = Recorder(journal, spool_directory=tmp_path / "missing")
    assert len(list(journal.glob("*.spool"))) == 1
    recorder.record(StepCommitted, step=1)
    recorder.close()
    assert _steps(journal) == {1}
    assert list(journal.glob("*.spool")) == []


@pytest.mark.root
def test_a_full_tmpfs_is_no_place_for_a_spool(journal: Path, spools: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", spools], check=True)
    try:
        with Recorder(journal, spool_directory=spools) as recorder:
            assert list(spools.iterdir()) == []
            for step in range(1_000):
                recorder.record(StepCommitted, step=step)
            assert recorder.dropped == 0
    finally:
        subprocess.run(["umount", spools], check=True)
    assert _steps(journal) == set(range(1_000))


@pytest.mark.root
def test_many_spools_leave_room_for_the_others_in_shared_memory(journal: Path, spools: Path) -> None:
    """As in a container that has 64 MiB of it for everybody."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", spools], check=True)
    try:
        recorders = [Recorder(journal, spool_directory=spools) for _ in range(40)]
        for step, recorder in enumerate(recorders):
            recorder.record(StepCommitted, step=step)
        room = os.statvfs(spools)
        assert room.f_bavail * room.f_frsize >= 15 * 2**20
        assert 0 < len(list(journal.glob("*.spool"))) < 40
        for recorder in recorders:
            recorder.close()
            assert recorder.dropped == 0
        assert list(spools.iterdir()) == []
    finally:
        subprocess.run(["umount", spools], check=True)
    assert _steps(journal) == set(range(40))


def test_a_working_directory_that_is_gone_is_no_reason_to_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with Recorder(Path("journal")) as recorder:
        recorder.record(StepCommitted, step=1)
        assert recorder.dropped == 1
    assert "no event of this process will be recorded" in caplog.text


def test_a_run_name_that_cannot_be_written_is_no_reason_to_raise(journal: Path, spools: Path) -> None:
    with Recorder(journal, run="\ud800", spool_directory=spools) as recorder:
        recorder.record(StepCommitted, step=1)
        assert recorder.dropped == 1
    assert list(spools.iterdir()) == []


def test_with_no_place_for_a_spool_at_all_everything_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with Recorder(tmp_path / "file" / "journal", spool_directory=tmp_path / "missing") as recorder:
        for step in range(3):
            recorder.record(StepCommitted, step=step)
        assert recorder.dropped == 3


_KILLED_ON_A_FULL_DISK = """
import os, resource, signal, sys
from pathlib import Path
from holdfast.record.events import StepCommitted
from holdfast.record.recorder import Recorder

recorder = Recorder(Path(sys.argv[1]), run="night", spool_bytes=16_384)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
for step in range(500):
    recorder.record(StepCommitted, step=step)
os.write(1, str(recorder.dropped).encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_on_a_full_disk_loses_neither_events_nor_the_count_of_the_dropped(journal: Path) -> None:
    killed = _python(_KILLED_ON_A_FULL_DISK, journal)
    assert killed.returncode == -signal.SIGKILL
    dropped = int(killed.stdout)
    assert 0 < dropped < 500
    assert len(_steps(journal)) == 500 - dropped
    (notice,) = _notices(journal)
    assert notice.detail.startswith(f"events dropped: {dropped},")
    assert [path.suffix for path in journal.iterdir()] == [".journal"] * len(list(journal.iterdir()))


def test_a_new_recorder_saves_what_a_killed_neighbour_left(journal: Path) -> None:
    """So that nothing stays behind even on a machine without a reader of the journal."""
    assert _python(_KILLED_ON_A_FULL_DISK, journal).returncode == -signal.SIGKILL
    assert list(journal.glob("*-salvaged.journal")) == []
    Recorder(journal).close()
    assert len(list(journal.glob("*-salvaged.journal"))) == 1
    assert len(_steps(journal)) > 0


_KILLED_WITHOUT_A_JOURNAL = """
import os, shutil, signal, sys, time
from pathlib import Path
from holdfast.record.events import StepCommitted
from holdfast.record.recorder import Recorder

journal = Path(sys.argv[1])
recorder = Recorder(journal, spool_directory=Path(sys.argv[2]))
if sys.argv[3] == "removed":
    recorder.record(StepCommitted, step=-1)
    while not any(file.stat().st_size for file in journal.glob("*.journal")):
        time.sleep(0.01)
    shutil.rmtree(journal)
for step in range(100):
    recorder.record(StepCommitted, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_just_after_its_journal_was_removed_loses_nothing_more(
    journal: Path, spools: Path
) -> None:
    killed = _python(_KILLED_WITHOUT_A_JOURNAL, journal, spools, "removed")
    assert killed.returncode == -signal.SIGKILL
    assert len(list(spools.iterdir())) == 1
    assert _steps(journal, spools) - {-1} == set(range(100))  # that one was in the journal
    assert list(spools.iterdir()) == []


def test_a_process_killed_before_storage_took_anything_loses_nothing(tmp_path: Path, spools: Path) -> None:
    """A file lies where the journal's directory should be; the next recorder finds the way clear."""
    obstacle = tmp_path / "storage"
    obstacle.write_bytes(b"")
    killed = _python(_KILLED_WITHOUT_A_JOURNAL, obstacle / "journal", spools, "never made")
    assert killed.returncode == -signal.SIGKILL
    assert len(list(spools.iterdir())) == 1
    obstacle.unlink()
    Recorder(obstacle / "journal", spool_directory=spools).close()
    assert list(spools.iterdir()) == []
    assert _steps(obstacle / "journal") == set(range(100))


_FORKS = """
import os, sys
from pathlib import Path
from holdfast.record.events import StepCommitted
from holdfast.record.recorder import Recorder

recorder = Recorder(Path(sys.argv[1]), run="night")
recorder.record(StepCommitted, step=0, subject="parent")
for child in range(3):
    if os.fork() == 0:
        for step in range(200):
            recorder.record(StepCommitted, step=step, subject=f"child-{child}")
        if os.fork() == 0:
            recorder.record(StepCommitted, step=0, subject=f"grandchild-{child}")
            sys.exit(recorder.dropped)
        os.wait()
        os._exit(recorder.dropped)
recorder.record(StepCommitted, step=1, subject="parent")
for child in range(3):
    assert os.wait()[1] == 0
"""


def test_forked_children_record_for_themselves(journal: Path) -> None:
    forked = _python(_FORKS, journal)
    assert forked.returncode == 0, forked.stderr
    events = _events(journal)
    assert len({event.id for event in events}) == len(events) == 2 + 3 * 201
    tokens = {event.subject: event.id.split("-")[0] for event in events}
    assert len(set(tokens.values())) == len(tokens) == 7
    assert len({event.source for event in events}) == 7
    assert {path.suffix for path in journal.iterdir()} == {".journal"}


_FORKS_AND_IS_KILLED = """
import os, signal, sys, time
from pathlib import Path
from holdfast.record.events import StepCommitted
from holdfast.record.recorder import Recorder

recorder = Recorder(Path(sys.argv[1]), run="night")
child = os.fork()
if child == 0:
    os.close(1), os.close(2)
    time.sleep(60)
for step in range(200):
    recorder.record(StepCommitted, step=step)
os.write(1, str(child).encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_surviving_child_does_not_keep_its_parents_spool(journal: Path) -> None:
    killed = _python(_FORKS_AND_IS_KILLED, journal)
    child = int(killed.stdout)
    try:
        os.kill(child, 0)  # it lives
        assert _steps(journal) == set(range(200))
        assert {path.suffix for path in journal.iterdir()} == {".journal"}
    finally:
        os.kill(child, signal.SIGKILL)


_LEAVES_WITHOUT_CLOSING = """
import multiprocessing, sys
from pathlib import Path
from holdfast.record.events import StepCommitted
from holdfast.record.recorder import Recorder

def work():
    recorder.record(StepCommitted, step=2)

recorder = Recorder(Path(sys.argv[1]), spool_directory=Path(sys.argv[2]))
recorder.record(StepCommitted, step=1)
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
"""


def test_a_process_and_its_worker_that_forget_to_close_leave_nothing(journal: Path, spools: Path) -> None:
    left = _python(_LEAVES_WITHOUT_CLOSING, journal, spools)
    assert left.returncode == 0, left.stderr
    assert {path.suffix for path in journal.iterdir()} == {".journal"}
    assert list(spools.iterdir()) == []
    assert _steps(journal) == {1, 2}


def test_importing_the_recorder_brings_in_nothing_heavy() -> None:
    listed = _python("import sys, holdfast.record.recorder; print(*sys.modules)").stdout.split()
    assert not {"torch", "numpy", "click", "rich", "sqlite3", "socket", "multiprocessing"} & set(listed)
