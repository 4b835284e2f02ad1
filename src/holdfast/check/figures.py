"""Figures of a node, and their references: the figures of a good node, or published ones."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from holdfast import wording
from holdfast.detect.suspects import SuspectPart, unproven
from holdfast.ledger.flops import Chip, chip_named, peak_flops_per_s
from holdfast.ledger.references import bus_limit_gb_per_s, reference_bandwidth
from holdfast.record.errors import InputError

Sense = Literal["at-least", "at-most"]

KEPT_SHARE = 0.9
"""The least share of a good node's figure: two healthy nodes differ by a few per cent."""
PRODUCT_SHARE, MEMORY_SHARE, COPY_SHARE = 0.55, 0.75, 0.7
"""The least shares of the published peaks: a healthy H200 shows 0.74, 0.87 and 0.86 of them."""
REDUCE_SHARE = 0.5
"""The least share of the published bus bandwidth: low enough to tolerate differences in a node's wiring, and
high enough to show that half of the links are gone.
"""
LIMIT_SHARE = 1.05
"""A figure above what the hardware can reach was measured wrongly; clocks and sizes allow for this much."""
SPREADS = {"fabric.latency": 2.0, "fabric.latency_p99": 5.0}
"""How many times a good node's figure is still good, for figures of which less is better: paths have more or
fewer hops, and the slowest one in a hundred differs each time.
"""
FIGURES_MAX = 10_000
MEMORY_GB_PER_S: dict[Chip, float] = {
    "a100": 2_039,
    "h100": 3_350,
    "h800": 3_350,
    "h200": 4_800,
    "b200": 8_000,
    "b300": 8_000,
    "gb200": 8_000,
    "gb300": 8_000,
    "mi300x": 5_300,
    "mi325x": 6_000,
    "mi355x": 8_000,
}
"""Memory bandwidth of the SXM and OAM modules, from NVIDIA's and AMD's data sheets."""
LINK_GB_PER_S: dict[int, float] = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Bandwidth of one PCIe lane, by generation, in one direction."""


class CheckedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """name: such as `gpu0.product`. value: None if it could not be measured; `note` then says why. reference:
    the value that it must reach, or not exceed; None if there is no reference and the figure is only shown.
    untried: the figure is not good only because it was required and cannot be measured here.
    """

    name: str
    value: float | None
    unit: str
    reference: float | None
    ok: bool
    sense: Sense = "at-least"
    note: str = ""
    untried: bool = False


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    least: float | None = None,
    most: float | None = None,
    limit: float | None = None,
    note: str = "",
) -> CheckedFigure:
    """The figure, compared with `least` or `most`, whichever is given. limit: more than this cannot be, so
    such a figure was measured wrongly, and proves nothing.
    """
    sense: Sense = "at-least" if most is None else "at-most"
    reference = least if most is None else most
    is_good = reference is None or (value >= reference if sense == "at-least" else value <= reference)
    if limit is not None and value > LIMIT_SHARE * limit:
        is_good, note = (
            False,
            f"impossible: the hardware reaches {limit:,.0f} at most, so it was measured wrongly",
        )
    return CheckedFigure(
        name=name, value=value, unit=unit, reference=reference, ok=is_good, sense=sense, note=note
    )


def unmeasured(name: str, unit: str, note: str, *, ok: bool = False) -> CheckedFigure:
    return CheckedFigure(name=name, value=None, unit=unit, reference=None, ok=ok, note=note)


def owed(found: list[CheckedFigure], part: SuspectPart) -> list[CheckedFigure]:
    """The figures, and those missing that must clear this part. One that was not measured is not good."""
    good = {one.name: one.ok and one.value is not None for one in found}
    names = unproven(part, good)
    there = {one.name for one in found}
    way = ": name a good node with --peer" if part == "fabric" else ""
    judged = [
        msgspec.structs.replace(one, ok=False, untried=True) if one.name in names and one.ok else one
        for one in found
    ]
    return judged + [
        msgspec.structs.replace(unmeasured(name, "", f"needed for {part}, not measured{way}"), untried=True)
        for name in names
        if name not in there
    ]


# ---- the figures of a good node --------------------------------------------------------------------------


def read_reference(path: Path) -> dict[str, float]:
    """Read the figures, by name. Raises `InputError`."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
        figures = msgspec.convert(told, dict[str, float])
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Make one on a node that is known to be good: `holdfast check --write-reference FILE`.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"{path} is not a reference of `holdfast check`: {error}.",
            hint='It has lines such as `"gpu0.product" = 731.0`; --write-reference makes one.',
        ) from None
    if len(figures) > FIGURES_MAX or not all(0 <= value < float("inf") for value in figures.values()):
        raise InputError(f"{path} has figures that no node shows.", hint="They are 0 or more, and finite.")
    return figures


def reference_text(found: Iterable[CheckedFigure]) -> str:
    """Write what `read_reference` reads: all figures of which more is better, and the latencies."""
    return "".join(
        f'"{one.name}" = {wording.plain(one.value, 6)}\n'
        for one in found
        if one.value is not None and (one.sense == "at-least" or one.name in SPREADS)
    )


def held_against(found: Iterable[CheckedFigure], known: Mapping[str, float]) -> list[CheckedFigure]:
    """The figures, compared with the site's own reference where it has one. A figure that the good node had
    and this one lacks is not good.
    """
    judged = [_held(one, known[one.name]) if one.name in known else one for one in found]
    missing = known.keys() - {one.name for one in judged}
    return judged + [
        unmeasured(name, "", "a good node has it, this one does not") for name in sorted(missing)
    ]


def _held(one: CheckedFigure, known: float) -> CheckedFigure:
    """Compare a figure with a good node's. A figure without a unit is a count and must be reached in full. A
    figure that could not be measured keeps its verdict: the check itself decided whether to blame the node.
    """
    if one.name in SPREADS:
        most = min(SPREADS[one.name] * known, one.reference or float("inf"))
        return msgspec.structs.replace(
            one, reference=most, ok=one.ok if one.value is None else one.value <= most
        )
    least = max(KEPT_SHARE * known if one.unit else known, one.reference or 0.0)
    return msgspec.structs.replace(
        one, reference=least, ok=one.ok if one.value is None else one.value >= least
    )


# ---- published figures -----------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """The least that a healthy part reaches, and the most that it can; None if nothing is published."""

    least: float | None = None
    limit: float | None = None


UNBOUND = Bounds()


def published_product(gpu: str) -> Bounds:
    """TFLOP/s. gpu: the name that the driver reports, here and below."""
    chip = _chip(gpu)
    if chip is None:
        return UNBOUND
    peak = peak_flops_per_s(chip, "bf16") / 1e12
    return Bounds(PRODUCT_SHARE * peak, peak)


def published_memory(gpu: str) -> Bounds:
    """GB/s of the GPU's own memory."""
    chip = _chip(gpu)
    if chip is None:
        return UNBOUND
    return Bounds(MEMORY_SHARE * MEMORY_GB_PER_S[chip], MEMORY_GB_PER_S[chip])


def published_copy(generation: int, width: int) -> Bounds:
    """GB/s between host and device, by the fastest link that both support."""
    lane = LINK_GB_PER_S.get(generation)
    return UNBOUND if lane is None else Bounds(COPY_SHARE * lane * width, lane * width)


def published_reduce(gpu: str, count: int) -> Bounds:
    """GB/s of bus bandwidth of an all-reduce among this many GPUs of a node."""
    chip = _chip(gpu)
    if chip is None:
        return UNBOUND
    row, limit = reference_bandwidth(chip, count, "all-reduce"), bus_limit_gb_per_s("all-reduce", chip)
    if row is None or row.reach != "nvlink":
        return Bounds(None, limit)
    return Bounds(REDUCE_SHARE * row.bus_gb_per_s, limit)


def _chip(gpu: str) -> Chip | None:
    try:
        return chip_named(gpu)
    except InputError:
        return None
