"""Where a client looks for a coordinator when its own is silent or gone, and for how long.

With a line of succession the coordinator may come back on another machine, and says now and then that it
lives. Without one it can only come back where it was.
"""

from collections.abc import Iterable, Sequence

from holdfast.run.handshake import KNOWN_WAIT_S

SILENT_S = 3.0
"""A coordinator that others could follow, and that has said nothing for so long, is looked for elsewhere. It
says something each second."""
SILENT_INTERVAL_S = 0.5
"""Between two looks, as long as it is silent."""
SEEK_S = 60.0
"""How long a coordinator is looked for along the line: to choose one takes some seconds."""
SEEK_INTERVAL_S = 0.25
SEEK_WAIT_S = 2.0
"""For an answer, where one place of several may be cut off."""

Address = tuple[str, int]


def around(place: Address, line: Iterable[Address]) -> list[Address]:
    """Where to look: where the coordinator was, then along the line."""
    return [*dict.fromkeys((place, *line))]


def look_s(line: Sequence[Address], *, is_to_be_chosen: bool) -> float:
    """For how long: without a line, it is there or it is gone. is_to_be_chosen: somebody has answered who may
    become the coordinator, and whom we follow though we were not told of the line yet.
    """
    return SEEK_S if line or is_to_be_chosen else 0.0


def answer_wait_s(line: Sequence[Address]) -> float:
    """How long each place has to answer."""
    return SEEK_WAIT_S if line else KNOWN_WAIT_S
