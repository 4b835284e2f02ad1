"""A played scenario as a folder of files: events, signals, topology, and the truth in a file of its own."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from holdfast.drills import openmetrics
from holdfast.drills.scenarios import Played
from holdfast.drills.telemetry import Telemetry
from holdfast.drills.wiring import topology_file
from holdfast.drills.world import cast
from holdfast.record.errors import InputError
from holdfast.record.events import encode
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.frame import Frame

WRITE_EVERY = 3
"""Files have every third scrape: a drill is read by people, and OpenMetrics is wordy."""


def write(played: Played, directory: Path) -> tuple[Path, ...]:
    """Write events, signals and, in a file of its own, the truth. Return the files.

    `holdfast import` reads events.jsonl, `promtool tsdb create-blocks-from openmetrics` signals.om.
    """
    casting = cast(played.layout, with_pools=played.scenario.with_pools)
    samples = (_thinned(played.telemetry.sample(name)) for name in played.telemetry.metrics)
    files: dict[str, Iterator[bytes]] = {
        "events.jsonl": (encode(event) + b"\n" for event in played.events),
        "signals.om": openmetrics.write(samples),
        "redfish.jsonl": _redfish(played.telemetry),
        "topology.yaml": iter([topology_file(casting, played.run).encode()]),
        "truth.json": iter([msgspec.json.format(msgspec.json.encode(played.truth), indent=2) + b"\n"]),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, pieces in files.items():
            with (directory / name).open("wb") as file:
                file.writelines(pieces)
    except OSError as error:
        raise InputError(
            f"The scenario cannot be written to {directory}: {error.strerror}.",
            hint="Name a directory that you may write to, on a disk with room.",
        ) from None
    return tuple(directory / name for name in files)


def _thinned(samples: Frame) -> Frame:
    return msgspec.structs.replace(
        samples, times_ns=samples.times_ns[::WRITE_EVERY], values=samples.values[::WRITE_EVERY], words=()
    )


def _redfish(telemetry: Telemetry) -> Iterator[bytes]:
    """The readings of every coolant connector, as Redfish gives them: numbers, and words in their place."""
    names = [name for name in telemetry.metrics if CATALOGUE[name].scope == "connector"]
    readings = {name: telemetry.sample(name) for name in names}
    words = {(name, word.time, word.series): word.text for name in names for word in readings[name].words}
    any_one = readings[names[0]]
    for time, at_ns in enumerate(any_one.times_ns.tolist()):
        for index, labels in enumerate(any_one.labels):
            values: dict[str, float | str] = {}
            for name in names:
                value = float(readings[name].values[time, index])
                if (word := words.get((name, time, index))) is not None:
                    values[name] = word
                elif np.isfinite(value):
                    values[name] = round(value, 2)
            yield msgspec.json.encode({"time_ns": at_ns, **labels, **values}) + b"\n"
