"""Keeps a further place filled with a run's checkpoints: object storage, or a second directory.

This is a process of its own beside the run, which it neither slows nor stops. `python -m
holdfast.train.filling` is private to `holdfast run`, which writes a `FillingOrder` to its stdin. It copies
the newest checkpoint of the run's own directories whenever the place lacks it, and removes old ones there. If
a copy fails, it says so and tries again. When the run is over, it has a bounded time for the last copy. Needs
no torch.
"""

import contextlib
import errno
import fcntl
import io
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn, assert_never

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import CheckpointCopied
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.run.endpoint import FILE, is_lost, run_directory
from holdfast.run.kin import be_dispensable
from holdfast.train.chunks import FOLDER, Unsound, locked
from holdfast.train.copying import CopiedStep, PlacedStep, copy_step, retain, steps_in
from holdfast.train.fetching import CopyNews
from holdfast.train.left_copies import copying_mark
from holdfast.train.manifest_file import manifest_of
from holdfast.train.owning import claim
from holdfast.train.place import DirectoryStorage, Storage, StorageTrouble
from holdfast.train.places import opened_place

LOOK_S = 0.5
"""How often the run's directories are listed."""
LOST_LOOK_S = 2.0
"""How often to check whether a run that outlives the command still goes on. That locks its file
for a moment.
"""
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pauses between failed attempts; the last one repeats."""
END_S_MIN, END_X = 60.0, 4.0
"""The time for the last copy when the run is over: at least this long, and this many times the
longest copy.
"""
QUIET_S = 3.0
"""If the last copy takes longer than this after the run, a line says that it is awaited."""
NICENESS = 10
FINISH, LEAVE = b"finish\n", b"leave\n"
"""Words from the launcher: the run is over; the launcher stops waiting for the last copy."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS}


class FillingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """directories: the run's own. place: the place to fill. keep: how many checkpoints stay there. end_s: the
    least time for the last copy. is_detached: the run outlives the process that holds the other end of stdin.
    news: to be recorded once the run is under way.
    """

    directories: tuple[str, ...]
    place: str
    keep: int
    run: str
    home: str
    end_s: float = END_S_MIN
    is_detached: bool = False
    news: tuple[CopyNews, ...] = ()


Attempt = Literal["done", "again", "never"]
"""Result of a copy. done: nothing to retry soon. never: the place refuses it."""


class _Wanted(msgspec.Struct, frozen=True):
    """A manifest in one of the run's directories. version: of the file that has this name now."""

    directory: Path
    kept: PlacedStep
    key: str
    version: str


class Filler:
    """Fills one place."""

    def __init__(self, order: FillingOrder, place: Storage, recorder: Recorder) -> None:
        self._order = order
        self._place = place
        self._recorder = recorder
        self._news = list(order.news)
        self._done: dict[str, str] = {}
        self._refused: set[tuple[str, str]] = set()
        self._reason = ""
        self._longest_s = 0.0
        self._newest: int | None = None
        self._going: _Wanted | None = None
        self._is_ours = False
        self.ending = threading.Event()
        self._telling = threading.Lock()

    # -- what to copy ----------------------------------------------------------------------------------------

    def fill(self) -> bool:
        """Fill the place until the run is over and its last checkpoint is there. False if the place refuses
        it.
        """
        with self._alone() as self._is_ours:
            failures = 0
            while self._is_ours:
                is_last = self.ending.is_set()  # a listing after this includes the run's last checkpoint
                self._going = self._wanted()
                if self._going is None:
                    if is_last:
                        break
                    self.ending.wait(LOOK_S)
                    continue
                attempt = self._copy(self._going, is_last=is_last)
                match attempt:
                    case "done":
                        failures = 0
                    case "never" if is_last:
                        self.give_up()
                        return False
                    case "again" | "never":  # its operator may still grant access
                        pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
                        failures += 1
                        (time.sleep if is_last else self.ending.wait)(pause_s)
                    case _:
                        assert_never(attempt)
        with self._telling:
            self._record_news()
            if self._newest is not None and not self._reason:
                _say(f"step {self._newest} is in {self._place.name}")
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Be the only process that fills this place from this directory, among the machine's agents and
        machines that share the directory.
        """
        directory = Path(self._order.directories[0])
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"{self._mark}.lock").open("ab") as file:
            while not (is_ours := _is_locked(file)) and not self.ending.is_set():
                self.ending.wait(LOOK_S)
            yield is_ours  # else another process does the rest

    @property
    def _mark(self) -> str:
        return copying_mark(self._place.name)

    def _wanted(self) -> _Wanted | None:
        """The newest checkpoint of a part that the place lacks. For a sharded model, prefer a step whose
        other parts are there, so that machines of different speed do not all bring different steps.
        """
        by_part: dict[str, list[_Wanted]] = {}
        for directory in map(Path, self._order.directories):
            with contextlib.suppress(OSError):  # the run reports what is wrong with it
                listing = DirectoryStorage(directory).listed()
                for kept in steps_in(listing):
                    for key in kept.present:
                        one = _Wanted(directory, kept, key, listing[key].version)
                        by_part.setdefault(key.rpartition("/")[0], []).append(one)
        for part, found in by_part.items():
            newest = max(found, key=lambda one: one.kept.step)
            if self._is_open(newest):
                return self._begun_elsewhere(found) if part else newest
        return None

    def _is_open(self, wanted: _Wanted) -> bool:
        return (
            self._done.get(wanted.key) != wanted.version and (wanted.key, wanted.version) not in self._refused
        )

    def _begun_elsewhere(self, found: list[_Wanted]) -> _Wanted:
        found = sorted(filter(self._is_open, found), key=lambda one: one.kept.step)
        with contextlib.suppress(OSError):
            there = self._place.listed()
            for wanted in reversed(found):
                if wanted.key not in there and any(key in there for key in wanted.kept.keys):
                    return wanted
        return found[-1]

    # -- copying ---------------------------------------------------------------------------------------------

    def _copy(self, wanted: _Wanted, *, is_last: bool) -> Attempt:
        begun_s = time.monotonic()
        frozen = wanted.directory / self._mark
        only = msgspec.structs.replace(wanted.kept, keys=(wanted.key,), there=(True,))
        try:
            source = _frozen(wanted, frozen)
            claim(self._place, self._order.run)
            copied = copy_step(source, only, self._place)
        except Unsound as error:
            if not (wanted.directory / wanted.key).exists():
                return "done"  # no hard links, and the run removed it during the copy
            self._refused.add((wanted.key, wanted.version))
            self._tell_failure(wanted.kept.step, f"in {wanted.directory}, {error}")
            return "done"
        except OSError as error:
            if not (wanted.directory / wanted.key).exists():
                return "done"  # the run has newer ones by now
            is_hopeless = isinstance(error, StorageTrouble) and (error.is_mistake or error.is_denied)
            why = error.strerror or str(error)
            if is_hopeless and is_last:
                self._reason = why  # reported by give_up
                return "never"
            self._tell_failure(wanted.kept.step, why)
            return "never" if is_hopeless else "again"
        finally:
            shutil.rmtree(frozen, ignore_errors=True)
        self._done[wanted.key] = wanted.version
        self._going = None
        took_s = time.monotonic() - begun_s
        self._longest_s = max(self._longest_s, took_s)
        self._tell_copy(copied, took_s)
        try:
            retain(self._place, self._order.keep)
        except OSError as error:
            self._tell_failure(wanted.kept.step, f"old checkpoints stay there: {error.strerror or error}")
        except InputError:
            pass  # no step of a sharded model is complete yet
        return "done"

    # -- reporting -------------------------------------------------------------------------------------------

    def _tell_copy(self, copied: CopiedStep, took_s: float) -> None:
        with self._telling:
            if self._reason:
                _say(f"{self._place.name} is in use again: step {copied.step} is there")
            self._reason, self._newest = "", copied.step
            self._record(
                CopyNews(
                    step=copied.step,
                    place=self._place.name,
                    size_bytes=copied.size_bytes,
                    written_bytes=copied.written_bytes,
                    copy_ns=round(1e9 * took_s),
                )
            )

    def _tell_failure(self, step: int, why: str) -> None:
        """Report a failure, but not the same one twice in a row."""
        with self._telling:
            if why != self._reason:
                _say(
                    f"step {step} could not be copied to {self._place.name}: {why}; training continues, "
                    "and the copy is retried"
                )
                self._record(CopyNews(step=step, place=self._place.name, reason=why))
            self._reason = why

    def tell_waiting(self) -> None:
        if (going := self._going) is not None:
            step = going.kept.step
            _say(f"waiting up to {self.end_s:.0f} s for step {step} to be in {self._place.name}")

    def give_up(self, why: str = "") -> None:
        """Give the last copy up: its time is over, or it cannot be made. why: the reason if no other is
        known.
        """
        with self._telling:
            if (going := self._going) is not None:
                newest = "" if self._newest is None else f"; step {self._newest} is there"
                why = self._reason or why or "it took too long"
                copy = by_hand(str(going.directory), self._order)
                _say(f"step {going.kept.step} is NOT in {self._place.name}: {why}{newest}; {copy}")
                self._record(CopyNews(step=going.kept.step, place=self._place.name, reason=why))
            elif self._newest is not None:  # all is copied; only old checkpoints may remain
                _say(f"step {self._newest} is in {self._place.name}")

    def leave(self) -> None:
        """The launcher has stopped waiting: report what is missing."""
        if self._is_ours and self._going is None:
            with contextlib.suppress(OSError):
                self._going = self._wanted()  # the run's last checkpoint may not be listed yet
        self.give_up("the waiting was interrupted")

    @property
    def end_s(self) -> float:
        return max(self._order.end_s, END_X * self._longest_s)

    def _record(self, news: CopyNews) -> None:
        self._record_news()
        self._recorder.record(CheckpointCopied, **msgspec.structs.asdict(news))

    def _record_news(self) -> None:
        """Record the copies that were made before the run began."""
        while self._news:
            self._recorder.record(CheckpointCopied, **msgspec.structs.asdict(self._news.pop(0)))


def _is_locked(file: BinaryIO) -> bool:
    """Whether this process has the lock. Without locks several may copy the same, which is harmless."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _frozen(wanted: _Wanted, into: Path) -> Storage:
    """The checkpoint under hard links that the run will not remove during the copy. If the filesystem has no
    hard links, the run's own directory. Raises `OSError` or `Unsound`.
    """
    shutil.rmtree(into, ignore_errors=True)
    own = wanted.directory / wanted.key
    part = Path(wanted.key).parent
    with locked(own.parent / FOLDER):
        data = own.read_bytes()
        (into / part / FOLDER).mkdir(parents=True)
        try:
            for pack, _ in manifest_of(data).packs:
                os.link(own.parent / FOLDER / pack, into / part / FOLDER / pack)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return DirectoryStorage(wanted.directory)
        (into / wanted.key).write_bytes(data)
    return DirectoryStorage(into)


def by_hand(directory: str, order: FillingOrder) -> str:
    """The command with which a person copies the checkpoint later."""
    words = shlex.join(("holdfast", "checkpoint", "copy", directory, "--to", order.place, "--run", order.run))
    return f"to copy it later: {words}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed
        os.write(2, f"holdfast: {text}\n".encode("utf-8", "replace"))


def _await_end(order: FillingOrder, told: io.FileIO) -> bytes:
    """Wait until the launcher says that the run is over, or both are gone. Returns the launcher's word."""
    if (word := told.readline()) in (FINISH, LEAVE) or not order.is_detached:
        return word
    home = Path(order.home)
    while (run_directory(home, order.run) / FILE).exists() and not is_lost(home, order.run):
        time.sleep(LOST_LOOK_S)
    return word


def _watch(order: FillingOrder, filler: Filler, told: io.FileIO) -> None:
    """Bound the time after the run. Storage may hang for ever, but the process ends with this thread."""
    word = _await_end(order, told)
    filler.ending.set()
    if word == LEAVE:
        _leave(filler)
    threading.Thread(target=_await_leave, args=(filler, told), daemon=True).start()
    until_s = time.monotonic() + filler.end_s
    time.sleep(min(filler.end_s, QUIET_S))
    filler.tell_waiting()
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
    filler.give_up()
    os._exit(1)


def _await_leave(filler: Filler, told: io.FileIO) -> None:
    """Leave when told to. If the launcher dies instead, the last copy is still made."""
    if told.readline() == LEAVE:
        _leave(filler)


def _leave(filler: Filler) -> NoReturn:
    filler.leave()
    os._exit(1)


def main() -> None:
    """The program that `holdfast run` starts."""
    # Unbuffered: a thread waiting for a line would hold the buffer's lock when the process ends.
    told = io.FileIO(0, closefd=False)
    order = msgspec.json.decode(told.readline(), type=FillingOrder)
    os.nice(NICENESS)
    be_dispensable()
    with Recorder(Path(order.home) / JOURNAL_DIRECTORY, run=order.run) as recorder:
        filler = Filler(order, opened_place(order.place), recorder)
        threading.Thread(target=_watch, args=(order, filler, told), daemon=True).start()
        try:
            is_filled = filler.fill()
        except OSError as error:  # of the run's own directory
            _say(f"checkpoints are not copied to {order.place}: {error}")
            os._exit(1)  # the other thread may still be reading
    sys.exit(0 if is_filled else 1)


if __name__ == "__main__":
    main()
