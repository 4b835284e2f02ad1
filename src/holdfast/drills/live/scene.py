"""A live run before a drill: its members and their processes, from the record and the kernel."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from holdfast.record import events
from holdfast.run.endpoint import Endpoint

USUAL_STEPS = 50
"""The usual step time is the median of this many last steps."""
AGENT = b"holdfast.run.agent"
PROC = Path("/proc")


class LiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """pid, agent: of its process and of its agent; 0 if not on this machine."""

    name: str
    node: str
    gpus: int = 1
    pid: int = 0
    agent: int = 0
    address: str = ""


class LiveScene(msgspec.Struct, frozen=True, kw_only=True):
    """step_s: the usual step time; None if unknown. place: of the last checkpoint. saves_s: the time between
    the last two checkpoints; None if there were fewer."""

    run: str
    members: tuple[LiveMember, ...]
    coordinator: int
    successor: int
    step_s: float | None
    place: str
    saves_s: float | None = None

    @property
    def gpus(self) -> int:
        return sum(one.gpus for one in self.members)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({one.node for one in self.members}))

    def on(self, node: str) -> tuple[LiveMember, ...]:
        return tuple(one for one in self.members if one.node == node)

    def member(self, name: str) -> LiveMember | None:
        return next((one for one in self.members if one.name == name), None)


def seen(run: str, endpoint: Endpoint, recorded: Iterable[events.AnyEvent]) -> LiveScene:
    """The run's present state. recorded: its events, oldest first."""
    joined: dict[str, events.MemberJoined] = {}
    generation: tuple[str, ...] = ()
    place = ""
    commits: list[int] = []
    saves: list[int] = []
    for event in recorded:
        match event:
            case events.MemberJoined(subject=subject):
                joined[subject] = event
            case events.GenerationOpened(members=members):
                generation = members
            case events.CheckpointSaved(place=saved, occurred_ns=at_ns):
                place = saved or place
                saves.append(at_ns)
            case events.StepCommitted(occurred_ns=at_ns):
                commits.append(at_ns)
    processes = dict(_processes(endpoint.token))
    found = []
    for name in generation:
        pid, agent, address = processes.get(name, (0, 0, ""))
        known = joined.get(name)
        node = known.node if known is not None and known.node else name.partition(".")[0]
        gpus = known.gpus if known is not None else 1
        found.append(LiveMember(name=name, node=node, gpus=gpus, pid=pid, agent=agent, address=address))
    return LiveScene(
        run=run,
        members=tuple(found),
        coordinator=endpoint.pid,
        successor=endpoint.successor,
        step_s=usual_step_s(commits),
        place=place,
        saves_s=(saves[-1] - saves[-2]) / 1e9 if len(saves) > 1 else None,
    )


def usual_step_s(commits_ns: list[int]) -> float | None:
    gaps = [after - before for before, after in pairwise(commits_ns[-USUAL_STEPS - 1 :])]
    return median(gaps) / 1e9 if gaps else None


def _processes(token: str) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """Each member's process, its agent's, and its address, on this machine and of this user.

    The run is identified by its token: another home may have a run of the same name.
    """
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError):  # it is gone, or another user's
            variables = environment_of(int(entry.name))
            if variables.get("HOLDFAST_TOKEN") != token or "HOLDFAST_MEMBER" not in variables:
                continue
            parent = parent_of(int(entry.name))
            if AGENT in (PROC / str(parent) / "cmdline").read_bytes():
                where = (int(entry.name), parent, variables.get("HOLDFAST_ADDRESS", ""))
                yield variables["HOLDFAST_MEMBER"], where


def environment_of(pid: int) -> dict[str, str]:
    words = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(word).partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def started_ticks(pid: int) -> int:
    """The start time of the process, which identifies it even if its number is reused; 0 if it is gone."""
    try:
        return int(_stat(pid)[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_zombie(pid: int) -> bool:
    """Whether the process has ended: its parent has not waited for it yet, or it is gone."""
    with suppress(OSError):
        return _stat(pid)[0] == "Z"
    return True


def _stat(pid: int) -> list[str]:
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
