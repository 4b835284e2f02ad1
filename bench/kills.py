"""The kills of a recovery benchmark: of a worker or a node, the time until all go on, and its phases."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.commits import Whole, read_commits, step_s, steps_lost, whole_steps
from bench.contestants import (
    HOLDFAST,
    NODES,
    POLL_INTERVAL_S,
    Contestant,
    Processes,
    Task,
    node_of,
)
from holdfast.record.events import GenerationOpened, MemberLost
from holdfast.record.journal import events_of

WARM_UP_STEPS = 20
"""Whole steps before a kill, of which the step time is taken."""
SETTLE_STEPS = 60
"""As many once Holdfast's warm processes have started, in which they load what they will need."""
RUN_STEPS = 300
"""A Holdfast run's length: enough for its kills, and short enough to be done again undisturbed."""
START_S_MAX = 180.0
RECOVERY_S_MAX = 90.0
PHASES = ("detect", "admit", "build", "abort", "group", "state", "first_step")

T = TypeVar("T")


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One kill and what came of it. shrunk_s: until the others went on without the lost one, if they did."""

    recovered_s: float
    step_s: float
    steps_lost: int
    shrunk_s: float | None = None


class Survival(msgspec.Struct, frozen=True, kw_only=True):
    """One Holdfast run: a killed worker, then a killed node, then the end.

    phases_s: how long it took until the loss was on record (detect), the warm process had its place (admit),
    it had built its model (build), the others had left the old group (abort), all were in the new one (group)
    and had the same state (state), all had committed (first_step).
    """

    worker: Recovery
    node: Recovery
    phases_s: dict[str, float]
    digest: str


class Undisturbed(msgspec.Struct, frozen=True, kw_only=True):
    """A Holdfast run without kills."""

    step_s: float
    digest: str


class Failed(Exception):
    """A contestant did not do the expected thing in time."""


def peer_recovery(peer: Contestant, task: Task, generator: random.Random) -> Recovery:
    """One kill of a worker of a peer. Raises `Failed`."""
    with Processes(peer.launches(task), task.folder) as processes:
        usual = settled(task.folder, processes, task.members + peer.spares)
        kill = Kill.of_worker(task.folder, processes, generator, usual)
        resumed = kill.awaited(task.members)
    shrunk = whole_steps(read_commits(task.folder), task.members - 1, after_ns=kill.at_ns)
    shrunk_s = (shrunk[0].at_ns - kill.at_ns) / 1e9 if shrunk else None
    return msgspec.structs.replace(kill.recovery(resumed), shrunk_s=shrunk_s)


def survival(folder: Path, members: int, generator: random.Random) -> Survival:
    """One run of Holdfast with its kills. Raises `Failed`."""
    with Processes(HOLDFAST.launches(_whole_run(folder, members)), folder) as processes:
        awaited(processes, lambda: _warm_processes_started(folder, members), START_S_MAX, "warm processes")
        usual = settled(folder, processes, members, after_ns=time.monotonic_ns(), steps=SETTLE_STEPS)
        kill = Kill.of_worker(folder, processes, generator, usual)
        resumed = kill.awaited(members)
        phases_s = replace_phases_s(folder, kill, resumed)
        usual = settled(folder, processes, members, after_ns=resumed.at_ns)
        node_kill = Kill.of_node(folder, processes, generator, usual)
        shrunk = node_kill.awaited(members - members // NODES)
        digest = _digest_at_end(folder, processes)
    return Survival(
        worker=kill.recovery(resumed), node=node_kill.recovery(shrunk), phases_s=phases_s, digest=digest
    )


def undisturbed(folder: Path, members: int) -> Undisturbed:
    """A run of Holdfast to its end. Raises `Failed`."""
    with Processes(HOLDFAST.launches(_whole_run(folder, members)), folder) as processes:
        digest = _digest_at_end(folder, processes)
    return Undisturbed(step_s=step_s(whole_steps(read_commits(folder), members)), digest=digest)


def _whole_run(folder: Path, members: int) -> Task:
    return Task(python=sys.executable, folder=folder, steps=RUN_STEPS, members=members)


class Kill:
    """What was killed, and when."""

    def __init__(self, folder: Path, processes: Processes, usual: list[Whole], pids: tuple[int, ...]) -> None:
        self._folder = folder
        self._processes = processes
        self._step_s = step_s(usual)
        self.before = usual[-1].processes
        self.pids = frozenset(pids)
        self.at_ns = time.monotonic_ns()
        self.at_wall_ns = time.time_ns()
        for pid in pids:
            with suppress(ProcessLookupError):  # a node's workers die with their agent
                os.kill(pid, signal.SIGKILL)

    @classmethod
    def of_worker(
        cls,
        folder: Path,
        processes: Processes,
        generator: random.Random,
        usual: list[Whole],
        among: Collection[int] | None = None,
    ) -> "Kill":
        """One of those that made the last step, or of some of them, at any moment of a step."""
        victim = generator.choice(sorted(among or usual[-1].processes - processes.spared))
        time.sleep(generator.uniform(0, step_s(usual)))
        return cls(folder, processes, usual, (victim,))

    @classmethod
    def of_node(
        cls,
        folder: Path,
        processes: Processes,
        generator: random.Random,
        usual: list[Whole],
        among: Collection[int] | None = None,
    ) -> "Kill":
        """The agent of one of those, and everything on its node."""
        node = node_of(generator.choice(sorted(among or usual[-1].processes)))
        time.sleep(generator.uniform(0, step_s(usual)))
        return cls(folder, processes, usual, node)

    def awaited(self, members: int) -> Whole:
        """The first step that so many members committed after it."""

        def whole() -> Whole | None:
            living = [each for each in read_commits(self._folder) if each.process not in self.pids]
            return next(iter(whole_steps(living, members, after_ns=self.at_ns)), None)

        return awaited(self._processes, whole, RECOVERY_S_MAX, f"a step of {members} members after a kill")

    def on_record(self, members: int) -> tuple[int, GenerationOpened]:
        """When the loss was noticed, by this machine's wall clock, and how so many regrouped after it."""

        def found() -> tuple[int, GenerationOpened] | None:
            events = events_of(self._folder / "home")
            after = [event for event in events if event.recorded_ns >= self.at_wall_ns]
            # The cause of a member's death is known a moment later, and only then is its loss recorded.
            losses = [event.occurred_ns for event in after if isinstance(event, MemberLost)]
            lost_ns = [at_ns for at_ns in losses if at_ns >= self.at_wall_ns]
            whole = [
                event
                for event in after
                if isinstance(event, GenerationOpened) and len(event.members) == members
            ]
            return (min(lost_ns), whole[0]) if lost_ns and whole else None

        return awaited(self._processes, found, RECOVERY_S_MAX, "the record of a recovery")

    def recovery(self, resumed: Whole) -> Recovery:
        return Recovery(
            recovered_s=(resumed.at_ns - self.at_ns) / 1e9,
            step_s=self._step_s,
            steps_lost=steps_lost(read_commits(self._folder), resumed, self.at_ns),
        )


def awaited(processes: Processes, found: Callable[[], T | None], limit_s: float, what: str) -> T:
    """The first result of `found` other than None. Raises `Failed` if time runs out."""
    deadline = time.monotonic() + limit_s
    while (result := found()) is None:
        if processes.finished() or time.monotonic() > deadline:
            raise Failed(f"waited for {what} in vain; the last words:\n{processes.last_words()}")
        time.sleep(POLL_INTERVAL_S)
    return result


def settled(
    folder: Path,
    processes: Processes,
    members: int,
    *,
    after_ns: int = 0,
    steps: int = WARM_UP_STEPS,
) -> list[Whole]:
    """The last whole steps, once so many have been made after that moment."""

    def enough() -> list[Whole] | None:
        whole = whole_steps(read_commits(folder), members, after_ns=after_ns)
        return whole[-WARM_UP_STEPS:] if len(whole) >= steps else None

    return awaited(processes, enough, START_S_MAX, f"{steps} steps of {members} members")


def _warm_processes_started(folder: Path, members: int) -> bool | None:
    return True if len(list(folder.glob("*.marks"))) >= members + NODES else None


def _digest_at_end(folder: Path, processes: Processes) -> str:
    """The digest of all remaining members at the end; they must agree."""
    awaited(processes, lambda: processes.finished() or None, START_S_MAX, "the end")
    digests = {file.read_text(encoding="ascii") for file in folder.glob("*.digest")}
    if len(digests) != 1:
        raise Failed(f"ended with {len(digests)} digests; the last words:\n{processes.last_words()}")
    return digests.pop()


def shrink_phases_s(kill: Kill, resumed: Whole) -> dict[str, float]:
    """The phases of going on without the lost members: no process is admitted, and no model built."""
    lost_wall_ns, opened = kill.on_record(len(resumed.processes))
    parts_ns = {"abort": opened.abort_ns, "group": opened.group_ns, "state": opened.state_ns}
    phases_s = {"detect": (lost_wall_ns - kill.at_wall_ns) / 1e9}
    phases_s |= {phase: (took_ns or 0) / 1e9 for phase, took_ns in parts_ns.items()}
    return {**phases_s, "first_step": (resumed.at_ns - kill.at_ns) / 1e9 - sum(phases_s.values())}


def replace_phases_s(folder: Path, kill: Kill, resumed: Whole) -> dict[str, float]:
    """The phases of the replacement, for which all others wait."""
    newcomers = resumed.processes - kill.before
    if len(newcomers) != 1:
        raise Failed(f"{len(newcomers)} processes came after the kill of one")
    (replacement,) = newcomers
    lines = (folder / f"{replacement}.marks").read_text(encoding="ascii").splitlines()
    marks = {mark: int(at_ns) for mark, at_ns in map(str.split, lines)}
    lost_wall_ns, opened = kill.on_record(len(kill.before))
    # Regrouping begins with the slowest member to leave and ends with the state; the others wait for it, so
    # the time between the two is the time to meet.
    regrouped_ns = marks["resumed"]
    met_ns = max(marks["ready"], regrouped_ns - (opened.state_ns or 0))
    left_ns = min(met_ns, marks["ready"] + (opened.abort_ns or 0))
    moments = (
        kill.at_ns,
        kill.at_ns + lost_wall_ns - kill.at_wall_ns,
        marks["joined"],
        marks["ready"],
        left_ns,
        met_ns,
        regrouped_ns,
        resumed.at_ns,
    )
    return {
        phase: (after - before) / 1e9
        for phase, before, after in zip(PHASES, moments, moments[1:], strict=False)
    }
