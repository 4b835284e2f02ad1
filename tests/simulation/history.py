"""The events of a schedule, as noted by an observer who sees everything; `checks.py` judges them."""

from typing import NamedTuple

from holdfast.run.happenings import Effect, Happening


class Struck(NamedTuple):
    """A fault or its consequence: a process that continues, a node that returns."""

    at_ns: int
    what: str


class Died(NamedTuple):
    at_ns: int
    member: str
    how: str


class Began(NamedTuple):
    """A member is in a generation, and has its state."""

    at_ns: int
    member: str
    generation: int
    version: int
    content: int
    history: int


class Summed(NamedTuple):
    """All members of a rail have added their lanes: lanes by member, and the contents they started from.
    without: the lanes that they agreed to skip.
    """

    at_ns: int
    generation: int
    step: int
    lanes: tuple[tuple[int, ...], ...]
    contents: tuple[int, ...]
    without: tuple[int, ...]


class Kept(NamedTuple):
    """A member has committed a step. history: its steps since the run last started from a checkpoint."""

    at_ns: int
    member: str
    generation: int
    step: int
    content: int
    history: int
    skipped: tuple[int, ...]


class GivenUp(NamedTuple):
    """A member was given up because a generation did not form in time."""

    at_ns: int
    member: str


class Doubled(NamedTuple):
    """A step was committed that a counted member already had from another generation, without being part of
    this one.
    """

    at_ns: int
    step: int
    generation: int
    other: str
    before: int


class Returned(NamedTuple):
    """A generation starts from a checkpoint or from nothing. holders: counted members that have the state."""

    at_ns: int
    generation: int
    version: int
    holders: tuple[str, ...]


class BeganAgain(NamedTuple):
    """The membership said that a part of the state is lost. is_needless: every part still existed."""

    at_ns: int
    is_needless: bool


class Announcing(NamedTuple):
    """A generation was announced. left_out: counted members of the previous one that are not in it."""

    at_ns: int
    generation: int
    members: tuple[str, ...]
    given_up: tuple[str, ...]
    left_out: tuple[str, ...]


class Opened(NamedTuple):
    """The membership recorded the generation as formed. lacking: living members that are not in it yet.
    is_apart: no member was in the generation formed before. holders: living members that had the run's last
    step and counted when the generation was announced, if they have the whole state together.
    """

    at_ns: int
    generation: int
    step: int
    lacking: tuple[str, ...]
    is_apart: bool
    holders: tuple[str, ...]


class Recorded(NamedTuple):
    """The membership recorded a step as committed. lacking: living members of the generation without it."""

    at_ns: int
    step: int
    lacking: tuple[str, ...]


class Heeded(NamedTuple):
    """A message of a member that was given up changed something."""

    at_ns: int
    member: str
    what: str


class Lingering(NamedTuple):
    """A member that was given up is still there."""

    at_ns: int
    member: str


class Ended(NamedTuple):
    """The membership says that the run is over."""

    at_ns: int
    outcome: str
    reason: str


class Told(NamedTuple):
    """An event and the membership's effects; noted only for a story."""

    at_ns: int
    happening: Happening
    effects: tuple[Effect, ...]


Note = (
    Struck
    | Died
    | Began
    | Summed
    | Kept
    | GivenUp
    | Doubled
    | Returned
    | BeganAgain
    | Announcing
    | Opened
    | Recorded
    | Heeded
    | Lingering
    | Ended
    | Told
)
