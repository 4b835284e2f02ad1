"""What is charged to what: the state of a run's GPUs over time, turned into sums by category and by incident.

`Accounts` knows nothing of events. Somebody tells it the time (`now_ns`), what the GPUs do (`_enter`), how
many there are (`_reshape`) and what went wrong; it charges every stretch of time once, when it is known what
it was. Work on steps is held back until a commit (`_measure`) or a failure (`_abandon`) tells.
"""

import copy
from typing import Self

from holdfast.ledger.categories import Category
from holdfast.ledger.incidents import Incident
from holdfast.ledger.membership import Shape
from holdfast.ledger.tally import LAUNCH, Tally, measured_key, work_bin
from holdfast.ledger.timeline import Timeline
from holdfast.record.events import AnyEvent, Severity

STEPPING = 31
"""A state and not a category: what the time in it was is known at the commit."""
STALLS = (Category.CHECKPOINT_STALL, Category.DATA_STALL)
GUESSES = ("restart", "member lost", "attempt failed")
"""What incidents are called until a fault's own name says better."""
_OF_INCIDENT = frozenset(
    {Category.STARTING, Category.DEAD_UNDETECTED, Category.LOCALISING, Category.RECOVERING, LAUNCH}
)

Piece = tuple[int, int, int]
"""From, until (ns) and how many GPUs: uncommitted work."""


class Accounts:
    """Sums up to `now_ns`, and what going on takes: the GPUs' state and shape, open work, incidents."""

    def __init__(self) -> None:
        self.first_ns = 0
        self.now_ns = -1
        self.gpus_max = 0
        self.paid_gpu_ns = 0
        self.shape = Shape()
        self.incidents: list[Incident] = []
        self.tally = Tally()
        self.timeline = Timeline(0)
        self._state: int = Category.IDLE
        self._since_ns = 0  # up to where everything is charged
        self._pieces: list[Piece] = []  # uncommitted work before that
        self._warm = False  # no step was committed since the start, load or new generation
        self._segment_steps = 1  # how many steps the last commit brought: 1, or a checkpoint's interval
        self._open: int | None = None  # the incident the run has not recovered from yet
        self._degraded: int | None = None  # the incident that makes steps slow
        self._absence: int | None = None  # the incident that took the members that are missing
        self._alarm: tuple[int, int] | None = None  # (onset, noticed) of a fault that may be fatal

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin.incidents = [incident.copy() for incident in self.incidents]
        twin.tally, twin.timeline = self.tally.copy(), self.timeline.copy()
        twin._pieces = self._pieces.copy()
        return twin

    # -- time --------------------------------------------------------------------------------------

    def _advance(self, now_ns: int) -> None:
        """It is later now. The first time that is told is when the accounts begin."""
        if self.now_ns < 0:
            self.first_ns = self._since_ns = now_ns
            self.timeline = Timeline(now_ns)
        self.now_ns = now_ns

    def _is_stepping(self) -> bool:
        return self._state == STEPPING or self._state in STALLS

    def _enter(self, state: int) -> None:
        self._settle()
        self._state = state

    def _reshape(self, shape: Shape) -> None:
        if shape != self.shape:
            self._settle()
            self.shape = shape
            self.gpus_max = max(self.gpus_max, shape.active)
            if shape.missing and self._absence is None:
                self._absence = self._open

    def _settle(self, until_ns: int | None = None) -> None:
        """Charge the time since the last settlement, under the state and shape that held during it."""
        from_ns, now_ns, shape, state = self._since_ns, self.now_ns, self.shape, self._state
        if until_ns is not None:
            now_ns = max(from_ns, min(now_ns, until_ns))
        if now_ns == from_ns:
            return
        self._since_ns = now_ns
        if not shape.paid:
            return
        self.paid_gpu_ns += (now_ns - from_ns) * shape.paid
        if state == STEPPING:
            if shape.active:
                self._pieces.append((from_ns, now_ns, shape.active))
        else:
            self._charge(state, from_ns, now_ns, shape.active)
        if shape.active != shape.paid:
            missing = Category.MISSING_MEMBERS if self._is_stepping() else state
            self._charge(missing, from_ns, now_ns, shape.missing, self._absence)
            self._charge(Category.STARTING, from_ns, now_ns, shape.joining)
            self._charge(Category.SPARE, from_ns, now_ns, shape.spare)
            self._charge(Category.DRAINED, from_ns, now_ns, shape.drained)
            self._charge(Category.IDLE, from_ns, now_ns, shape.idle)

    # -- charging ----------------------------------------------------------------------------------

    def _charge(self, key: int, from_ns: int, to_ns: int, gpus: int, incident: int | None = None) -> None:
        gpu_ns = (to_ns - from_ns) * gpus
        if not gpu_ns:
            return
        self.tally.add(key, gpu_ns)
        self.timeline.add(key, from_ns, to_ns, gpus)
        if incident is None and key in _OF_INCIDENT:
            incident = self._open
        if incident is not None:
            self.incidents[incident].tally.add(key, gpu_ns)

    def _charge_all(self, key: int, pieces: list[Piece], incident: int | None = None) -> None:
        for from_ns, to_ns, gpus in pieces:
            self._charge(key, from_ns, to_ns, gpus, incident)

    def _measure(
        self, pieces: list[Piece], steps: int, normal: Category, excess: Category, incident: int | None
    ) -> int:
        """Charge these pieces as that many steps, to be split by the reference later; their GPU-ns."""
        gpu_ns = sum((to_ns - from_ns) * gpus for from_ns, to_ns, gpus in pieces)
        key = measured_key(normal, excess, work_bin(gpu_ns // steps))
        if gpu_ns:
            self.tally.add(key, gpu_ns, steps)
            for from_ns, to_ns, gpus in pieces:
                self.timeline.add(key, from_ns, to_ns, gpus)
            if incident is not None:
                self.incidents[incident].tally.add(key, gpu_ns, steps)
        return gpu_ns

    def _waste(self, category: Category) -> None:
        self._settle()
        pieces, self._pieces = self._pieces, []
        self._charge_all(category, pieces)

    def _abandon(self, beyond: Category) -> None:
        """The uncommitted work will never be committed.

        A run cannot have worked on it for longer than its last commit took, at the reference rate; what
        lies beyond that is `beyond`. Where a fault's onset is known, that tells instead; and from when it
        was noticed on, it was being localised.
        """
        self._settle()
        pieces, self._pieces = self._pieces, []
        if not pieces:
            self._alarm = None
            return
        normal = Category.STARTING if self._warm else Category.DISCARDED
        if self._alarm is not None:
            onset_ns, noticed_ns = self._alarm
            self._alarm = None
            pieces, after = split_all(pieces, noticed_ns)
            self._charge_all(Category.LOCALISING, after, self._open)
            if onset_ns < noticed_ns:
                pieces, dead = split_all(pieces, onset_ns)
                self._charge_all(Category.DEAD_UNDETECTED, dead, self._open)
                self._charge_all(normal, pieces, self._open)
                return
        self._measure(pieces, self._segment_steps, normal, beyond, self._open)

    def _stall(self, stall_ns: int) -> None:
        """The last `stall_ns` of uncommitted work were spent waiting for a checkpoint instead."""
        self._settle()
        self._pieces, stalled = split_all(self._pieces, self.now_ns - stall_ns)
        self._charge_all(Category.CHECKPOINT_STALL, stalled)

    # -- incidents ---------------------------------------------------------------------------------

    def _fail(self, event: AnyEvent, what: str, onset_ns: int | None = None) -> int:
        """The incident the run is in now: the open one, or a new one."""
        if self._open is None:
            self._open = self._new_incident(event, what, onset_ns, "fatal")
        else:
            self.incidents[self._open].add_evidence(event)
        return self._open

    def _new_incident(self, event: AnyEvent, what: str, onset_ns: int | None, severity: Severity) -> int:
        incident = Incident(
            what,
            event.subject,
            began_ns=self._onset(onset_ns),
            noticed_ns=self.now_ns,
            severity=severity,
        )
        incident.add_evidence(event)
        self.incidents.append(incident)
        return len(self.incidents) - 1

    def _onset(self, onset_ns: int | None) -> int:
        return self.now_ns if onset_ns is None else max(self.first_ns, min(onset_ns, self.now_ns))

    def _sound_alarm(self, onset_ns: int | None) -> None:
        onset = self._onset(onset_ns)
        if self._state in STALLS:
            # What looked like waiting was, from the onset on, being dead.
            self._settle(onset)
            self._state = STEPPING
        self._alarm = self._alarm or (onset, self.now_ns)

    def _recover(self) -> None:
        self._warm = False
        self._alarm = None
        if not self.shape.missing:
            self._absence = None
        if self._open is not None:
            self.incidents[self._open].recovered_ns = self.now_ns
            self._open = None
        if self._state != STEPPING:
            self._enter(STEPPING)

    def _blamed(self) -> int | None:
        """The incident that answers for how long a new step took."""
        return self._open if self._open is not None else self._degraded


def split_all(pieces: list[Piece], at_ns: int) -> tuple[list[Piece], list[Piece]]:
    """What lies before this moment, and what after."""
    before = [(from_ns, min(to_ns, at_ns), gpus) for from_ns, to_ns, gpus in pieces if from_ns < at_ns]
    after = [(max(from_ns, at_ns), to_ns, gpus) for from_ns, to_ns, gpus in pieces if to_ns > at_ns]
    return before, after


def cut(pieces: list[Piece], share: int, whole: int) -> tuple[list[Piece], list[Piece]]:
    """The first share/whole of the GPU-time in these pieces, and the rest."""
    wanted = sum((to_ns - from_ns) * gpus for from_ns, to_ns, gpus in pieces) * share // whole
    for from_ns, to_ns, gpus in pieces:
        if wanted <= (to_ns - from_ns) * gpus:
            return split_all(pieces, from_ns + wanted // gpus)
        wanted -= (to_ns - from_ns) * gpus
    return pieces, []
