"""Fixtures that tests of the room `train` share: a cluster of processes, groups of threads, a run of one
process.
"""

import queue
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_cluster import Cluster

from holdfast.train.group import GroupBroken, Sending, Transfer

LETTER_S_MAX = 60.0


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


Post = dict[tuple[int, int, int], "queue.SimpleQueue[torch.Tensor]"]
"""Letters under way, by sender, receiver and tag."""


class LoopbackGroup:
    """A group whose members are threads of this process. on_send: may change what is sent. is_ordered: work
    that follows an exchange is done at once, as on a GPU.
    """

    def __init__(
        self,
        post: Post,
        rank: int,
        size: int,
        on_send: Callable[[torch.Tensor], None],
        *,
        is_ordered: bool = False,
    ) -> None:
        self._post = post
        self._on_send = on_send
        self.rank = rank
        self.size = size
        self.is_ordered = is_ordered
        self.tags: list[int] = []

    def along(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int, *, is_kept: bool = True
    ) -> "LoopbackWork":
        for tensor, peer in sends:
            letter = tensor.clone()
            self._on_send(letter)
            self._box(self.rank, peer, tag).put(letter)
        self.tags.append(tag)
        work = LoopbackWork([(tensor, self._box(peer, self.rank, tag)) for tensor, peer in receives])
        if self.is_ordered:
            work.wait()
            return LoopbackWork([])
        return work

    def _box(self, sender: int, receiver: int, tag: int) -> "queue.SimpleQueue[torch.Tensor]":
        # Not a defaultdict, from which two threads at once may each get a box of their own.
        return self._post.setdefault((sender, receiver, tag), queue.SimpleQueue())

    def settle(self) -> None:
        pass

    def confirm(self, peers: Sequence[int] | None = None) -> None:
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
    """Runs the same function in several threads, each with its place in one group; returns the results by
    rank.
    """

    def do(
        size: int,
        what: Callable[[LoopbackGroup], Any],
        on_send: Callable[[torch.Tensor], None] = lambda _: None,
        *,
        is_ordered: bool = False,
    ) -> list[Any]:
        post: Post = {}
        with ThreadPoolExecutor(size) as pool:
            groups = [LoopbackGroup(post, rank, size, on_send, is_ordered=is_ordered) for rank in range(size)]
            return list(pool.map(what, groups))

    return do


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """This process as a run with one member; the path of its journal. Restores torch's settings
    afterwards.
    """
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
