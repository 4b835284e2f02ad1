"""Every metric of the twin: what it reads and how its sensor behaves.

Sensors that are not exact are in sensors.toml. All names are from `signals.catalogue`, which has kind, scope
and meaning.
"""

from importlib.resources import files

import msgspec

from holdfast.drills.readings import READS, Read
from holdfast.signals.catalogue import CATALOGUE as KNOWN
from holdfast.signals.catalogue import Metric as Known
from holdfast.signals.catalogue import Trap


class Sensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the true value becomes a reading.

    noise    of each reading, in the metric's unit
    spread   of the sensors among each other, relative
    quantum  readings are multiples of this; 0: they are not rounded
    sticks   now and then such a sensor shows one value for ever
    start    upper bound of a counter's random value at the start
    """

    noise: float = 0.0
    spread: float = 0.0
    quantum: float = 0.0
    sticks: bool = False
    start: float = 0.0
    trap: Trap | None = None


class ShownMetric(msgspec.Struct, frozen=True, kw_only=True):
    """known: its entry in the catalogue; read: its value if sensors were perfect."""

    known: Known
    read: Read
    sensor: Sensor


_EXACT = Sensor()
_SENSORS = msgspec.toml.decode(
    files("holdfast.drills").joinpath("sensors.toml").read_bytes(), type=dict[str, Sensor]
)


def _catalogue() -> dict[str, ShownMetric]:
    """Every metric with its sensor. Sensors that sensors.toml does not list are exact."""
    named = {prefix + name: read for prefix, reads in READS.items() for name, read in reads.items()}
    return {
        name: ShownMetric(known=KNOWN[name], read=read, sensor=_SENSORS.get(name, _EXACT))
        for name, read in named.items()
    }


CATALOGUE: dict[str, ShownMetric] = _catalogue()
