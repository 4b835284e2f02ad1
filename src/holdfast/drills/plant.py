"""Cooling loops, power shelves and the GPUs on them: clocks fall if heat cannot be removed.

One step of time is a handful of array operations over all GPUs. Published figures are marked as such; the
other constants are plausible for a liquid-cooled eight-GPU node, chosen so that a loop at its rated flow
stays 16 K below the temperature at which clocks fall, and one at 58 % of it just reaches that temperature.
"""

import msgspec
import numpy as np

from holdfast.detect.physics import KW_PER_LPM_K
from holdfast.drills.levers import Floats, Indices, Levers, on_which
from holdfast.twin.cluster import Domain, Layout

SUPPLY_C = 30.0
RATED_LPM_PER_GPU = 1.25
PUMP_PERCENT = 62.0
"""At the rated flow. If flow is short, the pump's controller asks for more, up to the maximum."""

HOST_W = 1_800.0
"""Processors, memory and network cards of a node, under load or not."""
IDLE_W = 90.0
LOAD_W = 650.0
"""Power of a GPU that trains at its full clock: just under the 700 W limit of an H100 SXM."""
CLOCK_MAX_MHZ = 1_980.0
CLOCK_SHARE_MIN = 0.3
POWER_EXPONENT = 2.4
"""Dynamic power falls faster than the clock, because the voltage falls with it."""
SLOWDOWN_C = 87.0
SLOWDOWN_BAND_K = 20.0
"""The clock falls from full to zero over this many kelvins above `SLOWDOWN_C`."""
PLATE_K_PER_W = 0.020
FILM_K_PER_W = 0.035
"""From the cold plate into the coolant at its rated flow; rises as the flow falls, by the exponent below."""
FILM_EXPONENT = -0.8
"""Of turbulent flow in a channel (Dittus and Boelter)."""
LAG_S = 25.0
RESISTANCE_SPREAD = 0.03
"""From GPU to GPU: paste, mounting pressure."""
SUPPLIES_PER_SHELF = 6
SHELF_HEADROOM = 1.18
"""The power of all supplies of a shelf, relative to the most that its nodes take."""
WARM_UP_STEPS = 24
WARM_UP_STEP_S = 10.0


class Weather(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Inputs of the plant: by loop its flow and supply temperature, by shelf the share its supplies
    deliver."""

    flow_share: Floats
    supply_rise_k: Floats
    supplies_share: Floats


def weather(levers: Levers, tick: int) -> Weather:
    return Weather(
        flow_share=levers.at("flow", tick),
        supply_rise_k=levers.at("supply", tick),
        supplies_share=levers.at("supplies", tick),
    )


class Plant:
    """The state of every GPU, loop and shelf. `advance` lets time pass; the attributes are the present state.

    Node by GPU: temperature_c, clock_share, power_w, is_hot, is_braked (why the clock is low).
    By loop: flow_lpm, supply_c, return_c, heat_kw, pump_percent.
    """

    def __init__(self, layout: Layout, rng: np.random.Generator) -> None:
        self.layout = layout
        shape = (layout.nodes, layout.gpus_per_node)
        self._loop_starts, self._loop_of = _starts(layout, "loop"), on_which(layout, "loop")
        self._shelf_starts, self._shelf_of = _starts(layout, "shelf"), on_which(layout, "shelf")
        self._spread = rng.normal(1.0, RESISTANCE_SPREAD, shape).astype(np.float32)
        # A GPU's position along its loop: later ones get warmer coolant.
        self._position = np.broadcast_to(np.linspace(0.35, 0.65, shape[1], dtype=np.float32), shape)
        gpus = np.add.reduceat(np.full(layout.nodes, layout.gpus_per_node), self._loop_starts)
        self.rated_lpm = (RATED_LPM_PER_GPU * gpus).astype(np.float32)
        node_w = HOST_W + layout.gpus_per_node * LOAD_W
        self._shelf_w = SHELF_HEADROOM * np.add.reduceat(np.full(layout.nodes, node_w), self._shelf_starts)
        self.temperature_c: Floats = np.full(shape, SUPPLY_C, np.float32)
        self._settle()

    def _settle(self) -> None:
        """Reach the temperatures of a run that has been going for a while."""
        loops, shelves = len(self._loop_starts), len(self._shelf_starts)
        fair = Weather(
            flow_share=np.ones(loops, np.float32),
            supply_rise_k=np.zeros(loops, np.float32),
            supplies_share=np.ones(shelves, np.float32),
        )
        for _ in range(WARM_UP_STEPS):
            self.advance(WARM_UP_STEP_S, fair, np.ones(self.layout.nodes, np.float32))

    def advance(self, duration_s: float, given: Weather, activity: Floats) -> None:
        """Let time pass. activity: by node, the share of it in which its GPUs compute."""
        cool = 1.0 - (self.temperature_c - SLOWDOWN_C) / SLOWDOWN_BAND_K
        thermal = np.clip(cool, CLOCK_SHARE_MIN, 1.0)
        dynamic_w = (LOAD_W - IDLE_W) * activity[:, None]
        brake = self._brake(given, dynamic_w)[:, None]
        self.clock_share = np.minimum(thermal, brake)
        self.is_hot = thermal < np.minimum(brake, 1.0)
        self.is_braked = np.broadcast_to(brake < 1.0, self.is_hot.shape)
        self.power_w = IDLE_W + dynamic_w * self.clock_share**POWER_EXPONENT
        self._cool(duration_s, given)

    def _brake(self, given: Weather, dynamic_w: Floats) -> Floats:
        """By node: the clock at which its shelf can still feed all its nodes."""
        gpus = self.layout.gpus_per_node
        base_w = np.add.reduceat(np.full(self.layout.nodes, HOST_W + gpus * IDLE_W), self._shelf_starts)
        wanted_w = np.add.reduceat(dynamic_w[:, 0] * gpus, self._shelf_starts)
        left_w = np.maximum(self._shelf_w * given.supplies_share - base_w, 1.0)
        share = (left_w / np.maximum(wanted_w, 1.0)) ** (1 / POWER_EXPONENT)
        return np.clip(share, CLOCK_SHARE_MIN, 1.0).astype(np.float32)[self._shelf_of]

    def _cool(self, duration_s: float, given: Weather) -> None:
        node_kw = (self.power_w.sum(axis=1) + HOST_W) / 1_000
        self.heat_kw = np.add.reduceat(node_kw, self._loop_starts)
        self.flow_lpm = self.rated_lpm * given.flow_share
        self.supply_c = SUPPLY_C + given.supply_rise_k
        self.return_c = self.supply_c + self.heat_kw / (self.flow_lpm * KW_PER_LPM_K)
        self.pump_percent = np.clip(PUMP_PERCENT / given.flow_share, 0.0, 100.0)
        resistance = PLATE_K_PER_W + FILM_K_PER_W * given.flow_share**FILM_EXPONENT
        by_node = self._loop_of
        coolant_c = (
            self.supply_c[by_node][:, None]
            + self._position * (self.return_c - self.supply_c)[by_node][:, None]
        )
        k_per_w = self._spread * resistance[by_node][:, None]
        change_k = coolant_c + self.power_w * k_per_w - self.temperature_c
        share = 1.0 - np.exp(-duration_s / LAG_S)
        # Throttling reacts within milliseconds, but a step of time takes seconds. Its reaction by the end of
        # the step counts already (an implicit step), or clock and temperature would oscillate.
        relief_w_per_k = (self.power_w - IDLE_W) * POWER_EXPONENT / self.clock_share / SLOWDOWN_BAND_K
        will_be_hot = self.temperature_c + share * change_k > SLOWDOWN_C
        self.temperature_c += change_k * (share / (1.0 + share * will_be_hot * relief_w_per_k * k_per_w))


def _starts(layout: Layout, domain: Domain) -> Indices:
    """The first node of each such domain."""
    return np.arange(0, layout.nodes, layout.size(domain))
