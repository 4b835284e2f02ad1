"""How the coordinator acts on the members' pace: what it says and records, and which member it replaces."""

from collections.abc import Callable

from memory_cluster import Cluster

from holdfast.record.events import ActionTaken, FaultObserved, GenerationOpened
from holdfast.run.balance import BalanceFinding, FindingKind
from holdfast.run.happenings import FromMember
from holdfast.run.wire import Balanced

MakeCluster = Callable[..., Cluster]
SLOW = 1


def up(cluster: MakeCluster, **options: object) -> Cluster:
    """Four members that have committed a step."""
    made = cluster(slots=4, steps=10**6, **options)
    made.join_node("n0")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
    made.deliver_all("worker")
    return made


def tell(
    made: Cluster,
    kind: FindingKind,
    *,
    member: int = SLOW,
    times: float = 2.0,
    data: float = 0.0,
    before: tuple[int, ...] = (4, 4, 4, 4),
    after: tuple[int, ...] = (4, 4, 4, 4),
    generation: int | None = None,
    is_named: bool = False,
    wants_smaller_lanes: bool = False,
) -> list[str]:
    """The lines said about the finding."""
    formed = made.state.generations.formed
    assert formed is not None
    said = len(made.said)
    finding = BalanceFinding(
        kind=kind,
        member=member,
        times=times,
        data=data,
        before=before,
        after=after,
        is_named=is_named,
        wants_smaller_lanes=wants_smaller_lanes,
    )
    message = Balanced(
        member="n0.0",
        generation=formed.number if generation is None else generation,
        finding=finding,
    )
    made.tell(FromMember("n0.0", message))
    return made.said[said:]


def test_lanes_that_move_are_told_and_written_down(cluster: MakeCluster) -> None:
    made = up(cluster)
    (sentence,) = tell(made, "moved", after=(5, 2, 5, 4))
    assert sentence == (
        "n0.1 takes 2.0 times as long as the others for the same work: "
        "lanes of n0.1 from 4 to 2, n0.0 from 4 to 5, n0.2 from 4 to 5"
    )
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault, fault.severity) == ("n0.1", "slow member", "degraded")
    (action,) = made.recorded(ActionTaken)
    assert (action.subject, action.action, action.reason) == ("n0.1", "rebalance", sentence)
    assert action.causes == (fault.id,)


def test_a_member_that_is_named_first_is_recorded_once(cluster: MakeCluster) -> None:
    made = up(cluster)
    (sentence,) = tell(made, "slow", times=5.0)
    assert sentence == (
        "n0.1 takes 5.0 times as long as the others for the same work: it gets fewer lanes if that lasts"
    )
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault, fault.severity) == ("n0.1", "slow member", "degraded")
    assert made.recorded(ActionTaken) == []
    tell(made, "moved", times=5.0, after=(5, 1, 5, 5), is_named=True)
    assert made.recorded(FaultObserved) == [fault]
    (action,) = made.recorded(ActionTaken)
    assert action.causes == (fault.id,)
    tell(made, "moved", times=5.0, before=(5, 1, 5, 5), after=(5, 2, 5, 4))
    assert len(made.recorded(FaultObserved)) == 2


def test_a_member_that_only_had_too_many_lanes_is_not_called_slow(cluster: MakeCluster) -> None:
    made = up(cluster)
    (sentence,) = tell(made, "moved", times=0.8, before=(2, 5, 5, 4), after=(4, 4, 4, 4))
    assert sentence == (
        "the members' pace has changed: lanes of n0.1 from 5 to 4, n0.2 from 5 to 4, n0.0 from 2 to 4"
    )
    (action,) = made.recorded(ActionTaken)
    assert (action.action, action.causes) == ("rebalance", ())
    assert made.recorded(FaultObserved) == []


def test_so_is_that_they_are_even_again(cluster: MakeCluster) -> None:
    made = up(cluster)
    (sentence,) = tell(made, "even", before=(5, 2, 5, 4))
    assert (
        sentence == "all members are about equally fast again: lanes are dealt evenly again, n0.1 from 2 to 4"
    )
    (action,) = made.recorded(ActionTaken)
    assert (action.action, action.reason) == ("rebalance", sentence)
    assert made.recorded(FaultObserved) == []


def test_where_no_lane_can_be_moved_it_says_what_would_help(cluster: MakeCluster) -> None:
    made = up(cluster)
    kept = "takes 2.0 times as long as the others for the same work, but keeps its lanes: it has only one"
    (useless,) = tell(made, "stuck", before=(1, 1, 1, 1))
    assert useless == f"n0.1 {kept}"
    (sentence,) = tell(made, "stuck", before=(1, 1, 1, 1), wants_smaller_lanes=True)
    assert sentence == (
        f"n0.1 {kept}; call protect() with more than 4 lanes, "
        "so that they can be shared more finely among 4 members"
    )
    (again,) = tell(made, "stuck", member=2, before=(1, 1, 1, 1), wants_smaller_lanes=True)
    assert again == f"n0.2 {kept}"  # the advice is given once a run
    assert made.recorded(ActionTaken) == []


def test_a_slowdown_of_all_members_is_blamed_on_none(cluster: MakeCluster) -> None:
    made = up(cluster)
    (data,) = tell(made, "everyone", times=1.8, data=0.9)
    (other,) = tell(made, "everyone", times=1.8, data=0.1)
    assert "all members 1.8 times as long as before, most of it waiting for data" in data
    assert "and not because of data" in other
    assert made.recorded(ActionTaken) == []


def test_a_member_below_the_floor_is_replaced_once(cluster: MakeCluster) -> None:
    made = up(cluster)
    (sentence,) = tell(made, "floor", times=6.0)
    assert sentence == "n0.1 is to be replaced, 6.0 times as slow as the others"
    made.until_generation(2)
    assert made.generations[-1].members == ("n0.0", "n0.4", "n0.2", "n0.3")
    assert made.recorded(GenerationOpened)[-1].reason == "replaced, 6.0 times as slow as the others: n0.1"
    replaced = made.recorded(ActionTaken)[-1]
    assert (replaced.action, replaced.subject) == ("migrate", "n0.1")
    assert replaced.reason == "6.0 times as slow as the others"
    (sentence,) = tell(made, "floor", times=6.0)
    assert "n0.4 takes 6.0 times as long" in sentence
    assert sentence.endswith(
        "the node is slow; start the run again on another machine: it goes on from its checkpoint"
    )
    assert made.state.replacing.leaving == {}


def test_the_word_of_another_generation_or_of_strangers_does_not_count(cluster: MakeCluster) -> None:
    made = up(cluster)
    assert tell(made, "moved", after=(5, 2, 5, 4), generation=7) == []
    assert tell(made, "moved", before=(8, 8), after=(10, 6)) == []
    assert tell(made, "floor", member=4) == []
    assert made.recorded(ActionTaken) == []


def test_members_are_told_whether_lanes_may_move(cluster: MakeCluster) -> None:
    assert up(cluster).generations[0].rebalances
    assert not up(cluster, rebalances=False).generations[0].rebalances
