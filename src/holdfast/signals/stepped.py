"""Any metric as a run's step time: the same that `holdfast run` exports, for a run that it did not start.

The operator names the metric; its name and values tell what it is. A count of steps becomes the time between
them. Labels tell which run a series belongs to.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.signals.catalogue import describe
from holdfast.signals.frame import Floats, Frame, Labels, joined
from holdfast.signals.source import Source
from holdfast.topology.names import job_of
from holdfast.wording.units import SECOND_NS

STEP = "holdfast_run_step_seconds"
COUNTED = "holdfast_run_steps_counted"
"""The steps that a reading of a count shows, for runs whose step time is taken from them. A step was made at
an unknown moment before the reading that shows it.
"""
UNITS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("_ms", "_milliseconds", "_millis", "_msec"), 1e-3),
    (("_us", "_microseconds", "_usec"), 1e-6),
    (("_ns", "_nanoseconds"), 1e-9),
)
"""By the end of a name, its unit in seconds; seconds without such an ending."""
COUNT_ENDINGS = ("_total", "_count", "_step", "_steps", "_iteration", "_iterations")
COUNT_ROWS_MIN = 3
STEPS_MAX, READINGS_MIN = 3, 3
"""A step time is a mean over as many steps as take `READINGS_MIN` readings, and over `STEPS_MAX` at most: so
at most a third of it is too much.
"""
USUAL_QUANTILE = 0.25
"""For the step time that tells how many steps that is: most may be slow, or none be made for a while."""
LAST_WITHIN_NS = 86_400 * 10**9
"""How far back to look for a run's last step."""
MARK_SHARE = 1e-6
"""Two steps that took equally long must differ: the last digits of every other time are marked."""

Meant = Literal["count", "duration", "histogram"]
Shown = tuple[int, int]
"""The time in ns, and the step."""
RUN_METRICS = ("holdfast_run_step_seconds", "holdfast_run_steps_total")
"""Every watched run has at least one of these."""


class MetricGuess(msgspec.Struct, frozen=True, kw_only=True):
    """What a metric is taken for, and why: half a sentence."""

    meant: Meant
    scale_s: float = 1.0
    by: str


class WithSteps(ABC):
    """Another source, with steps of runs that it does not have."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def source(self) -> Source:
        return self._source

    def metrics(self) -> tuple[str, ...]:
        there = self._source.metrics()
        return tuple(sorted({*there, STEP})) if self._has_steps(there) else there

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        found = self._source.frame(metric, window_ns)
        if metric != STEP:
            return found
        steps = self._steps(window_ns)
        return found if steps is None else joined(found, steps)

    def last_step_ns(self, run: str, at_ns: int) -> int | None:
        """When the run made its last step before this moment; None if unknown."""
        return last_step_ns(self._source, run, at_ns)

    def logged_steps(self, run: str, at_ns: int) -> list[Shown]:
        """The run's steps up to this moment, if its own log was named; else none."""
        return logged_steps(self._source, run, at_ns)

    @abstractmethod
    def _has_steps(self, there: Collection[str]) -> bool:
        """Whether steps can be derived. there: the metrics of the source beneath."""

    @abstractmethod
    def _steps(self, window_ns: tuple[int, int]) -> Frame | None:
        """The steps of the window; None without any."""


def without_steps(source: Source) -> Source:
    """The source itself, as its exporters fill it."""
    while isinstance(source, WithSteps):
        source = source.source
    return source


def last_step_ns(source: Source, run: str, at_ns: int) -> int | None:
    """From the run's own files, else from the last reading of its step within a day."""
    if isinstance(source, WithSteps) and (known_ns := source.last_step_ns(run, at_ns)) is not None:
        return known_ns
    frame = source.frame(STEP, (at_ns - LAST_WITHIN_NS, at_ns + 1))
    if frame is None or run not in frame.subjects:
        return None
    own = [column for column, subject in enumerate(frame.subjects) if subject == run]
    known = np.flatnonzero(np.isfinite(frame.values[:, own]).any(axis=1))
    return int(frame.times_ns[known[-1]]) if len(known) else None


def logged_steps(source: Source, run: str, at_ns: int) -> list[Shown]:
    """The run's steps up to this moment in its own log; none without one."""
    return source.logged_steps(run, at_ns) if isinstance(source, WithSteps) else []


def seen_steps(source: Source, run: str, window_ns: tuple[int, int]) -> list[Shown]:
    """The run's steps by its step time, counted from 1: as many as fit between two readings."""
    frame = source.frame(STEP, window_ns)
    if frame is None or run not in frame.subjects:
        return []
    shown_s = frame.values[:, frame.subjects.index(run)]
    known = np.flatnonzero(np.isfinite(shown_s) & (shown_s > 0))
    new = known[np.concatenate(([True], np.diff(shown_s[known]) != 0))] if len(known) else known
    times_ns = frame.times_ns[new]
    fit = np.diff(times_ns) / 1e9 / shown_s[new[1:]]
    counts = np.concatenate(([1.0], np.maximum(1.0, np.rint(fit)))).cumsum() if len(new) else fit
    return [(int(at_ns), int(count)) for at_ns, count in zip(times_ns, counts, strict=True)]


class SteppedSource(WithSteps):
    """Another source, with the steps of every run in this metric. told: set once it was read."""

    def __init__(self, source: Source, metric: str) -> None:
        super().__init__(source)
        self._metric = metric
        self.told: MetricGuess | None = None

    def metrics(self) -> tuple[str, ...]:
        there = super().metrics()
        return tuple(sorted({*there, COUNTED})) if self._metric in there else there

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        return self._counted(window_ns) if metric == COUNTED else super().frame(metric, window_ns)

    def _has_steps(self, there: Collection[str]) -> bool:
        return self._metric in there or f"{self._metric}_count" in there

    def _counted(self, window_ns: tuple[int, int]) -> Frame | None:
        """Without runs that show their step time themselves: that one counts."""
        frame = self._source.frame(self._metric, window_ns)
        if frame is None or taken_for(frame).meant != "count":
            return None
        own = self._source.frame(STEP, window_ns)
        counts = _by_run(frame)
        runs = tuple(run for run in counts if own is None or run not in own.subjects)
        return step_frame(runs, frame.times_ns, map(counts.__getitem__, runs), COUNTED) if runs else None

    def _steps(self, window_ns: tuple[int, int]) -> Frame | None:
        frame = self._source.frame(self._metric, window_ns)
        if frame is not None:
            self.told = taken_for(frame)
            return as_steps(frame, self.told)
        counts = self._source.frame(f"{self._metric}_count", window_ns)
        sums = self._source.frame(f"{self._metric}_sum", window_ns)
        if counts is None or sums is None:
            return None
        unit_s, by = _unit(self._metric)
        self.told = MetricGuess(meant="histogram", scale_s=unit_s, by=f"it has _sum and _count, in {by}")
        return _mean_steps(counts, sums, unit_s)


def taken_for(frame: Frame) -> MetricGuess:
    """Judged by its name, else by its values: a count is whole and never falls."""
    if frame.metric.endswith(COUNT_ENDINGS) or frame.metric in ("step", "steps", "iteration", "global_step"):
        return MetricGuess(meant="count", by="its name ends as a count's does")
    scale_s, by = _unit(frame.metric)
    values = frame.values
    if len(values) >= COUNT_ROWS_MIN and scale_s == 1.0 and not frame.metric.endswith("_seconds"):
        known = np.isfinite(values)
        highest = np.fmax.accumulate(values, axis=0)
        with np.errstate(invalid="ignore"):
            is_whole = (values[known] == np.rint(values[known])).all()
            falls, rises = (values < highest).any(), (np.fmax.reduce(values) > np.fmin.reduce(values)).any()
        if known.any() and is_whole and rises and not falls:
            return MetricGuess(meant="count", by="its values are whole and never fall")
    return MetricGuess(meant="duration", scale_s=scale_s, by=f"it is not a count; its unit is taken as {by}")


def _unit(name: str) -> tuple[float, str]:
    for endings, scale_s in UNITS:
        if found := next((ending for ending in endings if name.endswith(ending)), None):
            return scale_s, f"{found.removeprefix('_')}, by its name"
    return 1.0, "seconds"


def as_steps(frame: Frame, told: MetricGuess) -> Frame:
    """The step time by run; if a run has several series, that of the slowest."""
    highest = _by_run(frame)
    if told.meant == "count":
        values = [between_readings(frame.times_ns, counts) for counts in highest.values()]
    else:
        values = [durations * told.scale_s for durations in highest.values()]
    return step_frame(tuple(highest), frame.times_ns, values)


def _by_run(frame: Frame) -> dict[str, Floats]:
    """By run: the highest of its series."""
    columns: dict[str, list[int]] = {}
    for column, labels in enumerate(frame.labels):
        columns.setdefault(run_of(frame.metric, labels), []).append(column)
    return {run: np.fmax.reduce(frame.values[:, own], axis=1) for run, own in columns.items()}


def _mean_steps(counts: Frame, sums: Frame, unit_s: float) -> Frame:
    """The mean of the steps between two scrapes, from a histogram or a summary."""
    together = joined(counts, msgspec.structs.replace(sums, metric=counts.metric), is_again=True)
    assert together is not None
    middle = len(counts.subjects)
    index = {_identity(labels): middle + column for column, labels in enumerate(sums.labels)}
    found: dict[str, list[Floats]] = {}
    for column, labels in enumerate(counts.labels):
        other = index.get(_identity(labels))
        if other is not None and other < together.values.shape[1]:
            values = _quotients(together.values[:, other] * unit_s, together.values[:, column])
            found.setdefault(run_of(counts.metric.removesuffix("_count"), labels), []).append(values)
    slowest = [np.fmax.reduce(np.stack(one), axis=0) for one in found.values()]
    return step_frame(tuple(found), counts.times_ns, slowest)


def _identity(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def run_of(metric: str, labels: Labels) -> str:
    """By the labels of schedulers; else by the scrape job; else the metric's own name."""
    return job_of(labels) or labels.get("exported_job") or labels.get("job") or metric


def step_frame(
    runs: tuple[str, ...], times_ns: NDArray[np.int64], values: Iterable[Floats], metric: str = STEP
) -> Frame:
    known = describe(metric)
    return Frame(
        metric=metric,
        kind=known.kind,
        meaning=known.meaning,
        subjects=runs,
        labels=tuple({"run": run} for run in runs),
        times_ns=times_ns,
        values=np.stack([*values], axis=1),
    )


def between_counts(times_ns: NDArray[np.int64], counts: Floats) -> Floats:
    """The mean time of the steps since the count last rose; while it stands, that of the last ones. times_ns:
    when the step of each count was made.

    So a hanging run continues to show its last step, as a run with its own metric does.
    """
    return _quotients(times_ns / SECOND_NS, counts)


def between_readings(times_ns: NDArray[np.int64], counts: Floats) -> Floats:
    """The same if the count is read now and then: a step was made at some moment before the reading that
    shows it. One step that takes as long as a reading might show as two readings or as none, so the mean is
    over more steps. Means begin and end at multiples of these, so they stay the same at each look.
    """
    read_s = times_ns / SECOND_NS
    many = _steps_a_mean(times_ns, counts)
    made_s, made = read_s.copy(), np.array(counts, np.float64)
    known = np.flatnonzero(np.isfinite(counts)).tolist()
    for before, row in itertools.pairwise(known):
        rise, whole = counts[row] - counts[before], counts[row] // many * many
        if rise < 0:
            continue  # The run began again.
        if whole > max(counts[before], made[before]):
            # When that many were made, if all steps since the last reading took equally long.
            share = (whole - counts[before]) / rise
            made_s[row], made[row] = read_s[before] + share * (read_s[row] - read_s[before]), whole
        else:
            made_s[row], made[row] = made_s[before], made[before]
    return _quotients(made_s, made, is_read=True)


def _steps_a_mean(times_ns: NDArray[np.int64], counts: Floats) -> int:
    known = np.flatnonzero(np.isfinite(counts))
    risen = known[1:][np.diff(counts[known]) > 0]
    rises = np.diff(counts[risen])
    if not (rises > 0).any():
        return 1
    apart_ns = float(np.median(np.diff(times_ns[known])))
    usual_ns = float(np.quantile(np.diff(times_ns[risen])[rises > 0] / rises[rises > 0], USUAL_QUANTILE))
    return max(min(STEPS_MAX, int(np.ceil(READINGS_MIN * apart_ns / usual_ns))), int(apart_ns / usual_ns / 2))


def _quotients(amounts: Floats, counts: Floats, *, is_read: bool = False) -> Floats:
    """The amount per count since the count last rose. After a fall nothing is known until the next rise.
    is_read: of a count that was not seen to rise it is not known when it did.
    """
    values = np.full(len(counts), np.nan)
    last: tuple[float, float] | None = None
    shown, mark, has_risen = np.nan, 0.0, not is_read
    for row, (amount, count) in enumerate(zip(amounts.tolist(), counts.tolist(), strict=True)):
        if np.isnan(count) or np.isnan(amount):
            continue
        if last is None or count < last[1] or amount < last[0]:
            last, has_risen = (amount, count), not is_read
        elif count > last[1]:
            if has_risen or count - last[1] >= STEPS_MAX:
                mean = (amount - last[0]) / (count - last[1])
                mark = MARK_SHARE - mark
                shown = mean * (1.0 + mark)
            last, has_risen = (amount, count), True
        values[row] = shown
    return values


def runs_in(source: Source, window_ns: tuple[int, int]) -> frozenset[str]:
    """The runs with a step time in this window."""
    frames = [frame for metric in RUN_METRICS if (frame := source.frame(metric, window_ns)) is not None]
    return frozenset(
        name
        for frame in frames
        for name, is_told in zip(frame.subjects, np.isfinite(frame.values).T.tolist(), strict=True)
        if any(is_told)
    )
