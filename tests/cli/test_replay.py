"""`holdfast replay`: what a script found, against what was recorded. The script here computes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.record.events import LaneExamined, RunStarted, StepCommitted
from holdfast.record.recorder import Recorder

PRINT = "00000000000000ab"
SCRIPT = """
import os, pathlib, sys
from holdfast.run.replaying import Replayed, ReplayOrder
order = ReplayOrder.given(os.environ)
print("the script's own words", order.skipped, os.environ["HOLDFAST_CHECKPOINTS"])
if sys.argv[1] != "fails":
    found = Replayed(begun=5, loss="nan", norm="1.5", prints=(sys.argv[1], sys.argv[-1]))
    found.write(pathlib.Path(order.result))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Of the run `big`, of which the record has lane 3 of step 7."""
    with Recorder(tmp_path / "home" / "journal", run="big") as recorder:
        recorder.record(RunStarted, gpus=1)
        recorder.record(StepCommitted, step=6, skipped_lanes=(2,))
        recorder.record(LaneExamined, step=7, lane=3, loss="nan", print=PRINT)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    ("lane", "arguments", "code", "words"),
    [
        (3, (PRINT,), 0, "The same bits as recorded"),
        (3, ("00000000000000ac",), 1, "Other bits than recorded"),
        (3, (PRINT, "00000000000000ac"), 1, "a kernel is not deterministic"),
        (4, (PRINT,), 0, "The record has no print of this lane"),
    ],
)
def test_the_exit_code_says_whether_it_is_the_same(
    holdfast: Callable[..., Any], script: Path, lane: int, arguments: tuple[str, ...], code: int, words: str
) -> None:
    told = holdfast("replay", "big", "7", str(lane), script, *arguments)
    assert (told.code, words in told.out) == (code, True), told
    assert "from the checkpoint of step 5" in told.out
    assert "the script's own words" in told.err
    assert "SkippedLanes(first=6, last=6, lanes=(2,))" in told.err
    assert "runs/big/checkpoints" in told.err


def test_a_step_that_the_run_did_not_come_to_is_a_mistake(holdfast: Callable[..., Any], script: Path) -> None:
    told = holdfast("replay", "big", "8", "3", script, PRINT)
    assert told.code == 2
    assert "The run big has no step 8: it ended at step 6." in told.err


def test_programs_can_read_it(holdfast: Callable[..., Any], script: Path) -> None:
    told = holdfast("replay", "--json", "big", "7", "3", script, PRINT)
    assert (told.json["is_same"], told.json["recorded_print"], told.json["loss"]) == (True, PRINT, "nan")


def test_a_script_that_does_not_come_so_far_is_a_mistake(holdfast: Callable[..., Any], script: Path) -> None:
    told = holdfast("replay", "big", "7", "3", script, "fails")
    assert told.code == 2
    assert "ended with exit code 0 before it had computed lane 3 of step 7" in told.err
    assert holdfast("replay", "small", "7", "3", script, "fails").code == 2
