"""The latest readings for Prometheus to scrape, in its conventions.

Names that Prometheus does not allow (Redfish's readings, whose path is a label `@odata.id`) appear under
densewatch's. The label `instance` is left out: Prometheus adds its own. An exposition has no place for words.
If a collector fails, or has given nothing for a while, its last readings are left out: they would pass for
new ones.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.registry import Collector as PrometheusCollector

from holdfast.signals.catalogue import CATALOGUE, describe
from holdfast.signals.collectors.redfish import as_densewatch
from holdfast.signals.frame import Reading

UP_METRIC = "holdfast_collector_up"
COUNTER_SUFFIX = "_total"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


class Exposition(PrometheusCollector):
    """The served readings. One thread puts readings in, others serve them.

    fresh_s: after this long without new ones, readings are too old to be served.
    """

    def __init__(self, *, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._readings: dict[str, tuple[float, Sequence[Reading] | None]] = {}

    def put(self, collector: str, readings: Sequence[Reading] | None) -> None:
        """Set a collector's present readings; None if it failed."""
        with self._lock:
            self._readings[collector] = time.monotonic(), readings

    def collect(self) -> Iterator[Metric]:
        oldest_s = time.monotonic() - self._fresh_s
        with self._lock:
            readings = {
                collector: found if at_s >= oldest_s else None
                for collector, (at_s, found) in self._readings.items()
            }
        up = Metric(UP_METRIC, "Whether a collector could read its source.", "gauge")
        for collector, found in readings.items():
            up.add_sample(UP_METRIC, {"collector": collector}, float(found is not None))
        yield up
        yield from families(reading for found in readings.values() for reading in found or ())


def families(readings: Iterable[Reading]) -> Iterator[Metric]:
    """Readings as Prometheus groups them: a metric with its help and type, and all its series."""
    given = list(readings)
    found: dict[str, Metric] = {}
    for reading in [*filter(_has_form, given), *as_densewatch(given)]:
        if reading.value is not None:
            family = found.setdefault(reading.metric, _family(reading.metric))
            labels = {
                name: value
                for name, value in reading.labels.items()
                if name != "instance" and _LABEL.fullmatch(name)
            }
            family.add_sample(reading.metric, labels, reading.value)
    yield from found.values()


def _has_form(reading: Reading) -> bool:
    known = CATALOGUE.get(reading.metric)
    return "@odata.id" not in reading.labels or (known is not None and known.scope == "chassis")


def _family(name: str) -> Metric:
    """Only metrics that end in _total may be counters; for other counters the type is not given."""
    known = describe(name)
    help_text = f"{known.meaning} ({known.unit})" if known.unit else known.meaning
    if known.kind == "counter" and name.endswith(COUNTER_SUFFIX):
        return Metric(name.removesuffix(COUNTER_SUFFIX), help_text, "counter")
    return Metric(name, help_text, "unknown" if known.kind == "counter" else "gauge")
