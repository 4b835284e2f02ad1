"""What goes to a GPU from a snapshot is registered with CUDA, stretch by stretch, where CUDA allows it."""

import pytest
import torch

from holdfast.train.snapshot_restore import RestoreTimes, registered_stretches


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_memory_that_cuda_does_not_register_is_copied_all_the_same(allowed: int) -> None:
    """Nothing is wrong with the snapshot, and CUDA is not asked again."""
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
