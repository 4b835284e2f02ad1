"""Collectives of scripts, on real members: whichever member dies, all survivors have the same results."""

import json
import random
from typing import Any

import pytest
from forked_cluster import Result

from holdfast.run.serving import SEND_BUFFER_BYTES_MAX
from holdfast.run.wire import PlannedFault
from holdfast.train.meeting import TOLD_BYTES_MAX, own_bytes_max
from holdfast.train.minutes import KEPT_BYTES_MAX

pytestmark = pytest.mark.slow

STEPS = 8
HALF, END = f"after {STEPS // 2}", f"after {STEPS}"
"""After the first loop, and after the last one."""
Death = tuple[str, str]


@pytest.fixture(scope="module")
def alone(cluster: Any) -> Result:
    result: Result = cluster.train("plain", steps=STEPS, meets=True)
    assert result.ending.outcome == "completed", result.story
    return result


def met(result: Result) -> dict[str, dict[str, Any]]:
    """The results of the collectives, after checking that all members that saw the end agree."""
    found: dict[str, dict[str, Any]] = {}
    for path in result.folder.glob("*.json"):
        for where, results in json.loads(path.read_text())["met"].items():
            assert found.setdefault(where, results) == results, f"{path.stem} differs {where}"
    return found


def log(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.folder / "log.jsonl").read_text().splitlines()]


def check(result: Result, alone: Result) -> dict[str, dict[str, Any]]:
    """The run ended with the same bits, the same shared work and the same log as one member by itself."""
    assert result.ending.outcome == "completed", result.story
    assert result.digest == alone.digest
    found, expected = met(result), met(alone)
    assert {"before", HALF, END} <= set(found)
    for where, results in found.items():
        # If no member was left, a checkpoint is loaded, and the work after it is repeated with its weights.
        if where not in ("before", HALF) or not result.was_empty:
            assert results["share"] == expected[where]["share"], result.story
    assert log(result) == log(alone)
    assert [line["step"] for line in log(result)] == list(range(1, STEPS + 1))
    return found


@pytest.mark.parametrize("members", [1, 2, 3, 64, 10_000])
def test_a_member_that_does_not_read_for_a_while_is_not_given_up(members: int) -> None:
    """All results that it lacks, and the values of the next collective, are kept for it."""
    handed = 2 * KEPT_BYTES_MAX
    told = members * own_bytes_max(members)
    assert handed + told < SEND_BUFFER_BYTES_MAX
    assert told >= TOLD_BYTES_MAX - members  # and the allowed amount can still be sent


def test_one_member_by_itself_has_its_own_values(alone: Result) -> None:
    found = met(alone)
    assert set(found) == {"before", HALF, END, *(str(step) for step in range(1, STEPS + 1, 2))}
    assert len(set(found["3"]["share"])) == 7
    assert found["3"]["share"] != found["5"]["share"]
    assert found["3"]["broadcast"] == "n0.0"
    assert found["3"]["gather"] == [["n0.0", {"n": [1, None]}]]
    assert found["3"]["reduce"] == [1.0, 0.0]


@pytest.mark.parametrize("members", [2, 4])
def test_any_number_of_members_shares_to_the_same_bits(cluster: Any, alone: Result, members: int) -> None:
    found = check(cluster.train("plain", members=members, steps=STEPS, meets=True), alone)
    names = [f"n0.{number}" for number in range(members)]
    for results in found.values():
        assert results["broadcast"] == "n0.0"
        assert [name for name, _ in results["gather"]] == names
        assert results["reduce"] == [1.0, members - 1.0]


@pytest.mark.parametrize(
    ("members", "deaths"),
    [
        # In the middle of shared work, and right after it; also the member that others copy from.
        pytest.param(2, [("n0.1", "3 item 5")], marks=pytest.mark.soak),
        (3, [("n0.0", "3 item 1"), ("n0.1", "3 item 4"), ("n0.2", "5 share")]),
        # Each of the others, whose result some members may have and some not.
        (3, [("n0.1", "1 broadcast"), ("n0.0", "3 gather"), ("n0.2", "5 reduce")]),
        pytest.param(2, [("n0.0", "5 barrier"), ("n0.1", "7 gather")], marks=pytest.mark.soak),
        # Rank 0, before it has logged its step, and after that.
        (3, [("n0.0", "2 committed"), ("n0.1", "4 logged"), ("n0.2", "8 committed")]),
        # Between two loops: a newcomer's script goes through what came before the first one.
        (2, [("n0.0", f"{HALF} item 2"), ("n0.1", f"{HALF} gather"), ("n0.2", "5 reduce")]),
        # Before the first step, and after the last.
        pytest.param(2, [("n0.1", "before gather"), ("n0.0", f"{END} share")], marks=pytest.mark.soak),
        (3, [("n0.0", "before broadcast"), ("n0.1", f"{END} item 3"), ("n0.2", f"{END} barrier")]),
    ],
)
def test_a_death_between_steps_leaves_no_trace(
    cluster: Any, alone: Result, members: int, deaths: list[Death]
) -> None:
    result = cluster.train("plain", members=members, steps=STEPS, meets=True, deaths=deaths)
    lost = [line for line in result.said if " lost (SIGKILL)" in line]
    assert len(lost) >= len(deaths) - 1, result.story  # the last one may come with the end of the run
    check(result, alone)


def test_nodes_that_go_and_return_find_the_results_they_missed(cluster: Any, alone: Result) -> None:
    """The run shrinks in a meeting, grows at a boundary, and meanwhile loses a member in the lanes."""
    faults = [
        PlannedFault(id=1, step=1, moment="meeting", rank=2, fault="node", for_s=0.3),
        PlannedFault(id=2, step=3, moment="lane", rank=1),
        PlannedFault(id=3, step=4, moment="commit", rank=0),
        PlannedFault(id=4, step=5, moment="meeting", rank=0),
    ]
    result = cluster.train(
        "plain", nodes=2, members=2, steps=STEPS, meets=True, faults=faults, pace_s=0.05, checkpoint_every=1
    )
    assert result.struck == len(faults), result.story
    check(result, alone)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_storm_of_deaths_leaves_no_trace(cluster: Any, alone: Result, seed: int) -> None:
    """Anywhere between steps and in them, also while the members regroup after another death."""
    chance = random.Random(seed)
    moments: list[Any] = ["meeting", "meeting", "lane", "reduce", "commit", "regroup", "state", "join"]
    faults = [
        PlannedFault(id=number, step=chance.randint(1, STEPS), moment=chance.choice(moments), rank=rank)
        for number, rank in enumerate(chance.choices(range(4), k=10), start=1)
    ]
    spots = ["share", "broadcast", "gather", "reduce", "barrier", "item 1", "item 4", "item 6"]
    wheres = ["before", *map(str, range(1, STEPS, 2)), HALF, END]
    deaths = [
        (f"n{node}.{slot}", f"{chance.choice(wheres)} {chance.choice(spots)}")
        for node in range(2)
        for slot in range(3)
    ]
    result = cluster.train(
        "plain", nodes=2, members=2, steps=STEPS, meets=True, faults=faults, deaths=deaths, checkpoint_every=1
    )
    check(result, alone)
