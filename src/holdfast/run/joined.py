"""The membership of a script that joins: generations that replace, shrink and grow.

`settle` looks at how things stand and does whatever brings the run nearer to full membership; it runs after
everything that changes them, so nothing depends on the order in which messages arrive. What it cannot do yet
it looks at again when something happens, or at `Outbox.due_ns`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from holdfast.record.errors import complaint
from holdfast.run import (
    devices,
    ending,
    generations,
    hangs,
    losses,
    pacing,
    processes,
    replacing,
    replicas,
    seats,
    setups,
)
from holdfast.run.clocks import MemberClock
from holdfast.run.happenings import ToMembers
from holdfast.run.stages import IN_STEP
from holdfast.run.state import Generation, Member, RunState, Trouble
from holdfast.run.waits import ns
from holdfast.run.wire import Broken, Committed, Finished, Regrouped, Released, WorkerReady

LEFT_BEHIND_S = 1.0
"""A member that still waits for the gradients of one that left its step so long ago waits in vain."""


# ---- what members say ------------------------------------------------------------------------------------


def enter(state: RunState, member: Member) -> None:
    """It is at `join()`. An active one goes on at once, a warm one stays until it is needed."""
    if member.reached != "started":
        return
    state.observed.note("start", state.now_ns - member.started_ns)
    member.reached = "parked"
    if member.is_muted:
        processes.show(state, member)
    if member.role == "active":
        processes.admit(state, member)
    else:
        state.roster.nodes[member.node].failures = 0


def ready(state: RunState, member: Member, message: WorkerReady) -> None:
    """It is at `protect()`: from here on it can be in a generation, if it is built like the others."""
    if member.reached != "admitted" or not setups.fits(state, member, message.setup):
        return
    state.observed.note("ready", ns(message.took_s))
    member.reached, member.ready_ns = "ready", state.now_ns
    state.roster.nodes[member.node].failures = 0
    del state.roster.coming[member.name]
    state.roster.waiting[member.name] = None


def regrouped(state: RunState, member: Member, message: Regrouped) -> bool:
    """It is in the group of the generation and has its state. Whether it was the last, and completes it."""
    generation = state.generations.announced
    if generation is None or message.generation != generation.number or member.name not in generation.names:
        return False
    member.lanes, member.version = message.lanes, message.version
    planned(state, message.steps_total)
    generation.regrouped[member.name] = message.version
    for part, took_s in message.parts_s.items():
        generation.parts_ns[part] = max(generation.parts_ns.get(part, 0), ns(took_s))
    if (
        len(generation.regrouped) < len(generation.members)
        or generation.lost
        or generation.is_void
        or generation.formed_ns is not None
    ):
        return False
    generations.form(state, generation)
    return True


def enter_regrouped(state: RunState, members: Sequence[Member], message: Regrouped) -> None:
    """These members of the announced generation are in its group, and others are still to come."""
    generation = state.generations.announced
    assert generation is not None
    assert generation.number == message.generation
    if members:
        planned(state, message.steps_total)
    for member in members:
        member.lanes, member.version = message.lanes, message.version
        generation.regrouped[member.name] = message.version
        for part, took_s in message.parts_s.items():
            generation.parts_ns[part] = max(generation.parts_ns.get(part, 0), ns(took_s))


def planned(state: RunState, steps_total: int) -> bool:
    """A script has come to a loop over steps. Whether the step that seemed to be the last one is not.

    A newcomer's script goes through loops that the others have left.
    """
    if steps_total <= state.progress.steps_total:
        return False
    state.progress.steps_total = steps_total
    if state.ending.undone_main and not state.ending.is_anybody_done:
        state.ending.undone_main, state.ending.is_cut_short = "", False
        return True
    return False


def broken(state: RunState, message: Broken) -> None:
    """A collective failed. Who is to blame shows within moments; if nobody does, all of them try again.

    The first to say so counts: what the others then see is that the first has left.
    """
    generation = state.generations.announced
    if generation is None or generation.broken_ns is not None:
        return
    is_pending = generation.at_boundary and generation.formed_ns is None  # then the one before still works
    if message.generation == generation.number or (
        is_pending and message.generation == _number(state.generations.formed)
    ):
        generation.broken_ns = state.now_ns
        generation.trouble = generations.trouble_of(message.member, message.operation, message.reason)


def committed(state: RunState, member: Member, message: Committed) -> bool:
    """One member has the step; the run has it when all of the generation do. Whether it is the first of its
    generation, after which the next must not take as long.
    """
    if message.loss is not None and (
        not state.progress.loss_values or state.progress.loss_values[-1][0] < message.step
    ):
        state.progress.loss_values.append((message.step, message.loss))
    at_ns = _moment(state, member, message)
    if (message.generation, message.step) <= member.reported:
        return False
    member.reported, member.version = (message.generation, message.step), message.step
    if message.skipped:
        state.progress.skipped[message.step] = message.skipped
    else:  # what was skipped before the run went back does not count
        state.progress.skipped.pop(message.step, None)
    for generation in (state.generations.formed, state.generations.announced):
        if generation is not None and generation.number == message.generation:
            state.progress.first_ns.setdefault(message.step, at_ns)
            generation.tally[message.step] = generation.tally.get(message.step, 0) + 1
            generation.reached_ns[message.step] = max(at_ns, generation.reached_ns.get(message.step, 0))
            if message.took_s is not None:
                took_ns = ns(message.took_s)
                generation.took_ns[message.step] = min(took_ns, generation.took_ns.get(message.step, took_ns))
            was_fresh = generation.is_fresh
            generations.keep(state, generation, message.step)
            return was_fresh and not generation.is_fresh
    return False


def _moment(state: RunState, member: Member, message: Committed) -> int:
    """When the member had the step, by our clock."""
    if message.at_ns is None:
        return state.now_ns
    if member.clock is None:
        member.clock = MemberClock.begun(message.at_ns, state.now_ns)
    return member.clock.moment_ns(message.at_ns, state.now_ns)


def enter_commits(state: RunState, members: Sequence[Member], message: Committed) -> None:
    """These members of the formed generation have the step, and others are still to report it."""
    generation = state.generations.formed
    assert generation is not None
    assert generation.number == message.generation
    if not members:
        return
    for member in members:
        member.reported, member.version = (message.generation, message.step), message.step
    state.progress.first_ns.setdefault(message.step, state.now_ns)
    generation.tally[message.step] = generation.tally.get(message.step, 0) + len(members)
    if message.took_s is not None:
        took_ns = ns(message.took_s)
        generation.took_ns[message.step] = min(took_ns, generation.took_ns.get(message.step, took_ns))


def finished(state: RunState, member: Member, message: Finished) -> None:
    member.finished, member.finished_ns, member.stage = message, state.now_ns, "finished"
    state.ending.is_anybody_done = True
    if state.ending.closing is not None:  # the run ends anyway: nobody is left to stay for
        state.outbox.effects.append(
            ToMembers((member.name,), Released(outcome=state.ending.closing.end.outcome))
        )
    for name in () if state.generations.announced is None else state.generations.announced.members:
        if stepped(state, state.roster.members[name]):
            return


def stepped(state: RunState, member: Member) -> bool:
    """What a member is doing may show that another one has left the loop over steps alone. Whether it does.

    All of them can leave after the same step, or in the middle of one, and not at the same moment.
    """
    generation = state.generations.announced
    if not state.ending.is_anybody_done or generation is None or member.name not in generation.names:
        return False
    if member.is_lost or member.is_done or member.stage not in IN_STEP or state.ending.closing is not None:
        return False
    for name in generation.members:
        left = state.roster.members[name].finished
        if left is None or state.roster.members[name].is_lost:
            continue
        in_vain = member.stage == "reduce" and member.step > left.step
        is_late = state.now_ns - state.roster.members[name].finished_ns >= ns(LEFT_BEHIND_S)
        if member.step > max(left.step, left.begun) or (in_vain and is_late):
            _blame(state, name, left, member)
            return True
    return False


def _blame(state: RunState, name: str, left: Finished, other: Member) -> None:
    when = f"in the middle of step {left.begun}" if left.begun else f"after step {left.step}"
    where = f" ({left.place})" if left.place else ""
    does = f"has begun step {other.step}" if other.step > left.begun else "waits for it there"
    sentence = f"{name} left the loop over steps {when}{where}, but {other.name} {does}."
    hint = "All members must leave after the same step: decide together, say with run.broadcast()."
    ending.blame(state, sentence, complaint(sentence, hint))


# ---- how things stand ------------------------------------------------------------------------------------


def settle(state: RunState) -> None:
    """Do what can be done as things stand."""
    if _is_complete(state):
        _complete(state)
        return
    losses.judge_setbacks(state)
    if state.ending.closing is not None:
        return
    _give_up_late(state)
    if (rail := replicas.lost_part(state)) is not None:
        replicas.begin_again(state, rail)
    replicas.fence_ahead(state)
    if state.generations.announced is not None:
        hangs.watch(state, state.generations.announced)
    replacing.settle(state)  # after everything that may lose a member
    seats.promote_spare_nodes(state)
    seats.fill_seats(state)
    if state.generations.announced is None or not state.generations.survivors:
        _gather(state)
    else:
        _go_on(state, state.generations.announced)
    if state.ending.closing is None:
        seats.fill_pools(state)


def _gather(state: RunState) -> None:
    """No member steps: at the start, or when all were lost. Wait for all that come, but not too long."""
    if state.devices.failing:
        return  # whether that was the script shows within moments: see devices.give_up
    if not _has_nodes(state) or not state.roster.waiting:
        _stall(state)
        return
    if state.roster.coming or state.generations.keeps_seats:
        first = state.roster.members[next(iter(state.roster.waiting))]
        due_ns = first.ready_ns + state.observed.start_wait_ns
        if state.now_ns < due_ns:
            state.outbox.wake(due_ns)
            return
    if not replicas.arrange(state, [], list(state.roster.waiting), ""):
        _await_replica(state)
    elif state.generations.announced is not None or setups.has_lanes(state):
        _announce(state, [], at_boundary=False)


def _go_on(state: RunState, generation: Generation) -> None:
    """There are survivors: without the lost ones as soon as may be, with newcomers when it suits."""
    survivors = generation.living
    if generation.lost or generation.is_void:
        if not _has_nodes(state):
            _stall(state)
        elif not (
            devices.awaits_exit(state, generation)
            or _awaits_replacement(state, generation)
            or _awaits_main(state)
        ):
            if replicas.arrange(state, survivors, list(state.roster.waiting), ""):
                _announce(state, survivors, at_boundary=False)
            else:
                _await_replica(state)
    elif generation.broken_ns is not None:
        due_ns = generation.broken_ns + state.observed.broken_ns
        if state.now_ns < due_ns:
            state.outbox.wake(due_ns)
        elif generation.leaving and generation.formed_ns is None:
            why = "a collective failed" if generation.trouble is None else str(generation.trouble)
            replacing.revert(state, generation, why)  # they have the state, and stay
            _announce(state, generation.members, at_boundary=False)
        else:
            state.progress.setbacks += 1
            _announce(state, survivors, at_boundary=False, because=generations.broke(state, generation))
    elif (
        state.ending.is_cut_short
        and replicas.would_grow(state, generation)
        and generation.formed_ns is not None
    ):
        _announce(state, survivors, at_boundary=False)
    elif _may_grow(state, generation):
        _announce(state, survivors, at_boundary=True)


def _awaits_replacement(state: RunState, generation: Generation) -> bool:
    """Whether a replacement may be ready soon enough to wait for.

    Nobody waits for one whose predecessor was lost earlier: the run has gone on without that one already.
    """
    wait_ns = state.observed.replace_ns
    dues_ns = [
        member.admitted_ns + wait_ns
        for member in map(state.roster.members.__getitem__, state.roster.coming)
        if member.replaces in generation.lost
        and member.reached == "admitted"
        and state.now_ns < member.admitted_ns + wait_ns
    ]
    for due_ns in dues_ns:
        state.outbox.wake(due_ns)
    return bool(dues_ns)


def _awaits_main(state: RunState) -> bool:
    """Whether somebody is to come who does again what only rank 0 does, after the last step.

    The others have nothing more to compute. If one of them were rank 0 meanwhile, two might do it at once; or
    none, where its script is past it already.
    """
    is_there = any(
        replicas.may_stand_in(state, name) and replacing.is_newcomer(state, name)
        for name in state.roster.waiting
    )
    return bool(state.ending.undone_main) and not is_there and seats.is_anybody_coming(state)


def _may_grow(state: RunState, generation: Generation) -> bool:
    """Whether newcomers are to come in now. Members that are done never reach a step boundary again."""
    return (
        generation.formed_ns is not None
        and (
            bool(replicas.leaving(state, generation.members))
            or (replicas.would_grow(state, generation) and _has_room(state))
        )
        and not _is_anybody_done(state, generation)
        and not _awaits_siblings(state)
    )


def _has_room(state: RunState) -> bool:
    return state.policy.mesh.ranks > 1 or generations.room(state) > 0


def _awaits_siblings(state: RunState) -> bool:
    """Whether more members of a newcomer's node are about to be ready: better one change than several."""
    if not state.roster.waiting:
        return False
    first = state.roster.members[next(iter(state.roster.waiting))]
    due_ns = first.ready_ns + state.observed.join_ns
    if state.now_ns >= due_ns:
        return False
    nodes = {state.roster.members[name].node for name in state.roster.waiting}
    if not any(state.roster.members[name].node in nodes for name in state.roster.coming):
        return False
    state.outbox.wake(due_ns)
    return True


def _announce(
    state: RunState, survivors: Sequence[str], *, at_boundary: bool, because: Trouble | None = None
) -> None:
    generations.announce(state, survivors, at_boundary=at_boundary, because=because)
    assert state.generations.announced is not None
    hangs.watch(state, state.generations.announced)  # it must be formed in time


def _has_nodes(state: RunState) -> bool:
    return state.roster.nodes_active >= state.policy.nodes_min


def _await_replica(state: RunState) -> None:
    """Not even one replica is whole: wait for members who make it so."""
    if replicas.move_nodes(state):
        seats.fill_seats(state)
    _stall(state)


def _stall(state: RunState) -> None:
    """The run cannot go on for want of nodes or members: wait for them, at most `wait_s`. When nodes have
    come, their members have as long again to get ready. Each lost node is a setback, which bounds that.
    """
    ranks, lacks_nodes = state.policy.mesh.ranks, not _has_nodes(state)
    want = "members that are ready" if ranks == 1 else f"a whole replica of {ranks} members"
    if lacks_nodes:
        want = f"nodes: {state.roster.nodes_active} of at least {state.policy.nodes_min} have joined"
    if state.launch.stalled_ns is None or state.launch.lacks_nodes != lacks_nodes:
        state.launch.stalled_ns, state.launch.lacks_nodes = state.now_ns, lacks_nodes
        if state.generations.announced is not None:
            state.outbox.say(f"waiting for {want}, for at most {state.policy.wait_s:g} s", "trouble")
    due_ns = state.launch.stalled_ns + state.wait_ns
    if state.now_ns >= due_ns:
        ending.fail(state, f"waited {state.policy.wait_s:g} s in vain for {want}")
    else:
        state.outbox.wake(due_ns)


# ---- who is late -----------------------------------------------------------------------------------------


def _give_up_late(state: RunState) -> None:
    """A member that has a seat and does not get ready keeps it from others. The first has had it longest."""
    while state.roster.coming:
        member = state.roster.members[next(iter(state.roster.coming))]
        due_ns = member.seated_ns + state.wait_ns
        if state.now_ns < due_ns:
            state.outbox.wake(due_ns)
            return
        losses.fence(state, member, "not ready in time", onset_ns=None)


# ---- the end ---------------------------------------------------------------------------------------------


def _is_complete(state: RunState) -> bool:
    """Whether everybody who is left is done. Newcomers need not be, if no boundary came for them; but whoever
    was cut short in what its script does after the last step must have somebody to do it again.
    """
    generation = state.generations.announced
    is_awaited = bool(state.roster.waiting) if generation is None else replicas.would_grow(state, generation)
    if state.ending.is_cut_short and (is_awaited or seats.is_anybody_coming(state)):
        return False
    if (generation is None or not generation.living) and _have_all_left(state):
        return True
    if generation is None or not _is_anybody_done(state, generation):
        return False
    present = [state.roster.members[name] for name in generation.living]
    if generation.at_boundary and not generation.regrouped and state.generations.formed is not None:
        present = [member for member in present if member.name in state.generations.formed.names]
        present += [state.roster.members[name] for name in generation.leaving]
    return all(member.is_done for member in present)


def _have_all_left(state: RunState) -> bool:
    """Whether the script has come to its end in every seat, before it came into a generation."""
    if not state.roster.departed:
        return False
    seated = [name for node in state.roster.nodes.values() for name in node.seats]
    return bool(seated) and all(name is not None and _has_left(state, name) for name in seated)


def _has_left(state: RunState, seated: str) -> bool:
    """Whoever left keeps its seat, also when its name is forgotten."""
    member = state.roster.members.get(seated)
    return member is None or member.has_left


def _is_anybody_done(state: RunState, generation: Generation) -> bool:
    return state.ending.is_anybody_done and any(
        state.roster.members[name].is_done for name in generation.present
    )


def _complete(state: RunState) -> None:
    """Release all members, if they agree on what they have."""
    names = () if state.generations.announced is None else state.generations.announced.members
    finished = {name: told for name in names if (told := state.roster.members[name].finished) is not None}
    differing = _differing(state, {name: told.digest for name, told in finished.items()})
    if not differing:
        digest = _digest_words(state, finished)
        pacing.note(state, is_last=True)
        survived = state.progress.survived.words
        if reason := _exited_early(state, finished.values()):
            state.outbox.say(f"stopped{survived}: {reason}{digest}")
            ending.complete(state, "stopped", reason)
            return
        state.outbox.say(f"completed{survived}: step {state.progress.step}{digest}")
        ending.complete(state)
        return
    ending.fail(state, f"the members ended with different weights: {differing}")


def _differing(state: RunState, digests: Mapping[str, str]) -> str:
    """Which members differ from those that have the same part of the model; empty where none does."""
    rails: dict[int, dict[str, str]] = {}
    for name, digest in digests.items():
        rails.setdefault(state.roster.members[name].rail, {})[name] = digest
    for told in rails.values():
        common, count = Counter(told.values()).most_common(1)[0]
        if count < len(told):
            others = ", ".join(name for name, digest in told.items() if digest != common)
            agreeing = next(name for name, digest in told.items() if digest == common)
            return f"{others} differs from {agreeing}"
    return ""


def _digest_words(state: RunState, finished: Mapping[str, Finished]) -> str:
    """Of the weights. Where they are in parts, of the parts' digests."""
    by_rail = {state.roster.members[name].rail: told.digest for name, told in finished.items()}
    parts = [by_rail[rail] for rail in sorted(by_rail)]
    if len(parts) > 1:
        parts = [hashlib.sha256("".join(parts).encode()).hexdigest()]
    return "".join(f", digest {digest}" for digest in parts)


def _exited_early(state: RunState, finished: Iterable[Finished]) -> str:
    """In words, that the scripts exited before their last step; empty where they did not."""
    told = [each for each in finished if each.is_exit]
    if not any(member.finished for member in state.roster.members.values()):  # they ended by os._exit(0), say
        told = [
            Finished(member="", step=state.progress.step, digest="", steps_total=state.progress.steps_total)
        ]
    return next((each.exit_words for each in told if each.is_early), "")


def _number(generation: Generation | None) -> int:
    return 0 if generation is None else generation.number
