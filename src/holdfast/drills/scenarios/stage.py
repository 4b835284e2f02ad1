"""The tools for writing a scenario: a cluster, a stretch of time, and a generator for the details."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.drills.levers import Floats, Lever, Turned, nominal
from holdfast.drills.scenarios.truth import MetricTrace, Owner, Where
from holdfast.drills.training import MemberLoss
from holdfast.drills.world import Cast, Decision, SimulatedXid
from holdfast.signals.domains import Domain, Seam
from holdfast.twin.cluster import Domain as Place
from holdfast.twin.cluster import Layout, gpu_name, name, port_name
from holdfast.wording.units import SECOND_NS

BEGAN_SHARE = (0.25, 0.4)
"""When it begins, as a share of the played time."""
ENDED_SHARE = (0.8, 0.9)
ENDS_PROBABILITY = 0.3
"""The chance that a scenario is over before the record ends."""


class Plot(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A scenario with its details drawn.

    affected   the nodes whose members it slows
    traces     where the cause itself shows
    surface    where it shows first
    decisions  decisions of other teams, which the record has
    """

    subject: str
    surface: MetricTrace
    turned: tuple[Turned, ...] = ()
    affected: tuple[int, ...] = ()
    traces: tuple[MetricTrace, ...] = ()
    loss: MemberLoss | None = None
    xids: tuple[SimulatedXid, ...] = ()
    decisions: tuple[Decision, ...] = ()


class Stage:
    """The stage of a scenario; every draw comes from one generator, so a seed is a whole story.

    The cause is at work from `began_ns` to `ended_ns`, which are moments of a scrape.
    """

    def __init__(self, cast: Cast, run: str, times_ns: NDArray[np.int64], rng: np.random.Generator) -> None:
        self.cast, self.run, self.rng = cast, run, rng
        self.layout: Layout = cast.layout
        self._times_ns = times_ns
        scrapes = len(times_ns)
        self._began = round(rng.uniform(*BEGAN_SHARE) * scrapes)
        ended, is_over = round(rng.uniform(*ENDED_SHARE) * scrapes), rng.random() < ENDS_PROBABILITY
        self._ended = ended if is_over else None
        self._since_s = (times_ns - times_ns[self._began]) / SECOND_NS

    @property
    def began_ns(self) -> int:
        return int(self._times_ns[self._began])

    @property
    def ended_ns(self) -> int | None:
        return None if self._ended is None else int(self._times_ns[self._ended])

    def never_end(self) -> None:
        """Let the cause last beyond the end of the record."""
        self._ended = None

    def end_after(self, share: float) -> int:
        """End the cause after this share of the rest of the record, and return when."""
        self._ended = self._began + round(share * (len(self._times_ns) - 1 - self._began))
        return int(self._times_ns[self._ended])

    def turn(
        self,
        lever: Lever,
        subjects: Sequence[int],
        level: float | Floats,
        over_s: float = 0.0,
        each: Floats | None = None,
    ) -> Turned:
        """Turn the lever to this level from beginning to end, reached evenly over `over_s` seconds.

        level may differ from scrape to scrape; each: the share of it for each subject, by default 1.
        """
        before = nominal(lever)
        reached = np.clip(self._since_s / over_s, 0.0, 1.0) if over_s else 1.0
        # A scrape shows the time before it, so the first to show the cause is the one after the beginning.
        at_work = np.arange(len(self._times_ns)) > self._began
        if self._ended is not None:
            at_work &= np.arange(len(self._times_ns)) <= self._ended
        moved = np.where(at_work, (level - before) * reached, 0.0)
        shares = np.ones(len(subjects)) if each is None else each
        values = before + moved[:, None] * shares
        return Turned(lever=lever, subjects=tuple(subjects), level=values.astype(np.float32))

    def bursts(self, on_s: float, off_s: float) -> Floats:
        """1 at the scrapes at which an intermittent cause is active, else 0."""
        there: Floats = (np.mod(self._since_s, on_s + off_s) < on_s).astype(np.float32)
        return there

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def one_of(self, count: int) -> int:
        return int(self.rng.integers(count))

    def pick(self, place: Place) -> int:
        """The number of one such place of which the run uses at least half, or the first."""
        size = self.layout.size(place)
        return self.one_of(max(1, (self.cast.run.stop + size // 2) // size))

    def pick_gpu(self) -> tuple[int, int]:
        """A node of the run and one of its GPUs."""
        return self.pick("node"), self.one_of(self.layout.gpus_per_node)

    def gpu_number(self, node: int, gpu: int) -> int:
        return node * self.layout.gpus_per_node + gpu

    def members_on(self, place: Place, number: int) -> tuple[int, ...]:
        return tuple(node for node in self.layout.nodes_of(place, number) if node in self.cast.run)

    def everyone(self) -> tuple[int, ...]:
        return tuple(self.cast.run)

    def of_run(self, metric: str) -> MetricTrace:
        return MetricTrace(metric, (self.run,))


Draw = Callable[[Stage], Plot]
"""Draws a scenario's details."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario before its details are drawn: its table in scenarios.toml.

    title      for the list, in a few words; it gives the cause away
    told       what the operator hears when a tabletop begins
    domain     where it begins; surfaces_in: where it shows; what: how it shows there
    loss       the ledger's category with most of its cost
    decides    the one observation that would settle it
    questions  for the table, of this scenario only
    found_as   the mechanism of a right diagnosis, from `diagnose.mechanisms`; empty if nothing is wrong
    """

    name: str
    title: str
    told: str
    domain: Domain
    surfaces_in: Domain
    what: str
    mechanism: str
    owner: Owner
    seam: Seam
    loss: Where
    decides: str
    questions: tuple[str, ...]
    draw: Draw
    with_pools: bool = False
    is_incident: bool = True
    found_as: str = ""


def members(nodes: Sequence[int]) -> tuple[str, ...]:
    return tuple(name("node", node) for node in nodes)


def slow_members(nodes: Sequence[int]) -> MetricTrace:
    """Members that take longer to compute than the others."""
    return MetricTrace("holdfast_member_compute_seconds", members(nodes))


def at_gpu(metric: str, node: int, gpu: int) -> MetricTrace:
    return MetricTrace(metric, (gpu_name(node, gpu),))


def at_port(metric: str, node: int, gpu: int) -> MetricTrace:
    return MetricTrace(metric, (port_name(node, gpu),))
