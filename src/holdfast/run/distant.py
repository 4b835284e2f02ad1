"""An heir on a different machine from the coordinator: it follows over the network, votes, and may take over.

It listens from the start, so that its address can be announced, and turns clients away until it coordinates.
Its promises must survive if its process is killed and started again, so they are in a file that the launcher
holds in memory. `python -m holdfast.run.distant` is private to the launcher, which writes an `HeirOrder` to
its stdin.
"""

import asyncio
import json
import os
import socket
import struct
import sys
from contextlib import suppress

import msgspec

from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError
from holdfast.run import wire
from holdfast.run.arbiter import arbiter_at, chosen
from holdfast.run.dial import Connection, dial
from holdfast.run.estate import Estate
from holdfast.run.following import fewer
from holdfast.run.handshake import Host, Rejected, Stranger, Unreachable
from holdfast.run.hub import Election, HubOrder, Legacy, Readiness, serve, tied
from holdfast.run.image import entry_of, estate_of
from holdfast.run.seeking import SEEK_WAIT_S, Address
from holdfast.run.serving import ClientConnection
from holdfast.run.site import EVERYWHERE, EVERYWHERE_IPV6, Site, is_here, listening
from holdfast.run.succession import HUSH_S, Candidacy, Elector, MachinePlace, Memory, Stand, Vote
from holdfast.run.tls import Identity, make_identity

ACCEPTS_MAX = 64
"""The most connections accepted in one turn of the loop."""
CONNECTIONS_MAX = 256
"""The most connections at once. Clients are turned away within a moment and look again."""
LOOK_INTERVAL_S = 0.25
LOST_S = 900.0
"""An heir that has found no coordinator for this long ends."""
EXIT_DEPOSED = 75
"""It coordinated and no longer may: the launcher should start another heir here. sysexits.h calls this a
temporary failure."""

_KEPT = struct.Struct(">QQQ")
"""The promised term, and the term and position up to which the estate is known."""

ALL = (1 << 64) - 1
"""The position kept for a coordinator, meaning all entries of its term. An heir started in its place lacks
some of them, and must not vote for another heir that lacks some.
"""


class HeirOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What an heir is to follow. address: where others reach this machine; empty to use the address that the
    connection to the coordinator has. memory: a descriptor. is_encrypted: like the coordinator, once known.
    launcher and the others: as in `HubOrder`.
    """

    host: str
    port: int
    token: str
    machine: str
    home: str
    memory: int
    address: str = ""
    launcher: int = 0
    started_by: int = 0
    is_encrypted: bool = False
    arbiter: str = ""


class _Keeper:
    """Keeps the elector's memory in a file that outlives this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        data = os.pread(descriptor, _KEPT.size, 0)
        promised, term, position = _KEPT.unpack(data) if len(data) == _KEPT.size else (0, 0, 0)
        self.memory = Memory(promised=promised, known=Stand(term, position))

    def keep(self, memory: Memory) -> None:
        """Write the memory before others learn of it. A single write: if the process is killed, the file has
        all of it or none.
        """
        if memory != self.memory:
            self.memory = memory
            known = memory.known
            os.pwrite(self._descriptor, _KEPT.pack(memory.promised, known.term, known.position), 0)


class DistantHeir:
    """One heir, until it coordinates or the run is over. Other heirs connect here to ask for its vote."""

    def __init__(self, order: HeirOrder, own: MachinePlace, listener: socket.socket) -> None:
        self.identity: Identity | None = make_identity() if order.is_encrypted else None
        self._order = order
        self._own = own
        self._listener = listener
        self._clock = SystemClock()
        self._keeper = _Keeper(order.memory)
        self._elector = Elector(order.machine, self._keeper.memory, self._clock.now_ns())
        self._estate: Estate | None = None
        self.ahead_ns = 0
        """How far the coordinator's clock is ahead of this machine's."""
        self._connections: set[ClientConnection] = set()
        self._accepting: set[asyncio.Task[object]] = set()
        self._places: tuple[Address, ...] = ((order.host, order.port),)
        self._heard_at: Address | None = None
        """The address of the coordinator that it last heeded."""
        self._is_done = False
        """Whether it has stopped following, to coordinate or to end, and so no longer votes."""

    async def follow(self) -> Election | None:
        """Follow until elected. None if the run is over or lost."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._listen()
        found_s = loop.time()
        try:
            while loop.time() - found_s < LOST_S:
                coordinator = await self._found(self._spare_s())
                if coordinator is not None:
                    is_over = await self._followed(coordinator)
                    coordinator.abort()
                    if is_over:
                        return None
                    found_s = loop.time()
                due_ns = self._elector.due_ns()
                if due_ns is not None and self._clock.now_ns() >= due_ns:
                    election = await self._stand()
                    if election is not None:
                        self._keeper.keep(Memory(promised=election.term, known=Stand(election.term, ALL)))
                        return election
                await asyncio.sleep(LOOK_INTERVAL_S)
            return None
        finally:
            self._is_done = True
            loop.remove_reader(self._listener)
            for connection in list(self._connections):
                connection.abort()

    @property
    def estate(self) -> Estate:
        assert self._estate is not None
        return self._estate

    # ---- following -----------------------------------------------------------------------------------------

    def _spare_s(self) -> float:
        """How long to look for a coordinator: until it is this heir's turn to stand. If all heirs stood after
        the same wait, they would split the votes.
        """
        due_ns = self._elector.due_ns()
        left_s = SEEK_WAIT_S if due_ns is None else (due_ns - self._clock.now_ns()) / 1e9
        return min(SEEK_WAIT_S, max(LOOK_INTERVAL_S, left_s))

    async def _found(self, wait_s: float) -> Connection | None:
        """A connection to the coordinator at the first place that has one."""
        calls = [asyncio.create_task(self._coordinator_at(*place)) for place in self._places]
        found: Connection | None = None
        with suppress(TimeoutError):
            for call in asyncio.as_completed(calls, timeout=wait_s):
                if (found := await call) is not None:
                    break
        for task in calls:
            task.cancel()
        for late in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(late, Connection) and late is not found:
                late.abort()
        if found is not None:
            found.send(wire.HeirCame(place=self._own, promised=self._elector.memory.promised))
        return found

    async def _coordinator_at(self, host: str, port: int) -> Connection | None:
        try:
            found = await self._call(host, port)
        except (Unreachable, Stranger, Rejected):
            return None
        if not found.term:  # another heir
            found.abort()
            return None
        return found

    async def _call(self, host: str, port: int, role: wire.Role = "heir") -> Connection:
        order = self._order
        return await dial(host, port, order.token, role=role, name=order.machine, wait_s=SEEK_WAIT_S)

    async def _followed(self, coordinator: Connection) -> bool:
        """Follow the coordinator until it falls silent or must be left; whether the run is over. Messages
        that the elector does not heed count as silence.
        """
        loop = asyncio.get_running_loop()
        parts = bytearray()
        is_whole = False
        due_s = loop.time() + HUSH_S
        while True:
            try:
                async with asyncio.timeout_at(due_s):
                    message = await coordinator.receive()
            except TimeoutError:
                return False
            is_heeded = False
            try:
                match message:
                    case wire.LineOver():
                        return True
                    case wire.EstatePart(term=term, data=data, is_last=is_last) if self._elector.heeds(term):
                        is_heeded = True
                        self._heard(coordinator, term)
                        parts += data
                        is_whole = is_last
                        if is_last:
                            self._estate, parts = estate_of(bytes(parts)), bytearray()
                            self._know(coordinator)
                    case wire.EntriesTold(term=term, entries=entries):
                        is_heeded = self._elector.heeds(term)
                        is_whole = is_whole and is_heeded
                        if is_whole:
                            self._heard(coordinator, term)
                            for entry in entries:
                                self.estate.take(entry_of(entry))
                            self._know(coordinator)
                    case wire.Reigning(term=term):
                        is_heeded = self._elector.heeds(term)
                        if is_heeded:
                            self._heard(coordinator, term)
                            if is_whole:
                                self._acknowledge(coordinator)
                    case wire.AskVote(candidacy=candidacy):
                        if coordinator.place == self._heard_at:
                            self._elector.coordinator = candidacy.machine
                        vote = self._vote(candidacy)
                        is_heeded = vote.is_granted
                        coordinator.send(wire.VoteCast(candidacy=candidacy, vote=vote))
                    case _:
                        return False
            except wire.MalformedFrame:
                return False
            due_s = loop.time() + HUSH_S if is_heeded else due_s

    def _heard(self, coordinator: Connection, term: int) -> None:
        """Note that the coordinator lives. Its name stays empty until it asks for a vote, because one place
        may have more than one name.
        """
        self._heard_at = coordinator.place
        self._elector.heard("", term, self._clock.now_ns())
        self._keeper.keep(self._elector.memory)

    def _know(self, coordinator: Connection) -> None:
        """After a change of the estate, keep how far it is known and acknowledge that."""
        self._elector.follows(self.estate.known, self.estate.mandate.electorate)
        self._keeper.keep(self._elector.memory)
        self.ahead_ns = self.estate.state.now_ns - self._clock.now_ns()
        others = ((one.host, one.port) for one in self.estate.places if one.machine != self._own.machine)
        first = (self._order.host, self._order.port)
        self._places = tuple(dict.fromkeys((coordinator.place, *others, first)))
        self._acknowledge(coordinator)

    def _acknowledge(self, coordinator: Connection) -> None:
        known = self._elector.memory.known
        coordinator.send(wire.Followed(term=self._elector.memory.promised, position=known.position))

    # ---- votes ---------------------------------------------------------------------------------------------

    def _vote(self, candidacy: Candidacy) -> Vote:
        if self._is_done:
            return Vote(is_granted=False, reason="this heir has stopped following")
        vote = self._elector.vote(candidacy, self._clock.now_ns())
        self._keeper.keep(self._elector.memory)
        return vote

    async def _stand(self) -> Election | None:
        """Ask whether the others would vote for this heir, then ask for their votes."""
        elector = self._elector
        trial = elector.try_out(self._clock.now_ns())
        votes = await self._votes(trial)
        if not elector.has_quorum(trial, votes, is_granted=bool(self._order.arbiter)):
            return None
        candidacy = elector.stand(trial)
        self._keeper.keep(elector.memory)
        if candidacy is None:
            return None
        votes = await self._votes(candidacy)
        if elector.has_quorum(candidacy, votes):
            return self._election(candidacy)
        if self._order.arbiter and elector.has_quorum(candidacy, votes, is_granted=True):
            state = self.estate.state
            arbiter = arbiter_at(self._order.arbiter, state.policy.run, state.started_ns)
            assert arbiter is not None
            is_chosen = await chosen(arbiter, self._own.machine, candidacy.known.term, candidacy.term)
            if is_chosen and elector.has_quorum(candidacy, votes, is_granted=True):
                return self._election(candidacy, tuple(votes))
            elector.undecided(self._clock.now_ns())
        return None

    def _election(self, candidacy: Candidacy, only: tuple[str, ...] = ()) -> Election:
        electorate = self._elector.electorate
        return Election(
            term=candidacy.term,
            electorate=fewer(electorate, only, self._own.machine) if only else None,
        )

    async def _votes(self, candidacy: Candidacy) -> list[str]:
        """The machines that vote for it, itself first; returned once they suffice or all have answered."""
        votes = [self._own.machine]
        others = [one for one in self.estate.places if one.machine != self._own.machine]
        asked = [asyncio.create_task(self._asked(one, candidacy)) for one in others]
        for answer in asyncio.as_completed(asked):
            if machine := await answer:
                votes.append(machine)
            if self._elector.has_quorum(candidacy, votes):
                break
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        return votes

    async def _asked(self, place: MachinePlace, candidacy: Candidacy) -> str:
        """The machine's name if it votes for the candidacy, else an empty string."""
        try:
            async with asyncio.timeout(SEEK_WAIT_S):
                connection = await self._call(place.host, place.port)
                try:
                    connection.send(wire.AskVote(candidacy=candidacy))
                    while (message := await connection.receive()) is not None:
                        if isinstance(message, wire.VoteCast) and message.candidacy == candidacy:
                            return place.machine if message.vote.is_granted else ""
                finally:
                    connection.abort()
        except (TimeoutError, Unreachable, Stranger, Rejected):
            pass
        return ""

    # ---- connections from others ---------------------------------------------------------------------------

    def _listen(self) -> None:
        if not self._is_done:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors left: try again in a moment, not at once
                loop.remove_reader(self._listener)
                loop.call_later(LOOK_INTERVAL_S, self._listen)
                return
            if len(self._connections) + len(self._accepting) >= CONNECTIONS_MAX:
                accepted.close()
                continue
            accepted.setblocking(False)
            task = loop.create_task(loop.connect_accepted_socket(lambda: ClientConnection(self), accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def opened(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        if self._is_done:  # accepted just before that
            connection.abort()

    def closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)

    def handshake(self, endpoint: str) -> Host:
        certificate = b"" if self.identity is None else self.identity.fingerprint
        return Host(self._order.token, endpoint=endpoint, certificate=certificate)

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        if proof.role == "heir" and self._estate is not None and not self._is_done:
            return None
        return wire.Refused(sentence="The coordinator of this run is on another machine.", is_elsewhere=True)

    def accepted(
        self, connection: ClientConnection, received: int | None
    ) -> tuple[wire.Accepted, list[bytes]]:
        return wire.Accepted(run=self.estate.state.policy.run), []

    def heard(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        match message:
            case wire.AskVote(candidacy=candidacy) if candidacy.machine == connection.name:
                connection.send(wire.VoteCast(candidacy=candidacy, vote=self._vote(candidacy)))
            case wire.HeirCame():
                connection.end()  # there is no coordinator here to follow
            case _:
                raise wire.MalformedFrame(f"an heir does not send {type(message).__name__}")


# ---- the process -------------------------------------------------------------------------------------------


async def _settled(order: HeirOrder) -> HeirOrder:
    """The order with the address at which others reach this machine, and encrypted if the coordinator is."""
    way = await dial(order.host, order.port, order.token, role="operator")
    try:
        address = order.address or way.own_address
        return msgspec.structs.replace(order, address=address, is_encrypted=way.is_encrypted)
    finally:
        await way.close()


def _listening(address: str) -> socket.socket:
    """Listen at the address. If this machine does not have it (a router translates it), listen at all of its
    addresses of that family.
    """
    everywhere = EVERYWHERE_IPV6 if ":" in address else EVERYWHERE
    return listening(address if is_here(address) else everywhere, 0)


async def _run(order: HeirOrder) -> int:
    """Follow, and coordinate if elected. Return the exit code."""
    order = await _settled(order)
    address = order.address
    listener = _listening(address)
    own = MachinePlace(order.machine, address, listener.getsockname()[1])
    heir = DistantHeir(order, own, listener)
    with tied(order.launcher):
        election = await heir.follow()
    if election is None:
        return 0
    charge = HubOrder(
        policy=heir.estate.state.policy,
        home=order.home,
        site=Site(host=address, port=own.port, token=order.token, bind=address),
        launcher=order.launcher,
        started_by=order.started_by,
        is_encrypted=order.is_encrypted,
        machine=order.machine,
        arbiter=order.arbiter,
        ahead_ns=heir.ahead_ns,
        prints=True,
    )
    heir.estate.takeovers += 1
    print(f"holdfast: this machine ({address}) coordinates the run now", file=sys.stderr)
    legacy = Legacy(estate=heir.estate, listener=listener, election=election, identity=heir.identity)
    return 0 if await serve(charge, _begun, legacy) else EXIT_DEPOSED


def _begun(begun: Readiness) -> None:
    """Do nothing, because no process waits for the new coordinator to be ready."""


def main() -> int:
    order = msgspec.convert(json.load(sys.stdin.buffer), HeirOrder)
    with suppress(OSError):
        os.dup2(2, 1)
    try:
        return asyncio.run(_run(order))
    except Unreachable:
        return 1  # the launcher says so, if it finds no coordinator either
    except HoldfastError as error:
        print(error.told, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
