"""A group's connections, and how groups are formed. test_transport.py has what every transport promises."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from board import Board

from holdfast.record.errors import InputError
from holdfast.train.group import Rendezvous, Superseded, form
from holdfast.train.tcp import Credentials, TcpGroup

pytestmark = pytest.mark.slow

CREDENTIALS = Credentials("r", "token-of-the-tests")


def make_pair() -> list[TcpGroup]:
    board = Board()

    def make(rank: int) -> TcpGroup:
        store = Rendezvous(board.publish, board.lookup)
        return TcpGroup(store, rank=rank, size=2, address="127.0.0.1", credentials=CREDENTIALS)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(make, range(2)))


@pytest.fixture
def pair() -> Iterator[list[TcpGroup]]:
    groups = make_pair()
    yield groups
    for group in groups:
        group.close()


def test_connections_tell_how_long_they_were_sending_and_go_on_as_before(pair: list[TcpGroup]) -> None:
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


def test_an_abort_leaves_the_script_s_own_connections_alone(pair: list[TcpGroup]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        pair[0].abort()
        client.sendall(b"still here")
        assert accepted.recv(16) == b"still here"


def test_a_group_that_is_made_just_as_it_is_abandoned_is_closed() -> None:
    is_made, is_closed = threading.Event(), threading.Event()

    class Late(TcpGroup):
        def __init__(self) -> None:
            is_made.wait(10)

        def close(self) -> None:
            is_closed.set()

    with pytest.raises(Superseded):
        form(Late, lambda: True)
    is_made.set()
    assert is_closed.wait(10)


def test_a_mistake_is_not_taken_for_a_broken_group() -> None:
    def make() -> TcpGroup:
        raise InputError("NCCL cannot be used.", hint="Install it.")

    with pytest.raises(InputError, match="cannot be used"):
        form(make, lambda: False)
