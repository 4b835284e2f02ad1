"""What a crowd says leaves the membership as if each had spoken to it."""

import copy

import pytest

from holdfast.run import membership
from holdfast.run.state import Begun, FromMember, FromNode, State
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
from holdfast.twin import crowd

SECOND_NS = 10**9
SETUP = Setup(lanes=64, seed=0, threads=1, torch="", device="", deterministic=True, model="", parts={})


def ready(size: int) -> tuple[State, list[str]]:
    """Members that are all at `protect()`, with their first generation announced at 5 s."""
    state = membership.initial(membership.Policy(run="r", nodes_min=size, nodes_max=size, warm=0), 0)
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
    assert state.round is not None
    return state, names


@pytest.mark.parametrize("size", [1, 2, 5, 32])
def test_a_crowd_is_what_its_members_are(size: int) -> None:
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
    told = crowd.regroup(by_crowd, names, version=0, steps_total=9, took_s=2.0, now_ns=now_ns)
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
        told = crowd.commit(by_crowd, names, step=step, took_s=0.5, now_ns=now_ns)
        assert (list(told), by_message == by_crowd) == (effects, True)
    now_ns += 3 * SECOND_NS
    nodes = list(by_message.nodes)
    for name in names:
        membership.advance(
            by_message, FromMember(name, MemberBeat(member=name, step=0, stage="starting")), now_ns
        )
    for node in nodes:
        membership.advance(by_message, FromNode(node, NodeBeat(node=node)), now_ns)
    crowd.beat(by_crowd, nodes, names, now_ns=now_ns)
    assert by_message == by_crowd
