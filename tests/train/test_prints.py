"""Prints: every flipped bit shows, and places count."""

import random

import pytest
import torch

from holdfast.run.wire import PlannedFault
from holdfast.train.corruption import flip
from holdfast.train.prints import LARGE_BYTES, number_of, parts_of, print_of
from holdfast.train.protected import memory_as_it_lies

CPU = torch.device("cpu")
LARGE = LARGE_BYTES // 4 + 37


def printed(*tensors: torch.Tensor) -> int:
    return int(print_of(tensors, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.float16])
@pytest.mark.parametrize("count", [1, 5, LARGE])
def test_any_single_bit_shows(dtype: torch.dtype, count: int) -> None:
    tensors = [torch.ones(3), torch.arange(count).to(dtype), torch.ones(2, dtype=torch.bfloat16)]
    before = printed(*tensors)
    raw = memory_as_it_lies(tensors[1])
    generator = random.Random(count)
    for place in {0, raw.numel() * 8 - 1, *(generator.randrange(raw.numel() * 8) for _ in range(30))}:
        byte, bit = divmod(place, 8)
        raw[byte] ^= 1 << bit
        assert printed(*tensors) != before
        raw[byte] ^= 1 << bit
    assert printed(*tensors) == before


def test_places_count() -> None:
    first, second = torch.zeros(LARGE), torch.zeros(LARGE)
    first[0], second[2000] = 1.0, 1.0
    assert printed(first) != printed(second)
    assert printed(first, second) != printed(second, first)


def test_memory_that_begins_inside_a_word_is_printed_like_any_other() -> None:
    memory = torch.arange(LARGE + 1, dtype=torch.float32)
    assert printed(memory[1:]) == printed(memory[1:].clone())
    beside = torch.ones(3)
    assert printed(beside, memory[1:], beside) == printed(beside, memory[1:].clone(), beside)


def test_other_layouts_are_read_as_they_lie() -> None:
    last = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert printed(last) == printed(last.clone(memory_format=torch.preserve_format))


@pytest.mark.parametrize("number", [0, 1, -1, 2**63 - 1, -(2**63), 123456789012345678])
def test_a_print_travels_in_numbers_that_a_float_holds(number: int) -> None:
    parts = parts_of(torch.tensor(number)).to(torch.float32)
    assert number_of(parts.tolist()) == number % 2**64


def test_no_print_is_told_from_any_print() -> None:
    assert number_of([0.0, 0.0, 0.0, 0.0]) is None
    assert number_of(parts_of(torch.tensor(0)).tolist()) == 0


@pytest.mark.parametrize("bits", [1, 3, 64])
def test_a_fault_flips_as_many_bits_as_it_says_and_always_the_same(bits: int) -> None:
    fault = PlannedFault(id=5, step=1, moment="lane", rank=0, fault="corrupt", bits=bits)
    clean, struck, again = torch.ones(999), torch.ones(999), torch.ones(999)
    flip(struck, fault)
    flip(again, fault)
    changed = memory_as_it_lies(clean) ^ memory_as_it_lies(struck)
    assert sum(byte.bit_count() for byte in changed.tolist()) == bits
    assert memory_as_it_lies(struck).equal(memory_as_it_lies(again))
