"""The word "estimated" beside every figure that rests on an estimate, and second opinions from the record."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Holdfast = Callable[..., Any]
BASIS = "estimated ± 0.3 %"


@pytest.fixture
def two_runs(holdfast: Holdfast, tmp_path: Path) -> Holdfast:
    """The second run takes twice as long a step as the first, from its first step on; both stall once."""
    for number, seconds in ((1, 5), (2, 10)):
        at = 1_790_000_000 + 100_000 * number
        lines = ["step,time"]
        for step in range(1, 201):
            at += 3 * seconds if 100 <= step < 130 else seconds
            lines.append(f"{step},{at}")
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(lines) + "\n")
        assert holdfast("import", path, "--run", f"llama-{number}", "--gpus", "8").code == 0
    return holdfast


def test_report_cost_and_finance_say_what_is_estimated(two_runs: Holdfast, tmp_path: Path) -> None:
    """200 steps of 10 s, 30 of which take 30 s: 600 s of 2600 s (the first step is in no account)."""
    shown = two_runs("report", "llama-2").out
    assert f"76.8 % ({BASIS}) of 5.76 GPU-hours paid for were useful." in shown
    assert "But it is 2.0 times slower than llama-1." in " ".join(shown.split())
    for label in ("useful", "slowdown"):
        (line,) = [one for one in shown.splitlines() if one[3:].startswith(label)]
        assert BASIS in line
    assert "100.0 % slowdown (est.)" in shown
    told = two_runs("report", "llama-2", "--json").json
    assert told["goodput"]["basis"] == told["basis"] == told["incidents"][0]["basis"] == BASIS
    assert told["estimated"] == ["useful", "slowdown"]
    assert told["opinions"][0]["ratio"] == pytest.approx(2.0, rel=0.01)

    cost = two_runs("cost", "llama-2").out
    assert f"GPU-hours ({BASIS}):" in cost
    assert f"GPU-hours lost, rollback apart × price, {BASIS}" in " ".join(cost.split())
    assert "2.0 times slower than your run llama-1" in " ".join(cost.split())
    priced = two_runs("cost", "llama-2", "--json").json
    layers = {layer["key"]: layer for layer in priced["total"]["layers"]}
    assert layers["direct_compute"]["basis"] == layers["schedule_slip"]["basis"] == BASIS
    assert not layers["response_labour"].get("basis")

    finance = two_runs("finance").out
    assert f"of it useful ({BASIS})" in finance
    for label in ("Useful training", "Running slowly"):
        (line,) = [one for one in finance.splitlines() if one.startswith(f"{label}  ")]
        assert line.endswith(BASIS)
    spent = two_runs("finance", "--json").json
    assert spent["basis"] == spent["runs"][0]["basis"] == BASIS
    for verb in ("report", "finance"):
        page = tmp_path / f"{verb}.html"
        named = ["llama-2"] if verb == "report" else []
        assert two_runs(verb, *named, "--html", page).code == 0
        assert page.read_text().count(BASIS) >= 3


def test_few_steps_are_said_to_be_too_few(holdfast: Holdfast, tmp_path: Path) -> None:
    """Three steps of 10 s each do not tell their spread. It is taken to be 20 %: 2 * 1.2 * 0.2 / sqrt(3)."""
    rows = ["step,time", *(f"{step},{1_790_000_000 + 10 * step}" for step in range(1, 5))]
    (tmp_path / "few.csv").write_text("\n".join(rows) + "\n")
    assert holdfast("import", tmp_path / "few.csv", "--run", "few", "--gpus", "8").code == 0
    shown = holdfast("report", "few").out
    assert "100.0 % (estimated ± 27.7 %) of 0.07 GPU-hours paid for were useful." in shown
    assert "4 steps are too few to tell what a step normally takes" in " ".join(shown.split())
    assert "(estimated ± 27.7 %)" in holdfast("finance").out
    (row,) = holdfast("runs").out.splitlines()[1:]
    assert "~100.0 %" in row
    (listed,) = holdfast("runs", "--json").json
    assert listed["useful_basis"] == "estimated ± 27.7 %"
    (month,) = holdfast("finance", "--json").json["months"]
    assert month["basis"] == "estimated ± 27.7 %"
