"""How `holdfast bench faults` judges a struck run by its record, and that it strikes a live one."""

import json
import subprocess
import sys

import pytest

from bench.faults import WARM_UP_STEPS, judged
from bench.live_faults import FAULTS, MACHINES, LiveFault, Struck
from bench.machines import can_make_machines
from holdfast.record.events import (
    TAKE_OVER,
    ActionTaken,
    AnyEvent,
    FaultObserved,
    GenerationOpened,
    StepCommitted,
)

STRUCK_S = 10
STEPS_S = (*range(-WARM_UP_STEPS, 7), 8, 9, 10, 14, 15)
SECOND_NS = 10**9


def fault_named(name: str) -> LiveFault:
    return next(fault for fault in FAULTS if fault.name == name)


def observed(fault: str, subject: str, at_s: int = 12) -> FaultObserved:
    at_ns = at_s * SECOND_NS
    return FaultObserved(
        id=f"{fault} {subject}", occurred_ns=at_ns, recorded_ns=at_ns, subject=subject, fault=fault
    )


def taken_over(subject: str = "coordinator", at_s: int = 11) -> ActionTaken:
    at_ns = at_s * SECOND_NS
    return ActionTaken(id="", occurred_ns=at_ns, recorded_ns=at_ns, subject=subject, action=TAKE_OVER)


def opened(count: int, at_s: int = 13) -> GenerationOpened:
    members = tuple(f"n{number}.0" for number in range(count))
    return GenerationOpened(
        id="", occurred_ns=at_s * SECOND_NS, recorded_ns=at_s * SECOND_NS, step=3, members=members
    )


def committed() -> list[StepCommitted]:
    return [
        StepCommitted(id="", occurred_ns=at_s * SECOND_NS, recorded_ns=at_s * SECOND_NS, step=number)
        for number, at_s in enumerate(STEPS_S)
    ]


def is_right(name: str, *events: AnyEvent, subject: str) -> bool:
    found = sorted([*committed(), *events], key=lambda event: event.recorded_ns)
    struck = Struck(at_ns=STRUCK_S * SECOND_NS, subjects=(subject,))
    return judged(fault_named(name), found, struck, is_same=True).right_culprit


def test_the_times_of_a_takeover() -> None:
    struck = Struck(at_ns=STRUCK_S * SECOND_NS + 1, subjects=("coordinator",))
    sample = judged(fault_named("coordinator"), [*committed(), taken_over()], struck, is_same=True)
    assert sample.right_culprit
    assert sample.detect_s == pytest.approx(1)
    assert sample.recover_s == pytest.approx(4)
    assert (sample.pause_steps, sample.calm_pause_steps) == (4, 2)
    assert sample.steps_lost == 0


def test_a_killed_coordinator_may_cost_no_member() -> None:
    assert is_right("coordinator", taken_over(), subject="coordinator")
    assert not is_right("coordinator", taken_over(), observed("SIGKILL", "n0.1"), subject="coordinator")
    assert not is_right("coordinator", subject="coordinator")


def test_a_member_that_dies_with_the_coordinator_is_named_by_its_successor() -> None:
    assert is_right("coordinator-member", taken_over(), observed("SIGKILL", "n0.1"), subject="n0.1")
    assert not is_right("coordinator-member", observed("SIGKILL", "n0.1"), subject="n0.1")
    assert not is_right("coordinator-member", taken_over(), subject="n0.1")
    assert not is_right("coordinator-member", taken_over(), observed("SIGKILL", "n0.0"), subject="n0.1")


def test_a_machine_that_was_cut_off_is_named_and_comes_back() -> None:
    lost = observed("node lost", "n2")
    assert is_right("cut-machine", lost, opened(MACHINES), subject="n2")
    assert not is_right("cut-machine", lost, opened(MACHINES), opened(MACHINES - 1, 14), subject="n2")
    assert not is_right("cut-machine", lost, observed("node lost", "n1"), opened(MACHINES), subject="n2")


@pytest.mark.soak
@pytest.mark.root
def test_live_runs_survive_the_death_of_their_coordinator_and_of_its_machine() -> None:
    assert can_make_machines()
    words = ("bench", "faults", "--repetitions", "1", "--json", "--only", "coordinator", "--only", "machine")
    done = subprocess.run(
        (sys.executable, "-m", "holdfast", *words), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(each["fault"], each["right_culprit"], each["bits_equal"]) for each in told["faults"]] == [
        ("coordinator", 1, 1),
        ("machine", 1, 1),
    ]
