"""Runs with a slow member: it gets fewer lanes, and later gets them back; the bits are the same.

Lanes spend their time asleep, so that a busy machine makes little difference to which member is slow.
"""

import asyncio
from typing import Any

import pytest

from holdfast.record.events import ActionTaken, FaultObserved
from holdfast.record.journal import read_directory
from holdfast.run.balance import even_shares
from holdfast.run.coordinator import Coordinator
from holdfast.run.wire import PlannedFault

pytestmark = pytest.mark.slow

POLL_INTERVAL_S = 0.02
LANES, MEMBERS, STEPS = 16, 4, 100
SLOW_FROM, SLOW_UNTIL = 8, 45
EVEN = even_shares(LANES, MEMBERS)
HALF_SPEED = f"slow n0.1 2 {SLOW_FROM} {SLOW_UNTIL}"


class Watch:
    """The deals that a run shows, one after the other: how many lanes each member has, by name."""

    def __init__(self) -> None:
        self.shares: list[tuple[int, ...]] = []

    async def __call__(self, coordinator: Coordinator) -> None:
        status = coordinator.status()
        while status.outcome is None:
            members = [member for member in status.members if member.alive and member.lanes]
            dealt = [member.lanes for member in sorted(members, key=lambda member: member.name)]
            # Members report their lanes one after the other; in between, the page shows no real deal.
            is_whole = sorted(lane for own in dealt for lane in own) == list(range(LANES))
            shares = tuple(map(len, dealt))
            if is_whole and shares not in self.shares[-1:]:
                self.shares.append(shares)
            await asyncio.sleep(POLL_INTERVAL_S)
            status = coordinator.status()


@pytest.fixture(scope="module")
def digest(cluster: Any) -> str:
    """The digest of a member by itself."""
    found: str = cluster.train("plain", steps=STEPS, lanes=LANES).digest
    return found


def test_a_slow_member_has_fewer_lanes_while_it_is_slow(cluster: Any, digest: str) -> None:
    watch = Watch()
    run = cluster.train(
        "plain", members=MEMBERS, steps=STEPS, lanes=LANES, warm=0, does=HALF_SPEED, meanwhile=watch
    )
    assert run.ending.outcome == "completed", run.story
    assert run.digest == digest
    assert watch.shares[0] == EVEN
    assert min(shares[1] for shares in watch.shares) < EVEN[1], run.story
    assert watch.shares[-1] == EVEN, run.story
    events = list(read_directory(run.folder / "journal"))
    moved, *_, back = (one for one in events if isinstance(one, ActionTaken))
    assert (moved.action, moved.subject) == ("rebalance", "n0.1")
    assert "lanes of n0.1 from 4 to " in moved.reason
    assert (back.action, back.causes) == ("rebalance", ())
    assert "lanes are dealt evenly" in back.reason
    fault = next(one for one in events if isinstance(one, FaultObserved) and moved.causes == (one.id,))
    assert (fault.subject, fault.severity) == ("n0.1", "degraded")


@pytest.mark.soak
def test_a_run_that_is_not_to_be_rebalanced_is_not(cluster: Any, digest: str) -> None:
    watch = Watch()
    run = cluster.train(
        "plain",
        members=MEMBERS,
        steps=STEPS,
        lanes=LANES,
        warm=0,
        does=HALF_SPEED,
        meanwhile=watch,
        rebalances=False,
    )
    assert run.ending.outcome == "completed", run.story
    assert run.digest == digest
    assert watch.shares == [EVEN]


@pytest.mark.soak
def test_a_loss_in_the_middle_of_it_leaves_no_trace(cluster: Any, digest: str) -> None:
    """The others finish its step, and then find out anew which member is slow."""
    fault = PlannedFault(id=1, step=40, moment="reduce", rank=2)
    run = cluster.train(
        "plain", members=MEMBERS, steps=STEPS, lanes=LANES, does=f"slow n0.1 2 1 {STEPS}", faults=(fault,)
    )
    assert run.ending.outcome == "completed", run.story
    assert run.struck == 1
    assert run.digest == digest
    assert sum("lanes of n0.1 from 4 to " in line for line in run.said) >= 2, run.story


@pytest.mark.soak
def test_a_member_that_is_much_too_slow_is_replaced(cluster: Any) -> None:
    steps = 60
    run = cluster.train("plain", members=2, steps=steps, lanes=8, does=f"slow n0.1 8 1 {steps}")
    assert run.ending.outcome == "completed", run.story
    assert run.digest == cluster.train("plain", steps=steps).digest
    assert any("takes the place of n0.1" in line and "times as slow" in line for line in run.said), run.story
    assert run.steps_lost == 0
    actions = [one for one in read_directory(run.folder / "journal") if isinstance(one, ActionTaken)]
    assert ("migrate", "n0.1") in [(one.action, one.subject) for one in actions]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("build", "shard"),
    [("sharded", "2"), ("tensor_parallel", "tp=2")],
)
def test_a_replica_with_a_slow_rank_has_fewer_lanes(cluster: Any, build: str, shard: str) -> None:
    """Its ranks compute a lane together, so all of them are equally slow."""
    steps = 18
    usual = cluster.train(build, members=4, shard=shard, steps=steps, lanes=LANES, warm=0)
    run = cluster.train(
        build, members=4, shard=shard, steps=steps, lanes=LANES, warm=0, does=f"slow n0.3 5 1 {steps}"
    )
    assert run.ending.outcome == "completed", run.story
    assert run.digest == usual.digest
    assert any("lanes of the replica of n0.2 from" in line for line in run.said), run.story
