"""Checks that hold whatever the past was: heat balance, the rated flow of a loop, the rate of a link.

A loop's sensors are compared with each other: kW = L/min x K x 0.0698 for water. If they contradict each
other, at least one of them is wrong, and findings from them get less confidence.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel, Panels
from holdfast.detect.rules import SIGNS, Rule
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats
from holdfast.signals.quality import WORD_BEYOND, Flaw

KW_PER_LPM_K = 0.0698
"""The heat that one litre of water per minute carries for each kelvin by which it gets warmer."""
BALANCE_SHARE = 0.2
"""The two sides may differ by this much: sensors are inexact, and coolant is not pure water."""
BALANCE_ROWS = 6
SUSPECT_TRUST = 0.6
RATED_SHARE = 0.85
LINK_SHARE = 0.95
FLOW, RATED, LINK_RATE = (
    "FlowLitersPerMinute",
    "RatedFlowLitersPerMinute",
    "node_infiniband_rate_bytes_per_second",
)
_SIDES: tuple[tuple[str, str, str, str], ...] = (
    (
        "densewatch_cdu_coolant_flow_lpm",
        "densewatch_cdu_coolant_supply_temp_celsius",
        "densewatch_cdu_coolant_return_temp_celsius",
        "densewatch_cdu_heat_removed_kw",
    ),
    (FLOW, "SupplyTemperatureCelsius", "ReturnTemperatureCelsius", "HeatRemovedkW"),
)
"""Flow, supply, return and heat, by exporter."""
BALANCE = tuple(metric for side in _SIDES for metric in side)


class _Loops(NamedTuple):
    """One metric of all loops, ordered by name."""

    names: tuple[str, ...]
    times_ns: NDArray[np.int64]
    values: Floats


def unbalanced(panels: Panels) -> Iterator[Flaw]:
    """Loops whose sensors contradict each other at the end of the window."""
    for metrics in _SIDES:
        read = [_loops(panels.value(metric)) for metric in metrics]
        if any(one is None for one in read):
            continue
        flow, supply, back, heat = (one for one in read if one is not None)
        if len({one.names for one in (flow, supply, back, heat)}) > 1:
            continue
        rows = min(len(one.times_ns) for one in (flow, supply, back, heat))
        last = slice(-min(rows, BALANCE_ROWS), None)
        carried = flow.values[last] * (back.values[last] - supply.values[last]) * KW_PER_LPM_K
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(heat.values[last] / carried - 1) > BALANCE_SHARE
        for loop in np.flatnonzero(off.all(axis=0)) if rows >= BALANCE_ROWS else ():
            text = (
                f"{flow.names[loop]} reports {heat.values[-1, loop]:.0f} kW of heat removed, but its flow"
                f" and temperatures make {carried[-1, loop]:.0f} kW."
            )
            yield Flaw(
                kind="implausible", subject=flow.names[loop], metric=metrics[0], since_ns=None, text=text
            )


def _loops(panel: Panel | None) -> _Loops | None:
    if panel is None:
        return None
    order = np.argsort(np.array(panel.subjects))
    return _Loops(tuple(panel.subjects[index] for index in order), panel.times_ns, panel.values[:, order])


def _below_rated(look: Look) -> Iterator[Finding]:
    """Loops with less flow than their rating, including flow too low for the meter to give a number."""
    panel, rated = look.panels.value(FLOW), look.panels.value(RATED)
    if panel is None or rated is None:
        return
    built_for = dict(zip(rated.subjects, np.fmax.reduce(rated.values, axis=0).tolist(), strict=True))
    usual = np.array([built_for.get(name, np.nan) for name in panel.subjects], np.float32)
    values = np.array(panel.values)
    for word in panel.words:
        if word.text == WORD_BEYOND:
            values[word.time, word.series] = 0.0
    with np.errstate(invalid="ignore"):
        wrong = values < RATED_SHARE * usual
    rule = Rule(
        sign="low-flow", metric=FLOW, unit="L/min", note=SIGNS["low-flow"], against="physics", scrapes=2
    )
    panel = msgspec.structs.replace(panel, values=values)
    yield from findings(rule, panel, wrong, usual, (1 - RATED_SHARE) * usual)


def _slow_links(look: Look) -> Iterator[Finding]:
    """Links trained to a lower rate than the same device has on other nodes, however long ago."""
    panel = look.panels.value(LINK_RATE)
    if panel is None:
        return
    most = np.fmax.reduce(panel.values, axis=0)
    devices = np.array([labels.get("device", "") for labels in panel.labels])
    usual = np.empty(len(most), np.float32)
    for device in np.unique(devices):
        peers = devices == device
        known = most[peers][np.isfinite(most[peers])]
        usual[peers] = np.median(known) if len(known) else np.nan
    with np.errstate(invalid="ignore"):
        wrong = panel.values < LINK_SHARE * usual
    columns = np.flatnonzero(wrong.any(axis=0))
    rule = Rule(
        sign="slow-link", metric=LINK_RATE, unit="B/s", note=SIGNS["slow-link"], against="peers", scrapes=2
    )
    usual = usual[columns]
    yield from findings(
        rule, panel.some(columns), wrong.take(columns, axis=1), usual, (1 - LINK_SHARE) * usual
    )


BELOW_RATED = FunctionDetector((Sense("low-flow", (FLOW, RATED)),), _below_rated)
SLOW_LINKS = FunctionDetector((Sense("slow-link", (LINK_RATE,)),), _slow_links)
