"""Replace a member because the operator asks for it or because it is slow, without losing a member or a step.

Its stand-in, a warm process of its node, is admitted and builds its model while the member continues. Then a
generation is announced with the stand-in in the member's place. The present generation changes over at a step
boundary, as it does to grow, and the member is ended. Until the new generation has formed, the member has
state that others may need: if a member is lost meanwhile, it stays, and the stand-in is ended.

A node is drained in the same way: its members leave at a boundary without stand-ins, and the others share
their lanes until a spare node, if there is one, takes its place. The drained node has no members until it is
restored.
"""

from collections.abc import Sequence

from holdfast.record.events import Action, ActionTaken, MemberJoined
from holdfast.run import processes
from holdfast.run.happenings import Close
from holdfast.run.state import Generation, Member, Node, RunState
from holdfast.run.wire import Answer, Drain, Migrate, Move, Restore

REASON = "asked for by the operator"
ENDING = "the run is ending"
THROUGH = "the training is complete"
AGAIN = "To continue the run, start it again under its name."


def ask(state: RunState, message: Move) -> Answer:
    """Start the requested move, or report how far it is."""
    match message:
        case Migrate(to=to, asks_only=False) if to and to not in state.roster.nodes:
            return _no_node(state, to)
        case Migrate(member=name) if (node := state.roster.called(name)) is not None:
            return _migrate_node(state, node, message)
        case Migrate():
            return _migrate(state, message)
        case Drain(node=name, asks_only=asks_only):
            node = state.roster.called(name)
            if node is None and asks_only:
                return Answer(ok=False, sentence=f"{name} was lost meanwhile")
            return _no_node(state, name) if node is None else _ask_drain(state, node, asks_only=asks_only)
        case Restore(node=name):
            node = state.roster.called(name)
            return _no_node(state, name) if node is None else _restore(state, node)


def _migrate(state: RunState, message: Migrate) -> Answer:
    name = message.member
    if state.replacing.replaced.get(name):
        return Answer(ok=True, sentence=f"{state.replacing.replaced[name]} has taken the place of {name}")
    if state.ending.closing is not None:
        return Answer(ok=False, sentence=ENDING, hint=AGAIN)
    if name in state.replacing.leaving:
        return Answer(ok=True, sentence=f"{name} is being replaced", is_done=False)
    if message.asks_only:
        return Answer(ok=False, sentence=state.replacing.kept.get(name, f"{name} was lost meanwhile"))
    member = state.roster.living(name)
    if message.to and member is not None:
        hint = f"Leave out --to, or migrate its node: `holdfast migrate {state.policy.run} {member.node}`."
        sentence = f"--to is for nodes: the member {name} stays on {member.node}"
        return Answer(ok=False, sentence=sentence, hint=hint, is_mistake=True)
    return begin(state, name)


def _migrate_node(state: RunState, node: Node, message: Migrate) -> Answer:
    """Drain the node, if a spare node can take its place."""
    if message.to == node.name:
        hint = "Name a spare node, or leave out --to."
        sentence = f"{node.name} cannot take its own place"
        return Answer(ok=False, sentence=sentence, hint=hint, is_mistake=True)
    spares = [other.name for other in state.roster.nodes.values() if other.is_spare and not other.is_drained]
    if not message.asks_only and not node.is_drained:
        if not spares:
            hint = f"To go on without it, {advice(state, node.name)}."
            return Answer(ok=False, sentence=f"no spare node can take the place of {node.name}", hint=hint)
        if message.to and message.to not in spares:
            hint = "Name one of them, or leave out --to."
            sentence = f"{message.to} is not a spare node; spare nodes: {', '.join(spares)}"
            return Answer(ok=False, sentence=sentence, hint=hint)
        state.replacing.chosen = {message.to or spares[0]}
    return _ask_drain(state, node, asks_only=message.asks_only)


def advice(state: RunState, node: str) -> str:
    """What to do to go on without the node."""
    others = sum(not other.is_drained for other in state.roster.nodes.values() if other.name != node)
    if others >= max(1, state.policy.nodes_min):
        return f"use `holdfast drain {state.policy.run} {node}`: the others share its lanes"
    return "start the run again on another machine: it goes on from its checkpoint"


def _ask_drain(state: RunState, node: Node, *, asks_only: bool) -> Answer:
    if state.ending.closing is not None:
        return Answer(ok=False, sentence=ENDING, hint=AGAIN)
    if asks_only and not node.is_drained:
        return Answer(ok=False, sentence=state.replacing.kept.get(node.name, f"{node.name} is not drained"))
    return _drain(state, node)


def _restore(state: RunState, node: Node) -> Answer:
    """Allow members on the node again. It becomes active as soon as the run has room for it."""
    if state.ending.closing is not None:
        return Answer(ok=False, sentence=ENDING, hint=AGAIN)
    if not node.is_drained:
        return Answer(ok=True, sentence=f"{node.name} is not drained")
    if not node.is_spare:
        hint = "Ask again when its members have left."
        return Answer(ok=False, sentence=f"{node.name} is still being drained", hint=hint)
    node.is_drained, state.roster.short[node.name] = False, None
    _record_action(state, "restore", node.name, state.now_ns, gpus=node.slots)
    state.outbox.say(f"{node.name} may have members again, {REASON}")
    return Answer(ok=True, sentence=f"{node.name} may have members again")


def _no_node(state: RunState, name: str) -> Answer:
    sentence = f"no node {name!r}; it has {', '.join(state.roster.nodes)}"
    return Answer(ok=False, sentence=sentence, is_mistake=True)


def unknown(state: RunState, name: str) -> str:
    """That the run has no such member or node, with those that it has."""
    members = () if state.generations.announced is None else state.generations.announced.living
    living = ", ".join(members) or "none now, while the run forms or regroups"
    return f"no member or node {name!r}; members: {living}; nodes: {', '.join(state.roster.nodes)}"


def begin(state: RunState, name: str, reason: str = REASON) -> Answer:
    """Begin to replace the member by a stand-in. reason: why it leaves."""
    generation = state.generations.announced
    if generation is None:
        sentence = "the script has not joined, so its processes cannot be replaced"
        return Answer(ok=False, sentence=sentence, hint="Ask again when its first step is under way.")
    members = generation.living
    if name not in members:
        return Answer(ok=False, sentence=unknown(state, name), is_mistake=True)
    if len(members) == 1:
        sentence = f"{name} is the only member: no other member has its state"
        return Answer(ok=False, sentence=sentence, hint="Stop the run, and start it again elsewhere.")
    if any(state.roster.members[member].is_done for member in members):
        return Answer(ok=False, sentence=THROUGH, hint="Wait for the run to end.")
    state.replacing.kept.pop(name, None)
    state.replacing.leaving[name] = ""
    if reason != REASON:
        state.replacing.reasons[name] = reason
    state.outbox.say(f"{name} is to be replaced, {reason}")
    return Answer(ok=True, sentence=f"{name} is being replaced", is_done=False)


def _drain(state: RunState, node: Node) -> Answer:
    """Continue without the node's members. A spare node becomes active as soon as they are gone."""
    if node.is_drained:
        sentence = f"{node.name} no longer has members" if node.is_spare else f"{node.name} is being drained"
        return Answer(ok=True, sentence=sentence, is_done=node.is_spare)
    generation = state.generations.announced
    members = generation.living if generation else []
    there = [name for name in members if state.roster.members[name].node == node.name]
    left = sum(not other.is_drained for other in state.roster.nodes.values()) - 1
    if not there:
        return Answer(ok=False, sentence=f"{node.name} has no members", hint="There is nothing to drain.")
    if all(name in there or _is_drained(state, name) for name in members):
        hint = "Wait until members of another node have joined, or stop the run."
        sentence = f"{node.name} cannot be drained: no member of another node has the state"
        return Answer(ok=False, sentence=sentence, hint=hint)
    if left < state.policy.nodes_min:
        hint = "Add another node first; --nnodes MIN:MAX sets how few are enough."
        return Answer(ok=False, sentence=f"the run needs at least {state.policy.nodes_min} nodes", hint=hint)
    if any(state.roster.members[name].is_done for name in members):
        return Answer(ok=False, sentence=THROUGH, hint="Wait for the run to end.")
    node.is_drained = True
    state.replacing.kept.pop(node.name, None)
    state.replacing.leaving |= dict.fromkeys(there, "")
    state.outbox.say(f"{node.name} is to be drained, {REASON}")
    return Answer(ok=True, sentence=f"{node.name} is being drained", is_done=False)


def reason_of(state: RunState, name: str) -> str:
    """Why the member leaves or left."""
    return state.replacing.reasons.get(name, REASON)


def settle(state: RunState) -> None:
    """Find missing stand-ins, and continue or undo replacements that have begun."""
    generation = state.generations.announced
    if generation is None or not (state.replacing.leaving or generation.leaving):
        return
    if _is_upset(state, generation):
        lost = [name for name in generation.present if state.roster.living(name) is None]
        others = f" and {len(lost) - 1} more were" if len(lost) > 1 else " was"
        revert(state, generation, f"{lost[0]}{others} lost meanwhile")
    is_calm = generation.formed_ns is not None and not generation.lost
    for name, stand_in_name in list(state.replacing.leaving.items()):
        member, stand_in = state.roster.living(name), state.roster.living(stand_in_name)
        if member is None:
            _inherit(state, name, stand_in)
        elif stand_in_name and stand_in is None:
            _give_up(state, name, f"{stand_in_name} was lost before it could take its place")
        elif stand_in is None and is_calm and not _is_drained(state, name):
            _find_stand_in(state, member)


def ready(state: RunState, present: Sequence[str]) -> dict[str, str]:
    """The members that can leave at the next boundary, and the stand-in that waits for each place, if it gets
    one. A member with the state stays: if all are to leave, one of them, or one node, leaves later.
    """
    going = {
        name: stand_in
        for name, stand_in in state.replacing.leaving.items()
        if name in present
        and (stand_in in state.roster.waiting or (not stand_in and _is_drained(state, name)))
    }
    if len(going) < len(present) or not going:
        return going
    last = state.roster.members[present[-1]]
    kept = {last.name} if going[last.name] else {name for name in going if _is_beside(state, name, last)}
    return {name: stand_in for name, stand_in in going.items() if name not in kept}


def is_newcomer(state: RunState, name: str) -> bool:
    """Whether a ready process joins as an additional member."""
    return name not in state.replacing.leaving.values() and not _is_drained(state, name)


def _is_beside(state: RunState, name: str, other: Member) -> bool:
    return state.roster.members[name].node == other.node


def _is_drained(state: RunState, name: str) -> bool:
    return state.roster.nodes[state.roster.members[name].node].is_drained


def hand_over(state: RunState, generation: Generation, opened_ns: int) -> None:
    """After the generation has formed, give the seats to the stand-ins and end the members that had them."""
    drained: dict[str, None] = {}
    for name, stand_in_name in generation.leaving.items():
        member = state.roster.members[name]
        member.is_lost = True
        state.hangs.end_excuses(name)
        processes.stop(state, member, state.policy.grace_s)
        # Its GPU is the stand-in's from now on, or unused. The process only waits to be ended, without a GPU.
        left = MemberJoined(
            id="", occurred_ns=opened_ns, subject=name, gpus=0, role="spare", node=member.node
        )
        state.outbox.record(left)
        state.replacing.leaving.pop(name, None)
        if not stand_in_name:
            drained[member.node] = None
            continue
        stand_in = state.roster.members[stand_in_name]
        state.roster.nodes[stand_in.node].seats[stand_in.slot] = stand_in_name
        processes.record_active(state, stand_in, at_ns=opened_ns)
        _record_action(state, "migrate", name, opened_ns)
        if name in state.replacing.reasons:
            state.replacing.slow_seats.add((stand_in.node, stand_in.slot))
        state.replacing.replaced[name] = stand_in_name
    for node_name in drained:
        _retire(state, state.roster.nodes[node_name], opened_ns)


def _retire(state: RunState, node: Node, at_ns: int) -> None:
    """End all processes of the node, warm ones included, and make it a spare node."""
    _record_action(state, "drain", node.name, at_ns, gpus=node.slots)
    for member in [one for one in state.roster.members.values() if one.node == node.name and not one.is_lost]:
        _dismiss(state, member)
    for slot in range(node.slots):
        state.roster.vacant.pop((node.name, slot), None)
    node.is_spare, node.seats, node.pool = True, [], {}
    state.roster.nodes_active -= 1


def _record_action(state: RunState, action: Action, subject: str, at_ns: int, gpus: int = 0) -> None:
    state.outbox.record(
        ActionTaken(
            id="",
            occurred_ns=at_ns,
            subject=subject,
            action=action,
            gpus=gpus,
            reason=reason_of(state, subject),
        )
    )


def revert(state: RunState, generation: Generation, why: str) -> None:
    """Undo a replacement in a generation that has not formed and never will: the members stay in it.

    A member that was lost meanwhile is lost like any other, and its stand-in waits to take its place.
    """
    for name, stand_in_name in generation.leaving.items():
        stand_in, is_here = state.roster.living(stand_in_name), state.roster.living(name) is not None
        generation.lost.pop(stand_in_name, None)
        if not is_here:
            generation.lost.setdefault(name, state.now_ns)
        if stand_in is not None and is_here:
            _dismiss(state, stand_in)
        elif stand_in is not None:  # before other newcomers, because it may have the state by now
            state.roster.waiting = {stand_in_name: None, **state.roster.waiting}
        if is_here:
            _give_up(state, name, why)
    _void(state, generation)


def put_off(state: RunState, generation: Generation) -> None:
    """Put off a replacement, because the step before its boundary failed. Members that are to leave may have
    that step: they stay until a later boundary. Their stand-ins are ended, because they may have made steps
    in this generation already; others will take their places.
    """
    for name, stand_in_name in generation.leaving.items():
        state.replacing.leaving[name] = ""
        if (stand_in := state.roster.living(stand_in_name)) is not None:
            _dismiss(state, stand_in)
    _void(state, generation)


def _void(state: RunState, generation: Generation) -> None:
    """Make the members that were to leave with this generation members of it. It never forms."""
    names = {*generation.present} - {*generation.leaving.values()}
    ranked = [] if state.generations.formed is None else state.generations.formed.members
    generation.members = tuple(
        name for name in dict.fromkeys((*ranked, *generation.members)) if name in names
    )
    generation.names = frozenset(names)
    generation.leaving = {}
    generation.is_void = True


def _is_upset(state: RunState, generation: Generation) -> bool:
    """Whether a generation that replaces members can no longer form as announced."""
    return generation.formed_ns is None and bool(
        generation.leaving
        and (generation.lost or any(state.roster.living(name) is None for name in generation.leaving))
    )


def _find_stand_in(state: RunState, member: Member) -> None:
    node = state.roster.nodes[member.node]
    stand_in = processes.from_pool(state, node, member.slot)
    if stand_in is not None:
        stand_in.replaces, stand_in.seated_ns = member.name, state.now_ns
        state.roster.coming[stand_in.name] = None
        state.replacing.leaving[member.name] = stand_in.name
        processes.admit_parked(state, stand_in)
    elif state.policy.warm:
        return  # wait until the pool is filled
    elif state.now_ns < node.start_ns:
        state.outbox.wake(node.start_ns)
    else:
        processes.start(state, node, node.slots, "spare")
        _find_stand_in(state, member)


def _inherit(state: RunState, name: str, stand_in: Member | None) -> None:
    """After the member was lost, give its seat to the stand-in like to any replacement, unless the seat is
    taken or its node is drained.
    """
    del state.replacing.leaving[name]
    is_free = stand_in is not None and (stand_in.node, stand_in.slot) in state.roster.vacant
    if stand_in is not None and is_free and not _is_drained(state, stand_in.name):
        state.replacing.replaced[name] = stand_in.name
        state.roster.nodes[stand_in.node].seats[stand_in.slot] = stand_in.name
        del state.roster.vacant[stand_in.node, stand_in.slot]
        return
    state.replacing.kept[name] = f"{name} was lost before it could be replaced"
    if stand_in is not None:
        _dismiss(state, stand_in)
    _end_drain(state, name)


def _end_drain(state: RunState, name: str) -> None:
    """If the member was the last to leave a drained node, retire the node without waiting for a boundary."""
    member = state.roster.members.get(name)
    node = None if member is None else state.roster.nodes.get(member.node)
    if node is None or not node.is_drained or node.is_spare:
        return
    leaving = map(state.roster.living, state.replacing.leaving)
    if not any(other is not None and other.node == node.name for other in leaving):
        _retire(state, node, state.now_ns)


def _give_up(state: RunState, name: str, why: str) -> None:
    state.replacing.leaving.pop(name, None)
    state.replacing.reasons.pop(name, None)
    state.replacing.kept[name] = f"{name} stays: {why}"
    node = state.roster.nodes[state.roster.members[name].node]
    if node.is_drained:
        node.is_drained, state.roster.short[node.name] = False, None
        state.replacing.kept[node.name] = f"{node.name} keeps its members: {why}"
    state.outbox.say(state.replacing.kept[name], "trouble")


def _dismiss(state: RunState, stand_in: Member) -> None:
    """End a process that is no longer needed, without counting it as a loss."""
    processes.stop(state, stand_in, 0)
    state.outbox.effects.append(Close("worker", stand_in.name))
    stand_in.is_lost = True
    state.roster.coming.pop(stand_in.name, None)
    state.roster.waiting.pop(stand_in.name, None)
