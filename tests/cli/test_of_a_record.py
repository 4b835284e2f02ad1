"""`diagnose` and `report` of one record, without signals: they tell the same story."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.record.events import (
    AnyEvent,
    CostRate,
    FaultObserved,
    MemberJoined,
    Outcome,
    RunEnded,
    RunStarted,
    Severity,
    StepCommitted,
    encode,
)

Holdfast = Callable[..., Any]
Told = Callable[..., None]
S = 10**9
FIRST_NS = 1_790_000_000 * S
RUN, GPUS = "llama", 8
STARTED = RunStarted(id="started", occurred_ns=FIRST_NS, run=RUN, gpus=GPUS)


def steps(*paces: tuple[int, float]) -> list[StepCommitted]:
    """So many of each length in seconds, one after the other."""
    made: list[StepCommitted] = []
    at_ns = FIRST_NS
    for length_s in (length_s for count, length_s in paces for _ in range(count)):
        at_ns += round(length_s * S)
        step = len(made) + 1
        made.append(StepCommitted(id=f"step {step}", occurred_ns=at_ns, run=RUN, step=step))
    return made


@pytest.fixture
def told(holdfast: Holdfast, tmp_path: Path) -> Told:
    """Put these events into the record."""

    def tell(*events: AnyEvent) -> None:
        path = tmp_path / "events.jsonl"
        path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
        assert holdfast("import", path).code == 0

    return tell


def diagnosed(holdfast: Holdfast, *options: str) -> str:
    return " ".join(holdfast("diagnose", RUN, *options).out.split())


def ended(made: Sequence[StepCommitted], after_s: float, outcome: Outcome) -> RunEnded:
    at_ns = made[-1].occurred_ns + round(after_s * S)
    return RunEnded(id="ended", occurred_ns=at_ns, run=RUN, outcome=outcome)


@pytest.mark.parametrize(
    ("outcome", "stood_s"), [("completed", 0), ("stopped", 0), ("preempted", 0), ("failed", 600 - 10)]
)
def test_the_time_after_the_last_step_is_what_the_ledger_takes_it_for(
    holdfast: Holdfast, told: Told, outcome: Outcome, stood_s: int
) -> None:
    made = steps((360, 10.0))
    told(STARTED, *made, ended(made, 600.0, outcome))
    lost = holdfast("report", RUN, "--json").json["partition"]["dead_undetected"]
    assert lost == stood_s * GPUS * S
    incidents = holdfast("diagnose", RUN, "--json").json["incidents"]
    assert [one["cause"]["mechanism"] for one in incidents] == (["hang"] if stood_s else [])
    assert ("standstill" in diagnosed(holdfast)) is bool(stood_s)
    if stood_s:
        assert incidents[0]["cost"]["lost_gpu_hours"] == pytest.approx(lost / S / 3_600)


@pytest.mark.parametrize(
    ("severity", "steps_after", "sentence"),
    [
        ("degraded", 180, "1 fault is still open, and the run has made steps since."),
        ("degraded", 0, "1 fault is still open."),
        ("fatal", 0, "The run has made no step since it was disturbed."),
        ("fatal", 180, "Nothing is wrong any more; what happened before is listed."),
    ],
)
def test_steps_since_a_fault_are_not_denied(
    holdfast: Holdfast, told: Told, severity: Severity, steps_after: int, sentence: str
) -> None:
    made = steps((180 + steps_after, 10.0))
    at_ns = made[179].occurred_ns + 1
    fault = FaultObserved(
        id="f", occurred_ns=at_ns, run=RUN, subject="n0.3", severity=severity, fault="gpu-throttle"
    )
    told(STARTED, *made, fault)
    assert sentence in diagnosed(holdfast)


@pytest.mark.parametrize(
    ("later_s", "sentence"),
    [
        (11.5, "a healthy one takes 10 s, or 11.5 s if there is more work in each since 21 Sep, 15:03 UTC"),
        (15.0, "a healthy one takes 10 s, or 15 s if there is more work in each since 21 Sep, 15:03 UTC"),
        (10.0, "a healthy one takes 10 s There"),
    ],
)
def test_the_healthy_step_is_the_one_that_incidents_and_the_report_compare_with(
    holdfast: Holdfast, told: Told, later_s: float, sentence: str
) -> None:
    told(STARTED, *steps((300, 10.0), (60, later_s)))
    out = diagnosed(holdfast)
    assert sentence in out
    is_longer = later_s > 10
    assert (f"({later_s:g} s, usually 10)" in out) is is_longer
    reported = " ".join(holdfast("report", RUN).out.split())
    assert ("nothing recorded says why" in reported) is is_longer


@pytest.mark.parametrize(
    "sized",
    [
        [CostRate(id="rate", occurred_ns=FIRST_NS, run=RUN, gpus=GPUS)],
        [
            MemberJoined(id=name, occurred_ns=FIRST_NS, run=RUN, subject=name, gpus=GPUS // 2)
            for name in ("n0.0", "n1.0")
        ],
        [STARTED],
    ],
    ids=["a rate", "members", "a start"],
)
def test_the_gpus_of_the_record_price_an_incident_whatever_is_asked(
    holdfast: Holdfast, told: Told, sized: list[AnyEvent]
) -> None:
    made = steps((150, 10.0), (60, 14.0), (60, 10.0))
    told(*sized, *made)
    for options in ((), ("--gpus", "16")):
        answer = holdfast("diagnose", RUN, "--json", *options).json
        (incident,) = answer["incidents"]
        assert incident["cost"]["lost_gpu_hours"] == pytest.approx(GPUS * 60 * 4 / 3_600, rel=0.1)
    (slow,) = holdfast("report", RUN, "--json").json["incidents"]
    assert slow["lost_gpu_ns"] / 3_600 / S == pytest.approx(incident["cost"]["lost_gpu_hours"], rel=0.1)


def test_machines_read_the_name_of_the_run_too(holdfast: Holdfast, told: Told) -> None:
    named = RunStarted(id="started", occurred_ns=FIRST_NS, run=RUN, gpus=GPUS, name="llama-7b")
    told(named, *steps((150, 10.0), (60, 14.0), (60, 10.0)))
    answer = holdfast("diagnose", RUN, "--json").json
    assert (answer["run"], answer["run_name"]) == (RUN, "llama-7b")
    assert [one["run_name"] for one in answer["incidents"]] == ["llama-7b"]


def test_what_no_signals_show_is_not_said_of_signals(holdfast: Holdfast, told: Told) -> None:
    told(STARTED, *steps((60, 10.0)))
    out = diagnosed(holdfast, "--at", "2026-09-25")
    sentence = "the record has no step of it in the window; its last step was at 2026-09-21 14:23:20Z."
    assert f"Nothing can be said of {RUN}: {sentence}" in out
    assert "the signals have" not in out.lower()
