"""`holdfast run` with checkpoints in object storage: a real run and a real S3 server."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from object_storage import BUCKET, ObjectServer, object_server
from waiting import WAIT_S

pytestmark = pytest.mark.slow

THERE = f"s3://{BUCKET}/small"
SCRIPT = """
import hashlib, sys
import torch
import holdfast.train as hf

with hf.join() as run:
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = run.protect(model, optimizer, lanes=2, seed=1)
    for step in state.steps(int(sys.argv[1])):
        for lane in step.lanes:
            data = torch.randn(4, 64, generator=torch.Generator().manual_seed(step.number * 7 + lane.index))
            lane.backward((model(data) - 1).square().mean())
        step.commit()
    if run.rank == 0:
        print("weights", hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[ObjectServer]:
    with object_server(tmp_path) as found:
        environment |= found.environment()
        yield found


def weights(text: str) -> str:
    (found,) = (line.split()[-1] for line in text.splitlines() if "weights " in line)
    return found


def test_another_machine_goes_on_with_the_same_bits(
    holdfast: Any, script: Path, server: ObjectServer, environment: dict[str, str], tmp_path: Path
) -> None:
    command = ("run", "--run", "small", "--warm", "0", "--checkpoint-every", "5", "--checkpoints", THERE)
    also = ("--checkpoints-also", f"{tmp_path / 'shared'},keep=1")
    first = holdfast(*command, *also, script, "8")
    assert first.code == 0, first.err
    assert f"holdfast: step 8 is in {THERE}\n" in first.err
    assert f"holdfast: step 8 is in {tmp_path / 'shared'}\n" in first.err
    events = holdfast("events", "small", "--kind", "checkpoint.copied", "--json").out
    copied = [msgspec.json.decode(line) for line in events.splitlines()]
    assert {(one["step"], one["place"]) for one in copied} >= {(8, THERE), (8, str(tmp_path / "shared"))}
    assert f"step 8 in {THERE}" in " ".join(holdfast("report", "small").out.split())
    # The machine is lost, and what one place has was damaged: the other one is used.
    shutil.rmtree(environment["HOLDFAST_HOME"])
    for pack in (server.root / "small" / "chunks").glob("*.pack"):
        pack.write_bytes(b"\0" + pack.read_bytes()[1:])
    second = holdfast(*command, *also, script, "12")
    assert second.code == 0, second.err
    assert f"holdfast: the checkpoint of step 8 in {THERE} cannot be used" in second.err
    assert f"holdfast: fetched the checkpoint of step 8 from {tmp_path / 'shared'}" in second.err
    undisturbed = subprocess.run(
        [sys.executable, script, "12"], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert weights(second.out) == weights(undisturbed.stdout)
    assert holdfast("checkpoint", "list", str(tmp_path / "shared")).out.splitlines()[-1].split()[0] == "12"


KILLER = """
import os, signal, time
from pathlib import Path

def fillers():
    home = ("HOLDFAST_HOME=" + os.environ["HOLDFAST_HOME"]).encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_one = b"holdfast.train.filling" in (process / "cmdline").read_bytes().split(b"\\0")
            if is_one and home in (process / "environ").read_bytes().split(b"\\0"):
                found.add(int(process.name))
        except OSError:
            pass
    return found

def wait_for(found):
    until_s = time.monotonic() + 120
    while not found():
        assert time.monotonic() < until_s
        time.sleep(0.05)

wait_for(fillers)
first = fillers()
for pid in first:
    os.kill(pid, signal.SIGKILL)
wait_for(lambda: fillers() - first)
"""


@pytest.mark.soak
def test_a_process_that_took_anothers_place_copies_the_last_one(
    holdfast: Any, tmp_path: Path, script: Path
) -> None:
    """It is no child that the run had when it began, and is not ended for that."""
    script.write_text(KILLER + SCRIPT, encoding="utf-8")
    also = ("--checkpoints-also", tmp_path / "there")
    done = holdfast("run", "--run", "small", "--warm", "0", "--nproc-per-node", "1", *also, script, "3")
    assert done.code == 0, done.err
    assert f"holdfast: step 3 is in {tmp_path / 'there'}\n" in done.err


def test_a_further_place_is_not_the_run_s_own(holdfast: Any, tmp_path: Path, script: Path) -> None:
    kept = tmp_path / "kept"
    done = holdfast("run", "--checkpoints", kept, "--checkpoints-also", f"{kept}/,keep=1", script, "1")
    assert done.code == 2
    assert f"--checkpoints-also {kept} is the directory that the run writes" in done.err


@pytest.mark.parametrize(
    ("flag", "place", "why"),
    [
        ("--checkpoints", "s3://nowhere/small", "there is no such bucket"),
        ("--checkpoints-also", "gs://bucket/small", "Checkpoints cannot be kept in gs://bucket/small."),
        ("--checkpoints", "s3://bucket/small,keep=0", "does not say how many checkpoints to keep there."),
    ],
)
def test_mistakes_are_told_before_anything_is_started(
    holdfast: Any, script: Path, server: ObjectServer, flag: str, place: str, why: str
) -> None:
    done = holdfast("run", flag, place, script, "1")
    assert done.code == 2
    assert done.out == ""
    sentence, hint = done.err.splitlines()
    assert why in sentence
    assert hint.startswith("  hint: ")


def test_a_run_that_has_nothing_else_is_refused_while_storage_is_away(
    holdfast: Any, script: Path, environment: dict[str, str]
) -> None:
    environment |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "us-east-1"}
    environment |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    refused = holdfast("run", "--checkpoints", THERE, script, "3")
    assert refused.code == 2
    assert f"Cannot use {THERE} for checkpoints: it cannot be reached" in refused.err
