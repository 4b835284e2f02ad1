"""Messages of many members at one moment leave the membership as if each had arrived alone."""

import copy

import pytest

from holdfast.run import membership
from holdfast.run.happenings import Begun, FromMember, FromMembers, FromNode, Present
from holdfast.run.state import RunState
from holdfast.run.wire import (
    AgentJoined,
    Committed,
    MemberBeat,
    NodeBeat,
    Regrouped,
    Setup,
    WorkerJoined,
    WorkerReady,
    WorkerStarted,
)

pytestmark = pytest.mark.slow

SECOND_NS = 10**9
SETUP = Setup(lanes=64, seed=0, threads=1, torch="", device="", deterministic=True, model="", parts={})


def ready(size: int) -> tuple[RunState, list[str]]:
    """Members that are all at `protect()`, with their first generation announced at 5 s."""
    state = membership.initial(membership.RunPolicy(run="r", nodes_min=size, nodes_max=size, warm=0), 0)
    nodes = [f"r{number}" for number in range(size)]
    membership.advance(state, Begun(), 0)
    for node in nodes:
        membership.advance(state, FromNode(node, AgentJoined(node=node, slots=1, address="", port=1)), 0)
    names = [f"{node}.0" for node in nodes]
    for node, name in zip(nodes, names, strict=True):
        membership.advance(state, FromNode(node, WorkerStarted(member=name, pid=1)), SECOND_NS)
        membership.advance(state, FromMember(name, WorkerJoined(member=name, pid=1)), 2 * SECOND_NS)
        message = WorkerReady(member=name, setup=SETUP, took_s=1.0)
        membership.advance(state, FromMember(name, message), 5 * SECOND_NS)
    assert state.generations.announced is not None
    return state, names


@pytest.mark.parametrize("size", [1, 2, 5, 32])
def test_many_at_once_are_as_one_after_the_other(size: int) -> None:
    by_message, names = ready(size)
    by_crowd = copy.deepcopy(by_message)
    now_ns = 7 * SECOND_NS
    effects = [
        effect
        for name in names
        for effect in membership.advance(
            by_message,
            FromMember(
                name,
                Regrouped(
                    member=name, generation=1, version=0, lanes=(), steps_total=9, parts_s={"group": 2.0}
                ),
            ),
            now_ns,
        )
    ]
    regrouped = Regrouped(
        member=names[-1], generation=1, version=0, lanes=(), steps_total=9, parts_s={"group": 2.0}
    )
    told = membership.advance(by_crowd, FromMembers(tuple(names), regrouped), now_ns)
    assert (list(told), by_message == by_crowd) == (effects, True)
    for step in (1, 2, 7):
        now_ns += step * SECOND_NS
        effects = [
            effect
            for name in names
            for effect in membership.advance(
                by_message,
                FromMember(name, Committed(member=name, generation=1, step=step, loss=None, took_s=0.5)),
                now_ns,
            )
        ]
        committed = Committed(member=names[-1], generation=1, step=step, loss=None, took_s=0.5)
        told = membership.advance(by_crowd, FromMembers(tuple(names), committed), now_ns)
        assert (list(told), by_message == by_crowd) == (effects, True)
    now_ns += 3 * SECOND_NS
    nodes = list(by_message.roster.nodes)
    for name in names:
        membership.advance(
            by_message, FromMember(name, MemberBeat(member=name, step=0, stage="starting")), now_ns
        )
    for node in nodes:
        membership.advance(by_message, FromNode(node, NodeBeat(node=node)), now_ns)
    membership.advance(by_crowd, Present(nodes=tuple(nodes), members=tuple(names)), now_ns)
    assert by_message == by_crowd
