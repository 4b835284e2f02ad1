"""Attacks on what members accept from each other: gradients, state, and a place in their group.

The attacker has no token. It sees where members listen, as any user can, and may connect first.
"""

import os
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from board import Board
from waiting import WAIT_S

import holdfast.train
from holdfast.train import skeleton
from holdfast.train.group import GroupBroken, Rendezvous
from holdfast.train.tcp import _HELLO, NONCE_BYTES, PROOF_BYTES, UNPROVEN_MAX, Card, Credentials, TcpGroup

pytestmark = pytest.mark.slow

CREDENTIALS = Credentials("r", "the-token-of-the-run")
FOREIGN = ("checkpoint.py", "importing.py", "opening.py", "whole_file.py", "export.py", "data.py")
"""Modules that read the user's own files, and a data process of their own; nothing from other members."""


NONCES = [b"n" * NONCE_BYTES, b"m" * NONCE_BYTES]


class Members(Board):
    """Two members of a generation, and the board where they find each other."""

    def card(self, rank: int) -> Card:
        return msgspec.msgpack.decode(self.lookup(f"card/{rank}"), type=Card)

    def make(self, rank: int, size: int = 2, credentials: Credentials = CREDENTIALS) -> TcpGroup:
        store = Rendezvous(self.publish, self.lookup, generation="7")
        return TcpGroup(store, rank=rank, size=size, address="127.0.0.1", credentials=credentials)


@pytest.fixture
def board() -> Members:
    return Members()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def connect(card: Card) -> socket.socket:
    return socket.create_connection((card.host, card.port), timeout=WAIT_S)


def heard(connection: socket.socket) -> bytes:
    """Everything that comes before the other end hangs up."""
    data = b""
    try:
        while more := connection.recv(4096):
            data += more
    except ConnectionError:
        pass
    return data


def works(*groups: TcpGroup) -> None:
    """Check that each of two members gets what the other one sends."""
    arrived = [torch.zeros(3) for _ in groups]
    receiving = [
        group.exchange(
            [(torch.full((3,), 1.0 + group.rank), 1 - group.rank)], [(arrived[group.rank], 1 - group.rank)], 1
        )
        for group in groups
    ]
    for work in receiving:
        work.wait()
    assert [float(tensor.sum()) for tensor in arrived] == [6.0, 3.0]
    for group in groups:
        group.settle()
        group.close()


@contextmanager
def forming(board: Members, pool: ThreadPoolExecutor) -> Iterator[Card]:
    """Rank 0 waits for rank 1, which comes when the block is over, and finds nothing changed."""
    board.publish("card/1", msgspec.msgpack.encode(Card("127.0.0.1", 1, NONCES[1])))
    first: Future[TcpGroup] = pool.submit(board.make, 0)
    card = board.card(0)
    yield card
    nonces = [card.nonce, NONCES[1]]
    with connect(card) as member:
        member.sendall(_HELLO.pack(1, CREDENTIALS.prove("7", 1, 0, nonces)))
        assert member.recv(PROOF_BYTES, socket.MSG_WAITALL) == CREDENTIALS.prove("7", 0, 1, nonces)
        first.result(WAIT_S).close()
        assert heard(member) == b""


# ---- a place in the group --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        pytest.param((1).to_bytes(8, "little") * 8, id="a small counter, as gloo took it"),
        pytest.param(_HELLO.pack(1, os.urandom(PROOF_BYTES)), id="a made-up proof"),
        pytest.param(_HELLO.pack(1, b"\0" * PROOF_BYTES), id="no proof"),
        pytest.param(_HELLO.pack(0, b"\0" * PROOF_BYTES), id="as the member itself"),
        pytest.param(_HELLO.pack(1 << 31, b"\0" * PROOF_BYTES), id="as an impossible rank"),
        pytest.param(pickle.dumps(print) * 9, id="a pickle"),
        pytest.param(b"\xff" * 4096, id="far too much"),
    ],
)
def test_a_stranger_on_loopback_gets_no_place_and_no_byte(
    board: Members, pool: ThreadPoolExecutor, said: bytes
) -> None:
    with forming(board, pool) as card, connect(card) as stranger:
        stranger.sendall(said)
        assert heard(stranger) == b""


@pytest.mark.parametrize("wrong", ["token", "run", "generation", "receiver", "sender", "nonces"])
def test_a_proof_is_good_for_one_pair_of_one_generation_of_one_run(
    board: Members, pool: ThreadPoolExecutor, wrong: str
) -> None:
    with forming(board, pool) as card:
        nonces = NONCES if wrong == "nonces" else [card.nonce, NONCES[1]]
        credentials = Credentials(
            "another" if wrong == "run" else "r",
            "another-token-of-a-run" if wrong == "token" else CREDENTIALS.token,
        )
        sender, receiver = {"receiver": (1, 1), "sender": (0, 0)}.get(wrong, (1, 0))
        proof = credentials.prove("6" if wrong == "generation" else "7", sender, receiver, nonces)
        with connect(card) as stranger:
            stranger.sendall(_HELLO.pack(1, proof))
            assert heard(stranger) == b""


def test_silent_strangers_delay_no_member(board: Members, pool: ThreadPoolExecutor) -> None:
    with ExitStack() as strangers, forming(board, pool) as card:
        for _ in range(3 * UNPROVEN_MAX):
            strangers.enter_context(connect(card))


@pytest.mark.parametrize("answer", ["its own proof", "made up", "none"])
def test_a_stranger_in_a_member_s_place_gets_nothing_sent(board: Members, answer: str) -> None:
    """Rank 0 is gone, and another process has its port."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        card = Card("127.0.0.1", server.getsockname()[1], NONCES[0])
        board.publish("card/0", msgspec.msgpack.encode(card))
        joining = pool.submit(board.make, 1)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(WAIT_S)
            hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
            if answer != "none":
                reflected = _HELLO.unpack(hello)[1]
                connection.sendall(reflected if answer == "its own proof" else os.urandom(PROOF_BYTES))
            else:
                connection.shutdown(socket.SHUT_WR)
            assert heard(connection) == b""
        server.close()  # a member that was hung up on calls again
        with pytest.raises(GroupBroken):
            joining.result(WAIT_S)


def test_members_stop_listening_once_all_are_connected(board: Members, pool: ThreadPoolExecutor) -> None:
    groups = [each.result(WAIT_S) for each in [pool.submit(board.make, rank) for rank in range(2)]]
    for rank in range(2):
        with pytest.raises(ConnectionRefusedError):
            connect(board.card(rank))
    works(*groups)


def test_an_overheard_hello_takes_no_place(board: Members, pool: ThreadPoolExecutor) -> None:
    """Rank 1 is connected, but rank 2 is not yet: so rank 0 still listens."""
    for rank in (1, 2):
        board.publish(f"card/{rank}", msgspec.msgpack.encode(Card("127.0.0.1", 1, NONCES[1])))
    first = pool.submit(board.make, 0, 3)
    card = board.card(0)
    nonces = [card.nonce, NONCES[1], NONCES[1]]
    hellos = [_HELLO.pack(rank, CREDENTIALS.prove("7", rank, 0, nonces)) for rank in (1, 2)]
    with connect(card) as member, connect(card) as stranger, connect(card) as last:
        member.sendall(hellos[0])
        assert len(member.recv(PROOF_BYTES)) == PROOF_BYTES
        stranger.sendall(hellos[0])
        assert heard(stranger) == b""
        last.sendall(hellos[1])
        first.result(WAIT_S).close()


# ---- accepting data from members -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [torch.ones(4), torch.ones(2), torch.ones(3).int(), torch.ones(6).half()], ids=str
)
def test_a_tensor_of_another_size_or_type_is_not_taken(
    board: Members, pool: ThreadPoolExecutor, sent: torch.Tensor
) -> None:
    first, second = (each.result(WAIT_S) for each in [pool.submit(board.make, rank) for rank in range(2)])
    expected = torch.full((3,), 5.0)
    work = first.exchange([], [(expected, 1)], 1)
    second.exchange([(sent, 0)], [], 1)
    with pytest.raises(GroupBroken, match="something else than expected"):
        work.wait()
    assert expected.tolist() == [5.0] * 3
    first.close()
    second.close()


class Command:
    """Shows whether it was unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def test_a_pickle_in_place_of_a_state_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(skeleton.MalformedSkeleton):
        skeleton.empty_like(pickle.dumps(Command(mark)), torch.device("cpu"))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Command(mark)))
    assert mark.exists()  # the pickle itself works


def test_nothing_that_comes_from_a_member_is_unpickled() -> None:
    folder = Path(holdfast.train.__file__).parent
    names = {path.name for path in folder.glob("*.py") if "pickle" in path.read_text(encoding="utf-8")}
    said = {"manifest.py", "skeleton.py", "values.py"}  # their texts say that they use none
    assert names <= said | set(FOREIGN)


def tensor(**changes: object) -> list[object]:
    place = {"number": 0, "dtype": "float32", "shape": [2, 3], "stride": [3, 1], "device": "cpu"} | changes
    return ["tensor", *place.values()]


HUGE = 1 << 60


@pytest.mark.parametrize(
    "outline",
    [
        pytest.param(["system", "true"], id="a kind that is none"),
        pytest.param(["dtype", "load"], id="a name of torch that is no type"),
        pytest.param(["default", "eval"], id="a factory that is none"),
        pytest.param(["array", "|O", [1], b"\0" * 8], id="an array of pointers"),
        pytest.param(["array", "<f8", [1 << 40], b""], id="an array without its memory"),
        pytest.param(["int", "1" * 100_000], id="a number that takes for ever"),
        pytest.param({"a": 1}, id="a map"),
        pytest.param(["list", tensor(), tensor()], id="two tensors in one place"),
        pytest.param(tensor(number=1), id="a place that is missing"),
        pytest.param(tensor(dtype="Tensor"), id="a type that is none"),
        pytest.param(tensor(shape=[-1, 3]), id="less than nothing"),
        pytest.param(tensor(stride=[HUGE, 1]), id="a layout with holes"),
        pytest.param(tensor(stride=[-3, 1]), id="a layout that goes backwards"),
        pytest.param(tensor(stride=[0, 1]), id="a layout that overlaps"),
        pytest.param(tensor(stride=[1]), id="a layout of another shape"),
        pytest.param(tensor(shape=[HUGE, HUGE], stride=None), id="more than there is"),
    ],
)
def test_a_hostile_outline_is_refused_before_it_takes_memory(outline: object) -> None:
    with pytest.raises(skeleton.MalformedSkeleton):
        skeleton.empty_like(msgspec.msgpack.encode(outline), torch.device("cpu"))


@pytest.mark.parametrize("opening", [b"\x91", b"\x92\xa4list", b"\x81\xa1a"], ids=repr)
def test_an_outline_that_is_nested_without_end_is_refused(opening: bytes) -> None:
    with pytest.raises(skeleton.MalformedSkeleton):
        skeleton.empty_like(opening * 100_000, torch.device("cpu"))
