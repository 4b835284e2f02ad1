"""The decision: a pure function of the moment, the state and the policy, in the twin as in a real cluster.

The cheapest action is taken, if it is allowed now. Without confidence or good telemetry only harmless actions
are left; calling a person is one of them, with its own price.
"""

from collections.abc import Iterator

import msgspec

from holdfast import wording
from holdfast.control.actions import (
    ACTIONS,
    DRASTIC,
    HARMLESS,
    LESS,
    TAKES_OUT,
    TRIALS,
    ControlAction,
    said,
)
from holdfast.control.alternatives import STANDS_STILL_SHARE, CaseLoss, loss_of, priced
from holdfast.control.cluster import Case, ClusterView, ControlState, NodeView, cases, node_named
from holdfast.control.decision import UNPROVEN, ActionPrice, ControlDecision, PricedAction
from holdfast.control.history import Act
from holdfast.control.policy import ControlPolicy
from holdfast.record.events import ControlMode
from holdfast.wording.units import DAY_NS, HOUR_NS, MINUTE_NS

REASON_PREFIX = "holdfast: "
EVIDENCE_SHOWN_MAX = 5
SHOWN_MAX = 4
"""Alternatives, or nodes, that a sentence lists."""
YOUNG = "the incident is too young"
COOLING = "the last action on it was a short while ago"
WAITS = (YOUNG, COOLING)
"""Hindrances that pass by themselves."""


def drain_reason(name: str, rule: str) -> str:
    """The reason given to the scheduler, by which we recognise our own drains. name: of the act."""
    return f"{REASON_PREFIX}{wording.short(rule, 60)} ({name})"


def is_ours(node: NodeView, act: Act) -> bool:
    """Whether the node is out because of this act, and its reason was not changed since."""
    return node.is_out and node.reason == drain_reason(act.name, act.rule)


def decide(now_ns: int, state: ControlState, policy: ControlPolicy) -> ControlDecision:
    """Decide what to do now about one target."""
    if state.case is None:
        return _about_node_out(now_ns, state, policy)
    return _about_incidents(now_ns, state.case, state.cluster, policy)


def decisions(now_ns: int, cluster: ClusterView, policy: ControlPolicy) -> Iterator[ControlDecision]:
    """One decision for each target, in the order in which budgets are spent. The caller that carries one out
    adds it to the history before it asks for the next.
    """
    out = dict(cluster.history.out)
    staying = set()
    for case in list(cases(cluster)):
        if case.target not in out or _is_still_felt(case, out[case.target]):
            staying.add(case.target)
            yield decide(now_ns, ControlState(target=case.target, case=case, cluster=cluster), policy)
    for target in out:
        if target not in staying:
            yield decide(now_ns, ControlState(target=target, case=None, cluster=cluster), policy)


def _is_still_felt(case: Case, act: Act) -> bool:
    """Whether a run has stayed on a node that we took out: it still loses time, so decisions go on."""
    is_there = case.run is not None and case.target in case.run.nodes
    return is_there and act.stage == "done" and case.node is not None and is_ours(case.node, act)


def looks_like_a_bad_detector(now_ns: int, cluster: ClusterView, policy: ControlPolicy) -> str:
    """Why the breaker must trip; empty if it need not. Incidents from before the last reset do not count. All
    open ones since then do, even if control did not look for a long time.
    """
    noticed = sorted(
        (incident.noticed_ns, node.name)
        for incident in cluster.incidents
        if cluster.history.reset_ns <= incident.noticed_ns <= now_ns
        and (node := node_named(incident, cluster.nodes)) is not None
    )
    most, within_ns = policy.breaker.of(cluster.gpu_nodes), round(policy.breaker.within_min * MINUTE_NS)
    bad: set[str] = set()
    first = 0
    for at, (noticed_ns, _) in enumerate(noticed):
        while noticed[first][0] < noticed_ns - within_ns:
            first += 1
        bad = {name for _, name in noticed[first : at + 1]}
        if len(bad) > most:
            break
    else:
        return ""
    return (
        f"{wording.many(len(bad), 'node')} looked bad within "
        f"{wording.number(policy.breaker.within_min)} minutes, "
        f"more than {most:,}: {wording.listed(sorted(bad), SHOWN_MAX)}"
    )


# ---- incidents -------------------------------------------------------------------------------------------


def _about_incidents(now_ns: int, case: Case, cluster: ClusterView, policy: ControlPolicy) -> ControlDecision:
    loss = loss_of(case, now_ns, policy)
    offered = [
        msgspec.structs.replace(one, not_now=_hindrance(one.action, loss, now_ns, case, cluster, policy))
        for one in priced(case, now_ns, cluster, policy)
    ]
    watch = offered[0]  # the gentlest always makes sense
    held = _held(now_ns, case, cluster, policy)
    chosen = watch if held else _cheapest(offered, watch, policy)
    pace = wording.percent(1 - loss.share) if loss.share else "full pace"
    return ControlDecision(
        action=chosen.action,
        target=case.target,
        run=case.run.name if case.run else case.left_run,
        reason=_sentence(chosen, offered, case.target, pace, loss.horizon_h, held),
        evidence=_evidence(case),
        price=chosen.price,
        alternatives=tuple(offered),
        mode=_mode(case.rule, policy),
        rule=case.rule,
        incidents=tuple(sorted(one.name for one in case.incidents)),
        rate=loss.rate,
        member=case.member,
    )


def _cheapest(offered: list[PricedAction], watch: PricedAction, policy: ControlPolicy) -> PricedAction:
    """The cheapest action; of equal ones the gentlest. It must be cheaper than going on by the policy's
    `gain`, because prices are estimates.
    """
    open_ = [one for one in offered if not one.not_now]
    waiting = [one.price.usd for one in offered if one.not_now in WAITS]
    person = next((one for one in open_ if one.action == "call-a-person"), None)
    if person is not None and min(waiting, default=person.price.usd) < person.price.usd:
        open_.remove(person)  # a cheaper action only has to wait a little
    best = min(open_, key=lambda one: (one.price.usd, ACTIONS.index(one.action)), default=watch)
    return best if best.price.usd * policy.gain <= watch.price.usd else watch


def _held(now_ns: int, case: Case, cluster: ClusterView, policy: ControlPolicy) -> str:
    """Why nothing may be done about this target at all; empty if something may."""
    history, node = cluster.history, case.node
    if history.tripped_ns is not None:
        return f"the breaker has tripped ({history.trip_reason}), and only a person resets it"
    if policy.mode_of(case.rule) == "off":
        return "the policy has this rule off"
    if any(act.target == case.target for act in history.under_way):
        return "an action on it is under way"
    if node is None:
        return ""
    if node.maintenance:
        return f"it is in maintenance ({node.maintenance})"
    if node.is_out and not _is_out_by_us(node, cluster):
        return f"it was taken out by others ({node.reason or 'no reason given'})"
    if hands_off := _hands_off(now_ns, case.target, cluster, policy):
        return hands_off
    return ""


def _is_out_by_us(node: NodeView, cluster: ClusterView) -> bool:
    act = cluster.history.out.get(node.name)
    return act is not None and is_ours(node, act)


def _hands_off(now_ns: int, target: str, cluster: ClusterView, policy: ControlPolicy) -> str:
    """Why a node is left alone for a while after others ended our drain; empty if it is not."""
    since_ns = now_ns - round(policy.waits.hands_off_h * HOUR_NS)
    for act in cluster.history.of(target):
        if act.action in TAKES_OUT and act.stage == "over" and act.changed_ns > since_ns:
            return "others decided about it a short while ago"
    return ""


def _hindrance(
    action: ControlAction,
    loss: CaseLoss,
    now_ns: int,
    case: Case,
    cluster: ClusterView,
    policy: ControlPolicy,
) -> str:
    """Why an action may not be taken now; empty if it may."""
    if action == "watch":
        return ""
    if action not in cluster.can:
        return "it is not possible here"
    told, node = case.gravest, case.node
    if action in policy.rule(case.rule).never:
        return "the policy forbids it for this rule"
    if action == "call-a-person":
        return _called(now_ns, case.target, _mode(case.rule, policy), cluster, policy)
    if action in TAKES_OUT and node is not None and node.is_out:
        return "it is out already"
    if action == "drain-now" and (others := _jobs_of_others(case)):
        return f"a job unknown to control runs there ({', '.join(others)})"
    if spent := over_budget(action, now_ns, case.target, _mode(case.rule, policy), cluster, policy):
        return spent
    if action in HARMLESS:
        return _cooling(action, now_ns, case.target, cluster, policy)
    needed = _confidence_needed(action, case, policy)
    if told.confidence < needed:
        return f"the cause is {wording.percent(told.confidence)} sure, and this needs {needed:.0%}"
    if told.quality < policy.quality:
        return "the telemetry is suspect"
    is_trial = action in TRIALS and loss.share > STANDS_STILL_SHARE  # waiting costs more than trying
    if not is_trial and now_ns - told.noticed_ns < policy.waits.hold_min * MINUTE_NS:
        return YOUNG
    return _cooling(None, now_ns, case.target, cluster, policy)


def _confidence_needed(action: ControlAction, case: Case, policy: ControlPolicy) -> float:
    """The least confidence for an action. The price already covers being wrong; if that costs only seconds of
    a run, or the check of a node that its run has left, no confidence is required.
    """
    if action in TRIALS or (action == "drain-when-done" and case.left_rate):
        return 0.0
    return policy.confidence_drastic if action in DRASTIC else policy.confidence


def _jobs_of_others(case: Case) -> list[str]:
    """The jobs that would be requeued with the run, and whose loss is not priced. None if the run can move by
    itself, which leaves them alone.
    """
    if case.node is None or case.run is None or (case.run.is_elastic and case.run.can_move):
        return []
    return [job for job in case.node.jobs if job not in case.run.jobs]


def _cooling(
    action: ControlAction | None, now_ns: int, target: str, cluster: ClusterView, policy: ControlPolicy
) -> str:
    """action: None for any action that is not harmless."""
    since_ns = now_ns - round(policy.waits.cool_down_min * MINUTE_NS)
    for act in cluster.history.of(target):
        counts = act.action == action if action else act.action not in HARMLESS
        if counts and max(act.at_ns, act.changed_ns) > since_ns:
            return COOLING
    return ""


def _called(now_ns: int, target: str, mode: ControlMode, cluster: ClusterView, policy: ControlPolicy) -> str:
    since_ns = now_ns - round(policy.waits.person_h * HOUR_NS)
    calls = [act for act in cluster.history.of(target) if act.action == "call-a-person"]
    if any(act.at_ns > since_ns and act.stage != "failed" for act in calls):
        return "a person was called already"
    if spent := over_budget("call-a-person", now_ns, target, mode, cluster, policy):
        return spent
    return _cooling("call-a-person", now_ns, target, cluster, policy)


def over_budget(
    action: ControlAction,
    now_ns: int,
    target: str,
    mode: ControlMode,
    cluster: ClusterView,
    policy: ControlPolicy,
) -> str:
    """Why the budget does not allow one more of this action; empty if it does. In shadow mode the announced
    actions count, so that no more are announced than would be done.
    """
    history, budget, gpu_nodes = cluster.history, policy.budget(action), cluster.gpu_nodes
    if history.begun(action, mode, now_ns - DAY_NS, target) >= budget.per_day:
        return f"it was done {budget.per_day:,} times in 24 hours, which is its budget"
    if (held := len(history.held({action}, mode, target))) >= (most := budget.of(gpu_nodes)):
        return f"it holds {held:,} of the {wording.many(most, 'node')} of its budget"
    if action in LESS and (out := len(history.held(LESS, mode, target) - {target})) >= (
        most := policy.out.of(gpu_nodes)
    ):
        return f"{out:,} of at most {wording.many(most, 'node')} are out"
    return ""


# ---- nodes that we took out ------------------------------------------------------------------------------


def _about_node_out(now_ns: int, state: ControlState, policy: ControlPolicy) -> ControlDecision:
    """A node that we took out is restored after a check. If the check fails, the node is rebooted and checked
    longer; after that a person is called.
    """
    cluster, target = state.cluster, state.target
    act = cluster.history.out[target]
    node = cluster.nodes.get(target)
    action, why = _next_step(now_ns, target, node, act, cluster, policy)
    gpus = node.gpus if node else 0
    staying = gpus * policy.times.out_h
    own = gpus * policy.times.check_h if action in ("reboot", "restore") else 0.0
    prices: dict[ControlAction, float] = {"watch": staying}
    if action != "watch":
        prices[action] = own
    alternatives = tuple(
        PricedAction(
            action=one,
            price=ActionPrice(gpu_hours=hours, usd=hours * cluster.usd_per_gpu_hour),
            own_gpu_hours=hours,
        )
        for one, hours in prices.items()
    )
    return ControlDecision(
        action=action,
        target=target,
        run=act.decision.run if act.decision else "",
        reason=why,
        evidence=(f"out since {wording.stamp(act.at_ns)} for {act.rule}", *filter(None, (act.outcome,))),
        price=alternatives[-1].price,
        alternatives=alternatives,
        mode=_mode(act.rule, policy),
        rule=act.rule,
        incidents=act.decision.incidents if act.decision else (),
    )


def _next_step(
    now_ns: int,
    target: str,
    node: NodeView | None,
    act: Act,
    cluster: ClusterView,
    policy: ControlPolicy,
) -> tuple[ControlAction, str]:
    history = cluster.history
    if history.tripped_ns is not None:
        return "watch", f"the breaker has tripped ({history.trip_reason}), and only a person resets it"
    if any(one.target == target for one in history.under_way):
        return "watch", "an action on it is under way"
    if node is None or not is_ours(node, act):
        return "watch", f"{target} is no longer out because of us"
    if node.maintenance:
        return "watch", f"{target} is in maintenance ({node.maintenance})"
    if jobs := _jobs_on(node, cluster):
        return "watch", f"{target} still has {wording.many(len(jobs), 'job')}"
    if cooling := _cooling(None, now_ns, target, cluster, policy):
        return "watch", f"{target} stays out: {cooling}"
    action, why = _repair(now_ns, target, act, cluster, policy)
    hindered = (
        _called(now_ns, target, _mode(act.rule, policy), cluster, policy)
        if action == "call-a-person"
        else over_budget(action, now_ns, target, _mode(act.rule, policy), cluster, policy)
    )
    if action not in cluster.can:
        return "watch", f"{target} stays out: {why}, and {action} is not possible here"
    return ("watch", f"{target} stays out: {hindered}") if hindered else (action, why)


def _jobs_on(node: NodeView, cluster: ClusterView) -> list[str]:
    """The jobs that really run on the node: not those of an elastic run that has left it."""
    gone = {
        job
        for run in cluster.runs.values()
        if run.is_elastic and node.name not in run.nodes
        for job in run.jobs
    }
    return [job for job in node.jobs if job not in gone]


def _repair(
    now_ns: int, target: str, act: Act, cluster: ClusterView, policy: ControlPolicy
) -> tuple[ControlAction, str]:
    history, lemons = cluster.history, policy.lemons
    times_out = history.times_out(target, now_ns - round(lemons.days * DAY_NS))
    tried = [one for one in history.since_out(target, "restore") if one.stage == "failed"]
    unproven = [one for one in tried if one.outcome.startswith(UNPROVEN)]
    failed = [one for one in tried if one not in unproven]
    rebooted = history.since_out(target, "reboot")
    if times_out >= lemons.person:
        return "call-a-person", f"{target} is a lemon: taken out {wording.times(times_out)}"
    if "restore" not in cluster.can:
        return "call-a-person", f"{target} is out, and the policy has no command to check it"
    if len(unproven) > 1:  # once, a peer may have been busy
        return "call-a-person", f"{target} stays out, {unproven[-1].outcome}"
    if failed and not rebooted and "reboot" in cluster.can:
        return "reboot", f"{target} failed its check: {failed[-1].outcome}"
    if len(failed) > 1:
        return (
            "call-a-person",
            f"{target} failed its check {wording.times(len(failed))}: {failed[-1].outcome}",
        )
    again = f", for the {times_out}. time" if times_out > 1 else ""
    return "restore", f"{target} was taken out for {act.rule}{again}; it is back if its check passes"


def needs_long_check(now_ns: int, target: str, cluster: ClusterView, policy: ControlPolicy) -> bool:
    """Whether the node failed before, and is therefore checked longer."""
    since_ns = now_ns - round(policy.lemons.days * DAY_NS)
    is_lemon = cluster.history.times_out(target, since_ns) >= policy.lemons.long_check
    return is_lemon or any(one.stage == "failed" for one in cluster.history.since_out(target, "restore"))


# ---- words -----------------------------------------------------------------------------------------------


def _mode(rule: str, policy: ControlPolicy) -> ControlMode:
    return "act" if policy.mode_of(rule) == "act" else "shadow"


def _sentence(
    chosen: PricedAction,
    offered: list[PricedAction],
    target: str,
    pace: str,
    horizon_h: float,
    held: str,
) -> str:
    """The prices compared, the chosen action first: `drain n17 now: 3.1 GPU-hours, 12 USD; go on at 88.0 %:
    41 GPU-hours, 164 USD in 1 d`.
    """
    others = sorted((one for one in offered if one.action != chosen.action), key=lambda one: one.price.usd)
    watch = [one for one in others if one.action == "watch"]
    shown = [chosen, *watch, *(one for one in others if one.action != "watch")][:SHOWN_MAX]
    parts = [_told(one, target, pace, horizon_h) for one in shown]
    return "; ".join([*parts, *([f"nothing is done: {held}"] if held else ())])


def _told(one: PricedAction, target: str, pace: str, horizon_h: float) -> str:
    what = said(one.action, target)
    hours = f"{wording.rough(round(one.price.gpu_hours, 1))} GPU-hours, {wording.usd(round(one.price.usd))}"
    if one.action == "watch":
        return f"{what} at {pace}: {hours} in {wording.lasting(horizon_h * 3_600)}"
    return f"{what}: {hours}" + (f" (not now: {one.not_now})" if one.not_now else "")


def _evidence(case: Case) -> tuple[str, ...]:
    told = [
        f"{one.name}: {one.cause.title}, {wording.percent(one.confidence)} sure"
        for one in sorted(case.incidents, key=lambda one: -one.confidence)
    ]
    seen = [one.text for one in case.gravest.evidence if one.weight > 0]
    return tuple([*told, *seen][:EVIDENCE_SHOWN_MAX])
