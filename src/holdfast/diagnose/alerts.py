"""One message an incident: what is wrong beneath, what the run feels of it, and what that costs.

An alert is a value made from an incident; how it reaches people is for `alertmanager`, `webhook` and the
terminal. However many findings an incident explains, it is one alert; its labels say whose it is.
"""

from typing import Literal

import msgspec

from holdfast.diagnose.incident import Incident, Price
from holdfast.diagnose.wording import members, money, share
from holdfast.wording import lasting
from holdfast.wording.units import DAY_S

ALERT_NAME = "HoldfastIncident"
Severity = Literal["critical", "warning", "info"]
EVIDENCE_TOLD_MAX = 3
HANG = "hang"
STANDSTILL_TIMES = 10.0
"""A run that takes so many times as long stands still: a percentage would only count the minutes of it."""

_GRAVITY = {"info": 0, "warning": 1, "critical": 2}


class SeverityRule(msgspec.Struct, frozen=True, kw_only=True):
    """An incident has this severity if the run is slowed by this factor, or it costs this much an hour, or
    harms in one of these ways.
    """

    severity: Severity
    slowdown_min: float
    usd_per_hour_min: float
    mechanisms: frozenset[str] = frozenset()


SEVERITIES: tuple[SeverityRule, ...] = (
    SeverityRule(severity="critical", slowdown_min=1.25, usd_per_hour_min=1_000.0),
    SeverityRule(
        severity="warning",
        slowdown_min=1.05,
        usd_per_hour_min=100.0,
        # These get worse by themselves: a GPU that reports faults or corrects errors may end a member next.
        mechanisms=frozenset({"gpu-fault", "memory-errors"}),
    ),
)
"""The first that holds counts; none: `info`. It is by cost alone: how sure the cause is says the confidence.
A quarter more time per step is a fifth of all progress; a twentieth is what a careful team notices by itself.
"""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one incident. ends_ns: None while it goes on."""

    incident: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_ns: int
    ends_ns: int | None


def severity(incident: Incident) -> Severity:
    usd_per_hour = (incident.cost and incident.cost.usd_per_hour) or 0.0
    for rule in SEVERITIES:
        if (
            incident.slowdown >= rule.slowdown_min
            or usd_per_hour >= rule.usd_per_hour_min
            or incident.cause.mechanism in rule.mechanisms
        ):
            return rule.severity
    return "info"


def is_graver(incident: Incident, other: Incident) -> bool:
    return _GRAVITY[severity(incident)] > _GRAVITY[severity(other)]


def no_milder(one: Alert, before: Alert | None) -> Alert:
    """With the gravest severity that it has had: what wavers around a bound is not a new alert each time."""
    if before is None or _GRAVITY[before.labels["severity"]] <= _GRAVITY[one.labels["severity"]]:
        return one
    labels = {**one.labels, "severity": before.labels["severity"]}
    return msgspec.structs.replace(one, labels=labels)


def alert(incident: Incident) -> Alert:
    """The message about an incident as it is now."""
    cause = incident.cause
    return Alert(
        incident=incident.name,
        labels={
            "alertname": ALERT_NAME,
            "incident": incident.name,
            "run": incident.run,
            "cause": cause.subject,
            "mechanism": cause.mechanism,
            "domain": incident.domain,
            "owner": incident.owner,
            "seam": incident.seam,
            "severity": severity(incident),
        },
        annotations={
            "summary": summary(incident),
            "description": "\n".join((infrastructure(incident), runtime(incident), cost(incident))),
            "cost": cost(incident),
            "action": incident.action,
            "runbook": f"holdfast runbook {incident.name}",
        },
        starts_ns=incident.began_ns,
        ends_ns=incident.ended_ns,
    )


def summary(incident: Incident) -> str:
    """The whole of it in one sentence, for a pager's only line."""
    slowed = f"{incident.run} {_is(incident)} {slowness(incident)}{_bill(incident)}"
    owner = incident.owner or "no owner yet"
    match incident.verdict:
        case "unknown":
            return f"{slowed}: nothing that was looked at explains it"
        case "not-hardware":
            return f"{slowed}: {incident.cause.title} ({owner}); nothing is wrong beneath it"
        case "cause":
            return f"{slowed}: {incident.cause.title} ({incident.cause.subject}, {owner})"


def _is(incident: Incident) -> str:
    return "is" if incident.ended_ns is None else "was"


def _bill(incident: Incident) -> str:
    """By the hour while it goes on, and all of it afterwards."""
    price = incident.cost
    if price is None or price.usd is None or price.usd_per_hour is None:
        return ""
    return f", {money(price.usd_per_hour)} an hour" if incident.ended_ns is None else f", {money(price.usd)}"


def stands(incident: Incident) -> bool:
    """Whether the run makes no steps, or hardly any."""
    return incident.cause.mechanism == HANG or incident.slowdown >= STANDSTILL_TIMES


def slowness(incident: Incident) -> str:
    if stands(incident):
        return "at a standstill"
    return f"{share(incident.slowdown - 1)} slower" if incident.slowdown > 1 else "not slower"


def infrastructure(incident: Incident) -> str:
    """What is wrong beneath, and what says so."""
    cause = incident.cause
    told = [one.text for one in incident.evidence if one.weight > 0][:EVIDENCE_TOLD_MAX]
    seen = f" Seen: {'; '.join(told)}." if told else ""
    sure = f"{share(incident.confidence)} sure"
    if incident.verdict == "unknown":
        return f"Infrastructure: nothing found that explains it.{seen}"
    where = f"It is {cause.subject} ({cause.kind}), owned by {incident.owner or 'nobody yet'}; {sure}."
    return f"Infrastructure: {cause.title}. {where}{seen}"


def runtime(incident: Incident) -> str:
    """What the run feels of it."""
    who = f" Late: {members(incident.affected)}." if incident.affected else ""
    so_far = " so far" if incident.ended_ns is None else ""
    lost = f", {lasting(incident.cost.lost_run_s)} of it lost{so_far}" if incident.cost else ""
    return f"Runtime: {incident.run} {_is(incident)} {slowness(incident)}{lost}.{who}"


def cost(incident: Incident) -> str:
    """What it costs in money and in schedule; of what is over, what it has cost."""
    price = incident.cost
    if price is None:
        return "Money: not known, as nothing says how many GPUs the run has."
    spent = f"{price.lost_gpu_hours:,.1f} GPU-hours"
    if price.usd is not None:
        spent += f" ({money(price.usd)})"
    assumed = " The price of a GPU-hour is assumed." if price.assumed and price.usd is not None else ""
    if incident.ended_ns is None:
        return f"Money: {spent} so far, {_going_on(price)}.{assumed}"
    return f"Money: {spent}; the run is done {lasting(price.lost_run_s)} later.{assumed}"


def _going_on(price: Price) -> str:
    hourly = f"{price.gpu_hours_per_hour:,.1f} GPU-hours"
    if price.usd_per_hour is not None:
        hourly += f" ({money(price.usd_per_hour)})"
    late = lasting(price.day_share_per_day * DAY_S)
    return f"{hourly} each hour; each day it goes on, the run is done {late} later"
