"""How many lanes are enough, and what fewer cost."""

from fractions import Fraction

import pytest

from holdfast.wording.lanes import WASTE_MAX, few_lanes, loss_cost, recommended_lanes


@pytest.mark.parametrize(
    ("lanes", "replicas", "cost"),
    [
        (8, 8, Fraction(2)),  # one lane each; then two
        (32, 8, Fraction(5, 4)),  # four each; then five
        (1024, 128, Fraction(9, 8)),  # the ninth round for eight
        (8, 3, Fraction(3, 2)),  # 8/3 each at best; then four
        (2, 2, Fraction(2)),
    ],
)
def test_what_a_loss_costs(lanes: int, replicas: int, cost: Fraction) -> None:
    assert loss_cost(lanes, replicas) == cost


@pytest.mark.parametrize(("replicas", "lanes"), [(1, 1), (2, 2), (3, 4), (4, 8), (8, 32), (128, 1024)])
def test_the_fewest_that_are_enough(replicas: int, lanes: int) -> None:
    assert recommended_lanes(replicas) == lanes


@pytest.mark.parametrize("replicas", range(2, 300))
def test_eight_for_each_replica_always_are(replicas: int) -> None:
    enough = recommended_lanes(replicas)
    assert enough < 16 * replicas
    assert loss_cost(enough, replicas) <= (1 + WASTE_MAX) * Fraction(replicas, replicas - 1)
    assert few_lanes(enough, replicas) == ""


def test_the_sentence() -> None:
    assert few_lanes(8, 8) == (
        "8 lanes are few for 8 replicas: without one of them a step takes 2.00 times as long as "
        "with even shares for all; with 32 lanes, 1.25 times."
    )
    # Of a sharded model `lanes` counts slices, and so does what is recommended.
    assert few_lanes(32, 8, 4).startswith("32 lanes are few for 8 replicas")
    assert "with 128 lanes, 1.25 times" in few_lanes(32, 8, 4)
    assert few_lanes(8, 1) == few_lanes(8, 2) == few_lanes(1024, 128) == ""
