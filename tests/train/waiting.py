"""Waiting for conditions, in tests of every room. The bounds are for failures: a test that passes does not
come near them, however busy the machine is.
"""

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

WAIT_S = 400.0
POLL_INTERVAL_S = 0.01
ANSWER_S_MAX = 30.0
PORTS = range(20_000, 32_000)
"""Linux chooses from 32768 on (net.ipv4.ip_local_port_range), and Ray for its workers from 10002 to 19999."""

Found = TypeVar("Found")


def until(
    condition: Callable[[], Found],
    tell: Callable[[], object] = lambda: "it did not happen in time",
    *,
    wait_s: float = WAIT_S,
) -> Found:
    """The value of the condition, once it is true. tell: what to print if it never is."""
    due_s = time.monotonic() + wait_s
    while not (found := condition()):
        assert time.monotonic() < due_s, tell()
        time.sleep(POLL_INTERVAL_S)
    return found


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """Wait while another worker of this user does this: only one may at a time."""
    with (Path(tempfile.gettempdir()) / f"holdfast-{what}-{os.geteuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def answers(url: str) -> bool:
    """Whether a server answers without an error."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX):
            return True
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    """Whether the process lives. A zombie, which its parent has not reaped yet, is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def free_port() -> int:
    """A port without a listener, for a server that is given its port. It is outside the kernel's own range,
    from which the kernel might give it away before the server has it.
    """
    while True:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
