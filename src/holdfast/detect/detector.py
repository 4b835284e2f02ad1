"""What a detector is: which signs it gives, from which metrics, and how it finds them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panels
from holdfast.detect.scene import Scene
from holdfast.detect.xids import NO_OVERRIDES, Overrides


class Sense(NamedTuple):
    """A sign that is found where all of these metrics are. None: it is read from the record."""

    sign: str
    metrics: tuple[str, ...] = ()


class Look(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What detectors see of one moment. scene: the run that is looked at; None for machines."""

    panels: Panels
    scene: Scene | None = None
    xids: Overrides = NO_OVERRIDES


class Detector(Protocol):
    """Finds signs. `senses` says which and what it reads for each: what is measured follows from that."""

    @property
    def senses(self) -> tuple[Sense, ...]: ...

    def find(self, look: Look) -> Iterator[Finding]: ...


class MachineDetector(msgspec.Struct, frozen=True):
    """A detector that is one function over the readings of machines."""

    senses: tuple[Sense, ...]
    finds: Callable[[Look], Iterator[Finding]]

    def find(self, look: Look) -> Iterator[Finding]:
        return self.finds(look)


class RunDetector(msgspec.Struct, frozen=True):
    """A detector that is one function over one run."""

    senses: tuple[Sense, ...]
    finds: Callable[[Panels, Scene], Iterator[Finding]]

    def find(self, look: Look) -> Iterator[Finding]:
        return iter(()) if look.scene is None else self.finds(look.panels, look.scene)
