"""`holdfast plan fit` as its user runs it: from a file, from the store, and with mistakes."""

from pathlib import Path
from typing import Any

import pytest

HEADER = "JobID|State|Submit|Start|End|NNodes|NodeList|AllocTRES"


@pytest.fixture
def trace(data: Path) -> Path:
    return data / "infinitehbd-fault-trace.json"


@pytest.fixture
def accounting(tmp_path: Path) -> Path:
    """Thirty days of two jobs on 4 nodes each; every third day one of them loses a node."""
    rows = [HEADER]
    for day in range(1, 31):
        for half in (0, 1):
            failed = day % 3 == 0 and half == 0
            end = "06:00:00" if failed else "12:00:00"
            state, nodes = ("NODE_FAIL", f"n{day % 2}") if failed else ("COMPLETED", "n[0-3]")
            started = f"2025-01-{day:02}T00:00:00"
            rows.append(
                f"{2 * day + half}|{state}|{started}|{started}|2025-01-{day:02}T{end}|4|{nodes}|gres/gpu=32"
            )
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_the_published_figures_come_from_the_file_alone_and_from_the_store(
    holdfast: Any, trace: Path
) -> None:
    done = holdfast("plan", "fit", trace, "--json")
    assert (done.code, done.err) == (0, "")
    told = done.json
    assert round(told["faults_per_1000_node_days"], 2) == 4.20
    assert round(told["hardware_per_1000_node_days"], 2) == 2.14
    assert round(told["outage_median_h"], 1) == 20.4
    assert told["lemons"] == len(told["lemon_nodes"]) == 33
    assert told["lemon_p_value"] < 0.001
    assert holdfast("import", trace).out.endswith(
        "events: 1,754 new\n"
    )  # so the file was only read until now
    assert holdfast("plan", "fit", "--json").out == done.out


def test_as_a_run_it_counts_what_the_run_paid_for(holdfast: Any, trace: Path) -> None:
    assert holdfast("import", trace, "--run", "hbd").code == 0
    told = holdfast("plan", "fit", "--run", "hbd", "--json").json
    assert (told["nodes_source"], told["node_days"], told["lemons"]) == ("paid", 400 * 348, 33)
    assert told["nodes"] == 399  # on average over the days that the entries reach


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_the_rate_comes_first_and_nothing_is_cut(
    holdfast: Any, trace: Path, columns: int
) -> None:
    lines = holdfast("plan", "fit", trace, COLUMNS=str(columns)).out.splitlines()
    assert lines[0] == "4.20 faults per 1000 node-days (2.77 to 6.10 with 95 %)"
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "Bad nodes recover, but repairs do not hold" in text
    assert "11 of the 33 are worse than chance even each by itself." in text


def test_sacct_counts_the_nodes_that_jobs_held(holdfast: Any, accounting: Path) -> None:
    told = holdfast("plan", "fit", accounting, "--json").json
    assert (told["faults"], told["nodes"], told["nodes_source"]) == (10, 8, "paid")
    assert told["node_days"] == pytest.approx(4 * (50 * 0.5 + 10 * 0.25))
    assert [row["name"] for row in told["classes"]] == ["node-fail"]
    assert told["hardware_per_1000_node_days"] is None
    assert told["assumptions"][0] == "Each node is assumed to have 8 GPUs."
    by_hand = holdfast("plan", "fit", accounting, "--nodes", "8", "--days", "30", "--json").json
    assert (by_hand["node_days"], by_hand["nodes_source"]) == (240, "given")


def test_the_published_accounting_has_no_faults(holdfast: Any, data: Path) -> None:
    done = holdfast("plan", "fit", data / "slurm" / "sacct.txt", "--nodes", "10", "--days", "1")
    assert done.code == 0
    assert done.out.startswith(
        "There are no faults in this record. That does not mean a rate of zero: at most 369 faults"
    )
    assert "Watched  10 node-days, as you say" in done.out
    assert "too few faults" in done.out


def test_a_short_run_without_faults_is_told_without_figures_that_say_nothing(
    holdfast: Any, tmp_path: Path
) -> None:
    log = tmp_path / "run.csv"
    log.write_text("time,kind,run,gpus,outcome\n0,run.started,a,16,\n73,run.ended,a,,completed\n", "utf-8")
    done = holdfast("plan", "fit", log, "--gpus-per-node", "8")
    assert done.code == 0, done.err
    first, _, watched, *_ = done.out.splitlines()
    assert first == "There are no faults in this record, but it is too short to tell how rare they are."
    assert watched.split(maxsplit=1)[1].strip() == "2 min 26 s of node time, as runs paid for"
    told = holdfast("plan", "fit", log, "--gpus-per-node", "8", "--json").json
    assert told["faults_interval"][1] > 10**6  # programs get the figure


def test_domains_may_be_given(holdfast: Any, tmp_path: Path) -> None:
    # Every few days the two nodes of a rack fail within a minute, at any time of day.
    rows = ["time,kind,subject,fault"]
    for event in range(20):
        for node in (0, 1):
            name = f"n{2 * (event % 5) + node}"
            rows.append(f"{1_700_000_000 + event * 250_000 + 60 * node},fault.observed,{name},power")
    log, racks = tmp_path / "faults.csv", tmp_path / "racks.csv"
    log.write_text("\n".join(rows), encoding="utf-8")
    racks.write_text("\n".join(f"n{node}, rack{node // 2}" for node in range(10)), encoding="utf-8")
    words = ("plan", "fit", log, "--nodes", "10", "--days", "60", "--json")
    verdicts = {row["question"]: row for row in holdfast(*words, "--domains", racks).json["verdicts"]}
    assert verdicts["nodes fail together"]["answer"] == "yes"
    assert verdicts["by shared domain"]["answer"] == "yes"
    assert "100 % of pairs" in verdicts["by shared domain"]["sentence"]
    unknown = {row["question"]: row["answer"] for row in holdfast(*words).json["verdicts"]}
    assert unknown["by shared domain"] == "unknown"


def test_lines_that_cannot_be_used_are_told(holdfast: Any, tmp_path: Path) -> None:
    log = tmp_path / "faults.csv"
    log.write_text(
        "time,kind,subject,fault\n1,fault.observed,n1,power\nsoon,fault.observed,n1,power\n", "utf-8"
    )
    done = holdfast("plan", "fit", log, "--nodes", "2", "--days", "3", "--json")
    assert done.json["faults"] == 1
    assert done.err == f"holdfast: 1 lines of {log} cannot be used.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gone.json"], "gone.json cannot be read: No such file or directory."),
        ([], "The record has neither faults nor runs."),
        (["--run", "x"], "The store holds no runs yet."),
        (["{trace}", "--run", "x"], "FILE is read by itself, and `--run` names a run of the store."),
        (["{trace}", "--nodes", "100"], "231 nodes had faults, but the number of nodes is 100."),
        (["{trace}", "--domains", "gone.csv"], "gone.csv cannot be read: No such file or directory."),
        (["{trace}", "--domains", "{trace}"], "Line 1 of {trace} does not have the form NODE,DOMAIN."),
        (["{trace}", "--lemon-faults", "1"], "--lemon-faults 1 is not a whole number from 2 to 1,000,000."),
        (["{trace}", "--days", "nan"], "--days nan is not a finite number from 0.001 to 100,000."),
    ],
)
def test_mistakes_are_told_in_a_sentence(holdfast: Any, trace: Path, words: list[str], sentence: str) -> None:
    done = holdfast("plan", "fit", *(word.format(trace=trace) for word in words))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"holdfast: {sentence.format(trace=trace)}")
    assert "hint:" in done.err


def test_names_cannot_steer_the_terminal(holdfast: Any, tmp_path: Path) -> None:
    log = tmp_path / "faults.csv"
    rows = [f"{60 * n},fault.observed,\x1b]0;owned,\x1b[2Jgone" for n in range(12)]
    log.write_text("\n".join(["time,kind,subject,fault", *rows]), encoding="utf-8")
    done = holdfast("plan", "fit", log, "--nodes", "20", "--days", "30")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "gone" in done.out


def test_simulated_faults_count_only_if_they_are_named(holdfast: Any, accounting: Path) -> None:
    assert holdfast("import", accounting).code == 0
    real = holdfast("plan", "fit", "--json").json
    record = ("--preset", "rsc-1-1024", "--policy", "holdfast", "--days", "5", "--record", "events.jsonl")
    assert holdfast("simulate", *record).code == 0
    assert holdfast("import", "events.jsonl").code == 0
    told = holdfast("plan", "fit", "--json").json
    remark = "1 simulated run is left out; `--run` names one to read it."
    assert told["assumptions"] == [*real["assumptions"], remark]
    assert {**told, "assumptions": real["assumptions"]} == real
    by_run = holdfast("plan", "fit", "--run", "rsc-1-1024", "--json")
    assert by_run.json["faults"] > 0
    assert holdfast("plan", "fit", "events.jsonl", "--json").out == by_run.out


def test_what_an_interval_is_of_is_said_where_nodes_were_not_always_at_work(
    holdfast: Any, accounting: Path, trace: Path
) -> None:
    assert "while all of them are at work" in holdfast("plan", "fit", accounting).out
    assert "while all of them" not in holdfast("plan", "fit", trace).out
