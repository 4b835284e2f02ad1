"""The port of nanoGPT as a user runs it: alone, and with two members of which one is killed. Same bits."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import WAIT_S

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "nanogpt"
SMALL = {
    "dataset": "play",
    "eval_interval": 10,
    "eval_iters": 3,
    "gradient_accumulation_steps": 8,
    "lanes": 4,
    "batch_size": 1,
    "block_size": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 16,
    "dropout": 0.1,
    "max_iters": 40,
    "warmup_iters": 5,
    "lr_decay_iters": 40,
    "compile": False,
}
KILLS = """
[[fault]]
step = 15
moment = "reduce"
rank = 1

[[fault]]
step = 31
moment = "lane"
rank = 0
"""


def python(*words: object, folder: Path) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**kept, "HOLDFAST_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def train(
    folder: Path, run: str, *flags: object, **settings: object
) -> tuple[str, dict[str, Any], list[str]]:
    """The run's digest, its last ckpt.pt, and the lines of its evaluations."""
    told = [f"--{name}={value}" for name, value in {**SMALL, "out_dir": run, **settings}.items()]
    done = python("-m", "holdfast", "run", "--run", run, *flags, EXAMPLE / "train.py", *told, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (digest,) = re.findall(r"\b[0-9a-f]{64}\b", done.stderr)
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    return digest, torch.load(folder / run / "ckpt.pt"), [line for line in lines if line.startswith("step ")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder to train in."""
    done = python(EXAMPLE / "prepare.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.soak
def test_kills_and_members_leave_no_trace(data: Path) -> None:
    plan = data / "kills.toml"
    plan.write_text(KILLS, encoding="utf-8")
    digest, checkpoint, evaluations = train(data, "alone", "--warm", 0)
    assert [line.partition(":")[0] for line in evaluations] == [f"step {n}" for n in (0, 10, 20, 30, 40)]
    assert checkpoint["iter_num"] == 40
    assert checkpoint["optimizer"]["param_groups"][0]["lr"] == pytest.approx(6e-5, rel=0.05)
    assert checkpoint["config"]["n_embd"] == SMALL["n_embd"]

    disturbed, theirs, again = train(data, "disturbed", "--nproc-per-node", 2, "--chaos", plan)
    assert disturbed == digest
    assert theirs["best_val_loss"] == checkpoint["best_val_loss"]
    # If the second kill hit the only member, all are new; then they also evaluate where they begin.
    assert {line for line in again if re.match(r"step \d*0:", line)} <= set(evaluations)
    log, logged = ((data / run / "log.jsonl").read_text(encoding="utf-8") for run in ("alone", "disturbed"))
    assert log == logged
    assert [json.loads(line)["step"] for line in log.splitlines()] == list(range(1, 41))
    for name, tensor in checkpoint["model"].items():
        assert torch.equal(theirs["model"][name], tensor), name


@pytest.mark.soak
def test_a_setting_that_does_not_exist_is_told(tmp_path: Path) -> None:
    done = python(EXAMPLE / "train.py", "--batchsize=3", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "--batchsize=3: there is no setting batchsize that could be 3.\n"


def test_the_page_changes_each_line_once() -> None:
    port = runpy.run_path(str(EXAMPLE / "port.py"))
    page = port["PAGE"].read_text(encoding="utf-8")
    changes = port["changes"](page)[::-1]
    places = [line for first, last, _ in changes for line in (first, last)]
    assert places == sorted(places)
    assert sum(len(added) for _, _, added in changes) < 35  # as many as an earlier port took
    original = [f"line {number}" for number in range(1, places[-1] + 1)]
    lines = port["ported"](original, page)
    join = lines.index(port["JOIN"])
    assert all(line.startswith("    ") for line in lines[join + 1 :])
    kept = {line.strip() for line in lines} & set(original)
    assert kept == {
        f"line {n}" for n in range(1, len(original) + 1) if not any(a <= n <= b for a, b, _ in changes)
    }
