"""The same bits: whoever computes which lanes, weights, optimizer state and every loss are the same."""

from typing import Any

import pytest

BUILDS = ["plain", "batch_norm", "tied_and_unused", "accumulating", "double_and_scaled", "half"]


@pytest.mark.parametrize("build", BUILDS)
def test_any_number_of_members_gives_the_same_bits(cluster: Any, build: str) -> None:
    alone = cluster.train(build)
    assert alone.ending.outcome == "completed", alone.said
    assert len(alone.losses) == 12
    for members in (2, 3, 4):
        together = cluster.train(build, members=members)
        assert together.ending.outcome == "completed", together.said
        assert together.losses == alone.losses
        assert together.digest == alone.digest


def test_a_training_that_differs_gives_other_bits(cluster: Any) -> None:
    """Or else the digests above prove nothing."""
    results = {
        cluster.train("plain", steps=steps, lanes=lanes).digest for steps, lanes in [(4, 8), (5, 8), (4, 16)]
    }
    assert len(results) == 3
