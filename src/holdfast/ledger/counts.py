"""The state of a fold besides GPU-time: counts, declarations, launches, gaps, stages, saves, bytes moved."""

import re
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
"""Why bytes were moved. Checkpoint events report the first two, `data.moved` the others."""


class Counts(msgspec.Struct):
    """Quantities that are counted rather than timed.

    Launches with nothing recorded between them count as one start, as is usual elsewhere; `launches` counts
    every one. begun_again: how often the step counter began again after the run was complete. from_scratch:
    how often it went back to the first step although the run was not complete. takeovers: by successors of
    the coordinator.
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
    """What was declared about the run. The last declaration counts; `Stages` has those about its steps."""

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
    """The current or last attempt.

    is_implied      its launch was not recorded, but it reported something
    is_last         nothing was recorded since its launch
    is_warm         no step was committed since the start, the load or the new generation
    knows_position  an event said which step it continues from
    stepped         a step was begun or committed
    is_phased       a phase says what the run does now
    is_heard        the run itself reported something
    grouped         its generation was opened, and no member of it was lost since
    leader          the subject of the last commit that moved the run on
    loaded          the step of the last load, and the subject that reported it
    is_scheduled    only a scheduler has reported it so far
    begun_step      the last step reported to begin; -1 if none
    """

    size_gpus: int = 0
    is_implied: bool = False
    is_last: bool = False
    is_warm: bool = True
    knows_position: bool = False
    stepped: bool = False
    is_phased: bool = False
    is_heard: bool = False
    grouped: bool = False
    spoke_after_end: bool = False
    leader: str | None = None
    loaded: tuple[int, str] | None = None
    is_scheduled: bool = False
    begun_step: int = -1


class Opening(NamedTuple):
    """The first step that was reported, counted as one step: its number, key and GPU-ns, and the incident
    that its excess was charged to. losses: keys of work lost since, of no more than one step as far as known.
    """

    step: int
    key: int
    gpu_ns: int
    incident: int | None
    losses: tuple[int, ...] = ()


class AssumedOpening(NamedTuple):
    """Steps that were taken to be done before the first one that was reported: since which step the run
    reports, one step in how many, and how long those took that no other line makes likely.
    """

    step: int
    every: int
    duration_ns: int


_SHARD = re.compile(r"/shard-[0-9]+-of-[0-9]+/[^/]*$")
_COSTS = ("size_bytes", "written_bytes", "stall_ns", "write_ns")


class Mean(msgspec.Struct, frozen=True):
    """The mean of what was recorded. A quantity that an event leaves out is not known, so it is not a 0."""

    total: int = 0
    count: int = 0

    def plus(self, found: int | None) -> "Mean":
        return self if found is None else Mean(self.total + found, self.count + 1)

    def more(self, found: int | None) -> "Mean":
        """With more of what was found last."""
        return Mean(self.total + (found or 0), self.count)

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


class Saves(msgspec.Struct):
    """The checkpoints that saved new steps: first and last step, how many, and the most steps done since one.

    A checkpoint of the last saved step or an earlier one does not count: it protects nothing new.
    measured: how many have any recorded cost; each cost is a mean over those that record it. stalls: how many
    say how long training waited for them, if only by when they began. restore_ns: of loads.
    proven: step and moment of the last checkpoint that was verified by loading it and computing with it;
    refuted: of the last that failed this. parts: step of the last saved checkpoint, and the places of its
    parts if the model is sharded. copies: by place, the last step copied there, and why the next copy failed.
    """

    first_step: int | None = None
    last_step: int | None = None
    count: int = 0
    unsaved_steps_max: int = 0
    measured: int = 0
    stalls: int = 0
    size_bytes: Mean = Mean()
    written_bytes: Mean = Mean()
    stall_ns: Mean = Mean()
    write_ns: Mean = Mean()
    exposed_ns_max: int | None = None
    restore_ns: Mean = Mean()
    proven: tuple[int, int] | None = None
    refuted: tuple[int, int] | None = None
    copies: dict[str, tuple[int | None, str]] = msgspec.field(default_factory=dict)
    parts: tuple[int, frozenset[str]] = (0, frozenset())

    def is_part(self, event: CheckpointSaved) -> bool:
        """Whether it is another part of the checkpoint that was saved last: of a sharded model."""
        step, places = self.parts
        own = frozenset({event.place} if _SHARD.search(event.place) else ())
        is_more = bool(own and places) and event.step == step and not own & places
        self.parts = event.step, own | places if is_more else own
        return is_more

    def add(self, step: int, *, tells_stall: bool) -> None:
        if self.last_step is None:
            self.first_step = step
        elif step <= self.last_step:
            return
        else:
            self.came_to(step)
        self.last_step = step
        self.count += 1
        self.stalls += tells_stall

    def came_to(self, step: int) -> None:
        """The run did the steps up to this one without another checkpoint."""
        if self.last_step is not None:
            self.unsaved_steps_max = max(self.unsaved_steps_max, step - self.last_step)

    def measure_part(self, event: CheckpointSaved) -> None:
        """Add the size of another part to a checkpoint that was measured."""
        self.size_bytes = self.size_bytes.more(event.size_bytes)
        self.written_bytes = self.written_bytes.more(event.written_bytes)

    def measure(self, event: CheckpointSaved) -> None:
        """Add the checkpoint's costs that were recorded."""
        costs = {name: getattr(event, name) for name in _COSTS}
        for name, cost in costs.items():
            setattr(self, name, getattr(self, name).plus(cost))
        if event.exposed_ns is not None:
            self.exposed_ns_max = max(self.exposed_ns_max or 0, event.exposed_ns)
        self.measured += any(cost is not None for cost in (*costs.values(), event.exposed_ns))

    def measure_load(self, event: CheckpointLoaded) -> None:
        if not event.is_snapshot:
            self.restore_ns = self.restore_ns.plus(event.restore_ns)

    def verified(self, event: CheckpointVerified) -> None:
        found = event.step, event.occurred_ns
        if event.sound:
            self.proven = found
        else:
            self.refuted = found

    def copied(self, event: CheckpointCopied) -> None:
        before, _ = self.copies.get(event.place, (None, ""))
        self.copies[event.place] = (before if event.reason else event.step), event.reason


class Traffic(msgspec.Struct):
    """Bytes that collectives of one kind and group size moved, and the time they took."""

    size_bytes: int = 0
    duration_ns: int = 0


class MovedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes moved for one purpose. sized: how many of the transfers have a recorded size.

    usd: the recorded charges; unpriced_bytes: bytes without a recorded charge.
    """

    times: int = 0
    sized: int = 0
    size_bytes: int = 0
    usd: float = 0.0
    unpriced_bytes: int = 0

    def plus(self, other: "MovedBytes", sign: int = 1) -> "MovedBytes":
        """The sum of both; the difference if the sign is -1."""
        fields = self.__struct_fields__
        return MovedBytes(**{name: getattr(self, name) + sign * getattr(other, name) for name in fields})


class HeldUp(NamedTuple):
    """A span in which all members waited for one of them."""

    from_ns: int
    to_ns: int
    member: str


SCHEDULERS = frozenset({"sacct"})
"""Sources whose start and end events refer to an allocation, not to a process."""
GAPS_MAX = 1_024
"""How many gaps are kept; later ones are dropped."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """From an attempt's end to the next start. given_back: a scheduler reported the end of the allocation."""

    from_ns: int
    to_ns: int
    gpus: int
    outcome: Outcome
    given_back: bool

    @property
    def gpu_ns(self) -> int:
        return (self.to_ns - self.from_ns) * self.gpus


class Gaps:
    """The gaps that are over, and the current one.

    Gaps count as not paid for unless the record says otherwise. Only a price (`cost.rate`) or a scheduler
    can say: an allocation that lasts across the gap is paid for, one that ended was given back.
    """

    __slots__ = ("all", "down")

    def __init__(self) -> None:
        self.all: list[Gap] = []
        self.down: Gap | None = None

    def give_back(self, now_ns: int) -> None:
        """A scheduler reports that the GPUs were given back; they were paid for until now."""
        if self.down is not None:
            self.down = msgspec.structs.replace(self.down, from_ns=now_ns, given_back=True)

    def close(self, now_ns: int, held_gpus: int) -> None:
        """An attempt starts; `held_gpus` were held until now."""
        down, self.down = self.down, None
        if down is None or down.outcome == "completed" or now_ns == down.from_ns or held_gpus:
            return
        if len(self.all) < GAPS_MAX:
            self.all.append(msgspec.structs.replace(down, to_ns=now_ns))

    def copy(self) -> "Gaps":
        return copied(self, "all")


STAGES_MAX = 64
"""How many stages are kept apart; a further declaration changes the last one."""

_WORK = ("tokens_per_step", "sequence_tokens", "batch_sequences")


class ReferenceStage(msgspec.Struct):
    """What was declared about the steps of one stage.

    from_ns, entry  when the stage began, and with which first execution of a step
    step_ns         duration of a healthy step; None: estimate it from the steps themselves
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
    """All stages so far; the last one is the current one.

    A `reference.declared` event that changes what a step is opens a stage and holds from then on. The first
    declaration of a value also holds for the time before it, about which nothing else is known.
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
        """The number of the stage in which a step was first done, by its entry."""
        return max(number for number, stage in enumerate(self._all) if stage.entry <= entry or not number)

    def declare(self, event: ReferenceDeclared, now_ns: int, entry: int) -> None:
        """Take a declaration about healthy steps from now on. entry: the number of the next entry."""
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
            # A step with other work takes another time, which was not declared.
            current.step_ns = current.step_gpus = None
