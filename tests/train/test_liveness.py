"""In real runs: members that work but cannot report it, that hang, and that have declared their work."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import WAIT_S

from holdfast.run.waits import LEASE_S_MIN

pytestmark = pytest.mark.slow

HOLD_S = LEASE_S_MIN + 1.5

SCRIPT = """
import ctypes, os, pathlib, socket, struct, sys, threading, time
import torch
import holdfast.train as hf

def endless():
    while True:
        time.sleep(0.01)

def deafen():  # no packet reaches a TCP socket of this process any more
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0), 8)
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                    one.setsockopt(1, 26, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
        except OSError:
            pass

with hf.join() as run:
    model = torch.nn.Linear(4, 4)
    state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), lanes=8, seed=1)
    for step in state.steps(30):
        for lane in step.lanes:
            if sys.argv[1] == "slow":
                time.sleep(0.6 if run.member == "n0.1" and 12 <= step.number < 20 else 0.01)
            if sys.argv[1] == "deaf" and step.number == 12 and run.member == "n0.1":
                time.sleep(1)
            if sys.argv[1] == "deaf" and step.number == 12 and run.member == "n0.3":
                threading.Timer(1, deafen).start()
            lane.backward(model(torch.randn(8, 4)).square().mean())
        step.commit()
        if step.number == 20 and run.rank == 0:
            if sys.argv[1] == "hangs" and not pathlib.Path("hung").exists():
                pathlib.Path("hung").touch()
                endless()
            elif sys.argv[1] == "declares":
                with run.alone("evaluation"):
                    time.sleep(9)
        if step.number == 20 and sys.argv[1] == "shares":
            run.share(range(2), lambda item: time.sleep(5 * item))
            run.broadcast(lambda: time.sleep(5))
    print("digest", state.digest())
"""


def test_a_member_that_keeps_the_interpreter_is_not_given_up(cluster: Any) -> None:
    """As sorted() of a long list does: no thread of its process runs for longer than a lease."""
    alone = cluster.undisturbed("plain")
    busy = cluster.train("plain", members=2, hold_s=HOLD_S, holders=1)
    assert busy.ending.outcome == "completed", busy.story
    assert not [line for line in busy.said if " lost " in line or "generation 2" in line]
    assert busy.digest == alone.digest


@pytest.mark.soak
@pytest.mark.parametrize("holders", [1, 3])
def test_any_number_of_members_may_keep_the_interpreter_at_once(cluster: Any, holders: int) -> None:
    busy = cluster.train("plain", members=3, hold_s=4 * HOLD_S, holders=holders)
    assert busy.ending.outcome == "completed", busy.story
    assert not [line for line in busy.said if " lost " in line]
    assert busy.digest == cluster.undisturbed("plain").digest


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "HOLDFAST_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )


def digests(printed: str) -> set[str]:
    return {line.rpartition(" ")[2] for line in printed.splitlines() if "digest" in line}


@pytest.mark.soak
def test_a_member_that_hangs_is_told_with_its_line_and_replaced(tmp_path: Path) -> None:
    alone = run(tmp_path, "train.py", "alone")
    flags = ("-m", "holdfast", "run", "--nproc-per-node", "2", "--hang-after", "3")
    hung = run(tmp_path, *flags, "train.py", "hangs")
    assert digests(hung.stdout) == digests(alone.stdout)
    assert (
        "n0.0 has not entered the reduction, it is at train.py:8; it is ended and replaced after at most 3 s"
        in (hung.stderr)
    )
    assert "n0.0 lost (no progress for 3 s, at train.py:8)" in hung.stderr


@pytest.mark.soak
def test_declared_work_may_take_longer_than_a_hang(tmp_path: Path) -> None:
    flags = ("-m", "holdfast", "run", "--nproc-per-node", "2", "--hang-after", "3")
    declared = run(tmp_path, *flags, "train.py", "declares")
    assert " lost " not in declared.stderr
    assert "has taken" not in declared.stderr


def test_shared_work_declares_itself(tmp_path: Path) -> None:
    """One member has the item that takes longer than the bound; then the others wait for rank 0."""
    flags = ("-m", "holdfast", "run", "--nproc-per-node", "2", "--warm", "0", "--hang-after", "4")
    shared = run(tmp_path, *flags, "train.py", "shares")
    assert " lost " not in shared.stderr
    assert "has taken" not in shared.stderr


@pytest.mark.soak
def test_a_member_that_no_packet_reaches_is_ended_in_the_step_that_waits_for_it(tmp_path: Path) -> None:
    alone = run(tmp_path, "train.py", "alone")
    flags = ("-m", "holdfast", "run", "--nproc-per-node", "4", "--warm", "0")
    cut = run(tmp_path, *flags, "train.py", "deaf")
    assert digests(cut.stdout) == digests(alone.stdout)
    assert "n0.3 lost (cut off: its machine acknowledges no packets)" in cut.stderr
    assert cut.stderr.count(" lost (") == 1


@pytest.mark.soak
def test_a_member_that_is_plainly_slow_is_named_before_lanes_move(tmp_path: Path) -> None:
    flags = ("-m", "holdfast", "run", "--nproc-per-node", "4", "--warm", "0")
    slow = run(tmp_path, *flags, "train.py", "slow")
    named = re.search(r"n0\.1 takes [0-9.]+ times as long .* it gets fewer lanes if that lasts", slow.stderr)
    assert named, slow.stderr
    assert "lanes of n0.1 from" not in slow.stderr[: named.start()]
