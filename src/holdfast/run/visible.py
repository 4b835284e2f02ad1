"""The GPUs that a process sees, and torchrun's `--virtual-local-rank`: each member sees its own GPU as 0."""

import subprocess
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from holdfast.record.events import CPU, GPU

VARIABLE = "CUDA_VISIBLE_DEVICES"
NVIDIA_SMI_WAIT_S = 30
DEVICES = Path("/dev")
GPU_FILES = ("nvidia*", "kfd", "dxg", "accel*")
"""What drivers make there: NVIDIA's, AMD's, that of Linux on Windows, and those of other accelerators."""
VIRTUAL = "HOLDFAST_VIRTUAL_LOCAL_RANK"
UNSEATED = "unseated"
"""The value of `VIRTUAL` in a process that has no seat yet and so sees all GPUs."""


def virtual(environment: Mapping[str, str], number: int | None) -> dict[str, str]:
    """The environment of a member that uses this GPU of the machine; None if it has no seat yet."""
    known = {"LOCAL_RANK": "0", VIRTUAL: UNSEATED if number is None else "seated"}
    if number is None:
        return known
    seen = environment.get(VARIABLE)
    return known | {VARIABLE: str(number) if seen is None else seen.split(",")[number].strip()}


def narrow(environment: MutableMapping[str, str], slot: int, slots: int) -> None:
    """Restrict a process that now has a seat to its GPU. CUDA reads the variable once, so call this before
    CUDA is used.
    """
    if environment.get(VIRTUAL) == UNSEATED:
        node, _, _ = environment.get("HOLDFAST_LOCAL_NODE", "0/1").partition("/")
        environment.update(virtual(environment, int(node) * slots + slot))


def too_few(environment: Mapping[str, str], members: int) -> bool:
    """Whether the environment shows that there are fewer GPUs than members."""
    return VARIABLE in environment and len(environment[VARIABLE].split(",")) < members


def device_seen(environment: Mapping[str, str], devices: Path = DEVICES) -> str:
    """What members here can compute on: `cpu` if there is no GPU or the environment hides all, else `gpu`."""
    has_any = any(True for name in GPU_FILES for _ in devices.glob(name))
    is_hidden = VARIABLE in environment and not gpus_seen(environment)
    return GPU if has_any and not is_hidden else CPU


def gpus_seen(environment: Mapping[str, str]) -> int:
    """The number of visible GPUs, from the environment or nvidia-smi; 0 if unknown."""
    visible = environment.get(VARIABLE)
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
