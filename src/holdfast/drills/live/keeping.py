"""How a drill's changes are undone, and the note of them that outlives the drill.

The note is written before the fault is made. A separate process, the keeper, undoes everything when the time
is up, even if the drill dies; `--abort` does it at once, and leaves the note aside, which tells the drill.
Undoing something twice does no harm.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast.drills.live.scene import is_zombie, started_ticks
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.files import make_private_directory
from holdfast.record.untrusted import UNDECODABLE
from holdfast.run.endpoint import is_run_name

NOTES_DIRECTORY = "drills"
KEEPER_WAIT_S = 30.0
"""How long to wait until a keeper has started, or ended."""
POLL_S = 0.05
COMMAND_S_MAX = 10.0
READY = b"ready\n"


class KnownProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process, distinguished from a later one with the same number by its start time."""

    pid: int
    started: int

    @property
    def is_there(self) -> bool:
        return bool(self.started) and started_ticks(self.pid) == self.started

    def signalled(self, number: signal.Signals) -> None:
        if self.is_there:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def process(pid: int) -> KnownProcess:
    return KnownProcess(pid=pid, started=started_ticks(pid))


class Continue(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Continue a stopped process."""

    process: KnownProcess


class Remove(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Remove the file that fills a disk."""

    path: str


class Unshape(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Remove the limit of a network device. inside: processes in its network namespace; one is enough."""

    inside: tuple[KnownProcess, ...]
    device: str


class Ungroup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Move processes back to their control groups, and remove the drill's own."""

    group: str
    homes: tuple[tuple[int, str], ...]


PutBack = Continue | Remove | Unshape | Ungroup


class DrillNote(msgspec.Struct, frozen=True, kw_only=True):
    """slowed: a process that the keeper stops and continues in turn while the fault lasts."""

    id: str
    run: str
    scenario: str
    target: str
    due_ns: int
    put_back: tuple[PutBack, ...]
    slowed: KnownProcess | None = None
    keeper: KnownProcess | None = None


def note_path(home: Path, run: str) -> Path:
    if not is_run_name(run):
        raise InputError(f"{run!r} cannot be the name of a run.", hint="`holdfast runs` lists them.")
    return home / NOTES_DIRECTORY / f"{run}.json"


def aborted_path(home: Path, run: str) -> Path:
    """Where `--abort` leaves the note, for the drill that it ends."""
    return note_path(home, run).with_suffix(".aborted")


def read_note(path: Path) -> DrillNote | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=DrillNote)
    except (OSError, *UNDECODABLE):
        return None


def write_note(path: Path, note: DrillNote) -> None:
    make_private_directory(path.parent)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(msgspec.json.encode(note))
    part.rename(path)


def kept(path: Path, note: DrillNote) -> DrillNote:
    """Write the note and start its keeper. The fault may be made once this returns."""
    write_note(path, note)
    command = [sys.executable, "-m", "holdfast.drills.live.keeper", str(path)]
    keeper = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    if not _is_ready(keeper):
        path.unlink(missing_ok=True)
        keeper.kill()
        keeper.wait(KEEPER_WAIT_S)
        raise HoldfastError("The keeper of the drill did not start; nothing was struck.")
    found = msgspec.structs.replace(note, keeper=process(keeper.pid))
    if path.exists():
        write_note(path, found)
    return found


def _is_ready(keeper: "subprocess.Popen[bytes]") -> bool:
    """Whether the keeper reports that it is ready, before it ends or the wait is over."""
    assert keeper.stdout is not None
    with keeper.stdout as said:
        heard, _, _ = select.select([said], [], [], KEEPER_WAIT_S)
        return bool(heard) and os.read(said.fileno(), len(READY)) == READY


def abort(home: Path, run: str) -> DrillNote | None:
    """Undo the changes of this run's drill at once, and let the drill know. None if the run has no drill."""
    path = note_path(home, run)
    note = read_note(path)
    if note is None:
        return None
    with suppress(FileNotFoundError):  # the keeper was quicker
        path.replace(aborted_path(home, run))
    _undo(note)
    return note


def is_aborted(home: Path, run: str, drill: str) -> bool:
    """Whether `--abort` has ended this drill."""
    note = read_note(aborted_path(home, run))
    return note is not None and note.id == drill


def end(home: Path, run: str, drill: str) -> None:
    """Undo what is left of this drill at its end, also if it made its fault only after `--abort`. Another
    drill's changes stay.
    """
    for path in (note_path(home, run), aborted_path(home, run)):
        note = read_note(path)
        if note is not None and note.id == drill:
            path.unlink(missing_ok=True)
            _undo(note)


def _undo(note: DrillNote) -> None:
    if note.keeper is not None:
        due_s = time.monotonic() + KEEPER_WAIT_S
        while note.keeper.is_there and not is_zombie(note.keeper.pid) and time.monotonic() < due_s:
            time.sleep(POLL_S)
    put_back(note)


def put_back(note: DrillNote) -> None:
    """Undo every change, even if one of them fails."""
    for one in note.put_back:
        with suppress(OSError, subprocess.SubprocessError):
            _put_back(one)


def _put_back(one: PutBack) -> None:
    match one:
        case Continue():
            one.process.signalled(signal.SIGCONT)
        case Remove():
            Path(one.path).unlink(missing_ok=True)
        case Unshape():
            inside = next((process for process in one.inside if process.is_there), None)
            if inside is not None:
                in_namespace(inside.pid, "tc", "qdisc", "del", "dev", one.device, "root")
        case Ungroup():
            group = Path(one.group)
            for pid, home in one.homes:
                with suppress(OSError):  # it is gone
                    (Path(home) / "cgroup.procs").write_text(str(pid), encoding="ascii")
            for left in _left_in(group):  # processes that members have started meanwhile
                with suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(left, encoding="ascii")
            with suppress(FileNotFoundError):
                group.rmdir()
        case _:
            assert_never(one)


def _left_in(group: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return (group / "cgroup.procs").read_text(encoding="ascii").split()
    return []


def in_namespace(pid: int, *command: str) -> str:
    """Run a command in the network namespace of a process, and return its output."""
    words = ("nsenter", f"--net=/proc/{pid}/ns/net", *command)
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=True)
    return done.stdout
