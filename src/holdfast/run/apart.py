"""Members that wait for each other in different places between steps, where nobody will ever come."""

from holdfast.run.link import beat_interval_s
from holdfast.run.state import Member, RunState, Trouble
from holdfast.run.waits import APART_S, ns


def waits_apart(state: RunState) -> bool:
    """After a heartbeat from a meeting, now and then. Whether the generation is to be opened again: members
    wait for each other in different places, and nobody has moved since the last look.

    That is a script's mistake, such as `if run.is_main: run.barrier()`, and it would last for ever. Which
    call it is, and who did not make it, the members find out themselves when they regroup, so that is all
    that is done. To regroup once too often does no harm.
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
    """Who waits in a meeting that nobody will come to: name, step, and how much it has told the others."""
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
