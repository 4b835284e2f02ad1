"""Ports in /sys/class/infiniband: a real tree, held against node_exporter, and damaged ones."""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.clock import ManualClock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.infiniband import FOLDERS, InfinibandCollector, ports_by_address
from holdfast.signals.frame import Reading


def read(root: Path) -> list[Reading]:
    return InfinibandCollector(root, clock=ManualClock(7), host="n17").collect()


def by_series(readings: list[Reading]) -> dict[tuple[str, str, str], Reading]:
    return {
        (reading.metric, reading.labels["device"], reading.labels.get("port", "")): reading
        for reading in readings
    }


@pytest.fixture
def tree(data: Path, tmp_path: Path) -> Path:
    shutil.copytree(data / "sysfs-infiniband-h100", tmp_path / "infiniband")
    return tmp_path / "infiniband"


def test_every_file_of_a_real_tree_is_read(data: Path) -> None:
    root = data / "sysfs-infiniband-h100"
    readings = read(root)
    counters = [path for folder in FOLDERS for path in root.glob(f"*/ports/*/{folder}/*")]
    ports, devices = 2, 2
    assert len(counters) == 94
    assert len(readings) == len(counters) + 3 * ports + devices
    assert len(by_series(readings)) == len(readings)
    assert all(reading.value is not None and not reading.word for reading in readings)
    assert {reading.at_ns for reading in readings} == {7}


def test_names_and_values_are_node_exporters(data: Path) -> None:
    """Held against what node_exporter 1.5 printed for the same tree."""
    theirs = {}
    for line in (data / "node-exporter-infiniband.txt").read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line)
        assert found is not None
        labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
        theirs[found[1], labels["device"], labels.get("port", "")] = (labels, float(found[3]))
    ours = by_series(read(data / "sysfs-infiniband-h100"))
    assert len(theirs) == 50
    for series, (labels, value) in theirs.items():
        assert ours[series].value == value
        assert ours[series].labels == {**labels, "instance": "n17"}


def test_units_are_those_of_the_name(data: Path) -> None:
    ours = by_series(read(data / "sysfs-infiniband-h100"))
    sent = ours["node_infiniband_port_data_transmitted_bytes_total", "mlx5_0", "1"]
    assert sent.value == 230442669431839 * 4
    assert ours["node_infiniband_rate_bytes_per_second", "mlx5_0", "1"].value == 400e9 / 8
    assert ours["node_infiniband_lifespan_seconds", "mlx5_0", "1"].value == 0.012
    assert ours["node_infiniband_link_downed_total", "mlx5_1", "1"].value == 255
    assert ours["node_infiniband_roce_adp_retransmits_total", "mlx5_0", "1"].value == 3


def test_a_saturated_counter_is_left_as_it_is(tree: Path) -> None:
    (tree / "mlx5_0/ports/1/counters/port_xmit_wait").write_text("4294967295\n", encoding="utf-8")
    assert by_series(read(tree))["node_infiniband_port_transmit_wait_total", "mlx5_0", "1"].value == 2**32 - 1


@pytest.mark.parametrize(
    ("file", "metric"),
    [
        ("counters/symbol_error", "symbol_error_total"),
        ("hw_counters/lifespan", "lifespan_seconds"),
        ("state", "state_id"),
        ("phys_state", "physical_state_id"),
        ("rate", "rate_bytes_per_second"),
    ],
)
def test_what_is_no_number_becomes_a_word(tree: Path, file: str, metric: str) -> None:
    healthy = len(read(tree))
    path = tree / "mlx5_0/ports/1" / file
    series = (f"node_infiniband_{metric}", "mlx5_0", "1")
    path.write_text("N/A (no PMA)\n", encoding="utf-8")
    reading = by_series(read(tree))[series]
    assert (reading.value, reading.word) == (None, "N/A (no PMA)")
    path.unlink()
    path.mkdir()  # not even root can read it
    readings = read(tree)
    assert (by_series(readings)[series].value, by_series(readings)[series].word) == (None, "unreadable")
    assert len(readings) == healthy


def test_a_machine_without_adapters_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no ports are read"):
        read(tmp_path / "nothing")
    assert read(tmp_path) == []


@settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.sampled_from(["state", "rate", "counters/port_rcv_data", "hw_counters/lifespan", "../../fw_ver"]),
    st.one_of(st.binary(max_size=300), st.text(max_size=60).map(str.encode)),
)
def test_no_content_raises(tree: Path, file: str, content: bytes) -> None:
    (tree / "mlx5_0/ports/1" / file).write_bytes(content)
    for reading in read(tree):
        assert (reading.value is None) == bool(reading.word)


def test_adapters_are_known_by_their_pci_address(tree: Path, tmp_path: Path) -> None:
    place = tmp_path / "devices/pci0000:40/0000:41:00.0"
    place.mkdir(parents=True)
    (tree / "mlx5_0/device").symlink_to(place)
    (tree / "mlx5_1/device").symlink_to("device")  # in a circle
    assert ports_by_address(tree) == {"0000:41:00.0": "mlx5_0"}
    assert ports_by_address(tmp_path / "nothing") == {}
