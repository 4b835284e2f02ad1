"""gloo groups: a way out of any operation, at once and for everybody, that leaves nothing behind."""

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from holdfast.train.group import GlooGroup, GroupBroken, Rendezvous, Superseded, form

WAKE_S_MAX = 2.0


class Board:
    """Where the members of a group find each other's keys."""

    def __init__(self) -> None:
        self._keys: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def publish(self, key: str, value: bytes) -> None:
        with self._changed:
            self._keys[key] = value
            self._changed.notify_all()

    def lookup(self, key: str) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._keys, 10):
                raise Superseded
            return self._keys[key]


def make_pair() -> list[GlooGroup]:
    board = Board()

    def make(rank: int) -> GlooGroup:
        store = Rendezvous(board.publish, board.lookup)
        return GlooGroup(store, rank=rank, size=2, address="127.0.0.1")

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(make, range(2)))


@pytest.fixture
def pair() -> Iterator[list[GlooGroup]]:
    groups = make_pair()
    yield groups
    for group in groups:
        group.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_tensors_arrive_in_the_order_in_which_they_were_sent(pair: list[GlooGroup]) -> None:
    sent = [torch.full((3,), float(number)) for number in range(4)]
    arrived = [torch.empty(3) for _ in sent]
    receiving = pair[1].exchange([], [(tensor, 0) for tensor in arrived], 1)
    pair[0].exchange([(tensor, 1) for tensor in sent], [], 1).wait()
    receiving.wait()
    assert torch.equal(torch.stack(arrived), torch.stack(sent))


def test_what_is_under_way_is_kept_although_nobody_else_has_it(pair: list[GlooGroup]) -> None:
    """Memory that was freed would be sent, or written to."""
    size = 1 << 22  # so large that it is unmapped when it is freed
    works = [
        pair[0].exchange([(torch.full((size,), number, dtype=torch.uint8), 1)], [], 1) for number in range(3)
    ]
    gc.collect()
    arrived = [torch.empty(size, dtype=torch.uint8) for _ in works]
    pair[1].exchange([], [(tensor, 0) for tensor in arrived], 1).wait()
    for work in works:
        work.wait()
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(arrived))


def test_connections_tell_how_long_they_were_sending_and_go_on_as_before(pair: list[GlooGroup]) -> None:
    """To ask must not change how gloo uses them, which would then wait for ever."""
    size = 1 << 24

    def exchanged() -> None:
        received = torch.empty(size, dtype=torch.uint8)
        receiving = pair[1].exchange([], [(received, 0)], 1)
        pair[0].exchange([(torch.ones(size, dtype=torch.uint8), 1)], [], 1).wait()
        receiving.wait()

    before = pair[0].sending()
    for _ in range(4):
        exchanged()
        assert len(pair[0].sending()) == len(before)
    after = pair[0].sending()
    assert len(before) >= 1  # both ends are in this process
    assert sum(sending.busy_s for sending in after) > sum(sending.busy_s for sending in before)
    pair[0].close()
    assert pair[0].sending() == ()


def fails_within(work: Callable[[], None], end: Callable[[], None]) -> float:
    """How long after `end` an operation that waits fails."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work)
        time.sleep(0.05)
        assert not waiting.done()
        begun = time.monotonic()
        end()
        assert isinstance(waiting.exception(WAKE_S_MAX), GroupBroken)
        return time.monotonic() - begun


def test_an_abort_wakes_who_waits_here_and_at_the_other_end(pair: list[GlooGroup]) -> None:
    here = pair[0].exchange([], [(torch.empty(8), 1)], 1)
    there = pair[1].exchange([], [(torch.empty(8), 0)], 3)
    assert fails_within(here.wait, pair[0].abort) < WAKE_S_MAX
    with pytest.raises(GroupBroken):
        there.wait()
    with pytest.raises(GroupBroken, match="aborted"):
        pair[0].exchange([], [(torch.empty(8), 1)], 5)
    pair[0].abort()  # once more is no harm


def test_an_abort_leaves_the_script_s_own_connections_alone(pair: list[GlooGroup]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        pair[0].abort()
        client.sendall(b"still here")
        assert accepted.recv(16) == b"still here"


def test_closed_groups_leave_no_descriptors_and_threads_behind() -> None:
    def use_up() -> None:
        groups = make_pair()
        work = groups[0].exchange([], [(torch.empty(8), 1)], 1)
        groups[0].abort()
        with pytest.raises(GroupBroken):
            work.wait()
        for group in groups:
            group.close()

    use_up()  # what torch opens once for all
    gc.collect()
    before = descriptors(), threading.active_count()
    for _ in range(3):
        use_up()
    gc.collect()
    assert (descriptors(), threading.active_count()) == before


def test_forming_ends_when_the_generation_is_no_longer_wanted() -> None:
    """A peer that never comes is waited for by a thread that nobody waits for."""
    board = Board()
    asked = threading.Event()

    def make(lookup: Callable[[str], bytes]) -> GlooGroup:
        asked.set()
        return GlooGroup(Rendezvous(board.publish, lookup), rank=0, size=2, address="127.0.0.1")

    def lookup(key: str) -> bytes:
        raise Superseded

    with pytest.raises(Superseded):
        form(partial(make, board.lookup), asked.is_set)
    with pytest.raises(Superseded):
        form(partial(make, lookup), lambda: True)
