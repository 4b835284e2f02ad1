"""The hub of a run: every agent, worker and operator holds one connection to it.

It feeds messages from the connections to the state machine in membership.py and carries out the resulting
effects. Nothing here decides anything about the run. It works in one thread, message by message, without
polling: a message is answered in the turn of the loop in which it arrives. Everything that has to outlive
this process is in the estate and changes only by entries (`_enter`). The successor receives an entry before
its effects become visible.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from holdfast.record.clock import Clock
from holdfast.record.errors import HoldfastError
from holdfast.record.events import RunEndangered
from holdfast.record.journal import new_token
from holdfast.record.recorder import Recorder
from holdfast.run import hangs, happenings, membership, wire
from holdfast.run.estate import (
    Advanced,
    ClientCame,
    Deed,
    Deliver,
    EndSession,
    Estate,
    EstateEntry,
    HandedOut,
    LineTold,
    OperatorLine,
    StopWished,
    Told,
    WishHeard,
    Written,
)
from holdfast.run.exposure import kept_steps
from holdfast.run.following import Following
from holdfast.run.handshake import Host
from holdfast.run.recording import write_down
from holdfast.run.seeking import Address
from holdfast.run.serving import ClientConnection
from holdfast.run.site import listening
from holdfast.run.state import RunPolicy
from holdfast.run.status import MemberStatus, NodeStatus, Status
from holdfast.run.tls import Identity

UNPROVEN_MAX = 256
"""At most this many connections may be proving the token. For one more, the oldest is dropped and has to
connect again..."""
UNPROVEN_S = 0.25
"""...if it has had this much time. Otherwise new connections wait in the kernel: all members of a run may
connect at once, and if each were dropped for the next, none of thousands would get in.
"""
ACCEPTS_MAX = 64
"""The most connections accepted in one turn of the loop, because other work waits for the loop."""
ACCEPT_WAIT_S = 0.5
"""How long to wait after a connection could not be accepted for lack of descriptors or memory."""
SHORT_OVER_S = 60.0
"""Descriptors suffice again if none was missing for this long."""
RETURN_S = 60.0
"""How long a worker may take to reconnect to a successor, unless its agent reports its exit. While a compiler
holds the worker's interpreter lock, the worker cannot reconnect."""
REACH_INTERVAL_S = 0.25
"""How often to check which members can be reached, while all wait for a generation to form or for a step that
has taken longer than any before it."""
PROBE_INTERVAL_S = 1.0
"""How often each member is sent a probe then, for its kernel to acknowledge."""
UNANSWERED_MAX = 5
"""How many retransmissions by the kernel make a member count as cut off: some 6 s. Two checks in a row must
find this, because an answer may be on its way. The kernel of a busy or stopped process still acknowledges.
"""
CLOSE_S = 2.0
"""How long closing waits for the last messages to be sent."""
RECENT_NS = 1_000_000_000
"""The reported step time is averaged over this time, because a single short step is noise."""
SIGNAL_CODE = 128
"""A shell adds this to a signal's number for the exit code of a command that the signal ended."""

_FROM_AGENT = get_args(wire.FromAgent)
_FROM_WORKER = get_args(wire.FromWorker)
_encoder = msgspec.msgpack.Encoder()


class Coordinator:
    """One run's hub. Every method but `status` belongs to the thread of the loop in which it was started.

    say: called with each line for the operator. `show`: called with a member and its last words, to print
    them. identity: its TLS identity; None for no encryption. estate: a predecessor's; None if the run begins
    here. `follow`: called with every entry of the estate before its effects become visible; None if this
    coordinator has no successor. `heirs`: the heirs on other machines, who must also have an entry before its
    effects become visible; None if there are none. `on_line`: called with the line of succession.
    """

    def __init__(
        self,
        policy: RunPolicy,
        token: str,
        recorder: Recorder,
        clock: Clock,
        say: Callable[[str], None],
        identity: Identity | None = None,
        estate: Estate | None = None,
    ) -> None:
        self.identity = identity
        self.show: Callable[[str, str], None] = lambda member, text: None
        self.follow: Callable[[EstateEntry], None] | None = None
        self.heirs: Following | None = None
        self.on_line: Callable[[Sequence[Address]], None] = lambda places: None
        self.estate = Estate(policy, clock.now_ns(), new_token()) if estate is None else estate
        self._token = token
        self._recorder = recorder
        self._clock = clock
        self._say = say
        self._state = self.estate.state
        self._connections: set[ClientConnection] = set()
        self._unproven: dict[ClientConnection, float] = {}
        self._accepting: set[asyncio.Task[object]] = set()
        self._named: dict[tuple[str, str], ClientConnection] = {}
        self._sessions: dict[int, ClientConnection] = {}
        """The same connections, by their sessions."""
        self._viewers: set[ClientConnection] = set()
        self._is_handing_out = False
        self._recorded = 0
        """How many events are in the record that the estate still has as pending."""
        self._due_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._return_timer: asyncio.TimerHandle | None = None
        self._reach_timer: asyncio.TimerHandle | None = None
        self._probe_due_s = 0.0
        self._silent: frozenset[str] = frozenset()
        """Members that had not answered for too long at the last check."""
        self._listener: socket.socket | None = None
        self._accept_again: asyncio.TimerHandle | None = None
        self._is_full = False
        self._short: asyncio.TimerHandle | None = None
        self._is_short_told = False
        self._ended: asyncio.Future[happenings.Ending] | None = None
        self._is_closed = self._is_retired = False
        self._asking: dict[tuple[str, int], ClientConnection] = {}
        """Operators that asked for the end of the run and are owed an answer."""
        self._answer = wire.Answer(ok=False, sentence="")
        self.over: wire.RunClosed | None = None
        """How the run ended, once viewers are told."""
        self._line = self.estate.line
        """The line of succession as far as clients may know it."""

    async def start(self, host: str, port: int) -> None:
        """Listen there; port 0 takes a free one. Raise `HoldfastError` if that fails."""
        try:
            listener = listening(host, port)
        except OSError as error:
            raise HoldfastError(
                f"The coordinator cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}.",
                hint="Another run may hold that port; give another one, or none to take a free one.",
            ) from None
        self._begin(listener)
        self.happened(happenings.Begun())

    def succeed(self, listener: socket.socket, first: EstateEntry | None = None) -> None:
        """Continue where the predecessor died. listener: where its clients wait or will look. first: the
        entry with which this coordinator begins.
        """
        self._begin(listener)
        if first is not None:
            self._enter(first)
        left: list[Deed] = [*self.estate.unwritten]
        ending = self._state.ending
        if ending.is_over and ending.closing is not None:  # only the end is left to report
            if left:
                left.append(ending.closing.end)
            else:  # the predecessor has reported it, and heirs may have left
                self._end(ending.closing.end)
        self._see_to(left)
        self._hand_out()
        self._return_timer = asyncio.get_running_loop().call_later(RETURN_S, self._give_up_absent)
        self._set_timer()

    def _begin(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._listener = listener
        listener.setblocking(False)
        loop.add_reader(listener, self._accept)
        self._look_for_unreached()

    def _look_for_unreached(self) -> None:
        loop = asyncio.get_running_loop()
        self._reach_timer = loop.call_later(REACH_INTERVAL_S, self._look_for_unreached)
        generation = self._state.generations.announced
        if generation is None or not hangs.is_held_up(self._state, self._clock.now_ns()):
            self._silent = frozenset()
            return
        connections = {
            name: connection
            for name in generation.members
            if (connection := self._named.get(("worker", name))) is not None
        }
        unanswered = {name: connection.unanswered for name, connection in connections.items()}
        if not self._line and loop.time() >= self._probe_due_s:  # with a line, members hear from us anyway
            self._probe_due_s = loop.time() + PROBE_INTERVAL_S
            probe = wire.frame(wire.Reigning(term=0))
            for name, connection in connections.items():
                if not unanswered[name]:
                    connection.write(probe)
        before = self._silent
        self._silent = frozenset(name for name, times in unanswered.items() if times >= UNANSWERED_MAX)
        if found := tuple(name for name in connections if name in self._silent & before):
            self.happened(happenings.Unreached(found, sum(map(bool, unanswered.values()))))

    def _give_up_absent(self) -> None:
        """Give up workers that were connected to the predecessor and have not come back. For nodes, the
        lease ends instead.
        """
        for role, name in [*self.estate.sessions]:
            if role == "worker" and (role, name) not in self._named:
                self.happened(happenings.Disconnected("worker", name))

    @property
    def listener(self) -> socket.socket:
        assert self._listener is not None
        return self._listener

    @property
    def has_agents(self) -> bool:
        """Whether an agent is connected, or was connected to the predecessor and may still come back."""
        return any(
            role == "agent" and not session.is_given_up
            for (role, _name), session in self.estate.sessions.items()
        )

    @property
    def has_viewers(self) -> bool:
        return bool(self._viewers)

    @property
    def endpoint(self) -> tuple[str, int]:
        """The host and port on which it listens."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def ended(self) -> happenings.Ending:
        """Wait for the end of the run."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    def stop(self, reason: str, wish: tuple[str, int] | None = None) -> None:
        """End the run; a second call ends it at once. reason: the signal's name, or a sentence. wish: as in
        `StopWished`.
        """
        number = signal.Signals.__members__.get(reason)
        request = happenings.StopRequested(reason, 1 if number is None else SIGNAL_CODE + number)
        if not self._is_closed:
            self._enter(StopWished(request=request, now_ns=self._clock.now_ns(), wish=wish))
            self._set_timer()

    def tell(self, text: str, severity: happenings.Severity = "trouble") -> None:
        """Tell the operator one line."""
        self._enter(Told(text, self._clock.now_ns(), severity))

    def endangered(self, what: str, reason: str = "", *, over: bool = False) -> None:
        """Record that something that protects the run stopped working, or works again."""
        self._recorder.record(RunEndangered, what=what, reason=reason, over=over)

    def announce(self, text: str) -> None:
        """Tell the operator one line that is not an event of the run."""
        self._enter(Told(text, self._clock.now_ns()))

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def enter(self, entry: EstateEntry) -> None:
        """Change the estate, for the code that manages the heirs."""
        self._enter(entry)

    def reign(self) -> None:
        """Tell all clients that this coordinator lives, so that they do not turn to another."""
        assert self.heirs is not None
        if self._line and self.heirs.reign.is_established:
            data = wire.frame(wire.Reigning(term=self.heirs.reign.term))
            for connection in (*self._named.values(), *self._viewers):
                connection.write(data)

    def node_struck(self, for_s: float) -> None:
        """Tell the launchers, which restart nodes, that a fault takes a node away for this long."""
        for viewer in self._viewers:
            viewer.send(wire.NodeStruck(for_s=for_s))

    def strike(self, strike: wire.Strike) -> wire.Answer:
        """Inject a fault now."""
        self.happened(happenings.StrikeRequested(strike))
        return self._answer

    def move(self, move: wire.Move) -> wire.Answer:
        """Make a member or node leave its place or come back, or report how far that is."""
        self.happened(happenings.MoveRequested(move))
        return self._answer

    async def close(self) -> None:
        """Close everything after the last messages are sent. Ignore whatever still happens."""
        self._is_closed = True
        for timer in (self._timer, self._accept_again, self._return_timer, self._reach_timer, self._short):
            if timer is not None:
                timer.cancel()
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
        """The state of the run. Any thread may ask, because each collection is copied in one operation."""
        state = self._state
        kept = kept_steps(state)
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
                host=state.roster.nodes[member.node].host if member.node in state.roster.nodes else "",
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
            snapshot_s=None
            if (wait_ns := state.progress.checkpointing.snapshot_ns) is None
            else wait_ns / 1e9,
            snapshot_step=kept.once,
            mirror_step=kept.twice,
            saved_step=state.progress.checkpointing.saved_step,
            proven=state.progress.checkpointing.proven,
            refuted=state.progress.checkpointing.refuted,
            lanes_skipped=state.progress.lanes_skipped,
            members=members,
            nodes=tuple(
                NodeStatus(name=name, alive=name in state.roster.nodes) for name in list(self.estate.nodes)
            ),
            happened=tuple(self.estate.happened),
            outcome=None if closing is None else closing.end.outcome,
        )

    # -- messages from connections -----------------------------------------------------------------------

    def happened(self, event: happenings.Happening) -> None:
        """Let the state machine decide, and carry out the effects."""
        if not self._is_closed:
            self._enter(Advanced(event, self._clock.now_ns()))
            self._set_timer()

    def _enter(self, entry: EstateEntry) -> None:
        """Change the estate, here and at the successor, then carry out the effects."""
        try:
            if self.follow is not None:
                self.follow(entry)
            if self.heirs is not None:
                self.heirs.enter(entry)
            self._see_to(self.estate.take(entry))
            if self.estate.notices and not self._is_handing_out:
                self._is_handing_out = True
                asyncio.get_running_loop().call_soon(self._hand_out)
        except Exception as error:  # a defect of ours: the waiter for the end must know
            if self._ended is None or self._ended.done():
                raise
            self._ended.set_exception(error)

    def _see_to(self, deeds: list[Deed]) -> None:
        """Carry them out; if there are heirs, as soon as enough of them have the entry."""
        for deed in deeds:
            if self.heirs is None or isinstance(deed, happenings.Reply):
                self._carry_out(deed)
            else:
                self.heirs.hold(deed)
        self._release()

    def _release(self) -> None:
        """Carry out what is not on hold any more."""
        if self._is_retired:
            return
        if self.heirs is not None:
            self.heirs.release(self._carry_out)
        if count := self._recorded:
            self._recorded = 0
            self._enter(Written(count))

    def retire(self) -> None:
        """Carry out nothing more: what is on hold never takes effect, or another coordinator sees to it."""
        self._is_retired = True

    def _hand_out(self) -> None:
        """Hand out the notices that members published in this turn of the loop."""
        self._is_handing_out = False
        if self.estate.notices and not self._is_closed:
            self._enter(HandedOut())

    def handshake(self, endpoint: str) -> Host:
        """Our side of a handshake on a connection that arrived there."""
        certificate = b"" if self.identity is None else self.identity.fingerprint
        return Host(self._token, endpoint=endpoint, certificate=certificate)

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        """Why this client, which has the token, may not connect; None if it may."""
        if proof.role == "heir":
            return None if self.heirs is not None else wire.Refused(sentence="This run has no heirs.")
        if self.heirs is not None and not self.heirs.reign.is_established:
            return wire.Refused(sentence="The coordinator is not chosen yet.", is_elsewhere=True)
        is_back = proof.received is not None and bool(self._line)  # its old connection hung
        if (proof.role, proof.name) in self._named and not is_back:
            return wire.Refused(
                sentence=f"The {proof.role} {proof.name!r} is connected already.",
                hint="Give every node a name of its own.",
            )
        if proof.role == "worker" and self._state.roster.living(proof.name) is None:
            return wire.Refused(sentence=f"The run has no member {proof.name!r}, or has given it up.")
        if proof.received is not None:
            session = self.estate.sessions.get((proof.role, proof.name))
            if session is None or session.is_given_up or session.sent.after(proof.received) is None:
                return wire.Refused(sentence=f"The run has given the {proof.role} {proof.name!r} up.")
        return None

    def opened(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        self._unproven[connection] = asyncio.get_running_loop().time()

    def accepted(
        self, connection: ClientConnection, received: int | None
    ) -> tuple[wire.Accepted, list[bytes]]:
        """Admit a connection that has proved its identity. received: how many messages the client received
        before; None if it is new. Return the answer and the messages that it missed.
        """
        self._unproven.pop(connection, None)
        if self._is_full and self._accept_again is not None and not self._is_closed:
            self._accept_again.cancel()
            self._listen()
        term = 0 if self.heirs is None else self.heirs.reign.term
        accepted = wire.Accepted(run=self._state.policy.run, has_successor=self.follow is not None, term=term)
        if connection.role in ("operator", "heir"):
            return accepted, []
        client = (connection.role, connection.name)
        if (before := self._named.get(client)) is not None:
            before.abort()
        self._named[client] = connection
        if received is None:
            self._enter(ClientCame(client))
        session = self.estate.sessions[client]
        connection.session = session.number
        self._sessions[session.number] = connection
        missed = session.sent.after(received or 0) or []
        if self.heirs is not None:  # held messages follow once they are released
            missed = missed[: max(0, len(missed) - self.heirs.held_for(session.number))]
        return msgspec.structs.replace(accepted, received=session.received), missed

    def closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self._unproven.pop(connection, None)
        self._viewers.discard(connection)
        self._asking = {wish: asker for wish, asker in self._asking.items() if asker is not connection}
        role, name = connection.role, connection.name
        if role == "heir":
            if self.heirs is not None:
                self.heirs.closed(connection)
        elif role != "operator" and self._named.get((role, name)) is connection:
            del self._named[role, name]
            del self._sessions[connection.session]
            self.happened(happenings.Disconnected(role, name))

    def heard(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        """Handle a message of a proven connection. Raise `MalformedFrame` if its role must not send it."""
        role, name = connection.role, connection.name
        if role == "operator":
            self._heard_operator(connection, message)
        elif role == "heir" and self.heirs is not None:
            self.heirs.heard(connection, message)
            self._release()
        elif role == "agent" and isinstance(message, _FROM_AGENT):
            self.happened(happenings.FromNode(name, message))
        elif role == "worker" and isinstance(message, _FROM_WORKER):
            self.happened(happenings.FromMember(name, message))
        else:
            raise wire.MalformedFrame(f"a {role} does not send {type(message).__name__}")

    def _heard_operator(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        match message:
            case wire.Strike():
                connection.send(self.strike(message))
            case wire.Migrate() | wire.Drain() | wire.Restore():
                connection.send(self.move(message))
            case wire.Stop(reason=reason, asker=asker, number=number):
                self._asking[asker, number] = connection
                self.stop(reason, (asker, number))
            case wire.AskStatus():
                connection.send(wire.StatusTold(packed=_encoder.encode(self.status())))
            case wire.WatchRun(seen=seen):
                self._viewers.add(connection)
                connection.send(wire.LineOfSuccession(places=self._line))
                for line in self.estate.lines:
                    if line.number > seen and (self.heirs is None or self.heirs.may_see(line)):
                        connection.send(_said(line))
                if self.over is not None:
                    connection.send(self.over)
            case _:
                raise wire.MalformedFrame(f"an operator does not send {type(message).__name__}")

    # -- new connections ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept waiting connections. asyncio's server is not used: when descriptors run out, it retries a
        hundred times and prints as many tracebacks.
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
            task = loop.create_task(loop.connect_accepted_socket(lambda: ClientConnection(self), accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _has_room(self) -> bool:
        """Whether one more connection may try to prove itself now."""
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
        """Accept no connections for this long."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._accept_again = loop.call_later(delay_s, self._listen)

    def _listen(self) -> None:
        """Accept connections again."""
        assert self._listener is not None
        self._accept_again, self._is_full = None, False
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept_later(self, error: OSError) -> None:
        """Drop unproven connections to make room, and accept the waiting ones in a moment."""
        self._pause(ACCEPT_WAIT_S)
        for connection in list(self._unproven):
            self._drop(connection)
        why = (error.strerror or str(error)).lower()
        if self._short is None:
            self.endangered("connections", why)
        else:
            self._short.cancel()
        self._short = asyncio.get_running_loop().call_later(SHORT_OVER_S, self._accepts_again)
        if not self._is_short_told:
            self._is_short_told = True
            self.tell(
                f"the coordinator cannot accept new connections ({why}): connected members continue, and new "
                "ones wait. If the run really is this large, raise `ulimit -n` for the next one"
            )

    def _accepts_again(self) -> None:
        self._short = None
        self.endangered("connections", over=True)

    def _drop(self, connection: ClientConnection) -> None:
        self._unproven.pop(connection, None)
        connection.abort()

    # -- effects of the state machine --------------------------------------------------------------------

    def _carry_out(self, deed: Deed) -> None:
        match deed:
            case Deliver(sessions, data):
                for session in sessions:
                    if (connection := self._sessions.get(session)) is not None:
                        connection.write(data)
            case LineTold(line):
                self._line = line.places
                self.on_line(line.places)
                for viewer in self._viewers:
                    viewer.send(line)
            case EndSession(session):
                if (connection := self._sessions.get(session)) is not None:
                    connection.abort()  # if it does not read, it must still free its name
            case OperatorLine(member=member, text=text):
                if member:
                    self.show(member, text)
                else:
                    self._say(text)
                for viewer in self._viewers:
                    viewer.send(_said(deed))
            case happenings.Record(event):
                write_down(self._recorder, event)
                self._recorded += 1
            case WishHeard(wish):
                if (asker := self._asking.pop(wish, None)) is not None:
                    asker.send(wire.Answer(ok=True, sentence="the run is ending"))
            case happenings.Reply(answer):
                self._answer = answer
            case happenings.Ending():
                self._end(deed)

    def _end(self, ending: happenings.Ending) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(ending)

    def tell_over(self, ending: happenings.Ending) -> None:
        """Tell the viewers how the run ended."""
        state = self._state
        is_plain = state.launch.setup is None and not state.policy.may_join
        self.over = wire.RunClosed(
            outcome=ending.outcome,
            code=ending.code,
            reason=ending.reason,
            complaint=ending.complaint,
            saved_step=None if is_plain else state.progress.checkpointing.saved_step,
        )
        for viewer in self._viewers:
            viewer.send(self.over)

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
        commits = tuple(self.estate.commits)
        if len(commits) < 2:
            return 0.0
        (first_ns, first), (last_ns, last) = commits[0], commits[-1]
        return (last - first) * 1e9 / (last_ns - first_ns) if last > first and last_ns > first_ns else 0.0

    def _step_s(self) -> float | None:
        """The mean over the steps of the last second, or the last step if that took longer."""
        commits = tuple(self.estate.commits)
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


def _said(line: OperatorLine) -> wire.Said:
    return wire.Said(number=line.number, text=line.text, member=line.member)
