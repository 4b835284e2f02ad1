"""What dumps tell, in sentences, and as evidence of an incident that is a hang."""

from collections.abc import Callable

import msgspec
import pytest

from holdfast.detect.standstill import Place, RanksStanding, Standstill
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.standing import action, as_json, is_of, ranks_text, sentence, summary, with_standing
from holdfast.signals.flight_dumps import CodeLine

Make = Callable[..., Incident]
S = 10**9
BEGAN_NS = 1_772_442_000 * S
AT_NS = BEGAN_NS + 300 * S
INSIDE = Place(
    ranks=(0, 2, 3),
    call="all_reduce",
    group="default_pg",
    seq=812,
    is_finished=False,
    elements=4_096,
    types=("BFloat16",),
    lines=(CodeLine("train_step", "train.py", 88),),
)
LOADING = msgspec.structs.replace(
    INSIDE, ranks=(1,), seq=811, is_finished=True, lines=(CodeLine("backward", "train.py", 80),)
)
STANDSTILL = Standstill(
    kind="absent",
    inside=INSIDE,
    others=(LOADING,),
    absent=(1,),
    holding=(1,),
    undumped=(),
    size=4,
    since_ns=BEGAN_NS + S,
    timed_out=False,
)
TOLD = RanksStanding(ranks=4, standstills=(STANDSTILL,), idle=(), undumped=(), unreadable={}, circular=False)


def with_(**changes: object) -> RanksStanding:
    return msgspec.structs.replace(TOLD, standstills=(msgspec.structs.replace(STANDSTILL, **changes),))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([7, 0, 2, 3, 4], "ranks 0, 2-4, 7"),
        (
            range(0, 4_096, 2),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, … (2,048 in all)",
        ),
    ],
)
def test_ranks_are_written_as_stretches(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_a_sentence_names_the_collective_and_who_is_not_in_it() -> None:
    assert summary(TOLD) == (
        "3 of 4 ranks stand in all_reduce #812 of group default_pg (4,096 elements, BFloat16) since "
        "2026-03-02 09:00:01Z; rank 1 has not entered it."
    )
    assert action(TOLD).startswith("Look at rank 1: take a stack")
    assert as_json(TOLD)["summary"] == summary(TOLD)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"undumped": (1,), "absent": (), "others": ()}, "; there is no dump of rank 1."),
        (
            {"undumped": (1,), "unreadable": (1,), "absent": (), "others": ()},
            "; the dump of rank 1 cannot be used.",
        ),
        (
            {
                "kind": "other",
                "absent": (),
                "others": (msgspec.structs.replace(LOADING, seq=812, elements=9),),
            },
            "; rank 1 entered all_reduce (9 elements, BFloat16) instead.",
        ),
        ({"kind": "not-started", "absent": ()}, "; the GPU of rank 1 has not begun it."),
        (
            {"kind": "everybody", "absent": (), "others": (), "holding": (), "timed_out": True},
            ", which has timed out, and it does not end.",
        ),
    ],
)
def test_what_holds_them_up_is_said(changes: dict[str, object], ends: str) -> None:
    told = with_(**changes)
    assert sentence(told.standstills[0]).endswith(ends)
    assert action(told)


def test_that_none_stands_is_said_and_so_is_who_left_no_dump() -> None:
    none = msgspec.structs.replace(TOLD, standstills=())
    assert summary(none) == "No rank stands in a collective: each has finished all that it has entered."
    died = msgspec.structs.replace(none, undumped=(3,))
    assert summary(died) == "No rank stands in a collective, and there is no dump of rank 3."
    assert action(died) == "Look at rank 3: the process died, or its node cannot be reached."


def test_a_rank_whose_dump_cannot_be_used_is_not_said_to_have_died() -> None:
    both = with_(undumped=(1, 3), unreadable=(3,), absent=(), others=(), holding=(1, 3))
    assert summary(both).endswith("; there is no dump of rank 1; the dump of rank 3 cannot be used.")
    died, damaged = action(both).split(". ")
    assert died == "Look at rank 1: the process died, or its node cannot be reached"
    assert damaged.startswith("Get the dump of rank 3 again, or a stack")
    none = msgspec.structs.replace(
        TOLD, standstills=(), undumped=(2, 3), unreadable={2: "it is damaged", 3: "it is damaged"}
    )
    assert summary(none) == "No rank stands in a collective, and the dumps of ranks 2-3 cannot be used."
    assert action(none).startswith("Get the dumps of ranks 2-3 again")


@pytest.mark.parametrize(
    ("inside", "size", "begins"),
    [
        ((0,), 1, "The only rank stands in "),
        ((0,), 2, "1 of 2 ranks stands in "),
        ((0, 1), 2, "All 2 ranks stand in "),
    ],
)
def test_one_rank_stands_and_several_stand(inside: tuple[int, ...], size: int, begins: str) -> None:
    told = with_(size=size, inside=msgspec.structs.replace(INSIDE, ranks=inside))
    assert summary(told).startswith(begins)


@pytest.mark.parametrize(
    ("others_ns", "is_told"),
    [((0,), True), ((BEGAN_NS - 3_600 * S, BEGAN_NS + S), True), ((BEGAN_NS - 3_600 * S,), False)],
    ids=["says no time", "the second is of the hang", "none is"],
)
def test_dumps_are_of_a_hang_if_any_standstill_may_be(
    incident: Make, others_ns: tuple[int, ...], *, is_told: bool
) -> None:
    stands = tuple(msgspec.structs.replace(STANDSTILL, since_ns=since_ns) for since_ns in others_ns)
    told = msgspec.structs.replace(TOLD, standstills=stands)
    assert is_of(incident(mechanism="hang", began_ns=BEGAN_NS), told, AT_NS) is is_told


def test_a_hang_has_it_as_evidence(incident: Make) -> None:
    hang = incident(mechanism="hang", began_ns=BEGAN_NS, confidence=0.6, quality=0.8)
    (told,) = with_standing([hang], TOLD, AT_NS)
    assert told.evidence[: len(hang.evidence)] == hang.evidence
    first, second = told.evidence[len(hang.evidence) :]
    assert (first.text, first.weight) == (summary(TOLD).rstrip("."), 1.0)
    assert second.text == "rank 1: after all_reduce #811 of group default_pg, its last; backward, train.py:80"
    # Odds of 0.6 to 0.2 become ten times as large, of the 0.8 that the telemetry is trusted with.
    assert told.confidence == pytest.approx(0.8 * 30 / 31)
    assert told.decides == "A stack (py-spy dump) of rank 1."
    assert told.action == action(TOLD)


def test_with_a_stack_it_says_where_the_rank_is_now(incident: Make) -> None:
    looked = msgspec.structs.replace(TOLD, stacks={1: (CodeLine("load_batch", "loader.py", 33),)})
    hang = incident(mechanism="hang", began_ns=BEGAN_NS)
    (told,) = with_standing([hang], looked, AT_NS)
    assert told.evidence[-1].text == "rank 1 is now at load_batch, loader.py:33, by its stack"
    assert told.decides == hang.decides


@pytest.mark.parametrize(
    "since_ns", [BEGAN_NS - 3_600 * S, AT_NS + S], ids=["an earlier hang", "a later one"]
)
def test_dumps_of_another_hang_are_no_evidence(incident: Make, since_ns: int) -> None:
    hang = incident(mechanism="hang", began_ns=BEGAN_NS)
    assert with_standing([hang], with_(since_ns=since_ns), AT_NS) == (hang,)


def test_other_incidents_stay_as_they_are(incident: Make) -> None:
    others = (incident(), incident(mechanism="hang", ended_ns=AT_NS))
    assert with_standing(others, TOLD, AT_NS) == others
    assert with_standing(others, None, AT_NS) == others
