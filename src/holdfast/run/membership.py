"""The members of a run: a state machine that the coordinator drives, or the twin in its place.

`advance` takes an event and returns the effects to carry out; `deadline` says when it wants the next call. It
has no clock, no socket and no randomness: the same events at the same times give the same effects. The state
is changed in place, because copying thousands of members for every heartbeat would cost more than deciding.

A script that joins is protected: it continues in generations (joined.py). A script that never joins is
restarted as a whole (plain.py). Which kind it is shows when the first worker joins; until then it may be
either.
"""

from collections.abc import Sequence
from typing import assert_never

from holdfast import wording
from holdfast.record.events import TAKE_OVER, ActionTaken, PhaseEntered
from holdfast.run import (
    apart,
    corruption,
    devices,
    ending,
    hangs,
    joined,
    losses,
    plain,
    processes,
    quiet,
    rebalancing,
    replacing,
    replicas,
)
from holdfast.run.happenings import (
    Begun,
    Close,
    Disconnected,
    Effect,
    FromMember,
    FromMembers,
    FromNode,
    Happening,
    MoveRequested,
    Present,
    Reply,
    StopRequested,
    StrikeRequested,
    Tick,
    ToMembers,
    ToNode,
    TookOver,
    Unreached,
)
from holdfast.run.history import gist
from holdfast.run.recording import checkpoint_event, witness_event
from holdfast.run.state import Launch, Member, Node, RunPolicy, RunState
from holdfast.run.waits import LATE_S, ns
from holdfast.run.wire import (
    CODE_DEVICE_FAILED,
    AgentJoined,
    Answer,
    Audited,
    Balanced,
    Broken,
    Checkpointed,
    Committed,
    Dealt,
    DeviceFailed,
    EndNode,
    Finished,
    FromAgent,
    FromWorker,
    LeftBehind,
    Located,
    MemberBeat,
    NodeBeat,
    PartLost,
    Planned,
    Proven,
    Published,
    Regrouped,
    Snapshotted,
    Strike,
    StrikeNode,
    StrikeWorker,
    Struck,
    WarmedUp,
    Witnessed,
    WorkerExited,
    WorkerJoined,
    WorkerReady,
    WorkerStarted,
    Working,
)

NODE_LOST, AGENT_STOPPED = "node lost", "agent stopped"
"""The names in the record for the loss of a node."""
NO_HEARTBEAT = "no heartbeat"
SILENT_S = 3.0
"""An agent that sends nothing for this long is silent: its heartbeats come four times a second."""

__all__ = ["RunPolicy", "RunState", "advance", "deadline", "initial"]


def initial(policy: RunPolicy, now_ns: int) -> RunState:
    return RunState(
        policy=policy,
        started_ns=now_ns,
        now_ns=now_ns,
        launch=Launch(gpus=policy.nodes_min * policy.slots),
        faults=policy.faults,
    )


def deadline(state: RunState) -> int | None:
    """When `advance` wants a `Tick` at the latest; None if it waits only for other events."""
    if state.ending.is_over:
        return None
    dues_ns = [due_ns for due_ns in (state.outbox.due_ns, state.outbox.lease_due_ns) if due_ns is not None]
    return min(dues_ns, default=None)


def advance(state: RunState, event: Happening, now_ns: int) -> tuple[Effect, ...]:
    """Take in an event. Return the effects to carry out, in order."""
    state.now_ns = max(state.now_ns, now_ns)  # a clock that jumps back must not undo a deadline
    if state.ending.is_over:
        _turn_back(state, event)
    elif _take_in(state, event):
        _settle(state)
    out, state.outbox.effects = tuple(state.outbox.effects), []
    return out


def _take_in(state: RunState, event: Happening) -> bool:
    """Take in the event; whether it may require action. Heartbeats and commits do not."""
    match event:
        case FromMember(name, DeviceFailed() as message):
            devices.said(state, name, message)
        case FromMember(name, message):
            member = state.roster.living(name)
            return member is not None and _heard_member(state, member, message)
        case FromMembers(names, message):
            return _heard_members(state, names, message)
        case FromNode(name, AgentJoined() as message):
            _node_joined(state, name, message)
        case FromNode(name, message):
            node = state.roster.nodes.get(name)
            return node is not None and _heard_node(state, node, message)
        case Present():
            for name in event.nodes:
                _note_presence(state, state.roster.nodes[name])
            for name in event.members:
                state.roster.members[name].seen_ns = state.now_ns
            return False
        case Disconnected("agent", name) if name in state.roster.nodes:
            _lose_node(state, state.roster.nodes[name], "connection ended")
        case Disconnected("worker", name):
            _worker_disconnected(state, name)
        case Unreached(names, doubtful):
            hangs.end_unreached(state, names, doubtful)
        case StopRequested(reason, code):
            ending.stop(state, reason, code)
        case StrikeRequested(strike):
            state.outbox.effects.append(Reply(_strike(state, strike)))
        case MoveRequested(message):
            state.outbox.effects.append(Reply(replacing.ask(state, message)))
        case TookOver(place):
            _took_over(state, place)
        case Begun():
            state.outbox.record(state.policy.started(state.now_ns, state.launch.gpus))
        case Tick():
            if state.outbox.due_ns is not None and state.now_ns - state.outbox.due_ns > ns(LATE_S):
                state.hangs.resumed_ns = state.now_ns  # commits made meanwhile are not read yet
            _check_leases(state)
    return True


def _took_over(state: RunState, place: str) -> None:
    lost = "the coordinator's machine is lost or cut off" if place else "the coordinator was lost"
    follows = (
        f"{place} coordinates the run now"
        if place
        else "its successor has taken over, and nothing else changes"
    )
    state.outbox.say(f"{lost}; {follows}", "trouble")
    state.outbox.record(
        ActionTaken(id="", occurred_ns=state.now_ns, subject="coordinator", action=TAKE_OVER, reason=lost)
    )
    for member in state.roster.members.values():
        member.clock = None  # this process's clock differs


def _settle(state: RunState) -> None:
    """Do everything that the present state allows, and work out when to look again."""
    state.outbox.due_ns = None
    devices.give_up(state)
    losses.give_up_explanations(state)
    if state.ending.closing is None:
        if state.launch.is_protected:
            joined.settle(state)
        else:
            quiet.watch(state)
            if state.ending.closing is None:
                plain.settle(state)
    if state.ending.closing is not None:
        devices.give_up(state, at_once=ending.is_due(state))
        losses.give_up_explanations(state, at_once=ending.is_due(state))
        state.outbox.due_ns = None
        ending.settle(state)


def _turn_back(state: RunState, event: Happening) -> None:
    """After the run is over, tell so to a node that joins or an operator that asks."""
    match event:
        case FromNode(name, AgentJoined()):
            end = state.ending.closing.end if state.ending.closing is not None else None
            if end is not None:
                message = EndNode(outcome=end.outcome, code=end.code, reason=end.reason)
                state.outbox.effects.append(ToNode(name, message))
        case StrikeRequested() | MoveRequested():
            state.outbox.effects.append(Reply(Answer(ok=False, sentence="the run is over")))


# ---- nodes -----------------------------------------------------------------------------------------------


def _node_joined(state: RunState, name: str, message: AgentJoined) -> None:
    if name in state.roster.nodes:
        _lose_node(state, state.roster.nodes[name], "its agent came back")
    state.roster.nodes[name] = Node(
        name=name,
        address=message.address,
        port=message.port,
        slots=max(1, message.slots),
        host=message.host,
        device=message.device,
        joined_ns=state.now_ns,
        seen_ns=state.now_ns,
    )
    state.launch.last_joined_ns = state.now_ns
    state.roster.short[name] = None
    _expect(state, state.now_ns)
    state.outbox.say(f"node {name} joined")


def _lose_node(state: RunState, node: Node, why: str, onset_ns: int | None = None) -> None:
    had_work = any(
        member.node == node.name
        and not (member.is_lost or member.is_stopped or _came_too_late(state, member))
        for member in state.roster.members.values()
    )
    is_agents = why == NO_HEARTBEAT and _is_agent_silent(state, node)
    if is_agents:
        why = "its agent fell silent while its members did not: it is stopped, or hangs"
    losses.lose_node(state, node, why, onset_ns=onset_ns, fault=AGENT_STOPPED if is_agents else NODE_LOST)
    reason = f"node {node.name} was lost ({why})"
    if state.ending.closing is not None and state.ending.closing.is_released and had_work:
        ending.fail(state, f"{reason} before its scripts had ended, after the training was complete")
    elif (
        state.launch.is_launched
        and not state.launch.is_protected
        and state.ending.closing is None
        and had_work
    ):
        plain.fail(state, reason)


def _is_agent_silent(state: RunState, node: Node) -> bool:
    """Whether the agent alone is to blame: it has been silent for long, but its members have not."""
    silent_ns = state.now_ns - node.seen_ns
    heard_ns = max(
        (member.seen_ns or 0 for member in state.roster.members.values() if member.node == node.name),
        default=0,
    )
    return silent_ns >= ns(SILENT_S) and heard_ns - node.seen_ns >= ns(SILENT_S) // 2


def _note_presence(state: RunState, node: Node) -> None:
    state.observed.note("gap", state.now_ns - node.seen_ns)
    node.seen_ns = state.now_ns


def _heard_node(state: RunState, node: Node, message: FromAgent) -> bool:
    _note_presence(state, node)
    match message:
        case NodeBeat():
            if message.has_printed:
                quiet.printed(state)
            return message.stopped != node.stopped and _note_stops(state, node, message.stopped)
        case Located():
            hangs.located(state, message)
        case Proven():
            _proven(state, message)
            return False
        case WorkerStarted():
            if (member := state.roster.living(message.member)) is not None:
                processes.record_started(state, member)
            return False
        case WorkerExited():
            _worker_exited(state, node, message)
    return True


# ---- workers ---------------------------------------------------------------------------------------------


def _heard_member(state: RunState, member: Member, message: FromWorker) -> bool:
    """Handle a living member's message; whether it may require action."""
    member.seen_ns = state.now_ns
    match message:
        case MemberBeat():
            hangs.moved(state, member, message.stage)
            member.step, member.stage = message.step, message.stage
            if message.spent is not None and message.spent.steps > member.spent[0].steps:
                member.spent = (message.spent, member.spent[0])
            return joined.stepped(state, member) or (message.stage == "meeting" and apart.waits_apart(state))
        case Committed():
            return joined.committed(state, member, message)
        case Working():
            hangs.working(state, member, message)
        case Planned():
            return joined.planned(state, message.steps_total)
        case Dealt():
            if (
                state.generations.announced is not None
                and message.generation == state.generations.announced.number
            ):
                member.lanes = message.lanes
            return False
        case Balanced():
            return rebalancing.heard(state, message)
        case Audited():
            return corruption.heard(state, message)
        case Published():
            member.told += 1
            hangs.published(state, member, message.generation)
            return False  # only for other members: the coordinator passes it on
        case Checkpointed():
            _checkpointed(state, member, message)
            return False
        case Witnessed():
            state.outbox.record(witness_event(message, state.now_ns))
            return False
        case Snapshotted(step=step, stall_ns=stall_ns):
            member.snapshot = step
            if stall_ns:
                state.progress.checkpointing.snapshot_ns = stall_ns
            return False
        case Struck():
            _struck(state, member, message)
            return False
        case WorkerJoined():
            _protect(state)
            joined.enter(state, member, message)
        case WarmedUp():
            member.is_warming = False
            return False
        case WorkerReady():
            joined.ready(state, member, message)
        case Regrouped():
            return joined.regrouped(state, member, message)
        case Broken():
            joined.broken(state, message)
        case PartLost():
            replicas.part_lost(state, message)
        case LeftBehind():
            replicas.left_behind(state, member)
        case Finished():
            joined.finished(state, member, message)
    return True


def _heard_members(state: RunState, names: Sequence[str], message: Committed | Regrouped) -> bool:
    """Handle the same message from several members; whether it may require action. Only the last one is
    handled in full; the others are just noted, which is much faster for thousands of members.
    """
    *others, last = map(state.roster.members.__getitem__, names)
    for member in others:
        member.seen_ns = state.now_ns
    match message:
        case Committed():
            joined.enter_commits(state, others, message)
        case Regrouped():
            joined.enter_regrouped(state, others, message)
    return _heard_member(state, last, message)


def _protect(state: RunState) -> None:
    """Note that the script joins and so continues in generations."""
    if not state.launch.is_protected:
        state.launch.is_protected = True
        state.outbox.record(PhaseEntered(id="", occurred_ns=state.now_ns, phase="init"))


def _worker_disconnected(state: RunState, name: str) -> None:
    devices.disconnected(state, name)
    member = state.roster.living(name)
    if member is None or not state.launch.is_protected or state.ending.closing is not None:
        return  # its agent will report the exit
    # A script may join and end right away. If it was in no generation, no other member waits for it.
    keeps_seat = member.role == "active" and not member.since_generation
    losses.lose_unexplained(state, member, "connection ended", keeps_seat=keeps_seat)


def _worker_exited(state: RunState, node: Node, message: WorkerExited) -> None:
    """Handle an exit that an agent saw. The loss may already be known, but not the cause of death."""
    node.port = message.port or node.port
    member = state.roster.members.get(message.member)
    if member is None or member.is_gone:
        return
    if devices.exited(state, member, message):
        pass  # recorded and judged there
    elif state.ending.closing is not None:
        _exited_at_the_end(state, member, message)
    elif member.is_stopped:
        pass  # we ended it, and said why
    elif message.code == 0 and member.role == "active":
        losses.leave(state, member)
    else:
        losses.explain(state, member, message)
        _judge(state, member, message)
    member.is_lost = True
    processes.gone(state, member)


def _judge(state: RunState, member: Member, message: WorkerExited) -> None:
    """Decide what a failed process means for the run as a whole."""
    if losses.is_cut_off(message):
        _protect(state)  # only a process that has reached `join()` has a connection
    elif losses.is_mistake(state, member, message):
        losses.judge_mistake(state, message)
    elif not state.launch.is_protected:
        reason = quiet.blamed(state, f"{member.name} failed ({losses.cause_of_death(message)})")
        plain.fail(state, reason, message.complaint, whose=member.name)
    elif message.code not in (None, CODE_DEVICE_FAILED) and member.role == "active":
        losses.judge_script(state, member, message)


def _came_too_late(state: RunState, member: Member) -> bool:
    """Whether the run ended before this newcomer took part, so that its script has nothing to finish."""
    is_released = state.ending.closing is not None and state.ending.closing.is_released
    return is_released and state.launch.is_protected and not member.is_done


def _exited_at_the_end(state: RunState, member: Member, message: WorkerExited) -> None:
    """Handle an exit while the run ends. After the release, a script may still fail in its final work."""
    assert state.ending.closing is not None
    if message.code == 0:
        losses.close_account(state, member.name, "exit 0")
        return
    if member.is_lost:
        losses.explain(state, member, message)  # it was lost before, and the others continued without it
        return
    if not state.ending.closing.is_released or member.is_stopped:
        return
    if _came_too_late(state, member):
        losses.explain(state, member, message)
        return
    reason = f"{member.name} failed after the training was complete ({losses.cause_of_death(message)})"
    ending.fail(state, reason, complaint=message.complaint)


def _checkpointed(state: RunState, member: Member, message: Checkpointed) -> None:
    if message.happened == "loaded":
        member.loaded = (message.step, message.place)  # recorded if the generation continues from it
        member.restore_ns = message.restore_ns
        member.from_memory = message.is_snapshot
        return
    if message.is_snapshot:  # it could not be taken or used
        member.snapshot = 0  # its earlier snapshot may be gone, too
        if gist(message.reason) != gist(state.progress.checkpointing.snapshot_failure):
            state.outbox.say(message.reason, "trouble")
            state.outbox.record(checkpoint_event(message, state.now_ns))
        state.progress.checkpointing.snapshot_failure = message.reason
        return
    if message.happened == "failed" and gist(message.reason) != gist(state.progress.checkpointing.failure):
        said = message.reason
        if not said.startswith("The checkpoint"):
            said = f"checkpoint of step {message.step} failed: {said}"
        state.outbox.say(said, "trouble")
    if message.happened == "saved":
        state.progress.checkpointing.saved_step = message.step
    if message.happened in ("saved", "failed"):
        state.progress.checkpointing.failure = message.reason
    _time_checkpoint(state, message)
    state.outbox.record(checkpoint_event(message, state.now_ns))


def _proven(state: RunState, message: Proven) -> None:
    """Report the result of a proof. The proof itself has recorded it."""
    times, found = state.progress.checkpointing, (message.step, state.now_ns)
    match message.verdict:
        case "proven":
            times.proven, times.unproven = found, ""
            state.outbox.say(f"checkpoint of step {message.step} proven: {message.reason}")
        case "refuted":
            times.refuted, times.unproven = found, ""
            state.outbox.say(
                f"the checkpoint of step {message.step} is NOT what the run computed: {message.reason}. Do "
                "not go on from it before you know why: memory may be faulty, or the script not repeatable",
                "failure",
            )
        case "untried":
            if gist(message.reason) != gist(times.unproven):
                state.outbox.say(f"no checkpoint could be proven: {message.reason}", "trouble")
            times.unproven = message.reason
        case _:
            assert_never(message.verdict)


def _time_checkpoint(state: RunState, message: Checkpointed) -> None:
    times = state.progress.checkpointing
    if message.happened == "saved" and times.begun_ns is not None:
        times.stall_ns, times.write_ns = message.stall_ns, state.now_ns - times.begun_ns
    times.begun_ns = state.now_ns if message.happened == "begun" else None


# ---- chaos -----------------------------------------------------------------------------------------------


def _struck(state: RunState, member: Member, message: Struck) -> None:
    """Note that a planned fault strikes. It must not strike again, and the loss that follows starts here."""
    member.struck_ns = state.now_ns
    for fault in state.policy.faults:
        if fault.id == message.fault:
            state.outbox.say(
                f"planned {fault.fault} strikes {member.name} at step {fault.step} ({fault.moment})"
            )
            if fault.fault == "pause":
                pause = StrikeWorker(member=member.name, fault="pause", for_s=fault.for_s, stops_itself=True)
                state.outbox.effects.append(ToNode(member.node, pause))
    state.faults = tuple(fault for fault in state.faults if fault.id != message.fault)
    if (generation := state.generations.announced) is not None:
        others = tuple(name for name in generation.living if name != member.name)
        state.outbox.effects.append(ToMembers(others, message))


def _strike(state: RunState, strike: Strike) -> Answer:
    """Strike the target that the operator names, or a member that the seed picks."""
    if state.ending.closing is not None:
        return Answer(ok=False, sentence="the run is ending")
    generation = state.generations.announced
    living = [member for member in state.roster.members.values() if not member.is_lost]
    if not strike.target:
        present = [
            member for member in living if generation is None or member.name in generation.names
        ] or living
        if not present:
            return Answer(ok=False, sentence="the run has no members right now")
        struck = [sorted(present, key=lambda member: member.name)[strike.seed % len(present)]]
    elif strike.target in state.roster.nodes:
        struck = [member for member in living if member.node == strike.target]
    else:
        struck = [member for member in living if member.name == strike.target]
    if not struck:
        sentence = f"the run has {replacing.unknown(state, strike.target)}"
        return Answer(ok=False, sentence=sentence, is_mistake=True)
    if strike.fault == "node" and strike.target == struck[0].name:
        node = struck[0].node
        sentence = f"{strike.target} is a member; its node is {node}"
        hint = f"To strike the whole node, name {node}."
        return Answer(ok=False, sentence=sentence, hint=hint, is_mistake=True)
    for member in struck:
        member.struck_ns = state.now_ns
    match strike.fault:
        case "node":
            node = struck[0].node
            state.outbox.effects.append(ToNode(node, StrikeNode()))
            sentence = f"node {node} is struck"
        case "kill" | "pause" as fault:
            for member in struck:
                message = StrikeWorker(member=member.name, fault=fault, for_s=strike.for_s)
                state.outbox.effects.append(ToNode(member.node, message))
            sentence = f"{fault} strikes {', '.join(member.name for member in struck)}"
        case _:
            assert_never(strike.fault)
    state.outbox.say(f"chaos: {sentence}")
    return Answer(ok=True, sentence=sentence)


# ---- leases ----------------------------------------------------------------------------------------------


def _expect(state: RunState, seen_ns: int) -> None:
    """Schedule a look for when the lease of a node or member seen at `seen_ns` may end."""
    due_ns = seen_ns + state.observed.lease_ns
    state.outbox.lease_due_ns = (
        due_ns if state.outbox.lease_due_ns is None else min(state.outbox.lease_due_ns, due_ns)
    )


def _note_stops(state: RunState, node: Node, stopped: tuple[str, ...]) -> bool:
    """Note a change in which processes of the node the kernel shows as stopped."""
    before, node.stopped = node.stopped, stopped
    for name in before:
        if name not in stopped and state.hangs.stopped.pop(name, None) is not None:
            state.hangs.all_stopped_ns, state.hangs.resumed_ns = None, state.now_ns
    for name in stopped:
        if name not in before and state.roster.living(name) is not None:
            state.hangs.stopped[name] = state.now_ns
            _expect(state, state.now_ns)
            if state.ending.closing is None:
                then = f"all are started again after {quiet.stop_s(state):.0f} s"
                if state.launch.is_protected:
                    then = f"it is replaced after {state.observed.lease_ns / 1e9:.0f} s"
                state.outbox.say(f"{name} is stopped (SIGSTOP); {then} unless it continues", "trouble")
    return True


def _check_leases(state: RunState) -> None:
    """Give up nodes that were silent for too long, and members that were stopped for too long."""
    due_ns = state.outbox.lease_due_ns
    if due_ns is None or state.now_ns < due_ns:
        return
    late_ns = state.now_ns - due_ns
    if late_ns > ns(LATE_S):
        # A moment more than the delay: a node whose lease ended exactly now must be heard first, too.
        _renew_leases(state, late_ns + ns(LATE_S))
    state.outbox.lease_due_ns = None
    lease_ns = state.observed.lease_ns
    for node in [node for node in state.roster.nodes.values() if state.now_ns - node.seen_ns >= lease_ns]:
        state.outbox.effects.append(Close("agent", node.name))
        _lose_node(state, node, NO_HEARTBEAT, onset_ns=node.seen_ns)
    if state.roster.nodes:
        _expect(state, min(node.seen_ns for node in state.roster.nodes.values()))
    if state.launch.is_protected and state.ending.closing is None:
        _check_stops(state, lease_ns)


def _check_stops(state: RunState, lease_ns: int) -> None:
    """Replace stopped members. If no other member holds the state, the run waits first."""
    holders = state.holders
    is_last = bool(holders) and state.hangs.stopped.keys() >= set(holders)
    state.hangs.all_stopped_ns = (state.hangs.all_stopped_ns or state.now_ns) if is_last else None
    spared = frozenset(holders) if is_last and not _is_patience_over(state) else frozenset()
    for name, since_ns in list(state.hangs.stopped.items()):
        member = state.roster.living(name)
        if member is None:
            del state.hangs.stopped[name]
        elif name in spared:
            continue
        elif state.now_ns - since_ns >= lease_ns:
            losses.fence(
                state,
                member,
                "stopped",
                onset_ns=since_ns,
                account="stopped by SIGSTOP",
                detail="stopped by SIGSTOP: the kernel shows it in state T (stopped), so it cannot say where "
                f"it is; it was last heard in step {member.step} ({member.stage})",
            )
        else:
            _expect(state, since_ns)


def _is_patience_over(state: RunState) -> bool:
    """Whether the run has waited long enough while all members that hold the state are stopped."""
    assert state.hangs.all_stopped_ns is not None
    due_ns = state.hangs.all_stopped_ns + state.wait_ns
    if state.now_ns >= due_ns:
        return True
    if state.hangs.all_stopped_ns == state.now_ns:
        count = len(state.holders)
        who = "the only member is" if count == 1 else f"all {count} members are"
        ask = "continue them (SIGCONT), or the run goes back to its checkpoint"
        state.outbox.say(
            f"{who} stopped: waiting for at most {wording.number(state.policy.wait_s)} s; {ask}", "trouble"
        )
    state.outbox.lease_due_ns = (
        due_ns if state.outbox.lease_due_ns is None else min(state.outbox.lease_due_ns, due_ns)
    )
    return False


def _renew_leases(state: RunState, more_ns: int) -> None:
    """Extend all leases after this process was held up, because messages from meanwhile are not read yet."""
    for node in state.roster.nodes.values():
        node.seen_ns = min(state.now_ns, node.seen_ns + more_ns)
    for name, since_ns in state.hangs.stopped.items():
        state.hangs.stopped[name] = min(state.now_ns, since_ns + more_ns)
