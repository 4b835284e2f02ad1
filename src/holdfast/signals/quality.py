"""How far a frame can be trusted: find its flaws, correct values if possible and leave them out if not.

`inspect` looks at one metric at a time. It says only what a careful engineer would: one missed scrape is not
a flaw, and a gauge that rightly shows one value is not stuck. It cannot see an exporter that is one scrape
late.
"""

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast import wording
from holdfast.signals import units
from holdfast.signals.catalogue import Metric, Scope, describe
from holdfast.signals.frame import Floats, Frame, per_second
from holdfast.wording.units import SECOND_NS

Missing = Literal["reset", "stale", "gaps"]
Unbelievable = Literal["unit", "saturated", "stuck", "implausible", "words", "out-of-range"]
FlawKind = Literal[Missing, Unbelievable, "names", "clock"]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]

STALE_SCRAPES = 3.5
"""A value is stale after this many scrapes: three in a row are hardly ever missed by chance."""
GAPS_SHARE = 0.1
RHYTHM_VALUES_MIN = 4
"""A series with fewer values does not tell how often it is scraped."""
IMPLAUSIBLE_SHARE_MAX = 0.5
"""A sensor that is wrong more often than this is not believed at all."""
TOTAL_SCRAPES_MIN = 12
"""A rate that scatters does not rise this often in a row: the chance is one in 2^12."""
STUCK_SCRAPES_MIN = 12
STUCK_CHANCE = 1e-9
"""The chance that a sensor shows one value for this long by accident; a cluster has 10^5 sensors."""
MOVING_SHARE = 0.1
"""If most sensors of a kind change less often than at every tenth scrape, they may stand still."""
MOVING_SHARE_MAX = 0.95
SCRAPES_NEVER = 2**31
QUIET_QUANTILE, LIVELY_QUANTILE = 0.25, 0.9
NEIGHBOURS = 48
"""The number of peers of a sensor: those with nearly the same value."""
PEERS_MIN = 2
SATURATED_AT = (2**16 - 1, 2**32 - 1)
"""The widths of a port's counters, which stop there."""
FLAWS_PER_KIND_MAX = 200
"""Further flaws of a kind are counted, not listed one by one."""
WORD_BEYOND = "Out of range"
COME_AND_GO: frozenset[Scope] = frozenset({"xid", "member"})
"""Their series end when another error replaces the last one, or a member leaves: that is not a flaw."""

TRUST: dict[FlawKind, float] = {
    "reset": 0.95,
    "stale": 0.2,
    "gaps": 0.7,
    "unit": 0.8,
    "saturated": 0.0,
    "stuck": 0.0,
    "implausible": 0.5,
    "words": 0.9,
    "out-of-range": 0.9,
    "names": 0.5,
    "clock": 0.9,
}
"""The remaining trust in a series with a flaw; several flaws multiply."""
TRUST_UNIT_UNCLEAR = 0.5


class Flaw(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a series. subject: "" if it concerns all series, or the rest that is not listed.

    since_ns: None if it held from the beginning of the window.
    """

    kind: FlawKind
    subject: str
    metric: str
    since_ns: int | None
    text: str


class Inspected(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A frame, corrected if possible and NaN where it cannot be trusted; the trust in each series."""

    frame: Frame
    trust: NDArray[np.float32]
    flaws: tuple[Flaw, ...]


def inspect(frame: Frame, *, now_ns: int | None = None) -> Inspected:
    """now_ns: the present; by default the frame's last time."""
    work = _Inspection(frame, now_ns)
    if frame.values.size:
        _read_words(work)
        _note_silence(work)
        _mend_units(work)
        _leave_out_the_implausible(work)
        if frame.kind == "counter":
            _leave_out_the_saturated(work)
            _note_resets(work)
        elif work.metric.sensed:
            _leave_out_the_stuck(work)
    return work.done()


class _Inspection:
    """The frame under inspection. Its values are copied when the first of them changes."""

    def __init__(self, frame: Frame, now_ns: int | None) -> None:
        self.frame = frame
        self.metric: Metric = describe(frame.metric)
        self.values: Floats = frame.values
        self.absent = np.isnan(frame.values)
        times_ns = frame.times_ns
        self.now_ns = (int(times_ns[-1]) if len(times_ns) else 0) if now_ns is None else now_ns
        self.interval_ns = float(np.median(np.diff(times_ns))) if len(times_ns) > 1 else 0.0
        self._trust = np.ones(len(frame.subjects), np.float32)
        self._flaws: list[Flaw] = []
        self._untold: dict[FlawKind, int] = {}
        self._told: dict[FlawKind, int] = {}

    def change(self) -> Floats:
        """The values, as a copy to change."""
        if self.values is self.frame.values:
            self.values = self.frame.values.copy()
        return self.values

    def leave_out(self, where: Flags, series: Indices) -> None:
        """where: time by those series."""
        self.change()[:, series] = np.where(where, np.nan, self.values[:, series])
        self.absent[:, series] |= where

    def note(
        self, kind: FlawKind, series: int, text: str, *, since: int | None = None, trust: float | None = None
    ) -> None:
        """since: the index of the time it began; None or 0: it held from the beginning."""
        self._trust[series] *= TRUST[kind] if trust is None else trust
        if self._told.get(kind, 0) == FLAWS_PER_KIND_MAX:
            self._untold[kind] = self._untold.get(kind, 0) + 1
            return
        self._told[kind] = self._told.get(kind, 0) + 1
        subject = self.frame.subjects[series]
        since_ns = int(self.frame.times_ns[since]) if since else None
        self._tell(kind, f"of {subject} {text}", since_ns, subject)

    def note_all(self, kind: FlawKind, text: str, since_ns: int | None) -> None:
        """Note a flaw of the whole frame."""
        self._trust *= TRUST[kind]
        self._tell(kind, text, since_ns)

    def _tell(self, kind: FlawKind, text: str, since_ns: int | None = None, subject: str = "") -> None:
        metric = self.frame.metric
        flaw = Flaw(kind=kind, subject=subject, metric=metric, since_ns=since_ns, text=f"{metric} {text}.")
        self._flaws.append(flaw)

    def done(self) -> Inspected:
        for kind, count in self._untold.items():
            self._tell(kind, f"has {count} more series with this flaw: {kind}")
        frame = self.frame
        if self.values is not frame.values:
            frame = msgspec.structs.replace(frame, values=self.values)
        return Inspected(frame=frame, trust=self._trust, flaws=tuple(self._flaws))


# -- words and units ----------------------------------------------------------------------------------


def _read_words(work: _Inspection) -> None:
    """Read words that are numbers; report the others once for each series and text."""
    found: dict[tuple[int, str], list[int]] = {}
    for word in work.frame.words:
        number = _number(word.text)
        if number is None:
            found.setdefault((word.series, word.text), []).append(word.time)
        else:
            work.change()[word.time, word.series] = number
            work.absent[word.time, word.series] = False
    for (series, text), times in found.items():
        kind: FlawKind = "out-of-range" if text == WORD_BEYOND else "words"
        count = f"{len(times)} of {len(work.frame.times_ns)}"
        work.note(kind, series, f"was {text!r} instead of a number at {count} scrapes", since=min(times))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _mend_units(work: _Inspection) -> None:
    if work.metric.trap == "ns-or-us":
        _mend_clocks(work)
    elif work.metric.trap == "counter-or-rate":
        _mend_totals(work)
    elif work.metric.unit == "C" and work.metric.scope in ("loop", "connector"):
        for series in np.flatnonzero(units.in_fahrenheit(work.metric, _levels(work))):
            work.change()[:, series] = (work.values[:, series] - 32) / 1.8
            work.note("unit", int(series), "is in Fahrenheit and was converted to Celsius")
    elif work.metric.unit == "kW":
        for series in np.flatnonzero(units.in_watts(work.metric, _levels(work))):
            work.change()[:, series] /= units.W_PER_KW
            work.note("unit", int(series), "is in W and was converted to kW")


def _levels(work: _Inspection) -> Floats:
    """The usual value of each series; NaN without values, which compares false with everything."""
    levels = np.full(work.values.shape[1], np.nan)
    there = ~work.absent.all(axis=0)
    levels[there] = np.nanmedian(work.values[:, there], axis=0)
    return levels


def _mend_clocks(work: _Inspection) -> None:
    """Convert those that grew at all; the others are zero time in any unit."""
    with np.errstate(invalid="ignore"):
        grown = np.flatnonzero(_highest(work.values) > _lowest(work.values))
    if not len(grown):
        return
    subjects = [work.frame.subjects[series] for series in grown]
    part = msgspec.structs.replace(
        work.frame, subjects=tuple(subjects), labels=(), values=work.values.take(grown, axis=1)
    )
    peaks = _highest(per_second(part).values)
    verdict = units.clocked(tuple(subject.rpartition(".")[0] for subject in subjects), peaks)
    for series in grown[verdict.in_us].tolist():
        work.change()[:, series] *= units.NS_FROM_US
        work.note("unit", series, "counts microseconds, and was converted to nanoseconds")
    for series in grown[verdict.unclear].tolist():
        text = "counts nanoseconds or microseconds: it grew too little to tell, and was taken as nanoseconds"
        work.note("unit", series, text, trust=TRUST_UNIT_UNCLEAR)


def _mend_totals(work: _Inspection) -> None:
    """A metric that never falls and rises at nearly every scrape is not a rate: a rate would scatter."""
    values = work.values
    if len(values) <= TOTAL_SCRAPES_MIN:
        return
    with np.errstate(invalid="ignore"):
        steps = np.diff(np.fmax.accumulate(values, axis=0), axis=0)
        falls = (values < np.fmax.accumulate(values, axis=0)).any(axis=0)
        rises = (steps > 0).sum(axis=0)
    totals = np.flatnonzero(~falls & (rises > TOTAL_SCRAPES_MIN) & (rises > len(steps) / 2))
    if not len(totals):
        return
    part = msgspec.structs.replace(work.frame, subjects=(), labels=(), values=values[:, totals])
    work.change()[:, totals] = per_second(part).values
    for series in totals.tolist():
        work.note("unit", series, "is a total, and was converted to a rate")


# -- values that cannot be believed -------------------------------------------------------------------


def _lowest(values: Floats) -> Floats:
    return np.asarray(np.fmin.reduce(values, axis=0))


def _highest(values: Floats) -> Floats:
    return np.asarray(np.fmax.reduce(values, axis=0))


def _leave_out_the_implausible(work: _Inspection) -> None:
    low, high = work.metric.low, work.metric.high
    if low is None or high is None:
        return
    suspects = np.flatnonzero((_lowest(work.values) < low) | (_highest(work.values) > high))
    if not len(suspects):
        return
    values = work.values[:, suspects]
    wrong = (values < low) | (values > high)
    share = wrong.sum(axis=0) / np.maximum(1, (~work.absent[:, suspects]).sum(axis=0))
    hopeless = share > IMPLAUSIBLE_SHARE_MAX
    worst = np.where(wrong, values, np.nan)
    for index, series in enumerate(suspects.tolist()):
        first = int(wrong[:, index].argmax())
        shown = f"{wording.number(worst[first, index])} {work.metric.unit}".rstrip()
        text = f"showed {shown}, which is impossible"
        trust = 0.0 if hopeless[index] else None
        work.note("implausible", series, text, since=first, trust=trust)
    work.leave_out(wrong | hopeless, suspects)


def _leave_out_the_saturated(work: _Inspection) -> None:
    widths = SATURATED_AT if work.metric.scope in ("port", "uplink") else SATURATED_AT[-1:]
    tail = work.values[-STUCK_SCRAPES_MIN:]
    for width in widths:
        suspects = np.flatnonzero((_lowest(tail) == width) & (_highest(tail) == width))
        if len(suspects):
            full = work.values[:, suspects] == width
            for index, series in enumerate(suspects.tolist()):
                since = int(full[:, index].argmax())
                work.note(
                    "saturated", series, f"stands at {width}, where it can count no further", since=since
                )
            work.leave_out(full, suspects)


def _leave_out_the_stuck(work: _Inspection) -> None:
    """One value for longer than chance can explain, given how often the sensor and its peers change."""
    if len(work.values) <= STUCK_SCRAPES_MIN:
        return
    moves = _shares_of_change(work)
    # The first of two passes is quick: it finds sensors that stand still longer than the liveliest may.
    length = _scrapes_needed(float(np.quantile(moves, LIVELY_QUANTILE)))
    tail = work.values[-length:]
    still = _highest(tail) == _lowest(tail)
    if length > len(work.values) or np.median(moves) < MOVING_SHARE or not still.any():
        return
    shares: dict[tuple[int, float], float] = {}
    for series in np.flatnonzero(still).tolist():
        there = np.flatnonzero(~work.absent[:, series])
        values = work.values[there, series]
        moved = np.flatnonzero(values[1:] != values[:-1])
        since = int(moved[-1]) + 1 if len(moved) else 0
        first, value = int(there[since]), float(values[-1])
        if (first, value) not in shares:
            shares[first, value] = _share_of_peers(work.values[first], value, moves)
        # It may always have been quieter than its peers, if its past is long enough to tell.
        share = min(shares[first, value], len(moved) / since if since >= STUCK_SCRAPES_MIN else 1.0)
        if (scrapes := len(values) - since) >= _scrapes_needed(share):
            shown = f"{wording.number(value)} at {scrapes} scrapes in a row"
            text = f"has shown exactly {shown}, while sensors like it move"
            work.note("stuck", series, text, since=first)
            work.leave_out(np.arange(len(work.values))[:, None] >= first, np.array([series]))


def _share_of_peers(values: Floats, value: float, moves: Floats) -> float:
    """How often sensors change whose value was nearly the same when this one last changed.

    Idle GPUs among busy ones rightly stand still, and are compared with other idle ones.
    """
    distances = np.abs(values - value)
    nearest = np.argpartition(distances, min(NEIGHBOURS, len(distances) - 1))[: NEIGHBOURS + 1]
    if len(nearest) <= PEERS_MIN:
        return 0.0
    return float(np.quantile(moves[nearest], QUIET_QUANTILE))


def _scrapes_needed(share: float) -> int:
    """How many scrapes a sensor that changes at this share of them must stand still to count as stuck."""
    if share < MOVING_SHARE:
        return SCRAPES_NEVER
    scrapes = np.log(STUCK_CHANCE) / np.log(1 - min(share, MOVING_SHARE_MAX))
    return max(STUCK_SCRAPES_MIN, 1 + int(np.ceil(scrapes)))


def _shares_of_change(work: _Inspection) -> Floats:
    """The share of scrapes at which each series changed."""
    changed = work.values[1:] != work.values[:-1]
    changed &= ~(work.absent[1:] | work.absent[:-1])
    return np.asarray(np.add.reduce(changed, axis=0, dtype=np.uint16) / len(changed))


# -- what is missing ----------------------------------------------------------------------------------


def _note_resets(work: _Inspection) -> None:
    """Note resets, also across a gap: a booting machine is not scraped."""
    values = work.values
    times, series = _where(values[1:] < values[:-1])
    times_back, series_back = _where(work.absent[:-1] > work.absent[1:])
    before = times_back.copy()
    while len(searching := np.flatnonzero((before > 0) & work.absent[before, series_back])):
        before[searching] -= 1
    fell = values[times_back + 1, series_back] < values[before, series_back]
    found: dict[int, list[int]] = {}
    for time, index in zip(
        [*times.tolist(), *times_back[fell].tolist()],
        [*series.tolist(), *series_back[fell].tolist()],
        strict=True,
    ):
        found.setdefault(index, []).append(time + 1)
    for index, at in found.items():
        often = wording.times(len(at))
        work.note("reset", index, f"began again at zero {often}", since=min(at))


def _where(flags: Flags) -> tuple[Indices, Indices]:
    """Like np.nonzero for a table, in a tenth of its time."""
    found = np.flatnonzero(flags)
    return np.divmod(found, flags.shape[1])


def _note_silence(work: _Inspection) -> None:
    times_ns = work.frame.times_ns
    patience_ns = STALE_SCRAPES * work.interval_ns
    if not patience_ns:
        return
    if work.now_ns - times_ns[-1] > patience_ns:
        text = f"has no value of the last {_span(work.now_ns - int(times_ns[-1]))}"
        work.note_all("stale", text, int(times_ns[-1]))
    elif work.metric.scope not in COME_AND_GO:
        missing = _missing(work)
        last_of_old = int(np.searchsorted(times_ns, work.now_ns - patience_ns))
        silent = missing[last_of_old:].all(axis=0)
        for series in _without_successor(work, np.flatnonzero(silent)):
            _note_end(work, series, missing[:, series])
        counts = np.add.reduce(missing, axis=0, dtype=np.uint32)
        for series in np.flatnonzero((counts > GAPS_SHARE * len(times_ns)) & ~silent).tolist():
            _note_gaps(work, series, missing[:, series])


def _missing(work: _Inspection) -> Flags:
    """Where there is neither a number nor a word."""
    if not work.frame.words:
        return work.absent
    missing = work.absent.copy()
    missing[[word.time for word in work.frame.words], [word.series for word in work.frame.words]] = False
    return missing


def _without_successor(work: _Inspection, silent: Indices) -> list[int]:
    """Those whose subject has no other live series: labels change, such as the name of a GPU's job."""
    if not len(silent):
        return []
    subjects = work.frame.subjects
    alive = {subjects[series] for series in np.flatnonzero(~work.absent[-1])}
    return [series for series in silent.tolist() if subjects[series] not in alive]


def _every(there: Indices) -> float:
    """How many rows apart the values of a series usually are: its exporter may be scraped less often."""
    return float(np.median(np.diff(there))) if len(there) >= RHYTHM_VALUES_MIN else 1.0


def _note_end(work: _Inspection, series: int, missing: Flags) -> None:
    there = np.flatnonzero(~missing)
    if not len(there):
        work.note("stale", series, "has had no value at all")
        return
    old_ns = work.now_ns - int(work.frame.times_ns[there[-1]])
    if old_ns > STALE_SCRAPES * work.interval_ns * _every(there):
        work.note("stale", series, f"has had no value for {_span(old_ns)}", since=int(there[-1]))


def _note_gaps(work: _Inspection, series: int, missing: Flags) -> None:
    """Before its first value a series did not exist, so that time is not a gap."""
    there = np.flatnonzero(~missing)
    gaps = round((there[-1] - there[0]) / _every(there)) + 1 - len(there)
    if gaps > GAPS_SHARE * len(missing):
        first = int(there[0] + missing[there[0] :].argmax())
        work.note("gaps", series, f"has no value at {gaps} of {len(missing)} scrapes", since=first)


def _span(duration_ns: float) -> str:
    seconds = duration_ns / SECOND_NS
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
