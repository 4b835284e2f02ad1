"""A member's side of the control plane: the messages it receives from the coordinator and sends to it.

`Coordinated` is a member of a run under `holdfast run`; `Alone` is a script started by itself, a run with one
member. The link's thread stores received messages here. The training thread reads and waits only here, so
every wait ends when the run changes course.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, assert_never

from holdfast.record import events
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError
from holdfast.record.recorder import Recorder
from holdfast.run import wire
from holdfast.run.link import Link
from holdfast.run.recording import checkpoint_event, witness_event, write_down
from holdfast.run.showing import await_shown
from holdfast.train.group import Superseded

FLUSH_S = 2.0
ADMISSION_S = 0.2
"""A process that is not admitted within this time is a warm one."""


class Dismissal(HoldfastError):
    """The coordinator excludes this member, or is gone."""


class Control(Protocol):
    """The exchange that a member needs with the rest of the run."""

    @property
    def member(self) -> str: ...

    @property
    def is_asked(self) -> bool:
        """Whether this member's reports are collected."""

    def admitted(self) -> wire.Admitted:
        """Wait until this process has a place in the run."""

    def ready(self, setup: wire.Setup) -> None:
        """Say that the model is built."""

    def newest(self, after: int) -> wire.Announced | None:
        """Wait for a generation with this member whose number exceeds `after`. None: the run is over."""

    def pending(self, present: int) -> int:
        """The number of a generation that waits for the next step boundary; 0 if none does."""

    def superseded(self, number: int, *, forming: bool = False) -> bool:
        """Whether to abandon this generation now. While it is being formed, any newer one counts."""

    def on_superseded(self, call: Callable[[], None] | None) -> None:
        """Set the function to call, in another thread, once the current generation is to be abandoned."""

    def publish(self, generation: int, key: str, value: bytes) -> None:
        """Send a value to the other members of a generation."""

    def lookup(self, generation: int, key: str, *, forming: bool = True) -> bytes:
        """Wait for a value that a member published. Raises `Superseded`; forming: as in `superseded`."""

    def forget(self, generation: int, keys: Sequence[str]) -> None:
        """Drop these keys: no member will look them up again."""

    def say(self, message: wire.FromWorker) -> None:
        """Send to the coordinator, without waiting."""

    def at(self, step: int, stage: wire.Stage) -> None:
        """Set the step and stage that heartbeats report."""

    def refine(self, call: Callable[[wire.Stage], wire.Stage]) -> None:
        """Set a function that refines the stage; each heartbeat calls it, in another thread."""

    def working(self, work: str, *, is_over: bool = False) -> None:
        """The script declared work that begins now, or is over. The coordinator is informed before this
        returns. Work declared inside other work counts as part of it.
        """

    def reports(self, report: Callable[[], wire.Spent | None]) -> None:
        """Set the function that reports where the time went; another thread calls it now and then."""

    def strike(self, step: int, moment: wire.Moment, rank: int, size: int) -> wire.PlannedFault | None:
        """A planned fault may strike member `rank` of `size` here. Returns the fault if the caller must carry
        it out: bits to flip.
        """

    def finished(self, message: wire.Finished, present: int) -> wire.Announced | None:
        """The script is through. Wait until the run is over (None) or continues with other members."""

    def close(self, failure: str = "") -> None:
        """Close the connection; the last call. failure: why the script failed, if it did."""


@contextmanager
def declared(control: Control, work: str) -> Iterator[None]:
    """Declare that the script computes, for however long, while others may wait for it."""
    control.working(work)
    try:
        yield
    finally:
        control.working(work, is_over=True)


class Coordinated:
    """A member under a coordinator."""

    is_asked = True

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.member = environment["HOLDFAST_MEMBER"]
        self._lock = threading.RLock()  # acquired directly, as in link.py
        self._changed = threading.Condition(self._lock)
        self._admitted: wire.Admitted | None = None
        self._begun_s = time.monotonic()
        self._works = 0
        self._newest: wire.Announced | None = None
        self._abandon_below = 0
        self._published: dict[tuple[int, str], bytes] = {}
        self._released: wire.Released | None = None
        self._dismissal: Dismissal | None = None
        self._interrupt: Callable[[], None] | None = None
        self._struck: set[int] = set()
        self._link = Link.connect(environment)
        self._link.on_message = self._heard
        self._link.send(wire.WorkerJoined(member=self.member, pid=os.getpid(), warms_up=True))

    def _heard(self, message: wire.AnyMessage | None) -> None:
        """In the link's thread."""
        interrupt = None
        with self._lock:
            if isinstance(message, wire.Admitted):
                self._admitted = message
            elif isinstance(message, wire.Announced):
                interrupt = self._take(message)
            elif isinstance(message, wire.Published):
                self._published[message.generation, message.key] = message.value
            elif isinstance(message, wire.PublishedTogether):
                for sender, key, value in wire.unpack(message.packed):
                    if sender != self.member:  # this member may have forgotten its own already
                        self._published[message.generation, key] = value
            elif isinstance(message, wire.Struck):
                self._struck.add(message.fault)
            elif isinstance(message, wire.Released):
                self._released = message
                interrupt = self._interrupt
            elif isinstance(message, wire.Dismissed):
                self._dismissal = Dismissal(message.sentence, hint=message.hint)
            elif message is None and self._released is None:
                self._dismissal = Dismissal(
                    wire.COORDINATOR_GONE,
                    hint="Start the run again; it goes on from its checkpoint.",
                )
            if self._dismissal is not None:
                interrupt = self._interrupt
            self._changed.notify_all()
        if interrupt is not None:
            interrupt()

    def _take(self, generation: wire.Announced) -> Callable[[], None] | None:
        if self._newest is not None and generation.number <= self._newest.number:
            return None
        # Until the boundary comes, members still exchange values in the previous generation.
        first = self._newest.number if generation.at_boundary and self._newest else generation.number
        self._published = {place: value for place, value in self._published.items() if place[0] >= first}
        self._newest = generation
        self._link.be_one_of(len(generation.members))
        if generation.at_boundary:
            return None
        self._abandon_below = generation.number
        return self._interrupt

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._dismissal is not None or until())
            if self._dismissal is not None:
                raise self._dismissal

    def admitted_soon(self) -> bool:
        """Whether this process is admitted within a moment, so that it is not a warm one."""
        with self._lock:
            return self._changed.wait_for(lambda: self._admitted is not None, ADMISSION_S)

    def warmed_up(self) -> None:
        self._link.send(wire.WarmedUp(member=self.member))

    def admitted(self) -> wire.Admitted:
        self._wait(lambda: self._admitted is not None or self._released is not None)
        if self._admitted is None:
            raise SystemExit(0)  # a warm process that was never needed
        await_shown(os.environ)
        for fault in self._admitted.faults:
            self._strike(fault)
        self._begun_s = time.monotonic()
        return self._admitted

    def ready(self, setup: wire.Setup) -> None:
        took_s = time.monotonic() - self._begun_s
        self._link.send(wire.WorkerReady(member=self.member, setup=setup, took_s=took_s))

    def newest(self, after: int) -> wire.Announced | None:
        self._wait(lambda: self._has_newer(after) or self._released is not None)
        return self._newest if self._released is None else None

    def _has_newer(self, number: int) -> bool:
        newest = self._newest
        return newest is not None and newest.number > number and self.member in newest.members

    def pending(self, present: int) -> int:
        newest = self._newest
        return newest.number if newest is not None and newest.number > present else 0

    def superseded(self, number: int, *, forming: bool = False) -> bool:
        if self._dismissal is not None:
            raise self._dismissal
        if self._released is not None:  # the others may have left already: do not wait for them
            return True
        return self._has_newer(number) if forming else self._abandon_below > number

    def on_superseded(self, call: Callable[[], None] | None) -> None:
        with self._lock:
            self._interrupt = call

    def publish(self, generation: int, key: str, value: bytes) -> None:
        with self._lock:
            self._published[generation, key] = value
        self._link.send(wire.Published(generation=generation, key=key, value=value))

    def lookup(self, generation: int, key: str, *, forming: bool = True) -> bytes:
        place = generation, key
        self._wait(lambda: place in self._published or self.superseded(generation, forming=forming))
        with self._lock:
            if place in self._published:
                return self._published[place]
        raise Superseded

    def forget(self, generation: int, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._published.pop((generation, key), None)

    def say(self, message: wire.FromWorker) -> None:
        self._link.send(message)

    def at(self, step: int, stage: wire.Stage) -> None:
        self._link.beat(step, stage)

    def refine(self, call: Callable[[wire.Stage], wire.Stage]) -> None:
        self._link.refine = call

    def working(self, work: str, *, is_over: bool = False) -> None:
        self._works += -1 if is_over else 1
        if self._works == (0 if is_over else 1):
            # Not in the link's thread: the work that follows may keep every other thread from running.
            self._link.send_now(wire.Working(member=self.member, work=work, is_over=is_over))

    def reports(self, report: Callable[[], wire.Spent | None]) -> None:
        self._link.on_report = report

    def strike(self, step: int, moment: wire.Moment, rank: int, size: int) -> wire.PlannedFault | None:
        faults = self._newest.faults if self._newest is not None else ()
        for fault in faults:
            due = fault.step <= step and fault.moment == moment and fault.rank % size == rank
            if due and fault.id not in self._struck:
                self._strike(fault)
                return fault if fault.fault == "corrupt" else None
        return None

    def _strike(self, fault: wire.PlannedFault) -> None:
        self._struck.add(fault.id)
        self._link.send_now(wire.Struck(member=self.member, fault=fault.id))
        match fault.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "node":
                os.kill(os.getppid(), signal.SIGKILL)  # the agent; everything on its node dies with it
                time.sleep(fault.for_s)
            case "pause":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "corrupt":
                pass  # the caller, which has the tensors, flips the bits
            case _:
                assert_never(fault.fault)

    def finished(self, message: wire.Finished, present: int) -> wire.Announced | None:
        self._link.beat(message.step, "finished")
        self._link.send(message)
        return self.newest(present)

    def close(self, failure: str = "") -> None:
        if failure:
            self._link.beat_now()  # the coordinator judges the failure by its stage
        self._link.flush(FLUSH_S)
        self._link.close()


class Alone:
    """The only member of a run without a coordinator. It writes its own record."""

    member = "alone"
    is_asked = False

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._clock = SystemClock()
        self._published: dict[str, bytes] = {}
        self._is_started = False
        self._setup: wire.Setup | None = None

    def admitted(self) -> wire.Admitted:
        return wire.Admitted(slot=0, slots=1)

    def ready(self, setup: wire.Setup) -> None:
        self._is_started, self._setup = True, setup
        self._recorder.record(events.RunStarted, gpus=1)
        self._recorder.record(events.MemberJoined, subject=self.member)

    def newest(self, after: int) -> wire.Announced | None:
        return wire.Announced(number=1, members=(self.member,)) if after < 1 else None

    def pending(self, present: int) -> int:
        return 0

    def superseded(self, number: int, *, forming: bool = False) -> bool:
        return False

    def on_superseded(self, call: Callable[[], None] | None) -> None:
        """Nothing supersedes the only generation."""

    def publish(self, generation: int, key: str, value: bytes) -> None:
        self._published[key] = value

    def lookup(self, generation: int, key: str, *, forming: bool = True) -> bytes:
        return self._published[key]

    def forget(self, generation: int, keys: Sequence[str]) -> None:
        for key in keys:
            self._published.pop(key, None)

    def say(self, message: wire.FromWorker) -> None:
        if isinstance(message, wire.Committed):
            self._recorder.record(events.StepCommitted, step=message.step, skipped_lanes=message.skipped)
        elif isinstance(message, wire.Regrouped):
            assert self._setup is not None
            self._recorder.record(
                events.GenerationOpened,
                generation=1,
                members=(self.member,),
                gpus=1,
                step=message.version,
                lanes=self._setup.lanes,
                seed=self._setup.seed,
                model=self._setup.model,
            )
        elif isinstance(message, wire.Checkpointed):
            write_down(self._recorder, checkpoint_event(message, self._clock.now_ns()))
        elif isinstance(message, wire.Witnessed):
            write_down(self._recorder, witness_event(message, self._clock.now_ns()))

    def at(self, step: int, stage: wire.Stage) -> None:
        """Ignore it: there are no heartbeats."""

    def refine(self, call: Callable[[wire.Stage], wire.Stage]) -> None:
        """Ignore it: there are no heartbeats."""

    def working(self, work: str, *, is_over: bool = False) -> None:
        """Ignore it: no other member waits."""

    def reports(self, report: Callable[[], wire.Spent | None]) -> None:
        """Ignore it: no coordinator collects reports."""

    def strike(self, step: int, moment: wire.Moment, rank: int, size: int) -> wire.PlannedFault | None:
        """Return None: a run without a coordinator has no planned faults."""
        return None

    def finished(self, message: wire.Finished, present: int) -> wire.Announced | None:
        if message.is_exit and message.is_early:
            self._recorder.record(events.RunEnded, outcome="stopped", reason=message.exit_words)
        else:
            self._recorder.record(events.RunEnded, outcome="completed")
        return None

    def close(self, failure: str = "") -> None:
        if failure and self._is_started:
            self._recorder.record(events.RunEnded, outcome="failed", reason=failure)
        self._recorder.close()
