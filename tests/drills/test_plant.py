"""Cooling and power keep to their arithmetic: heat balance, lag, throttling, a shelf short of supplies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.physics import KW_PER_LPM_K
from holdfast.drills.plant import (
    CLOCK_SHARE_MIN,
    HOST_W,
    LAG_S,
    LOAD_W,
    SHELF_HEADROOM,
    SLOWDOWN_C,
    Plant,
    Weather,
)
from holdfast.twin.cluster import Layout

LAYOUT = Layout(gpus=256, racks_per_loop=2)
LOOPS, SHELVES = LAYOUT.count("loop"), LAYOUT.count("shelf")
SETTLED_STEPS = 60


def given_weather(flow: float = 1.0, rise_k: float = 0.0, supplies: float = 1.0) -> Weather:
    """The first loop and the first shelf have these; the others are well."""
    flows, rises, shares = np.ones(LOOPS), np.zeros(LOOPS), np.ones(SHELVES)
    flows[0], rises[0], shares[0] = flow, rise_k, supplies
    return Weather(flow_share=flows, supply_rise_k=rises, supplies_share=shares)


def settled(weather: Weather, activity: float = 1.0) -> Plant:
    plant = Plant(LAYOUT, np.random.default_rng(1))
    for _ in range(SETTLED_STEPS):
        plant.advance(10.0, weather, np.full(LAYOUT.nodes, activity, np.float32))
    return plant


@given(flow=st.floats(0.2, 1.5), rise_k=st.floats(0, 25), activity=st.floats(0, 1))
def test_what_the_gpus_take_the_water_carries_away(flow: float, rise_k: float, activity: float) -> None:
    plant = Plant(LAYOUT, np.random.default_rng(1))
    plant.advance(10.0, given_weather(flow, rise_k), np.full(LAYOUT.nodes, activity, np.float32))
    carried_kw = plant.flow_lpm * (plant.return_c - plant.supply_c) * KW_PER_LPM_K
    taken_kw = (plant.power_w.sum() + HOST_W * LAYOUT.nodes) / 1_000
    assert carried_kw == pytest.approx(plant.heat_kw, rel=1e-4)
    assert carried_kw.sum() == pytest.approx(taken_kw, rel=1e-4)


def test_a_healthy_loop_has_room_to_spare() -> None:
    plant = settled(given_weather())
    assert plant.clock_share.min() == 1.0
    assert SLOWDOWN_C - 20 < plant.temperature_c.mean() < SLOWDOWN_C - 12
    assert plant.return_c - plant.supply_c == pytest.approx(10.0, abs=0.2)


def test_a_loop_with_too_little_flow_throttles_and_no_other_does() -> None:
    plant = settled(given_weather(flow=0.45))
    nodes = len(LAYOUT.nodes_of("loop", 0))
    assert plant.is_hot[:nodes].mean() > 0.9
    assert plant.clock_share[:nodes].mean() < 0.95
    assert plant.temperature_c[:nodes].max() < SLOWDOWN_C + 15  # throttling holds it
    assert plant.clock_share[nodes:].min() == 1.0
    assert not plant.is_hot[nodes:].any()
    assert plant.pump_percent[0] == 100.0 > plant.pump_percent[1]


def test_the_less_flow_the_hotter_and_the_slower() -> None:
    flows = (1.0, 0.8, 0.6, 0.45, 0.3)
    plants = [settled(given_weather(flow=flow)) for flow in flows]
    temperatures = [float(plant.temperature_c[0].mean()) for plant in plants]
    clocks = [float(plant.clock_share[0].mean()) for plant in plants]
    assert temperatures == sorted(temperatures)
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[-1] >= CLOCK_SHARE_MIN


def test_warm_water_throttles_at_full_flow() -> None:
    plant = settled(given_weather(rise_k=24))
    assert plant.is_hot[0].any()
    assert plant.flow_lpm[0] == plant.rated_lpm[0]


def test_temperature_follows_with_its_lag() -> None:
    plant = settled(given_weather(), activity=0.2)
    before = plant.temperature_c.copy()
    target = settled(given_weather(), activity=0.5).temperature_c
    plant.advance(LAG_S, given_weather(), np.full(LAYOUT.nodes, 0.5, np.float32))
    left = (target - plant.temperature_c) / (target - before)
    assert left == pytest.approx(np.exp(-1), abs=0.01)


def test_a_shelf_that_lost_supplies_brakes_its_rack_to_what_it_can_feed() -> None:
    share = 0.6
    plant = settled(given_weather(supplies=share))
    rack = len(LAYOUT.nodes_of("shelf", 0))
    node_w = HOST_W + LAYOUT.gpus_per_node * LOAD_W
    taken_w = plant.power_w[:rack].sum() + rack * HOST_W
    assert taken_w == pytest.approx(share * SHELF_HEADROOM * rack * node_w, rel=1e-3)
    assert plant.is_braked[:rack].all()
    assert not plant.is_braked[rack:].any()
    assert not plant.is_hot[:rack].any()
    assert plant.temperature_c[:rack].mean() < plant.temperature_c[rack:].mean()


def test_whoever_waits_takes_less_power_at_the_same_clock() -> None:
    busy, waiting = settled(given_weather(), activity=1.0), settled(given_weather(), activity=0.7)
    assert waiting.power_w.mean() < busy.power_w.mean()
    assert waiting.clock_share.min() == busy.clock_share.min() == 1.0
