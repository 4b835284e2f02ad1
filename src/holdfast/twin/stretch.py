"""What an elastic run has done since its last commit, and where that time goes if no commit follows."""

from typing import Literal

import msgspec

from holdfast.ledger.categories import Category
from holdfast.twin.truth import RunTruth

Doing = Literal[
    "starting", "stepping", "saving", "fresh", "changing", "aborting", "recovering", "silent", "paused"
]
"""saving: training stops for a checkpoint. fresh: in the first step of a generation. changing: at a boundary,
between two generations. aborting: all members leave a group that lost no member. silent: a member does not
move, and the membership does not know yet. paused: on purpose."""


class NoticedFault(msgspec.Struct, kw_only=True):
    """A fault reported while the run went on: when it began, was noticed and was acted upon."""

    onset_ns: int
    noticed_ns: int
    acted_ns: int | None = None


class Stretch(msgspec.Struct, kw_only=True):
    """The time since the last commit, or since the run began what it does now.

    stalled_ns: the part of it that a checkpoint took, before the first step. steps: in the last commit.
    excess: category of the extra time in the first step of a generation.
    is_hurt: something failed, and no step was committed since.
    """

    doing: Doing = "starting"
    since_ns: int = 0
    stalled_ns: int = 0
    steps: int = 1
    excess: Category = Category.STARTING
    alarm: NoticedFault | None = None
    is_hurt: bool = False

    def begin(self, doing: Doing, now_ns: int) -> None:
        self.doing, self.since_ns = doing, now_ns

    def commit(self, steps: int, now_ns: int) -> None:
        self.begin("stepping", now_ns)
        self.stalled_ns, self.steps, self.alarm, self.is_hurt = 0, steps, None, False

    @property
    def steps_since_ns(self) -> int:
        return self.since_ns + self.stalled_ns

    def sound_alarm(self, now_ns: int, onset_ns: int | None) -> None:
        self.is_hurt = True
        if self.alarm is None:
            self.alarm = NoticedFault(onset_ns=now_ns if onset_ns is None else onset_ns, noticed_ns=now_ns)

    def act(self, now_ns: int) -> None:
        if self.alarm is not None and self.alarm.acted_ns is None:
            self.alarm.acted_ns = now_ns

    def nature(self, *, has_worker: bool) -> Category | None:
        """The category of the time while no step could be lost; None if the run steps."""
        match self.doing:
            case "starting":  # until a worker joins, the record does not say what the run does
                return Category.STARTING if has_worker else Category.UNATTRIBUTED
            case "fresh":
                return self.excess
            case "recovering":
                return Category.RECOVERING
            case "paused":
                return Category.PLANNED_STOP
        return None

    def charge(self, truth: RunTruth, now_ns: int, *, nature: Category | None, beyond: Category) -> None:
        """Charge the time since the last commit as lost.

        After a fault was noticed the time is localising, and after an action it is recovering. If the onset
        is unknown, work cannot be told from standing still; but a step takes no longer than before.
        """
        since_ns, until_ns = self.since_ns, now_ns
        alarm, self.alarm = self.alarm, None
        onset_ns = noticed_ns = acted_ns = now_ns
        if alarm is not None:
            noticed_ns = max(since_ns, alarm.noticed_ns)
            onset_ns = max(since_ns, min(alarm.onset_ns, noticed_ns))
            acted_ns = now_ns if alarm.acted_ns is None else max(since_ns, alarm.acted_ns)
            until_ns = onset_ns
        stalled_until_ns, self.stalled_ns = min(self.steps_since_ns, until_ns), 0
        truth.work(Category.CHECKPOINT_STALL, since_ns, stalled_until_ns)
        if nature is not None:
            truth.stand(nature, since_ns, until_ns)
        elif onset_ns < noticed_ns:
            truth.work(Category.DISCARDED, stalled_until_ns, until_ns)
        else:
            truth.lose(Category.DISCARDED, stalled_until_ns, until_ns, steps=self.steps, beyond=beyond)
        truth.stand(Category.DEAD_UNDETECTED, onset_ns, noticed_ns)
        truth.stand(Category.LOCALISING, noticed_ns, acted_ns)
        truth.stand(Category.RECOVERING, acted_ns, now_ns)
