"""Clocks that are held down, judged by a GPU's clock, power, limit, heat and violation times together.

None of these is a fault by itself. A healthy H200 at its power limit has a violation time for power of 0.90
to 1.00, and its clock scatters by tens to two hundred MHz. So each metric is compared with its own past and,
if that shows nothing, with the GPUs of the same run; noisy clocks and power as means over minutes.

Rising heat with a falling clock means heat. Falling power with a falling clock, and no more heat, means a
cap.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.signs import Sign
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats

CLOCK, TEMPERATURE, UTIL = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL"
POWER, LIMIT = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_MGMT_LIMIT"
VIOLATIONS: dict[str, Sign] = {
    "DCGM_FI_DEV_THERMAL_VIOLATION": "thermal-throttle",
    "DCGM_FI_DEV_POWER_VIOLATION": "power-throttle",
}
EVENTS = "DCGM_EXP_CLOCK_EVENTS_COUNT"
EVENT_SIGNS: dict[str, Sign] = {
    "sw_thermal": "thermal-throttle",
    "hw_thermal": "thermal-throttle",
    "hw_power_brake": "power-throttle",
    "power_cap": "power-throttle",
}
NS_TO_SHARE = 1e-9
MEAN_S = 420.0
"""Clocks and power are averaged over this time if single readings scatter too much."""
CLOCK_LEAST_MHZ, CLOCK_SHARE = 60.0, 0.04
SLIGHT_SHARE = 0.02
"""A violation time counts only if the clock is lower by at least this share."""
POWER_SHARE = 0.08
LIMIT_SHARE = 0.03
HOTTER_K = {TEMPERATURE: 5.0, "DCGM_FI_DEV_MEMORY_TEMP": 7.0}
HOTTER_SHARE = 0.07
MANY_SIGMAS, MANY_SHARE, MANY_LEAST = 3.0, 0.05, 3
"""One mean in seven hundred is this far off by chance. Several at once, one in twenty, are not."""
WARMER_K = 4.0
"""With this much more heat, a low clock is not due to a lack of power."""
VIOLATION_LEAST = 0.05
EVENTS_LEAST = 0.6
PEERS_CLOCK_SHARE, PEERS_POWER_SHARE, PEERS_VIOLATION, PEERS_K = 0.06, 0.15, 0.2, 8.0
PEERS_MIN = 4
PEERS_NVLINK = 0.7
NVLINK_SHARE = 0.25
NVLINKS = ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_PROF_NVLINK_TX_BYTES")
BUSY_PERCENT = 50.0


def _throttled(look: Look) -> Iterator[Finding]:
    clocks = look.panels.value(CLOCK)
    low: NDArray[np.bool_] | None = None
    if clocks is not None:
        means = averaged(_at_work(look, clocks), CLOCK_SHARE)
        clocks, usual = means.panel, _or_peers(look, means, PEERS_CLOCK_SHARE, -1)
        means = means._replace(usual=usual)
        yield from _beyond("low-clock", means, np.maximum(CLOCK_LEAST_MHZ, CLOCK_SHARE * usual), "MHz")
        with np.errstate(invalid="ignore"):
            low = ~(clocks.values > (1 - SLIGHT_SHARE) * usual)
        yield from _low_power(look, clocks, usual)
    yield from _low_limit(look)
    yield from _violations(look, clocks, low)
    for metric, least_k in HOTTER_K.items():
        if (heat := look.panels.value(metric)) is not None:
            means = averaged(_at_work(look, heat), HOTTER_SHARE)
            yield from _beyond("hot-gpu", means, np.full(len(means.usual), least_k), "C", falls=False)
    yield from _hotter_than_peers(look)


def _at_work(look: Look, panel: Panel) -> Panel:
    """Leave out readings of idle GPUs: their clocks and power do not matter."""
    util = look.panels.value(UTIL)
    if util is None or util.subjects != panel.subjects or len(util.times_ns) != len(panel.times_ns):
        return panel
    with np.errstate(invalid="ignore"):
        idle = util.values < BUSY_PERCENT
    if not idle.any():
        return panel
    return msgspec.structs.replace(panel, values=np.where(idle, np.nan, panel.values))


class Means(NamedTuple):
    """Readings that are steady enough to tell a difference: single ones, or means over minutes.

    noise: the standard deviation of their distance from `usual` by chance
    """

    panel: Panel
    usual: Floats
    noise: float


def averaged(panel: Panel, share: float) -> Means:
    """Means over some minutes, unless single readings are steady enough to tell this difference."""
    level = np.abs(panel.usual[np.isfinite(panel.usual)])
    if not len(level) or SIGMAS * panel.scatter <= share * float(np.median(level)):
        return Means(panel, panel.usual, panel.scatter)
    rows = compare.rows_in(panel.times_ns, MEAN_S)
    past = panel.values[compare.past_rows(panel.values)] if panel.before is None else panel.before
    known = np.isfinite(past).sum(axis=0)
    usual = np.where(
        known >= compare.PAST_KNOWN_MIN, np.nansum(past, axis=0) / np.maximum(known, 1), np.nan
    ).astype(np.float32)
    noise = panel.scatter * float(np.sqrt(1 / rows + 1 / max(1, len(past))))
    means = msgspec.structs.replace(panel, values=compare.rolling(panel.values, rows), single=panel.values)
    return Means(means, usual, noise)


def _or_peers(look: Look, means: Means, apart: float, sign: int, *, is_share: bool = True) -> Floats:
    """The usual value of each GPU; for one that was always far from the others of its run, the value of the
    others.

    apart: how far, as a share of their value, or absolute. sign: 1 if higher is wrong, -1 if lower is.
    """
    usual = np.array(means.usual, np.float32)
    for columns in look.columns_by_run(means.panel.subjects):
        known = usual[columns][np.isfinite(usual[columns])]
        if len(known) < PEERS_MIN:
            continue
        middle = float(np.median(known))
        scatter = compare.MAD_TO_SIGMA * float(np.median(np.abs(known - middle)))
        bound = sign * middle + max(apart * middle if is_share else apart, SIGMAS * scatter)
        usual[columns] = np.where(sign * usual[columns] > bound, middle, usual[columns])
    return usual


def _beyond(sign: Sign, means: Means, least: Floats, unit: str, *, falls: bool = True) -> Iterator[Finding]:
    """Find readings that differ from the usual by `least` and by more than chance. Means need a smaller
    difference if many differ at once.
    """
    panel, usual, noise = means
    with np.errstate(invalid="ignore"):
        away = usual - panel.values if falls else panel.values - usual
        enough = np.maximum(least, compare.MEAN_SIGMAS * noise).astype(np.float32)
        wrong = away > enough
        if panel.single is not None:
            likely = away > np.maximum(least, MANY_SIGMAS * noise)
            many = np.maximum(MANY_LEAST, MANY_SHARE * np.isfinite(away).sum(axis=1, keepdims=True))
            wrong |= likely & (likely.sum(axis=1, keepdims=True) >= many)
    rule = Rule(sign=sign, metric=panel.metric, unit=unit, note=SIGNS[sign], falls=falls)
    yield from findings(rule, panel, wrong, usual, enough)


def _low_power(look: Look, clocks: Panel, clocks_usual: Floats) -> Iterator[Finding]:
    """Less power at a lower clock, without more heat."""
    power = look.panels.value(POWER)
    if power is None or power.subjects != clocks.subjects or len(power.times_ns) != len(clocks.times_ns):
        return
    means = averaged(_at_work(look, power), POWER_SHARE)
    power, noise, usual = means.panel, means.noise, _or_peers(look, means, PEERS_POWER_SHARE, -1)
    enough = np.maximum(compare.MEAN_SIGMAS * noise, POWER_SHARE * np.abs(usual)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        held = clocks.values < (1 - CLOCK_SHARE) * clocks_usual
        held &= ~_warmer(look, power)
        wrong = held & (usual - power.values > enough)
    rule = Rule(sign="low-power", metric=POWER, unit="W", note=SIGNS["low-power"], falls=True)
    yield from findings(rule, power, wrong, usual, enough)


def _warmer(look: Look, panel: Panel) -> NDArray[np.bool_]:
    heat = look.panels.value(TEMPERATURE)
    if heat is None or heat.subjects != panel.subjects or len(heat.times_ns) != len(panel.times_ns):
        return np.zeros(panel.values.shape, np.bool_)
    usual = _or_peers(look, Means(heat, heat.usual, 0.0), PEERS_K, 1, is_share=False)
    with np.errstate(invalid="ignore"):
        warmer: NDArray[np.bool_] = heat.values - usual > WARMER_K
    return warmer


def _hotter_than_peers(look: Look) -> Iterator[Finding]:
    """GPUs that have always been far hotter than the others of their run; their own past shows the rest."""
    heat = look.panels.value(TEMPERATURE)
    if heat is None:
        return
    usual = _or_peers(look, Means(heat, heat.usual, 0.0), PEERS_K, 1, is_share=False)
    columns = np.flatnonzero(heat.usual - usual > PEERS_K / 2)
    if not len(columns):
        return
    panel, usual = heat.some(columns), usual[columns]
    with np.errstate(invalid="ignore"):
        wrong = panel.values - usual > PEERS_K
    rule = Rule(
        sign="hot-gpu", metric=TEMPERATURE, unit="C", note="hotter than others of its run", against="peers"
    )
    yield from findings(rule, panel, wrong, usual, np.full(len(columns), PEERS_K, np.float32))


def _low_limit(look: Look) -> Iterator[Finding]:
    """GPUs whose limit was lowered, or has always been lower than that of the run's other GPUs."""
    limits = look.panels.value(LIMIT)
    if limits is None:
        return
    usual = _or_peers(look, Means(limits, limits.usual, 0.0), LIMIT_SHARE, -1)
    with np.errstate(invalid="ignore"):
        wrong = limits.values < (1 - LIMIT_SHARE) * usual
    rule = Rule(sign="low-limit", metric=LIMIT, unit="W", note=SIGNS["low-limit"], falls=True, scrapes=2)
    yield from findings(rule, limits, wrong, usual, (LIMIT_SHARE * usual).astype(np.float32))


def _slow_nvlinks(look: Look) -> Iterator[Finding]:
    """GPUs that move far less over NVLink than the others of their run, and did not before.

    If a run slows down, all GPUs move less: what counts is a GPU's share of its peers' traffic.
    """
    for metric in NVLINKS:
        panel = look.panels.value(metric)
        columns = [] if panel is None else [n for n, name in enumerate(panel.subjects) if look.run_of(name)]
        if panel is None or len(columns) < PEERS_MIN:
            continue
        means = averaged(_of_peers(panel.some(np.array(columns))), NVLINK_SHARE)
        usual = np.fmin(np.fmax(means.usual, PEERS_NVLINK), 1.0)
        least = np.full(len(usual), NVLINK_SHARE)
        yield from _beyond("slow-nvlink", means._replace(usual=usual), least, "of what peers move")


def _of_peers(panel: Panel) -> Panel:
    def shares(values: Floats) -> Floats:
        known = np.isfinite(values).any(axis=1)
        medians = np.full((len(values), 1), np.nan, values.dtype)
        medians[known] = np.nanmedian(values[known], axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            return values / medians

    before = None if panel.before is None else shares(panel.before)
    return msgspec.structs.replace(panel, values=shares(panel.values), before=before)


def _violations(look: Look, clocks: Panel | None, low: NDArray[np.bool_] | None) -> Iterator[Finding]:
    for metric, sign in VIOLATIONS.items():
        panel = look.panels.rate(metric)
        if panel is not None:
            panel = panel.scaled(NS_TO_SHARE)
            usual = panel.usual
            if sign == "thermal-throttle":
                usual = _or_peers(look, Means(panel, usual, 0.0), PEERS_VIOLATION, 1, is_share=False)
            yield from _above(sign, panel, usual, VIOLATION_LEAST, "share of the time", clocks, low)
    events = look.panels.value(EVENTS)
    if events is None:
        return
    told = np.array([EVENT_SIGNS.get(labels.get("clock_event", ""), "") for labels in events.labels])
    for sign in dict.fromkeys(EVENT_SIGNS.values()):
        columns = np.flatnonzero(told == sign)
        if len(columns):
            panel = events.some(columns)
            yield from _above(sign, panel, panel.usual, EVENTS_LEAST, "per scrape", clocks, low)


def _above(
    sign: Sign,
    panel: Panel,
    usual: Floats,
    least: float,
    unit: str,
    clocks: Panel | None,
    low: NDArray[np.bool_] | None,
) -> Iterator[Finding]:
    """Readings above the usual while the clock, if known, is below the usual.

    low: of the clocks, time by series.
    """
    usual = np.where(np.isfinite(usual), usual, 0.0).astype(np.float32)
    enough = max(least, SIGMAS * panel.scatter)
    with np.errstate(invalid="ignore"):
        wrong = panel.values - usual > enough
    columns = np.flatnonzero(wrong.any(axis=0))
    if not len(columns):
        return
    part, wrong = panel.some(columns), wrong.take(columns, axis=1)
    if clocks is not None and low is not None:
        rows = np.minimum(np.searchsorted(clocks.times_ns, part.times_ns), len(clocks.times_ns) - 1)
        column = {subject: number for number, subject in enumerate(clocks.subjects)}
        others = np.array([column.get(subject, -1) for subject in part.subjects])
        wrong &= low[np.ix_(rows, others)] | (others < 0)
    rule = Rule(sign=sign, metric=panel.metric, unit=unit, note=SIGNS[sign], scrapes=2)
    yield from findings(rule, part, wrong, usual[columns], np.full(len(columns), enough, np.float32))


THROTTLING = FunctionDetector(
    (
        Sense("low-clock", (CLOCK,)),
        *(Sense("hot-gpu", (metric,)) for metric in HOTTER_K),
        Sense("low-power", (CLOCK, POWER)),
        Sense("low-limit", (LIMIT,)),
        *(Sense(sign, (metric,)) for metric, sign in VIOLATIONS.items()),
        *(Sense(sign, (EVENTS,)) for sign in dict.fromkeys(EVENT_SIGNS.values())),
    ),
    _throttled,
)
NVLINK = FunctionDetector(tuple(Sense("slow-nvlink", (metric,)) for metric in NVLINKS), _slow_nvlinks)
