"""The heir that a launcher keeps on its machine while the coordinator is on another one."""

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
"""The pause between the end of one heir and the start of the next. It doubles each time, unless the heir
lived for long."""


def machine_name() -> str:
    """The name of this launcher's machine for the others. Another launcher on the same machine gets another
    name, because it does not know the first one's promises.
    """
    return f"{socket.gethostname().partition('.')[0]}-{secrets.token_hex(4)}"


class MachineHeir:
    """Keeps an heir process, starting a new one whenever it ends. The promises of an heir, which it must
    never forget, are in a memory file that only this process holds.
    """

    def __init__(self, order: HeirOrder, place: Callable[[], Address]) -> None:
        """place: returns where the coordinator is by now."""
        self._memory = os.memfd_create("holdfast-heir")
        self._order = msgspec.structs.replace(order, memory=self._memory)
        self._place = place
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Keep an heir until the run is over for it. After one that was elected and deposed, start another,
        because the line of succession needs it.
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
        """End the heir because the run is over. If it coordinates, it has `wait_s` to dismiss the others."""
        if self._process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._process.wait()
            if self._process.returncode is None:
                kin.signal_process(self._process.pid, signal.SIGKILL)
        os.close(self._memory)
