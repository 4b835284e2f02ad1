"""A process as the kernel shows it: whether it runs, what it waits for, what it has used so far.

Everything comes from /proc, which also works for a process that cannot answer itself, because it is stopped
or its interpreter is busy. Fields that this user may not read are left out.
"""

import ipaddress
import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

PROCESSES_MAX = 256
"""How many of a member's descendants are counted, such as the workers of its data loaders."""

Waiting = Literal["lock", "connection", "pipe", "poll", "sleep", "process", ""]
"""What a thread waits for in the kernel. poll: any of several connections or pipes. Empty if it does not wait
or that is unknown."""

_CALLS: dict[str, dict[int, Waiting | Literal["read"]]] = {
    "x86_64": {
        0: "read",
        45: "connection",
        47: "connection",
        42: "connection",
        43: "connection",
        7: "poll",
        23: "poll",
        232: "poll",
        270: "poll",
        271: "poll",
        281: "poll",
        202: "lock",
        35: "sleep",
        230: "sleep",
        61: "process",
        247: "process",
    },
    "aarch64": {
        63: "read",
        207: "connection",
        212: "connection",
        202: "connection",
        203: "connection",
        22: "poll",
        72: "poll",
        73: "poll",
        98: "lock",
        101: "sleep",
        115: "sleep",
        260: "process",
        95: "process",
    },
}
"""System calls by number: read, recvfrom, recvmsg, connect, accept; poll, select, epoll_wait and their
variants; futex; nanosleep, clock_nanosleep; wait4, waitid."""
_CHANNELS: dict[str, Waiting] = {
    "futex": "lock",
    "poll": "poll",
    "select": "poll",
    "nanosleep": "sleep",
    "pipe": "pipe",
    "wait_woken": "connection",
    "sk_wait": "connection",
    "tcp_": "connection",
    "unix_": "connection",
    "do_wait": "process",
}
"""The same by a part of the kernel function's name, for when the system call cannot be read."""


class KernelView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process at one moment.

    state: of its main thread, as in proc(5): R runs, S sleeps, D waits for a device, T is stopped. channel:
    the kernel function that it waits in. cpu_s: processor time, including that of its descendants.
    moved_bytes: bytes read and written by its main thread and its descendants. ends: the two ends of the TCP
    connection that it waits for. runs_threads: one of its threads or descendants runs or is ready to run.
    """

    state: str = ""
    waits_for: Waiting = ""
    channel: str = ""
    cpu_s: float = 0.0
    moved_bytes: int = 0
    ends: tuple[str, str] | None = None
    runs_threads: bool = False


def view(pid: int) -> KernelView:
    main = f"/proc/{pid}/task/{pid}"
    call, first = _call(main)
    waits_for: Waiting = ""
    link = _link(pid, first) if call in ("read", "connection") else ""
    if call == "read":
        waits_for = "connection" if link.startswith("socket:") else "pipe" if link.startswith("pipe:") else ""
    elif call:
        waits_for = call
    channel = _read(f"{main}/wchan").strip("\0\n 0")
    if not call:
        waits_for = next((kind for part, kind in _CHANNELS.items() if part in channel), "")
    started = list(descendants(pid))
    return KernelView(
        state=state_of(main),
        waits_for=waits_for,
        channel=channel,
        cpu_s=sum(map(_cpu_s, (pid, *started))),
        moved_bytes=sum(map(_moved_bytes, (main, *(f"/proc/{child}" for child in started)))),
        ends=_ends(pid, link),
        runs_threads=any(
            state_of(task) == "R" for task in (*map(str, _tasks(pid)), *(f"/proc/{one}" for one in started))
        ),
    )


def _call(task: str) -> tuple[Waiting | Literal["read"], int]:
    """The system call that a thread waits in, and the call's first argument."""
    words = _read(f"{task}/syscall").split()
    if len(words) < 2 or not words[0].isdecimal():
        return "", 0
    return _CALLS.get(platform.machine(), {}).get(int(words[0]), ""), int(words[1], 16)


def _ends(pid: int, link: str) -> tuple[str, str] | None:
    inode = link.removeprefix("socket:[").removesuffix("]")
    if not link.startswith("socket:["):
        return None
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            columns = line.split()
            if len(columns) > 9 and columns[9] == inode:
                return _endpoint(columns[1]), _endpoint(columns[2])
    return None


def _endpoint(text: str) -> str:
    """Decode an address such as 0100007F:1F90, which is 127.0.0.1:8080: four-byte words in machine order."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address}:{int(port, 16)}"


def descendants(pid: int) -> Iterator[int]:
    """All processes that it has started, directly or indirectly."""
    waiting, count = [pid], 0
    while waiting:
        parent = waiting.pop()
        for task in _tasks(parent):
            for child in map(int, _read(f"{task}/children").split()):
                count += 1
                if count > PROCESSES_MAX:
                    return
                waiting.append(child)
                yield child


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def state_of(task: str) -> str:
    """The state of a thread or process, given its path in /proc."""
    fields = _read(f"{task}/stat").rpartition(")")[2].split()
    return fields[0] if fields else ""


def _cpu_s(pid: int) -> float:
    """The processor time of the process and of its children that have ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def waits(pid: int) -> int:
    """How often the process's main thread has started to wait for something."""
    status = _read(f"/proc/{pid}/task/{pid}/status")
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def _moved_bytes(place: str) -> int:
    return sum(map(int, re.findall(r"^[rw]char: (\d+)$", _read(f"{place}/io"), re.MULTILINE)))


def _link(pid: int, descriptor: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
