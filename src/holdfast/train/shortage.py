"""Which lanes of a step no member computes: none, unless replicas are missing and the script allows it.

With `protect(on_shortage="smaller batch")`, the remaining replicas compute no more than they did before, and
the rest is skipped. Every member derives the set by itself, from what all of them have sent each other. The
set is recorded with the step, and a replay gets the recorded one.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from holdfast.record.errors import InputError
from holdfast.run.wire import SkippedLanes
from holdfast.train import tree

OnShortage = Literal["same bits", "smaller batch"]


class AgreedSkips(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The lanes skipped in a step that a member may have committed. generation: the one whose members agreed
    on it. They knew of no commit, so agreements of earlier generations no longer count.
    """

    generation: int
    lanes: tuple[int, ...]


class Shortage:
    """Which lanes are skipped. lanes: as in `protect`; slices: how many of these a replica computes as one
    lane.
    """

    def __init__(
        self, on_shortage: OnShortage, recorded: Sequence[SkippedLanes] = (), *, lanes: int, slices: int = 1
    ) -> None:
        """recorded: the lanes that another run has skipped, in the order of steps."""
        self.is_smaller = on_shortage == "smaller batch"
        self._lanes = lanes // slices
        self._firsts = [one.first for one in recorded]
        self._recorded = [(one.last, _cut(one, lanes, slices)) for one in recorded]

    def recorded(self, step: int) -> frozenset[int]:
        """The lanes skipped in this step because another run skipped them."""
        number = bisect_right(self._firsts, step) - 1
        if number < 0 or self._recorded[number][0] < step:
            return frozenset()
        return self._recorded[number][1]

    def of(
        self, step: int, replicas: int, most: int, held: Collection[int] = (), dealt: Collection[int] = ()
    ) -> frozenset[int]:
        """The lanes that this many replicas skip in a step. most: the largest number of replicas so far.
        held: the lanes that are already computed. dealt: those that a member is computing.
        """
        found = self.recorded(step)
        if not self.is_smaller or replicas >= most:
            return found
        room = replicas * -(-self._lanes // most)
        return found | tree.without(self._lanes, room + len(found), {*held, *found}, dealt)


def _cut(skipped: SkippedLanes, lanes: int, slices: int) -> frozenset[int]:
    """The same in lanes of a replica."""
    step, leaves = skipped.first, set(skipped.lanes)
    if not leaves <= set(range(1, lanes)):
        raise InputError(
            f"Step {step} of the run to be repeated skipped lane {max(leaves)}; protect() was given "
            f"lanes={lanes}.",
            hint="Repeat it with the same number of lanes.",
        )
    found = frozenset(leaf // slices for leaf in leaves)
    if len(found) * slices != len(leaves):
        raise InputError(
            f"Step {step} of the run to be repeated skipped lanes that {slices} ranks would compute together "
            "with others.",
            hint="Repeat it with the same --shard, or with fewer ranks along it.",
        )
    return found
