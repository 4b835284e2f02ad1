"""The scenarios of `holdfast drill live`: the fault, the hypothesis, and how far it may reach.

Nothing here strikes. The required record stands beside the fault, so that the hypothesis exists before the
fault does.
"""

from typing import Literal

import msgspec

from holdfast.control.actions import ControlAction
from holdfast.record.errors import InputError, nearest

Reach = Literal["member", "node", "coordinator", "coordinator-and-member", "storage"]
"""What a scenario touches at most."""
SignKind = Literal["fault", "take-over", "checkpoint-failed"]
STANDSTILL_S = 5.0
"""How long a run stands still while it regroups: `times.regroup_s` of the policy, unless measured."""
START_S = 20.0
"""How long a process takes until it is ready again. Assumed."""
FOR_S_MAX = 300.0


class RecordSign(msgspec.Struct, frozen=True, kw_only=True):
    """What the record must have: a fault of one of these names, `times` times."""

    kind: SignKind
    names: tuple[str, ...] = ()
    times: int = 1


class LiveScenario(msgspec.Struct, frozen=True, kw_only=True):
    """hypothesis  the expected result, stated before
    radius      what it touches at most, in words
    for_s       how long it lasts by default; 0: it is over at once
    signs       what the record must have; empty: only a diagnosis can name the cause
    mechanisms  the mechanisms that a diagnosis may name
    actions     one of these must follow in the run; empty: no member may be lost
    control     the actions that control may take, or report in shadow mode
    standstill_s, share   the forecast: the whole run stands still for this time, and this share of the
                touched members is missing while it lasts
    comes_back  the run has as many members as before once it is over
    rounds      how often the fault is made
    is_lasting  it has to be undone
    needs_checkpoint  it affects only checkpoints: one must be tried meanwhile, and one written after it
    """

    name: str
    title: str
    hypothesis: str
    reach: Reach
    radius: str
    for_s: float = 0.0
    members_min: int = 2
    nodes_min: int = 1
    signs: tuple[RecordSign, ...] = ()
    mechanisms: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    control: tuple[ControlAction, ...] = ("watch", "rebalance", "checkpoint", "call-a-person")
    standstill_s: float = STANDSTILL_S
    share: float = 0.0
    comes_back: bool = False
    rounds: int = 1
    is_lasting: bool = False
    needs_checkpoint: bool = False


SLOW = "slow member"
KILLED = RecordSign(kind="fault", names=("SIGKILL",))
NODE_ACTIONS: tuple[ControlAction, ...] = (
    *("watch", "rebalance", "migrate", "shrink", "drain-when-done", "drain-now", "call-a-person"),
)

LIVE_SCENARIOS: dict[str, LiveScenario] = {
    one.name: one
    for one in (
        LiveScenario(
            name="worker-killed",
            title="a member's process is killed",
            hypothesis="A warm process takes its place, or the others share its lanes until one is ready.",
            reach="member",
            radius="one member",
            signs=(KILLED,),
            actions=("replace", "shrink"),
            share=1.0,
            comes_back=True,
        ),
        LiveScenario(
            name="node-lost",
            title="a node with all its processes is lost, and comes back",
            hypothesis="The others share its lanes from the same step on, and it joins when it is back.",
            reach="node",
            radius="one node, and at most half of the members",
            for_s=10.0,
            nodes_min=2,
            signs=(RecordSign(kind="fault", names=("node lost",)),),
            actions=("shrink", "replace"),
            control=NODE_ACTIONS,
            share=1.0,
            comes_back=True,
        ),
        LiveScenario(
            name="agent-frozen",
            title="a node's agent stands still",
            hypothesis="After 5 to 30 s the node is given up, and its launcher starts another agent.",
            reach="node",
            radius="one node, and at most half of the members",
            for_s=60.0,
            nodes_min=2,
            signs=(RecordSign(kind="fault", names=("agent stopped", "node lost")),),
            actions=("shrink", "replace"),
            control=NODE_ACTIONS,
            share=1.0,
            comes_back=True,
            is_lasting=True,
        ),
        LiveScenario(
            name="half-speed",
            title="a member has half of its processor time",
            hypothesis="Lanes are moved off it, and back when it is quick again; no member is lost.",
            reach="member",
            radius="one member",
            for_s=60.0,
            signs=(RecordSign(kind="fault", names=(SLOW,)),),
            mechanisms=("slow-node", "cpu-contention"),
            actions=("rebalance", "migrate", "replace"),
            control=NODE_ACTIONS,
            share=0.5,
            is_lasting=True,
        ),
        LiveScenario(
            name="slow-storage",
            title="members read and write the checkpoints' device at 1 MB/s",
            hypothesis="Checkpoints take longer, and training goes on while they are written.",
            reach="storage",
            radius="the run's own members, and one device",
            for_s=60.0,
            members_min=1,
            mechanisms=("storage-slow", "storage-crowded", "local-disk"),
            is_lasting=True,
            needs_checkpoint=True,
        ),
        LiveScenario(
            name="slow-link",
            title="a node's link is held to 20 Mbit/s",
            hypothesis="Steps take longer as long as it lasts; no member is lost.",
            reach="node",
            radius="one node in a network namespace of its own, and at most half of the members",
            for_s=60.0,
            nodes_min=2,
            mechanisms=("link-errors", "slow-node", "leaf-congestion"),
            control=NODE_ACTIONS,
            share=1.0,
            is_lasting=True,
        ),
        LiveScenario(
            name="full-disk",
            title="the disk of the checkpoints is full",
            hypothesis="A checkpoint fails and is reported; training goes on, and the next one is written.",
            reach="storage",
            radius="one file system that has nothing but checkpoints, of at most 8 GiB",
            for_s=60.0,
            members_min=1,
            signs=(RecordSign(kind="checkpoint-failed", names=("No space left",)),),
            mechanisms=("local-disk", "storage-slow"),
            is_lasting=True,
            needs_checkpoint=True,
        ),
        LiveScenario(
            name="coordinator-killed",
            title="the coordinator's process is killed",
            hypothesis="Its successor takes over, and no step waits.",
            reach="coordinator",
            radius="the coordinator's process; refused without a successor",
            members_min=1,
            signs=(RecordSign(kind="take-over"),),
            actions=("take over",),
        ),
        LiveScenario(
            name="bad-node",
            title="a node passes no check: whenever it is back, it is lost again",
            hypothesis="The run goes on without it each time, and has all members when it stays.",
            reach="node",
            radius="one node, three times, and at most half of the members",
            for_s=3.0,
            nodes_min=2,
            signs=(RecordSign(kind="fault", names=("node lost",), times=3),),
            actions=("shrink", "replace"),
            control=NODE_ACTIONS,
            standstill_s=3 * STANDSTILL_S,
            share=1.0,
            comes_back=True,
            rounds=3,
        ),
        LiveScenario(
            name="two-at-once",
            title="the coordinator and a member are killed at the same moment",
            hypothesis="The successor takes over and replaces the member, as if only one had died.",
            reach="coordinator-and-member",
            radius="the coordinator's process and one member; refused without a successor",
            signs=(RecordSign(kind="take-over"), KILLED),
            actions=("replace", "shrink"),
            share=1.0,
            comes_back=True,
        ),
    )
}


def title_of(scenario: str, target: str) -> str:
    """`half-speed of n0.1`; the scenario alone if it has no target of its own."""
    return scenario if target in ("coordinator", "storage") else f"{scenario} of {target}"


def live_scenario(name: str) -> LiveScenario:
    if name not in LIVE_SCENARIOS:
        names = ", ".join(LIVE_SCENARIOS)
        raise InputError(
            f"No live scenario is called {name!r}.", hint=nearest(name, LIVE_SCENARIOS, f"There are {names}.")
        )
    return LIVE_SCENARIOS[name]
