"""Where a member's time goes, step by step: shows why a run is slow, without slowing it.

A step is measured from the end of one reduction to the end of the next, and divided completely:

- data: from the moment the script has the step until it asks for its first lane, and inside `MapData` and
  `StreamData`. Data that a script fetches by itself in the middle of a lane count as computing.
- checkpoint: while the state is copied for one.
- compute: everything else until its own lanes are through, including the optimizer and the script's own work.
- wait: until the last member's lanes are through; plus the time by which the slowest member was sending
  longer.
- exchange: the rest of the reduction.

No clock is compared with another machine's. A reduction ends for all members at once, but for the time that a
message takes. So every member tells all others how long after that it was through with its lanes, and how
long it was sending. These figures travel with the gradients of the next step and need no message of their
own.

The figures by which members deal lanes travel with gradients, too: how long a member's lanes took and the
quickest of them, what they cost, and what else the member did. If the CPU computes, they travel with the
gradients of the same step. A GPU has not come to the end of its lanes by then, so its figures travel with
those of the next step.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from types import FrameType
from typing import Any, NamedTuple, Protocol

import msgspec
import torch

from holdfast.run.wire import Spent
from holdfast.train.group import Sending

SAMPLE_INTERVAL_S = 1.0
"""How often connections are queried, at the end of a step: their counters have the grain of a
kernel's tick.
"""

SENDING_SHARE = 0.5
"""If a member's sending takes more than this share of an exchange, the others wait for that member."""

AskConnections = Callable[[], Sequence[Sending]]

Told = tuple[float, float]
"""A member's figures of the previous step: seconds until its lanes were through, and seconds of sending."""


class OfLanes(NamedTuple):
    """A member's figures for dealing lanes. lanes_s: from its first lane until its lanes were through. cost:
    of these lanes. data_s: spent fetching data. rest_s: spent before its first lane. quickest_s: the time of
    its quickest lane, divided by the lane's cost. All zeros: nothing to report.
    """

    lanes_s: float = 0.0
    cost: float = 0.0
    data_s: float = 0.0
    rest_s: float = 0.0
    quickest_s: float = 0.0


class Stopwatch:
    """Adds up the time spent in its block; blocks inside a block count once."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._depth = 0
        self._begun_s = 0.0

    @property
    def is_running(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> None:
        if not self._depth:
            self._begun_s = time.perf_counter()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.total_s += time.perf_counter() - self._begun_s


FETCHING = Stopwatch()
"""The time this process spends in data helpers, which know nothing of the run. A process is one member."""


class DeviceWatch(Protocol):
    """Marks moments on the device that computes. is_prompt: a moment is past as soon as it is marked."""

    is_prompt: bool

    def mark(self) -> Any: ...

    def seconds(self, since: Any, until: Any) -> float: ...


class HostWatch:
    """For the CPU, which computes at once."""

    is_prompt = True

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, since: float, until: float) -> float:
        return until - since


class CudaWatch:
    """For a GPU, which computes later: a moment is when the GPU reaches it."""

    is_prompt = False

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, since: torch.cuda.Event, until: torch.cuda.Event) -> float:
        if not until.query():  # type: ignore[no-untyped-call] # asked a step later, when both are long past
            until.synchronize()
        return float(since.elapsed_time(until)) / 1e3


class Collections:
    """The time Python spends collecting garbage in this process, from here until `close`.

    An exception raised in a collector's callback is lost. A signal that arrives during a collection is
    handled right after it, which is inside that callback: a handler that raises must ask `is_told` first.
    """

    def __init__(self) -> None:
        self.total_s = 0.0
        self._begun_s = 0.0
        gc.callbacks.append(self._heard)

    def _heard(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._begun_s = time.perf_counter()
        else:
            self.total_s += time.perf_counter() - self._begun_s

    @classmethod
    def is_told(cls, frame: FrameType | None) -> bool:
        """Whether this frame is the collector's callback."""
        return frame is not None and frame.f_code is cls._heard.__code__

    def close(self) -> None:
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)


class Measures:
    """One member's times. The script's thread measures; any thread may ask for the `report`."""

    def __init__(self, watch: DeviceWatch, collections: Collections | None = None) -> None:
        self._watch = watch
        self._collections = collections
        self._spent = Spent()
        self._connections = _Connections(lambda: ())
        self._ended: Any = None
        self._arrived: Any = None
        self._asked: Any = None
        self._lanes: list[tuple[Any, float]] = []
        """For each lane of the step so far: when it was through, and its cost."""
        self._idle_s = _Idle()
        self._handed_s: float | None = None
        self._undivided: _Cycle | None = None
        self._unread: Callable[[], _Cycle] | None = None

    def report(self) -> Spent | None:
        """Everything measured since the member began; None before the first step."""
        return self._spent if self._spent.steps else None

    def restart(self, ask: AskConnections) -> None:
        """A generation was formed: its members have no earlier reduction in common to measure from."""
        self._connections = _Connections(ask)
        self._ended = self._undivided = self._unread = None

    def handed(self) -> None:
        """The script has its step: the time until its lanes counts as fetching data."""
        self._handed_s = time.perf_counter() - FETCHING.total_s

    def asked(self) -> None:
        """The script asks for its first lane."""
        self._asked, self._lanes = self._watch.mark(), []
        if self._handed_s is not None:
            self._idle_s.before_lanes += time.perf_counter() - FETCHING.total_s - self._handed_s
            self._handed_s = None

    def computed(self, cost: float) -> None:
        """A lane is through."""
        self._lanes.append((self._watch.mark(), cost))

    def stalled(self, stall_ns: int) -> None:
        """Training waited this long for a checkpoint."""
        self._idle_s.checkpoint += stall_ns / 1e9

    def told(self) -> Told:
        """What the others must know of the previous step; zeros if there is nothing to report."""
        last = self._last()
        return (0.0, 0.0) if last is None else (last.through_s, last.sending_s)

    def told_of_lanes(self) -> OfLanes:
        """What the others must know to deal lanes: figures of this step's lanes so far, or of the previous
        step.
        """
        if self._watch.is_prompt:
            if self._ended is None or self._asked is None or not self._lanes:
                return OfLanes()
            return self._of_lanes(self._ended, self._asked, self._lanes, self._lanes[-1][0], self._data_s)
        last = self._last()
        return OfLanes() if last is None else last.of_lanes

    @property
    def _data_s(self) -> float:
        """Seconds of fetching data in the current cycle."""
        return self._idle_s.before_lanes + FETCHING.total_s - self._idle_s.fetched_before

    def _of_lanes(
        self, begun: Any, asked: Any, lanes: Sequence[tuple[Any, float]], until: Any, data_s: float
    ) -> OfLanes:
        ends = [asked, *(end for end, _ in lanes)]
        paces_s = [
            self._watch.seconds(before, end) / cost for before, (end, cost) in zip(ends, lanes, strict=False)
        ]
        return OfLanes(
            lanes_s=self._watch.seconds(asked, until),
            cost=sum(cost for _, cost in lanes),
            data_s=data_s,
            rest_s=max(0.0, self._watch.seconds(begun, asked)),
            quickest_s=max(0.0, min(paces_s, default=0.0)),
        )

    def arrived(self) -> None:
        """This member's lanes are through: from here on it exchanges, or waits."""
        self._arrived = self._watch.mark()

    def reduced(self, latest: Told) -> None:
        """The reduction is over. latest: the largest figures that members sent of the previous step."""
        begun, arrived, ended = self._ended, self._arrived, self._watch.mark()
        asked, lanes = self._asked, tuple(self._lanes)  # an audit may compute more of them after this
        self._ended = ended
        last = self._last()
        if last is not None:
            collecting_s = self._collections.total_s if self._collections is not None else 0.0
            grown = _sum(self._spent, last.divided(latest))
            resent = grown.resent + self._connections.resent()
            self._spent = msgspec.structs.replace(grown, collecting_s=collecting_s, resent=resent)
        self._connections.count_step()
        data_s = self._data_s
        idle_s, self._idle_s = self._idle_s, _Idle(fetched_before=FETCHING.total_s)
        if begun is None:
            return
        sending_s = self._connections.sending_s
        self._unread = lambda: _Cycle(
            through_s=self._watch.seconds(begun, arrived),
            of_lanes=(OfLanes() if asked is None else self._of_lanes(begun, asked, lanes, arrived, data_s)),
            reduction_s=self._watch.seconds(arrived, ended),
            data_s=data_s,
            checkpoint_s=idle_s.checkpoint,
            sending_s=sending_s,
        )

    def _last(self) -> "_Cycle | None":
        """The last measured step. It is read late: by then a GPU has come to the end of it."""
        if self._unread is not None:
            self._undivided, self._unread = self._unread(), None
        return self._undivided

    def close(self) -> None:
        if self._collections is not None:
            self._collections.close()


@dataclass
class _Idle:
    """Seconds of the current cycle in which nothing was computed."""

    fetched_before: float = 0.0
    before_lanes: float = 0.0
    checkpoint: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Cycle:
    """A step as one member sees it, before it has the others' figures."""

    through_s: float
    of_lanes: OfLanes
    reduction_s: float
    data_s: float
    checkpoint_s: float
    sending_s: float

    def divided(self, latest: Told) -> Spent:
        through_s, sending_s = latest
        wait_s = min(self.reduction_s, max(0.0, through_s - self.through_s))
        wait_s += self._behind_slowest_s(self.reduction_s - wait_s, sending_s)
        return Spent(
            steps=1,
            compute_s=max(0.0, self.through_s - self.data_s - self.checkpoint_s),
            data_s=self.data_s,
            checkpoint_s=self.checkpoint_s,
            exchange_s=self.reduction_s - wait_s,
            wait_s=wait_s,
        )

    def _behind_slowest_s(self, exchange_s: float, sending_s: float) -> float:
        """The part of the exchange that is a wait for the member that was sending longest.

        If sending takes most of the exchange, the rest of the exchange counts in proportion, because it comes
        with sending.
        """
        longer_s = max(0.0, sending_s - self.sending_s)
        if sending_s > SENDING_SHARE * exchange_s:
            longer_s *= max(1.0, exchange_s / sending_s)
        return min(exchange_s, longer_s)


def _sum(one: Spent, other: Spent) -> Spent:
    return Spent(**{name: getattr(one, name) + getattr(other, name) for name in Spent.__struct_fields__})


class _Connections:
    """How long this member sends in a step, according to its group's connections.

    This is the median over the connections: if all are slow, the member's own link is slow; if one is,
    another's.
    """

    def __init__(self, ask: AskConnections) -> None:
        self._ask = ask
        self._last: Sequence[Sending] = ()
        self._asked_s = 0.0
        self._steps = 0
        self._resent = 0
        self.sending_s = 0.0

    def count_step(self) -> None:
        """A step is over; query the connections if that was long enough ago."""
        self._steps += 1
        now_s = time.perf_counter()
        if now_s - self._asked_s < SAMPLE_INTERVAL_S:
            return
        last, self._last = self._last, self._ask()
        if last and len(last) == len(self._last):
            grown = [
                (new.busy_s - old.busy_s, new.resent - old.resent)
                for old, new in zip(last, self._last, strict=True)
            ]
            self.sending_s = max(0.0, median(busy_s for busy_s, _ in grown)) / self._steps
            self._resent += sum(max(0, resent) for _, resent in grown)
        self._asked_s, self._steps = now_s, 0

    def resent(self) -> int:
        """Segments sent again since the last call."""
        resent, self._resent = self._resent, 0
        return resent
