"""Memory that outlives the workers of a node: files without a name, which the agent holds and hands over.

They take no space until a worker gives them a size. The kernel frees them with the last process that has a
descriptor. So nothing is left of them when the run ends, even if the agent is killed, because its workers die
with it. `train` defines their content.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath

VARIABLE = "HOLDFAST_SNAPSHOTS"
"""Tells a worker the descriptors: those of the first slot, then those of the next."""
EVERY_VARIABLE = "HOLDFAST_SNAPSHOT_EVERY"
NAME = "holdfast-snapshot"
VERSIONS = 2
"""Files per slot: while one is written, the other is whole."""

SlotFiles = tuple[tuple[int, ...], ...]
"""The descriptors of each slot."""


class HeldMemory:
    """An agent's memory files for each of its slots. slots: 0 to hold none."""

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
        """The descriptors as text for a worker's environment."""
        return ",".join(map(str, self.descriptors))

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.slots = ()


def given(environment: Mapping[str, str]) -> SlotFiles:
    """The files that this process got from its agent; empty if it has no agent or they were closed on the
    way. Processes started from now on do not inherit them.
    """
    try:
        descriptors = [int(word) for word in environment.get(VARIABLE, "").split(",") if word]
        is_ours = all(_is_ours(descriptor) for descriptor in descriptors)
    except (ValueError, OSError):
        return ()
    if not is_ours or len(descriptors) % VERSIONS:
        return ()
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return tuple(zip(*[iter(descriptors)] * VERSIONS, strict=True))


def _is_ours(descriptor: int) -> bool:
    """Whether the number still names our file: a program that wraps the script may close files."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(f"/memfd:{NAME}-")


# ---- available memory ------------------------------------------------------------------------------------


def memory_left_bytes(root: Path = Path("/")) -> int:
    """The memory left on this machine, or in the tightest control group of this process. Raises `OSError`."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    machine_bytes = int(_figures(lines).get("MemAvailable:", 0)) << 10
    return min([machine_bytes, *_left_in_groups(root)])


def _left_in_groups(root: Path) -> Iterator[int]:
    for group, (limit, used, cached) in _groups(root):
        with suppress(OSError, ValueError):  # the group is not visible from here, or has no limit
            limit_bytes = int((group / limit).read_text(encoding="ascii"))
            used_bytes = int((group / used).read_text(encoding="ascii"))
            stat = _figures((group / "memory.stat").read_text(encoding="ascii").splitlines())
            yield max(0, limit_bytes - used_bytes + stat.get(cached, 0))


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The control groups of this process and their parents, with the names of their files: the limit, the
    usage, and the part of the usage that the kernel can reclaim.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            places, names = [mounted, mounted / "unified"], _UNIFIED
        elif "memory" in controllers.split(","):
            places, names = [mounted / "memory"], _SEPARATE
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for group in (inside, *inside.parents):
            yield from ((place / group, names) for place in places)


_UNIFIED = ("memory.max", "memory.current", "inactive_file")
_SEPARATE = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""For control groups of version 2 and of version 1."""


def _figures(lines: list[str]) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    words = [line.split() for line in lines]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}
