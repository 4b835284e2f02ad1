"""Some members of a group, as a group of their own.

A generation has one group of all its members. The ranks of one replica, and the rail of those that have the
same part of the model, are views of it, so that nothing else has to be connected or aborted.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from holdfast.train.group import Group, Sending, Transfer, Work

TAG = 1 << 24
"""The tag of tokens with which members confirm to each other that they have what came before."""


class Subgroup:
    """The members `ranks` of a group, numbered from 0 in that order, including this one."""

    def __init__(self, group: Group, ranks: Sequence[int]) -> None:
        self._group = group
        self._ranks = tuple(ranks)
        self.rank = self._ranks.index(group.rank)
        self.size = len(self._ranks)

    @property
    def is_ordered(self) -> bool:
        return self._group.is_ordered

    def along(self) -> AbstractContextManager[None]:
        return self._group.along()

    def exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int, *, is_kept: bool = True
    ) -> Work:
        return self._group.exchange(
            [(tensor, self._ranks[peer]) for tensor, peer in sends],
            [(tensor, self._ranks[peer]) for tensor, peer in receives],
            tag,
            is_kept=is_kept,
        )

    def settle(self) -> None:
        self._group.settle()

    def confirm(self, peers: Sequence[int] | None = None) -> None:
        chosen = range(self.size) if peers is None else peers
        if self._group.is_ordered:
            self._group.confirm([self._ranks[peer] for peer in chosen])
            return
        # Data that a member has sent may still be on its way, and be lost if another generation begins.
        others = [peer for peer in chosen if peer != self.rank]
        token = torch.zeros(1, dtype=torch.uint8)
        tokens = torch.zeros(self.size, dtype=torch.uint8)
        came = [(tokens[peer : peer + 1], peer) for peer in others]
        self.exchange([(token, peer) for peer in others], came, TAG, is_kept=False).wait()

    def sending(self) -> tuple[Sending, ...]:
        return self._group.sending()

    def abort(self) -> None:
        self._group.abort()

    def close(self) -> None:
        """Do nothing: the owner of the group closes it as a whole."""
