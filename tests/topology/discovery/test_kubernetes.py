"""Kubernetes: nodes as the API server lists them, with labels of NVIDIA's operator and of Topograph."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.topology.assemble import assemble
from holdfast.topology.discovery import kubernetes


def node(name: str, labels: dict[str, str], capacity: dict[str, str] | None = None) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {"capacity": {"cpu": "224", "memory": "2113411308Ki", **(capacity or {})}},
    }


def listed(*nodes: dict[str, object]) -> bytes:
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(nodes)})


LABELS = {
    "topology.kubernetes.io/zone": "us-east-1a",
    "topology.kubernetes.io/rack": "rack-7",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "network.topology.nvidia.com/leaf": "s1",
    "network.topology.nvidia.com/spine": "s2",
    "network.topology.nvidia.com/core": "s3",
}


def test_labels_are_places() -> None:
    topology = assemble(kubernetes.survey(listed(node("worker-1", LABELS))))
    assert len(topology.names("gpu")) == 8
    assert topology.dependencies("worker-1") == ("rack-7", "s1")
    assert topology.path("s3", "worker-1") == ("s3", "s2", "s1", "worker-1")
    assert topology.path("us-east-1a", "worker-1") == ("us-east-1a", "rack-7", "worker-1")


def test_numbered_tiers_and_nvlink_domains_are_places_too() -> None:
    labels = {
        "fabric.topograph.run/tier-10": "core",
        "fabric.topograph.run/tier-0": "near",
        "fabric.topograph.run/tier-2": "middle",
        "nvidia.com/gpu.clique": "d1a9f8f0-2bd5.7",
        "network.topology.nvidia.com/accelerator": "another",
    }
    topology = assemble(kubernetes.survey(listed(node("w1", labels), node("w2", labels))))
    assert topology.path("core", "w2") == ("core", "middle", "near", "w2")
    assert topology.dependents("d1a9f8f0-2bd5.7") == ("w1", "w2")
    assert "another" not in topology


@pytest.mark.parametrize(
    ("labels", "capacity", "gpus"),
    [
        ({}, {"nvidia.com/gpu": "4"}, 4),
        ({"nvidia.com/gpu.count": "8"}, {"nvidia.com/gpu": "7"}, 8),
        ({"nvidia.com/gpu.count": "many"}, {}, 0),
        ({}, {}, 0),
    ],
)
def test_gpus_are_counted(labels: dict[str, str], capacity: dict[str, str], gpus: int) -> None:
    survey = kubernetes.survey(listed(node("w1", labels, capacity)))
    assert len(survey.gpus.get("w1", ())) == gpus
    assert survey.kinds == {"w1": "node"}


def test_what_is_no_list_of_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="The list of nodes is not understood") as told:
        kubernetes.survey(b"NAME STATUS ROLES")
    assert "kubectl get nodes -o json" in told.value.hint


@given(st.binary(max_size=60))
@settings(max_examples=examples(200), deadline=None)
def test_any_answer_is_survived(answer: bytes) -> None:
    with suppress(InputError):
        kubernetes.survey(answer)
