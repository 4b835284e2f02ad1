"""The example as a user runs it: alone, and with faults, as the demo does. The weights are the same."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from quantity import sampled
from waiting import WAIT_S

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "char_gpt"
SMALL = ("--batch", "1", "--context", "16", "--layers", "1", "--width", "16")
"""A model that costs next to nothing."""
STEPS = 115
"""A few more than the demo's faults need."""
SOONER = 10


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


def example(folder: Path, sooner: int) -> Path:
    """The example, or a copy whose faults strike this many times sooner, before any process is warm."""
    if sooner == 1:
        return EXAMPLE
    copy = Path(shutil.copytree(EXAMPLE, folder / "example"))
    faults = copy / "faults.toml"
    text, count = re.subn(
        r"^step = (\d+)$",
        lambda found: f"step = {int(found[1]) // sooner}",
        faults.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 2
    faults.write_text(text)
    demo = copy / "demo.py"
    text, count = re.subn(r'("--nodes", 2,)', r'\1 "--warm", 0,', demo.read_text())
    assert count == 1
    demo.write_text(text)
    return copy


@pytest.mark.parametrize("sooner", sampled([1, SOONER], [SOONER]))
def test_faults_leave_no_trace_in_the_weights(tmp_path: Path, sooner: int) -> None:
    steps, folder = STEPS // sooner, example(tmp_path, sooner)
    small = ("--steps", steps, *SMALL)
    alone = python(folder / "train.py", *small, "--out", tmp_path / "alone.pt", home=tmp_path)
    *losses, unseen, rosalind = alone.stdout.splitlines()[: 3 + steps // 50]
    told = [step for step in range(1, steps + 1) if step % 50 == 0 or step == steps]
    assert [line.split(":")[0] for line in losses] == [f"step {step}" for step in told]
    assert unseen.startswith("loss on text it has not seen: ")
    assert rosalind.startswith("ROSALIND\t")

    demo = python(folder / "demo.py", tmp_path / "demo", *small, home=tmp_path)
    assert "n0.1 lost (SIGKILL)" in demo.stderr
    assert "node n1 lost" in demo.stderr
    assert "They are the same, bit by bit." in demo.stderr
    assert "Run disturbed" in demo.stdout
    assert unseen in demo.stdout + demo.stderr
    assert (tmp_path / "demo" / "report.html").is_file()

    expected, trained = (
        torch.load(path) for path in (tmp_path / "alone.pt", tmp_path / "demo" / "disturbed.pt")
    )
    assert expected.keys() == trained.keys()
    assert [name for name in expected if not torch.equal(expected[name], trained[name])] == []
