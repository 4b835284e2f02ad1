"""Lost processes: whose fault a loss was, how it is recorded, and when there are too many.

devices.py handles failed GPUs.

The run acts on a loss at its first sign: the agent saw the exit, the connection ended or the lease ran out.
The cause of death may be known a moment later; only the record waits for it.
"""

import signal

import msgspec

from holdfast.record.errors import COMPLAINT_PREFIX
from holdfast.record.events import FaultObserved, MemberLost
from holdfast.record.kernel import Xid
from holdfast.run import ending, processes
from holdfast.run.happenings import Close, Expect
from holdfast.run.history import gist
from holdfast.run.stages import BETWEEN_STEPS
from holdfast.run.state import Loss, Member, Node, RunState
from holdfast.run.waits import EXPLAIN_S, ns
from holdfast.run.wire import CODE_DEVICE_FAILED, COORDINATOR_GONE, WorkerExited
from holdfast.wording import many

SETBACKS_MAX = 16
"""The run is given up after more than this many losses or broken generations without a commit in between, and
more than `SETBACKS_PER_MEMBER` per seat."""
SETBACKS_PER_MEMBER = 4
DETAIL_CHARS_MAX = 2000
STACKS_CHARS_MAX = 8000
SAID_CHARS_MAX = 200
XID_CHARS_MAX = 300
DEVICE_FAILED = "GPU failure"
"""The cause of death of a member whose own report of a GPU failure did not arrive."""


def lose(state: RunState, member: Member, why: str, *, onset_ns: int | None = None, cause: str = "") -> None:
    """Count the member as lost. cause: the key of the fault, which is already recorded."""
    _take_out(state, member, why)
    processes.vacate(state, member)
    loss = Loss(lost_ns=state.now_ns, onset_ns=member.onset_ns if onset_ns is None else onset_ns)
    _record_lost(state, member.name, why, loss, cause)


def _take_out(state: RunState, member: Member, why: str) -> None:
    member.is_lost = True
    state.progress.setbacks += member.role == "active"
    state.hangs.end_excuses(member.name)
    if state.generations.announced is not None and state.generations.announced.has(member.name):
        state.generations.announced.lost[member.name] = state.now_ns
        state.generations.fates[member.name] = why
        others_done = state.ending.is_anybody_done and any(
            state.roster.members[name].is_done for name in state.generations.announced.present
        )
        # Rank 0 may have been past a step that others have not reported yet.
        is_main, step = member.name == state.generations.main, max(state.progress.step, member.reported[1])
        is_last = others_done or (is_main and 0 < state.progress.steps_total <= step)
        if is_last and not member.is_done:
            state.ending.is_cut_short = True
            state.ending.undone_main = member.name if is_main else state.ending.undone_main
        state.generations.vacated[state.roster.seat_of(member)] = member.name
        state.generations.lost_ns = state.generations.lost_ns or state.now_ns
        state.generations.causes += (_key(member.name),)
    elif not state.launch.is_protected:
        state.generations.causes += (_key(member.name),)


def lose_unexplained(
    state: RunState, member: Member, guess: str, *, is_known: bool = False, keeps_seat: bool = False
) -> None:
    """Count the member as lost before its agent explains the loss. The run continues, and only the record of
    the loss waits for the explanation.

    is_known: the guess is certain. keeps_seat: no other member gets its seat before the explanation.
    """
    _take_out(state, member, guess)
    if keeps_seat:
        processes.withdraw(state, member)
    else:
        processes.vacate(state, member)
    if not is_known:
        state.generations.fates.pop(member.name, None)
    state.outbox.effects.append(Expect(_key(member.name)))
    state.generations.unexplained[member.name] = Loss(
        lost_ns=state.now_ns, onset_ns=member.onset_ns, guess=guess, keeps_seat=keeps_seat
    )


def fence(
    state: RunState, member: Member, why: str, *, onset_ns: int | None, account: str = "", detail: str = ""
) -> None:
    """Give up a member that may still run: end it first, so that it cannot come back.

    account: why, with facts about this member, in a few words. detail: the full text for the record.
    """
    processes.stop(state, member, 0)
    state.outbox.effects.append(Close("worker", member.name))
    detail = (detail or account)[:STACKS_CHARS_MAX]
    cause = record_fault(state, member.name, why, onset_ns=onset_ns, detail=detail)
    _say_lost(state, member.name, Account(why=account or why))
    lose(state, member, account or why, onset_ns=onset_ns, cause=cause)


def lose_node(state: RunState, node: Node, why: str, *, onset_ns: int | None, fault: str) -> None:
    """Count the node and all its members as lost. fault: its name in the record."""
    members = [member for member in state.roster.members.values() if member.node == node.name]
    living = [member for member in members if not member.is_lost]
    state.progress.setback = f"node {node.name} lost ({why})"
    state.outbox.say(f"{state.progress.setback} with {many(len(living), 'member')}", "trouble")
    struck = [member.onset_ns for member in living if member.onset_ns is not None]
    onset_ns = min(struck) if struck else onset_ns
    cause = record_fault(state, node.name, fault, onset_ns=onset_ns, detail=why)
    # Its members' connections may have ended first: all of this is one setback.
    known = [one for one in members if one.role == "active" and one.name in state.generations.unexplained]
    setbacks = max(0, state.progress.setbacks - len(known))
    for member in living:
        lose(state, member, "node lost", onset_ns=onset_ns, cause=cause)
        state.outbox.effects.append(Close("worker", member.name))
    state.progress.setbacks = setbacks + 1
    for member in members:
        close_account(state, member.name, "node lost")
        state.devices.failing.pop(member.name, None)
        processes.gone(state, member)
    state.devices.ailing = {
        seat: known for seat, known in state.devices.ailing.items() if seat[0] != node.name
    }
    del state.roster.nodes[node.name]
    state.roster.nodes_active -= not node.is_spare
    state.roster.short.pop(node.name, None)
    state.roster.vacant = {seat: None for seat in state.roster.vacant if seat[0] != node.name}


def leave(state: RunState, member: Member) -> None:
    """Count a member as finished whose script ended before the run did."""
    member.has_left = state.ending.is_anybody_done = True
    state.hangs.end_excuses(member.name)
    known = state.generations.unexplained.get(member.name)
    has_seat = not member.is_lost or (known is not None and known.keeps_seat)
    if not member.is_lost:
        member.is_lost = True
        processes.withdraw(state, member)
        if state.generations.announced is not None and state.generations.announced.has(member.name):
            state.generations.announced.lost[member.name] = state.now_ns
    if has_seat and state.launch.is_protected:
        state.outbox.say(f"{member.name} left: its script ended")
    elif known is not None:
        _say_lost(state, member.name, Account(why="exit 0"))
    close_account(state, member.name, "exit 0")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a lost process. why: in a word or two. said: its own words, in one line. detail: everything
    known. xid: the number of the error that the kernel logged about its GPU.
    """

    why: str
    said: str = ""
    detail: str = ""
    xid: int | None = None


def explain(state: RunState, member: Member, message: WorkerExited) -> None:
    """Record the cause of death, and the loss unless it is already known."""
    why = "connection ended" if is_cut_off(message) else cause_of_death(message)
    # A sentence is printed when the run fails with it. The last line of a traceback has the exception.
    said = _sentence(message) or message.complaint.strip().rpartition("\n")[2].strip()
    said = "" if is_cut_off(message) or is_mistake(state, member, message) else said[:SAID_CHARS_MAX]
    xid = None if message.xid is None else message.xid.code
    told = Account(why=why, said=said, detail=detail_of(message), xid=xid)
    if member.name in state.generations.unexplained:
        account(state, member.name, told)
    elif not member.is_lost:
        cause = record_fault(state, member.name, why, onset_ns=member.onset_ns, detail=told.detail)
        _say_lost(state, member.name, told)
        lose(state, member, why, cause=cause)


def account(state: RunState, name: str, told: Account) -> None:
    """Record a loss that was noticed before and its fault, dated to when it was noticed."""
    known = state.generations.unexplained.pop(name, None)
    if known is None:
        return
    if known.keeps_seat and (member := state.roster.members.get(name)) is not None:
        processes.vacate(state, member)
    cause = record_fault(
        state, name, told.why, onset_ns=known.onset_ns, detail=told.detail, at_ns=known.lost_ns
    )
    _record_lost(state, name, told.why, known, cause)
    if state.generations.announced is not None and state.generations.announced.concerns(name):
        state.generations.fates[name] = told.why
    _say_lost(state, name, told)


def close_account(state: RunState, name: str, why: str) -> None:
    """Record a loss that was noticed before and has no fault of its own."""
    known = state.generations.unexplained.pop(name, None)
    if known is not None:
        _record_lost(state, name, why, known)


def detail_of(message: WorkerExited, first: str = "") -> str:
    """The recorded detail of a process that ended: `first`, the kernel's message, and its last output."""
    logged = "" if message.xid is None else xid_words(message.xid)
    head = "\n".join(part for part in (first, logged) if part)
    tail = message.complaint or "\n".join(message.tail)
    room = max(0, DETAIL_CHARS_MAX - len(head) - 1)
    return f"{head}\n{tail[-room:]}".strip() if head else tail[-room:]


def xid_words(xid: Xid) -> str:
    where = f" on {xid.device}" if xid.device else ""
    return f"XID {xid.code}{where}: {xid.text}"[:XID_CHARS_MAX]


def give_up_explanations(state: RunState, *, at_once: bool = False) -> None:
    """Record losses that no agent explained in time, with the guess. End a process that still runs then: it
    holds its GPU's memory, and the run would wait for it at its end.
    """
    for name, known in list(state.generations.unexplained.items()):
        due_ns = known.lost_ns + ns(EXPLAIN_S)
        if at_once or state.now_ns >= due_ns:
            member = state.roster.members.get(name)
            if member is not None and not (member.is_gone or member.is_stopped):
                processes.stop(state, member, 0)
            account(state, name, Account(why=known.guess))
        else:
            state.outbox.wake(due_ns)


def judge_mistake(state: RunState, message: WorkerExited) -> None:
    ending.blame(state, _sentence(message), message.complaint)


def judge_script(state: RunState, member: Member, message: WorkerExited) -> None:
    """Judge a script that raised. It would raise again, so at the start, or the same way twice, it ends the
    run.

    In a step, data or a machine may be to blame, so commits in between excuse it. The script's own work,
    between steps or after them, is not done at all if it fails, so the same failure twice is enough.
    """
    complaint = _complaint(message)
    reason = ""
    if not state.progress.has_committed:
        reason = f"the script failed on {member.name} before the first commit ({cause_of_death(message)})"
    elif _is_again_between_steps(state, member, complaint):
        reason = f"the script failed again on {member.name} after step {member.step}, the same way as before"
    elif gist(complaint) == state.progress.complaint:
        reason = f"the script failed again on {member.name}, as before, and nothing was committed in between"
    state.progress.complaint = gist(complaint)
    if reason:
        ending.fail(state, reason, complaint=message.complaint)
    else:
        state.progress.survived.note(complaint)
        survive(state, member.name, message.complaint)


def _complaint(message: WorkerExited) -> str:
    return message.complaint or f"{cause_of_death(message)} without a complaint"


def _is_again_between_steps(state: RunState, member: Member, complaint: str) -> bool:
    return member.stage in BETWEEN_STEPS and state.progress.survived.knows(complaint)


def survive(state: RunState, name: str, complaint: str) -> None:
    """Hold back the complaint until a step is committed: if others fail the same way first, the run ends."""
    state.progress.survived.hold(name, complaint)
    if not state.progress.setbacks or state.ending.closing is not None:
        state.print_held()  # the run has already continued


def judge_setbacks(state: RunState) -> None:
    """End the run after too many losses without progress in between."""
    if (
        state.progress.setbacks > SETBACKS_MAX
        and state.progress.setbacks > SETBACKS_PER_MEMBER * state.roster.seats
    ):
        last = f"; the last: {state.progress.setback}" if state.progress.setback else ""
        ending.fail(state, f"{state.progress.setbacks} failures and not one commit in between{last}")


def is_mistake(state: RunState, member: Member, message: WorkerExited) -> bool:
    """Whether the process ended with a sentence for the user that all members would end with.

    A newcomer's sentence does not count once the run has committed a step, because only its machine may be
    the cause. Nor does the sentence of the first of several members, until it is repeated, as with scripts
    that raise.
    """
    if _sentence(message) in ("", COORDINATOR_GONE):
        return False
    if not state.progress.has_committed:
        return True
    if not member.since_generation:
        return False
    is_alone = not any(name != member.name for name in state.holders)
    is_again = gist(message.complaint) == state.progress.complaint
    return is_alone or is_again or _is_again_between_steps(state, member, message.complaint)


def is_cut_off(message: WorkerExited) -> bool:
    """Whether the process ended because its connection had ended."""
    return _sentence(message) == COORDINATOR_GONE


def cause_of_death(message: WorkerExited) -> str:
    if message.code == CODE_DEVICE_FAILED:
        return DEVICE_FAILED
    if message.signal is None:
        return f"exit {message.code}"
    try:
        return signal.Signals(message.signal).name
    except ValueError:
        return f"signal {message.signal}"


def _sentence(message: WorkerExited) -> str:
    """The process's sentence for the user, without the hint; empty if it did not end with a sentence."""
    complaint = message.complaint.strip()
    if message.code != ending.CODE_MISTAKE or not complaint.startswith(COMPLAINT_PREFIX):
        return ""
    return complaint.removeprefix(COMPLAINT_PREFIX).strip().partition("\n")[0] or "a mistake"


def _say_lost(state: RunState, name: str, told: Account) -> None:
    why = told.why if told.xid is None else f"{told.why}; XID {told.xid}"
    state.progress.setback = f"{name} lost ({why}): {told.said}" if told.said else f"{name} lost ({why})"
    state.outbox.say(state.progress.setback, "trouble")


def _record_lost(state: RunState, name: str, why: str, loss: Loss, cause: str = "") -> None:
    state.outbox.record(
        MemberLost(
            id=_key(name),
            occurred_ns=loss.lost_ns,
            subject=name,
            reason=why,
            onset_ns=loss.onset_ns,
            causes=(cause,) if cause else (),
        )
    )


def record_fault(
    state: RunState,
    subject: str,
    fault: str,
    *,
    onset_ns: int | None,
    detail: str = "",
    at_ns: int | None = None,
) -> str:
    """Record a fault and return its key. at_ns: when it was noticed, if not now."""
    at_ns = state.now_ns if at_ns is None else at_ns
    key = f"fault {subject} {at_ns}"
    state.outbox.record(
        FaultObserved(
            id=key,
            occurred_ns=at_ns,
            subject=subject,
            fault=fault,
            onset_ns=onset_ns,
            detail=detail,
        )
    )
    return key


def _key(member: str) -> str:
    """The key by which later events name a member's loss as their cause."""
    return f"lost {member}"
