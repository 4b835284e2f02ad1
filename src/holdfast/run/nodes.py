"""The agents on a launcher's own machine: it starts them, restarts lost ones, and ends them."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from holdfast.run import kin
from holdfast.run.agent import EXIT_DISCONNECTED, Assignment, encoded
from holdfast.run.output import STREAMS
from holdfast.run.seeking import Address
from holdfast.run.stopped import end_stopped
from holdfast.run.waits import LEASE_S_MIN

SHORT_LIFE_S = 5.0
SHORT_LIVES_MAX = 20
"""An agent that was killed this soon, more than this many times in a row, is not started again."""
RECONNECT_S = 1.0


class LineOutlet(msgspec.Struct, frozen=True, kw_only=True):
    """Descriptors to which the members' lines go: by default this process's own."""

    stdout: int = STREAMS["stdout"]
    stderr: int = STREAMS["stderr"]


class NodeAgent:
    """Keeps the agent of one node, starting a new one when it is lost."""

    def __init__(
        self,
        assignment: Assignment,
        outlet: LineOutlet,
        away_s: Callable[[], Awaitable[float]],
        say: Callable[[str], None] = lambda _text: None,
        place: Callable[[], Address] | None = None,
    ) -> None:
        """away_s: returns how long a lost node stays away. say: prints a line for the operator. place:
        returns where the coordinator is by now; None if it does not move.
        """
        self._place = place
        self._assignment = assignment
        self._outlet = outlet
        self._away_s = away_s
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._last_signal: signal.Signals | None = None
        self._is_over = asyncio.Event()

    async def keep(self) -> int:
        """Run the agent until it exits by itself; returns its exit code, negative for a signal.

        A killed agent is started again, as if the node came back, unless it is always killed at once. An
        agent that lost the coordinator is started once more to reach it again.
        """
        loop = asyncio.get_running_loop()
        short_lives = 0
        while True:
            begun_s = loop.time()
            code = await self._run()
            short_lives = short_lives + 1 if loop.time() - begun_s < SHORT_LIFE_S else 0
            if code == EXIT_DISCONNECTED and not short_lives:
                await self._stay_away(RECONNECT_S)
            elif code < 0 and short_lives <= SHORT_LIVES_MAX:
                await self._stay_away(await self._away_s())
            else:
                return code
            if self._is_over.is_set():
                return code

    def finish(self) -> None:
        """Do not start the agent again when it exits, because the run is over."""
        self._is_over.set()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent, or to the one that is just being started."""
        self._last_signal = number
        if self._process is not None and self._process.returncode is None:
            kin.signal_process(self._process.pid, number)

    async def _stay_away(self, away_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(away_s):
                await self._is_over.wait()

    async def _run(self) -> int:
        # -P: a user's file with the name of one of our modules must not be imported instead.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "holdfast.run.agent"),
            stdin=asyncio.subprocess.PIPE,
            stdout=self._outlet.stdout,
            stderr=self._outlet.stderr,
            start_new_session=True,
        )
        if self._last_signal is not None:
            self.send_signal(self._last_signal)
        watching = asyncio.create_task(self._end_stopped(self._process))
        try:
            with suppress(ConnectionError):  # it was killed before it could read
                await self._process.communicate(encoded(self._present_assignment()))
            return await self._process.wait()
        finally:
            watching.cancel()

    def _present_assignment(self) -> Assignment:
        if self._place is None:
            return self._assignment
        host, port = self._place()
        return msgspec.structs.replace(self._assignment, host=host, port=port)

    async def _end_stopped(self, agent: asyncio.subprocess.Process) -> None:
        """Kill a stopped agent (SIGSTOP): the run gives it up, and its node returns with a new one."""
        if await end_stopped(agent):
            name = self._assignment.node or "this node"
            self._say(f"the agent of {name} was stopped for {LEASE_S_MIN:g} s: it is killed and replaced")


async def end_orphans(others: frozenset[int]) -> None:
    """End processes that lost agents left behind and this process adopted. others: earlier children.

    Call it only when all agents are gone, because other code waits for those.
    """
    due_s = asyncio.get_running_loop().time() + kin.ORPHAN_GRACE_S
    while orphans := kin.children() - others:
        kin.reap(orphans)
        now_s = asyncio.get_running_loop().time()
        if now_s >= due_s + kin.ORPHAN_KILL_S:
            return  # the kernel cannot end them
        if now_s >= due_s:  # repeatedly: a process that loses its parent this way is adopted, too
            for orphan in orphans:
                kin.signal_process(orphan, signal.SIGKILL)
        await asyncio.sleep(kin.ORPHAN_POLL_INTERVAL_S)
