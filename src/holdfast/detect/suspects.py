"""The part of a bad node that is suspected, and the figures of `holdfast check` that must clear it before it
returns.

A fast disk does not clear a node that was drained for its NVLinks: each part has its own figures, and a
figure that could not be measured clears nothing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, assert_never, get_args

SuspectPart = Literal["gpu", "gpu-compute", "gpu-memory", "nvlink", "pcie", "fabric", "disk", "host", "node"]
"""node: the part is unknown."""
PARTS: tuple[SuspectPart, ...] = get_args(SuspectPart)
EACH_GPU = "gpu*."
_OF_A_GPU = re.compile(r"(gpu\d+)\..*")


def wanted(part: SuspectPart) -> tuple[str, ...]:
    """The figures that clear the part. `gpu*.` stands for each GPU, and for one at least."""
    match part:
        case "gpu":
            return ("gpu*.product", "gpu*.differing", "gpu*.wrong", "kernel.faults")
        case "gpu-compute":
            return ("gpu*.product", "gpu*.differing", "gpu*.sustained", "gpu*.clock")
        case "gpu-memory":
            return ("gpu*.wrong", "gpu*.memory", "gpu*.uncorrected", "kernel.faults")
        case "nvlink":
            return ("gpus.reduce", "gpus.reduce_wrong")
        case "pcie":
            return ("gpu*.to_device", "gpu*.to_host")
        case "fabric":
            return (
                *("fabric.out", "fabric.in", "fabric.latency", "fabric.latency_p99"),
                "fabric.retransmits",
            )
        case "disk":
            return ("disk.write", "disk.read")
        case "host":
            return ("memory.copy", "clock.error")
        case "node":
            return ("memory.copy", "disk.write")
    assert_never(part)


def unproven(part: SuspectPart, is_good: Mapping[str, bool]) -> tuple[str, ...]:
    """The required figures that are not good. is_good: by name, whether a figure was measured and is good."""
    gpus = sorted({found[1] for name in is_good if (found := _OF_A_GPU.fullmatch(name))})
    names = (name for one in wanted(part) for name in _named(one, gpus))
    return tuple(name for name in names if not is_good.get(name))


def _named(one: str, gpus: list[str]) -> Iterator[str]:
    if not one.startswith(EACH_GPU):
        yield one
        return
    yield from (f"{gpu}.{one.removeprefix(EACH_GPU)}" for gpu in gpus or ["gpu0"])
