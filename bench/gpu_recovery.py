"""Kills with a stopwatch, for `holdfast bench gpu`: many in one run, of Holdfast's and of torchrun's.

The nodes of a run take turns. A worker is killed on a node whose warm process waits in `join()`, and is
replaced. Then the whole node is killed, the others go on, and the next turn begins when it is back.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import losses
from bench.commits import Whole
from bench.contestants import RESTARTS_MAX, UNBOUNDED_STEPS, Processes, Task, torchrun
from bench.gpu_runs import Plan, Training, members
from bench.kills import (
    START_S_MAX,
    Failed,
    Kill,
    Recovery,
    awaited,
    replace_phases_s,
    settled,
    shrink_phases_s,
)
from holdfast.record.journal import events_of
from holdfast.run.wire import FaultKind

SETTLE_STEPS = 4
"""Whole steps before each kill, of which the step time is taken."""
RANK_SETTLE_STEPS = 2
"""As many of torchrun's: each of them writes a checkpoint."""
SEED = 1
QUIET_S = 1.0
QUIET_LOOKS = 10
QUIET_CPU_S_MAX = 0.1
"""A process that sleeps at every look and uses less processor time than this is ready, and waits."""
QUIET_S_MAX = 30.0
SLEEPING = "S"
GONE = ("", "Z", "X")
NCCL_PHASES = ("abort", "group", "state")


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """One kill in a Holdfast run, and where its time went."""

    recovery: Recovery
    phases_s: dict[str, float]


class Recoveries(msgspec.Struct, frozen=True, kw_only=True):
    """All kills of one run of Holdfast. failure: why there are fewer than planned."""

    replaced: tuple[Recovered, ...]
    shrunk: tuple[Recovered, ...]
    survivors_lost: list[str]
    failure: str = ""


class Restarts(msgspec.Struct, frozen=True, kw_only=True):
    """All kills of one run of torchrun."""

    restarted: tuple[Recovery, ...]
    failure: str = ""


def kill_members(plan: Plan) -> Recoveries:
    """Kill workers and nodes of one run. Raises `Failed`."""
    generator = random.Random(SEED)
    training = Training(
        name="recovery", nodes=plan.members_max, steps=UNBOUNDED_STEPS, size=plan.size, warm=1
    )
    with plan.folder("recovery") as folder:
        with Processes((members(folder, training),), folder) as processes:
            bout = Bout(plan, folder, processes, generator)
            failure = ""
            try:
                for number in range(plan.repetitions):
                    bout.turn(f"n{number % plan.members_max}")
            except Failed as failed:
                if not bout.shrunk:
                    raise
                failure = str(failed)
            events = events_of(folder / "home")
        return Recoveries(
            replaced=tuple(bout.replaced),
            shrunk=tuple(bout.shrunk),
            survivors_lost=losses.survivors_lost(events, bout.strikes),
            failure=failure,
        )


class Bout:
    """A run of Holdfast in which one node after the other is struck, twice each time."""

    def __init__(self, plan: Plan, folder: Path, processes: Processes, generator: random.Random) -> None:
        self._nodes = plan.members_max
        self._tell = plan.tell
        self._folder = folder
        self._processes = processes
        self._generator = generator
        self._after_ns = 0
        self.replaced: list[Recovered] = []
        self.shrunk: list[Recovered] = []
        self.strikes: list[losses.Strike] = []

    def turn(self, node: str) -> None:
        """Kill the node's worker, and then all of it."""
        self._settle()
        await_warm(self._folder, self._processes, node)
        usual = self._settle()
        kill = self._kill(usual, node, Kill.of_worker, "kill")
        resumed = kill.awaited(self._nodes)
        phases_s = replace_phases_s(self._folder, kill, resumed)
        self._note(self.replaced, kill, resumed, phases_s, "replaced")
        usual = self._settle()
        kill = self._kill(usual, node, Kill.of_node, "node")
        resumed = kill.awaited(self._nodes - 1)
        self._note(self.shrunk, kill, resumed, shrink_phases_s(kill, resumed), "gone on without a node")

    def _settle(self) -> list[Whole]:
        found = settled(
            self._folder, self._processes, self._nodes, after_ns=self._after_ns, steps=SETTLE_STEPS
        )
        return found[-SETTLE_STEPS:]

    def _kill(self, usual: list[Whole], node: str, way: Callable[..., Kill], fault: FaultKind) -> Kill:
        names = member_names(self._folder)
        (victim,) = [pid for pid in usual[-1].processes if names[pid].startswith(f"{node}.")]
        self.strikes.append(losses.Strike(member=names[victim], fault=fault))
        return way(self._folder, self._processes, self._generator, usual, [victim])

    def _note(
        self, found: list[Recovered], kill: Kill, resumed: Whole, phases_s: dict[str, float], what: str
    ) -> None:
        recovered = Recovered(recovery=kill.recovery(resumed), phases_s=phases_s)
        found.append(recovered)
        self._after_ns = resumed.at_ns
        self._tell(f"recovery: {what} in {recovered.recovery.recovered_s:.2f} s")


def kill_ranks(plan: Plan) -> Restarts:
    """Kill workers of torchrun, which restarts all ranks each time. Raises `Failed`."""
    generator = random.Random(SEED)
    found: list[Recovery] = []
    failure, nodes = "", plan.members_max
    with plan.folder("torchrun") as folder:
        task = Task(python=sys.executable, folder=folder, members=nodes)
        ranks = torchrun(task, script="gpu_ddp.py", more=("--size", plan.size))
        with Processes(ranks, folder) as processes:
            after_ns = 0
            try:
                for _ in range(min(plan.repetitions, RESTARTS_MAX)):
                    usual = settled(folder, processes, nodes, after_ns=after_ns, steps=RANK_SETTLE_STEPS)
                    kill = Kill.of_worker(folder, processes, generator, usual)
                    resumed = kill.awaited(nodes)
                    after_ns = resumed.at_ns
                    found.append(kill.recovery(resumed))
                    plan.tell(f"torchrun: restarted in {found[-1].recovered_s:.2f} s")
            except Failed as failed:
                if not found:
                    raise
                failure = str(failed)
    return Restarts(restarted=tuple(found), failure=failure)


def member_names(folder: Path) -> dict[int, str]:
    """Which process is which member, warm ones included."""
    return {int(file.stem): file.read_text(encoding="ascii") for file in folder.glob("*.member")}


def await_warm(folder: Path, processes: Processes, node: str) -> None:
    """Wait until the node has a process that is ready and waits in `join()`."""

    def waiting() -> int | None:
        names = member_names(folder)
        on_node = [pid for pid, name in names.items() if name.startswith(f"{node}.")]
        return next((pid for pid in on_node if _is_waiting(folder, pid)), None)

    pid = awaited(processes, waiting, START_S_MAX, f"a warm process on {node}")
    deadline = time.monotonic() + QUIET_S_MAX
    while time.monotonic() < deadline and not _is_quiet(pid):
        pass


def _is_waiting(folder: Path, pid: int) -> bool:
    file = folder / f"{pid}.marks"
    marks = file.read_text(encoding="ascii") if file.exists() else ""
    return "started" in marks and "joined" not in marks and _cpu_s(pid)[0] not in GONE


def _is_quiet(pid: int) -> bool:
    _, before_s = _cpu_s(pid)
    states = set()
    for _ in range(QUIET_LOOKS):
        time.sleep(QUIET_S / QUIET_LOOKS)
        state, now_s = _cpu_s(pid)
        states.add(state)
    return states == {SLEEPING} and now_s - before_s <= QUIET_CPU_S_MAX


def _cpu_s(pid: int) -> tuple[str, float]:
    """Its main thread's state, empty where it is gone, and how long all of it has computed."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0.0
    fields = status.rpartition(")")[2].split()  # man 5 proc: behind the name come state, …, utime, stime
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
