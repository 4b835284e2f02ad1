"""The example as a user runs it: alone, and as the demo does, through faults. The weights are the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "char_gpt"
WAIT_S = 300
SMALL = ("--steps", "115", "--batch", "1", "--context", "16", "--layers", "1", "--width", "16")
"""A model that costs nothing, and a few steps more than the demo's faults need."""


def python(*words: object, home: Path) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**kept, "HOLDFAST_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_faults_leave_no_trace_in_the_weights(tmp_path: Path) -> None:
    alone = python(EXAMPLE / "train.py", *SMALL, "--out", tmp_path / "alone.pt", home=tmp_path)
    lines = alone.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["step 50", "step 100", "step 115"]
    assert lines[3].startswith("loss on text it has not seen: ")
    assert lines[4].startswith("ROSALIND\t")

    demo = python(EXAMPLE / "demo.py", tmp_path / "demo", *SMALL, home=tmp_path)
    assert "n0.1 lost (SIGKILL)" in demo.stderr
    assert "node n1 lost" in demo.stderr
    assert "They are the same, bit by bit." in demo.stderr
    assert "Run disturbed" in demo.stdout
    assert lines[3] in demo.stdout + demo.stderr
    assert (tmp_path / "demo" / "report.html").is_file()

    expected, trained = (
        torch.load(path) for path in (tmp_path / "alone.pt", tmp_path / "demo" / "disturbed.pt")
    )
    assert expected.keys() == trained.keys()
    assert [name for name in expected if not torch.equal(expected[name], trained[name])] == []
