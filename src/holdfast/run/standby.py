"""The coordinator's successor in waiting: it follows everything that the coordinator does, and does nothing.

When the pipe from the coordinator ends, the coordinator is dead: the kernel says so, and no other process
holds the pipe's other end. Then this process takes over at the same listening socket, where agents and
members that lost their connection are already waiting. `python -m holdfast.run.standby` is private to
heir.py.
"""

import asyncio
import os
import pickle
import select
import socket
import sys
from contextlib import suppress

from holdfast.run.estate import Estate
from holdfast.run.heir import LENGTH_BYTES, READY
from holdfast.run.hub import Legacy, Readiness, decoded, serve
from holdfast.run.kin import be_called

READ_BYTES = 1 << 20


class _Pipe:
    """Whole frames from the coordinator."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = bytearray()

    def next(self) -> bytes | None:
        """The next frame; None if the coordinator is dead. It never acted on an entry that it sent only in
        part.
        """
        while True:
            body = LENGTH_BYTES + int.from_bytes(self._data[:LENGTH_BYTES], "big")
            if len(self._data) >= LENGTH_BYTES and len(self._data) >= body:
                frame = bytes(self._data[LENGTH_BYTES:body])
                del self._data[:body]
                return frame
            data = os.read(self._descriptor, READ_BYTES)
            if not data:
                return None
            self._data += data


def _followed(pipe: _Pipe) -> Estate | None:
    """The estate as it was when the coordinator died; None if there is nothing to take over."""
    frame = pipe.next()
    if frame is None:
        return None
    estate: Estate = pickle.loads(frame)  # from the parent, over a private pipe
    while (frame := pipe.next()) is not None:
        entry = pickle.loads(frame)
        if entry is None:
            return None  # the run is over
        estate.take(entry)
    return estate


def _is_gone(process: int) -> bool:
    """Whether it has ended, even if its parent has not reaped it yet."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    ended = select.poll()
    ended.register(watched, select.POLLIN)
    is_gone = bool(ended.poll(0))
    os.close(watched)
    return is_gone


def _begun(begun: Readiness) -> None:
    """Do nothing, because no process waits for the successor to be ready."""


def main() -> int:
    listener, reservation = int(sys.argv[1]), int(sys.argv[2])
    pipe = _Pipe(0)
    frame = pipe.next()
    if frame is None:
        return 0
    charge = decoded(frame)
    with suppress(OSError):
        os.write(1, READY)
    os.dup2(2, 1)
    estate = _followed(pipe)
    if estate is None or (charge.launcher and _is_gone(charge.launcher)):
        return 0
    estate.takeovers += 1
    be_called("holdfast.run.hub", "holdfast.run.standby")
    for descriptor in (listener, reservation):
        os.set_inheritable(descriptor, False)
    legacy = Legacy(estate=estate, listener=socket.socket(fileno=listener), reservation=reservation)
    asyncio.run(serve(charge, _begun, legacy))
    return 0


if __name__ == "__main__":
    sys.exit(main())
