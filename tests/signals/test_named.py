"""Frames under the topology's names, and what is said of machines that the telemetry does not know."""

import numpy as np
import pytest

from holdfast.signals.catalogue import describe
from holdfast.signals.coverage import coverage
from holdfast.signals.frame import Frame, Labels
from holdfast.signals.named import HOSTED, NamedSource, Namer
from holdfast.signals.naming import subject_of
from holdfast.topology.file import read
from holdfast.topology.hosts import Hosts

HOSTS = Hosts(["n1", "n2.example"], [("10.0.0.2", "n2")])


class Source:
    """Of every metric the series with these labels, as a source names them."""

    def __init__(self, *labels: Labels) -> None:
        self._labels = labels

    def metrics(self) -> tuple[str, ...]:
        return ()

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        named = [subject_of(describe(metric), labels) for labels in self._labels]
        return Frame(
            metric=metric,
            kind="gauge",
            subjects=tuple(name for name in named if name),
            labels=self._labels,
            times_ns=np.zeros(1, np.int64),
            values=np.zeros((1, len(named))),
        )


@pytest.mark.parametrize(
    ("metric", "labels", "subject"),
    [
        ("DCGM_FI_DEV_GPU_TEMP", {"hostname": "n1.example", "gpu": "3"}, "n1.3"),
        ("DCGM_FI_DEV_GPU_TEMP", {"instance": "10.0.0.2:9400", "gpu": "3"}, "n2.example.3"),
        ("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "pod-7", "node": "n2", "gpu": "3"}, "n2.example.3"),
        ("DCGM_FI_DEV_GPU_TEMP", {"hostname": "other", "gpu": "3"}, "other.3"),
        ("redfish_gpu_nvlink_symbol_errors", {"system_id": "n2", "gpu_id": "1"}, "n2.example.1"),
        ("node_infiniband_state_id", {"instance": "n2:9100", "device": "mlx5_0"}, "n2.example/mlx5_0"),
        ("node_load1", {"instance": "10.0.0.2:9100"}, "n2.example"),
        ("node_disk_io_time_seconds_total", {"instance": "n2:9100", "device": "nvme0n1"}, "n2.example"),
        ("ipmi_fan_speed_rpm", {"instance": "n2-bmc", "name": "Fan1A"}, "n2.example"),
        ("redfish_chassis_fan_rpm", {"chassis_id": "Self", "instance": "bmc-n1.mgmt:443"}, "n1"),
        ("redfish_chassis_power_powersupply_health", {"chassis_id": "shelf-0", "instance": "n1"}, "shelf-0"),
        ("densewatch_cdu_coolant_flow_lpm", {"cdu": "n2"}, "n2"),
        ("holdfast_run_step_seconds", {"run": "n2"}, "n2"),
    ],
)
def test_subjects_are_called_as_in_the_topology(metric: str, labels: Labels, subject: str) -> None:
    namer = Namer(HOSTS, {"shelf-0"})
    for _ in range(2):  # what is remembered is the same
        named = NamedSource(Source(labels), namer)
        frame = named.frame(metric, (0, 1))
        assert frame is not None
        assert frame.subjects == (subject,)
        assert len(named.hosts) == (describe(metric).scope in HOSTED)


FILE = """
nodes: {"n[1-4]": {gpus: 2}, idle: {gpus: 2}}
runs: {job: {nodes: "n[1-4]"}}
"""


@pytest.mark.parametrize(
    ("hosts", "trust", "says"),
    [
        ((), 1.0, ""),
        (("n1", "n2", "n3", "n4"), 1.0, ""),
        (
            ("n1", "n2", "n3"),
            0.875,
            "No exporter shows 1 of the 4 nodes of job, n4: no cause there can be seen.",
        ),
        (
            ("ip-1", "ip-2"),
            0.5,
            "any of the 4 nodes of job, n[1-4]: no cause there can be seen. Exporters show ip-[1-2]",
        ),
    ],
)
def test_a_run_whose_machines_are_not_seen_is_trusted_less(
    hosts: tuple[str, ...], trust: float, says: str
) -> None:
    page = read(FILE)
    found = coverage(page.described(page.survey).topology, "job", hosts)
    assert found.trust == trust
    assert (says in found.flaw.text) if found.flaw else not says


def test_that_nobody_knows_where_a_run_is_is_told() -> None:
    page = read(FILE)
    found = coverage(page.described(page.survey).topology, "other", {"n1"})
    assert found.flaw is not None
    assert "not known which nodes other uses" in found.flaw.text
