"""Limits on a node's processes: its memory, its share of a processor, how fast it reads and writes a device.

Both versions of control groups are supported. A group is removed by its name.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ROOT / "cgroup.controllers"
"""Where the machine has version 2 alone."""
PERIOD_US = 100_000
SHARE_MAX = 262_144
"""The most that version 1 has; a group with it gets processors before all others on the machine."""
WEIGHT_MAX = 10_000
"""And version 2."""
MEMORY_BYTES = 1 << 30
"""Of a node. Its processes take a third of it."""
REMOVE_WAIT_S = 5.0
REMOVE_POLL_S = 0.05


Resource = Literal["io", "memory"]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A node's memory. available: without what cannot be read again from a disk."""

    total_bytes: int
    available_bytes: int
    major_faults: int


class Limits(Protocol):
    """The limits of one node."""

    def take_in(self, pid: int, *, wholly: bool) -> None:
        """Put a process into the group. wholly: all limits hold for it, not only those of devices."""

    def limit_cpu(self, share: float | None) -> None:
        """At most so much of one processor; None: as much as it likes."""

    def limit_device(self, device: str, bytes_per_s: int | None) -> None:
        """Read and write a device, `7:0`, at most so fast."""

    def throttled_s(self) -> float:
        """How long it has been kept from a processor so far."""

    def used_s(self) -> float:
        """How much time of processors it has had so far."""

    def waited_s(self, resource: Resource) -> float:
        """How long any of its tasks has waited for it so far."""

    def memory(self) -> Memory: ...

    def remove(self) -> None: ...


class FirstVersion:
    """A group in each of three hierarchies, and in that of the second version, which has no limits but shows
    how long tasks wait."""

    def __init__(self, name: str) -> None:
        self._cpu, self._io, self._memory = (ROOT / kind / name for kind in ("cpu", "blkio", "memory"))
        self._shown = ROOT / "unified" / name
        for group in self._groups:
            group.mkdir(exist_ok=True)
        (self._cpu / "cpu.shares").write_text(str(SHARE_MAX), encoding="ascii")
        (self._memory / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES), encoding="ascii")

    @property
    def _groups(self) -> tuple[Path, ...]:
        return (self._io, self._cpu, self._memory, self._shown)

    def take_in(self, pid: int, *, wholly: bool) -> None:
        for group in self._groups if wholly else (self._io,):
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def limit_cpu(self, share: float | None) -> None:
        quota_us = -1 if share is None else int(PERIOD_US * share)
        (self._cpu / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")

    def limit_device(self, device: str, bytes_per_s: int | None) -> None:
        for direction in ("read", "write"):
            limit = self._io / f"blkio.throttle.{direction}_bps_device"
            limit.write_text(f"{device} {bytes_per_s or 0}", encoding="ascii")

    def throttled_s(self) -> float:
        return _of(self._cpu / "cpu.stat", "throttled_time") / 1e9

    def used_s(self) -> float:
        return _of(self._shown / "cpu.stat", "usage_usec") / 1e6

    def waited_s(self, resource: Resource) -> float:
        return _waited_s(self._shown, resource)

    def memory(self) -> Memory:
        return _memory(self._memory, "memory.usage_in_bytes")

    def remove(self) -> None:
        for group in self._groups:
            _remove(group)


class SecondVersion:
    """One group with two below it, only one of which has the limits of processors and memory."""

    def __init__(self, name: str) -> None:
        self._group = ROOT / name
        self._limited, self._free = self._group / "limited", self._group / "free"
        (ROOT / "cgroup.subtree_control").write_text("+cpu +io +memory", encoding="ascii")
        self._group.mkdir(exist_ok=True)
        (self._group / "cgroup.subtree_control").write_text("+cpu +io +memory", encoding="ascii")
        for group in (self._limited, self._free):
            group.mkdir(exist_ok=True)
        (self._group / "cpu.weight").write_text(str(WEIGHT_MAX), encoding="ascii")
        (self._limited / "memory.max").write_text(str(MEMORY_BYTES), encoding="ascii")

    def take_in(self, pid: int, *, wholly: bool) -> None:
        group = self._limited if wholly else self._free
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def limit_cpu(self, share: float | None) -> None:
        quota = "max" if share is None else str(int(PERIOD_US * share))
        (self._limited / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")

    def limit_device(self, device: str, bytes_per_s: int | None) -> None:
        most = bytes_per_s or "max"
        (self._group / "io.max").write_text(f"{device} rbps={most} wbps={most}", encoding="ascii")

    def throttled_s(self) -> float:
        return _of(self._limited / "cpu.stat", "throttled_usec") / 1e6

    def used_s(self) -> float:
        return _of(self._limited / "cpu.stat", "usage_usec") / 1e6

    def waited_s(self, resource: Resource) -> float:
        return _waited_s(self._limited, resource)

    def memory(self) -> Memory:
        return _memory(self._limited, "memory.current")

    def remove(self) -> None:
        for group in (self._limited, self._free, self._group):
            _remove(group)


def limits(name: str) -> Limits:
    """A new group of this name, or the one that there is."""
    return SecondVersion(name) if _CONTROLLERS.exists() else FirstVersion(name)


def missing() -> list[str]:
    """What this machine lacks: controllers, or files that show pressure."""
    if _CONTROLLERS.exists():
        there = _CONTROLLERS.read_text(encoding="ascii").split()
        return [kind for kind in ("cpu", "io", "memory") if kind not in there]
    files = [ROOT / "unified" / f"{resource}.pressure" for resource in get_args(Resource)]
    folders = [ROOT / kind / "cgroup.procs" for kind in ("cpu", "blkio", "memory")]
    return [str(path) for path in (*folders, *files) if not path.exists()]


def _waited_s(group: Path, resource: Resource) -> float:
    some, *_ = (group / f"{resource}.pressure").read_text(encoding="ascii").splitlines()
    return int(some.rpartition("total=")[2]) / 1e6


def _memory(group: Path, usage: str) -> Memory:
    """Pages of files can be dropped, and read again later; without swap nothing else can."""
    stat = group / "memory.stat"
    droppable = _of(stat, "inactive_file") + _of(stat, "active_file")
    used = int((group / usage).read_text(encoding="ascii"))
    return Memory(
        total_bytes=MEMORY_BYTES,
        available_bytes=max(0, MEMORY_BYTES - used + droppable),
        major_faults=_of(stat, "pgmajfault"),
    )


def _of(file: Path, key: str) -> int:
    return next(
        int(line.split()[1])
        for line in file.read_text(encoding="ascii").splitlines()
        if line.startswith(f"{key} ")
    )


def _remove(group: Path) -> None:
    """Its processes are gone, but the kernel may take a moment to know."""
    due_s = time.monotonic() + REMOVE_WAIT_S
    while group.exists() and time.monotonic() < due_s:
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(REMOVE_POLL_S)
