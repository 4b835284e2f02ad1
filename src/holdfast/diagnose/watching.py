"""The loop of `holdfast watch`: look, compare with what was known, tell who has to know, and look again.

Whatever fails in a look (a server that is down, a store that is locked, a defect of ours) is told once and
tried again with the next: monitoring that dies of what it monitors is of no use.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.diagnose.assess import Assessment
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Casebook, IncidentChange
from holdfast.diagnose.watch_metrics import SeenEvaluation, WatchMetrics
from holdfast.diagnose.wording import stepless
from holdfast.record.errors import HoldfastError

SHORTEST_WAIT_S = 0.05
"""Between two looks, where one takes longer than the interval."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """One look.

    runs        at which
    unseen      those of them that the signals tell nothing of, and when each made its last step, if known
    beyond      other runs with open incidents, which nothing here can have told of
    ends_ns     when those of the watched ended that have
    assessment  what was found
    since_ns    when its window begins
    """

    runs: tuple[str, ...]
    unseen: dict[str, int | None]
    beyond: tuple[str, ...] = ()
    ends_ns: dict[str, int]
    assessment: Assessment
    since_ns: int


class AlertOutlet(Protocol):
    """Whoever is told. Neither call may wait."""

    def changed(self, change: IncidentChange) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None:
        """After every look: all that is open."""


class Watch:
    """look: makes an assessment as of a moment, given since when something is known to be wrong.

    say: tells whoever runs the watch, in a sentence.
    is_looking: whether it is in a look right now, which may be given up at any moment
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
        """Look once. Whether that could be done."""
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
            self._tell_outlet(outlet, taken.changes)
        self._metrics.evaluated(
            SeenEvaluation(
                at_s=at_ns / 1e9,
                took_s=time.perf_counter() - begun_s,
                runs=looked.runs,
                unseen=tuple(looked.unseen),
                incidents=self._book.open,
                changes=taken.changes,
                flaws=looked.assessment.flaws,
            )
        )
        return True

    def _tell_outlet(self, outlet: AlertOutlet, changes: Sequence[IncidentChange]) -> None:
        """Whoever cannot be told, because a disk is full say, does not end the watch for the others."""
        try:
            for change in changes:
                outlet.changed(change)
            outlet.standing(self._book.open)
        except BrokenPipeError:
            raise  # who read our output has gone, and wants no more of it
        except Exception as error:
            self._say(f"A change could not be told ({type(error).__name__}: {error}); the watch goes on.")

    def _tell_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._say(f"{problem} It is tried again.")
        self._problem = problem

    def _tell_unseen(self, unseen: Mapping[str, int | None], since_ns: int) -> None:
        """That nothing was found in what cannot be seen must not pass for health."""
        for run in sorted({*unseen} - self._unseen):
            self._say(f"Nothing can be said of {run}: {stepless(unseen[run], since_ns)}")
        self._unseen = frozenset(unseen)

    def _tell_beyond(self, runs: Sequence[str]) -> None:
        """Nor must an incident pass for over because nobody here would see it."""
        for run in sorted({*runs} - self._beyond):
            names = ", ".join(one.name for one in self._book.open if one.run == run)
            self._say(f"These signals do not tell of {run}: {names} stays open.")
        self._beyond = frozenset(runs)

    def _tell_names(self, assessment: Assessment) -> None:
        """Nor what is called otherwise than the telemetry calls it."""
        told = {flaw.subject: flaw.text for flaw in assessment.flaws if flaw.kind == "names"}
        for run, text in told.items():
            if self._misnamed.get(run) != text:
                self._say(text)
        self._misnamed = told


def go_on(turn: Callable[[], object], every_s: float, stop: threading.Event) -> None:
    """Take a turn every so often until told to stop. Turns that were missed are not made up for."""
    due_s = time.monotonic()
    while True:
        turn()
        now_s = time.monotonic()
        due_s = max(due_s + every_s, now_s + SHORTEST_WAIT_S)
        if stop.wait(due_s - now_s):
            return
