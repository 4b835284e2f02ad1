"""One lane of one step computed again: from a checkpoint or from the beginning, to the same bits."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import holdfast.train as hf
from holdfast.record.errors import InputError
from holdfast.record.events import GenerationOpened
from holdfast.record.journal import read_directory
from holdfast.run.replaying import VARIABLE, Replayed, ReplayOrder
from holdfast.run.wire import SkippedLanes

pytestmark = pytest.mark.slow

STEPS, LANES, WIDTH = 7, 4, 4


def train() -> None:
    with hf.join() as run:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        state = run.protect(model, optimizer, lanes=LANES, seed=1)
        for step in state.steps(STEPS):
            for lane in step.lanes:
                lane.backward(model(torch.randn(5, WIDTH)).square().mean())
            step.commit()


def replay(folder: Path, monkeypatch: pytest.MonkeyPatch, step: int, lane: int, **more: object) -> Replayed:
    path = folder / "result.json"
    order = msgspec.convert({"step": step, "lane": lane, "result": str(path), **more}, ReplayOrder)
    monkeypatch.setenv(VARIABLE, order.text)
    with pytest.raises(SystemExit):
        train()
    monkeypatch.delenv(VARIABLE)
    return msgspec.json.decode(path.read_bytes(), type=Replayed)


def test_it_has_the_same_bits_wherever_it_begins(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replay(alone.parent, monkeypatch, 6, 2)
    assert whole.begun == 0
    assert whole.prints[0] == whole.prints[1]
    other = replay(alone.parent, monkeypatch, 6, 3)
    assert other.prints[0] != whole.prints[0]
    checkpoints = alone.parent / "checkpoints"
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(checkpoints))
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_EVERY", "4")
    train()
    kept = sorted(checkpoints.glob("step-*"))
    assert len(kept) == 2
    again = replay(alone.parent, monkeypatch, 6, 2)
    assert again.begun == 4
    assert msgspec.structs.replace(again, begun=0) == whole
    assert sorted(checkpoints.glob("step-*")) == kept
    assert replay(alone.parent, monkeypatch, 4, 2).begun == 0  # none is as early


def test_lanes_that_the_run_skipped_are_skipped(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replay(alone.parent, monkeypatch, 6, 2)
    skipped = [list(msgspec.structs.astuple(SkippedLanes(3, 4, (1,))))]
    assert replay(alone.parent, monkeypatch, 6, 2, skipped=skipped).prints != whole.prints


@pytest.mark.parametrize(
    ("recorded", "sentence"),
    [
        ({"lanes": 8}, "The run had lanes=8, this script has lanes=4."),
        ({"seed": 2}, "The run had seed=2, this script has seed=1."),
        ({"model": "another"}, "such as the learning rate, is not what the run had at step 2."),
    ],
)
def test_another_script_is_a_mistake(
    alone: Path, monkeypatch: pytest.MonkeyPatch, recorded: dict[str, object], sentence: str
) -> None:
    path = str(alone.parent / "result.json")
    order = msgspec.convert({"step": 2, "lane": 1, "result": path, **recorded}, ReplayOrder)
    monkeypatch.setenv(VARIABLE, order.text)
    with pytest.raises(InputError, match=sentence):
        train()


def test_the_record_has_what_a_script_is_told_apart_by(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train()
    (opened,) = [event for event in read_directory(alone) if isinstance(event, GenerationOpened)]
    assert (opened.lanes, opened.seed) == (LANES, 1)
    told = {"lanes": opened.lanes, "seed": opened.seed, "model": opened.model}
    assert replay(alone.parent, monkeypatch, 2, 1, **told).begun == 0


def test_a_lane_that_does_not_exist_is_a_mistake(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = ReplayOrder(step=2, lane=LANES, result=str(alone.parent / "result.json"))
    monkeypatch.setenv(VARIABLE, order.text)
    with pytest.raises(InputError, match="There is no lane 4: the run has 4"):
        train()
