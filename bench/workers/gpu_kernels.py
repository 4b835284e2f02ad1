"""Where the cost of deterministic kernels goes: a script of `holdfast bench gpu`, run once with them and once
without.

Measures the device time of each operation in a plain loop's step, and single operations at the shapes of
that step. Attention is tried with every backend that torch has. On a machine without a GPU all times are the
CPU's.
"""

import argparse
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from gpu_model import DROPOUT, LANES, SIZES, Size, device_here, wait
from gpu_steps import plain_steps

WARM_UP_STEPS = 3
PROFILED_STEPS = 2
WARM_UP_CALLS = 3
CALLS = 15
REPEATS = 10
"""Of a single operation, in one timing: it is short."""
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
REASON_CHARS_MAX = 200

Work = Callable[[], object]


def settle(*, deterministic: bool) -> None:
    """As `protect` does it, or as torch does it by itself. Before CUDA starts, which reads the variable."""
    torch.set_num_threads(1)
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def timed_ms(work: Work, device: torch.device, calls: int) -> float:
    """The median."""
    times = []
    for _ in range(calls):
        wait(device)
        begun = time.monotonic()
        work()
        wait(device)
        times.append(time.monotonic() - begun)
    return statistics.median(times) * 1000


def profiled_ms(work: Work, device: torch.device) -> dict[str, float]:
    """How long the device was busy with each operation."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        for _ in range(PROFILED_STEPS):
            work()
        wait(device)
    total_us: Counter[str] = Counter()
    for event in profiled.key_averages():
        if event.device_type == DeviceType.CPU:  # a kernel's time is also its operation's
            busy_us = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
            total_us[event.key] += busy_us
    return {name: busy_us / PROFILED_STEPS / 1000 for name, busy_us in total_us.items() if busy_us}


def candidates(
    size: Size, device: torch.device
) -> Iterator[tuple[str, Work, AbstractContextManager[object]]]:
    """Operations of a lane, forward and backward, and what is to be set while each runs."""
    tokens = size.samples * size.context
    wide = partial(torch.randn, device=device, dtype=torch.bfloat16, requires_grad=True)
    for name, backend in BACKENDS.items():
        heads = (size.samples, size.heads, size.context, size.width // size.heads)
        query, key, value = operands = [wide(*heads) for _ in range(3)]
        attend = partial(_attend, query, key, value)
        yield f"attention, {name}", partial(_both, attend, operands), sdpa_kernel(backend)
    weight = torch.randn(size.vocabulary, size.width, device=device, requires_grad=True)
    numbers = torch.randint(size.vocabulary, (size.samples, size.context), device=device)
    yield (
        "embedding",
        partial(_both, partial(nn.functional.embedding, numbers, weight), [weight]),
        nullcontext(),
    )
    scores = torch.randn(tokens, size.vocabulary, device=device, requires_grad=True)
    entropy = partial(nn.functional.cross_entropy, scores, numbers.flatten())
    yield "cross entropy", partial(_both, entropy, [scores]), nullcontext()
    layer = [wide(tokens, size.width), wide(4 * size.width, size.width)]
    yield "matmul", partial(_both, partial(nn.functional.linear, *layer), layer), nullcontext()


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=DROPOUT)


def _both(operation: Callable[[], Tensor], operands: list[Tensor]) -> None:
    made = operation()
    torch.autograd.grad(made, operands, torch.ones_like(made))


def _repeated(work: Work) -> None:
    for _ in range(REPEATS):
        work()


def measured_ms(size: Size, device: torch.device) -> tuple[dict[str, float], dict[str, str]]:
    """The candidates' times; and of those that this device does not have, why."""
    times, refused = {}, {}
    for name, work, setting in candidates(size, device):
        with setting:
            try:
                timed_ms(work, device, WARM_UP_CALLS)
                times[name] = timed_ms(partial(_repeated, work), device, CALLS) / REPEATS
            except RuntimeError as error:
                refused[name] = str(error).partition("\n")[0][:REASON_CHARS_MAX]
    return times, refused


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=list(SIZES), default="124m")
    parser.add_argument("--deterministic", action="store_true")
    given = parser.parse_args()
    settle(deterministic=given.deterministic)
    size, device = SIZES[given.size], device_here()
    steps = plain_steps(size, device, lambda model: model)
    step = partial(next, steps)
    timed_ms(step, device, WARM_UP_STEPS)
    operations = profiled_ms(step, device)
    times, refused = measured_ms(size, device)
    seen = {"operations_ms": operations, "candidates_ms": times, "refused": refused}
    (given.folder / "kernels.json").write_text(json.dumps({**seen, "lanes": LANES}), encoding="ascii")


if __name__ == "__main__":
    main()
