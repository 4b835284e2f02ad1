"""The recorder: writes events of training code without waiting for storage or failing with it.

`Recorder.record` copies one line into the process's spool (a ring in shared memory, see spool.py) and
returns. A thread makes the spool, drains it into the journal, and does all the waiting; events recorded
before the spool exists are held in memory. Nothing here raises into the caller, except that exceptions of the
caller's own signal handlers pass through. Events that cannot be kept are dropped, counted in
`Recorder.dropped`, and reported in the log and, once there is room, in the journal.
"""

import atexit
import contextlib
import functools
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.record.clock import Clock, SystemClock
from holdfast.record.closing import Closable
from holdfast.record.events import KnownEvent, decode, encode
from holdfast.record.files import make_private_directory
from holdfast.record.journal import (
    ROTATE_BYTES,
    JournalWriter,
    dropped_notice,
    event_id,
    line_of,
    new_token,
    salvage,
)
from holdfast.record.spool import (
    LINE_BYTES_MAX,
    SHARED_MEMORY,
    SPOOL_BYTES,
    Drops,
    Owner,
    Spool,
    SpoolName,
    affordable_bytes,
    journal_digest,
)

DRAIN_INTERVAL_S = 0.02
"""Recording at full speed fills about a third of the default spool in this time."""
SYNC_INTERVAL_S = 1.0
"""A power loss loses at most about this much of the record."""
RETRY_INTERVAL_S = 1.0
"""How long the thread waits after storage refused a write."""
REPORT_INTERVAL_S = 10.0
"""How often the journal gets a report while drops continue."""
COMPLAINT_INTERVAL_S = 60.0
"""How often the log gets a warning while storage keeps refusing."""
REASON_CHARS_MAX = 300
OPEN_WAIT_S = 1.0
"""How long opening waits for the spool; once it exists, a SIGKILL loses nothing. Only a spool that has to be
made on storage is not there at once."""
HELD_MAX = 4096
"""Events held in memory until the spool exists: about a megabyte."""
OPEN_POLL_INTERVAL_S = 0.0005
CLOSE_WAIT_S = 5.0
"""How long closing waits for storage. A reader salvages what is still in the spool then."""

_BAD_INPUT = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""The exceptions of an invalid event. Catching more would swallow exceptions of signal handlers."""

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Receives a recorder's reports about its storage, from the recorder's thread. Must not raise or wait."""

    def refused(self, error: Exception) -> None:
        """The journal takes no more lines: they wait in the spool. Called once, until it takes them again."""

    def accepted(self, dropped: int) -> None:
        """The journal takes lines again. dropped: how many events did not fit into the spool so far."""

    def left(self, size_bytes: int, path: Path) -> None:
        """The recorder is closed, and the lines that the journal did not take are still in this spool."""


class Logged:
    """Writes the reports to the log."""

    def refused(self, error: Exception) -> None:
        _log.warning("the journal cannot be written, so events wait in the spool: %s", error)

    def accepted(self, dropped: int) -> None:
        _log.warning("the journal can be written again; %d events were dropped", dropped)

    def left(self, size_bytes: int, path: Path) -> None:
        _log.warning("%d bytes of events stay in %s", size_bytes, path)


class Recorder(Closable):
    """Writes events of this process into the journal `directory`. Threads may share it.

    A forked child never writes into its parent's spool: it opens one of its own, with a token of its own,
    when it first records. `spool_bytes` bounds the memory. If `spool_directory` has no room for it, the spool
    goes into the journal's directory, and recording may then have to wait for storage. The journal's readers
    look for spools in shared memory by default. `listener` is told when storage refuses lines.
    """

    _put: Callable[[bytes], bool]

    def __init__(
        self,
        directory: Path,
        *,
        run: str = "",
        clock: Clock | None = None,
        spool_directory: Path = SHARED_MEMORY,
        spool_bytes: int = SPOOL_BYTES,
        rotate_bytes: int = ROTATE_BYTES,
        listener: Listener | None = None,
    ) -> None:
        with contextlib.suppress(FileNotFoundError):  # the working directory is gone; opening will say so
            directory = directory.absolute()  # independent of later changes of the working directory
        self._place = _Place(
            directory=directory,
            spool_directory=spool_directory,
            spool_bytes=spool_bytes,
            rotate_bytes=rotate_bytes,
        )
        self._run = run
        self._clock = clock or SystemClock()
        self._listener = listener or Logged()
        self._closed = False
        self._begin()
        _recorders.add(self)
        self._open()

    def record(self, kind: type[KnownEvent], *, identity: str = "", **fields: Any) -> str:
        """Record an event. Returns its id, for effects to name as their cause.

        Id (unless given), source and time of recording are filled in, run and `occurred_ns`
        unless given. Never raises by itself.
        """
        identity = identity or event_id(self._owner.token, next(self._counter))
        try:
            clock = self._clock
            fields.setdefault("occurred_ns", clock.now_ns())
            fields.setdefault("run", self._run)
            body = encode(kind(id=identity, recorded_ns=clock.wall_ns(), source=self._owner.source, **fields))
            # A field of the wrong type would make a line that no reader accepts: fail now instead.
            decode(body)
            if not self._put(line_of(body)):
                self._drop("the recorder is closed" if self._closed else "no room in the spool")
        except _BAD_INPUT as error:
            self._drop(_described(error))
        return identity

    @property
    def dropped(self) -> int:
        """How many events this process could not keep."""
        return self._dropped

    def close(self) -> None:
        """Bring everything to the disk and leave nothing behind. Waits for storage, but not for ever."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._put = _refuse
        if self._thread is not None:
            self._thread.finish()
        self._drop_held()

    def _begin(self) -> None:
        """Reset all state for this process. Touches no storage."""
        self._dropped = self._reported = self._dropped_ns = 0
        self._drop_reason = ""
        # Operations of a deque are atomic, so it needs no lock.
        self._held: deque[bytes] = deque()
        # Reentrant, because a signal handler may record while its own thread is in here.
        self._lock = threading.RLock()
        self._take_name()

    def _take_name(self) -> None:
        """Take a new token, with a spool yet to be opened."""
        self._owner = Owner.here(token=new_token(), run=self._run)
        self._counter = itertools.count()
        self._spool: Spool | None = None
        self._put = self._open_and_put
        self._thread: _Thread | None = None

    def _open(self) -> None:
        """Have the thread make the spool, once, and wait for it briefly. Until it exists, events are held."""
        with self._lock:
            if self._thread is None:
                self._start_thread()
            thread = self._thread
        if thread is not None:
            thread.await_spool()

    def _start_thread(self) -> None:
        _watch_process(os.getpid())
        thread = _Thread(self._place, self._owner, self, self._listener)
        if self._thread is not None:
            return  # a signal handler has recorded meanwhile, and started one
        self._thread = thread
        try:
            thread.start()
        except BaseException:
            # A signal handler raised. Whether or not the thread runs, the next event begins anew.
            thread.stop()
            self._take_name()
            raise

    def _take_spool(self, spool: Spool) -> None:
        """Called by the thread that made the spool. Without the lock, which a waiting signal handler may
        hold."""
        if spool.owner == self._owner:
            self._spool = spool
            self._move_held(spool)
            if not self._closed:
                self._put = spool.put

    def _open_and_put(self, line: bytes) -> bool:
        """The `_put` without a spool: in a forked child, while opening takes long, or after it failed."""
        if self._closed:
            return False
        self._open()
        if self._spool is not None:
            return self._spool.put(line)
        thread = self._thread
        if thread is None or thread.has_failed or len(line) > LINE_BYTES_MAX or len(self._held) >= HELD_MAX:
            return False
        self._held.append(line)
        if thread.has_failed:  # just now, and it may have dropped the held lines before this one was added
            self._drop_held()
        return True

    def _move_held(self, spool: Spool) -> bool:
        """Called by the thread: move held lines into the spool while there is room. Whether any are left."""
        with contextlib.suppress(IndexError):
            while True:
                line = self._held.popleft()
                if not spool.put(line):
                    if spool.pending_bytes:
                        self._held.appendleft(line)
                        return True  # there is more room after the next round
                    self._drop("no room in the spool")
        return False

    def _drop_held(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._held.popleft()
                self._drop("no room in the spool" if self._spool is not None else "there is no spool")

    def _drop(self, reason: str) -> None:
        """Count an event that was not kept: here, and in the spool, which survives this process."""
        with self._lock:
            with contextlib.suppress(*_BAD_INPUT):  # the clock may be what failed
                self._dropped_ns = self._clock.now_ns()
            self._dropped += 1
            self._drop_reason = reason
            with contextlib.suppress(ValueError):  # the spool may be closed
                self._note_drops()

    def _note_drops(self) -> None:
        if self._spool is not None:
            drops = Drops(total=self._dropped, reported=self._reported, last_ns=self._dropped_ns)
            self._spool.note(drops)

    def _report_drops(self) -> bool:
        """Report new drops to the journal. False if there are none, or no room even for the report."""
        with self._lock:
            count = self._dropped - self._reported
            if count == 0 or self._spool is None:
                return False
            identity = event_id(self._owner.token, next(self._counter))
            notice = dropped_notice(self._owner, identity, count, self._dropped_ns, self._drop_reason)
            if not self._spool.put(line_of(encode(notice))):
                return False
            self._reported = self._dropped
            self._note_drops()
        _log.warning("%d events dropped, the last one because: %s", count, self._drop_reason)
        return True

    def _forked(self) -> None:
        """In a forked child: release the parent's spool, lock and thread, and start anew."""
        if self._thread is not None:
            self._thread.abandon()
        self._begin()


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recorder's lines go, and in what portions."""

    directory: Path
    spool_directory: Path
    spool_bytes: int
    rotate_bytes: int


class _Thread:
    """The thread that waits for storage instead of the caller: it makes the spool, and then drains it.

    No signal handler runs in it, so every exception caught there is its own.
    """

    def __init__(self, place: _Place, owner: Owner, recorder: Recorder, listener: Listener) -> None:
        self._place = place
        self._listener = listener
        self._owner = owner
        self._recorder = recorder
        self.has_failed = False
        """There is no spool, and there will not be one."""
        self._drain: _Drain | None = None
        self._stop = threading.Event()
        self._is_opening = True
        self._open_due_s = time.monotonic() + OPEN_WAIT_S
        self._thread = threading.Thread(target=self._work, name="holdfast-recorder", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            if self._thread.ident is not None:
                raise  # it runs, so something interrupted us
            self._give_up(error)  # there may be no more threads, or the process is about to end

    def await_spool(self) -> None:
        """Wait while the thread is making the spool; not while it is being started.

        It polls, because a signal handler that waited for an event which the interrupted code waits for too
        would wait for ever.
        """
        while self._thread.is_alive() and self._is_opening and time.monotonic() < self._open_due_s:
            time.sleep(OPEN_POLL_INTERVAL_S)

    def stop(self) -> None:
        """Have the thread write out the rest and remove the spool."""
        self._stop.set()

    def finish(self) -> None:
        """Stop the thread and wait until it is done, unless storage hangs."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(CLOSE_WAIT_S)
        if self._thread.is_alive():
            kept = "are lost" if self._drain is None else "stay in the spool"
            _log.warning("storage does not answer, so the last events %s", kept)

    def abandon(self) -> None:
        """In a forked child, where the thread is not: leave the spool and its lock to the parent alone."""
        if self._drain is not None:
            self._drain.let_go()

    def _work(self) -> None:
        try:
            # The path must be absolute: readers would not find the spool of a path like "journal".
            directory = self._place.directory.absolute()
            spool = self._create_spool(directory)
            journal = JournalWriter(directory, self._owner.token, self._place.rotate_bytes)
            self._drain = _Drain(spool, journal, self._recorder, self._listener)
            self._recorder._take_spool(spool)
        except Exception as error:
            self._give_up(error)
            return
        self._is_opening = False
        neighbours = functools.partial(salvage, directory, self._place.spool_directory)
        self._drain.attempt(neighbours, "what members that died here left in their spools stays there")
        self._drain.run(self._stop)

    def _give_up(self, error: Exception) -> None:
        _log.error("no event of this process will be recorded: %s", error)
        self.has_failed = True
        self._is_opening = False
        self._recorder._drop_held()

    def _create_spool(self, directory: Path) -> Spool:
        place = self._place
        name = str(SpoolName(journal_digest(directory), self._owner.token))
        try:
            size_bytes = affordable_bytes(place.spool_directory, place.spool_bytes)
            return Spool.create(place.spool_directory / name, self._owner, size_bytes)
        except OSError as error:
            _log.warning("no spool in %s, so recording may wait: %s", place.spool_directory, error)
        make_private_directory(directory)
        return Spool.create(directory / name, self._owner, place.spool_bytes)


class _Drain:
    """Drains one spool into the journal, as far as storage allows."""

    def __init__(self, spool: Spool, journal: JournalWriter, recorder: Recorder, listener: Listener) -> None:
        self._spool = spool
        self._journal = journal
        self._recorder = recorder
        self._listener = listener
        self._is_refused = False
        self._sync_due_s = self._report_due_s = self._complaint_due_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """Drain until `stop` is set, and then once more to the end of the spool."""
        healthy = True
        while not stop.wait(DRAIN_INTERVAL_S if healthy else RETRY_INTERVAL_S):
            healthy = self._round()
        self._end()

    def attempt(self, action: Callable[[], object], trouble: str) -> bool:
        """Whether the action succeeded; if not, the log gets a warning now and then."""
        try:
            action()
        except Exception as error:
            if (now_s := time.monotonic()) >= self._complaint_due_s:
                self._complaint_due_s = now_s + COMPLAINT_INTERVAL_S
                _log.warning("%s: %s", trouble, error)
            return False
        return True

    def let_go(self) -> None:
        self._spool.close()
        self._journal.close()

    def _round(self) -> bool:
        """Write, sync and report, as far as each is due; False if storage took no lines.

        A failed sync is not a reason to wait: its file was given up, and the next write begins another.
        """
        healthy = self._write()
        self.attempt(self._sync, "the journal cannot be synced, so a new file is begun")
        self.attempt(self._report, "drops cannot be reported")
        return healthy

    def _write(self) -> bool:
        """Whether the journal takes lines; the listener is told when that changes."""
        try:
            self._write_lines()
        except Exception as error:
            if not self._is_refused:
                self._is_refused = True
                self._listener.refused(error)
            return False
        if self._is_refused:
            self._is_refused = False
            self._listener.accepted(self._spool.drops.total)
        return True

    def _end(self) -> None:
        """The last rounds. The spool is removed only when all its lines are on the disk."""
        self._report_due_s = 0.0
        while self._round() and self._recorder._move_held(self._spool):
            pass  # each round makes room for more of them
        self._recorder._drop_held()  # those that storage made no room for
        self._spool.seal()
        self._round()
        synced = self.attempt(self._journal.sync, "the journal's end cannot be synced")
        if synced and self._spool.pending_bytes == 0:
            self.attempt(lambda: self._spool.path.unlink(missing_ok=True), "the empty spool stays")
        else:
            self._listener.left(self._spool.pending_bytes, self._spool.path)
        self.let_go()

    def _write_lines(self) -> None:
        self._recorder._move_held(self._spool)
        # Only the lines that are there now: otherwise a busy process could keep the round from ending.
        left_bytes = self._spool.pending_bytes
        while left_bytes > 0 and (lines := self._spool.pending(LINE_BYTES_MAX)):
            self._journal.write(lines)
            self._spool.release(len(lines))
            left_bytes -= len(lines)

    def _sync(self) -> None:
        if (now_s := time.monotonic()) >= self._sync_due_s:
            self._sync_due_s = now_s + SYNC_INTERVAL_S
            self._journal.sync()

    def _report(self) -> None:
        if (now_s := time.monotonic()) >= self._report_due_s and self._recorder._report_drops():
            self._report_due_s = now_s + REPORT_INTERVAL_S


def _refuse(_line: bytes) -> bool:
    """The `Recorder._put` of a closed recorder."""
    return False


def _described(error: Exception) -> str:
    """Why an event was dropped: short, and valid as an event's text."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:REASON_CHARS_MAX].encode(errors="replace").decode()
    except _BAD_INPUT:  # some exceptions cannot even describe themselves
        return name


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _close_all() -> None:
    for recorder in list(_recorders):
        recorder.close()


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder._forked()


@functools.cache
def _watch_process(pid: int) -> None:
    """Register hooks once per recording process (hence the pid): for its forks, and to close at its exit."""
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_close_all)
    # A forked worker of multiprocessing (a data loader's, say) leaves without the exit handlers above.
    if multiprocessing := sys.modules.get("multiprocessing.util"):
        multiprocessing.Finalize(None, _close_all, exitpriority=0)
