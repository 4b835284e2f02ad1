"""An operator's questions while the coordinator is lost, over real connections."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Literal

import pytest
from desks import TOKEN, OpenDesk
from waiting import WAIT_S, free_port

from holdfast.record.errors import HoldfastError
from holdfast.run import wire
from holdfast.run.asking import Asker
from holdfast.run.dial import Unanswered
from holdfast.run.endpoint import Endpoint, keep_line, run_directory
from holdfast.run.handshake import Unreachable
from holdfast.run.locating import located
from holdfast.run.serving import ClientConnection

DRAIN = wire.Drain(node="n0")
STRIKE = wire.Strike(fault="kill", seed=1, for_s=1.0)

Deed = Literal["not chosen", "dies", "answers"]


class _Coordinator(OpenDesk):
    """What listens at one place does one deed for each connection, and the last one from then on."""

    def __init__(self, *deeds: Deed) -> None:
        self.deeds = list(deeds)
        self.heard_of: list[wire.AnyMessage] = []

    def _deed(self) -> Deed:
        return self.deeds.pop(0) if len(self.deeds) > 1 else self.deeds[0]

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        if self.deeds[0] == "not chosen":
            self._deed()
            return wire.Refused(sentence="The coordinator is not chosen yet.", is_elsewhere=True)
        return None

    def heard(self, connection: ClientConnection, message: wire.AnyMessage) -> None:
        self.heard_of.append(message)
        if self._deed() == "dies":
            connection.abort()
        else:
            connection.send(wire.Answer(ok=True, sentence="done"))


Question = Callable[[tuple[str, int]], Coroutine[None, None, None]]


def _served(desk: _Coordinator, question: Question) -> None:
    """Ask the question of this coordinator's place."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ClientConnection(desk), "127.0.0.1", 0)
        try:
            async with asyncio.timeout(WAIT_S):
                await question(server.sockets[0].getsockname()[:2])
        finally:
            server.close()

    asyncio.run(serve())


def _at(place: tuple[str, int]) -> Endpoint:
    return Endpoint(host=place[0], port=place[1], token=TOKEN, pid=1)


def _keep_line(home: Path, *places: tuple[str, int]) -> None:
    run_directory(home, "r").mkdir(parents=True)
    keep_line(home, "r", places)


def test_a_coordinator_that_is_not_chosen_yet_is_waited_for(tmp_path: Path) -> None:
    desk = _Coordinator("not chosen", "not chosen", "answers")

    async def question(place: tuple[str, int]) -> None:
        assert (await Asker(tmp_path, "r", _at(place)).ask(STRIKE)).sentence == "done"

    _served(desk, question)
    assert desk.heard_of == [STRIKE]


def test_a_machine_that_took_over_is_found_along_the_line(tmp_path: Path) -> None:
    async def question(place: tuple[str, int]) -> None:
        _keep_line(tmp_path, place)
        asker = Asker(tmp_path, "r", _at(("127.0.0.1", free_port())))
        assert (await asker.ask(DRAIN)).ok
        keep_line(tmp_path, "r", ())
        assert (await asker.ask(DRAIN)).ok  # it remembers the place

    _served(_Coordinator("not chosen", "answers"), question)


def test_a_coordinator_that_dies_before_its_answer_is_asked_again(tmp_path: Path) -> None:
    desk = _Coordinator("dies", "not chosen", "answers")

    async def question(place: tuple[str, int]) -> None:
        assert (await Asker(tmp_path, "r", _at(place)).ask(DRAIN)).ok

    _served(desk, question)
    assert desk.heard_of == [DRAIN, DRAIN]


def test_a_strike_that_may_have_been_made_is_not_repeated(tmp_path: Path) -> None:
    desk = _Coordinator("dies", "answers")

    async def question(place: tuple[str, int]) -> None:
        with pytest.raises(Unanswered):
            await Asker(tmp_path, "r", _at(place)).ask(STRIKE)

    _served(desk, question)
    assert desk.heard_of == [STRIKE]


def test_a_run_without_any_coordinator_is_given_up(tmp_path: Path) -> None:
    async def question(place: tuple[str, int]) -> None:
        with pytest.raises(
            HoldfastError, match=r"No coordinator of the run 'r' answered within 0\.5 s"
        ) as told:
            await Asker(tmp_path, "r", _at(place), seek_s=0.5).ask(DRAIN)
        assert told.value.hint

    _served(_Coordinator("not chosen"), question)


def test_a_run_that_is_over_is_not_looked_for(tmp_path: Path) -> None:
    async def ask() -> None:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(Unreachable):
                await Asker(tmp_path, "r", _at(("127.0.0.1", free_port()))).ask(DRAIN)

    asyncio.run(ask())


def test_another_run_at_a_place_of_the_line_is_not_asked(tmp_path: Path) -> None:
    desk = _Coordinator("answers")

    async def question(place: tuple[str, int]) -> None:
        with pytest.raises(HoldfastError, match="serves the run 'r', not 'other'"):
            await Asker(tmp_path, "other", _at(place)).ask(DRAIN)

    _served(desk, question)
    assert desk.heard_of == []


def test_a_run_whose_heirs_choose_a_coordinator_is_located(tmp_path: Path) -> None:
    async def question(place: tuple[str, int]) -> None:
        _keep_line(tmp_path, place)
        assert (await located(tmp_path, "r", TOKEN)).port == place[1]

    _served(_Coordinator("not chosen", "not chosen", "answers"), question)
