"""The members' output on its way to the operator: whole lines, each prefixed with its member's name.

Lines are passed on as they come, with one exception. A traceback or a `holdfast:` sentence on stderr may be a
member's last output, and then every other member is likely to print the same. So it is held back for a
moment. If the process fails with it, it is the member's complaint, which is printed once with the end of the
run. If the process continues, it is printed in its place.
"""

import os
import queue
import re
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

LINE_BYTES_MAX = 64 << 10
"""A longer line is passed on in pieces."""
HOLD_S = 5.0
"""How long a process may take to end after its last output; with torch 1.2 to 3.1 s on a busy core."""
QUIET_S = 0.5
"""A process that prints something this long after a complaint continues, so it was not the last output."""
HELD_BYTES_MAX = 256 << 10
TAIL_LINES_MAX = 20
TAIL_LINE_CHARS_MAX = 500
BACKLOG_LINES_MAX = 1_000
"""How many lines may wait for a slow terminal before the members that print wait, too."""
CLOSE_WAIT_S = 2.0
"""How long printing the last lines may take at the end; a terminal paused for longer misses them."""

Stream = Literal["stdout", "stderr"]
STREAMS: dict[Stream, int] = {"stdout": 1, "stderr": 2}
"""Their descriptors in every process."""
Write = Callable[[Stream, bytes], None]
"""Takes one line with its end. Must not block."""

# torch puts the rank before every line of a traceback once there is a process group.
_RANK = re.compile(rb"\[rank\d+\]: ")
# A line of a C++ library's log, such as a warning about a process group that is left open.
_LOGGED = re.compile(rb"(\[rank\d+\]:)?\[[IWEF]\d{4} ")
_SENTENCE = b"holdfast: "
_TRACEBACKS = (
    b"Traceback (most recent call last):",
    b"  + Exception Group Traceback (most recent call last):",
    b"Exception in thread ",
)
_SYNTAX_ERROR = b'  File "'
_END = b""
# After these lines, a further traceback belongs to the same complaint.
_CONTINUED = (
    b"The above exception was the direct cause of the following exception:",
    b"During handling of the above exception, another exception occurred:",
    b"Exception in thread ",
    b"Exception ignored in",
    b"Error in atexit",
)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the members' output that the operator sees. Log files have all of it.

    by_rank: the streams that are shown for each local rank; empty to show all. copied: shown lines with one
    of these words also go to a file of their own.
    """

    by_rank: tuple[tuple[Stream, ...], ...] = ()
    copied: dict[Stream, tuple[str, ...]] = {}

    def shows(self, slot: int, stream: Stream) -> bool:
        """Whether to show a stream. A warm process has a slot beyond the members' until it takes a seat."""
        return not self.by_rank or stream in self.by_rank[slot % len(self.by_rank)]

    def copies(self, stream: Stream, line: bytes) -> bool:
        return any(word.encode() in line for word in self.copied.get(stream, ()))


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """The remains of a member's process that has ended: its last lines, and its complaint if it failed."""

    tail: tuple[str, ...]
    complaint: str


class MemberOutput:
    """The two streams of one member. Times are in seconds, by any monotonic clock."""

    def __init__(self, member: str, write: Write, log: Write | None = None) -> None:
        """write: takes lines for the operator, with the member's name. log: takes every line unchanged, even
        if it is held back.
        """
        self._prefix = f"[{member}] ".encode()
        self._write = write
        self._log = log
        self._rest: dict[Stream, bytes] = dict.fromkeys(STREAMS, b"")
        self._tail: deque[str] = deque(maxlen=TAIL_LINES_MAX)
        self._held: _Held | None = None

    def feed(self, stream: Stream, data: bytes, now_s: float) -> None:
        """Take data read from a stream, in pieces of any size."""
        data = self._rest[stream] + data
        # A carriage return also ends a line (progress bars), unless a newline may still follow it.
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        for line in data[:end].splitlines(keepends=True):
            self._take(stream, line, now_s)
        rest = data[end:]
        while len(rest) >= LINE_BYTES_MAX:
            self._take(stream, rest[:LINE_BYTES_MAX] + b"\n", now_s)
            rest = rest[LINE_BYTES_MAX:]
        self._rest[stream] = rest

    @property
    def due_s(self) -> float | None:
        """When `release` has to be called; None if nothing is held back."""
        return self._held.due_s if self._held else None

    def release(self) -> None:
        """Print the lines that were held back, because the process continues."""
        if self._held is not None:
            for line in self._held.lines:
                self._print("stderr", line)
            self._held = None

    def end(self, now_s: float, *, failed: bool) -> LastWords:
        """Handle the end of the process. failed: with an exit code, or while it was being stopped."""
        for stream, rest in self._rest.items():
            if rest:
                self._take(stream, rest + b"\n", now_s)
        complaint = ""
        if self._held is not None and failed:
            complaint = self._held.complaint()
            for line in self._held.others():
                self._print("stderr", line)
        else:
            self.release()
        return LastWords(tail=tuple(self._tail), complaint=complaint)

    def _take(self, stream: Stream, line: bytes, now_s: float) -> None:
        if self._log is not None:
            self._log(stream, line)
        if self._held is not None and self._held.is_survived_by(line, now_s):
            self.release()
        if not line.endswith(b"\r"):  # such a line was meant to be overwritten
            self._tail.append(line.decode("utf-8", "replace").rstrip("\r\n")[:TAIL_LINE_CHARS_MAX])
        if stream == "stderr" and self._holds(line, now_s):
            return
        self._print(stream, line)

    def _holds(self, line: bytes, now_s: float) -> bool:
        if _begins_complaint(line) and not (self._held and self._held.goes_on_with(line)):
            self.release()
            self._held = _Held(due_s=now_s + HOLD_S)
        if self._held is None:
            return False
        self._held.add(line, now_s)
        if self._held.size_bytes > HELD_BYTES_MAX or now_s >= self._held.due_s:
            self.release()
        return True

    def _print(self, stream: Stream, line: bytes) -> None:
        self._write(stream, self._prefix + line)


class _Held:
    """A complaint and, to keep the order, later lines of the same stream."""

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.last_s = 0.0
        self.size_bytes = 0
        self.lines: list[bytes] = []
        self._belongs: list[bool] = []
        self._is_open = True
        self._last = b""

    def add(self, line: bytes, now_s: float) -> None:
        # An exception's message may have any lines, so everything after a traceback belongs to it.
        if self.lines and self.lines[0].startswith(_SENTENCE):
            self._is_open = self._is_open and line.startswith(b"  ")
        self._belongs.append(self._is_open and not _LOGGED.match(line))
        self.lines.append(line)
        self.size_bytes += len(line)
        self.last_s = now_s
        self._last = _unranked(line) if line.strip() else self._last

    def is_survived_by(self, line: bytes, now_s: float) -> bool:
        """Whether this line, on either stream, shows that the process continues."""
        return now_s - self.last_s > QUIET_S and not _LOGGED.match(line)

    def goes_on_with(self, line: bytes) -> bool:
        """Whether a line that looks like the start of a complaint is still part of this one."""
        return _unranked(line).startswith(_SYNTAX_ERROR) or self._last.startswith(_CONTINUED)

    def complaint(self) -> str:
        lines = zip(self.lines, self._belongs, strict=True)
        told = b"".join(_unranked(line) for line, belongs in lines if belongs)
        return told.decode("utf-8", "replace").rstrip()

    def others(self) -> list[bytes]:
        return [line for line, belongs in zip(self.lines, self._belongs, strict=True) if not belongs]


def _begins_complaint(line: bytes) -> bool:
    return _unranked(line).startswith((_SENTENCE, _SYNTAX_ERROR, *_TRACEBACKS))


def _unranked(line: bytes) -> bytes:
    return _RANK.sub(b"", line, count=1) if _RANK.match(line) else line


class Printer:
    """Writes lines to descriptors from a thread of its own.

    A paused terminal or a slow reader may hold up the members that print, but not the agent, which has to
    report in time that its node lives.
    """

    def __init__(self, on_room: Callable[[], None], shower: int | None = None) -> None:
        """on_room: called from the thread when there is room again after `is_full`. shower: the parent
        process that shows this one's own streams; once it is gone, they take nothing more. None for no such.
        """
        self._on_room = on_room
        self._shower = shower
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._is_awaited = False
        self._broken: set[int] = set()
        self._thread = threading.Thread(target=self._work, name="holdfast-printer", daemon=True)
        self._thread.start()

    def put(self, descriptor: int, line: bytes) -> None:
        self._queue.put((descriptor, line))

    def put_end(self, descriptor: int) -> None:
        """Close the descriptor after the lines that were put before."""
        self._queue.put((descriptor, _END))

    def is_full(self) -> bool:
        if self._queue.qsize() <= BACKLOG_LINES_MAX:
            return False
        self._is_awaited = True
        # The thread may have passed the mark before it could see that it is awaited.
        return self._queue.qsize() > BACKLOG_LINES_MAX // 2

    def close(self) -> None:
        """Wait until everything is written, for a bounded time."""
        self._on_room = lambda: None
        self._queue.put(None)
        self._thread.join(CLOSE_WAIT_S)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            self._write(*item)
            if self._is_awaited and self._queue.qsize() <= BACKLOG_LINES_MAX // 2:
                self._is_awaited = False
                self._on_room()

    def _write(self, descriptor: int, line: bytes) -> None:
        if line is _END:
            os.close(descriptor)
            self._broken.discard(descriptor)
        elif descriptor not in self._broken and self._is_shown(descriptor):
            try:
                write_whole(descriptor, line)
            except OSError:  # no reader, or the disk is full: training continues unseen
                self._broken.add(descriptor)

    def _is_shown(self, descriptor: int) -> bool:
        is_own = self._shower is not None and descriptor in STREAMS.values()
        return not is_own or os.getppid() == self._shower


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of it, even if the descriptor has been made non-blocking."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            room = select.poll()
            room.register(descriptor, select.POLLOUT)
            room.poll()
