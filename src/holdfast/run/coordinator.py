"""The hub of a run: every agent, worker and operator holds one connection to it.

It does what membership.py decides: it feeds the state machine with what comes over the connections and
carries out what that wants. Nothing here decides anything about the run. All of it happens in one thread,
message by message, without polling: a message is answered in the turn of the loop in which it arrives.
"""

import asyncio
import contextlib
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Literal, get_args

from holdfast.record.clock import Clock
from holdfast.record.errors import HoldfastError
from holdfast.record.events import KnownEvent, StepCommitted
from holdfast.record.recorder import Recorder
from holdfast.run import happenings, membership, wire
from holdfast.run.handshake import HANDSHAKE_BYTES_MAX, Host, endpoint_of
from holdfast.run.recording import write_down
from holdfast.run.state import Generation, RunPolicy
from holdfast.run.status import Happened, MemberStatus, NodeStatus, Status
from holdfast.run.tls import Channel, Identity

HANDSHAKE_S = 5.0
"""How long a connection may take to prove that it has the token."""
UNPROVEN_MAX = 256
"""So many connections may be about to prove it. One more, and the oldest has to connect again..."""
UNPROVEN_S = 0.25
"""...if it has had this time to prove it. Otherwise those who wait stay with the kernel: all members of a run
may come at once, and of thousands nobody would get in if each were dropped for the next.
"""
ACCEPTS_MAX = 64
"""So many connections are taken in one turn of the loop, which others wait for."""
BACKLOG = 1024
"""So many wait in the kernel to be taken: all workers of a large run may come at once."""
ACCEPT_WAIT_S = 0.5
"""How long no connection is taken after one could not be, for want of descriptors or memory."""
SEND_BUFFER_BYTES_MAX = 32 << 20
"""Who leaves more than this unread is given up. A member that keeps its interpreter for a while reads
nothing, and must not be: what others may tell it meanwhile is less (train/minutes.py, train/meeting.py).
"""
NOTICE_BYTES = 4 << 20
"""Of what is published, handed out at once if it is more."""
CLOSE_S = 2.0
"""How long closing waits for what was said last to be sent."""
HAPPENED_MAX = 50
RATE_STEPS = 32
"""Over how many of the last steps the rate is taken."""
RECENT_NS = 1_000_000_000
"""Over the steps of this time the last step's time is taken: one alone is noise where steps are short."""
KEYS_MAX = 4096
"""How many of the latest events can be named as causes."""
SIGNAL_CODE = 128
"""Added to a signal's number, this is what a shell says of a command that it ended."""

_FROM_AGENT = get_args(wire.FromAgent)
_FROM_WORKER = get_args(wire.FromWorker)


class Coordinator:
    """One run's hub. Every method but `status` belongs to the thread of the loop in which it was started.

    say: is given each line for the operator. `show`: is given a member and what it said last, to be printed.
    identity: what it shows of itself over TLS; None: nothing is encrypted.
    """

    def __init__(
        self,
        policy: RunPolicy,
        token: str,
        recorder: Recorder,
        clock: Clock,
        say: Callable[[str], None],
        identity: Identity | None = None,
    ) -> None:
        self.identity = identity
        self.show: Callable[[str, str], None] = lambda member, text: None
        self._token = token
        self._recorder = recorder
        self._clock = clock
        self._say = say
        self._state = membership.initial(policy, clock.now_ns())
        self._connections: set[_Connection] = set()
        self._unproven: dict[_Connection, float] = {}
        self._accepting: set[asyncio.Task[object]] = set()
        self._named: dict[tuple[str, str], _Connection] = {}
        self._nodes: dict[str, None] = {}
        self._ids: dict[str, str] = {}
        self._happened: deque[Happened] = deque(maxlen=HAPPENED_MAX)
        self._commits: deque[tuple[int, int]] = deque(maxlen=RATE_STEPS)
        self._notices: list[wire.Notice] = []
        self._notice_bytes = 0
        self._addressees: Generation | None = None
        self._due_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listener: socket.socket | None = None
        self._accept_again: asyncio.TimerHandle | None = None
        self._is_full = False
        self._is_short_told = False
        self._ended: asyncio.Future[happenings.Ending] | None = None
        self._is_closed = False
        self._answer = wire.Answer(ok=False, sentence="")

    async def start(self, host: str, port: int) -> None:
        """Listen there; port 0 takes a free one. `HoldfastError` where that cannot be."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise HoldfastError(
                f"The coordinator cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}.",
                hint="Another run may hold that port; give another one, or none to take a free one.",
            ) from None
        self._listener.setblocking(False)
        loop.add_reader(self._listener, self._accept)
        self.happened(happenings.Begun())

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def ended(self) -> happenings.Ending:
        """Wait for the end of the run."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    def stop(self, reason: str) -> None:
        """End the run; the second time, at once. reason: the signal's name, or a sentence."""
        number = signal.Signals.__members__.get(reason)
        self.happened(happenings.StopRequested(reason, 1 if number is None else SIGNAL_CODE + number))

    def tell(self, text: str, severity: happenings.Severity = "trouble") -> None:
        """One line for the operator."""
        self._happened.append(Happened(occurred_ns=self._clock.now_ns(), text=text, severity=severity))
        self._say(text)

    def strike(self, strike: wire.Strike) -> wire.Answer:
        """Inject a fault now."""
        self.happened(happenings.StrikeRequested(strike))
        return self._answer

    def move(self, move: wire.Move) -> wire.Answer:
        """Have a member or node leave its place, or come back, or say how that stands."""
        self.happened(happenings.MoveRequested(move))
        return self._answer

    async def close(self) -> None:
        """Let go of everything, once what was said last is sent. What still happens is not looked at."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._accept_again is not None:
            self._accept_again.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for connection in self._connections:
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._connections:
                    await next(iter(self._connections)).closed.wait()
        for connection in list(self._connections):
            connection.abort()
        if self._ended is not None:
            self._ended.cancel()

    def status(self) -> Status:
        """How the run stands. Any thread may ask: each collection is copied in one go."""
        state = self._state
        members = tuple(
            MemberStatus(
                name=member.name,
                node=member.node,
                slot=member.slot,
                role=member.role,
                stage=member.stage,
                step=member.step,
                lanes=member.lanes,
                alive=not member.is_lost,
                spent=member.spent,
            )
            for member in list(state.roster.members.values())
        )
        closing, loss_curve = state.ending.closing, tuple(state.progress.loss_values)
        return Status(
            run=state.policy.run,
            team=state.policy.team,
            started_ns=state.started_ns,
            generation=0 if state.generations.formed is None else state.generations.formed.number,
            step=state.progress.step,
            steps_total=state.progress.steps_total,
            loss=loss_curve[-1][1] if loss_curve else None,
            loss_curve=loss_curve,
            rate=self._rate(),
            step_s=self._step_s(),
            stall_s=None if (stall_ns := state.progress.checkpointing.stall_ns) is None else stall_ns / 1e9,
            write_s=self._write_s(),
            lanes_skipped=state.progress.lanes_skipped,
            members=members,
            nodes=tuple(
                NodeStatus(name=name, alive=name in state.roster.nodes) for name in list(self._nodes)
            ),
            happened=tuple(self._happened),
            outcome=None if closing is None else closing.end.outcome,
        )

    # -- what connections tell ---------------------------------------------------------------------------

    def happened(self, event: happenings.Happening) -> None:
        """Let the state machine decide, and do what it wants."""
        if self._is_closed:
            return
        try:
            effects = membership.advance(self._state, event, self._clock.now_ns())
            for effect in effects:
                self._carry_out(effect)
            self._set_timer()
        except Exception as error:  # a defect of ours: the waiter for the end must know
            if self._ended is None or self._ended.done():
                raise
            self._ended.set_exception(error)

    def handshake(self, endpoint: str) -> Host:
        """Our side of a handshake on a connection that arrived there."""
        certificate = b"" if self.identity is None else self.identity.fingerprint
        return Host(self._token, endpoint=endpoint, certificate=certificate)

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        """Why this client, who has the token, may not come in; None: it may."""
        if (proof.role, proof.name) in self._named:
            return wire.Refused(
                sentence=f"The {proof.role} {proof.name!r} is connected already.",
                hint="Give every node a name of its own.",
            )
        if proof.role == "worker" and self._state.roster.living(proof.name) is None:
            return wire.Refused(sentence=f"The run has no member {proof.name!r}, or has given it up.")
        return None

    def opened(self, connection: "_Connection") -> None:
        self._connections.add(connection)
        self._unproven[connection] = asyncio.get_running_loop().time()

    def accepted(self, connection: "_Connection") -> str:
        """The connection has proved whose it is; the run's name."""
        self._unproven.pop(connection, None)
        if self._is_full and self._accept_again is not None and not self._is_closed:
            self._accept_again.cancel()
            self._listen()
        if connection.role != "operator":
            self._named[connection.role, connection.name] = connection
        if connection.role == "agent":
            self._nodes[connection.name] = None
        return self._state.policy.run

    def closed(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self._unproven.pop(connection, None)
        role, name = connection.role, connection.name
        if role != "operator" and self._named.get((role, name)) is connection:
            del self._named[role, name]
            self.happened(happenings.Disconnected(role, name))

    def heard(self, connection: "_Connection", message: wire.AnyMessage) -> None:
        """A message of a proven connection. `MalformedFrame` where it is not theirs to send."""
        role, name = connection.role, connection.name
        if role == "operator" and isinstance(message, wire.Strike):
            connection.send(self.strike(message))
        elif role == "operator" and isinstance(message, wire.Move):
            connection.send(self.move(message))
        elif role == "agent" and isinstance(message, _FROM_AGENT):
            self.happened(happenings.FromNode(name, message))
        elif role == "worker" and isinstance(message, _FROM_WORKER):
            if isinstance(message, wire.Published):
                self._pass_on(name, message)
            self.happened(happenings.FromMember(name, message))
        else:
            raise wire.MalformedFrame(f"a {role} does not send {type(message).__name__}")

    # -- who comes ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Take in who waits. Not by asyncio's server, which tries again a hundred times, and prints as many
        tracebacks, when descriptors run out.
        """
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_MAX):
            if not self._has_room():
                return
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            accepted.setblocking(False)
            task = loop.create_task(loop.connect_accepted_socket(lambda: _Connection(self), accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _has_room(self) -> bool:
        """Whether one more may try to prove itself now."""
        if len(self._unproven) + len(self._accepting) < UNPROVEN_MAX:
            return True
        oldest = next(iter(self._unproven), None)
        since_s = 0.0 if oldest is None else asyncio.get_running_loop().time() - self._unproven[oldest]
        if oldest is None or since_s < UNPROVEN_S:
            self._is_full = True
            self._pause(UNPROVEN_S - since_s)
            return False
        self._drop(oldest)
        return True

    def _pause(self, delay_s: float) -> None:
        """Take no connection for so long."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._accept_again = loop.call_later(delay_s, self._listen)

    def _listen(self) -> None:
        """Take connections again."""
        assert self._listener is not None
        self._accept_again, self._is_full = None, False
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept_later(self, error: OSError) -> None:
        """Connections that have proved nothing make room; those that wait are taken in a moment."""
        self._pause(ACCEPT_WAIT_S)
        for connection in list(self._unproven):
            self._drop(connection)
        if not self._is_short_told:
            self._is_short_told = True
            why = (error.strerror or str(error)).lower()
            self.tell(
                f"the coordinator cannot take new connections ({why}): members that are connected go on, and "
                "new ones wait. Raise `ulimit -n` for the next run if this one is as large as it should be"
            )

    def _drop(self, connection: "_Connection") -> None:
        self._unproven.pop(connection, None)
        connection.abort()

    # -- what the state machine wants --------------------------------------------------------------------

    def _carry_out(self, effect: happenings.Effect) -> None:
        match effect:
            case happenings.ToNode(node, message):
                self._send(("agent", node), wire.frame(message))
            case happenings.ToMembers(members, message):
                self._hand_out()  # what was said before is heard before
                data = wire.frame(message)
                for member in members:
                    self._send(("worker", member), data)
            case happenings.Close(role, name):
                if (connection := self._named.get((role, name))) is not None:
                    connection.abort()  # it may not read, and must not keep its name for as long as that
            case happenings.Record(event):
                self._record(event)
            case happenings.Expect(key):
                self._ids[key] = self._recorder.reserve()
            case happenings.Print(member, text):
                self.show(member, text)
            case happenings.Say(text, severity):
                self.tell(text, severity)
            case happenings.Reply(answer):
                self._answer = answer
            case happenings.Ending():
                if self._ended is not None and not self._ended.done():
                    self._ended.set_result(effect)

    def _send(self, name: tuple[str, str], data: bytes) -> None:
        if (connection := self._named.get(name)) is not None:
            connection.write(data)

    def _pass_on(self, sender: str, message: wire.Published) -> None:
        """To the other members of its generation, with what others publish in the same turn of the loop.

        Nothing is kept: a generation is announced to all its members in one turn of the loop, so whoever
        publishes a key of it does so after everybody has been sent the announcement, and in that order both
        arrive.
        """
        generation = self._state.generations.announced
        if generation is not None and generation.at_boundary and generation.formed_ns is None:
            stepping = (
                self._state.generations.formed
            )  # until the boundary comes, its members still talk to each other
            if stepping is not None and message.generation == stepping.number:
                generation = stepping
        if generation is None or message.generation != generation.number or sender not in generation.names:
            return
        size = len(sender) + len(message.key) + len(message.value)
        if self._addressees is not generation or self._notice_bytes + size > NOTICE_BYTES:
            self._hand_out()
        if not self._notices:
            asyncio.get_running_loop().call_soon(self._hand_out)
        self._addressees = generation
        self._notices.append((sender, message.key, message.value))
        self._notice_bytes += size

    def _hand_out(self) -> None:
        """What was published since the last time, to all members: in one message."""
        notices, self._notices, self._notice_bytes = self._notices, [], 0
        if not notices:
            return
        assert self._addressees is not None
        number, apart = self._addressees.number, ""
        if len(notices) == 1:
            ((apart, key, value),) = notices
            data = wire.frame(wire.Published(generation=number, key=key, value=value))
        else:
            data = wire.frame(wire.PublishedTogether(generation=number, packed=wire.pack(notices)))
        for member in self._addressees.members:
            if member != apart:
                self._send(("worker", member), data)

    def _record(self, event: KnownEvent) -> None:
        """Write the event down, with the record's ids in place of the membership's keys."""
        causes = tuple(self._ids[key] for key in event.causes if key in self._ids)
        identity = write_down(self._recorder, event, causes, identity=self._ids.get(event.id, ""))
        if isinstance(event, StepCommitted):
            self._commits.append((event.occurred_ns, event.step))
        if event.id:
            self._ids[event.id] = identity
            if len(self._ids) > KEYS_MAX:
                del self._ids[next(iter(self._ids))]

    def _set_timer(self) -> None:
        due_ns = membership.deadline(self._state)
        if due_ns == self._due_ns:
            return
        self._due_ns = due_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ns is not None:
            delay_s = max(0.0, (due_ns - self._clock.now_ns()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._due_ns = self._timer = None
        self.happened(happenings.Tick())

    def _rate(self) -> float:
        commits = tuple(self._commits)
        if len(commits) < 2:
            return 0.0
        (first_ns, first), (last_ns, last) = commits[0], commits[-1]
        return (last - first) * 1e9 / (last_ns - first_ns) if last > first and last_ns > first_ns else 0.0

    def _step_s(self) -> float | None:
        """The mean over the steps of the last second, or the last step where that took longer."""
        commits = tuple(self._commits)
        if len(commits) < 2:
            return None
        last_ns, last = commits[-1]
        recent = [commit for commit in commits[:-1] if last_ns - commit[0] <= RECENT_NS]
        first_ns, first = recent[0] if recent else commits[-2]
        return (last_ns - first_ns) / 1e9 / max(1, last - first)

    def _write_s(self) -> float | None:
        times = self._state.progress.checkpointing
        begun_ns, write_ns = times.begun_ns, times.write_ns
        under_way_ns = 0 if begun_ns is None else self._clock.now_ns() - begun_ns
        return None if write_ns is None and begun_ns is None else max(write_ns or 0, under_way_ns) / 1e9


class _Connection(asyncio.Protocol):
    """One client: first it proves the token, then each of its messages goes to the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.role: Literal["agent", "worker", "operator"] = "operator"
        self.name = ""
        self.closed = asyncio.Event()
        self._coordinator = coordinator
        self._host: Host | None = None
        self._channel = Channel()
        self._frames = wire.FrameBuffer(HANDSHAKE_BYTES_MAX)
        self._is_accepted = False
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timeout = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.abort)
        self._coordinator.opened(self)
        try:
            self._host = self._coordinator.handshake(endpoint_of(transport.get_extra_info("sockname")))
        except (TypeError, ValueError):  # it has ended before it began
            self.abort()
            return
        self.send(self._host.challenge)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            if self._host is not None and self._host.challenge.tls and not self._channel.fingerprint:
                assert self._coordinator.identity is not None
                self._channel.host(self._coordinator.identity)
            said = self._channel.open(data)
            self._transport.write(self._channel.pending())
            for message in self._frames.feed(said):
                if self._is_accepted:
                    self._coordinator.heard(self, message)
                else:
                    self._shake_hands(message)
        except wire.MalformedFrame as error:
            if not self._is_accepted and self._channel.is_ready:
                self.send(wire.Refused(sentence=f"This is not a Holdfast process: {error}."))
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self.closed.set()
        self._coordinator.closed(self)

    def send(self, message: wire.AnyMessage) -> None:
        self.write(wire.frame(message))

    def write(self, data: bytes) -> None:
        """Hand over to the kernel, or keep for it; a client that does not read is given up."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() + len(data) > SEND_BUFFER_BYTES_MAX:
            self.abort()
        elif not self._transport.is_closing():
            self._transport.write(self._channel.seal(data))

    def end(self) -> None:
        """Close, once everything is sent."""
        assert self._transport is not None
        self._transport.close()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def _shake_hands(self, message: wire.AnyMessage) -> None:
        if not isinstance(message, wire.Proof):
            raise wire.MalformedFrame(f"{type(message).__name__} before the proof")
        assert self._host is not None
        refusal = self._host.refusal(message) or self._coordinator.refusal(message)
        if refusal is not None:
            self.send(self._host.sealed(refusal))
            self.end()
            return
        if self._timeout is not None:
            self._timeout.cancel()
        self.role, self.name, self._is_accepted = message.role, message.name, True
        self._channel.is_proven, self._frames.bytes_max = True, wire.FRAME_BYTES_MAX
        run = self._coordinator.accepted(self)
        self.send(self._host.sealed(wire.Accepted(run=run)))
