"""The recorder: how training code writes events down and neither waits for storage nor fails with it.

`Recorder.record` copies one line into the process's spool (a ring in shared memory, see spool.py) and
returns. A thread brings the spool into the journal and does all the waiting. Nothing here raises into the
caller: what cannot be kept is dropped, counted in `Recorder.dropped`, and told in the log and in the journal
once there is room for it.
"""

import atexit
import base64
import contextlib
import functools
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.record.clock import Clock, SystemClock
from holdfast.record.events import KnownEvent, decode, encode
from holdfast.record.journal import (
    ROTATE_BYTES,
    SPOOL_PATTERN,
    JournalWriter,
    dropped_notice,
    event_id,
    line_of,
    salvage,
    spool_name,
)
from holdfast.record.spool import LINE_BYTES_MAX, SPOOL_BYTES, Drops, Owner, Spool

SHARED_MEMORY = Path("/dev/shm")
DRAIN_INTERVAL_S = 0.02
"""Recording at full speed fills about a third of the default spool in this time."""
SYNC_INTERVAL_S = 1.0
"""A power loss takes at most about this much of the record with it."""
RETRY_INTERVAL_S = 1.0
"""How long the thread leaves storage alone that has just refused something."""
REPORT_INTERVAL_S = 10.0
"""How often the journal is told of drops that go on and on."""
REASON_CHARS_MAX = 300
OPEN_WAIT_S = 1.0
"""How long opening waits for the journal's directory to take the link to the spool."""
CLOSE_WAIT_S = 5.0
"""How long closing waits for storage. What is still in the spool then is left for a reader to salvage."""

_log = logging.getLogger(__name__)


class Recorder:
    """Writes events of this process into the journal `directory`. Threads may share it.

    A forked child never writes into its parent's spool: it opens one of its own, with a token of its own,
    when it first records. `spool_bytes` bounds the memory. Where `spool_directory` has no room for it, the
    spool goes into the journal's directory, and recording may then have to wait for storage.
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
    ) -> None:
        self._directory = directory.absolute()  # where it is now, wherever the process changes to
        self._run = run
        self._clock = clock or SystemClock()
        self._spool_directory = spool_directory
        self._spool_bytes = spool_bytes
        self._rotate_bytes = rotate_bytes
        self._closed = False
        self._begin()
        _recorders.add(self)
        self._open()

    def record(self, kind: type[KnownEvent], **fields: Any) -> str:
        """Write down that something happened. Returns the event's id, for effects to name as their cause.

        Id, source and time of recording are filled in, run and `occurred_ns` unless given. Never raises.
        """
        identity = event_id(self._owner.token, next(self._counter))
        try:
            now_ns = self._clock.now_ns()
            fields.setdefault("occurred_ns", now_ns)
            fields.setdefault("run", self._run)
            body = encode(kind(id=identity, recorded_ns=now_ns, source=self._owner.source, **fields))
            # A field of the wrong type would make a line that no reader accepts: better to know it now.
            decode(body)
            if not self._put(line_of(body)):
                self._drop("the recorder is closed" if self._closed else "no room in the spool")
        except Exception as error:
            self._drop(error)
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
        if self._drain is not None:
            self._drain.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        """Start from nothing, in the name of this process. Touches no file."""
        token = base64.b32encode(os.urandom(8)).decode().lower()[:12]
        self._owner = Owner(token=token, source=f"{os.uname().nodename}/{os.getpid()}", run=self._run)
        self._counter = itertools.count()
        self._dropped = self._reported = self._dropped_ns = 0
        self._drop_reason = ""
        self._spool: Spool | None = None
        self._put = self._open_and_put
        self._drain: _Drain | None = None
        self._opened = False
        # Reentrant, because a signal handler may record while its own thread is in here.
        self._lock = threading.RLock()

    def _open(self) -> None:
        """Make the spool and start its thread, once. If that fails every event is dropped, and counted."""
        with self._lock:
            if self._opened:
                return
            self._opened = True
            _watch_process(os.getpid())
            spool = None
            try:
                spool = self._create_spool()
                journal = JournalWriter(self._directory, self._owner.token, self._rotate_bytes)
                self._drain = _Drain(spool, journal, self._directory / spool.path.name, self._report_drops)
                self._spool, self._put = spool, spool.put
            except Exception as error:
                _log.error("no event of this process will be recorded: %s", error)
                if spool is not None:
                    spool.path.unlink(missing_ok=True)
                    spool.close()

    def _create_spool(self) -> Spool:
        name = spool_name(self._owner.token)
        try:
            return Spool.create(self._spool_directory / name, self._owner, self._spool_bytes)
        except OSError as error:
            _log.warning("no spool in %s, so recording may wait: %s", self._spool_directory, error)
        self._directory.mkdir(parents=True, exist_ok=True)
        return Spool.create(self._directory / name, self._owner, self._spool_bytes)

    def _open_and_put(self, line: bytes) -> bool:
        """What `_put` is while there is no spool: in a forked child's first event, or when opening failed."""
        if not self._closed:
            self._open()
        return self._spool is not None and self._spool.put(line)

    def _drop(self, reason: str | Exception) -> None:
        """Count an event that was not kept: here, and where the count survives this process."""
        with self._lock:
            self._dropped += 1
            self._drop_reason = reason if isinstance(reason, str) else _described(reason)
            with contextlib.suppress(Exception):  # the clock may be what failed
                self._dropped_ns = self._clock.now_ns()
            with contextlib.suppress(ValueError):  # the spool may be closed
                self._note_drops()

    def _note_drops(self) -> None:
        if self._spool is not None:
            drops = Drops(total=self._dropped, reported=self._reported, last_ns=self._dropped_ns)
            self._spool.note(drops)

    def _report_drops(self) -> bool:
        """Tell the journal of new drops. False if there are none, or no room even for that."""
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
        """In a forked child: spool, lock and thread are the parent's. Let go of them and start anew."""
        if self._drain is not None:
            self._drain.abandon()
        self._begin()


class _Drain:
    """The thread that brings one spool into the journal, and waits for storage in the caller's stead."""

    def __init__(
        self, spool: Spool, journal: JournalWriter, link: Path, report_drops: Callable[[], bool]
    ) -> None:
        self._spool = spool
        self._journal = journal
        self._link = link
        self._report_drops = report_drops
        self._linked = spool.path == link
        self._complained = False
        self._sync_due_s = self._report_due_s = 0.0
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-recorder", daemon=True)
        self._thread.start()
        self._ready.wait(OPEN_WAIT_S)

    def finish(self) -> None:
        """Have the thread write out the rest and remove the spool; wait for that, unless storage hangs."""
        self._stop.set()
        self._thread.join(CLOSE_WAIT_S)
        if self._thread.is_alive():
            _log.warning("storage does not answer, so the last events stay in %s", self._spool.path)

    def abandon(self) -> None:
        """In a forked child, where the thread is not: leave the spool and its lock to the parent alone."""
        self._spool.close()
        self._journal.close()

    def _work(self) -> None:
        healthy = self._attempt(self._link_spool)
        self._ready.set()
        self._attempt(self._salvage_neighbours)
        while not self._stop.wait(DRAIN_INTERVAL_S if healthy else RETRY_INTERVAL_S):
            healthy = self._round()
        self._end()

    def _round(self) -> bool:
        """Link, write, sync and report, as far as each is due; False if storage refused any of it."""
        actions = (self._link_spool, self._write_lines, self._sync, self._report)
        failed = [action for action in actions if not self._attempt(action)]
        self._complained = bool(failed)
        return not failed

    def _end(self) -> None:
        """The last rounds. The spool is removed only when all that was in it is on the disk."""
        self._report_due_s = 0.0
        self._round()
        self._spool.seal()
        self._round()
        if self._attempt(self._journal.sync) and self._spool.pending_bytes == 0:
            self._attempt(self._remove_spool)
        else:
            _log.warning("%d bytes of events stay in %s", self._spool.pending_bytes, self._spool.path)
        self._journal.close()
        self._spool.close()

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Whether the action succeeded. Of a series of failures the first is logged."""
        try:
            action()
        except Exception as error:
            if not self._complained:
                _log.warning("the journal cannot be written, so events wait in the spool: %s", error)
            self._complained = True
            return False
        return True

    def _link_spool(self) -> None:
        """Make the spool known to the journal's readers, without which they could not salvage it."""
        if not self._linked:
            self._link.parent.mkdir(parents=True, exist_ok=True)
            self._link.symlink_to(self._spool.path)
            self._linked = True

    def _salvage_neighbours(self) -> None:
        """Save what members that died on this machine left: the journal's readers may all be elsewhere."""
        spools = self._spool.path.parent.glob(SPOOL_PATTERN)
        salvage(self._link.parent / spool.name for spool in spools)

    def _write_lines(self) -> None:
        # As much as there is now: a busy process could otherwise keep the round from ever ending.
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
        if (now_s := time.monotonic()) >= self._report_due_s and self._report_drops():
            self._report_due_s = now_s + REPORT_INTERVAL_S

    def _remove_spool(self) -> None:
        self._spool.path.unlink(missing_ok=True)
        self._link.unlink(missing_ok=True)


def _refuse(_line: bytes) -> bool:
    """What `Recorder._put` is once the recorder is closed."""
    return False


def _described(error: Exception) -> str:
    """Why an event was dropped: short, and fit to be an event's text itself."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:REASON_CHARS_MAX].encode(errors="replace").decode()
    except Exception:  # some exceptions cannot even describe themselves
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
    """Once a process that records (hence the pid): see to its forks, and close what is open at its exit."""
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_close_all)
    # A forked worker of multiprocessing (a data loader's, say) leaves without the exit handlers above.
    if multiprocessing := sys.modules.get("multiprocessing.util"):
        multiprocessing.Finalize(None, _close_all, exitpriority=0)
