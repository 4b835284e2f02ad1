"""A run's real coordinator and nothing else: its port on stdout, and then an answer to each line of stdin.

`step N` waits until the run has that step, `generation N` until that one is formed. The answer is when that
was, and the processor's seconds and the memory that the process has used by then.
"""

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from holdfast.record.clock import SystemClock
from holdfast.record.recorder import Recorder
from holdfast.run.coordinator import Coordinator
from holdfast.run.state import RunPolicy

POLL_S = 0.001


class Watched(Coordinator):
    """One that can be asked where its run is, without the price of a whole status."""

    @property
    def step(self) -> int:
        return self._state.progress.step

    @property
    def generation(self) -> int:
        formed = self._state.generations.formed
        return 0 if formed is None else formed.number


async def serve(nodes: int, slots: int, token: str, folder: Path) -> None:
    policy = RunPolicy(run="crowd", nodes_min=1, nodes_max=nodes, slots=slots, warm=0)
    clock = SystemClock()
    with Recorder(folder / "journal", run="crowd", clock=clock) as recorder:
        hub = Watched(policy, token, recorder, clock, lambda text: print(text, file=sys.stderr))
        await hub.start("127.0.0.1", 0)
        print(hub.endpoint[1], flush=True)
        asked = asyncio.StreamReader()
        reading = asyncio.StreamReaderProtocol(asked)
        await asyncio.get_running_loop().connect_read_pipe(lambda: reading, sys.stdin)
        while words := (await asked.readline()).decode().split():
            while (hub.step if words[0] == "step" else hub.generation) < int(words[1]):
                await asyncio.sleep(POLL_S)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(time.monotonic(), time.process_time(), peak * 1024, flush=True)
        await hub.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(made)))
