"""A worker's line to the coordinator: it beats by itself, never holds the script up, and tells when it ends.

Two threads: one sends what the script has to say and a heartbeat four times a second, less often in a crowd;
the other reads. If the coordinator dies, the reading thread finds its successor, and both go on where they
were: nothing is lost or heard twice (sent.py), and the script notices nothing.
Nothing here knows torch, or what the messages mean.
"""

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self, get_args

from holdfast.record.errors import HoldfastError
from holdfast.run import handshake, seeking, wire
from holdfast.run.seeking import Address
from holdfast.run.sent import SentFrames
from holdfast.run.tls import Channel

BEAT_INTERVAL_S = 0.25
BEATS_PER_S_MAX = 2048
"""Of all members together: one coordinator hears them all."""
REPORT_INTERVAL_S = 1.0
"""So often a heartbeat carries what the member has measured."""
QUEUE_MAX = 16384
"""Messages that wait to be sent. More than that means that nobody takes them: the link is given up."""
LAST_WORDS_S = 1.0
"""How long `send_now` takes at most, however little room the socket has."""
CLOSE_S_MAX = 5.0
"""How long `close` waits for each of the threads, which end with the process at the latest."""
READ_BYTES = 1 << 16

_TO_WORKER = get_args(wire.ToWorker)

Listener = Callable[[wire.ToWorker | None], None]
"""Is called in the reading thread with every message, and with None when no coordinator is left."""
Call = Callable[[Address, int | None, float], tuple[socket.socket, handshake.Entry]]
"""Makes a proven connection to there, for somebody who has received so many messages and waits so long for an
answer; `HoldfastError` where none is."""


def beat_interval_s(members: int) -> float:
    """How often each of so many beats."""
    return max(BEAT_INTERVAL_S, members / BEATS_PER_S_MAX)


class Link:
    """One worker's connection, made by `connect`. Reading begins with a listener, so nothing is missed."""

    def __init__(
        self,
        connection: socket.socket,
        frames: wire.FrameBuffer,
        member: str,
        channel: Channel | None = None,
        successor: Call | None = None,
        place: Address = ("", 0),
    ) -> None:
        """successor: reaches the coordinator's, if that dies; None: it has none. place: where that is."""
        self.member = member
        self._successor = successor
        self._place = place
        self._line: tuple[Address, ...] = ()
        self._is_to_be_chosen = False
        """Whether somebody has answered who may become the coordinator, since it was lost."""
        self._term = 0
        self._sent = SentFrames()
        self._received = 0
        self._is_broken = False
        self._socket = connection
        self._frames = frames
        self._channel = channel or Channel()
        self._listener: Listener | None = None
        self._queue: deque[bytes] = deque()
        """Frames, in plain: a signal handler may raise in a sender, and TLS misses what is not sent."""
        self._rest = memoryview(b"")
        """What goes over the connection next, sealed. Belongs to whoever has `_sending`."""
        # Held by itself, not by way of the condition: that is Python, where a signal handler can raise when
        # the lock is taken and nobody is there yet to give it back.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._is_open = True
        self._step = 0
        self._stage: wire.Stage = "starting"
        self.refine: Callable[[wire.Stage], wire.Stage] = lambda stage: stage
        """Says more about a stage. Is asked in the sending thread, so that the script pays nothing for it."""
        self._interval_s = BEAT_INTERVAL_S
        self._report_due_s = 0.0
        self.on_report: Callable[[], wire.Spent | None] = lambda: None
        self._sender = threading.Thread(target=self._send_all, name="holdfast-sender", daemon=True)
        self._reader = threading.Thread(target=self._read_all, name="holdfast-reader", daemon=True)
        # A forked child (a data loader's, say) would keep the connection open beyond this process's death.
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())
        self._sender.start()

    @classmethod
    def connect(cls, environment: Mapping[str, str]) -> Self:
        """To the coordinator that the environment names; `HoldfastError` where that does not work."""
        try:
            endpoint, token = environment["HOLDFAST_COORDINATOR"], environment["HOLDFAST_TOKEN"]
            member = environment["HOLDFAST_MEMBER"]
        except KeyError as missing:
            raise HoldfastError(
                f"{missing.args[0]} is not set, so this process does not know its run.",
                hint="Start the script with `holdfast run`.",
            ) from None
        call, place = partial(shake_hands, token, "worker", member), _address(endpoint)
        connection, entry = call(place, None, handshake.KNOWN_WAIT_S)  # our agent has just heard from it
        successor = call if entry.accepted.has_successor else None
        link = cls(connection, entry.frames, member, entry.channel, successor, place)
        link._term = entry.accepted.term
        return link

    @property
    def on_message(self) -> Listener | None:
        return self._listener

    @on_message.setter
    def on_message(self, listener: Listener) -> None:
        is_first = self._listener is None
        self._listener = listener
        if is_first:
            self._reader.start()

    def beat(self, step: int, stage: wire.Stage) -> None:
        """What the heartbeats tell from now on."""
        self._step, self._stage = step, stage

    def be_one_of(self, members: int) -> None:
        """How many they are from now on: in a crowd each beats less often."""
        self._interval_s = beat_interval_s(members)

    def beat_now(self) -> None:
        """Have a heartbeat sent that is not due yet."""
        self.send(wire.MemberBeat(member=self.member, step=self._step, stage=self.refine(self._stage)))

    def send(self, message: wire.FromWorker) -> None:
        """Have it sent; returns at once. After the connection has ended it goes nowhere."""
        with self._lock:
            if len(self._queue) >= QUEUE_MAX:
                self._end()
            if self._is_open:
                self._queue.append(wire.frame(message))
            self._changed.notify_all()

    def send_now(self, message: wire.FromWorker) -> None:
        """Send it, after all that is still queued, before returning: for last words, and for what must be
        known before the script goes on. What finds no room in time stays queued. Never raises.
        """
        until_s = time.monotonic() + LAST_WORDS_S
        self.send(message)
        if not self._sending.acquire(timeout=LAST_WORDS_S):
            return  # the coordinator takes nothing at the moment
        try:
            self._send_until(until_s)
        except OSError:
            pass  # it has ended, which the reader tells
        finally:
            self._sending.release()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is handed to the kernel; False: it was not, in that time."""
        with self._lock:
            sent = self._changed.wait_for(lambda: not (self._is_waiting and self._is_open), timeout_s)
            if not sent or self._is_waiting:
                return False
        if self._sending.acquire(timeout=timeout_s):  # what was taken from the queue is on its way
            self._sending.release()
            return True
        return False

    def close(self) -> None:
        """End the connection and both threads."""
        self._end()
        current = threading.current_thread()
        for thread in (self._sender, self._reader):
            if thread.is_alive() and thread is not current:
                thread.join(CLOSE_S_MAX)
        self._socket.close()

    def _send_all(self) -> None:
        """The sending thread: what is queued at once, and the heartbeat when it is due."""
        due_s = time.monotonic()
        while self._is_open:
            with self._lock:
                if self._is_broken:
                    self._changed.wait()  # the reading thread looks for a successor
                    continue
                if not self._is_waiting:
                    self._changed.wait(max(0.0, due_s - time.monotonic()))
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + self._interval_s
                with self._lock:
                    self._queue.append(wire.frame(self._beat(due_s)))
            self._send_queued()

    def _beat(self, now_s: float) -> wire.MemberBeat:
        spent = None
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + REPORT_INTERVAL_S
            spent = self.on_report()
        stage = self.refine(self._stage)
        return wire.MemberBeat(member=self.member, step=self._step, stage=stage, spent=spent)

    @property
    def _is_waiting(self) -> bool:
        """Whether there is anything to be sent that nobody is sending."""
        return bool(self._queue or self._rest)

    def _send_queued(self) -> None:
        with self._sending:
            with self._lock:
                self._seal()
                data, self._rest = self._rest, memoryview(b"")
                self._changed.notify_all()
            try:
                self._socket.sendall(data)
            except OSError:
                self._break()  # while nobody can put another connection in its place

    def _send_until(self, until_s: float) -> None:
        """What is queued, as far as there is room by then. The rest, which may begin within a frame, is what
        is sent next. `_sending` is held, so nobody else sends meanwhile.
        """
        # Not select(), which fails where a script has a thousand files open.
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        with self._lock:
            self._seal()
        try:
            while self._rest and room.poll(max(0.0, until_s - time.monotonic()) * 1000):
                self._rest = self._rest[self._socket.send(self._rest, socket.MSG_DONTWAIT) :]
        finally:
            with self._lock:
                self._changed.notify_all()

    def _seal(self) -> None:
        """Put what is queued behind what is to be sent next. `_sending` and `_lock` are held."""
        for frame in self._queue:
            self._sent.add(frame)
        frames = b"".join(self._queue)
        self._queue.clear()
        self._rest = memoryview(bytes(self._rest) + self._channel.seal(frames))

    def _read_all(self) -> None:
        """The reading thread. Whatever ends it, the listener hears of it, once."""
        assert self._listener is not None
        is_connected = True
        while is_connected:
            with contextlib.suppress(OSError, wire.MalformedFrame, handshake.Rejected):
                self._read_connection(self._listener)
            self._break()
            is_connected = self._is_open and self._succeeded()
        self._end()
        self._listener(None)

    def _read_connection(self, listener: Listener) -> None:
        # The handshake may have read the beginning of what comes next.
        data, wait_s, heard_s = b"", seeking.SILENT_S, time.monotonic()
        while True:
            for message in self._frames.feed(data):
                self._take(message, listener)
            data = b""
            if not self._line or self._hears(wait_s):
                wait_s, heard_s = seeking.SILENT_S, time.monotonic()
                received = self._socket.recv(READ_BYTES)
                if not received:
                    return
                with self._lock:  # who sends seals, too
                    data = self._channel.open(received)
            else:  # where there is another coordinator now, what it says comes next
                wait_s = seeking.SILENT_INTERVAL_S
                if self._resumed([one for one in self._line if one != self._place]):
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > seeking.SEEK_S:
                    self._successor = None  # this side of a cut has none
                    return

    def _take(self, message: wire.AnyMessage, listener: Listener) -> None:
        if isinstance(message, wire.Reigning):
            return  # the coordinator lives; it is not counted
        self._received += 1
        if isinstance(message, wire.LineOfSuccession):
            self._line = message.places
        if isinstance(message, wire.Released | wire.Dismissed):
            self._successor = None  # nothing is left to be said
        if isinstance(message, _TO_WORKER):
            listener(message)

    def _hears(self, wait_s: float) -> bool:
        """Whether there is anything to read, or the connection has ended, within this time."""
        came = select.poll()
        came.register(self._socket, select.POLLIN)
        return bool(came.poll(wait_s * 1000))

    def _succeeded(self) -> bool:
        """Go on with the coordinator's successor; False: there is none, or it has given this member up."""
        began_s, self._is_to_be_chosen = time.monotonic(), False
        while self._successor is not None and self._is_open:
            try:
                if self._resumed(seeking.around(self._place, self._line)):
                    return True
            except handshake.Rejected:
                return False
            look_s = seeking.look_s(self._line, is_to_be_chosen=self._is_to_be_chosen)
            if time.monotonic() - began_s >= look_s:
                return False
            time.sleep(seeking.SEEK_INTERVAL_S)
        return False

    def _resumed(self, places: list[Address]) -> bool:
        """Whether one of these places has a coordinator, with which to go on. `Rejected`: it has given this
        member up.
        """
        wait_s = seeking.answer_wait_s(self._line)
        for place in places:
            assert self._successor is not None
            try:
                connection, entry = self._successor(place, self._received, wait_s)
            except handshake.Rejected:
                raise
            except HoldfastError as error:
                self._is_to_be_chosen |= isinstance(error, handshake.Elsewhere)
                continue
            if self._take_over(connection, entry):
                self._place, self._term = place, entry.accepted.term
                return True
            connection.close()
        return False

    def _take_over(self, connection: socket.socket, entry: handshake.Entry) -> bool:
        """Speak over this connection from now on."""
        if entry.accepted.term < self._term:
            return False
        if not self._is_broken:
            self._break()  # who sends over the old one must not wait for it
        with self._sending, self._lock:
            missed = self._sent.after(entry.accepted.received)
            if missed is None or not self._is_open:
                return False
            self._socket.close()
            self._socket, self._frames, self._channel = connection, entry.frames, entry.channel
            self._rest = memoryview(self._channel.seal(b"".join(missed)))
            self._is_broken = False
            self._changed.notify_all()
        return True

    def _break(self) -> None:
        """The connection is of no more use. What it swallowed is sent again over the next one, if any."""
        if self._successor is None:
            self._end()
            return
        with self._lock:
            self._is_broken = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        with self._lock:
            self._is_open = False
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        """In a forked child: the connection is the parent's. Closing the child's copy does not end it."""
        self._is_open = False
        self._socket.close()


def _address(endpoint: str) -> Address:
    host, _, port = endpoint.rpartition(":")
    if not port.isdecimal():
        raise HoldfastError(
            f"HOLDFAST_COORDINATOR is {endpoint!r}, which is not in the form HOST:PORT.",
            hint="Start the script with `holdfast run`, which sets it.",
        )
    return host.strip("[]"), int(port)


def shake_hands(
    token: str, role: wire.Role, name: str, place: Address, received: int | None, wait_s: float
) -> tuple[socket.socket, handshake.Entry]:
    """A connection on which both sides proved the token, and how. received: as in `Proof`."""
    host, port = place
    endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    for _attempt in range(handshake.ATTEMPTS_MAX):
        try:
            connection = socket.create_connection(place, timeout=wait_s)
        except (OSError, UnicodeError) as error:  # the latter: of a host that no name is
            raise handshake.unreachable(endpoint, error) from None
        try:
            client = handshake.HandshakeClient(
                token,
                role=role,
                name=name,
                endpoint=handshake.endpoint_of(connection.getpeername()),
                received=received,
            )
            return connection, _proven(connection, client, wait_s)
        except (TimeoutError, wire.MalformedFrame):
            connection.close()
            raise handshake.stranger(endpoint) from None
        except OSError:  # it hung up before it said yes or no
            connection.close()
            time.sleep(handshake.ATTEMPT_INTERVAL_S)
        except BaseException:
            connection.close()
            raise
    raise handshake.stranger(endpoint)


def _proven(connection: socket.socket, client: handshake.HandshakeClient, wait_s: float) -> handshake.Entry:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    entry = handshake.Entry(client)
    due_s = time.monotonic() + wait_s
    while entry.run is None:
        left_s = due_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError  # it says something now and then
        connection.settimeout(left_s)
        connection.sendall(entry.take(connection.recv(READ_BYTES) or _ended()))
    connection.settimeout(None)
    return entry


def _ended() -> bytes:
    raise ConnectionError("the connection ended")
