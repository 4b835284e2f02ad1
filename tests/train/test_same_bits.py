"""The same bits: for any deal of lanes, weights, optimizer state and every loss are the same."""

from typing import Any

import pytest
from quantity import sampled
from scripts import SAME_BITS

from holdfast.run.wire import PlannedFault

pytestmark = pytest.mark.slow


# Most are also trained by several members below, which are killed.
@pytest.mark.parametrize("build", sampled(SAME_BITS, ["half", "overflowing"]))
def test_three_members_give_the_same_bits_as_one(cluster: Any, build: str) -> None:
    check_same_bits(cluster, build, 3)


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("build", sampled(SAME_BITS, ["plain"]))
def test_any_number_of_members_gives_the_same_bits(cluster: Any, build: str, members: int) -> None:
    check_same_bits(cluster, build, members)


def check_same_bits(cluster: Any, build: str, members: int) -> None:
    alone = cluster.undisturbed(build)
    assert alone.ending.outcome == "completed", alone.story
    assert len(alone.losses) == 12
    together = cluster.train(build, members=members)
    assert together.ending.outcome == "completed", together.story
    assert str(together.losses) == str(alone.losses)  # as text: a loss may be NaN
    assert together.digest == alone.digest


@pytest.mark.parametrize(
    "build",
    sampled(SAME_BITS, [*SAME_BITS.keys() - {"batch_norm", "tied_and_unused", "half", "overflowing"}]),
)
def test_members_that_are_lost_replaced_and_return_leave_no_trace(cluster: Any, build: str) -> None:
    """Killed in a lane, between two members' commits, and with a whole node, which comes back."""
    alone = cluster.undisturbed(build)
    faults = (
        PlannedFault(id=1, step=2, moment="lane", rank=1),
        PlannedFault(id=2, step=4, moment="commit", rank=0),
        PlannedFault(id=3, step=6, moment="reduce", rank=2, fault="node", for_s=0.3),
    )
    disturbed = cluster.train(build, nodes=2, members=2, faults=faults)
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == len(faults), disturbed.story
    assert disturbed.digest == alone.digest
    for step, loss in disturbed.losses.items():
        assert str(loss) == str(alone.losses[step])


def test_a_learning_rate_that_is_set_by_hand_is_protected(cluster: Any) -> None:
    """Like one of a scheduler: a member that adopts a step, or begins with the next one, has it, too."""
    alone = cluster.undisturbed("lr_by_hand")
    faults = (
        PlannedFault(id=1, step=3, moment="commit", rank=0),
        PlannedFault(id=2, step=6, moment="lane", rank=1),
    )
    disturbed = cluster.train("lr_by_hand", members=2, faults=faults)
    assert (disturbed.ending.outcome, disturbed.struck) == ("completed", 2), disturbed.story
    assert disturbed.digest == alone.digest
    assert alone.digest != cluster.train("lr_by_hand", steps=11).digest


def test_infinite_losses_are_among_them(cluster: Any) -> None:
    """Otherwise `overflowing` would prove nothing."""
    losses = [str(loss) for loss in cluster.undisturbed("overflowing").losses.values()]
    assert "inf" in losses or "nan" in losses
    assert len({*losses, "inf", "nan"}) > 4


def test_a_training_that_differs_gives_other_bits(cluster: Any) -> None:
    """Otherwise the digests above would prove nothing."""
    results = {
        cluster.train("plain", steps=steps, lanes=lanes).digest for steps, lanes in [(4, 8), (5, 8), (4, 16)]
    }
    assert len(results) == 3


def test_a_script_that_has_seen_enough_ends_although_a_member_is_lost_just_then(cluster: Any) -> None:
    """Its replacement must not continue alone, with steps that no other member makes."""
    enough = cluster.train("plain", stop_after=4)
    fault = PlannedFault(id=1, step=4, moment="commit", rank=0)
    disturbed = cluster.train("plain", members=2, stop_after=4, faults=[fault])
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == 1
    assert disturbed.digest == enough.digest


def test_more_members_than_lanes_are_refused(cluster: Any) -> None:
    result = cluster.train("plain", members=3, lanes=2)
    assert (result.ending.outcome, result.ending.code) == ("failed", 2)
    assert "3 members cannot share 2 lanes" in result.ending.complaint + result.ending.reason


def test_a_model_built_differently_is_refused_and_the_part_named(cluster: Any) -> None:
    result = cluster.train("different", members=2)
    assert (result.ending.outcome, result.ending.code) == ("failed", 2)
    assert "differs from that of" in result.ending.complaint + result.ending.reason
    assert "1.weight" in result.ending.complaint + result.ending.reason
