"""How long a step takes when members are missing or slow: the arithmetic of lanes."""

from collections.abc import Sequence
from fractions import Fraction


def rounds(lanes: int, members: int) -> int:
    """Lanes that the busiest of so many equal members computes, one after the other."""
    return -(-lanes // members)


def step_rounds(lanes: int, members: int, slow: Sequence[Fraction], *, rebalances: bool) -> Fraction:
    """The time of a step in lanes of a healthy member; slow: how much longer each slow member takes for a
    lane.

    Lanes are dealt evenly, or, if they are rebalanced, so that the last member is through as early as can be.
    """
    even = rounds(lanes, members)
    if not slow:
        return Fraction(even)
    worst = even * max(slow)
    if not rebalances:
        return worst
    healthy = members - len(slow)
    by_end = {Fraction(even + more) for more in range(int(worst) - even + 1)}
    by_end |= {factor * count for factor in set(slow) for count in range(1, int(worst / factor) + 1)}
    return min(end for end in by_end if healthy * int(end) + sum(int(end / one) for one in slow) >= lanes)
