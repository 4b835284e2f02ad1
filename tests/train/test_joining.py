"""Which GPU a member computes on."""

import pytest

from holdfast.train.joining import gpu_of


@pytest.mark.parametrize(
    ("slots", "nodes", "gpus", "expected", "is_shared"),
    [
        (8, 1, 8, [0, 1, 2, 3, 4, 5, 6, 7], False),
        (4, 2, 8, [0, 1, 2, 3, 4, 5, 6, 7], False),
        (2, 2, 8, [0, 1, 2, 3], False),
        (1, 4, 1, [0, 0, 0, 0], True),
        (4, 1, 2, [0, 1, 0, 1], True),
    ],
)
def test_members_of_one_machine_have_a_gpu_each_as_far_as_they_go(
    slots: int, nodes: int, gpus: int, expected: list[int], is_shared: bool
) -> None:
    found = [gpu_of(slot, slots, f"{node}/{nodes}", gpus) for node in range(nodes) for slot in range(slots)]
    assert found == [(number, is_shared) for number in expected]
