"""Heat balance, rated flow and the rate of a link: what must be so whatever the past was."""

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.physics import FLOW, KW_PER_LPM_K, LINK_RATE, RATED, SUSPECT_TRUST
from holdfast.signals.frame import Floats, Frame, Word

ROWS, SINCE = 180, 150
LOOPS = tuple(f"cdu-{number:04}" for number in range(4))
FLOW_LPM, SUPPLY_C, RISE_K = 200.0, 30.0, 10.0
NDR, HDR = 50e9, 25e9

Made = Callable[..., Frame]
Noisy = Callable[..., Floats]
Looked = Callable[..., Detected]

EXPORTERS = {
    "densewatch": (
        "densewatch_cdu_coolant_flow_lpm",
        "densewatch_cdu_coolant_supply_temp_celsius",
        "densewatch_cdu_coolant_return_temp_celsius",
        "densewatch_cdu_heat_removed_kw",
    ),
    "redfish": (FLOW, "SupplyTemperatureCelsius", "ReturnTemperatureCelsius", "HeatRemovedkW"),
}


def readings(noisy: Noisy) -> tuple[Floats, Floats, Floats, Floats]:
    flow = noisy(FLOW_LPM, ROWS, len(LOOPS), seed=1)
    supply = noisy(SUPPLY_C, ROWS, len(LOOPS), seed=2)
    back = noisy(SUPPLY_C + RISE_K, ROWS, len(LOOPS), seed=3)
    heat = noisy(FLOW_LPM * RISE_K * KW_PER_LPM_K, ROWS, len(LOOPS), seed=4)
    return flow, supply, back, heat


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_loop_whose_sensors_contradict_each_other_is_believed_less(
    exporter: str, framed: Made, noisy: Noisy, looked: Looked
) -> None:
    flow, supply, back, heat = readings(noisy)
    flow[SINCE:, 2] *= 0.6
    balanced, contradicted = heat.copy(), heat.copy()
    balanced[SINCE:, 2] *= 0.6

    def look(heat: Floats) -> Detected:
        values = (flow, supply, back, heat)
        frames = [framed(*pair, LOOPS) for pair in zip(EXPORTERS[exporter], values, strict=True)]
        return looked(*frames)

    (sound,) = look(balanced).machines
    assert (sound.sign, sound.subject) == ("low-flow", LOOPS[2])
    assert look(balanced).flaws == ()
    (doubted,) = look(contradicted).machines
    (flaw,) = look(contradicted).flaws
    assert (flaw.kind, flaw.subject) == ("implausible", LOOPS[2])
    assert "kW" in flaw.text
    assert doubted.confidence == pytest.approx(SUSPECT_TRUST * sound.confidence)


def test_sensors_that_disagree_a_little_or_for_a_moment_are_sound(
    framed: Made, noisy: Noisy, looked: Looked
) -> None:
    flow, supply, back, heat = readings(noisy)
    heat[:, 0] *= 1.1
    heat[-3:, 1] *= 2
    frames = [
        framed(*pair, LOOPS) for pair in zip(EXPORTERS["densewatch"], (flow, supply, back, heat), strict=True)
    ]
    assert looked(*frames).flaws == ()


def test_a_loop_that_stands_still_and_takes_no_heat_is_not_contradicted(
    framed: Made, noisy: Noisy, looked: Looked
) -> None:
    flow, supply, back, heat = readings(noisy)
    flow[:, 3] = heat[:, 3] = 0.0
    back[:, 3] = supply[:, 3]
    frames = [
        framed(*pair, LOOPS) for pair in zip(EXPORTERS["densewatch"], (flow, supply, back, heat), strict=True)
    ]
    assert [flaw for flaw in looked(*frames).flaws if flaw.kind == "implausible"] == []


def test_a_loop_with_a_sensor_missing_cannot_be_balanced(framed: Made, noisy: Noisy, looked: Looked) -> None:
    flow, supply, back, heat = readings(noisy)
    frames = [
        framed(*pair, LOOPS)
        for pair in zip(EXPORTERS["densewatch"], (flow, supply, back, 3 * heat), strict=True)
    ]
    assert looked(*frames).flaws
    assert looked(*frames[:3]).flaws == ()
    shorter = framed(frames[3].metric, 3 * heat[:, :2], LOOPS[:2])
    assert looked(*frames[:3], shorter).flaws == ()


# -- rated flow ----------------------------------------------------------------------------------------


def test_less_flow_than_a_loop_is_built_for_is_low_even_if_it_always_was(
    framed: Made, noisy: Noisy, looked: Looked
) -> None:
    flow = noisy(FLOW_LPM, ROWS, len(LOOPS))
    flow[:, 1] *= 0.7
    flow[:, 2] *= 0.9
    frame = framed(FLOW, flow, LOOPS)
    assert looked(frame).machines == ()
    (found,) = looked(frame, framed(RATED, np.full(flow.shape, FLOW_LPM), LOOPS)).machines
    assert (found.sign, found.subject, found.method) == ("low-flow", LOOPS[1], "physics")
    assert found.since_ns == frame.times_ns[0]
    assert found.usual == FLOW_LPM


def test_a_meter_that_has_no_number_for_so_little_flow(framed: Made, noisy: Noisy, looked: Looked) -> None:
    flow = noisy(FLOW_LPM, ROWS, len(LOOPS))
    flow[SINCE:, 1] = np.nan
    words = tuple(Word(time=row, series=1, text="Out of range") for row in range(SINCE, ROWS))
    frame = framed(FLOW, flow, LOOPS, words=words)
    rated = framed(RATED, np.full(flow.shape, FLOW_LPM), LOOPS)
    (found,) = looked(frame, rated).machines
    assert (found.sign, found.subject, found.value) == ("low-flow", LOOPS[1], 0.0)
    assert found.since_ns == frame.times_ns[SINCE]
    assert found.noticed_ns == frame.times_ns[SINCE + 1]


def test_a_meter_that_says_nothing_says_nothing(framed: Made, noisy: Noisy, looked: Looked) -> None:
    flow = noisy(FLOW_LPM, ROWS, len(LOOPS))
    flow[SINCE:, 1] = np.nan
    words = tuple(Word(time=row, series=1, text="Null") for row in range(SINCE, ROWS))
    rated = framed(RATED, np.full(flow.shape, FLOW_LPM), LOOPS)
    detected = looked(framed(FLOW, flow, LOOPS, words=words), rated)
    assert detected.machines == ()
    assert {flaw.subject for flaw in detected.flaws} == {LOOPS[1]}


# -- links ---------------------------------------------------------------------------------------------

PORTS = tuple(f"n{node:05}/mlx5_{port}" for node in range(8) for port in range(8))


def rates(framed: Made, changed: dict[int, float], since: int = 0) -> Frame:
    values = np.full((ROWS, len(PORTS)), NDR)
    for port, rate in changed.items():
        values[since:, port] = rate
    labels = [{"device": port.partition("/")[2], "port": "1"} for port in PORTS]
    return framed(LINK_RATE, values, PORTS, labels=labels)


def test_a_link_that_was_trained_to_less_than_the_others(framed: Made, looked: Looked) -> None:
    always, now = rates(framed, {12: HDR}), rates(framed, {12: HDR}, since=SINCE)
    (found,) = looked(always).machines
    assert (found.sign, found.subject, found.method) == ("slow-link", PORTS[12], "peers")
    assert (found.value, found.usual) == pytest.approx((HDR, NDR))
    assert found.since_ns == always.times_ns[0]
    assert [one.since_ns for one in looked(now).machines] == [now.times_ns[SINCE]]
    assert looked(rates(framed, {})).machines == ()


def test_ports_that_are_all_slower_by_design_are_held_against_each_other(
    framed: Made, looked: Looked
) -> None:
    """A node has a card or two for storage beside those for its GPUs, and they need not be as fast."""
    storage = {number: HDR for number, port in enumerate(PORTS) if port.endswith("mlx5_7")}
    assert looked(rates(framed, storage)).machines == ()


def test_a_scrape_that_everybody_missed_is_no_mistake(framed: Made, looked: Looked) -> None:
    frame = rates(framed, {12: HDR})
    frame.values[-1] = np.nan
    assert {one.subject for one in looked(frame).machines} <= {PORTS[12]}


def test_a_link_whose_last_scrape_was_missed_is_as_slow_as_it_was(framed: Made, looked: Looked) -> None:
    frame = rates(framed, {12: HDR})
    frame.values[-1, 12] = np.nan
    assert [one.subject for one in looked(frame).machines] == [PORTS[12]]
