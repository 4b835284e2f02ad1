"""The attempts of a run: whether one is up, which members it has, and how it ended.

A scheduler, the launcher and the run itself may each report the same start, in any order and by their own
clocks. These reports count as one attempt.
"""

from collections.abc import Iterable

from holdfast.ledger.accounts import Accounts
from holdfast.ledger.categories import Category
from holdfast.ledger.counts import SCHEDULERS, Counts, Declared, Gap, Gaps, LaunchAttempt, Opening
from holdfast.ledger.membership import Membership
from holdfast.ledger.progress import Disorder, StepProgress
from holdfast.ledger.tally import AFTER_STEPS, IN_FLIGHT, LAUNCH
from holdfast.record.events import MemberJoined, MemberLost, RunEnded, RunStarted, RunSubmitted

_AFTER_END: dict[str, int] = {
    "completed": Category.IDLE,
    "failed": Category.RECOVERING,
    "stopped": Category.PLANNED_STOP,
    "preempted": Category.QUEUED,
}
_NAMES = ("name", "team", "project", "cluster")


class Attempts:
    """The accounts of a run, and the state of its current or last attempt."""

    def __init__(self, cuts_ns: Iterable[int] = ()) -> None:
        self.accounts = Accounts(cuts_ns)
        self.counts = Counts()
        self.declared = Declared()
        self.members = Membership()
        self.progress = StepProgress()
        self.gaps = Gaps()
        self.disorder = Disorder()
        self.instrumented = False  # whether the run ever reported more than starts and ends
        self.ended = False
        self.ending: RunEnded | None = None  # None if the run went on after it
        self._launch = LaunchAttempt()
        self._is_complete = False  # an attempt completed, and no step was done since
        self._is_bare = True  # only commits, starts and ends were reported
        self._written_ns = (0, 0)  # begin and end of the last background checkpoint write
        self._segment_steps = 1  # steps in the last commit: 1, or a checkpoint's interval
        self._opening: Opening | None = None  # the run's first step, until the next one is reported

    def _submitted(self, event: RunSubmitted) -> None:
        self._name(event)
        if not self.accounts.is_up:
            self.accounts.enter(Category.QUEUED)

    def _started(self, event: RunStarted) -> None:
        self._name(event)
        accounts = self.accounts
        if self._is_known_launch(event):
            self._launch.is_implied = self._launch.is_scheduled = False
            self.members.size_gpus = event.gpus or self.members.size_gpus
            self._reshape()
            return
        if accounts.is_up and accounts.nature == Category.PLANNED_STOP:
            accounts.dismiss(IN_FLIGHT)  # a planned stop, and now a new start
        elif accounts.is_up:
            # The previous attempt died unrecorded: only its last sign of life is known.
            accounts.settle()
            last_sign_ns = accounts.pieces[0].from_ns if accounts.pieces else None
            accounts.fail(event, "unexplained restart", last_sign_ns)
            self._keep_silence(failed=True)
            self._abandon(Category.DEAD_UNDETECTED)
        if accounts.open is not None:
            incident = accounts.own(accounts.open)
            incident.restarts += 1
            incident.restarted_ns = accounts.now_ns
        self._begin_attempt(event.gpus)
        self.counts.starts += not self._launch.is_last
        self._launch.is_last = True
        self._launch.is_scheduled = event.source in SCHEDULERS

    def _is_known_launch(self, event: RunStarted) -> bool:
        """Whether this start belongs to the current attempt: both a scheduler and the run report it, or
        a member reported something just before the launch was recorded.
        """
        launch, members = self._launch, self.members
        by_scheduler, allocated_gpus = event.source in SCHEDULERS, members.allocated_gpus
        if by_scheduler:
            members.allocated_gpus = event.gpus
        if not self.accounts.is_up:
            return False
        if by_scheduler and not allocated_gpus and not launch.is_scheduled and not launch.stepped:
            return self.counts.launches == 1
        return (launch.is_implied and not launch.stepped) or (launch.is_scheduled and not by_scheduler)

    def _ended(self, event: RunEnded) -> None:
        accounts = self.accounts
        self.ending = self.ending or event
        by_scheduler = event.source in SCHEDULERS
        if by_scheduler:
            self.members.allocated_gpus = 0
            self.gaps.give_back(accounts.now_ns)
        if not accounts.is_up:
            self._reshape()
            return
        self.gaps.down = Gap(
            from_ns=accounts.now_ns,
            to_ns=accounts.now_ns,
            gpus=accounts.shape.paid,
            outcome=event.outcome,
            given_back=by_scheduler,
        )
        self._is_complete = event.outcome == "completed"
        if event.outcome != "failed" and not self._launch.is_phased:
            # If it reported nothing since its start, it may have done all its work unheard.
            accounts.disown_silence(unless_short=self._launch.is_heard)
        if event.outcome == "failed":
            accounts.fail(event, event.reason or "attempt failed")
            self._keep_silence(failed=True)
            self._abandon(Category.DEAD_UNDETECTED)
        elif event.outcome == "completed":
            # The run waited for its last checkpoint; the remaining time is its shutdown.
            accounts.stall(*self._written_ns)
            is_unknown = self._is_bare or self._segment_steps > 1  # there may have been more steps
            accounts.dismiss(AFTER_STEPS if is_unknown else Category.STARTING)
            if accounts.open is not None:
                restarted_ns = accounts.incidents[accounts.open].restarted_ns
                open_incident = accounts.own(accounts.open)
                accounts.recover()
                open_incident.recovered_ns = restarted_ns or open_incident.recovered_ns
        else:
            self._abandon(Category.UNATTRIBUTED)
        accounts.enter(_AFTER_END[event.outcome])
        accounts.end_degradation(accounts.degraded)
        accounts.is_up = False
        accounts.alarm = None
        self.ended = True
        self._launch = LaunchAttempt(size_gpus=self.members.size_gpus)
        self.members.start(0)
        self._reshape()

    def _name(self, event: RunSubmitted | RunStarted) -> None:
        for field in _NAMES:
            setattr(self.declared, field, getattr(event, field) or getattr(self.declared, field))

    def _begin_attempt(self, gpus: int) -> None:
        accounts = self.accounts
        accounts.settle()
        self.gaps.close(accounts.now_ns, accounts.shape.paid)
        self.disorder.forget()
        accounts.enter(LAUNCH)
        accounts.end_degradation(accounts.degraded)
        accounts.is_up = True
        accounts.alarm = None
        self.counts.launches += 1
        self.ended = False
        self.ending = None
        self._launch = LaunchAttempt(size_gpus=gpus, is_last=self._launch.is_last)
        self.members.start(gpus)
        self._reshape()

    def _hear(self) -> None:
        """The run itself reported something."""
        self.instrumented = True
        self._launch.is_scheduled = False
        self._be_up()
        self._launch.is_heard = True

    def _be_up(self) -> None:
        """Treat the run as up, even if no start was recorded."""
        if not self.accounts.is_up:
            size_gpus, was_ended = self._launch.size_gpus, self.ended
            self._begin_attempt(size_gpus)
            self._launch.is_implied = True
            if was_ended:
                self.counts.launches -= 1  # the end belonged to another attempt, or came too early
            else:
                self.counts.starts += 1
        self._launch.is_last = False

    def _keep_silence(self, *, failed: bool) -> None:
        if not self._launch.is_phased:
            self.accounts.keep_silence(self.progress.position or 0, failed=failed)

    def _abandon(self, beyond: Category) -> None:
        work = Category.STARTING if self._launch.is_warm else Category.DISCARDED
        position, begun_step = self.progress.position, self._launch.begun_step
        # If the run reports when steps begin, and none had begun, no work was lost.
        in_flight = position is None or not 0 <= begun_step <= position
        bounded = self.accounts.abandon(
            steps=self._segment_steps,
            work=work if in_flight else beyond,
            beyond=beyond,
            in_flight=in_flight,
        )
        if self._opening is not None:
            self._opening = self._opening._replace(losses=(*self._opening.losses, *bounded))

    def _reshape(self) -> None:
        self.accounts.reshape(self.members.shape())

    # -- members -------------------------------------------------------------------------------------

    def _joined(self, event: MemberJoined) -> None:
        accounts = self.accounts
        self._is_bare = False
        if not accounts.is_up:
            # The launch itself is recorded a moment later, by another clock.
            self._begin_attempt(0)
            self._launch.is_implied = True
            self.counts.starts += not self._launch.is_last
            self._launch.is_last = True
        if accounts.open is not None and not self.instrumented:
            accounts.own(
                accounts.open
            ).restarted_ns = accounts.now_ns  # such a run reports no more about its restart
        stepping = accounts.is_stepping or self._launch.grouped
        self.members.join(event.subject, event.gpus, event.role, stepping=stepping)
        self._reshape()

    def _lost(self, event: MemberLost) -> None:
        self.counts.members_lost += 1
        if not self.accounts.is_up:
            return
        self._launch.is_last = False
        if self.members.leave(event.subject):
            self._launch.grouped = False
            self.accounts.sound_alarm(event.onset_ns)
            incident = self.accounts.fail(event, "member lost", event.onset_ns)
            incident.members_lost += 1
            if incident.members_lost > 1 and incident.what == "member lost":
                incident.subject = ""  # several members are gone, so no single name says what failed
            self._keep_silence(failed=True)
            self._abandon(Category.DEAD_UNDETECTED)
            self._launch.is_phased = False
            self.accounts.enter(Category.RECOVERING)
        self._reshape()
