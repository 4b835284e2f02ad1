"""The coordinator's successor, from the coordinator's side: a process that follows, ready to take over.

It receives the estate once and then every entry, over a pipe that only these two processes have. The kernel
keeps a pipe's content when its writer is killed, and signals its end to the reader only then. So the
successor knows everything that the coordinator did, and that the coordinator is dead. The successor's side is
in standby.py.
"""

import asyncio
import fcntl
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.run import kin
from holdfast.run.coordinator import Coordinator
from holdfast.run.estate import EstateEntry
from holdfast.run.stopped import end_stopped
from holdfast.run.waits import LEASE_S_MIN

PIPE_BYTES = 1 << 20
"""The most that Linux allows an unprivileged user by default (pipe-max-size)."""
WRITE_WAIT_S = 1.0
"""A successor that reads nothing for this long is given up, and another one is started."""
START_INTERVAL_S, START_INTERVAL_S_MAX = 1.0, 60.0
"""The pause between the end of one successor and the start of the next. It doubles each time that none could
follow."""
FINISH_WAIT_S = 5.0
READY = b"ready\n"
LENGTH_BYTES = 4


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Heir:
    """Keeps a successor process, starting a new one whenever it ends."""

    def __init__(
        self, charge: bytes, coordinator: Coordinator, reservation: int, publish: Callable[[int], None]
    ) -> None:
        """publish: called with the pid of the process that follows from now on; 0 for none."""
        self._charge = charge
        self._publish = publish
        self._coordinator = coordinator
        self._reservation = reservation
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None
        self._is_following = False
        self._is_missed = False

    async def keep(self) -> None:
        """Keep a successor running until cancelled."""
        pause_s = START_INTERVAL_S
        while True:
            trouble = ""
            try:
                has_followed = await self._run()
            except OSError as error:  # no memory, or no room for another process
                self._close()
                has_followed, trouble = False, f": {error.strerror}"
            if has_followed:
                pause_s = START_INTERVAL_S
            elif pause_s == START_INTERVAL_S:
                self._coordinator.tell(f"the coordinator has no successor at the moment{trouble}")
                self._coordinator.endangered("successor", trouble.removeprefix(": "))
                self._is_missed = True
            await asyncio.sleep(pause_s)
            pause_s = pause_s if has_followed else min(2 * pause_s, START_INTERVAL_S_MAX)

    def follow(self, entry: EstateEntry) -> None:
        """Send the entry. When this returns, the entry is in the pipe, or there is no successor."""
        if self._is_following:
            self._write(pickle.dumps(entry, pickle.HIGHEST_PROTOCOL))

    async def finish(self) -> None:
        """End the successor without a takeover, because the run is over."""
        process = self._process
        if self._is_following:
            self._write(pickle.dumps(None))
        elif process is not None and process.returncode is None:
            kin.signal_process(process.pid, signal.SIGKILL)
        self._close()
        if process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_WAIT_S):
                    await process.wait()

    async def _run(self) -> bool:
        """Run one successor until it ends; whether it followed."""
        listener = self._coordinator.listener.fileno()
        reading, self._pipe = os.pipe()
        try:
            with suppress(OSError):  # the user's limit may be reached; a small pipe works, too
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            os.set_blocking(self._pipe, False)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "holdfast.run.standby", str(listener), str(self._reservation)),
                stdin=reading,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(listener, self._reservation),
                start_new_session=True,
            )
        finally:
            os.close(reading)
        watching = asyncio.create_task(self._end_stopped(self._process))
        self._write(self._charge)
        assert self._process.stdout is not None
        if await self._process.stdout.readline() == READY:
            self._write(pickle.dumps(self._coordinator.estate, pickle.HIGHEST_PROTOCOL))
            self._is_following = self._pipe is not None
            self._publish(self._process.pid if self._is_following else 0)
            if self._is_following and self._is_missed:
                self._is_missed = False
                self._coordinator.endangered("successor", over=True)
        has_followed = self._is_following
        await self._process.wait()
        watching.cancel()
        self._close()
        return has_followed

    async def _end_stopped(self, process: asyncio.subprocess.Process) -> None:
        """Kill the successor if it is stopped (SIGSTOP), because it could not take over."""
        if await end_stopped(process):
            self._coordinator.tell(
                f"the coordinator's successor was stopped for {LEASE_S_MIN:g} s: it is killed and replaced"
            )

    def _write(self, body: bytes) -> None:
        if self._pipe is None:
            return
        rest, due_s = memoryview(framed(body)), time.monotonic() + WRITE_WAIT_S
        room = select.poll()
        room.register(self._pipe, select.POLLOUT)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._pipe, rest) :]
                except BlockingIOError:
                    if not room.poll(max(0.0, due_s - time.monotonic()) * 1000):
                        raise TimeoutError from None
        except OSError:  # it is gone, or reads nothing
            self._give_up()

    def _give_up(self) -> None:
        """Kill the successor before closing the pipe: if it were only cut off, it would take over."""
        if self._process is not None and self._process.returncode is None:
            kin.signal_process(self._process.pid, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        if self._is_following:
            self._is_following = False
            self._publish(0)
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
