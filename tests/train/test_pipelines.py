"""Pipelines inside replicas: any number of replicas, and any kill of a stage, give the same bits."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from quantity import sampled
from test_sharded import kills
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)

from holdfast.record.errors import InputError
from holdfast.run.mesh import MeshShape
from holdfast.train.group import GroupBroken
from holdfast.train.mesh import MeshGroup, make_mesh
from holdfast.train.pipelines import Pipeline
from holdfast.train.sharding import Line

STEPS = 6
CPU = torch.device("cpu")
STUCK_S = 20.0
"""Only an endless wait takes this long."""


def undisturbed(cluster: Any, build: str, members: int) -> Any:
    shard = "1" if build == "unpiped" else "pp=2"
    return cluster.undisturbed(build, members=members, shard=shard, steps=STEPS)


def survived(disturbed: Any, expected: Any) -> None:
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.digest == expected.digest, disturbed.story
    assert disturbed.steps_lost == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", sampled(["piped", "piped_gpipe", "piped_interleaved"], ["piped_interleaved"])
)
def test_a_pipeline_has_the_bits_of_one_process(cluster: Any, build: str) -> None:
    alone = undisturbed(cluster, "unpiped", 1)
    for members in (2, 4):
        several = undisturbed(cluster, build, members)
        assert several.digest == alone.digest, f"{members} members"
        assert several.losses == alone.losses


@pytest.mark.soak
def test_any_number_of_replicas_draws_the_same(cluster: Any) -> None:
    one = undisturbed(cluster, "piped_by_chance", 2)
    for nodes, members in ((1, 4), (3, 2)):
        more = cluster.train("piped_by_chance", nodes=nodes, members=members, shard="pp=2", steps=STEPS)
        assert more.ending.outcome == "completed", more.story
        assert more.digest == one.digest, f"{nodes * members} members"
        assert more.losses == one.losses


@pytest.mark.soak
@pytest.mark.parametrize(
    ("build", "dimension", "nodes"),
    [
        (*kind, nodes)
        for kind in (("piped_sharded", "shard"), ("piped_tensor_parallel", "tp"))
        for nodes in (1, 2)
    ],
)
def test_a_stage_may_be_several_ranks(cluster: Any, build: str, dimension: str, nodes: int) -> None:
    shard = f"pp=2,{dimension}=2"
    one = cluster.train(build, members=4, shard=shard, steps=STEPS)
    assert one.ending.outcome == "completed", one.story
    faults = kills((2, "lane", 3), (4, "agree", 0))
    disturbed = cluster.train(build, nodes=nodes, members=4, shard=shard, steps=STEPS, faults=faults)
    assert disturbed.struck == len(faults), disturbed.story
    survived(disturbed, one)


MOMENTS = ("lane", "reduce", "agree", "commit", "regroup")
CASES = [(moment, rank) for moment in MOMENTS for rank in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "rank"), sampled(CASES, [("reduce", 3)]))
def test_a_stage_may_die_at_any_moment(cluster: Any, moment: str, rank: int) -> None:
    first = [(3, "lane", rank ^ 1)] if moment == "regroup" else []  # of the same replica
    faults = kills(*first, (3, moment, rank))
    disturbed = cluster.train("piped_by_chance", members=4, shard="pp=2", steps=STEPS, faults=faults)
    assert disturbed.struck == len(faults), disturbed.story
    survived(disturbed, undisturbed(cluster, "piped_by_chance", 2))


@pytest.mark.slow
@pytest.mark.parametrize("moment", sampled(("lane", "reduce", "agree", "commit"), ["agree"]))
def test_a_stage_without_a_copy_is_made_again(cluster: Any, moment: str) -> None:
    faults = kills((3, moment, 0), (5, moment, 1))
    disturbed = cluster.train("piped", members=2, shard="pp=2", steps=STEPS, faults=faults)
    assert disturbed.struck == len(faults), disturbed.story
    survived(disturbed, undisturbed(cluster, "unpiped", 1))


BUILDS = ("piped", "piped_gpipe", "piped_interleaved")
SPOTS = ("forward 1", "forward 35", "backward 34", "backward 36")
DEATHS = [(build, spot, rank) for build in BUILDS for spot in SPOTS for rank in (0, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "spot", "rank"),
    sampled(DEATHS, [("piped_gpipe", "backward 34", 3)]),
)
def test_a_stage_may_die_between_microbatches(cluster: Any, build: str, spot: str, rank: int) -> None:
    """In the very first one, in the middle, and in the last one of a lane."""
    deaths = [(f"n0.{rank}", spot)]
    disturbed = cluster.train(build, members=4, shard="pp=2", steps=STEPS, deaths=deaths)
    assert any(f"n0.{rank} lost (" in line for line in disturbed.said), disturbed.story
    survived(disturbed, undisturbed(cluster, "unpiped", 1))


# ---- exchanges between stages ----------------------------------------------------------------------------


def test_a_stage_posts_a_receive_before_anything_is_sent(together: Any) -> None:
    def exchange(group: Any) -> list[float]:
        line = Line()
        line.carry(group)
        mesh = MeshGroup(line, range(2), group.rank, CPU)
        peer = 1 - group.rank
        came = torch.full((2, 3), -1.0).t().requires_grad_(True)  # not contiguous, and with a gradient
        receiving = mesh.recv([came], peer, 0)
        given = torch.arange(6.0).view(3, 2) + 10 * group.rank
        sending = mesh.send([given], peer, 0)
        given.zero_()
        sending.wait()
        receiving.wait()
        found: list[float] = came.flatten().tolist()
        return found

    assert together(2, exchange) == [[10.0, 11.0, 12.0, 13.0, 14.0, 15.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]


class StrictGroup:
    """As on a device: one exchange after the other, and a send ends when it is received."""

    is_ordered = True

    def __init__(self, group: Any) -> None:
        self.rank, self._group = group.rank, group
        self._stream = ThreadPoolExecutor(1)

    def along(self) -> Any:
        return nullcontext()

    def exchange(self, sends: Any, receives: Any, tag: int, *, is_kept: bool) -> "StrictWork":
        return StrictWork(self._stream.submit(self._move, sends, receives, tag))

    def _move(self, sends: Any, receives: Any, tag: int) -> None:
        self._group.exchange(sends, receives, tag).wait()
        token = torch.zeros(1)
        tokens = [(token, peer) for _, peer in receives], [(token.clone(), peer) for _, peer in sends]
        self._group.exchange(*tokens, tag + 1).wait()


class StrictWork:
    def __init__(self, moved: "Future[None]") -> None:
        self._moved = moved

    def wait(self) -> None:
        self._moved.result(timeout=STUCK_S)


def test_two_stages_may_both_send_first_on_a_device(together: Any) -> None:
    """As 1F1B does in each turn: a microbatch goes one way, and a gradient the other."""

    def exchange(group: Any) -> list[float]:
        line = Line()
        strict: Any = StrictGroup(group)
        line.carry(strict)
        mesh = MeshGroup(line, range(2), group.rank, CPU)
        came = [torch.empty(2) for _ in range(4)]
        for turn in range(2):
            works = [mesh.send([torch.full((2,), 4.0 * turn + part)], 1 - group.rank, 0) for part in range(2)]
            works += [mesh.recv([came[2 * turn + part]], 1 - group.rank, 0) for part in range(2)]
            for work in works:
                work.wait()
        return [one[0].item() for one in came]

    assert together(2, exchange) == [[0.0, 1.0, 4.0, 5.0]] * 2


class BrokenGroup:
    """Every operation fails: a peer is gone."""

    rank, size, is_ordered = 0, 2, False

    def __getattr__(self, name: str) -> Any:
        raise GroupBroken("a peer is gone")


def test_a_receive_that_fails_in_a_lane_gives_zeros() -> None:
    line = Line()
    line.carry(BrokenGroup())
    line.begin()
    came = torch.ones(3, requires_grad=True)
    MeshGroup(line, range(2), 0, CPU).recv([came], 1, 0).wait()
    assert came.tolist() == [0.0, 0.0, 0.0]
    assert isinstance(line.end(), GroupBroken)
    with pytest.raises(GroupBroken):
        MeshGroup(line, range(2), 0, CPU).recv([came], 1, 0).wait()


# ---- mistakes --------------------------------------------------------------------------------------------


def test_a_tensor_on_another_device_is_refused() -> None:
    group: Any = MeshGroup(Line(), range(2), 0, CPU)
    elsewhere = torch.zeros(3, device="meta")
    for call, more in ((group.allreduce, ()), (group.send, (1, 0))):
        with pytest.raises(InputError, match="given a tensor on meta, but its ranks exchange on cpu"):
            call([elsewhere], *more)


@pytest.fixture
def mesh_group() -> Iterator[Any]:
    mesh = make_mesh(Line(), MeshShape.parse("pp=1"), 0, CPU)
    yield mesh.get_group("pp")
    dist.destroy_process_group()


BORDER = torch.empty(2, 3, device="meta", requires_grad=True)


def stage_of(mesh_group: Any, number: int = 0, count: int = 1, **told: Any) -> Any:
    return PipelineStage(
        nn.Linear(3, 3),
        number,
        count,
        CPU,
        **{"input_args": BORDER, "output_args": BORDER, "group": mesh_group, **told},
    )


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def refused(pipeline: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as raised:
        pipeline()
    return str(raised.value)


def test_a_schedule_that_cannot_be_kept_is_refused(mesh_group: Any) -> None:
    stage = stage_of(mesh_group)
    assert "given a Linear" in refused(lambda: Pipeline(nn.Linear(3, 3)))
    assert "has no loss" in refused(lambda: Pipeline(ScheduleGPipe(stage, 2)))
    halves = [stage_of(mesh_group, number, 2) for number in range(2)]
    split = ScheduleInterleavedZeroBubble(halves, 2, loss_fn=loss_of)
    assert "ScheduleInterleavedZeroBubble" in refused(lambda: Pipeline(split))


def test_a_schedule_is_checked_once(mesh_group: Any) -> None:
    schedule = ScheduleGPipe(stage_of(mesh_group), 2, loss_fn=loss_of)
    assert Pipeline.of(schedule) is Pipeline.of(schedule)


def test_a_stage_that_must_ask_others_is_refused(mesh_group: Any) -> None:
    def pipeline(*place: int, **told: Any) -> Pipeline:
        return Pipeline(Schedule1F1B(stage_of(mesh_group, *place, **told), 2, loss_fn=loss_of))

    assert "was not told what it takes" in refused(lambda: pipeline(input_args=None))
    assert "group that the run does not know" in refused(lambda: pipeline(group=None))
    plain = torch.empty(2, 3, device="meta")
    assert "No gradient would flow" in refused(lambda: pipeline(0, 2, output_args=plain))
    assert "No gradient would flow" in refused(lambda: pipeline(1, 2, input_args=plain))


def test_a_stage_that_gives_something_else_is_refused(mesh_group: Any) -> None:
    other = torch.empty(2, 4, device="meta", requires_grad=True)
    stages = [
        stage_of(mesh_group, 0, 2, output_args=other),
        stage_of(mesh_group, 1, 2, input_args=other),
    ]
    pipeline = Pipeline(ScheduleLoopedBFS(stages, 2, loss_fn=loss_of))
    x = torch.ones(4, 3)
    assert "Stage 0 of the pipeline gives" in refused(lambda: pipeline.step(1.0, [x], x, {}))


def test_an_invalid_loss_is_refused(mesh_group: Any) -> None:
    pipeline = Pipeline(ScheduleGPipe(stage_of(mesh_group), 2, loss_fn=lambda output, target: output))
    x = torch.ones(4, 3)
    assert "has no target" in refused(lambda: pipeline.step(1.0, [x], None, {}))
    assert "a loss of one element" in refused(lambda: pipeline.step(1.0, [x], x, {}))


def test_gradients_are_the_lanes_share(mesh_group: Any) -> None:
    """Gradients of a mean or of a sum, as the schedule says; the schedule is restored afterwards."""
    x, target = torch.randn(4, 3), torch.randn(4, 3)
    for is_mean, factor in ((True, 0.125), (False, 0.25)):
        stage = stage_of(mesh_group)
        schedule = Schedule1F1B(stage, 2, loss_fn=loss_of, scale_grads=is_mean)
        losses: list[torch.Tensor] = []
        found = Pipeline(schedule).step(0.25, [x], target, {"losses": losses})
        got = stage.submod.weight.grad.clone()
        stage.submod.zero_grad()
        parts = [loss_of(stage.submod(x[:2]), target[:2]), loss_of(stage.submod(x[2:]), target[2:])]
        for part in parts:
            part.backward(torch.tensor(factor))  # type: ignore[no-untyped-call]
        assert torch.equal(got, stage.submod.weight.grad)
        assert [loss.item() for loss in losses] == [part.item() for part in parts]
        assert [loss.item() for loss in found] == [part.item() * factor * 4 for part in parts]
        assert (schedule._loss_fn, schedule.scale_grads) == (loss_of, is_mean)
