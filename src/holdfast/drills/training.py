"""The run of a scenario: members that compute, wait for the slowest and exchange, step after step.

It does not know causes. At each moment it gets `StepTimes` (the present times of a step for each member) and
produces the events of the record, the figures a member would export, and the lost time.
"""

from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from holdfast.drills.levers import Floats
from holdfast.record import events as ev
from holdfast.record.journal import event_id
from holdfast.twin.cluster import name
from holdfast.wording.units import SECOND_NS

SOURCE = "twin"
PLACE = "shared"
COMPUTE_S = 5.1
EXCHANGE_S = 0.9
STEP_S = COMPUTE_S + EXCHANGE_S
CLOCK_BOUND_SHARE = 0.85
"""The part of a step's computing that scales with the clock; memory bounds the rest."""
CHECKPOINT_INTERVAL_S = 300.0
FIRST_STEP = 120_000
"""The run has been going for days when the scenario begins."""
MEMBER_SPREAD = 0.003
MEMBER_JITTER = 0.0015
STEP_JITTER = 0.004
"""Relative: of members among each other, of one member's computing, and of a whole step."""
COLLECTED_S_PER_STEP = 0.004
COLLECTED_S_MAX = 400.0
"""A member's time in the garbage collector: per step of a healthy run, and at most at the beginning."""
LATE_SPREAD = 0.15
"""Spread of the late member's delay, from step to step."""
DATA_WAIT_S_MIN = 0.001
LOST_S_MIN = 1e-3
"""Smaller losses are rounding."""
LOCALISE_S = 2.0
REGROUP_S = 12.0
"""Until the lost member is known, and until a spare has taken its place."""

Stall = Literal["data", "checkpoint", "recovery"]
"""Why a run stands still between two steps."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The present times of a step. By node: compute_s, data_s (waiting for data), exchange_s. For the whole
    run:

    stray, pause_s  one member, another each step, computes longer by this share, and pauses for this time
    write_s         a blocking checkpoint, of `size_bytes`
    interval_s      from one checkpoint to the next
    """

    compute_s: Floats
    data_s: Floats
    exchange_s: Floats
    stray: float
    pause_s: float
    write_s: float
    size_bytes: int
    interval_s: float


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """The members of the run, one a node. healthy_write_s: the time of an undisturbed checkpoint."""

    run: str
    nodes: range
    spares: range
    gpus_per_node: int
    healthy_write_s: float


class MemberLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A member that dies, and the fault that the record then has."""

    node: int
    at_ns: int
    fault: str
    detail: str
    subject: str


class LostTime(msgspec.Struct, frozen=True, kw_only=True):
    """A step or a stall that took longer than in a healthy run, jitter apart."""

    from_ns: int
    to_ns: int
    lost_s: float


class Exported(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The exported figures of the last step, valid from `since_ns` on; by node, NaN without a member.

    checkpoint_s: the time of the last checkpoint. collected_s: time in the garbage collector so far.
    """

    since_ns: int
    steps: float
    step_s: float
    checkpoint_s: float
    compute_s: Floats
    data_s: Floats
    exchange_s: Floats
    wait_s: Floats
    collected_s: Floats


class SimulatedTraining:
    """The simulated run. `advance` lets it step."""

    def __init__(self, crew: Crew, loss: MemberLoss | None, rng: np.random.Generator) -> None:
        self.crew = crew
        self.events: list[ev.KnownEvent] = []
        self.nodes = np.array(crew.nodes)
        self.steps = FIRST_STEP
        self.lost: list[LostTime] = []
        self._checkpoint_s = np.nan
        self._exports: deque[Exported] = deque()
        self._loss = loss
        self._spares = deque(crew.spares)
        self._ability = rng.normal(1.0, MEMBER_SPREAD, crew.spares.stop)  # by node: no two are equally fast
        self._smooth_s = COMPUTE_S * float(self._ability[self.nodes].max()) + EXCHANGE_S
        self._collected_s = rng.uniform(0.0, COLLECTED_S_MAX, crew.spares.stop)
        self._rng = rng
        self._now_ns = 0
        self._saved_ns = 0
        self._stalls: deque[tuple[Stall, int, int]] = deque()
        self._generation = 1

    @property
    def healthy_step_s(self) -> float:
        """A healthy step: the slowest of many members is a little slower than most."""
        return self._smooth_s + COMPUTE_S * MEMBER_JITTER

    def start(self, at_ns: int) -> None:
        """Declare the run, its members and what a healthy step is."""
        self._now_ns = self._saved_ns = at_ns
        gpus = len(self.nodes) * self.crew.gpus_per_node
        self._tell(ev.RunStarted, gpus=gpus, name="pretraining", team="training")
        reference_ns = round(self.healthy_step_s * SECOND_NS)
        self._tell(ev.ReferenceDeclared, step_ns=reference_ns, gpus=gpus)
        for node in self.nodes:
            self._join(node)

    def advance(self, until_ns: int, pace: StepTimes) -> None:
        """Run every step that begins before `until_ns`, also beyond it."""
        while self._now_ns < until_ns:
            self._step(pace)
            if self._now_ns - self._saved_ns >= pace.interval_s * SECOND_NS:
                self._checkpoint(pace)

    def exported(self, at_ns: int) -> Exported | None:
        """The figures that a scrape at this time gets; None before the first step is over."""
        while len(self._exports) > 1 and self._exports[1].since_ns <= at_ns:
            self._exports.popleft()
        return self._exports[0] if self._exports and self._exports[0].since_ns <= at_ns else None

    def share(self, doing: Stall, from_ns: int, to_ns: int) -> float:
        """The share of this time in which the run stands still for this reason."""
        spent = sum(
            max(0, min(end_ns, to_ns) - max(start_ns, from_ns))
            for reason, start_ns, end_ns in self._stalls
            if reason == doing
        )
        return spent / (to_ns - from_ns)

    def forget(self, before_ns: int) -> None:
        """Drop stalls before this time; `share` is not called for it again."""
        while self._stalls and self._stalls[0][2] <= before_ns:
            self._stalls.popleft()

    def decide(self, at_ns: int, action: str, subject: str, reason: str) -> None:
        """Record a decision of another team."""
        self._tell(ev.ActionTaken, at_ns, action=action, subject=subject, reason=reason)

    # -- one step ------------------------------------------------------------------------------------

    def _step(self, pace: StepTimes) -> None:
        data_s = pace.data_s[self.nodes]
        if (waited_s := float(data_s.max())) > DATA_WAIT_S_MIN:
            self._tell(ev.PhaseEntered, phase="data")
            self._stall("data", waited_s)
        begun_ns = self._now_ns
        self._tell(ev.StepBegun, step=self.steps + 1)
        smooth_s = self._computed(pace)
        compute_s = smooth_s * self._rng.normal(1.0, MEMBER_JITTER, len(self.nodes))
        exchange_s = pace.exchange_s[self.nodes]
        step_s = (compute_s.max() + exchange_s.max()) * self._rng.normal(1.0, STEP_JITTER)
        ends_ns = begun_ns + round(step_s * SECOND_NS)
        if self._loss is not None and self._loss.at_ns < ends_ns:
            self._lose(self._loss)
            self._count_lost(begun_ns, (self._now_ns - begun_ns) / SECOND_NS)
            return
        self._now_ns = ends_ns
        self.steps += 1
        self._tell(ev.StepCommitted, step=self.steps)
        self._count_lost(begun_ns, waited_s + float(smooth_s.max() + exchange_s.max()) - self._smooth_s)
        self._export(pace, waited_s + step_s, compute_s)

    def _computed(self, pace: StepTimes) -> Floats:
        """The computing time of each member, including the one that is late in this step."""
        compute_s: Floats = pace.compute_s[self.nodes] * self._ability[self.nodes]
        late = self._rng.integers(len(self.nodes))
        much = self._rng.lognormal(0.0, LATE_SPREAD)
        compute_s[late] += much * (pace.stray * COMPUTE_S + pace.pause_s)
        self._collected_s[self.nodes] += COLLECTED_S_PER_STEP
        self._collected_s[self.nodes[late]] += much * pace.pause_s
        return compute_s

    def _export(self, pace: StepTimes, step_s: float, compute_s: Floats) -> None:
        def spread(values: Floats) -> Floats:
            full = np.full(len(pace.compute_s), np.nan, np.float32)
            full[self.nodes] = values
            return full

        data_s, exchange_s = pace.data_s[self.nodes], pace.exchange_s[self.nodes]
        ready_s = data_s + compute_s
        export = Exported(
            since_ns=self._now_ns,
            steps=self.steps,
            step_s=step_s,
            checkpoint_s=self._checkpoint_s,
            compute_s=spread(compute_s),
            data_s=spread(data_s),
            exchange_s=spread(exchange_s),
            wait_s=spread(ready_s.max() - ready_s + exchange_s.max() - exchange_s),
            collected_s=spread(self._collected_s[self.nodes]),
        )
        self._exports.append(export)

    def _count_lost(self, from_ns: int, lost_s: float) -> None:
        if lost_s > LOST_S_MIN:
            self.lost.append(LostTime(from_ns=from_ns, to_ns=self._now_ns, lost_s=lost_s))

    # -- what interrupts steps -----------------------------------------------------------------------

    def _checkpoint(self, pace: StepTimes) -> None:
        begun_ns = self._now_ns
        since_s = (begun_ns - self._saved_ns) / SECOND_NS
        self._tell(ev.CheckpointBegun, step=self.steps, place=PLACE)
        self._stall("checkpoint", pace.write_s)
        stall_ns = self._now_ns - begun_ns
        self._tell(
            ev.CheckpointSaved, step=self.steps, place=PLACE, stall_ns=stall_ns, size_bytes=pace.size_bytes
        )
        self._saved_ns = self._now_ns
        self._checkpoint_s = pace.write_s
        due = min(1.0, since_s / CHECKPOINT_INTERVAL_S)  # of a checkpoint, in a healthy run
        self._count_lost(begun_ns, pace.write_s - self.crew.healthy_write_s * due)

    def _lose(self, loss: MemberLoss) -> None:
        """Lose a member: its node is drained, a spare takes its place, and the step is done again."""
        self._loss = None
        self._now_ns = max(self._now_ns, loss.at_ns)
        self._tell(ev.FaultObserved, fault=loss.fault, subject=loss.subject, detail=loss.detail)
        self._tell(ev.MemberLost, subject=name("node", loss.node), reason=loss.fault)
        self._stall("recovery", LOCALISE_S)
        self._tell(ev.ActionTaken, action="drain", subject=name("node", loss.node), reason=loss.fault)
        spare = self._spares.popleft()
        self._stall("recovery", REGROUP_S)
        self.nodes[self.nodes == loss.node] = spare
        self._join(spare)
        self._generation += 1
        self._tell(
            ev.GenerationOpened,
            generation=self._generation,
            members=tuple(name("node", node) for node in self.nodes),
            step=self.steps,
        )

    def _stall(self, reason: Stall, duration_s: float) -> None:
        from_ns = self._now_ns
        self._now_ns += round(duration_s * SECOND_NS)
        self._stalls.append((reason, from_ns, self._now_ns))

    def _join(self, node: int) -> None:
        member = name("node", node)
        self._tell(ev.MemberJoined, subject=member, node=member, gpus=self.crew.gpus_per_node)

    def _tell(self, kind: Callable[..., ev.KnownEvent], at_ns: int | None = None, **fields: object) -> None:
        at_ns = self._now_ns if at_ns is None else at_ns
        identity = event_id(self.crew.run, len(self.events))
        self.events.append(kind(id=identity, occurred_ns=at_ns, source=SOURCE, run=self.crew.run, **fields))
