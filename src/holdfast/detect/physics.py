"""What must be so whatever the past was: heat balance, the flow a loop is built for, the rate of a link.

A loop's own sensors are held against each other: kW = L/min x K x 0.0698 for water. Where they contradict
each other, at least one of them lies, and what they show is believed less.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.detect.finding import Finding
from holdfast.detect.machines import findings
from holdfast.detect.rules import SIGNS, Rule
from holdfast.signals.frame import Floats, Frame
from holdfast.signals.quality import WORD_BEYOND, Flaw, inspect
from holdfast.signals.source import Source

KW_PER_LPM_K = 0.0698
"""What a litre of water a minute carries for each kelvin that it gets warmer."""
BALANCE_SHARE = 0.2
"""By so much the two sides may differ: sensors, and coolant that is not pure water."""
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
READ = (*(metric for side in _SIDES for metric in side), RATED, LINK_RATE)


class _Loops(NamedTuple):
    """One reading of each loop, in one order of loops and times."""

    names: tuple[str, ...]
    times_ns: NDArray[np.int64]
    values: Floats


def unbalanced(source: Source, window_ns: tuple[int, int]) -> Iterator[Flaw]:
    """Loops whose sensors contradict each other at the end of the window."""
    for metrics in _SIDES:
        read = [_loops(source.frame(metric, window_ns)) for metric in metrics]
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
                f"{flow.names[loop]} reports {heat.values[-1, loop]:.0f} kW of heat removed, where its flow"
                f" and temperatures make {carried[-1, loop]:.0f} kW."
            )
            yield Flaw(
                kind="implausible", subject=flow.names[loop], metric=metrics[0], since_ns=None, text=text
            )


def _loops(frame: Frame | None) -> _Loops | None:
    if frame is None or not len(frame.times_ns):
        return None
    frame = inspect(frame).frame
    order = np.argsort(np.array(frame.subjects))
    return _Loops(tuple(frame.subjects[index] for index in order), frame.times_ns, frame.values[:, order])


def below_rated(source: Source, window_ns: tuple[int, int]) -> Iterator[Finding]:
    """Loops with less flow than they are built for; also where the meter has no number for so little."""
    frame, rated = source.frame(FLOW, window_ns), source.frame(RATED, window_ns)
    if frame is None or rated is None or not len(frame.times_ns):
        return
    built_for = dict(
        zip(rated.subjects, np.fmax.reduce(inspect(rated).frame.values, axis=0).tolist(), strict=True)
    )
    usual = np.array([built_for.get(name, np.nan) for name in frame.subjects], np.float32)
    values = np.array(inspect(frame).frame.values)
    for word in frame.words:
        if word.text == WORD_BEYOND:
            values[word.time, word.series] = 0.0
    with np.errstate(invalid="ignore"):
        wrong = values < RATED_SHARE * usual
    rule = Rule(
        sign="low-flow", metric=FLOW, unit="L/min", note=SIGNS["low-flow"], against="physics", scrapes=2
    )
    ones = np.ones(len(usual), np.float32)
    yield from findings(
        rule, frame.subjects, values, wrong, usual, frame.times_ns, ones, (1 - RATED_SHARE) * usual
    )


def slow_links(source: Source, window_ns: tuple[int, int]) -> Iterator[Finding]:
    """Links that were trained to less than the same device has on other nodes, whenever that was."""
    frame = source.frame(LINK_RATE, window_ns)
    if frame is None or not len(frame.times_ns):
        return
    most = np.fmax.reduce(frame.values, axis=0)
    devices = np.array([labels.get("device", "") for labels in frame.labels])
    usual = np.empty(len(most), np.float32)
    for device in np.unique(devices):
        peers = devices == device
        known = most[peers][np.isfinite(most[peers])]
        usual[peers] = np.median(known) if len(known) else np.nan
    with np.errstate(invalid="ignore"):
        wrong = frame.values < LINK_SHARE * usual
    columns = np.flatnonzero(wrong.any(axis=0))
    rule = Rule(
        sign="slow-link", metric=LINK_RATE, unit="B/s", note=SIGNS["slow-link"], against="peers", scrapes=2
    )
    yield from findings(
        rule,
        tuple(frame.subjects[column] for column in columns),
        frame.values[:, columns],
        wrong[:, columns],
        usual[columns],
        frame.times_ns,
        np.ones(len(columns), np.float32),
        (1 - LINK_SHARE) * usual[columns],
    )
