"""Members that get stuck in live runs of four: each kind is recognised, and the right member replaced."""

import asyncio
import os
import signal
from typing import Any

import pytest
from quantity import sampled

from holdfast.record.events import FaultObserved, MemberLost
from holdfast.record.journal import read_directory
from holdfast.run.coordinator import Coordinator
from holdfast.run.wire import Strike

pytestmark = pytest.mark.slow

STEPS = 24
STUCK_STEP = 8
HANG_AFTER_S = 8.0
LONG_STEPS = 160
POLL_INTERVAL_S = 0.02
KINDS = {
    "loop": ("endless loop", ("n0.1",), "computes at stuck.py:", "in endless_loop()"),
    "loader": (
        "data loader stuck",
        ("n0.1",),
        "its data loader, which does not return",
        "`return ours.recv(1)`",
    ),
    "lock": ("deadlock on a lock", ("n0.1",), "for a lock that is never released", "`with first:`"),
    "members": ("deadlock between members", ("n0.1", "n0.2"), "wait for each other", "`peer.recv(1)`"),
}
"""For each kind: its name in the record, who is to blame, and what the sentence says."""


@pytest.mark.parametrize("act", sampled([*KINDS], ["members"]))
def test_a_member_that_is_stuck_is_named_with_what_it_waits_in(cluster: Any, act: str) -> None:
    fault, culprits, *words = KINDS[act]
    run = cluster.train(
        "plain",
        members=4,
        steps=STEPS,
        warm=2,
        does=f"stuck {act} {','.join(culprits)} {STUCK_STEP}",
        hang_after_s=HANG_AFTER_S,
    )
    assert run.ending.outcome == "completed", run.story
    assert run.digest == cluster.undisturbed("plain", steps=STEPS).digest
    assert run.steps_lost == 0
    events = list(read_directory(run.folder / "journal"))
    found = [event for event in events if isinstance(event, FaultObserved)]
    assert {(event.fault, event.subject) for event in found} == {(fault, name) for name in culprits}, (
        run.story
    )
    assert {event.subject for event in events if isinstance(event, MemberLost)} == {*culprits}
    assert all(word in event.detail for event in found for word in words), found[0].detail
    assert all(word in run.story for word in words), run.story
    assert all(name in found[0].detail for name in ("n0.0", "n0.3")), "the others' places are there, too"


def test_one_that_is_stopped_is_told_as_stopped(cluster: Any) -> None:
    async def stop(coordinator: Coordinator) -> None:
        while coordinator.status().step < STUCK_STEP:
            await asyncio.sleep(POLL_INTERVAL_S)
        coordinator.strike(Strike(fault="pause", target="n0.1", for_s=3600))

    run = cluster.train("plain", members=4, steps=STEPS, pace_s=0.02, meanwhile=stop)
    assert run.ending.outcome == "completed", run.story
    assert run.digest == cluster.undisturbed("plain", steps=STEPS).digest
    assert run.steps_lost == 0
    (fault,) = [one for one in read_directory(run.folder / "journal") if isinstance(one, FaultObserved)]
    assert (fault.fault, fault.subject) == ("stopped", "n0.1")
    assert "in state T (stopped)" in fault.detail


@pytest.mark.soak
def test_a_silent_agent_whose_members_speak_is_told_as_stopped(cluster: Any) -> None:
    async def stop(coordinator: Coordinator) -> None:
        while coordinator.status().step < STUCK_STEP:
            await asyncio.sleep(POLL_INTERVAL_S)
        os.kill(cluster.node_pids()[1], signal.SIGSTOP)

    run = cluster.train("plain", nodes=2, members=2, steps=LONG_STEPS, pace_s=0.05, meanwhile=stop)
    assert run.ending.outcome == "completed", run.story
    assert run.digest == cluster.train("plain", steps=LONG_STEPS).digest
    assert run.steps_lost == 0
    found = [one for one in read_directory(run.folder / "journal") if isinstance(one, FaultObserved)]
    assert [(one.fault, one.subject) for one in found] == [("agent stopped", "n1")], run.story
