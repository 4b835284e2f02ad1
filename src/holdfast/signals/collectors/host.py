"""This machine through /proc and /sys, under node_exporter's names, units and labels.

For machines without the exporter: pressure, memory, swap, disks, local file systems, connections, fans and
temperatures. Metrics that a kernel does not show are left out. The space on network file systems is not
queried: one that hangs would hang the collector.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.record.clock import Clock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.frame import Labels, Reading

PROC, SYS = Path("/proc"), Path("/sys")
FILE_BYTES_MAX = 1 << 20
SENSORS_MAX = 4096
MOUNTS_MAX = 256
SECTOR_BYTES = 512
KIBIBYTE = 1024
MS_PER_S, US_PER_S = 1e3, 1e6
MILLI = 1e3
PRESSURE = {("some", "waiting"), ("full", "stalled")}
VMSTAT = ("pswpin", "pswpout", "pgmajfault", "oom_kill")
MEMORY = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
DISKS_LEFT_OUT = re.compile(r"(?:z?ram|loop|fd|(?:h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+")
"""As in node_exporter: partitions, and devices that are not disks."""
LOCAL = ("/dev/",)
DISK_COLUMNS: tuple[tuple[int, str, float], ...] = (
    (0, "reads_completed_total", 1.0),
    (2, "read_bytes_total", SECTOR_BYTES),
    (3, "read_time_seconds_total", 1 / MS_PER_S),
    (4, "writes_completed_total", 1.0),
    (6, "written_bytes_total", SECTOR_BYTES),
    (7, "write_time_seconds_total", 1 / MS_PER_S),
    (9, "io_time_seconds_total", 1 / MS_PER_S),
    (10, "io_time_weighted_seconds_total", 1 / MS_PER_S),
)
"""Columns of a line in /proc/diskstats, after the device's name."""
_SENSOR = re.compile(r"(?P<sensor>(?:fan|temp)\d+)_input")


class HostCollector:
    """proc, sys: where the kernel shows them."""

    name = "host"

    def __init__(self, *, clock: Clock, host: str, proc: Path = PROC, sys: Path = SYS) -> None:
        self._clock = clock
        self._host = host
        self._proc = proc
        self._sys = sys

    def collect(self) -> list[Reading]:
        at_ns = self._clock.now_ns()
        values = list(self._values())
        if not values:
            raise Unavailable(f"Nothing can be read in {self._proc}.", hint="Is it mounted?")
        values.append(("uname_info", {"nodename": os.uname().nodename}, 1.0))
        return [
            Reading(
                metric=f"node_{name}", labels={"instance": self._host, **labels}, at_ns=at_ns, value=value
            )
            for name, labels, value in values
        ]

    def close(self) -> None: ...

    def _values(self) -> Iterator[tuple[str, Labels, float]]:
        yield from self._pressure()
        yield from self._memory()
        yield from self._disks()
        yield from self._filesystems()
        yield from self._connections()
        yield from self._sensors()

    def _pressure(self) -> Iterator[tuple[str, Labels, float]]:
        for what in ("cpu", "io", "memory"):
            lines = [line.split() for line in _text(self._proc / "pressure" / what).splitlines()]
            totals = {words[0]: words[-1].partition("total=")[2] for words in lines if words}
            for part, name in sorted(PRESSURE):
                # For processors the kernel shows `full` too; it means nothing there, and node_exporter leaves
                # it out.
                if totals.get(part, "").isdecimal() and (what, part) != ("cpu", "full"):
                    yield f"pressure_{what}_{name}_seconds_total", {}, int(totals[part]) / US_PER_S

    def _memory(self) -> Iterator[tuple[str, Labels, float]]:
        counts = _pairs(_text(self._proc / "vmstat"))
        yield from ((f"vmstat_{name}", {}, counts[name]) for name in VMSTAT if name in counts)
        sizes = _pairs(_text(self._proc / "meminfo").replace(":", ""))
        yield from ((f"memory_{name}_bytes", {}, sizes[name] * KIBIBYTE) for name in MEMORY if name in sizes)

    def _disks(self) -> Iterator[tuple[str, Labels, float]]:
        for line in _text(self._proc / "diskstats").splitlines():
            _, _, device, *columns = line.split() or ("", "", "")
            if len(columns) > DISK_COLUMNS[-1][0] and not DISKS_LEFT_OUT.fullmatch(device):
                for column, name, scale in DISK_COLUMNS:
                    yield f"disk_{name}", {"device": device}, int(columns[column]) * scale

    def _filesystems(self) -> Iterator[tuple[str, Labels, float]]:
        seen = set()
        for line in _text(self._proc / "self" / "mounts").splitlines()[:MOUNTS_MAX]:
            device, mountpoint, fstype, *_ = (*line.split(), "", "", "")
            if not device.startswith(LOCAL) or mountpoint in seen:
                continue
            seen.add(mountpoint)
            labels = {"device": device, "fstype": fstype, "mountpoint": mountpoint}
            try:
                told = os.statvfs(mountpoint)
            except OSError:
                yield "filesystem_device_error", labels, 1.0
                continue
            yield "filesystem_avail_bytes", labels, float(told.f_bavail * told.f_frsize)
            yield "filesystem_size_bytes", labels, float(told.f_blocks * told.f_frsize)
            yield "filesystem_files_free", labels, float(told.f_ffree)

    def _connections(self) -> Iterator[tuple[str, Labels, float]]:
        folder = self._proc / "sys" / "net" / "netfilter"
        for name, file in (("entries", "nf_conntrack_count"), ("entries_limit", "nf_conntrack_max")):
            if (text := _text(folder / file).strip()).isdecimal():
                yield f"nf_conntrack_{name}", {}, float(text)

    def _sensors(self) -> Iterator[tuple[str, Labels, float]]:
        for path in sorted((self._sys / "class" / "hwmon").glob("*/*_input"))[:SENSORS_MAX]:
            found, text = _SENSOR.fullmatch(path.name), _text(path).strip()
            if found and text.removeprefix("-").isdecimal():
                labels = {"chip": _text(path.parent / "name").strip(), "sensor": found["sensor"]}
                if found["sensor"].startswith("fan"):
                    yield "hwmon_fan_rpm", labels, float(text)
                else:
                    yield "hwmon_temp_celsius", labels, float(text) / MILLI


def _text(path: Path) -> str:
    """The contents; empty if the file is missing or unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def _pairs(text: str) -> dict[str, float]:
    words = (line.split() for line in text.splitlines())
    return {line[0]: float(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}
