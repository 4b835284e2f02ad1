"""Marks answers: which causes were named, which of them are right, and what was missed.

A named cause is an incident with a mechanism and a subject. It is right if both are what one of the case's
causes accepts at this level or a richer one: an answer that says more than the telemetry seems to show, and
is right, is right. A cause counts for recall if the level's telemetry can show it and the run is at least
VISIBLE slower; a hang always counts.
"""

from collections.abc import Iterable, Sequence

import msgspec

from bench.exam.asking import HANG_AT_S, HEALTHY_EVERY_S, Answer, Incident
from bench.exam.plan import LEVELS, RUN, Cause, Level

VISIBLE = 1.05
SURE = 0.6
SLOWDOWN_TOLERANCE = 0.1
DECILES = 10
DECILE_ANSWERS_MIN = 20
HANG_BOUND_S = 30.0


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, marked. slowdown_error: how far its slowdown was off, as a share."""

    answer: Answer
    right: tuple[Incident, ...] = ()
    wrong: tuple[Incident, ...] = ()
    alarms: tuple[Incident, ...] = ()
    due: tuple[Cause, ...] = ()
    found: tuple[Cause, ...] = ()
    silent: bool = False
    unknown: bool = False
    slowdown_error: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a set of marks comes to. None where there is nothing to divide by."""

    answers: int
    named: int
    precision: float | None
    due: int
    found: int
    recall: float | None
    near: int
    sure_wrong: int
    silent: int
    honest_unknown: int
    owned_unknown: int
    slowdowns: int
    slowdown_within: float | None


def is_right(incident: Incident, causes: Iterable[Cause], level: Level) -> bool:
    """A subject of * stands for any: a cap of a whole site has no fixed name."""
    said = {(incident.mechanism, incident.subject), (incident.mechanism, "*")}
    as_good = LEVELS[: LEVELS.index(level) + 1]
    return any(said & {*cause.accepted[richer]} for cause in causes for richer in as_good)


def is_near(incident: Incident, causes: Iterable[Cause]) -> bool:
    """Whether a wrong answer at least leads to the right machine."""
    places = {
        _place(subject) for cause in causes for pairs in cause.accepted.values() for _, subject in pairs
    }
    return _place(incident.subject) in places


def _place(subject: str) -> str:
    """A GPU, port or member is on its node."""
    name = subject.removeprefix(f"{RUN}/")
    return name[:4] if name[:1] == "n" and name[1:4].isdigit() else name


def mark(answer: Answer) -> Mark:
    named = [one for one in answer.incidents if one.named]
    if answer.healthy:
        alarms = tuple(one for one in answer.incidents if one.mechanism not in answer.tolerated)
        wrong = tuple(one for one in alarms if one in named)
        return Mark(answer=answer, wrong=wrong, alarms=alarms)
    right = tuple(one for one in named if is_right(one, answer.causes, answer.level))
    wrong = tuple(one for one in named if not is_right(one, answer.causes, answer.level))
    visible = answer.truth_now >= VISIBLE
    due = tuple(one for one in answer.causes if one.accepted[answer.level] and (visible or one.hang))
    found = tuple(one for one in due if any(is_right(said, [one], answer.level) for said in right))
    slow = visible or any(cause.hang for cause in answer.causes)
    return Mark(
        answer=answer,
        right=right,
        wrong=wrong,
        alarms=(),
        due=due,
        found=found,
        silent=slow and not [one for one in answer.incidents if not one.ended],
        unknown=slow and not due and not named and bool(answer.incidents),
        slowdown_error=_slowdown_error(answer, right),
    )


def _slowdown_error(answer: Answer, right: Sequence[Incident]) -> float | None:
    """Of the right answer, or else the first; against the truth of now or since the onset, what is nearer.

    Two causes at once share one slowdown, so they are left out.
    """
    said = [one.slowdown for one in right or answer.incidents[:1] if one.slowdown]
    if not said or len(answer.causes) != 1 or answer.causes[0].hang or answer.truth_now < VISIBLE:
        return None
    low, high = sorted((answer.truth_now, answer.truth_since))
    return min(max(low / one - 1, one / high - 1, 0.0) for one in said)


def figures(marks: Sequence[Mark]) -> Figures:
    named = sum(len(one.right) + len(one.wrong) for one in marks)
    right = sum(len(one.right) for one in marks)
    due, found = sum(len(one.due) for one in marks), sum(len(one.found) for one in marks)
    errors = [one.slowdown_error for one in marks if one.slowdown_error is not None]
    return Figures(
        answers=len(marks),
        named=named,
        precision=right / named if named else None,
        due=due,
        found=found,
        recall=found / due if due else None,
        near=sum(is_near(said, one.answer.causes) for one in marks for said in one.wrong),
        sure_wrong=sum(said.confidence > SURE for one in marks for said in one.wrong),
        silent=sum(one.silent for one in marks),
        honest_unknown=sum(one.unknown for one in marks),
        owned_unknown=sum(
            bool(said.owner) for one in marks for said in one.answer.incidents if not said.named
        ),
        slowdowns=len(errors),
        slowdown_within=sum(e <= SLOWDOWN_TOLERANCE for e in errors) / len(errors) if errors else None,
    )


def calibration(marks: Sequence[Mark]) -> list[tuple[int, int, float, float]]:
    """Decile, how many named causes, their mean confidence, and the share that was right."""
    said = [(one.confidence, True) for mark in marks for one in mark.right]
    said += [(one.confidence, False) for mark in marks for one in mark.wrong]
    rows = []
    for decile in range(DECILES):
        inside = [(c, ok) for c, ok in said if min(int(c * DECILES), DECILES - 1) == decile]
        if inside:
            count = len(inside)
            rows.append(
                (decile, count, sum(c for c, _ in inside) / count, sum(ok for _, ok in inside) / count)
            )
    return rows


def false_alarms(marks: Sequence[Mark], level: Level) -> tuple[int, float, float | None]:
    """Distinct alarms on healthy hours of a level, cluster-days looked at, and alarms a day.

    An alarm that is still there at the next look is the same one.
    """
    healthy = [one for one in marks if one.answer.healthy and one.answer.level == level]
    days = len(healthy) * HEALTHY_EVERY_S / 86_400
    alarms = 0
    for case, seed in sorted({(one.answer.case, one.answer.seed) for one in healthy}):
        before: set[tuple[str, str]] = set()
        looks = [one for one in healthy if (one.answer.case, one.answer.seed) == (case, seed)]
        for look in sorted(looks, key=lambda one: one.answer.after_s):
            now = {(said.mechanism, said.subject) for said in look.alarms}
            alarms += len(now - before)
            before = now
    return alarms, days, alarms / days if days else None


def hangs(marks: Sequence[Mark], level: Level) -> list[tuple[str, int, float | None, bool]]:
    """Case, seed, seconds until a hang was raised (None: not within five minutes), and whether who stopped
    first was among the affected.
    """
    asked = [m for m in marks if m.answer.level == level and any(c.hang for c in m.answer.causes)]
    rows = []
    for case, seed in sorted({(m.answer.case, m.answer.seed) for m in asked}):
        looks = sorted(
            (
                m
                for m in asked
                if (m.answer.case, m.answer.seed) == (case, seed) and m.answer.after_s in HANG_AT_S
            ),
            key=lambda m: m.answer.after_s,
        )
        raised = [m for m in looks if m.found]
        first = {who for m in looks for cause in m.answer.causes for who in cause.first}
        named = {
            who.rpartition("/")[2]
            for m in raised
            for said in m.right
            for who in (*said.affected, said.subject)
        }
        rows.append((case, seed, raised[0].answer.after_s if raised else None, bool(first & named)))
    return rows


def worse_with_more(marks: Sequence[Mark]) -> list[tuple[Mark, Mark]]:
    """Questions that poorer telemetry answered right and richer telemetry did not: that must never be."""
    asked = {(m.answer.case, m.answer.seed, m.answer.after_s, m.answer.level): m for m in marks}
    worse = []
    for (case, seed, after_s, level), rich in asked.items():
        for poorer in LEVELS[LEVELS.index(level) + 1 :]:
            poor = asked.get((case, seed, after_s, poorer))
            if poor and ({c.kind for c in poor.found} - {c.kind for c in rich.found}):
                worse.append((poor, rich))
    return worse


def levels_in(marks: Sequence[Mark]) -> list[Level]:
    return [level for level in LEVELS if any(one.answer.level == level for one in marks)]
