"""The heir that a launcher has on its machine, while the coordinator is on another one: kept, and ended."""

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast.run import kin
from holdfast.run.distant import HeirOrder
from holdfast.run.seeking import Address

AGAIN_INTERVAL_S, AGAIN_INTERVAL_S_MAX = 1.0, 60.0
"""Between the end of one and the start of the next; twice as long each time, unless it has lived for long."""


def machine_name() -> str:
    """What the others call this launcher's machine. Another launcher on it has another name: what the first
    has promised, it does not know.
    """
    return f"{socket.gethostname().partition('.')[0]}-{secrets.token_hex(4)}"


class MachineHeir:
    """The heir's process, or rather one after the other. What an heir may never forget is in a file that this
    process alone holds, in memory.
    """

    def __init__(self, order: HeirOrder, place: Callable[[], Address]) -> None:
        """place: is asked where the coordinator is by now."""
        self._memory = os.memfd_create("holdfast-heir")
        self._order = msgspec.structs.replace(order, memory=self._memory)
        self._place = place
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Have one until the run is over for it. One that was elected and deposed is followed by another: the
        line of succession needs it.
        """
        loop, pause_s = asyncio.get_running_loop(), AGAIN_INTERVAL_S
        started_s = loop.time()
        while await self._run() != 0:
            if loop.time() - started_s > AGAIN_INTERVAL_S_MAX:
                pause_s = AGAIN_INTERVAL_S
            await asyncio.sleep(pause_s)
            pause_s, started_s = min(2 * pause_s, AGAIN_INTERVAL_S_MAX), loop.time()

    async def _run(self) -> int:
        host, port = self._place()
        order = msgspec.structs.replace(self._order, host=host, port=port)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "holdfast.run.distant"),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(self._memory,),
            start_new_session=True,
        )
        with suppress(ConnectionError):  # it was killed before it could read
            await self._process.communicate(json.dumps(msgspec.to_builtins(order)).encode())
        return await self._process.wait()

    async def finish(self, wait_s: float) -> None:
        """The run is over. One that coordinates still has others to let go, and so long for it."""
        if self._process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._process.wait()
            if self._process.returncode is None:
                kin.signal_process(self._process.pid, signal.SIGKILL)
        os.close(self._memory)
