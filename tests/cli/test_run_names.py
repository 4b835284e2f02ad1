"""Every verb takes a run by its id or its name, and shows id and name together."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.record.events import KnownEvent, RunEnded, RunStarted, StepCommitted, encode

SPRING_NS = 1_743_574_104 * 10**9
"""2 April 2025, 06:08:24 UTC."""
RUNS = {"1041": "llama", "1042": "llama", "2001": "bert"}


@pytest.fixture
def imported(holdfast: Any, tmp_path: Path) -> Any:
    events: list[KnownEvent] = []
    for number, (run, name) in enumerate(RUNS.items()):
        at_ns = SPRING_NS + number * 10**13
        events += [
            RunStarted(id=f"{run}-a", occurred_ns=at_ns, run=run, name=name, gpus=8),
            *(
                StepCommitted(id=f"{run}-b{step:02}", occurred_ns=at_ns + step * 10**10, run=run, step=step)
                for step in range(1, 31)
            ),
            StepCommitted(id=f"{run}-b31", occurred_ns=at_ns + 60 * 10**10, run=run, step=31),
            RunEnded(id=f"{run}-c", occurred_ns=at_ns + 61 * 10**10, run=run, outcome="completed"),
        ]
    (tmp_path / "jobs.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    assert holdfast("import", "jobs.jsonl").code == 0
    return holdfast


BY_RUN: dict[str, tuple[str, ...]] = {
    "report": ("report", "{}"),
    "cost": ("cost", "{}"),
    "an incident's cost": ("cost", "{}/slow-1"),
    "finance": ("finance", "--run", "{}"),
    "events": ("events", "{}"),
    "incidents": ("incidents", "{}"),
    "cadence": ("plan", "cadence", "--gpus", "8", "--run", "{}"),
    "run": ("plan", "run", "--steps", "100", "--start", "2026-11-20", "--run", "{}"),
    "fit": ("plan", "fit", "--run", "{}"),
    "diagnose": ("diagnose", "{}"),
    "runbook": ("runbook", "{}"),
    "runbook of an incident": ("runbook", "{}/s1"),
}


@pytest.mark.parametrize("words", BY_RUN.values(), ids=BY_RUN)
def test_a_name_does_as_the_id_does(imported: Any, words: tuple[str, ...]) -> None:
    def asked(run: str) -> tuple[int, str, str]:
        done = imported(*(word.format(run) for word in words))
        return done.code, done.out, done.err.replace(repr(run), "'it'").replace(repr(f"{run}/s1"), "'it'")

    whole = asked("2001")
    assert asked("bert") == whole
    code, out, err = asked("llama")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "holdfast: 'it' is the name of 2 runs: 1042 (began 2025-04-02 08:55:04Z), "
        "1041 (began 2025-04-02 06:08:24Z).",
        "  hint: Name one of them by its id.",
    ]
    assert asked("104")[0] == 2
    assert asked("200")[0] == 2


def test_id_and_name_are_shown_together(imported: Any, tmp_path: Path) -> None:
    listed = imported("runs").out
    assert [line.split("  ")[0] for line in listed.splitlines()[1:]] == [
        "2001 (bert)",
        "1042 (llama)",
        "1041 (llama)",
    ]
    assert [run["name"] for run in imported("runs", "--json").json] == ["bert", "llama", "llama"]
    assert imported("report", "1041").out.startswith("Run 1041 (llama)\n")
    assert imported("cost", "1041").out.startswith("Run 1041 (llama)\n")
    finance = imported("finance").out
    for words in (("finance",), ("report", "1041")):
        page = imported(*words, "--html", "-").out
        assert "1041 (llama)" in page
    for run, name in RUNS.items():
        assert f"{run} ({name})" in finance
    invoice = imported("finance", "--csv", "-").out
    assert "run 1041 (llama)" in invoice
    assert ",1041,llama," in invoice
