"""The monitoring data of a history: samples under the real metric names, with realistic flaws.

Truth becomes readings through noise and rounding, then through flaws seen in the field: scrapes that are
missed, gauges that stick, exporters that lag, units that contradict the name, counters that begin again after
a reboot or stop at their width, words where a number should be. Each metric has a generator of its own, from
the run's name and its own, so a metric does not depend on which others are read.
"""

import zlib
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.drills.fabric import WAIT_TICKS_MAX
from holdfast.drills.levers import Floats
from holdfast.drills.metrics import CATALOGUE, ShownMetric
from holdfast.drills.series import NOT_A_NODE, Series, series
from holdfast.drills.world import History
from holdfast.record.errors import InputError
from holdfast.signals.catalogue import Scope, Trap
from holdfast.signals.frame import Frame, Word
from holdfast.signals.quality import WORD_BEYOND
from holdfast.signals.units import W_PER_KW

WORD_NOTHING = "Null"
FLOW_RANGE_SHARE = 0.4
"""A flow meter gives no number below this share of its rated flow."""
NS_PER_S, US_PER_S = 1e9, 1e6


class Dirt(msgspec.Struct, frozen=True, kw_only=True):
    """The flaws of readings, as shares of scrapes, sensors or machines."""

    missed_share: float = 0.002
    late_share: float = 0.004
    stuck_share: float = 0.0004
    saturated_share: float = 0.01
    words_share: float = 0.003
    wrong_unit_share: float = 0.03
    microseconds_share: float = 0.3


CLEAN = Dirt(**dict.fromkeys(Dirt.__struct_fields__, 0.0))
"""Only noise and rounding."""


class Telemetry:
    """The samples of a history, made on demand."""

    def __init__(self, history: History, dirt: Dirt) -> None:
        self._history = history
        self._dirt = dirt
        self._series: dict[Scope, Series] = {}
        machines = self._generator("machines")
        shape = (history.ticks, history.layout.nodes)
        self._missed = machines.random(shape, np.float32) < dirt.missed_share
        self._is_down = history.levers.over_time("down") > 0
        self._is_late = machines.random(shape[1]) < dirt.late_share
        self._is_in_us = machines.random(shape[1]) < dirt.microseconds_share

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that have any series here."""
        return tuple(name for name, metric in CATALOGUE.items() if self._of(metric.known.scope).subjects)

    def has(self, metrics: Iterable[str]) -> bool:
        return all(self._of(CATALOGUE[name].known.scope).subjects for name in metrics)

    def samples(
        self, metrics: Iterable[str] | None = None, window_ns: tuple[int, int] | None = None
    ) -> Iterator[Frame]:
        """The samples of one metric after the other. window_ns: the half-open window of time."""
        for name in self.metrics if metrics is None else metrics:
            yield self.sample(name, window_ns)

    def sample(self, name: str, window_ns: tuple[int, int] | None = None) -> Frame:
        """The samples of one metric; raises `InputError` if the name is unknown."""
        metric = CATALOGUE.get(name)
        if metric is None:
            raise InputError(f"The twin has no metric {name}.", hint="`CATALOGUE` has every name there is.")
        who = self._of(metric.known.scope)
        values, words = self._read(metric, who)
        whole = Frame(
            metric=metric.known.name,
            kind=metric.known.kind,
            meaning=metric.known.meaning,
            subjects=who.subjects,
            labels=who.labels,
            times_ns=self._history.times_ns,
            values=values,
            words=tuple(words),
        )
        return (
            whole if window_ns is None else whole.rows(*np.searchsorted(whole.times_ns, window_ns).tolist())
        )

    def _of(self, scope: Scope) -> Series:
        if scope not in self._series:
            self._series[scope] = series(self._history, scope)
        return self._series[scope]

    def _generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(text.encode()) for text in (self._history.run, purpose)])

    def _read(self, metric: ShownMetric, who: Series) -> tuple[Floats, tuple[Word, ...]]:
        rng = self._generator(metric.known.name)
        truth = metric.read(self._history, rng)
        values = _gauge(metric, truth, rng) if metric.known.kind == "gauge" else _counter(metric, truth, rng)
        values = self._trapped(metric.sensor.trap, values, who, rng)
        values = self._distorted(metric, values, who, rng)
        words = self._words(metric, values, rng) if metric.sensor.trap == "words" else ()
        for word in words:
            values[word.time, word.series] = np.nan
        return values, words

    def _trapped(self, trap: Trap | None, values: Floats, who: Series, rng: np.random.Generator) -> Floats:
        """Apply this trap to the values; most traps affect only some sensors."""
        some = rng.random(values.shape[1])
        match trap:
            case "ns-or-us":
                unit = np.where(self._is_in_us[who.node], US_PER_S, NS_PER_S)
                return np.floor(values * unit)
            case "saturates":
                values[:, some < self._dirt.saturated_share] = WAIT_TICKS_MAX
            case "fahrenheit":
                wrong = some < self._dirt.wrong_unit_share
                values[:, wrong] = np.round(values[:, wrong] * 9 / 5 + 32, 1)
            case "watts":
                values[:, some < self._dirt.wrong_unit_share] *= W_PER_KW
        return values

    def _distorted(
        self, metric: ShownMetric, values: Floats, who: Series, rng: np.random.Generator
    ) -> Floats:
        """Apply the flaws between a sensor and the store."""
        if metric.sensor.sticks:
            for index in np.flatnonzero(rng.random(values.shape[1]) < self._dirt.stuck_share):
                since = rng.integers(len(values))
                values[since:, index] = values[since, index]
        if (who.node == NOT_A_NODE).all():
            values[rng.random(len(values)) < self._dirt.missed_share] = np.nan
            return values
        late = self._is_late[who.node]
        if metric.known.kind == "gauge" and late.any():
            values[1:, late] = values[:-1, late].copy()
        down = self._is_down[:, who.node]
        if metric.known.kind == "counter" and down.any():
            _begin_again(values, down)
        return np.where(self._missed[:, who.node] | down, np.nan, values)

    def _words(self, metric: ShownMetric, values: Floats, rng: np.random.Generator) -> tuple[Word, ...]:
        nothing = rng.random(values.shape) < self._dirt.words_share
        beyond = np.zeros_like(nothing)
        if metric.known.name == "FlowLitersPerMinute" and self._dirt.words_share:
            beyond = self._history.levers.over_time("flow") < FLOW_RANGE_SHARE
        return tuple(
            Word(time=int(time), series=int(index), text=WORD_BEYOND if beyond[time, index] else WORD_NOTHING)
            for time, index in np.argwhere(nothing | beyond)
        )


def _gauge(metric: ShownMetric, truth: Floats, rng: np.random.Generator) -> Floats:
    sensor = metric.sensor
    values = np.array(truth)
    if sensor.spread:
        values *= rng.normal(1.0, sensor.spread, (1, values.shape[1])).astype(np.float32)
    if sensor.noise:
        values += sensor.noise * rng.standard_normal(values.shape, np.float32)
    return np.round(values / sensor.quantum) * sensor.quantum if sensor.quantum else values


def _counter(metric: ShownMetric, truth: Floats, rng: np.random.Generator) -> Floats:
    values = np.array(truth, np.float64)
    if metric.sensor.start:
        values += rng.uniform(0, metric.sensor.start, values.shape[1])
    return np.floor(values) if metric.sensor.quantum >= 1 else values


def _begin_again(values: Floats, down: NDArray[np.bool_]) -> None:
    """Reset counters to zero after a reboot."""
    for index in np.flatnonzero(down.any(axis=0)):
        off = np.flatnonzero(down[:, index])
        back = off[-1] + 1
        values[back:, index] -= values[off[-1], index]


class Replay:
    """A `Source` of simulated telemetry. Each metric is made once and kept, so that many windows can be
    read."""

    def __init__(self, telemetry: Telemetry, hidden: tuple[str, ...] = ()) -> None:
        """hidden: metrics whose names begin like this are left out."""
        self._telemetry = telemetry
        self._kept: dict[str, Frame] = {}
        self._metrics = tuple(name for name in telemetry.metrics if not name.startswith(hidden or ("\0",)))

    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        if metric not in self._metrics:
            return None
        if metric not in self._kept:
            self._kept[metric] = self._telemetry.sample(metric)
        whole = self._kept[metric]
        first, end = np.searchsorted(whole.times_ns, window_ns).tolist()
        return None if first == end else whole.rows(first, end)
