"""How long a step takes when members are missing or slow: the arithmetic of lanes."""

from collections.abc import Sequence
from fractions import Fraction

LANES_MAX = 1 << 16
"""As `holdfast.train` has it."""


def rounds(lanes: int, members: int) -> int:
    """Lanes that the busiest of so many equal members computes, one after the other."""
    return -(-lanes // members)


def idle_share(lanes: int, members: int) -> float:
    """Of the members' time, what they wait for the busiest of them: the price of a batch that stays."""
    return 1 - lanes / (members * rounds(lanes, members))


def lanes_for(sequences: int, members: int) -> int:
    """As many lanes as a batch allows: the more a member has, the evener a lost one's are shared out.

    A power of two that divides the batch, so that all lanes are alike; one for each member at least.
    """
    most = min(sequences & -sequences, LANES_MAX)
    return max(most, 1 << max(0, members - 1).bit_length())


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
