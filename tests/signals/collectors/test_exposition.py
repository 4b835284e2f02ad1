"""What Prometheus is served: valid, typed, explained, and nothing that is no longer true."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.record.clock import ManualClock
from holdfast.signals.collectors.exposition import Exposition
from holdfast.signals.collectors.infiniband import InfinibandCollector
from holdfast.signals.collectors.redfish import RedfishCollector
from holdfast.signals.collectors.redfish_service import Service
from holdfast.signals.frame import Reading


@pytest.fixture
def exposition() -> Exposition:
    return Exposition(fresh_s=60)


def served(exposition: Exposition) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exposition)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[str, float]:
    """By name and labels, as a client of Prometheus reads them."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_ports_look_as_if_node_exporter_served_them(exposition: Exposition, data: Path) -> None:
    root = data / "sysfs-infiniband-h100"
    exposition.put("ports", InfinibandCollector(root, clock=ManualClock(), host="n17").collect())
    text = served(exposition)
    theirs = (data / "node-exporter-infiniband.txt").read_text(encoding="utf-8")
    ours = samples(text)
    assert {series: ours[series] for series in samples(theirs)} == samples(theirs)
    assert "# TYPE node_infiniband_symbol_error_total counter" in text
    assert "# HELP node_infiniband_rate_bytes_per_second Rate the link was trained to. (B/s)" in text
    assert "instance=" not in text


def test_cooling_is_served_under_densewatchs_names(exposition: Exposition, cdu_service: str) -> None:
    collector = RedfishCollector(Service(url=cdu_service), clock=ManualClock())
    exposition.put("cooling", collector.collect())
    collector.close()
    text = served(exposition)
    assert 'densewatch_cdu_coolant_flow_lpm{cdu="cdu-0000",protocol="redfish"} 42.0' in text
    assert "FlowLitersPerMinute" not in text
    assert "odata" not in text
    assert "redfish_chassis_power_powersupply_health{" in text
    assert "redfish_chassis_leak_detector_health{" in text


def test_a_counter_without_the_suffix_is_not_called_one(exposition: Exposition) -> None:
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    exposition.put("gpus", [Reading(metric=name, labels={"gpu": "0"}, at_ns=1, value=5.0)])
    text = served(exposition)
    assert f"# TYPE {name} untyped" in text
    assert f'{name}{{gpu="0"}} 5.0' in text


def test_words_are_not_served(exposition: Exposition) -> None:
    labels = {"device": "mlx5_0", "port": "1"}
    metric = "node_infiniband_symbol_error_total"
    exposition.put("ports", [Reading(metric=metric, labels=labels, at_ns=1, value=None, word="N/A")])
    assert metric not in served(exposition)


def test_a_collector_that_fails_has_no_readings_left(exposition: Exposition) -> None:
    reading = Reading(metric="slurm_nodes_idle", labels={}, at_ns=1, value=2.0)
    exposition.put("Slurm", [reading])
    assert samples(served(exposition)) == {
        "holdfast_collector_up[('collector', 'Slurm')]": 1.0,
        "slurm_nodes_idle[]": 2.0,
    }
    exposition.put("Slurm", None)
    assert samples(served(exposition)) == {"holdfast_collector_up[('collector', 'Slurm')]": 0.0}
