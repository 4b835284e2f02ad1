"""Published figures to compare a run with: MFU by model size, GPU count and chip; bus bandwidth by chip.

The rows and their sources are in references.json beside this module. A row is a published result, not a
target for every cluster; if its source does not say how attention was counted, the row says "unknown".
Distance is in octaves (log 2): half as many GPUs are as far away as twice as many.
"""

from functools import cache
from importlib.resources import files
from math import hypot, log2
from typing import Literal, Self

import msgspec

from holdfast import wording
from holdfast.ledger.flops import (
    Attention,
    Chip,
    Precision,
    Shape,
    link_bytes_per_s,
    peak_flops_per_s,
    precisions,
)
from holdfast.record.events import Collective
from holdfast.wording.units import SECOND_NS

Reach = Literal["nvlink", "network"]
"""Whether all the GPUs of a collective share one NVLink domain, or the network carries a part of it."""

Basis = Literal["measured", "expected", "floor"]
"""measured: a benchmark's result. expected: the source's expectation. floor: any healthy node exceeds it."""

FAR_RATIO = 1.5
"""A row whose model size or GPU count differs by more than this factor is called different."""

NEAR_OCTAVES = 1.0
"""A published run up to half or double the size counts as being of that size."""

_NVLINK_DOMAIN_GPUS: dict[Chip | None, int] = {"gb200": 72, "gb300": 72}
_NVLINK_DOMAIN_GPUS_USUAL = 8


class PublicationSource(msgspec.Struct, frozen=True, kw_only=True):
    """The publication of a figure, and where to look in it."""

    title: str
    where: str
    url: str = ""
    note: str = ""

    def cite(self) -> str:
        return f"{self.title}, {self.where}"


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model known by name. The last three: what it was trained with, if known."""

    shape: Shape
    source: str
    sequence_tokens: int | None = None
    global_batch: int | None = None
    precision: Precision | None = None


class MfuReference(msgspec.Struct, frozen=True, kw_only=True):
    """One published MFU.

    active_params   only for a mixture of experts
    recomputes_all  whether the run computed every layer twice, which costs a quarter of its time
    source          key of `Published.sources`
    """

    model: str
    params: int
    chip: Chip
    gpus: int
    precision: Precision
    mfu_percent: float
    attention: Attention | Literal["unknown"]
    source: str
    active_params: int | None = None
    sequence_tokens: int | None = None
    recomputes_all: bool = False
    note: str = ""

    @property
    def moe(self) -> bool:
        return self.active_params is not None

    @property
    def compared_as(self) -> Attention:
        """The convention to count the run in; if the source names none, that of PaLM, which defined MFU."""
        return "full" if self.attention == "unknown" else self.attention

    def octaves_from(self, *, params: int | None, gpus: int | None) -> float:
        """Distance in model size and GPU count; None does not count."""
        return hypot(_octaves(params, self.params), _octaves(gpus, self.gpus))


class BandwidthReference(msgspec.Struct, frozen=True, kw_only=True):
    """One published bus bandwidth (GB = 10**9 bytes). gpus, size_bytes: None if the source names none."""

    chip: Chip
    reach: Reach
    collective: Collective
    bus_gb_per_s: float
    basis: Basis
    source: str
    gpus: int | None = None
    size_bytes: int | None = None
    how: str = ""

    def octaves_from(self, *, gpus: int | None) -> float:
        """Distance in GPU count; 0 if either is unknown."""
        return _octaves(gpus, self.gpus)


class PublishedReferences(msgspec.Struct, frozen=True, kw_only=True):
    sources: dict[str, PublicationSource]
    models: dict[str, KnownModel]
    mfu: tuple[MfuReference, ...]
    bandwidth: tuple[BandwidthReference, ...]

    def chosen(self, chip: Chip | None, params: int | None, gpus: int | None) -> Self:
        """The rows of this chip, the nearest to the given figures first. Models only if nothing is given."""
        mfu = [row for row in self.mfu if chip in (None, row.chip)]
        bandwidth = [row for row in self.bandwidth if chip in (None, row.chip)]
        mfu.sort(key=lambda row: (row.chip, row.precision, row.params, row.gpus))
        if params or gpus:
            mfu.sort(key=lambda row: row.octaves_from(params=params, gpus=gpus))
            bandwidth.sort(key=lambda row: row.octaves_from(gpus=gpus))
        models = {} if chip or params or gpus else self.models
        return msgspec.structs.replace(self, models=models, mfu=tuple(mfu), bandwidth=tuple(bandwidth))

    def first(self, limit: int | None) -> Self:
        """The first `limit` rows of each table, with the sources they name, in the order of the rows."""
        mfu, bandwidth = self.mfu[:limit], self.bandwidth[:limit]
        named = [row.source for row in mfu] + [row.source for row in bandwidth]
        named += [model.source for model in self.models.values()]
        sources = {name: self.sources[name] for name in named}
        return msgspec.structs.replace(self, mfu=mfu, bandwidth=bandwidth, sources=sources)


class ReferenceSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The run to find a reference for. moe: whether its model is a mixture of experts."""

    params: int
    gpus: int
    chip: Chip
    precision: Precision = "bf16"
    moe: bool = False
    sequence_tokens: float | None = None


class PublishedRate(msgspec.Struct, frozen=True, kw_only=True):
    """Published MFU near a run's size, on its chip.

    reference  the row with the median MFU; for an even number of rows the lower of the two
    runs       the number of rows, which range from low_percent to high_percent
    """

    reference: MfuReference
    runs: int
    low_percent: float
    high_percent: float


@cache
def published() -> PublishedReferences:
    """The table, read once."""
    return msgspec.json.decode(
        files(__package__).joinpath("references.json").read_bytes(), type=PublishedReferences
    )


def reference_mfu(setup: ReferenceSetup) -> MfuReference | None:
    """The published row nearest to the run; `differences` lists how the two differ.

    None if none is of its precision: a share of another precision's peak is another scale. So is that of a
    mixture of experts; the same work on a chip with a similar peak is not.
    """
    if setup.precision not in _published_precisions():
        return None

    def distance(row: MfuReference) -> tuple[float, float]:
        octaves = row.octaves_from(params=setup.params, gpus=setup.gpus)
        return octaves, _octaves(row.sequence_tokens, setup.sequence_tokens)

    return min(_alike(setup), key=distance)


def published_rate(setup: ReferenceSetup) -> PublishedRate:
    """The median of the published figures for such a run, rather than the best.

    If none is of the run's precision, the rows are those of the next slower one of its chip. Rows within
    NEAR_OCTAVES count, where an octave of GPUs or of sequence length counts half; if there are none, those
    about as near as the nearest. Runs that compute every layer twice count only if there are no others.
    """
    setup = msgspec.structs.replace(setup, precision=_slower_published(setup))
    alike = _alike(setup)
    rows = [row for row in alike if not row.recomputes_all] or alike

    def distance(row: MfuReference) -> float:
        return hypot(
            _octaves(setup.params, row.params),
            _octaves(setup.gpus, row.gpus) / 2,
            _octaves(setup.sequence_tokens, row.sequence_tokens) / 2,
        )

    nearest = min(map(distance, rows))
    reach_octaves = max(NEAR_OCTAVES, nearest + NEAR_OCTAVES / 2)
    near = sorted((row for row in rows if distance(row) <= reach_octaves), key=lambda row: row.mfu_percent)
    return PublishedRate(
        reference=near[(len(near) - 1) // 2],
        runs=len(near),
        low_percent=near[0].mfu_percent,
        high_percent=near[-1].mfu_percent,
    )


def _alike(setup: ReferenceSetup) -> list[MfuReference]:
    """Rows of the same precision, and of the same kind of model and chip or the most similar ones."""
    peak = peak_flops_per_s(setup.chip, setup.precision)

    def unlike(row: MfuReference) -> tuple[bool, bool, float]:
        chip_octaves = _octaves(peak_flops_per_s(row.chip, row.precision), peak)
        return row.moe != setup.moe, row.chip != setup.chip, chip_octaves

    rows = [row for row in published().mfu if row.precision == setup.precision]
    least = min(map(unlike, rows))
    return [row for row in rows if unlike(row) == least]


def _published_precisions() -> set[Precision]:
    return {row.precision for row in published().mfu}


def _slower_published(setup: ReferenceSetup) -> Precision:
    """The run's precision if a run with it is published, else the quickest one below it that has one."""

    def peak(precision: Precision) -> float:
        return peak_flops_per_s(setup.chip, precision)

    known = _published_precisions().intersection(precisions(setup.chip))
    return max((one for one in known if peak(one) <= peak(setup.precision)), key=peak)


def unpublished(precision: Precision) -> str:
    """Why a run has no reference."""
    return f"no run in {precision} is published to compare it with"


def reach(chip: Chip | None, gpus: int) -> Reach:
    """How far a collective of this many GPUs reaches, in machines of the usual design."""
    return "nvlink" if gpus <= nvlink_domain_gpus(chip) else "network"


def nvlink_domain_gpus(chip: Chip | None, gpus_per_node: int = _NVLINK_DOMAIN_GPUS_USUAL) -> int:
    """How many GPUs NVLink joins: those of a rack if the chip comes in NVLink racks, else those of a node."""
    return _NVLINK_DOMAIN_GPUS.get(chip, gpus_per_node)


def reference_bandwidth(chip: Chip, gpus: int, collective: Collective) -> BandwidthReference | None:
    """The nearest published bandwidth for such a collective; None if none is known for chip and reach."""
    wanted = (chip, reach(chip, gpus), collective)
    rows = [
        row
        for row in published().bandwidth
        if (row.chip, row.reach, row.collective) == wanted and row.basis != "floor"
    ]
    return min(rows, key=lambda row: row.octaves_from(gpus=gpus), default=None)


def differences(setup: ReferenceSetup, row: MfuReference) -> tuple[str, ...]:
    """How the row differs from the run, in words; empty if it is near."""
    found = [
        f"the {row.chip.upper()} in place of the {setup.chip.upper()}" if row.chip != setup.chip else "",
        f"{row.precision} in place of {setup.precision}" if row.precision != setup.precision else "",
        ("a mixture of experts" if row.moe else "a dense model") if row.moe != setup.moe else "",
        _times(row.params / setup.params, "the parameters"),
        _times(row.gpus / setup.gpus, "the GPUs"),
    ]
    return tuple(difference for difference in found if difference)


def mfu_sentence(mfu_percent: float, row: MfuReference) -> str:
    """The run's MFU beside the row's, for the user."""
    where = f"{row.model}, {row.gpus:,} {row.chip.upper()}; {published().sources[row.source].cite()}"
    return f"{mfu_percent:.1f} % where {row.mfu_percent:.1f} % is the reference ({where})"


def above_published(mfu_percent: float, precision: Precision) -> str:
    """What to add about an MFU above every published one of its precision; empty about any other."""
    best = max((row.mfu_percent for row in published().mfu if row.precision == precision), default=None)
    if best is None or mfu_percent <= best:
        return ""
    return f", above every published one in {precision} ({best:.1f} %): check precision, chip and FLOPs"


def bandwidth_sentence(bus_gb_per_s: float, row: BandwidthReference) -> str:
    """The run's bus bandwidth beside the row's, for the user."""
    gpus = f"{row.gpus:,} {row.chip.upper()}" if row.gpus else row.chip.upper()
    where = f"{row.collective}, {gpus}; {published().sources[row.source].cite()}"
    return f"{bus_gb_per_s:.1f} GB/s where {row.bus_gb_per_s:.1f} GB/s is the reference ({where})"


def bus_limit_gb_per_s(collective: Collective, chip: Chip) -> float:
    """The most that the chip's links allow. Switches that reduce (NVLink SHARP) save an all-reduce half of
    what its GPUs would send.
    """
    return link_bytes_per_s(chip) / 1e9 * (2 if collective == "all-reduce" else 1)


def beyond_links(collective: Collective, bus_gb_per_s: float, chip: Chip) -> str:
    """Why the chip cannot have this bus bandwidth; empty if it can."""
    link, most = link_bytes_per_s(chip) / 1e9, bus_limit_gb_per_s(collective, chip)
    if bus_gb_per_s <= most:
        return ""
    return (
        f"A bus bandwidth of {bus_gb_per_s:,.1f} GB/s ({collective}) is impossible: the links of one "
        f"{chip.upper()} carry {link:,.0f} GB/s each way, which allows {most:,.0f} GB/s. Correct size_bytes, "
        "ranks and duration_ns of collective.timed, or the chip of reference.declared."
    )


def _octaves(left: float | None, right: float | None) -> float:
    return abs(log2(left / right)) if left and right else 0.0


def _times(ratio: float, what: str) -> str:
    if 1 / FAR_RATIO <= ratio <= FAR_RATIO:
        return ""
    return (
        f"{wording.number(ratio, 3)} times {what}"
        if ratio > 1
        else f"1/{wording.number(1 / ratio, 3)} of {what}"
    )


def bus_bytes_per_s(collective: Collective, size_bytes: int, ranks: int, duration_ns: int) -> float | None:
    """Bus bandwidth, comparable for any number of ranks; None if no bytes crossed, or no time passed.

    The factors are those of NVIDIA nccl-tests (doc/PERFORMANCE.md): the bytes that must cross each rank's
    link over the bytes of the buffer. If switches reduce on the way (NVLink SHARP), the figure can exceed the
    speed of the wire, so compare it only with figures measured the same way.

    size_bytes is counted as nccl-tests prints it, the larger of a rank's two buffers: the output of an
    all-gather, the input of a reduce-scatter, and for the others the buffer itself.
    """
    if ranks < 2 or size_bytes <= 0 or duration_ns <= 0:
        return None
    return size_bytes * _bus_factor(collective, ranks) * SECOND_NS / duration_ns


def _bus_factor(collective: Collective, ranks: int) -> float:
    match collective:
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "all-gather" | "reduce-scatter" | "all-to-all":
            return (ranks - 1) / ranks
        case "broadcast":
            return 1.0
