"""Simulates everything a scenario needs together: plant, fabric, storage, pools, run, scrape by scrape.

It keeps the state from which every metric can be read afterwards (`History`), not the metrics: for 16,384
GPUs over half an hour that is some 60 MB, and a metric that is not read costs nothing.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.drills import fabric, pools, storage
from holdfast.drills.levers import PCIE_WIDTH, POOL_ENGINES, Floats, Levers, on_which
from holdfast.drills.plant import Plant, weather
from holdfast.drills.training import (
    CHECKPOINT_INTERVAL_S,
    CLOCK_BOUND_SHARE,
    COMPUTE_S,
    EXCHANGE_S,
    STEP_S,
    Crew,
    LostTime,
    MemberLoss,
    SimulatedTraining,
    StepTimes,
)
from holdfast.record.errors import InputError
from holdfast.record.events import KnownEvent
from holdfast.twin.cluster import Layout
from holdfast.wording.units import SECOND_NS

NODES_MIN = 32
IDLE_ACTIVITY = 0.04
POOL_ACTIVITY = 0.6
HOST_COPY_S = 0.25
"""Of a step's computing: copies between host and GPU over all PCIe lanes, at about 50 GB/s."""
LAUNCH_S = 0.5
"""Of a step's computing: the host's work for its GPUs, with all of its CPU time."""
ECC_RETRY_S = 0.002
"""The GPU's time for a corrected memory error, with the row remapping that follows."""


class Cast(msgspec.Struct, frozen=True, kw_only=True):
    """The role of each node: the run's come first, a spare rack last, pools (if any) in between."""

    layout: Layout
    run: range
    prefill: range
    decode: range
    spare: range


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    at_ns: int
    action: str
    subject: str
    reason: str


class SimulatedXid(msgspec.Struct, frozen=True, kw_only=True):
    """An error that a GPU's driver reports. gpu: counted over the whole cluster."""

    gpu: int
    code: int
    message: str
    at_ns: int


class History(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The state at each scrape. The scrape is an array's first index; node and GPU, loop ... follow."""

    cast: Cast
    levers: Levers
    scrape_s: float
    times_ns: NDArray[np.int64]
    run: str
    xids: tuple[SimulatedXid, ...]
    temperature_c: Floats
    clock_share: Floats
    power_w: Floats
    is_hot: NDArray[np.bool_]
    is_braked: NDArray[np.bool_]
    activity: Floats
    flow_lpm: Floats
    supply_c: Floats
    return_c: Floats
    heat_kw: Floats
    pump_percent: Floats
    read_rates: Floats
    write_rates: Floats
    compute_s: Floats
    data_s: Floats
    exchange_s: Floats
    wait_s: Floats
    collected_s: Floats
    step_s: Floats
    checkpoint_s: Floats
    steps: Floats
    stepping_share: Floats
    writing_share: Floats
    transfer_s: Floats
    requests: Floats
    cache_share: Floats
    first_token_s: Floats

    @property
    def layout(self) -> Layout:
        return self.cast.layout

    @property
    def ticks(self) -> int:
        return len(self.times_ns)


class Lived(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A history, the run's events in it, and its lost time, in the order of time."""

    history: History
    events: tuple[KnownEvent, ...]
    healthy_step_s: float
    lost: tuple[LostTime, ...]


class Script(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The input of a simulation: the causes, a death if there is one, and decisions of other teams.

    Scrapes are at `times_ns`, `scrape_s` apart; the first shows the time since `start_ns`.
    """

    run: str
    levers: Levers
    times_ns: NDArray[np.int64]
    start_ns: int
    scrape_s: float
    loss: MemberLoss | None
    xids: tuple[SimulatedXid, ...]
    decisions: tuple[Decision, ...]


def cast(layout: Layout, *, with_pools: bool) -> Cast:
    """Assign the nodes. Raises `InputError` if there are too few, or a node is not whole."""
    if layout.gpus % layout.gpus_per_node or layout.nodes < NODES_MIN:
        raise InputError(
            f"A scenario needs at least {NODES_MIN} whole nodes, not {layout.gpus} GPUs.",
            hint=f"Give a multiple of {layout.gpus_per_node} GPUs,"
            f" {NODES_MIN * layout.gpus_per_node} or more.",
        )
    spare = layout.nodes_of("rack", layout.count("rack") - 1)
    engines = POOL_ENGINES if with_pools else 0
    prefill = range(spare.start - 2 * engines, spare.start - engines)
    decode = range(prefill.stop, spare.start)
    return Cast(layout=layout, run=range(prefill.start), prefill=prefill, decode=decode, spare=spare)


def live(casting: Cast, script: Script, rng: np.random.Generator) -> Lived:
    """Run the whole simulation. The same generator state gives the same bytes."""
    plant_rng, run_rng = rng.spawn(2)
    world = _World(casting, script, Plant(casting.layout, plant_rng), run_rng)
    world.training.start(script.start_ns)
    for decision in script.decisions:
        world.training.decide(decision.at_ns, decision.action, decision.subject, decision.reason)
    for tick in range(len(script.times_ns)):
        world.advance(tick)
    training = world.training
    return Lived(
        history=History(
            cast=casting,
            levers=script.levers,
            scrape_s=script.scrape_s,
            times_ns=script.times_ns,
            run=script.run,
            xids=script.xids,
            **world.kept,
        ),
        events=tuple(sorted(training.events, key=lambda event: (event.occurred_ns, event.id))),
        healthy_step_s=training.healthy_step_s,
        lost=tuple(training.lost),
    )


class _World:
    """The parts, and the arrays into which their states are copied scrape by scrape."""

    def __init__(self, casting: Cast, script: Script, plant: Plant, rng: np.random.Generator) -> None:
        self.layout, self.cast, self.script, self.plant = casting.layout, casting, script, plant
        healthy = np.full(1, storage.MOUNT_BYTES_PER_S_PER_NODE)
        crew = Crew(
            run=script.run,
            nodes=casting.run,
            spares=casting.spare,
            gpus_per_node=self.layout.gpus_per_node,
            healthy_write_s=storage.write_s(self.layout, healthy, 1.0),
        )
        self.training = SimulatedTraining(crew, script.loss, rng)
        self.kept: dict[str, NDArray[Any]] = {}
        self._spine_of = pools.spine_of(self.layout)

    def advance(self, tick: int) -> None:
        to_ns = int(self.script.times_ns[tick])
        from_ns = to_ns - round(self.script.scrape_s * SECOND_NS)
        levers, training = self.script.levers, self.training
        rates = storage.client_rates(self.layout, levers, tick)
        exchange = self._pools(tick) if len(self.cast.prefill) else None
        pace = self._pace(tick, rates, exchange.samples_s if exchange else 0.0)
        training.advance(to_ns, pace)
        writing = training.share("checkpoint", from_ns, to_ns)
        stepping = 1.0 - writing - training.share("data", from_ns, to_ns)
        stepping -= training.share("recovery", from_ns, to_ns)
        training.forget(to_ns)
        activity = self._activity(pace, stepping) * (1.0 - levers.at("down", tick))
        self.plant.advance(self.script.scrape_s, weather(levers, tick), activity)
        self._keep_plant(tick, activity)
        self._keep_run(tick)
        self._keep(tick, "stepping_share", stepping)
        self._keep(tick, "writing_share", writing)
        self._keep(tick, "read_rates", rates.read)
        self._keep(tick, "write_rates", rates.write)
        for part in ("transfer_s", "requests", "cache_share", "first_token_s"):
            self._keep(tick, part, np.empty(0) if exchange is None else getattr(exchange, part))

    def _pace(self, tick: int, rates: storage.Rates, samples_s: float) -> StepTimes:
        layout, levers = self.layout, self.script.levers
        by_gpu = (layout.nodes, layout.gpus_per_node)
        slow = CLOCK_BOUND_SHARE / self.plant.clock_share + 1.0 - CLOCK_BOUND_SHARE
        slow = slow * (1.0 + ECC_RETRY_S * levers.at("ecc", tick).reshape(by_gpu))
        copy_s = HOST_COPY_S * (PCIE_WIDTH / levers.at("pcie_width", tick) - 1.0).reshape(by_gpu)
        taken = levers.at("cpu", tick)
        state = float(levers.at("state", tick)[0])
        mounts = layout.number("mount", self.cast.run[-1]) + 1  # those that the run's nodes use
        run_gpus = len(self.training.nodes) * layout.gpus_per_node
        read_s = storage.read_s(rates.read)[on_which(layout, "mount")]
        data_s = np.maximum(read_s - STEP_S, 0.0) + levers.at("loader", tick)
        return StepTimes(
            compute_s=levers.at("work", tick) * COMPUTE_S * slow.max(axis=1)
            + copy_s.max(axis=1)
            + LAUNCH_S * taken / (1.0 - taken),
            data_s=np.maximum(data_s, samples_s - STEP_S),
            exchange_s=EXCHANGE_S / fabric.bandwidth_share(layout, levers, tick),
            stray=float(levers.at("stray", tick)[0]),
            pause_s=float(levers.at("pause", tick)[0]),
            write_s=storage.write_s(layout, rates.write[:mounts], state),
            size_bytes=round(state * storage.CHECKPOINT_BYTES_PER_GPU * run_gpus),
            interval_s=CHECKPOINT_INTERVAL_S * float(levers.at("cadence", tick)[0]),
        )

    def _pools(self, tick: int) -> pools.Exchange:
        levers, layout = self.script.levers, self.layout
        share = fabric.bandwidth_share(layout, levers, tick)
        return pools.exchange(
            share[self.cast.prefill],
            share[self.cast.decode],
            levers.at("spine", tick)[self._spine_of],
            levers.at("routing", tick),
        )

    def _activity(self, pace: StepTimes, stepping: float) -> Floats:
        """By node: the share of the time in which its GPUs compute. Waiting for the slowest does not
        count."""
        nodes = self.training.nodes
        compute_s = pace.compute_s[nodes]
        step_s = compute_s.max() + pace.exchange_s[nodes].max()
        activity = np.full(self.layout.nodes, IDLE_ACTIVITY, np.float32)
        activity[self.cast.prefill.start : self.cast.decode.stop] = POOL_ACTIVITY
        # The measured power includes a healthy member's other work besides computing.
        busy = np.minimum(compute_s / step_s * (STEP_S / COMPUTE_S), 1.0)
        activity[nodes] = np.maximum(stepping * busy, IDLE_ACTIVITY)
        return activity

    def _keep_plant(self, tick: int, activity: Floats) -> None:
        self._keep(tick, "activity", activity)
        for part in (
            *("temperature_c", "clock_share", "power_w", "is_hot", "is_braked"),
            *("flow_lpm", "supply_c", "return_c", "heat_kw", "pump_percent"),
        ):
            self._keep(tick, part, getattr(self.plant, part))

    def _keep_run(self, tick: int) -> None:
        export = self.training.exported(int(self.script.times_ns[tick]))
        nothing = np.full(self.layout.nodes, np.nan, np.float32)
        for part in ("compute_s", "data_s", "exchange_s", "wait_s", "collected_s"):
            self._keep(tick, part, nothing if export is None else getattr(export, part))
        for part in ("step_s", "checkpoint_s", "steps"):
            self._keep(tick, part, np.nan if export is None else getattr(export, part))

    def _keep(self, tick: int, part: str, value: Floats | float) -> None:
        if part not in self.kept:
            kind = np.bool_ if np.asarray(value).dtype == np.bool_ else np.float32
            self.kept[part] = np.empty((len(self.script.times_ns), *np.shape(value)), kind)
        self.kept[part][tick] = value
