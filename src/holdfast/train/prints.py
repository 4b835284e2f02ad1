"""Prints: 64 bits of a tensor's memory, computed on its device, cheaply enough for every step.

Words of 64 bits are added up in short rows, and the rows with odd weights. A change within one word always
shows; changes of several words hide only if they cancel exactly. This guards against accidents, not against
deception: states that are copied are verified with `protected.digest`.

A print stays on its device and is sent as whole numbers that float32 holds exactly, so that the host does not
wait for it.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch

from holdfast.train.protected import Protected, memory_as_it_lies

WORD_BYTES = 8
ROW_WORDS = 512
ROW_BYTES = ROW_WORDS * WORD_BYTES
LARGE_BYTES = 1 << 18
"""Smaller tensors are copied together, because the number of operations is what they would cost."""
MULTIPLIER = 0x5851_F42D_4C95_7F2D
"""Knuth's multiplier from MMIX."""
PARTS = 4
"""How many numbers a print is sent as, with 16 bits each; 0 stands for no print."""
PART_BITS = 16


def print_of(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The print of these tensors as a 64-bit number on their device."""
    rows: list[torch.Tensor] = []
    small: list[torch.Tensor] = []
    for tensor in tensors:
        raw = memory_as_it_lies(tensor)
        if raw.numel() >= LARGE_BYTES:
            if raw.storage_offset() % WORD_BYTES or raw.data_ptr() % WORD_BYTES:
                raw = raw.clone()  # the print must not depend on its place in memory
            whole = raw.numel() // ROW_BYTES * ROW_BYTES
            rows.append(_rows(raw[:whole]))
            raw = raw[whole:]
        if raw.numel():
            small.append(raw)
    if small:
        padding = -sum(raw.numel() for raw in small) % ROW_BYTES
        rows.append(_rows(torch.cat([*small, torch.zeros(padding, dtype=torch.uint8, device=device)])))
    return weighed(rows, device)


def _rows(raw: torch.Tensor) -> torch.Tensor:
    return raw.view(torch.int64).view(-1, ROW_WORDS).sum(dim=1)


def weighed(numbers: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Combine several numbers, in order, into one."""
    if not numbers:
        return torch.zeros((), dtype=torch.int64, device=device)
    flat = torch.cat([number.reshape(-1) for number in numbers])
    return (flat * _weights(flat.numel(), device)).sum()


@lru_cache(maxsize=64)
def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Weights that are far apart, in no progression, and odd, so that no change of one number is lost.
    Integers wrap around alike on every device.
    """
    places = torch.arange(1, count + 1, dtype=torch.int64, device=device) * MULTIPLIER
    return (places ^ (places >> 31)) * MULTIPLIER | 1


@lru_cache(maxsize=8)
def _shifts(device: torch.device) -> torch.Tensor:
    return torch.arange(0, PARTS * PART_BITS, PART_BITS, dtype=torch.int64, device=device)


def parts_of(number: torch.Tensor) -> torch.Tensor:
    """A print in the form in which it is sent."""
    return ((number >> _shifts(number.device)) & ((1 << PART_BITS) - 1)) + 1


def number_of(parts: Sequence[float]) -> int | None:
    """A print from the form in which it was sent; None if there was none."""
    if not all(parts):
        return None
    return sum((int(part) - 1) << (place * PART_BITS) for place, part in enumerate(parts))


def text_of(number: torch.Tensor) -> str:
    """A print in the form of the record."""
    return f"{number_of(parts_of(number).tolist()):016x}"


def print_of_state(state: Protected) -> torch.Tensor:
    """The print of parameters, buffers and optimizer states: the same on all members between two commits."""
    tensors: list[torch.Tensor] = [parameter for model in state.models for parameter in model.parameters()]
    tensors += [one.tensor for one in state.buffers if one.is_persistent and one.tensor is not None]
    for optimizer in state.optimizers:
        for kept in optimizer.state.values():
            tensors += [value for value in kept.values() if isinstance(value, torch.Tensor)]
    device = state.device
    total = print_of([tensor for tensor in tensors if tensor.device == device], device)
    elsewhere = [tensor.cpu() for tensor in tensors if tensor.device != device]
    return total + print_of(elsewhere, torch.device("cpu")).item() if elsewhere else total
