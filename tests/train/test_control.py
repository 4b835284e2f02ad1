"""A member's waits: every wait ends when the run changes course, or is over."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import pytest
from waiting import WAIT_S

from holdfast.run import wire
from holdfast.run.handshake import Host, endpoint_of
from holdfast.run.wire import FrameBuffer
from holdfast.train.control import Coordinated, Dismissal
from holdfast.train.group import Superseded

pytestmark = pytest.mark.slow

SETUP = wire.Setup(lanes=8, seed=1, threads=1, torch="", device="cpu", deterministic=True, model="", parts={})
Heard = TypeVar("Heard", bound=wire.AnyMessage)


class Coordinator:
    """The part of a coordinator that a single member needs."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None
        host, port = self._server.getsockname()
        self.environment = {
            "HOLDFAST_COORDINATOR": f"{host}:{port}",
            "HOLDFAST_TOKEN": "token-of-the-tests",
            "HOLDFAST_MEMBER": "a",
        }

    def welcome(self) -> None:
        self._connection, _ = self._server.accept()
        host = Host("token-of-the-tests", endpoint=endpoint_of(self._connection.getsockname()))
        self.say(host.challenge)
        frames, heard = FrameBuffer(), list[wire.AnyMessage]()
        while not heard:
            heard += frames.feed(self._connection.recv(4096))
        assert isinstance(heard[0], wire.Proof)
        assert host.refusal(heard[0]) is None
        self.say(host.sealed(wire.Accepted(run="r")))

    def say(self, message: wire.AnyMessage) -> None:
        assert self._connection is not None
        self._connection.sendall(wire.frame(message))

    def hear(self, kind: type[Heard], count: int) -> list[Heard]:
        """The next messages of a kind."""
        assert self._connection is not None
        self._connection.settimeout(WAIT_S)
        frames, heard = FrameBuffer(), list[Heard]()
        while len(heard) < count:
            heard += [one for one in frames.feed(self._connection.recv(4096)) if isinstance(one, kind)]
        return heard

    def close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
        self._server.close()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    yield coordinator
    coordinator.close()


@pytest.fixture
def control(coordinator: Coordinator) -> Iterator[Coordinated]:
    welcoming = threading.Thread(target=coordinator.welcome)
    welcoming.start()
    control = Coordinated(coordinator.environment)
    welcoming.join()
    yield control
    control.close()


def generation(number: int, *members: str, at_boundary: bool = False) -> wire.Announced:
    return wire.Announced(number=number, members=members, boundary_of=number - 1 if at_boundary else 0)


def outcome(wait: Callable[[], object], ended_by: Callable[[], None]) -> object:
    """The result of a wait, ended by this call."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        ended_by()
        return waiting.exception(WAIT_S) or waiting.result()


def test_a_wait_for_another_member_ends_with_the_run(coordinator: Coordinator, control: Coordinated) -> None:
    """The other member may have left already."""
    coordinator.say(generation(1, "a", "b"))
    assert control.newest(0) == generation(1, "a", "b")
    aborted = threading.Event()
    control.on_superseded(aborted.set)
    over = outcome(
        lambda: control.lookup(1, "standing/1"),
        lambda: coordinator.say(wire.Released(outcome="completed")),
    )
    assert isinstance(over, Superseded)
    assert aborted.wait(WAIT_S)
    assert control.superseded(1)
    assert control.newest(1) is None


def test_a_run_that_is_over_has_no_newer_generation(coordinator: Coordinator, control: Coordinated) -> None:
    """A generation that was opened a moment before is not formed any more."""
    coordinator.say(generation(1, "a"))
    assert control.newest(0) is not None
    coordinator.say(generation(2, "a", "b", at_boundary=True))
    coordinator.say(wire.Released(outcome="completed"))
    assert isinstance(outcome(lambda: control.lookup(2, "standing/1"), lambda: None), Superseded)
    assert control.newest(1) is None


def test_a_newer_generation_wakes_and_one_at_a_boundary_does_not(
    coordinator: Coordinator, control: Coordinated
) -> None:
    coordinator.say(generation(1, "a", "b"))
    assert control.newest(0) is not None
    coordinator.say(generation(2, "a", "b", "c", at_boundary=True))
    coordinator.say(wire.Published(generation=2, key="k", value=b"v"))
    assert control.lookup(2, "k") == b"v"
    assert control.pending(1) == 2
    assert not control.superseded(1)
    assert control.superseded(1, forming=True)
    over = outcome(lambda: control.lookup(2, "standing/1"), lambda: coordinator.say(generation(3, "a", "b")))
    assert isinstance(over, Superseded)
    assert control.superseded(1)


def test_what_was_published_together_is_found_but_what_one_told_oneself_is_not_kept_again(
    coordinator: Coordinator, control: Coordinated
) -> None:
    coordinator.say(generation(1, "a", "b", "c"))
    assert control.newest(0) is not None
    control.publish(1, "k/0", b"mine")
    control.forget(1, ["k/0"])
    packed = wire.pack([("a", "k/0", b"mine"), ("b", "k/1", b"yours"), ("c", "k/2", b"theirs")])
    coordinator.say(wire.PublishedTogether(generation=1, packed=packed))
    assert control.lookup(1, "k/1") == b"yours"
    assert control.lookup(1, "k/2") == b"theirs"
    coordinator.say(generation(2, "a", "b"))
    assert isinstance(outcome(lambda: control.lookup(1, "k/0"), lambda: None), Superseded)


def test_a_dismissal_and_a_coordinator_that_is_gone_end_every_wait(
    coordinator: Coordinator, control: Coordinated
) -> None:
    over = outcome(lambda: control.newest(0), coordinator.close)
    assert isinstance(over, Dismissal)
    with pytest.raises(Dismissal, match="coordinator is gone"):
        control.superseded(1)


def test_work_within_declared_work_is_a_part_of_it(coordinator: Coordinator, control: Coordinated) -> None:
    control.working("evaluation")
    control.working("shared work")
    control.working("shared work", is_over=True)
    control.working("evaluation", is_over=True)
    control.working("shared work")
    told = [(one.work, one.is_over) for one in coordinator.hear(wire.Working, 3)]
    assert told == [("evaluation", False), ("evaluation", True), ("shared work", False)]


def test_a_process_says_that_it_is_warm_though_its_rehearsal_failed(coordinator: Coordinator) -> None:
    program = "import holdfast.train as hf; hf.join(warm=lambda device: 1 / 0)"
    with subprocess.Popen(
        (sys.executable, "-c", program),
        env={**os.environ, **coordinator.environment},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            coordinator.welcome()
            (joined,) = coordinator.hear(wire.WorkerJoined, 1)
            assert joined.warms_up
            assert coordinator.hear(wire.WarmedUp, 1)
        finally:
            process.kill()
        assert process.stderr is not None
        assert "ZeroDivisionError" in process.stderr.read()


def test_getting_ready_begins_when_a_rehearsal_is_over(
    coordinator: Coordinator, control: Coordinated
) -> None:
    """A warm process may be admitted in the middle of it: the rest of the rehearsal says nothing about other
    members.
    """
    coordinator.say(wire.Admitted(slot=0, slots=1))
    assert control.admitted_soon()
    rehearsed_s = 0.5
    time.sleep(rehearsed_s)
    control.admitted()
    control.ready(SETUP)
    assert coordinator.hear(wire.WorkerReady, 1)[0].took_s < rehearsed_s
