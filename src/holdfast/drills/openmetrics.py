"""Frames as OpenMetrics text with timestamps, for `promtool tsdb create-blocks-from openmetrics`.

Redfish's readings are left out: the format allows neither their names nor their words.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.frame import Frame

_SUFFIX = "_total"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
SERIES_PER_CHUNK = 64


def write(samples: Iterable[Frame]) -> Iterator[bytes]:
    """The text, piece by piece: metric by metric, series by series, each in the order of time."""
    for one in samples:
        if CATALOGUE[one.metric].scope != "connector":
            yield _head(one)
            yield from _lines(one)
    yield b"# EOF\n"


def _head(samples: Frame) -> bytes:
    """HELP and TYPE. Only names that end in _total may have the type counter; other counters are unknown."""
    family, kind = samples.metric, samples.kind
    if kind == "counter":
        kind_told = "counter" if family.endswith(_SUFFIX) else "unknown"
        family = family.removesuffix(_SUFFIX)
    else:
        kind_told = kind
    return f"# HELP {family} {samples.meaning}\n# TYPE {family} {kind_told}\n".encode()


def _lines(samples: Frame) -> Iterator[bytes]:
    stamps = [f"{at_ns / 1e9:.3f}\n" for at_ns in samples.times_ns.tolist()]
    digits = ".7g" if samples.values.dtype == np.float32 else ".17g"
    lines: list[str] = []
    for index, labels in enumerate(samples.labels):
        inner = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items())
        start = f"{samples.metric}{{{inner}}}" if inner else samples.metric
        column = samples.values[:, index]
        numbers = np.flatnonzero(np.isfinite(column))
        readings = zip(numbers.tolist(), column[numbers].tolist(), strict=True)
        lines.extend(f"{start} {value:{digits}} {stamps[time]}" for time, value in readings)
        if index % SERIES_PER_CHUNK == SERIES_PER_CHUNK - 1:
            yield "".join(lines).encode()
            lines.clear()
    yield "".join(lines).encode()
