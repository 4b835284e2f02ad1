"""Memory that outlives the workers of a node: files without a name, which the agent holds and hands over.

They take no room until a worker gives them a size. The kernel frees them with the last process that has a
descriptor: nothing is left of them when the run ends, also if the agent is killed, because its workers die
with it. What is in them is the business of `train`.
"""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

VARIABLE = "HOLDFAST_SNAPSHOTS"
"""By which a worker knows the descriptors: those of the first slot, then those of the next."""
EVERY_VARIABLE = "HOLDFAST_SNAPSHOT_EVERY"
NAME = "holdfast-snapshot"
VERSIONS = 2
"""Files of a slot: while one is written, the other is whole."""

SlotFiles = tuple[tuple[int, ...], ...]
"""The descriptors of each slot."""


class HeldMemory:
    """An agent's, for each of its slots. slots: 0 holds nothing."""

    def __init__(self, slots: int) -> None:
        self.slots: SlotFiles = tuple(
            tuple(os.memfd_create(f"{NAME}-{slot}-{version}") for version in range(VERSIONS))
            for slot in range(slots)
        )

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(self.slots))

    @property
    def told(self) -> str:
        """As a worker is told of it."""
        return ",".join(map(str, self.descriptors))

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.slots = ()


def given(environment: Mapping[str, str]) -> SlotFiles:
    """What this process was handed by its agent; nothing where it has none, or has lost it on the way."""
    try:
        descriptors = [int(word) for word in environment.get(VARIABLE, "").split(",") if word]
        is_ours = all(_is_ours(descriptor) for descriptor in descriptors)
    except (ValueError, OSError):
        return ()
    if not is_ours or len(descriptors) % VERSIONS:
        return ()
    return tuple(zip(*[iter(descriptors)] * VERSIONS, strict=True))


def _is_ours(descriptor: int) -> bool:
    """Whether nobody else has the number by now: a program that stands before the script may close files."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(f"/memfd:{NAME}-")
