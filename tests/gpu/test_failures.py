"""GPUs that fail: a member is replaced without a trace; where all fail alike, the run ends and says why."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("failing.py")
RUN_S_MAX = 120.0
ONCE = {  # what is planned, and how it is told
    "assert:10:n0": "n0.0 lost (CUDA error: device-side assert triggered",  # an XID may follow
    "illegal:30:n1": "n1.0 lost (CUDA error: an illegal memory access was encountered",
    "memory:50:n2": "n2.0 lost (CUDA out of memory",
    "nccl-words:70:n3": "n3.0 lost (NCCL error: unhandled system error",
}


def train(folder: Path, plan: list[str], *launcher: str) -> "subprocess.CompletedProcess[str]":
    folder.mkdir()
    return subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(folder), *plan],
        env={**os.environ, "HOLDFAST_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )


def on_nodes(count: int) -> list[str]:
    return ["-m", "holdfast", "run", "--nodes", str(count), "--nproc-per-node", "1"]


def digests(folder: Path) -> set[str]:
    return {json.loads(path.read_text())["digest"] for path in folder.glob("*.json")}


def test_a_gpu_that_fails_is_replaced_and_leaves_no_trace(tmp_path: Path) -> None:
    """Three real failures and an error in NCCL's words, in one run, each on another member."""
    alone = train(tmp_path / "alone", [])
    assert alone.returncode == 0, alone.stdout
    failing = train(tmp_path / "failing", list(ONCE), *on_nodes(4))
    assert failing.returncode == 0, failing.stdout
    assert len(list((tmp_path / "failing").glob("*.struck"))) == len(ONCE), failing.stdout
    for line in ONCE.values():
        assert line in failing.stdout, failing.stdout
    lost = [line for line in failing.stdout.splitlines() if " lost (" in line]
    assert len(lost) == len(ONCE), failing.stdout  # nobody else
    members = re.findall(r"goes on with (\d) member", failing.stdout)
    assert members[-1] == "4", failing.stdout  # all of them are back, or replaced
    assert len(digests(tmp_path / "failing")) == 1
    assert digests(tmp_path / "failing") == digests(tmp_path / "alone")


@pytest.mark.parametrize(
    ("failure", "words"), [("assert", "device-side assert triggered"), ("memory", "out of memory")]
)
def test_a_failure_that_strikes_all_alike_ends_the_run_with_one_traceback(
    tmp_path: Path, failure: str, words: str
) -> None:
    done = train(tmp_path / "failing", [f"{failure}:10:all"], *on_nodes(2))
    assert done.returncode != 0, done.stdout
    assert words in done.stdout
    assert done.stdout.count("Traceback (most recent call last)") == 1, done.stdout
    assert "the run fails" in done.stdout
