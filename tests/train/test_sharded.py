"""Sharded models under the same promise: any number of ranks, and any kill, give the same bits."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from launching import Start
from quantity import sampled

from holdfast.run.wire import PlannedFault

pytestmark = pytest.mark.slow

STEPS, FEW_STEPS = 8, 4
SPACING, PACE_S = 5, 0.4
"""Steps between kills, and the least time of a step: a lost member is back before the next kill."""


@pytest.mark.parametrize(
    "build",
    sampled(["sharded", "sharded_twice", "sharded_half", "sharded_in_part"], ["sharded_in_part"]),
)
def test_any_number_of_ranks_gives_the_same_bits(cluster: Any, build: str) -> None:
    alone = cluster.train(build, shard="1", steps=FEW_STEPS)
    assert alone.ending.outcome == "completed", alone.story
    for members, shard in ((2, "2"), (4, "2"), (4, "4")):
        several = cluster.train(build, members=members, shard=shard, steps=FEW_STEPS)
        assert several.ending.outcome == "completed", several.story
        assert several.digest == alone.digest, f"{members} members, --shard {shard}"
        assert several.losses == alone.losses


MOMENTS = ("lane", "reduce", "agree", "commit", "regroup")


def kills(*faults: tuple[int, str, int], kind: str = "kill") -> list[PlannedFault]:
    """Faults from (step, moment, rank)."""
    return [
        PlannedFault(id=number, step=step, moment=moment, rank=rank, fault=kind)  # type: ignore[arg-type]
        for number, (step, moment, rank) in enumerate(faults, start=1)
    ]


@pytest.mark.parametrize(
    ("moment", "rank"),
    sampled(
        [(moment, rank) for moment in MOMENTS for rank in range(4)],
        [("reduce", 3), ("regroup", 3)],
    ),
)
def test_a_rank_may_die_at_any_moment(cluster: Any, moment: str, rank: int) -> None:
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=STEPS)
    beside = rank ^ 1  # of the same replica: the other one has every part
    faults = (
        kills((3, "lane", beside), (3, moment, rank)) if moment == "regroup" else kills((3, moment, rank))
    )
    disturbed = cluster.train("sharded", members=4, shard="2", steps=STEPS, faults=faults)
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == len(faults), disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.steps_lost == 0


OF_BOTH_KINDS = ("sharded_and_tensor_parallel", [(2, "shard=1,tp=2"), (4, "shard=2,tp=2")])


@pytest.mark.parametrize(
    ("build", "layouts"),
    sampled(
        [
            ("sharded_tied", [(1, "1"), (4, "2")]),
            ("sharded_tied", [(2, "2"), (4, "2")]),
            ("sharded_accumulating", [(2, "2"), (4, "2")]),
            ("sharded_compiled", [(1, "1"), (4, "2")]),
            ("sharded_from_meta", [(1, "1"), (4, "2")]),
            ("sharded_average", [(1, "1"), (4, "2")]),
            ("tensor_parallel", [(2, "tp=2"), (4, "tp=2")]),
            OF_BOTH_KINDS,
        ],
        [OF_BOTH_KINDS],
    ),
)
def test_what_users_do_with_their_models(cluster: Any, build: str, layouts: list[tuple[int, str]]) -> None:
    found = [cluster.train(build, members=members, shard=shard, steps=4) for members, shard in layouts]
    for one in found:
        assert one.ending.outcome == "completed", one.story
        assert one.digest == found[0].digest
        assert one.losses == found[0].losses


def test_an_optimizer_that_needs_other_ranks_is_refused(cluster: Any) -> None:
    refused = cluster.train("sharded_by_norm", members=2, shard="2", steps=2)
    assert refused.ending.outcome == "failed"
    assert "before the first commit (exit 2)" in refused.story  # members print the reason on stderr


@pytest.mark.parametrize(
    "build", sampled(["sharded_average", "sharded_in_part", "tensor_parallel"], ["tensor_parallel"])
)
def test_any_model_survives_a_kill(cluster: Any, build: str) -> None:
    shard = "tp=2" if build == "tensor_parallel" else "2"
    undisturbed = cluster.undisturbed(build, members=2, shard=shard, steps=6)
    disturbed = cluster.train(
        build, members=4, shard=shard, steps=6, faults=kills((2, "lane", 1), (4, "agree", 2))
    )
    assert disturbed.struck == 2, disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story


def test_a_rank_that_was_shelved_for_some_steps_tells_of_the_last_of_them(cluster: Any) -> None:
    """Its script was in the lanes of the first of these steps all the time."""
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=STEPS)
    disturbed = cluster.train(
        "sharded", members=4, shard="2", steps=STEPS, warm=0, faults=kills((1, "lane", 0)), pace_s=0.05
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.losses == undisturbed.losses


@pytest.mark.soak
def test_a_rank_that_is_shelved_in_shared_work_is_not_left_with_a_wrong_result(cluster: Any) -> None:
    """The others are steps further when its replica is whole again: a new process takes its place."""
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=STEPS, meets=True)
    disturbed = cluster.train(
        "sharded",
        members=4,
        shard="2",
        steps=STEPS,
        warm=0,
        meets=True,
        deaths=[("n0.3", "1 item 5")],
        does="late n0.3 3",
        pace_s=PACE_S,
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert "n0.2 lost (left behind by the others)" in disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    met = [
        {where: results["share"] for where, results in json.loads(path.read_text())["met"].items()}
        for result in (undisturbed, disturbed)
        for path in sorted(result.folder.glob("*.json"))
    ]
    assert len(met) == 5, disturbed.story
    for shared in met:
        assert shared.items() <= met[0].items(), disturbed.story


def spaced_kills(seed: int, members: int, count: int) -> list[PlannedFault]:
    """One at a time, of ranks and nodes, at a random moment; some replacements die, too. A lost part has time
    to come back, so there is always a copy of every part.
    """
    drawn = random.Random(seed)
    faults: list[PlannedFault] = []
    for number in range(count):
        step, rank = 2 + SPACING * number, drawn.randrange(members)
        moment = drawn.choice(["lane", "reduce", "agree", "commit"])
        fault = "node" if number % 4 == 3 else "kill"
        planned = [(moment, fault)] if number % 3 or fault == "node" else [(moment, fault), ("join", "kill")]
        faults += [
            PlannedFault(id=len(faults) + one, step=step, moment=when, rank=rank, fault=what)  # type: ignore[arg-type]
            for one, (when, what) in enumerate(planned, start=1)
        ]
    return faults


@pytest.mark.soak
@pytest.mark.parametrize(
    ("nodes", "members", "shard", "kills"),
    [(2, 2, "2", 6), (2, 2, "2", 30), (3, 2, "2", 30), (4, 1, "2", 30)],
)
def test_many_kills_leave_no_trace(cluster: Any, nodes: int, members: int, shard: str, kills: int) -> None:
    steps = SPACING * kills + 4
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=steps)
    disturbed = cluster.train(
        "sharded",
        nodes=nodes,
        members=members,
        shard=shard,
        steps=steps,
        pace_s=PACE_S,
        faults=spaced_kills(100 * nodes + members, nodes * members, kills),
    )
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck >= kills, disturbed.story
    assert disturbed.unexplained == [], disturbed.story
    assert disturbed.digest == undisturbed.digest, disturbed.story
    assert disturbed.losses.items() <= undisturbed.losses.items()
    assert disturbed.steps_lost == 0, disturbed.story


WHOLE = """
import torch
import holdfast.train as hf

with hf.join() as run:
    model = torch.nn.Linear(2, 2)
    state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), lanes=4, seed=1)
    for step in state.steps(2):
        for lane in step.lanes:
            lane.backward(model(torch.ones(1, 2)).sum())
        step.commit()
"""


def test_a_script_that_shards_nothing_is_warned_once(tmp_path: Path) -> None:
    start = Start(tmp_path)
    launched = start("--nproc-per-node", "2", "--shard", "2", "--warm", "0", script=WHOLE)
    try:
        assert launched.wait() == 0, launched.err
    finally:
        launched.close()
    said = [line for line in launched.err if "does not use run.mesh" in line]
    assert len(said) == 1, launched.err
    assert "--shard asks for replicas of 2 ranks" in said[0]
