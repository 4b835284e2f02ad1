"""How many lanes a run should have: if a replica is lost, the others compute its lanes, in whole lanes."""

from fractions import Fraction

WASTE_MAX = Fraction(1, 8)
"""The most that whole lanes may add to a step after a loss. Eight lanes per replica never add more."""


def loss_cost(lanes: int, replicas: int) -> Fraction:
    """A step's time after the loss of one of several replicas, over its time if lanes could be dealt evenly
    among all of them.
    """
    return Fraction(-(-lanes // (replicas - 1)) * replicas, lanes)


def recommended_lanes(replicas: int) -> int:
    """The fewest lanes, a power of two, with which a loss costs little more than the lost replica."""
    lanes = 1 << (replicas - 1).bit_length()
    while not _is_enough(lanes, replicas):
        lanes *= 2
    return lanes


def few_lanes(lanes: int, replicas: int, slices: int = 1, *, what: str = "lanes") -> str:
    """A sentence if there are too few lanes, else nothing. slices: of a replica's lane; `lanes` counts those.
    what: their name, such as the micro-batches of a pipeline.
    """
    groups = lanes // slices
    if groups < replicas or _is_enough(groups, replicas):
        return ""
    enough = recommended_lanes(replicas)
    return (
        f"{lanes:,} {what} are few for {replicas:,} replicas: without one of them a step takes "
        f"{float(loss_cost(groups, replicas)):.2f} times as long as with even shares for all; "
        f"with {enough * slices:,} {what}, {float(loss_cost(enough, replicas)):.2f} times."
    )


def _is_enough(lanes: int, replicas: int) -> bool:
    if replicas < 2:
        return True
    return loss_cost(lanes, replicas) <= (1 + WASTE_MAX) * Fraction(replicas, replicas - 1)
