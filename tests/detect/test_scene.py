"""What detectors take from the record: members, what is out of use, checkpoints, decisions; and no later."""

import pytest

from holdfast.detect.scene import SETTLE_NS, Healthy, PlannedWork, scene
from holdfast.record.events import (
    ActionTaken,
    CheckpointBegun,
    CheckpointSaved,
    FaultObserved,
    GenerationOpened,
    KnownEvent,
    MemberJoined,
    MemberLost,
    ReferenceDeclared,
    RunStarted,
)

RUN = "pretrain"
S = 10**9
DECLARED = Healthy(step_s=6.0, is_declared=True, since_ns=103 * S)
EVENTS: tuple[KnownEvent, ...] = (
    RunStarted(id="01", occurred_ns=100 * S, run=RUN, gpus=16),
    MemberJoined(id="02", occurred_ns=101 * S, run=RUN, subject="a", node="n1"),
    MemberJoined(id="03", occurred_ns=102 * S, run=RUN, subject="b", node="n2"),
    ReferenceDeclared(id="04", occurred_ns=103 * S, run=RUN, step_ns=6 * S),
    FaultObserved(id="05", occurred_ns=200 * S, run=RUN, subject="b", fault="xid-79"),
    MemberLost(id="06", occurred_ns=201 * S, run=RUN, subject="b"),
    ActionTaken(id="07", occurred_ns=210 * S, subject="n2", action="drain", reason="bad"),
    ActionTaken(id="08", occurred_ns=300 * S, subject="n2", action="restore", reason="mended"),
    MemberJoined(id="09", occurred_ns=301 * S, run=RUN, subject="b", node="n2"),
    ReferenceDeclared(id="10", occurred_ns=400 * S, run=RUN, gpus=16),
    RunStarted(id="11", occurred_ns=50 * S, run="other", gpus=8),
    CheckpointBegun(id="12", occurred_ns=500 * S, run=RUN, step=9),
    CheckpointSaved(id="13", occurred_ns=512 * S, run=RUN, step=9, size_bytes=7),
)


def test_a_scene_is_what_was_known_then() -> None:
    early = scene(RUN, EVENTS, now_ns=205 * S)
    assert (early.began_ns, early.gpus, early.healthy) == (100 * S, 16, DECLARED)
    assert early.members == {"a": "n1", "b": "n2"}
    assert early.gone == {"b": 201 * S}
    assert [fault.fault for fault in early.faults] == ["xid-79"]
    assert (early.out, early.checkpoints, early.decisions) == ((), (), ())
    late = scene(RUN, EVENTS, now_ns=600 * S)
    assert late.gone == {}
    assert late.healthy == DECLARED
    assert [decided.action for decided in late.decisions] == ["drain", "restore"]
    (out,) = late.out
    assert (out.subject, out.from_ns, out.to_ns) == ("n2", 210 * S, 300 * S)
    (saved,) = late.checkpoints
    assert (saved.from_ns, saved.stall_s, saved.size_bytes) == (500 * S, 12.0, 7)


def test_the_order_of_events_is_that_of_time() -> None:
    assert scene(RUN, reversed(EVENTS), now_ns=600 * S) == scene(RUN, EVENTS, now_ns=600 * S)


@pytest.mark.parametrize(
    ("devices", "on_cpu"),
    [
        (("cpu", "", "cpu"), True),
        (("cpu", "NVIDIA H200"), False),
        (("NVIDIA H200", "cpu"), False),
        ((), False),
    ],
)
def test_a_run_that_ever_had_a_gpu_is_one_of_gpus(devices: tuple[str, ...], on_cpu: bool) -> None:
    opened = [
        GenerationOpened(id=f"g{at}", occurred_ns=at * S, run=RUN, device=device)
        for at, device in enumerate(devices)
    ]
    other = GenerationOpened(id="other", occurred_ns=S, run="other", device="cpu")
    assert scene(RUN, [*opened, other], now_ns=600 * S).on_cpu is on_cpu


def test_a_drain_lasts_until_its_own_restore() -> None:
    (out,) = scene(RUN, EVENTS, now_ns=250 * S).out
    assert out.to_ns is None
    elsewhere = ActionTaken(id="x", occurred_ns=240 * S, subject="n9", action="restore")
    (out,) = scene(RUN, [*EVENTS[:7], elsewhere], now_ns=250 * S).out
    assert out.to_ns is None


def test_a_run_of_which_nothing_is_known_begins_now() -> None:
    assert scene("new", EVENTS, now_ns=600 * S).began_ns == 600 * S
    assert scene("new", EVENTS, now_ns=600 * S).gpus == 0


@pytest.mark.parametrize(
    ("at_s", "covered"), [(9, False), (10, True), (20, True), (20 + 300, True), (20 + 301, False)]
)
def test_planned_work_covers_itself_and_the_time_to_settle(at_s: int, covered: bool) -> None:
    assert SETTLE_NS == 300 * S
    work = PlannedWork(subject="n1", from_ns=10 * S, to_ns=20 * S, reason="firmware")
    assert work.covers(at_s * S) is covered
