"""Where a member's script is, and the results of its collectives so far.

A collective belongs to a stretch of the script: `outside` the loops over steps, after the loop that ended at
`total` (0: before the first one), or `between` the commit of a step and the next step. Within its stretch it
has a number. Whenever members regroup, those that know a result give it to those that do not: so a result
that one member has returned to its script is the result for all of them, whichever member dies.

Results from outside the loops are kept for the whole run, because a newcomer's script goes through them
again. Results from between steps are kept until the next commit: by then every member is past them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.record.errors import InputError

KEPT_BYTES_MAX = 8 << 20
"""Limit for all results outside the loops, and for those after one step. A member that lacks both gets them
at once, and may be too busy to read. Together they are well below what the coordinator buffers for it.
"""
END = 1 << 62
"""A number beyond that of every loop."""
HANDED_BYTES = 2 << 20
"""The most that is sent in one message, or one result."""


class ScriptStretch(msgspec.Struct, frozen=True):
    """A part of the script. number: the total of the loop before it, or the step."""

    kind: Literal["outside", "between"]
    number: int

    def __str__(self) -> str:
        if self.kind == "between":
            return f"after step {self.number}"
        return f"after the loop to step {self.number}" if self.number else "before the first step"


class ScriptPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a script is. total: of the last loop it began. left: of the last loop it left.

    at: `outside` all loops, at the `head` of one (about to begin the next step), in the `lanes` of a step, or
    `between` two.
    """

    total: int = 0
    left: int = 0
    at: Literal["outside", "head", "lanes", "between"] = "outside"


class Met(msgspec.Struct, frozen=True, array_like=True):
    """The result of a collective. called: which one it was. where: the line of the script."""

    called: str
    where: str
    value: bytes


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """How many results a member has: after each loop, and after the last step. The latter is None if its
    script never reached the end of that step, because it joined later.
    """

    outside: dict[int, int] = {}
    between: int | None = None


class Minutes:
    """The minutes of one member."""

    def __init__(self) -> None:
        self.place = ScriptPlace()
        self._met: dict[ScriptStretch, list[Met]] = {}
        self._bytes = {"outside": 0, "between": 0}
        self._version = 0
        self._was_there = False

    # ---- where the script is ---------------------------------------------------------------------------

    def enter(self, total: int) -> None:
        """The script begins a loop, or comes back to its head."""
        self.place = msgspec.structs.replace(self.place, total=total, at="head")

    def begin_step(self) -> None:
        self.place = msgspec.structs.replace(self.place, at="lanes")

    def leave(self, total: int) -> None:
        """The script left this loop. Ignored if it has begun another one since."""
        if self.place.total == total:
            self.place = ScriptPlace(total=total, left=max(total, self.place.left), at="outside")

    def finish(self) -> None:
        """The script is through, and calls nothing any more."""
        self.place = ScriptPlace(total=END, left=END)

    def committed(self, version: int) -> None:
        self._begin(version, was_there=True)
        self.place = msgspec.structs.replace(self.place, at="between")

    def adopted(self, version: int) -> None:
        """The version was adopted from a peer. A member that was in its lanes continues after its commit; a
        newcomer does not.
        """
        if self.place.at == "lanes":
            self.committed(version)
        else:
            self._begin(version, was_there=False)

    def _begin(self, version: int, *, was_there: bool) -> None:
        self._met.pop(ScriptStretch("between", self._version), None)
        self._bytes["between"] = 0
        self._version, self._was_there = version, was_there

    @property
    def is_behind(self) -> bool:
        """Whether this is a newcomer's script, in a part that the others have already left."""
        return self.place.at == "outside" and self.place.total < min(self.place.left, self._version)

    @property
    def stretch(self) -> ScriptStretch | None:
        """The current stretch; None if the script is inside a step."""
        if self.place.at == "between":
            return ScriptStretch("between", self._version)
        return ScriptStretch("outside", self.place.total) if self.place.at == "outside" else None

    # ---- results -----------------------------------------------------------------------------------------

    def of(self, stretch: ScriptStretch) -> list[Met]:
        return self._met.get(stretch, [])

    def add(self, stretch: ScriptStretch, met: Sequence[Met]) -> None:
        self._met.setdefault(stretch, []).extend(met)
        self._bytes[stretch.kind] += sum(len(one.value) for one in met)
        if self._bytes[stretch.kind] > KEPT_BYTES_MAX:
            raise InputError(
                f"The results of functions of run exceed {KEPT_BYTES_MAX} bytes, {stretch}.",
                hint="They are kept for members that join later: share numbers, not data.",
            )

    @property
    def known(self) -> Known:
        outside = {
            stretch.number: len(met) for stretch, met in self._met.items() if stretch.kind == "outside"
        }
        between = len(self.of(ScriptStretch("between", self._version))) if self._was_there else None
        return Known(outside=outside, between=between)


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """Results sent to members that lack them. more: another message follows."""

    met: list[Met]
    more: bool


def parcels(met: Sequence[Met]) -> list[Handed]:
    """Split results into messages of bounded size; at least one message."""
    rows: list[list[Met]] = [[]]
    size = 0
    for one in met:
        if rows[-1] and size + len(one.value) > HANDED_BYTES:
            rows.append([])
            size = 0
        rows[-1].append(one)
        size += len(one.value)
    return [Handed(row, number < len(rows)) for number, row in enumerate(rows, start=1)]
