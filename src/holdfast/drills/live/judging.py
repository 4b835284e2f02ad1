"""Judges a drill from the record: pure, so that the same record always gets the same verdict.

None means not judged: nothing could have noticed the fault, or there was nothing to compare with.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast import wording
from holdfast.control.actions import ControlAction
from holdfast.diagnose.lifecycle import restored
from holdfast.drills.live.scenarios import SLOW, START_S, LiveScenario, RecordSign
from holdfast.drills.live.scene import LiveScene
from holdfast.drills.live.striking import LiveStrike
from holdfast.record import events
from holdfast.wording.units import HOUR_S, SECOND_NS

DRILL = "drill"
"""The action in the record that marks a drill, as opposed to a real fault."""
DEAR = 2.0
"""A drill that costs more than this many times its forecast does not count as forecast."""
STEADY_STEPS = 3
"""The run has recovered after this many steps after the fault."""

Rating = Literal["right", "wrong", "not judged"]


class DrillCost(msgspec.Struct, frozen=True, kw_only=True):
    """The run's loss against its usual pace. Negative if it was quicker than usual."""

    gpu_hours: float
    usd: float


RowKind = Literal["fault", "noticed", "done", "other"]


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """at_s: since the fault."""

    at_s: float
    what: str
    kind: RowKind = "other"


class LiveVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, which `--json` prints. detect_s: until the record had the fault; for a fault that is made
    several times, the longest. recover_s: until the run was as before."""

    scenario: str
    run: str
    target: str
    hypothesis: str
    radius: str
    struck_ns: int
    ended_ns: int
    recovered: bool
    bits_equal: bool | None
    detect_s: float | None
    recover_s: float | None
    cause_right: bool | None
    action_right: bool | None
    cost: DrillCost
    forecast: DrillCost
    causes: tuple[str, ...]
    actions: tuple[str, ...]
    timeline: tuple[TimelineRow, ...]

    @property
    def questions(self) -> tuple[tuple[str, Rating, str], ...]:
        """The questions, each with its answer and the evidence."""
        seconds = wording.UNKNOWN if self.detect_s is None else f"{self.detect_s:.1f} s after the fault"
        back = "it did not in time" if self.recover_s is None else f"after {self.recover_s:.1f} s"
        cost, forecast = (_hours(one) for one in (self.cost, self.forecast))
        bits = "no digest of an undisturbed run was given" if self.bits_equal is None else "by the digest"
        return (
            ("Did the run recover?", _said(self.recovered), back),
            ("Are the weights the same bits?", _said(self.bits_equal), bits),
            ("Was it noticed?", _said(self.detect_s is not None if self.is_named else None), seconds),
            (
                "Was the right cause named?",
                _said(self.cause_right),
                "; ".join(self.causes) or "no cause was named",
            ),
            (
                "Was the right thing done?",
                _said(self.action_right),
                "; ".join(self.actions) or "nothing was done",
            ),
            ("Did it cost what was forecast?", _said(self.is_as_forecast), f"{cost}, forecast {forecast}"),
        )

    @property
    def is_named(self) -> bool:
        """Whether anything here could have noticed it."""
        return self.cause_right is not None or self.detect_s is not None

    @property
    def is_as_forecast(self) -> bool:
        return self.cost.gpu_hours <= DEAR * self.forecast.gpu_hours

    @property
    def score(self) -> tuple[int, int]:
        """The number of right answers, and of answers that could be judged."""
        said = [one for _, one, _ in self.questions if one != "not judged"]
        return said.count("right"), len(said)


def _said(right: bool | None) -> Rating:
    return "not judged" if right is None else "right" if right else "wrong"


def _hours(cost: DrillCost) -> str:
    return f"{cost.gpu_hours * HOUR_S:,.1f} GPU-seconds"


def forecast(scenario: LiveScenario, scene: LiveScene, target: str, for_s: float, usd: float) -> DrillCost:
    """The highest expected cost, stated before the drill. usd: the price of a GPU-hour."""
    touched = scene.on(target) or tuple(one for one in scene.members if one.name == target)
    gpus = sum(one.gpus for one in touched)
    away_s = scenario.rounds * (for_s + (START_S if scenario.comes_back else 0.0))
    steps_s = 2 * (scene.step_s or 0.0)  # a step more or less is chance
    lost_s = scene.gpus * (scenario.standstill_s + steps_s) + gpus * scenario.share * away_s
    return DrillCost(gpu_hours=lost_s / HOUR_S, usd=lost_s / HOUR_S * usd)


class DrilledRun(msgspec.Struct, frozen=True, kw_only=True):
    """before: the run before the fault. recorded: its events since it was struck. control: control's actions
    since. digest, reference: of the drilled run, and of an undisturbed one."""

    scenario: LiveScenario
    before: LiveScene
    strike: LiveStrike
    target: str
    forecast: DrillCost
    usd: float
    now_ns: int
    recorded: Sequence[events.AnyEvent]
    control: Sequence[events.ControlActed] = ()
    digest: str = ""
    reference: str = ""


def judged(played: DrilledRun) -> LiveVerdict:
    scenario, strike = played.scenario, played.strike
    since = [one for one in played.recorded if one.recorded_ns >= strike.at_ns]
    recovered = recovered_ns(scenario, strike, played.before, since)
    until_ns = recovered or played.now_ns
    steady_ns = _steady_ns(scenario, strike, played.before, since) or until_ns
    since = [one for one in since if one.occurred_ns <= until_ns]  # later events do not belong to the drill
    noticed = noticed_ns(scenario, strike, since)
    return LiveVerdict(
        scenario=scenario.name,
        run=played.before.run,
        target=played.target,
        hypothesis=scenario.hypothesis,
        radius=scenario.radius,
        struck_ns=strike.at_ns,
        ended_ns=strike.ends_ns,
        recovered=recovered is not None,
        bits_equal=played.digest == played.reference if played.digest and played.reference else None,
        detect_s=None if noticed is None else _detect_s(scenario, strike, since, noticed),
        recover_s=None if recovered is None else (recovered - strike.at_ns) / SECOND_NS,
        cause_right=_is_cause_right(scenario, strike, since, noticed),
        action_right=_is_action_right(scenario, strike, since, played.control),
        cost=_cost(played, since, steady_ns),
        forecast=played.forecast,
        causes=tuple(dict.fromkeys(_causes(since))),
        actions=tuple(dict.fromkeys(_actions(since, played.control))),
        timeline=tuple(_timeline(played, since, until_ns)),
    )


# -- noticed -------------------------------------------------------------------------------------------


def noticed_ns(scenario: LiveScenario, strike: LiveStrike, since: Sequence[events.AnyEvent]) -> int | None:
    """When the record had every required sign; without signs, when a diagnosis named the cause."""
    if not scenario.signs:
        named = [at_ns for at_ns, mechanism in _diagnosed(since) if mechanism in scenario.mechanisms]
        return min(named, default=None)
    moments = [_sign_moments(sign, strike, since) for sign in scenario.signs]
    return max(found[-1] for found in moments) if all(moments) else None


def _sign_moments(sign: RecordSign, strike: LiveStrike, since: Sequence[events.AnyEvent]) -> list[int]:
    """The moments of the sign, as many as required; empty if there were fewer."""
    found = sorted(one.occurred_ns for one in since if _is_sign(sign, strike, one))
    return found[: sign.times] if len(found) >= sign.times else []


def _detect_s(
    scenario: LiveScenario, strike: LiveStrike, since: Sequence[events.AnyEvent], noticed: int
) -> float:
    struck = (strike.at_ns, *strike.again_ns)
    waits = [
        seen_ns - at_ns
        for sign in scenario.signs
        for at_ns, seen_ns in zip(struck, _sign_moments(sign, strike, since), strict=False)
    ] or [noticed - strike.at_ns]
    return max(0.0, max(waits) / SECOND_NS)


def _is_sign(sign: RecordSign, strike: LiveStrike, event: events.AnyEvent) -> bool:
    match sign.kind:
        case "fault":
            is_named = isinstance(event, events.FaultObserved) and event.fault in sign.names
            return is_named and event.subject in strike.subjects
        case "take-over":
            return isinstance(event, events.ActionTaken) and event.action == events.TAKE_OVER
        case "checkpoint-failed":
            if not isinstance(event, events.CheckpointFailed):
                return False
            return any(name in event.reason for name in sign.names)


def _diagnosed(since: Sequence[events.AnyEvent]) -> list[tuple[int, str]]:
    found = [one for one in since if isinstance(one, events.IncidentDiagnosed)]
    return [(change.at_ns, change.incident.cause.mechanism) for change in restored(found)]


def _is_cause_right(
    scenario: LiveScenario, strike: LiveStrike, since: Sequence[events.AnyEvent], noticed: int | None
) -> bool | None:
    """No other member may be blamed, except for being slow: on a busy machine others are, too. A fault of the
    run as a whole, such as a lost checkpoint, does not count. None if only a diagnosis could have named the
    cause, and there was none.
    """
    if not scenario.signs and not _diagnosed(since):
        return None
    others = [
        one
        for one in since
        if isinstance(one, events.FaultObserved)
        and one.subject not in ("", *strike.subjects)
        and one.fault != SLOW
    ]
    return noticed is not None and not others


def _causes(since: Sequence[events.AnyEvent]) -> list[str]:
    found = []
    for one in since:
        match one:
            case events.FaultObserved(subject=subject, fault=fault) if subject:
                found.append(f"{subject}: {fault}")
            case events.CheckpointFailed(reason=reason):
                found.append(f"checkpoint: {wording.short(reason, 80)}")
            case events.ActionTaken(action=events.TAKE_OVER):
                found.append("the coordinator was lost")
            case events.IncidentDiagnosed():
                causes = [change.incident.cause for change in restored([one])]
                found += [f"diagnosis: {cause.subject}: {cause.mechanism}" for cause in causes]
    return found


# -- done ----------------------------------------------------------------------------------------------


def _is_action_right(
    scenario: LiveScenario,
    strike: LiveStrike,
    since: Sequence[events.AnyEvent],
    control: Sequence[events.ControlActed],
) -> bool:
    """Whether the run's action fits, and control's, if it acted or reported an action in shadow mode."""
    allowed: tuple[ControlAction, ...] = scenario.control
    if any(one.action not in allowed for one in control if one.subject == strike.node):
        return False
    if not scenario.actions:
        return not any(isinstance(one, events.MemberLost) for one in since)
    done = {one.action for one in since if isinstance(one, events.ActionTaken)}
    return bool(done & {*scenario.actions})


def _actions(since: Sequence[events.AnyEvent], control: Sequence[events.ControlActed]) -> list[str]:
    own = [
        f"{one.action} {one.subject}".strip()
        for one in since
        if isinstance(one, events.ActionTaken) and one.action != DRILL
    ]
    return [
        *own,
        *(f"control{' (shadow)' * (one.mode == 'shadow')}: {one.action} {one.subject}" for one in control),
    ]


# -- as before -----------------------------------------------------------------------------------------


def recovered_ns(
    scenario: LiveScenario, strike: LiveStrike, before: LiveScene, since: Sequence[events.AnyEvent]
) -> int | None:
    """When the run was as before: it steps as before and, if the fault affected checkpoints, it has written
    one."""
    steady_ns = _steady_ns(scenario, strike, before, since)
    if steady_ns is None or not scenario.needs_checkpoint:
        return steady_ns
    saved = [
        one.occurred_ns
        for one in since
        if isinstance(one, events.CheckpointSaved) and one.occurred_ns > _over_ns(scenario, strike, since)
    ]
    return max(steady_ns, min(saved)) if saved else None


def _over_ns(scenario: LiveScenario, strike: LiveStrike, since: Sequence[events.AnyEvent]) -> int:
    """When the fault was over, and the record had noticed it."""
    is_waited_for = scenario.is_lasting and not scenario.comes_back  # the run may end the fault earlier
    after_ns = strike.ends_ns if is_waited_for else strike.at_ns
    if scenario.signs and (noticed := noticed_ns(scenario, strike, since)) is not None:
        after_ns = max(after_ns, noticed)
    return after_ns


def _steady_ns(
    scenario: LiveScenario, strike: LiveStrike, before: LiveScene, since: Sequence[events.AnyEvent]
) -> int | None:
    """When the run had made `STEADY_STEPS` steps after the fault, with as many members as before."""
    after_ns = _over_ns(scenario, strike, since)
    if scenario.comes_back:
        full_ns = _full_ns(before, since)
        if full_ns is None:
            return None
        after_ns = max(after_ns, full_ns)
    commits = sorted(
        one.occurred_ns
        for one in since
        if isinstance(one, events.StepCommitted) and one.occurred_ns > after_ns
    )
    return commits[STEADY_STEPS - 1] if len(commits) >= STEADY_STEPS else None


def _full_ns(before: LiveScene, since: Sequence[events.AnyEvent]) -> int | None:
    """When a generation with as many members as before was opened, after the last loss."""
    lost = [one.occurred_ns for one in since if isinstance(one, events.MemberLost)]
    last_ns = max(lost, default=0)
    if not lost:
        return None
    opened = [
        one.occurred_ns
        for one in since
        if isinstance(one, events.GenerationOpened)
        and len(one.members) >= len(before.members)
        and one.occurred_ns >= last_ns
    ]
    return min(opened, default=None)


def _cost(played: DrilledRun, since: Sequence[events.AnyEvent], until_ns: int) -> DrillCost:
    """The elapsed time, less the usual time of the steps made in it. Waiting for a checkpoint does not count:
    the run loses nothing by it."""
    steps = {
        one.step
        for one in since
        if isinstance(one, events.StepCommitted) and played.strike.at_ns < one.occurred_ns <= until_ns
    }
    passed_s = (until_ns - played.strike.at_ns) / SECOND_NS
    lost_s = max(0.0, passed_s - len(steps) * (played.before.step_s or 0.0)) * played.before.gpus
    return DrillCost(gpu_hours=lost_s / HOUR_S, usd=lost_s / HOUR_S * played.usd)


def _timeline(played: DrilledRun, since: Sequence[events.AnyEvent], until_ns: int) -> list[TimelineRow]:
    """The rows from the fault to the recovery."""
    strike = played.strike
    rows = [_row(strike.at_ns, f"{played.scenario.title}: {played.target}", "fault")]
    if played.scenario.is_lasting:
        rows.append(_row(strike.ends_ns, "the fault is over, and everything is put back", "fault"))
    rows += [_row(at_ns, f"again: {played.target}", "fault") for at_ns in strike.again_ns]
    rows += [told for one in since if (told := _told(one, played.scenario)) is not None]
    rows += [
        _row(act.occurred_ns, f"control ({act.mode}): {act.action} {act.subject}, {act.stage}", "done")
        for act in played.control
    ]
    rows = sorted((row for row in rows if row[0] <= until_ns), key=lambda row: row[0])
    is_back = recovered_ns(played.scenario, strike, played.before, since) is not None
    rows.append(_row(until_ns, "the run is as before" if is_back else "not as before yet", "other"))
    return [
        TimelineRow(at_s=(at_ns - strike.at_ns) / SECOND_NS, what=what, kind=kind)
        for at_ns, what, kind in rows
    ]


def _row(at_ns: int, what: str, kind: RowKind) -> tuple[int, str, RowKind]:
    return at_ns, what, kind


def _told(event: events.AnyEvent, scenario: LiveScenario) -> tuple[int, str, RowKind] | None:
    at_ns = event.occurred_ns
    match event:
        case events.FaultObserved(subject=subject, fault=fault):
            return _row(at_ns, f"noticed: {', '.join(filter(None, (subject, fault)))}", "noticed")
        case events.IncidentDiagnosed(incident=name, state=state):
            return _row(at_ns, f"diagnosis: {name} {state}", "noticed")
        case events.ActionTaken(action=action, subject=subject) if action != DRILL:
            return _row(at_ns, f"done: {action} {subject}".rstrip(), "done")
        case events.GenerationOpened(generation=number, members=members):
            return _row(at_ns, f"generation {number} with {wording.many(len(members), 'member')}", "done")
        case events.CheckpointFailed(step=step, is_snapshot=is_snapshot):
            kept = "snapshot" if is_snapshot else "checkpoint"
            return _row(at_ns, f"the {kept} of step {step:,} failed", "noticed")
        case events.CheckpointSaved(step=step) if scenario.needs_checkpoint:
            return _row(at_ns, f"the checkpoint of step {step:,} is durable", "other")
    return None
