"""A run whose coordinator is killed again and again ends with the bits of one in which nothing happened."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import Start
from waiting import until

from holdfast.record.events import MemberLost
from holdfast.run.endpoint import find_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.soak]

KILLS = 20
WITH_MEMBER = 4
"""With this kill, a member dies at the same moment."""
MOMENTS_S = 0.5
"""Covers any moment of a step, and of a successor's first actions."""
SCRIPT = """
import os, pathlib, time
import torch
import holdfast.train as hf

with hf.join() as run:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    state = run.protect(model, torch.optim.AdamW(model.parameters(), lr=0.01), lanes=8, seed=1)
    last_s, longest_s = time.monotonic(), 0.0
    steps, enough = os.environ.get("STEPS"), pathlib.Path("enough")
    print("pid", os.getpid(), flush=True)
    for step in state.steps(100_000):
        for lane in step.lanes:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step.number + lane.index))
            lane.backward((model(x) - x).square().mean())
        step.commit()
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
        if run.broadcast(step.number == int(steps) if steps else enough.exists()):
            break
        time.sleep(0.01)
    print(f"digest {state.digest()} at {step.number}, longest pause {longest_s:.3f} s", flush=True)
"""
ENDED = r"digest (\w+) at (\d+), longest pause ([\d.]+) s"


def takeover_s(start: Start, after_s: float, too: list[int]) -> float:
    """From the kill of the coordinator until its successor has taken over. too: processes killed with it."""
    endpoint = start.endpoint("r")
    time.sleep(after_s)
    for pid in (*too, endpoint.pid):
        os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    until(lambda: find_endpoint(start.home, "r").pid == endpoint.successor)
    return time.monotonic() - killed_s


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_bits_are_those_of_a_run_in_which_nothing_happened(tmp_path: Path, nodes: int) -> None:
    start, chance = Start(tmp_path), random.Random(nodes)
    flags = ("--run", "r", "--nodes", str(nodes), "--nproc-per-node", str(4 // nodes))
    launched = start(*flags, script=SCRIPT)
    took_s = []
    try:
        launched.until_printed("pid", 4 // nodes * nodes)
        for kill in range(KILLS):
            too = launched.pids()[:1] if kill == WITH_MEMBER else []
            took_s.append(takeover_s(start, chance.uniform(0, MOMENTS_S), too))
        (tmp_path / "enough").touch()
        assert launched.wait() == 0, "\n".join(launched.err)
    finally:
        launched.close()
    ended = [match for line in launched.out if (match := re.search(ENDED, line))]
    (digest,), (step,) = {match[1] for match in ended}, {match[2] for match in ended}
    alone = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "STEPS": step, "HOLDFAST_HOME": str(tmp_path / "alone")},
        capture_output=True,
        text=True,
        check=True,
    )
    (expected,) = re.findall(ENDED, alone.stdout)
    assert (digest, step) == expected[:2]
    assert len(start.events(MemberLost)) == 1
    print(
        f"{KILLS} kills on {nodes} nodes: takeovers {sorted(took_s)[KILLS // 2]:.3f} s in the median, "
        f"{max(took_s):.3f} s at most; longest pause of steps {max(float(one[3]) for one in ended):.3f} s"
    )
