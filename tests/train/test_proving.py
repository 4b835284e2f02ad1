"""Checkpoints loaded into a fresh process that computes a step: this finds errors that hashes cannot find."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import scripts
import torch
from listening import tell_nobody
from torch import nn

import holdfast.train as hf
from holdfast.record.errors import InputError
from holdfast.record.events import StepWitnessed
from holdfast.record.journal import read_directory
from holdfast.run.replaying import PROOF_STEPS_MAX, VARIABLE, Recomputed, ReplayOrder
from holdfast.run.wire import PlannedFault
from holdfast.train.checkpoint import DirectoryCheckpoints, read
from holdfast.train.proving import CheckpointProof, judge_proof, plan_proof

pytestmark = pytest.mark.slow

STEPS, EVERY, LANES, WIDTH = 6, 4, 4, 4


def train() -> None:
    with hf.join() as run:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        state = run.protect(model, optimizer, scheduler, lanes=LANES, seed=1, clip_norm=1.0)
        for step in state.steps(STEPS):
            for lane in step.lanes:
                lane.backward((model(torch.randn(5, WIDTH)) - 1).square().mean())
            step.commit()


@pytest.fixture
def kept(alone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoints of a run: of step 4, which it resumed from, and of its last step."""
    folder = alone.parent / "checkpoints"
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(folder))
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_EVERY", str(EVERY))
    train()
    assert DirectoryCheckpoints(folder, told=tell_nobody).steps() == [EVERY, STEPS]
    return folder


def witnessed(journal: Path) -> dict[int, StepWitnessed]:
    return {event.step: event for event in read_directory(journal) if isinstance(event, StepWitnessed)}


def prove(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    known: dict[int, StepWitnessed],
    script: Callable[[], None] = train,
) -> CheckpointProof:
    plan = plan_proof(folder, known, PROOF_STEPS_MAX)
    path = folder.parent / "result.json"
    order = ReplayOrder(step=plan.computed, lane=None, result=str(path), begins=plan.begun)
    monkeypatch.setenv(VARIABLE, order.text)
    with pytest.raises(SystemExit):
        script()
    monkeypatch.delenv(VARIABLE)
    return judge_proof(
        plan, msgspec.json.decode(path.read_bytes(), type=Recomputed), known.get(plan.computed)
    )


def rewrite(folder: Path, step: int, change: Callable[[Any, Any], None]) -> None:
    """Rewrite a checkpoint as a whole and valid one, with a changed model and optimizer."""
    state: Any = read(DirectoryCheckpoints(folder, told=tell_nobody).path(step), step).state
    change(state["state"][0], state["state"][1])
    DirectoryCheckpoints(folder, told=tell_nobody, keep=9).save(step, state)


def swap(model: Any, optimizer: Any) -> None:
    """Swap the optimizer's states of the two weights, which have the same shape."""
    state = optimizer["state"]
    assert state[0]["exp_avg"].shape == state[2]["exp_avg"].shape
    state[0], state[2] = state[2], state[0]


def flip(model: Any, optimizer: Any) -> None:
    """Flip the lowest bit of a weight."""
    model["0.weight"].view(torch.int32)[1, 1] ^= 1


def without_the_newest(folder: Path) -> None:
    DirectoryCheckpoints(folder, told=tell_nobody).remove([STEPS])


def test_the_step_after_a_checkpoint_proves_it(
    alone: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = witnessed(alone)
    assert list(known) == [EVERY + 1]
    without_the_newest(kept)
    proof = prove(kept, monkeypatch, known=known)
    assert (proof.step, proof.way, proof.is_proven) == (EVERY, "after", True), proof
    assert "step 5, computed from it, has the loss and the state that the run had" in proof.reason


@pytest.mark.parametrize("change", [swap, flip])
def test_an_error_before_the_write_is_found(
    alone: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any], None]
) -> None:
    without_the_newest(kept)
    rewrite(kept, EVERY, change)
    proof = prove(kept, monkeypatch, known=witnessed(alone))
    assert (proof.step, proof.way, proof.is_proven) == (EVERY, "after", False), proof
    assert "step 5, computed from it, " in proof.reason


def test_a_checkpoint_that_no_step_followed_is_proven_by_those_before(
    alone: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = prove(kept, monkeypatch, known=witnessed(alone))
    assert (proof.step, proof.way, proof.is_proven) == (STEPS, "before", True), proof
    assert "the steps from step 4 up to it" in proof.reason
    rewrite(kept, STEPS, swap)
    proof = prove(kept, monkeypatch, known=witnessed(alone))
    assert (proof.step, proof.way, proof.is_proven) == (STEPS, "before", False), proof
    assert "lead to another state" in proof.reason


def test_what_cannot_be_loaded_is_not_proven(
    alone: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = DirectoryCheckpoints(kept, told=tell_nobody).path(STEPS)
    manifest.write_bytes(manifest.read_bytes()[:-1])
    proof = prove(kept, monkeypatch, known={})
    assert (proof.step, proof.is_proven) == (STEPS, False)
    assert "it could not be loaded" in proof.reason
    manifest.unlink()
    manifest = DirectoryCheckpoints(kept, told=tell_nobody).path(EVERY)
    before = DirectoryCheckpoints(kept, told=tell_nobody, keep=9)
    before.save(EVERY - 1, read(manifest, EVERY).state | {"version": EVERY - 1})
    manifest.write_bytes(manifest.read_bytes()[:-1])
    proof = prove(kept, monkeypatch, known=witnessed(alone))
    assert (proof.step, proof.is_proven) == (EVERY, False)
    assert "step 4 could not be loaded: the script resumed from step 3" in proof.reason


def test_what_would_take_too_many_steps_is_refused(alone: Path, kept: Path) -> None:
    with pytest.raises(InputError, match="more than 1 steps away"):
        plan_proof(kept, {}, 1)
    # A checkpoint that the record covers is proven instead.
    plan = plan_proof(kept, witnessed(alone), 1)
    assert (plan.step, plan.way) == (EVERY, "after")
    with pytest.raises(InputError, match="There is no checkpoint in"):
        plan_proof(alone.parent / "nowhere", {}, PROOF_STEPS_MAX)


def test_a_checkpoint_by_a_member_with_a_corrupted_weight_is_not_proven(
    cluster: Any, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two members, which writes, has it from step 4 on. The second dies in step 7, so that the
    run ends although they do not agree.
    """
    wrong = PlannedFault(id=7, step=4, moment="lane", rank=0, fault="corrupt", what="weight")
    dies = PlannedFault(id=8, step=7, moment="reduce", rank=1, fault="kill")
    run = cluster.train("plain", members=2, steps=8, warm=0, checkpoint_every=5, faults=(wrong, dies))
    assert (run.ending.outcome, run.struck) == ("completed", 2), run.story
    folder = run.folder / "checkpoints"
    known = witnessed(run.folder / "journal")
    assert known[6].subject == "n0.1"
    DirectoryCheckpoints(folder, told=tell_nobody).remove([8])
    proof = proof_by_cluster(run.folder, monkeypatch, known)
    assert not proof.is_proven
    assert proof.reason.startswith("step 6, computed from it, "), (
        proof
    )  # has another loss, or leads elsewhere
    sound = cluster.train("plain", members=2, steps=8, warm=0, checkpoint_every=5)
    known = witnessed(sound.folder / "journal")
    DirectoryCheckpoints(sound.folder / "checkpoints", told=tell_nobody).remove([8])
    assert proof_by_cluster(sound.folder, monkeypatch, known).is_proven


def proof_by_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, known: dict[int, StepWitnessed]
) -> CheckpointProof:
    """The proof of a run of the cluster's script."""
    monkeypatch.setenv("HOLDFAST_MEMBER", "n0.0")
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(folder / "checkpoints"))
    defaults: dict[str, Any] = {"checkpoint_every": 0, "checkpoints": "", "stop_after": 0, "trace": False}
    defaults |= {
        "snapshot_every": 0,
        "pace_s": 0.0,
        "hold_s": 0.0,
        "holders": 0,
        "meets": False,
        "deaths": [],
        "does": "",
    }
    scripted = partial(scripts.train, "plain", str(folder), 8, 8, on_shortage="same bits", **defaults)
    return prove(folder / "checkpoints", monkeypatch, known=known, script=scripted)


def test_parts_cannot_be_proven(tmp_path: Path) -> None:
    for rail in range(2):
        DirectoryCheckpoints(tmp_path / f"shard-{rail}-of-2", told=tell_nobody).save(3, {})
    with pytest.raises(InputError, match="sharded"):
        plan_proof(tmp_path, {}, PROOF_STEPS_MAX)
