"""The simulated cluster as a graph: everything monitoring speaks of is in it, and hangs on what it should."""

import functools

import pytest

from holdfast.drills.scenarios import SCENARIOS, TABLETOP, play
from holdfast.drills.telemetry import Replay
from holdfast.drills.wiring import DECODE, PREFILL, ROUTER, topology_of
from holdfast.drills.world import Cast, cast
from holdfast.topology.graph import Topology
from holdfast.twin.cluster import Layout, name

pytestmark = pytest.mark.slow

RUN = "pretrain"
WHOLE = (0, 2**62)
ELSEWHERE = frozenset({"slurm"})
"""What is scraped and is no part of the cluster."""


@functools.cache
def wired(with_pools: bool) -> tuple[Cast, Topology]:
    casting = cast(TABLETOP, with_pools=with_pools)
    return casting, topology_of(casting, RUN)


def member(node: int) -> str:
    return f"{RUN}/{name('node', node)}"


@pytest.mark.parametrize("scenario", ["quiet", "pool-link"])
def test_every_subject_of_every_metric_is_known(scenario: str) -> None:
    played = play(scenario, 1, duration_s=900)
    topology = topology_of(cast(played.layout, with_pools=played.scenario.with_pools), played.run)
    replay = Replay(played.telemetry)
    for metric in replay.metrics():
        frame = replay.frame(metric, WHOLE)
        assert frame is not None
        assert {one for one in frame.subjects if one not in topology} <= ELSEWHERE, metric


@pytest.mark.parametrize("scenario", [name for name, one in SCENARIOS.items() if one.is_incident])
def test_a_cause_in_the_cluster_reaches_exactly_those_it_slows(scenario: str) -> None:
    played = play(scenario, 2, duration_s=900)
    truth = played.truth
    topology = topology_of(cast(played.layout, with_pools=played.scenario.with_pools), played.run)
    affected = {f"{played.run}/{node}" for node in truth.affected}
    members = {one for one in topology.dependencies(played.run) if topology.kind(one) == "member"}
    assert affected <= members
    if truth.cause.subject in topology:
        assert played.run in topology.blast_radius(truth.cause.subject)
        reached = set(topology.blast_radius(truth.cause.subject, "member")) & members
        assert reached == affected or affected == members


@pytest.mark.parametrize("with_pools", [False, True])
def test_the_run_depends_on_its_members_and_on_no_spare(with_pools: bool) -> None:
    casting, topology = wired(with_pools)
    members = {one for one in topology.dependencies(RUN) if topology.kind(one) == "member"}
    assert members == {member(node) for node in casting.run}
    for node in casting.spare:
        assert name("node", node) in topology
        assert topology.blast_radius(name("node", node), "run") == ()


def test_a_member_hangs_on_its_node_its_rack_its_loop_its_leaf_and_its_mount() -> None:
    _, topology = wired(False)
    causes = topology.causes(member(13))
    by_kind = {kind: [one for one in causes if topology.kind(one) == kind] for kind in ("gpu", "port")}
    assert by_kind["gpu"] == [f"n00013.{gpu}" for gpu in range(8)]
    assert by_kind["port"] == [f"n00013/mlx5_{port}" for port in range(8)]
    one_of_each = {"n00013", "rack-0003", "shelf-0003", "cdu-0000", "water-0", "leaf-0001", "fs-0000"}
    assert one_of_each <= set(causes)
    assert len(causes) == 16 + len(one_of_each)


@pytest.mark.parametrize(("subject", "members"), [("rack-0003", 4), ("cdu-0000", 16), ("leaf-0001", 8)])
def test_what_hangs_on_a_shared_thing_is_what_the_layout_says(subject: str, members: int) -> None:
    _, topology = wired(False)
    assert len(topology.blast_radius(subject, "member")) == members


def test_pools_are_between_their_engines_and_the_run() -> None:
    casting, topology = wired(True)
    assert {PREFILL, DECODE} <= set(topology.dependencies(RUN))
    assert topology.blast_radius(ROUTER, "run") == (RUN,)
    links = topology.names("link")
    assert len(links) == len(casting.prefill) * len(casting.decode)
    for link in links:
        source, _, target = link.partition(">")
        assert {source, target} < {name("node", node) for node in (*casting.prefill, *casting.decode)}
        causes = topology.causes(link)
        assert sum(topology.kind(one) == "spine" for one in causes) == 1
        assert {f"{source}/mlx5_0", f"{target}/mlx5_7"} <= set(causes)
        assert RUN in topology.blast_radius(link)


def test_without_pools_there_is_nothing_of_them() -> None:
    _, topology = wired(False)
    assert topology.names("pool") == topology.names("link") == topology.names("router") == ()


def test_a_cluster_grows_in_proportion() -> None:
    sizes = [
        len(topology_of(cast(Layout(gpus=gpus), with_pools=False), RUN)) / gpus for gpus in (1_024, 4_096)
    ]
    assert sizes[1] <= 1.01 * sizes[0]
