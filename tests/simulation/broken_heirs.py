"""Deliberately broken rules of succession: the simulation must notice each of them."""

import msgspec

from holdfast.run.succession import Candidacy, Elector, Reign, Vote
from tests.simulation.heirs import Rules


class ShowsAtOnce(Reign):
    """An entry becomes visible at once, without a quorum."""

    def _settle(self) -> None:
        self.committed = self.position


class CountsOneHeir(Reign):
    """One heir is enough, however many electors there are."""

    def _settle(self) -> None:
        others = [position for machine, position in self._acked.items() if machine != self.machine]
        self.committed = max(self.committed, *others, 0) if others else self.position


class VotesForTheIgnorant(Elector):
    """It votes for every candidate, even one that lacks entries."""

    def vote(self, candidacy: Candidacy, now_ns: int) -> Vote:
        return super().vote(msgspec.structs.replace(candidacy, known=self.memory.known), now_ns)


class VotesTwice(Elector):
    """It grants a vote that it has already promised to another."""

    def vote(self, candidacy: Candidacy, now_ns: int) -> Vote:
        memory = self.memory
        vote = super().vote(candidacy, now_ns)
        self.memory = memory
        return vote


BROKEN: tuple[tuple[Rules, tuple[str, ...]], ...] = (
    (Rules(reign=ShowsAtOnce), ("which was seen as", "commits step")),
    (Rules(reign=CountsOneHeir), ("which was seen as", "commits step")),
    (Rules(elector=VotesForTheIgnorant), ("which was seen as", "commits step")),
    (Rules(elector=VotesTwice), ("has two coordinators", "which was seen as")),
)
"""Each broken rule and the words of the first failure that it causes."""
