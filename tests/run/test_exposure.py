"""How much a run would lose now, by its members' reports of snapshots."""

from collections.abc import Callable
from typing import Literal

import pytest
from memory_cluster import Cluster

from holdfast.record.events import CheckpointFailed
from holdfast.run import membership
from holdfast.run.exposure import KeptSteps, kept_steps
from holdfast.run.happenings import FromNode, Say
from holdfast.run.mesh import MeshShape
from holdfast.run.wire import Checkpointed, Proven, Snapshotted

MakeCluster = Callable[..., Cluster]


def up(cluster: MakeCluster, *, nodes: int = 2, **options: object) -> Cluster:
    made = cluster(nodes_max=nodes, nodes_min=nodes, warm=0, steps=1000, slots=2, **options)
    for number in range(nodes):
        made.join_node(f"n{number}")
    made.until_step(1)
    return made


def tell(made: Cluster, **steps: int) -> None:
    for name, step in steps.items():
        process = made.processes[name.replace("_", ".")]
        made.from_worker(process, Snapshotted(member=process.member, step=step, stall_ns=5, size_bytes=1))
    made.deliver_all("worker")


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ({}, KeptSteps(None, None)),
        ({"n0_0": 4}, KeptSteps(None, None)),
        ({"n0_0": 4, "n0_1": 3}, KeptSteps(3, None)),
        ({"n0_0": 4, "n0_1": 4, "n1_0": 2}, KeptSteps(4, None)),
        ({"n0_0": 4, "n0_1": 4, "n1_0": 2, "n1_1": 2}, KeptSteps(4, 2)),
        ({"n0_0": 4, "n0_1": 4, "n1_0": 5, "n1_1": 6}, KeptSteps(5, 4)),
    ],
)
def test_a_node_has_what_all_of_its_shares_have(
    cluster: MakeCluster, steps: dict[str, int], kept: KeptSteps
) -> None:
    made = up(cluster)
    tell(made, **steps)
    assert kept_steps(made.state) == kept


def test_of_a_sharded_model_the_oldest_part_counts(cluster: MakeCluster) -> None:
    made = up(cluster, mesh=MeshShape.parse("2"))
    tell(made, n0_0=4, n0_1=3, n1_0=2)
    assert kept_steps(made.state) == KeptSteps(3, None)
    tell(made, n1_1=1)
    assert kept_steps(made.state) == KeptSteps(3, 1)


def test_a_node_has_nothing_once_a_member_of_it_has_switched_them_off(cluster: MakeCluster) -> None:
    made = up(cluster)
    tell(made, n0_0=4, n0_1=4, n1_0=3, n1_1=3)
    told = Checkpointed(
        member="n0.1", happened="failed", step=5, place="", reason="snapshots are off", is_snapshot=True
    )
    made.from_worker(made.processes["n0.1"], told)
    made.deliver_all("worker")
    assert kept_steps(made.state) == KeptSteps(3, None)


def test_a_snapshot_that_is_damaged_is_said_once_and_is_no_failed_checkpoint(cluster: MakeCluster) -> None:
    made = up(cluster)
    for name in ("n0.0", "n0.1"):
        told = Checkpointed(
            member=name,
            happened="failed",
            step=4,
            place="the memory of n0",
            reason="is damaged",
            is_snapshot=True,
        )
        made.from_worker(made.processes[name], told)
    made.deliver_all("worker")
    assert made.said.count("is damaged") == 1
    (event,) = made.recorded(CheckpointFailed)
    assert (event.step, event.place, event.is_snapshot) == (4, "the memory of n0", True)
    assert made.state.progress.checkpointing.failure == ""


def test_what_proofs_find_is_said_and_kept(cluster: MakeCluster) -> None:
    """A refutation does not replace an earlier proof; why a proof could not be made is said once."""
    made = up(cluster)
    times = made.state.progress.checkpointing

    def prove(
        verdict: Literal["proven", "refuted", "untried"], step: int, reason: str
    ) -> list[tuple[str, str]]:
        told = Proven(step=step, verdict=verdict, reason=reason)
        effects = membership.advance(made.state, FromNode("n0", told), made.state.now_ns + 1)
        return [(one.text, one.severity) for one in effects if isinstance(one, Say)]

    assert prove("untried", 0, "there is none") == [
        ("no checkpoint could be proven: there is none", "trouble")
    ]
    assert prove("untried", 0, "there is none") == []
    assert prove("proven", 5, "it agrees") == [("checkpoint of step 5 proven: it agrees", "note")]
    ((text, severity),) = prove("refuted", 9, "it differs")
    assert "the checkpoint of step 9 is NOT what the run computed: it differs" in text
    assert severity == "failure"
    assert times.proven is not None
    assert times.refuted is not None
    assert (times.proven[0], times.refuted[0], times.unproven) == (5, 9, "")
    assert times.proven[1] < times.refuted[1]
