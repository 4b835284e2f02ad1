"""Prometheus, from labels as dcgm-exporter, node_exporter, infiniband_exporter and densewatch give them."""

from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.signals.catalogue import describe
from holdfast.signals.naming import subject_of
from holdfast.topology.assemble import assemble
from holdfast.topology.discovery import prometheus
from holdfast.topology.names import gpu_name, port_name

GPU = {
    "__name__": "DCGM_FI_DEV_GPU_TEMP",
    "gpu": "3",
    "UUID": "GPU-5fd4f087-86f3-7a43-b711-4771313afc50",
    "pci_bus_id": "00000000:61:00.0",
    "device": "nvidia3",
    "modelName": "NVIDIA H100 80GB HBM3",
    "Hostname": "node01",
    "DCGM_FI_DRIVER_VERSION": "535.104.05",
    "instance": "node01:9400",
    "job": "dcgm",
}
PORT = {"__name__": "node_infiniband_state_id", "device": "mlx5_0", "port": "1", "instance": "node01:9100"}
MOUNT = {
    "__name__": "node_mountstats_nfs_operations_requests_total",
    "export": "192.168.1.1:/srv",
    "mountaddr": "192.168.1.1",
    "operation": "READ",
    "protocol": "tcp",
    "instance": "node01:9100",
}
RACK = {"__name__": "densewatch_topology_info", "Hostname": "node01", "rack": "rack-A1", "cdu": "1"}


def uplink(text: str) -> dict[str, str]:
    """Labels as an exporter writes them."""
    name, _, rest = text.partition("{")
    pairs = (pair.partition("=") for pair in rest.removesuffix("} 1").split('",'))
    return {"__name__": name, **{key: value.strip('"') for key, _, value in pairs}}


UPLINKS = [
    uplink(text)
    for text in (
        'infiniband_switch_uplink_info{guid="0x506b4b03005c2740",port="35",switch="ib-i4l1s01",'
        'uplink="p0001 HCA-1",uplink_guid="0x506b4b0300cc02a6",uplink_lid="1432",uplink_port="1",'
        'uplink_type="CA"} 1',
        'infiniband_switch_uplink_info{guid="0x7cfe9003009ce5b0",port="1",switch="ib-i1l1s01",'
        'uplink="ib-i1l2s01",uplink_guid="0x7cfe900300b07320",uplink_lid="1516",uplink_port="1",'
        'uplink_type="SW"} 1',
        'infiniband_switch_uplink_info{guid="0x7cfe9003009ce5b0",port="10",switch="ib-i1l1s01",'
        'uplink="o0001 HCA-1",uplink_guid="0x7cfe9003003b4bde",uplink_lid="134",uplink_port="1",'
        'uplink_type="CA"} 1',
        'infiniband_hca_uplink_info{guid="0x7cfe9003003b4b96",hca="o0002 HCA-1",port="1",'
        'uplink="ib-i1l1s01",uplink_guid="0x7cfe9003009ce5b0",uplink_lid="1719",uplink_port="11",'
        'uplink_type="SW"} 1',
    )
]
"""As infiniband_exporter's own tests expect them (tests/data/ORIGINS.md)."""


def test_gpus_ports_mounts_and_racks_are_found() -> None:
    topology = assemble(
        prometheus.survey([GPU, {**GPU, "gpu": "10"}, PORT, {**PORT, "port": "2"}, MOUNT, RACK])
    )
    assert topology.names("gpu") == ("node01.3", "node01.10")
    assert topology.names("port") == ("node01/mlx5_0", "node01/mlx5_0/2")
    assert topology.path("1", "node01.3") == ("1", "rack-A1", "node01", "node01.3")
    assert topology.names("mount") == ("192.168.1.1",)
    assert topology.names("loop") == ("1",)


def test_a_job_label_makes_a_run() -> None:
    topology = assemble(prometheus.survey([{**GPU, "hpc_job": "4711"}, MOUNT, PORT]))
    assert topology.names("run") == ("4711",)
    assert {*topology.dependencies("4711/node01")} == {"node01.3", "node01/mlx5_0", "192.168.1.1"}


def test_a_host_is_told_by_either_label_or_by_the_instance() -> None:
    bare = {key: value for key, value in GPU.items() if key != "Hostname"}
    assert prometheus.survey([{**bare, "hostname": "node02"}]).gpus == {"node02": ("3",)}
    assert prometheus.survey([bare]).gpus == {"node01": ("3",)}
    assert prometheus.survey([{**bare, "instance": "https://node03:9400/metrics"}]).gpus == {"node03": ("3",)}


def test_subjects_are_called_as_signals_call_them() -> None:
    labels = {"hostname": "n1", "instance": "10.0.0.1:9100"}
    series = [{**GPU, **labels, "Hostname": "", "gpu": "GPU07"}, {**PORT, **labels, "port": "2"}]
    found = prometheus.survey(series)
    named = [subject_of(describe(one["__name__"]), one) for one in series]
    assert named == [gpu_name("n1", *found.gpus["n1"]), port_name("n1", *found.ports["n1"])]


def test_cables_make_a_tree_of_switches() -> None:
    topology = assemble(prometheus.survey(UPLINKS))
    assert topology.names("leaf") == ("ib-i1l1s01", "ib-i4l1s01")
    assert topology.names("spine") == ("ib-i1l2s01",)
    assert topology.dependencies("o0001") == topology.dependencies("o0002") == ("ib-i1l1s01",)
    assert topology.dependencies("ib-i1l1s01") == ("ib-i1l2s01",)


def test_a_cable_is_the_same_from_either_end_and_tiers_follow_from_distance() -> None:
    name = "infiniband_switch_uplink_info"
    cables = [("leaf", "spine"), ("spine", "leaf"), ("core", "spine"), ("spine", "core")]
    series = [
        {"__name__": name, "switch": one, "uplink": other, "uplink_type": "SW"} for one, other in cables
    ]
    series.append({"__name__": name, "switch": "leaf", "uplink": "n1 mlx5_0", "uplink_type": "CA"})
    topology = assemble(prometheus.survey(series))
    assert topology.path("core", "n1/mlx5_0") == ("core", "spine", "leaf", "n1/mlx5_0")
    assert (topology.kind("core"), topology.kind("leaf")) == ("spine", "leaf")


names = st.sampled_from(
    [GPU["__name__"], PORT["__name__"], MOUNT["__name__"], RACK["__name__"], "x_uplink_info"]
)
keys = st.sampled_from(
    [*GPU, *PORT, *MOUNT, *RACK, "hostname", "hpc_job", "switch", "hca", "uplink", "uplink_type"]
)


@given(
    st.lists(st.tuples(names, st.dictionaries(keys, st.sampled_from(["", "a", "b:1", "SW", "CA", "c d"]))))
)
@settings(max_examples=examples(200), deadline=None)
def test_any_labels_are_survived(series: list[tuple[str, dict[str, str]]]) -> None:
    prometheus.survey([{**labels, "__name__": name} for name, labels in series])
