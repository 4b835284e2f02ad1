"""Ports of InfiniBand and RoCE adapters, from /sys/class/infiniband, under node_exporter's names and units.

Values that cannot be read, or are not numbers, become readings with a word: a counter that a driver refuses
to show is news too. Counters that stopped at their width are left as they are.
"""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec

from holdfast.record.clock import Clock
from holdfast.record.kernel import pci_address
from holdfast.signals.collectors import Unavailable
from holdfast.signals.frame import Labels, Reading

SYSFS = Path("/sys/class/infiniband")
PREFIX = "node_infiniband_"
DEVICES_MAX = 64
PORTS_MAX = 64
FILE_BYTES_MAX = 256
"""The bytes read of a file: the longest real one is a rate with its name."""
WORD_BYTES = 4
"""The kernel counts data in words of four bytes, whatever the width of the link."""
BYTES_PER_GIGABIT = 125_000_000
MS_PER_SECOND = 1000

FOLDERS = msgspec.toml.decode(
    files("holdfast.signals.collectors").joinpath("infiniband.toml").read_bytes(),
    type=dict[str, dict[str, str]],
)
"""The files of a port's two folders, and node_exporter's names for their counters."""
_STATES = {"state": "state_id", "phys_state": "physical_state_id"}
_IN_WORDS = {"port_rcv_data", "port_xmit_data"}
_INFO = {"board_id": "board_id", "fw_ver": "firmware_version", "hca_type": "hca_type"}

_WHOLE = re.compile(r"\d{1,20}", re.ASCII)
_STATE = re.compile(r"(\d{1,3}): .*", re.ASCII)
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) Gb/sec.*", re.ASCII)


class InfinibandCollector:
    """Every port in a tree like /sys/class/infiniband. host: the machine with the ports."""

    name = "InfiniBand"

    def __init__(self, root: Path, *, clock: Clock, host: str) -> None:
        self._root = root
        self._clock = clock
        self._host = host

    def collect(self) -> list[Reading]:
        at_ns = self._clock.now_ns()
        devices = _folders(self._root, DEVICES_MAX)
        if devices is None:
            raise Unavailable(
                f"{self._root} cannot be read, so no ports are read.",
                hint="Has this machine an InfiniBand or RoCE adapter, and is its driver loaded?",
            )
        return [reading for device in devices for reading in self._device(device, at_ns)]

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def _device(self, device: Path, at_ns: int) -> Iterator[Reading]:
        labels = {"device": device.name, "instance": self._host}
        info = {label: _text(device / file) or "" for file, label in _INFO.items()}
        yield Reading(metric=f"{PREFIX}info", labels={**labels, **info}, at_ns=at_ns, value=1.0)
        for port in _folders(device / "ports", PORTS_MAX) or ():
            yield from _port(port, {**labels, "port": port.name}, at_ns)


def ports_by_address(root: Path) -> dict[str, str]:
    """The names of the adapters, by PCI address: `mlx5_0` behind `0000:41:00.0`."""
    names: dict[str, str] = {}
    for device in _folders(root, DEVICES_MAX) or ():
        try:
            address = pci_address((device / "device").resolve().name)
        except (OSError, RuntimeError):  # the latter for circular links
            continue
        if address:
            names[address] = device.name
    return names


def _port(port: Path, labels: Labels, at_ns: int) -> Iterator[Reading]:
    for file, name in _STATES.items():
        yield _reading(name, labels, at_ns, _text(port / file), _STATE, 1)
    yield _reading("rate_bytes_per_second", labels, at_ns, _text(port / "rate"), _RATE, BYTES_PER_GIGABIT)
    for folder, names in FOLDERS.items():
        for file, name in names.items():
            path = port / folder / file
            # The set of counters depends on the adapter and its driver.
            if path.exists():
                scale = WORD_BYTES if file in _IN_WORDS else 1 / MS_PER_SECOND if file == "lifespan" else 1
                yield _reading(name, labels, at_ns, _text(path), _WHOLE, scale)


def _reading(
    name: str, labels: Labels, at_ns: int, text: str | None, form: "re.Pattern[str]", scale: float
) -> Reading:
    found = form.fullmatch(text) if text is not None else None
    value = float(found[1] if found.lastindex else found[0]) * scale if found else None
    word = "" if found else "unreadable" if text is None else text or "empty"
    return Reading(metric=PREFIX + name, labels=labels, at_ns=at_ns, value=value, word=word)


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _folders(path: Path, count_max: int) -> list[Path] | None:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())[:count_max]
    except OSError:
        return None
