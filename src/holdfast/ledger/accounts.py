"""The accounts: the state of a run's GPUs over time, turned into sums by category and incident.

`Accounts` knows little about events. `Fold` tells it the time, what the GPUs do, how many there are, and what
went wrong. While an attempt is up, the accounts hold its time back in pieces, because only later events show
what it was: `take_work` if a step was committed, `abandon` if the attempt failed, `dismiss` if it just ended.
Every nanosecond of every GPU paid for is charged exactly once.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.ledger.categories import Category
from holdfast.ledger.copies import copied
from holdfast.ledger.membership import GpuShares
from holdfast.ledger.tally import LAUNCH, STAGE, Tally, measured, measured_key, own_bin, work_bin
from holdfast.ledger.timeline import Cuts, Timeline
from holdfast.record.events import AnyEvent, Severity
from holdfast.wording.units import MINUTE_NS

EVIDENCE_MAX = 16
"""How many of an incident's events are named. The loss of a node can bring thousands."""


class LedgerIncident(msgspec.Struct, kw_only=True):
    """A failure or slowdown: when it began, was noticed and ended, and the GPU-time it cost.

    silence: if its beginning is unknown, the key of the work that was lost, from when, to when.
    spent: from when to when it cost GPU-time. Work that was lost in it lies before its beginning, and work
    that it made necessary after its end.
    """

    what: str
    subject: str
    severity: Severity
    began_ns: int
    noticed_ns: int
    recovered_ns: int | None = None
    restarted_ns: int | None = None
    silence: tuple[int, int, int] | None = None
    spent: tuple[int, int] | None = None
    restarts: int = 0
    members_lost: int = 0
    steps_rolled_back: int = 0
    evidence: list[str] = []
    tally: Tally = msgspec.field(default_factory=Tally)

    def add_evidence(self, event: AnyEvent) -> None:
        if len(self.evidence) < EVIDENCE_MAX:
            self.evidence.append(event.id)

    def spend(self, from_ns: int, to_ns: int) -> None:
        first_ns, last_ns = self.spent or (from_ns, to_ns)
        self.spent = min(first_ns, from_ns), max(last_ns, to_ns)

    def copy(self) -> "LedgerIncident":
        return copied(self, "evidence", "tally")


STEPPING = 31
"""A nature of time that has no category yet: work on a step."""
SILENCES_MAX = 64
"""How many silent stretches wait to be told what they were."""
PIECES_MAX = 1_024
"""How many pieces of uncommitted time are held back, to bound the memory for a run that never commits."""

START_NS_MAX = 30 * MINUTE_NS
"""An attempt that reports nothing for longer than this is not taken to be starting all the time. Meta's cold
starts at 98,000 GPUs take 15 minutes, and NCCL 3 more."""

_STALLS = (Category.CHECKPOINT_STALL, Category.DATA_STALL)
_WAITS = (*_STALLS, Category.CHECKS)
_BEFORE_STEPS = (Category.STARTING, Category.RECOVERING, LAUNCH)
_GUESSES = ("unexplained restart", "member lost", "attempt failed", "rollback")


class Piece(NamedTuple):
    """A stretch of held-back time: how many GPUs took part, how many were missing, and what they did.

    doubtful: how many of those that took part may turn out to have been drained.
    """

    from_ns: int
    to_ns: int
    gpus: int
    missing: int
    nature: int
    doubtful: int = 0


class Alarm(NamedTuple):
    """A fault that may turn out to be fatal: when it began, was noticed, and was acted upon."""

    onset_ns: int
    noticed_ns: int
    acted_ns: int | None = None


class SilentStretch(NamedTuple):
    """Time without a sign of work, until the attempt failed or its members began anew.

    position: the last step that the run had then; 0 before its first. incident: what it failed of, if known.
    """

    pieces: list[Piece]
    position: int
    incident: int | None
    failed: bool


class RecordedPrice(NamedTuple):
    """A recorded price, and since when it holds."""

    from_ns: int
    usd_per_gpu_hour: float


class Accounts:
    """Sums up to `now_ns`, and the current state: the GPUs' nature and shape, held-back time, incidents.

    cuts_ns: moments at which to cut the sums, see `cuts`.
    """

    def __init__(self, cuts_ns: Iterable[int] = ()) -> None:
        self.first_ns = 0
        self.now_ns = -1
        self.since_ns = 0  # all time before this is charged or held back
        self.shape = GpuShares()
        self.gpus_max = 0  # the most that ever took part in an attempt
        self.paid_gpu_ns = 0
        self.prices: list[RecordedPrice] = []
        self.stage_key = 0  # added to measured keys for the current stage
        self.tally = Tally()
        cuts = Cuts(cuts_ns)
        self.timeline = Timeline(0, cuts if cuts.edges else None)
        self.incidents: list[LedgerIncident] = []
        self.nature: int = Category.IDLE
        self.is_up = False  # an attempt is running, so its time is held back
        self.pieces: list[Piece] = []
        self.silences: list[SilentStretch] = []  # later events tell what they were
        self.open: int | None = None  # the incident that the run has not recovered from yet
        self.degraded: dict[str, int] = {}  # subject: the incident that makes steps slow
        self.absence: int | None = None  # the incident that cost the missing members
        self.alarm: Alarm | None = None
        self._losses = 0
        self._owned: set[int] = set()  # incidents that no copy shares

    def copy(self) -> "Accounts":
        twin = copied(self, "prices", "pieces", "silences", "tally", "timeline", "incidents", "degraded")
        # Both now share the incidents; either copies an incident before changing it.
        self._owned, twin._owned = set(), set()
        return twin

    # -- time --------------------------------------------------------------------------------------

    def advance(self, now_ns: int) -> None:
        """Move the clock on. The first call sets the beginning of the accounts."""
        if self.now_ns < 0:
            self.first_ns = self.since_ns = now_ns
            self.timeline = Timeline(now_ns, self.timeline.cuts)
        self.now_ns = now_ns

    @property
    def is_stepping(self) -> bool:
        return self.is_up and (self.nature == STEPPING or self.nature in _STALLS)

    def enter(self, nature: int) -> None:
        """The GPUs do this from now on."""
        self.settle()
        self.nature = nature

    def reshape(self, shape: GpuShares) -> None:
        """The GPUs are divided like this from now on."""
        if self.is_up:
            self.gpus_max = max(self.gpus_max, shape.active)
        if shape == self.shape:
            return
        self.settle()
        self.shape = shape
        if shape.missing and self.absence is None:
            self.absence = self.open

    def settle(self) -> None:
        """Charge or hold back the time since the last settlement, by the GPUs' nature and shape then."""
        from_ns, now_ns, shape = self.since_ns, self.now_ns, self.shape
        if now_ns == from_ns:
            return
        self.since_ns = now_ns
        if not shape.paid:
            return
        self.paid_gpu_ns += (now_ns - from_ns) * shape.paid
        if self.is_up:
            self._hold_back(Piece(from_ns, now_ns, shape.active, shape.missing, self.nature, shape.doubtful))
        else:
            incident = None if self.nature == Category.IDLE else self.open
            self._charge(self.nature, from_ns, now_ns, shape.active + shape.missing, incident)
        if shape.active + shape.missing != shape.paid:
            self._charge(Category.STARTING, from_ns, now_ns, shape.joining)
            self._charge(Category.SPARE, from_ns, now_ns, shape.spare)
            self._charge(Category.DRAINED, from_ns, now_ns, shape.drained)
            self._charge(Category.IDLE, from_ns, now_ns, shape.idle)

    def _hold_back(self, piece: Piece) -> None:
        self.pieces.append(piece)
        if len(self.pieces) > PIECES_MAX:
            oldest, self.pieces = self.pieces[: PIECES_MAX // 2], self.pieces[PIECES_MAX // 2 :]
            self._charge_as_it_was(oldest, Category.UNATTRIBUTED)

    # -- deciding what held-back time was ------------------------------------------------------------

    def _released(self) -> list[Piece]:
        """All held-back time, which is to be charged now."""
        self.settle()
        pieces, self.pieces = self.pieces, []
        return self._without_drained(pieces)

    def _without_drained(self, pieces: list[Piece]) -> list[Piece]:
        """These pieces without drained GPUs: if the attempt was told to have them, but no member came for
        them, they were drained all along.
        """
        there = self.shape.active + self.shape.missing + self.shape.joining
        for at, piece in enumerate(pieces):
            if piece.doubtful and (drained := min(piece.doubtful, piece.gpus - there)) > 0:
                self._charge(Category.DRAINED, piece.from_ns, piece.to_ns, drained)
                pieces[at] = piece._replace(gpus=piece.gpus - drained, doubtful=0)
        return pieces

    def take_work(self) -> tuple[list[Piece], Category | None]:
        """A step was committed: return the work on it, and charge the other pieces.

        If no event said when the work began, it is part of the start or recovery before it. Then return
        that, with the category for the time beyond a normal step.
        """
        pieces = self._released()
        work = [piece for piece in pieces if piece.nature == STEPPING]
        others = [piece for piece in pieces if piece.nature != STEPPING]
        before = None
        if not work and others and others[-1].nature in _BEFORE_STEPS:
            others, work = split_off_last(others)
            before = Category.RECOVERING if work[0].nature == Category.RECOVERING else Category.STARTING
        self._charge_as_it_was(others, Category.UNATTRIBUTED)
        for piece in work:
            self._charge_missing(piece)
        return work, before

    def measure(
        self, pieces: list[Piece], steps: int, normal: Category, excess: Category, incident: int | None
    ) -> int:
        """Charge this work as that many steps, to be split by the reference later. Return its GPU-ns."""
        gpu_ns = _gpu_ns(pieces)
        key = self.stage_key + measured_key(normal, excess, work_bin(gpu_ns // steps))
        self._add(key, pieces, gpu_ns, steps, incident)
        if gpu_ns:
            self.timeline.timed[-1] += 1
        return gpu_ns

    def recount(self, key: int, gpu_ns: int, steps: int, incident: int | None) -> None:
        """This time under a key, charged to this incident, is that of so many steps, and not of one."""
        told = measured(key)
        to = told.stage * STAGE + measured_key(told.normal, told.excess, work_bin(gpu_ns // steps))
        for tally in (self.tally, *(() if incident is None else (self.own(incident).tally,))):
            tally.add(key, -gpu_ns, -1)
            tally.add(to, gpu_ns, steps)
        self.timeline.move_latest(key, to, gpu_ns)
        if self.timeline.cuts is not None:
            self.timeline.cuts.discard(key, to, gpu_ns, incident, incident)

    def _add(self, key: int, pieces: list[Piece], gpu_ns: int, steps: int, incident: int | None) -> None:
        if not gpu_ns:
            return
        self.tally.add(key, gpu_ns, steps)
        for piece in pieces:
            if piece.gpus:
                self.timeline.add(key, piece.from_ns, piece.to_ns, piece.gpus)
                self._blame(incident, key, piece.from_ns, piece.to_ns, piece.gpus)
        if incident is not None:
            own = self.own(incident)
            own.tally.add(key, gpu_ns, steps)
            own.spend(pieces[0].from_ns, pieces[-1].to_ns)

    def dismiss(self, work: int) -> None:
        """Charge held-back time as it looks, since no later event will explain it; steps as `work`, a key."""
        self._charge_as_it_was(self._released(), work)

    def abandon(
        self, *, steps: int, work: Category, beyond: Category, in_flight: bool = True
    ) -> tuple[int, ...]:
        """The attempt failed: charge its uncommitted work as `work`. in_flight: whether there may be any.
        Return the keys of work that was taken to be no more than `steps`.

        If a fault sounded the alarm, the run was dead from the onset, localising from when the fault was
        noticed, and recovering from the first action. Without an onset, the run can have worked or waited
        at most as long as its last commit took (so many `steps`, at the reference rate); the time beyond
        that is charged as `beyond`.
        """
        pieces = self._released()
        alarm, self.alarm = self.alarm, None
        if alarm is not None:
            pieces, after = split_at(pieces, alarm.noticed_ns)
            localising, recovering = split_at(after, alarm.acted_ns or self.now_ns)
            self._charge_pieces(localising, Category.LOCALISING, self.open)
            self._charge_pieces(recovering, Category.RECOVERING, self.open)
            if alarm.onset_ns < alarm.noticed_ns:
                pieces, dead = split_at(pieces, alarm.onset_ns)
                self._charge_pieces(dead, Category.DEAD_UNDETECTED, self.open)
                self._charge_lost(pieces, work)
                return ()
        bounded: tuple[int, ...] = ()
        if pieces and pieces[-1].nature in _WAITS and pieces[-1].nature == self.nature:  # it never ended
            pieces, waited = split_off_last(pieces)
            bounded = (self._lose(waited, steps, Category(waited[0].nature), beyond),)
        worked = [piece for piece in pieces if piece.nature == STEPPING]
        key = self._lose(worked, steps if in_flight else 0, work, beyond)
        self._charge_lost([piece for piece in pieces if piece.nature != STEPPING], work)
        return (*bounded, key) if in_flight else bounded

    def _lose(self, pieces: list[Piece], steps: int, work: Category, beyond: Category) -> int:
        """Charge lost work, and return its key. Each loss has its own bin: averaged with a loss of less than
        `steps`, a longer one would seem not to exceed them.
        """
        self._losses += 1
        for piece in pieces:
            self._charge_missing(piece)
        gpu_ns = _gpu_ns(pieces)
        key = self.stage_key + measured_key(work, beyond, own_bin(self._losses))
        self._add(key, pieces, gpu_ns, steps, self.open)
        if gpu_ns and self.open is not None and beyond == Category.DEAD_UNDETECTED:
            incident = self.own(self.open)
            incident.silence = incident.silence or (key, pieces[0].from_ns, pieces[-1].to_ns)
        return key

    def _take_silence(self, until_ns: int) -> list[Piece]:
        """Take the time since the last sign of work, up to this moment."""
        if self.nature not in _BEFORE_STEPS:
            return []
        self.settle()
        at = len(self.pieces)
        while at and self.pieces[at - 1].nature in _BEFORE_STEPS:
            at -= 1
        silent, after = split_at(self.pieces[at:], until_ns)
        self.pieces = self.pieces[:at] + after
        return silent

    def disown_silence(self, *, unless_short: bool) -> None:
        """The attempt ended well: nothing says that it was starting since its last sign of work."""
        for silence in self.silences:
            if not silence.failed:
                self.tell_silence(silence, was_start=None)
        self.silences = [silence for silence in self.silences if silence.failed]
        silent = self._take_silence(self.now_ns)
        if not (unless_short and is_short(silent)):
            silent = [piece._replace(nature=Category.UNATTRIBUTED) for piece in silent]
        self.pieces += silent

    def keep_silence(self, position: int, *, failed: bool) -> None:
        """Later events will tell what the run did since its last sign of work. failed: the attempt did."""
        silent = self._take_silence(self.now_ns if self.alarm is None else self.alarm.onset_ns)
        if failed:
            self.silences = [silence._replace(failed=True) for silence in self.silences]
        if silent:
            kept = SilentStretch(self._without_drained(silent), position, self.open, failed)
            self.silences.append(kept)
        if len(self.silences) > SILENCES_MAX:
            self.tell_silence(self.silences.pop(0), was_start=None)

    def tell_silence(self, silence: SilentStretch, *, was_start: bool | None) -> None:
        """Charge this time as a start, or as not known; None: as a start if it was short."""
        was_start = is_short(silence.pieces) if was_start is None else was_start
        for piece in silence.pieces:
            if was_start:
                self._charge_pieces([piece], piece.nature, silence.incident)
            else:
                self._charge_pieces([piece], Category.UNATTRIBUTED)

    def stall(self, from_ns: int, to_ns: int) -> None:
        """Between these moments the GPUs waited for a checkpoint instead of working on the step."""
        self.settle()
        before, rest = split_at(self.pieces, from_ns)
        waited, after = split_at(rest, to_ns)
        waited = [
            piece._replace(nature=Category.CHECKPOINT_STALL) if piece.nature == STEPPING else piece
            for piece in waited
        ]
        self.pieces = before + waited + after

    # -- charging ------------------------------------------------------------------------------------

    def _charge(self, key: int, from_ns: int, to_ns: int, gpus: int, incident: int | None = None) -> None:
        gpu_ns = (to_ns - from_ns) * gpus
        if not gpu_ns:
            return
        self.tally.add(key, gpu_ns)
        self.timeline.add(key, from_ns, to_ns, gpus)
        if incident is not None:
            own = self.own(incident)
            own.tally.add(key, gpu_ns)
            own.spend(from_ns, to_ns)
            self._blame(incident, key, from_ns, to_ns, gpus)

    def _blame(self, incident: int | None, key: int, from_ns: int, to_ns: int, gpus: int) -> None:
        if incident is not None and self.timeline.cuts is not None:
            self.timeline.cuts.blame(incident, key, from_ns, to_ns, gpus)

    def charge_price(self, usd_per_gpu_hour: float) -> None:
        """A GPU-hour costs this from now on. The sums are cut here, so earlier time keeps its own price."""
        self.settle()
        if self.paid_gpu_ns:
            if self.timeline.cuts is None:
                self.timeline.keep_cuts(self.cuts())
            self.cuts().cut_at(self.now_ns)
        # If nothing was paid for before, the price holds from the beginning.
        from_ns = self.now_ns if self.paid_gpu_ns else self.first_ns
        self.prices.append(RecordedPrice(from_ns, usd_per_gpu_hour))

    def cuts(self) -> Cuts:
        """The sums between the cuts; without cuts, in one part."""
        of = enumerate(incident.tally.gpu_ns for incident in self.incidents)
        return self.timeline.cuts or Cuts.after(self.tally.gpu_ns, dict(of))

    def _charge_missing(self, piece: Piece) -> None:
        self._charge(Category.MISSING_MEMBERS, piece.from_ns, piece.to_ns, piece.missing, self.absence)

    def _charge_pieces(self, pieces: Iterable[Piece], key: int, incident: int | None = None) -> None:
        """Charge pieces under one key, missing members included."""
        for piece in pieces:
            self._charge(key, piece.from_ns, piece.to_ns, piece.gpus + piece.missing, incident)

    def _charge_as_it_was(self, pieces: Iterable[Piece], work: int) -> None:
        """Charge pieces by their nature; starting and recovering go to the incident before them."""
        noticed_ns = 0 if self.open is None else self.incidents[self.open].noticed_ns
        for piece in pieces:
            if piece.nature == STEPPING or piece.nature in _STALLS:
                key = work if piece.nature == STEPPING else piece.nature
                self._charge(key, piece.from_ns, piece.to_ns, piece.gpus)
                self._charge_missing(piece)
            else:
                caused = piece.nature in _BEFORE_STEPS and piece.from_ns >= noticed_ns
                self._charge_pieces([piece], piece.nature, self.open if caused else None)

    def _charge_lost(self, pieces: Iterable[Piece], work: Category) -> None:
        """Charge pieces of a failed attempt: its start was lost too."""
        for piece in pieces:
            if piece.nature == STEPPING:
                self._charge(work, piece.from_ns, piece.to_ns, piece.gpus, self.open)
                self._charge_missing(piece)
            elif piece.nature in _BEFORE_STEPS:
                self._charge_pieces([piece], piece.nature, self.open)
            else:
                self._charge_as_it_was([piece], work)

    # -- incidents -----------------------------------------------------------------------------------

    def own(self, incident: int) -> LedgerIncident:
        """The incident of this number, ready to change: copies of these accounts do not see the change."""
        if incident not in self._owned:
            self.incidents[incident] = self.incidents[incident].copy()
            self._owned.add(incident)
        return self.incidents[incident]

    def begin_incident(self, event: AnyEvent, what: str, onset_ns: int | None, severity: Severity) -> int:
        number = len(self.incidents)
        self.incidents.append(
            LedgerIncident(
                what=what,
                subject=event.subject,
                began_ns=self.onset(onset_ns),
                noticed_ns=self.now_ns,
                severity=severity,
            )
        )
        self._owned.add(number)
        self.incidents[number].add_evidence(event)
        return number

    def fail(self, event: AnyEvent, what: str, onset_ns: int | None = None) -> LedgerIncident:
        """Add a fatal event to the open incident, or open one."""
        self.settle()
        if self.open is None:
            self.open = self.begin_incident(event, what, onset_ns, "fatal")
        incident = self.own(self.open)
        incident.add_evidence(event)
        # The first report of a loss may not know yet when it began.
        incident.began_ns = min(incident.began_ns, self.onset(onset_ns))
        if incident.what in _GUESSES and what not in _GUESSES:
            incident.what, incident.subject = what, event.subject or incident.subject
        return incident

    def sound_alarm(self, onset_ns: int | None) -> None:
        self.settle()
        if self.is_up and self.alarm is None:
            self.alarm = Alarm(self.onset(onset_ns), self.now_ns)

    def recover(self) -> None:
        """The run works again: close the open incident."""
        self.alarm = None
        if not self.shape.missing:
            self.absence = None
        if self.open is not None:
            self.own(self.open).recovered_ns = self.now_ns
            self.open = None

    def end_degradation(self, subjects: Iterable[str]) -> None:
        for subject in list(subjects):
            self.own(self.degraded.pop(subject)).recovered_ns = self.now_ns

    def blamed(self) -> int | None:
        """The incident to charge the excess time of a new step to."""
        if self.open is not None or not self.degraded:
            return self.open
        return next(reversed(self.degraded.values()))

    def onset(self, onset_ns: int | None) -> int:
        return self.now_ns if onset_ns is None else max(self.first_ns, min(onset_ns, self.now_ns))


def is_short(silent: list[Piece]) -> bool:
    """Whether all of this time can have been a start."""
    return not silent or silent[-1].to_ns - silent[0].from_ns <= START_NS_MAX


def split_at(pieces: list[Piece], at_ns: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces before this moment, and those after it."""
    before = [piece._replace(to_ns=min(piece.to_ns, at_ns)) for piece in pieces if piece.from_ns < at_ns]
    after = [piece._replace(from_ns=max(piece.from_ns, at_ns)) for piece in pieces if piece.to_ns > at_ns]
    return before, after


def split_off_last(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """The earlier pieces, and the last ones of one nature: several if machines came or went meanwhile."""
    at = len(pieces)
    while at and pieces[at - 1].nature == pieces[-1].nature:
        at -= 1
    return pieces[:at], pieces[at:]


def cut(pieces: list[Piece], share: int, whole: int) -> tuple[list[Piece], list[Piece]]:
    """The first share/whole of the GPU-time in these pieces, and the rest."""
    wanted = _gpu_ns(pieces) * share // whole
    for piece in pieces:
        gpu_ns = (piece.to_ns - piece.from_ns) * piece.gpus
        if gpu_ns and wanted <= gpu_ns:
            return split_at(pieces, piece.from_ns + wanted // piece.gpus)
        wanted -= gpu_ns
    return pieces, []


def _gpu_ns(pieces: Iterable[Piece]) -> int:
    return sum((piece.to_ns - piece.from_ns) * piece.gpus for piece in pieces)
