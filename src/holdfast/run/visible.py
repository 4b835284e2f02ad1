"""The GPUs that a process sees; torchrun's `--virtual-local-rank`: each member has its own, as number 0."""

import subprocess
from collections.abc import Mapping, MutableMapping

VARIABLE = "CUDA_VISIBLE_DEVICES"
NVIDIA_SMI_WAIT_S = 30
VIRTUAL = "HOLDFAST_VIRTUAL_LOCAL_RANK"
UNSEATED = "unseated"
"""What `VIRTUAL` is in a process that has no seat yet, and so sees all GPUs."""


def virtual(environment: Mapping[str, str], number: int | None) -> dict[str, str]:
    """What a member has in its environment whose GPU is this one of the machine's; None: it has no seat."""
    known = {"LOCAL_RANK": "0", VIRTUAL: UNSEATED if number is None else "seated"}
    if number is None:
        return known
    seen = environment.get(VARIABLE)
    return known | {VARIABLE: str(number) if seen is None else seen.split(",")[number].strip()}


def narrow(environment: MutableMapping[str, str], slot: int, slots: int) -> None:
    """The process has a seat now. CUDA reads the variable when it starts, so nothing may have used it yet."""
    if environment.get(VIRTUAL) == UNSEATED:
        node, _, _ = environment.get("HOLDFAST_LOCAL_NODE", "0/1").partition("/")
        environment.update(virtual(environment, int(node) * slots + slot))


def too_few(environment: Mapping[str, str], members: int) -> bool:
    """Whether it is known that not every member can have a GPU of its own."""
    return VARIABLE in environment and len(environment[VARIABLE].split(",")) < members


def gpus_seen(environment: Mapping[str, str]) -> int:
    """How many there are, as far as the environment or nvidia-smi tells."""
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
