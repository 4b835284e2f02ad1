"""`holdfast import` and `holdfast report` on the published run of 112 nodes, as its user runs them."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

GOOGLE = "google-70b-112-nodes-events.jsonl"


@pytest.fixture
def imported(holdfast: Any, take_in: Any, data: Path) -> Any:
    take_in(data / GOOGLE, "--reference-step-s", "8")
    return holdfast


def test_their_figures_and_ours(imported: Any) -> None:
    told = imported("report", "--json").json
    assert told["goodput"]["checkpoint_span"] == pytest.approx(0.4343365, abs=1e-6)
    assert told["counts"]["starts"] == 48
    assert told["counts"]["loads"] == 44
    assert told["counts"]["saves"] == 96
    assert told["elapsed_s"] == pytest.approx(35364.285491, abs=1e-9)
    assert told["paid_gpu_ns"] == 35_364_285_491_000 * 896
    assert sum(told["partition"].values()) == told["paid_gpu_ns"]
    # What their number hides: 20 launches that came to nothing, and starting cost more than training brought.
    assert told["counts"]["restarts"] == 67
    assert told["partition"]["starting"] > told["partition"]["useful"]
    assert told["goodput"]["scheduling"] == 1.0
    assert told["goodput"]["runtime"] == pytest.approx(told["partition"]["useful"] / told["paid_gpu_ns"])
    assert told["goodput"]["program"] is None


def test_the_terminal_shows_the_partition_the_ratios_and_the_incidents(imported: Any) -> None:
    shown = imported("report").out
    for expected in (
        "2 Apr 2025, 06:08 to 15:57 UTC, 9 h 49 min, 896 GPUs\n",
        "41.6 % of 8,802 GPU-hours paid for were useful.\n",
        "starting",
        "Goodput    41.6 % = scheduling 100.0 % × runtime 41.6 %",
        "ETTR",
        "8 s a step on 896 GPUs, declared",
        "67 restarts",
        "8 unexplained restarts",
        "Costliest incidents (8 of 22)",
        "48 starts hide 20 more launches",
    ):
        assert expected in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_page_is_written_where_it_is_wanted(imported: Any, tmp_path: Path) -> None:
    done = imported("report", "--html", tmp_path / "page.html")
    assert done.out == ""
    assert "page.html" in done.err
    assert "test-040104-goodput-n112-70b-a3m" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_goes_to_stdout_where_that_is_wanted(imported: Any, tmp_path: Path) -> None:
    imported("report", "--html", tmp_path / "page.html")
    done = imported("report", "--html", "-", PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")
    assert done.out == (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not (tmp_path / "-").exists()


def test_a_page_that_cannot_be_written(imported: Any, tmp_path: Path) -> None:
    done = imported("report", "--html", tmp_path / "nowhere" / "page.html")
    assert done.code == 2
    assert "cannot be written" in done.err


def test_importing_again_changes_nothing(imported: Any, data: Path) -> None:
    before = imported("report", "--json").out
    again = imported("import", data / GOOGLE, "--reference-step-s", "8")
    assert "0 new, 7,872 known" in again.out
    assert imported("report", "--json").out == before


def test_runs_lists_it(imported: Any) -> None:
    (run,) = imported("runs", "--json").json
    assert run["run"] == "test-040104-goodput-n112-70b-a3m"
    assert run["events"] == 7872
    assert "9 h 49 min" in imported("runs").out


def test_events_can_be_filtered(imported: Any) -> None:
    saved = imported("events", "--kind", "checkpoint.saved", "--json").out.splitlines()
    assert len(saved) == 96
    about = imported("events", "--subject", "node-7", "--limit", "3").out.splitlines()
    assert len(about) == 3
    assert all("node-7" in line for line in about)
    early = imported("events", "--until", "2025-04-02T06:08:25Z", "--json").out.splitlines()
    assert len(early) == 4


def test_events_as_json_can_be_imported_elsewhere(imported: Any, tmp_path: Path) -> None:
    lines = imported("events", "--json").out
    (tmp_path / "copy.jsonl").write_text(lines, encoding="utf-8")
    other = {"HOLDFAST_HOME": str(tmp_path / "elsewhere")}
    assert imported("import", tmp_path / "copy.jsonl", **other).code == 0
    assert imported("report", "--json", **other).json == imported("report", "--json").json


def test_a_store_can_be_named(holdfast: Any, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "named.sqlite"
    assert holdfast("import", data / GOOGLE, "--store", path).code == 0
    assert not (tmp_path / "home" / "record.sqlite").exists()
    assert len(holdfast("runs", "--json", HOLDFAST_STORE=str(path)).json) == 1
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_simple_step_log(holdfast: Any, tmp_path: Path) -> None:
    """What everyone has: a CSV with a step and a time."""
    rows = ["step,time", *(f"{step},{1_760_000_000 + 10 * step}" for step in range(1, 101))]
    (tmp_path / "steps.csv").write_text("\n".join(rows), encoding="utf-8")
    done = holdfast("import", tmp_path / "steps.csv", "--run", "mine", "--gpus", "8")
    assert done.code == 0, done.err
    told = holdfast("report", "mine", "--json").json
    assert told["counts"]["steps"] == 100
    assert told["paid_gpu_ns"] == 8 * 990 * 10**9
    assert told["partition"]["useful"] == told["paid_gpu_ns"]


def test_lanes_that_were_skipped_are_told(holdfast: Any, tmp_path: Path) -> None:
    rows = ["step,time,skipped_lanes"]
    rows += [f"{step},{1_760_000_000 + 10 * step},{'6 7' * (3 <= step <= 5)}" for step in range(1, 21)]
    (tmp_path / "steps.csv").write_text("\n".join(rows), encoding="utf-8")
    done = holdfast("import", tmp_path / "steps.csv", "--run", "mine", "--gpus", "8")
    assert done.code == 0, done.err
    told = holdfast("report", "mine", "--json").json
    assert (told["counts"]["steps_short"], told["counts"]["lanes_skipped"]) == (3, 6)
    words = "6 lanes of 3 steps from 3 to 5 were skipped because replicas were missing"
    assert any(remark.startswith(words) for remark in told["remarks"])
    shown = holdfast("events", "mine", "--kind", "step.committed").out.splitlines()
    assert [number for number, line in enumerate(shown, 1) if "skipped_lanes=6,7" in line] == [3, 4, 5]


def test_slurm_accounting(holdfast: Any, data: Path) -> None:
    done = holdfast("import", data / "slurm" / "sacct.txt")
    assert done.code == 0
    assert "68 lines, 1 run, no GPUs" in done.out
    assert "No GPUs are recorded for this run" in holdfast("report").out


def test_an_hour_down_has_its_price_if_the_gpus_were_held(holdfast: Any, tmp_path: Path) -> None:
    """Ten GPUs, an hour down: 10 GPU-hours, 39.90 USD by the list; at 2 EUR of a rate, 20."""
    table = tmp_path / "run.csv"
    table.write_text(
        "time,kind,run,gpus,outcome\n2026-10-01T00:00:00Z,run.started,a,10,\n"
        "2026-10-01T01:00:00Z,run.ended,a,,failed\n2026-10-01T02:00:00Z,run.started,a,10,\n"
        "2026-10-01T03:00:00Z,run.ended,a,,completed\n"
    )
    holdfast("import", table)
    prices = tmp_path / "prices.toml"
    prices.write_text(
        'currency = "EUR"\n[usd_per]\nEUR = 1.25\n[[rates]]\nper_gpu_hour = 2\ncurrency = "EUR"\n'
    )
    assert "10.00 GPU-hours, 39.90 USD at an assumed price, more" in _said(holdfast("report").out)
    assert "10.00 GPU-hours, 20.00 EUR more" in _said(holdfast("report", "--prices", prices).out)
    assert holdfast("report", "--prices", tmp_path / "none.toml").code == 2


def _said(text: str) -> str:
    return " ".join(text.split())
