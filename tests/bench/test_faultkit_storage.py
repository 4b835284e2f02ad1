import errno
import os
from pathlib import Path

import pytest
import torch

from bench.faultkit_storage import GEMINI, HOLDFAST_CHECKPOINTS, damage, gemini_file, holdfast_file
from holdfast.train.checkpoint import DirectoryCheckpoints

STEP = 10


def test_each_damage_is_what_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(9))
    damage(file, "none")
    assert file.read_bytes() == bytes(9)
    damage(file, "flip")
    assert file.read_bytes() == bytes(4) + b"\xff" + bytes(4)
    damage(file, "truncate")
    assert file.read_bytes() == bytes(4)
    damage(file, "unreadable")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), file.open("rb") as opened:
        opened.read(4)
    damage(file, "remove")
    assert not file.is_symlink()


def test_the_largest_file_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    assert holdfast_file(tmp_path, STEP) is None
    kept = DirectoryCheckpoints(tmp_path / HOLDFAST_CHECKPOINTS, told=lambda *_, **__: None)
    kept.save(STEP, {"small": torch.zeros(1)})
    small = holdfast_file(tmp_path, STEP)
    assert small is not None
    assert small.suffix == ".checkpoint"
    kept.save(STEP + 1, {"large": torch.arange(1 << 19)})
    large = holdfast_file(tmp_path, STEP + 1)
    assert large is not None
    assert large.suffix == ".pack"


def test_the_file_of_worker_2_is_found_once_all_have_theirs(tmp_path: Path) -> None:
    folder = tmp_path / GEMINI / "runs" / "a" / "b" / f"step-{STEP}"
    folder.mkdir(parents=True)
    for rank in (2, 3, 0):
        (folder / f"rank-{rank}.pt").touch()
    assert gemini_file(tmp_path, STEP) is None
    (folder / "rank-1.pt").touch()
    assert gemini_file(tmp_path, STEP) == folder / "rank-2.pt"
