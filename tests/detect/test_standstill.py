"""Where ranks stand, by the calls that they have made: hand-made dumps with known answers."""

import pickle
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from flight_entries import CREATED_NS, dump, entry

from holdfast.detect.standstill import RanksStanding, standing
from holdfast.signals.flight_dumps import FlightDumps, parse_dump

Entries = Sequence[Mapping[str, Any]]
Groups = Mapping[str, Sequence[int]]
NOTHING: Mapping[int, Groups] = MappingProxyType({})
DONE = entry(seq=1, state="completed")


def judged(
    ranks: Mapping[int, Entries],
    groups: Groups,
    unreadable: Sequence[int] = (),
    by_rank: Mapping[int, Groups] = NOTHING,
) -> RanksStanding:
    """groups: their members; by_rank: these where dumps differ."""
    interned: dict[object, Any] = {}
    dumps = []
    for rank, entries in ranks.items():
        said = dump(entries, by_rank.get(rank, groups))
        dumps.append(parse_dump(rank, pickle.dumps(said, 2), interned))
    return standing(FlightDumps(dumps=tuple(dumps), unreadable=dict.fromkeys(unreadable, "it is damaged")))


def test_the_rank_that_has_not_entered_the_collective_is_named_with_where_it_is() -> None:
    told = judged({0: [DONE, entry(seq=2)], 1: [DONE], 2: [DONE, entry(seq=2)]}, {"0": [0, 1, 2]})
    (one,) = told.standstills
    assert (one.kind, one.inside.ranks, one.holding, one.absent) == ("absent", (0, 2), (1,), (1,))
    assert (one.inside.call, one.inside.seq, one.inside.group) == ("all_reduce", 2, "default_pg")
    assert (one.size, one.since_ns, one.timed_out) == (3, CREATED_NS + 2, False)
    (place,) = one.others
    assert (place.ranks, place.call, place.seq, place.is_finished) == ((1,), "all_reduce", 1, True)
    assert [line.line for line in place.lines] == [41]
    assert [line.line for line in one.inside.lines] == [42]


def test_ranks_that_went_on_have_entered_what_they_have_finished() -> None:
    """Rank 1 is two collectives ahead; rank 2 has dropped number 2 from its buffer."""
    ahead = [entry(seq=2, state="completed"), entry(seq=3, state="completed"), entry(seq=4)]
    told = judged({0: [DONE, entry(seq=2)], 1: ahead, 2: [entry(seq=9)]}, {"0": [0, 1, 2]})
    (one,) = told.standstills
    assert (one.kind, one.inside.ranks, one.holding) == ("everybody", (0,), ())


@pytest.mark.parametrize(
    ("difference", "calls"),
    [
        ({"profiling_name": "nccl:all_gather"}, "all_gather"),
        ({"input_sizes": [[5]]}, "all_reduce"),
        ({"input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"]}, "all_reduce"),
    ],
    ids=["call", "size", "type"],
)
def test_a_rank_that_entered_something_else_is_named(difference: dict[str, Any], calls: str) -> None:
    odd = [DONE, {**entry(seq=2), **difference}]
    told = judged({0: odd, 1: [DONE, entry(seq=2)], 2: [DONE, entry(seq=2)]}, {"0": [0, 1, 2]})
    (one,) = told.standstills
    assert (one.kind, one.inside.ranks, one.holding) == ("other", (1, 2), (0,))
    assert [(place.ranks, place.call) for place in one.others] == [((0,), calls)]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("nccl:all_reduce", [([[16]], [[16]]), ([[2, 8]], [[2, 8]])]),
        ("nccl:all_to_all", [([[16]], [[4]]), ([[3]], [[9]])]),
        ("nccl:gather", [([[4]], [[8]]), ([[4]], [])]),
        ("nccl:all_gather", [([[3]], [[8]]), ([[5]], [[8]])]),
        ("nccl:_reduce_scatter_base", [([[8]], [[3]]), ([[8]], [[5]])]),
    ],
)
def test_sizes_that_may_differ_are_no_mismatch(name: str, shapes: list[tuple[Any, Any]]) -> None:
    ranks = {
        rank: [entry(name, input_sizes=inputs, output_sizes=outputs)]
        for rank, (inputs, outputs) in enumerate(shapes)
    }
    assert judged(ranks, {"0": [0, 1]}).standstills[0].kind == "everybody"


def test_a_gpu_that_has_not_begun_what_others_have_is_named() -> None:
    told = judged({0: [entry()], 1: [entry(state="scheduled")], 2: [entry()]}, {"0": [0, 1, 2]})
    (one,) = told.standstills
    assert (one.kind, one.holding, one.inside.ranks) == ("not-started", (1,), (0, 1, 2))


def test_a_rank_without_a_dump_is_waited_for() -> None:
    told = judged({0: [entry(retired=True)], 2: [entry()]}, {"0": [0, 1, 2, 3]}, unreadable=[3])
    (one,) = told.standstills
    assert (one.kind, one.holding, one.undumped, one.timed_out) == ("absent", (1, 3), (1, 3), True)
    assert one.unreadable == (3,)
    assert (told.ranks, told.undumped, told.unreadable) == (4, (1, 3), {3: "it is damaged"})


def test_of_a_chain_of_waiting_the_end_comes_first_and_is_blamed() -> None:
    """Rank 0 waits for 1 in a group of two, 1 for 0 and 2 in the group of all, and 2 for no rank."""
    pair = ("7", "tp")
    told = judged(
        {0: [DONE, entry(seq=1, group=pair, time_created_ns=5)], 1: [DONE, entry(seq=2)], 2: [DONE]},
        {"0": [0, 1, 2], "7": [0, 1]},
    )
    first, second = told.standstills
    assert (first.inside.group, first.absent, first.holding) == ("default_pg", (0, 2), (2,))
    assert (second.inside.group, second.holding) == ("tp", (1,))
    assert not told.circular


def test_ranks_that_wait_for_each_other_are_told_of() -> None:
    groups = {"1": [0, 1], "2": [0, 1]}
    told = judged({0: [entry(group=("1", "dp"))], 1: [entry(group=("2", "tp"))]}, groups)
    assert told.circular
    assert [one.holding for one in told.standstills] == [(1,), (0,)]


def test_dumps_that_list_the_same_ranks_are_of_one_group_whoever_read_them() -> None:
    read = [parse_dump(rank, pickle.dumps(dump([entry()], {"0": [0, 1]}), 2)) for rank in (0, 1)]
    assert read[0].members["0"] is not read[1].members["0"]
    (one,) = standing(FlightDumps(dumps=tuple(read), unreadable={})).standstills
    assert one.inside.ranks == (0, 1)


def test_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    """As torch names groups that were split from one: rank 3 is missing in one half, no rank in the other."""
    half = ("5", "mesh_tp")
    told = judged(
        {
            0: [entry(seq=4, state="completed", group=half)],
            1: [entry(seq=4, state="completed", group=half)],
            2: [entry(seq=2, group=half)],
            3: [entry(seq=1, state="completed", group=half)],
        },
        {},
        by_rank={0: {"5": [0, 1]}, 1: {"5": [0, 1]}, 2: {"5": [2, 3]}, 3: {"5": [2, 3]}},
    )
    (one,) = told.standstills
    assert (one.inside.ranks, one.holding, one.size) == ((2,), (3,), 2)


def test_a_receive_whose_sender_does_something_else_is_told_with_where_that_is() -> None:
    """In a pipeline of ranks 4 to 6: 5 waits for 4, which has sent nothing yet; 5 and 6 are in one."""
    stages = ("3", "pp")
    told = judged(
        {
            4: [entry("nccl:all_reduce", 1, "completed")],
            5: [entry("nccl:recv 1<-0", 1, group=stages), entry("nccl:send 1->2", 2, group=stages)],
            6: [entry("nccl:recv 2<-1", 1, group=stages)],
        },
        {"3": [4, 5, 6]},
    )
    first, second = told.standstills
    assert (first.kind, first.inside.call, first.inside.ranks, first.holding) == (
        "absent",
        "recv 1<-0",
        (5,),
        (4,),
    )
    assert (first.others[0].call, first.others[0].seq) == ("all_reduce", 1)
    assert (second.kind, second.inside.ranks) == ("everybody", (5, 6))


@pytest.mark.parametrize("names", [("send 0->1", "send 1->0"), ("recv 0<-1", "recv 1<-0")])
def test_two_that_both_send_or_both_receive_wait_for_each_other(names: tuple[str, str]) -> None:
    told = judged({rank: [entry(f"nccl:{name}")] for rank, name in enumerate(names)}, {"0": [0, 1]})
    assert told.circular
    assert [one.kind for one in told.standstills] == ["absent"] * 2
    assert {one.inside.call: (one.inside.ranks, one.absent) for one in told.standstills} == {
        names[0]: ((0,), (1,)),
        names[1]: ((1,), (0,)),
    }


def test_a_pipeline_whose_batches_have_ended_does_not_stand() -> None:
    """torch says "scheduled" of what is in a batch, for ever."""
    done = entry("nccl:coalesced", 1, "completed", is_p2p=True, p2p_seq_id=1)
    sent = [entry("nccl:send 0->1", 1, "scheduled"), entry("nccl:recv 0<-1", 1, "scheduled"), done]
    taken = [entry("nccl:recv 1<-0", 1, "scheduled"), entry("nccl:send 1->0", 1, "scheduled"), done]
    assert judged({0: sent, 1: taken}, {"0": [0, 1]}).standstills == ()
    stuck = [*taken[:2], {**done, "state": "started", "retired": False}]
    told = judged({0: sent, 1: stuck}, {"0": [0, 1]})
    assert [one.inside.ranks for one in told.standstills] == [(1,), (1,)]


def test_coalesced_calls_are_compared_one_by_one() -> None:
    """Two reductions share a number; rank 2 has made them in the other order."""
    small, large = entry(op_id=1, input_sizes=[[4]]), entry(op_id=2, input_sizes=[[64]])
    swapped = [{**large, "op_id": 1}, {**small, "op_id": 2}]
    told = judged({0: [small, large], 1: [small, large], 2: swapped}, {"0": [0, 1, 2]})
    (one,) = told.standstills
    assert (one.kind, one.holding) == ("other", (2,))


def test_where_nobody_says_who_is_in_a_group_nobody_is_blamed() -> None:
    told = judged({0: [entry("gloo:all_reduce", 1, "scheduled", group=("1", "undefined"))], 1: []}, {})
    (one,) = told.standstills
    assert (one.kind, one.holding, one.inside.group) == ("unknown", (), "1")


def test_where_everything_is_finished_no_rank_stands() -> None:
    told = judged({0: [DONE], 1: [DONE], 2: []}, {"0": [0, 1, 2]})
    assert told.standstills == ()
    assert [(place.ranks, place.call) for place in told.idle] == [((0, 1), "all_reduce"), ((2,), "")]
