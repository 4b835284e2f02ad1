"""Checkpoints as people open them: by name, verified, in a process outside any run."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from waiting import until

import holdfast.train as hf
from holdfast.record.errors import InputError
from holdfast.train import whole_file as module
from holdfast.train.kept import kept_steps
from holdfast.train.opening import to_safetensors, to_torch
from holdfast.train.whole_file import whole_file

pytestmark = pytest.mark.slow

STEPS = 4
WIDTH = 4


class Tied(nn.Module):
    """A head tied to its stem, a buffer of integers, and parameters of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.stem.weight
        self.small = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.tanh(self.stem(x))) * self.small.float().sum()
        return result


class Counting:
    """An object of the script that has a state."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """older: the step of the other kept checkpoint; a busy writer leaves some out."""

    folder: Path
    older: int
    losses: dict[int, float]
    model: dict[str, torch.Tensor]
    best: dict[str, Any]


@pytest.fixture
def trained(alone: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """A run of a few steps that kept its last one and an earlier one."""
    folder = alone.parent / "runs" / "short" / "checkpoints"
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(folder))
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_EVERY", "1")
    losses = {}
    with hf.join() as run:
        model, counting = Tied(), Counting()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        best = hf.Best(model, higher=True)

        def after() -> None:
            counting.seen += 1
            best.offer(-abs(counting.seen - 2), step=counting.seen)

        state = run.protect(model, optimizer, counting, best, lanes=2, seed=5, on_commit=after)
        for step in state.steps(STEPS):
            for lane in step.lanes:
                lane.backward(model(torch.full((2, WIDTH), 1.0 + lane.index)).square().mean())
            step.commit()
            losses[step.number] = step.loss
            if step.number == STEPS - 1:
                until(lambda: kept_steps(folder))  # else the writer would still be busy with it
    older, newest = (kept.step for kept in kept_steps(folder))
    assert newest == STEPS
    return Trained(
        folder=folder, older=older, losses=losses, model=model.state_dict(), best=best.state_dict()
    )


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_has_everything_under_the_name_a_person_knows(trained: Trained) -> None:
    found = hf.load_checkpoint(trained.folder)
    assert (found.step, found.lanes, found.seed) == (STEPS, 2, 5)
    assert found.loss == trained.losses[STEPS]
    assert list(found.states) == ["model", "optimizer", "Counting", "best"]
    assert same(found.model, trained.model)
    assert found.states["Counting"] == {"seen": STEPS}
    assert len(found.optimizer["state"]) == 2
    assert Path(found.place).name == "step-000000000004.checkpoint"
    assert hf.load_checkpoint(trained.folder.parent).digest == found.digest  # by the run's directory, too


def test_a_renamed_file_and_an_older_step_are_opened(trained: Trained, tmp_path: Path) -> None:
    older = hf.load_checkpoint(trained.folder, step=trained.older)
    assert (older.step, older.loss) == (trained.older, trained.losses[trained.older])
    moved = tmp_path / "mine.ckpt"
    moved.write_bytes(Path(older.place).read_bytes())
    assert hf.load_checkpoint(moved).digest == older.digest
    with pytest.raises(InputError, match="There is no checkpoint of step 9 in") as missing:
        hf.load_checkpoint(trained.folder, step=9)
    assert missing.value.hint == f"Available steps: {trained.older}, {STEPS}."


def test_a_damaged_one_is_passed_over_and_told(trained: Trained) -> None:
    newest = Path(hf.load_checkpoint(trained.folder).place)
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    newest.write_bytes(damaged)
    with pytest.warns(UserWarning, match="its hash does not agree.* Using an older one"):
        assert hf.load_checkpoint(trained.folder).step == trained.older
    with pytest.raises(InputError, match="its hash does not agree"):
        hf.load_checkpoint(newest)


def test_a_file_that_is_not_a_checkpoint_gets_one_sentence(tmp_path: Path, trained: Trained) -> None:
    with pytest.raises(InputError, match="There is no checkpoint in"):
        hf.load_checkpoint(tmp_path)
    with pytest.raises(InputError, match="No such file or directory"):
        hf.load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no part named 'model'") as none:
        msgspec.structs.replace(hf.load_checkpoint(trained.folder), states={"model_0": {}}).model  # noqa: B018
    assert none.value.hint == "Take one of these from .states: model_0."


def test_the_best_weights_are_those_of_their_step(trained: Trained) -> None:
    """Step 2 was best, and the checkpoint of a later one has it."""
    kept = hf.load_checkpoint(trained.folder).states["best"]
    assert (kept["step"], kept["value"]) == (2, 0.0)
    assert same(kept["weights"], trained.best["weights"])
    assert not torch.equal(kept["weights"]["stem.weight"], trained.model["stem.weight"])
    assert kept["weights"]["head.weight"].data_ptr() == kept["weights"]["stem.weight"].data_ptr()


def test_best_keeps_what_was_best_and_no_nan(tmp_path: Path) -> None:
    model = nn.Linear(1, 1, bias=False)
    best = hf.Best(model)
    for step, value in enumerate([float("nan"), 3.0, 1.0, 2.0], 1):
        with torch.no_grad():
            model.weight.fill_(step)
        assert best.offer(value, step=step) is (value in (3.0, 1.0))
    assert (best.value, best.step, best.weights["weight"].item()) == (1.0, 3, 3.0)
    best.save(tmp_path / "best.pt")
    saved = torch.load(tmp_path / "best.pt", weights_only=True)
    assert (saved["step"], saved["value"], saved["model"]["weight"].item()) == (3, 1.0, 3.0)
    assert [path.name for path in tmp_path.iterdir()] == ["best.pt"]


def test_what_a_killed_writer_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    code = (  # the module alone: with its package comes torch
        "import os, pathlib, runpy, signal, sys; whole_file = runpy.run_path(sys.argv[2])['whole_file']\n"
        "with whole_file(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, path, module.__file__], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part")
    with whole_file(path) as file:
        assert not left.exists()
        hf.Best(nn.Linear(1, 1)).save(path)
        file.write(b"later")
    assert path.read_bytes() == b"later"
    assert list(tmp_path.iterdir()) == [path]


def test_torch_opens_an_export_without_holdfast(trained: Trained, tmp_path: Path) -> None:
    to_torch(hf.load_checkpoint(trained.folder), tmp_path / "all.pt")
    code = (
        "import sys, torch; found = torch.load(sys.argv[1], weights_only=True);"
        "assert not any(name.startswith('holdfast') for name in sys.modules);"
        "print(found['step'], found['loss'], sorted(found['model']), found['Counting'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "all.pt")], capture_output=True, text=True, check=True
    )
    expected = (STEPS, trained.losses[STEPS], sorted(trained.model), {"seen": STEPS})
    assert ran.stdout.strip() == " ".join(map(str, expected))


def test_a_safetensors_file_holds_each_tied_tensor_once(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint = hf.load_checkpoint(trained.folder)
    to_safetensors(checkpoint, path, part="model", told={"run": "short"})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = msgspec.json.decode(raw[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert header.pop("__metadata__") == {
        "format": "pt",
        "step": "4",
        "digest": checkpoint.digest,
        "run": "short",
        "head.weight": "stem.weight",
    }
    assert header["stem.weight"]["shape"] == [WIDTH, WIDTH]
    assert header["small"]["dtype"] == "BF16"
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert 8 + length + ends[-1][1] == len(raw)
    begin, end = header["stem.weight"]["data_offsets"]
    read = torch.frombuffer(bytearray(raw[8 + length + begin : 8 + length + end]), dtype=torch.float32)
    assert torch.equal(read.view(WIDTH, WIDTH), trained.model["stem.weight"])


def test_the_library_of_safetensors_reads_it(trained: Trained, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    checkpoint = hf.load_checkpoint(trained.folder)
    to_safetensors(checkpoint, path, part="model", told={})
    expected = {name: tensor for name, tensor in trained.model.items() if name != "head.weight"}
    assert same(library.load_file(path), dict(sorted(expected.items())))
    model = Tied()
    assert library.load_model(model, path) == (set(), [])
    assert same(model.state_dict(), trained.model)
    to_safetensors(checkpoint, path, part="best", told={})
    assert torch.equal(library.load_file(path)["stem.weight"], trained.best["weights"]["stem.weight"])


def test_what_safetensors_cannot_hold_is_named(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="optimizer: state is a dict, which a safetensors file cannot hold"):
        to_safetensors(hf.load_checkpoint(trained.folder), tmp_path / "x", part="optimizer", told={})
    assert not list(tmp_path.glob("*x*"))
