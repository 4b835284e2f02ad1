"""Tries this machine's GPUs with kernels: `python -m holdfast.train.gpu_probe [--sustain S | --patterns S]`.
The options repeat products or memory patterns for S seconds.

This is a program of its own, which `holdfast check` starts and ends, because a GPU that hangs also hangs the
process that uses it. Each GPU has a thread, so that all work at once, as in a run. Each figure is printed as
a line of JSON as soon as it is known.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from statistics import median

import torch
from torch.cuda import nccl

PRODUCT_SIZE, PRODUCT_BLOCK, PRODUCT_S = 8_192, 10, 2.0
BUSY_PRODUCTS = 200
"""A third of a second on an H200."""
SUSTAIN_ENDS_S = 2.0
"""The first and the last seconds of a long product, which are compared with each other."""
COPY_BYTES, COPY_ROUNDS = 1 << 30, 20
PATTERN_BYTES, PATTERN_S, FREE_SHARE = 1 << 30, 8.0, 0.9
HOST_BYTES, HOST_S = 256 << 20, 1.0
"""Each direction takes this long: an idle link needs a while to reach its full speed."""
REDUCE_NUMBERS, REDUCE_ROUNDS = 1 << 28, 10
"""A gigabyte per GPU: smaller sums do not show what the links can do."""
PATTERNS = (0x55555555, -0x55555556, 0, -1)
"""As signed 32-bit numbers: each bit is 0 once and 1 once, next to neighbours of both kinds."""

Told = Iterator[tuple[str, float]]

_printing = threading.Lock()


def main(words: Sequence[str] = ()) -> int:
    """Return 0 even without a GPU: the caller counts the GPUs."""
    longer = {flag: float(seconds) for flag, seconds in zip(words[::2], words[1::2], strict=True)}
    if not torch.cuda.is_available():
        return 0
    count = torch.cuda.device_count()
    _tell(count=count)
    threads = [threading.Thread(target=_probe, args=(number, longer), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if count > 1:
        _reduce_all(range(count))
    return 0


def _tell(**told: object) -> None:
    with _printing:
        print(json.dumps(told), flush=True)


def _probe(number: int, longer: dict[str, float]) -> None:
    try:
        properties = torch.cuda.get_device_properties(number)
        _tell(gpu=number, device=properties.name)
        device = torch.device("cuda", number)
        with torch.cuda.device(device), torch.no_grad():
            sustain = partial(_sustained, seconds=longer.get("--sustain", 0.0))
            patterns = partial(_patterns, seconds=longer.get("--patterns", 0.0))
            for part in (_products, sustain, _memory, patterns, _host):
                for name, value in part(device):
                    _tell(gpu=number, name=name, value=value)
                torch.cuda.empty_cache()
    except RuntimeError as error:  # errors of CUDA and of torch
        _tell(gpu=number, error=str(error).partition("\n")[0])


def _products(device: torch.device) -> Told:
    """How fast matrices are multiplied, and how many elements differ when the product is repeated."""
    left, right = _factors(device)
    result = left @ right
    first = result.clone()
    rates = _rates(left, right, result, PRODUCT_S)
    yield "product", median(rates)
    yield "differing", float((first != result).sum())


def _factors(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(1)
    shape = (PRODUCT_SIZE, PRODUCT_SIZE)
    return (
        torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16),
        torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16),
    )


def _rates(left: torch.Tensor, right: torch.Tensor, result: torch.Tensor, seconds: float) -> list[float]:
    """TFLOP/s of each block of products."""
    rates = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        took_s = _timed(lambda: [torch.matmul(left, right, out=result) for _ in range(PRODUCT_BLOCK)])
        rates.append(PRODUCT_BLOCK * 2 * PRODUCT_SIZE**3 / took_s / 1e12)
    return rates


def _sustained(device: torch.device, seconds: float) -> Told:
    """Products for this long: the final pace as a share of the first pace, and the final clock."""
    if not seconds:
        return
    left, right = _factors(device)
    result = left @ right
    first = _rates(left, right, result, SUSTAIN_ENDS_S)
    _rates(left, right, result, max(0.0, seconds - 2 * SUSTAIN_ENDS_S))
    last = _rates(left, right, result, SUSTAIN_ENDS_S)
    clock_mhz = _busy_clock(
        device, lambda: [torch.matmul(left, right, out=result) for _ in range(BUSY_PRODUCTS)]
    )
    if clock_mhz is not None:
        yield "clock", clock_mhz
    yield "sustained", median(last) / median(first)


def _busy_clock(device: torch.device, load: Callable[[], object]) -> float | None:
    """The clock of a busy GPU; None if pynvml cannot tell."""
    try:
        torch.cuda.clock_rate(device)  # the first call takes long
        load()
        return float(torch.cuda.clock_rate(device))
    except Exception:  # pynvml is missing, or raises errors of its own types
        return None
    finally:
        torch.cuda.synchronize(device)


def _memory(device: torch.device) -> Told:
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    target.copy_(source)
    took_s = _timed(lambda: [target.copy_(source) for _ in range(COPY_ROUNDS)])
    yield "memory", COPY_ROUNDS * 2 * COPY_BYTES / took_s / 1e9


def _patterns(device: torch.device, seconds: float) -> Told:
    """Write patterns to memory and read them back: how many numbers came back wrong, and of how many
    gigabytes. seconds: repeat for this long.
    """
    free, _ = torch.cuda.mem_get_info(device)
    blocks = [
        torch.empty(PATTERN_BYTES // 4, dtype=torch.int32, device=device)
        for _ in range(int(FREE_SHARE * free) // PATTERN_BYTES)
    ]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    until_s = time.monotonic() + (seconds or PATTERN_S)
    for pattern in cycle(PATTERNS) if seconds else PATTERNS:
        for block in blocks:
            block.fill_(pattern)
        for block in blocks:
            wrong += (block != pattern).sum()
        torch.cuda.synchronize(device)
        if time.monotonic() > until_s:
            break
    yield "wrong", float(wrong)
    yield "tried", len(blocks) * PATTERN_BYTES / 1e9


def _host(device: torch.device) -> Told:
    """Copies between pinned main memory and the GPU."""
    host = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True).fill_(1)
    there = torch.empty(HOST_BYTES, dtype=torch.uint8, device=device).fill_(2)
    for name, target, source in (("to_device", there, host), ("to_host", host, there)):
        copy = partial(target.copy_, source, non_blocking=True)
        until_s = time.monotonic() + HOST_S
        took_s = _timed(copy)
        while time.monotonic() < until_s:
            took_s = min(took_s, _timed(copy))
        yield name, HOST_BYTES / took_s / 1e9


def _reduce_all(numbers: Sequence[int]) -> None:
    tensors = [torch.empty(0, device=torch.device("cuda", number)) for number in numbers]
    if not nccl.is_available(tensors):  # type: ignore[no-untyped-call]
        _tell(name="reduce", untried="this torch has no NCCL")
        return
    try:
        for name, value in _reduced(numbers):
            _tell(name=name, value=value)
    except RuntimeError as error:
        _tell(name="reduce", error=str(error).partition("\n")[0])


def _reduced(numbers: Sequence[int]) -> Told:
    """All GPUs sum their tensors with NCCL: the bus bandwidth as nccl-tests counts it, and how many sums are
    wrong.
    """
    tensors = [
        torch.full((REDUCE_NUMBERS,), float(number + 1), device=torch.device("cuda", number))
        for number in numbers
    ]
    nccl.all_reduce(tensors)  # type: ignore[no-untyped-call]
    _settle(numbers)
    total = float(sum(number + 1 for number in numbers))
    wrong = sum(int((tensor != total).sum()) for tensor in tensors)
    for tensor in tensors:
        tensor.zero_()  # zeros stay zeros, however often they are summed
    _settle(numbers)
    begun_s = time.monotonic()
    for _ in range(REDUCE_ROUNDS):
        nccl.all_reduce(tensors)  # type: ignore[no-untyped-call]
    _settle(numbers)
    took_s = (time.monotonic() - begun_s) / REDUCE_ROUNDS
    yield "reduce", 2 * (1 - 1 / len(numbers)) * REDUCE_NUMBERS * tensors[0].itemsize / took_s / 1e9
    yield "reduce_wrong", float(wrong)


def _settle(numbers: Sequence[int]) -> None:
    for number in numbers:
        torch.cuda.synchronize(number)


def _timed(work: Callable[[], object]) -> float:
    """Seconds on the device."""
    begun, ended = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
    begun.record()
    work()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
