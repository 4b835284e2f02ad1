"""A worker's link, against a coordinator that the test plays on a real socket."""

import contextlib
import os
import queue
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from waiting import WAIT_S

from holdfast.record.errors import HoldfastError
from holdfast.run.handshake import HANDSHAKE_WAIT_S, KNOWN_WAIT_S, Host, endpoint_of
from holdfast.run.link import (
    BEAT_INTERVAL_S,
    BEATS_PER_S_MAX,
    LAST_WORDS_S,
    QUEUE_MAX,
    Link,
    beat_interval_s,
)
from holdfast.run.tls import Channel, Identity, make_identity
from holdfast.run.wire import (
    Accepted,
    Admitted,
    Announced,
    AnyMessage,
    Committed,
    FrameBuffer,
    MemberBeat,
    Proof,
    Published,
    Refused,
    Released,
    Struck,
    ToWorker,
    WorkerJoined,
    Working,
    frame,
)

pytestmark = pytest.mark.slow

TOKEN = "a-token-for-tests"
INTERRUPTS = 150
FD_SETSIZE = 1024
"""select() supports no descriptor beyond it."""


class Hub:
    """The other end: accepts one connection, shakes hands as told, and keeps received messages."""

    def __init__(
        self,
        *,
        refusal: Refused | None = None,
        early: tuple[AnyMessage, ...] = (),
        identity: Identity | None = None,
        pause_s: float = 0.0,
    ) -> None:
        self._pause_s = pause_s
        self.heard: queue.Queue[AnyMessage] = queue.Queue()
        self.connected = threading.Event()
        self._refusal = refusal
        self._early = early
        self._identity = identity
        self._channel = Channel()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        host, port = self._server.getsockname()
        return {
            "HOLDFAST_COORDINATOR": f"{host}:{port}",
            "HOLDFAST_TOKEN": TOKEN,
            "HOLDFAST_MEMBER": "n0.0",
        }

    def next(self, *, beats: bool = False) -> AnyMessage:
        while True:
            message = self.heard.get(timeout=WAIT_S)
            if beats or not isinstance(message, MemberBeat):
                return message

    def send(self, message: AnyMessage) -> None:
        assert self.connected.wait(WAIT_S)
        self._connection.sendall(self._channel.seal(frame(message)))

    def hang_up(self) -> None:
        assert self.connected.wait(WAIT_S)
        self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closing alone would not wake a thread in accept()
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        if self.connected.is_set():
            self.hang_up_quietly()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def hang_up_quietly(self) -> None:
        with contextlib.suppress(OSError):  # the link may have been faster
            self._connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        try:
            self._connection, _ = self._server.accept()
        except OSError:
            return  # no connection came
        frames = FrameBuffer()
        certificate = b"" if self._identity is None else self._identity.fingerprint
        host = Host(TOKEN, endpoint=endpoint_of(self._connection.getsockname()), certificate=certificate)
        with self._connection:
            time.sleep(self._pause_s)
            self._connection.sendall(frame(host.challenge))
            if self._identity is not None:
                self._channel.host(self._identity)
            while data := self._receive():
                said = self._channel.open(data)
                with contextlib.suppress(ConnectionError):  # it has hung up; earlier messages are still read
                    self._connection.sendall(self._channel.pending())
                for message in frames.feed(said):
                    self._hear(message, host)

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(4096)
        except OSError:
            return b""

    def _hear(self, message: AnyMessage, host: Host) -> None:
        if not isinstance(message, Proof):
            self.heard.put(message)
            return
        assert host.refusal(message) is None
        self._channel.is_proven = True
        if self._refusal is not None:
            self._connection.sendall(self._channel.seal(frame(host.sealed(self._refusal))))
            self._connection.shutdown(socket.SHUT_WR)
            return
        # In one piece, so that the handshake reads the beginning of the next message.
        said = b"".join(map(frame, (host.sealed(Accepted(run="r")), *self._early)))
        self._connection.sendall(self._channel.seal(said))
        self.connected.set()


MakeHub = Callable[..., Hub]


@pytest.fixture
def hub() -> Iterator[MakeHub]:
    made: list[Hub] = []

    def make(**options: object) -> Hub:
        made.append(Hub(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


class Listener:
    """Keeps the messages from a link."""

    def __init__(self) -> None:
        self.messages: queue.Queue[ToWorker | None] = queue.Queue()

    def __call__(self, message: ToWorker | None) -> None:
        self.messages.put(message)

    def next(self) -> ToWorker | None:
        return self.messages.get(timeout=WAIT_S)


def test_messages_go_both_ways_in_order(hub: MakeHub) -> None:
    made, listener = hub(), Listener()
    link = Link.connect(made.environment)
    link.on_message = listener
    link.send(WorkerJoined(member="n0.0", pid=1))
    for step in range(1, 200):
        committed = Committed(member="n0.0", generation=1, step=step, loss=None)
        link.send(committed)
    assert isinstance(made.next(), WorkerJoined)
    assert [
        message.step for message in (made.next() for _ in range(1, 200)) if isinstance(message, Committed)
    ] == [*range(1, 200)]
    made.send(Admitted(slot=0, slots=1))
    made.send(Announced(number=1, members=("n0.0",)))
    assert listener.next() == Admitted(slot=0, slots=1)
    assert listener.next() == Announced(number=1, members=("n0.0",))
    link.close()
    assert listener.next() is None


@pytest.mark.parametrize("tls", [False, True])
def test_what_comes_with_the_handshake_is_not_missed(hub: MakeHub, tls: bool) -> None:
    early = (Admitted(slot=1, slots=2), Released(outcome="stopped"))
    made, listener = hub(early=early, identity=make_identity() if tls else None), Listener()
    link = Link.connect(made.environment)
    time.sleep(0.05)  # longer than it takes to arrive
    link.on_message = listener
    assert listener.next() == Admitted(slot=1, slots=2)
    assert listener.next() == Released(outcome="stopped")
    link.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_signal_handler_that_raises_in_the_middle_of_sending_spoils_nothing(
    hub: MakeHub, tls: bool
) -> None:
    """Like SIGTERM's: later messages still arrive, and both threads continue."""
    made = hub(identity=make_identity() if tls else None)
    link = Link.connect(made.environment)
    link.on_message = Listener()

    def interrupt(_signal: int, _frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(INTERRUPTS):
            with contextlib.suppress(InterruptedError):  # which may come at once, on a busy machine
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + number * 1e-6)
                while True:
                    link.send(Committed(member="n0.0", generation=1, step=number, loss=None))
            assert link.flush(WAIT_S)
        signal.setitimer(signal.ITIMER_REAL, 0)
        link.send(Struck(member="n0.0", fault=1))
        while not isinstance(made.next(), Struck):
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        link.close()


def test_it_beats_by_itself_with_what_it_was_told(hub: MakeHub) -> None:
    made = hub()
    link = Link.connect(made.environment)
    link.on_message = Listener()
    first = made.next(beats=True)
    assert first == MemberBeat(member="n0.0", step=0, stage="starting")
    link.beat(41, "reduce")
    began_s = time.monotonic()
    beats = [made.next(beats=True) for _ in range(3)]
    assert beats[-1] == MemberBeat(member="n0.0", step=41, stage="reduce")
    assert time.monotonic() - began_s > BEAT_INTERVAL_S  # not a flood
    link.close()


def test_in_a_crowd_each_beats_less_often() -> None:
    assert beat_interval_s(1) == beat_interval_s(512) == BEAT_INTERVAL_S
    for members in (1_024, 4_096, 16_384):
        assert members / beat_interval_s(members) <= BEATS_PER_S_MAX


def test_last_words_are_sent_before_the_call_returns(hub: MakeHub) -> None:
    made = hub()
    link = Link.connect(made.environment)
    link.on_message = Listener()
    link.send(WorkerJoined(member="n0.0", pid=1))
    link.send_now(Struck(member="n0.0", fault=3))
    link.close()
    assert isinstance(made.next(), WorkerJoined)
    assert made.next() == Struck(member="n0.0", fault=3)


def test_flush_waits_for_what_is_queued(hub: MakeHub) -> None:
    made = hub()
    link = Link.connect(made.environment)
    link.on_message = Listener()
    for step in range(500):
        link.send(Committed(member="n0.0", generation=1, step=step, loss=0.5))
    assert link.flush(WAIT_S)
    link.close()
    steps = [message.step for message in (made.next() for _ in range(500)) if isinstance(message, Committed)]
    assert steps == [*range(500)]


def test_the_end_of_the_connection_is_told_once_and_nothing_raises_after_it(hub: MakeHub) -> None:
    made, listener = hub(), Listener()
    link = Link.connect(made.environment)
    link.on_message = listener
    made.hang_up()
    assert listener.next() is None
    link.send(WorkerJoined(member="n0.0", pid=1))
    link.send_now(WorkerJoined(member="n0.0", pid=1))
    link.beat(1, "forward")
    link.flush(0.1)
    link.close()
    assert listener.messages.empty()


def test_bytes_that_are_no_message_end_the_connection(hub: MakeHub) -> None:
    made, listener = hub(), Listener()
    link = Link.connect(made.environment)
    link.on_message = listener
    assert made.connected.wait(WAIT_S)
    made._connection.sendall(b"\xff\xff\xff\xff")
    assert listener.next() is None
    link.close()


def test_a_coordinator_that_reads_nothing_is_given_up_and_blocks_no_sender() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        listener = Listener()
        link = Link(near, FrameBuffer(), "n0.0")
        link.on_message = listener
        large = Published(generation=1, key="k", value=b"v" * (4 << 10))
        for _ in range(4 * QUEUE_MAX):  # far more than the kernel buffers for a peer that does not read
            link.send(large)
        assert listener.next() is None
        link.close()
        far.close()


def test_what_finds_no_room_on_a_full_socket_is_sent_later_whole_and_in_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        link = Link(near, FrameBuffer(), "n0.0")
        link.on_message = Listener()
        large = frame(Published(generation=1, key="k", value=b"v" * (1 << 20)))
        sent = 0
        with link._sending, contextlib.suppress(BlockingIOError):  # until the kernel takes nothing any more
            while True:
                taken = near.send(large[sent % len(large) :], socket.MSG_DONTWAIT)
                sent += taken
        with link._lock:
            link._rest = memoryview(large[sent % len(large) :])
        link.send(Committed(member="n0.0", generation=1, step=7, loss=None))
        began_s = time.monotonic()
        link.send_now(Working(member="n0.0", work="evaluation"))
        link.send_now(Published(generation=1, key="last", value=b"v" * (4 << 20)))
        assert time.monotonic() - began_s < 10 * LAST_WORDS_S
        heard: list[AnyMessage] = []
        frames = FrameBuffer()
        far.settimeout(WAIT_S)
        while not heard or getattr(heard[-1], "key", "") != "last":
            heard += [one for one in frames.feed(far.recv(1 << 16)) if not isinstance(one, MemberBeat)]
        assert [type(one) for one in heard[-3:]] == [Committed, Working, Published]
        assert len(heard) == sent // len(large) + 1 + 3
        link.close()
        far.close()


def test_a_message_larger_than_the_room_goes_on_behind_what_was_sent_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        far, _ = server.accept()
        link = Link(near, FrameBuffer(), "n0.0")
        link.on_message = Listener()
        value = os.urandom(7 << 20)
        with link._sending:
            link.send(Published(generation=1, key="large", value=value))
            link.send(Struck(member="n0.0", fault=1))
            link._send_until(time.monotonic() + 0.1)
            assert 0 < len(link._rest) < len(value)  # a part of it is on its way
        heard: list[AnyMessage] = []
        frames = FrameBuffer()
        far.settimeout(WAIT_S)
        while not any(isinstance(one, Struck) for one in heard):
            heard += [one for one in frames.feed(far.recv(1 << 16)) if not isinstance(one, MemberBeat)]
        assert heard == [
            Published(generation=1, key="large", value=value),
            Struck(member="n0.0", fault=1),
        ]
        link.close()
        far.close()


def test_a_refusal_is_reported_to_the_user(hub: MakeHub) -> None:
    made = hub(refusal=Refused(sentence="The worker is connected already.", hint="Name it."))
    with pytest.raises(HoldfastError) as caught:
        Link.connect(made.environment)
    assert (caught.value.sentence, caught.value.hint) == ("The worker is connected already.", "Name it.")


def test_a_closed_port_is_reported_to_the_user(hub: MakeHub) -> None:
    made = hub()
    environment = made.environment
    made.close()
    with pytest.raises(
        HoldfastError, match=r"^The coordinator at .* cannot be reached: no process listens there\.$"
    ):
        Link.connect(environment)


def test_a_script_that_was_not_started_by_a_run_is_told_so() -> None:
    with pytest.raises(HoldfastError, match=r"^HOLDFAST_COORDINATOR is not set, .*\.$"):
        Link.connect({})


@pytest.mark.parametrize("place", ["", "host", "host:", "host:port"])
def test_an_invalid_endpoint(place: str) -> None:
    environment = {"HOLDFAST_COORDINATOR": place, "HOLDFAST_TOKEN": TOKEN, "HOLDFAST_MEMBER": "n0.0"}
    with pytest.raises(HoldfastError, match=r"which is not in the form HOST:PORT\.$"):
        Link.connect(environment)


def test_last_words_are_sent_where_a_script_has_many_files_open(hub: MakeHub) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 4096:
        pytest.skip("the system allows too few open files")
    made = hub()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(FD_SETSIZE)]
    try:
        link = Link.connect(made.environment)
        link.send_now(Struck(member="n0.0", fault=1))
        assert made.next() == Struck(member="n0.0", fault=1)
        link.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_another_program_at_the_address_is_not_taken_for_a_coordinator() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(
            HoldfastError, match=r"^The process that listens at .* is not a coordinator of Holdfast\.$"
        ):
            Link.connect(
                {"HOLDFAST_COORDINATOR": f"{host}:{port}", "HOLDFAST_TOKEN": TOKEN, "HOLDFAST_MEMBER": "n0.0"}
            )
        thread.join(WAIT_S)


@pytest.mark.soak
def test_a_coordinator_that_gets_no_core_for_a_while_is_waited_for(hub: MakeHub) -> None:
    """It is silent for longer than the time after which a peer is usually taken for another program."""
    made = hub(pause_s=HANDSHAKE_WAIT_S + 2)
    link = Link.connect(made.environment)
    link.on_message = Listener()
    link.send(WorkerJoined(member="n0.0", pid=1))
    assert made.next() == WorkerJoined(member="n0.0", pid=1)
    link.close()


@pytest.mark.soak
def test_a_peer_that_only_sends_a_byte_now_and_then_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        done = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall((1000).to_bytes(4, "big"))
                while not done.wait(0.5):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        began_s = time.monotonic()
        with pytest.raises(HoldfastError, match="is not a coordinator of Holdfast"):
            Link.connect(
                {"HOLDFAST_COORDINATOR": f"{host}:{port}", "HOLDFAST_TOKEN": TOKEN, "HOLDFAST_MEMBER": "n0.0"}
            )
        assert time.monotonic() - began_s < 2 * KNOWN_WAIT_S
        done.set()
        thread.join(WAIT_S)
