"""The fabric to a node that is known to be good: real connections, good ones and bad ones, and strangers."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from networks import network
from waiting import WAIT_S, alone, until

from bench.machines import NetworkedMachine
from holdfast.check.answering import WAITING_MAX, FabricAnswerer
from holdfast.check.fabric import (
    ECHO,
    NAMES,
    RECEIVE,
    REQUEST,
    TRY_S,
    BoundedSocket,
    FabricWay,
    place_named,
    read_token,
    try_fabric,
)
from holdfast.check.figures import CheckedFigure, held_against, owed, reference_text
from holdfast.check.ports import judged_ports, look_at_ports
from holdfast.record.errors import InputError
from holdfast.run.link import shake_hands

TOKEN = "a token for tests"
PORTS = Path(__file__).parents[1] / "data" / "sysfs-infiniband-h100"
PORT = 29450
TRIES_MAX = 5
"""A good link passes, though a machine that is busy may be late now and then."""


@contextmanager
def answering() -> Iterator[int]:
    """The port of a service on this machine."""
    made = FabricAnswerer(("127.0.0.1", 0), TOKEN)
    thread = threading.Thread(target=made.serve, args=(time.monotonic() + WAIT_S,), daemon=True)
    thread.start()
    try:
        yield made.port
    finally:
        made.stop()
        thread.join(WAIT_S)


def tried(port: int, token: str = TOKEN, host: str = "127.0.0.1") -> dict[str, CheckedFigure]:
    found = try_fabric([(host, port)], token, time.monotonic() + WAIT_S)
    return {one.name: one for one in found}


@pytest.mark.slow
def test_a_way_is_measured_and_strangers_do_not_disturb_it() -> None:
    with answering() as port:
        wrong = tried(port, "another token of tests")
        assert {name: one.value for name, one in wrong.items()} == dict.fromkeys(NAMES)
        assert "does not have our token" in wrong["fabric.out"].note
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 1 << 31)):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(said)
        found = tried(port, host="localhost")  # which may have an address where no process listens, too
        assert set(found) == set(NAMES)
        assert all(one.value is not None for one in found.values()), found
        assert found["fabric.latency"].note == f"to localhost:{port}"


@pytest.mark.parametrize(
    "asked", [REQUEST.pack(RECEIVE, 1 << 40), REQUEST.pack(ECHO, 0), REQUEST.pack(b"X", 1)]
)
def test_what_nobody_asks_ends_the_connection(asked: bytes) -> None:
    with answering() as port:
        connection, _ = shake_hands(TOKEN, "operator", "check", ("127.0.0.1", port), None, WAIT_S)
        with closing(connection):
            connection.settimeout(WAIT_S)
            connection.sendall(asked)
            assert connection.recv(1) == b""


def test_the_service_ends_by_itself_and_nobody_there_is_told() -> None:
    made = FabricAnswerer(("127.0.0.1", 0), TOKEN)
    port = made.port
    made.serve(time.monotonic())
    found = tried(port)
    assert found["fabric.in"].note == f"127.0.0.1:{port} cannot be reached: no process listens there"
    assert all(one.ok and one.value is None for one in found.values())  # it says nothing about this node
    assert not any(one.ok for one in owed(list(found.values()), "fabric"))


def test_a_peer_that_is_busy_does_not_speak_against_a_node_but_one_that_nothing_gets_to_does() -> None:
    nowhere = ("255.255.255.255", 9)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        peers = [nowhere, busy.getsockname()]
        found = list(try_fabric(peers, TOKEN, time.monotonic() + TRY_S + 1))
        assert [one.ok for one in found] == [True] * len(NAMES)
        assert "is busy" in found[0].note
    found = list(try_fabric([nowhere], TOKEN, time.monotonic() + WAIT_S))
    assert [one.ok for one in found] == [False] * len(NAMES)
    found = list(try_fabric([("no-such-node.invalid", 9)], TOKEN, time.monotonic() + WAIT_S))
    assert [one.ok for one in found] == [True] * len(NAMES)


def test_a_crowd_of_nodes_is_told_that_the_peer_is_busy() -> None:
    """More than the kernel keeps waiting: each must be told, none may conclude that its own link is cut."""
    found: list[CheckedFigure] = []
    with answering() as port:
        place = ("127.0.0.1", port)
        busy, _ = shake_hands(TOKEN, "operator", "check", place, None, WAIT_S)

        def check() -> None:
            found.extend(try_fabric([place], TOKEN, time.monotonic() + TRY_S + 2))

        crowd = [threading.Thread(target=check, daemon=True) for _ in range(3 * WAITING_MAX)]
        with closing(busy):
            for one in crowd:
                one.start()
            for one in crowd:
                one.join(WAIT_S)
    assert len(found) == len(crowd) * len(NAMES)
    assert {(one.ok, "is busy" in one.note) for one in found} == {(True, True)}


def test_what_there_is_no_time_for_does_not_speak_against_a_node() -> None:
    with answering() as port:
        found = list(try_fabric([("127.0.0.1", port)], TOKEN, time.monotonic() + TRY_S / 2))
    assert [one.ok for one in found] == [True] * len(NAMES)
    assert found[0].note == f"no time was left to try 127.0.0.1:{port}: give a longer --timeout"


SILENT_S = 150.0
"""How long the resolver waits for a server that does not answer, by its options below."""
SILENT = "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n"
RESOLVING = f"""
import socket, subprocess, sys, time
from holdfast.check.fabric import TRY_S, try_fabric
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 53))
    began_s = time.monotonic()
    found = list(try_fabric([("n1.invalid", 9)], {TOKEN!r}, began_s + TRY_S + 4))
    print(time.monotonic() - began_s, *(one.ok for one in found), found[0].note)
"""


@pytest.mark.root
@pytest.mark.slow
def test_a_resolver_that_does_not_answer_is_not_waited_for(tmp_path: Path, need: Callable[..., None]) -> None:
    need("iproute2", "util-linux")
    (silent := tmp_path / "resolv.conf").write_text(SILENT)
    command = ["unshare", "--mount", "--net", sys.executable, "-c", RESOLVING, str(silent)]
    began_s = time.monotonic()
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=WAIT_S, check=True).stdout
    took_s, *ok, note = said.strip().split(" ", 1 + len(NAMES))
    assert float(took_s) < SILENT_S / 2
    assert time.monotonic() - began_s < SILENT_S  # the process did not wait for it either
    assert ok == ["True"] * len(NAMES)
    assert note.startswith("n1.invalid:9 cannot be reached: the resolver did not answer in ")


def test_a_peer_that_ends_in_the_middle_does_not_speak_against_a_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname(), WAIT_S)
        server.accept()[0].close()
    with here:
        found = list(FabricWay(BoundedSocket(here, time.monotonic() + WAIT_S), "n1:29450").figures())
    assert {(one.name, one.ok, one.value) for one in found} == {(name, True, None) for name in NAMES}


def test_a_reference_bounds_what_the_way_takes() -> None:
    def took(us: float) -> list[CheckedFigure]:
        return [
            CheckedFigure(name=name, value=us, unit="us", reference=5_000.0, ok=True, sense="at-most")
            for name in ("fabric.latency", "fabric.latency_p99")
        ]

    assert reference_text(took(20)) == '"fabric.latency" = 20\n"fabric.latency_p99" = 20\n'
    known = {"fabric.latency": 20.0, "fabric.latency_p99": 20.0}
    assert [one.ok for one in held_against(took(39), known)] == [True, True]
    assert [one.ok for one in held_against(took(60), known)] == [False, True]
    assert [one.ok for one in held_against(took(101), known)] == [False, False]


@pytest.mark.parametrize(
    "text", ["n17", ":29450", "n17:", "n17:0", "n17:65536", "n17:٣", "a..b:1", "n17:" + 5_000 * "1"]
)
def test_a_peer_is_host_and_port(text: str) -> None:
    with pytest.raises(InputError, match="not in the form HOST:PORT"):
        place_named(text)


def test_a_token_is_a_secret_and_not_too_short(tmp_path: Path) -> None:
    token = tmp_path / "token"
    for text, mode, sentence in (
        (TOKEN, 0o604, "Every user can read"),
        ("short", 0o600, "fewer than 16"),
        ("\udcff" * 20, 0o600, "not text"),
    ):
        token.write_bytes(text.encode("utf-8", "surrogateescape"))
        token.chmod(mode)
        with pytest.raises(InputError, match=sentence):
            read_token(token)
    with pytest.raises(InputError, match="Cannot read the token"):
        read_token(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InputError, match="is not a regular file"):
        read_token(tmp_path / "pipe")
    with pytest.raises(InputError, match="need a token"):
        read_token(None)


# ---- between machines ------------------------------------------------------------------------------------


class CheckedPair:
    """A node, and one that answers."""

    def __init__(self, folder: Path, machines: list[NetworkedMachine]) -> None:
        self.node, self.good = machines
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        self._place = f"{self.good.address}:{PORT}"
        words = ("check", "--answer", self._place, "--timeout", "3600", *self._token_words)
        self.process = subprocess.Popen([*self.good.prefix, sys.executable, "-m", "holdfast", *words])

    @property
    def _token_words(self) -> tuple[str, ...]:
        return ("--token-file", str(self._token))

    def is_answered(self) -> bool:
        try:
            with socket.create_connection((self.good.address, PORT), timeout=1):
                return True
        except OSError:
            return False

    def check(self) -> tuple[int, dict[str, CheckedFigure]]:
        skipped = [word for kind in ("gpu", "disk", "memory", "clock", "kernel") for word in ("--skip", kind)]
        words = ("check", "--json", "--for", "fabric", "--peer", self._place, *self._token_words, *skipped)
        done = subprocess.run(
            [*self.node.prefix, sys.executable, "-m", "holdfast", *words],
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.stdout, done.stderr
        told = json.loads(done.stdout)
        return done.returncode, {one["name"]: CheckedFigure(**one) for one in told["checks"]}

    def bad(self) -> set[str]:
        """What a check finds that is not good."""
        code, found = self.check()
        bad = {name for name, one in found.items() if not one.ok}
        assert code == bool(bad)
        return bad


@pytest.fixture
def pair(tmp_path: Path, need: Callable[..., None]) -> Iterator[CheckedPair]:
    need("iproute2", "util-linux")
    with alone("networks"), network(2) as machines:
        made = CheckedPair(tmp_path, machines)
        try:
            until(made.is_answered)
            yield made
        finally:
            made.process.terminate()
            made.process.wait()


@pytest.mark.root
@pytest.mark.slow
def test_a_good_link_passes_and_a_slow_or_lossy_one_does_not(pair: CheckedPair) -> None:
    assert any(pair.bad() == set() for _ in range(TRIES_MAX))
    pair.good.slow("50mbit")
    assert "fabric.in" in pair.bad()
    pair.good.hurry()
    pair.node.lose()
    assert "fabric.retransmits" in pair.bad()


# ---- ports -----------------------------------------------------------------------------------------------


def test_ports_are_judged_by_their_links_and_by_what_they_count_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "infiniband"
    shutil.copytree(PORTS, root)
    before = look_at_ports(root)
    grown = ["port.mlx5_0.1.errors", "port.mlx5_0.1.losses"]
    assert {name: port.rate for name, port in before.items()} == {"mlx5_0.1": 400.0, "mlx5_1.1": 400.0}
    assert all(one.ok for one in judged_ports(before, look_at_ports(root)))
    first, second = (root / device / "ports" / "1" for device in ("mlx5_0", "mlx5_1"))
    for name, more in (("symbol_error", 11), ("link_downed", 1)):
        counter = first / "counters" / name
        counter.write_text(str(int(counter.read_text()) + more))
    (second / "state").write_text("2: INIT")
    found = {one.name: one for one in judged_ports(before, look_at_ports(root))}
    assert {name for name, one in found.items() if not one.ok} == {"ports.active", *grown}
    assert [found[name].value for name in grown] == [11, 1]
    (second / "phys_state").write_text("2: Polling")  # a port that nobody uses, unless a reference says so
    judged = list(judged_ports(before, look_at_ports(root)))
    assert [one.name for one in judged if not one.ok] == grown
    assert not held_against(judged, {"ports.active": 2.0})[0].ok


def test_a_node_without_adapters_has_no_ports(tmp_path: Path) -> None:
    assert list(judged_ports({}, look_at_ports(tmp_path / "nowhere"))) == []
