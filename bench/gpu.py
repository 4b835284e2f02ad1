"""`holdfast bench gpu`: members on NCCL that survive each other, the same bits throughout, and the cost.

Members share one GPU. Each poses as a host of its own, so they exchange through NCCL's sockets on the
loopback address: their behaviour is real, but their speed says nothing about a cluster. Two comparisons
count: one member against a plain loop over the same slices of the batch, and a recovery against torchrun's on
the same GPU.
"""

import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import msgspec

from bench.gpu_parts import PARTS, TOGETHER, Part, Result
from bench.gpu_recovery import Recoveries, Restarts
from bench.gpu_result import GpuBench, summary, table
from bench.gpu_runs import MEMBERS_MAX, WARM_UP_STEPS, Plan, measuring_options, memory_backed, teller
from bench.kills import Failed
from holdfast.cli.record import json_option
from holdfast.record.errors import InputError

PROBE_S_MAX = 120.0
PROBE = """
import torch
print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "")
"""
EXIT_PART_FAILED = 1


@click.command()
@click.option(
    "--steps",
    default=8,
    show_default=True,
    type=click.IntRange(min=WARM_UP_STEPS + 2),
    help="Of each run whose bits are compared.",
)
@click.option(
    "--members",
    default=2,
    show_default=True,
    type=click.IntRange(2, 4),
    help="Of the run in which one of them is killed.",
)
@click.option(
    "--kills",
    default=50,
    show_default=True,
    type=click.IntRange(min=2),
    help="Of members and nodes, in one run.",
)
@measuring_options(PARTS, repetitions=5)
@click.option("--tiny", "is_tiny", is_flag=True, hidden=True, help="A model for a machine without a GPU.")
@click.option("--members-max", default=MEMBERS_MAX, type=click.IntRange(2, MEMBERS_MAX), hidden=True)
@json_option
def command(
    steps: int,
    members: int,
    kills: int,
    repetitions: int,
    parts: tuple[str, ...],
    logs: Path | None,
    is_tiny: bool,
    members_max: int,
    as_json: bool,
) -> int:
    """Train a GPT of 124M parameters (bf16, AdamW, dropout) on NCCL, kill its members, time its steps.

    A failing part is reported, the others still run, and the exit code is 1."""
    torch, device = probe()
    if not device and not is_tiny:
        raise InputError(
            "This machine has no GPU that torch can use.",
            hint="It needs an NVIDIA GPU and torch for CUDA; `holdfast bench recovery` needs none.",
        )
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=memory_backed()) as place:
        plan = Plan(
            steps=steps,
            members=members,
            kills=kills,
            repetitions=repetitions,
            size="tiny" if is_tiny else "124m",
            storm_size="tiny" if is_tiny else "small",
            is_tiny=is_tiny,
            place=Path(place),
            tell=teller("gpu"),
            logs=logs,
            members_max=members_max,
        )
        chosen = {part: way for part, way in PARTS.items() if part in (parts or PARTS)}
        bench = measure(plan, chosen, device=device or "cpu", torch=torch)
    click.echo(msgspec.json.format(msgspec.json.encode(bench)).decode() if as_json else table(bench))
    return EXIT_PART_FAILED if bench.errors else 0


def probe() -> tuple[str, str]:
    """The version of torch and the name of the GPU. The name is empty on a machine without one."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, check=False, text=True, timeout=PROBE_S_MAX
    )
    if done.returncode:
        raise InputError("This Python cannot import torch.", hint="Install it: pip install torch.")
    version, _, device = done.stdout.strip().partition(" ")
    return version, device


def measure(plan: Plan, parts: Mapping[str, Part], *, device: str, torch: str) -> GpuBench:
    """Run the parts that may share the GPU first, at the same time; then the others, one by one."""
    results: dict[str, Result] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}

    def run(part: str) -> None:
        begun = time.monotonic()
        try:
            result = results[part] = parts[part](plan)
            if isinstance(result, Recoveries | Restarts) and result.failure:
                errors[part] = result.failure
        except Failed as failure:
            errors[part] = str(failure)
        except Exception:  # a defect in one part must not cost the others' results
            errors[part] = traceback.format_exc()
        seconds[part] = time.monotonic() - begun
        plan.tell(f"{part}: {'failed' if part in errors else 'done'} after {seconds[part]:.0f} s")
        if part in errors:
            plan.tell(errors[part])

    with ThreadPoolExecutor(len(TOGETHER)) as pool:
        list(pool.map(run, (part for part in parts if part in TOGETHER)))
    for part in parts:
        if part not in TOGETHER:
            run(part)
    return summary(results, errors, seconds, device=device, torch=torch)
