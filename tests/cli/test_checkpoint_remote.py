"""`holdfast checkpoint` with object storage: a real S3 server on loopback."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from object_storage import BUCKET, ObjectServer, object_server

from holdfast.cli.checkpoint import copy, export, import_, prove
from holdfast.record.errors import InputError
from holdfast.train import proof_making
from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.chunks import FOLDER, DamagedCheckpoints
from holdfast.train.copying import manifest_at, steps_in
from holdfast.train.fetched import fetch_steps, passing_directory
from holdfast.train.opening import Checkpoint, load_checkpoint
from holdfast.train.owning import claim
from holdfast.train.place import OWNER, DirectoryStorage
from holdfast.train.places import opened_place

pytestmark = pytest.mark.slow
WEIGHT = torch.arange(1000.0)
THERE = f"s3://{BUCKET}/small"


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[ObjectServer]:
    with object_server(tmp_path) as found:
        environment |= found.environment()
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "runs" / "small" / "checkpoints"
    kept = DirectoryCheckpoints(folder, told=lambda *_, **__: None, keep=3)
    for step in (10, 20, 30):
        known = {"lanes": 8, "seed": 1, "threads": 1, "version": step, "loss": 1 / step}
        kept.save(step, {**known, "names": ["model"], "state": [{"weight": WEIGHT * step}]})
    return folder


def test_object_storage_is_a_place_as_any(
    holdfast: Callable[..., Any], server: ObjectServer, folder: Path, tmp_path: Path
) -> None:
    empty = holdfast("checkpoint", "list", THERE)
    assert (empty.code, empty.err) == (0, f"There is no checkpoint in {THERE}.\n")
    for step in ("10", "20", "30"):
        done = holdfast("checkpoint", "copy", "small", "--to", THERE, "--step", step)
        assert done.code == 0, done.err
        assert f"is in {THERE}: 4.0 kB, of which 4.0 kB were new there" in done.out
    rows = msgspec.json.decode(holdfast("checkpoint", "list", THERE, "--json").out)
    assert [(row["step"], row["fault"]) for row in rows] == [(10, ""), (20, ""), (30, "")]
    assert rows[0]["path"] == f"{THERE}/step-000000000010.checkpoint"
    pruned = holdfast("checkpoint", "prune", THERE, "--keep", "2")
    assert pruned.out == f"{THERE}: removed step 10; freed 4.0 kB of chunks\n", pruned.err
    assert holdfast("checkpoint", "verify", THERE).code == 0
    back = holdfast("checkpoint", "copy", THERE, "--to", str(tmp_path / "back"))
    assert back.code == 0, back.err
    assert torch.equal(load_checkpoint(tmp_path / "back").model["weight"], WEIGHT * 30)
    # A byte that changed there is found by reading it, and the checkpoint is not copied.
    for pack in (server.root / "small" / "chunks").glob("*.pack"):
        pack.write_bytes(b"\1" + pack.read_bytes()[1:])
    assert holdfast("checkpoint", "list", THERE).code == 0
    found = holdfast("checkpoint", "verify", THERE)
    assert found.code == 1
    assert "is damaged at byte 0" in found.out
    refused = holdfast("checkpoint", "copy", THERE, "--to", str(tmp_path / "other"))
    assert refused.code == 1
    assert "is damaged" in refused.err


def run(command: Any, *arguments: object) -> Any:
    return command.main([str(one) for one in arguments], standalone_mode=False)


@pytest.fixture
def there(
    server: ObjectServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DirectoryStorage:
    """The bucket's own files; the bucket has steps 20 and 30."""
    for name, value in {**server.environment(), "HOLDFAST_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    for step in (20, 30):
        run(copy.command, folder, "--to", THERE, "--step", step)
    return DirectoryStorage(server.root / "small")


def fetched_in(tmp_path: Path) -> list[Path]:
    """What was left of fetched checkpoints, anywhere."""
    return [path for path in tmp_path.rglob(".fetched-*") if path.is_dir()]


def damage(there: DirectoryStorage, step: int) -> None:
    (kept,) = (one for one in steps_in(there.listed()) if one.step == step)
    for pack, _ in manifest_at(there, kept.keys[0]).packs:
        path = Path(there.name) / FOLDER / pack
        path.write_bytes(b"\1" + path.read_bytes()[1:])


def test_a_checkpoint_in_object_storage_is_exported_and_leaves_nothing(
    there: DirectoryStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(opened_place(THERE), "small")
    run(export.command, THERE, "--to", tmp_path / "all.pt")
    assert torch.equal(torch.load(tmp_path / "all.pt")["model"]["weight"], WEIGHT * 30)
    assert f"step 30 of {THERE}/step-000000000030.checkpoint is in" in capsys.readouterr().out
    run(export.command, THERE, "--to", tmp_path / "w.safetensors", "--step", "20")
    assert b'"run":"small"' in (tmp_path / "w.safetensors").read_bytes()
    # What is damaged there is passed over, and said; if nothing else is left, that is a finding.
    damage(there, 30)
    run(export.command, THERE, "--to", tmp_path / "older.pt")
    assert torch.load(tmp_path / "older.pt")["step"] == 20
    assert "is damaged" in capsys.readouterr().err
    damage(there, 20)
    with pytest.raises(DamagedCheckpoints, match="is damaged") as found:
        run(export.command, THERE, "--to", tmp_path / "none.pt")
    assert found.value.exit_code == 1
    with pytest.raises(InputError, match="has no checkpoint of step 7") as refused:
        run(export.command, THERE, "--to", tmp_path / "none.pt", "--step", "7")
    assert refused.value.exit_code == 2
    with pytest.raises(InputError, match=r"there is no directory .*nowhere"):
        run(export.command, THERE, "--to", tmp_path / "nowhere" / "all.pt")
    assert not (tmp_path / "none.pt").exists()
    assert not fetched_in(tmp_path)


@pytest.mark.parametrize("is_main", [True, False])
def test_a_script_opens_a_bucket_as_a_directory(
    there: DirectoryStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_main: bool
) -> None:
    """In any thread."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def opened(*words: Any, **options: Any) -> Checkpoint:
        if is_main:
            return load_checkpoint(*words, **options)
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(load_checkpoint, *words, **options).result()

    found = opened(THERE)
    assert (found.step, found.place) == (30, f"{THERE}/step-000000000030.checkpoint")
    assert torch.equal(found.model["weight"], WEIGHT * 30)
    assert opened(THERE, step=20, map_location="meta").model["weight"].device.type == "meta"
    with pytest.raises(InputError, match="has no checkpoint of step 7"):
        opened(THERE, step=7)
    with pytest.raises(InputError, match="there is no such bucket"):
        opened("s3://nowhere/x")
    damage(there, 30)
    with pytest.warns(UserWarning, match=r"of step 30 in .* is damaged: .* Step 20 is taken instead") as said:
        assert opened(THERE).step == 20
    if is_main:
        assert said[0].filename == __file__
    with pytest.raises(DamagedCheckpoints):
        opened(THERE, step=30)
    assert not fetched_in(tmp_path)


def test_what_is_imported_goes_to_object_storage_and_takes_the_rest_from_there(
    there: DirectoryStorage, tmp_path: Path
) -> None:
    run(export.command, THERE, "--to", tmp_path / "w.safetensors", "--step", "20")
    target = f"s3://{BUCKET}/other"
    run(import_.command, tmp_path / "w.safetensors", "--to", target, "--like", THERE)
    run(copy.command, target, "--to", tmp_path / "back")
    back = load_checkpoint(tmp_path / "back")
    assert (back.step, torch.equal(back.model["weight"], WEIGHT * 20)) == (30, True)
    damage(there, 30)
    damage(there, 20)
    with pytest.raises(DamagedCheckpoints):
        run(import_.command, tmp_path / "w.safetensors", "--to", target, "--like", THERE)
    assert not fetched_in(tmp_path)


def test_a_place_that_belongs_to_another_run_is_not_written_to(
    there: DirectoryStorage, folder: Path, tmp_path: Path
) -> None:
    """In a bucket and in a directory; the run's own checkpoints still go there."""
    elsewhere = DirectoryStorage(tmp_path / "elsewhere")  # a directory that tells of no run
    run(copy.command, folder, "--to", elsewhere.name, "--step", 20)
    run(export.command, folder, "--to", tmp_path / "w.safetensors")
    run(export.command, folder, "--to", tmp_path / "all.pt")
    for place in (opened_place(f"s3://{BUCKET}/large"), DirectoryStorage(tmp_path / "large")):
        claim(place, "large")
        elsewhere.write(OWNER, b'{"run":"medium"}')
        for words, whose in (
            ((copy.command, folder), "one of 'small'"),
            ((copy.command, elsewhere.name), "one of 'medium'"),
            ((import_.command, tmp_path / "w.safetensors", "--like", folder), "one of 'small'"),
            ((import_.command, tmp_path / "all.pt"), "one whose run is not known"),
        ):
            with pytest.raises(InputError) as refused:
                run(*words, "--to", place.name)
            assert refused.value.exit_code == 2
            sentence = f"{place.name} belongs to the run 'large', but this checkpoint is {whose}."
            assert refused.value.sentence == sentence
            assert refused.value.hint.endswith("--run large")
        assert not place.listed()
        run(copy.command, folder, "--to", place.name, "--run", "large", "--step", 20)
        run(import_.command, tmp_path / "all.pt", "--to", place.name, "--run", "large")
        assert [kept.step for kept in steps_in(place.listed())] == [20, 30]
        elsewhere.write(OWNER, b'{"run":"large"}')
        run(copy.command, elsewhere.name, "--to", place.name)
        elsewhere.write(OWNER, b"torn")  # which does not matter where the target belongs to nobody
        run(copy.command, elsewhere.name, "--to", f"{place.name}-copy")


FOUND = """
import os, pathlib
from holdfast.run.replaying import Recomputed, ReplayOrder
order = ReplayOrder.given(os.environ)
there = sorted(path.name for path in pathlib.Path(os.environ["HOLDFAST_CHECKPOINTS"]).glob("step-*"))
assert there == ["step-000000000020.checkpoint", "step-000000000030.checkpoint"], there
Recomputed(begun=order.begins, digest="d", kept="d").write(pathlib.Path(order.result))
"""


def test_a_checkpoint_in_object_storage_is_proven_and_leaves_nothing(
    there: DirectoryStorage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FOUND)
    assert run(prove.command, "--json", THERE, script) == 0
    proof = msgspec.json.decode(capfd.readouterr().out)
    assert (proof["step"], proof["way"], proof["is_proven"]) == (30, "before", True)
    assert proof["place"] == f"{THERE}/step-000000000030.checkpoint"
    script.write_text("raise SystemExit(3)")
    with pytest.raises(InputError, match="ended with exit code 3"):
        run(prove.command, THERE, script)
    damage(there, 20)
    assert run(prove.command, "--json", THERE, script) == 1
    proof = msgspec.json.decode(capfd.readouterr().out)
    assert not proof["is_proven"]
    assert "step 20 could not be loaded: its pack" in proof["reason"]
    assert not fetched_in(tmp_path)


def test_a_checkpoint_that_is_removed_while_it_is_fetched_is_not_refuted(
    there: DirectoryStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FOUND)

    def fetch(source: Any, steps: Any, directory: Path) -> None:
        damage(there, 20)
        source.remove(["step-000000000020.checkpoint"])  # whoever fills the place has newer ones
        fetch_steps(source, steps, directory)

    monkeypatch.setattr(proof_making, "fetch_steps", fetch)
    with pytest.raises(InputError, match="was removed meanwhile"):
        run(prove.command, THERE, script)
    assert not fetched_in(tmp_path)


FETCHING = """
import sys
from pathlib import Path
from holdfast.train.fetched import passing

with passing(Path(sys.argv[1])) as directory:
    (directory / "step").touch()
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_what_is_fetched_goes_also_if_a_signal_ends_it(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FETCHING, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    directory = Path(process.stdout.readline().strip())
    assert directory.is_dir()
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_has_fetched_goes_with_the_next(
    there: DirectoryStorage, tmp_path: Path
) -> None:
    left, new = tmp_path / ".fetched-0123456789abcdef", tmp_path / ".fetched-0123456789abcdee"
    for path in (left, new):
        path.mkdir()
        (path / "step").touch()
    os.utime(left, (0, 0))
    with passing_directory(tmp_path) as used:
        os.utime(used, (0, 0))
        run(export.command, THERE, "--to", tmp_path / "all.pt")
        assert used.exists()  # somebody has its lock
    assert fetched_in(tmp_path) == [new]  # may not be locked yet


def test_what_cannot_be_used_is_one_sentence_and_a_hint(
    holdfast: Callable[..., Any], server: ObjectServer, folder: Path
) -> None:
    for words, why in (
        (("list", "s3://nowhere/x"), "there is no such bucket"),
        (("copy", "small", "--to", "s3://"), "is not in the form s3://BUCKET/PREFIX"),
        (("prune", "gs://bucket/x"), "Checkpoints cannot be kept in gs://bucket/x"),
    ):
        done = holdfast("checkpoint", *words)
        assert done.code == 2, words
        assert why in done.err
        assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("import", "all.pt", "--to", "s3:/bucket/x"), "'s3:/bucket/x' does not name a place"),
        (("export", "small", "--to", "s3://bucket/x.pt"), "is not a path on this machine."),
        (("export", "gs://bucket/x", "--to", "x.pt"), "Checkpoints cannot be kept in gs://bucket/x."),
        (("copy", "small", "--to", "s3:/bucket/x"), "'s3:/bucket/x' does not name a place for checkpoints."),
        (("copy", "small", "--to", ""), "'' does not name a place for checkpoints."),
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(
    holdfast: Callable[..., Any], folder: Path, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "all.pt").touch()
    refused = holdfast("checkpoint", *words)
    assert refused.code == 2, refused.out
    assert sentence in refused.err
    assert "hint: " in refused.err


def test_an_endpoint_must_be_a_url(holdfast: Callable[..., Any], environment: dict[str, str]) -> None:
    environment["AWS_ENDPOINT_URL"] = "127.0.0.1:9"
    refused = holdfast("checkpoint", "list", "s3://bucket/x")
    assert refused.code == 2
    assert "AWS_ENDPOINT_URL is 127.0.0.1:9, which is not a URL." in refused.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list {}", 0),
        ("list {} --json", 0),
        ("prune {}", 0),
        ("verify {}", 2),
        ("verify {} --json", 2),
        ("prove {} train.py", 2),
        ("copy {} --to there", 2),
        ("export {} --to all.pt", 2),
        ("import all.safetensors --to there --like {}", 2),
    ],
)
def test_only_a_verb_that_needs_a_checkpoint_fails_where_there_is_none(
    holdfast: Callable[..., Any], tmp_path: Path, words: str, code: int
) -> None:
    for name in ("train.py", "all.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    done = holdfast("checkpoint", *words.format(tmp_path / "empty").split())
    assert done.code == code, done
    if code:
        assert done.out == ""
        assert "no checkpoint" in done.err
        assert "hint: " in done.err
