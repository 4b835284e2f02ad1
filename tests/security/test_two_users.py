"""Another user of the same machine, against a live run: its processes, files, coordinator and members.

Needs root, to be two users. Elsewhere it is skipped, which fails if HOLDFAST_NO_SKIP=1 is set.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from waiting import WAIT_S

from holdfast.run.handshake import endpoint_of
from holdfast.run.wire import Proof, Strike, frame
from holdfast.train.group import Rendezvous, Superseded
from holdfast.train.tcp import _HELLO, NONCE_BYTES, PROOF_BYTES, Card, Credentials, TcpGroup

pytestmark = [pytest.mark.root, pytest.mark.slow]

OTHER = 65534
"""The system's unprivileged user, who has no files and no processes of ours."""
TOKEN = "the-token-of-the-run"
ATTACK = """
import json, pathlib, socket, sys
told = json.load(sys.stdin)
found = {"uid": __import__("os").getuid(), "read": {}, "answers": {}, "commands": []}
for path in told["paths"]:
    try:
        found["read"][path] = len(pathlib.Path(path).read_bytes())
    except OSError as error:
        found["read"][path] = type(error).__name__
for pid in told["pids"]:
    found["commands"].append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))
for name, (port, said) in told["calls"].items():
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(bytes.fromhex(said))
            while more := connection.recv(4096):
                answer += more
    except OSError:
        pass
    found["answers"][name] = answer.hex()
print(json.dumps(found))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can read, as many homes are; pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def run(folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path, int]]:
    """A live run of root's, its home, and its coordinator's port."""
    (folder / "script.py").write_text("import time; print('started', flush=True); time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--run", "r", "--nproc-per-node", "2", "script.py"],
        cwd=folder,
        env={**os.environ, "HOLDFAST_HOME": str(folder / "home"), "HOLDFAST_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    port, started, due_s = 0, 0, time.monotonic() + WAIT_S
    try:
        while not port or started < 2:
            assert time.monotonic() < due_s
            line = process.stdout.readline().decode()
            if match := re.search(r"coordinator at 127\.0\.0\.1:(\d+)", line):
                port = int(match[1])
            started += "started" in line
        yield process, folder / "home", port
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


def family_of(pid: int) -> list[int]:
    """The process and all its descendants."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [pid, *(one for child in text.split() for one in family_of(int(child)))]


def attacked(**told: object) -> dict[str, Any]:
    """The result of the other user's attack."""
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", ATTACK],
        input=json.dumps({"paths": [], "pids": [], "calls": {}} | told),
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd="/",
    )
    if done.returncode:
        pytest.skip(f"another user cannot run Python here: {done.stderr[-200:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["uid"] == OTHER
    return found


def test_another_user_reads_no_token_and_strikes_no_process(
    run: tuple["subprocess.Popen[bytes]", Path, int],
) -> None:
    process, home, port = run
    pids = family_of(process.pid)
    assert len(pids) >= 4  # the launcher, the agent and its workers
    endpoint = home / "runs" / "r" / "endpoint.json"
    assert TOKEN in endpoint.read_text(encoding="utf-8")
    secrets = [str(endpoint), *(f"/proc/{pid}/environ" for pid in pids)]
    strike = frame(Strike(fault="kill"))
    proof = Proof(
        role="operator",
        name="",
        endpoint=endpoint_of(("127.0.0.1", port)),
        nonce=b"n" * 32,
        proof=b"p" * 32,
    )
    found = attacked(
        paths=secrets,
        pids=pids,
        calls={
            "without a proof": (port, strike.hex()),
            "with a made-up proof": (port, (frame(proof) + strike).hex()),
        },
    )
    assert set(found["read"].values()) == {"PermissionError"}
    assert not any(TOKEN in command for command in found["commands"])
    for answer in found["answers"].values():
        assert b"Answer" not in bytes.fromhex(str(answer))
        assert b"Accepted" not in bytes.fromhex(str(answer))
    assert process.poll() is None
    assert family_of(process.pid) == pids  # no process was killed


def test_another_user_gets_no_state_and_no_place_among_members() -> None:
    """The attack that worked on gloo: connect to a member's port, and send a number."""
    keys: dict[str, bytes] = {}
    changed = threading.Condition()

    def publish(key: str, value: bytes) -> None:
        with changed:
            keys[key] = value
            changed.notify_all()

    def lookup(key: str) -> bytes:
        with changed:
            if not changed.wait_for(lambda: key in keys, WAIT_S):
                raise Superseded
            return keys[key]

    credentials, groups = Credentials("r", TOKEN), list[TcpGroup]()
    store = Rendezvous(publish, lookup, generation="1")
    publish("card/1", msgspec.msgpack.encode(Card("127.0.0.1", 1, b"n" * NONCE_BYTES)))

    def make() -> None:
        groups.append(TcpGroup(store, rank=0, size=2, address="127.0.0.1", credentials=credentials))

    forming = threading.Thread(target=make)
    forming.start()
    card = msgspec.msgpack.decode(lookup("card/0"), type=Card)
    found = attacked(
        calls={
            "a counter": (card.port, ((1).to_bytes(8, "little") * 8).hex()),
            "a made-up proof": (card.port, _HELLO.pack(1, b"p" * PROOF_BYTES).hex()),
        }
    )
    assert set(found["answers"].values()) == {""}
    nonces = [card.nonce, b"n" * NONCE_BYTES]
    with socket.create_connection(("127.0.0.1", card.port), timeout=WAIT_S) as member:
        member.sendall(_HELLO.pack(1, credentials.prove("1", 1, 0, nonces)))
        assert member.recv(PROOF_BYTES, socket.MSG_WAITALL) == credentials.prove("1", 0, 1, nonces)
        forming.join(WAIT_S)
        groups[0].close()
