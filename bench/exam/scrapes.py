"""How samples are taken: each target at a moment of its own, with misses and restarts; and the files they
fill.

The files are those of `holdfast.signals.store`, written column by column because a case has millions of
samples; tests/bench holds that reading them gives the same as `Store.append`.
"""

import os
import uuid
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import duckdb
import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.exam.plan import LEVELS, Level
from bench.exam.plant import TICK_S, Array

CHUNK_S = 3_600.0
MISSED_SHARE = 0.004
Labels = dict[str, str]
Ints = NDArray[np.int64]


class Scrape:
    """One job of Prometheus: when each of its targets was scraped, and when it did not answer."""

    def __init__(
        self,
        rng: np.random.Generator,
        targets: int,
        interval_s: float,
        horizon_s: float,
        *,
        restarts: int = 0,
    ) -> None:
        count = int(horizon_s / interval_s)
        moments = rng.uniform(0, interval_s, targets)
        jitter = rng.normal(0, 0.004, (count, targets)).clip(-0.05, 0.05)
        self.interval_s = interval_s
        self.times_s = np.arange(count)[:, None] * interval_s + moments + np.abs(jitter)
        self.ok = rng.random((count, targets)) > MISSED_SHARE
        self.restart_at = np.full(targets, np.inf)
        for target in rng.choice(targets, min(restarts, targets), replace=False):
            first = int(rng.integers(count // 8, max(count // 8 + 1, count - 8)))
            self.ok[first : first + int(rng.integers(2, 5)), target] = False
            self.restart_at[target] = self.times_s[first, target]

    def silence(self, target: int, begin_s: float, end_s: float = np.inf) -> None:
        self.ok[:, target] &= ~((self.times_s[:, target] >= begin_s) & (self.times_s[:, target] < end_s))


class Samples:
    """All series of a case, by level."""

    def __init__(self, begin_ns: int, ticks: Array) -> None:
        self.begin_ns, self.ticks = begin_ns, ticks
        self._rows: dict[Level, list[tuple[str, Sequence[Labels], Array, Array, NDArray[np.bool_]]]] = {
            level: [] for level in LEVELS
        }

    def gauge(
        self,
        level: Level,
        metric: str,
        scrape: Scrape,
        of: Sequence[int],
        labels: Sequence[Labels],
        values: Array,
    ) -> None:
        """values: scrape by series. of: which target each series belongs to."""
        times, ok = scrape.times_s[:, of], scrape.ok[:, of] & ~np.isnan(values)
        self._rows[level].append((metric, labels, times, values, ok))

    def counter(
        self,
        level: Level,
        metric: str,
        scrape: Scrape,
        of: Sequence[int],
        labels: Sequence[Labels],
        *,
        rates: Array,
        start: float | Array = 0.0,
        whole: bool = False,
    ) -> None:
        """rates: tick by series, a second. A target that restarts counts from zero again."""
        times = scrape.times_s[:, of]
        summed = np.vstack([np.zeros(rates.shape[1]), np.cumsum(rates * TICK_S, 0)])
        values = _between(summed, times) + start
        at = scrape.restart_at[list(of)]
        if np.isfinite(at).any():
            origin = _between(summed, np.where(np.isfinite(at), at, 0.0)[None, :])[0] + start
            values = np.where(times >= at, values - origin, values)
        self.gauge(level, metric, scrape, of, labels, np.floor(values) if whole else values)

    def at(self, scrape: Scrape, of: Sequence[int], array: Array) -> Array:
        """What an array over ticks holds at the moments of scraping, column by series."""
        times = scrape.times_s[:, of]
        index = np.minimum((times / TICK_S).astype(np.int64), len(array) - 1)
        return np.asarray(np.take_along_axis(array, index, 0))

    def write(self, folder: Path) -> dict[Level, Path]:
        """A directory for each level; a richer one has all of the poorer ones' files."""
        places = {level: folder / f"signals-{level}" for level in LEVELS}
        for place in places.values():
            place.mkdir(mode=0o700)
        engine = duckdb.connect()
        engine.execute("SET threads = 1; SET preserve_insertion_order = true")
        for level in LEVELS:
            for path in self._write_level(engine, level, places[level]):
                for richer in LEVELS[: LEVELS.index(level)]:
                    os.link(path, places[richer] / path.name)
        engine.close()
        return places

    def _write_level(self, engine: duckdb.DuckDBPyConnection, level: Level, place: Path) -> list[Path]:
        if not self._rows[level]:
            return []
        metrics, texts, keys, counts, moments, values = [], [], [], [], [], []
        for metric, labels, times, numbers, ok in sorted(self._rows[level], key=lambda row: row[0]):
            for column, one in enumerate(labels):
                kept = ok[:, column]
                text = msgspec.json.encode(one, order="sorted").decode()
                metrics.append(metric)
                texts.append(text)
                keys.append(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))
                counts.append(int(kept.sum()))
                moments.append(times[kept, column])
                values.append(numbers[kept, column])
        at_ns = self.begin_ns + np.rint(np.concatenate(moments) * 1e9).astype(np.int64)
        dimension = {
            "number": np.arange(len(keys), dtype=np.int32),
            "metric": np.array(metrics, object),
            "series": np.array(keys, np.uint64),
            "labels": np.array(texts, object),
        }
        facts = {
            "number": np.repeat(dimension["number"], counts),
            "at_ns": at_ns,
            "value": np.concatenate(values),
        }
        engine.register("dimension", dimension)
        paths = []
        chunk = ((at_ns - self.begin_ns) / 1e9 // CHUNK_S).astype(np.int64)
        for index in np.unique(chunk):
            part = {name: column[chunk == index] for name, column in facts.items()}
            engine.register("facts", part)
            name = f"{part['at_ns'].min()}_{part['at_ns'].max()}_2_{uuid.uuid4().hex}.parquet"
            engine.execute(
                "COPY (SELECT metric, series, labels, at_ns, value, '' AS word FROM facts JOIN dimension"
                f" USING (number)) TO '{(place / name).as_posix()}' (FORMAT parquet)"
            )
            engine.unregister("facts")
            paths.append(place / name)
        engine.unregister("dimension")
        return paths


def _between(summed: Array, times_s: Array) -> Array:
    place = np.clip(times_s / TICK_S, 0, len(summed) - 1.000001)
    low = place.astype(np.int64)
    below, above = np.take_along_axis(summed, low, 0), np.take_along_axis(summed, low + 1, 0)
    return np.asarray(below + (place - low) * (above - below))


def events(rng: np.random.Generator, rates: Array) -> Array:
    """Events a second at a mean rate."""
    return np.asarray(rng.poisson(rates * TICK_S) / TICK_S)
