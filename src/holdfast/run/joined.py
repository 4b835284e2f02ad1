"""The membership of a script that joins: generations that replace, shrink and grow.

`settle` looks at the whole state and does whatever brings the run nearer to full membership. It runs after
every change of the state, so nothing depends on the order in which messages arrive. If something has to wait,
it looks again after the next event or at `Outbox.due_ns`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from holdfast import wording
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
from holdfast.run.wire import Broken, Committed, Finished, Regrouped, Released, WorkerJoined, WorkerReady

LEFT_BEHIND_S = 1.0
"""A member that still waits for the gradients of one that left its step this long ago waits in vain."""


# ---- messages from members -------------------------------------------------------------------------------


def enter(state: RunState, member: Member, message: WorkerJoined) -> None:
    """Handle a member that reached `join()`. An active one is admitted at once; a warm one waits until it is
    needed.
    """
    if member.reached != "started":
        return
    state.observed.note("start", state.now_ns - member.started_ns)
    member.reached, member.is_warming = "parked", message.warms_up and member.role == "spare"
    if member.is_muted:
        processes.show(state, member)
    if member.role == "active":
        processes.admit(state, member)
    else:
        state.roster.nodes[member.node].failures = 0


def ready(state: RunState, member: Member, message: WorkerReady) -> None:
    """Handle a member that reached `protect()`: it can be in a generation if its setup fits the others."""
    if member.reached != "admitted" or not setups.fits(state, member, message.setup):
        return
    state.observed.note("ready", ns(message.took_s))
    member.reached, member.ready_ns, member.is_warming = "ready", state.now_ns, False
    state.roster.nodes[member.node].failures = 0
    del state.roster.coming[member.name]
    state.roster.waiting[member.name] = None


def regrouped(state: RunState, member: Member, message: Regrouped) -> bool:
    """Note that a member is in the generation's group and has its state; whether that was the last one."""
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
    """Note that these members of the announced generation are in its group, while others are not yet."""
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
    """Note the length of a loop over steps that a script has reached; whether the supposed last step turns
    out not to be the last.

    A newcomer's script passes through loops that the others have left.
    """
    if steps_total <= state.progress.steps_total:
        return False
    state.progress.steps_total = steps_total
    if state.ending.undone_main and not state.ending.is_anybody_done:
        state.ending.undone_main, state.ending.is_cut_short = "", False
        return True
    return False


def broken(state: RunState, message: Broken) -> None:
    """Note that a collective failed. The culprit shows within moments; if none does, all members try again.

    Only the first report of a generation counts: the others then merely see that the first has left.
    """
    generation = state.generations.announced
    if generation is None:
        return
    is_own = message.generation == generation.number
    is_known = generation.trouble is not None and not (is_own and generation.trouble.is_before)
    is_pending = generation.at_boundary and generation.formed_ns is None  # then the previous one still steps
    is_before = is_pending and message.generation == _number(state.generations.formed)
    if not is_known and (is_own or is_before):
        generation.broken_ns = state.now_ns
        generation.trouble = generations.trouble_of(message, is_before=is_before)


def committed(state: RunState, member: Member, message: Committed) -> bool:
    """Note that one member has the step; the run has it when all of the generation do. Return whether this
    was the generation's first step, after which shorter time limits apply.
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
    else:  # forget lanes that were skipped before the run went back
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
    """The time at which the member had the step, by our clock."""
    if message.at_ns is None:
        return state.now_ns
    if member.clock is None:
        member.clock = MemberClock.begun(message.at_ns, state.now_ns)
    return member.clock.moment_ns(message.at_ns, state.now_ns)


def enter_commits(state: RunState, members: Sequence[Member], message: Committed) -> None:
    """Note that these members of the formed generation have the step, while others have not reported it."""
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
    if state.ending.closing is not None:  # the run ends anyway, so it need not stay
        state.outbox.effects.append(
            ToMembers((member.name,), Released(outcome=state.ending.closing.end.outcome))
        )
    for name in () if state.generations.announced is None else state.generations.announced.members:
        if stepped(state, state.roster.members[name]):
            return


def stepped(state: RunState, member: Member) -> bool:
    """Whether this member's stage shows that another one left the loop over steps alone. If so, end the run.

    It is fine if all leave after the same step, or in the middle of the same one, at different moments.
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


# ---- settling --------------------------------------------------------------------------------------------


def settle(state: RunState) -> None:
    """Do everything that the present state allows."""
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
    """Gather members when none is stepping, at the start or after all were lost. Wait for all that are
    coming, but not too long.
    """
    if state.devices.failing:
        return  # it shows within moments whether the script is at fault: see devices.give_up
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
    """Continue with the survivors: without lost members as soon as possible, with newcomers when it suits."""
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
        else:
            if generation.leaving and generation.formed_ns is None:
                replacing.put_off(state, generation)
                survivors = generation.members
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

    The run does not wait if the predecessor was lost earlier, because it already continues without that one.
    Nor does it wait for a process that is not warm yet, which may take long.
    """
    wait_ns = state.observed.replace_ns
    dues_ns = [
        member.admitted_ns + wait_ns
        for member in map(state.roster.members.__getitem__, state.roster.coming)
        if member.replaces in generation.lost
        and member.reached == "admitted"
        and not member.is_warming
        and state.now_ns < member.admitted_ns + wait_ns
    ]
    for due_ns in dues_ns:
        state.outbox.wake(due_ns)
    return bool(dues_ns)


def _awaits_main(state: RunState) -> bool:
    """Whether a member is coming that will repeat rank 0's own work after the last step.

    The others have nothing more to compute. If one of them became rank 0 meanwhile, two might do that work at
    once, or none if its script is already past it.
    """
    is_there = any(
        replicas.may_stand_in(state, name) and replacing.is_newcomer(state, name)
        for name in state.roster.waiting
    )
    return bool(state.ending.undone_main) and not is_there and seats.is_anybody_coming(state)


def _may_grow(state: RunState, generation: Generation) -> bool:
    """Whether newcomers may join now. Members that are done never reach a step boundary again."""
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
    """Whether more members of a newcomer's node will be ready soon: one change is better than several."""
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
    """Wait for members because not even one replica is whole."""
    if replicas.move_nodes(state):
        seats.fill_seats(state)
    _stall(state)


def _stall(state: RunState) -> None:
    """Wait for missing nodes or members, for at most `wait_s`. After nodes have joined, their members have as
    long again to get ready. Each lost node is a setback, and the limit on setbacks bounds this.
    """
    ranks, lacks_nodes = state.policy.mesh.ranks, not _has_nodes(state)
    want = "members that are ready" if ranks == 1 else f"a whole replica of {ranks} members"
    if lacks_nodes:
        want = f"nodes: {state.roster.nodes_active} of at least {state.policy.nodes_min} have joined"
    if state.launch.stalled_ns is None or state.launch.lacks_nodes != lacks_nodes:
        state.launch.stalled_ns, state.launch.lacks_nodes = state.now_ns, lacks_nodes
        if state.generations.announced is not None:
            state.outbox.say(
                f"waiting for {want}, for at most {wording.number(state.policy.wait_s)} s", "trouble"
            )
    due_ns = state.launch.stalled_ns + state.wait_ns
    if state.now_ns >= due_ns:
        ending.fail(state, f"waited {wording.number(state.policy.wait_s)} s in vain for {want}")
    else:
        state.outbox.wake(due_ns)


# ---- late members ----------------------------------------------------------------------------------------


def _give_up_late(state: RunState) -> None:
    """Give up members that do not get ready, because they keep their seats from others. The first of
    `coming` has had its seat longest.
    """
    while state.roster.coming:
        member = state.roster.members[next(iter(state.roster.coming))]
        due_ns = member.seated_ns + state.wait_ns
        if state.now_ns < due_ns:
            state.outbox.wake(due_ns)
            return
        losses.fence(state, member, "not ready in time", onset_ns=None)


# ---- the end ---------------------------------------------------------------------------------------------


def _is_complete(state: RunState) -> bool:
    """Whether all remaining members are done. Newcomers for which no boundary came need not be. But if a
    member was lost in its script's work after the last step, another one must repeat that work.
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
    """Whether the script ended in every seat before it entered a generation."""
    if not state.roster.departed:
        return False
    seated = [name for node in state.roster.nodes.values() for name in node.seats]
    return bool(seated) and all(name is not None and _has_left(state, name) for name in seated)


def _has_left(state: RunState, seated: str) -> bool:
    """Whether the seat's member has left. It keeps the seat even after its name is forgotten."""
    member = state.roster.members.get(seated)
    return member is None or member.has_left


def _is_anybody_done(state: RunState, generation: Generation) -> bool:
    return state.ending.is_anybody_done and any(
        state.roster.members[name].is_done for name in generation.present
    )


def _complete(state: RunState) -> None:
    """Release all members if their weights agree; otherwise fail the run."""
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
        if state.progress.step and not state.progress.has_committed:
            state.outbox.say(
                "nothing was trained: the checkpoint already had all steps that the script asks for; "
                "to train anew, start it under another name (--run)"
            )
        ending.complete(state)
        return
    ending.fail(state, f"the members ended with different weights: {differing}")


def _differing(state: RunState, digests: Mapping[str, str]) -> str:
    """Which members differ from others with the same part of the model; empty if none does."""
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
    """A phrase with the digest of the weights, or of the parts' digests if the model is sharded."""
    by_rail = {state.roster.members[name].rail: told.digest for name, told in finished.items()}
    parts = [by_rail[rail] for rail in sorted(by_rail)]
    if len(parts) > 1:
        parts = [hashlib.sha256("".join(parts).encode()).hexdigest()]
    return "".join(f", digest {digest}" for digest in parts)


def _exited_early(state: RunState, finished: Iterable[Finished]) -> str:
    """A phrase saying that the scripts exited before their last step; empty if they did not."""
    told = [each for each in finished if each.is_exit]
    if not any(member.finished for member in state.roster.members.values()):  # for example by os._exit(0)
        told = [
            Finished(member="", step=state.progress.step, digest="", steps_total=state.progress.steps_total)
        ]
    return next((each.exit_words for each in told if each.is_early), "")


def _number(generation: Generation | None) -> int:
    return 0 if generation is None else generation.number
