"""What plans take from a run's ledger: failures, the time that the run was up, and stalls."""

import msgspec
import pytest

from holdfast.ledger.failures import failures, stall_s
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import IncidentReport, Report
from holdfast.ledger.reporting import report
from holdfast.record.events import CheckpointSaved, RunStarted, Severity, StepCommitted

SECOND_NS = 10**9


@pytest.fixture
def told() -> Report:
    """A run of ten steps, ten seconds each; the second checkpoint stalled it for four seconds."""
    ledger = Ledger()
    ledger.add(
        [
            RunStarted(id="a", occurred_ns=0, run="r", gpus=8),
            *(
                StepCommitted(id=f"b-{step:02}", occurred_ns=10 * step * SECOND_NS, run="r", step=step)
                for step in range(1, 11)
            ),
            CheckpointSaved(id="c-1", occurred_ns=51 * SECOND_NS, run="r", step=5),
            CheckpointSaved(id="c-2", occurred_ns=95 * SECOND_NS, run="r", step=9, stall_ns=4 * SECOND_NS),
        ]
    )
    return report("r", ledger.fold)


def incident(began_s: int, recovered_s: int | None, severity: Severity = "fatal") -> IncidentReport:
    return IncidentReport(
        name="1",
        what="it broke",
        subject="",
        severity=severity,
        began_ns=began_s * SECOND_NS,
        noticed_ns=began_s * SECOND_NS,
        recovered_ns=None if recovered_s is None else recovered_s * SECOND_NS,
        restarts=0,
        members_lost=0,
        steps_rolled_back=0,
        lost_gpu_ns=0,
        losses={},
        evidence=(),
    )


def test_a_run_that_never_failed_was_up_all_the_time(told: Report) -> None:
    found = failures(told)
    assert (found.count, found.up_s, found.repair_s_mean) == (0, 100.0, None)


def test_what_only_slows_a_run_down_is_no_failure(told: Report) -> None:
    found = failures(msgspec.structs.replace(told, incidents=(incident(10, 90, "degraded"),)))
    assert (found.count, found.up_s) == (0, 100.0)


def test_where_failures_overlap_the_run_is_down_once(told: Report) -> None:
    """From 20 to 60 s, and from 90 s to the end, which is not over and has no length yet."""
    broken = (incident(30, 60), incident(20, 50), incident(25, 28), incident(90, None))
    found = failures(msgspec.structs.replace(told, incidents=broken))
    assert (found.count, found.up_s) == (4, 50.0)
    assert found.repair_s == (30.0, 30.0, 3.0)
    assert found.repair_s_mean == pytest.approx(21)


def test_a_stall_is_that_of_a_checkpoint_that_tells_its_stall(told: Report) -> None:
    assert stall_s(told) == pytest.approx(4)
    assert stall_s(msgspec.structs.replace(told, gpus=0)) is None
