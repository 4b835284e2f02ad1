"""Missing replicas, and the lanes that are then skipped: a replay that skips the same has the same bits."""

from typing import Any

import pytest
from kill_plans import plan_of
from quantity import sampled

from holdfast.record.errors import InputError
from holdfast.run.wire import PlannedFault, SkippedLanes
from holdfast.train.shortage import Shortage

STEPS = 8
PACE_S = 0.05
"""The least time of a step: a lost member is back after a few."""


def kills(*faults: tuple[int, str, int], kind: str = "kill") -> list[PlannedFault]:
    """Faults from (step, moment, rank)."""
    return [
        PlannedFault(id=number, step=step, moment=moment, rank=rank, fault=kind)  # type: ignore[arg-type]
        for number, (step, moment, rank) in enumerate(faults, start=1)
    ]


# ---- which lanes -----------------------------------------------------------------------------------------


def test_nothing_is_skipped_with_all_members_or_for_the_same_bits() -> None:
    assert Shortage("smaller batch", lanes=8).of(3, 4, 4) == frozenset()
    assert Shortage("same bits", lanes=8).of(3, 3, 4) == frozenset()


def test_no_member_computes_more_than_before() -> None:
    smaller = Shortage("smaller batch", lanes=8)
    assert smaller.of(3, 3, 4) == {6, 7}
    assert smaller.of(3, 1, 4) == {2, 3, 4, 5, 6, 7}
    # Five had two lanes at most: four of them have room for all eight.
    assert smaller.of(3, 4, 5) == frozenset()
    assert len(Shortage("smaller batch", lanes=1024).of(3, 127, 128)) == 8


def test_the_share_of_the_lost_one_is_skipped_first() -> None:
    smaller = Shortage("smaller batch", lanes=8)
    assert smaller.of(3, 3, 4, held={0, 4}, dealt={1, 5, 6, 7}) == {2, 3}
    # Computed lanes stay, and lane 0 is always computed.
    assert smaller.of(3, 3, 4, held={2, 3, 4, 5, 6, 7}) == {1}


def test_a_run_of_which_one_lane_was_left_can_be_repeated() -> None:
    recorded = [SkippedLanes(5, 6, (1, 2, 3))]
    assert Shortage("same bits", recorded, lanes=4).of(5, 2, 2) == {1, 2, 3}


def test_what_was_recorded_is_skipped_again() -> None:
    recorded = (SkippedLanes(3, 4, (6, 7)), SkippedLanes(6, 6, (4, 5)))
    again = Shortage("same bits", recorded, lanes=8, slices=2)
    found = [again.of(step, 2, 2) for step in range(2, 8)]
    assert found == [frozenset(), {3}, {3}, frozenset(), {2}, frozenset()]
    # Plus the current shortage: of four lanes one is skipped anyhow, and a lone replica has room for two.
    assert Shortage("smaller batch", recorded, lanes=8, slices=2).of(3, 1, 2) == {2, 3}


@pytest.mark.parametrize(
    ("lanes", "slices", "words"), [(4, 1, "skipped lane 7"), (8, 4, "4 ranks would compute together")]
)
def test_a_replay_that_cannot_skip_the_same_is_refused(lanes: int, slices: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Shortage("same bits", [SkippedLanes(3, 4, (6, 7))], lanes=lanes, slices=slices)


# ---- whole runs ------------------------------------------------------------------------------------------

MOMENTS = ("lane", "reduce", "commit", "regroup")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "rank"),
    sampled(
        [(moment, rank) for moment in MOMENTS for rank in range(4)],
        [("regroup", 2)],
    ),
)
def test_a_replay_has_the_bits_of_a_run_that_was_short(cluster: Any, moment: str, rank: int) -> None:
    other = (rank + 1) % 4
    faults = kills((3, "lane", other), (3, moment, rank)) if moment == "regroup" else kills((3, moment, rank))
    told: dict[str, Any] = {"members": 4, "warm": 0, "steps": STEPS, "pace_s": PACE_S}
    short = cluster.train("plain", on_shortage="smaller batch", faults=faults, **told)
    assert short.ending.outcome == "completed", short.story
    assert short.struck == len(faults), short.story
    assert short.unexplained == [], short.story
    assert short.skipped, short.story
    check_replays(cluster, "plain", short, [1, 3])


@pytest.mark.slow
@pytest.mark.parametrize("build", sampled(["batch_norm", "odd", "half", "averaged_norm"], ["averaged_norm"]))
def test_means_are_those_of_the_lanes_that_were_computed(cluster: Any, build: str) -> None:
    faults = kills((2, "lane", 1), kind="node")
    short = cluster.train(
        build, nodes=4, on_shortage="smaller batch", faults=faults, steps=STEPS, pace_s=PACE_S
    )
    assert short.ending.outcome == "completed", short.story
    assert short.skipped, short.story
    check_replays(cluster, build, short, [1, 2])


@pytest.mark.slow
def test_the_whole_batch_is_back_when_all_members_are(cluster: Any) -> None:
    short = cluster.train(
        "plain",
        members=2,
        warm=0,
        on_shortage="smaller batch",
        faults=kills((2, "lane", 1)),
        steps=40,
        pace_s=PACE_S,
    )
    assert short.ending.outcome == "completed", short.story
    assert short.skipped[0].first == 2, short.story
    assert all(len(one.lanes) == 4 for one in short.skipped[1:]), short.story
    assert short.skipped[-1].last < 40, short.story
    check_replays(cluster, "plain", short, [1], steps=40)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_kills_in_every_moment(cluster: Any, seed: int) -> None:
    steps = 24
    short = cluster.train(
        "plain",
        nodes=2,
        members=2,
        steps=steps,
        lanes=16,
        warm=seed % 2,
        on_shortage="smaller batch",
        faults=plan_of(seed, 4, steps),
        checkpoint_every=1,
    )
    assert short.ending.outcome == "completed", short.story
    assert short.struck > 10, short.story
    assert short.skipped, short.story
    check_replays(cluster, "plain", short, [3], steps=steps, lanes=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    sampled(
        [
            kills((3, "lane", 1)),
            kills((3, "agree", 2)),
            kills((3, "commit", 0)),
            kills((3, "reduce", 3), (4, "lane", 0)),
            kills((3, "lane", 3), (4, "agree", 1)),
        ],
        [kills((3, "lane", 3), (4, "agree", 1))],
    ),
)
def test_a_replica_that_is_shelved_leaves_out_its_share(cluster: Any, faults: list[PlannedFault]) -> None:
    short = cluster.train(
        "sharded",
        members=4,
        shard="2",
        warm=0,
        on_shortage="smaller batch",
        faults=faults,
        steps=STEPS,
        pace_s=PACE_S,
    )
    assert short.ending.outcome == "completed", short.story
    assert short.struck == len(faults), short.story
    assert short.skipped, short.story
    assert short.steps_lost == 0, short.story
    check_replays(cluster, "sharded", short, [2], shard="2")
    check_replays(cluster, "sharded", short, [1], shard="1")


@pytest.mark.slow
def test_the_same_bits_skip_nothing(cluster: Any) -> None:
    faults = kills((3, "lane", 1), (5, "reduce", 0))
    run = cluster.train("plain", members=3, warm=0, faults=faults, steps=STEPS, pace_s=PACE_S)
    assert run.ending.outcome == "completed", run.story
    assert run.struck == 2
    assert run.skipped == ()


def check_replays(cluster: Any, build: str, short: Any, members: list[int], **told: Any) -> None:
    told = {"steps": STEPS, **told}
    undisturbed = cluster.train(build, members=min(members), **told)
    assert undisturbed.digest != short.digest
    for count in members:
        replay = cluster.train(build, members=count, skipped=short.skipped, **told)
        assert replay.ending.outcome == "completed", replay.story
        assert replay.skipped == short.skipped
        assert replay.digest == short.digest, f"{count} members: {short.story}"
        assert short.losses.items() <= replay.losses.items()
