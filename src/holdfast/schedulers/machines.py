"""Carries out control's actions by a scheduler, the site's commands and live runs."""

from collections.abc import Callable
from typing import Protocol, assert_never

from holdfast import wording
from holdfast.control.actions import HARMLESS, ControlAction
from holdfast.control.decision import UNPROVEN
from holdfast.control.policy import ControlPolicy
from holdfast.control.seeing import ActionOrder, Answered, MachinesView
from holdfast.record.errors import HoldfastError
from holdfast.schedulers.scheduler import NAME, DrainCause, Scheduler
from holdfast.schedulers.site import SiteAnswer, checked, filled, run_command, told

NOTHING = MachinesView(nodes={})
MISTAKES = (2, 126, 127)
"""Exit codes of a `holdfast check` with a wrong flag, and of a shell that found no such command: the command
is wrong, not the node.
"""
OWED_SHOWN_MAX = 6


class RunMoves(Protocol):
    """Requests to a live run. Each returns what was done, and raises `HoldfastError` if that fails."""

    def reaches(self, run: str) -> bool: ...

    def migrate(self, run: str, target: str) -> Answered: ...

    def drain(self, run: str, node: str) -> Answered: ...

    def restore(self, run: str, node: str) -> Answered: ...


class ClusterMachines:
    """scheduler: None without one. is_leading: asked before a node is restored after a check, which may have
    taken an hour. reboot: the scheduler's own way, for sites without a command; takes a node and a reason,
    and returns what was done.
    """

    def __init__(
        self,
        policy: ControlPolicy,
        scheduler: Scheduler | None,
        moves: RunMoves,
        is_leading: Callable[[], bool],
        reboot: Callable[[str, str], str] | None = None,
    ) -> None:
        self._policy = policy
        self._scheduler = scheduler
        self._moves = moves
        self._is_leading = is_leading
        self._reboot = reboot

    @property
    def can(self) -> frozenset[ControlAction]:
        commands = self._policy.commands
        found: set[ControlAction] = {"watch", "rebalance", "call-a-person", "replace", "migrate", "shrink"}
        if self._scheduler is not None:
            found |= {"drain-when-done", "drain-now", "requeue"}
            found |= {"restore"} if commands.check else set()
        found |= {"reboot"} if commands.reboot or self._reboot else set()
        found |= {"checkpoint"} if commands.checkpoint else set()
        return frozenset(found)

    def look(self, now_ns: int) -> MachinesView:
        return NOTHING if self._scheduler is None else self._scheduler.look(now_ns)

    def reaches(self, run: str) -> bool:
        return self._moves.reaches(run)

    def do(self, order: ActionOrder) -> Answered:
        decision, commands = order.decision, self._policy.commands
        match decision.action:
            case "watch" | "rebalance":
                return Answered(ok=True, outcome="the run moves lanes by itself")
            case "checkpoint":
                return self._commanded(commands.checkpoint, order)
            case "replace":
                return self._moves.migrate(decision.run, decision.member)
            case "migrate":
                return self._moves.migrate(decision.run, decision.target)
            case "shrink":
                return self._moves.drain(decision.run, decision.target)
            case "drain-when-done":
                self._needed.drain(decision.target, order.reason, _cause(order))
                return Answered(ok=True, outcome="drained; what runs there goes on")
            case "drain-now":
                return self._drain_now(order)
            case "reboot":
                return self._rebooted(order)
            case "requeue":
                return self._requeued(order.run.jobs if order.run else ())
            case "restore":
                return self._restored(order)
            case "call-a-person":
                if not commands.person:
                    return Answered(ok=True, outcome="it is in the record; the policy names no command")
                return self._commanded(commands.person, order)
        assert_never(decision.action)

    @property
    def _needed(self) -> Scheduler:
        assert self._scheduler is not None  # else `can` has no action that needs it
        return self._scheduler

    def _drain_now(self, order: ActionOrder) -> Answered:
        """Drain first and move the jobs off then: the other way round, a new job could start in between."""
        target, run = order.decision.target, order.run
        self._needed.drain(target, order.reason, _cause(order))
        if run is not None and run.is_elastic and run.can_move:
            left = self._moves.drain(run.name, target).outcome
        else:
            left = self._needed.clear(target, run.jobs if run is not None else ())
        return Answered(ok=True, outcome=f"drained; {left}")

    def _rebooted(self, order: ActionOrder) -> Answered:
        if self._reboot is None or self._policy.commands.reboot:
            return self._commanded(self._policy.commands.reboot, order)
        return Answered(ok=True, outcome=self._reboot(order.decision.target, order.decision.reason))

    def _requeued(self, jobs: tuple[str, ...]) -> Answered:
        done = [f"{job}: {self._needed.requeue(job)}" for job in jobs]
        return Answered(ok=bool(jobs), outcome="; ".join(done) or "no job was found")

    def _restored(self, order: ActionOrder) -> Answered:
        """Restore a node only after a check that passes and has measured the part it was drained for."""
        commands = self._policy.commands
        is_long = order.is_long_check and bool(commands.long_check)
        template = commands.long_check if is_long else commands.check
        answer = self._answer(template, order, is_long=order.is_long_check)
        if answer is None or order.node is None:
            return self._told(answer, order)
        if answer.code in MISTAKES:
            return Answered(ok=False, outcome=f"{UNPROVEN}its check could not be run: {told(answer)}")
        found = checked(answer)
        owed = order.unproven(found.is_good)
        if answer.code != 0 and not (found.is_untried and owed):
            return self._told(answer, order)
        if owed:
            listed = wording.listed(owed, OWED_SHOWN_MAX)
            why = f"drained for {order.part}, and its check has no good figure of {listed}"
            hint = "" if "{part}" in template else "; the policy's command does not have --for {part}"
            return Answered(ok=False, outcome=f"{UNPROVEN}{why}{hint}")
        if not self._is_leading():
            return Answered(ok=False, outcome="another process has taken the lead")
        decision = order.decision
        self._needed.resume(decision.target, order.node.reason)
        back = ""
        if decision.run and self._moves.reaches(decision.run):
            try:
                back = f"; {self._moves.restore(decision.run, decision.target).outcome}"
            except HoldfastError as error:  # the node is restored all the same
                back = f"; the run did not take it: {error.sentence}"
        return Answered(ok=True, outcome=f"restored: {told(answer)}{back}")

    def _commanded(self, template: str, order: ActionOrder) -> Answered:
        return self._told(self._answer(template, order), order)

    def _told(self, answer: SiteAnswer | None, order: ActionOrder) -> Answered:
        if answer is None:
            target = order.decision.target
            return Answered(ok=False, outcome=f"{target!r} is not a safe name for a command")
        return Answered(ok=answer.code == 0, outcome=told(answer))

    def _answer(self, template: str, order: ActionOrder, *, is_long: bool = False) -> SiteAnswer | None:
        """Run the command; None if the target's name is not safe in a command."""
        commands, decision = self._policy.commands, order.decision
        if decision.action not in HARMLESS and not NAME.fullmatch(decision.target):
            return None
        values = {
            "node": _plain(decision.target),
            "run": _plain(decision.run),
            "job": order.run.jobs[0] if order.run and order.run.jobs else "",
            "reason": decision.reason,
            "part": order.part,
        }
        timeout_s = commands.long_timeout_s if is_long else commands.timeout_s
        return run_command(filled(template, values), timeout_s)


def _cause(order: ActionOrder) -> DrainCause:
    decision = order.decision
    return DrainCause(rule=decision.rule, incidents=decision.incidents, why=decision.reason)


def _plain(name: str) -> str:
    """The name if a command cannot mistake it for an option, else empty."""
    return name if NAME.fullmatch(name) else ""
