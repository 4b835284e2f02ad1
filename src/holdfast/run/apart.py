"""Members that wait for each other in different places between steps and would wait forever."""

from holdfast.run.link import beat_interval_s
from holdfast.run.state import Member, RunState, Trouble
from holdfast.run.waits import APART_S, ns


def waits_apart(state: RunState) -> bool:
    """Whether to open the generation again: members wait for each other in different places, and none has
    moved since the last look. Called after a heartbeat from a meeting; it looks only at intervals.

    The cause is a mistake in the script, such as `if run.is_main: run.barrier()`, and the wait would never
    end. Regrouping is enough: the members then find out which call it is and who did not make it. An
    unnecessary regroup does no harm.
    """
    if state.now_ns < state.hangs.apart_due_ns:
        return False
    members = len(state.roster.members)
    state.hangs.apart_due_ns = state.now_ns + ns(max(APART_S, 2 * beat_interval_s(members)))
    before, state.hangs.apart = state.hangs.apart, _waiting_apart(state)
    generation = state.generations.announced
    if generation is None or not state.hangs.apart or state.hangs.apart != before:
        return False
    name, step, _ = state.hangs.apart[0]
    generation.broken_ns = state.now_ns - state.observed.broken_ns
    generation.trouble = Trouble(member=name, words=f"waits after step {step} for members that have gone on")
    return True


def _waiting_apart(state: RunState) -> tuple[tuple[str, int, int], ...]:
    """Members in a meeting that others will never join: name, step, and how much each has told the others."""
    generation = state.generations.announced
    if (
        generation is None
        or generation.formed_ns is None
        or generation.lost
        or generation.broken_ns is not None
    ):
        return ()
    members = [state.roster.members[name] for name in generation.members]
    meeting = [member for member in members if member.stage == "meeting" and not member.is_done]
    if not meeting or len(meeting) == len(members):
        return ()
    step = min(member.step for member in meeting)
    if not all(member.stage == "meeting" or _is_beyond(member, step) for member in members):
        return ()
    return tuple((member.name, member.step, member.told) for member in meeting)


def _is_beyond(member: Member, step: int) -> bool:
    return member.is_done or (member.stage == "reduce" and member.step > step)
