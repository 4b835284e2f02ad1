"""Holdfast's own processes that a signal has stopped (SIGSTOP): the process that started them ends them.

No other process can, because the others only see that they are silent.
"""

import asyncio
import signal

from holdfast.run import kin, whereabouts
from holdfast.run.waits import LEASE_S_MIN

STOPS_INTERVAL_S = 0.5
"""How often to ask the kernel whether a process is stopped."""


async def end_stopped(process: asyncio.subprocess.Process) -> bool:
    """Kill the process once it has been stopped for `LEASE_S_MIN`. False if it ended before that."""
    loop = asyncio.get_running_loop()
    since_s = None
    while process.returncode is None:
        if not whereabouts.is_stopped(process.pid):
            since_s = None
        elif since_s is None:
            since_s = loop.time()
        elif loop.time() - since_s >= LEASE_S_MIN:
            kin.signal_process(process.pid, signal.SIGKILL)
            return True
        await asyncio.sleep(STOPS_INTERVAL_S)
    return False
