"""`holdfast import` as its user runs it: parts, pipes, what it prints, and the bar on a terminal."""

import os
import pty
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.record.errors import InputError
from holdfast.record.events import StepCommitted, encode
from holdfast.record.importers import Options
from holdfast.record.importers.taking import Taking
from holdfast.record.journal import line_of
from holdfast.record.sqlite import SqliteStore
from holdfast.signals.step_files import steps_in

BEGAN_S = 1_760_000_000


def write_steps(path: Path, first: int, last: int) -> Path:
    rows = ["step,time", *(f"{step},{BEGAN_S + 10 * step}" for step in range(first, last + 1))]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    steps = [StepCommitted(id=f"a-{n}", occurred_ns=n, run="r", step=n) for n in range(40)]
    path = tmp_path / "some.journal"
    path.write_bytes(b"".join(line_of(encode(step)) for step in steps))
    return path


def test_a_log_in_two_parts_is_no_restart(holdfast: Any, tmp_path: Path) -> None:
    parts = [write_steps(tmp_path / "p1.csv", 1, 50), write_steps(tmp_path / "p2.csv", 51, 100)]
    done = holdfast("import", *parts, "--run", "parts", "--gpus", "8")
    assert (done.code, done.err) == (0, "")
    told = holdfast("report", "parts", "--json").json
    assert (told["counts"]["starts"], told["counts"]["restarts"], told["incidents"]) == (1, 0, [])
    assert told["paid_gpu_ns"] == told["partition"]["useful"] == 8 * 990 * 10**9


def test_a_journal_may_be_piped(journal: Path, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"cat {journal} | {sys.executable} -m holdfast import /dev/stdin"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "/dev/stdin: journal (40 lines, 1 run), events: 40 new\n"


def test_a_journal_damaged_at_the_front_gives_the_rest(holdfast: Any, journal: Path) -> None:
    journal.write_bytes(journal.read_bytes()[5:])
    done = holdfast("import", journal)
    assert done.code == 0
    assert "journal (40 lines, 1 run), events: 39 new; 1 lines skipped" in done.out
    assert "line 1" in done.err


def test_lines_with_bytes_that_are_no_text_are_told(holdfast: Any, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(b"step,time,note\n1,1760000000,caf\xe9\n2,1760000010,tea\n")
    done = holdfast("import", path, "--run", "a")
    assert done.out.endswith("events: 2 new; 1 lines with bytes that are not text\n")
    (result,) = holdfast("import", path, "--run", "a", "--json").json
    assert (result["replaced"], result["skipped"], result["known"]) == (1, 0, 2)


def test_a_name_that_is_too_long(holdfast: Any, tmp_path: Path) -> None:
    done = holdfast("import", write_steps(tmp_path / "steps.csv", 1, 2), "--run", "r" * 257)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("holdfast: `--run` cannot have 257 characters.")


def test_a_line_with_a_long_name_does_not_keep_the_others_out(holdfast: Any, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"step,time,run\n1,1,{'r' * 257}\n2,2,short\n", encoding="utf-8")
    done = holdfast("import", path)
    assert "events: 1 new; 1 lines skipped" in done.out


def test_the_help_says_for_which_logs_a_default_holds_and_what_keeps_its_run(holdfast: Any) -> None:
    text = " ".join(holdfast("import", "--help").out.split())
    assert "[default: 8 for Google's and InfiniteHBD's logs, else unknown]" in text
    assert "Holdfast's own events keep theirs" in text


def test_what_a_file_says_cannot_steer_the_terminal(holdfast: Any, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("step,time,kind\n1,1,\n2,2,\x1b]0;owned\n", encoding="utf-8")
    done = holdfast("import", path, "--run", "a")
    assert "1 lines skipped" in done.out
    assert "\x1b" not in done.err


def test_a_file_whose_name_is_no_text(holdfast: Any, tmp_path: Path) -> None:
    path = write_steps(tmp_path / "steps-\udcff.csv", 1, 2)
    (result,) = holdfast("import", path, "--run", "a", "--json").json
    assert result["file"].endswith("steps-\\udcff.csv")
    assert "2 known" in holdfast("import", path, "--run", "a").out


def shown_on_a_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    """What the command prints on stderr where that is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # which is how the end of a terminal shows
            while more := os.read(ours, 4096):
                shown += more
    os.close(ours)
    assert process.returncode == 0, shown
    return shown


@pytest.mark.parametrize(("rows", "is_shown"), [(2_000, True), (20, False)])
def test_a_terminal_shows_how_far_a_long_file_is(
    environment: dict[str, str], tmp_path: Path, rows: int, is_shown: bool
) -> None:
    path = tmp_path / "steps.csv"
    note = "n" * 1_000
    path.write_text("step,time,note\n" + "".join(f"{n},{n},{note}\n" for n in range(rows)), encoding="utf-8")
    command = [sys.executable, "-m", "holdfast", "import", str(path), "--run", "a"]
    shown = shown_on_a_terminal(command, {**environment, "TERM": "xterm"})
    assert (b"steps.csv" in shown) == is_shown


def test_what_a_step_log_may_be_can_be_imported(holdfast: Any, tmp_path: Path, data: Path) -> None:
    """Steps 10 s apart, as Megatron, W&B's export and a trainer with other names write them: 8 GPUs, 20 s."""
    stamps = ["2026-03-02 09:00:00", "2026-03-02 09:00:10", "2026-03-02 09:00:20"]
    logs = {
        "megatron.log": [
            f"[{at}] iteration {step:8}/ 500 | consumed samples: 8 |" for step, at in enumerate(stamps, 1)
        ],
        "wandb.jsonl": [
            f'{{"_step": {step}, "_timestamp": {1_772_442_000 + 10 * step}.5}}' for step in range(3)
        ],
        "named.csv": ["iteration,timestamp", *(f"{step},{at}" for step, at in enumerate(stamps, 1))],
    }
    for name, lines in logs.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        done = holdfast("import", name, "--run", name, "--gpus", "8")
        assert (done.code, done.out) == (0, f"{name}: step log (3 lines, 1 run), events: 4 new\n")
        told = holdfast("report", name, "--json").json
        assert (told["paid_gpu_ns"], told["counts"]["steps"]) == (8 * 20 * 10**9, 3)
    again = holdfast("import", "megatron.log", "--run", "megatron.log", "--gpus", "8").out
    assert "events: 0 new, 4 known" in again
    assert "step log (40 lines" in holdfast("import", data / "wandb", "--run", "w").out
    nameless = holdfast("import", "named.csv")
    assert (nameless.code, "The run is called named, after the file." in nameless.out) == (0, True)
    (tmp_path / "empty").mkdir()
    refused = holdfast("import", "empty")
    assert (refused.code, "holds no journal of Holdfast and no files" in refused.err) == (
        2,
        True,
    )


def test_a_run_is_called_after_its_file_unless_lines_name_one(holdfast: Any, tmp_path: Path) -> None:
    done = holdfast("import", write_steps(tmp_path / "llama.csv", 1, 5), "--gpus", "8")
    assert (done.code, done.out.splitlines()[1]) == (0, "  The run is called llama, after the file.")
    (tmp_path / "two.jsonl").write_text(
        '{"run":"a","step":1,"time":1760000000}\n{"step":2,"time":1760000010}\n', encoding="utf-8"
    )
    done = holdfast("import", tmp_path / "two.jsonl")
    assert "events: 1 new; 1 lines skipped" in done.out
    assert {one["run"] for one in holdfast("runs", "--json").json} == {"llama", "a"}


NAMELESS = {
    "table": ("step,time,loss\n", "{step},{at_s},{loss}\n"),
    "step log": ("iteration,timestamp\n", "{step},{at_s}\n"),
    "trainer log": ("", "step {step}: loss {loss}\n"),
}


@pytest.mark.parametrize(("head", "line"), NAMELESS.values(), ids=NAMELESS)
def test_a_run_called_as_the_file_is_not_mixed_with_that_of_another_file(
    holdfast: Any, tmp_path: Path, head: str, line: str
) -> None:
    """Both begin with the same line: the same seed, at the same second."""
    paths = []
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "steps.csv")
        lines = [
            line.format(step=step, at_s=BEGAN_S + (10 + number) * step, loss=11 - (1 + number) * step / 100)
            for step in range(200)
        ]
        paths[-1].write_text(head + "".join(lines), encoding="utf-8")
    done = holdfast("import", *paths, "--gpus", "8")
    assert (done.code, "The run is called" in done.out or "steps: 200 steps" in done.out) == (2, True)
    assert "b/steps.csv does not say which run it is of, and the record has another run 'steps'." in done.err
    alone = holdfast("report", "steps", "--json").json
    assert (alone["counts"]["steps"], alone["incidents"]) == (200, [])
    refused = holdfast("import", paths[1])
    assert (refused.code, "Add `--run NAME`, or `--run steps`" in " ".join(refused.err.split())) == (2, True)
    assert holdfast("import", paths[1], "--run", "b").code == 0
    assert holdfast("report", "steps", "--json").json == alone


@pytest.mark.parametrize(("head", "line"), NAMELESS.values(), ids=NAMELESS)
def test_a_file_that_has_grown_goes_on_with_its_run(
    holdfast: Any, tmp_path: Path, head: str, line: str
) -> None:
    path = tmp_path / "steps.csv"
    for new, last in ((2, 2), (0, 2), (28, 30), (170, 200), (300, 500), (0, 500)):
        lines = [line.format(step=step, at_s=BEGAN_S + 10 * step, loss=step) for step in range(last)]
        path.write_text(head + "".join(lines), encoding="utf-8")
        done = holdfast("import", path)
        per_step = 2 if not head else 1
        assert (done.code, f"events: {new * per_step:,} new" in done.out) == (0, True), done.err


def test_a_pipe_has_no_name(environment: dict[str, str], tmp_path: Path) -> None:
    path = write_steps(tmp_path / "steps.csv", 1, 5)
    done = subprocess.run(
        ["bash", "-c", f"cat {path} | {sys.executable} -m holdfast import /dev/stdin"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "/dev/stdin does not say which run it is of." in done.stderr


def test_a_log_without_times_is_told_of_without_them(holdfast: Any, tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text(
        '"Step","sky - train/loss"\n' + "".join(f'"{10 * n}","{9 - n}"\n' for n in range(9)), "utf-8"
    )
    done = holdfast("import", path, "--gpus", "8")
    assert done.code == 0, done.err
    assert "sky: 9 steps logged, from 0 to 80; loss 9 to 1. The log has no times" in done.out
    assert "0 new" in holdfast("import", path, "--gpus", "8").out
    report = " ".join(holdfast("report", "sky").out.split())
    assert "times not known" in report
    assert "The log has no times" in report
    assert holdfast("report", "sky", "--json").json["counts"]["steps"] == 81  # a log of every tenth
    assert "what it cost is not known" in holdfast("cost", "sky").out
    (listed,) = holdfast("runs", "--json").json
    assert (listed["cost_usd"], listed["gpu_hours"]) == (None, 0)
    told = holdfast("events", "sky").out.splitlines()
    assert [" ".join(line.split()) for line in told] == [
        "time not known cost.rate - gpus=8",
        "time not known steps - 0 to 80, one in 10 recorded",
    ]
    refused = holdfast("diagnose", "sky")
    assert (refused.code, "Nothing can be said of sky. The log has no times" in refused.err) == (2, True)
    for verb in ("report", "runs", "finance", "events"):
        assert "1970" not in holdfast(verb).out
    assert holdfast("import", write_steps(tmp_path / "dated.csv", 1, 50), "--gpus", "8").code == 0
    assert "2 runs, 9 Oct 2025, 08:53:30 to 09:01:40 UTC" in holdfast("finance").out


UNDATED = {
    "no times": "".join(f"step {step}: loss {200 / step}\n" for step in (20, 30, 40)),
    "times since the start": "_step,_runtime,loss\n20,1,5\n30,2,4\n40,3,3\n",
}


@pytest.mark.parametrize("text", UNDATED.values(), ids=UNDATED)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_log_without_dates_changes_nothing_of_a_run_with_dates(
    holdfast: Any, tmp_path: Path, text: str, is_first: bool
) -> None:
    steps = write_steps(tmp_path / "steps.csv", 1, 50)
    log = tmp_path / "prod.log"
    log.write_text(text, encoding="utf-8")
    told = []
    for run in ("prod", "alone"):
        if run == "prod" and is_first:
            assert holdfast("import", log, "--run", run, "--gpus", "512").code == 0
        assert holdfast("import", steps, "--run", run, "--gpus", "8").code == 0
        if run == "prod":
            refused = holdfast("import", log, "--run", run, "--gpus", "512")
            assert (refused.code, "the record already has prod with dates" in refused.err) == (2, True)
        told.append(holdfast("report", run, "--json").json)
    for report in told:
        del report["run"]
    assert told[0] == told[1]
    assert (told[0]["paid_gpu_ns"], told[0]["counts"]["steps"]) == (8 * 490 * 10**9, 50)


def test_a_log_whose_steps_begin_anew_is_refused_whole(holdfast: Any, tmp_path: Path) -> None:
    lines = [f"epoch {epoch} step {step}: loss 5\n" for epoch in (1, 2) for step in range(3_000)]
    (tmp_path / "train.log").write_text("".join(lines), encoding="utf-8")
    refused = holdfast("import", "train.log")
    assert (refused.code, "go back from 2,999 to 0" in refused.err) == (2, True)
    assert "has no runs yet" in holdfast("runs").err


def read_bytes() -> int:
    """How much this process has read so far, from files and whatever else."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def test_a_long_file_of_metrics_is_refused_by_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "signals.om"
    series = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} 98 1772442000.000\n'
    with path.open("wb") as file:
        file.write(b"# HELP DCGM_FI_DEV_GPU_UTIL Busy.\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n")
        for _ in range(180):
            file.write(series * (2**20 // len(series)))
        file.write(b"# EOF\n")
    assert path.stat().st_size > 170 * 2**20
    with SqliteStore(tmp_path / "s.sqlite") as store:
        taking = Taking(store=store, options=Options(), steps_in=steps_in, watched=lambda _: nullcontext())
        before = read_bytes()
        with pytest.raises(InputError, match="holds metrics"):
            taking.take(path)
        assert read_bytes() - before < 4 * 2**20
    path.unlink()


def test_a_long_log_of_steps_with_a_long_head_is_read(tmp_path: Path) -> None:
    path = tmp_path / "megatron.log"
    head = "arguments: x\n" * 60_000
    path.write_text(
        head + "[2026-03-02 09:00:00] iteration 1/ 9 | x\n[2026-03-02 09:00:10] iteration 2/ 9 | x\n"
    )
    assert [step for _, step in steps_in(path)] == [1, 2]
