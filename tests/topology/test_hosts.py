"""Which machine a name means: by itself, without its domain, and by what one series calls by two names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.topology.file import MachineSeat, read
from holdfast.topology.hosts import Hosts

NODES = ("n17", "n18.east.example", "n19.east", "n19.west", "10.0.0.20", "N21")
ALIASES = (
    ("10.0.0.17", "n17.cluster.example"),
    ("train-3", "n18"),
    ("localhost", "n17"),
    ("localhost", "n21"),
    ("n20", "10.0.0.20"),
    ("fe80::17", "n17"),
)


@pytest.mark.parametrize(
    ("spelling", "node"),
    [
        ("n17", "n17"),
        ("N17", "n17"),
        ("n17.cluster.example", "n17"),
        ("n18", "n18.east.example"),
        ("n18.east", "n18.east.example"),
        ("n18.west", None),
        ("n19", None),
        ("n19.west", "n19.west"),
        ("n19.west.example", "n19.west"),
        ("n21", "N21"),
        ("10.0.0.17", "n17"),
        ("fe80::17", "n17"),
        ("10.0.0.18", None),
        ("10", None),
        ("10.0.0.20", "10.0.0.20"),
        ("n20", "10.0.0.20"),
        ("train-3", "n18.east.example"),
        ("localhost", None),
        ("", None),
    ],
)
def test_a_name_means_one_node_or_none(spelling: str, node: str | None) -> None:
    assert Hosts(NODES, ALIASES).node(spelling) == node


@pytest.mark.parametrize(
    ("labels", "host"),
    [
        ({"hostname": "n17.cluster.example", "instance": "10.0.0.20:9400"}, "n17"),
        ({"Hostname": "dcgm-exporter-x7", "node": "n18", "instance": "10.244.0.3:9400"}, "n18.east.example"),
        ({"Hostname": "dcgm-exporter-x7", "instance": "10.0.0.17:9400"}, "n17"),
        ({"instance": "10.244.0.3:9100", "pod": "train-3"}, "n18.east.example"),
        ({"instance": "strange:9100", "pod": "other"}, "strange"),
        ({"node": "0", "instance": "n17:9100"}, "n17"),
        ({}, ""),
    ],
)
def test_of_a_series_the_first_name_counts_that_is_a_nodes(labels: dict[str, str], host: str) -> None:
    assert Hosts(NODES, ALIASES).of(labels) == host


def test_a_machine_is_known_once_under_the_name_that_came_first() -> None:
    hosts = Hosts((), [("gpu-17", "10.0.0.17"), ("gpu-17.example", "10.0.0.17")])
    for names in (("gpu-17", "10.0.0.17"), ("gpu-17.example", "10.0.0.17"), ("gpu-18.example",), ()):
        hosts.grow(names)
    for name in ("one.example", "two.example"):
        hosts.grow((name, "127.0.0.1"))
    assert (hosts.node("one"), hosts.node("two")) == ("one.example", "two.example")
    spelled = ("gpu-17.example", "10.0.0.17", "gpu-18")
    assert [hosts.node(name) for name in spelled] == ["gpu-17", "gpu-17", "gpu-18.example"]


@given(st.lists(st.from_regex(r"[a-c][0-9](\.[d-f]){0,2}", fullmatch=True), unique=True, max_size=8))
def test_every_node_is_known_by_its_own_name(nodes: list[str]) -> None:
    hosts = Hosts(nodes)
    assert [hosts.node(node) for node in nodes] == nodes


def test_a_member_is_on_its_machine_whatever_its_run_calls_it() -> None:
    page = read("nodes: {gpu-17: {gpus: 4}, n5: {gpus: 4}}\n")
    described = page.described(page.survey)
    seats = {
        "n0.1": MachineSeat("n0", "gpu-17.cluster.example"),
        "n5.2": MachineSeat("n5", "unheard-of"),
        "n9.0": MachineSeat("n9", "vm"),
        "n8.0": MachineSeat("n8"),
    }
    seated = described.with_members({"prod": seats})
    on = {member: seated.topology.causes(f"prod/{member}", "node") for member in seats}
    assert on == {"n0.1": ("gpu-17",), "n5.2": ("n5",), "n9.0": ("vm",), "n8.0": ("n8",)}
    assert seated.topology.causes("prod/n0.1", "gpu") == ("gpu-17.1",)
    assert seated.hosts.of({"instance": "unheard-of:9100"}) == "n5"
    assert seated.hosts.of({"instance": "vm:9100"}) == "vm"


def test_two_nodes_of_a_run_on_one_machine_do_not_share_the_numbers_of_its_gpus() -> None:
    page = read("nodes: {gpu-17: {gpus: 4}}\n")
    seats = {f"n{node}.0": MachineSeat(f"n{node}", "gpu-17") for node in (0, 1)}
    seated = page.described(page.survey).with_members({"prod": seats})
    assert len(seated.topology.causes("prod/n1.0", "gpu")) == 4


@pytest.mark.parametrize("exporters", ["", "nodes: {gpu-01: {gpus: 1}}\n", "nodes: {localhost: {gpus: 8}}\n"])
def test_a_name_that_all_machines_give_themselves_does_not_make_them_one(exporters: str) -> None:
    page = read(exporters)
    nodes = [f"gpu-{number:02}" for number in range(1, 5)]
    seats = {f"{node}.0": MachineSeat(node, "localhost") for node in nodes}
    seated = page.described(page.survey).with_members({"prod": seats})
    assert [seated.topology.causes(f"prod/{node}.0", "node") for node in nodes] == [(node,) for node in nodes]
    assert [seated.machine(seat) for seat in seats.values()] == nodes
    alone = page.described(page.survey).with_members({"prod": {"n0.0": MachineSeat("n0", "localhost")}})
    assert alone.topology.causes("prod/n0.0", "node") == ("localhost",)
