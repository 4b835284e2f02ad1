"""`assess`: from readings and the record to incidents, each with its cause, evidence and price."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from statistics import median_low
from types import MappingProxyType

import msgspec

from holdfast import wording
from holdfast.detect.detecting import detect, hosts_by_sign
from holdfast.detect.finding import Finding
from holdfast.detect.scene import Healthy, PlannedWork, Scene, scene
from holdfast.detect.xids import NO_OVERRIDES, Overrides
from holdfast.diagnose.incident import Alternative, Cause, Incident, Price
from holdfast.diagnose.mechanisms import Mechanism
from holdfast.diagnose.own import own_signs
from holdfast.diagnose.run_findings import FELT, LATE, STALLS, STOPPED, SYMPTOMS, RunFindings
from holdfast.diagnose.weighing import TOGETHER_NS, UNKNOWN, Hypothesis, hypotheses, lost_because, unknown
from holdfast.economics.pricing.prices import DEFAULTS, Priced, Prices
from holdfast.record.events import KnownEvent
from holdfast.signals.quality import Flaw
from holdfast.signals.source import OnceSource, Source
from holdfast.topology.graph import Topology
from holdfast.wording.units import HOUR_S, SECOND_NS

WINDOW_S = 1_800.0
INCIDENTS_MAX = 16
"""In one assessment of one run: more than this would be one problem that was not understood."""
BANS_MIN = 0.3
"""An unknown cause has odds of two to one: a less likely cause is not named."""
BANS_EARLY_MIN = 1.0
"""While the run is not slower yet, the odds must be ten to one: a warning must be worth it."""
BANS_BESIDE_MIN, BANS_SWITCH_MIN, BANS_APART_MIN = 0.15, -0.1, 0.7
"""Thresholds next to another cause that slows the run: if it began together with that one; for a switch,
whose sign half of its ports suffice to show, though that is less likely than not by itself; if it began at
another time.
"""
SWITCHES = frozenset({"leaf", "spine"})
BESIDE = frozenset({"nvlink", "pcie-width", "link-errors", "memory-errors", "gpu-fault", "cpu-contention"})
"""Causes that do not show in the members' times while they wait for something slower."""
HELD_UP = frozenset({STOPPED, "slow-step", "wandering", *STALLS})
"""Signs that the run is slower. Late members that hold up no other are not an incident by themselves."""
UNEXPLAINED_MIN = 1.05
"""Steps drift by some hundredths for no reason. An unexplained slowdown is reported from here on."""
OVER_NS = 30 * SECOND_NS
"""A problem that had ended this long before the run became slower does not slow it."""
BARE = "slow-node"
"""A member that is late for no known reason is reported only if the run waits for it."""
STAGE = "pipeline-stage"
CALIBRATION_POWER, CALIBRATION_ODDS = 1.2, 24.0
"""From odds to confidence, set by hand: of 42 answers between 0.7 and 0.95, with odds of 6, all are right."""
ALIKE_SHARES = 0.8
"""Share of the best hypothesis' share: a rival above it, a tenth of a ban less, counts as equally likely,
such as the other one of two spines. One GPU whose clock is low by chance makes that much of a difference.
"""
DRAIN = "holdfast drain"
ONLY_NODE = "without another one to go on with, start it again elsewhere, from its last checkpoint."
GROWN_CONFIDENCE = 0.3
"""Confidence that anything is wrong if steps may simply have more work than before."""
NOTHING_KNOWN: Mapping[str, Healthy] = MappingProxyType({})
CLUSTER = "cluster"
"""The run name of incidents on machines without a run."""
ALTERNATIVES_MAX = 3
FLAWS_MAX = 5
FLAW_WEIGHT, WIDE_FLAW_WEIGHT = 0.5, 0.15
"""How much confidence is lost if all series behind a verdict are flawed, and if a whole metric is."""


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one moment, by run. measured: the signs that the available metrics can show."""

    at_ns: int
    incidents: tuple[Incident, ...]
    findings: tuple[Finding, ...]
    flaws: tuple[Flaw, ...]
    measured: frozenset[str] = frozenset()


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """What to examine: the last `window_s` of these runs (if none are given, of all that the events name).

    since_ns: when a known problem began; the baseline is then taken from before that. elsewhere: also examine
    machines without any of these runs, and report them under the name `cluster`.
    """

    now_ns: int
    runs: tuple[str, ...] = ()
    window_s: float = WINDOW_S
    since_ns: int | None = None
    elsewhere: bool = False


class Circumstances(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known besides the signals.

    planned: announced work. healthy: by run, the ledger's reference; without one, the events' declaration
    counts. xids: where a site's policy differs from the published one. shown: by metric, the hosts that have
    shown it so far.
    """

    events: Sequence[KnownEvent] = ()
    planned: Sequence[PlannedWork] = ()
    healthy: Mapping[str, Healthy] = NOTHING_KNOWN
    prices: Prices = DEFAULTS
    xids: Overrides = NO_OVERRIDES
    shown: Mapping[str, Collection[str]] = MappingProxyType({})


NO_CIRCUMSTANCES = Circumstances()


def assess(
    source: Source, topology: Topology, asked: Inquiry, known: Circumstances = NO_CIRCUMSTANCES
) -> Assessment:
    """The problems of the runs in question."""
    now_ns, events, planned, prices = asked.now_ns, known.events, known.planned, known.prices
    told_of = () if asked.elsewhere else dict.fromkeys(event.run for event in events if event.run)
    names = asked.runs or tuple(told_of)
    scenes = [scene(run, events, planned, now_ns=now_ns, healthy=known.healthy.get(run)) for run in names]
    window_ns = (now_ns - round(asked.window_s * 1e9), now_ns + 1)
    detected = detect(
        OnceSource(source),
        topology,
        scenes,
        window_ns=window_ns,
        since_ns=asked.since_ns,
        xids=known.xids,
    )
    found_at = [(one, (*detected.machines, *detected.runs[one.run])) for one in scenes]
    if asked.elsewhere:
        unused = scene(CLUSTER, (), planned, now_ns=now_ns)
        found_at.append((unused, _not_of(names, detected.machines, topology)))
    incidents: list[Incident] = []
    for one, findings in found_at:
        desk = _Desk(
            topology=topology,
            scene=one,
            measured=detected.measured,
            hosts=hosts_by_sign(known.shown),
            flaws=detected.flaws,
            prices=prices,
            now_ns=now_ns,
            usual_s=detected.usual_s.get(one.run),
            from_ns=detected.from_ns,
            window_ns=window_ns,
        )
        incidents += _incidents(findings, desk)
    found = (*detected.machines, *(finding for of_run in detected.runs.values() for finding in of_run))
    return Assessment(
        at_ns=now_ns,
        incidents=tuple(incidents),
        findings=found,
        flaws=detected.flaws,
        measured=detected.measured,
    )


def _not_of(runs: Iterable[str], findings: Iterable[Finding], topology: Topology) -> tuple[Finding, ...]:
    """The findings on machines without any of these runs."""
    theirs = {name for run in runs if run in topology for name in topology.causes(run)}
    return tuple(finding for finding in findings if finding.subject not in theirs)


class _Desk(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What every incident of one run needs."""

    topology: Topology
    scene: Scene
    measured: frozenset[str]
    hosts: Mapping[str, frozenset[str]]
    flaws: Sequence[Flaw]
    prices: Prices
    now_ns: int
    usual_s: float | None
    from_ns: int
    window_ns: tuple[int, int]


def _incidents(findings: Iterable[Finding], desk: _Desk) -> list[Incident]:
    now, before = _parted(own_signs(_concerning(findings, desk.topology, desk.scene)), desk.window_ns[0])
    incidents = _told(now, desk, INCIDENTS_MAX)
    earlier = _told(before, desk, INCIDENTS_MAX - len(incidents))
    incidents += [one for one in earlier if one.verdict != "unknown"]  # the rest can no longer be explained
    # Incidents that slow the run now come first, harmless ones last.
    incidents.sort(key=lambda each: (each.ended_ns is not None, -each.slowdown))
    return [
        msgspec.structs.replace(each, name=f"{each.run}/s{number}")
        for number, each in enumerate(incidents, start=1)
    ]


def _parted(findings: Sequence[Finding], first_ns: int) -> tuple[list[Finding], list[Finding]]:
    """Findings that may explain why the run is held up now; and findings that ended before that and did not
    return, with the symptoms of their time: those have a cause of their own. Symptoms that ended before that
    count neither for its onset nor for its cost. first_ns: findings that ended before this are left out.
    """
    held = [one.since_ns for one in findings if one.sign in HELD_UP and one.until_ns is None]
    over_ns = min(held, default=0) - OVER_NS
    now = [one for one in findings if one.until_ns is None or one.until_ns >= over_ns]
    past = [one for one in findings if one.until_ns is not None and one.until_ns < over_ns]
    shown = {(one.sign, one.subject) for one in now}
    gone = {id(one) for one in past if one.sign not in FELT and (one.sign, one.subject) not in shown}
    again = [one for one in past if id(one) not in gone and one.sign not in FELT]
    if not gone:
        return [*now, *again], []
    before = [one for one in past if id(one) in gone or one.sign in FELT]
    return [*now, *again], [one for one in before if (one.until_ns or 0) >= first_ns]


def _told(left: list[Finding], desk: _Desk, most: int) -> list[Incident]:
    """The most likely cause and what it explains; then the same with the remaining findings."""
    incidents: list[Incident] = []
    while left and len(incidents) < most:
        case = RunFindings(left, desk.topology, desk.scene, desk.measured, desk.from_ns, desk.hosts)
        told = (each for each in hypotheses(case) if _does_harm(each, case, incidents))
        ranked = sorted(told, key=_rank(desk.topology))
        is_told = bool(ranked) and ranked[0].bans >= _least_bans(ranked[0], left)
        if not is_told and (beside := [each for each in ranked if _is_beside(each, incidents, case)]):
            is_told, ranked = True, [beside[0], *(each for each in ranked if each is not beside[0])]
        if not is_told:
            if not _is_held_up(left, desk):
                break
            ranked.insert(0, unknown(case))
        elif ranked[0].mechanism.name == BARE and not any(finding.sign in HELD_UP for finding in left):
            break
        explained = {(finding.sign, finding.subject) for finding in ranked[0].explains}
        mine: list[Finding] = []
        others: list[Finding] = []
        for finding in left:
            (mine if (finding.sign, finding.subject) in explained else others).append(finding)
        incidents.append(_incident(ranked, mine, case, desk))
        left = others
    return incidents


def _is_beside(each: Hypothesis, named: Sequence[Incident], case: RunFindings) -> bool:
    """Whether this is a host or broken hardware elsewhere than the cause already named for the slowdown. The
    named cause hides the cost of this one, so members are not later because of it. A strong sign of its own
    is enough; a weaker one must have begun when the run became slower.
    """
    slow = [one for one in named if one.slowdown > 1.0 and one.verdict == "cause" and one.ended_ns is None]
    if each.mechanism.name not in BESIDE or not slow or any(case.has(sign) for sign in HELD_UP):
        return False
    if any(each.subject in case.near(one.cause.subject) or _is_same_host(each, one) for one in slow):
        return False
    shown = [one.since_ns for one in each.explains if one.sign in each.mechanism.shows and not one.until_ns]
    if not any(abs(at_ns - one.began_ns) <= TOGETHER_NS for at_ns in shown for one in slow):
        return bool(shown) and each.bans >= BANS_APART_MIN
    is_switch = each.subject in case.topology and case.topology.kind(each.subject) in SWITCHES
    return each.bans >= (BANS_SWITCH_MIN if is_switch else BANS_BESIDE_MIN)


def _is_same_host(each: Hypothesis, named: Incident) -> bool:
    hosts = [name.partition("/")[0].partition(".")[0] for name in (each.subject, named.cause.subject)]
    return hosts[0] == hosts[1]


def _does_harm(each: Hypothesis, case: RunFindings, named: Sequence[Incident]) -> bool:
    """Whether any member waits for it, for mechanisms that matter only then: a mount may well be busy, and
    the last stage of a pipeline may have more work than the others.
    """
    mechanism = each.mechanism
    if mechanism.name == STAGE and not any(case.has(sign) for sign in HELD_UP):
        return False
    is_again = "mount" in mechanism.origin.kinds and any(_is_same_mount(each, case, one) for one in named)
    slower = any(case.has(sign) for sign in mechanism.slows if sign in HELD_UP)
    return slower or not (is_again or mechanism.reach == "stall")


def _is_same_mount(each: Hypothesis, case: RunFindings, named: Incident) -> bool:
    """Whether this may be the mount already named, under another name: exporters know a filer by its address,
    and perhaps only for some of its clients.
    """
    topology, other = case.topology, named.cause.subject
    if named.ended_ns is not None or other not in topology or topology.kind(other) != "mount":
        return False
    clients = set(topology.blast_radius(each.subject)) if each.subject in topology else set()
    return clients - {each.subject} <= set(topology.blast_radius(other))


def _least_bans(best: Hypothesis, left: Sequence[Finding]) -> float:
    """The evidence needed to name a cause. Members that are late in turn say nothing while steps take as long
    as ever: they always were.
    """
    is_slow = any(finding.sign in SYMPTOMS for finding in left)
    if best.mechanism.reach == "wandering":
        is_slow = any(finding.sign == "slow-step" for finding in left)
    return BANS_MIN if is_slow or best.is_grave else BANS_EARLY_MIN


def _is_held_up(left: Sequence[Finding], desk: _Desk) -> bool:
    """Whether the run is slow enough to report although the cause is unknown."""
    held = [finding for finding in left if finding.sign in HELD_UP]
    known_s = desk.scene.healthy.step_s if desk.scene.healthy else None
    is_stopped = any(finding.sign == STOPPED for finding in held)
    return is_stopped or _slowdown(held, desk.usual_s or known_s) >= UNEXPLAINED_MIN


def _rank(topology: Topology) -> Callable[[Hypothesis], tuple[float, int, str]]:
    """The likeliest first; among equals, the kind of subject that the mechanism lists first."""

    def key(each: Hypothesis) -> tuple[float, int, str]:
        kinds = each.mechanism.origin.kinds
        kind = topology.kind(each.subject) if each.subject in topology else kinds[-1]
        return -round(each.bans, 6), kinds.index(kind) if kind in kinds else len(kinds), each.subject

    return key


def _concerning(findings: Iterable[Finding], topology: Topology, one: Scene) -> list[Finding]:
    """Findings at the run and at anything it depends on; all findings if the graph does not have the run."""
    if one.run not in topology:
        return list(findings)
    beneath = {one.run, *topology.causes(one.run)}
    return [finding for finding in findings if finding.subject in beneath or finding.subject not in topology]


def _incident(
    ranked: Sequence[Hypothesis], explained: Sequence[Finding], case: RunFindings, desk: _Desk
) -> Incident:
    """explained: all that the best hypothesis accounts for, including findings that ended earlier."""
    best, one = ranked[0], desk.scene
    mechanism = best.mechanism
    began_ns = _began_ns(best, explained)
    is_over = all(finding.until_ns is not None for finding in explained)
    ended_ns = max(finding.until_ns or 0 for finding in explained) if is_over else None
    known_s = one.healthy.step_s if one.healthy else None
    slowdown = _slowdown(explained, desk.usual_s or known_s)
    knows_pace = bool(desk.usual_s) or slowdown > 1
    quality, flaws = _quality(explained, desk.flaws)
    shares = _calibrated(_shares(ranked), best, desk)
    is_doubtful = mechanism.name == UNKNOWN.name and case.may_have_grown
    # The cause may have been at work before the run felt it, and cost nothing until then.
    felt_ns = min((finding.since_ns for finding in explained if finding.sign in SYMPTOMS), default=began_ns)
    felt_ns = max(felt_ns, began_ns)  # a member is late now and then, also long before
    lasted_s = ((ended_ns or desk.now_ns) - felt_ns) / 1e9
    cause = _cause(best, desk.topology)
    return Incident(
        name="",
        run=one.run,
        verdict=mechanism.verdict,
        cause=cause,
        domain=cause.domain,
        owner=cause.owner,
        seam=mechanism.origin.seam,
        path=_path(best.subject, one.run, desk.topology),
        confidence=shares[0] * quality * (GROWN_CONFIDENCE if is_doubtful else 1.0),
        quality=quality,
        flaws=flaws,
        began_ns=began_ns,
        noticed_ns=min(finding.noticed_ns for finding in explained),
        ended_ns=ended_ns,
        what=_what(explained, one, knows_pace=knows_pace),
        slowdown=slowdown,
        affected=_affected(mechanism, explained, case),
        evidence=tuple(sorted(best.evidence, key=lambda evidence: -evidence.weight)),
        alternatives=_alternatives(ranked, shares, quality, desk.topology),
        decides=mechanism.decides,
        action=_action(best, case),
        runbook=mechanism.name,
        cost=_cost(slowdown, lasted_s, desk) if one.gpus and knows_pace else None,
        is_on_all_nodes=_nodes(best, case)[1],
        knows_pace=knows_pace,
    )


def _nodes(best: Hypothesis, case: RunFindings) -> tuple[set[str], bool]:
    """The run's nodes, and whether the cause is at all of them."""
    known, run = case.topology, case.scene.run
    if run not in known or best.subject not in known or best.subject == run:
        return set(), False
    nodes = set(known.causes(run, "node"))
    return nodes, bool(nodes) and nodes <= case.nodes_at(best.subject)


def _action(best: Hypothesis, case: RunFindings) -> str:
    """What to do; if that is to drain all nodes that the run has, that this would end it."""
    action = best.mechanism.action
    nodes, is_all = _nodes(best, case)
    if DRAIN not in action or not is_all:
        return action
    which = "It is the run's only node" if len(nodes) == 1 else "These are all nodes of the run"
    return f"{action} {which}: {ONLY_NODE}"


def _began_ns(best: Hypothesis, explained: Sequence[Finding]) -> int:
    """When the run became slower, or when the strongest evidence of the cause had begun at most subjects, if
    that was earlier: a weak sign of one subject may be older by chance.
    """
    told = max((one for one in best.evidence if one.metric), key=lambda one: one.weight, default=None)
    firsts: dict[str, int] = {}
    for one in sorted(explained, key=lambda one: -one.since_ns):
        if told is not None and one.metric == told.metric:
            firsts[one.subject] = one.since_ns
    began = [one.since_ns for one in explained if one.sign in HELD_UP]
    began += [median_low(firsts.values())] if firsts else []
    return min(began, default=min(one.since_ns for one in explained))


def _affected(mechanism: Mechanism, explained: Iterable[Finding], case: RunFindings) -> tuple[str, ...]:
    """The members that the cause makes late; all members if it holds up another one each time, or all at
    once. For a stalled run, those that stopped first, and those on nodes with broken hardware.
    """
    if mechanism.name == "hang":
        return case.stopped_first
    if mechanism.reach in ("wandering", "stall"):
        return case.members
    late = [finding for finding in explained if finding.sign in LATE]
    # The others wait for these.
    waiting = "late-exchange" if case.is_waited_for else ""
    own = [finding for finding in late if finding.sign in mechanism.slows and finding.sign != waiting]
    return tuple(dict.fromkeys(finding.subject for finding in own or late))


def _shares(ranked: Sequence[Hypothesis]) -> list[float]:
    """How likely each hypothesis is, compared with all others and with an unknown cause."""
    nameless = [each.mechanism.name == UNKNOWN.name for each in ranked]
    weights = [10.0 ** (BANS_MIN if none else each.bans) for none, each in zip(nameless, ranked, strict=True)]
    # A hundred GPUs that each explain a hundredth are not, together, a rival.
    weights = [weight if weight >= 1.0 or not place else 0.0 for place, weight in enumerate(weights)]
    total = sum(weights) + (0.0 if nameless[0] else 10.0**BANS_MIN)
    return [weight / total for weight in weights]


def _calibrated(shares: Sequence[float], best: Hypothesis, desk: _Desk) -> list[float]:
    """How often answers with these shares of the odds are right, the best one's first.

    The weighing treats pieces of evidence as independent and all causes as equally rare, which makes the best
    one's share too small. If a cause that would look the same is not measured, the share stays as it is. The
    others divide the remainder as before.
    """
    share = shares[0]
    is_part = "run" in best.mechanism.origin.kinds and best.subject != desk.scene.run
    is_told_apart = is_part or all(sign in desk.measured for sign in best.mechanism.rivals)
    is_told_apart &= max(shares[1:], default=0.0) < ALIKE_SHARES * share
    if best.mechanism.name == UNKNOWN.name or not 0 < share < 1 or not is_told_apart:
        return list(shares)
    odds = math.pow(share / (1 - share), CALIBRATION_POWER) * CALIBRATION_ODDS
    left = 1 / (1 + odds) / (1 - share)
    return [odds / (1 + odds), *(one * left for one in shares[1:])]


def _cause(hypothesis: Hypothesis, topology: Topology) -> Cause:
    mechanism, subject = hypothesis.mechanism, hypothesis.subject
    known = subject in topology
    own = topology.owner(subject) if known else ""
    return Cause(
        subject=subject,
        kind=topology.kind(subject) if known else "other",
        mechanism=mechanism.name,
        title=mechanism.title,
        domain=mechanism.origin.domain,
        owner=(mechanism.origin.owner or own) if mechanism.is_owned else "",
    )


def _path(subject: str, run: str, topology: Topology) -> tuple[str, ...]:
    if subject == run or subject not in topology or run not in topology:
        return (subject,)
    return topology.path(subject, run) or (subject,)


def _slowdown(explained: Sequence[Finding], usual_s: float | None) -> float:
    """The slowdown: longer steps, plus the time that stalls between steps add to one."""
    for finding in explained:
        if finding.sign == STOPPED:
            return max(1.0, finding.value / finding.usual)
    step = max((finding for finding in explained if finding.sign == "slow-step"), key=_effect, default=None)
    usual_s = step.usual if step is not None else usual_s
    stalls = [finding for finding in explained if finding.sign in STALLS]
    if not usual_s:
        return 1.0
    return 1.0 + (max(map(_effect, stalls), default=0.0) + (_effect(step) if step else 0.0)) / usual_s


def _effect(finding: Finding) -> float:
    return max(finding.effect_s or 0.0, 0.0)


def _quality(explained: Sequence[Finding], flaws: Sequence[Flaw]) -> tuple[float, tuple[str, ...]]:
    """The trust in the readings behind an incident: less if series that it rests on have flaws.

    Each metric counts the same: one cooling loop says as much as its hundred GPUs.
    """
    used: dict[str, set[str]] = {}
    for finding in explained:
        used.setdefault(finding.metric, set()).add(finding.subject)
    near = [flaw for flaw in flaws if flaw.subject in used.get(flaw.metric, ())]
    wide = [flaw for flaw in flaws if not flaw.subject and flaw.metric in used]
    bad: dict[str, set[str]] = {}
    for flaw in near:
        bad.setdefault(flaw.metric, set()).add(flaw.subject)
    share = sum(len(bad.get(metric, ())) / len(subjects) for metric, subjects in used.items()) / len(used)
    quality = (1.0 - FLAW_WEIGHT * share) * (1.0 - WIDE_FLAW_WEIGHT * bool(wide))
    return quality, tuple(flaw.text for flaw in (*wide, *near)[:FLAWS_MAX])


def _what(explained: Iterable[Finding], one: Scene, *, knows_pace: bool) -> str:
    """The symptoms of the run, in a clause."""
    by_sign: dict[str, list[Finding]] = {}
    for finding in explained:
        by_sign.setdefault(finding.sign, []).append(finding)
    parts = []
    for sign in SYMPTOMS:
        if found := by_sign.get(sign):
            worst, count = max(found, key=_effect), len({each.subject for each in found})
            late = "1 member is" if count == 1 else f"{count} members are"
            who = "" if worst.subject == one.run else f"{late} late, the worst: "
            value, usual = (wording.number(one, 3) for one in (worst.value, worst.usual))
            parts.append(f"{who}{worst.note} ({value} {worst.unit}, usually {usual})")
    return "; ".join(parts) or ("the run is not slower yet" if knows_pace else "no steps show its pace")


def _alternatives(
    ranked: Sequence[Hypothesis], shares: Sequence[float], trust: float, topology: Topology
) -> tuple[Alternative, ...]:
    """The best of each mechanism that lost, and the strongest reason against it. trust: in each share."""
    firsts: dict[str, tuple[Hypothesis, float]] = {}
    for each, share in zip(ranked[1:], shares[1:], strict=True):
        firsts.setdefault(each.mechanism.name, (each, share))
    return tuple(
        Alternative(
            cause=_cause(each, topology),
            confidence=share * trust,
            lost_because=lost_because(ranked[0], each),
        )
        for each, share in islice(firsts.values(), ALTERNATIVES_MAX)
    )


def _cost(slowdown: float, lasted_s: float, desk: _Desk) -> Price:
    one, prices = desk.scene, desk.prices
    if one.on_cpu:
        cost = price(slowdown, lasted_s, one.gpus, prices.of_cpu_members(one.run))
        return msgspec.structs.replace(cost, on_cpu=True)
    return price(slowdown, lasted_s, one.gpus, prices.usd_per_gpu_hour)


def price(slowdown: float, lasted_s: float, gpus: int, hourly: Priced | None) -> Price:
    """The price of a run that has taken `slowdown` times as long for everything during `lasted_s`.

    hourly: the price of one GPU-hour, if it is known.
    """
    lost_share = 1.0 - 1.0 / max(slowdown, 1.0)
    lost_s = lost_share * lasted_s
    return Price(
        lost_gpu_hours=lost_s * gpus / HOUR_S,
        usd=None if hourly is None else lost_s * gpus / HOUR_S * hourly.value,
        gpu_hours_per_hour=lost_share * gpus,
        usd_per_hour=None if hourly is None else lost_share * gpus * hourly.value,
        lost_run_s=lost_s,
        day_share_per_day=lost_share,
        assumed=hourly is not None and hourly.assumed,
    )
