"""`detect` as a whole: planned work in the record, telemetry that is flawed, and nothing at all."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.scene import SETTLE_NS, PlannedWork
from holdfast.record.events import ActionTaken
from holdfast.signals.frame import Floats, Frame

S = 10**9
ROWS = 180
PORTS = tuple(f"n00000/mlx5_{number}" for number in range(8))


@pytest.fixture
def errors(framed: Callable[..., Frame]) -> Callable[[slice], Frame]:
    """500 symbol errors a second on one port, in some rows."""

    def make(faulty: slice) -> Frame:
        rates = np.zeros((ROWS, len(PORTS)))
        rates[faulty, 3] = 500.0
        return framed("node_infiniband_symbol_error_total", np.cumsum(10 * rates, axis=0), PORTS)

    return make


def decided(at_ns: int, action: str, subject: str) -> ActionTaken:
    return ActionTaken(id=f"{action}-{at_ns}", occurred_ns=at_ns, action=action, subject=subject)


def test_a_drain_in_the_record_hides_until_the_restore_has_settled(
    errors: Callable[[slice], Frame], looked: Callable[..., Detected]
) -> None:
    frame = errors(slice(60, 70))
    began_ns = int(frame.times_ns[60])
    drain, restore = (decided(began_ns - 20 * S, "drain", "n00000"), decided(began_ns, "restore", "n00000"))
    assert looked(frame).machines
    assert looked(frame, events=[drain]).machines == ()
    assert looked(frame, events=[drain, restore]).machines == ()
    early = [
        msgspec.structs.replace(event, occurred_ns=event.occurred_ns - SETTLE_NS - 10 * S)
        for event in (drain, restore)
    ]
    assert looked(frame, events=early).machines
    assert looked(frame, events=[decided(began_ns - 20 * S, "drain", "n00007")]).machines


def test_a_drain_that_comes_after_now_hides_nothing(
    errors: Callable[[slice], Frame], looked: Callable[..., Detected]
) -> None:
    frame = errors(slice(150, None))
    later = decided(int(frame.times_ns[-1]) + S, "drain", "n00000")
    assert looked(frame, events=[later]).machines


def test_what_planned_work_has_left_behind_is_found_once_it_should_have_settled(
    errors: Callable[[slice], Frame], looked: Callable[..., Detected]
) -> None:
    """A cable that was not put back well has errors from the first moment on, and goes on having them."""
    frame = errors(slice(20, None))
    work = PlannedWork(
        subject="rack-0000",
        from_ns=int(frame.times_ns[10]),
        to_ns=int(frame.times_ns[15]),
        reason="firmware",
    )
    settled_ns = int(frame.times_ns[15]) + SETTLE_NS
    assert looked(frame, planned=[work], now_ns=settled_ns - 10 * S).machines == ()
    (found,) = looked(frame, planned=[work]).machines
    assert (found.sign, found.subject, found.until_ns) == ("symbol-errors", PORTS[3], None)


def test_work_on_a_rack_hides_its_machines_and_not_what_merely_depends_on_them(
    framed: Callable[..., Frame], noisy: Callable[..., Floats], looked: Callable[..., Detected]
) -> None:
    """The run goes on beside it, and is as slow as it is."""
    steps = noisy(6.0, ROWS)
    steps[150:] += 2.0
    frame = framed("holdfast_run_step_seconds", steps, ["pretrain"], labels=[{"run": "pretrain"}])
    work = PlannedWork(subject="rack-0000", from_ns=0, to_ns=None, reason="firmware")
    (found,) = looked(frame, planned=[work]).runs["pretrain"]
    assert found.sign == "slow-step"


def test_planned_work_on_something_unknown_is_no_mistake(
    errors: Callable[[slice], Frame], looked: Callable[..., Detected]
) -> None:
    work = PlannedWork(subject="the old hall", from_ns=0, to_ns=None, reason="demolition")
    assert looked(errors(slice(60, None)), planned=[work]).machines


def test_machines_that_no_run_is_on_are_looked_at_as_well(
    framed: Callable[..., Frame], looked: Callable[..., Detected]
) -> None:
    rates = np.zeros((ROWS, 1))
    rates[100:] = 500.0
    frame = framed("node_infiniband_symbol_error_total", np.cumsum(10 * rates, axis=0), ["elsewhere/mlx5_0"])
    found = {(one.sign, one.subject) for one in looked(frame).machines}
    assert found == {("symbol-errors", "elsewhere/mlx5_0")}


def test_nothing_has_no_findings(looked: Callable[..., Detected]) -> None:
    found = looked()
    assert (found.machines, found.runs, found.flaws) == ((), {"pretrain": ()}, ())
    assert (found.measured, found.usual_s) == (frozenset(), {})


@pytest.mark.parametrize("rows", [1, 2, 3, 180])
def test_frames_without_a_single_number_have_no_findings(
    rows: int, framed: Callable[..., Frame], looked: Callable[..., Detected]
) -> None:
    nothing = np.full((rows, 2), np.nan)
    frames = [
        framed(metric, nothing, subjects, labels=labels)
        for metric, subjects, labels in (
            ("holdfast_run_step_seconds", ["pretrain", "other"], [{"run": "pretrain"}, {"run": "other"}]),
            (
                "holdfast_member_compute_seconds",
                ["n00000", "n00001"],
                [{"run": "pretrain", "member": "n00000"}, {"run": "pretrain", "member": "n00001"}],
            ),
            ("DCGM_FI_DEV_GPU_TEMP", ["n00000.0", "n00000.1"], None),
            ("DCGM_FI_DEV_XID_ERRORS", ["n00000.0", "n00000.1"], None),
            ("node_infiniband_symbol_error_total", PORTS[:2], None),
            ("node_pcidevice_current_link_width", ["n00000.0", "n00000.1"], None),
            ("node_pcidevice_max_link_width", ["n00000.0", "n00000.1"], None),
            ("FlowLitersPerMinute", ["cdu-0000", "cdu-0001"], None),
            ("RatedFlowLitersPerMinute", ["cdu-0000", "cdu-0001"], None),
        )
    ]
    detected = looked(*frames)
    assert (detected.machines, detected.runs["pretrain"]) == ((), ())


def test_the_same_readings_give_the_same_findings(
    errors: Callable[[slice], Frame], looked: Callable[..., Detected]
) -> None:
    frame = errors(slice(60, None))
    before = frame.values.copy()
    assert looked(frame) == looked(frame)
    np.testing.assert_array_equal(frame.values, before)
