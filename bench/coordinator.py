"""`holdfast bench coordinator`: one real coordinator, and members that are connections without torch.

Each member sends the messages of a real one: it beats, joins, regroups by the same keys and commits. They all
live in this process, so that one machine holds thousands of them; the coordinator has a process of its own,
and so have its successor and the heirs that follow it. It is compared with its own growth: the cost of 64
times as many members.
"""

import asyncio
import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from statistics import median

import click
import msgspec
from rich.console import Console
from rich.table import Table

from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.record.errors import HoldfastError, InputError
from holdfast.run import wire
from holdfast.run.handshake import Entry, HandshakeClient
from holdfast.run.link import beat_interval_s
from holdfast.run.succession import ELECTORS_MAX

HOST = "127.0.0.1"
SLOTS = 8
"""Members on a node."""
STEPS = 20
LOSSES = 3
WAIT_S = 600.0
TOLD = (("seat", 160), ("card", 60))
"""The messages of a member to all others when it regroups: the key, and a real member's number of bytes."""
FILES_BESIDE = 256
HEIRS = 2
"""As on three machines, the fewest that outlive the coordinator's. Here they share its processors."""
HANDSHAKES_MAX = 128
"""Handshakes at a time: this process makes them for all members, which in a cluster do it themselves."""


class CrowdSize(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of this many members for their coordinator.

    commits_per_s: of single members, that it takes in. regroup_s: from a loss until every member has the
    messages of all others, the median of several; regroup_cpu_s: the coordinator's processor time in it.
    form_s: from the first connection to the first generation. memory_bytes: the coordinator's peak. heirs:
    how many follow it, beside its successor; they get every message before the members do.
    """

    members: int
    heirs: int
    commits_per_s: float
    steps_per_s: float
    regroup_s: float
    regroup_cpu_s: float
    form_s: float
    memory_bytes: int


@click.command("coordinator")
@click.option("--members", multiple=True, type=click.IntRange(min=SLOTS), default=(64, 512, 4096))
@click.option(
    "--heirs",
    type=click.IntRange(0, ELECTORS_MAX - 1),
    default=HEIRS,
    show_default=True,
    help="Follow the coordinator from so many other machines.",
)
@json_option
def command(members: tuple[int, ...], heirs: int, as_json: bool) -> int:
    """Measure a real coordinator with thousands of members that are connections without torch."""
    _allow_files(max(members) + max(members) // SLOTS + FILES_BESIDE)
    found = [asyncio.run(measure(count, heirs)) for count in members]
    if as_json:
        print_json({str(one.members): one for one in found})
    else:
        _show(found)
    return 0


def _allow_files(count: int) -> None:
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    if high != resource.RLIM_INFINITY and high < count:
        raise InputError(
            f"This many members need {count} open files, and a process here may have {high}.",
            hint="Ask for fewer with --members, or raise `ulimit -Hn`.",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(low, count), high))


class _Hub:
    """The coordinator's process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    @classmethod
    async def start(cls, nodes: int, heirs: int, token: str) -> "_Hub":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.workers.hub", str(nodes), str(SLOTS), str(heirs), token),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
        )
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()))

    async def when(self, what: str, number: int) -> tuple[float, float, int]:
        """When the coordinator got there, with its processor time and its memory by then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {number}\n".encode())
        told = (await self.process.stdout.readline()).split()
        if not told:
            raise HoldfastError(
                "The coordinator was silent for so long that an heir took over, and was not measured.",
                hint="Measure on a machine that has less to do, or with --heirs 0.",
            )
        at_s, cpu_s, memory_bytes = told
        return float(at_s), float(cpu_s), int(memory_bytes)

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


class _Client(asyncio.Protocol):
    """One connection: the handshake, then the body of each frame goes to `heard`."""

    def __init__(self, handshake: HandshakeClient, heard: Callable[[bytes], None]) -> None:
        self.answered = asyncio.Event()
        """The connection was accepted or dropped: a busy coordinator drops the slowest."""
        self._handshake, self._entry = handshake, Entry(handshake)
        self._heard = heard
        self._queued: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._entry = transport, Entry(self._handshake)
        self.answered.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self.answered.set()

    @property
    def is_in(self) -> bool:
        return self._entry.run is not None

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if not self.is_in:
            self._transport.write(self._entry.take(data))
            if self.is_in:
                self.answered.set()
                self._transport.write(b"".join(self._queued))
            data = b""  # what came behind the verdict is in the frames
        if self.is_in:
            for body in self._entry.frames.bodies(data):
                self._heard(body)

    def write(self, data: bytes) -> None:
        """At once, or after the handshake."""
        if not self.is_in:
            self._queued.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def send(self, message: wire.AnyMessage) -> None:
        self.write(wire.frame(message))

    def end(self) -> None:
        assert self._transport is not None
        self._transport.abort()


class _Member:
    """A member's messages to the coordinator, and the members it has heard of."""

    def __init__(self, crowd: "_Crowd", name: str) -> None:
        self.name = name
        self.generation = 0
        self._crowd = crowd
        self._missing = 0
        self.client = crowd.client("worker", name, self._heard)
        self.client.send(wire.WorkerJoined(member=name, pid=1))

    def _heard(self, body: bytes) -> None:
        message = _decoded(body)
        match message:
            case wire.Admitted():
                setup = wire.Setup(
                    lanes=self._crowd.lanes,
                    seed=1,
                    threads=1,
                    torch="2",
                    device="cpu",
                    deterministic=True,
                    model="m",
                    parts={},
                )
                self.client.send(wire.WorkerReady(member=self.name, setup=setup, took_s=0.1))
            case wire.Announced():
                self.generation, size = message.number, len(message.members)
                self._missing = len(TOLD) * (size - 1)
                rank = self._crowd.rank_of(message, self.name)
                for key, count in TOLD:
                    value = f"{self.name}/{rank}/".ljust(count, "x").encode()
                    self.client.send(
                        wire.Published(generation=message.number, key=f"{key}/{rank}", value=value)
                    )
            case wire.Published() | wire.PublishedTogether() if message.generation == self.generation:
                told = _told(message)
                self._missing -= told.total() - told[self.name]
                if not self._missing:
                    self._crowd.knows_all(self)

    def regrouped(self, version: int) -> bytes:
        return wire.frame(
            wire.Regrouped(
                member=self.name,
                generation=self.generation,
                version=version,
                lanes=(0,),
                steps_total=10**6,
                parts_s={},
            )
        )


@lru_cache(maxsize=64)
def _decoded(body: bytes) -> wire.AnyMessage:
    """Decode a message once: thousands of members in one process get the same bytes."""
    return wire.unframe(body)


@lru_cache(maxsize=64)
def _told(message: wire.Published | wire.PublishedTogether) -> Counter[str]:
    """The number of messages from each member; a member never gets its own."""
    if isinstance(message, wire.Published):
        return Counter([""])
    return Counter(sender for sender, _, _ in wire.unpack(message.packed))


class _Crowd:
    """All members and agents of one run."""

    def __init__(self, size: int, port: int, token: str) -> None:
        self.size, self.lanes = size, 1 << (size - 1).bit_length()
        self.members: dict[str, _Member] = {}
        self.step = 0
        self._port, self._token = port, token
        self._tasks: set[asyncio.Task[object]] = set()
        self._agents: dict[str, _Client] = {}
        self._ranks: tuple[int, dict[str, int]] = (0, {})
        self._entrance = asyncio.Semaphore(HANDSHAKES_MAX)
        self._knowing = 0
        self._all_know = asyncio.Event()

    def client(self, role: wire.Role, name: str, heard: Callable[[bytes], None]) -> _Client:
        handshake = HandshakeClient(self._token, role=role, name=name, endpoint=f"{HOST}:{self._port}")
        made = _Client(handshake, heard)
        task = asyncio.get_running_loop().create_task(self._connect(made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    async def _connect(self, client: _Client) -> None:
        async with self._entrance:
            while not client.is_in:
                await asyncio.get_running_loop().create_connection(lambda: client, HOST, self._port)
                await client.answered.wait()

    def join(self) -> None:
        for number in range(self.size // SLOTS):
            node = f"n{number:04}"
            agent = self.client("agent", node, partial(self._told_node, node))
            self._agents[node] = agent
            agent.send(wire.AgentJoined(node=node, slots=SLOTS, address=HOST, port=1))

    def _told_node(self, node: str, body: bytes) -> None:
        message = wire.unframe(body)
        if isinstance(message, wire.StartWorker) and not self.step:  # lost members are not replaced
            self._agents[node].send(wire.WorkerStarted(member=message.member, pid=1))
            self.members[message.member] = _Member(self, message.member)

    def rank_of(self, announced: wire.Announced, name: str) -> int:
        if self._ranks[0] != announced.number:
            self._ranks = announced.number, {name: rank for rank, name in enumerate(announced.members)}
            self._knowing = 0
            self._all_know.clear()
        return self._ranks[1][name]

    def knows_all(self, member: _Member) -> None:
        member.client.write(member.regrouped(self.step))
        self._knowing += 1
        if self._knowing == len(self._ranks[1]):
            self._all_know.set()

    async def formed(self) -> tuple[int, float]:
        """Wait until every member has heard from all others: the generation, and the moment."""
        await asyncio.wait_for(self._all_know.wait(), WAIT_S)
        self._all_know.clear()
        return self._ranks[0], time.monotonic()

    async def beat(self) -> None:
        while True:
            for node, agent in list(self._agents.items()):
                agent.send(wire.NodeBeat(node=node))
            for name, member in list(self.members.items()):
                member.client.send(wire.MemberBeat(member=name, step=self.step + 1, stage="forward"))
            await asyncio.sleep(beat_interval_s(self.size))

    def commit(self) -> None:
        """All members commit the next step."""
        self.step += 1
        for name, member in self.members.items():
            done = wire.Committed(member=name, generation=member.generation, step=self.step, loss=0.5)
            member.client.send(done)

    def lose(self) -> None:
        """One member dies, and its agent says so."""
        name = list(self.members)[len(self.members) // 2]
        node = name.partition(".")[0]
        self.members.pop(name).client.end()
        self._agents[node].send(wire.WorkerExited(member=name, signal=9))


async def measure(count: int, heirs: int = HEIRS) -> CrowdSize:
    size = count // SLOTS * SLOTS
    token = wire.fresh_token()
    hub = await _Hub.start(size // SLOTS, heirs, token)
    crowd = _Crowd(size, hub.port, token)
    began_s = time.monotonic()
    crowd.join()
    beating = asyncio.create_task(crowd.beat())
    gc.disable()
    try:
        while True:  # more than one generation, if some came too late for the first
            number, _ = await crowd.formed()
            await hub.when("generation", number)
            if len(crowd.members) == size and number == max(one.generation for one in crowd.members.values()):
                break
        form_s = time.monotonic() - began_s
        commit_s = []
        for _ in range(STEPS):
            before_s = time.monotonic()
            crowd.commit()
            commit_s.append((await hub.when("step", crowd.step))[0] - before_s)
        regroups = []
        for _ in range(LOSSES):
            before_s, before_cpu_s, _ = await hub.when("step", crowd.step)
            crowd.lose()
            number, known_s = await crowd.formed()
            formed_s, cpu_s, memory_bytes = await hub.when("generation", number)
            regroups.append((max(known_s, formed_s) - before_s, cpu_s - before_cpu_s))
            crowd.commit()
    finally:
        gc.enable()
        beating.cancel()
        await hub.end()
    return CrowdSize(
        members=size,
        heirs=heirs,
        commits_per_s=size / median(commit_s),
        steps_per_s=1 / median(commit_s),
        regroup_s=median(wall_s for wall_s, _ in regroups),
        regroup_cpu_s=median(cpu_s for _, cpu_s in regroups),
        form_s=form_s,
        memory_bytes=memory_bytes,
    )


def _show(found: list[CrowdSize]) -> None:
    table = Table(title=f"One coordinator, its successor and {found[0].heirs} heirs")
    for heading in (
        "members",
        "commits/s",
        "steps/s",
        "regroup s",
        "of it computed",
        "first group s",
        "memory",
    ):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(
            f"{one.members:,}",
            f"{one.commits_per_s:,.0f}",
            f"{one.steps_per_s:,.1f}",
            f"{one.regroup_s:.3f}",
            f"{one.regroup_cpu_s:.3f}",
            f"{one.form_s:.1f}",
            f"{one.memory_bytes / 1e6:.0f} MB",
        )
    Console().print(table)
