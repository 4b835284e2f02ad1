"""Every metric the twin can show: what it reads and how its sensor behaves.

Sensors that are not exact are in sensors.toml. The names are those of `signals.catalogue`, where kind, scope
and meaning are; no others may be used.
"""

from importlib.resources import files

import msgspec

from holdfast.drills.readings import READS, Read
from holdfast.signals.catalogue import CATALOGUE as KNOWN
from holdfast.signals.catalogue import Metric as Known
from holdfast.signals.catalogue import Trap


class Sensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How truth becomes a reading.

    noise    of each reading, in the metric's unit
    spread   of the sensors among each other, relative
    quantum  readings are multiples of this; 0: they are not rounded
    sticks   now and then such a sensor shows one value for ever
    start    a counter is anywhere up to this when the looking begins
    """

    noise: float = 0.0
    spread: float = 0.0
    quantum: float = 0.0
    sticks: bool = False
    start: float = 0.0
    trap: Trap | None = None


class ShownMetric(msgspec.Struct, frozen=True, kw_only=True):
    """known: what everybody knows of it; read: what it would show if sensors were perfect."""

    known: Known
    read: Read
    sensor: Sensor


_EXACT = Sensor()
_SENSORS = msgspec.toml.decode(
    files("holdfast.drills").joinpath("sensors.toml").read_bytes(), type=dict[str, Sensor]
)


def _catalogue() -> dict[str, ShownMetric]:
    """Each with its sensor. Counts that nothing is said of are exact."""
    named = {prefix + name: read for prefix, reads in READS.items() for name, read in reads.items()}
    return {
        name: ShownMetric(known=KNOWN[name], read=read, sensor=_SENSORS.get(name, _EXACT))
        for name, read in named.items()
    }


CATALOGUE: dict[str, ShownMetric] = _catalogue()
