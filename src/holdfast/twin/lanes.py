"""How long a step takes when members are missing or slow: the arithmetic of lanes."""

from collections.abc import Sequence
from fractions import Fraction

LANES_MAX = 1 << 16
"""The same as in `holdfast.train`."""


def rounds(lanes: int, members: int) -> int:
    """Lanes that the busiest of these equal members computes, one after the other."""
    return -(-lanes // members)


def idle_share(lanes: int, members: int) -> float:
    """The share of time that members wait for the busiest one: the price of a constant batch."""
    return 1 - lanes / (members * rounds(lanes, members))


def lanes_for(sequences: int, members: int) -> int:
    """As many lanes as a batch allows: more lanes make it easier to share those of a lost member evenly.

    A power of two that divides the batch, so that all lanes are alike; at least one for each member.
    """
    most = min(sequences & -sequences, LANES_MAX)
    return max(most, 1 << max(0, members - 1).bit_length())


def step_rounds(lanes: int, members: int, slow: Sequence[Fraction], *, rebalances: bool) -> Fraction:
    """The time of a step, in lanes of a healthy member. slow: the factor by which each slow member is slower.

    Lanes are dealt evenly or, if they are rebalanced, so that the last member finishes as early as possible.
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
