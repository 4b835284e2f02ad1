"""The membership of a script that joins: generations that replace, shrink and grow.

`settle` looks at how things stand and does whatever brings the run nearer to full membership; it runs after
everything that changes them, so nothing depends on the order in which messages arrive. What it cannot do yet
it looks at again when something happens, or at `State.due_ns`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

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
    seats,
    setups,
)
from holdfast.run.state import Member, Round, State, ToMembers, Trouble
from holdfast.run.waits import ns
from holdfast.run.wire import Broken, Committed, Finished, Regrouped, Released, Stage, WorkerReady

STEPPING: frozenset[Stage] = frozenset({"lanes", "reduce", "commit"})
LEFT_BEHIND_S = 1.0
"""Whoever still waits for the gradients of one that left its step so long ago waits in vain."""


# ---- what members say ------------------------------------------------------------------------------------


def joined(state: State, member: Member) -> None:
    """It is at `join()`. An active one goes on at once, a warm one stays until it is needed."""
    if member.reached != "started":
        return
    state.observed.note_start(state.now_ns - member.started_ns)
    member.reached = "parked"
    if member.is_muted:
        processes.show(state, member)
    if member.role == "active":
        processes.admit(state, member)
    else:
        state.nodes[member.node].failures = 0


def ready(state: State, member: Member, message: WorkerReady) -> None:
    """It is at `protect()`: from here on it can be in a generation, if it is built like the others."""
    if member.reached != "admitted" or not setups.fits(state, member, message.setup):
        return
    state.observed.note_ready(ns(message.took_s))
    member.reached, member.ready_ns = "ready", state.now_ns
    state.nodes[member.node].failures = 0
    del state.coming[member.name]
    state.waiting[member.name] = None


def regrouped(state: State, member: Member, message: Regrouped) -> bool:
    """It is in the group of the generation and has its state. Whether it was the last, and completes it."""
    round_ = state.round
    if round_ is None or message.generation != round_.number or member.name not in round_.names:
        return False
    member.lanes = message.lanes
    planned(state, message.steps_total)
    round_.regrouped[member.name] = message.version
    for part, took_s in message.parts_s.items():
        round_.parts_ns[part] = max(round_.parts_ns.get(part, 0), ns(took_s))
    if len(round_.regrouped) < len(round_.members) or round_.lost or round_.formed_ns is not None:
        return False
    generations.form(state, round_)
    return True


def planned(state: State, steps_total: int) -> bool:
    """A script has come to a loop over steps. Whether the step that seemed to be the last one is not.

    A newcomer's script goes through loops that the others have left.
    """
    if steps_total <= state.steps_total:
        return False
    state.steps_total = steps_total
    if state.undone_main and not state.is_anybody_done:
        state.undone_main, state.is_cut_short = "", False
        return True
    return False


def broken(state: State, message: Broken) -> None:
    """A collective failed. Who is to blame shows within moments; if nobody does, all of them try again.

    The first to say so counts: what the others then see is that the first has left.
    """
    round_ = state.round
    if round_ is None or round_.broken_ns is not None:
        return
    is_pending = round_.at_boundary and round_.formed_ns is None  # then the one before still works
    if message.generation == round_.number or (is_pending and message.generation == _number(state.stepping)):
        round_.broken_ns = state.now_ns
        round_.trouble = generations.trouble_of(message.member, message.operation, message.reason)


def committed(state: State, member: Member, message: Committed) -> bool:
    """One member has the step; the run has it when all of the generation do. Whether it is the first of its
    generation, after which the next must not take as long.
    """
    if message.loss is not None and (not state.losses or state.losses[-1][0] < message.step):
        state.losses.append((message.step, message.loss))
    if (message.generation, message.step) <= member.reported:
        return False
    member.reported = (message.generation, message.step)
    for round_ in (state.stepping, state.round):
        if round_ is not None and round_.number == message.generation:
            state.first_ns.setdefault(message.step, state.now_ns)
            round_.tally[message.step] = round_.tally.get(message.step, 0) + 1
            if message.took_s is not None:
                took_ns = ns(message.took_s)
                round_.took_ns[message.step] = min(took_ns, round_.took_ns.get(message.step, took_ns))
            was_fresh = round_.is_fresh
            generations.keep(state, round_, message.step)
            return was_fresh and not round_.is_fresh
    return False


def finished(state: State, member: Member, message: Finished) -> None:
    member.finished, member.finished_ns, member.stage = message, state.now_ns, "finished"
    state.is_anybody_done = True
    if state.closing is not None:  # the run ends anyway: nobody is left to stay for
        state.out.append(ToMembers((member.name,), Released(outcome=state.closing.end.outcome)))
    for name in () if state.round is None else state.round.members:
        if stepped(state, state.members[name]):
            return


def stepped(state: State, member: Member) -> bool:
    """What a member is doing may show that another one has left the loop over steps alone. Whether it does.

    All of them can leave after the same step, or in the middle of one, and not at the same moment.
    """
    round_ = state.round
    if not state.is_anybody_done or round_ is None or member.name not in round_.names:
        return False
    if member.is_lost or member.is_done or member.stage not in STEPPING or state.closing is not None:
        return False
    for name in round_.members:
        left = state.members[name].finished
        if left is None or state.members[name].is_lost:
            continue
        in_vain = member.stage == "reduce" and member.step > left.step
        is_late = state.now_ns - state.members[name].finished_ns >= ns(LEFT_BEHIND_S)
        if member.step > max(left.step, left.begun) or (in_vain and is_late):
            _blame(state, name, left, member)
            return True
    return False


def _blame(state: State, name: str, left: Finished, other: Member) -> None:
    when = f"in the middle of step {left.begun}" if left.begun else f"after step {left.step}"
    where = f" ({left.place})" if left.place else ""
    does = f"has begun step {other.step}" if other.step > left.begun else "waits for it there"
    sentence = f"{name} left the loop over steps {when}{where}, but {other.name} {does}."
    hint = "All members must leave after the same step: decide together, say with run.broadcast()."
    ending.blame(state, sentence, complaint(sentence, hint))


# ---- how things stand ------------------------------------------------------------------------------------


def settle(state: State) -> None:
    """Do what can be done as things stand."""
    if _is_complete(state):
        _complete(state)
        return
    losses.judge_setbacks(state)
    if state.closing is not None:
        return
    _give_up_late(state)
    if state.round is not None:
        hangs.watch(state, state.round)
    replacing.settle(state)  # after everything that may lose a member
    seats.promote_spare_nodes(state)
    seats.fill_seats(state)
    if state.round is None or not state.survivors:
        _gather(state)
    else:
        _go_on(state, state.round)
    if state.closing is None:
        seats.fill_pools(state)


def _gather(state: State) -> None:
    """Nobody steps: at the start, or when everybody was lost. Wait for all who come, but not too long."""
    if state.failing:
        return  # whether that was the script shows within moments: see devices.give_up
    if not _has_nodes(state) or not state.waiting:
        _stall(state)
        return
    if state.coming:
        first = state.members[next(iter(state.waiting))]
        due_ns = first.ready_ns + state.observed.start_wait_ns
        if state.now_ns < due_ns:
            state.wake(due_ns)
            return
    if state.round is not None or setups.has_lanes(state):
        _announce(state, [], at_boundary=False)


def _go_on(state: State, round_: Round) -> None:
    """There are survivors: without the lost ones as soon as may be, with newcomers when it suits."""
    survivors = round_.living
    if round_.lost or round_.is_void:
        if not _has_nodes(state):
            _stall(state)
        elif not (
            devices.awaits_exit(state, round_) or _awaits_replacement(state, round_) or _awaits_main(state)
        ):
            _announce(state, survivors, at_boundary=False)
    elif round_.broken_ns is not None:
        due_ns = round_.broken_ns + state.observed.broken_ns
        if state.now_ns < due_ns:
            state.wake(due_ns)
        elif round_.leaving and round_.formed_ns is None:
            why = "a collective failed" if round_.trouble is None else str(round_.trouble)
            replacing.revert(state, round_, why)  # they have the state, and stay
            _announce(state, round_.members, at_boundary=False)
        else:
            state.setbacks += 1
            _announce(state, survivors, at_boundary=False, because=generations.broke(state, round_))
    elif state.is_cut_short and state.waiting and round_.formed_ns is not None:
        _announce(state, survivors, at_boundary=False)
    elif _may_grow(state, round_):
        _announce(state, survivors, at_boundary=True)


def _awaits_replacement(state: State, round_: Round) -> bool:
    """Whether somebody who takes a lost one's place may be ready soon enough to wait for.

    Nobody waits for one whose predecessor was lost earlier: the run has gone on without that one already.
    """
    wait_ns = state.observed.replace_ns
    dues_ns = [
        member.admitted_ns + wait_ns
        for member in map(state.members.__getitem__, state.coming)
        if member.replaces in round_.lost
        and member.reached == "admitted"
        and state.now_ns < member.admitted_ns + wait_ns
    ]
    for due_ns in dues_ns:
        state.wake(due_ns)
    return bool(dues_ns)


def _awaits_main(state: State) -> bool:
    """Whether somebody is to come who does again what only rank 0 does, after the last step.

    The others have nothing more to compute. If one of them were rank 0 meanwhile, two might do it at once; or
    none, where its script is past it already.
    """
    return bool(state.undone_main) and not state.waiting and seats.is_anybody_coming(state)


def _may_grow(state: State, round_: Round) -> bool:
    """Whether newcomers are to come in now. Members that are done never reach a step boundary again."""
    return (
        round_.formed_ns is not None
        and (
            bool(replacing.ready(state, round_.members))
            or (bool(state.waiting) and generations.room(state) > 0)
        )
        and not _is_anybody_done(state, round_)
        and not _awaits_siblings(state)
    )


def _awaits_siblings(state: State) -> bool:
    """Whether more members of a newcomer's node are about to be ready: better one change than several."""
    if not state.waiting:
        return False
    first = state.members[next(iter(state.waiting))]
    due_ns = first.ready_ns + state.observed.join_ns
    if state.now_ns >= due_ns:
        return False
    nodes = {state.members[name].node for name in state.waiting}
    if not any(state.members[name].node in nodes for name in state.coming):
        return False
    state.wake(due_ns)
    return True


def _announce(
    state: State, survivors: Sequence[str], *, at_boundary: bool, because: Trouble | None = None
) -> None:
    generations.announce(state, survivors, at_boundary=at_boundary, because=because)
    assert state.round is not None
    hangs.watch(state, state.round)  # it must be formed in time


def _has_nodes(state: State) -> bool:
    return state.nodes_active >= state.policy.nodes_min


def _stall(state: State) -> None:
    """The run cannot go on for want of nodes or members: wait for them, at most `wait_s`."""
    want = "members that are ready"
    if not _has_nodes(state):
        want = f"nodes: {state.nodes_active} of at least {state.policy.nodes_min} are there"
    if state.stalled_ns is None:
        state.stalled_ns = state.now_ns
        if state.round is not None:
            state.say(f"waiting for {want}, for at most {state.policy.wait_s:g} s", "trouble")
    due_ns = state.stalled_ns + state.wait_ns
    if state.now_ns >= due_ns:
        ending.fail(state, f"waited {state.policy.wait_s:g} s in vain for {want}")
    else:
        state.wake(due_ns)


# ---- who is late -----------------------------------------------------------------------------------------


def _give_up_late(state: State) -> None:
    """Whoever has a seat and does not get ready keeps it from others. The first has had it longest."""
    while state.coming:
        member = state.members[next(iter(state.coming))]
        due_ns = member.seated_ns + state.wait_ns
        if state.now_ns < due_ns:
            state.wake(due_ns)
            return
        losses.fence(state, member, "not ready in time", onset_ns=None)


# ---- the end ---------------------------------------------------------------------------------------------


def _is_complete(state: State) -> bool:
    """Whether everybody who is left is done. Newcomers need not be, if no boundary came for them; but whoever
    was cut short in what its script does after the last step must have somebody to do it again.
    """
    if state.is_cut_short and (state.waiting or seats.is_anybody_coming(state)):
        return False
    round_ = state.round
    if round_ is None:
        seated = [name for node in state.nodes.values() for name in node.seats] if state.departed else []
        return bool(seated) and all(name is not None and state.members[name].has_left for name in seated)
    if not _is_anybody_done(state, round_):
        return False
    present = [state.members[name] for name in round_.living]
    if round_.at_boundary and not round_.regrouped and state.stepping is not None:
        present = [member for member in present if member.name in state.stepping.names]
        present += [state.members[name] for name in round_.leaving]
    return all(member.is_done for member in present)


def _is_anybody_done(state: State, round_: Round) -> bool:
    return state.is_anybody_done and any(state.members[name].is_done for name in round_.present)


def _complete(state: State) -> None:
    """Release everybody, if they agree on what they have."""
    names = () if state.round is None else state.round.members
    finished = {name: told for name in names if (told := state.members[name].finished) is not None}
    digests = {name: told.digest for name, told in finished.items()}
    if len(set(digests.values())) <= 1:
        digest = "".join(f", digest {digest}" for digest in set(digests.values()))
        pacing.note(state, is_last=True)
        survived = state.survived.words
        if reason := _exited_early(state, finished.values()):
            state.say(f"stopped{survived}: {reason}{digest}")
            ending.complete(state, "stopped", reason)
            return
        state.say(f"completed{survived}: step {state.step}{digest}")
        ending.complete(state)
        return
    common, _ = Counter(digests.values()).most_common(1)[0]
    others = ", ".join(name for name, digest in digests.items() if digest != common)
    agreeing = next(name for name, digest in digests.items() if digest == common)
    ending.fail(state, f"the members ended with different weights: {others} differs from {agreeing}")


def _exited_early(state: State, finished: Iterable[Finished]) -> str:
    """In words, that the scripts exited before their last step; empty where they did not."""
    told = [each for each in finished if each.is_exit]
    if not any(member.finished for member in state.members.values()):  # they ended by os._exit(0), say
        told = [Finished(member="", step=state.step, digest="", steps_total=state.steps_total)]
    return next((each.exit_words for each in told if each.is_early), "")


def _number(round_: Round | None) -> int:
    return 0 if round_ is None else round_.number
