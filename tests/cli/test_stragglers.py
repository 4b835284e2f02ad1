"""`holdfast stragglers` as a user calls it."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MEMBERS = """member,step,compute_s,data_s,exchange_s
a,1,1.0,0.1,2.2
b,1,3.0,0.1,0.2
a,2,1.0,0.1,2.2
b,2,3.0,0.1,0.2
"""


@pytest.fixture
def call(holdfast: Any) -> Callable[..., Any]:
    """The command as one line; it must end as expected."""

    def run(line: str, code: int = 0) -> Any:
        outcome = holdfast(*shlex.split(line))
        assert outcome.code == code, outcome.err
        return outcome

    return run


def traced(data: Path, name: str) -> str:
    folder = data / "straggler"
    return f"stragglers {folder}/trace-{name}.parquet --meta {folder}/meta-{name}.yaml"


def test_a_slow_worker_in_numbers(call: Any, data: Path) -> None:
    outcome = call(f"{traced(data, 'AR')} --json")
    told = outcome.json
    assert outcome.err == ""
    assert told["name"] == "AR"
    assert told["step_s"] == pytest.approx(46.336, rel=0.001)
    assert told["ideal_s"] == pytest.approx(23.485, rel=0.001)
    assert told["slowdown"] == pytest.approx(1.973, abs=0.001)
    assert told["m_w"] == pytest.approx(1.0017, abs=0.001)
    assert told["m_s"] == pytest.approx(-0.0012, abs=0.001)
    assert told["verdict"].startswith("Rank 0 (data-parallel rank 0, stage 0) holds the step back")
    assert told["cause"]["kind"] == "worker"
    assert told["cause"]["workers"] == ["rank 0"]
    first = told["workers"][0]
    assert (first["rank"], first["dp_rank"], first["stage"]) == (0, 0, 0)
    assert first["share"] == pytest.approx(1.0017, abs=0.001)
    assert [one["slowdown"] for one in told["workers"]] == sorted(
        (one["slowdown"] for one in told["workers"]), reverse=True
    )
    shares = {one["type"]: one["share"] for one in told["operations"]}
    assert max(shares, key=lambda kind: shares[kind]) == "backward-compute"


def test_a_long_last_stage_in_numbers(call: Any, data: Path) -> None:
    told = call(f"{traced(data, 'ST')} --json").json
    assert told["step_s"] == pytest.approx(2.1727, rel=0.001)
    assert told["ideal_s"] == pytest.approx(1.8433, rel=0.001)
    assert told["m_s"] == pytest.approx(1.219, abs=0.001)
    assert told["m_w"] == pytest.approx(0.0314, abs=0.001)
    assert told["verdict"].startswith("The last stage (3) holds the step back")
    assert told["cause"]["stage"] == 3


def test_the_terminal_has_the_verdict_first_and_a_heat_map(call: Any, data: Path) -> None:
    lines = call(traced(data, "AR")).out.splitlines()
    assert lines[0] == "AR: 16 workers (4 data-parallel ranks x 4 stages), 44 steps, 117,216 operations"
    assert lines[2].startswith("Rank 0 (data-parallel rank 0, stage 0) holds the step back")
    rows = [line.split() for line in lines if line.startswith("dp ")]
    assert rows[0] == ["dp", "0", "█", "1.97", "1.00", "1.00", "1.00"]
    assert [row[:2] for row in rows] == [["dp", "0"], ["dp", "1"], ["dp", "2"], ["dp", "3"]]
    assert all("█" not in row for row in rows[1:])


def test_members_have_their_names(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(MEMBERS, encoding="utf-8")
    told = call(f"stragglers {path} --json").json
    assert told["cause"]["workers"] == ["b"]
    assert told["m_s"] is None
    shown = call(f"stragglers {path} --format members").out
    assert "b holds the step back" in shown
    assert "stage" not in shown.splitlines()[-1]


def test_a_page(call: Any, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = call(f"{traced(data, 'ST')} --html {page}")
    assert outcome.out == ""
    assert "The page is in" in outcome.err
    assert "holds the step back" in page.read_text(encoding="utf-8")


def test_a_trace_that_is_a_part_of_its_job(call: Any, data: Path, tmp_path: Path) -> None:
    meta = tmp_path / "meta.yaml"
    meta.write_text("trial_name: ours\ndp_size: 64\npp_size: 4\n", encoding="utf-8")
    trace = data / "straggler" / "trace-ST.parquet"
    outcome = call(f"stragglers {trace} --meta {meta}")
    assert outcome.err == "holdfast: The job has 64 data-parallel ranks and the trace 2.\n"
    assert outcome.out.startswith("ours: 8 workers")


def test_idle_workers_are_told(call: Any, tmp_path: Path) -> None:
    """What began later than anything it could have waited for is not in the simulated step."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "step,optype,start_ts,duration\n0,forward-compute,0,1\n0,backward-compute,5,1\n", encoding="utf-8"
    )
    assert "account for only 33% of the recorded step" in call(f"stragglers {path}").err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("gone.parquet", "There is no trace gone.parquet."),
        ("trace.csv", "has no column step."),
        ("trace.csv --meta gone.yaml", "The job's meta file cannot be read from gone.yaml"),
        ("trace.csv --format members", "cannot be read as steps of members: a column is missing"),
        ("noise.parquet", "cannot be read as a trace: it is damaged, or not a table."),
        ("words.csv", "cannot be read as a trace: a column is missing, or has a value that is not a number."),
        ("trace.csv --format profiler", "is not a trace of the PyTorch profiler"),
        ("trace.csv --format kineto", "'kineto' is not one of"),
        ("trace.csv --json --html -", "would both print to stdout"),
        (".", "has 0 profiler traces"),
    ],
)
def test_mistakes_are_one_sentence_and_a_hint(
    call: Any, tmp_path: Path, arguments: str, sentence: str
) -> None:
    (tmp_path / "trace.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (tmp_path / "noise.parquet").write_bytes(b"no Parquet")
    words = "optype,step,start_ts,duration,mc\ngc,1,0,1,first\n"
    (tmp_path / "words.csv").write_text(words, encoding="utf-8")
    outcome = call(f"stragglers {arguments}", code=2)
    first, hint, *more = outcome.err.splitlines()
    assert sentence in first
    assert hint.startswith("  hint: ")
    assert more == []
    assert outcome.out == ""
    assert " Error: " not in outcome.err


def test_names_cannot_command_the_terminal(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(MEMBERS.replace("b,", "\x1b[2J[bold],"), encoding="utf-8")
    shown = call(f"stragglers {path}").out
    assert "\x1b[2J" not in shown
    assert "\\x1b[2J[bold]" in shown
