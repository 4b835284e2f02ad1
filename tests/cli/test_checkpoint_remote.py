"""`holdfast checkpoint` with object storage: a real S3 server on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from object_storage import BUCKET, ObjectServer, object_server

from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.opening import load_checkpoint

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
    assert refused.code == 2
    assert "is damaged" in refused.err


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
        (("import", "all.pt", "--to", "s3://bucket/x"), "--to s3:/bucket/x is not a path on this machine."),
        (("export", "small", "--to", "s3://bucket/x.pt"), "is not a path on this machine."),
        (("export", "s3://bucket/x", "--to", "x.pt"), "s3://bucket/x is not on this machine."),
        (("copy", "small", "--to", "s3:/bucket/x"), "'s3:/bucket/x' does not name a place for checkpoints."),
        (("copy", "small", "--to", ""), "'' does not name a place for checkpoints."),
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(
    holdfast: Callable[..., Any], folder: Path, words: tuple[str, ...], sentence: str
) -> None:
    refused = holdfast("checkpoint", *words)
    assert refused.code == 2, refused.out
    assert sentence in refused.err
    assert "hint: " in refused.err


def test_an_endpoint_must_be_a_url(holdfast: Callable[..., Any], environment: dict[str, str]) -> None:
    environment["AWS_ENDPOINT_URL"] = "127.0.0.1:9"
    refused = holdfast("checkpoint", "list", "s3://bucket/x")
    assert refused.code == 2
    assert "AWS_ENDPOINT_URL is 127.0.0.1:9, which is not a URL." in refused.err


def test_to_verify_nothing_is_no_success(holdfast: Callable[..., Any], tmp_path: Path) -> None:
    assert holdfast("checkpoint", "verify", str(tmp_path)).code == 1
