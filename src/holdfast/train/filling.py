"""Keeps a further place filled with a run's checkpoints: object storage, or a second directory.

A process of its own, beside the run, which it neither slows nor stops: `python -m holdfast.train.filling` is
private to `holdfast run`, which writes a `FillingOrder` to its stdin. It copies the newest checkpoint of the
run's own directories whenever there is one that the place does not have, and removes old ones there. If
that fails, it says so, and tries again. When the run is over it has a bounded time for the last one.
Needs no torch.
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
"""How often the run's directories are looked at."""
LOST_LOOK_S = 2.0
"""How often it is looked whether a run goes on that outlives the command. For a moment its file is locked."""
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Between attempts that fail; the last one from then on."""
END_S_MIN, END_X = 60.0, 4.0
"""How long the last copy may take when the run is over: so long, and so many times what the longest took."""
QUIET_S = 3.0
"""When the run is over, and it takes longer than this, a line says what is waited for."""
NICENESS = 10
FINISH, LEAVE = b"finish\n", b"leave\n"
"""What the launcher tells it: the run is over; the launcher stops waiting for the last copy."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS}


class FillingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """directories: the run's own. place: what to fill; keep: how many checkpoints stay there. end_s: how
    long the last one may take at least. is_detached: the run outlives whoever holds the other end of stdin.
    news: to be recorded, once the run is going.
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
"""Of a copy. done: there is nothing to be tried again soon. never: the place will not take it."""


class _Wanted(msgspec.Struct, frozen=True):
    """A manifest in one of the run's directories. version: of what is under this name now."""

    directory: Path
    kept: PlacedStep
    key: str
    version: str


class Filler:
    """Of one place."""

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

    # -- what is to be done ----------------------------------------------------------------------------------

    def fill(self) -> bool:
        """Until the run is over and its last checkpoint is there; False: it will never be."""
        with self._alone() as self._is_ours:
            failures = 0
            while self._is_ours:
                is_last = self.ending.is_set()  # what is found after that was written before
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
                    case "again" | "never":  # who runs the place may let us in yet
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
        """Of all who fill this place from this directory: agents of one machine, machines that share it."""
        directory = Path(self._order.directories[0])
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"{self._mark}.lock").open("ab") as file:
            while not (is_ours := _is_locked(file)) and not self.ending.is_set():
                self.ending.wait(LOOK_S)
            yield is_ours  # else another one does what is left

    @property
    def _mark(self) -> str:
        return copying_mark(self._place.name)

    def _wanted(self) -> _Wanted | None:
        """The newest of each part that is not there yet. Of a sharded model rather a step of which other
        parts are there, so that machines that are differently fast do not all bring different steps.
        """
        by_part: dict[str, list[_Wanted]] = {}
        for directory in map(Path, self._order.directories):
            with contextlib.suppress(OSError):  # the run says what is wrong with it
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

    # -- doing it --------------------------------------------------------------------------------------------

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
                return "done"  # the run has removed it while it was read, for want of links
            self._refused.add((wanted.key, wanted.version))
            self._tell_failure(wanted.kept.step, f"in {wanted.directory}, {error}")
            return "done"
        except OSError as error:
            if not (wanted.directory / wanted.key).exists():
                return "done"  # the run has newer ones by now
            is_hopeless = isinstance(error, StorageTrouble) and (error.is_mistake or error.is_denied)
            why = error.strerror or str(error)
            if is_hopeless and is_last:
                self._reason = why  # is told once it is given up
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
            pass  # of a sharded model no step is whole yet
        return "done"

    # -- saying it -------------------------------------------------------------------------------------------

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
        """Once, as long as nothing else is wrong."""
        with self._telling:
            if why != self._reason:
                _say(
                    f"step {step} could not be copied to {self._place.name}: {why}; training goes on, and so "
                    "do attempts"
                )
                self._record(CopyNews(step=step, place=self._place.name, reason=why))
            self._reason = why

    def tell_waiting(self) -> None:
        if (going := self._going) is not None:
            step = going.kept.step
            _say(f"waiting up to {self.end_s:.0f} s for step {step} to be in {self._place.name}")

    def give_up(self, why: str = "") -> None:
        """The time is up that the last copy has, or it cannot be made. why: if nothing is known yet."""
        with self._telling:
            if (going := self._going) is not None:
                newest = "" if self._newest is None else f"; step {self._newest} is there"
                why = self._reason or why or "it took too long"
                copy = by_hand(str(going.directory), self._order)
                _say(f"step {going.kept.step} is NOT in {self._place.name}: {why}{newest}; {copy}")
                self._record(CopyNews(step=going.kept.step, place=self._place.name, reason=why))
            elif self._newest is not None:  # only what is old may still be there
                _say(f"step {self._newest} is in {self._place.name}")

    def leave(self) -> None:
        """The launcher has stopped waiting."""
        if self._is_ours and self._going is None:
            with contextlib.suppress(OSError):
                self._going = self._wanted()  # the run's last may not have been looked at yet
        self.give_up("the waiting was interrupted")

    @property
    def end_s(self) -> float:
        return max(self._order.end_s, END_X * self._longest_s)

    def _record(self, news: CopyNews) -> None:
        self._record_news()
        self._recorder.record(CheckpointCopied, **msgspec.structs.asdict(news))

    def _record_news(self) -> None:
        """What happened before the run had begun."""
        while self._news:
            self._recorder.record(CheckpointCopied, **msgspec.structs.asdict(self._news.pop(0)))


def _is_locked(file: BinaryIO) -> bool:
    """Where there are no locks, two may do the same, which does no harm."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _frozen(wanted: _Wanted, into: Path) -> Storage:
    """The checkpoint under names that the run will not remove while it is copied; where the filesystem cannot
    do that, the run's own. Raises `OSError` or `Unsound`.
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
    """How somebody copies it later."""
    words = shlex.join(("holdfast", "checkpoint", "copy", directory, "--to", order.place, "--run", order.run))
    return f"to copy it later: {words}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(2, f"holdfast: {text}\n".encode("utf-8", "replace"))


def _await_end(order: FillingOrder, told: io.FileIO) -> bytes:
    """Until the launcher says that the run is over, or is gone with it. Returns what the launcher said."""
    if (word := told.readline()) in (FINISH, LEAVE) or not order.is_detached:
        return word
    home = Path(order.home)
    while (run_directory(home, order.run) / FILE).exists() and not is_lost(home, order.run):
        time.sleep(LOST_LOOK_S)
    return word


def _watch(order: FillingOrder, filler: Filler, told: io.FileIO) -> None:
    """Storage may hang for good: the process ends with this thread at the latest."""
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
    """If who waits is gone instead, the last copy is still made."""
    if told.readline() == LEAVE:
        _leave(filler)


def _leave(filler: Filler) -> NoReturn:
    filler.leave()
    os._exit(1)


def main() -> None:
    """What `holdfast run` starts."""
    # Without a buffer, which a thread that waits for a line would keep locked when the process ends.
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
            os._exit(1)  # the other thread may be reading still
    sys.exit(0 if is_filled else 1)


if __name__ == "__main__":
    main()
