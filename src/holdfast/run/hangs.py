"""Members that make no progress: reported after a while, with the reason, and ended later.

Silence proves nothing: a script that sorts a long list keeps its process from sending messages, and is well.
The agent sees whether a process is stopped (membership.py). A hang shows here, because no commit comes. The
bound follows from the run's times so far (waits.py), and is shorter if the process itself shows that it is
stuck (explaining.py). A member that waits for others is not to blame, work that a script has declared
(`run.alone`) gets its time, and the last copies of the state are given up last.
"""

from collections.abc import Sequence

from holdfast.run import explaining, losses, replacing, replicas, seats
from holdfast.run.explaining import Explanation, HangKind, Watched
from holdfast.run.happenings import ToNode
from holdfast.run.stages import HELD_UP, REGROUPING
from holdfast.run.state import DeclaredWork, Generation, Member, RunState, Stall, Trouble
from holdfast.run.waits import IDLE_S_MAX, LOCATE_S, LOOK_S_MAX, PATIENT_S, ns
from holdfast.run.wire import Locate, Located, Stage, Working

STEP_HANGS = "no progress"
FORMATION_HANGS = "did not regroup in time"
UNREACHED = "cut off"
"""The reported reasons for which members are ended."""
LOOKS = 4
"""How many looks there are, at equal intervals, before a stuck member is ended. After that, each look comes a
quarter later than the one before..."""
LOOKS_UNHURRIED = 3
"""...and without such a shorter bound, looks come at a third of the usual bound, at two thirds and at its
end. If no member is ended then, looks become ever rarer."""
NAMED_MAX = 4
"""How many members are located and named in a line."""
ASKED_MAX = 64
"""How many members, waiting ones included, are located once to record their stacks."""
DECLARABLE: frozenset[HangKind] = frozenset({"loop", "busy", "idle", "unknown"})
"""Kinds of hang that may have been work after all."""
AT_REST: frozenset[HangKind] = frozenset({"lock", "members", "idle"})
"""Kinds in which a member cannot be at work, nor waiting for data. In the first step of a generation it may
have to read data for lanes that are new to it."""
HINT = (
    "if this was real work, such as an evaluation, declare it: `with run.alone(...)` on one member, "
    "`with run.together(...)` on all; --hang-after sets how long a member may take"
)


# ---- reports ---------------------------------------------------------------------------------------------


def working(state: RunState, member: Member, message: Working) -> None:
    """Note that work declared by a script begins or is over."""
    work = state.hangs.working.pop(member.name, None)
    if work is not None:
        state.observed.note("work", state.now_ns - work.since_ns)
        state.hangs.resumed_ns = state.now_ns
    if not message.is_over:
        state.hangs.working[member.name] = DeclaredWork(name=message.work, since_ns=state.now_ns)


def located(state: RunState, message: Located) -> None:
    stall = state.hangs.stall
    if stall is not None and message.member in stall.awaited:
        del stall.awaited[message.member]
        before = stall.watched.get(message.member)
        stall.watched[message.member] = (
            Watched.begun(message, state.now_ns) if before is None else before.then(message, state.now_ns)
        )


def moved(state: RunState, member: Member, stage: Stage) -> None:
    """Note a heartbeat. When a member leaves its step to regroup, the time for regrouping starts again."""
    if stage in REGROUPING and member.stage not in REGROUPING:
        _note_left(state)


def published(state: RunState, member: Member, number: int) -> None:
    """Note that a member told the others of a generation its standing, which is its first message to them."""
    generation = state.generations.announced
    if generation is not None and generation.number == number and member.name not in generation.published:
        generation.published[member.name] = None
        _note_left(state)


def _note_left(state: RunState) -> None:
    generation = state.generations.announced
    if generation is not None and generation.formed_ns is None:
        generation.left_ns = state.now_ns
        state.outbox.wake(state.now_ns + state.observed.form_wait_ns // LOOKS)


def bound_ns(state: RunState, generation: Generation) -> int:
    """How long a step of this generation may take before a member is ended. Before the run's first commit
    step times are unknown, so the user's own bound applies only after it.
    """
    observed, set_s = state.observed, state.policy.hang_after_s
    usual_ns = observed.hung_ns if set_s is None else ns(set_s)
    if generation.is_fresh and (set_s is None or state.progress.committed_ns is None):
        usual_ns = max(usual_ns, observed.hung_first_ns)
    return _patiently(state, usual_ns)


def _stuck_ns(state: RunState, generation: Generation) -> int:
    """The bound for a member that is visibly stuck. It is not shorter while usual times are unknown: while a
    generation forms, and in a member's first step. Nor if the user set a bound, perhaps for a reason.
    """
    limit_ns = _limit_ns(state, generation)
    if generation.formed_ns is None or state.policy.hang_after_s is not None:
        return limit_ns
    if generation.is_fresh:
        suspects, _ = _suspects(state, generation)
        if not (suspects and all(state.roster.members[name].reported[0] for name in suspects)):
            return limit_ns
    return min(limit_ns, _patiently(state, state.observed.stuck_ns))


def _patiently(state: RunState, bound_ns: int) -> int:
    """Lengthen the bound after recent endings, because those members may have been at work."""
    patience = state.hangs.endings if state.now_ns < state.hangs.endings_until_ns else 0
    return min(bound_ns << patience, max(bound_ns, ns(IDLE_S_MAX)))


# ---- judging a stall -------------------------------------------------------------------------------------


def watch(state: RunState, generation: Generation) -> None:
    """Make sure that the generation makes progress: that it forms, and then that it commits steps."""
    if generation.lost or _is_excused(state, generation):
        state.hangs.stall = None
        return
    since_ns = _since_ns(state, generation)
    stall = state.hangs.stall
    if stall is None or stall.since_ns != since_ns:
        stall = state.hangs.stall = Stall(since_ns=since_ns)
    while (due_ns := _due_ns(state, generation, stall)) <= state.now_ns:
        if stall.asked_ns is None:
            _ask(state, generation, stall)
        elif _conclude(state, generation, stall):
            return
    state.outbox.wake(due_ns)


def _is_excused(state: RunState, generation: Generation) -> bool:
    """Whether a member is stopped, which a lease handles, or has declared work that may take a while."""
    names = generation.names.union(generation.leaving)
    if not names.isdisjoint(state.hangs.stopped):
        return True
    begun_ns = [work.since_ns for name, work in state.hangs.working.items() if name in names]
    due_ns = max(begun_ns, default=0) + state.observed.work_wait_ns
    if not begun_ns or state.now_ns >= due_ns:
        return False
    state.outbox.wake(due_ns)
    return True


def _since_ns(state: RunState, generation: Generation) -> int:
    """When the run last made progress. Until a boundary comes, the previous generation continues stepping."""
    moments = [state.hangs.resumed_ns, generation.opened_ns, generation.left_ns]
    if generation.formed_ns is not None:
        moments.append(generation.formed_ns)
    if generation.formed_ns is not None or generation.at_boundary:
        moments.append(state.progress.committed_ns or 0)
    return max(moments)


def _due_ns(state: RunState, generation: Generation, stall: Stall) -> int:
    """When to look next, or until when to wait for the agents' answers."""
    if stall.asked_ns is not None:
        return stall.asked_ns + ns(LOCATE_S) if stall.awaited else state.now_ns
    limit_ns, stuck_ns = _limit_ns(state, generation), _stuck_ns(state, generation)
    count = LOOKS if stuck_ns < limit_ns else LOOKS_UNHURRIED
    if stall.looks < count:
        waited_ns = stuck_ns * (stall.looks + 1) // count
        return stall.since_ns + (min(waited_ns, ns(LOOK_S_MAX)) if stall.looks == 0 else waited_ns)
    before_ns = max(stuck_ns, stall.looked_ns - stall.since_ns)
    if before_ns < limit_ns:
        return stall.since_ns + min(before_ns * 5 // 4, limit_ns)
    return stall.since_ns + min(before_ns * 2, _idle_ns(limit_ns))


def _limit_ns(state: RunState, generation: Generation) -> int:
    """After how long a member is ended. A generation forms only after all members have left the step before
    it, or the script's work between steps.
    """
    if generation.formed_ns is not None:
        return bound_ns(state, generation)
    limit_ns = state.observed.form_wait_ns
    late = (member.stage for member in _late(state, generation) if member.name not in generation.published)
    if not REGROUPING.issuperset(late):
        stepping = state.generations.formed if state.generations.formed is not None else generation
        limit_ns += bound_ns(state, stepping)
    return limit_ns


def _idle_ns(limit_ns: int) -> int:
    return max(limit_ns, ns(IDLE_S_MAX))


def _late(state: RunState, generation: Generation) -> list[Member]:
    """The members for which a forming generation waits: those that have not regrouped, and those that leave
    at its boundary. A member that is done reaches no further boundary and is not waited for there.
    """
    names = [name for name in (*generation.members, *generation.leaving) if name not in generation.regrouped]
    members = [state.roster.members[name] for name in names]
    return [member for member in members if not (generation.at_boundary and member.is_done)]


def _suspects(state: RunState, generation: Generation) -> tuple[list[str], bool]:
    """The members that may be to blame, and whether other members wait for them.

    A process that cannot send may be further than its last message says. A member reported in the reduction
    of an earlier step than others, or of a step that it has committed, is not waiting for them.
    """
    if generation.formed_ns is None:
        late = _late(state, generation)
        excused = REGROUPING | HELD_UP if generation.at_boundary else REGROUPING
        absent = [member for member in late if member.name not in generation.published]
        suspects = _behind(absent, late, excused) or _stuck(state, generation, late)
        is_waited_for = len(suspects) < len(late) or bool(generation.regrouped) or not generation.at_boundary
    else:
        late = [
            state.roster.members[name]
            for name in generation.members
            if not state.roster.members[name].is_done
        ]
        suspects = _behind(late, late, HELD_UP)
        is_waited_for = len(suspects) < len(late)
    return [member.name for member in suspects], is_waited_for


def _behind(members: list[Member], others: list[Member], excused: frozenset[Stage]) -> list[Member]:
    """The members that wait for none of the others."""
    step = max((member.step for member in others), default=0)
    return [member for member in members if member.stage not in excused or _is_through(member, step)]


def _stuck(state: RunState, generation: Generation, late: list[Member]) -> list[Member]:
    """The members that are stuck in regrouping itself, which members do together. Suspects are those that
    have not told the others their standing. If all have, and some have finished, suspects are the unfinished
    ones that hold the state, since they give it to the rest. If none has finished, all start again, and then
    it shows.
    """
    regrouping = [member for member in late if member.stage in REGROUPING and member.name in generation.names]
    if absent := [member for member in regrouping if member.name not in generation.published]:
        return absent
    if not generation.regrouped:
        return []
    holders = state.holders
    return [member for member in late if member.name in holders] or late


def _is_through(member: Member, step: int) -> bool:
    """Whether it can no longer be waiting where it last said, because others are at `step`."""
    if member.stage == "reduce":
        return member.step < step or member.reported[1] >= member.step
    return member.stage == "meeting" and member.step < step


def _is_last_copy(state: RunState, suspects: Sequence[str]) -> bool:
    """Whether no member would be left with the state if the suspects were ended."""
    holders = state.holders
    return bool(holders) and set(suspects).issuperset(holders)


def is_held_up(state: RunState, now_ns: int) -> bool:
    """Whether all wait for a generation to form, or longer than ever for a commit. Changes nothing."""
    generation = state.generations.announced
    return generation is not None and (_is_forming(generation) or _is_overdue(state, now_ns))


def _is_forming(generation: Generation) -> bool:
    """Whether members wait for it to form. Until a boundary comes, all may still be in the step before."""
    return generation.formed_ns is None and (not generation.at_boundary or bool(generation.regrouped))


def _is_overdue(state: RunState, now_ns: int) -> bool:
    stepping = state.generations.formed
    if stepping is None or stepping.lost or state.progress.is_last:
        return False
    overdue_ns = state.observed.overdue_ns(is_first=stepping.is_fresh)
    return overdue_ns is not None and now_ns - _since_ns(state, stepping) >= overdue_ns


def end_unreached(state: RunState, names: Sequence[str], doubtful: int) -> None:
    """End cut-off members that all others wait for, in a forming generation or a step. If half of the members
    may be cut off, either side of the network may be at fault, and the usual bounds apply. They also apply to
    the last member that holds a part of the state.
    """
    generation = state.generations.announced
    if generation is None or 2 * doubtful >= len(generation.members):
        return
    if _is_forming(generation):
        waited_for = [member for member in _late(state, generation) if not member.is_lost]
    elif _is_overdue(state, state.now_ns) and not _is_excused(state, generation):
        living = map(state.roster.living, generation.members)
        waited_for = [member for member in living if member is not None and not member.is_done]
    else:
        return
    cut_off = [member for member in waited_for if member.name in names]
    if not replicas.can_spare(state, [member.name for member in cut_off]):
        return
    for member in cut_off:
        account = f"{UNREACHED}: its machine acknowledges no packets"
        losses.fence(state, member, UNREACHED, onset_ns=None, account=account)


# ---- acting on a stall -----------------------------------------------------------------------------------


def _ask(state: RunState, generation: Generation, stall: Stall) -> None:
    """Ask the suspects' agents where they are. Agents can tell even if the members cannot."""
    suspects, _ = _suspects(state, generation)
    stall.asked_ns = state.now_ns
    asked = suspects[:NAMED_MAX]
    if not stall.are_all_asked and _is_told(state, generation, stall):
        stall.are_all_asked = True
        asked = [*asked, *(name for name in generation.living if name not in asked)][:ASKED_MAX]
    stall.awaited = dict.fromkeys(asked)
    for name in stall.awaited:
        state.outbox.effects.append(ToNode(state.roster.members[name].node, Locate(member=name)))


def _is_told(state: RunState, generation: Generation, stall: Stall) -> bool:
    """Whether the stall has lasted long enough to report."""
    limit_ns, stuck_ns = _limit_ns(state, generation), _stuck_ns(state, generation)
    soon_ns = stuck_ns if stuck_ns < limit_ns else ns(LOOK_S_MAX)
    return state.now_ns - stall.since_ns >= min(limit_ns // LOOKS_UNHURRIED, soon_ns)


def _conclude(state: RunState, generation: Generation, stall: Stall) -> bool:
    """Report the stall or, once the bound is reached, end members; whether members were ended."""
    looked_ns, stall.asked_ns, stall.awaited = stall.asked_ns or state.now_ns, None, {}
    stall.looks += 1
    stall.looked_ns = looked_ns
    suspects, is_waited_for = _suspects(state, generation)
    waited_ns, limit_ns = looked_ns - stall.since_ns, _limit_ns(state, generation)
    found = _explained(state, generation, stall, suspects)
    is_spared = _is_last_copy(state, suspects) or not is_waited_for
    if waited_ns >= limit_ns and (not is_spared or waited_ns >= _idle_ns(limit_ns)):
        _end(state, generation, stall, suspects, found)
        return True
    is_certain = found.is_certain and (not generation.is_fresh or found.kind in AT_REST)
    if is_certain and not is_spared and waited_ns >= _stuck_ns(state, generation):
        _end(state, generation, stall, list(found.culprits), found)
        return True
    if _is_told(state, generation, stall):
        _say(state, generation, stall, suspects, is_waited_for)
    return False


def _explained(state: RunState, generation: Generation, stall: Stall, suspects: Sequence[str]) -> Explanation:
    patience_s = _stuck_ns(state, generation) / 1e9
    stages = _stages(state, (*suspects, *stall.watched))
    for name, watched in stall.watched.items():
        member = state.roster.members.get(name)
        if member is not None and (member.seen_ns or 0) < watched.first_ns:
            stages[name] = "script"  # it holds the interpreter lock, and may be past its last report
    return explaining.explain(stall.watched, stages, suspects, patience_s)


def _stages(state: RunState, names: Sequence[str]) -> dict[str, Stage]:
    return {name: state.roster.members[name].stage for name in names if name in state.roster.members}


def _end(
    state: RunState, generation: Generation, stall: Stall, suspects: list[str], found: Explanation
) -> None:
    waited_s = (state.now_ns - stall.since_ns) // ns(1)
    fault = STEP_HANGS if generation.formed_ns is not None else FORMATION_HANGS
    if not suspects:
        if generation.broken_ns is None:
            generation.broken_ns = state.now_ns - state.observed.broken_ns  # no culprit: all try again
            words = f"waited for another one: {fault} ({waited_s} s)"
            generation.trouble = Trouble(member="every member", words=words)
        return
    if found.sentence:
        state.outbox.say(found.sentence, "trouble")
    detail = explaining.account(stall.watched, _stages(state, [*stall.watched]), found)
    for name in suspects:
        place = f", at {known}" if (known := _place(stall, name)) else ""
        words = f"{fault} for {waited_s} s{place}" if fault == STEP_HANGS else f"{fault}{place}"
        kind = explaining.FAULTS[found.kind] if name in found.culprits and fault == STEP_HANGS else fault
        account = words if kind == fault else f"{kind}, {words}"
        told = f"{account}\n{detail}" if detail else account
        losses.fence(state, state.roster.members[name], kind, onset_ns=None, account=account, detail=told)
    if not found.is_proven:  # else they were certainly not at work
        state.hangs.endings = state.hangs.endings + 1 if state.now_ns < state.hangs.endings_until_ns else 1
        state.hangs.endings_until_ns = state.now_ns + ns(PATIENT_S)
    state.hangs.stall = None
    if not state.hangs.is_hinted and found.kind in DECLARABLE:
        state.hangs.is_hinted = True
        state.outbox.say(HINT)
    replacing.settle(state)  # a ready stand-in gets the seat first
    seats.fill_seats(state)


def _say(
    state: RunState, generation: Generation, stall: Stall, suspects: list[str], is_waited_for: bool
) -> None:
    """Say one line, unless the last one said the same."""
    if generation.formed_ns is not None and state.progress.is_last:
        return  # after the last step, the script holds up no other member
    limit_s = _limit_ns(state, generation) / 1e9
    is_spared = _is_last_copy(state, suspects) or not is_waited_for
    if not suspects:
        who, then = "every member waits for another one", f"they start it again after {limit_s:.0f} s"
    else:
        found = _explained(state, generation, stall, suspects)
        who = _whereabouts(stall, suspects, _goal(generation), found)
        is_one, idle_s = len(suspects) == 1, _idle_ns(ns(limit_s)) / 1e9
        then = f"{'it is' if is_one else 'they are'} ended and replaced after at most {limit_s:.0f} s"
        if is_spared:
            then = f"no other member has the state: waiting for at most {idle_s:.0f} s"
            if not is_waited_for:
                whom, they = ("it", "it") if is_one else ("them", "they")
                then = f"no member waits for {whom}: {they} may take {idle_s:.0f} s"
    if stall.said == who + then:
        return
    stall.said = who + then
    waited_s = (state.now_ns - stall.since_ns) // ns(1)
    what = f"step {state.progress.step + 1} has taken {waited_s} s"
    if generation.formed_ns is None:
        what = f"generation {generation.number} has not formed for {waited_s} s"
    state.outbox.say(f"{what}; {who}; {then}", "trouble" if is_waited_for else "note")


def _goal(generation: Generation) -> str:
    return "entered the reduction" if generation.formed_ns is not None else "joined it"


def _whereabouts(stall: Stall, suspects: list[str], goal: str, found: Explanation) -> str:
    """A phrase such as "n0.1 has not entered the reduction, it is at train.py:88"."""
    named = suspects[:NAMED_MAX]
    names = ", ".join(named) + (
        f" and {len(suspects) - len(named)} more" if len(suspects) > len(named) else ""
    )
    places = {name: place for name in named if (place := _place(stall, name))}
    told = f"{names} {'has' if len(suspects) == 1 else 'have'} not {goal}"
    if found.sentence:
        return f"{told}: {found.sentence}"
    if not places:
        return told
    if len(suspects) == 1:
        return f"{told}, it is at {places[named[0]]}"
    return told + ", " + ", ".join(f"{name} is at {place}" for name, place in places.items())


def _place(stall: Stall, name: str) -> str:
    """Where the member is in its script; empty if unknown."""
    return stall.watched[name].last.place if name in stall.watched else ""
