"""Kills all members of a run at once, and finds the step from which it resumes."""

import asyncio
import os
import re
import signal
from collections.abc import Callable

from forked_cluster import Cluster, Meanwhile, Result
from launching import descendants

from holdfast.run.coordinator import Coordinator


def killing(
    cluster: Cluster, steps: list[int], spoil: Callable[[int], None] = lambda node: None
) -> Meanwhile:
    """Kills all members at once, including warm ones, each time the run has come to one of these steps.
    spoil: called for each node before.
    """

    async def kill(coordinator: Coordinator) -> None:
        for step in steps:
            while coordinator.status().step < step:
                await asyncio.sleep(0.01)
            members = [pid for node in cluster.node_pids() for pid in descendants(node)[1:]]
            for pid in members:
                os.kill(pid, signal.SIGSTOP)
            for node in cluster.node_pids():
                spoil(node)
            generation = coordinator.status().generation
            for pid in members:
                os.kill(pid, signal.SIGKILL)
            while coordinator.status().generation == generation:
                await asyncio.sleep(0.01)

    return kill


def goes_on_from(run: Result) -> list[int]:
    """The steps from which the run resumed after each loss."""
    return [int(found[1]) - 1 for line in run.said if (found := re.search(r"; step (\d+) goes on", line))]
