"""Which exporter shows a metric, and how to switch it on: for `holdfast doctor`. The table is exporters.toml.

Which collectors of node_exporter and which counters of dcgm-exporter are on by default is as of node_exporter
1.10 (its README) and dcgm-exporter 4.5 (its etc/default-counters.csv).
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files

import msgspec

from holdfast.signals.catalogue import describe


class Exporter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """prefixes: of its metrics; start: how to run it."""

    name: str
    prefixes: tuple[str, ...]
    start: str

    def shows(self, metric: str) -> bool:
        return metric.startswith(self.prefixes)


class _Collector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prefix: str
    name: str
    flag: str = ""
    needs: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exporters: tuple[Exporter, ...]
    collectors: tuple[_Collector, ...]


_FILE = msgspec.toml.decode(files("holdfast.signals").joinpath("exporters.toml").read_bytes(), type=_File)
EXPORTERS = _FILE.exporters
_BY_NAME = {one.name: one for one in EXPORTERS}
DCGM, NODE, RUN, ENGINES = (
    _BY_NAME[name] for name in ("dcgm-exporter", "node_exporter", "holdfast run", "the serving engines")
)
AMD = _BY_NAME["AMD's device-metrics-exporter"]
OTHER_RUNS = "For any other run, name its step metric with --step-metric, or its log with --step-log."
UNKNOWN = Exporter(name="another exporter", prefixes=("",), start="Scrape the exporter that shows it.")


def exporter_of(metric: str) -> Exporter:
    return next((one for one in EXPORTERS if one.shows(metric)), UNKNOWN)


def switching_on(exporter: Exporter, metrics: Sequence[str], *, is_there: bool) -> tuple[str, ...]:
    """The lines that tell how to get these metrics. is_there: whether the exporter shows anything at all."""
    if exporter is DCGM:
        return tuple(_counters(metrics, is_there=is_there))
    if exporter is NODE and is_there:
        return tuple(dict.fromkeys(_collectors(metrics)))
    if exporter is RUN and "holdfast_run_step_seconds" in metrics:
        return exporter.start, OTHER_RUNS
    return (exporter.start,)


def switched_on(exporter: str, metrics: Iterable[str], *, is_there: bool) -> tuple[str, ...]:
    """Those that these lines surely bring: a collector that is on and shows nothing lacks its devices."""
    if exporter != NODE.name or not is_there:
        return tuple(metrics)
    return tuple(one for one in metrics if (found := _collector(one)) is not None and found.flag)


def _counters(metrics: Iterable[str], *, is_there: bool) -> Iterator[str]:
    """The lines for its counters file: a field, its type and a text without commas."""
    if not is_there:
        yield DCGM.start
    yield "Add to its counters file (`dcgm-exporter -f FILE`):"
    for metric in metrics:
        known = describe(metric)
        yield f"  {metric}, {known.kind}, {known.meaning.replace(',', ';')}"


def _collector(metric: str) -> _Collector | None:
    return next((one for one in _FILE.collectors if metric.startswith(one.prefix)), None)


def _collectors(metrics: Iterable[str]) -> Iterator[str]:
    for metric in metrics:
        found = _collector(metric)
        if found is None:
            yield f"A newer node_exporter shows {metric}."
        elif found.flag:
            yield f"Start it with {found.flag}."
        else:
            needs = f"; it needs {found.needs}" if found.needs else ""
            yield f"Its collector {found.name} is on by default: look for --no-collector.{found.name}{needs}."
