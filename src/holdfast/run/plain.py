"""The membership of a script that never joins: all of it runs, or all of it is started again.

Such a script makes its own process group from torchrun's variables, so nobody can be replaced in it. A worker
that fails or a node that is lost ends the attempt; the next one has a new port and a higher restart count.
"""

from holdfast.record.events import ActionTaken, GenerationOpened, RunEnded, RunStarted
from holdfast.run import ending, processes
from holdfast.run.state import State
from holdfast.run.waits import EXIT_MARGIN_S, LAST_CALL_S, ns


def fail(state: State, reason: str, complaint: str = "", *, whose: str = "") -> None:
    """Something failed: stop what is left of the attempt and start all again, so many times at most.

    whose: the member that failed with the complaint.
    """
    state.complaint = complaint or state.complaint
    if state.restart_due_ns is not None:
        return  # this attempt is being ended already
    _record_generation(state)
    if state.restarts >= state.policy.max_restarts:
        tries = f" after {state.restarts} restarts" if state.restarts else ""
        ending.fail(state, reason + tries, complaint=state.complaint)
        return
    state.restarts += 1
    state.survived.hold(whose, complaint)
    state.print_held()
    state.say(f"restart {state.restarts} of at most {state.policy.max_restarts}: {reason}", "trouble")
    causes = state.causes
    state.record(ActionTaken(id="", occurred_ns=state.now_ns, action="restart", reason=reason, causes=causes))
    state.record(RunEnded(id="", occurred_ns=state.now_ns, outcome="failed", reason=reason, causes=causes))
    state.causes = ()
    grace_s = state.policy.grace_s
    state.restart_due_ns = state.now_ns + ns(grace_s + EXIT_MARGIN_S)
    for member in list(state.members.values()):
        if not member.is_gone:
            member.is_lost = True
            processes.stop(state, member, grace_s)


def settle(state: State) -> None:
    """Start when there are nodes enough, end when all workers have ended well."""
    if state.is_launched and state.restart_due_ns is None:
        if not state.running:
            _record_generation(state)
            state.say("completed")
            ending.complete(state)
        return
    if state.running and state.restart_due_ns is not None:
        if state.now_ns < state.restart_due_ns:
            state.wake(state.restart_due_ns)
            return
        for member in list(state.members.values()):
            processes.gone(state, member)  # its agent kills it and says nothing: nothing more can be done
    if _may_launch(state):
        _launch(state)


def _may_launch(state: State) -> bool:
    """Enough nodes, and a moment for more of them."""
    present, policy = len(state.nodes), state.policy
    if present < policy.nodes_min:
        if state.stalled_ns is None:
            state.stalled_ns = state.now_ns
        due_ns = state.stalled_ns + state.wait_ns
        if state.now_ns >= due_ns:
            reason = f"only {present} of at least {policy.nodes_min} nodes came within {policy.wait_s:g} s"
            ending.fail(state, reason)
        else:
            state.wake(due_ns)
        return False
    state.stalled_ns = None
    due_ns = state.last_joined_ns + ns(LAST_CALL_S)
    if present < policy.nodes_max and state.now_ns < due_ns:
        state.wake(due_ns)
        return False
    return True


def _launch(state: State) -> None:
    """Start a worker in every slot of every node that takes part."""
    for names in (state.members, state.departed, state.coming, state.vacant):
        names.clear()
    nodes = sorted(state.nodes.values(), key=lambda node: (node.is_spare, node.order, *_natural(node.name)))
    for node in nodes:
        node.is_spare = True
    state.nodes_active = 0
    for node in nodes[: state.policy.nodes_max]:
        processes.activate(state, node)
    if state.is_launched:
        state.gpus = state.seats
        team = state.policy.team
        state.record(RunStarted(id="", occurred_ns=state.now_ns, gpus=state.gpus, team=team))
    state.is_launched, state.restart_due_ns, state.launched_ns = True, None, state.now_ns
    for name, slot in list(state.vacant):
        processes.start(state, state.nodes[name], slot, "active")
    state.attempt = tuple(state.members)
    state.short = dict.fromkeys(state.nodes)


def _natural(name: str) -> tuple[int, str]:
    """Sorts n2 before n10."""
    return (len(name), name)


def _record_generation(state: State) -> None:
    """The attempt that ends had these members.

    Until somebody joined or all of it is over, nobody knows that the script is one that never joins.
    """
    state.generation += 1
    state.record(
        GenerationOpened(
            id="",
            occurred_ns=state.launched_ns,
            generation=state.generation,
            members=state.attempt,
            gpus=len(state.attempt) if len(state.attempt) != state.gpus else None,
        )
    )
