"""The record of a simulated run: the same events that a real run leaves, stamped by the simulated clock."""

from typing import Any

import msgspec

from holdfast.record.events import GenerationOpened, KnownEvent, MemberJoined, RunStarted
from holdfast.record.runs import SIMULATED


class Tape:
    """Events in the order of recording, which is also the order of their ids."""

    def __init__(self, run: str, start_ns: int) -> None:
        self.events: list[KnownEvent] = []
        self._run = run
        self._start_ns = start_ns
        self._ids: dict[str, str] = {}  # the membership's key of an event: its id here
        self._ranks: dict[
            str, tuple[int, int]
        ] = {}  # by id: its time, and its rank among causes at that time
        self._last: dict[int, str] = {}  # by time: the last event with causes at that time

    def record(
        self, kind: type[KnownEvent], at_ns: int, *, causes: tuple[str, ...] = (), **fields: Any
    ) -> str:
        """Record an event at this moment of the run. Return its id, for effects to name as their cause."""
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
        """The causes, plus one if the ledger would otherwise read the event before earlier events of the same
        moment: it reads events without causes first, then their effects, then the effects of those.
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
        """Record an event of the membership, which counts members instead of GPUs and uses its own keys."""
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
