"""Every metric that Holdfast reads: its exact name, what it counts, its unit, and its known traps.

The names are those of dcgm-exporter, AMD's device-metrics-exporter and amd_smi_exporter, node_exporter,
ipmi_exporter, infiniband_exporter, the Redfish schema and its exporters, densewatch, lustre_exporter and
lustrefs-exporter, chrony_exporter, CoreDNS, Slurm's exporters, vLLM, SGLang, NIXL, Dynamo and NCCL's
inspector; Holdfast's own begin with `holdfast_`. Other metrics can be read as well, but nothing is known
about them. The table is catalogue.csv.
"""

import csv
from importlib.resources import files
from typing import Literal

import msgspec

from holdfast.signals.frame import Kind

OfGpus = Literal["gpu", "clock_event", "xid", "amd_smi", "pci"]
OfHosts = Literal["node", "disk", "filesystem", "fan", "netdev", "lustre", "nfs", "decode"]
OfFacilities = Literal["loop", "connector", "supply", "chassis"]
OfNetworks = Literal["port", "switch", "uplink", "resolver"]
OfWork = Literal["slurm", "run", "member", "worker", "pair"]
Scope = Literal[OfGpus, OfHosts, OfFacilities, OfNetworks, OfWork]
"""What a metric has a series for; `naming` derives the subject's name from the labels accordingly."""
WrongUnit = Literal["ns-or-us", "fahrenheit", "watts", "four-byte-words", "counter-or-rate", "rpm-or-percent"]
Trap = Literal[WrongUnit, "saturates", "words", "never-clears", "idles-low"]
"""What is known to go wrong with a metric in the field.

ns-or-us: exporters disagree on the unit. saturates: stops at its width. fahrenheit, watts: some sensors use
that unit in spite of the name. words: text in place of a number. never-clears: shows the last error for ever.
four-byte-words: the kernel's own counter is a quarter of node_exporter's value. counter-or-rate: depending on
the version, a growing total or a rate per second. rpm-or-percent: depends on the machine; a label may tell.
idles-low: low while there is no work, to save power.
"""
COUNTER_SUFFIXES = ("_total", "_count", "_sum", "_bucket")


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. low, high: the physical limits; None: no limit.

    sensed: a sensor's reading of the world, which never stands quite still.
    """

    name: str
    kind: Kind
    unit: str
    scope: Scope
    meaning: str
    trap: Trap | None = None
    low: float | None = None
    high: float | None = None
    sensed: bool = False


_BOUNDS_BY_UNIT: dict[str, tuple[float, float]] = {
    "%": (-5, 105),
    "share": (-0.05, 1.05),
    **dict.fromkeys(("MHz", "W", "kW"), (0, 5_000)),
    "L/min": (0, 10_000),
    "1/min": (0, 100_000),
    "kPa": (0, 2_000),
    "K": (-20, 80),
    "PCIe lanes": (0, 32),
    "C": (-20, 150),
    **dict.fromkeys(("s", "ms", "us", "MiB"), (0, float("inf"))),
}
"""Limits for gauges, with room for sensor errors. The largest coolant distribution units move less than 5 MW,
and the hottest chip allowed is far below 150 C.
"""


def _metric(row: dict[str, str]) -> Metric:
    """A line of catalogue.csv. Missing bounds are those of the unit."""
    low, high = _BOUNDS_BY_UNIT.get(row["unit"], (None, None)) if row["kind"] == "gauge" else (None, None)
    told = {
        **row,
        "name": row["prefix"] + row["name"],
        "trap": row["trap"] or None,
        "low": row["low"] or low,
        "high": row["high"] or high,
        "sensed": bool(row["sensed"]),
    }
    return msgspec.convert(told, Metric, strict=False)


_ROWS = [*csv.DictReader(files("holdfast.signals").joinpath("catalogue.csv").read_text("utf-8").splitlines())]
CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in map(_metric, _ROWS)}
_PREFIXES = dict.fromkeys(
    (row["prefix"], CATALOGUE[row["prefix"] + row["name"]].scope) for row in _ROWS if row["prefix"]
)
"""The prefixes that identify other metrics of an exporter, and what those have a series for."""


def describe(name: str) -> Metric:
    """What is known about a metric; for one outside the catalogue, what its name tells."""
    known = CATALOGUE.get(name)
    if known is not None:
        return known
    kind: Kind = "counter" if name.endswith(COUNTER_SUFFIXES) else "gauge"
    scopes = [scope for prefix, scope in _PREFIXES if name.startswith(prefix)]
    return Metric(name=name, kind=kind, unit="", scope=scopes[0] if scopes else "node", meaning="")
