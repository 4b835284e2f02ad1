"""A cluster for tests of the room `train`: a real coordinator, real members, real kills, quick starts.

Nodes and members are forked from a process that has imported torch (zygote.py), which takes milliseconds
where the real agent's processes take seconds; what the agent does beyond that has tests of its own.
"""

import asyncio
import itertools
import json
import queue
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from holdfast.record.clock import SystemClock
from holdfast.record.recorder import Recorder
from holdfast.run import wire
from holdfast.run.coordinator import Coordinator
from holdfast.run.state import Ending, Policy
from holdfast.train.group import GroupBroken, Sending, Transfer

RUN_S_MAX = 120.0
LETTER_S_MAX = 20.0
END_S_MAX = 60.0


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
        self._undisturbed: dict[str, Result] = {}
        self._zygote = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._zygote.stdout is not None
        assert self._zygote.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._zygote.communicate(timeout=END_S_MAX)

    def undisturbed(self, build: str) -> Result:
        """One member by itself; computed once for all tests."""
        if build not in self._undisturbed:
            self._undisturbed[build] = self.train(build)
        return self._undisturbed[build]

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
        stop_after: int = 0,
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
            "stop_after": stop_after,
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
                # As text: a loss may be what equals nothing.
                assert str(losses.setdefault(int(step), loss)) == str(loss), f"two losses of step {step}"
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


Post = dict[tuple[int, int, int], "queue.SimpleQueue[torch.Tensor]"]
"""What is under way, by sender, receiver and tag."""


class LoopbackGroup:
    """A group whose members are threads of this process. on_send: may change what is sent."""

    def __init__(self, post: Post, rank: int, size: int, on_send: Callable[[torch.Tensor], None]) -> None:
        self._post = post
        self._on_send = on_send
        self.rank = rank
        self.size = size

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int) -> "LoopbackWork":
        for tensor, peer in sends:
            letter = tensor.clone()
            self._on_send(letter)
            self._post[self.rank, peer, tag].put(letter)
        return LoopbackWork([(tensor, self._post[peer, self.rank, tag]) for tensor, peer in receives])

    def settle(self) -> None:
        pass

    def sending(self) -> tuple[Sending, ...]:
        return ()

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class LoopbackWork:
    def __init__(self, expected: list[tuple[torch.Tensor, "queue.SimpleQueue[torch.Tensor]"]]) -> None:
        self._expected = expected

    def wait(self) -> None:
        for tensor, letters in self._expected:
            try:
                arrived = letters.get(timeout=LETTER_S_MAX)
            except queue.Empty:
                raise GroupBroken("nothing came") from None
            assert arrived.shape == tensor.shape
            tensor.copy_(arrived)


Together = Callable[..., list[Any]]


@pytest.fixture
def together() -> Together:
    """Does the same in several threads, each with its place in one group; what came of it, by rank."""

    def do(
        size: int,
        what: Callable[[LoopbackGroup], Any],
        on_send: Callable[[torch.Tensor], None] = lambda _: None,
    ) -> list[Any]:
        post: Post = defaultdict(queue.SimpleQueue)
        with ThreadPoolExecutor(size) as pool:
            groups = [LoopbackGroup(post, rank, size, on_send) for rank in range(size)]
            return list(pool.map(what, groups))

    return do


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """This process as a run with one member; where it keeps its journal. Leaves no traces in torch."""
    for name in ("HOLDFAST_COORDINATOR", "HOLDFAST_CHECKPOINTS", "HOLDFAST_CHECKPOINT_EVERY", "HOLDFAST_RUN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    excepthook, show, threads = sys.excepthook, warnings.showwarning, torch.get_num_threads()
    yield tmp_path / "journal"
    sys.excepthook, warnings.showwarning = excepthook, show
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
