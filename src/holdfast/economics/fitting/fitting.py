"""A cluster's failures from its own record: rates, repairs, bad nodes, and whether they are Poisson.

`fit` combines the findings of the other modules; every question gets a verdict. The result holds a `preset`,
with which a simulated cluster has the same failures.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from holdfast.economics.fitting import arrivals, coincidences, lemons, repairs
from holdfast.economics.fitting.arrivals import Arrivals
from holdfast.economics.fitting.clustering import clustering, clustering_of_each, interval
from holdfast.economics.fitting.coincidences import Coincidences
from holdfast.economics.fitting.lemons import LemonNode, Lemons
from holdfast.economics.fitting.outages import Fault, Observation, Source, by_class
from holdfast.economics.fitting.repairs import Repairs
from holdfast.economics.fitting.verdict import Interval, Verdict, unknown
from holdfast.wording.units import DAY_NS, HOURS_PER_DAY

CLASS_OUTAGES_MIN = 5
"""A class with fewer faults gets the repair times of all faults."""

_PARTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (part, re.compile(pattern, re.IGNORECASE))
    for part, pattern in (
        ("planned", r"^other/(change|test)$|maintenance|planned"),
        ("software", r"^software\b|\bsoftware\b|^SIG[A-Z]+$|^exit "),
        ("memory", r"\b(hbm\d*|dram|dimm|memory)\b"),
        ("gpu", r"\b(gpu|xid|ecc|nvlink|sram)\b"),
        ("cooling", r"\b(fan|cooling|thermal|temperature|pump)\b"),
        ("power", r"\b(power|psu)\b"),
        ("storage", r"\b(disk|ssd|nvme|storage|filesystem|mount)\b"),
        ("fabric", r"\b(nic|cable|link|switch|fabric|optics?|network|infiniband)\b"),
        ("host", r"\b(cpu|motherboard|raid|riser|bios|host|node|boot|server)\b"),
    )
)
"""The part that broke, one of those the twin knows, by the name of the fault; the first match counts."""


class PresetClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class of failures as the twin reads it (`holdfast.twin.failures.FailureClass`)."""

    name: str
    part: str
    rate_per_1000_node_days: float
    source: str
    repair_median_h: float
    repair_sigma: float


class PresetLemons(msgspec.Struct, frozen=True, kw_only=True):
    """share: of all nodes. factor: their rate over that of the others."""

    share: float
    factor: float
    source: str


class FittedPreset(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded failures in the form a simulated cluster reads (`simulate --rates FILE`).

    The fields are those of `holdfast.twin.failures.Hazards`, which this room may not import; a test keeps
    them equal.
    """

    classes: tuple[PresetClass, ...]
    lemons: PresetLemons | None


def preset(seen: Observation, repeats: Lemons | None) -> FittedPreset:
    source = f"fitted to {len(seen.faults):,} faults in {seen.node_days:,.0f} node-days"
    of_all = repairs.usual(seen.faults) or repairs.Usual(median_h=0.0, sigma=0.0)
    classes = []
    for name, faults in by_class(seen.faults):
        own = repairs.usual(faults) if len(faults) >= CLASS_OUTAGES_MIN else None
        row = PresetClass(
            name=name,
            part=part_of(name),
            rate_per_1000_node_days=1000 * len(faults) / seen.node_days,
            source=source,
            repair_median_h=(own or of_all).median_h,
            repair_sigma=(own or of_all).sigma,
        )
        classes.append(row)
    return FittedPreset(classes=tuple(classes), lemons=_lemons(seen, repeats, source))


def _lemons(seen: Observation, repeats: Lemons | None, source: str) -> PresetLemons | None:
    """The lemons to simulate; None unless they are more than chance."""
    if repeats is None or repeats.factor is None or repeats.verdicts[0].answer != "yes":
        return None
    return PresetLemons(share=repeats.faults.nodes / seen.nodes, factor=repeats.factor, source=source)


def part_of(kind: str) -> str:
    """The part that a fault of this name is in; `unknown` if the name does not say."""
    return next((part for part, pattern in _PARTS if pattern.search(kind)), "unknown")


HARDWARE = "hardware"


class FitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds.

    lemon_faults   a node with this many faults is a lemon
    flap_minutes   a node that fails again this soon after its return flaps: its faults are one episode
    burst_minutes  faults of different nodes this close together belong together
    """

    lemon_faults: int = 5
    flap_minutes: float = 60.0
    burst_minutes: float = 10.0


class ClassRate(msgspec.Struct, frozen=True, kw_only=True):
    """One class of faults. interval: that of its rate, 95 %."""

    name: str
    faults: int
    rate_per_1000_node_days: float
    interval: Interval
    outage_median_h: float | None


class FailureFit(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `holdfast plan fit --json`. Rates are per 1000 node-days, intervals hold 95 %.

    faults_independent         so many faults that come singly would tell as much; fewer than all if they come
                               in clusters, which every interval allows for
    in_service_...             over the time nodes were in service; None if outages are unknown
    hardware_...               None if no fault has a level
    lemons, lemon_nodes        nodes with enough faults for a lemon, if the verdict is that there are lemons;
                               else none
    worst_nodes                the same nodes whatever the verdict
    advice                     what to do about bad nodes; empty if the verdicts do not say
    """

    faults: int
    nodes: int
    nodes_source: Source
    node_days: float
    from_ns: int
    until_ns: int
    faults_per_1000_node_days: float
    faults_interval: Interval
    faults_independent: float
    in_service_per_1000_node_days: float | None
    hardware_per_1000_node_days: float | None
    hardware_interval: Interval | None
    hours_between_faults: float | None
    outage_mean_h: float | None
    outage_median_h: float | None
    lemons: int
    lemon_p_value: float | None
    lemon_nodes: tuple[LemonNode, ...]
    worst_nodes: tuple[LemonNode, ...]
    classes: tuple[ClassRate, ...]
    repairs: Repairs | None
    repeats: Lemons | None
    arrivals: Arrivals | None
    coincidences: Coincidences | None
    verdicts: tuple[Verdict, ...]
    advice: str
    preset: FittedPreset
    assumptions: tuple[str, ...]


def fit(
    seen: Observation, domains: Mapping[str, str], settings: FitSettings, rng: np.random.Generator
) -> FailureFit:
    """Fit everything about these faults. domains: the domain of each node, as far as known."""
    repaired = repairs.repairs(seen.faults, rng)
    repeats = lemons.lemons(seen, settings.lemon_faults, settings.flap_minutes, rng)
    came = arrivals.arrivals(seen, settings.burst_minutes, rng)
    together = coincidences.coincidences(seen, domains, settings.burst_minutes, rng)
    verdicts = _verdicts(len(seen.faults), repaired, repeats, came, together)
    hardware = [fault for fault in seen.faults if fault.level == HARDWARE]
    classes = tuple(_classes(seen))
    has_levels = any(fault.level for fault in seen.faults)
    rate = _rate(len(seen.faults), seen.node_days)
    clustered = clustering(np.array(seen.days_of(seen.faults)), seen.days)
    answers = {verdict.question: verdict.answer for verdict in verdicts}
    worst = () if repeats is None else repeats.nodes
    bad = worst if answers[lemons.LEMONS] == "yes" else ()
    return FailureFit(
        faults=len(seen.faults),
        nodes=seen.nodes,
        nodes_source=seen.source,
        node_days=seen.node_days,
        from_ns=seen.from_ns,
        until_ns=seen.until_ns,
        faults_per_1000_node_days=rate,
        faults_interval=_rates(interval(len(seen.faults), clustered), seen),
        faults_independent=len(seen.faults) / clustered,
        in_service_per_1000_node_days=_in_service(seen),
        hardware_per_1000_node_days=_rate(len(hardware), seen.node_days) if has_levels else None,
        hardware_interval=_hardware_interval(hardware, classes, seen) if has_levels else None,
        hours_between_faults=HOURS_PER_DAY * 1000 / (rate * seen.nodes) if rate else None,
        outage_mean_h=None if repaired is None else repaired.mean_h,
        outage_median_h=None if repaired is None else repaired.median_h,
        lemons=len(bad),
        lemon_p_value=None if repeats is None else repeats.faults.p_value,
        lemon_nodes=bad,
        worst_nodes=worst,
        classes=classes,
        repairs=repaired,
        repeats=repeats,
        arrivals=came,
        coincidences=together,
        verdicts=verdicts,
        advice=_advice(answers),
        preset=preset(seen, repeats),
        assumptions=seen.assumptions,
    )


def _hardware_interval(faults: Sequence[Fault], classes: Iterable[ClassRate], seen: Observation) -> Interval:
    """Interval of the rate of hardware faults per 1000 node-days: that of their class if all are of one."""
    names = [name for name, _ in by_class(faults)]
    if len(names) == 1:
        return next(one.interval for one in classes if one.name == names[0])
    times = np.array(seen.days_of(faults))
    return _rates(interval(len(faults), clustering(times, seen.days)), seen)


def _rates(counts: Interval, seen: Observation) -> Interval:
    low, high = counts
    return _rate(low, seen.node_days), _rate(high, seen.node_days)


def _rate(count: float, node_days: float) -> float:
    return 1000 * count / node_days


def _in_service(seen: Observation) -> float | None:
    # A node with several faults at a time is away only once.
    apart = lemons.episodes([fault for fault in seen.faults if fault.node], flap_minutes=0.0)
    away_ns = sum(fault.outage_ns or 0 for fault in apart)
    in_service = seen.node_days - away_ns / DAY_NS
    return _rate(len(seen.faults), in_service) if away_ns and in_service > 0 else None


def _classes(seen: Observation) -> Iterator[ClassRate]:
    found = by_class(seen.faults)
    if not found:
        return
    classes = np.repeat(np.arange(len(found)), [len(faults) for _, faults in found])
    times = np.array([day for _, faults in found for day in seen.days_of(faults)])
    clustered = clustering_of_each(times, classes, seen.days)
    for (name, faults), own in zip(found, clustered.tolist(), strict=True):
        usual = repairs.usual(faults)
        yield ClassRate(
            name=name,
            faults=len(faults),
            rate_per_1000_node_days=_rate(len(faults), seen.node_days),
            interval=_rates(interval(len(faults), own), seen),
            outage_median_h=None if usual is None else usual.median_h,
        )


def _verdicts(
    count: int,
    repaired: Repairs | None,
    repeats: Lemons | None,
    came: Arrivals | None,
    together: Coincidences | None,
) -> tuple[Verdict, ...]:
    """One for every question; unknown if a test was not possible."""
    few = f"{count:,} faults are too few, or the time too short, to tell."
    parts = (
        (repeats, lemons.QUESTIONS),
        (came, arrivals.QUESTIONS),
        (together, coincidences.QUESTIONS),
    )
    told = [
        verdict
        for part, questions in parts
        for verdict in (part.verdicts if part else [unknown(question, few) for question in questions])
    ]
    no_outages = unknown(repairs.QUESTION, "No outage has a recorded end; that takes a drain and a restore.")
    return (*told, no_outages if repaired is None else repaired.verdict)


def _advice(answers: Mapping[str, str]) -> str:
    if answers[lemons.LEMONS] != "yes":
        return ""
    if answers[lemons.PERSISTENCE] == "yes":
        return "Bad nodes stay bad: take them out of service for good, or replace what keeps failing in them."
    if answers[lemons.REPAIRS_HOLD] == "no":
        return "Bad nodes recover, but repairs do not hold: test a node longer before it goes back to work."
    return ""
