"""The membership of a script that never joins: all of it runs, or all of it is started again.

Such a script makes its own process group from torchrun's variables, so no worker can be replaced. A failed
worker or a lost node ends the attempt; the next attempt has a new port and a higher restart count.
"""

import re

from holdfast import wording
from holdfast.record.events import CPU, GPU, ActionTaken, GenerationOpened, RunEnded
from holdfast.run import ending, processes
from holdfast.run.state import RunState
from holdfast.run.waits import EXIT_MARGIN_S, LAST_CALL_S, OWN_NODES_S, ns


def fail(state: RunState, reason: str, complaint: str = "", *, whose: str = "") -> None:
    """Handle a failure: stop the rest of the attempt and start everything again, up to the allowed number of
    restarts.

    whose: the member that failed with the complaint.
    """
    state.progress.complaint = complaint or state.progress.complaint
    if state.launch.restart_due_ns is not None:
        return  # this attempt is already being ended
    _record_generation(state)
    if state.launch.restarts == 0 and (error := lasting_error(complaint)):
        ending.fail(state, f"{reason}: {error}; a restart would not help", complaint=complaint)
        return
    if state.launch.restarts >= state.policy.max_restarts:
        tries = f" after {state.launch.restarts} restarts" if state.launch.restarts else ""
        ending.fail(state, reason + tries, complaint=state.progress.complaint)
        return
    state.launch.restarts += 1
    state.progress.survived.hold(whose, complaint)
    state.print_held()
    state.outbox.say(
        f"restart {state.launch.restarts} of at most {state.policy.max_restarts}: {reason}", "trouble"
    )
    causes = state.generations.causes
    state.outbox.record(
        ActionTaken(id="", occurred_ns=state.now_ns, action="restart", reason=reason, causes=causes)
    )
    state.outbox.record(
        RunEnded(id="", occurred_ns=state.now_ns, outcome="failed", reason=reason, causes=causes)
    )
    state.generations.causes = ()
    grace_s = state.policy.grace_s
    state.launch.restart_due_ns = state.now_ns + ns(grace_s + EXIT_MARGIN_S)
    for member in list(state.roster.members.values()):
        if not member.is_gone:
            member.is_lost = True
            processes.stop(state, member, grace_s)


def lasting_error(complaint: str) -> str:
    """The error a script ended with, if it would end so each time: it is not valid Python, or lacks a module
    that it imports at the top level. Empty if a restart might help.
    """
    last = complaint.rstrip().rpartition("\n")[2].strip()
    if re.match(r"(SyntaxError|IndentationError|TabError):", last):
        return last
    is_import = re.match(r"(ImportError|ModuleNotFoundError):", last)
    functions = re.findall(r'^  File ".*", line \d+, in (.+)$', complaint, re.MULTILINE)
    return last if is_import and functions and {*functions} == {"<module>"} else ""


def settle(state: RunState) -> None:
    """Start when there are enough nodes; end when all workers have ended successfully."""
    if state.launch.is_launched and state.launch.restart_due_ns is None:
        if not state.roster.running:
            _conclude(state)
        return
    if state.roster.running and state.launch.restart_due_ns is not None:
        if state.now_ns < state.launch.restart_due_ns:
            state.outbox.wake(state.launch.restart_due_ns)
            return
        for member in list(state.roster.members.values()):
            processes.gone(state, member)  # its agent did not report the exit; nothing more can be done
    if _may_launch(state):
        _launch(state)


def _conclude(state: RunState) -> None:
    """Conclude when no worker is left. The run is complete only if the script ended on every worker."""
    members = state.roster.members
    lost = [name for name in state.launch.attempt if name not in members or not members[name].has_left]
    if lost:
        fail(state, f"{lost[0]} was lost")
        return
    _record_generation(state)
    state.outbox.say("completed")
    ending.complete(state)


def _may_launch(state: RunState) -> bool:
    """Whether there are enough nodes, after a moment for more to join."""
    present, policy = len(state.roster.nodes), state.policy
    if present < policy.nodes_min:
        if state.launch.stalled_ns is None:
            state.launch.stalled_ns = state.now_ns
        due_ns = state.launch.stalled_ns + state.wait_ns
        if state.now_ns >= due_ns:
            least, waited_s = policy.nodes_min, wording.number(policy.wait_s)
            reason = f"only {present} of at least {least} nodes joined within {waited_s} s"
            ending.fail(state, reason)
        else:
            state.outbox.wake(due_ns)
        return False
    state.launch.stalled_ns = None
    lacks_own = not state.launch.is_launched and present < policy.nodes_own
    wait_s = max(LAST_CALL_S, min(OWN_NODES_S, policy.wait_s)) if lacks_own else LAST_CALL_S
    due_ns = state.launch.last_joined_ns + ns(wait_s)
    if present < policy.nodes_max and state.now_ns < due_ns:
        state.outbox.wake(due_ns)
        return False
    return True


def _launch(state: RunState) -> None:
    """Start a worker in every slot of every node that takes part."""
    for names in (state.roster.members, state.roster.departed, state.roster.coming, state.roster.vacant):
        names.clear()
    nodes = sorted(  # n2 before n10
        state.roster.nodes.values(),
        key=lambda node: (node.is_spare, node.order, len(node.name), node.name),
    )
    for node in nodes:
        node.is_spare = True
    state.roster.nodes_active = 0
    for node in nodes[: state.policy.nodes_max]:
        processes.activate(state, node)
    if state.launch.is_launched:
        state.launch.gpus = state.roster.seats
        state.outbox.record(state.policy.started(state.now_ns, state.launch.gpus))
    state.launch.is_launched, state.launch.restart_due_ns, state.launch.launched_ns = True, None, state.now_ns
    for name, slot in list(state.roster.vacant):
        processes.start(state, state.roster.nodes[name], slot, "active")
    state.launch.attempt = tuple(state.roster.members)
    devices = {node.device for node in state.roster.nodes.values() if not node.is_spare}
    state.launch.device = GPU if GPU in devices else CPU if devices == {CPU} else ""
    state.roster.short = dict.fromkeys(state.roster.nodes)


def _record_generation(state: RunState) -> None:
    """Record the members of the attempt that ends.

    It is recorded only now because, until a worker joins or the attempt is over, it is unknown whether the
    script ever joins.
    """
    state.generations.number += 1
    state.outbox.record(
        GenerationOpened(
            id="",
            occurred_ns=state.launch.launched_ns,
            generation=state.generations.number,
            members=state.launch.attempt,
            gpus=len(state.launch.attempt) if len(state.launch.attempt) != state.launch.gpus else None,
            device=state.launch.device,
        )
    )
