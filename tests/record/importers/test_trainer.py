"""W&B's CSV export, logs without times, and what tells a trainer's log from another file."""

from io import BytesIO
from pathlib import Path

import pytest

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent, StepCommitted, StepWitnessed
from holdfast.record.importers import Options, trainer
from holdfast.record.importers.intake import ENDS_BYTES, Lines, ends_of, named_after

S = 10**9
EXPORT = """"Step","jolly-sky-5 - train/loss","jolly-sky-5 - train/loss__MIN",\
"jolly-sky-5 - train/loss__MAX","dry - sun-6 - train/loss",\
"dry - sun-6 - train/loss__MIN","dry - sun-6 - train/loss__MAX"
"0","10.5","10.5","10.5","9.25","9.25","9.25"
"10","7.25","7.25","7.25","","",""
"20","6","6","6","4.5","4.5","4.5"
"""
"""As W&B writes it where the x axis is the step: a run has no value in every row."""


def read(text: str, run: str | None = None) -> tuple[list[AnyEvent], trainer.TrainerReading]:
    reading = trainer.read(Lines(BytesIO(text.encode()), "some.log"), Options(run=run))
    return list(reading), reading


def steps(events: list[AnyEvent]) -> list[tuple[str, int, int]]:
    return [(one.run, one.step, one.occurred_ns) for one in events if isinstance(one, StepCommitted)]


def losses(events: list[AnyEvent]) -> list[tuple[str, int, str]]:
    return [(one.run, one.step, one.loss) for one in events if isinstance(one, StepWitnessed)]


def test_each_run_of_an_export_is_a_run() -> None:
    events, reading = read(EXPORT)
    assert steps(events) == [
        ("jolly-sky-5", 0, 0),
        ("dry - sun-6", 0, 0),
        ("jolly-sky-5", 10, 0),
        ("jolly-sky-5", 20, 0),
        ("dry - sun-6", 20, 0),
    ]
    assert losses(events)[-2:] == [("jolly-sky-5", 20, "6.0"), ("dry - sun-6", 20, "4.5")]
    first, _ = reading.sentences.values()
    assert first.startswith(
        "jolly-sky-5: 3 steps logged, from 0 to 20; loss 10.5 to 6. The log has no times:"
    )
    assert (reading.imported().lines, reading.imported().skipped_count) == (3, 0)


def test_several_runs_do_not_become_one() -> None:
    with pytest.raises(InputError, match="cannot become the one run 'mine'"):
        read(EXPORT, run="mine")
    one_run = "\n".join(",".join(line.split(",")[:4]) for line in EXPORT.splitlines())
    events, _ = read(one_run, run="mine")
    assert {run for run, _, _ in steps(events)} == {"mine"}


def test_times_since_the_start_are_times() -> None:
    text = '"Relative Time (Process)","a - _step","a - train/loss"\n"12.5","1","3"\n"25","2","2"\n'
    events, reading = read(text)
    assert steps(events) == [("a", 1, 12_500_000_000), ("a", 2, 25 * S)]
    assert "dates are not known" in reading.sentences["a"]


def test_wall_time_is_a_date() -> None:
    events, reading = read("Step,Wall Time,loss\n1,1772442000,3\n2,1772442010,2\n", run="r")
    assert steps(events) == [("r", 1, 1_772_442_000 * S), ("r", 2, 1_772_442_010 * S)]
    assert reading.sentences == {"r": "r: 2 steps logged, from 1 to 2; loss 3 to 2."}


@pytest.mark.parametrize(
    "text",
    [
        "step 50: loss 5.00000\nnothing\nstep 100: loss 4.50000\n",
        "iter 50: loss 5.0, time 150.2ms, mfu 3%\niter 100: loss 4.5, time 150.2ms, mfu 3%\n",
        " iteration       50/     500 | samples: 80 | learning rate: 1E-4 | lm loss: 5.0E+00 | x: 1\n"
        " iteration      100/     500 | samples: 80 | learning rate: 1E-4 | lm loss: 4.5E+00 | x: 1\n",
        '{"step": 50, "val_loss": 9, "loss": 5}\n{"step": 100, "val_loss": 9, "loss": 4.5}\n',
        "epoch,trainer/global_step,val/loss,train/loss\n0,50,9,5\n0,100,,4.5\n",
    ],
)
def test_a_log_without_times_has_its_steps_and_losses(text: str) -> None:
    events, _ = read(text, run="r")
    assert steps(events) == [("r", 50, 0), ("r", 100, 0)]
    assert losses(events) == [("r", 50, "5.0"), ("r", 100, "4.5")]
    assert trainer.is_log(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-01 10:00:00,123 INFO step 1: loss 2.0\n2026-11-01 10:00:10,123 INFO step 2: loss 1.9\n",
        "[2026/11/01 10:00:00.123] step 1: loss 2.0\n[2026/11/01 10:00:10.123] step 2: loss 1.9\n",
        "rank0 2026-11-01T11:00:00.123+01:00 step 1: loss 2.0\n"
        "rank0 2026-11-01T10:00:10.123Z step 2: loss 1.9\n",
        '{"step": 1, "loss": 2.0, "created_at": "2026-11-01T10:00:00.123Z"}\n'
        '{"created_at": "2026-11-01T10:00:10.123Z", "step": 2, "loss": 1.9}\n',
    ],
)
def test_a_date_in_a_line_is_read(text: str) -> None:
    began_ns = 1_793_527_200_123_000_000
    events, reading = read(text, run="r")
    assert steps(events) == [("r", 1, began_ns), ("r", 2, began_ns + 10 * S)]
    assert "no times" not in reading.sentences["r"]


def test_steps_may_have_commas_in_their_thousands() -> None:
    events, _ = read("step 1,000: loss 2.0\nstep 12,000,loss 1.9\n", run="r")
    assert losses(events) == [("r", 1_000, "2.0"), ("r", 12_000, "1.9")]


@pytest.mark.parametrize(
    "other",
    [
        "step 100: val loss 9.9",
        "step 100: validation_loss=9.9",
        "step 100 eval/loss: 9.9",
        "eval step 100: loss 9.9",
        "[test] step 100: loss 9.9",
    ],
)
def test_only_the_loss_of_training_counts(other: str) -> None:
    events, _ = read(f"step 50: loss 2.0\n{other}\nstep 100: val loss 9.9, train_loss 1.9\n", run="r")
    assert losses(events) == [("r", 50, "2.0"), ("r", 100, "1.9")]


@pytest.mark.parametrize(
    "text",
    [
        "epoch 1 step 10: loss 5\nepoch 1 step 20: loss 4\nepoch 2 step 10: loss 3\n",
        "step 10: loss 5\nstep 20: loss 4\nstep 10: loss 3\n",
        '{"epoch": 1, "step": 20, "loss": 4, "time": 1772442000}\n'
        '{"epoch": 2, "step": 10, "loss": 3, "time": 1772442010}\n',
    ],
)
def test_steps_that_begin_anew_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="go back from 20 to 10"):
        read(text, run="r")


def test_a_restart_with_times_may_go_back() -> None:
    events, _ = read("_step,Wall Time,epoch\n1,1772442000,1\n2,1772442010,1\n1,1772442020,1\n", run="r")
    assert [step for _, step, _ in steps(events)] == [1, 2, 1]


def test_the_same_log_grown_has_the_same_events() -> None:
    before, _ = read(EXPORT)
    after, _ = read(EXPORT + '"30","5","5","5","4","4","4"\n')
    assert {event.id for event in before} < {event.id for event in after}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "the next step is ours, and the loss is not 5\n",
        "The step 3 of this README: loss 5 is large.\n",
        "Step 1: install it.\nStep 2: train; step 2 has loss 5.\nStep 3: see that step 3 has loss 4.\n"
        "Step 4: stop.\nStep 5: rest.\n",
        "# TYPE x gauge\nx 1\n",
        '{"loss": 1}\n',
        "\0\1\2",
    ],
)
def test_other_files_are_no_trainers_log(text: str) -> None:
    assert not trainer.is_log(text.encode())


@pytest.mark.parametrize(("loss", "said"), [("nan", "nan"), ("Infinity", "inf"), ("1e400", "inf"), ("x", "")])
def test_a_loss_that_is_no_number(loss: str, said: str) -> None:
    events, _ = read(f"step,loss\n1,{loss}\n", run="r")
    assert losses(events) == ([("r", 1, said)] if said else [])


def test_a_file_names_its_run_and_a_pipe_does_not(tmp_path: Path) -> None:
    (tmp_path / "llama-70b.csv").touch()
    (tmp_path / "events.out.tfevents.1772442000.host").touch()
    assert named_after(str(tmp_path / "llama-70b.csv")) == "llama-70b"
    assert named_after(str(tmp_path / "events.out.tfevents.1772442000.host")) == tmp_path.name
    assert named_after(str(tmp_path)) == tmp_path.name
    assert (named_after("/dev/stdin"), named_after(str(tmp_path / "missing.csv"))) == ("", "")


def test_the_ends_of_a_long_file_are_its_whole_first_and_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    lines = [f"line {number} {'x' * 90}" for number in range(20_000)]
    path.write_text("\n".join(lines) + "\n")
    ends = ends_of(path).decode().splitlines()
    assert (ends[0], ends[-1]) == (lines[0], lines[-1])
    assert set(ends) <= set(lines)
    assert len(ends_of(path)) <= 2 * ENDS_BYTES + 1
