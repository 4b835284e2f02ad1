"""`holdfast checkpoint`: a run's checkpoints listed and exported, by its name or by a path."""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from listening import tell_nobody
from torch.distributed.checkpoint.state_dict_loader import load

from holdfast.cli.checkpoint import copy, export, import_, prune, verify
from holdfast.cli.checkpoint import list as list_
from holdfast.record.errors import InputError
from holdfast.record.events import CheckpointSaved
from holdfast.record.recorder import Recorder
from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.chunks import FOLDER, packs_in
from holdfast.train.kept import kept_steps
from holdfast.train.manifest_file import read_manifest
from holdfast.train.opening import load_checkpoint

pytestmark = pytest.mark.slow

RUN_WAIT_S = 600
WEIGHT = torch.arange(6.0).reshape(2, 3)
LARGE = torch.arange(1000.0)


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
    assert head.split() == ["step", "parts", "size", "written", "complete"]
    assert [row.split()[0] for row in rows] == ["10", "20", "30"]
    assert [row.split("Z  ")[1][:3] for row in rows] == ["yes", "yes", "no:"]
    assert "bytes instead of" in rows[2]


def test_a_run_is_found_by_name_where_its_record_says_that_it_saved(
    holdfast: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    elsewhere = folder.rename(tmp_path / "elsewhere")
    with Recorder(tmp_path / "home" / "journal", run="other") as recorder:
        recorder.record(CheckpointSaved, step=20, place=str(elsewhere / "step-000000000020.checkpoint"))
    listed = holdfast("checkpoint", "list", "other")
    assert [row.split()[0] for row in listed.out.splitlines()[1:]] == ["10", "20", "30"], listed.err
    assert holdfast("checkpoint", "list", "small").code == 2


def test_a_directory_is_listed_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list_.command.main([str(folder), "--json"], standalone_mode=False)
    assert [row["step"] for row in msgspec.json.decode(capsys.readouterr().out)] == [10, 20, 30]


def test_who_only_looks_at_checkpoints_does_not_load_torch(folder: Path) -> None:
    """Which takes seconds."""
    code = (
        "import sys; from holdfast.cli.checkpoint.rows import rows_of; "
        "_, rows = rows_of(sys.argv[1]); print(len(rows), 'torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=RUN_WAIT_S, check=True
    )
    assert found.stdout == "3 False\n"


def test_parts_of_a_step_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rail in range(2):
        kept = DirectoryCheckpoints(tmp_path / f"shard-{rail}-of-2", told=tell_nobody)
        for step in (10, 20)[: 2 - rail]:
            kept.save(step, {})
    list_.command.main([str(tmp_path), "--json"], standalone_mode=False)
    rows = msgspec.json.decode(capsys.readouterr().out)
    assert [(row["step"], row["parts"], row["parts_total"]) for row in rows] == [(10, 2, 2), (20, 1, 2)]
    assert [row["fault"] for row in rows] == ["", "the parts of ranks 1 of 2 are missing"]
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
        (("small", "--to", "weights"), "does not name a format"),
        (("nobody", "--to", "m.pt"), "'nobody' is neither a path nor a run with checkpoints"),
        (("small", "--to", "m.pt", "--step", "11"), "There is no checkpoint of step 11"),
        (("small", "--to", "m.pt", "--step", "30"), "bytes instead of"),
        (("small", "--to", "m.pt", "--part", "average"), "has no part named 'average'"),
        (
            ("small", "--to", "none/m.pt"),
            "The checkpoint cannot be written to none/m.pt: there is no directory none.",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.* Using an older one")
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
    assert refused.value.exit_code == (1 if "bytes instead of" in sentence else 2)


@pytest.mark.usefixtures("folder")
def test_a_mistake_is_told_on_standard_error(holdfast: Callable[..., Any]) -> None:
    refused = holdfast("checkpoint", "export", "small", "--to", "weights")
    assert (refused.code, refused.out) == (2, "")
    told, hint = refused.err.splitlines()
    assert "does not name a format" in told
    assert hint.startswith("  hint: ")


# ---- what moves and removes them ---------------------------------------------------------------------------


def run(command: Any, *arguments: object) -> Any:
    return command.main([str(one) for one in arguments], standalone_mode=False)


def keep(folder: Path, *steps: int, **told: Any) -> DirectoryCheckpoints:
    kept = DirectoryCheckpoints(folder, told=tell_nobody, keep=9)
    for step in steps:
        states: list[dict[str, Any]] = [
            {"weight": LARGE * step, "bias": WEIGHT * step},
            {"state": {0: {"noted": LARGE + step}}, "param_groups": [{"params": [0]}]},
        ]
        known = {"lanes": 8, "seed": 1, "threads": 1, "version": step, "loss": 1 / step}
        kept.save(step, {**known, "names": ["model", "optimizer"], "state": states, **told})
    return kept


def packs_of(folder: Path, step: int) -> list[Path]:
    manifest = read_manifest(folder / f"step-{step:012d}.checkpoint")
    return [folder / FOLDER / pack for pack, _ in manifest.packs]


def test_verify_finds_what_a_list_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path, 1, 2)
    assert run(verify.command, tmp_path) == 0
    (pack,) = packs_of(tmp_path, 2)
    raw = bytearray(pack.read_bytes())
    raw[100] ^= 1
    pack.write_bytes(raw)
    capsys.readouterr()
    assert not run(list_.command, tmp_path)
    assert "no: " not in capsys.readouterr().out
    assert run(verify.command, tmp_path) == 1
    _, older, newer = capsys.readouterr().out.splitlines()
    assert older.endswith("yes")
    assert f"no: its pack {pack.name} is damaged: the hash of its chunk at byte 0" in newer
    pack.unlink()
    assert not run(list_.command, tmp_path)
    assert f"no: its chunks in {pack.name} are missing" in capsys.readouterr().out


def test_a_copy_is_verified_and_can_be_gone_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "here", 1, 2)
    run(copy.command, tmp_path / "here", "--to", tmp_path / "there")
    assert "were new there" in capsys.readouterr().out
    found, copied = (load_checkpoint(tmp_path / name) for name in ("here", "there"))
    assert (copied.step, copied.digest) == (2, found.digest)
    run(copy.command, tmp_path / "here", "--to", tmp_path / "there", "--step", 1)
    assert [kept.step for kept in kept_steps(tmp_path / "there")] == [1, 2]
    (pack,) = packs_of(tmp_path / "here", 2)
    pack.write_bytes(bytes(pack.stat().st_size))
    with pytest.raises(InputError, match="is damaged: its pack") as refused:
        run(copy.command, tmp_path / "here", "--to", tmp_path / "elsewhere", "--step", 2)
    assert refused.value.exit_code == 1  # found; what the user got wrong has 2
    assert f"`holdfast checkpoint verify {tmp_path / 'here'}`" in refused.value.hint
    assert not [
        path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file() and path.stat().st_size
    ]
    capsys.readouterr()
    run(copy.command, tmp_path / "here", "--to", tmp_path / "elsewhere")
    told = capsys.readouterr()
    assert told.err.startswith(f"The checkpoint of step 2 in {tmp_path / 'here'} is damaged: its pack")
    assert told.err.endswith(". Step 1 is taken instead.\n")
    assert told.out.startswith(f"step 1 of {tmp_path / 'here'} is in")
    assert [kept.step for kept in kept_steps(tmp_path / "elsewhere")] == [1]
    (pack,) = packs_of(tmp_path / "here", 1)
    pack.write_bytes(bytes(pack.stat().st_size))
    with pytest.raises(InputError, match=r"of step 2 in .*/here is damaged: its pack"):
        run(copy.command, tmp_path / "here", "--to", tmp_path / "third")
    with pytest.raises(InputError, match="no checkpoint of step 7") as mistaken:
        run(copy.command, tmp_path / "here", "--to", tmp_path / "there", "--step", 7)
    assert mistaken.value.exit_code == 2


def test_what_a_small_copy_writes_is_told_in_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in the manifest itself."""
    DirectoryCheckpoints(tmp_path / "here", told=lambda *_, **__: None).save(1, {"few": torch.ones(25)})
    run(copy.command, tmp_path / "here", "--to", tmp_path / "there")
    assert "100 bytes, of which 100 bytes were new there" in capsys.readouterr().out


def test_a_copy_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    states = [{"weight": torch.arange(1 << 19)}]
    DirectoryCheckpoints(tmp_path / "here", told=tell_nobody).save(1, {"names": ["model"], "state": states})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(InputError, match=r"Cannot use .*/here or .*/there: File too large") as refused:
            run(copy.command, tmp_path / "here", "--to", tmp_path / "there")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.exit_code == 2
    assert "its filesystem is mounted" in refused.value.hint
    assert not [path for path in (tmp_path / "there").rglob("*") if path.is_file() and path.stat().st_size]
    run(copy.command, tmp_path / "here", "--to", tmp_path / "there")
    assert run(verify.command, tmp_path / "there") == 0


def test_a_copy_does_not_load_torch(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from holdfast.cli.checkpoint.copy import command; "
        "command.main(sys.argv[1:], standalone_mode=False); print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, folder, "--to", tmp_path / "there"],
        capture_output=True,
        text=True,
        timeout=RUN_WAIT_S,
        check=True,
    )
    assert found.stdout.startswith(f"step 20 of {folder} is in {tmp_path / 'there'}: ")
    assert found.stdout.endswith("were new there\nFalse\n")
    assert "Step 20 is taken instead." in found.stderr


def shards_of(rail: int, history: str) -> dict[str, object]:
    return {"mesh": {"sizes": [["shard", 2]]}, "rail": rail, "cut": [[], []], "history": history, "whole": 0}


def test_parts_of_two_attempts_are_told_and_not_kept_instead_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rail in range(2):
        for step in (1, 2, 3, 4):
            history = "a" if step != 3 else f"a{rail}"
            keep(tmp_path / f"shard-{rail}-of-2", step, shards=shards_of(rail, history))
    run(list_.command, tmp_path)
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [("2 attempts at this step" in row) for row in rows] == [False, False, True, False]
    run(prune.command, tmp_path, "--keep", 2)
    assert "removed step 1;" in capsys.readouterr().out
    assert [kept.step for kept in kept_steps(tmp_path)] == [2, 3, 4]
    run(prune.command, tmp_path, "--keep", 1)
    assert [kept.step for kept in kept_steps(tmp_path)] == [4]
    run(copy.command, tmp_path, "--to", tmp_path / "there")
    assert [(kept.step, kept.is_complete) for kept in kept_steps(tmp_path / "there")] == [(4, True)]


def test_prune_keeps_what_can_be_gone_on_from_and_frees_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = keep(tmp_path, 1, 2, 3, 4, 5)
    kept.path(5).write_bytes(b"torn")
    run(prune.command, tmp_path)
    assert "removed step 1, 2; freed " in capsys.readouterr().out
    assert kept.steps() == [3, 4, 5]
    assert len(packs_in(tmp_path / FOLDER)) == 2
    assert run(verify.command, tmp_path) == 1
    for step in (3, 4):
        kept.path(step).write_bytes(b"torn")
    with pytest.raises(InputError, match="nothing was removed") as found:
        run(prune.command, tmp_path)
    assert found.value.exit_code == 1
    assert kept.steps() == [3, 4, 5]


def test_prune_does_not_rely_on_chunks_that_rotted(tmp_path: Path) -> None:
    kept = keep(tmp_path, 1, 2)
    (pack, _), *_ = read_manifest(kept.path(2)).packs
    path = tmp_path / FOLDER / pack
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
    run(prune.command, tmp_path, "--keep", 1)
    assert kept.steps() == [1, 2]


@pytest.mark.parametrize("form", ["all.pt", "dcp"])
def test_what_was_exported_is_imported_with_the_same_bits(tmp_path: Path, form: str) -> None:
    keep(tmp_path / "here", 1, 2)
    target = tmp_path / form
    run(export.command, tmp_path / "here", "--to", target, *(["--format", "dcp"] if form == "dcp" else []))
    like = ["--like", tmp_path / "like"] if form == "dcp" else []
    keep(tmp_path / "like", 9)
    run(import_.command, target, "--to", tmp_path / "there", *like)
    found, back = (load_checkpoint(tmp_path / name) for name in ("here", "there"))
    assert (back.step, back.loss, back.lanes, back.seed, back.threads) == (2, 0.5, 8, 1, 1)
    assert list(back.states) == list(found.states)
    assert torch.equal(back.model["weight"], found.model["weight"])
    assert torch.equal(back.optimizer["state"][0]["noted"], LARGE + 2)


def test_weights_are_imported_into_another_checkpoint(tmp_path: Path) -> None:
    keep(tmp_path / "here", 1, 2)
    weights = tmp_path / "model.safetensors"
    run(export.command, tmp_path / "here", "--to", weights, "--step", 1)
    with pytest.raises(InputError, match="lacks parts that a run needs"):
        run(import_.command, weights, "--to", tmp_path / "there")
    run(import_.command, weights, "--to", tmp_path / "there", "--like", tmp_path / "here")
    back = load_checkpoint(tmp_path / "there")
    assert back.step == 2
    assert torch.equal(back.model["weight"], LARGE)
    assert torch.equal(back.optimizer["state"][0]["noted"], LARGE + 2)
    raw = weights.read_bytes()
    for content in (b"", raw[:9], raw.replace(b'"weight"', b'"weighs"'), raw[:-4], bytes([255]) * 100):
        weights.write_bytes(content)
        with pytest.raises(InputError, match=r"is not a sound safetensors file|has no weight that fits"):
            run(import_.command, weights, "--to", tmp_path / "there", "--like", tmp_path / "here")


def test_what_cannot_be_imported_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"no")
    with pytest.raises(
        InputError, match=r"x\.pt is damaged, was not written by torch\.save\(\), or holds more"
    ):
        run(import_.command, tmp_path / "x.pt", "--to", tmp_path / "there")
    torch.save({"model": {"weight": WEIGHT}}, tmp_path / "x.pt")
    with pytest.raises(InputError, match="does not say its step"):
        run(import_.command, tmp_path / "x.pt", "--to", tmp_path / "there")
    torch.save([1], tmp_path / "x.pt")
    with pytest.raises(InputError, match="holds a list"):
        run(import_.command, tmp_path / "x.pt", "--to", tmp_path / "there")
    (tmp_path / "x.bad").write_bytes(b"no")
    with pytest.raises(InputError, match="does not name a format"):
        run(import_.command, tmp_path / "x.bad", "--to", tmp_path / "there")
    (tmp_path / "empty").mkdir()
    keep(tmp_path / "like", 9)
    with pytest.raises(InputError, match=r"torch\.distributed\.checkpoint cannot load"):
        run(import_.command, tmp_path / "empty", "--to", tmp_path / "there", "--like", tmp_path / "like")


SCRIPT = """
import torch
import holdfast.train as hf

with hf.join() as run:
    model = torch.nn.Linear(2, 1)
    state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), lanes=2, seed=1)
    for step in state.steps(3):
        for lane in step.lanes:
            lane.backward(model(torch.ones(4, 2)).square().mean())
        step.commit()
"""


def test_a_run_writes_to_the_second_directory_where_it_cannot_to_the_first(
    holdfast: Callable[..., Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / FOLDER).write_text("in the way")
    places = ("--checkpoints", "first", "--checkpoints", "second")
    ran = holdfast("run", "--run", "two", "--nproc-per-node", "1", "--warm", "0", *places, script)
    assert ran.code == 0, ran.err
    assert "could not be written to" in ran.err
    assert "Trying the next." in ran.err
    assert [kept.step for kept in kept_steps(tmp_path / "second")] == [3]
    refused = holdfast("run", "--run", "bad", "--checkpoints", "a:b", script)
    assert refused.code == 2
    assert "must not have ':' in its name" in refused.err
