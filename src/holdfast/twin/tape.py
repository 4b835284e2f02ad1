"""The record of a simulated run: the same events a real one leaves, stamped by the simulated clock."""

from typing import Any

import msgspec

from holdfast.record.events import GenerationOpened, KnownEvent, MemberJoined, RunStarted
from holdfast.record.runs import SIMULATED


class Tape:
    """Events in the order in which they were recorded, which is that of their ids."""

    def __init__(self, run: str, start_ns: int) -> None:
        self.events: list[KnownEvent] = []
        self._run = run
        self._start_ns = start_ns
        self._ids: dict[str, str] = {}  # what the membership calls an event, and what it is called here
        self._ranks: dict[str, tuple[int, int]] = {}  # by id: when, and after how many causes at that moment
        self._last: dict[int, str] = {}  # by moment: the last event that has causes there

    def record(
        self, kind: type[KnownEvent], at_ns: int, *, causes: tuple[str, ...] = (), **fields: Any
    ) -> str:
        """Write down what happened at this moment of the run; its id, for effects to name as their cause."""
        identity = f"{SIMULATED}-{len(self.events):08}"
        occurred_ns = self._start_ns + at_ns
        causes = self._in_order(identity, occurred_ns, causes)
        if (onset_ns := fields.get("onset_ns")) is not None:
            fields["onset_ns"] = self._start_ns + onset_ns
        self.events.append(
            kind(
                id=identity,
                occurred_ns=occurred_ns,
                recorded_ns=occurred_ns,
                source=SIMULATED,
                run=self._run,
                causes=causes,
                **fields,
            )
        )
        return identity

    def _in_order(self, identity: str, occurred_ns: int, causes: tuple[str, ...]) -> tuple[str, ...]:
        """The causes, and one more if without it the event would be read before others of its moment that
        were recorded before it: effects are read after what has no cause, and their own effects after them.
        """
        rank, last = self._rank(occurred_ns, causes), self._last.get(occurred_ns)
        if last is not None and rank < self._ranks[last][1]:
            causes, rank = (*causes, last), self._ranks[last][1] + 1
        if rank:
            self._last[occurred_ns] = identity
        self._ranks[identity] = (occurred_ns, rank)
        return causes

    def _rank(self, occurred_ns: int, causes: tuple[str, ...]) -> int:
        known = (self._ranks[cause] for cause in causes)
        return max((rank + 1 for moment_ns, rank in known if moment_ns == occurred_ns), default=0)

    def take(self, event: KnownEvent, member_gpus: int) -> None:
        """Write down an event of the membership's, which counts members and names its events by keys."""
        fields = msgspec.structs.asdict(event)
        key, at_ns = fields.pop("id"), fields.pop("occurred_ns")
        causes = tuple(self._ids[cause] for cause in fields.pop("causes") if cause in self._ids)
        for filled_in in ("recorded_ns", "source", "run", "schema"):
            del fields[filled_in]
        if isinstance(event, RunStarted | MemberJoined | GenerationOpened) and event.gpus is not None:
            fields["gpus"] = event.gpus * member_gpus
        identity = self.record(type(event), at_ns, causes=causes, **fields)
        if key:
            self._ids[key] = identity
