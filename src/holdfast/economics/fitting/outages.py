"""Faults in a record: each fault, how long its node was away, and how many nodes were watched.

A fault is a `fault.observed`; its node is away from then until the `restore` that follows its `drain`. The
number of nodes that could have failed, and for how long, comes from the user, from the cluster's own rates
(`cost.rate` without a run), from what the ledger says was paid for, or else from the nodes that appear.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

from holdfast import wording
from holdfast.ledger.ledger import retracted
from holdfast.record.errors import InputError
from holdfast.record.events import ActionTaken, AnyEvent, Correction, CostRate, FaultObserved, MemberJoined
from holdfast.wording.units import DAY_NS

KINDS = ("fault.observed", "action.taken", "cost.rate", "member.joined", "correction")
"""The kinds of events that `observe` reads; the others need not be fetched."""

GPUS_PER_NODE_USUAL = 8
"""As in HGX and DGX servers, to which the published failure rates refer."""

NOT_OF_THE_CLUSTER = frozenset({"recorder-dropped"})
"""Faults of the record itself, which break no node."""

Source = Literal["given", "declared", "paid", "seen"]


class Fault(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One fault. node: empty if the record does not name it.

    outage_ns  how long the node was away; if `is_open`, how long so far; None if unknown
    """

    node: str
    kind: str
    at_ns: int
    outage_ns: int | None = None
    is_open: bool = False

    @property
    def level(self) -> str:
        """`hardware` of `hardware/GPU`; empty if the kind has no level."""
        level, slash, _ = self.kind.partition("/")
        return level if slash else ""


class RunPaid(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a run and, if its ledger was read, its GPUs and losses."""

    first_ns: int
    last_ns: int
    paid_gpu_ns: int = 0
    gpus_max: int = 0
    members_lost: int = 0


class OutageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Values that the user gives, which override the record."""

    nodes: int | None = None
    days: float | None = None
    gpus_per_node: int | None = None


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Faults in order of time, the nodes that were watched, and for how long.

    node_days    of all nodes together, in service or not
    source       where the number of nodes comes from
    assumptions  each a sentence
    """

    faults: tuple[Fault, ...]
    nodes: int
    node_days: float
    from_ns: int
    until_ns: int
    source: Source
    assumptions: tuple[str, ...]

    @property
    def days(self) -> float:
        return (self.until_ns - self.from_ns) / DAY_NS

    def days_of(self, faults: Sequence[Fault]) -> list[float]:
        """When these faults began, in days since the begin."""
        return [(fault.at_ns - self.from_ns) / DAY_NS for fault in faults]


def observe(events: Iterable[AnyEvent], runs: Sequence[RunPaid], given: OutageFacts) -> Observation:
    """The faults in these events. runs: the ledgers of the runs among them.

    Raises `InputError` if the number of nodes, or the time they were watched, is unknown.
    """
    known = _current(events)
    faults = _faults(known)
    from_ns, until_ns = _window(known, runs)
    if given.days is not None:
        _check_days(faults, given.days)
        until_ns = max(until_ns, from_ns + round(given.days * DAY_NS))
    watched = _watched(_Facts(events=known, runs=runs, faults=faults, given=given), from_ns, until_ns)
    seen = {fault.node for fault in faults} - {""}
    if len(seen) > watched.nodes:
        raise InputError(
            f"{len(seen):,} nodes had faults, but the number of nodes is {watched.nodes:,}.",
            hint="Give the number of nodes with `--nodes`.",
        )
    days = given.days if given.days is not None else (until_ns - from_ns) / DAY_NS
    node_days = watched.nodes * days if watched.node_days is None else watched.node_days
    if not node_days > 0:
        raise InputError("How long the nodes were watched is unknown.", hint="Give it with `--days`.")
    return Observation(
        faults=tuple(_closed(faults, until_ns)),
        nodes=watched.nodes,
        node_days=node_days,
        from_ns=from_ns,
        until_ns=until_ns,
        source=watched.source,
        assumptions=(*watched.assumptions, *_gaps(faults, runs)),
    )


def _check_days(faults: Sequence["_Open"], days: float) -> None:
    """Refuse faults that span more days than were watched: their rate would be wrong."""
    begun_ns = [fault.at_ns for fault in faults]
    span_days = (max(begun_ns) - min(begun_ns)) / DAY_NS if begun_ns else 0.0
    if span_days > days:
        span_days = math.ceil(10 * span_days) / 10
        raise InputError(
            f"The faults span {span_days:,.1f} days, but `--days` says that "
            f"{wording.number(days)} were watched.",
            hint=f"Give at least {span_days:.1f}, or leave `--days` out.",
        )


def declares_nodes(events: Iterable[AnyEvent]) -> bool:
    """Whether the cluster's own rates give its size, so that the runs' ledgers are not needed."""
    return any(_declared_gpus(event) for event in events)


def _declared_gpus(event: AnyEvent) -> int | None:
    """How many GPUs the cluster has from this event on; None if it is not a rate of the cluster."""
    return event.gpus if isinstance(event, CostRate) and not event.run else None


def by_class(faults: Sequence[Fault]) -> list[tuple[str, list[Fault]]]:
    """The faults by their kind, the most frequent first."""
    classes: defaultdict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        classes[fault.kind].append(fault)
    return sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))


def _current(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """The events that no correction retracts, by time; a fault before the actions on it."""
    everything = sorted(events, key=lambda event: (event.occurred_ns, _rank(event), event.id))
    gone = retracted(event for event in everything if isinstance(event, Correction))
    return [event for event in everything if event.id not in gone and not isinstance(event, Correction)]


def _rank(event: AnyEvent) -> int:
    """Order at one moment: faults first, and a restore after the drain."""
    if isinstance(event, ActionTaken):
        return 2 if event.action == "restore" else 1
    return 0


class _Open(msgspec.Struct):
    """A fault whose node may still be away."""

    node: str
    kind: str
    at_ns: int
    is_drained: bool = False
    ended_ns: int | None = None


def _faults(events: Sequence[AnyEvent]) -> list[_Open]:
    node_of = {(event.run, event.subject): event.node for event in events if isinstance(event, MemberJoined)}
    faults: list[_Open] = []
    away: defaultdict[str, list[_Open]] = defaultdict(list)
    for event in events:
        node = node_of.get((event.run, event.subject)) or event.subject
        if isinstance(event, FaultObserved) and event.fault not in NOT_OF_THE_CLUSTER:
            at_ns = event.occurred_ns if event.onset_ns is None else min(event.onset_ns, event.occurred_ns)
            faults.append(_Open(node, event.fault, at_ns))
            away[node].append(faults[-1])
        elif isinstance(event, ActionTaken) and event.action == "drain":
            for fault in away[node]:
                fault.is_drained = True
        elif isinstance(event, ActionTaken) and event.action == "restore":
            away[node] = _restored(away[node], event)
    faults.sort(key=lambda fault: fault.at_ns)
    return faults


def _restored(away: list[_Open], event: ActionTaken) -> list[_Open]:
    """The faults still open after a restore. It ends the oldest fault it names, or all if it names none."""
    meant = [fault for fault in away if fault.kind == event.reason][:1] or away
    for fault in meant:
        fault.ended_ns = event.occurred_ns
    return [fault for fault in away if fault.ended_ns is None]


def _closed(faults: Iterable[_Open], until_ns: int) -> Iterable[Fault]:
    for fault in faults:
        is_open = fault.is_drained and fault.ended_ns is None
        ended_ns = until_ns if is_open else fault.ended_ns
        yield Fault(
            node=fault.node,
            kind=fault.kind,
            at_ns=fault.at_ns,
            outage_ns=None if ended_ns is None else ended_ns - fault.at_ns,
            is_open=is_open,
        )


def _window(events: Sequence[AnyEvent], runs: Sequence[RunPaid]) -> tuple[int, int]:
    """From the first known moment to the last."""
    moments = [event.occurred_ns for event in events]
    moments += [event.onset_ns for event in events if isinstance(event, FaultObserved) and event.onset_ns]
    moments += [moment for run in runs for moment in (run.first_ns, run.last_ns)]
    if not moments:
        raise InputError(
            "The record has neither faults nor runs.", hint="Import some with `holdfast import FILE`."
        )
    return min(moments), max(moments)


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All sources for the number of nodes."""

    events: Sequence[AnyEvent]
    runs: Sequence[RunPaid]
    faults: Sequence[_Open]
    given: OutageFacts


class _Watched(msgspec.Struct, frozen=True, kw_only=True):
    """node_days: None: the nodes times the window."""

    nodes: int
    source: Source
    node_days: float | None = None
    assumptions: tuple[str, ...] = ()


def _watched(facts: _Facts, from_ns: int, until_ns: int) -> _Watched:
    """The number of nodes, from the first of four sources that has it."""
    given = facts.given
    if given.nodes is not None:
        return _Watched(nodes=given.nodes, source="given")
    found = _declared(facts, until_ns) or _paid(facts) or _seen(facts, from_ns, until_ns)
    # Given days apply to all nodes, wherever their number comes from.
    return found if given.days is None else msgspec.structs.replace(found, node_days=None)


def _declared(facts: _Facts, until_ns: int) -> _Watched | None:
    """From the GPUs of the cluster by its own rates; a rate holds until the next."""
    rates = [(event.occurred_ns, _declared_gpus(event)) for event in facts.events]
    sized = [(at_ns, gpus) for at_ns, gpus in rates if gpus is not None]
    gpus_max = max((gpus for _, gpus in sized), default=0)
    if not gpus_max:
        return None
    ends_ns = [at_ns for at_ns, _ in sized[1:]] + [until_ns]
    gpu_ns = sum(gpus * (end_ns - at_ns) for (at_ns, gpus), end_ns in zip(sized, ends_ns, strict=True))
    gpus_per_node, assumed = _gpus_per_node(facts)
    return _Watched(
        nodes=math.ceil(gpus_max / gpus_per_node),
        node_days=gpu_ns / gpus_per_node / DAY_NS,
        source="declared",
        assumptions=assumed,
    )


def _paid(facts: _Facts) -> _Watched | None:
    """From the GPUs that the runs paid for, if any."""
    gpu_ns = sum(run.paid_gpu_ns for run in facts.runs)
    if not gpu_ns:
        return None
    gpus_per_node, assumed = _gpus_per_node(facts)
    joined = {event.node or event.subject for event in facts.events if isinstance(event, MemberJoined)}
    named = joined | {fault.node for fault in facts.faults} - {""}
    return _Watched(
        nodes=max(math.ceil(_gpus_at_once(facts.runs) / gpus_per_node), len(named)),
        node_days=gpu_ns / gpus_per_node / DAY_NS,
        source="paid",
        assumptions=(*assumed, "Nodes count while a run holds them; faults of idle nodes are not known."),
    )


def _gpus_at_once(runs: Sequence[RunPaid]) -> int:
    """The most GPUs that runs had at one time."""
    # The mean can be more than took part in the run: GPUs may be paid for without taking part.
    averages = (-(-run.paid_gpu_ns // max(1, run.last_ns - run.first_ns)) for run in runs)
    sizes = [(run, max(run.gpus_max, average)) for run, average in zip(runs, averages, strict=True)]
    changes = [change for run, gpus in sizes for change in ((run.first_ns, gpus), (run.last_ns, -gpus))]
    return max(accumulate(gpus for _, gpus in sorted(changes)))


def _seen(facts: _Facts, from_ns: int, until_ns: int) -> _Watched:
    nodes = len({fault.node for fault in facts.faults} - {""})
    if not nodes or from_ns == until_ns:
        raise InputError(
            "The record does not say how many nodes were watched.",
            hint="Give their number with `--nodes`, and for how long with `--days`.",
        )
    said = (
        f"Only the {nodes:,} nodes that had faults are known: the rate is too high unless `--nodes` is given."
    )
    return _Watched(nodes=nodes, source="seen", assumptions=(said,))


def _gpus_per_node(facts: _Facts) -> tuple[int, tuple[str, ...]]:
    """As given, else as drains take out of service, else as the members on one node have."""
    if facts.given.gpus_per_node is not None:
        return facts.given.gpus_per_node, ()
    drained = [event.gpus for event in facts.events if isinstance(event, ActionTaken)]
    members: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for event in facts.events:
        if isinstance(event, MemberJoined):
            members[event.run, event.node or event.subject][event.subject] = event.gpus
    on_nodes = [sum(gpus.values()) for gpus in members.values()]
    if gpus := max(drained, default=0) or max(on_nodes, default=0):
        return gpus, ()
    return GPUS_PER_NODE_USUAL, (f"Each node is assumed to have {GPUS_PER_NODE_USUAL} GPUs.",)


def _gaps(faults: Sequence[_Open], runs: Sequence[RunPaid]) -> Iterable[str]:
    """Known omissions of the record, each a sentence."""
    if unplaced := sum(not fault.node for fault in faults):
        yield f"{unplaced:,} of the faults name no node; they count in rates only."
    if (lost := sum(run.members_lost for run in runs)) > len(faults):
        recorded = wording.many(len(faults), "fault")
        yield f"{lost:,} members were lost, but the record has only {recorded}, and only faults count."
