"""How a run ends: members are told, given a bounded time to exit, and then killed."""

import msgspec

from holdfast.record.errors import complaint
from holdfast.record.events import ActionTaken, RunEnded
from holdfast.run import processes
from holdfast.run.happenings import Ending, ToMembers, ToNode
from holdfast.run.state import Closing, Member, RunState
from holdfast.run.waits import EXIT_MARGIN_S, IDLE_S_MAX, ns
from holdfast.run.wire import Dismissed, EndNode, Outcome, Released

CODE_FAILED = 1
CODE_MISTAKE = 2
"""The exit code of `holdfast` for a user's mistake."""
CODE_UNSAVED = 74
"""Training is complete, but no checkpoint has its end. sysexits.h calls this an input/output error."""


def complete(state: RunState, outcome: Outcome = "completed", reason: str = "") -> None:
    """Release all members after training is complete. The rest of the script may take `IDLE_S_MAX`.

    Warm processes that were never needed are stopped, because they have nothing to finish.
    """
    state.print_held()
    state.ending.closing = Closing(
        end=Ending(outcome, 0, reason), due_ns=state.now_ns + ns(IDLE_S_MAX), patience="leave"
    )
    state.outbox.effects.append(ToMembers(_present(state), Released(outcome=outcome)))
    for member in _running(state):
        if member.reached in ("started", "parked"):
            processes.stop(state, member, state.policy.grace_s)


def fail(state: RunState, reason: str, *, code: int = CODE_FAILED, complaint: str = "") -> None:
    """End the run as failed, because it cannot continue."""
    state.outbox.say(f"the run fails: {reason}", "failure")
    _stop_all(state, Ending("failed", code, reason, complaint))


def blame(state: RunState, sentence: str, told: str) -> None:
    """End a run that had started because of the user's mistake. Members have time to save their state.

    told: the sentence and its hint, as printed.
    """
    _stop_all(state, Ending("failed", CODE_MISTAKE, sentence, told))


def refuse(state: RunState, sentence: str, hint: str) -> None:
    """End the run because of the user's mistake: the members cannot join, and `holdfast run` says why."""
    state.outbox.effects.append(ToMembers(_present(state), Dismissed(sentence=sentence, hint=hint)))
    blame(state, sentence, complaint(sentence, hint))


def stop(state: RunState, reason: str, code: int) -> None:
    """End the run for the operator; the second time, without grace."""
    if state.ending.closing is not None and not state.ending.closing.is_released:
        state.ending.closing.patience, state.ending.closing.due_ns = "term", state.now_ns
        return
    state.outbox.say(f"stopping: {reason}")
    state.outbox.record(ActionTaken(id="", occurred_ns=state.now_ns, action="stop", reason=reason))
    _stop_all(state, Ending("stopped", code, reason))


def settle(state: RunState) -> None:
    """Kill members that had enough time; end the run once none is left or nothing more can be done."""
    ending = state.ending.closing
    assert ending is not None
    if is_due(state):
        _finish(state, ending.end)
        return
    is_late = state.now_ns >= ending.due_ns
    if is_late and ending.is_released:
        names = ", ".join(member.name for member in _running(state))
        fail(state, f"{names} did not end within {IDLE_S_MAX:g} s after the training was complete")
    elif is_late:
        ending.patience, ending.due_ns = "kill", state.now_ns + ns(EXIT_MARGIN_S)
        for member in _running(state):
            processes.stop(state, member, 0)
    assert state.ending.closing is not None
    state.outbox.wake(state.ending.closing.due_ns)


def is_due(state: RunState) -> bool:
    """Whether the ending run is over: no member is left, or nothing more can be done about the rest."""
    assert state.ending.closing is not None
    is_late = state.now_ns >= state.ending.closing.due_ns
    return not state.roster.running or (is_late and state.ending.closing.patience == "kill")


def _stop_all(state: RunState, end: Ending) -> None:
    grace_s = state.policy.grace_s
    state.ending.closing = Closing(
        end=end, due_ns=state.now_ns + ns(grace_s + EXIT_MARGIN_S), patience="term"
    )
    state.print_held()
    for member in _running(state):
        processes.stop(state, member, grace_s)


def _running(state: RunState) -> list[Member]:
    return [member for member in state.roster.members.values() if not member.is_gone]


def _present(state: RunState) -> tuple[str, ...]:
    """The members that have connected."""
    return tuple(member.name for member in _running(state) if member.reached != "started")


def _unsaved(state: RunState, end: Ending) -> Ending:
    """If the last checkpoint failed, say so and set an exit code by which programs can tell."""
    saved = state.progress.checkpointing
    if not saved.failure or saved.saved_step >= state.progress.step:
        return end
    newest = (
        f"the newest checkpoint is of step {saved.saved_step}"
        if saved.saved_step
        else "this start saved none"
    )
    told = f"the last checkpoint failed, and {newest}"
    state.outbox.say(f"{told}: {saved.failure}", "trouble")
    return end if end.code else msgspec.structs.replace(end, code=CODE_UNSAVED, reason=end.reason or told)


def _finish(state: RunState, end: Ending) -> None:
    assert state.ending.closing is not None
    state.ending.is_over = True
    state.ending.closing.end = end = _unsaved(state, end)
    state.outbox.record(
        RunEnded(
            id="",
            occurred_ns=state.now_ns,
            outcome=end.outcome,
            reason=end.reason,
            survived_errors=state.progress.survived.errors,
        )
    )
    last_word = EndNode(outcome=end.outcome, code=end.code, reason=end.reason)
    state.outbox.effects.extend(ToNode(node, last_word) for node in state.roster.nodes)
    state.outbox.effects.append(end)
