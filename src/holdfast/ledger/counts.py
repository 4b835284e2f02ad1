"""What a fold keeps beside GPU-time: counts, declarations, launches, gaps, stages, saves, bytes moved."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from holdfast.ledger.copies import copied
from holdfast.record.events import (
    Attention,
    CheckpointCopied,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointVerified,
    Outcome,
    Precision,
    ReferenceDeclared,
)

MovedFor = Literal["checkpoints_saved", "checkpoints_loaded", "dataset", "cold", "egress"]
"""What bytes were moved for: the checkpoints' own events tell of theirs, `data.moved` of the others."""


class Counts(msgspec.Struct):
    """What is counted rather than timed.

    Launches with nothing recorded between them are one start, which is how others count; `launches` has
    every one. begun_again: how often the step counter began again after the run was complete; from_scratch:
    how often it went back to the first step without having been complete. takeovers: by successors of the
    coordinator.
    """

    launches: int = 0
    starts: int = 0
    loads: int = 0
    saves: int = 0
    members_lost: int = 0
    unknown_events: int = 0
    takeovers: int = 0
    begun_again: int = 0
    from_scratch: int = 0


class Declared(msgspec.Struct):
    """What the run was said to be. The last word counts; `Stages` has what was said of its steps."""

    name: str = ""
    team: str = ""
    project: str = ""
    cluster: str = ""
    tokens_per_step: int | None = None
    model_flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    params: int | None = None
    chip: str | None = None
    precision: Precision = "bf16"
    attention: Attention | None = None


class LaunchAttempt(msgspec.Struct):
    """What is known of the attempt that is up, or was last.

    is_implied      nobody recorded it; somebody spoke
    is_last         nothing was recorded since
    is_warm         no step was committed since the start, the load or the new generation
    knows_position  somebody said where it goes on from
    stepped         a step was begun or committed
    grouped         its generation was opened, and nobody of it was lost since
    leader          whose commits move the run on
    loaded          the step of the last load, and who told
    is_scheduled    a scheduler recorded it, and nobody else has spoken yet
    begun_step      the last step that was said to begin; -1 where none was
    """

    size_gpus: int = 0
    is_implied: bool = False
    is_last: bool = False
    is_warm: bool = True
    knows_position: bool = False
    stepped: bool = False
    grouped: bool = False
    spoke_after_end: bool = False
    leader: str | None = None
    loaded: tuple[int, str] | None = None
    is_scheduled: bool = False
    begun_step: int = -1


class Saves(msgspec.Struct):
    """The checkpoints that brought the run further: first and last step, how many, and how far apart.

    One of a step that was saved before, or of an earlier one, does not count: it protects nothing new.
    measured: of how many the costs were recorded, whose sums follow; loads, restore_ns: the same of loads.
    proven: step and moment of the last that was loaded and computed with; refuted: of the last such that was
    wrong. copies: by place, the last step that was brought there, and why the next one was not.
    """

    first_step: int | None = None
    last_step: int | None = None
    count: int = 0
    gap_steps_max: int = 0
    measured: int = 0
    size_bytes: int = 0
    written_bytes: int = 0
    stall_ns: int = 0
    write_ns: int = 0
    exposed_ns_max: int = 0
    loads: int = 0
    restore_ns: int = 0
    proven: tuple[int, int] | None = None
    refuted: tuple[int, int] | None = None
    copies: dict[str, tuple[int | None, str]] = msgspec.field(default_factory=dict)

    def add(self, step: int) -> None:
        if self.last_step is None:
            self.first_step = step
        elif step <= self.last_step:
            return
        else:
            self.gap_steps_max = max(self.gap_steps_max, step - self.last_step)
        self.last_step = step
        self.count += 1

    def measure(self, event: CheckpointSaved) -> None:
        """What it cost, where that was recorded."""
        if event.write_ns is not None:
            self.measured += 1
            self.size_bytes += event.size_bytes or 0
            self.written_bytes += event.written_bytes or 0
            self.stall_ns += event.stall_ns or 0
            self.write_ns += event.write_ns
            self.exposed_ns_max = max(self.exposed_ns_max, event.exposed_ns or 0)

    def measure_load(self, event: CheckpointLoaded) -> None:
        if event.restore_ns is not None and not event.is_snapshot:
            self.loads += 1
            self.restore_ns += event.restore_ns

    def verified(self, event: CheckpointVerified) -> None:
        found = event.step, event.occurred_ns
        if event.sound:
            self.proven = found
        else:
            self.refuted = found

    def copied(self, event: CheckpointCopied) -> None:
        if not event.origin:  # else it was fetched, for the run to begin with
            before, _ = self.copies.get(event.place, (None, ""))
            self.copies[event.place] = (before if event.reason else event.step), event.reason


class Traffic(msgspec.Struct):
    """What the collectives of one kind and size of group moved, and how long that took them."""

    size_bytes: int = 0
    duration_ns: int = 0


class MovedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that were moved to one end. sized: how many of the times the size was recorded.

    usd: the charges that were recorded; unpriced_bytes: what none was recorded for.
    """

    times: int = 0
    sized: int = 0
    size_bytes: int = 0
    usd: float = 0.0
    unpriced_bytes: int = 0

    def plus(self, other: "MovedBytes", sign: int = 1) -> "MovedBytes":
        """With the other's; with -1 for a sign, without them."""
        fields = self.__struct_fields__
        return MovedBytes(**{name: getattr(self, name) + sign * getattr(other, name) for name in fields})


class HeldUp(NamedTuple):
    """All members waited for one of them, from when to when."""

    from_ns: int
    to_ns: int
    member: str


SCHEDULERS = frozenset({"sacct"})
"""Sources of events whose starts and ends are those of an allocation, not of a process."""
GAPS_MAX = 1_024
"""So many are kept one by one."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """From an attempt's end to the next start. given_back: a scheduler says that the allocation ended."""

    from_ns: int
    to_ns: int
    gpus: int
    outcome: Outcome
    given_back: bool

    @property
    def gpu_ns(self) -> int:
        return (self.to_ns - self.from_ns) * self.gpus


class Gaps:
    """Those that are over, and the one that the run is in.

    They are not paid for, because nobody said so. Whether that is true only a price (`cost.rate`) or a
    scheduler can tell: an allocation that lasts across the gap is paid for, one that ended was given back.
    """

    __slots__ = ("all", "down")

    def __init__(self) -> None:
        self.all: list[Gap] = []
        self.down: Gap | None = None

    def give_back(self, now_ns: int) -> None:
        """A scheduler says that the GPUs are given back; what was held until then was paid for."""
        if self.down is not None:
            self.down = msgspec.structs.replace(self.down, from_ns=now_ns, given_back=True)

    def close(self, now_ns: int, held_gpus: int) -> None:
        """An attempt starts, and so many GPUs were held until now."""
        down, self.down = self.down, None
        if down is None or down.outcome == "completed" or now_ns == down.from_ns or held_gpus:
            return
        if len(self.all) < GAPS_MAX:
            self.all.append(msgspec.structs.replace(down, to_ns=now_ns))

    def copy(self) -> "Gaps":
        return copied(self, "all")


STAGES_MAX = 64
"""So many stages are kept apart; whoever declares more changes the last one."""

_WORK = ("tokens_per_step", "sequence_tokens", "batch_sequences")


class ReferenceStage(msgspec.Struct):
    """What was declared of the steps of one stage.

    from_ns, entry  when it began, and with which first execution of a step
    step_ns         a healthy step; None where it is to be estimated from the steps themselves
    step_gpus       on how many GPUs; None until the next step shows how many take part
    """

    from_ns: int = 0
    entry: int = 0
    step_ns: int | None = None
    step_gpus: int | None = None
    tokens_per_step: int | None = None
    sequence_tokens: int | None = None
    batch_sequences: int | None = None


class Stages:
    """All stages so far; the last one is the one that the run is in.

    Whoever declares what a step is (`reference.declared`) opens a stage, and what was declared holds from
    then on. The first word on a matter holds for the time before it as well: nothing else is known of that.
    """

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all = [ReferenceStage()]

    def __iter__(self) -> Iterator[ReferenceStage]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def current(self) -> ReferenceStage:
        return self._all[-1]

    def copy(self) -> "Stages":
        twin = Stages()
        twin._all = [msgspec.structs.replace(stage) for stage in self._all]
        return twin

    def number_at(self, entry: int) -> int:
        """The stage in which a step was first done, by the number of its entry."""
        return max(number for number, stage in enumerate(self._all) if stage.entry <= entry or not number)

    def declare(self, event: ReferenceDeclared, now_ns: int, entry: int) -> None:
        """Take what is said of a healthy step from now on. entry: of the next step that is done."""
        current = self.current
        given = {name: value for name in _WORK if (value := getattr(event, name)) is not None}
        is_other_work = any(getattr(current, name) not in (None, value) for name, value in given.items())
        is_other_step = event.step_ns is not None and current.step_ns not in (None, event.step_ns)
        if (is_other_work or is_other_step) and entry > current.entry and len(self._all) < STAGES_MAX:
            current = msgspec.structs.replace(current, from_ns=now_ns, entry=entry)
            self._all.append(current)
        for name, value in given.items():
            setattr(current, name, value)
        if event.step_ns is not None:
            current.step_ns, current.step_gpus = event.step_ns, event.gpus
        elif is_other_work:
            # A step of other work takes another time, which nobody declared.
            current.step_ns = current.step_gpus = None
