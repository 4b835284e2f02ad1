"""Where a client looks for a coordinator when its own is silent or gone, and for how long.

With a line of succession, the coordinator may come back on another machine, and it regularly says that it
lives. Without one, it can only come back where it was.
"""

from collections.abc import Iterable, Sequence

from holdfast.run.handshake import KNOWN_WAIT_S

SILENT_S = 3.0
"""If a coordinator with a line of succession is silent for this long, clients look for one elsewhere. It
sends something every second."""
SILENT_INTERVAL_S = 0.5
"""The time between two looks while it is silent."""
SEEK_S = 60.0
"""How long to look for a coordinator along the line: electing one takes some seconds."""
SEEK_INTERVAL_S = 0.25
SEEK_WAIT_S = 2.0
"""How long to wait for an answer if one of several places may be cut off."""

Address = tuple[str, int]


def around(place: Address, line: Iterable[Address]) -> list[Address]:
    """Where to look: at the coordinator's last place, then along the line."""
    return [*dict.fromkeys((place, *line))]


def look_s(line: Sequence[Address], *, is_to_be_chosen: bool) -> float:
    """How long to look. Without a line, the coordinator is either there or gone. is_to_be_chosen: an heir has
    answered that may become the coordinator, although we were not told of the line yet.
    """
    return SEEK_S if line or is_to_be_chosen else 0.0


def answer_wait_s(line: Sequence[Address]) -> float:
    """How long to wait for each place's answer."""
    return SEEK_WAIT_S if line else KNOWN_WAIT_S
