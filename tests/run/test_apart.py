"""Members that wait for each other in different places: found by their heartbeats, and made to regroup."""

from collections.abc import Callable

import pytest
from memory_cluster import Cluster

from holdfast.run.happenings import FromMember
from holdfast.run.waits import APART_S, ns
from holdfast.run.wire import FromWorker, MemberBeat, Published, Stage

MakeCluster = Callable[..., Cluster]

STEP = 7


def played(cluster: "MakeCluster", *turns: tuple[FromWorker, ...]) -> "Cluster":
    """Three members that step, and then only send these messages, a moment apart."""
    made = cluster(slots=3, warm=0, steps=10**6)
    made.join_node("n0")
    made.until_step(1)
    for turn in turns:
        made.now_ns += ns(APART_S)
        for message in turn:
            made.tell(FromMember(message.member if isinstance(message, MemberBeat) else "n0.0", message))
    return made


def beat(slot: int, stage: Stage, step: int = STEP) -> MemberBeat:
    return MemberBeat(member=f"n0.{slot}", step=step, stage=stage)


@pytest.mark.parametrize("others", [(1, 1), (1, 0)])
def test_a_member_that_waits_for_members_that_went_on_regroups_with_them(
    cluster: "MakeCluster", others: tuple[int, int]
) -> None:
    """All others are in the next step, or one of them waits in the same place, too."""
    rest = [
        beat(slot, "reduce" if gone else "meeting", STEP + gone) for slot, gone in enumerate(others, start=1)
    ]
    turn = (*rest, beat(0, "meeting"))
    assert played(cluster, turn).state.generations.number == 1
    made = played(cluster, turn, turn, turn)
    assert made.state.generations.number == 2
    assert made.state.generations.announced is not None
    assert (
        str(made.state.generations.announced.because)
        == f"n0.0 waits after step {STEP} for members that have gone on"
    )


@pytest.mark.parametrize(
    "others",
    [
        (beat(1, "reduce", STEP + 1), beat(2, "script")),  # one works
        (beat(1, "reduce", STEP + 1), beat(2, "forward", STEP + 1)),
        (beat(1, "meeting"), beat(2, "meeting")),  # they meet
        (beat(1, "reduce"), beat(2, "reduce")),  # the end of the step's own reduction
    ],
)
def test_a_member_that_waits_for_members_that_come_is_left_alone(
    cluster: "MakeCluster", others: tuple[MemberBeat, ...]
) -> None:
    turn = (*others, beat(0, "meeting"))
    assert played(cluster, turn, turn, turn).state.generations.number == 1


def test_a_member_that_goes_from_one_meeting_to_the_next_is_left_alone(cluster: "MakeCluster") -> None:
    """With one member, while a newcomer waits for both in the next step."""
    told = Published(generation=1, key="k", value=b"")
    turn = (beat(1, "meeting"), beat(2, "reduce", STEP + 1), told, beat(0, "meeting"))
    assert played(cluster, turn, turn, turn).state.generations.number == 1
