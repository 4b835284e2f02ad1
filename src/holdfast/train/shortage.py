"""Which lanes of a step nobody computes: none, unless replicas are missing and the script allows it.

`protect(on_shortage="smaller batch")` does: replicas that are left compute no more than they did before, and
what is beyond that is skipped. Every member works the set out by itself, from what all of them have told each
other; it is recorded with the step, and a replay is given what was recorded.
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
    """What is skipped in a step that somebody may have committed. generation: its members agreed on it. They
    knew of no commit, so what members of earlier generations had agreed on does not count any more.
    """

    generation: int
    lanes: tuple[int, ...]


class Shortage:
    """What is skipped. lanes: as `protect` was told; slices: into how many a replica cuts one of its own."""

    def __init__(
        self, on_shortage: OnShortage, recorded: Sequence[SkippedLanes] = (), *, lanes: int, slices: int = 1
    ) -> None:
        """recorded: what another run has skipped, in the order of steps."""
        self.is_smaller = on_shortage == "smaller batch"
        self._lanes = lanes // slices
        self._firsts = [one.first for one in recorded]
        self._recorded = [(one.last, _cut(one, lanes, slices)) for one in recorded]

    def recorded(self, step: int) -> frozenset[int]:
        """The lanes that are skipped in this step because another run did so."""
        number = bisect_right(self._firsts, step) - 1
        if number < 0 or self._recorded[number][0] < step:
            return frozenset()
        return self._recorded[number][1]

    def of(
        self, step: int, replicas: int, most: int, held: Collection[int] = (), dealt: Collection[int] = ()
    ) -> frozenset[int]:
        """The lanes that so many replicas skip in a step. most: how many there were at best. held: the lanes
        that are computed already; dealt: those that somebody is at.
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
            f"Step {step} of the run to be repeated skipped lane {max(leaves)}; protect() was told "
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
