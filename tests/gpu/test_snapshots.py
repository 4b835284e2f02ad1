"""Snapshots of what is on a GPU: taken beside the steps, found whole, and the run goes on from them."""

from functools import partial
from typing import Any

import pytest
import torch
from forked_cluster import BY_COST, Cluster
from mass_kills import goes_on_from, killing
from waiting import until

from holdfast.run.memory import HeldMemory
from holdfast.train.manifest_file import Share
from holdfast.train.snapshots import MemorySnapshots

LARGE = 1 << 24
SPINS = 40


class Heard:
    """What was told."""

    def __init__(self) -> None:
        self.kept_steps: list[int] = []
        self.failures: list[str] = []

    def kept(self, step: int, stall_ns: int, size_bytes: int) -> None:
        self.kept_steps.append(step)

    def failed(self, step: int, place: str, reason: str) -> None:
        self.failures.append(reason)


@pytest.mark.parametrize(
    ("build", "members", "nodes", "shard"),
    [("plain", 1, 1, ""), ("plain", 2, 2, ""), ("sharded", 2, 1, "2")],
)
def test_all_members_killed_at_once_go_on_from_the_snapshot(
    cluster: Cluster, build: str, members: int, nodes: int, shard: str
) -> None:
    """There are no checkpoints: without snapshots they would begin anew."""
    train = partial(cluster.train, build, members=members, nodes=nodes, shard=shard, steps=18)
    run = train(pace_s=0.1, snapshot_every=2, meanwhile=killing(cluster, [7, 12]))
    assert run.ending.outcome == "completed", run.story
    assert len(goes_on_from(run)) >= 2, run.story
    assert min(goes_on_from(run)) >= 2, run.story
    assert run.digest == train().digest, run.story


def test_what_is_kept_is_the_state_before_it_was_changed(has_gpu: bool) -> None:
    """The copy goes on beside the next step's work, and the change of the state waits for it."""
    device = torch.device("cuda" if has_gpu else "cpu")
    heard = Heard()
    held = HeldMemory(1)
    snapshots = MemorySnapshots(held.slots, 0, node="n0", device=device, told=heard, every=1)
    weights = torch.randn(LARGE, device=device)
    small = torch.arange(3, device=device)
    state = {"version": 1, "state": {"weights": weights, "small": small, "host": torch.ones(5)}}
    snapshots.take(1, state, Share(0, 1, "a"))
    until(lambda: not snapshots.is_busy)  # its memory is ready
    for step in range(2, 6):
        before = weights.clone()
        work = torch.randn(2048, 2048, device=device)
        state["version"] = step
        snapshots.take(step, state, Share(0, 1, "a"))
        for _ in range(SPINS):
            work = (work @ work).tanh()
        snapshots.hold_back()
        weights.mul_(1.5)
        small.add_(1)
        until(lambda: not snapshots.is_busy)
        found = MemorySnapshots(held.slots, 0, node="n0", device=device, told=heard).newest()
        assert found is not None
        assert found.step == step
        kept: Any = found.state["state"]
        assert kept["weights"].device.type == device.type
        assert torch.equal(kept["weights"], before)
        assert torch.equal(kept["small"], small - 1)
        assert torch.equal(kept["host"], torch.ones(5))
    assert not heard.failures
    snapshots.close()


def test_a_run_takes_them_unasked(cluster: Cluster) -> None:
    train = partial(cluster.train, "plain", members=2, steps=60)
    run = train(pace_s=0.1, snapshot_every=BY_COST, meanwhile=killing(cluster, [45]))
    assert run.ending.outcome == "completed", run.story
    assert min(goes_on_from(run)) >= 2, run.story
    assert run.digest == train().digest, run.story
