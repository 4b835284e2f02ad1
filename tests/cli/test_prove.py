"""`holdfast checkpoint prove`: what a script found, against the record. The script here computes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from listening import tell_nobody

from holdfast.record.events import GenerationOpened, RunStarted, StepCommitted, StepWitnessed
from holdfast.record.recorder import Recorder
from holdfast.train.checkpoint import DirectoryCheckpoints

PRINT = "00000000000000ab"
SCRIPT = """
import os, pathlib, sys
from holdfast.run.replaying import Recomputed, ReplayOrder
order = ReplayOrder.given(os.environ)
print("the script's own words", order.step, order.lane, order.begins, order.lanes, order.seed)
if sys.argv[1] != "fails":
    found = Recomputed(begun=order.begins, loss="0.5", print=sys.argv[1], digest="d", kept=sys.argv[-1])
    found.write(pathlib.Path(order.result))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Of the run `big`, which has a checkpoint of step 5 and went on from it."""
    with Recorder(tmp_path / "home" / "journal", run="big") as recorder:
        recorder.record(RunStarted, gpus=1)
        recorder.record(GenerationOpened, generation=1, lanes=8, seed=3, model="m")
        recorder.record(StepCommitted, step=6)
        recorder.record(StepWitnessed, step=6, loss="0.5", print=PRINT)
    kept = DirectoryCheckpoints(tmp_path / "home" / "runs" / "big" / "checkpoints", told=tell_nobody, keep=9)
    kept.save(5, {})
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    ("printed", "code", "words"),
    [
        (PRINT, 0, ("proven", "Step 6, computed from it, has the loss and the state that the run had.")),
        ("00000000000000ac", 1, ("NOT proven", "leads to another state (print 00000000000000ac)")),
    ],
)
def test_the_exit_code_says_whether_it_is_proven_and_so_does_the_record(
    holdfast: Callable[..., Any], script: Path, printed: str, code: int, words: tuple[str, ...]
) -> None:
    told = holdfast("checkpoint", "prove", "big", script, printed)
    assert told.code == code, told
    assert all(word in told.out for word in words), told
    assert "the script's own words 6 None 5 8 3" in told.err
    events = holdfast("events", "big", "--kind", "checkpoint.verified", "--json").out
    assert ('"step":5' in events, '"sound":true' in events) == (True, code == 0), events


def test_programs_can_read_it(holdfast: Callable[..., Any], script: Path) -> None:
    told = holdfast("checkpoint", "prove", "--json", "big", script, PRINT)
    assert (told.json["step"], told.json["way"], told.json["is_proven"]) == (5, "after", True)


@pytest.mark.soak
def test_a_directory_outside_of_the_record_is_proven_by_the_steps_before(
    holdfast: Callable[..., Any], script: Path, tmp_path: Path
) -> None:
    for step in (2, 4):
        DirectoryCheckpoints(tmp_path / "away", told=tell_nobody).save(step, {})
    told = holdfast("checkpoint", "prove", tmp_path / "away", script, PRINT, "d")
    assert (told.code, "the script's own words 4 None 2 None None" in told.err) == (0, True), told
    told = holdfast("checkpoint", "prove", tmp_path / "away", script, PRINT, "another")
    assert (told.code, "lead to another state" in told.out) == (1, True), told
    told = holdfast("checkpoint", "prove", "--steps-max", "1", tmp_path / "away", script, PRINT)
    assert (told.code, "more than 1 steps away" in told.err) == (2, True), told
    again = f"holdfast checkpoint prove --steps-max 2 {tmp_path / 'away'} {script} {PRINT}"
    assert again in " ".join(told.err.split()), told


def test_a_checkpoint_that_is_damaged_is_not_proven(
    holdfast: Callable[..., Any], script: Path, tmp_path: Path
) -> None:
    """Also if the script ends because it finds no other."""
    manifest = tmp_path / "home" / "runs" / "big" / "checkpoints" / "step-000000000005.checkpoint"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    told = holdfast("checkpoint", "prove", "big", script, "fails")
    assert (told.code, "Step 5 could not be loaded: it has" in told.out) == (1, True), told


def test_a_script_that_does_not_come_so_far_is_a_mistake(holdfast: Callable[..., Any], script: Path) -> None:
    told = holdfast("checkpoint", "prove", "big", script, "fails")
    assert told.code == 2
    assert "ended with exit code 0 before it had computed step 6" in told.err
    assert f"holdfast checkpoint prove big {script} ARGUMENTS" in " ".join(told.err.split())
