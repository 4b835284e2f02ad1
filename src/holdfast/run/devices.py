"""Failed GPUs: the member is lost and replaced, unless the script is to blame, which ends the run.

The member reports the failure in its last words. Its agent reports the exit, the member's output and the
kernel's log. Either report may come first. Once both are there, or time is up, the failure is recorded and
judged. If the failure follows the work from one GPU to the next, it is the script's mistake.
"""

from holdfast.run import ending, losses, processes
from holdfast.run.state import WARM, Ailing, DeviceFailure, Failing, Generation, Member, RunState
from holdfast.run.waits import BACKOFF_S_MAX, DEVICE_EXIT_S, EXPLAIN_S, backoff_ns, ns
from holdfast.run.wire import CODE_DEVICE_FAILED, DeviceFailed, WorkerExited

FAILURE_CHARS_MAX = 120
OF_CONNECTIONS = (
    "NCCL error: unhandled system error",
    "NCCL error: internal error",
    "NCCL error: remote process exited or there was a network error",
)
"""NCCL's errors for a failed connection. They appear on both ends and on further members, so the same error
on other members proves nothing."""


# ---- reports ---------------------------------------------------------------------------------------------


def said(state: RunState, name: str, message: DeviceFailed) -> None:
    """Note a member's last words."""
    failing = state.devices.failing.get(name)
    if failing is None and state.ending.closing is None and (member := state.roster.living(name)) is not None:
        failing = _lose(state, member, message.failure[:FAILURE_CHARS_MAX])
    if failing is not None and failing.said is None:
        failing.said = message
        rounds = [
            generation
            for generation in (state.generations.announced, state.generations.formed)
            if generation is not None
        ]
        cohorts = [generation.names for generation in rounds if generation.number == message.generation]
        failing.cohort = cohorts[0] if cohorts else frozenset()
        _look(state, failing)


def exited(state: RunState, member: Member, message: WorkerExited) -> bool:
    """Note that an agent saw a process exit. False if its GPU was not the reason."""
    failing = state.devices.failing.get(member.name)
    has_hung_up = (
        failing is None and member.name in state.generations.unexplained
    )  # without last words, and none will come
    if failing is None and message.code == CODE_DEVICE_FAILED and member.role == "active":
        if has_hung_up:
            failing = _failing(state, member)
        elif not (member.is_lost or member.is_stopped or state.ending.closing) and state.launch.is_protected:
            failing = _lose(state, member, losses.DEVICE_FAILED)
    if failing is None:
        return False
    failing.exited = message
    if (known := state.devices.ailing.get(failing.seat)) is not None and state.now_ns < failing.due_ns:
        _set_ailing(state, failing.seat, known.failures, state.now_ns + backoff_ns(known.failures))
    if has_hung_up:
        _conclude(state, failing)
    else:
        _look(state, failing)
    return True


def disconnected(state: RunState, name: str) -> None:
    """Conclude after a member's connection ended: its last words would have arrived before that."""
    failing = state.devices.failing.get(name)
    if failing is not None and failing.exited is not None:
        _conclude(state, failing)


def give_up(state: RunState, *, at_once: bool = False) -> None:
    """Kill processes that do not exit, and record the known facts if no agent explains an exit."""
    for failing in list(state.devices.failing.values()):
        known = state.generations.unexplained.get(failing.member)
        due_ns = (known.lost_ns if known else failing.due_ns) + ns(EXPLAIN_S)
        if at_once or state.now_ns >= due_ns:
            _conclude(state, failing)
            continue
        if failing.exited is None and state.now_ns < failing.due_ns:
            due_ns = min(due_ns, failing.due_ns)
        elif failing.exited is None and not (member := state.roster.members[failing.member]).is_stopped:
            processes.stop(state, member, 0)
        state.outbox.wake(due_ns)


# ---- the seat --------------------------------------------------------------------------------------------


def free_ns(state: RunState, seat: tuple[str, int]) -> int:
    """The time from which another member may have the seat."""
    known = state.devices.ailing.get(seat)
    return 0 if known is None else known.start_ns


def awaits_exit(state: RunState, generation: Generation) -> bool:
    """Whether a warm process will take a failed one's place as soon as that one has freed its memory.

    If the seat failed before, the run does not wait: other members compute its lanes, which shows whether the
    GPU or the script is at fault.
    """
    dues_ns = [
        failing.due_ns
        for failing in state.devices.failing.values()
        if failing.member in generation.lost
        and failing.exited is None
        and state.now_ns < failing.due_ns
        and state.devices.ailing[failing.seat].failures == 1
        and state.roster.readiness(state.roster.nodes[failing.seat[0]]) == WARM
    ]
    for due_ns in dues_ns:
        state.outbox.wake(due_ns)
    return bool(dues_ns)


def _lose(state: RunState, member: Member, why: str) -> Failing:
    failing = _failing(state, member)
    losses.lose_unexplained(state, member, why, is_known=why != losses.DEVICE_FAILED)
    return failing


def _failing(state: RunState, member: Member) -> Failing:
    """Note a failing member and keep its seat until the process is gone. After a long time without failure,
    the seat's count of failures starts again.
    """
    seat = (member.node, member.slot)
    known = state.devices.ailing.get(seat)
    held_ns = state.now_ns - member.ready_ns if member.reached == "ready" else 0
    is_first = known is None or (state.progress.step_max > known.step_max and held_ns > ns(BACKOFF_S_MAX))
    failures = 1 if known is None or is_first else known.failures + 1
    due_ns = state.now_ns + ns(DEVICE_EXIT_S)
    _set_ailing(state, seat, failures, max(due_ns, state.now_ns + backoff_ns(failures)))
    formed = 0 if state.generations.formed is None else state.generations.formed.number
    failing = Failing(member=member.name, seat=seat, formed=formed, due_ns=due_ns)
    state.devices.failing[member.name] = failing
    return failing


def _set_ailing(state: RunState, seat: tuple[str, int], failures: int, start_ns: int) -> None:
    state.devices.ailing[seat] = Ailing(
        failures=failures, step_max=state.progress.step_max, start_ns=start_ns
    )


# ---- judgement -------------------------------------------------------------------------------------------


def _look(state: RunState, failing: Failing) -> None:
    if failing.said is not None and failing.exited is not None:
        _conclude(state, failing)


def _conclude(state: RunState, failing: Failing) -> None:
    """Record the failure and judge it."""
    del state.devices.failing[failing.member]
    told = failing.said or DeviceFailed(member="", generation=0, step=0, failure=_words(failing.exited))
    exit_ = failing.exited or WorkerExited(member=failing.member)
    failure = DeviceFailure(
        member=failing.member,
        seat=failing.seat,
        generation=told.generation,
        step=told.step,
        failure=told.failure[:FAILURE_CHARS_MAX],
    )
    account = losses.Account(
        why=failure.failure,
        said=told.detail[: losses.SAID_CHARS_MAX],
        detail=losses.detail_of(exit_, told.detail),
        xid=None if exit_.xid is None else exit_.xid.code,
    )
    losses.account(state, failing.member, account)
    # If a newcomer failed before it was in a generation, that says nothing about other members.
    if state.ending.closing is None and (failure.generation or not state.generations.number):
        alike = _alike(state, failure)
        reason = _mistake(state, failing, failure, alike)
        if reason:
            state.progress.survived.forget({other.member for other in alike})  # the run ends with the same
            ending.fail(state, reason, complaint=exit_.complaint)
            return
        if not failure.step or failure.step > state.progress.step_max:
            state.devices.failures += (failure,)
    losses.survive(state, failing.member, exit_.complaint)


def _words(message: WorkerExited | None) -> str:
    """The error of a process without last words, taken from the last exception that it printed."""
    for line in reversed(message.complaint.splitlines() if message is not None else []):
        kind, _, text = line.partition(": ")
        if text and kind.endswith("Error"):
            return text.partition(". ")[0]
    return losses.DEVICE_FAILED


def _alike(state: RunState, failure: DeviceFailure) -> list[DeviceFailure]:
    """Earlier failures at the same step with the same error."""
    return [
        other
        for other in state.devices.failures
        if (other.step, other.failure) == (failure.step, failure.failure)
    ]


def _mistake(state: RunState, failing: Failing, failure: DeviceFailure, alike: list[DeviceFailure]) -> str:
    """Why this is the script's mistake; empty if the GPU is blamed."""
    where = f"at step {failure.step}" if failure.step else "before the first step"
    what = f"failed {where} with the same error ({failure.failure})"
    count, is_whole = _cohort(state, failing, [*alike, failure])
    is_of_connections = failure.failure in OF_CONNECTIONS
    if is_whole and count > 1 and not is_of_connections:
        return f"all {count} members {what}: this is the script's mistake, not a GPU's"
    if is_whole and any(other.seat == failure.seat for other in alike):
        return (
            f"{failure.member} {what} as the process before it, and nothing was committed in between: "
            "this is taken for the script's mistake, not the GPU's"
        )
    elsewhere = [
        other.member
        for other in alike
        if other.seat != failure.seat and other.generation < failure.generation
    ]
    is_formed = failure.generation <= failing.formed
    if elsewhere and is_formed and not is_of_connections:
        return (
            f"{failure.member} {what} as {elsewhere[-1]} before it on another GPU, and nothing was committed "
            "in between: this is the script's mistake, not a GPU's"
        )
    return ""


def _cohort(state: RunState, failing: Failing, alike: list[DeviceFailure]) -> tuple[int, bool]:
    """How many members were in the generation, and whether all of them failed alike.

    Before the first generation, all seats count.
    """
    generation = alike[-1].generation
    together = [failure for failure in alike if failure.generation == generation]
    if not generation:
        seats = {(node.name, slot) for node in state.roster.active_nodes() for slot in range(node.slots)}
        return len(seats), seats <= {failure.seat for failure in together}
    is_whole = bool(failing.cohort) and failing.cohort <= {failure.member for failure in together}
    return len(failing.cohort), is_whole
