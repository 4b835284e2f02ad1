"""Processes for tests of a transport: each is one rank, and all meet at a board that the test holds.

Ranks are forked from a process that has imported torch and never touched CUDA, so that one starts in
milliseconds and has a device's context, its threads and its memory to itself. A scenario is a function that
every rank calls; its result comes back to the test. The test holds the board, so the board survives any rank.
"""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Literal, NamedTuple, Self

import pytest
import torch

from holdfast.run import kin
from holdfast.train.group import Group, Rendezvous, Superseded, form
from holdfast.train.tcp import Credentials, TcpGroup

Transport = Literal["tcp", "nccl"]
SCENARIO_S_MAX = 300.0
HEAR_S_MAX = 120.0
LOOK_S = 0.02
"""Pause between two checks whether a key is still wanted."""
DUMP_S = 1.0
"""How long a rank that hangs has to print its stack."""


def never() -> bool:
    return False


class Board:
    """Keys that processes publish and wait for."""

    def __init__(self) -> None:
        self._keys: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._listener = Listener(family="AF_UNIX", backlog=64)
        self.address = str(self._listener.address)
        threading.Thread(target=self._accept, daemon=True).start()

    def publish(self, key: str, value: bytes = b"") -> None:
        with self._changed:
            self._keys[key] = value
            self._changed.notify_all()

    def wait(self, key: str, s_max: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._keys, s_max)
            return self._keys.get(key)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: "Connection[Any, Any]") -> None:
        with suppress(EOFError, OSError), connection:  # its process is gone
            while True:
                verb, key, given = connection.recv()
                if verb == "publish":
                    self.publish(key, given)
                connection.send(self.wait(key, given) if verb == "wait" else None)


class BoardAway:
    """The board as a rank sees it. Each thread has a connection of its own, on which it may wait."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._of_thread = threading.local()

    def publish(self, key: str, value: bytes = b"") -> None:
        self._ask("publish", key, value)

    def lookup(self, key: str, superseded: Callable[[], bool]) -> bytes:
        while not superseded():
            value: bytes | None = self._ask("wait", key, LOOK_S)
            if value is not None:
                return value
        raise Superseded

    def hear(self, key: str, s_max: float = HEAR_S_MAX) -> bytes:
        due = time.monotonic() + s_max
        try:
            return self.lookup(key, lambda: time.monotonic() > due)
        except Superseded:
            raise AssertionError(f"{key} was not published in {s_max} s") from None

    def _ask(self, verb: str, key: str, given: object) -> Any:
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = Client(self._address, family="AF_UNIX")
        self._of_thread.connection.send((verb, key, given))
        return self._of_thread.connection.recv()


class Rank:
    """One process of a scenario: number `index` of `size`."""

    def __init__(self, transport: Transport, index: int, size: int, board: BoardAway) -> None:
        self.transport = transport
        self.index = index
        self.size = size
        self.board = board
        self.device = torch.device("cuda", 0) if transport == "nccl" else torch.device("cpu")
        self.on_look: Callable[[], object] = lambda: None
        """Called when a group that is being made first looks up or publishes a key."""
        if transport == "nccl":
            from holdfast.train import nccl

            nccl.pose(f"rank{index}", "127.0.0.1")
            torch.cuda.set_device(self.device)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def form(
        self, name: str, members: Iterable[int] | None = None, superseded: Callable[[], bool] = never
    ) -> Group:
        """A group of these ranks, or of all: each of them calls this with the same name."""
        ranks = list(range(self.size) if members is None else members)
        rank = ranks.index(self.index)
        return form(lambda: self._make(name, rank, len(ranks), superseded), superseded)

    def _make(self, name: str, rank: int, size: int, superseded: Callable[[], bool]) -> Group:
        def publish(key: str, value: bytes) -> None:
            self.board.publish(f"{name}/{key}", value)
            self.on_look()

        def lookup(key: str) -> bytes:
            value = self.board.lookup(f"{name}/{key}", superseded)
            self.on_look()
            return value

        store = Rendezvous(publish, lookup, generation=name)
        if self.transport == "tcp":
            return TcpGroup(
                store,
                rank=rank,
                size=size,
                address="127.0.0.1",
                credentials=Credentials("r", "token-of-the-tests"),
                superseded=superseded,
            )
        from holdfast.train.nccl import NcclGroup

        return NcclGroup(store, rank=rank, size=size, device=self.device, superseded=superseded)

    def meet(self, name: str, members: Iterable[int] | None = None) -> None:
        """Wait until all of these ranks are here."""
        self.board.publish(f"{name}/at/{self.index}")
        for peer in range(self.size) if members is None else members:
            self.board.hear(f"{name}/at/{peer}")


Scenario = Callable[..., Any]


class Told(NamedTuple):
    """The arguments of a rank's process."""

    transport: Transport
    rank: int
    size: int
    address: str
    scenario: Scenario
    arguments: dict[str, Any]


class Ranks:
    """Starts scenarios over one transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport = transport
        # Imports check for a GPU, too, which must not go through CUDA before a fork.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pytest", "torch.distributed", "holdfast.train.joining"])

    @property
    def wake_s_max(self) -> float:
        """The longest that an abort may take to wake a waiting rank, which would otherwise wait
        for minutes.
        """
        return 30.0

    def run(self, scenario: Scenario, size: int, **arguments: Any) -> list[Any]:
        """The results of the scenario, by rank."""
        with self.running(scenario, size, **arguments) as running:
            return running.results(range(size))

    @contextmanager
    def running(self, scenario: Scenario, size: int, **arguments: Any) -> Iterator["Running"]:
        board = Board()
        told = [Told(self.transport, rank, size, board.address, scenario, arguments) for rank in range(size)]
        processes = [self._context.Process(target=_become, args=(each,), daemon=True) for each in told]
        with Running(board, processes) as running:
            yield running


class Running:
    """A scenario under way."""

    def __init__(self, board: Board, processes: list[Any]) -> None:
        self.board = board
        self._processes = processes
        self._due = time.monotonic() + SCENARIO_S_MAX

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self.board.close()

    def kill(self, rank: int) -> None:
        os.kill(self._processes[rank].pid, signal.SIGKILL)
        self.bury(rank)

    def bury(self, rank: int) -> None:
        """Wait for a death, and announce it: `dead/RANK`."""
        self._processes[rank].join(max(0.0, self._due - time.monotonic()))
        if self._processes[rank].is_alive():
            self._fail(f"rank {rank} was to die, but lives")
        self.board.publish(f"dead/{rank}")

    def hear(self, key: str) -> bytes:
        found = self.board.wait(key, HEAR_S_MAX)
        if found is None:
            self._fail(f"{key} was not published")
        assert found is not None
        return found

    def results(self, ranks: Iterable[int]) -> list[Any]:
        return [self._result(rank) for rank in ranks]

    def _result(self, rank: int) -> Any:
        while (found := self.board.wait(f"result/{rank}", LOOK_S)) is None:
            if time.monotonic() > self._due:
                self._fail(f"rank {rank} did not end")
            exitcode = self._processes[rank].exitcode
            if exitcode is not None and self.board.wait(f"result/{rank}", LOOK_S) is None:
                self._fail(f"rank {rank} died ({exitcode})")
        is_good, value = pickle.loads(found)
        if not is_good:
            self._fail(f"rank {rank} failed:\n{value}")
        return value

    def _fail(self, sentence: str) -> None:
        """Fail with this sentence; ranks that still run print their stacks."""
        for process in self._processes:
            if process.is_alive():
                process_id: int = process.pid
                os.kill(process_id, signal.SIGUSR1)
        time.sleep(DUMP_S)
        pytest.fail(sentence)


def _become(told: Told) -> None:
    """Runs in the rank's process."""
    kin.die_with(os.getppid())
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    board = BoardAway(told.address)
    try:
        rank = Rank(told.transport, told.rank, told.size, board)
        result = True, told.scenario(rank, **told.arguments)
    except BaseException:
        result = False, traceback.format_exc()
    board.publish(f"result/{told.rank}", pickle.dumps(result))
    sys.stderr.flush()
    os._exit(0)  # skips torch's shutdown, which is slow and not tested here
