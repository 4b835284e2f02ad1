"""Tests the link to a node that is known to be good: bandwidth, small round trips, and TCP retransmissions.
The other side is `holdfast check --answer` (answering.py).

RDMA itself is not tried: the bytes go over TCP, by the interface that routes to that node.
"""

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles

from holdfast.check.figures import CheckedFigure, figure, unmeasured
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.secret_files import read_secret
from holdfast.run.handshake import Unreachable, unreachable
from holdfast.run.link import shake_hands
from holdfast.run.seeking import Address
from holdfast.run.site import TOKEN_CHARS_MIN
from holdfast.run.wire import MalformedFrame

REQUEST = struct.Struct(">cQ")
"""A request and its count: ECHO so many pings, SEND or RECEIVE so many bytes."""
ECHO, SEND, RECEIVE = b"E", b"S", b"R"
COUNTED = struct.Struct(">QQ")
"""The segments that TCP retransmitted on the other side, and all that it sent there."""
PING_BYTES, PINGS, PINGS_LEAST = 64, 1_000, 20
PINGS_AT_ONCE = 20
LATENCY_S, WAY_S = 2.0, 1.5
"""Time for the round trips, and for each direction."""
PIECE_BYTES, PIECE_BYTES_MAX, PIECE_S = 1 << 16, 1 << 30, 0.25
"""A direction is tried in pieces that take about `PIECE_S` each; the fastest piece counts."""
BLOCK_BYTES = 1 << 20
CONNECT_S, TRY_S = 8.0, 6.0
"""How long a check waits for its turn at one peer, and how long the test of a sound link takes at most. With
less time left nothing is tried: a timeout would then say nothing about the link.
"""
CONNECT_S_MIN = 0.5
"""The least time to connect, for the same reason."""
GB_PER_S_MIN = 0.1
"""Less than a sound link of 1 Gb/s carries."""
LATENCY_US_MAX, LATENCY_P99_US_MAX = 5_000.0, 100_000.0
"""No two nodes of a site are further apart. TCP retransmits a lost segment after 200 ms at the earliest."""
RETRANSMITS_MAX = 0.001
TCP_INFO_BYTES = 256
_RETRANSMITTED, _SENT, _NEEDLESS = struct.Struct("=100xI"), struct.Struct("=136xI"), struct.Struct("=216xI")
"""tcpi_total_retrans, tcpi_segs_out and tcpi_dsack_dups, of linux/tcp.h. The last one counts segments that
were retransmitted although they had arrived, which happens on busy machines.
"""
PORT_MAX = 65_535
_PORT = re.compile(r"[0-9]{1,5}")
NAMES = {
    "fabric.out": "GB/s",
    "fabric.in": "GB/s",
    "fabric.latency": "us",
    "fabric.latency_p99": "us",
    "fabric.retransmits": "of segments",
}


def place_named(text: str) -> Address:
    """Parse HOST:PORT. Raises `InputError`."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not _is_name(host) or not (_PORT.fullmatch(port) and 0 < int(port) <= PORT_MAX):
        raise InputError(
            f"{text!r} is not in the form HOST:PORT.", hint="Write n17:29450 or [fd00::7]:29450."
        )
    return host, int(port)


def _is_name(host: str) -> bool:
    """Whether a resolver accepts this name: it raises for `a..b`."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def read_token(path: Path | None) -> str:
    """Raises `InputError` if the file cannot be read, is not private, or has too short a token."""
    if path is None:
        raise InputError("--peer and --answer need a token.", hint="Name its file with --token-file.")
    hint = "Make one: (umask 077; openssl rand -hex 16 > FILE); all nodes need the same."
    token = read_secret(path, what="the token", hint=hint, is_private=True).strip()
    if len(token) < TOKEN_CHARS_MIN:
        raise InputError(f"The token in {path} has fewer than {TOKEN_CHARS_MIN} characters.", hint=hint)
    return token


def try_fabric(peers: Sequence[Address], token: str, until_s: float) -> Iterator[CheckedFigure]:
    """Test the link to the first peer that answers. until_s: by the monotonic clock. This node is not blamed
    if a peer is busy, refuses the connection or has a name that is unknown or takes too long to resolve, or
    if no time was left; it is blamed if no peer can be reached.
    """
    notes, is_ours = [], True
    for number, peer in enumerate(peers):
        wait_s = (until_s - time.monotonic() - TRY_S) / (len(peers) - number)
        if wait_s < CONNECT_S_MIN:
            is_ours = False
            notes.append(f"no time was left to try {_shown(peer)}: give a longer --timeout")
            continue
        try:
            connection = _met(token, peer, wait_s)
        except HoldfastError as error:
            is_ours &= isinstance(error, Unreachable) and not _is_peers_fault(error)
            notes.append(f"{_shown(peer)} {_reason(error)}")
            continue
        with connection:
            yield from FabricWay(BoundedSocket(connection, until_s), _shown(peer)).figures()
        return
    yield from (unmeasured(name, unit, "; ".join(notes), ok=not is_ours) for name, unit in NAMES.items())


class _Unresolved(Unreachable):
    """The resolver did not answer in time."""


def _met(token: str, peer: Address, wait_s: float) -> socket.socket:
    """A proven connection to the first address of the peer that accepts one. Raises `HoldfastError`."""
    due_s = time.monotonic() + wait_s
    addresses = _resolved(peer, wait_s / 2)
    share_s = max(CONNECT_S_MIN, min(CONNECT_S, (due_s - time.monotonic()) / len(addresses)))
    for address in addresses[:-1]:
        with suppress(Unreachable):
            return shake_hands(token, "operator", "check", address, None, share_s)[0]
    return shake_hands(token, "operator", "check", addresses[-1], None, share_s)[0]


def _resolved(peer: Address, within_s: float) -> list[Address]:
    """The peer's addresses. The system's resolver has no time limit, so a thread asks it, for which neither
    the check nor the end of the process waits.
    """
    answer: Future[list[Address]] = Future()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(*peer, type=socket.SOCK_STREAM)
            places = [
                socket.getnameinfo(one[4], socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0] for one in found
            ]  # with the scope, if any
            answer.set_result([(place, peer[1]) for place in places])
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="holdfast-resolver", daemon=True).start()
    try:
        return answer.result(within_s)
    except TimeoutError:
        raise _Unresolved(
            f"{_shown(peer)} cannot be reached: the resolver did not answer in {within_s:.0f} s."
        ) from None
    except (OSError, UnicodeError) as error:  # UnicodeError: invalid host name
        raise unreachable(_shown(peer), error) from None


def _is_peers_fault(error: Unreachable) -> bool:
    """Whether the peer refused, which shows that the link works, or its name could not be resolved."""
    why = error.__context__
    return isinstance(error, _Unresolved) or isinstance(why, ConnectionRefusedError | socket.gaierror)


def _reason(error: HoldfastError) -> str:
    if isinstance(error, Unreachable):
        return f"cannot be reached: {error.sentence.rpartition(': ')[2].rstrip('.')}"
    return "is busy, or does not have our token"


def _shown(peer: Address) -> str:
    return f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"


class BoundedSocket:
    """A connection that is used until `until_s` of the monotonic clock, whatever the other end does. Its
    methods raise `TimeoutError` after that, and `MalformedFrame` if the connection ends before.
    """

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection = connection
        self._until_s = until_s

    def read(self, count: int) -> bytes:
        came = bytearray()
        while len(came) < count:
            came += self._timed().recv(count - len(came)) or _ended()
        return bytes(came)

    def write(self, data: bytes) -> None:
        self._timed().sendall(data)

    def drain(self, count: int) -> None:
        """Read and discard this many bytes."""
        block = bytearray(BLOCK_BYTES)
        while count:
            count -= self._timed().recv_into(block, min(count, BLOCK_BYTES)) or len(_ended())

    def pour(self, count: int) -> None:
        """Send this many zeros."""
        block = memoryview(bytes(BLOCK_BYTES))
        while count:
            count -= self._timed().send(block[: min(count, BLOCK_BYTES)])

    def sent_again(self) -> tuple[int, int]:
        """The segments that TCP retransmitted, and all that it sent."""
        told = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        if len(told) < _SENT.size:
            return 0, 0
        needless = _NEEDLESS.unpack_from(told)[0] if len(told) >= _NEEDLESS.size else 0
        return max(0, _RETRANSMITTED.unpack_from(told)[0] - needless), _SENT.unpack_from(told)[0]

    def _timed(self) -> socket.socket:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection


def _ended() -> bytes:
    raise MalformedFrame("the connection ended")


def _broken(error: OSError | MalformedFrame) -> str:
    return (error.strerror or "it broke off").lower() if isinstance(error, OSError) else str(error)


class FabricWay:
    """The link, tested over one proven connection. name: of the other end."""

    def __init__(self, connection: BoundedSocket, name: str) -> None:
        self._connection = connection
        self._name = name
        self._there = (0, 0)

    def figures(self) -> Iterator[CheckedFigure]:
        """Measure the link. Figures that did not come in time are not good. If the other end hung up, the
        missing figures say nothing about this node.
        """
        missing = dict(NAMES)
        try:
            for one in self._measured():
                del missing[one.name]
                yield one
        except (OSError, MalformedFrame) as error:
            reason = "it took too long" if isinstance(error, TimeoutError) else _broken(error)
            has_left = isinstance(error, MalformedFrame | ConnectionResetError | BrokenPipeError)
            yield from (
                unmeasured(name, unit, f"to {self._name}: {reason}", ok=has_left)
                for name, unit in missing.items()
            )

    def _measured(self) -> Iterator[CheckedFigure]:
        note = f"to {self._name}"
        trips_us = [1e6 * one for one in self._round_trips()]
        yield figure("fabric.latency", median(trips_us), "us", most=LATENCY_US_MAX, note=note)
        slow_us = quantiles(trips_us, n=100, method="inclusive")[-1]
        yield figure("fabric.latency_p99", slow_us, "us", most=LATENCY_P99_US_MAX, note=note)
        yield figure("fabric.out", self._carried(SEND), "GB/s", least=GB_PER_S_MIN, note=note)
        yield figure("fabric.in", self._carried(RECEIVE), "GB/s", least=GB_PER_S_MIN, note=note)
        again, sent = (
            here + there for here, there in zip(self._connection.sent_again(), self._there, strict=True)
        )
        yield figure(
            "fabric.retransmits", again / max(sent, 1), "of segments", most=RETRANSMITS_MAX, note=note
        )

    def _round_trips(self) -> list[float]:
        took_s: list[float] = []
        ping, due_s = bytes(PING_BYTES), time.monotonic() + LATENCY_S
        while len(took_s) < PINGS and (time.monotonic() < due_s or len(took_s) < PINGS_LEAST):
            self._connection.write(REQUEST.pack(ECHO, PINGS_AT_ONCE))
            for _ in range(PINGS_AT_ONCE):
                began_s = time.monotonic()
                self._connection.write(ping)
                self._connection.read(PING_BYTES)
                took_s.append(time.monotonic() - began_s)
        return took_s

    def _carried(self, way: bytes) -> float:
        """GB/s of the fastest piece."""
        best, count, due_s = 0.0, PIECE_BYTES, time.monotonic() + WAY_S
        while time.monotonic() < due_s or not best:
            began_s = time.monotonic()
            self._connection.write(REQUEST.pack(way, count))
            if way == SEND:
                self._connection.pour(count)
            else:
                self._connection.drain(count)
            self._there = COUNTED.unpack(self._connection.read(COUNTED.size))
            took_s = max(time.monotonic() - began_s, 1e-9)
            best = max(best, count / took_s / 1e9)
            count = min(max(PIECE_BYTES, int(count * min(PIECE_S / took_s, 8.0))), PIECE_BYTES_MAX)
        return best
