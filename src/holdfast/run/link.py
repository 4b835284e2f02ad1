"""A worker's connection to the coordinator: sends heartbeats, never blocks the script, and reports its end.

There are two threads. One sends the script's messages and a heartbeat four times a second, less often if
there are many members; the other reads. If the coordinator dies, the reading thread finds its successor, and
both continue where they were: no message is lost or received twice (sent.py), and the script notices nothing.
This module knows neither torch nor the meaning of the messages.
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
"""Heartbeats of all members together, since one coordinator receives them all."""
REPORT_INTERVAL_S = 1.0
"""How often a heartbeat carries the member's measurements."""
QUEUE_MAX = 16384
"""The most messages that wait to be sent. More mean that the other end reads nothing, so the link ends."""
LAST_WORDS_S = 1.0
"""The most time that `send_now` takes, even if the socket's buffer is full."""
CLOSE_S_MAX = 5.0
"""How long `close` waits for each thread. Threads end with the process at the latest."""
READ_BYTES = 1 << 16

_TO_WORKER = get_args(wire.ToWorker)

Listener = Callable[[wire.ToWorker | None], None]
"""Called in the reading thread with every message, and with None when no coordinator is left."""
Call = Callable[[Address, int | None, float], tuple[socket.socket, handshake.Entry]]
"""Makes a proven connection to an address, given the number of messages received so far and the time to wait
for an answer. Raises `HoldfastError` if that fails."""


def beat_interval_s(members: int) -> float:
    """The time between two heartbeats of each of this many members."""
    return max(BEAT_INTERVAL_S, members / BEATS_PER_S_MAX)


class Link:
    """One worker's connection, made by `connect`. Reading starts once there is a listener, so no message is
    missed.
    """

    def __init__(
        self,
        connection: socket.socket,
        frames: wire.FrameBuffer,
        member: str,
        channel: Channel | None = None,
        successor: Call | None = None,
        place: Address = ("", 0),
    ) -> None:
        """successor: connects to the coordinator's successor if the coordinator dies; None if there is none.
        place: the coordinator's address.
        """
        self.member = member
        self._successor = successor
        self._place = place
        self._line: tuple[Address, ...] = ()
        self._is_to_be_chosen = False
        """Whether a process that may become the coordinator has answered since the coordinator was lost."""
        self._term = 0
        self._sent = SentFrames()
        self._received = 0
        self._is_broken = False
        self._socket = connection
        self._frames = frames
        self._channel = channel or Channel()
        self._listener: Listener | None = None
        self._queue: deque[bytes] = deque()
        """Unencrypted frames: a signal handler may raise in a sender, and TLS would miss a frame that was
        sealed but not sent.
        """
        self._rest = memoryview(b"")
        """Sealed bytes to send next. Only the holder of `_sending` may use them."""
        # Acquired directly, not through the condition: the condition is Python code, in which a signal
        # handler can raise after the lock is taken and before anything would release it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._is_open = True
        self._step = 0
        self._stage: wire.Stage = "starting"
        self.refine: Callable[[wire.Stage], wire.Stage] = lambda stage: stage
        """Returns a more precise stage. Called in the sending thread, so that it costs the script nothing."""
        self._interval_s = BEAT_INTERVAL_S
        self._report_due_s = 0.0
        self.on_report: Callable[[], wire.Spent | None] = lambda: None
        self._sender = threading.Thread(target=self._send_all, name="holdfast-sender", daemon=True)
        self._reader = threading.Thread(target=self._read_all, name="holdfast-reader", daemon=True)
        # A forked child, such as a data loader's, would keep the connection open after this process's death.
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())
        self._sender.start()

    @classmethod
    def connect(cls, environment: Mapping[str, str]) -> Self:
        """Connect to the coordinator that the environment names. Raise `HoldfastError` if that fails."""
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
        """Set the step and stage that heartbeats report from now on."""
        self._step, self._stage = step, stage

    def be_one_of(self, members: int) -> None:
        """Set the number of members: if there are many, each sends fewer heartbeats."""
        self._interval_s = beat_interval_s(members)

    def beat_now(self) -> None:
        """Send a heartbeat before it is due."""
        self.send(wire.MemberBeat(member=self.member, step=self._step, stage=self.refine(self._stage)))

    def send(self, message: wire.FromWorker) -> None:
        """Queue the message and return at once. After the connection has ended, the message is dropped."""
        with self._lock:
            if len(self._queue) >= QUEUE_MAX:
                self._end()
            if self._is_open:
                self._queue.append(wire.frame(message))
            self._changed.notify_all()

    def send_now(self, message: wire.FromWorker) -> None:
        """Send the message and all queued ones before returning: for last words, and for messages that must
        arrive before the script continues. Messages that cannot be sent in time stay queued. Never raises.
        """
        until_s = time.monotonic() + LAST_WORDS_S
        self.send(message)
        if not self._sending.acquire(timeout=LAST_WORDS_S):
            return  # the coordinator reads nothing at the moment
        try:
            self._send_until(until_s)
        except OSError:
            pass  # the connection ended, which the reader reports
        finally:
            self._sending.release()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is handed to the kernel. False if that takes longer than the timeout."""
        with self._lock:
            sent = self._changed.wait_for(lambda: not (self._is_waiting and self._is_open), timeout_s)
            if not sent or self._is_waiting:
                return False
        if self._sending.acquire(timeout=timeout_s):  # messages taken from the queue are on their way
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
        """The sending thread: send queued messages at once, and the heartbeat when it is due."""
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
        """Whether there is anything to send that no thread is sending."""
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
                self._break()  # while no other thread can replace the connection

    def _send_until(self, until_s: float) -> None:
        """Send queued messages as far as the socket takes them in time. The rest, which may start within a
        frame, is sent next. `_sending` is held, so no other thread sends meanwhile.
        """
        # Not select(), which fails if a script has a thousand files open.
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
        """Append the queued frames to the bytes to send next. `_sending` and `_lock` are held."""
        for frame in self._queue:
            self._sent.add(frame)
        frames = b"".join(self._queue)
        self._queue.clear()
        self._rest = memoryview(bytes(self._rest) + self._channel.seal(frames))

    def _read_all(self) -> None:
        """The reading thread. When it ends for any reason, the listener is told once."""
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
        # The handshake may have read the beginning of the next message.
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
                with self._lock:  # the sending thread uses the channel, too
                    data = self._channel.open(received)
            else:  # if another coordinator has taken over, its messages come next
                wait_s = seeking.SILENT_INTERVAL_S
                if self._resumed([one for one in self._line if one != self._place]):
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > seeking.SEEK_S:
                    self._successor = None  # no coordinator on this side of a cut
                    return

    def _take(self, message: wire.AnyMessage, listener: Listener) -> None:
        if isinstance(message, wire.Reigning):
            return  # only says that the coordinator lives; not counted
        self._received += 1
        if isinstance(message, wire.LineOfSuccession):
            self._line = message.places
        if isinstance(message, wire.Released | wire.Dismissed):
            self._successor = None  # no more messages follow
        if isinstance(message, _TO_WORKER):
            listener(message)

    def _hears(self, wait_s: float) -> bool:
        """Whether data arrive, or the connection ends, within this time."""
        came = select.poll()
        came.register(self._socket, select.POLLIN)
        return bool(came.poll(wait_s * 1000))

    def _succeeded(self) -> bool:
        """Continue with the coordinator's successor. False if there is none or it gave this member up."""
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
        """Connect to a coordinator at one of these places; whether that worked. Raise `Rejected` if it has
        given this member up.
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
        """Use this connection from now on; whether it is usable."""
        if entry.accepted.term < self._term:
            return False
        if not self._is_broken:
            self._break()  # a thread that sends over the old one must not wait for it
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
        """Shut the connection down. Messages that it swallowed are sent again over the next one, if any."""
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
        """Close a forked child's copy of the connection, which stays the parent's and does not end."""
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
    """A connection on which both sides proved the token, and its handshake. received: as in `Proof`."""
    host, port = place
    endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    for _attempt in range(handshake.ATTEMPTS_MAX):
        try:
            connection = socket.create_connection(place, timeout=wait_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: invalid host name
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
        except OSError:  # it hung up before it answered
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
            raise TimeoutError  # it sends something now and then, but no verdict
        connection.settimeout(left_s)
        connection.sendall(entry.take(connection.recv(READ_BYTES) or _ended()))
    connection.settimeout(None)
    return entry


def _ended() -> bytes:
    raise ConnectionError("the connection ended")
