"""One message per incident: what is wrong in the infrastructure, its effect on the run, and the cost.

An alert is a value made from an incident; `alertmanager`, `webhook` and the terminal deliver it. However many
findings an incident explains, it is one alert; its labels name the owner.
"""

from typing import Literal

import msgspec

from holdfast import wording
from holdfast.diagnose.incident import Incident, Price
from holdfast.diagnose.wording import members, share
from holdfast.wording import lasting
from holdfast.wording.units import DAY_S

ALERT_NAME = "HoldfastIncident"
Severity = Literal["critical", "warning", "info"]
EVIDENCE_TOLD_MAX = 3
HANG = "hang"
STANDSTILL_TIMES = 10.0
"""A run that takes this many times as long stands still: a percentage would only count the minutes."""

_GRAVITY = {"info": 0, "warning": 1, "critical": 2}


class SeverityRule(msgspec.Struct, frozen=True, kw_only=True):
    """An incident has this severity at this slowdown or hourly cost, or with one of these mechanisms."""

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
        # These get worse on their own: a GPU that reports faults or corrects errors may end a member next.
        mechanisms=frozenset({"gpu-fault", "memory-errors"}),
    ),
)
"""The first rule that holds counts; without one the severity is `info`. It depends on cost alone: confidence
says how sure the cause is. A quarter more time per step is a fifth of all progress; a careful team notices a
twentieth by itself.
"""


class AlertWorth(msgspec.Struct, frozen=True, kw_only=True):
    """From where on an alert is sent: this slowdown, this hourly cost, or one of these mechanisms. What is
    below that is recorded and printed only.
    """

    slowdown_min: float = 1.01
    usd_per_hour_min: float = 1.0
    mechanisms: frozenset[str] = frozenset({"coolant-flow", "power-brake", "node-power"}).union(
        *(rule.mechanisms for rule in SEVERITIES)
    )
    """What is broken and gets worse, or takes others along, though the run may not be slower yet."""

    def holds(self, incident: Incident) -> bool:
        """An incident without a price is worth it: it may be expensive."""
        usd_per_hour = None if incident.cost is None else incident.cost.usd_per_hour
        if incident.cost is not None and incident.cost.on_cpu:
            usd_per_hour = usd_per_hour or 0.0  # its hours are known to have no price
        is_felt = incident.slowdown >= self.slowdown_min or stands(incident)
        is_costly = usd_per_hour is None or usd_per_hour >= self.usd_per_hour_min
        return is_felt or is_costly or incident.cause.mechanism in self.mechanisms


WORTH = AlertWorth()


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one incident. ends_ns: None while it lasts."""

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
    """The alert with the gravest severity so far: a value that wavers around a bound is not a new alert."""
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
            **({"run_name": incident.run_name} if incident.run_name else {}),
        },
        starts_ns=incident.began_ns,
        ends_ns=incident.ended_ns,
    )


def summary(incident: Incident) -> str:
    """The incident in one sentence, for a pager's only line."""
    slowed = f"{incident.run_label} {_is(incident)} {slowness(incident)}{_bill(incident)}"
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
    """The cost per hour while it lasts, and the total afterwards."""
    price = incident.cost
    if price is None or not price.usd or not price.usd_per_hour:
        return ""
    if incident.ended_ns is None:
        return f", {wording.usd(price.usd_per_hour)} an hour"
    return f", {wording.usd(price.usd)}"


def stands(incident: Incident) -> bool:
    """Whether the run makes no steps, or hardly any."""
    return incident.cause.mechanism == HANG or incident.slowdown >= STANDSTILL_TIMES


def slowness(incident: Incident) -> str:
    if stands(incident):
        return "at a standstill"
    if not incident.knows_pace:
        return "perhaps slower (no steps show its pace)"
    return f"{share(incident.slowdown - 1)} slower" if incident.slowdown > 1 else "not slower"


def infrastructure(incident: Incident) -> str:
    """The problem in the infrastructure, with its evidence."""
    cause = incident.cause
    told = [one.text for one in incident.evidence if one.weight > 0][:EVIDENCE_TOLD_MAX]
    seen = f" Seen: {'; '.join(told)}." if told else ""
    sure = f"{share(incident.confidence)} sure"
    if incident.verdict == "unknown":
        return f"Infrastructure: nothing found that explains it.{seen}"
    owned = f"owned by {incident.owner}" if incident.owner else "with no owner yet"
    where = f"It is {cause.subject} ({cause.kind}), {owned}; {sure}."
    return f"Infrastructure: {cause.title}. {where}{seen}"


def runtime(incident: Incident) -> str:
    """The effect on the run."""
    who = f" Late: {members(incident.affected)}." if incident.affected else ""
    so_far = " so far" if incident.ended_ns is None else ""
    lost = f", {lasting(incident.cost.lost_run_s)} of it lost{so_far}" if incident.cost else ""
    return f"Runtime: {incident.run_label} {_is(incident)} {slowness(incident)}{lost}.{who}"


def cost(incident: Incident) -> str:
    """The cost in money and in schedule: so far, or in total if the incident is over."""
    price = incident.cost
    if price is None and not incident.knows_pace:
        return "Money: not known, as no steps show whether the run is slower."
    if price is None:
        return "Money: not known, as nothing says how many GPUs the run has."
    spent = f"{price.lost_gpu_hours:,.1f} {price.counted}-hours"
    if price.usd is not None:
        spent += f" ({wording.usd(price.usd)})"
    assumed = " The price of a GPU-hour is assumed." if price.assumed and price.usd is not None else ""
    if price.on_cpu and price.usd is None:
        assumed = " No price of these hours is given."
    if incident.ended_ns is None:
        return f"Money: {spent} so far, {_going_on(price)}.{assumed}"
    return f"Money: {spent}; the run is done {lasting(price.lost_run_s)} later.{assumed}"


def _going_on(price: Price) -> str:
    hourly = f"{price.gpu_hours_per_hour:,.1f} {price.counted}-hours"
    if price.usd_per_hour is not None:
        hourly += f" ({wording.usd(price.usd_per_hour)})"
    late = lasting(price.day_share_per_day * DAY_S)
    return f"{hourly} each hour; each day it goes on, the run is done {late} later"
