"""Workers of a script that never joins and makes no progress: reported, explained, started again.

The steps of such a script are unknown. As long as it prints, it makes progress. When it is quiet, its workers
are looked at regularly. They make progress if one of them is in another call than before, has moved data, or
was woken from its wait for other ranks and waits again. Otherwise they stand still: workers in a collective
wait for the others, and what keeps those is explained as in a script that joins (explaining.py).

A job may stand still and be well: rank 0 prepares the data, the others wait in a barrier. So a job that
stands still is reported. It is started again only if the stall cannot end by itself, if the user set a limit,
or when torch's default timeout would also give up the wait.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.run import explaining, losses, plain
from holdfast.run.explaining import LOOKS_MIN, Explanation, Watched
from holdfast.run.happenings import ToNode
from holdfast.run.state import Member, RunState, Stall
from holdfast.run.waits import HUNG_S_MIN, IDLE_S_MAX, LOCATE_S, LOOK_S_MAX, QUIET_LOOK_S, ns
from holdfast.run.wire import Locate, Stage

LOOKS = 8
"""How many looks there are within the user's time limit."""
LOOK_S_MIN = 0.25
STAND_TIMES = 4
"""The bound is at least this many times the longest standstill from which the run recovered by itself."""
NAMED_MAX = 4
"""How many workers are named in a line."""
SAMPLE_MAX = 64
"""How many workers are looked at first: if one of these makes progress, so do the others."""
STANDS = "no progress"
STOPPED = "stopped"


class JobStand(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job that stands still. waiting: workers that wait for other ranks. absent: workers to
    blame, if any. left: workers whose script has ended. found: why the absent are stuck. is_busy: one of the
    absent computes.
    """

    waiting: tuple[str, ...]
    absent: tuple[str, ...]
    left: tuple[str, ...]
    found: Explanation
    is_busy: bool = False


def watch(state: RunState) -> None:
    """Make sure that the workers make progress."""
    workers = _workers(state)
    if not workers or not state.launch.is_launched or state.launch.restart_due_ns is not None:
        return
    if any(name in state.hangs.stopped for name in workers):
        state.hangs.stall = None
        _watch_stopped(state, workers)
        return
    since_ns = max(state.launch.launched_ns, state.hangs.resumed_ns)
    stall = state.hangs.stall
    if stall is None or stall.since_ns != since_ns:
        stall = state.hangs.stall = Stall(since_ns=since_ns, looked_ns=since_ns)
    while (due_ns := _due_ns(state, stall)) <= state.now_ns:
        if stall.asked_ns is None:
            _ask(state, workers, stall)
        elif (conclusion := _conclude(state, workers, stall)) is None:
            return
        else:
            stall = state.hangs.stall = conclusion
    state.outbox.wake(due_ns)


def printed(state: RunState) -> None:
    """Note that a worker has printed something, which is progress."""
    if not state.launch.is_protected:
        state.hangs.resumed_ns = state.now_ns


def stop_s(state: RunState) -> float:
    """How long one worker may be stopped."""
    set_s = state.policy.hang_after_s
    return HUNG_S_MIN if set_s is None else min(HUNG_S_MIN, set_s)


def blamed(state: RunState, reason: str) -> str:
    """Why the attempt ends, with the last report of a stall: torch may give up a wait before we do, and then
    the waiting ranks fail, not the culprit.
    """
    stall = state.hangs.stall
    return f"{reason}; before that {stall.said}" if stall is not None and stall.said else reason


def _workers(state: RunState) -> dict[str, Member]:
    return {name: member for name, member in state.roster.members.items() if not member.is_lost}


# ---- workers that are stopped ------------------------------------------------------------------------------


def _watch_stopped(state: RunState, workers: dict[str, Member]) -> None:
    """End workers that are stopped and keep the others waiting. If all are stopped, the job was suspended."""
    stopped = {name: state.hangs.stopped[name] for name in workers if name in state.hangs.stopped}
    if len(stopped) == len(workers) and state.policy.hang_after_s is None:
        return
    since_ns = min(stopped.values())
    due_ns = since_ns + ns(stop_s(state))
    if state.now_ns < due_ns:
        state.outbox.wake(due_ns)
        return
    for name, at_ns in stopped.items():
        told = "stopped by SIGSTOP: the kernel shows it in state T (stopped), so it cannot say where it is"
        account = f"{STOPPED} by SIGSTOP"
        losses.fence(state, workers[name], STOPPED, onset_ns=at_ns, account=account, detail=told)
    who, verb = _names([*stopped]), "was" if len(stopped) == 1 else "were"
    plain.fail(state, f"{who} {verb} stopped (SIGSTOP) for {(state.now_ns - since_ns) // ns(1)} s")


# ---- workers that stand still ------------------------------------------------------------------------------


def _interval_ns(state: RunState) -> int:
    set_s = state.policy.hang_after_s
    return ns(QUIET_LOOK_S if set_s is None else max(LOOK_S_MIN, min(QUIET_LOOK_S, set_s / LOOKS)))


def _due_ns(state: RunState, stall: Stall) -> int:
    """When to look next, or until when to wait for the agents' answers."""
    if stall.asked_ns is not None:
        return stall.asked_ns + ns(LOCATE_S) if stall.awaited else state.now_ns
    return stall.looked_ns + _interval_ns(state)


def _ask(state: RunState, workers: dict[str, Member], stall: Stall) -> None:
    asked = [*workers] if stall.looks >= LOOKS_MIN else [*workers][:SAMPLE_MAX]
    stall.asked_ns, stall.awaited = state.now_ns, dict.fromkeys(asked)
    for name in asked:
        state.outbox.effects.append(ToNode(workers[name].node, Locate(member=name, is_gentle=True)))


def _conclude(state: RunState, workers: dict[str, Member], stall: Stall) -> Stall | None:
    """Judge the last look. Return the stall to watch from now on, or None if the attempt was ended."""
    stall.looked_ns, stall.asked_ns, stall.awaited = stall.asked_ns or state.now_ns, None, {}
    stall.looks += 1
    seen = {name: one for name, one in stall.watched.items() if name in workers}
    if any(one.has_got_further for one in seen.values()):
        return _moved(state, stall, seen)
    if len(seen) < len(workers) or any(one.looks < LOOKS_MIN for one in seen.values()):
        return stall
    standing = _standing(state, seen)
    waited_ns = state.now_ns - stall.since_ns
    bound_s = _bound_s(state, standing)
    if bound_s is not None and waited_ns >= ns(bound_s):
        _end(state, workers, stall, standing)
        return None
    if waited_ns >= _told_ns(state) and (bound_s is not None or standing.waiting):
        _say(state, stall, standing, bound_s)
    return stall


def _moved(state: RunState, stall: Stall, seen: dict[str, Watched]) -> Stall:
    """The new stall after progress. The next look is compared with the last one."""
    if stall.said:
        state.observed.note("stand", state.now_ns - stall.since_ns)
        state.outbox.say(f"the workers make progress again, after {_seconds(state, stall)}")
    state.hangs.resumed_ns = state.now_ns
    watched = {name: Watched.begun(one.last, one.last_ns) for name, one in seen.items()}
    return Stall(since_ns=state.now_ns, looked_ns=state.now_ns, watched=watched)


def _standing(state: RunState, seen: dict[str, Watched]) -> JobStand:
    meeting = [name for name, one in seen.items() if one.meets_others]
    absent = [name for name in seen if name not in meeting]
    suspects = absent if meeting and absent else _odd_ones(seen)
    # Without steps it is unknown how long a call may take, so only a proven hang is certain.
    found = explaining.explain(seen, _stages(seen), suspects or absent, IDLE_S_MAX)
    return JobStand(
        waiting=tuple(name for name in meeting if name not in suspects),
        absent=tuple(suspects),
        left=tuple(name for name, member in state.roster.members.items() if member.has_left),
        found=found,
        is_busy=any(seen[name].computes for name in suspects),
    )


def _stages(seen: dict[str, Watched], waiting: Sequence[str] = ()) -> dict[str, Stage]:
    """Their assumed stages, since such workers report none."""
    return {name: "meeting" if name in waiting else "script" for name in seen}


def _odd_ones(seen: dict[str, Watched]) -> list[str]:
    """The workers outside the place where most are, if most are in one place. With GPUs, ranks wait for each
    other where they read a result, in a line that does not show a collective.
    """
    places = {name: one.last.place for name, one in seen.items()}
    place, count = Counter(places.values()).most_common(1)[0]
    return [name for name, own in places.items() if own != place] if 2 * count > len(places) else []


def _bound_s(state: RunState, standing: JobStand) -> float | None:
    """After how long all workers are started again; None for never, if nothing seems to be wrong."""
    set_s = state.policy.hang_after_s
    # Rank 0 may build an index for hours, with a torch timeout of its own: only that may end it.
    is_held_up = bool(standing.waiting and (standing.absent or standing.left)) and not standing.is_busy
    if standing.found.is_proven:
        return HUNG_S_MIN if set_s is None else set_s
    if set_s is not None:  # a script may take any time before it joins
        return set_s if standing.waiting or not state.policy.may_join else None
    return max(IDLE_S_MAX, STAND_TIMES * state.observed.stand_ns_max / 1e9) if is_held_up else None


def _told_ns(state: RunState) -> int:
    set_s = state.policy.hang_after_s
    return ns(LOOK_S_MAX if set_s is None else min(LOOK_S_MAX, set_s / 2))


def _say(state: RunState, stall: Stall, standing: JobStand, bound_s: float | None) -> None:
    """Say one line, unless the last one said the same about the same workers."""
    blamed = (standing.found.kind, *standing.found.culprits)
    if stall.said and stall.blamed == blamed:
        return
    stall.said, stall.blamed = _story(stall, standing), blamed
    why = "it may be at work" if standing.is_busy else "none of them is to blame"
    then = f"{why}, so all are left alone until torch gives up; --hang-after S ends it sooner"
    if bound_s is not None:
        then = f"all are started again after {bound_s:.0f} s (--hang-after)"
    state.outbox.say(
        f"no worker has made progress for {_seconds(state, stall)}: {stall.said}; {then}", "trouble"
    )


def _story(stall: Stall, standing: JobStand) -> str:
    """A sentence such as "n0.0 waits in all_reduce() at train.py:20 for n0.1; n0.1 waits for a lock …"."""
    parts = []
    whom = standing.absent or standing.left
    if standing.waiting:
        calls = Counter(explaining.meeting(stall.watched[name]) for name in standing.waiting)
        verb = "waits" if len(standing.waiting) == 1 else "wait"
        where = " and ".join(f"in {call}" for call in [*calls][:NAMED_MAX])
        for_whom = f" for {_names(whom)}" if whom else ""
        if not whom and len({call.partition("(")[0] for call in calls}) > 1:
            for_whom = ", for each other"
        parts.append(f"{_names(standing.waiting)} {verb} {where}{for_whom}")
    if standing.found.sentence:
        parts.append(standing.found.sentence)
    if standing.left:
        parts.append(f"the script of {_names(standing.left)} has ended")
    return "; ".join(parts) or "it is unknown what they wait for"


def _end(state: RunState, workers: dict[str, Member], stall: Stall, standing: JobStand) -> None:
    story, waited = _story(stall, standing), _seconds(state, stall)
    if not stall.said:
        state.outbox.say(story, "trouble")
    stages = _stages(stall.watched, standing.waiting)
    unsaid = msgspec.structs.replace(standing.found, sentence="")
    detail = f"{story}\n{explaining.account(stall.watched, stages, unsaid)}"
    fault = explaining.FAULTS[standing.found.kind]
    culprits = [name for name in standing.found.culprits if name in standing.absent or not standing.waiting]
    for name in culprits:
        place = f", at {known}" if (known := stall.watched[name].last.place) else ""
        words = (
            f"{STANDS} for {waited}{place}" if fault == STANDS else f"{fault}, {STANDS} for {waited}{place}"
        )
        told = f"{words}\n{detail}"
        losses.fence(state, workers[name], fault, onset_ns=stall.since_ns, account=words, detail=told)
    if not culprits:  # recorded for the run, since no single worker is at fault
        told = detail[: losses.STACKS_CHARS_MAX]
        state.generations.causes += (
            losses.record_fault(state, "", fault, onset_ns=stall.since_ns, detail=told),
        )
    state.hangs.stall = None
    held_up = " the others up" if standing.waiting else ""
    verb = ("hold" if held_up else "hang") + ("s" if len(culprits) == 1 else "")
    plain.fail(
        state, f"{STANDS} for {waited}: {f'{_names(culprits)} {verb}{held_up}' if culprits else story}"
    )


def _seconds(state: RunState, stall: Stall) -> str:
    return f"{(state.now_ns - stall.since_ns) // ns(1)} s"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
