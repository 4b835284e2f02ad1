"""The loop of `holdfast watch`: look, compare with the known incidents, report changes, and look again.

Any failure of a look (a server that is down, a locked store, a defect of ours) is reported once and retried
with the next look: monitoring that dies of what it monitors is of no use.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.diagnose.assess import Assessment
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Casebook, IncidentChange, Taken
from holdfast.diagnose.watch_metrics import SeenEvaluation, WatchMetrics
from holdfast.diagnose.wording import stepless
from holdfast.record.errors import HoldfastError

SHORTEST_WAIT_S = 0.05
"""The pause between two looks if a look takes longer than the interval."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """One look.

    runs        the examined runs
    unseen      those of them without signals, and when each made its last step, if known
    beyond      other runs with open incidents, which these signals cannot show
    ends_ns     when watched runs ended
    assessment  the findings
    since_ns    when its window begins
    """

    runs: tuple[str, ...]
    unseen: dict[str, int | None]
    beyond: tuple[str, ...] = ()
    ends_ns: dict[str, int]
    assessment: Assessment
    since_ns: int


class AlertOutlet(Protocol):
    """Receives alerts. Neither call may block."""

    def changed(self, change: IncidentChange) -> None: ...

    def confirmed(self, changes: Sequence[IncidentChange]) -> None:
        """Incidents that go on, of which nothing is new; now and then."""

    def standing(self, incidents: Sequence[Incident]) -> None:
        """After every look: all open incidents that are worth an alert."""


class Watch:
    """look: makes an assessment as of a moment, given since when something is known to be wrong.

    say: prints a sentence for the operator.
    is_looking: whether a look is in progress, which may be abandoned at any moment
    """

    def __init__(
        self,
        look: Callable[[int, int | None], Looked],
        book: Casebook,
        outlets: Sequence[AlertOutlet],
        metrics: WatchMetrics,
        say: Callable[[str], None],
    ) -> None:
        self._look = look
        self._book = book
        self._outlets = outlets
        self._metrics = metrics
        self._say = say
        self.is_looking = False
        self._problem = ""
        self._unseen: frozenset[str] = frozenset()
        self._beyond: frozenset[str] = frozenset()
        self._misnamed: dict[str, str] = {}

    def turn(self, at_ns: int) -> bool:
        """Look once, and return whether that succeeded."""
        begun_s = time.perf_counter()
        try:
            self.is_looking = True
            looked = self._look(at_ns, self._book.since_ns)
        except Exception as error:
            self._metrics.failed()
            defect = f"The evaluation failed ({type(error).__name__}: {error})."
            self._tell_problem(error.sentence if isinstance(error, HoldfastError) else defect)
            return False
        finally:
            self.is_looking = False
        if self._problem:
            self._say("The evaluation succeeds again.")
            self._problem = ""
        self._tell_unseen(looked.unseen, looked.since_ns)
        self._tell_beyond(looked.beyond)
        self._tell_names(looked.assessment)
        taken = self._book.take(
            looked.assessment.incidents,
            at_ns,
            unseen={*looked.unseen, *looked.beyond},
            ends_ns=looked.ends_ns,
        )
        for outlet in self._outlets:
            self._tell_outlet(outlet, taken)
        self._metrics.evaluated(
            SeenEvaluation(
                at_s=at_ns / 1e9,
                took_s=time.perf_counter() - begun_s,
                runs=looked.runs,
                unseen=tuple(looked.unseen),
                incidents=self._book.open,
                worthy=self._book.worthy,
                changes=taken.changes,
                flaws=looked.assessment.flaws,
            )
        )
        return True

    def _tell_outlet(self, outlet: AlertOutlet, taken: Taken) -> None:
        """Report to one outlet. A failure, for example a full disk, does not end the watch for the others."""
        try:
            for change in taken.changes:
                outlet.changed(change)
            outlet.confirmed(taken.confirmed)
            outlet.standing(self._book.worthy)
        except BrokenPipeError:
            raise  # the reader of our output has gone, and wants no more of it
        except Exception as error:
            self._say(f"A change could not be reported ({type(error).__name__}: {error}); the watch goes on.")

    def _tell_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._say(f"{problem} It is tried again.")
        self._problem = problem

    def _tell_unseen(self, unseen: Mapping[str, int | None], since_ns: int) -> None:
        """Name the runs that cannot be seen: finding nothing there must not pass for health."""
        for run in sorted({*unseen} - self._unseen):
            self._say(f"Nothing can be said of {run}: {stepless(unseen[run], since_ns)}")
        self._unseen = frozenset(unseen)

    def _tell_beyond(self, runs: Sequence[str]) -> None:
        """Name incidents that stay open because these signals cannot show their run."""
        for run in sorted({*runs} - self._beyond):
            names = ", ".join(one.name for one in self._book.open if one.run == run)
            self._say(f"These signals have no data about {run}: {names} stays open.")
        self._beyond = frozenset(runs)

    def _tell_names(self, assessment: Assessment) -> None:
        """Name subjects that the telemetry calls by other names."""
        told = {flaw.subject: flaw.text for flaw in assessment.flaws if flaw.kind == "names"}
        for run, text in told.items():
            if self._misnamed.get(run) != text:
                self._say(text)
        self._misnamed = told


def go_on(turn: Callable[[], object], every_s: float, stop: threading.Event) -> None:
    """Take a turn at this interval until told to stop. Missed turns are not made up for."""
    due_s = time.monotonic()
    while True:
        turn()
        now_s = time.monotonic()
        due_s = max(due_s + every_s, now_s + SHORTEST_WAIT_S)
        if stop.wait(due_s - now_s):
            return
