"""A cluster for tests of the room `train`: a real coordinator, real members, real kills, quick starts.

Nodes and members are forked from a process that has imported torch (zygote.py), which takes milliseconds
where the real agent's processes take seconds; what the agent does beyond that has tests of its own.
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.record.clock import SystemClock
from holdfast.record.recorder import Recorder
from holdfast.run import wire
from holdfast.run.coordinator import Coordinator
from holdfast.run.state import Ending, Policy

RUN_S_MAX = 120.0


class Result(NamedTuple):
    """What a run came to: how it ended, the digest its members agree on, the losses of the steps that those
    took part in who saw the end, how many faults struck, and what was said about it all.
    """

    ending: Ending
    digest: str
    losses: dict[int, float]
    struck: int
    said: list[str]


class Cluster:
    """Runs of small scripts, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._zygote = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._zygote.stdout is not None
        assert self._zygote.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._zygote.communicate(timeout=10)

    def train(
        self,
        build: str,
        *,
        nodes: int = 1,
        members: int = 1,
        steps: int = 12,
        lanes: int = 8,
        faults: Sequence[wire.PlannedFault] = (),
        checkpoint_every: int = 0,
    ) -> Result:
        """`nodes` nodes with `members` members each."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        arguments = {
            "build": build,
            "folder": str(folder),
            "steps": steps,
            "lanes": lanes,
            "checkpoint_every": checkpoint_every,
        }
        policy = Policy(
            run=folder.name, slots=members, nodes_min=1, nodes_max=nodes, warm=1, faults=tuple(faults)
        )
        ending, said = asyncio.run(self._run(policy, folder, json.dumps(arguments)))
        results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        digests = {result["digest"] for result in results}
        losses: dict[int, float] = {}
        for result in results:
            for step, loss in result["losses"].items():
                assert losses.setdefault(int(step), loss) == loss, f"two losses of step {step}"
        assert len(digests) <= 1, f"members disagree: {said}"
        struck = sum(line.startswith("planned ") and " strikes " in line for line in said)
        return Result(ending, digests.pop() if digests else "", dict(sorted(losses.items())), struck, said)

    async def _run(self, policy: Policy, folder: Path, arguments: str) -> tuple[Ending, list[str]]:
        said: list[str] = []
        with Recorder(folder / "journal", run=policy.run) as recorder:
            coordinator = Coordinator(policy, "token-of-the-tests", recorder, SystemClock(), said.append)
            await coordinator.start("127.0.0.1", 0)
            host, port = coordinator.endpoint
            names = ",".join(f"n{number}" for number in range(policy.nodes_max))
            self._tell(f"{names} {policy.slots} {host}:{port} token-of-the-tests {arguments}")
            try:
                async with asyncio.timeout(RUN_S_MAX):
                    return await coordinator.ended(), said
            except TimeoutError:
                raise AssertionError(f"the run did not end; what was said: {said}") from None
            finally:
                self._tell("")
                await coordinator.close()

    def _tell(self, line: str) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(line.encode() + b"\n")
        self._zygote.stdin.flush()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()
