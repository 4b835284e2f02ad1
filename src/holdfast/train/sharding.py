"""The transport of the tensors that a replica's ranks exchange in a lane, and whether the lane is valid after
it.

A collective that breaks inside a lane does not raise: torch would be left in the middle of a pass, with its
gradients in places that torch never looks at again, and later give wrong bits. Instead it fills what it
should have received with zeros, the pass ends as usual, and the lane is discarded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from holdfast.record.errors import InputError
from holdfast.run.mesh import MeshShape
from holdfast.train.group import Group, GroupBroken, Transfer, Work

Join = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Combines two tensors."""
TAG = 1 << 21
"""The tag of what a replica's ranks exchange in a lane; different from those of the reduction and of
transfers.
"""


class Line:
    """Carries a replica's collectives, as long as a generation lasts."""

    def __init__(self) -> None:
        self._group: Group | None = None
        self._broken: GroupBroken | None = None
        self._in_lane = False
        self._in_commit = False
        self._held: list[Posted] = []

    def carry(self, group: Group | None) -> None:
        """Use this group of the replica's ranks from now on; None: there is none for now."""
        self._group, self._broken, self._held = group, None, []

    def begin(self) -> None:
        """Begin a lane, or work of the script that is done again if it breaks."""
        self._in_lane = True

    def end(self) -> GroupBroken | None:
        """End the lane or work. Returns the reason if its result cannot be used."""
        self._in_lane = False
        if self._broken is None and self._group is not None and self._group.is_ordered:
            try:
                self._group.settle()
            except GroupBroken as broken:
                self._broken = broken.with_traceback(None)
        return self._broken

    @contextmanager
    def commit(self) -> Iterator[None]:
        """A step is being committed, which every rank does by itself, and some later than others."""
        self._in_commit = True
        try:
            yield
        finally:
            self._in_commit = False

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Return when received tensors may be used, and sent ones may be released."""
        self._launch()
        self.post(sends, receives).wait()

    def post(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> "Posted":
        """Post an exchange that is waited for later. Two ranks may both send first and then receive. On a
        device one exchange comes after the other, and large sends end with their receives. So all exchanges
        that are posted before the next wait are merged into one.
        """
        posted = Posted(self, [(tensor.contiguous(), peer) for tensor, peer in sends], receives)
        self._held.append(posted)
        if self._group is None or not self._group.is_ordered:
            self._launch()
        return posted

    def finish(self, posted: "Posted") -> None:
        """Wait for it. If it breaks in a lane, the received tensors are set to zero."""
        self._launch()
        broken = self._broken
        if posted.work is not None:
            try:
                posted.work.wait()
                return
            except GroupBroken as error:
                broken = self._broken = error.with_traceback(None)
        assert broken is not None
        if not self._in_lane:
            raise GroupBroken(
                f"A collective of run.mesh broke outside lanes and run.share(), with a rank of this replica "
                f"({broken}). In lanes and in run.share() it is done again: use the model there."
            )
        for tensor, _ in posted.receives:
            tensor.zero_()

    def _launch(self) -> None:
        """Begin the held exchanges. If all are sends, they need not wait for each other."""
        held, self._held = self._held, []
        is_mixed = any(posted.receives for posted in held)
        for together in [held] if is_mixed else [[posted] for posted in held]:
            if self._broken is None:
                try:
                    work = self._begin(together)
                except GroupBroken as error:
                    self._broken = error.with_traceback(None)
                    return
                for posted in together:
                    posted.work = work

    def _begin(self, together: Sequence["Posted"]) -> Work:
        group = self._group
        if self._in_commit:
            raise InputError(
                "A collective of run.mesh was called in step.commit(), by an optimizer or by on_commit.",
                hint="A rank must be able to commit by itself: use an optimizer that works on each element, "
                "such as AdamW, and do the rest in run.share().",
            )
        if group is None:
            raise InputError(
                "A collective of run.mesh was called while the replica's ranks are not connected.",
                hint="Build the model without collectives (parallelize_module has src_data_rank=None), and "
                "use it in lanes or in run.share().",
            )
        sends = [transfer for posted in together for transfer in posted.sends]
        receives = [transfer for posted in together for transfer in posted.receives]
        with group.along():
            return group.exchange(sends, receives, TAG, is_kept=False)


class Posted:
    """An exchange under way, or about to be. Its tensors are kept until it was waited for. work: None if it
    has not begun, or could not begin.
    """

    def __init__(self, line: Line, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        self._line = line
        self.sends = sends
        self.receives = receives
        self.work: Work | None = None

    def wait(self) -> None:
        """Wait, as `Line.exchange` does."""
        self._line.finish(self)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """A member's place in a replica of several ranks. shape: the replica's. rail: its rank there."""

    shape: MeshShape
    rail: int
    line: Line = field(default_factory=Line)

    @property
    def slice(self) -> int:
        """The slice of every lane that this rank computes."""
        return self.shape.place(self.rail)["shard"]

    def share(self, flat: torch.Tensor) -> None:
        """Sum over the ranks that compute the slices of one lane, in the order of the slices."""
        ranks = self.shape.beside(self.rail, "shard")
        rows = {rank: torch.empty_like(flat) for rank in ranks if rank != self.rail}
        own = flat.clone()  # sent while the sum overwrites the original
        self.line.exchange([(own, rank) for rank in rows], [(row, rank) for rank, row in rows.items()])
        rows[self.rail] = own
        flat.copy_(combined([rows[rank] for rank in ranks]))


def combined(rows: Sequence[torch.Tensor], join: Join = torch.add) -> torch.Tensor:
    """Combine neighbours first, then their results: along the same tree as lanes."""
    values = list(rows)
    while len(values) > 1:
        pairs = [join(left, right) for left, right in zip(values[0::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]
