"""Data of a snapshot for a GPU are registered with CUDA, stretch by stretch, if CUDA allows it."""

import mmap
import os
import re
from pathlib import Path

import pytest
import torch

from holdfast.train.device_copy import map_in, map_out
from holdfast.train.snapshot_restore import RestoreTimes, registered_stretches


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_memory_that_cuda_does_not_register_is_copied_all_the_same(allowed: int) -> None:
    """The snapshot is sound, and CUDA is not asked again."""
    asked: list[int] = []

    def ask(part: torch.Tensor) -> None:
        asked.append(int(part.storage_offset()))
        if len(asked) > allowed:
            raise RuntimeError("CUDA error: out of memory")

    registered: list[torch.Tensor] = []
    flat = torch.zeros(10, dtype=torch.uint8)
    found = list(registered_stretches(flat, ask, registered, RestoreTimes(), size_bytes=4))
    assert found == [(0, 4), (4, 8), (8, 10)]
    assert asked == [0, 4, 8][: allowed + 1]
    assert [part.storage_offset() for part in registered] == [0, 4, 8][:allowed]


def test_shared_memory_is_mapped_at_once_and_keeps_its_contents_when_that_is_undone() -> None:
    size_bytes = 64 * mmap.PAGESIZE
    descriptor = os.memfd_create("mapped")
    try:
        os.pwrite(descriptor, b"\7" * size_bytes, 0)
        flat = torch.frombuffer(mmap.mmap(descriptor, size_bytes), dtype=torch.uint8)
        assert _mapped_kb(flat) == 0
        map_in(flat)
        can_map = tuple(int(number) for number in os.uname().release.split(".")[:2]) >= (5, 14)
        assert _mapped_kb(flat) == (size_bytes // 1024 if can_map else 0)
        map_out(flat)
        assert _mapped_kb(flat) == 0
        assert set(flat.tolist()) == {7}
    finally:
        os.close(descriptor)


def _mapped_kb(memory: torch.Tensor) -> int:
    """How many of its pages are mapped, as the kernel counts them."""
    entry = Path("/proc/self/smaps").read_text().split(f"{memory.data_ptr():x}-", 1)[1]
    found = re.search(r"^Rss: +(\d+) kB", entry, re.MULTILINE)
    assert found is not None
    return int(found[1])
