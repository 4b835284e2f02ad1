"""How the coordinator acts on audits: which members it ends, what it says, and what it records."""

from collections.abc import Callable

import pytest
from memory_cluster import Cluster

from holdfast.record.events import FaultObserved, LaneExamined, MemberLost
from holdfast.run.audits import AuditFinding, AuditKind
from holdfast.run.corruption import ODD_SAID_MAX
from holdfast.run.happenings import FromMember
from holdfast.run.wire import Audited

MakeCluster = Callable[..., Cluster]


def up(cluster: MakeCluster, **options: object) -> Cluster:
    """Four members that have committed a step."""
    made = cluster(slots=4, steps=10**6, **options)
    made.join_node("n0")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
    made.deliver_all("worker")
    return made


def tell(made: Cluster, finding: AuditFinding, *, generation: int | None = None) -> list[str]:
    """The lines said about the finding."""
    formed = made.state.generations.formed
    assert formed is not None
    said = len(made.said)
    number = formed.number if generation is None else generation
    made.tell(FromMember("n0.0", Audited(member="n0.0", generation=number, finding=finding)))
    return made.said[said:]


def test_a_member_that_is_wrong_is_ended_and_named(cluster: MakeCluster) -> None:
    made = up(cluster)
    finding = AuditFinding(kind="lane", step=2, lane=5, culprits=(1,), once=True, print="ab")
    first, second, *_ = tell(made, finding)
    assert first.startswith("silent corruption on node n0: n0.1 computed lane 5 of step 2 wrongly; when it")
    assert second == "n0.1 lost (silent corruption: lane 5 of step 2)"
    (examined,) = made.recorded(LaneExamined)
    assert (examined.subject, examined.step, examined.lane, examined.print) == ("n0.1", 2, 5, "ab")
    (fault,) = made.recorded(FaultObserved)
    (lost,) = made.recorded(MemberLost)
    assert (fault.subject, fault.fault, fault.severity) == ("n0.1", "silent corruption", "fatal")
    assert (lost.subject, lost.causes) == ("n0.1", (fault.id,))
    assert made.state.roster.living("n0.1") is None


def test_the_steps_in_which_a_wrong_state_was_used_are_told(cluster: MakeCluster) -> None:
    first, *_ = tell(up(cluster), AuditFinding(kind="state", step=2, culprits=(3,), suspect=3))
    assert first.endswith(
        "n0.3 differ from those of 3 other members; its lanes of the 3 steps before it may be wrong, too"
    )


def test_a_place_that_was_wrong_before_is_suspected(cluster: MakeCluster) -> None:
    made = up(cluster)
    made.state.audits.seats["n0", 1] = 1
    said = tell(made, AuditFinding(kind="lane", step=2, culprits=(1,)))
    assert said[2] == (
        "this is number 2 in slot 1 of n0: suspect the device or the node; start the run again on another "
        "machine: it goes on from its checkpoint"
    )


def test_states_without_a_majority_send_all_back_and_the_second_time_end_the_run(
    cluster: MakeCluster,
) -> None:
    made = up(cluster)
    finding = AuditFinding(kind="apart", step=2, culprits=(0, 1, 2, 3))
    first, *_ = tell(made, finding)
    assert "no majority has the same; all are ended, and the run goes back to its checkpoint" in first
    assert len(made.recorded(MemberLost)) == 4
    again = up(cluster)
    again.state.audits.apart_step = again.state.progress.step_max
    assert any(
        "the script changes the state differently on each member" in line for line in tell(again, finding)
    )
    assert again.state.ending.closing is not None


@pytest.mark.parametrize("kind", ["unsteady", "streams"])
def test_audits_end_once_and_states_are_still_compared(cluster: MakeCluster, kind: AuditKind) -> None:
    made = up(cluster)
    finding = AuditFinding(kind=kind, step=2, lane=1)
    (sentence,) = tell(made, finding)
    assert sentence.startswith("lanes are not audited any more: ")
    assert tell(made, finding) == []
    assert made.state.audits.rate(0.01, is_deterministic=True) == 0.0
    assert made.state.audits.rate(0.0, is_deterministic=True) is None
    assert not made.recorded(FaultObserved)


def test_lanes_of_kernels_that_may_differ_are_not_audited(cluster: MakeCluster) -> None:
    made = up(cluster)
    assert made.state.audits.rate(0.01, is_deterministic=True) == 0.01
    assert made.state.audits.rate(0.01, is_deterministic=False) == 0.0


def test_odd_losses_are_named_but_not_without_end(cluster: MakeCluster) -> None:
    made = up(cluster)
    said = [
        tell(made, AuditFinding(kind="odd", step=step, lane=1, loss="nan", print="c")) for step in range(20)
    ]
    assert sum(map(len, said)) == ODD_SAID_MAX == len(made.recorded(LaneExamined))
    assert not made.recorded(MemberLost)
    assert not made.recorded(FaultObserved)  # the cluster is not at fault


def test_two_that_disagree_are_named_once(cluster: MakeCluster) -> None:
    made = up(cluster)
    finding = AuditFinding(kind="undecided", step=2, lane=1, culprits=(0, 2))
    (sentence,) = tell(made, finding)
    assert "n0.0 and n0.2 compute lane 1 of step 2 differently" in sentence
    assert tell(made, finding) == []
    assert [fault.subject for fault in made.recorded(FaultObserved)] == ["n0.0", "n0.2"]


def test_a_finding_that_no_member_can_have_made_is_ignored(cluster: MakeCluster) -> None:
    made = up(cluster)
    assert tell(made, AuditFinding(kind="lane", step=2, culprits=(4,))) == []
    assert tell(made, AuditFinding(kind="lane", step=2, culprits=(-1,))) == []
    assert tell(made, AuditFinding(kind="lane", step=2, culprits=(1,)), generation=77) == []
