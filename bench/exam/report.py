"""The exam's figures as text and as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.exam import marking
from bench.exam.marking import Figures, Mark

ANSWER_KEYS = ("case", "seed", "level", "after_s", "truth_now", "incidents", "error")


def _share(value: float | None) -> str:
    return "   -" if value is None else f"{value:4.2f}"


def _row(name: str, one: Figures) -> str:
    return (
        f"{name:<22}{one.answers:>8}{one.named:>7}{_share(one.precision):>11}{one.due:>6}{one.found:>6}"
        f"{_share(one.recall):>8}{one.near:>6}{one.sure_wrong:>9}{one.silent:>8}{one.honest_unknown:>8}{one.owned_unknown:>7}"
        f"{_share(one.slowdown_within):>10}"
    )


HEAD = (
    f"{'':<22}{'answers':>8}{'named':>7}{'precision':>11}{'due':>6}{'found':>6}{'recall':>8}{'near':>6}{'sure+no':>9}"
    f"{'silent':>8}{'unknown':>8}{'owned':>7}{'slowdown':>10}"
)


def text(marks: Sequence[Mark], *, took_s: float) -> str:
    trouble = [one for one in marks if not one.answer.healthy]
    timed = [one for one in trouble if one.answer.after_s >= 600]
    levels = marking.levels_in(marks)
    lines = ["By level", HEAD]
    lines += [_row(level, marking.figures([m for m in timed if m.answer.level == level])) for level in levels]
    for level in levels:
        lines += ["", f"By time since the onset, {level}", HEAD]
        for after_s in sorted({m.answer.after_s for m in timed}):
            chosen = [m for m in timed if m.answer.level == level and m.answer.after_s == after_s]
            lines.append(_row(f"{after_s / 60:.0f} min", marking.figures(chosen)))
    for level in levels:
        lines += ["", f"By kind, {level}", HEAD]
        for kind in sorted({m.answer.kind for m in timed}):
            chosen = [m for m in timed if m.answer.level == level and m.answer.kind == kind]
            lines.append(_row(kind, marking.figures(chosen)))
    lines += ["", "Healthy hours: distinct alarms"]
    for level in levels:
        alarms, days, rate = marking.false_alarms(marks, level)
        lines.append(f"{level:<10}{alarms:>4} in {days:.2f} cluster-days: {_share(rate)} a day")
    lines += ["", "Calibration: decile, named causes, mean confidence, share right"]
    for decile, count, mean, right in marking.calibration(trouble):
        remark = (
            ""
            if count < marking.DECILE_ANSWERS_MIN or abs(mean - right) <= 0.1
            else "  <- off by more than 0.1"
        )
        lines.append(f"{decile / 10:.1f}{count:>6}{mean:>7.2f}{right:>7.2f}{remark}")
    lines += ["", "Hangs: seconds until raised; whether who stopped first is named"]
    for level in levels:
        for case, seed, seconds, first in marking.hangs(marks, level):
            raised = "not within 300 s" if seconds is None else f"{seconds:.0f} s"
            lines.append(f"{level:<10}{case:<26}seed {seed:<6}{raised}{', first named' if first else ''}")
    worse = marking.worse_with_more(marks)
    lines += ["", f"Right with less telemetry, and not with more: {len(worse)}"]
    lines += [f"{_question(poor)}, not with {rich.answer.level}" for poor, rich in worse]
    lines += ["", "Wrong causes above 0.6 confidence"]
    for one in marks:
        for said in one.wrong:
            if said.confidence > marking.SURE:
                lines.append(f"{_question(one)}: {said.mechanism} of {said.subject} ({said.confidence:.2f})")
    errors = [one for one in marks if one.answer.error]
    lines += ["", f"Questions without an answer: {len(errors)}"]
    lines += [f"{_question(one)}: {one.answer.error}" for one in errors[:10]]
    lines += ["", f"{len(marks)} questions in {took_s:.0f} s"]
    return "\n".join(lines)


def _question(one: Mark) -> str:
    answer = one.answer
    return f"{answer.case} seed {answer.seed} {answer.level} {answer.after_s / 60:.0f} min"


def listing(marks: Sequence[Mark]) -> str:
    """One line a question, to look into."""
    lines = []
    for one in marks:
        said = "; ".join(
            f"{i.verdict} {i.mechanism or '-'} {i.subject or '-'} {i.confidence:.2f} x{i.slowdown or 0:.2f}"
            for i in one.answer.incidents
        )
        state = "ok" if one.found and len(one.found) == len(one.due) and not one.wrong else ""
        state = state or ("WRONG" if one.wrong or one.alarms else "miss" if one.due else "-")
        lines.append(f"{state:<6}{_question(one):<48} truth x{one.answer.truth_now:.2f}  {said or 'nothing'}")
    return "\n".join(lines)


def document(marks: Sequence[Mark], *, took_s: float) -> dict[str, Any]:
    trouble = [one for one in marks if not one.answer.healthy and one.answer.after_s >= 600]
    levels = marking.levels_in(marks)

    def of(level: str, **wanted: object) -> dict[str, Any]:
        wanted["level"] = level
        chosen = [m for m in trouble if all(getattr(m.answer, key) == value for key, value in wanted.items())]
        made: dict[str, Any] = msgspec.to_builtins(marking.figures(chosen))
        return made

    kinds, afters = sorted({m.answer.kind for m in trouble}), sorted({m.answer.after_s for m in trouble})
    return {
        "took_s": took_s,
        "levels": {level: of(level) for level in levels},
        "by_time": {level: {f"{s / 60:.0f}m": of(level, after_s=s) for s in afters} for level in levels},
        "by_kind": {level: {kind: of(level, kind=kind) for kind in kinds} for level in levels},
        "false_alarms": {
            level: dict(
                zip(("alarms", "cluster_days", "a_day"), marking.false_alarms(marks, level), strict=True)
            )
            for level in levels
        },
        "calibration": [
            {"decile": d, "count": n, "confidence": c, "right": r}
            for d, n, c, r in marking.calibration(trouble)
        ],
        "worse_with_more": len(marking.worse_with_more(marks)),
        "hangs": {
            level: [
                {"case": case, "seed": seed, "raised_s": raised, "first_named": first}
                for case, seed, raised, first in marking.hangs(marks, level)
            ]
            for level in levels
        },
        "answers": [
            {
                **{key: msgspec.to_builtins(getattr(one.answer, key)) for key in ANSWER_KEYS},
                "due": [cause.kind for cause in one.due],
                "found": [cause.kind for cause in one.found],
                "wrong": len(one.wrong) + len(one.alarms),
            }
            for one in marks
        ],
    }
