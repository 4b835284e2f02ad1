"""Faults from the kernel log as they come, and XIDs counted as dcgm-exporter counts them.

The log may be a file that is rotated, /dev/kmsg, or stdin.
"""

import errno
import os
import select
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from pathlib import Path

import msgspec

from holdfast.record.clock import Clock
from holdfast.record.kernel import LINE_BYTES_MAX
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.kernel_log import KernelEvent, parse_line
from holdfast.signals.frame import Labels, Reading

CHUNK_BYTES = 64 * 1024
"""At once; more than a record of /dev/kmsg may have, which comes whole or not at all."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""In one look at a followed log; the rest is read in the next."""
OVERRUNS_MAX = 100
"""How often in a row the kernel may overwrite the next record before the next look has its turn."""
STDIN = 0
_NOTHING_YET = (errno.EAGAIN, errno.EWOULDBLOCK)


class LogFollower:
    """Gives each line of a log once. path: None for stdin."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = STDIN if path is None else None
        self._rest = b""

    def all_lines(self) -> Iterator[bytes]:
        """All lines to the end, including an unfinished last one; waits until stdin ends."""
        while chunk := self._chunk():
            yield from self._split(chunk)
        if self._rest:
            yield self._rest
            self._rest = b""

    def new_lines(self) -> Iterator[bytes]:
        """New complete lines, at most `READ_BYTES_MAX`, without waiting."""
        read_bytes = 0
        while read_bytes < READ_BYTES_MAX and self._has_more():
            chunk = self._chunk()
            if not chunk:
                self._at_end()
                return
            read_bytes += len(chunk)
            yield from self._split(chunk)

    def close(self) -> None:
        if self._descriptor is not None and self._path is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _has_more(self) -> bool:
        """A file is always ready to be read, and gives nothing at its end."""
        return bool(select.select([self._open()], [], [], 0)[0])

    def _open(self) -> int:
        if self._descriptor is None:
            assert self._path is not None
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise Unavailable(
                    f"The kernel log {self._path} cannot be read: {error.strerror}.",
                    hint="/dev/kmsg needs root, or CAP_SYSLOG.",
                ) from None
        return self._descriptor

    def _chunk(self) -> bytes:
        for _ in range(OVERRUNS_MAX):
            try:
                return os.read(self._open(), CHUNK_BYTES)
            except OSError as error:
                # The kernel has overwritten the next record: continue with the oldest one left.
                if error.errno == errno.EPIPE:
                    continue
                if error.errno in _NOTHING_YET:
                    return b""
                raise Unavailable(
                    f"The kernel log {self._path or 'on stdin'} cannot be read: {error.strerror}."
                ) from None
        return b""

    def _split(self, chunk: bytes) -> Iterator[bytes]:
        *whole, rest = (self._rest + chunk).split(b"\n")
        # Of a line without an end, keep no more than is ever parsed.
        self._rest = rest[:LINE_BYTES_MAX]
        yield from whole

    def _at_end(self) -> None:
        """Check whether there may be more, here or in a new file under this name."""
        if self._path is None:
            raise Unavailable("The kernel log on stdin has ended.", hint="Is its writer still running?")
        here = os.fstat(self._open())
        if not stat.S_ISREG(here.st_mode):
            return
        try:
            there = self._path.stat()
        except OSError:
            there = None
        position = os.lseek(self._open(), 0, os.SEEK_CUR)
        replaced = there is None or (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)
        if replaced or here.st_size < position:
            self.close()
            self._rest = b""


XID_METRIC = "DCGM_EXP_XID_ERRORS_COUNT"
WINDOW_MS = 300_000
"""How long an XID is counted: the exporter's own default."""
COUNTED_MAX = 10_000
"""XIDs counted at once: a larger storm is counted as this many."""
SERIES_MAX = 1_000
EVENTS_MAX = 10_000
"""Faults that wait to be fetched; beyond this the oldest are dropped."""
OWN_LOG = Path("/dev/kmsg")


class KernelLogCollector:
    """Reads a log from its beginning.

    host      the machine of lines that do not name it
    gpus      the labels of GPUs by PCI address; called at each look, as they may be known only later
    whole     read to the end and count everything, not only recent lines
    unproven  lines that read like faults but were left out, because any user may have written them
    """

    name = "kernel log"

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock,
        host: str,
        gpus: Callable[[], Mapping[str, Labels]],
        whole: bool = False,
    ) -> None:
        self._follower = LogFollower(path)
        self._clock = clock
        self._host = host
        self._gpus = gpus
        self._whole = whole
        # The kernel stamps its records with the time since boot, which is known for this machine only.
        self._boot_ns = clock.wall_ns() - time.monotonic_ns() if path == OWN_LOG else None
        self._recent: deque[tuple[int, _Series]] = deque(maxlen=COUNTED_MAX)
        self._series: dict[_Series, None] = {}
        self._events: deque[KernelEvent] = deque(maxlen=EVENTS_MAX)
        self.unproven = 0

    def collect(self) -> list[Reading]:
        now_ns = self._clock.now_ns()
        lines = self._follower.all_lines() if self._whole else self._follower.new_lines()
        self._take(lines, now_ns)
        return self._counts(now_ns)

    def take_events(self) -> list[KernelEvent]:
        """The faults since the last call, each with its time and host as far as known."""
        # One by one: a look that takes longer than its round may add some in the meantime.
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        self._follower.close()

    def _take(self, lines: Iterable[bytes], now_ns: int) -> None:
        # A followed log is this machine's; a log that is read whole may come from elsewhere.
        zone = UTC if self._whole else None
        for line in lines:
            event = parse_line(line, now_ns=now_ns, zone=zone)
            self.unproven += event.is_unproven
            if event.source == "other":
                continue
            event = self._placed(event)
            self._events.append(event)
            if event.source == "xid" and event.code is not None:
                series = _Series(xid=event.code, device=event.device, host=event.host)
                self._recent.append((event.at_ns or now_ns, series))
                if len(self._series) < SERIES_MAX:
                    self._series[series] = None

    def _placed(self, event: KernelEvent) -> KernelEvent:
        at_ns = event.at_ns
        if at_ns is None and self._boot_ns is not None and event.uptime_s is not None:
            at_ns = self._boot_ns + round(event.uptime_s * 1e9)
        return msgspec.structs.replace(event, at_ns=at_ns, host=event.host or self._host)

    def _counts(self, now_ns: int) -> list[Reading]:
        """One for each XID of each GPU so far; 0 once it is past the window."""
        oldest_ns = 0 if self._whole else now_ns - WINDOW_MS * 10**6
        counts = Counter(series for at_ns, series in self._recent if at_ns >= oldest_ns)
        gpus = self._gpus()
        window = {} if self._whole else {"window_size_in_ms": str(WINDOW_MS)}
        return [
            Reading(
                metric=XID_METRIC,
                labels={**_gpu_labels(series, gpus), "xid": str(series.xid), **window},
                at_ns=now_ns,
                value=float(counts[series]),
            )
            for series in self._series
        ]


class _Series(msgspec.Struct, frozen=True, kw_only=True):
    xid: int
    device: str
    host: str


def _gpu_labels(series: _Series, gpus: Mapping[str, Labels]) -> Labels:
    """The exporter's labels of the GPU, if the GPU at that address is known."""
    known = gpus.get(series.device)
    if known is not None:
        return dict(known)
    address = f"0000{series.device.upper()}" if series.device else ""
    return {"pci_bus_id": address, "hostname": series.host, "instance": series.host}
