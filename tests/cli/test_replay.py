"""`holdfast replay`: what a script found, against what was recorded. The script here computes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.record.events import GenerationOpened, LaneExamined, RunStarted, StepCommitted
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


@pytest.mark.parametrize(("step", "model"), [(200, "one"), (201, "other"), (225, "other")])
def test_the_script_is_compared_with_what_did_the_step(
    holdfast: Callable[..., Any], tmp_path: Path, step: int, model: str
) -> None:
    """The run was started again with other arguments, from the checkpoint of step 200."""
    with Recorder(tmp_path / "home" / "journal", run="changed") as recorder:
        recorder.record(GenerationOpened, members=("n0.0",), step=0, lanes=8, seed=1, model="one")
        recorder.record(StepCommitted, step=220)
        recorder.record(GenerationOpened, members=("n0.0",), step=200, lanes=8, seed=1, model="other")
        recorder.record(GenerationOpened, members=("n0.1",), step=210)
        recorder.record(StepCommitted, step=240)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("order.skipped", "order.model"))
    told = holdfast("replay", "--long", "changed", str(step), "3", script, PRINT)
    assert (told.code, f"own words {model} " in told.err) == (0, True), told


@pytest.mark.parametrize(
    ("setup", "lane", "sentence"),
    [
        ({"lanes": 8, "model": "one"}, 8, "There is no lane 8: the run wide has 8."),
        ({"lanes": 8}, 7, "The model of the run wide is sharded: its steps cannot be replayed."),
    ],
)
def test_what_the_record_rules_out_is_not_begun(
    holdfast: Callable[..., Any],
    script: Path,
    tmp_path: Path,
    setup: dict[str, Any],
    lane: int,
    sentence: str,
) -> None:
    with Recorder(tmp_path / "home" / "journal", run="wide") as recorder:
        recorder.record(GenerationOpened, members=("n0.0",), step=0, seed=1, **setup)
        recorder.record(StepCommitted, step=7)
    told = holdfast("replay", "wide", "7", str(lane), script, PRINT)
    assert told.code == 2
    assert sentence in told.err
    assert "the script's own words" not in told.err


def test_programs_can_read_it(holdfast: Callable[..., Any], script: Path) -> None:
    told = holdfast("replay", "--json", "big", "7", "3", script, PRINT)
    assert (told.json["is_same"], told.json["recorded_print"], told.json["loss"]) == (True, PRINT, "nan")


def test_a_script_that_does_not_come_so_far_is_a_mistake(holdfast: Callable[..., Any], script: Path) -> None:
    told = holdfast("replay", "big", "7", "3", script, "fails")
    assert told.code == 2
    assert "ended with exit code 0 before it had computed lane 3 of step 7" in told.err
    assert holdfast("replay", "small", "7", "3", script, "fails").code == 2


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """Of the run `far`: 4,000 steps of a quarter of a second by two members."""
    with Recorder(tmp_path / "home" / "journal", run="far") as recorder:
        recorder.record(RunStarted, gpus=2, occurred_ns=0)
        recorder.record(GenerationOpened, members=("n0.0", "n0.1"), step=0, occurred_ns=0)
        for step in range(1, 4001):
            recorder.record(StepCommitted, step=step, occurred_ns=step * 10**9 // 4)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def keep(tmp_path: Path, *steps: int) -> None:
    folder = tmp_path / "home" / "runs" / "far" / "checkpoints"
    folder.mkdir(parents=True)
    for step in steps:
        (folder / f"step-{step:012d}.checkpoint").touch()


def test_a_long_replay_is_not_begun_unasked(holdfast: Callable[..., Any], far: Path, tmp_path: Path) -> None:
    keep(tmp_path, 3500, 4000)
    told = holdfast("replay", "far", "2000", "3", far, PRINT)
    assert (told.code, told.out) == (2, "")
    assert "the script's own words" not in told.err
    assert (
        "A replay of step 2000 begins from the run's beginning: 2,000 steps to compute, about 16 min 40 s at "
        "the recorded pace (0.25 s a step, by one member instead of 2)."
    ) in told.err
    assert "The nearest checkpoint is of step 3500: from step 3501 on a replay is short." in told.err
    wanted = holdfast("replay", "--long", "far", "2000", "3", far, PRINT)
    assert wanted.code == 0
    assert "from the run's beginning, 2,000 steps to compute, about 16 min 40 s" in wanted.err


def test_a_short_replay_says_first_what_it_takes(
    holdfast: Callable[..., Any], far: Path, tmp_path: Path
) -> None:
    keep(tmp_path, 3500, 4000)
    told = holdfast("replay", "far", "3510", "3", far, PRINT)
    assert told.code == 0
    said, script = told.err.index("10 steps to compute, about 5 s"), told.err.index("the script's own words")
    assert said < script
    edge = holdfast("replay", "far", "3500", "3", far, PRINT)  # the checkpoint has that step already
    assert "3,500 steps to compute" in edge.err


def test_without_a_recorded_pace_many_steps_are_long(
    holdfast: Callable[..., Any], script: Path, tmp_path: Path
) -> None:
    with Recorder(tmp_path / "home" / "journal", run="dark") as recorder:
        recorder.record(StepCommitted, step=2000)
    told = holdfast("replay", "dark", "2000", "3", script, PRINT)
    assert told.code == 2
    assert "2,000 steps to compute, at a pace that the record does not tell" in told.err
    assert holdfast("replay", "dark", "100", "3", script, PRINT).code == 0
