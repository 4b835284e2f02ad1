"""What becomes of an incident from one assessment to the next: new, the same, changed or over.

An assessment knows only its window; the casebook remembers. It gives every incident a lasting name, finds the
same incident again when its cause is revised, and does not end an incident because one look missed it, or
because one watch does while another one shows it. Nothing here does I/O: a casebook gets its memory, and what
other watches have found, from the record.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType

import msgspec

from holdfast.diagnose.alerts import WORTH, AlertWorth, is_graver
from holdfast.diagnose.incident import Incident, Price
from holdfast.record.events import AnyEvent, IncidentDiagnosed, IncidentState
from holdfast.record.untrusted import UNDECODABLE
from holdfast.wording.units import HOUR_NS, HOUR_S, SECOND_NS

UNSEEN_S_MAX = 60.0
"""An incident that no assessment has shown for this long is over: six looks, at the usual ten seconds."""
REOPENED_S_MAX = 600.0
"""The same cause again within this time after the end is the same incident, which was not over after all."""
CONFIRMED_EVERY_S = 300.0
"""While a watch shows an incident, it writes it into the record this often, for other watches to know."""
CONFIRMED_S_MAX = 600.0
"""An incident that only the record shows is over when nothing has confirmed it for this long."""
NAMED_S_MAX = 600.0
"""A cause that was named this recently stays the cause of a slowness that a look cannot explain."""
NEWS_S_MAX = 600.0
"""An incident that had ended longer ago than this when first seen gets a name, but is not reported."""
COST_GROWTH_MIN = 2.0
COST_NEWS_HOURS_MIN = 0.125
"""An incident is recorded again each time its cost has grown by this factor, starting from the cost of this
part of an hour: after a quarter of an hour, half an hour, an hour and so on, some ten times however long it
lasts.
"""
SHARED_MIN = 0.3
"""Two diagnoses that share this part of the smaller one's evidence are one incident with a revised cause."""
ONSET_S_MAX = 60.0
SHARED_MEMBERS_MIN = 0.5
"""Without common evidence: incidents that began this close together and share this part of their members."""
SUBJECTS_KEPT_MAX = 64
"""Subjects kept per piece of evidence: a record line has a bound, and a hall has 100,000 GPUs."""

NO_ENDS: Mapping[str, int] = MappingProxyType({})

_NEVER_NS = 2**63


class IncidentChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is new about an incident, and when. before: as last recorded; None for a new one.

    is_worth: it is, or has been, worth an alert; was_worth: it had been before.
    """

    state: IncidentState
    at_ns: int
    incident: Incident
    before: Incident | None = None
    is_worth: bool = True
    was_worth: bool = True


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an assessment. incidents: its own, in order, under their lasting names.

    confirmed: for the record only: nothing is new about them, but they still go on.
    """

    incidents: tuple[Incident, ...]
    changes: tuple[IncidentChange, ...]
    confirmed: tuple[IncidentChange, ...] = ()


class _Case(msgspec.Struct):
    """One incident over time.

    told       as last told
    seen_ns    the last assessment that showed it, or could not have shown it
    shown_ns   the last assessment that showed it: its cost is known up to then
    named_ns   the last assessment that named its cause
    is_worth   it has been worth an alert
    is_own     this book has shown it; before that, it is what the record says
    written_ns  when this book last had it recorded
    heard_ns   when another watch, or an earlier one, last recorded it
    """

    incident: Incident
    told: Incident
    seen_ns: int
    shown_ns: int
    named_ns: int
    is_open: bool
    is_worth: bool = False
    is_own: bool = True
    written_ns: int = 0
    heard_ns: int = 0


class Casebook:
    """The incidents of some runs, open and over. Call `take` with each assessment, in order."""

    def __init__(
        self,
        changes: Iterable[IncidentChange] | None = (),
        *,
        now_ns: int = 0,
        is_only_look: bool = False,
        worth: AlertWorth = WORTH,
    ) -> None:
        """changes: what was recorded before, oldest first; None if it cannot be read yet and `recall` gets it
        later. is_only_look: no second look will confirm the first, so incidents that it does not see are
        over.
        """
        if is_only_look:
            now_ns -= round(UNSEEN_S_MAX * SECOND_NS)
        self._cases: dict[str, _Case] = {}
        self._own: dict[str, set[int]] = {}
        self._worth = worth
        self.knows_past = False
        if changes is not None:
            self.recall(changes, now_ns)

    def recall(self, changes: Iterable[IncidentChange], now_ns: int) -> None:
        """Take over what was recorded before this book began, and since then by other watches, oldest first.
        Open incidents count as seen at `now_ns`: without a look, none can have been missed. A recalled
        incident that this book has since opened anew ends when it is not seen.
        """
        for change in changes:
            name = change.incident.name
            case, own = self._cases.get(name), self._own.get(name, set())
            if change.at_ns in own:
                own.remove(change.at_ns)
            elif case is None or not case.is_own:
                was_worth = case is not None and case.is_worth
                if case is None or change.at_ns >= case.written_ns:
                    # News of long ago is of a look at the past: unless it is shown now, it is over.
                    is_old = self.knows_past and now_ns - change.at_ns >= CONFIRMED_S_MAX * SECOND_NS
                    self._cases[name] = case = _recorded(change, change.at_ns if is_old else now_ns)
                case.is_worth = was_worth or self._worth.holds(change.incident)
            else:
                _learn(case, change)
        self.knows_past = True

    @property
    def open(self) -> tuple[Incident, ...]:
        """The open incidents as last seen, by the time at which they began."""
        found = (case.incident for case in self._cases.values() if case.is_open)
        return tuple(sorted(found, key=lambda incident: (incident.began_ns, incident.name)))

    @property
    def worthy(self) -> tuple[Incident, ...]:
        """The open incidents that are, or have been, worth an alert."""
        return tuple(incident for incident in self.open if self._cases[incident.name].is_worth)

    def runs_since(self, at_ns: int) -> set[str]:
        """The runs with open incidents that were shown or recorded since this moment."""
        return {case.incident.run for case in self._cases.values() if case.is_open and case.shown_ns >= at_ns}

    @property
    def since_ns(self) -> int | None:
        """When the oldest open incident began; None if none is open."""
        return min((incident.began_ns for incident in self.open), default=None)

    def take(
        self,
        incidents: Sequence[Incident],
        at_ns: int,
        *,
        unseen: Collection[str] = (),
        ends_ns: Mapping[str, int] = NO_ENDS,
    ) -> Taken:
        """The changes that an assessment at this moment makes, and its incidents under their lasting names.

        unseen: runs that cannot be seen now. Their incidents do not end for not being found, and findings
        there come from a time that was assessed before. ends_ns: when runs ended: all incidents of a run end
        with it, even if its last signals still show them.
        """
        incidents = [
            _over_with(incident, ends_ns.get(incident.run))
            for incident in incidents
            if incident.run not in unseen and incident.began_ns < ends_ns.get(incident.run, _NEVER_NS)
        ]
        changes: list[IncidentChange | None] = []
        cases: list[_Case] = []
        for incident, known in zip(incidents, self._matched(incidents), strict=True):
            if known is None:
                known = self._begin(incident, at_ns)
                changes.append(_first_word(known, at_ns))
            else:
                changes.append(_go_on(known, incident, at_ns, self._worth))
            cases.append(known)
        changes += self._ended(at_ns, unseen, ends_ns)
        news = tuple(self._weighed(change) for change in changes if change is not None)
        self._wrote(news)
        confirmed = tuple(
            IncidentChange(state="changed", at_ns=at_ns, incident=case.incident, before=case.incident)
            for case in cases
            if case.is_open and at_ns - case.written_ns >= CONFIRMED_EVERY_S * SECOND_NS
        )
        self._wrote(confirmed)
        return Taken(incidents=tuple(case.incident for case in cases), changes=news, confirmed=confirmed)

    def _weighed(self, change: IncidentChange) -> IncidentChange:
        case = self._cases[change.incident.name]
        was_worth, case.is_worth = case.is_worth, case.is_worth or self._worth.holds(change.incident)
        return msgspec.structs.replace(change, is_worth=case.is_worth, was_worth=was_worth)

    def _wrote(self, changes: Iterable[IncidentChange]) -> None:
        """Remember what is recorded for this book, which will hear of it again."""
        for change in changes:
            name = change.incident.name
            self._own.setdefault(name, set()).add(change.at_ns)
            self._cases[name].written_ns = change.at_ns

    def _ended(
        self, at_ns: int, unseen: Collection[str], ends_ns: Mapping[str, int]
    ) -> Iterator[IncidentChange]:
        last_ns = at_ns - round(UNSEEN_S_MAX * SECOND_NS)
        for case in self._cases.values():
            run_ended_ns = ends_ns.get(case.incident.run)
            if case.is_open and run_ended_ns is not None:
                yield _end(case, at_ns, run_ended_ns)
            elif case.incident.run in unseen:
                case.seen_ns = max(case.seen_ns, at_ns)
            elif not case.is_open or case.seen_ns > last_ns or case.incident.noticed_ns > at_ns:
                continue  # A look at the past says nothing about incidents that were noticed later.
            elif at_ns - case.heard_ns >= CONFIRMED_S_MAX * SECOND_NS:
                yield _end(case, at_ns)

    def _begin(self, incident: Incident, at_ns: int) -> _Case:
        named = msgspec.structs.replace(incident, name=self._name(incident.run, at_ns))
        case = self._cases[named.name] = _Case(named, named, at_ns, at_ns, at_ns, named.ended_ns is None)
        return case

    def _name(self, run: str, at_ns: int) -> str:
        # Without the past, the used numbers are unknown. The time in seconds is not among them.
        first = 1 if self.knows_past else at_ns // SECOND_NS
        return next(name for number in count(first) if (name := f"{run}/s{number}") not in self._cases)

    def _matched(self, incidents: Sequence[Incident]) -> list[_Case | None]:
        """The case of each incident. The same cause goes first; only the rest is matched by similarity."""
        free = list(self._cases.values())
        matched: list[_Case | None] = [None] * len(incidents)
        for likeness in (_same_cause, _same_trouble, _same_slowness):
            for place, incident in enumerate(incidents):
                if matched[place] is None and (best := _best(incident, free, likeness)):
                    matched[place] = best
                    free.remove(best)
        return matched


def _recorded(change: IncidentChange, seen_ns: int) -> _Case:
    """A case that only the record shows so far."""
    incident, at_ns = change.incident, change.at_ns
    return _Case(
        incident=incident,
        told=incident,
        seen_ns=seen_ns,
        shown_ns=at_ns,
        named_ns=at_ns,
        is_open=change.state != "resolved",
        is_own=False,
        written_ns=at_ns,
        heard_ns=at_ns,
    )


def _learn(case: _Case, change: IncidentChange) -> None:
    """Take over what another watch has recorded of a case that this book shows. A cause is better than none;
    if each names one, each keeps its own. What the other calls over, this book shows again, or ends as well.
    What the other wrote before this book called it over says nothing new.
    """
    if not case.is_open and change.at_ns <= case.written_ns:
        return
    if change.state == "resolved":
        case.heard_ns = 0
        if case.is_open:
            case.written_ns = 0
        return
    case.heard_ns = max(case.heard_ns, change.at_ns)
    if not case.is_open or case.incident.verdict == "unknown":
        case.is_open, case.incident = True, change.incident
    if _place(case.incident) == _place(change.incident):
        case.named_ns = max(case.named_ns, change.at_ns)


def restored(events: Iterable[AnyEvent]) -> list[IncidentChange]:
    """The changes in a record, oldest first. Diagnoses that cannot be decoded come from a newer version."""
    changes = []
    for event in events:
        if isinstance(event, IncidentDiagnosed):
            try:
                incident = msgspec.json.decode(event.diagnosis, type=Incident)
            except UNDECODABLE:
                continue
            changes.append(IncidentChange(state=event.state, at_ns=event.occurred_ns, incident=incident))
    return changes


def diagnosis(incident: Incident) -> str:
    """The incident for the record, with only the first few subjects of each observation."""
    evidence = tuple(
        msgspec.structs.replace(one, subjects=one.subjects[:SUBJECTS_KEPT_MAX]) for one in incident.evidence
    )
    return msgspec.json.encode(msgspec.structs.replace(incident, evidence=evidence)).decode()


def _best(incident: Incident, cases: Iterable[_Case], likeness: "_Likeness") -> _Case | None:
    scored = [(likeness(incident, case), case) for case in cases if case.incident.run == incident.run]
    score, best = max(scored, key=lambda pair: pair[0], default=(0.0, None))
    return best if score > 0 else None


def _same_cause(incident: Incident, case: _Case) -> float:
    """1 for an open case of this cause, less for one that ended shortly before, 0 for any other."""
    known = case.incident
    if _place(incident) != _place(known):
        return 0.0
    if case.is_open:
        return 1.0
    ended_ns = case.seen_ns if known.ended_ns is None else known.ended_ns
    ago_s = max(0.0, (incident.began_ns - ended_ns) / SECOND_NS)
    apart_s = abs(incident.began_ns - known.began_ns) / SECOND_NS
    return max(0.0, 1 - ago_s / REOPENED_S_MAX) / (2 + apart_s / REOPENED_S_MAX)


def _same_trouble(incident: Incident, case: _Case) -> float:
    """How far the two rest on the same observations, or hold up the same members since the same moment. An
    unexplained incident has neither: a cause found for the same moment belongs to it.
    """
    known = case.incident
    if not case.is_open:
        return 0.0
    mine, theirs = _observations(incident), _observations(known)
    shared = len(mine & theirs) / min(len(mine), len(theirs)) if mine and theirs else 0.0
    if shared >= SHARED_MIN:
        return shared
    late, were_late = {*incident.affected}, {*known.affected}
    together = len(late & were_late) / len(late | were_late) if late | were_late else 0.0
    if abs(incident.began_ns - known.began_ns) > ONSET_S_MAX * SECOND_NS:
        return 0.0
    if known.verdict == "unknown":
        together = max(together, SHARED_MEMBERS_MIN)
    return SHARED_MIN * together if together >= SHARED_MEMBERS_MIN else 0.0


def _same_slowness(incident: Incident, case: _Case) -> float:
    """Whether one of the two is a slowness that no cause explains, and the other its cause: both hold up the
    run at one time. Evidence comes in bit by bit: a cause may be found minutes later, or be missed by a look.
    """
    known, shown_ns = case.incident, case.shown_ns + round(UNSEEN_S_MAX * SECOND_NS)
    if known.verdict == "unknown" and incident.verdict != "unknown":
        is_at_once = incident.began_ns <= shown_ns and known.began_ns <= (incident.ended_ns or shown_ns)
        is_soon = case.is_open or incident.noticed_ns <= case.shown_ns + round(REOPENED_S_MAX * SECOND_NS)
        return float(incident.slowdown > 1 and is_at_once and is_soon)
    if known.verdict != "unknown" and incident.verdict == "unknown":
        # Both go on, or both are over.
        is_alike = case.is_open == (incident.ended_ns is None) and known.slowdown > 1
        last_ns = known.ended_ns or shown_ns
        is_at_once = incident.began_ns <= last_ns and known.began_ns <= (incident.ended_ns or last_ns)
        return float(is_alike and is_at_once)
    return 0.0


_Likeness = Callable[[Incident, _Case], float]


def _place(incident: Incident) -> tuple[str, str]:
    return incident.cause.subject, incident.cause.mechanism


def _observations(incident: Incident) -> set[tuple[str, str]]:
    """What was observed where. The run's own slowness is left out: every incident has it."""
    return {
        (one.metric, subject)
        for one in incident.evidence
        if one.weight > 0
        for subject in one.subjects
        if subject != incident.run
    }


def _first_word(case: _Case, at_ns: int) -> IncidentChange | None:
    ended_ns = case.incident.ended_ns
    if ended_ns is None:
        return IncidentChange(state="open", at_ns=at_ns, incident=case.incident)
    if at_ns - ended_ns > NEWS_S_MAX * SECOND_NS:
        return None
    return IncidentChange(state="resolved", at_ns=at_ns, incident=case.incident)


def _go_on(case: _Case, incident: Incident, at_ns: int, worth: AlertWorth) -> IncidentChange | None:
    """Bring a case up to date, and return the change to report, if any."""
    known, was_open = case.incident, case.is_open
    is_explained = known.verdict == "unknown" and incident.verdict != "unknown"
    if incident.ended_ns is not None and not was_open and not is_explained:
        return None  # still in the assessment's window, but known to be over
    is_anew = known.ended_ns is not None and incident.began_ns > known.ended_ns
    if incident.verdict != "unknown" or known.verdict == "unknown":
        case.named_ns = at_ns
    elif 0 <= at_ns - case.named_ns < NAMED_S_MAX * SECOND_NS:
        incident = _still_named(known, incident)
    if not is_anew:  # else its onset and cost are its own
        incident = msgspec.structs.replace(
            incident,
            began_ns=min(known.began_ns, incident.began_ns),
            noticed_ns=known.noticed_ns,
            cost=_cost_so_far(case, incident, at_ns),
        )
    case.incident = msgspec.structs.replace(incident, name=known.name)
    case.is_open, case.is_own = incident.ended_ns is None, True
    case.seen_ns = case.shown_ns = at_ns
    if not case.is_open:
        return _told(case, "resolved", at_ns)
    if not was_open:
        return _told(case, "open", at_ns)
    is_worth_now = not case.is_worth and worth.holds(case.incident)
    return _told(case, "changed", at_ns) if is_worth_now or _is_news(case.told, case.incident) else None


def _still_named(known: Incident, vague: Incident) -> Incident:
    """The known cause, with what a look shows of the slowness that it cannot explain."""
    now = {
        name: getattr(vague, name)
        for name in ("began_ns", "ended_ns", "what", "slowdown", "knows_pace", "cost")
    }
    return msgspec.structs.replace(known, **now)


def _over_with(incident: Incident, run_ended_ns: int | None) -> Incident:
    """The incident, ended no later than its run."""
    if run_ended_ns is None:
        return incident
    ended_ns = run_ended_ns if incident.ended_ns is None else min(incident.ended_ns, run_ended_ns)
    return msgspec.structs.replace(incident, ended_ns=ended_ns)


def _end(case: _Case, at_ns: int, run_ended_ns: int | None = None) -> IncidentChange:
    """End a case with its run, or when it was last shown, however late the next look was."""
    case.is_open = False
    ended_ns = max(case.shown_ns, case.incident.noticed_ns) if run_ended_ns is None else run_ended_ns
    case.incident = msgspec.structs.replace(case.incident, ended_ns=ended_ns)
    return _told(case, "resolved", at_ns)


def _told(case: _Case, state: IncidentState, at_ns: int) -> IncidentChange:
    before, case.told = case.told, case.incident
    return IncidentChange(state=state, at_ns=at_ns, incident=case.incident, before=before)


def _cost_so_far(case: _Case, incident: Incident, at_ns: int) -> Price | None:
    """The assessed cost; if the window misses the beginning, the known cost plus what came since."""
    known, assessed = case.incident.cost, incident.cost
    if at_ns < case.shown_ns:
        return assessed  # a look at the past: what is known is the cost of later
    if known is None or assessed is None or incident.began_ns <= case.incident.began_ns:
        return assessed or known
    until_ns = at_ns if incident.ended_ns is None else incident.ended_ns
    hours = max(0, until_ns - case.shown_ns) / HOUR_NS
    gpu_hours = known.lost_gpu_hours + hours * assessed.gpu_hours_per_hour
    run_s = known.lost_run_s + hours * HOUR_S * assessed.day_share_per_day
    usd = assessed.usd
    if usd is not None and known.usd is not None:
        usd = max(usd, known.usd + hours * (assessed.usd_per_hour or 0.0))
    return msgspec.structs.replace(
        assessed,
        lost_gpu_hours=max(assessed.lost_gpu_hours, gpu_hours),
        usd=usd,
        lost_run_s=max(assessed.lost_run_s, run_s),
    )


def _is_news(told: Incident, now: Incident) -> bool:
    """Whether the change must be reported: another cause, owner or action; the run feels it for the first
    time, or far more than before; or the cost has doubled.
    """
    if any(getattr(told, name) != getattr(now, name) for name in _NEWS) or _place(told) != _place(now):
        return True
    if told.slowdown <= 1 < now.slowdown or is_graver(now, told):
        return True
    if told.cost is None or now.cost is None:
        return told.cost is not now.cost
    least = now.cost.gpu_hours_per_hour * COST_NEWS_HOURS_MIN
    return now.cost.lost_gpu_hours >= COST_GROWTH_MIN * max(told.cost.lost_gpu_hours, least) > 0


_NEWS = ("verdict", "domain", "owner", "seam", "action")
