"""A record's failures in the form in which a simulated cluster takes its own (`simulate --rates FILE`).

The fields are those of `holdfast.twin.failures.Hazards`, which this room may not import; a test holds them
together.
"""

import re

import msgspec

from holdfast.economics.fitting import repairs
from holdfast.economics.fitting.lemons import Lemons
from holdfast.economics.fitting.outages import Observation, by_class

CLASS_OUTAGES_MIN = 5
"""A class with fewer faults is given the repair times of all."""

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
"""What a fault's name tells of the part that broke, one of those the twin knows; the first match counts."""


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
    """The record as failures that a simulated cluster can have."""

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
    """Only lemons that are no chance are worth simulating."""
    if repeats is None or repeats.factor is None or repeats.verdicts[0].answer != "yes":
        return None
    return PresetLemons(share=repeats.faults.nodes / seen.nodes, factor=repeats.factor, source=source)


def part_of(kind: str) -> str:
    """The part that a fault of this name is in, as far as the name tells."""
    return next((part for part, pattern in _PARTS if pattern.search(kind)), "unknown")
