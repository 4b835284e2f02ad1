"""What a detector is: the signs it gives, the metrics it reads, and how it finds them."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect.finding import Finding
from holdfast.detect.pace import Pace
from holdfast.detect.panel import Panels
from holdfast.detect.scene import Scene
from holdfast.detect.signs import Sign
from holdfast.detect.xids import NO_OVERRIDES, Overrides

NO_HOSTS: Mapping[str, str] = MappingProxyType({})


class Sense(NamedTuple):
    """A sign that needs all of these metrics. Without metrics it is read from the record."""

    sign: Sign
    metrics: tuple[str, ...] = ()


class Look(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What detectors see at one moment. scene: the run under examination, and `pace` its steps if the signals
    show any; both None for machines.

    hosts: the run of each host, if known: GPUs of one run do the same work. mounts: the filers in the
    topology. kept: findings that several looks at one moment share.
    """

    panels: Panels
    scene: Scene | None = None
    pace: Pace | None = None
    xids: Overrides = NO_OVERRIDES
    hosts: Mapping[str, str] = NO_HOSTS
    mounts: frozenset[str] = frozenset()
    kept: dict[str, tuple[Finding, ...]] = {}
    columns: dict[tuple[str, ...], tuple[NDArray[np.int64], ...]] = {}

    def run_of(self, gpu: str) -> str | None:
        return self.hosts.get(gpu.rpartition(".")[0])

    def columns_by_run(self, gpus: tuple[str, ...]) -> tuple[NDArray[np.int64], ...]:
        """The columns of each run's GPUs among these; cached, because many metrics have the same GPUs."""
        if gpus not in self.columns:
            groups: dict[str, list[int]] = {}
            for column, gpu in enumerate(gpus):
                if run := self.run_of(gpu):
                    groups.setdefault(run, []).append(column)
            self.columns[gpus] = tuple(np.array(columns) for columns in groups.values())
        return self.columns[gpus]


class Detector(Protocol):
    """Finds signs. `senses` lists them with the metrics that each needs, from which `measured` follows."""

    @property
    def senses(self) -> tuple[Sense, ...]: ...

    def find(self, look: Look) -> Iterator[Finding]: ...


class FunctionDetector(msgspec.Struct, frozen=True):
    """A detector made of one function."""

    senses: tuple[Sense, ...]
    finds: Callable[[Look], Iterator[Finding]]

    def find(self, look: Look) -> Iterator[Finding]:
        return self.finds(look)
