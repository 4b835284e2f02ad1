"""Audits: which lanes are computed twice, and which member is wrong if two disagree. Pure, without torch.

A lane's gradient depends on seed, step and lane alone, so two members that compute it must get the same bits.
Each member derives from the seed, the step and the deal who computes which lane a second time. All members
see the same prints of the results, so all reach the same verdict.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

RATE = 0.01
"""The share of lanes that are computed twice, unless the user sets another."""
AuditKind = Literal["lane", "state", "unsteady", "undecided", "apart", "odd", "streams"]
"""lane: a member computed a lane wrongly. state: a member's state differs from the majority's. unsteady: more
than one member cannot repeat its own computation, so audits end. undecided: no majority agrees about a lane.
apart: no majority agrees about the state. odd: a lane's loss is not finite, or far from all others, and all
members computed the same. streams: data cannot be read out of turn, so audits end."""


class PlannedAudit(NamedTuple):
    """Member `auditor` also computes a lane of member `owner`. Both are ranks."""

    lane: int
    owner: int
    auditor: int


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit, the same on all members.

    culprits: the ranks that are wrong, as far as known. once: they were wrong once, and right when they
    computed the lane again. loss: of the lane, if the loss caused the audit. print: of the lane, as most
    members computed it. suspect: steps committed since states last agreed; a member whose state was wrong may
    have been wrong in them.
    """

    kind: AuditKind
    step: int
    lane: int = 0
    culprits: tuple[int, ...] = ()
    once: bool = False
    loss: str = ""
    print: str = ""
    suspect: int = 0


def planned(seed: int, step: int, rate: float, shares: Sequence[frozenset[int]]) -> tuple[PlannedAudit, ...]:
    """The audits of a step. shares: the lanes of each rank.

    All members audit in the same steps and the same number of lanes: a member that computed more would hold
    up the others. So a share `rate` of all lanes is computed twice and costs the same share of the time.
    """
    size, lanes = len(shares), sum(map(len, shares))
    if size < 2 or not rate or not all(shares):
        return ()
    generator = random.Random(f"holdfast audits:{seed}:{step}")
    wanted = rate * lanes / size
    rounds = int(wanted) + (generator.random() < wanted % 1)
    chosen = [generator.sample(sorted(share), min(rounds, len(share))) for share in shares]
    offsets = [generator.randrange(1, size) for _ in range(rounds)]
    return tuple(
        PlannedAudit(lane, owner, (owner + offset) % size)
        for owner, own in enumerate(chosen)
        for lane, offset in zip(own, offsets, strict=False)
    )


def judge(first: Mapping[int, int], again: Sequence[Sequence[int]], *, step: int, lane: int) -> AuditFinding:
    """Decide which members are wrong about a lane. first: the prints that disagree, by rank. again: the two
    prints of each rank, which computed the lane twice more; two different prints are no evidence.

    If one member cannot repeat itself, it is wrong. If several cannot, a kernel is not deterministic, and no
    member is to blame. Otherwise the majority is right.
    """
    unsteady = [rank for rank, found in enumerate(again) if len(set(found)) > 1]
    steady = {rank: found[0] for rank, found in enumerate(again) if rank not in unsteady}
    counts = Counter(steady.values())
    if len(unsteady) > 1 or (unsteady and len(counts) > 1):
        return AuditFinding(kind="unsteady", step=step, lane=lane)
    right, votes = counts.most_common(1)[0]
    if 2 * votes <= len(steady):
        return AuditFinding(kind="undecided", step=step, lane=lane, culprits=tuple(sorted(first)))
    lasting = {*unsteady, *(rank for rank, found in steady.items() if found != right)}
    once = {rank for rank, found in first.items() if found != right}
    culprits = tuple(sorted(lasting | once))
    return AuditFinding(kind="lane", step=step, lane=lane, culprits=culprits, once=not lasting)


def compare_states(prints: Sequence[int], *, step: int) -> AuditFinding | None:
    """Compare the members' states, by rank. None if all agree."""
    counts = Counter(prints)
    if len(counts) < 2:
        return None
    right, votes = counts.most_common(1)[0]
    if 2 * votes <= len(prints):
        return AuditFinding(kind="apart", step=step, culprits=tuple(range(len(prints))))
    culprits = tuple(rank for rank, found in enumerate(prints) if found != right)
    return AuditFinding(kind="state", step=step, culprits=culprits)


def detection(rate: float, lanes: int) -> float:
    """The probability that an audit covers at least one of this many wrong lanes."""
    return 1 - (1 - rate) ** lanes
