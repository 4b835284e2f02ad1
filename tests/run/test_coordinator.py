"""The coordinator with real sockets on loopback: real links, and an agent that the test plays."""

import asyncio
import contextlib
import ctypes
import os
import pickle
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.events import (
    ActionTaken,
    FaultObserved,
    GenerationOpened,
    MemberLost,
    RunEnded,
    StepCommitted,
)
from holdfast.record.journal import read_directory
from holdfast.record.recorder import Recorder
from holdfast.run.coordinator import Coordinator
from holdfast.run.dial import Connection, dial
from holdfast.run.estate import HandedOut
from holdfast.run.following import Following
from holdfast.run.handshake import HandshakeClient, Rejected, Stranger, endpoint_of
from holdfast.run.happenings import Disconnected
from holdfast.run.link import Link
from holdfast.run.serving import SEND_BUFFER_BYTES_MAX
from holdfast.run.state import RunPolicy
from holdfast.run.succession import Electorate, MachinePlace, Mandate, Reign
from holdfast.run.waits import LEASE_S_MIN
from holdfast.run.wire import (
    Admitted,
    AgentJoined,
    Announced,
    Answer,
    AnyMessage,
    Committed,
    EndNode,
    Finished,
    FrameBuffer,
    NodeBeat,
    Published,
    PublishedTogether,
    Refused,
    Regrouped,
    Released,
    Setup,
    StartWorker,
    Stop,
    StopWorker,
    Strike,
    StrikeWorker,
    ToWorker,
    WorkerExited,
    WorkerJoined,
    WorkerReady,
    WorkerStarted,
    frame,
    unpack,
)

pytestmark = pytest.mark.slow

TOKEN = "a-token-for-tests"
PATIENCE_S = 60.0
STEPS = 3
REACTION_S_MAX = LEASE_S_MIN
"""The coordinator adds about a millisecond to a recovery. A busy machine may hold it up, but not for as long
as a lease, which is how a loss would be noticed otherwise.
"""
SETUP = Setup(
    lanes=8, seed=1, threads=1, torch="2", device="cpu", deterministic=True, model="m", parts={"w": "1"}
)

Thing = TypeVar("Thing")


class Site:
    """A listening coordinator, its lines, and its journal."""

    def __init__(self, coordinator: Coordinator, journal: Path, said: list[str]) -> None:
        self.coordinator = coordinator
        self.said = said
        self._journal = journal

    @property
    def endpoint(self) -> str:
        host, port = self.coordinator.endpoint
        return f"{host}:{port}"

    async def dial(self, role: str, name: str = "", token: str = TOKEN) -> Connection:
        host, port = self.coordinator.endpoint
        return await dial(host, port, token, role=role, name=name)  # type: ignore[arg-type]

    def recorded(self, kind: type[Thing]) -> list[Thing]:
        return [event for event in events_in(self._journal) if isinstance(event, kind)]


def events_in(journal: Path) -> list[Any]:
    try:
        return [*read_directory(journal)]
    except InputError:  # nothing was recorded
        return []


@asynccontextmanager
async def listening(directory: Path, **policy: object) -> AsyncIterator[Site]:
    said: list[str] = []
    clock = SystemClock()
    journal = directory / "journal"
    with Recorder(journal, run="r", clock=clock) as recorder:
        made = RunPolicy(run="r", **policy)  # type: ignore[arg-type]
        coordinator = Coordinator(made, TOKEN, recorder, clock, said.append)
        await coordinator.start("127.0.0.1", 0)
        try:
            yield Site(coordinator, journal, said)
        finally:
            await coordinator.close()


class Script:
    """A worker's process: a link, and a script that builds and regroups at once."""

    def __init__(self, node: "PlayedNode", order: StartWorker) -> None:
        self.member = order.member
        self.heard: list[ToWorker | None] = []
        self.version = 0
        self._node = node
        environment = {
            **order.environment,
            "HOLDFAST_COORDINATOR": node.site.endpoint,
            "HOLDFAST_TOKEN": TOKEN,
        }
        self.link = Link.connect(environment)
        self.link.on_message = self._hear
        self.link.send(WorkerJoined(member=self.member, pid=1))

    def of(self, kind: type[Thing]) -> list[Thing]:
        return [message for message in self.heard if isinstance(message, kind)]

    def commit(self) -> None:
        self.version += 1
        generation = self.of(Announced)[-1].number
        self.link.send(
            Committed(
                member=self.member,
                generation=generation,
                step=self.version,
                loss=1.0 / self.version,
            )
        )

    def finish(self) -> None:
        self.link.send(Finished(member=self.member, step=self.version, digest="d"))

    def _hear(self, message: ToWorker | None) -> None:
        """In the link's thread."""
        self.heard.append(message)
        match message:
            case Admitted():
                self.link.send(WorkerReady(member=self.member, setup=SETUP, took_s=0.01))
            case Announced(number=number):
                self.link.send(
                    Regrouped(
                        member=self.member,
                        generation=number,
                        version=self.version,
                        lanes=(0, 1, 2, 3),
                        steps_total=STEPS,
                        parts_s={},
                    )
                )


class PlayedNode:
    """An agent that starts scripts in this process."""

    def __init__(self, site: Site, connection: Connection, name: str, slots: int) -> None:
        self.site = site
        self.name = name
        self.scripts: dict[str, Script] = {}
        self.heard: list[AnyMessage] = []
        self._connection = connection
        self._starting: list[asyncio.Task[Script]] = []
        self._tasks = [asyncio.create_task(self._obey()), asyncio.create_task(self._beat())]
        connection.send(AgentJoined(node=name, slots=slots, address="127.0.0.1", port=29500))

    def say(self, message: AnyMessage) -> None:
        self._connection.send(message)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()
        for script in await asyncio.gather(*self._starting, return_exceptions=True):
            if isinstance(script, Script):
                await asyncio.to_thread(script.link.close)

    async def exit(self, member: str, *, code: int | None = None, signal: int | None = None) -> None:
        await asyncio.to_thread(self.scripts[member].link.close)
        self.say(WorkerExited(member=member, code=code, signal=signal, tail=("last line",)))

    async def _beat(self) -> None:
        while True:
            self.say(NodeBeat(node=self.name))
            await asyncio.sleep(0.25)

    async def _obey(self) -> None:
        while (message := await self._connection.receive()) is not None:
            self.heard.append(message)
            if isinstance(message, StartWorker):
                self.say(WorkerStarted(member=message.member, pid=1))
                starting = asyncio.create_task(asyncio.to_thread(Script, self, message))
                self._starting.append(starting)
                self.scripts[message.member] = await asyncio.shield(starting)
            elif isinstance(message, StopWorker) and message.member in self.scripts:
                await self.exit(message.member, signal=15)


@asynccontextmanager
async def played(site: Site, name: str, slots: int) -> AsyncIterator[PlayedNode]:
    node = PlayedNode(site, await site.dial("agent", name), name, slots)
    try:
        yield node
    finally:
        await node.leave()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.002)


async def until_stepping(node: PlayedNode, generation: int, members: int) -> list[Script]:
    """Wait for the generation; its members in rank order."""

    def current() -> list[Script]:
        newest = [script.of(Announced)[-1] for script in node.scripts.values() if script.of(Announced)]
        found = [message for message in newest if message.number >= generation]
        return [node.scripts[name] for name in found[0].members] if len(found) >= members else []

    await until(lambda: bool(current()) and node.site.coordinator.status().generation >= generation)
    return current()


def play(
    directory: Path, story: Callable[[Site, PlayedNode], Awaitable[None]], slots: int = 2, **policy: object
) -> Site:
    """A run with one node of two slots, in which the story happens."""

    async def whole() -> Site:
        async with listening(directory, slots=slots, **policy) as site, played(site, "n0", slots) as node:
            await story(site, node)
        return site

    return asyncio.run(whole())


def test_a_run_from_its_first_node_to_its_end(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        scripts = await until_stepping(node, 1, 2)
        for _ in range(STEPS):
            for script in scripts:
                script.commit()
        await until(lambda: site.coordinator.status().step == STEPS)
        status = site.coordinator.status()
        assert (status.generation, status.steps_total, status.outcome) == (1, STEPS, None)
        assert [loss for _, loss in status.loss_curve] == [1.0, 0.5, 1 / 3]
        assert status.rate > 0
        stepping = [member for member in status.members if member.role == "active"]
        assert [(member.name, member.lanes, member.alive) for member in stepping] == [
            ("n0.0", (0, 1, 2, 3), True),
            ("n0.1", (0, 1, 2, 3), True),
        ]
        for script in scripts:
            script.finish()
        await until(lambda: all(script.of(Released) for script in scripts))
        for script in scripts:
            await node.exit(script.member, code=0)
        ending = await site.coordinator.ended()
        assert (ending.outcome, ending.code) == ("completed", 0)
        await until(lambda: any(isinstance(message, EndNode) for message in node.heard))
        assert site.coordinator.status().outcome == "completed"

    site = play(tmp_path, story)
    assert [event.step for event in site.recorded(StepCommitted)] == [1, 2, 3]
    assert [event.members for event in site.recorded(GenerationOpened)] == [("n0.0", "n0.1")]
    assert [event.outcome for event in site.recorded(RunEnded)] == ["completed"]


def test_a_successor_of_a_run_that_is_over_waits_for_agents_that_do_not_know_it(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        await until_stepping(node, 1, 2)
        site.coordinator.stop("SIGTERM")
        assert (await site.coordinator.ended()).outcome == "stopped"
        estate = pickle.loads(pickle.dumps(site.coordinator.estate))
        listener = socket.socket(fileno=os.dup(site.coordinator.listener.fileno()))
        with Recorder(tmp_path / "second", run="r", clock=SystemClock()) as recorder:
            policy = site.coordinator.estate.state.policy
            heir = Coordinator(policy, TOKEN, recorder, SystemClock(), site.said.append, estate=estate)
            heir.succeed(listener)
            assert (await heir.ended()).outcome == "stopped"
            assert heir.has_agents  # though it is not connected yet
            heir.happened(Disconnected("agent", "n0"))
            assert not heir.has_agents
            await heir.close()

    play(tmp_path, story)


def told(script: Script) -> list[Published]:
    """The notices it received, whether single or together."""
    found: list[Published] = []
    for message in script.heard:
        if isinstance(message, Published):
            found.append(message)
        elif isinstance(message, PublishedTogether):
            found += [
                Published(generation=message.generation, key=key, value=value)
                for _, key, value in unpack(message.packed)
            ]
    return found


def test_what_is_published_goes_to_the_others_of_the_generation_in_order(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        first, second = await until_stepping(node, 1, 2)
        await until(lambda: "n0.2" in node.scripts)
        sent = [Published(generation=1, key=str(number), value=b"v" * number) for number in range(100)]
        first.link.send(Published(generation=7, key="of another generation", value=b""))
        for message in sent:
            first.link.send(message)
        await until(lambda: len(told(second)) >= len(sent))
        assert told(second) == sent
        assert not first.of(Published)
        assert not told(node.scripts["n0.2"])  # a warm one is not in the generation

    play(tmp_path, story)


def test_a_connection_that_ends_is_a_loss_at_once_and_its_reason_follows(tmp_path: Path) -> None:
    reaction_s: list[float] = []

    async def story(site: Site, node: PlayedNode) -> None:
        first, second = await until_stepping(node, 1, 2)
        for script in (first, second):
            script.commit()
        await until(lambda: site.coordinator.status().step == 1)
        await until(lambda: "n0.2" in node.scripts)
        spare = node.scripts["n0.2"]
        roster = site.coordinator.estate.state.roster
        await until(lambda: roster.members["n0.2"].reached == "parked")  # or it could not step in
        began_s = time.monotonic()
        await asyncio.to_thread(first.link.close)  # the kernel closes a killed process's socket
        await until(lambda: bool(second.of(Announced)[1:]))
        reaction_s.append(time.monotonic() - began_s)
        assert second.of(Announced)[1].members == ("n0.1", "n0.2")
        assert spare.of(Admitted) == [Admitted(slot=0, slots=2)]
        node.say(WorkerExited(member="n0.0", signal=9, tail=("oops",)))
        spare.version = 1
        await until_stepping(node, 2, 2)
        await until(lambda: any("n0.0 lost (SIGKILL)" in text for text in site.said))

    site = play(tmp_path, story)
    (lost,) = [event for event in site.recorded(MemberLost) if event.subject == "n0.0"]
    (fault,) = [event for event in site.recorded(FaultObserved) if event.subject == "n0.0"]
    assert (fault.fault, fault.detail, fault.causes) == ("SIGKILL", "oops", ())
    assert (lost.reason, lost.occurred_ns, lost.causes) == ("SIGKILL", fault.occurred_ns, (fault.id,))
    (action,) = [event for event in site.recorded(ActionTaken) if event.subject == "n0.0"]
    assert (action.action, action.causes) == ("replace", (lost.id,))
    assert action.recorded_ns <= lost.recorded_ns  # what it was is known later, and belongs before
    assert site.recorded(GenerationOpened)[1].causes == (lost.id,)
    assert reaction_s[0] < REACTION_S_MAX


def test_a_member_that_nothing_reaches_any_more_is_not_waited_for(tmp_path: Path) -> None:
    """Its messages arrive, but it receives none: a link that is cut in one direction."""

    async def story(site: Site, node: PlayedNode) -> None:
        first, second, _third, last = await until_stepping(node, 1, 4)
        deafen(last.link._socket)
        await node.exit(first.member, signal=9)
        await until(lambda: any("n0.3 lost (cut off" in text for text in site.said))
        await until(lambda: not {"n0.0", "n0.3"} & {*second.of(Announced)[-1].members})

    site = play(tmp_path, story, slots=4)
    assert ("n0.3", "cut off") in [(event.subject, event.fault) for event in site.recorded(FaultObserved)]


def test_in_a_late_step_a_cut_off_member_is_ended_and_one_that_only_does_not_read_is_not(
    tmp_path: Path,
) -> None:
    """One is cut off; another neither reads nor sends, like a busy or stopped process."""

    async def story(site: Site, node: PlayedNode) -> None:
        scripts = await until_stepping(node, 1, 5)
        for step in (1, 2):
            for script in scripts:
                script.commit()
            await until(lambda step=step: site.coordinator.status().step == step)  # type: ignore[misc]
        busy, deaf = scripts[1], scripts[4]
        deafen(deaf.link._socket)
        with busy.link._lock:
            await until(lambda: any("n0.4 lost (cut off" in text for text in site.said))
        assert not any(f"{script.member} lost" in text for script in scripts[:4] for text in site.said)
        await until(lambda: "n0.4" not in busy.of(Announced)[-1].members)

    play(tmp_path, story, slots=5)


def deafen(connection: socket.socket) -> None:
    """Let no packet reach it any more, with a filter of one instruction that accepts nothing."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
    attach_filter = 26
    connection.setsockopt(
        socket.SOL_SOCKET, attach_filter, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
    )


def test_a_node_that_hangs_up_takes_its_members_with_it(tmp_path: Path) -> None:
    async def whole() -> Site:
        async with (
            listening(tmp_path, slots=1, nodes_min=1, nodes_max=2, warm=0) as site,
            played(site, "n0", 1) as node,
        ):
            async with played(site, "n1", 1):
                await until(lambda: site.coordinator.status().generation == 1)
            await until(lambda: site.coordinator.status().generation == 2)
            assert node.scripts["n0.0"].of(Announced)[-1].members == ("n0.0",)
            alive = {node.name: node.alive for node in site.coordinator.status().nodes}
            assert alive == {"n0": True, "n1": False}
        return site

    site = asyncio.run(whole())
    assert [(event.subject, event.fault) for event in site.recorded(FaultObserved)][:1] == [
        ("n1", "node lost")
    ]


def led(hub: Coordinator, place: tuple[str, int]) -> tuple[Following, Callable[[], None]]:
    """Let the coordinator need one other machine for a quorum. The second result lets that one agree."""
    mandate = Mandate(electorate=Electorate(machines=("a", "b"), casting="b"))
    reign = Reign("a", 1, mandate, hub.estate.known.position)
    heirs = hub.heirs = Following(hub.estate, MachinePlace("a", *place), reign)

    def agree() -> None:
        reign.acknowledged("b", reign.position)
        hub.enter(HandedOut())

    return heirs, agree


@asynccontextmanager
async def listening_led(directory: Path) -> AsyncIterator[tuple[Site, Following, Callable[[], None]]]:
    """Like `listening`, with a coordinator that is `led` and has its first quorum."""
    async with listening(directory, slots=1) as site:
        heirs, agree = led(site.coordinator, site.coordinator.endpoint)
        agree()
        yield site, heirs, agree


def test_nothing_is_recorded_before_a_quorum_has_it(tmp_path: Path) -> None:
    async def whole() -> None:
        async with listening_led(tmp_path) as (site, _, agree):
            hub = site.coordinator
            agent = await site.dial("agent", "n0")
            agent.send(AgentJoined(node="n0", slots=1, address="127.0.0.1", port=29500))
            await until(lambda: bool(hub.estate.nodes))
            agree()
            await agent.close()
            await until(lambda: ("agent", "n0") not in hub.estate.sessions)
            assert site.recorded(FaultObserved) == []
            assert [type(one.event) for one in hub.estate.unwritten].count(FaultObserved) == 1
            agree()
            assert [(event.subject, event.fault) for event in site.recorded(FaultObserved)] == [
                ("n0", "node lost")
            ]
            assert hub.estate.unwritten == []

    asyncio.run(whole())


def test_a_successor_records_what_was_left_and_then_ends_the_run(tmp_path: Path) -> None:
    async def whole() -> None:
        async with listening_led(tmp_path) as (site, _, agree):
            hub = site.coordinator
            hub.stop("SIGTERM")  # its end is on hold
            left = [one.event.id for one in hub.estate.unwritten]
            assert len(left) > 1
            estate = pickle.loads(pickle.dumps(hub.estate))
            listener = socket.socket(fileno=os.dup(hub.listener.fileno()))
            with Recorder(tmp_path / "second", run="r", clock=SystemClock()) as recorder:
                policy = hub.estate.state.policy
                heir = Coordinator(policy, TOKEN, recorder, SystemClock(), site.said.append, estate=estate)
                _, agree = led(heir, hub.endpoint)
                heir.succeed(listener)
                ended = asyncio.create_task(heir.ended())
                await asyncio.sleep(0)
                assert not ended.done()
                assert events_in(tmp_path / "second") == []
                agree()
                assert (await ended).outcome == "stopped"
                assert [event.id for event in events_in(tmp_path / "second")] == left
                assert estate.unwritten == []
                await heir.close()

    asyncio.run(whole())


def test_what_waits_for_a_quorum_does_not_reach_another_client_of_the_same_name(tmp_path: Path) -> None:
    joined = AgentJoined(node="n0", slots=1, address="127.0.0.1", port=29500)

    async def whole() -> None:
        async with listening_led(tmp_path) as (site, heirs, agree):
            hub = site.coordinator
            first = await site.dial("agent", "n0")
            session = hub.estate.sessions["agent", "n0"].number
            first.send(joined)
            await until(lambda: heirs.held_for(session) > 0)
            await first.close()
            await until(lambda: ("agent", "n0") not in hub.estate.sessions)
            second = await site.dial("agent", "n0")
            receiving = asyncio.create_task(second.receive())
            agree()  # to all that was meant for the first
            second.send(joined)
            session = hub.estate.sessions["agent", "n0"].number
            await until(lambda: heirs.held_for(session) > 0)
            agree()
            start = await receiving
            assert isinstance(start, StartWorker)
            assert start.member == "n0.0+1"
            await second.close()

    asyncio.run(whole())


def test_an_operator_strikes_and_is_answered(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        await until_stepping(node, 1, 2)
        operator = await site.dial("operator")
        operator.send(Strike(fault="kill", target="n0.1"))
        answer = await operator.receive()
        assert answer == Answer(ok=True, sentence="kill strikes n0.1")
        await until(lambda: any(isinstance(message, StrikeWorker) for message in node.heard))
        operator.send(Strike(fault="node", target="n7"))
        answer = await operator.receive()
        assert isinstance(answer, Answer)
        assert not answer.ok
        await operator.close()

    play(tmp_path, story)


def test_stop_ends_all_members_with_the_signals_code(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        await until_stepping(node, 1, 2)
        site.coordinator.stop("SIGINT")
        ending = await site.coordinator.ended()
        assert (ending.outcome, ending.code, ending.reason) == ("stopped", 130, "SIGINT")
        await until(lambda: any(isinstance(message, EndNode) for message in node.heard))

    site = play(tmp_path, story)
    assert [event.outcome for event in site.recorded(RunEnded)] == ["stopped"]


# ---- admission -------------------------------------------------------------------------------------------


def test_a_wish_that_is_sent_again_over_another_connection_counts_once(tmp_path: Path) -> None:
    async def whole() -> None:
        async with listening(tmp_path, slots=1) as site:
            agent = await site.dial("agent", "n0")
            agent.send(AgentJoined(node="n0", slots=1, address="127.0.0.1", port=29500))
            start = await agent.receive()
            assert isinstance(start, StartWorker)
            agent.send(WorkerStarted(member=start.member, pid=1))

            async def patience_after(number: int) -> str:
                operator = await site.dial("operator")
                operator.send(Stop(reason="SIGINT", asker="a", number=number))
                assert await operator.receive() == Answer(ok=True, sentence="the run is ending")
                await operator.close()
                closing = site.coordinator.estate.state.ending.closing
                assert closing is not None
                return closing.patience

            assert [await patience_after(number) for number in (1, 1, 2)] == ["term", "term", "kill"]
            await agent.close()

    asyncio.run(whole())


def test_a_wrong_token_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        with pytest.raises(
            Stranger, match=r"^The process that listens at .* does not have this run's token\.$"
        ) as caught:
            await site.dial("agent", "n1", token="another-token")
        assert "HOLDFAST_TOKEN" in caught.value.hint
        environment = {
            "HOLDFAST_COORDINATOR": site.endpoint,
            "HOLDFAST_TOKEN": "another-token",
            "HOLDFAST_MEMBER": "n0.0",
        }
        with pytest.raises(Stranger, match="does not have this run's token"):
            await asyncio.to_thread(Link.connect, environment)

    play(tmp_path, story)


def test_names_that_are_taken_or_unknown_are_refused(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        await until_stepping(node, 1, 2)
        with pytest.raises(Rejected, match=r"^The agent 'n0' is connected already\.$"):
            await site.dial("agent", "n0")
        with pytest.raises(Rejected, match=r"^The worker 'n0\.1' is connected already\.$"):
            await site.dial("worker", "n0.1")
        with pytest.raises(Rejected, match=r"^The run has no member 'n0\.9', or has given it up\.$"):
            await site.dial("worker", "n0.9")

    play(tmp_path, story)


def test_another_protocol_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        def speak() -> AnyMessage:
            with Raw(site) as raw:
                proof = raw.client("agent", "n5").answer(raw.next())
                raw.send(frame(msgspec.structs.replace(proof, protocol=99)))
                return raw.next()

        answer = await asyncio.to_thread(speak)
        assert isinstance(answer, Refused)
        assert "same version" in answer.hint

    play(tmp_path, story)


def test_a_port_in_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    async def whole() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, Recorder(tmp_path / "journal") as recorder:
            port = taken.getsockname()[1]
            coordinator = Coordinator(RunPolicy(run="r"), TOKEN, recorder, SystemClock(), print)
            with pytest.raises(
                HoldfastError, match=rf"^The coordinator cannot listen on 127\.0\.0\.1:{port}: .*\.$"
            ):
                await coordinator.start("127.0.0.1", port)
            await coordinator.close()

    asyncio.run(whole())


# ---- clients that misbehave ------------------------------------------------------------------------------


class Raw:
    """A raw socket that can send anything."""

    def __init__(self, site: Site) -> None:
        self._socket = socket.create_connection(site.coordinator.endpoint, timeout=PATIENCE_S)
        self._frames = FrameBuffer()

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def next(self) -> AnyMessage:
        while True:
            for message in self._frames.feed(self._socket.recv(4096)):
                return message

    def shake_hands(self, role: str, name: str) -> None:
        client = self.client(role, name)
        self.send(frame(client.answer(self.next())))
        client.accepted_by(self.next())

    def client(self, role: str, name: str) -> HandshakeClient:
        endpoint = endpoint_of(self._socket.getpeername())
        return HandshakeClient(TOKEN, role=role, name=name, endpoint=endpoint)  # type: ignore[arg-type]

    def await_end(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self._socket.recv(1 << 20):
                pass


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"\x00\x00\x00\x00", id="an empty frame"),
        pytest.param(b"\x00\x00\x00\x03abc", id="no message"),
        pytest.param(b"\xff" * 64, id="too long"),
        pytest.param(frame(NodeBeat(node="n0")), id="no proof"),
    ],
)
def test_garbage_before_the_proof_ends_that_connection_alone(tmp_path: Path, garbage: bytes) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        def disturb() -> None:
            with Raw(site) as raw:
                raw.send(garbage)
                raw.await_end()

        await asyncio.to_thread(disturb)
        await until_stepping(node, 1, 2)

    play(tmp_path, story)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(b"\x00\x00\x00\x03abc", id="no message"),
        pytest.param(frame(NodeBeat(node="n0")), id="an agent's"),
        pytest.param(frame(Released(outcome="failed")), id="the coordinator's"),
    ],
)
def test_a_worker_that_sends_a_wrong_message_is_lost_alone(tmp_path: Path, wrong: bytes) -> None:
    async def story(site: Site, node: PlayedNode) -> None:
        first, second = await until_stepping(node, 1, 2)
        first.link._socket.sendall(wrong)
        await until(lambda: bool(second.of(Announced)[1:]))
        assert "n0.0" not in second.of(Announced)[1].members

    play(tmp_path, story)


def test_a_client_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    value = b"v" * (4 << 20)

    async def whole() -> None:
        async with listening(tmp_path, slots=2, warm=0) as site:
            agent = await site.dial("agent", "n0")
            agent.send(AgentJoined(node="n0", slots=2, address="127.0.0.1", port=1))
            orders = [await agent.receive() for _ in range(2)]
            assert all(isinstance(order, StartWorker) for order in orders)
            with Raw(site) as reader, Raw(site) as sleeper:
                await asyncio.to_thread(begin, reader, "n0.0")
                await asyncio.to_thread(begin, sleeper, "n0.1")
                await until(lambda: site.coordinator.status().generation == 1)
                for number in range(2 * SEND_BUFFER_BYTES_MAX // len(value)):
                    message = Published(generation=1, key=str(number), value=value)
                    await asyncio.to_thread(reader.send, frame(message))
                await until(
                    lambda: (
                        [member.name for member in site.coordinator.status().members if member.alive]
                        == ["n0.0"]
                    )
                )
            await agent.close()

    def begin(raw: Raw, member: str) -> None:
        raw.shake_hands("worker", member)
        raw.send(frame(WorkerJoined(member=member, pid=1)))
        assert isinstance(raw.next(), Admitted)
        raw.send(frame(WorkerReady(member=member, setup=SETUP, took_s=0.01)))
        regrouped = Regrouped(
            member=member, generation=1, version=0, lanes=(0,), steps_total=STEPS, parts_s={}
        )
        raw.send(frame(regrouped))

    asyncio.run(whole())
