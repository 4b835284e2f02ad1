"""A report in the terminal, for runs with something particular about them."""

from typing import Any

import msgspec
import pytest

from holdfast.cli.report_text import show
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Ended, IncidentReport, MeasuredFigure, Report
from holdfast.ledger.reporting import report
from holdfast.record.events import (
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointVerified,
    RunStarted,
    StepCommitted,
)

NOON_NS = 1_743_595_200 * 10**9
"""2 April 2025, 12:00 UTC."""

Shown = Any


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What is printed of a report, line by line."""

    def lines(told: Report, columns: int = 100) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        show(told)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return lines


def told(**changes: Any) -> Report:
    """A hundred steps on eight GPUs, changed as the test wants it."""
    ledger = Ledger()
    ledger.add([RunStarted(id="a-000", occurred_ns=NOON_NS, run="r", gpus=8)])
    ledger.add(
        StepCommitted(id=f"a-{step:03}", occurred_ns=NOON_NS + 10 * step * 10**9, run="r", step=step)
        for step in range(1, 101)
    )
    return msgspec.structs.replace(report("r", ledger.fold), **changes)


def incident(**changes: Any) -> IncidentReport:
    return msgspec.structs.replace(
        IncidentReport(
            name="7",
            what="hang",
            subject="node-7",
            severity="fatal",
            began_ns=NOON_NS,
            noticed_ns=NOON_NS,
            recovered_ns=NOON_NS + 167 * 10**9,
            restarts=3,
            members_lost=0,
            steps_rolled_back=20,
            lost_gpu_ns=36 * 10**11,
            losses={"checkpoint_stall": 36 * 10**11},
            evidence=(),
        ),
        **changes,
    )


def test_what_was_paid_in_money_is_in_the_headline(shown: Shown) -> None:
    text = " ".join(shown(told(paid_usd=22_004.6)))
    assert "% (estimated ± 0.2 %) of 2.22 GPU-hours paid for (22,005 USD) were useful." in text
    assert not any("USD" in line for line in shown(told(paid_usd=None)))


def test_mfu_and_hfu(shown: Shown) -> None:
    figure = MeasuredFigure(measured=41.0, reference=None, unit="%", sentence="41.0 % of the peak")
    assert "MFU        41.0 % of the peak; HFU 54.7 %" in shown(told(mfu=figure, hfu_percent=54.66))
    assert any(line.startswith("MFU        unknown") for line in shown(told()))


def test_how_the_run_ended(shown: Shown) -> None:
    ended = Ended(outcome="failed", reason="SIGKILL\x1b[2J", survived_errors=0, ended_ns=NOON_NS)
    assert shown(told(ended=ended))[2] == "Failed: SIGKILL\\x1b[2J"
    better = msgspec.structs.replace(ended, outcome="completed", reason="", survived_errors=1)
    assert shown(told(ended=better))[2] == "Completed with 1 survived error"
    assert shown(told())[2] == ""


def test_one_is_not_many(shown: Shown) -> None:
    ledger = Ledger()
    ledger.add(
        [
            RunStarted(id="a-1", occurred_ns=NOON_NS, run="r", gpus=1),
            RunStarted(id="a-2", occurred_ns=NOON_NS + 10**9, run="r", gpus=1),
            CheckpointLoaded(id="a-3", occurred_ns=NOON_NS + 2 * 10**9, run="r", step=0),
            StepCommitted(id="a-4", occurred_ns=NOON_NS + 9 * 10**9, run="r", step=1),
        ]
    )
    lines = shown(report("r", ledger.fold))
    assert "2 Apr 2025, 12:00:00 to 12:00:09 UTC, 9 s, 1 GPU" in lines
    assert "Counts     1 step kept, 1 restart, 1 load, 0 saves, 0 members lost" in lines


def test_what_checkpoints_cost_and_which_was_proven(shown: Shown) -> None:
    ledger = Ledger()
    at_ns = NOON_NS + 9 * 10**9
    cost = {"size_bytes": 16_000_000_000, "written_bytes": 4_000_000, "stall_ns": 5 * 10**7}
    saved = {"step": 1, "write_ns": 3 * 10**9, "exposed_ns": 40 * 10**9, **cost}
    ledger.add(
        [
            RunStarted(id="a-1", occurred_ns=NOON_NS, run="r", gpus=1),
            StepCommitted(id="a-2", occurred_ns=at_ns, run="r", step=1),
            msgspec.convert({"id": "a-3", "occurred_ns": at_ns, "run": "r", **saved}, CheckpointSaved),
        ]
    )
    said = " ".join(" ".join(shown(report("r", ledger.fold))).split())
    assert "Checkpoints 16.0 GB each, 4.0 MB of it new; training waited 0.05 s, durable 3 s later;" in said
    assert "at most 40 s of work at stake; 0 steps since the last; none was ever proven" in said
    ledger.add([CheckpointVerified(id="a-4", occurred_ns=at_ns + 1, run="r", step=1, sound=True)])
    said = " ".join(" ".join(shown(report("r", ledger.fold))).split())
    assert "step 1 proven 2025-04-02 12:00:09Z" in said
    assert "none was ever" not in said


def test_a_cost_of_checkpoints_that_is_not_known_is_not_said(shown: Shown) -> None:
    ledger = Ledger()
    ledger.add(
        [
            RunStarted(id="a-1", occurred_ns=NOON_NS, run="r", gpus=1),
            StepCommitted(id="a-2", occurred_ns=NOON_NS + 9 * 10**9, run="r", step=1),
            CheckpointSaved(
                id="a-3", occurred_ns=NOON_NS + 9 * 10**9, run="r", step=1, written_bytes=4_000_000
            ),
        ]
    )
    said = " ".join(" ".join(shown(report("r", ledger.fold))).split())
    assert "Checkpoints 4.0 MB new each; 0 steps since the last; none was ever proven" in said


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "hang (node-7), 3 restarts, 20 steps rolled back"),
        ({"restarts": 1, "steps_rolled_back": 1}, "hang (node-7), 1 restart, 1 step rolled back"),
        ({"restarts": 0, "steps_rolled_back": 0, "members_lost": 8}, "hang (node-7), 8 members lost"),
        (
            {"what": "unexplained restart", "subject": "", "restarts": 8, "steps_rolled_back": 0},
            "8 unexplained restarts",
        ),
        (
            {"what": "unexplained restart", "subject": "", "restarts": 1},
            "unexplained restart, 20 steps rolled back",
        ),
        (
            {"what": "unexplained restart", "subject": "", "restarts": 2, "members_lost": 3},
            "2 unexplained restarts, 3 members lost, 20 steps rolled back",
        ),
    ],
)
def test_what_an_incident_was(shown: Shown, changes: dict[str, Any], what: str) -> None:
    lines = shown(told(incidents=(incident(**changes),)), columns=130)
    assert f"  7  2 Apr, 12:00  {what}  2 min 47 s        1.00  100.0 % checkpoint stall" in lines


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (20, ["what", "GPU-h lost"]),
        (40, ["no.", "what", "GPU-h lost"]),
        (50, ["no.", "began (UTC)", "what", "GPU-h lost"]),
        (60, ["no.", "began (UTC)", "what", "lasted", "GPU-h lost"]),
        (80, ["no.", "began (UTC)", "what", "lasted", "GPU-h lost"]),
        (100, ["no.", "began (UTC)", "what", "lasted", "GPU-h lost", "mostly"]),
    ],
)
def test_what_happened_is_never_squeezed_out(shown: Shown, columns: int, headings: list[str]) -> None:
    lines = shown(told(incidents=(incident(), incident(subject="n" * 300))), columns)
    assert max(map(len, lines)) <= columns
    heading = next(line for line in lines if "what" in line)
    assert heading.split() == " ".join(headings).split()
    assert any("hang" in line for line in lines)


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_nothing_is_cut_off(shown: Shown, columns: int) -> None:
    lines = shown(told(incidents=(incident(),)), columns)
    assert not any("…" in line for line in lines)
    meaning = "steps that count, at reference rate"
    assert any(meaning in line for line in lines) == (columns >= 80)
