"""The losses of a benchmark's run, from its record: steps, and members that no fault struck."""

import re
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.record.events import AnyEvent, CheckpointLoaded, GenerationOpened, MemberLost, StepCommitted
from holdfast.run.wire import FaultKind

NODE_S = 5.0
"""Within this time of the struck member all others of its node are lost as well."""

_STRIKE = re.compile(r"planned (kill|node) strikes (\S+) at step")


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """A fault on purpose: of this member, or of its whole node."""

    member: str
    fault: FaultKind


def planned_strikes(output: str) -> list[Strike]:
    """The planned faults that struck, from the output of `holdfast run`."""
    return [
        Strike(member=member, fault="node" if fault == "node" else "kill")
        for fault, member in _STRIKE.findall(output)
    ]


def survivors_lost(events: Iterable[AnyEvent], strikes: Sequence[Strike]) -> list[str]:
    """Members that were lost though neither they nor their node were struck."""
    lost = {event.subject: event for event in events if isinstance(event, MemberLost)}
    struck = {strike.member for strike in strikes}
    nodes_ns = [
        (_node(strike.member), lost[strike.member].occurred_ns)
        for strike in strikes
        if strike.fault == "node" and strike.member in lost
    ]

    def is_explained(event: MemberLost) -> bool:
        return event.subject in struck or any(
            _node(event.subject) == node and abs(event.occurred_ns - at_ns) <= NODE_S * 1e9
            for node, at_ns in nodes_ns
        )

    return [name for name, event in lost.items() if not is_explained(event)]


def steps_redone(events: Iterable[AnyEvent]) -> int:
    """Committed steps that the run rolled back."""
    highest = redone = 0
    for event in events:
        if isinstance(event, StepCommitted):
            highest = max(highest, event.step)
        elif isinstance(event, GenerationOpened) and event.step is not None and event.step < highest:
            redone += highest - event.step
            highest = event.step
    return redone


def checkpoints_loaded(events: Iterable[AnyEvent]) -> int:
    return sum(isinstance(event, CheckpointLoaded) for event in events)


def _node(member: str) -> str:
    return member.rpartition(".")[0]
