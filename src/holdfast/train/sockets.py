"""The network connections of this process, including those of libraries: NCCL's have no other handle."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress


def network_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Every descriptor of an internet socket, with a copy of it that is open until the next is requested."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names only; a recovery waits for this)
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(name), copy


def listens(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
