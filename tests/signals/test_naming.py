"""From labels to subjects, by hand and as the twin names its own."""

import pytest

from holdfast.drills.scenarios import play
from holdfast.signals.catalogue import CATALOGUE, describe
from holdfast.signals.frame import Labels
from holdfast.signals.naming import buses_of, subject_of
from holdfast.topology.names import host_of

GPU = "DCGM_FI_DEV_GPU_TEMP"
PORT = "node_infiniband_state_id"
PCI = "node_pcidevice_current_link_width"
MEMBER = "holdfast_member_compute_seconds"


@pytest.mark.parametrize(
    ("metric", "labels", "subject"),
    [
        (GPU, {"hostname": "n1", "gpu": "3", "instance": "10.0.0.1:9400"}, "n1.3"),
        (GPU, {"Hostname": "n1", "gpu": "3"}, "n1.3"),
        (GPU, {"instance": "n1:9400", "gpu": "3"}, "n1.3"),
        (GPU, {"instance": "n1:9400"}, None),
        (GPU, {"gpu": "3"}, None),
        (
            "redfish_gpu_temperature_tlimit_celsius",
            {"system_id": "n1", "gpu_id": "GPU_3", "instance": "bmc:1"},
            "n1.3",
        ),
        (
            "nccl_bus_bandwidth_gbs",
            {"slurm_job_id": "7", "node": "n1", "gpu": "2", "instance": "x:1"},
            "n1.2",
        ),
        (PORT, {"instance": "n1:9100", "device": "mlx5_3", "port": "1"}, "n1/mlx5_3"),
        (PORT, {"instance": "n1:9100", "device": "mlx5_3", "port": "2"}, "n1/mlx5_3/2"),
        (PORT, {"instance": "n1:9100"}, None),
        ("node_load1", {"instance": "n1:9100"}, "n1"),
        ("densewatch_cdu_coolant_flow_lpm", {"cdu": "cdu-0"}, "cdu-0"),
        (
            "HeatRemovedkW",
            {"@odata.id": "/redfish/v1/ThermalEquipment/CDUs/cdu-1/SecondaryCoolantConnectors/1"},
            "cdu-1",
        ),
        ("HeatRemovedkW", {"@odata.id": "/redfish/v1/Chassis/1"}, None),
        ("redfish_chassis_power_powersupply_health", {"chassis_id": "shelf-0"}, "shelf-0"),
        ("infiniband_switch_port_transmit_wait_total", {"switch": "leaf-1", "port": "3"}, "leaf-1"),
        ("slurm_nodes_alloc", {}, "slurm"),
        ("holdfast_run_step_seconds", {"run": "llama"}, "llama"),
        (MEMBER, {"run": "llama", "member": "n1", "node": "n1"}, "n1"),
        (MEMBER, {"run": "llama", "member": "n1-0", "node": "n1"}, "llama/n1-0"),
        ("holdfast_pool_transfer_seconds", {"source": "n1", "target": "n2"}, "n1>n2"),
        ("holdfast_pool_transfer_seconds", {"source": "n1"}, None),
        ("vllm:kv_cache_usage_perc", {"instance": "n1:8000", "engine": "0"}, "n1"),
        ("dynamo_frontend_worker_last_inter_token_latency_seconds", {"worker_id": "5eed"}, "5eed"),
        (
            "node_infiniband_port_rcv_something_new_total",
            {"instance": "n1:1", "device": "mlx5_0"},
            "n1/mlx5_0",
        ),
    ],
)
def test_labels_name_a_subject(metric: str, labels: Labels, subject: str | None) -> None:
    assert subject_of(describe(metric), labels) == subject


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("n1:9100", "n1"),
        ("n1", "n1"),
        ("n1.cluster.example:9100", "n1.cluster.example"),
        ("[fd00::1]:9100", "fd00::1"),
        ("https://bmc-1:443/redfish", "bmc-1"),
        ("", ""),
        (":9100", ""),
    ],
)
def test_an_instance_has_a_host(instance: str, host: str) -> None:
    assert host_of({"instance": instance}) == host


def test_a_pci_device_is_a_gpu_where_dcgm_says_so() -> None:
    buses = buses_of(
        [
            {"hostname": "n1", "gpu": "4", "pci_bus_id": "00000000:9D:00.0"},
            {"hostname": "n1", "gpu": "5", "pci_bus_id": "unknown"},
        ]
    )
    place = {"instance": "n1:9100", "segment": "0000", "bus": "9d", "device": "00", "function": "0"}
    assert subject_of(CATALOGUE[PCI], place, buses) == "n1.4"
    assert subject_of(CATALOGUE[PCI], {**place, "bus": "9e"}, buses) == "n1"
    assert subject_of(CATALOGUE[PCI], {**place, "instance": "n2:9100"}, buses) == "n2"
    assert subject_of(CATALOGUE[PCI], {"instance": "n2:9100"}, buses) == "n2"


def test_the_twin_gives_its_series_the_same_names() -> None:
    """But Dynamo's workers: a worker's node is known to the twin, and to none of its labels."""
    telemetry = play("pool-link", 1).telemetry
    buses = buses_of(telemetry.sample(GPU).labels)
    for frame in map(telemetry.sample, telemetry.metrics):
        known = CATALOGUE[frame.metric]
        if known.scope != "worker":
            assert tuple(subject_of(known, labels, buses) for labels in frame.labels) == frame.subjects
