"""Noise of healthy machines, drawn from samples of real ones.

data/h200.csv: NVML at 1 Hz on an H200 (driver 580) that stood idle and trained small models. data/host.csv:
rates of a node_exporter at 5 s on a busy host of two cores. Its CPU pressure is not used: that host was
saturated, which a healthy node is not; how its context switches vary stands in for it.
"""

from functools import cache
from pathlib import Path

import numpy as np

from bench.exam.plant import TICK_S, Array

DATA = Path(__file__).parent / "data"
HOST_SAMPLE_S = 5.0
TRAINING_W = (180.0, 420.0)
"""Of the sample: an H200 in the middle of a training loop, neither idle nor at its limit."""
USUAL_CPU_WAIT = 0.01
SPREAD_MAX = 5.0


@cache
def _columns(name: str) -> dict[str, Array]:
    with (DATA / name).open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        values = np.loadtxt(file, delimiter=",", ndmin=2)
    return dict(zip(names, values.T, strict=True))


@cache
def _training_power_w() -> Array:
    """How power moves about its median from second to second."""
    watts = _columns("h200.csv")["power_w"]
    training = watts[(watts > TRAINING_W[0]) & (watts < TRAINING_W[1])]
    return np.asarray(training - np.median(training))


def idle_power_w() -> float:
    shown = _columns("h200.csv")
    return float(np.median(shown["power_w"][shown["sm_clock_mhz"] < 400]))


def power_w(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Of a GPU that is not held at its limit."""
    return rng.choice(_training_power_w(), shape)


def power_at_limit_w(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """At its limit an H200 stays within watts of it: 689 to 691 W were seen."""
    return np.asarray(rng.normal(-9.0, 3.0, shape))


def clock_mhz(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Of a GPU that is held at its limit: the driver moves the clock in steps of 15 MHz."""
    return np.asarray(rng.normal(0, 25, shape))


def temp_c(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.normal(0, 0.7, shape))


class Hosts:
    """Noise of many hosts over time: each repeats the sample from moments of its own."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        self._rng, self._shape = rng, shape

    def _drawn(self, column: str) -> Array:
        per_tick = round(TICK_S / HOST_SAMPLE_S)
        sample = _columns("host.csv")[column]
        coarse = sample[: len(sample) // per_tick * per_tick].reshape(-1, per_tick).mean(1)
        ticks, hosts = self._shape
        rounds = -(-ticks // len(coarse))
        starts = self._rng.integers(0, len(coarse), (rounds, hosts))
        index = (starts[:, None, :] + np.arange(len(coarse))[None, :, None]) % len(coarse)
        return np.asarray(coarse[index].reshape(-1, hosts)[:ticks])

    def pressure(self, of: str) -> Array:
        if of == "cpu":
            switches = self._drawn("context_switches")
            return np.asarray(USUAL_CPU_WAIT * np.minimum(SPREAD_MAX, switches / np.median(switches)))
        return self._drawn(f"{of}_waiting")

    def disk(self) -> Array:
        return self._drawn("disk_busy")

    def major_faults(self) -> Array:
        return self._drawn("major_faults")

    def relative(self, column: str) -> Array:
        """How a rate varies about its median."""
        drawn = self._drawn(column)
        return np.asarray(np.minimum(SPREAD_MAX, drawn / np.median(drawn)))
