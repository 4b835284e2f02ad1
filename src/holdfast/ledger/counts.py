"""What a fold counts and keeps beside GPU-time: events, declarations, launches, saves, bytes moved."""

from typing import Literal, NamedTuple

import msgspec

from holdfast.record.events import Attention, Precision

MovedFor = Literal["checkpoints_saved", "checkpoints_loaded", "dataset", "cold", "egress"]
"""What bytes were moved for: the checkpoints' own events tell of theirs, `data.moved` of the others."""


class Counts(msgspec.Struct):
    """What is counted rather than timed.

    Launches with nothing recorded between them are one start, which is how others count; `launches` has
    every one. begun_again: how often the step counter began again after the run was complete; from_scratch:
    how often it went back to the first step without having been complete.
    """

    launches: int = 0
    starts: int = 0
    loads: int = 0
    saves: int = 0
    members_lost: int = 0
    unknown_events: int = 0
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
    """

    first_step: int | None = None
    last_step: int | None = None
    count: int = 0
    gap_steps_max: int = 0

    def add(self, step: int) -> None:
        if self.last_step is None:
            self.first_step = step
        elif step <= self.last_step:
            return
        else:
            self.gap_steps_max = max(self.gap_steps_max, step - self.last_step)
        self.last_step = step
        self.count += 1


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
