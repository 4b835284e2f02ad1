"""`holdfast checkpoint`: a run's checkpoints listed and exported, by its name or by a path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load

from holdfast.cli.checkpoint import export
from holdfast.cli.checkpoint import list as list_
from holdfast.record.errors import InputError
from holdfast.train.checkpoint import DirectoryCheckpoints

pytestmark = pytest.mark.slow

WEIGHT = torch.arange(6.0).reshape(2, 3)


def tell_nobody(*_: object, **__: object) -> None:
    """Nobody listens."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the run `small`: two sound checkpoints, and a newer one that is damaged."""
    folder = tmp_path / "home" / "runs" / "small" / "checkpoints"
    kept = DirectoryCheckpoints(folder, told=tell_nobody, keep=3)
    for step in (10, 20, 30):
        states: list[dict[str, Any]] = [{"weight": WEIGHT * step}, {"state": {}, "param_groups": []}]
        known = {"lanes": 8, "seed": 1, "threads": 1, "version": step, "loss": 1 / step}
        kept.save(step, {**known, "names": ["model", "optimizer"], "state": states})
    newest = kept.path(30)
    newest.write_bytes(newest.read_bytes()[:-1])
    return folder


def test_a_run_is_listed_with_what_cannot_be_trusted(holdfast: Callable[..., Any], folder: Path) -> None:
    listed = holdfast("checkpoint", "list", "small")
    assert listed.code == 0, listed.err
    head, *rows = listed.out.splitlines()
    assert head.split() == ["step", "parts", "size", "written", "sound"]
    assert [row.split()[0] for row in rows] == ["10", "20", "30"]
    assert [row.split("Z  ")[1][:3] for row in rows] == ["yes", "yes", "no:"]
    assert "bytes instead of" in rows[2]


def test_a_directory_is_listed_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list_.command.main([str(folder), "--json"], standalone_mode=False)
    assert [row["step"] for row in msgspec.json.decode(capsys.readouterr().out)] == [10, 20, 30]


def test_parts_of_a_step_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rail in range(2):
        kept = DirectoryCheckpoints(tmp_path / f"shard-{rail}-of-2", told=tell_nobody)
        for step in (10, 20)[: 2 - rail]:
            kept.save(step, {})
    list_.command.main([str(tmp_path), "--json"], standalone_mode=False)
    rows = msgspec.json.decode(capsys.readouterr().out)
    assert [(row["step"], row["parts"], row["parts_total"]) for row in rows] == [(10, 2, 2), (20, 1, 2)]
    assert [row["fault"] for row in rows] == ["", "of its 2 parts those of ranks 1 are missing"]
    (tmp_path / "shard-1-of-2" / "step-000000000010.checkpoint").write_bytes(b"torn")
    list_.command.main([str(tmp_path)], standalone_mode=False)
    _, older, newer = capsys.readouterr().out.splitlines()
    assert older.split()[:2] == ["10", "2/2"]
    assert "no: in shard-1-of-2 it ends after 4 bytes" in older
    assert newer.split()[:2] == ["20", "1/2"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # says torch when it loads without
def test_torch_reads_an_export_in_its_own_format(folder: Path, tmp_path: Path) -> None:
    arguments = [str(folder), "--step", "20", "--to", str(tmp_path / "dcp"), "--format", "dcp"]
    export.command.main(arguments, standalone_mode=False)
    state = {"model": {"weight": torch.zeros(2, 3)}, "loss": 0.0}
    load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(state["model"]["weight"], WEIGHT * 20)  # type: ignore[index]
    assert state["loss"] == 0.05
    assert [path.name for path in tmp_path.iterdir() if "dcp" in path.name] == ["dcp"]
    with pytest.raises(InputError, match="dcp is not an empty directory"):
        export.command.main(arguments, standalone_mode=False)


def test_a_run_is_exported_from_its_newest_sound_one(
    holdfast: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    done = holdfast("checkpoint", "export", "small", "--to", "all.pt")
    assert done.code == 0, done.err
    assert done.out.startswith("step 20 of ")
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    assert (found["step"], found["loss"], list(found)[:2]) == (20, 0.05, ["model", "optimizer"])
    assert torch.equal(found["model"]["weight"], WEIGHT * 20)
    done = holdfast("checkpoint", "export", str(folder), "--step", "10", "--to", "w.safetensors")
    assert done.code == 0, done.err
    raw = (tmp_path / "w.safetensors").read_bytes()
    assert b'"run":"small"' in raw
    assert b'"step":"10"' in raw
    assert raw.endswith((WEIGHT * 10).numpy().tobytes())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("small", "--to", "weights"), "does not say which format"),
        (("nobody", "--to", "m.pt"), "'nobody' is neither a path nor a run with checkpoints"),
        (("small", "--to", "m.pt", "--step", "11"), "There is no checkpoint of step 11"),
        (("small", "--to", "m.pt", "--step", "30"), "bytes instead of"),
        (("small", "--to", "m.pt", "--part", "average"), "has no part named 'average'"),
        (("small", "--to", "none/m.pt"), "Cannot write none/m.pt: No such file or directory"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* An older one is taken")
@pytest.mark.usefixtures("folder")
def test_a_mistake_is_one_sentence_and_a_hint(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    with pytest.raises(InputError) as refused:
        export.command.main(list(arguments), standalone_mode=False)
    assert sentence in refused.value.sentence
    assert "\n" not in refused.value.sentence
    assert refused.value.hint


@pytest.mark.usefixtures("folder")
def test_a_mistake_is_told_on_standard_error(holdfast: Callable[..., Any]) -> None:
    refused = holdfast("checkpoint", "export", "small", "--to", "weights")
    assert (refused.code, refused.out) == (2, "")
    told, hint = refused.err.splitlines()
    assert "does not say which format" in told
    assert hint.startswith("  hint: ")
