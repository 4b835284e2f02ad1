"""A run's real coordinator, followed as any is: its port on stdout, and then an answer to each line of stdin.

A successor follows it over a pipe and heirs over connections, each a process of its own, as on a run's
machines. `step N` waits until the run has that step, `generation N` until that one is formed. The answer is
when that was, and the processor's seconds and the memory that the coordinator's process has used by then.
"""

import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.record.clock import SystemClock
from holdfast.record.journal import new_token
from holdfast.record.recorder import Recorder
from holdfast.run.coordinator import Coordinator
from holdfast.run.distant import HeirOrder
from holdfast.run.endpoint import reserved
from holdfast.run.estate import Estate, TermBegun
from holdfast.run.following import Following, first_electorate
from holdfast.run.heir import Heir
from holdfast.run.heirs import MachineHeir
from holdfast.run.hub import HubOrder, encoded
from holdfast.run.reigning import tend
from holdfast.run.sent import FRAMES_MAX
from holdfast.run.site import Site
from holdfast.run.state import RunPolicy
from holdfast.run.succession import MachinePlace, Mandate, Reign

POLL_S = 0.001
FOLLOW_WAIT_S = 120.0
HOST = "127.0.0.1"
RUN = "crowd"
MACHINE = "first"


class Watched(Coordinator):
    """One that can be asked where its run is, without the price of a whole status."""

    @property
    def step(self) -> int:
        return self._state.progress.step

    @property
    def generation(self) -> int:
        formed = self._state.generations.formed
        return 0 if formed is None else formed.number

    def begin(self) -> Following:
        """Its term; until others have joined, this machine is the only elector."""
        electorate = first_electorate(MACHINE, has_arbiter=False)
        reign = Reign(MACHINE, 1, Mandate(electorate=electorate), self.estate.known.position)
        self.heirs = Following(self.estate, MachinePlace(MACHINE, *self.endpoint), reign)
        self.enter(TermBegun(term=1, electorate=electorate, now_ns=self.now_ns()))
        return self.heirs


@asynccontextmanager
async def followed(hub: Watched, order: HubOrder, heirs: int) -> AsyncIterator[None]:
    """By a successor and so many heirs, all of whom have the estate when the block begins."""
    following, home = hub.begin(), Path(order.home)
    with reserved(home, RUN) as reservation:
        is_followed = asyncio.Event()

        def note(process: int) -> None:
            if process:
                is_followed.set()

        successor = Heir(encoded(order), hub, reservation.descriptor, note)
        hub.follow = successor.follow
        machines = [
            MachineHeir(_heir_order(order, hub, f"heir-{number}"), lambda: hub.endpoint)
            for number in range(heirs)
        ]
        reigning = asyncio.create_task(tend(hub, following, order.site.token, None))
        reigning.add_done_callback(_deposed)
        chores: Sequence[asyncio.Task[object]] = [asyncio.create_task(successor.keep()), reigning]
        keeping = [asyncio.create_task(machine.keep()) for machine in machines]
        async with asyncio.timeout(FOLLOW_WAIT_S):
            await is_followed.wait()
            while len(hub.estate.mandate.electorate.machines) <= heirs:
                await asyncio.sleep(POLL_S)
        try:
            yield
        finally:
            following.finish()
            if keeping:
                await asyncio.wait(keeping, timeout=FOLLOW_WAIT_S)
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            for machine in machines:
                await machine.finish(0.0)
            await successor.finish()


def _deposed(reigning: asyncio.Task[str]) -> None:
    """Another one of these processes coordinates: this one has nothing to answer any more."""
    if not reigning.cancelled():
        os._exit(1)


def _heir_order(order: HubOrder, hub: Watched, machine: str) -> HeirOrder:
    host, port = hub.endpoint
    return HeirOrder(
        host=host,
        port=port,
        token=order.site.token,
        machine=machine,
        home=order.home,
        memory=0,
        launcher=os.getpid(),
    )


async def serve(nodes: int, slots: int, heirs: int, token: str, folder: Path) -> None:
    policy = RunPolicy(run=RUN, nodes_min=1, nodes_max=nodes, slots=slots, warm=0)
    clock = SystemClock()
    with Recorder(folder / "journal", run=RUN, clock=clock) as recorder:
        estate = Estate(policy, clock.now_ns(), new_token(), FRAMES_MAX)
        hub = Watched(
            policy, token, recorder, clock, lambda text: print(text, file=sys.stderr), estate=estate
        )
        await hub.start(HOST, 0)
        site = Site(host=HOST, port=hub.endpoint[1], token=token, bind=HOST)
        order = HubOrder(policy=policy, home=str(folder), site=site, launcher=os.getpid(), machine=MACHINE)
        async with followed(hub, order, heirs):
            print(hub.endpoint[1], flush=True)
            await _answer(hub)
        await hub.close()


async def _answer(hub: Watched) -> None:
    asked = asyncio.StreamReader()
    reading = asyncio.StreamReaderProtocol(asked)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reading, sys.stdin)
    while words := (await asked.readline()).decode().split():
        while (hub.step if words[0] == "step" else hub.generation) < int(words[1]):
            await asyncio.sleep(POLL_S)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(time.monotonic(), time.process_time(), peak * 1024, flush=True)


if __name__ == "__main__":
    count_nodes, count_slots, count_heirs = (int(word) for word in sys.argv[1:4])
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(serve(count_nodes, count_slots, count_heirs, sys.argv[4], Path(made)))
