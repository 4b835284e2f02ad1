"""Queries choose an incident's hosts by the labels that this cluster's exporters have."""

import pytest

from holdfast.diagnose.host_labels import host_labels

HOSTS = ("n1", "n2")


def exported(metric: str, port: int, label: str = "", *, hosts: int = 4) -> list[dict[str, str]]:
    named = [{label: f"n{number}"} if label else {} for number in range(hosts)]
    return [
        {"__name__": metric, "instance": f"10.0.0.{number}:{port}", "gpu": "0", **named[number]}
        for number in range(hosts)
    ]


NODES = (
    *exported("node_uname_info", 9100, "nodename"),
    *exported("node_memory_MemAvailable_bytes", 9100),
    *exported("up", 9100),
    *exported("up", 9400),
)


@pytest.mark.parametrize("label", ["Hostname", "hostname", "kubernetes_node"])
def test_the_label_is_the_one_that_the_exporter_has(label: str) -> None:
    there = host_labels(HOSTS, [*NODES, *exported("DCGM_FI_DEV_GPU_TEMP", 9400, label)])
    assert there.gpu_label == label
    assert there.gpus == f'{label}=~"n1|n2"'


def test_a_node_is_chosen_by_the_address_that_it_is_scraped_at() -> None:
    there = host_labels(["n1"], NODES)
    assert there.nodes == 'instance="10.0.0.1:9100"'
    assert there.targets == r'instance=~"10\\.0\\.0\\.1:9100|10\\.0\\.0\\.1:9400"'


def test_a_label_that_all_machines_share_chooses_none() -> None:
    """An exporter in a pod may give every host the same name."""
    shared = [{**one, "Hostname": "exporter"} for one in exported("DCGM_FI_DEV_GPU_TEMP", 9400)]
    assert host_labels(["n1"], [*NODES, *shared]).gpus == 'instance="10.0.0.1:9400"'


def test_a_member_is_chosen_by_its_machine() -> None:
    member = {"__name__": "holdfast_member_compute_seconds", "run": "prod", "member": "n0.0", "node": "n0"}
    series = [*NODES, *exported("DCGM_FI_DEV_GPU_TEMP", 9400, "Hostname"), {**member, "hostname": "n3"}]
    there = host_labels(["prod/n0.0"], series)
    assert there.machine("prod/n0.0") == "n3"
    assert there.gpus == 'Hostname="n3"'
    assert there.nodes == 'instance="10.0.0.3:9100"'


def test_without_series_it_is_the_usual_label() -> None:
    there = host_labels(HOSTS)
    assert there.gpus == 'Hostname=~"(n1|n2)(:[0-9]+)?"'
    assert there.nodes == there.targets == 'instance=~"(n1|n2)(:[0-9]+)?"'


def test_a_name_cannot_leave_its_string() -> None:
    evil = 'n1"} or vector(1) #'
    series = [{"__name__": "up", "instance": evil}, {"__name__": "up", "instance": "n2"}]
    assert host_labels([evil], series).targets.count('\\"') == 1
    assert host_labels([evil]).targets.count('\\"') == 1
