"""The record of a simulated run: the same events a real one leaves, stamped by the simulated clock."""

from typing import Any

import msgspec

from holdfast.record.events import GenerationOpened, KnownEvent, MemberJoined, RunStarted

SOURCE = "twin"


class Tape:
    """Events in the order in which they were recorded, which is that of their ids."""

    def __init__(self, run: str, start_ns: int) -> None:
        self.events: list[KnownEvent] = []
        self._run = run
        self._start_ns = start_ns
        self._ids: dict[str, str] = {}  # what the membership calls an event, and what it is called here

    def record(
        self, kind: type[KnownEvent], at_ns: int, *, causes: tuple[str, ...] = (), **fields: Any
    ) -> str:
        """Write down what happened at this moment of the run; its id, for effects to name as their cause."""
        identity = f"{SOURCE}-{len(self.events):08}"
        occurred_ns = self._start_ns + at_ns
        last = self.events[-1] if self.events else None
        if last is not None and last.causes and not causes and last.occurred_ns == occurred_ns:
            # Effects are read after their causes; what was done after them at the same moment stays after
            # them.
            causes = (last.id,)
        if (onset_ns := fields.get("onset_ns")) is not None:
            fields["onset_ns"] = self._start_ns + onset_ns
        self.events.append(
            kind(
                id=identity,
                occurred_ns=occurred_ns,
                recorded_ns=occurred_ns,
                source=SOURCE,
                run=self._run,
                causes=causes,
                **fields,
            )
        )
        return identity

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
