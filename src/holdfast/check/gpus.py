"""A node's GPUs: the speed of their kernels, the soundness of their memory, and their driver's counters."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast.check.child import written_by
from holdfast.check.figures import (
    UNBOUND,
    CheckedFigure,
    figure,
    published_copy,
    published_memory,
    published_product,
    published_reduce,
    unmeasured,
)
from holdfast.detect.suspects import SuspectPart
from holdfast.detect.xids import verdict
from holdfast.signals.collectors.kernel_log import KernelEvent
from holdfast.signals.collectors.nvml import PREFIX
from holdfast.signals.frame import Reading

PROBE = (sys.executable, "-m", "holdfast.train.gpu_probe")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA, GPU_CLASSES = "0x10de", ("0x0300", "0x0302")
SUSTAIN_S, SUSTAIN_SHARE, SUSTAIN_S_MAX = 8.0, 0.15, 600.0
"""How long a suspected part is tried: this share of the check's time, within these bounds."""
SUSTAINED_SHARE = 0.9
"""The share of its first seconds' pace that a GPU must keep: one that throttles falls below it."""
PARTS = {
    "product": "TFLOP/s",
    "differing": "elements",
    "memory": "GB/s",
    "wrong": "numbers",
    "to_device": "GB/s",
    "to_host": "GB/s",
}
"""The probe's figures of each GPU, with their units."""
SUSTAINED = {"sustained": "of its pace", "clock": "MHz"}
"""Its figures of a GPU that was under load for longer."""
SUSTAINING: tuple[SuspectPart | None, ...] = ("gpu", "gpu-compute")
"""The parts for which GPUs are put under load for longer."""
TOGETHER = {"reduce": "GB/s", "reduce_wrong": "sums"}
"""Its figures of all GPUs together, if there are several."""


class ProbeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the output of train/gpu_probe.py."""

    count: int | None = None
    gpu: int | None = None
    device: str = ""
    name: str = ""
    value: float | None = None
    error: str = ""
    untried: str = ""


class ProbedGpu(msgspec.Struct, kw_only=True):
    """One GPU, or all together. figures: by the probe's names. untried: why some cannot be measured here,
    which says nothing about the GPU.
    """

    device: str = ""
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    error: str = ""
    untried: str = ""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """gpus: by number. together: figures of all of them. note: why figures may be missing."""

    gpus: dict[int, ProbedGpu]
    together: ProbedGpu
    note: str = ""


def probe_for(part: SuspectPart | None, most_s: float) -> tuple[str, ...]:
    """The probe's command. It tries a suspected part for longer if the whole check may take longer."""
    seconds = min(max(SUSTAIN_S, SUSTAIN_SHARE * most_s), SUSTAIN_S_MAX)
    match part:
        case "gpu-compute" | "gpu":
            return (*PROBE, "--sustain", str(seconds))
        case "gpu-memory":
            return (*PROBE, "--patterns", str(seconds))
        case "nvlink" | "pcie" | "fabric" | "disk" | "host" | "node" | None:
            return PROBE
    assert_never(part)


def probe(until_s: float, command: Iterable[str] = PROBE) -> Probed:
    """Try all GPUs, until `until_s` of the monotonic clock at most."""
    output, note = written_by(command, until_s)
    gpus, together = _read(output)
    return Probed(gpus=gpus, together=together, note=note)


def _read(output: bytes) -> tuple[dict[int, ProbedGpu], ProbedGpu]:
    """Each GPU by its number, and all together."""
    gpus: dict[int, ProbedGpu] = {}
    together = ProbedGpu()
    for text in output.splitlines():
        try:
            line = msgspec.json.decode(text, type=ProbeLine)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # a library printed it
        if line.count is not None:
            gpus |= {number: ProbedGpu() for number in range(line.count)}
        gpu = together if line.gpu is None else gpus.get(line.gpu)
        if gpu is None:
            continue
        gpu.device, gpu.error = line.device or gpu.device, line.error or gpu.error
        gpu.untried = line.untried or gpu.untried
        if line.value is not None:
            gpu.figures[line.name] = line.value
    return gpus, together


# ---- figures ---------------------------------------------------------------------------------------------


def tried(probed: Probed, wanted: int | None, readings: Iterable[Reading] = ()) -> Iterator[CheckedFigure]:
    """The probe's figures, judged. wanted: how many GPUs must be present. readings: the driver's."""
    links = _links(readings)
    count = len(probed.gpus)
    if wanted or count:
        yield figure("gpus", count, "", least=wanted, note=probed.note)
    for number, gpu in sorted(probed.gpus.items()):
        yield from _tried(number, gpu, links.get(number), probed.note)
    if count > 1:
        yield from _tried_together(probed)


def _tried_together(probed: Probed) -> Iterator[CheckedFigure]:
    """The figures of the links between the GPUs."""
    together, count = probed.together, len(probed.gpus)
    devices = {gpu.device for gpu in probed.gpus.values()}
    bounds = published_reduce(devices.pop(), count) if len(devices) == 1 else UNBOUND
    for name, unit in TOGETHER.items():
        value = together.figures.get(name)
        if value is None and together.untried:
            yield unmeasured(f"gpus.{name}", unit, together.untried, ok=True)
        elif value is None:
            note = together.error or probed.note or "the probe did not come to it"
            yield unmeasured(f"gpus.{name}", unit, note)
        elif name == "reduce":
            yield figure(f"gpus.{name}", value, unit, least=bounds.least, limit=bounds.limit)
        else:
            yield figure(f"gpus.{name}", value, unit, most=0)


def _tried(number: int, gpu: ProbedGpu, link: tuple[int, int] | None, note: str) -> Iterator[CheckedFigure]:
    copy = UNBOUND if link is None else published_copy(*link)
    bounds = {
        "product": published_product(gpu.device),
        "memory": published_memory(gpu.device),
        "to_device": copy,
        "to_host": copy,
    }
    for name, unit in PARTS.items():
        full = f"gpu{number}.{name}"
        value = gpu.figures.get(name)
        if value is None:
            yield unmeasured(full, unit, gpu.error or note or "the probe did not come to it")
        elif name in bounds:
            yield figure(full, value, unit, least=bounds[name].least, limit=bounds[name].limit)
        else:
            told = f"of {gpu.figures['tried']:.0f} GB" if name == "wrong" and "tried" in gpu.figures else ""
            yield figure(full, value, unit, most=0, note=told)
    for name, unit in SUSTAINED.items():
        if (value := gpu.figures.get(name)) is not None:
            least = {"sustained": SUSTAINED_SHARE, "clock": None}
            yield figure(f"gpu{number}.{name}", value, unit, least=least[name])


def plugged_in(devices: Path = PCI_DEVICES) -> int:
    """The number of NVIDIA GPUs on this machine's buses, whether a driver sees them or not."""
    count = 0
    for device in devices.glob("*"):
        with suppress(OSError):
            told = [(device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class")]
            count += told[0] == NVIDIA and told[1][:6] in GPU_CLASSES
    return count


def _links(readings: Iterable[Reading]) -> dict[int, tuple[int, int]]:
    """By GPU: the generation and the width of the fastest link that it and its slot support."""
    found: dict[int, dict[str, int]] = {}
    for one in readings:
        name = one.metric.removeprefix(PREFIX)
        if name in ("PCIE_MAX_LINK_GEN", "PCIE_MAX_LINK_WIDTH") and one.value is not None:
            found.setdefault(int(one.labels["gpu"]), {})[name] = int(one.value)
    return {
        gpu: (told["PCIE_MAX_LINK_GEN"], told["PCIE_MAX_LINK_WIDTH"])
        for gpu, told in found.items()
        if len(told) > 1
    }


COUNTERS = {
    "ECC_DBE_VOL_TOTAL": ("uncorrected", "errors"),
    "ROW_REMAP_FAILURE": ("remap_failed", "rows"),
}
"""The driver's counters that must stay at 0, by the end of dcgm-exporter's name: figure and unit."""


def counted(readings: Iterable[Reading]) -> Iterator[CheckedFigure]:
    for one in readings:
        told = COUNTERS.get(one.metric.removeprefix(PREFIX))
        if told is not None and one.value is not None:
            name, unit = told
            yield figure(f"gpu{one.labels['gpu']}.{name}", one.value, unit, most=0)


def logged(events: Iterable[KernelEvent]) -> Iterator[CheckedFigure]:
    """Count the logged faults that a new process does not mend."""
    faults: dict[str, int] = {}
    for event in events:
        said = verdict(event)
        if said is not None and said.severity == "fatal" and said.action != "restart-app":
            faults[said.fault] = faults.get(said.fault, 0) + 1
    yield figure("kernel.faults", sum(faults.values()), "lines", most=0, note=_listed(faults))


def _listed(faults: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {fault}" if count > 1 else fault for fault, count in faults.items())
