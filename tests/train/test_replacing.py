"""Members that are replaced because the operator asks for it: the run goes on with the same bits."""

import asyncio
from typing import Any

import pytest

from holdfast.record.events import ActionTaken, FaultObserved, MemberLost
from holdfast.record.journal import read_directory
from holdfast.run.coordinator import Coordinator
from holdfast.run.wire import Migrate

pytestmark = pytest.mark.slow

POLL_INTERVAL_S = 0.02
STEPS = 60
PACE_S = 0.05


def test_every_member_in_turn_is_replaced_without_a_trace(cluster: Any) -> None:
    replaced: list[str] = []

    async def replace_all(coordinator: Coordinator) -> None:
        while coordinator.status().step < 2:
            await asyncio.sleep(POLL_INTERVAL_S)
        for name in ("n0.0", "n1.0"):  # the first has rank 0
            answer = coordinator.move(Migrate(member=name))
            while answer.ok and not answer.is_done:
                await asyncio.sleep(POLL_INTERVAL_S)
                answer = coordinator.move(Migrate(member=name, asks_only=True))
            assert answer.ok, answer
            replaced.append(answer.sentence)

    run = cluster.train("plain", nodes=2, steps=STEPS, pace_s=PACE_S, meanwhile=replace_all)
    assert run.ending.outcome == "completed", run.story
    assert replaced == ["n0.1 has taken the place of n0.0", "n1.1 has taken the place of n1.0"]
    assert run.digest == cluster.train("plain", steps=STEPS).digest
    assert run.steps_lost == 0
    events = list(read_directory(run.folder / "journal"))
    assert not [event for event in events if isinstance(event, MemberLost | FaultObserved)]
    actions = [(one.action, one.subject) for one in events if isinstance(one, ActionTaken)]
    assert actions == [("migrate", "n0.0"), ("migrate", "n1.0")]
