"""Losses that replicas of several GPUs survive, compared by hand with the promises of docs/sharded.md."""

import pytest

from holdfast.economics.sizing.coverage import REFILL_S, SHELVE_S, ReplicaGrid, losses, mirror_distance
from holdfast.run.mesh import mirror_offset


def grid(replicas: int, ranks: int, *, spares: int = 0, lanes: int | None = None) -> ReplicaGrid:
    return ReplicaGrid(
        replicas=replicas, ranks=ranks, gpus_per_node=8, nodes_per_rack=4, spare_nodes=spares, lanes=lanes
    )


@pytest.mark.parametrize(
    ("of", "outcomes"),
    [
        # Eight replicas, a node each; two racks.
        (grid(8, 8), ["refilled", "shelved", "shelved"]),
        # Two replicas on one node: a rank has a twin there, but the node takes both.
        (grid(2, 4), ["refilled", "checkpoint"]),
        # Four replicas of half a node: the rack is all there is.
        (grid(4, 4), ["refilled", "shelved", "checkpoint"]),
        # Two replicas of two nodes each, in one rack.
        (grid(2, 16), ["refilled", "shelved", "checkpoint"]),
        # Two of three nodes each: the rack takes one, and a third of the other.
        (grid(2, 24), ["refilled", "shelved", "checkpoint"]),
        # One replica over eight nodes: mirrors are on the next node, which stands in the same rack.
        (grid(1, 64), ["mirrored", "mirrored", "checkpoint"]),
        # One replica on one node: mirrors are there, too.
        (grid(1, 8), ["mirrored", "checkpoint"]),
        (grid(1, 1), ["checkpoint", "checkpoint"]),
    ],
)
def test_what_is_done_about_a_rank_a_node_and_a_rack(of: ReplicaGrid, outcomes: list[str]) -> None:
    found = losses(of)
    assert [one.outcome for one in found] == outcomes
    assert [one.lost for one in found] == ["rank", "node", "rack"][: len(outcomes)]


def test_what_it_costs() -> None:
    rank, node, rack = losses(grid(8, 8, lanes=32))
    assert (rank.after_s, rank.slowdown, rank.replicas) == (REFILL_S, 1.0, 8)
    assert (node.after_s, node.slowdown, node.replicas) == (SHELVE_S, 5 / 4, 7)  # ceil(32 / 7) for 32 / 8
    assert (rack.after_s, rack.slowdown, rack.replicas) == (SHELVE_S, 2.0, 4)
    assert all(one.goes_on for one in (rank, node, rack))
    assert losses(grid(8, 8))[1].slowdown == 8 / 7


def test_spares_take_the_place_of_nodes_if_there_are_enough() -> None:
    _, node, rack = losses(grid(8, 8, spares=1))
    assert (node.outcome, node.slowdown) == ("refilled", 1.0)
    assert (rack.outcome, rack.slowdown) == ("shelved", 2.0)
    assert losses(grid(8, 8, spares=4))[2].outcome == "refilled"


def test_the_only_replica_waits_for_its_node_unless_there_is_a_spare() -> None:
    _, node, _ = losses(grid(1, 64))
    assert (node.goes_on, node.replicas, node.after_s) == (False, 0, None)
    _, node, _ = losses(grid(1, 64, spares=1))
    assert (node.outcome, node.goes_on, node.after_s, node.slowdown) == ("mirrored", True, REFILL_S, 1.0)


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 8), (8, 8), (16, 8), (24, 8), (64, 8), (8, 4), (4, 2)])
def test_mirrors_are_where_the_run_has_them(ranks: int, per_node: int) -> None:
    nodes = [f"n{rank // per_node}" for rank in range(ranks)]
    assert mirror_distance(ranks, per_node) == mirror_offset(nodes)
