"""The faults of `holdfast bench faults`, each made for real in a live run.

A new fault is a new entry. A fault strikes a run (`LiveRun`), returns its targets and its time, and names
what the record must have: a fault of that name for exactly those subjects, or an action.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bench.contestants import SCRIPTS, Launch, Processes, parent_of
from bench.kills import Failed, awaited
from holdfast.record.events import ActionTaken, AnyEvent, FaultObserved, GenerationOpened, StepCommitted
from holdfast.record.journal import JOURNAL_DIRECTORY, events_of

NODES, SLOTS = 2, 2
STEPS = 240
STRIKE_STEPS = (40, 80)
"""The run is struck between these steps; the rest is for the recovery."""
STRIKE_S_MAX = 0.2
"""The strike comes at any moment within this time."""
AHEAD = 8
"""A script acts this many steps later: by then all of its members have read the order."""
START_S_MAX, END_S_MAX = 240.0, 300.0
COMMAND_S_MAX = 120.0
NAME = "drilled"
SLOW = "slow member"


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """at_ns: when, by the wall clock. subjects: the members or nodes that must be named."""

    at_ns: int
    subjects: tuple[str, ...]


class LiveRun:
    """Four members on two nodes, each with a warm process, in a folder of its own. A context."""

    def __init__(self, folder: Path, *, steps: int = STEPS, noise: bool = False) -> None:
        self.folder = folder
        flags = ("--run", NAME, "--nodes", str(NODES), "--nproc-per-node", str(SLOTS), "--warm", "1")
        script = (str(SCRIPTS / "drilled.py"), "--folder", str(folder), "--steps", str(steps))
        more = ("--noise",) if noise else ()
        self._environment = {"HOLDFAST_HOME": str(folder / "home")}
        command = (
            sys.executable,
            "-m",
            "holdfast",
            "run",
            *flags,
            "--checkpoint-every",
            "100",
            *script,
            *more,
        )
        self._processes = Processes((Launch(arguments=command, environment=self._environment),), folder)

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.__exit__(None, None, None)

    def events(self) -> list[AnyEvent]:
        home = self.folder / "home"
        return events_of(home) if (home / JOURNAL_DIRECTORY).exists() else []

    def await_moment(self, generator: random.Random) -> None:
        """Wait until all warm processes have started, and then for a random step and moment. They may still
        be warming up.
        """
        step = generator.randint(*STRIKE_STEPS)

        def come() -> bool | None:
            joined = {event.subject for event in self.events() if event.subject.count(".") == 1}
            return True if self.reached() >= step and len(joined) >= NODES * (SLOTS + 1) else None

        awaited(self._processes, come, START_S_MAX, f"step {step}")
        time.sleep(generator.uniform(0, STRIKE_S_MAX))

    def reached(self) -> int:
        """The last step that was committed."""
        return max((event.step for event in self.events() if isinstance(event, StepCommitted)), default=0)

    def members(self) -> tuple[str, ...]:
        return [event for event in self.events() if isinstance(event, GenerationOpened)][-1].members

    def pid_of(self, member: str) -> int:
        return int((self.folder / f"{member}.pid").read_text(encoding="ascii"))

    def signalled(self, pid: int, number: signal.Signals) -> int:
        os.kill(pid, number)
        return time.time_ns()

    def act(self, act: str, members: Sequence[str]) -> int:
        """Make it happen in the script of those members. Return when it did in the last of them."""
        written = self.folder / "strike.part"
        since = self.reached() + AHEAD  # in the same step on all: a member past it would wait for the others
        written.write_text(" ".join((act, str(since), *members)), encoding="ascii")
        written.rename(self.folder / "strike")
        if act == "slow":
            return time.time_ns()
        marks = [self.folder / f"{member}.struck" for member in members]

        def come() -> int | None:
            with suppress(FileNotFoundError, ValueError):
                return max(int(mark.read_text(encoding="ascii")) for mark in marks)
            return None

        return awaited(self._processes, come, COMMAND_S_MAX, act)

    def told(self, *words: str) -> int:
        """Run an operator's command. Return when it was given."""
        at_ns = time.time_ns()
        done = subprocess.run(
            (sys.executable, "-m", "holdfast", *words),
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        if done.returncode:
            raise Failed(f"holdfast {' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return at_ns

    def digest(self) -> str:
        """The digest of all members at the end. Raises `Failed` if the run failed, or they differ."""
        awaited(self._processes, lambda: self._processes.finished() or None, END_S_MAX, "the end")
        if not self._processes.succeeded():
            raise Failed(f"the run failed; the last words:\n{self._processes.last_words()}")
        digests = {file.read_text(encoding="ascii") for file in self.folder.glob("*.digest")}
        if len(digests) != 1:
            raise Failed(f"ended with {len(digests)} digests")
        return digests.pop()


def alone(folder: Path) -> str:
    """The digest of one member by itself."""
    told = ("--folder", str(folder), "--steps", str(STEPS), "--lane-s", "0")
    script = (sys.executable, str(SCRIPTS / "drilled.py"), *told)
    environment = {"HOLDFAST_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        script, env={**os.environ, **environment}, capture_output=True, timeout=END_S_MAX, check=True
    )
    (file,) = folder.glob("*.digest")
    return file.read_text(encoding="ascii")


Strike = Callable[[LiveRun, random.Random], Struck]


class LiveFault(msgspec.Struct, frozen=True, kw_only=True):
    """found_as: the fault in the record, one for each subject; empty: the record has the action instead."""

    name: str
    what: str
    strike: Strike
    found_as: str = ""
    action: str = ""

    def found(self, events: Sequence[AnyEvent], struck: Struck) -> tuple[int | None, bool]:
        """When the record first had it, and whether it names those subjects, and no other. Findings of slow
        members do not count, unless that is the fault: a busy machine slows others down, too.
        """
        since = [event for event in events if event.recorded_ns >= struck.at_ns]
        faults = [
            event
            for event in since
            if isinstance(event, FaultObserved) and (event.fault != SLOW or self.found_as == SLOW)
        ]
        if self.found_as:
            named = [event for event in faults if event.fault == self.found_as]
            is_right = {event.subject for event in faults} == {*struck.subjects} and bool(named)
            first_ns = [event.occurred_ns for event in named]
        else:
            actions = [event for event in since if isinstance(event, ActionTaken)]
            done = [event for event in actions if event.action == self.action]
            is_right = not faults and {event.subject for event in done} == {*struck.subjects}
            first_ns = [event.occurred_ns for event in done]
        return min(first_ns, default=None), is_right


def on_member(act: Callable[[LiveRun, str], int], *, count: int = 1) -> Strike:
    """Strike `count` members at random."""

    def strike(run: LiveRun, generator: random.Random) -> Struck:
        victims = generator.sample(sorted(run.members()), count)
        return Struck(at_ns=max(act(run, victim) for victim in victims), subjects=tuple(victims))

    return strike


def in_script(act: str, *, count: int = 1) -> Strike:
    def strike(run: LiveRun, generator: random.Random) -> Struck:
        victims = generator.sample(sorted(run.members()), count)
        return Struck(at_ns=run.act(act, victims), subjects=tuple(victims))

    return strike


def stop_agent(run: LiveRun, generator: random.Random) -> Struck:
    victim = generator.choice(sorted(run.members()))
    at_ns = run.signalled(parent_of(run.pid_of(victim)), signal.SIGSTOP)
    return Struck(at_ns=at_ns, subjects=(victim.partition(".")[0],))


def migrate(run: LiveRun, member: str) -> int:
    return run.told("migrate", NAME, member)


def drain(run: LiveRun, generator: random.Random) -> Struck:
    """Drain a node, and restore it."""
    node = generator.choice(sorted(run.members())).partition(".")[0]
    at_ns = run.told("drain", node, "--run", NAME)
    run.told("restore", node, "--run", NAME)
    return Struck(at_ns=at_ns, subjects=(node,))


def kill(run: LiveRun, member: str) -> int:
    return run.signalled(run.pid_of(member), signal.SIGKILL)


def stop(run: LiveRun, member: str) -> int:
    return run.signalled(run.pid_of(member), signal.SIGSTOP)


FAULTS: tuple[LiveFault, ...] = (
    LiveFault(name="kill", what="SIGKILL of a member", strike=on_member(kill), found_as="SIGKILL"),
    LiveFault(name="stop", what="SIGSTOP of a member", strike=on_member(stop), found_as="stopped"),
    LiveFault(name="stop-agent", what="SIGSTOP of an agent", strike=stop_agent, found_as="agent stopped"),
    LiveFault(
        name="loop", what="an endless loop on a member", strike=in_script("loop"), found_as="endless loop"
    ),
    LiveFault(
        name="loader",
        what="a data loader that never returns",
        strike=in_script("loader"),
        found_as="data loader stuck",
    ),
    LiveFault(
        name="lock",
        what="two threads of a member wait for each other's locks",
        strike=in_script("lock"),
        found_as="deadlock on a lock",
    ),
    LiveFault(
        name="members",
        what="two members wait for each other",
        strike=in_script("members", count=2),
        found_as="deadlock between members",
    ),
    LiveFault(
        name="slow",
        what="a member takes three times as long for a lane",
        strike=in_script("slow"),
        found_as=SLOW,
    ),
    LiveFault(name="migrate", what="a member is migrated", strike=on_member(migrate), action="migrate"),
    LiveFault(name="drain", what="a node is drained, and restored", strike=drain, action="drain"),
)
