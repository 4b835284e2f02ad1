"""Audits: which lanes are computed twice, and who is wrong if two members do not agree. Pure, without torch.

A lane's gradient depends on seed, step and lane alone, so two members that compute it must have the same
bits. Everybody works out from the seed, the step and the deal who computes which lane a second time; and all
see the same prints of what was computed, so all of them judge alike.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

RATE = 0.01
"""The share of lanes that are computed twice, unless the user wants another."""
AuditKind = Literal["lane", "state", "unsteady", "undecided", "apart", "odd", "streams"]
"""lane: a member computed a lane wrongly. state: a member's state differs from that of most. unsteady: more
than one member cannot repeat its own computation, so audits are over. undecided: two halves disagree about a
lane. apart: about the state. odd: a lane's loss is not finite, or far from all others, and all members
computed the same. streams: data cannot be read out of turn, so audits are over."""


class PlannedAudit(NamedTuple):
    """Member `auditor` computes a lane of member `owner`, too. Both are ranks."""

    lane: int
    owner: int
    auditor: int


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit came to, as all members found it.

    culprits: the ranks that are wrong, as far as that can be told. once: they were wrong once, and right when
    they computed the lane again. loss: of the lane, where that is why it was looked into. print: of the lane,
    as most members computed it. suspect: steps that were committed since states last agreed; a member whose
    state was wrong may have been wrong in them.
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

    All members audit in the same steps, each as many lanes: one that computed more than the others would hold
    them up. So a share `rate` of all lanes is computed twice, and costs as large a share of the time.
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
    """Who is wrong about a lane. first: the prints that do not agree, by rank. again: what each rank found
    when it computed the lane again, twice: what it cannot repeat is no evidence.

    One member that cannot repeat itself is wrong; several are a kernel that is not deterministic, and nobody
    is to blame. Otherwise most members are right.
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
    """Who has another state than most, by rank. None: all have the same."""
    counts = Counter(prints)
    if len(counts) < 2:
        return None
    right, votes = counts.most_common(1)[0]
    if 2 * votes <= len(prints):
        return AuditFinding(kind="apart", step=step, culprits=tuple(range(len(prints))))
    culprits = tuple(rank for rank, found in enumerate(prints) if found != right)
    return AuditFinding(kind="state", step=step, culprits=culprits)


def detection(rate: float, lanes: int) -> float:
    """The probability that at least one of so many wrong lanes is computed twice."""
    return 1 - (1 - rate) ** lanes
