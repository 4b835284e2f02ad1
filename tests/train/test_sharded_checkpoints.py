"""Checkpoints of sharded runs: each rank's part, and resuming from them with any other number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from quantity import sampled
from sharded_models import Stack, whole_digest, with_adamw
from torch.distributed.checkpoint.state_dict_loader import load

from holdfast.cli.checkpoint import export
from holdfast.run.wire import PlannedFault
from holdfast.train.checkpoint import DirectoryCheckpoints, read
from holdfast.train.kept import KeptStep, kept_steps

pytestmark = pytest.mark.slow

IN_TURN = (
    ("sharded", 2, "2"),
    ("sharded", 4, "2"),
    ("sharded", 4, "4"),
    ("sharded", 1, "1"),
    ("unsharded", 2, ""),
    ("sharded", 2, "2"),
)
"""Models, numbers of members, and how many of these form a replica."""
PACE_S = 0.5
"""The least time of a step: the checkpoint of the previous one is durable by then."""


def go_on(
    cluster: Any, build: str, members: int, shard: str, steps: int, first: Any, pace_s: float = 0.0
) -> Any:
    run = cluster.train(
        build,
        members=members,
        shard=shard,
        steps=steps,
        checkpoint_every=1,
        going_on_with=first,
        pace_s=pace_s,
    )
    assert run.ending.outcome == "completed", run.story
    return run


def test_a_run_goes_on_with_any_number_of_ranks(cluster: Any) -> None:
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=2 * len(IN_TURN))
    first = None
    for number, (build, members, shard) in enumerate(IN_TURN, start=1):
        run = go_on(cluster, build, members, shard, 2 * number, first)
        first = first or run
        assert list(run.losses) == [2 * number - 1, 2 * number], run.story
        assert run.losses.items() <= undisturbed.losses.items()
    assert run.digest == undisturbed.digest


@pytest.mark.soak
def test_what_is_whole_on_every_rank_goes_on_too(cluster: Any) -> None:
    undisturbed = cluster.undisturbed("sharded_in_part", shard="1", steps=4)
    first = go_on(cluster, "sharded_in_part", 4, "4", 2, None)
    assert go_on(cluster, "sharded_in_part", 2, "2", 4, first).digest == undisturbed.digest


@pytest.mark.soak
def test_tensor_parallel_parts_are_cut_anew(cluster: Any) -> None:
    """The state is the same; later steps depend on `tp`, and are not compared."""
    both = "sharded_and_tensor_parallel"
    first = go_on(cluster, both, 4, "shard=2,tp=2", 2, None)
    assert [kept.ranks for kept in kept_steps(first.folder / "checkpoints") if kept.step == 2] == [4]
    for build, members, shard in ((both, 2, "shard=1,tp=2"), (both, 2, "shard=2,tp=1"), ("narrow", 1, "")):
        run = go_on(cluster, build, members, shard, 2, first)
        assert run.losses == {}, run.story
        assert run.digest == first.digest, shard
        for path in Path(first.folder, "checkpoints").rglob("*.checkpoint"):
            if "-of-4" not in str(path):
                path.unlink()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # torch warns when it loads without it
def test_an_export_is_what_torch_itself_loads(cluster: Any, tmp_path: Path) -> None:
    """Four ranks' parts in a plain model: as one file, and as `torch.distributed.checkpoint` reads it."""
    run = go_on(cluster, "sharded", 4, "4", 2, None)
    folder = str(run.folder / "checkpoints")
    export.command.main([folder, "--to", str(tmp_path / "all.pt")], standalone_mode=False)
    export.command.main([folder, "--to", str(tmp_path / "dcp"), "--format", "dcp"], standalone_mode=False)
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    assert found["step"] == 2
    model, (optimizer, _), _ = with_adamw(Stack())
    assert isinstance(optimizer, torch.optim.Optimizer)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert whole_digest(model, [optimizer]) == run.digest

    model, (optimizer, _), _ = with_adamw(Stack())
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert whole_digest(model, [optimizer]) != run.digest
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # creates the state to load into
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
    load(states, checkpoint_id=tmp_path / "dcp", no_dist=True)
    optimizer.load_state_dict(states["optimizer"])  # type: ignore[arg-type]
    assert states["step"] == 2
    assert whole_digest(model, [optimizer]) == run.digest


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_a_step_counts_only_if_all_its_parts_are_sound(cluster: Any) -> None:
    """Two ranks kept steps 3 and 4; on one of them the part of 4 is damaged, so both begin from 3. With other
    ranks, neither a damaged nor a missing part is used.
    """
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=6)
    first = go_on(cluster, "sharded", 2, "2", 3, None)
    go_on(cluster, "sharded", 2, "2", 4, first)
    damage(kept_steps(first.folder / "checkpoints")[-1].paths[1])
    again = go_on(cluster, "sharded", 2, "2", 5, first)
    assert list(again.losses) == [4, 5], again.story
    assert "its hash does not agree" in again.story
    kept_steps(first.folder / "checkpoints")[-1].paths[0].unlink()
    other = go_on(cluster, "sharded", 4, "4", 6, first)
    assert list(other.losses) == [5, 6], other.story
    assert other.digest == undisturbed.digest


def rewrite(kept: KeptStep, rail: int, **told: object) -> None:
    """Make a rank's part describe itself differently."""
    path = kept.paths[rail]
    state = read(path).state
    note = state["shards"]
    assert isinstance(note, dict)
    assert note.keys() >= told.keys()
    store = DirectoryCheckpoints(path.parent, told=lambda *_, **__: None, keep=8)
    store.save(kept.step, {**state, "shards": {**note, **told}})


def test_checkpoints_that_were_never_complete_do_not_count(cluster: Any) -> None:
    """The writer of the other part died each time. A checkpoint that was complete before must be missed."""
    first = go_on(cluster, "sharded", 2, "2", 3, None, PACE_S)
    folder = first.folder / "checkpoints"
    assert len(kept_steps(folder)) >= 2  # one more if a part was still being written when the run ended
    for kept in kept_steps(folder):
        kept.paths[1].unlink()
    lost = cluster.train("sharded", members=2, shard="2", steps=4, checkpoint_every=1, going_on_with=first)
    assert lost.ending.outcome == "failed"
    assert "before the first commit (exit 2)" in lost.story  # members print the reason on stderr
    for kept in kept_steps(folder):
        rewrite(kept, 0, whole=0)
    again = go_on(cluster, "sharded", 2, "2", 3, first)
    assert list(again.losses) == [1, 2, 3], again.story
    assert again.digest == first.digest


def test_parts_of_two_attempts_make_no_checkpoint(cluster: Any) -> None:
    """A run that went back makes a step again, and is lost before all of its parts are written again."""
    first = go_on(cluster, "sharded", 2, "2", 4, None, PACE_S)
    folder = first.folder / "checkpoints"
    older, newest = kept_steps(folder)[-2:]
    assert newest.step == 4
    rewrite(newest, 1, history="another")
    again = go_on(cluster, "sharded", 2, "2", 5, first, PACE_S)
    assert list(again.losses) == [*range(older.step + 1, 6)], again.story
    older, newest = kept_steps(folder)[-2:]
    rewrite(newest, 0, history="another")
    other = go_on(cluster, "sharded", 4, "4", 6, first)
    assert list(other.losses) == [*range(older.step + 1, 7)], other.story
    assert "another attempt" in other.story


@pytest.mark.parametrize("moment", sampled(["lane", "agree", "commit"], ["agree"]))
def test_a_lost_part_comes_back_from_the_checkpoint(cluster: Any, moment: str) -> None:
    """One replica, of which a rank dies together with its mirror."""
    undisturbed = cluster.undisturbed("sharded", shard="1", steps=8)
    faults = [
        PlannedFault(id=rank + 1, step=6, moment=moment, rank=rank, fault="kill")  # type: ignore[arg-type]
        for rank in range(2)
    ]
    run = cluster.train(
        "sharded", members=2, shard="2", steps=8, checkpoint_every=2, faults=faults, pace_s=0.1
    )
    assert run.ending.outcome == "completed", run.story
    assert "back to the checkpoint" in run.story
    assert run.digest == undisturbed.digest, run.story
