"""Noise of healthy machines."""

import numpy as np

from bench.exam.plant import Array


def clock_mhz(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.normal(0, 25, shape))


def power_w(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.normal(0, 22, shape))


def temp_c(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.normal(0, 0.7, shape))


class Hosts:
    """Noise of many hosts over time."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        self._rng, self._shape = rng, shape

    def pressure(self, of: str) -> Array:
        scale = {"cpu": 0.01, "io": 0.004, "memory": 1e-5}[of]
        return np.asarray(self._rng.gamma(0.5, scale, self._shape))

    def disk(self) -> Array:
        return np.asarray(self._rng.gamma(0.4, 1.0, self._shape))
