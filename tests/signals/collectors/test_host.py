"""This machine as the collector shows it, held against a real node exporter on the same machine."""

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.record.clock import ManualClock
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.host import HostCollector
from holdfast.signals.frame import Reading

DISKS = """\
 259 0 nvme0n1 10 0 16 500 20 0 32 700 0 900 1200 0 0
   7 0 loop0 1 0 0 0 0 0 0 0 0 0 0

"""

Key = tuple[str, frozenset[tuple[str, str]]]


def collected(**where: Path) -> dict[Key, float]:
    readings = HostCollector(clock=ManualClock(7), host="n17", **where).collect()
    assert {reading.at_ns for reading in readings} == {7}
    assert {reading.labels["instance"] for reading in readings} == {"n17"}
    return {_key(reading): reading.value for reading in readings if reading.value is not None}


def _key(reading: Reading) -> Key:
    return reading.metric, frozenset(pair for pair in reading.labels.items() if pair[0] != "instance")


def test_names_and_labels_are_those_of_the_exporter(node_exporter: str) -> None:
    with urllib.request.urlopen(f"http://{node_exporter}/metrics", timeout=30) as page:
        families = text_string_to_metric_families(page.read().decode())
    shown: dict[Key, float] = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    # What newer versions have, and sensors, whose chips it names by where they sit.
    found = {
        key: value
        for key, value in collected().items()
        if key[0] in {name for name, _ in shown}
        and key[0] not in ("node_uname_info", "node_hwmon_temp_celsius")
    }
    assert len({name for name, _ in found}) > 10
    sized = {key for key in found if key[0].startswith("node_filesystem_")}
    assert found.keys() - sized <= shown.keys()
    for key in found.keys() - sized:
        if key[0] in ("node_memory_MemTotal_bytes", "node_memory_SwapTotal_bytes"):
            assert found[key] == shown[key]
        elif key[0].endswith("_total"):
            assert found[key] >= 0.99 * shown[key] - 1


def test_a_kernels_files_are_read_in_the_exporters_units(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    files = {
        proc
        / "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0 total=250000\n",
        proc / "pressure/cpu": "some avg10=0.00 total=3000000\nfull avg10=0.00 total=0\n",
        proc / "vmstat": "nr_free_pages 1\npswpin 4\npswpout 5\noom_kill 1\n",
        proc / "meminfo": "MemTotal:       16 kB\nMemAvailable:    8 kB\n",
        proc / "diskstats": DISKS,
        sys / "class/hwmon/hwmon0/name": "nct6779\n",
        sys / "class/hwmon/hwmon0/fan2_input": "1098\n",
        sys / "class/hwmon/hwmon0/temp1_input": "-5500\n",
        sys / "class/hwmon/hwmon0/in0_input": "1\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = collected(proc=proc, sys=sys)
    assert {name for name, _ in found} <= CATALOGUE.keys()
    nvme, chip = ("device", "nvme0n1"), ("chip", "nct6779")

    def shown(name: str, *labels: tuple[str, str]) -> float | None:
        return found.get((f"node_{name}", frozenset(labels)))

    assert shown("pressure_io_waiting_seconds_total") == 1.5
    assert shown("pressure_io_stalled_seconds_total") == 0.25
    assert shown("pressure_cpu_waiting_seconds_total") == 3.0
    assert shown("pressure_cpu_stalled_seconds_total") is None
    assert (shown("vmstat_pswpin"), shown("vmstat_oom_kill")) == (4.0, 1.0)
    assert shown("memory_MemAvailable_bytes") == 8192
    assert shown("disk_read_bytes_total", nvme) == 16 * 512
    assert shown("disk_write_time_seconds_total", nvme) == pytest.approx(0.7)
    assert shown("disk_io_time_seconds_total", nvme) == pytest.approx(0.9)
    assert shown("disk_io_time_seconds_total", ("device", "loop0")) is None
    assert shown("hwmon_fan_rpm", chip, ("sensor", "fan2")) == 1098
    assert shown("hwmon_temp_celsius", chip, ("sensor", "temp1")) == -5.5


def test_a_machine_that_shows_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Nothing can be read"):
        collected(proc=tmp_path, sys=tmp_path)
