"""The faults of `holdfast bench faults`, each made for real in a live run.

A new fault is a new entry. A fault strikes a run (`LiveRun`), returns its targets and its time, and names
what the record must have: a fault of that name for exactly those subjects, or an action.
"""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from bench.contestants import SCRIPTS, Launch, Processes, parent_of
from bench.kills import Failed, awaited
from bench.machines import NetworkedMachine, Site, Way, network
from holdfast.record.errors import HoldfastError
from holdfast.record.events import (
    TAKE_OVER,
    ActionTaken,
    AnyEvent,
    FaultObserved,
    GenerationOpened,
    StepCommitted,
)
from holdfast.record.journal import JOURNAL_DIRECTORY, events_of
from holdfast.run.endpoint import Endpoint, find_endpoint
from holdfast.run.estate import OUTLIVES

NODES, SLOTS = 2, 2
MACHINES = 4
SITE = Site(prefix="hb", subnet="10.79.0")
PORT = 29400
STEPS = 240
STEPS_ELSEWHERE, STEPS_HEALED = 500, 1000
"""Of runs on several machines: a lost one is given up after some 11 s, and one that is back starts anew."""
STRIKE_STEPS = (40, 80)
"""The run is struck between these steps; the rest is for the recovery."""
STRIKE_S_MAX = 0.2
"""The strike comes at any moment within this time."""
AHEAD = 8
"""A script acts this many steps later: by then all of its members have read the order."""
START_S_MAX, END_S_MAX = 240.0, 900.0
COMMAND_S_MAX = 120.0
NAME = "drilled"
SLOW = "slow member"
WAYS: tuple[Way, ...] = ("in", "out")


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """at_ns: when, by the wall clock. subjects: the members or nodes that must be named."""

    at_ns: int
    subjects: tuple[str, ...]


class LiveRun:
    """Four members in a folder of its own: on two nodes of this machine, each with a warm process, or on
    machines of their own; the first one has the coordinator. A context.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int = STEPS,
        noise: bool = False,
        machines: Sequence[NetworkedMachine] = (),
    ) -> None:
        self.folder = folder
        self.machines = machines
        script = (str(SCRIPTS / "drilled.py"), "--folder", str(folder), "--steps", str(steps))
        self._script = (*script, *(("--noise",) if noise else ()))
        self._homes = [folder / f"home-{number}" for number in range(max(1, len(machines)))]
        self._environment = {"HOLDFAST_HOME": str(self._homes[0])}
        self._processes = Processes(self._on_machines() if machines else (self._on_nodes(),), folder)

    def _on_nodes(self) -> Launch:
        flags = ("--nodes", str(NODES), "--nproc-per-node", str(SLOTS), "--warm", "1")
        return Launch(arguments=self._command(*flags), environment=self._environment)

    def _on_machines(self) -> tuple[Launch, ...]:
        """A launcher on each machine, with a home of its own."""
        token = secrets.token_hex()
        place = ("--coordinator", f"{self.machines[0].address}:{PORT}")
        flags = ("--nnodes", f"1:{MACHINES}", "--nproc-per-node", "1", "--warm", "0", *place)
        return tuple(
            Launch(
                arguments=(*machine.prefix, *self._command(*flags, "--node-rank", str(machine.number))),
                environment={"HOLDFAST_HOME": str(self._homes[machine.number]), "HOLDFAST_TOKEN": token},
            )
            for machine in self.machines
        )

    def _command(self, *flags: str) -> tuple[str, ...]:
        run = (sys.executable, "-m", "holdfast", "run", "--run", NAME, *flags, "--checkpoint-every", "100")
        return (*run, *self._script)

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.__exit__(None, None, None)

    def events(self) -> list[AnyEvent]:
        """All events, in the order in which they were recorded. Every coordinator records in its own home."""
        homes = [home for home in self._homes if (home / JOURNAL_DIRECTORY).exists()]
        found = {(type(event), event.id): event for home in homes for event in events_of(home)}
        return sorted(found.values(), key=lambda event: event.recorded_ns)

    def endpoint(self) -> Endpoint:
        """The endpoint of the first coordinator, once it has a successor."""

        def come() -> Endpoint | None:
            found = find_endpoint(self._homes[0], NAME)
            return found if found.successor else None

        return awaited(self._processes, come, COMMAND_S_MAX, "the coordinator's successor")

    def await_moment(self, generator: random.Random) -> None:
        """Wait until all warm processes have started, or the run would outlive its first machine, and then
        for a random step and moment. Warm processes may still be warming up.
        """

        def is_whole() -> bool:
            if self.machines:
                return OUTLIVES in self._processes.output() and len(self.members()) == MACHINES
            joined = {event.subject for event in self.events() if event.subject.count(".") == 1}
            return len(joined) >= NODES * (SLOTS + 1)

        awaited(self._processes, lambda: is_whole() or None, START_S_MAX, "all processes")
        step = (
            self.reached() + generator.randint(0, 20) if self.machines else generator.randint(*STRIKE_STEPS)
        )
        awaited(self._processes, lambda: self.reached() >= step or None, START_S_MAX, f"step {step}")
        time.sleep(generator.uniform(0, STRIKE_S_MAX))

    def await_members(self, count: int) -> None:
        """Wait for a generation of so many members."""

        def come() -> bool | None:
            return len(self.members()) == count or None

        awaited(self._processes, come, COMMAND_S_MAX, f"a generation of {count} members")

    def reached(self) -> int:
        """The last step that was committed."""
        return max((event.step for event in self.events() if isinstance(event, StepCommitted)), default=0)

    def members(self) -> tuple[str, ...]:
        return members_of(self.events())

    def pid_of(self, member: str) -> int:
        return int((self.folder / f"{member}.pid").read_text(encoding="ascii"))

    def kill_machine(self, number: int) -> int:
        at_ns = time.time_ns()
        self._processes.kill(number)
        return at_ns

    def signalled(self, pid: int, number: signal.Signals) -> int:
        """Send the signal. Return the time before it, because the record may have it before this returns."""
        at_ns = time.time_ns()
        os.kill(pid, number)
        return at_ns

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


def members_of(events: Iterable[AnyEvent]) -> tuple[str, ...]:
    """The members of the newest generation. Before the first one there are none."""
    opened = [event for event in events if isinstance(event, GenerationOpened)]
    return opened[-1].members if opened else ()


def alone(folder: Path, steps: int) -> str:
    """The digest of one member by itself."""
    told = ("--folder", str(folder), "--steps", str(steps), "--lane-s", "0")
    script = (sys.executable, str(SCRIPTS / "drilled.py"), *told)
    environment = {"HOLDFAST_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    try:
        subprocess.run(
            script, env={**os.environ, **environment}, stdout=sys.stderr, timeout=END_S_MAX, check=True
        )
    except subprocess.SubprocessError as error:
        raise HoldfastError(
            f"The run of one member, with which the others are compared, failed: {error}.",
            hint="A machine that is too busy to end it in time is too busy for this benchmark.",
        ) from None
    (file,) = folder.glob("*.digest")
    return file.read_text(encoding="ascii")


Strike = Callable[[LiveRun, random.Random], Struck]


class LiveFault(msgspec.Struct, frozen=True, kw_only=True):
    """found_as: the fault in the record, one for each subject; empty: the record has the action instead, for
    each subject. With both, it must have the action as well. machines: how many the run is on; only root can
    make several. returns: at the end the run has all its members again.
    """

    name: str
    what: str
    strike: Strike
    found_as: str = ""
    action: str = ""
    steps: int = STEPS
    machines: int = 0
    returns: bool = False

    @contextmanager
    def run(self, folder: Path) -> Iterator[LiveRun]:
        with ExitStack() as stack:
            machines = stack.enter_context(network(SITE, self.machines)) if self.machines else ()
            yield stack.enter_context(LiveRun(folder, steps=self.steps, machines=machines))

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
        done = [event for event in since if isinstance(event, ActionTaken) and event.action == self.action]
        named = [event for event in faults if event.fault == self.found_as]
        first: Sequence[AnyEvent]
        if self.found_as:
            is_right = {event.subject for event in faults} == {*struck.subjects} and bool(named)
            is_right, first = is_right and (bool(done) or not self.action), named
        else:
            is_right, first = not faults and {event.subject for event in done} == {*struck.subjects}, done
        if self.returns:
            is_right = is_right and len(members_of(events)) == self.machines
        return min((event.occurred_ns for event in first), default=None), is_right


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
    at_ns = run.told("drain", NAME, node)
    run.told("restore", NAME, node)
    return Struck(at_ns=at_ns, subjects=(node,))


def kill_coordinator(run: LiveRun, _: random.Random) -> Struck:
    return Struck(at_ns=run.signalled(run.endpoint().pid, signal.SIGKILL), subjects=("coordinator",))


def kill_coordinator_and_member(run: LiveRun, generator: random.Random) -> Struck:
    coordinator, victim = run.endpoint().pid, generator.choice(sorted(run.members()))
    at_ns = run.signalled(run.pid_of(victim), signal.SIGKILL)
    run.signalled(coordinator, signal.SIGKILL)
    return Struck(at_ns=at_ns, subjects=(victim,))


def kill_machine(run: LiveRun, _: random.Random) -> Struck:
    """SIGKILL to all that the run has on the coordinator's machine."""
    return Struck(at_ns=run.kill_machine(0), subjects=("n0",))


def cut_off(ways: Callable[[random.Random], tuple[Way, ...]], *, among: Sequence[int]) -> Strike:
    """Cut one of these machines off until it has been given up; then heal its connection."""

    def strike(run: LiveRun, generator: random.Random) -> Struck:
        machine = run.machines[generator.choice(among)]
        at_ns = time.time_ns()
        machine.cut(*ways(generator))
        run.await_members(MACHINES - 1)
        machine.heal()
        return Struck(at_ns=at_ns, subjects=(f"n{machine.number}",))

    return strike


def both_ways(_: random.Random) -> tuple[Way, ...]:
    return ("in", "out")


def one_way(generator: random.Random) -> tuple[Way, ...]:
    return (generator.choice(WAYS),)


def kill(run: LiveRun, member: str) -> int:
    return run.signalled(run.pid_of(member), signal.SIGKILL)


def stop(run: LiveRun, member: str) -> int:
    return run.signalled(run.pid_of(member), signal.SIGSTOP)


def cut(name: str, what: str, strike: Strike, *, action: str = "") -> LiveFault:
    """A machine that is cut off is given up, and its node is back at the end."""
    return LiveFault(
        name=name,
        what=what,
        strike=strike,
        found_as="node lost",
        action=action,
        steps=STEPS_HEALED,
        machines=MACHINES,
        returns=True,
    )


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
    LiveFault(
        name="coordinator", what="SIGKILL of the coordinator", strike=kill_coordinator, action=TAKE_OVER
    ),
    LiveFault(
        name="coordinator-member",
        what="SIGKILL of the coordinator and a member",
        strike=kill_coordinator_and_member,
        found_as="SIGKILL",
        action=TAKE_OVER,
    ),
    LiveFault(
        name="machine",
        what="SIGKILL of all processes on the coordinator's machine",
        strike=kill_machine,
        found_as="node lost",
        action=TAKE_OVER,
        steps=STEPS_ELSEWHERE,
        machines=MACHINES,
    ),
    cut(
        "cut-coordinator",
        "the coordinator's machine is cut off, and comes back",
        cut_off(both_ways, among=(0,)),
        action=TAKE_OVER,
    ),
    cut(
        "cut-one-way",
        "the coordinator's machine cannot send, or cannot receive, and comes back",
        cut_off(one_way, among=(0,)),
        action=TAKE_OVER,
    ),
    cut(
        "cut-machine",
        "another machine is cut off, and comes back",
        cut_off(both_ways, among=range(1, MACHINES)),
    ),
)
