"""Regrouping without a coordinator: members are threads, and the test opens generations."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from waiting import WAIT_S

from holdfast.record.errors import InputError
from holdfast.run import wire
from holdfast.train import randomness
from holdfast.train.gradients import Gradients
from holdfast.train.group import GroupBroken, Rendezvous, Superseded
from holdfast.train.histories import StateHistory
from holdfast.train.protected import Protected
from holdfast.train.seat import Seat, Standing
from holdfast.train.steps import Loop, ProtectSettings

pytestmark = pytest.mark.slow

Together = Callable[..., list[Any]]


class Board:
    """What the members of all generations have published, and which generations exist."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.published: dict[tuple[int, str], bytes] = {}
        self.generations: list[wire.Announced] = []

    def open(self, *members: str, at_boundary: bool = True) -> None:
        with self.changed:
            number = len(self.generations) + 1
            boundary_of = number - 1 if at_boundary else 0
            self.generations.append(wire.Announced(number=number, members=members, boundary_of=boundary_of))
            self.changed.notify_all()


class ScriptedControl:
    """A member's side of a control plane that consists of a board."""

    def __init__(self, member: str, board: Board) -> None:
        self.member = member
        self.said: list[wire.FromWorker] = []
        self.finishes = 0
        self._board = board

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._board.changed:
            assert self._board.changed.wait_for(until, WAIT_S), "nothing came"

    def _newer(self, number: int) -> wire.Announced | None:
        found = [one for one in self._board.generations if one.number > number and self.member in one.members]
        return found[-1] if found else None

    def admitted(self) -> wire.Admitted:
        return wire.Admitted(slot=0, slots=1)

    def ready(self, setup: wire.Setup) -> None:
        pass

    def newest(self, after: int) -> wire.Announced | None:
        self._wait(lambda: self._newer(after) is not None)
        return self._newer(after)

    def pending(self, present: int) -> int:
        newer = self._newer(present)
        return newer.number if newer is not None else 0

    def superseded(self, number: int, *, forming: bool = False) -> bool:
        return forming and self._newer(number) is not None

    def on_superseded(self, call: Callable[[], None] | None) -> None:
        pass

    def publish(self, generation: int, key: str, value: bytes) -> None:
        with self._board.changed:
            self._board.published[generation, key] = value
            self._board.changed.notify_all()

    def lookup(self, generation: int, key: str, *, forming: bool = True) -> bytes:
        self._wait(lambda: (generation, key) in self._board.published or self._newer(generation) is not None)
        if (generation, key) not in self._board.published:
            raise Superseded
        return self._board.published[generation, key]

    def forget(self, generation: int, keys: Sequence[str]) -> None:
        """Keep it: the others read it here."""

    def say(self, message: wire.FromWorker) -> None:
        self.said.append(message)

    def at(self, step: int, stage: wire.Stage) -> None:
        pass

    def refine(self, call: Callable[[wire.Stage], wire.Stage]) -> None:
        pass

    is_asked = False

    def working(self, work: str, *, is_over: bool = False) -> None:
        pass

    def reports(self, report: Callable[[], wire.Spent | None]) -> None:
        pass

    def strike(self, step: int, moment: wire.Moment, rank: int, size: int) -> None:
        pass

    def finished(self, message: wire.Finished, present: int) -> wire.Announced | None:
        """When the first member is through, another one joins; then both are done."""
        self.finishes += 1
        if self.member == "a" and self.finishes == 1:
            self._board.open("a", "b")
            return self.newest(present)
        return None

    def close(self, failure: str = "") -> None:
        pass


class Member:
    """One member, whose script stops early."""

    def __init__(self, name: str, board: Board, group: Any) -> None:
        torch.manual_seed(3)
        self.model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.state = Protected([self.model, optimizer])
        self.control = ScriptedControl(name, board)
        gradients = Gradients(self.state, 4, 1)

        def make(store: Rendezvous, rank: int, size: int, _superseded: Any) -> Any:
            return group

        self.seat = Seat(self.control, self.state, gradients, {"lanes": 4}, make, None)
        settings = ProtectSettings(lanes=4, seed=1, clip_norm=None, on_commit=None)
        self.loop = Loop(self.control, self.state, settings, gradients, self.seat, None)

    def run(self, total: int, stop_after: int) -> list[int]:
        numbers = []
        for step in self.loop.steps(total):
            for lane in step.lanes:
                lane.backward(self.model(torch.full((2, 3), float(lane.index))).square().mean())
            step.commit()
            numbers.append(step.number)
            if step.number == stop_after:
                break
        self.loop.finish()
        return numbers


@pytest.mark.parametrize("stop_after", [3, 10])
def test_a_newcomer_after_the_others_are_through_makes_no_steps(together: Together, stop_after: int) -> None:
    """It gets their state; its script would continue to the last step, without any other member."""
    board = Board()
    building = threading.Lock()

    def take_part(group: Any) -> tuple[list[int], str]:
        with building:
            member = Member("ab"[group.rank], board, group)
        if group.rank == 0:
            board.open("a")
        return member.run(10, stop_after), member.state.digest()

    (made, digest), (made_later, digest_later) = together(2, take_part)
    assert made == list(range(1, stop_after + 1))
    assert made_later == []
    assert digest_later == digest


def test_a_member_knows_how_many_nodes_there_are_and_how_often_the_run_has_failed(together: Together) -> None:
    board = Board()

    def open_next(*members: str, at_boundary: bool) -> None:
        number = len(board.generations) + 1
        boundary_of = number - 1 if at_boundary else 0
        board.generations.append(wire.Announced(number=number, members=members, boundary_of=boundary_of))

    open_next("n0.0", "n1.0+1", at_boundary=False)  # the first generation follows no loss

    def take_part(group: Any) -> list[tuple[int, int]]:
        seat = Member(("n0.0", "n1.0+1")[group.rank], board, group).seat
        seat.regroup()
        known = [(seat.nodes, seat.failures)]
        for at_boundary in (False, True, False) if group.rank == 0 else ():
            open_next("n0.0", at_boundary=at_boundary)
            seat.regroup()
            known.append((seat.nodes, seat.failures))
        return known

    first, second = together(2, take_part)
    assert first == [(2, 0), (1, 1), (1, 1), (1, 2)]
    assert second == [(2, 0)]


@pytest.mark.parametrize("stray", [0, 1])
def test_a_collective_that_others_went_past_without_calling_it_is_told(
    together: Together, stray: int
) -> None:
    """As in `if run.is_main: run.barrier()`. A newcomer that begins with the next step is no such member."""
    board = Board()
    board.open("a", "b", "c")
    building = threading.Lock()

    def take_part(group: Any) -> str:
        with building:
            member = Member("abc"[group.rank], board, group)
        seat = member.seat
        seat.regroup()
        seat.minutes.enter(9)
        seat.minutes.begin_step()
        if group.rank < 2:  # c adopts the step from the others' memory
            seat.committed(1, 0.5, 0.1, None)
        if group.rank != stray and group.rank < 2:
            seat.minutes.enter(9)
            seat.minutes.begin_step()
        if group.rank == 2:
            seat.minutes.enter(9)
        with board.changed:
            if len(board.generations) == 1:
                board.open("a", "b", "c")
        seat.regroup()
        if group.rank != stray:
            return ""
        with pytest.raises(InputError) as raised:
            member.loop.meeting.barrier()
        return raised.value.told

    told = together(3, take_part)[stray]
    names = "ab" if stray == 0 else "ba"
    assert f"{names[0]} called run.barrier() at test_seat.py:" in told
    assert f"after step 1; {names[1]} did not, and has gone on" in told
    assert "if run.is_main:" in told


class BrokenGroup:
    """Breaks when it is first used; another generation follows, with only one member."""

    is_ordered = False

    def __init__(self, board: Board, survivor: str) -> None:
        self.rank, self.size = 0, 3
        self._board, self._survivor = board, survivor

    def along(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exchange(self, *_: object, **__: object) -> None:
        self._board.open(self._survivor, at_boundary=False)
        raise GroupBroken("it ended")

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_member_that_followed_another_attempt_belongs_to_it_even_if_regrouping_breaks() -> None:
    """It has the sum of the first step, which the leader has committed in a later attempt. It commits that
    step, too, and is about to send the state to a newcomer when the group breaks.
    """
    board = Board()
    member = Member("b", board, BrokenGroup(board, "b"))
    seat = member.seat
    board.open("b")
    seat.regroup()
    seat.settled, seat.on_apply = True, lambda _numbers: None
    later = StateHistory("later", 0, "", 2)
    for rank, standing in (
        (1, Standing(version=1, fresh=False, held=(), through=False, history=later)),
        (2, Standing(version=0, fresh=True, held=(), through=False)),
    ):
        board.published[2, f"standing/{rank}"] = msgspec.msgpack.encode(standing)
    board.open("b", "a", "c")
    seat.regroup()
    assert [said.generation for said in member.control.said if isinstance(said, wire.Regrouped)] == [1, 3]
    told = msgspec.msgpack.decode(board.published[3, "standing/0"], type=Standing)
    assert (told.version, told.fresh, told.settled, told.history) == (1, False, False, later)


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_torn_step_is_made_again_with_the_members_that_were_to_leave(is_torn: bool) -> None:
    """They may have made it. So a member whose collective failed waits for a generation that has them."""
    board = Board()
    member = Member("a", board, BrokenGroup(board, "a"))
    board.open("a")
    member.seat.regroup()
    member.seat.members = ("a", "b")
    if is_torn:
        member.seat.say_broken("reset by peer", "exchange gradients")
    board.open("a")
    following = threading.Timer(0.2, lambda: board.open("a", at_boundary=False))
    following.start()
    member.seat.regroup()
    assert [said.generation for said in member.control.said if isinstance(said, wire.Regrouped)] == (
        [1, 3] if is_torn else [1, 2]
    )
    following.join()


def test_a_member_whose_last_generation_is_long_over_enters_at_a_boundary() -> None:
    """It was on the shelf while the others made the step again that had failed on it."""
    board = Board()
    member = Member("a", board, BrokenGroup(board, "a"))
    board.open("a")
    member.seat.regroup()
    member.seat.members = ("a", "b")
    member.seat.say_broken("reset by peer", "exchange gradients")
    board.open("c")
    board.open("a")
    member.seat.regroup()
    assert [said.generation for said in member.control.said if isinstance(said, wire.Regrouped)] == [1, 3]


@pytest.mark.parametrize("is_apart", [False, True])
def test_members_that_follow_vanished_ones_begin_another_attempt(is_apart: bool) -> None:
    board = Board()
    member = Member("b", board, BrokenGroup(board, "b"))
    seat = member.seat
    board.open("b")
    seat.regroup()
    seat.settled, seat.on_apply = True, lambda _numbers: None
    run = StateHistory("run", 0, "", 1)
    standing = Standing(version=1, fresh=False, held=(), through=False, history=run)
    board.published[2, "standing/1"] = msgspec.msgpack.encode(standing)
    board.generations.append(wire.Announced(number=2, members=("b", "a"), is_apart=is_apart))
    seat.regroup()
    board.open("b")
    seat.regroup()
    told = msgspec.msgpack.decode(board.published[3, "standing/0"], type=Standing).history
    assert (told.of(1), told.of(2) == "run") == ("run", not is_apart)
    assert told.opened == (2 if is_apart else 1)


def test_a_member_that_never_gets_the_last_step_is_not_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only member that has it dies while sending it: the others make it again."""
    board = Board()
    member = Member("b", board, BrokenGroup(board, "b"))
    board.open("b")
    member.seat.regroup()
    monkeypatch.setattr(member.control, "at", lambda _, stage: board.open("b") if stage == "state" else None)
    standing = Standing(version=1, fresh=False, held=(), through=True, history=StateHistory("run", 0, "", 1))
    board.published[2, "standing/1"] = msgspec.msgpack.encode(standing)
    board.open("b", "a")
    member.seat.regroup()
    told = msgspec.msgpack.decode(board.published[3, "standing/0"], type=Standing)
    assert (told.version, told.through) == (0, False)


def test_what_is_drawn_outside_lanes_does_not_depend_on_the_lanes_before() -> None:
    """It differs between the places where a step may draw."""
    drawn = set()
    for place in (randomness.BEFORE_LANES, randomness.REDUCED, randomness.COMMITTED, 0, 1):
        randomness.begin(1, 5, place)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 5
