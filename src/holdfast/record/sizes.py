"""How many GPUs a run has, by its events, and whether it has any."""

from collections.abc import Iterable

from holdfast.record.events import (
    CPU,
    AnyEvent,
    CostRate,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    RunStarted,
)

SIZING = ("run.started", "generation.opened", "member.joined", "member.lost", "cost.rate")
"""The kinds of events that tell."""


def is_on_cpu(events: Iterable[AnyEvent]) -> bool:
    """Whether no member of this run ever had a GPU, as in the ledger."""
    return {one.device for one in events if isinstance(one, GenerationOpened) and one.device} == {CPU}


def gpus_of(events: Iterable[AnyEvent]) -> int:
    """How many GPUs are paid for, after these events of one run in order of time; 0 if none of them tells.

    As in the ledger: those held, or the size of the attempt and its spares, or the members' own. The GPUs of
    an attempt that is over count until the next one begins, also if that does not tell its own.
    """
    held, size = 0, 0
    members: dict[str, int] = {}
    spares: set[str] = set()
    for event in events:
        match event:
            case RunStarted():
                size = event.gpus or size
                members, spares = {}, set()
            case GenerationOpened():
                size = size if event.gpus is None else event.gpus
                spares = {*members} - {*event.members} if event.members else spares
            case CostRate():
                held = held if event.gpus is None else event.gpus
            case MemberJoined():
                members[event.subject] = event.gpus
                (spares.add if event.role == "spare" else spares.discard)(event.subject)
            case MemberLost():
                members.pop(event.subject, None)
            case _:
                pass
    return max(held, size + sum(members.get(name, 0) for name in spares), sum(members.values()))
