"""Small collectives for scripts, between steps: broadcast, reduce, gather, barrier, and shared work.

They go through the coordinator, as a few bytes, and involve neither stream nor kernel. If a member dies while
others wait for it, they regroup and meet again among the survivors. A result that a member has already
returned to its script stays the result (minutes.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import torch

from holdfast.record.errors import InputError
from holdfast.run.whereabouts import here
from holdfast.train import randomness, tree, values
from holdfast.train.control import Control, declared
from holdfast.train.group import Superseded
from holdfast.train.minutes import Met, ScriptStretch
from holdfast.train.seat import Seat

Op = Literal["sum", "mean", "min", "max"]
Item = TypeVar("Item")
Result = TypeVar("Result")

TOLD_BYTES_MAX = 4 << 20
"""Limit for the values of all members in one collective."""
UNEVEN = 2
"""If all members contribute, each may send this many times its even part: the values are on their way to all
members before their sizes can be added up.
"""
_SAME_CALLS = "Every member calls the same functions of run in the same order, not inside `if run.is_main:`."


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """One member's contribution. called: the function and the arguments that must be the same for all."""

    called: str
    where: str
    value: bytes


class Meeting:
    """One member's side of the collectives. regroup: continues in the next generation."""

    def __init__(
        self, control: Control, seat: Seat, device: torch.device, seed: int, regroup: Callable[[], None]
    ) -> None:
        self._control = control
        self._seat = seat
        self._device = device
        self._seed = seed
        self._regroup = regroup
        self._stretch: ScriptStretch | None = None
        self._count = 0
        self._is_busy = False

    # ---- called by scripts ---------------------------------------------------------------------------

    def broadcast(self, value: object) -> Any:
        made: list[bytes] = []

        def tell(is_first: bool) -> bytes:
            if is_first and not made:
                made.append(values.encode(self._called(value) if callable(value) else value))
            return made[0] if is_first else b""

        return self._decoded(self._agree("broadcast()", tell, lambda told: told[0], tellers=1))

    def _called(self, value: Callable[[], object]) -> object:
        with declared(self._control, "broadcast"):
            return value()

    def reduce(self, value: float | torch.Tensor, op: Op) -> Any:
        if op not in _OPS:
            raise InputError(f"run.reduce() has no operation {op!r}.", hint=f"It has {', '.join(_OPS)}.")
        if not isinstance(value, int | float | torch.Tensor):
            raise InputError(
                f"run.reduce() was given a {type(value).__name__}.", hint="It takes a number or a tensor."
            )
        encoded = values.encode(value)

        def combine(told: Sequence[bytes]) -> bytes:
            parts = [values.decode(one, torch.device("cpu")) for one in told]
            total = _OPS[op](parts)
            if isinstance(value, torch.Tensor):
                total = total.to(value.device)
            return values.encode(total)

        return self._decoded(self._agree(f'reduce(op="{op}")', lambda _: encoded, combine))

    def gather(self, value: object) -> list[Any]:
        encoded = values.encode(value)
        met = self._agree("gather()", lambda _: encoded, msgspec.msgpack.encode)
        return [self._decoded(one) for one in msgspec.msgpack.decode(met, type=list[bytes])]

    def barrier(self) -> None:
        self._agree("barrier()", lambda _: b"", lambda told: b"")

    def share(self, items: Iterable[Item], work: Callable[[Item], Result]) -> list[Result]:
        everything = list(items)
        done: dict[int, bytes] = {}
        nothing = values.encode(None)

        def attempt(key: str, ranks: Sequence[int], number: int, called: str) -> bytes:
            held = self._exchange(f"{key}/held", ranks, called, msgspec.msgpack.encode(sorted(done)))
            claims = [frozenset(msgspec.msgpack.decode(one, type=list[int])) for one in held]
            with declared(self._control, "shared work"):
                for index in self._dealt(len(everything), claims, ranks):
                    if self._seat.lost:
                        raise Superseded
                    self._draw_from(number, index)
                    done[index] = values.encode(self._worked(work, everything[index]))
            told = self._exchange(f"{key}/done", ranks, called, msgspec.msgpack.encode(done))
            found: dict[int, bytes] = {}
            for one in told:
                found.update(msgspec.msgpack.decode(one, type=dict[int, bytes]))
            return msgspec.msgpack.encode([found.get(index, nothing) for index in range(len(everything))])

        met = self._settle(f"share() of {len(everything)} items", attempt)
        self._draw_from(self._count - 1, len(everything))
        return [self._decoded(one) for one in msgspec.msgpack.decode(met, type=list[bytes])]

    def _dealt(self, items: int, claims: Sequence[frozenset[int]], ranks: Sequence[int]) -> Sequence[int]:
        """The items that this member is to do. The ranks of a replica do the same items together, and only if
        all of them are here; a rank that has just taken a lost rank's place is not.
        """
        seat = self._seat
        if seat.replica is None:
            return tree.deal_missing(items, claims)[ranks.index(seat.rank)]
        size = seat.replica.size
        whole = [
            first for first in range(0, seat.size, size) if set(range(first, first + size)).issubset(ranks)
        ]
        missing = sorted(set(range(items)).difference(*claims))
        first = seat.rank // size * size
        if first not in whole:
            return ()
        share = tree.deal(len(missing), len(whole))[whole.index(first)]
        return missing[share.start : share.stop]

    def _worked(self, work: Callable[[Item], Result], item: Item) -> Result:
        """Do one item. With a sharded model the replica's ranks do it together; if one is lost, it is done
        again.
        """
        sharding = self._seat.sharding
        if sharding is None:
            return work(item)
        sharding.line.begin()
        result = work(item)
        broken = sharding.line.end()
        if broken is not None:
            self._seat.say_broken(str(broken), "exchange with the other ranks of its replica")
            raise Superseded
        return result

    # ---- reaching agreement --------------------------------------------------------------------------

    def _agree(
        self,
        called: str,
        tell: Callable[[bool], bytes],
        combine: Callable[[Sequence[bytes]], bytes],
        tellers: int | None = None,
    ) -> bytes:
        """tell: returns this member's value, given whether the member is the first in rank order. tellers:
        how many members contribute; None: all.
        """

        def attempt(key: str, ranks: Sequence[int], _number: int, called: str) -> bytes:
            own = tell(ranks[0] == self._seat.rank)
            return combine(self._exchange(key, ranks, called, own, tellers))

        return self._settle(called, attempt)

    def _settle(self, called: str, attempt: Callable[[str, Sequence[int], int, str], bytes]) -> bytes:
        """The known result, or that of an attempt in this generation or a later one."""
        seat = self._seat
        if seat.number == 0:
            self._go_on()
        stretch, number = self._next(called)
        while number >= len(seat.minutes.of(stretch)):
            ranks = self._participants(stretch, number, called)
            key = f"meeting/{stretch.kind}/{stretch.number}/{number}"
            self._is_busy = True
            try:
                value = attempt(key, ranks, number, called)
            except Superseded:
                self._go_on()
                continue
            finally:
                self._is_busy = False
            seat.minutes.add(stretch, [Met(called, here(), value)])
        met = seat.minutes.of(stretch)[number]
        if met.called != called:
            raise _differs(seat.name, called, "another member", met.called, met.where)
        return met.value

    def _go_on(self) -> None:
        self._regroup()
        self._control.at(self._seat.version, "script")

    def _next(self, called: str) -> tuple[ScriptStretch, int]:
        """The place of this call in the script."""
        stretch = self._seat.minutes.stretch
        if stretch is None:
            raise InputError(
                f"run.{called} was called inside a step.",
                hint="Call it after step.commit(), or outside the loop.",
            )
        if self._is_busy:
            raise InputError(
                f"run.{called} was called in the work of another function of run.",
                hint="Work that is shared out is done by one member: let it return what the others need.",
            )
        self._count = self._count + 1 if stretch == self._stretch else 1
        self._stretch = stretch
        return stretch, self._count - 1

    def _participants(self, stretch: ScriptStretch, number: int, called: str) -> list[int]:
        """The ranks of the members that make this call, too. A member past it has its result, if it made the
        call.
        """
        ranks = []
        for rank, (place, between) in enumerate(self._seat.places):
            if rank == self._seat.rank or self._seat.version > self._seat.version_met:
                ranks.append(rank)
            elif stretch.kind == "outside":
                if place.total > stretch.number:
                    raise _left(self._seat, called, rank, stretch)
                ranks.append(rank)
            elif place.at == "between":
                ranks.append(rank)
            elif between is not None and between <= number:
                raise _left(self._seat, called, rank, stretch)
        return ranks

    def _exchange(
        self, key: str, ranks: Sequence[int], called: str, value: bytes, tellers: int | None = None
    ) -> list[bytes]:
        """The values of all these ranks, in rank order."""
        seat, control = self._seat, self._control
        if len(value) > own_bytes_max(len(ranks) if tellers is None else tellers):
            raise _too_much(called)
        control.strike(max(1, seat.version), "meeting", seat.rank, seat.size)
        if len(ranks) == 1:
            return [value]
        own = _Told(called, here(), value)
        control.at(seat.version, "meeting")
        control.publish(seat.number, f"{key}/{seat.rank}", msgspec.msgpack.encode(own))
        found = [
            msgspec.msgpack.decode(control.lookup(seat.number, f"{key}/{rank}", forming=False), type=_Told)
            for rank in ranks
        ]
        control.forget(seat.number, [f"{key}/{rank}" for rank in ranks])
        control.at(seat.version, "script")
        for rank, told in zip(ranks, found, strict=True):
            if told.called != called:
                raise _differs(seat.name, called, seat.members[rank], told.called, told.where)
        if sum(len(told.value) for told in found) > TOLD_BYTES_MAX:
            raise _too_much(called)
        return [told.value for told in found]

    def _decoded(self, value: bytes) -> Any:
        return values.decode(value, self._device)

    def _draw_from(self, number: int, index: int) -> None:
        """Seed random numbers that depend on the call and the item, but not on the member."""
        assert self._stretch is not None
        place = randomness.SHARED[self._stretch.kind]
        randomness.begin(randomness.seed_of(self._seed, self._stretch.number, place), number, index)


def own_bytes_max(tellers: int) -> int:
    """How many bytes each of this many contributors may send."""
    return min(TOLD_BYTES_MAX, UNEVEN * TOLD_BYTES_MAX // tellers)


def _mean(parts: Sequence[Any]) -> Any:
    return sum(parts[1:], parts[0]) / len(parts)


def _extreme(name: Literal["min", "max"]) -> Callable[[Sequence[Any]], Any]:
    def choose(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], torch.Tensor):
            return getattr(torch.stack(list(parts)), f"a{name}")(0)
        return min(parts) if name == "min" else max(parts)

    return choose


_OPS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "sum": lambda parts: sum(parts[1:], parts[0]),
    "mean": _mean,
    "min": _extreme("min"),
    "max": _extreme("max"),
}


def _differs(member: str, called: str, other: str, others_call: str, where: str) -> InputError:
    return InputError(
        f"{member} called run.{called} at {here()}, but {other} called run.{others_call} at {where}.",
        hint=_SAME_CALLS,
    )


def _left(seat: Seat, called: str, rank: int, stretch: ScriptStretch) -> InputError:
    return InputError(
        f"{seat.name} called run.{called} at {here()}, {stretch}; {seat.members[rank]} did not, and has"
        " gone on.",
        hint=_SAME_CALLS,
    )


def _too_much(called: str) -> InputError:
    return InputError(
        f"The values that members exchange in run.{called} exceed {TOLD_BYTES_MAX} bytes.",
        hint="Exchange numbers, not data: reduce them first.",
    )
