"""A generation's group in main memory: a TCP connection for each pair of members, authenticated before use.

Members exchange their addresses and a nonce each through the coordinator. The member that connects proves
that it has the run's token and is the rank it claims to be, in this generation; so does the member that
accepts. All other connections are refused, and members stop listening once all are connected.

Each connection has a thread that sends and one that receives, in the order of the requests. The kernel moves
the bytes between tensors and connections, without a copy of ours and without the interpreter. An abort shuts
the connections down: every operation then fails at once, at both ends.
"""

import ctypes
import hashlib
import hmac
import queue
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import NamedTuple

import msgspec
import torch

from holdfast.train.group import ABORTED, GroupBroken, Rendezvous, Sending, Superseded, Transfer, Work

FORM_TIMEOUT_S = 60.0
"""How long connecting may take. The death of a member meanwhile is known much sooner."""
FORM_POLL_S = 0.02
OPERATION_TIMEOUT_S = 6 * 3600.0
"""Only a last bound: failures are found by the coordinator, much sooner."""
CLOSE_S_MAX = 10.0
"""How long to wait for the threads to end; a shut connection ends them at once."""
UNPROVEN_MAX = 64
"""How many connections may be unauthenticated, besides the members. At one more, the oldest is dropped."""
CALLS_MAX = 20
"""How often a member calls another one that hangs up, as it may do while strangers flood it."""
ACCEPT_WAIT_S = 0.1
"""How long no connection is accepted after one failed for lack of descriptors."""
WATCHED_MAX = 64
"""How many connections are queried for their state: a few of them show what is usual."""
NONCE_BYTES = 32
PROOF_BYTES = 32
CONTEXT = "holdfast members 1"

_HELLO = struct.Struct(f">I{PROOF_BYTES}s")
"""The first message of the connecting member: its rank and its proof. The answer is a proof."""
_LETTER = struct.Struct(">QIQ")
"""Precedes every tensor: the exchange's tag, the tensor's type, and its size in bytes."""
_KINDS = {
    dtype: number
    for number, dtype in enumerate(
        sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)
    )
}


class Card(msgspec.Struct, frozen=True, array_like=True):
    """What a member tells the others about itself, through the coordinator."""

    host: str
    port: int
    nonce: bytes


class Credentials(NamedTuple):
    """Proves that a process belongs to a run."""

    run: str
    token: str

    def prove(self, generation: str, sender: int, receiver: int, nonces: Sequence[bytes]) -> bytes:
        """A proof that the sender is a member of the generation, and addresses the receiver."""
        said = [CONTEXT, self.run, generation, sender, receiver, nonces[sender], nonces[receiver]]
        return hmac.digest(self.token.encode(), msgspec.msgpack.encode(said), hashlib.sha256)


class TcpGroup:
    """Members of one generation, for tensors in main memory. address: where others reach this one."""

    is_ordered = False

    def __init__(
        self,
        store: Rendezvous,
        *,
        rank: int,
        size: int,
        address: str,
        credentials: Credentials,
        superseded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rank = rank
        self.size = size
        family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((address, 0), family=family, backlog=size + UNPROVEN_MAX) as listener:
            own = Card(address, listener.getsockname()[1], secrets.token_bytes(NONCE_BYTES))
            store.set(f"card/{rank}", msgspec.msgpack.encode(own))
            cards = [own if peer == rank else _card(store, peer) for peer in range(size)]
            nonces = [card.nonce for card in cards]

            def prove(sender: int, receiver: int) -> bytes:
                return credentials.prove(store.generation, sender, receiver, nonces)

            connections = _Forming(rank, cards, prove, listener).run(superseded)
        self._pairs = {peer: _Pair(peer, connections[peer]) for peer in sorted(connections)}
        self._aborted = threading.Event()
        self._unsettled: list[_Pending] = []

    def along(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int, *, is_kept: bool = True
    ) -> Work:
        if self._aborted.is_set():
            raise GroupBroken(ABORTED)
        sending, receiving = _Pending(len(sends), self._aborted), _Pending(len(receives), self._aborted)
        for tensor, peer in receives:
            self._pairs[peer].incoming.put(_Letter(tensor, tag, receiving))
        for tensor, peer in sends:
            self._pairs[peer].outgoing.put(_Letter(tensor, tag, sending))
        if not is_kept:
            return _Both(receiving, sending)
        if sends:
            self._unsettled.append(sending)
        return receiving

    def settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, []
        for sending in unsettled:
            sending.wait()

    def confirm(self, peers: Sequence[int] | None = None) -> None:
        """Do nothing: over TCP, data that arrive are complete, whichever member leaves."""

    def sending(self) -> tuple[Sending, ...]:
        with suppress(OSError):  # a connection ended, and so will the group
            return tuple(_sending(pair.socket) for pair in list(self._pairs.values())[:WATCHED_MAX])
        return ()

    def abort(self) -> None:
        self._aborted.set()
        for pair in self._pairs.values():
            pair.shut()

    def close(self) -> None:
        self.abort()
        for pair in self._pairs.values():
            pair.close()
        self._unsettled = []


# ---- connecting ------------------------------------------------------------------------------------------


def _card(store: Rendezvous, peer: int) -> Card:
    try:
        return msgspec.msgpack.decode(store.get(f"card/{peer}"), type=Card)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise GroupBroken(f"the card of rank {peer} cannot be read") from None


class _Forming:
    """Connects to all lower ranks, and accepts connections of all higher ones."""

    def __init__(
        self,
        rank: int,
        cards: Sequence[Card],
        prove: Callable[[int, int], bytes],
        listener: socket.socket,
    ) -> None:
        """prove: makes the proof that one rank sends to another."""
        self._rank = rank
        self._cards = cards
        self._proof = prove
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._heard: dict[socket.socket, bytes] = {}
        """The received part of a hello or an answer, for connections that have proved nothing yet."""
        self._strangers: dict[socket.socket, None] = {}
        """Those of them that connected to us, oldest first."""
        self._connected: dict[int, socket.socket] = {}
        self._calls = [0] * rank

    def run(self, superseded: Callable[[], bool]) -> dict[int, socket.socket]:
        """A blocking connection to each peer. Raises `GroupBroken`, or `Superseded` if it is no longer
        wanted.
        """
        due_s = time.monotonic() + FORM_TIMEOUT_S
        try:
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            for peer in range(self._rank):
                self._call(peer)
            while len(self._connected) < len(self._cards) - 1:
                if superseded():
                    raise Superseded
                if time.monotonic() > due_s:
                    raise GroupBroken(f"members did not connect to each other in {FORM_TIMEOUT_S:g} s")
                for key, _ in self._selector.select(FORM_POLL_S):
                    if key.fileobj in self._selector.get_map():  # unless it was dropped in this round
                        key.data()
        except BaseException:
            for connection in self._connected.values():
                connection.close()
            raise
        finally:
            self._selector.close()
            for connection in self._heard:
                connection.close()
        for connection in self._connected.values():
            connection.setblocking(True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connected

    def _call(self, peer: int) -> None:
        card = self._cards[peer]
        self._calls[peer] += 1
        try:
            found = socket.getaddrinfo(card.host, card.port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[0]
            connection = socket.socket(family, kind, protocol)
            self._heard[connection] = b""
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect(address)
        except OSError as error:
            raise _unreachable(peer, error) from None
        self._selector.register(connection, selectors.EVENT_WRITE, partial(self._greet, peer, connection))

    def _greet(self, peer: int, connection: socket.socket) -> None:
        """The connection is made, or has failed. The hello fits into an empty buffer."""
        try:
            if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, "cannot connect")
            connection.sendall(_HELLO.pack(self._rank, self._proof(self._rank, peer)))
        except OSError as error:
            raise _unreachable(peer, error) from None
        self._selector.modify(connection, selectors.EVENT_READ, partial(self._hear_answer, peer, connection))

    def _hear_answer(self, peer: int, connection: socket.socket) -> None:
        try:
            answer = self._hear(connection, PROOF_BYTES)
        except OSError as error:
            if self._calls[peer] >= CALLS_MAX:
                raise _unreachable(peer, error) from None
            self._drop(connection)
            self._call(peer)  # fails if the peer is gone
            return
        if answer is not None:
            if not hmac.compare_digest(answer, self._proof(peer, self._rank)):
                raise GroupBroken(
                    f"the process at the address of rank {peer} did not prove that it is a member"
                )
            self._keep(peer, connection)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # out of descriptors: drop unauthenticated connections
            for stranger in list(self._strangers):
                self._drop(stranger)
            time.sleep(ACCEPT_WAIT_S)
            return
        connection.setblocking(False)
        self._heard[connection] = b""
        self._strangers[connection] = None
        self._selector.register(connection, selectors.EVENT_READ, partial(self._hear_hello, connection))
        if len(self._strangers) > UNPROVEN_MAX + len(self._cards):
            self._drop(next(iter(self._strangers)))

    def _hear_hello(self, connection: socket.socket) -> None:
        try:
            hello = self._hear(connection, _HELLO.size)
            if hello is None:
                return
            peer, proof = _HELLO.unpack(hello)
            is_awaited = self._rank < peer < len(self._cards) and peer not in self._connected
            if not is_awaited or not hmac.compare_digest(proof, self._proof(peer, self._rank)):
                self._drop(connection)
                return
            connection.sendall(self._proof(self._rank, peer))
        except OSError:
            self._drop(connection)
            return
        del self._strangers[connection]
        self._keep(peer, connection)

    def _hear(self, connection: socket.socket, size: int) -> bytes | None:
        """Read exactly this many bytes, as a tensor follows them. None: they have not all arrived yet."""
        try:
            data = connection.recv(size - len(self._heard[connection]))
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionError("hung up")
        self._heard[connection] += data
        return self._heard[connection] if len(self._heard[connection]) == size else None

    def _keep(self, peer: int, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._heard[connection]
        self._connected[peer] = connection

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._strangers.pop(connection, None)
        del self._heard[connection]
        connection.close()


def _unreachable(peer: int, error: OSError) -> GroupBroken:
    return GroupBroken(f"rank {peer} cannot be reached: {(error.strerror or str(error)).lower()}")


# ---- exchanging ------------------------------------------------------------------------------------------


class _Pending:
    """A number of operations under way."""

    def __init__(self, count: int, aborted: threading.Event) -> None:
        self._left = count
        self._aborted = aborted
        self._counting = threading.Lock()
        self._gate = threading.Lock()
        self._reason = ""
        if count:
            self._gate.acquire()

    def done(self, reason: str) -> None:
        """One of them is over. reason: why it failed; empty if it succeeded."""
        with self._counting:
            self._left -= 1
            self._reason = self._reason or reason
            if not self._left:
                self._gate.release()

    def wait(self) -> None:
        if not self._gate.acquire(timeout=OPERATION_TIMEOUT_S):
            raise GroupBroken(f"no data came for {OPERATION_TIMEOUT_S / 3600:g} hours")
        self._gate.release()
        if self._reason:
            raise GroupBroken(ABORTED if self._aborted.is_set() else self._reason)


class _Both(NamedTuple):
    """Waits for both: everything received, and everything sent."""

    receiving: _Pending
    sending: _Pending

    def wait(self) -> None:
        self.receiving.wait()
        self.sending.wait()


class _Letter:
    """A tensor on its way. It is kept as long as the kernel reads or writes its memory."""

    def __init__(self, tensor: torch.Tensor, tag: int, pending: _Pending) -> None:
        self.memory = _memory(tensor)
        self.head = _LETTER.pack(tag, _KINDS[tensor.dtype], len(self.memory))
        self.pending = pending
        self._tensor = tensor


class _Conveyor:
    """Moves letters one after the other, in a thread of its own that starts on first use."""

    def __init__(self, name: str, move: Callable[[_Letter], None]) -> None:
        self._name = name
        self._move = move
        self._letters: queue.SimpleQueue[_Letter | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()

    def put(self, letter: _Letter) -> None:
        if self._thread is None:
            self._begin()
        self._letters.put(letter)

    def close(self) -> None:
        self._letters.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)

    def _begin(self) -> None:
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        reason = ""
        while (letter := self._letters.get()) is not None:
            if not reason:
                try:
                    self._move(letter)
                except (OSError, GroupBroken) as error:  # whatever follows is unusable
                    reason = str(error)
            pending = letter.pending
            del letter  # before the waiter wakes: its memory is free then
            pending.done(reason)


class _Pair:
    """The connection to one other member."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.socket = connection
        self.outgoing = _Conveyor(f"holdfast-to-{peer}", self._send)
        self.incoming = _Conveyor(f"holdfast-from-{peer}", self._receive)
        self._peer = peer

    def shut(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.outgoing.close()
        self.incoming.close()
        self.socket.close()

    def _send(self, letter: _Letter) -> None:
        try:
            sent = self.socket.sendmsg((letter.head, letter.memory))
            if sent < len(letter.head):
                self.socket.sendall(letter.head[sent:])
                sent = len(letter.head)
            if sent < len(letter.head) + len(letter.memory):
                self.socket.sendall(letter.memory[sent - len(letter.head) :])
        except OSError as error:
            raise self._broken(error) from None

    def _receive(self, letter: _Letter) -> None:
        head = bytearray(len(letter.head))
        try:
            self._fill(memoryview(head))
            if head != letter.head:
                raise GroupBroken(f"rank {self._peer} sent something else than expected")
            self._fill(letter.memory)
        except OSError as error:
            raise self._broken(error) from None

    def _fill(self, memory: memoryview) -> None:
        while memory:
            came = self.socket.recv_into(memory, len(memory), socket.MSG_WAITALL)
            if not came:
                raise ConnectionError("closed by the other end")
            memory = memory[came:]

    def _broken(self, error: OSError) -> GroupBroken:
        why = (error.strerror or str(error)).lower()
        return GroupBroken(f"the connection to rank {self._peer} ended: {why}")


def _memory(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory, without numpy, which torch does not need."""
    assert tensor.is_contiguous()
    if not tensor.nbytes:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


_TCP_INFO = struct.Struct("=100xI64xQQ")
"""tcpi_total_retrans, tcpi_busy_time and tcpi_rwnd_limited of tcp_info (include/uapi/linux/tcp.h)."""


def _sending(connection: socket.socket) -> Sending:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    resent, busy_us, unwelcome_us = _TCP_INFO.unpack(told)
    return Sending(busy_s=(busy_us - unwelcome_us) / 1e6, resent=resent)
