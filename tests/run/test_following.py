"""Coordinators and heirs over real connections, a piece at a time; whole machines are in test_heirs.py."""

import asyncio
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from desks import TOKEN, OpenDesk
from waiting import WAIT_S, free_port

from holdfast.run import wire
from holdfast.run.dial import dial
from holdfast.run.distant import DistantHeir, HeirOrder
from holdfast.run.estate import Estate
from holdfast.run.following import Following
from holdfast.run.heirs import MachineHeir
from holdfast.run.link import Link
from holdfast.run.serving import ClientConnection, Desk
from holdfast.run.site import Site
from holdfast.run.state import RunPolicy
from holdfast.run.succession import HUSH_S, Candidacy, Electorate, MachinePlace, Mandate, Reign, Stand, Vote
from holdfast.run.watching import Viewer


def _order(port: int, home: Path, memory: int = 0) -> HeirOrder:
    return HeirOrder(
        host="127.0.0.1",
        port=port,
        token=TOKEN,
        machine="b",
        home=str(home),
        memory=memory,
        launcher=os.getpid(),
    )


def test_an_heir_that_is_started_again_looks_where_the_coordinator_is_by_now(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as second:
        places = [("127.0.0.1", free_port()), second.getsockname()]
        heir = MachineHeir(_order(places[0][1], tmp_path), lambda: places.pop(0))

        def hang_up() -> None:
            second.accept()[0].close()
            second.close()

        called = threading.Thread(target=hang_up)
        called.start()

        async def keep() -> None:
            with pytest.raises(IndexError):  # there is no third request
                await heir.keep()
            await heir.finish(0.0)

        asyncio.run(keep())
        called.join(WAIT_S)
        assert not called.is_alive()


class _Told(ClientConnection):
    """An heir's connection; only the messages sent to it matter."""

    def __init__(self, desk: Desk, machine: str) -> None:
        super().__init__(desk)
        self.name, self.told = machine, list[wire.AnyMessage]()

    def write(self, data: bytes) -> None:
        self.told += wire.FrameBuffer().feed(data)

    def asked(self) -> list[Candidacy]:
        return [one.candidacy for one in self.told if isinstance(one, wire.AskVote)]


def _came(machine: str, promised: int) -> wire.HeirCame:
    return wire.HeirCame(place=MachinePlace(machine, "127.0.0.1", 1), promised=promised)


def test_a_coordinator_asks_for_a_term_until_enough_have_voted(tmp_path: Path) -> None:
    async def ask() -> None:
        electorate = Electorate(machines=("a", "b", "c"), casting="a")
        estate, reign = (
            Estate(RunPolicy(run="r"), 0, "token"),
            Reign("a", 1, Mandate(electorate=electorate), 0),
        )
        following = Following(estate, MachinePlace("a", "127.0.0.1", 1), reign)
        with socket.socket() as listener:
            desk = DistantHeir(_order(1, tmp_path, _memory()), MachinePlace("b", "", 1), listener)
            early, late = _Told(desk, "b"), _Told(desk, "c")
            following.heard(early, _came("b", 3))
            following.ask_for_term()
            following.heard(late, _came("c", 1))
            following.ask_for_term()
            (candidacy,) = {*early.asked(), *late.asked()}
            assert (candidacy.term, len(early.asked()), len(late.asked())) == (4, 2, 1)
            following.heard(late, wire.VoteCast(candidacy=candidacy, vote=Vote(is_granted=True)))
            following.ask_for_term()
            assert (len(early.asked()), len(late.asked())) == (3, 1)  # it has voted
            won = following.term_won(1)
            assert won is not None
            assert won.term == 4

    asyncio.run(ask())


class _HeirDesk(OpenDesk):
    """A coordinator's desk, for heirs only."""

    def __init__(self, following: Following) -> None:
        self._following = following

    def closed(self, connection: ClientConnection) -> None:
        self._following.closed(connection)

    def heard(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        self._following.heard(connection, message)


@contextlib.asynccontextmanager
async def _followed(estate: Estate, home: Path, *electors: str) -> AsyncIterator[Following]:
    """A coordinator `a` and the heir `b`, named after its machine, which follows it."""
    reign = Reign("a", 1, Mandate(electorate=Electorate(machines=electors, casting="a")), 0)
    following = Following(estate, MachinePlace("a", "127.0.0.1", 1), reign)
    desk, loop = _HeirDesk(following), asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(desk), "127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = MachinePlace("b", *listener.getsockname())
        order = _order(server.sockets[0].getsockname()[1], home, _memory())
        order = msgspec.structs.replace(order, host="localhost")
        heir = asyncio.create_task(DistantHeir(order, own, listener).follow())
        async with asyncio.timeout(WAIT_S):
            while following.change() is None:  # until it has acknowledged the whole estate
                await asyncio.sleep(0.01)
            yield following
            following.finish()
            assert await heir is None
    server.close()
    await server.wait_closed()


def test_an_estate_of_any_size_is_followed(tmp_path: Path) -> None:
    async def follow() -> None:
        estate = Estate(RunPolicy(run="r"), 0, "token")
        estate.notices = [("n0.0", f"k{number}", bytes(1 << 20)) for number in range(48)]
        async with _followed(estate, tmp_path, "a"):
            pass

    asyncio.run(follow())


def test_an_heir_votes_for_the_coordinator_that_it_follows(tmp_path: Path) -> None:
    """It votes at once, although it has just heard a coordinator."""

    async def follow() -> None:
        async with _followed(Estate(RunPolicy(run="r"), 0, "token"), tmp_path, "a", "b", "c") as following:
            following.heard(_Told(_HeirDesk(following), "c"), _came("c", 3))
            following.beat()
            following.ask_for_term()
            async with asyncio.timeout(HUSH_S / 2):
                while (won := following.term_won(1)) is None:
                    await asyncio.sleep(0.01)
            assert won.term == 4

    asyncio.run(follow())


class _Rival(_HeirDesk):
    """A coordinator that falls silent, an heir that votes, and a coordinator of a later term, all at one
    place. came: the first messages of heirs.
    """

    def __init__(self, following: Following) -> None:
        super().__init__(following)
        self.came: list[wire.HeirCame] = []
        self.is_silent = False

    def accepted(
        self, connection: ClientConnection, received: int | None
    ) -> tuple[wire.Accepted, list[bytes]]:
        term = 9 if connection.role == "operator" else 0 if self.is_silent else 1
        return wire.Accepted(run="r", term=term), []

    def heard(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        if isinstance(message, wire.AskVote):
            vote = Vote(is_granted=True)
            connection.send(wire.VoteCast(candidacy=message.candidacy, vote=vote))
            return
        if isinstance(message, wire.HeirCame):
            self.came.append(message)
        super().heard(connection, message)
        if isinstance(message, wire.Followed) and not self.is_silent:
            self.is_silent = True
            connection.abort()


class _Unchosen(_HeirDesk):
    """A coordinator that dies, and a successor that no heir follows yet. calls: of each role."""

    REFUSALS = 2

    def __init__(self) -> None:
        self.calls = Counter[wire.Role]()
        self.connections: list[ClientConnection] = []

    def opened(self, connection: ClientConnection) -> None:
        self.connections.append(connection)

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        self.calls[proof.role] += 1
        if 1 < self.calls[proof.role] < 2 + self.REFUSALS:
            return wire.Refused(sentence="The coordinator is not chosen yet.", is_elsewhere=True)
        return None

    def accepted(
        self, connection: ClientConnection, received: int | None
    ) -> tuple[wire.Accepted, list[bytes]]:
        if self.calls[connection.role] == 1:
            asyncio.get_running_loop().call_soon(connection.end)
        return wire.Accepted(run="r", has_successor=True, term=1), []

    def closed(self, connection: ClientConnection) -> None:
        pass

    def heard(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        pass


def test_a_successor_that_is_not_chosen_yet_is_waited_for() -> None:
    """Even clients that were not told the line of succession before the coordinator died wait."""

    async def wait() -> None:
        desk = _Unchosen()
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(desk), "127.0.0.1", 0
        )
        host, port = server.sockets[0].getsockname()
        viewer = Viewer(Site(host=host, port=port, token=TOKEN), lambda _said: None)
        viewing = asyncio.create_task(viewer.follow())
        agent = await dial(host, port, TOKEN, role="agent", name="n0")
        environment = {
            "HOLDFAST_COORDINATOR": f"{host}:{port}",
            "HOLDFAST_TOKEN": TOKEN,
            "HOLDFAST_MEMBER": "n0.0",
        }
        member = await asyncio.to_thread(Link.connect, environment)
        heard: list[object] = []
        member.on_message = heard.append
        async with asyncio.timeout(WAIT_S):
            assert await agent.receive() is None
            assert await agent.resume()
            while min(desk.calls[role] for role in ("operator", "agent", "worker")) < 2 + desk.REFUSALS:
                await asyncio.sleep(0.01)
        assert not viewing.done()
        assert heard == []
        await agent.close()
        await asyncio.to_thread(member.close)
        server.close()
        for connection in desk.connections:
            connection.end()
        await viewing

    asyncio.run(wait())


def test_an_heir_that_was_elected_and_deposed_follows_again(tmp_path: Path) -> None:
    async def follow() -> None:
        estate = Estate(RunPolicy(run="r"), 0, "token")
        estate.mandate = Mandate(electorate=Electorate(machines=("a", "b", "c"), casting="a"))
        following = Following(estate, MachinePlace("a", "", 1), Reign("a", 1, estate.mandate, 0))
        desk, loop = _Rival(following), asyncio.get_running_loop()
        server = await loop.create_server(lambda: ClientConnection(desk), "127.0.0.1", 0)
        place = server.sockets[0].getsockname()
        estate.places = (MachinePlace("a", *place), MachinePlace("c", *place))
        heir = MachineHeir(_order(place[1], tmp_path), lambda: place)
        keeping = asyncio.create_task(heir.keep())
        try:
            async with asyncio.timeout(2 * WAIT_S):
                while not desk.came:
                    await asyncio.sleep(0.01)
                while not (tmp_path / "runs").exists():  # it coordinates
                    await asyncio.sleep(0.01)
                desk.is_silent = False
                while len(desk.came) < 2:
                    await asyncio.sleep(0.01)
            first, second = desk.came[:2]
            assert first.promised < second.promised
            assert first.place != second.place  # another process
            following.finish()
            await asyncio.wait_for(keeping, WAIT_S)
        finally:
            await heir.finish(0.0)
            keeping.cancel()
            server.close()

    asyncio.run(follow())


def _memory() -> int:
    return os.memfd_create("test")


def test_an_heir_that_was_elected_votes_no_more(tmp_path: Path) -> None:
    async def follow() -> None:
        memory = _memory()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            own = MachinePlace("b", *listener.getsockname())
            heir = DistantHeir(_order(free_port(), tmp_path, memory), own, listener)
            following = asyncio.create_task(heir.follow())
            await asyncio.sleep(0)
            following.cancel()
            await asyncio.wait([following])
            candidacy = Candidacy(machine="c", term=9, known=Stand(8, 8))
            told = _Told(heir, "c")
            heir.heard(told, wire.AskVote(candidacy=candidacy))
            (cast,) = told.told
            assert isinstance(cast, wire.VoteCast)
            assert not cast.vote.is_granted
        assert os.pread(memory, 1, 0) == b""

    asyncio.run(follow())
