import pytest

from holdfast.record.errors import InputError
from holdfast.twin.policies import cold_s, group_s, hot_s, policies, policy, requeue_s

GPUS = 16_384


def test_times_are_the_published_ones_where_there_are_any() -> None:
    assert [cold_s(gpus) for gpus in (16_384, 22_000, 64_000, 98_000)] == [200, 300, 600, 900]
    assert [group_s(gpus) for gpus in (16_384, 22_000, 64_000, 98_000)] == [17, 30, 100, 200]
    assert [hot_s(16 * nodes) for nodes in (128, 256, 512, 1_024)] == [46, 51, 54, 65]
    assert [requeue_s(16 * nodes) for nodes in (128, 256, 512, 1_024)] == [454, 545, 635, 768]


def test_a_larger_cluster_never_takes_less() -> None:
    for time_s in (cold_s, group_s, hot_s, requeue_s):
        times = [time_s(gpus) for gpus in (8, 1_000, 10_000, 20_000, 50_000, 100_000, 200_000)]
        assert times == sorted(times)


def test_every_policy_says_where_its_times_come_from() -> None:
    known = policies(GPUS, 3)
    assert len({one.name for one in known}) == len(known) == 9
    assert all(one.source and one.title for one in known)
    assert {one.name: one.spare_nodes for one in known} == {
        "restart": 3,
        "restart-best": 3,
        "requeue": 3,
        "spares": 4,
        "snapshots": 4,
        "replicas": 3,
        "holdfast-static": 3,
        "holdfast": 3,
        "holdfast-smaller": 3,
    }


def test_what_differs_between_the_elastic_ones() -> None:
    replicas, static, ours = (policy(name, GPUS) for name in ("replicas", "holdfast-static", "holdfast"))
    assert (replicas.shares_lanes, static.shares_lanes, ours.shares_lanes) == (False, True, True)
    assert (replicas.is_warm, static.is_warm, ours.is_warm) == (False, True, True)
    assert (replicas.rebalances, static.rebalances, ours.rebalances) == (False, False, True)
    assert ours.regroup_s > group_s(GPUS)
    assert ours.hang_s is None, "the membership decides when a run hangs, and not the policy"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("restrat", "Did you mean restart?"), ("zzz", "There are restart, restart-best, requeue")],
)
def test_an_unknown_policy_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        policy(name, GPUS)
    assert name in str(refused.value)
    assert hint in (refused.value.hint or "")
