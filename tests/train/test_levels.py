"""Checkpoints in several places: full, read-only, vanished and hanging storage."""

import fcntl
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import WAIT_S, until

from holdfast.record.errors import InputError, StoreError
from holdfast.train import chunks
from holdfast.train.checkpoint import DirectoryCheckpoints, Mark, Saved, State, Writer
from holdfast.train.chunks import FOLDER
from holdfast.train.levels import LeveledCheckpoints
from holdfast.train.manifest_file import ALL, Share

pytestmark = pytest.mark.slow

spawn = multiprocessing.get_context("spawn")


class Heard(list[tuple[str, int, str, str]]):
    def __call__(self, happened: str, step: int, place: str, reason: str = "", **_: object) -> None:
        self.append((happened, step, place, reason))


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "tensor": torch.arange(1000) + step}


def level(directory: Path, told: Any) -> DirectoryCheckpoints:
    return DirectoryCheckpoints(directory, told=told, read_pauses_s=())


def damage(directory: Path, step: int) -> None:
    (directory / f"step-{step:012d}.checkpoint").write_bytes(b"torn")


def test_the_next_place_is_used_where_the_first_fails_and_the_newest_counts(tmp_path: Path) -> None:
    told = Heard()
    first, second = tmp_path / "first", tmp_path / "second"
    kept = LeveledCheckpoints([level(first, told), level(second, told)], told=told)
    assert kept.newest() is None
    kept.save(1, state_of(1))
    away = tmp_path / "away"
    first.rename(away)
    first.write_text("what was mounted here is gone")
    saved = kept.save(2, state_of(2))
    assert Path(saved.place).parent == second
    ((happened, step, place, reason),) = told
    assert (happened, step, place) == ("failed", 2, str(first))
    assert "Not a directory. Trying the next." in reason or "File exists. Trying the next." in reason
    # A place that cannot be read is not skipped: it may have the newest checkpoint.
    with pytest.raises(StoreError, match="Cannot read"):
        kept.newest()
    first.unlink()
    away.rename(first)
    found = kept.newest()
    assert found is not None
    assert found.step == 2
    assert kept.steps() == [1, 2]
    damage(second, 2)
    found = kept.newest()
    assert found is not None
    assert found.step == 1
    damage(first, 1)
    with pytest.raises(StoreError, match="Every checkpoint in"):
        kept.newest()


def test_of_the_same_step_the_first_place_is_read(tmp_path: Path) -> None:
    told = Heard()
    levels = [level(tmp_path / name, told) for name in ("first", "second")]
    for one in levels:
        one.save(3, state_of(3))
    found = LeveledCheckpoints(levels, told=told).newest()
    assert found is not None
    assert found.place.startswith(str(tmp_path / "first"))
    damage(tmp_path / "first", 3)
    found = LeveledCheckpoints(levels, told=told).newest()
    assert found is not None
    assert found.place.startswith(str(tmp_path / "second"))


def test_all_places_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = Heard()
    kept = LeveledCheckpoints([level(tmp_path / "file" / name, told) for name in "ab"], told=told)
    with pytest.raises(StoreError, match="could not be written"):
        kept.save(1, state_of(1))
    assert [heard[0] for heard in told] == ["failed"]
    with pytest.raises(InputError, match="no place"):
        LeveledCheckpoints([], told=told)


class Hanging(DirectoryCheckpoints):
    """Storage that hangs until the test releases it."""

    def __init__(self, directory: Path, told: Any) -> None:
        super().__init__(directory, told=told)
        self.gate = threading.Event()
        self.done = threading.Event()

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        assert self.gate.wait(WAIT_S)
        try:
            return super().save(step, state, share)
        finally:
            self.done.set()


def test_storage_that_hangs_is_left_alone_and_so_is_the_state_that_it_reads(tmp_path: Path) -> None:
    told = Heard()
    hanging = Hanging(tmp_path / "hangs", told)
    kept = LeveledCheckpoints([hanging, level(tmp_path / "other", told)], told=told, hang_s=2.0)
    tensor = torch.arange(100_000)
    with Writer(kept, told=told, every_steps=1) as writer:
        for step in (1, 2, 3):
            tensor += 1
            writer.offer(step, {"step": step, "tensor": tensor})
            until(lambda: not writer.is_busy)
            assert writer.saved == step
        reasons = [reason for happened, _, _, reason in told if happened == "failed"]
        assert "it hangs. Trying the next." in reasons[0]
        assert all("which hangs. Trying the next." in reason for reason in reasons[1:])
        hanging.gate.set()
        assert hanging.done.wait(WAIT_S)
        until(lambda: not kept.is_read)
        tensor += 1
        writer.offer(4, {"step": 4, "tensor": tensor})
        until(lambda: writer.saved == 4)
    for directory, steps in ((tmp_path / "hangs", (1, 4)), (tmp_path / "other", (2, 3))):
        store = level(directory, told)
        assert store.steps() == list(steps)
        for step in steps:
            found = store.newest((step, 0))
            assert found is not None
            assert torch.equal(found.state["tensor"], torch.arange(100_000) + step)  # type: ignore[arg-type]


def test_the_last_checkpoint_goes_to_the_second_place_where_the_first_hangs(tmp_path: Path) -> None:
    told = Heard()
    hanging = Hanging(tmp_path / "hangs", told)
    kept = LeveledCheckpoints([hanging, level(tmp_path / "other", told)], told=told)
    writer = Writer(kept, told=told, every_steps=1)
    writer.offer(1, state_of(1))
    until(lambda: writer.is_busy)
    assert writer.close(6.0)
    assert writer.saved == 1
    assert level(tmp_path / "other", told).steps() == [1]
    hanging.gate.set()
    assert hanging.done.wait(WAIT_S)


class Dead(DirectoryCheckpoints):
    """A mount that never answers."""

    def marks(self) -> list[Mark]:
        threading.Event().wait()
        raise AssertionError

    def steps(self) -> list[int]:
        threading.Event().wait()
        raise AssertionError


def test_a_place_that_hangs_while_it_is_read_is_named(tmp_path: Path) -> None:
    told = Heard()
    sound = level(tmp_path / "sound", told)
    sound.save(1, state_of(1))
    kept = LeveledCheckpoints([Dead(tmp_path / "dead", told=told), sound], told=told, hang_s=2.0)
    with pytest.raises(StoreError, match="dead could not be read"):
        kept.newest()
    with pytest.raises(StoreError, match="dead could not be read"):
        kept.steps()


def end_with_a_save_that_hangs(directory: Path) -> None:
    chunks.LOCK_S_MAX = 100 * WAIT_S  # the wait for the lock must not end first
    kept = LeveledCheckpoints([level(directory, Heard())], told=Heard(), hang_s=0.1)
    writer = Writer(kept, told=Heard(), every_steps=1)
    writer.offer(2, state_of(2))
    until(lambda: not writer.is_busy)
    assert kept.is_read
    assert writer.close(0.1)


def test_a_process_ends_though_its_storage_hangs(tmp_path: Path) -> None:
    """A process was paused while it had the lock. The directory loses nothing by it."""
    level(tmp_path, Heard()).save(1, state_of(1))
    with (tmp_path / FOLDER / ".lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ending = spawn.Process(target=end_with_a_save_that_hangs, args=(tmp_path,))
        ending.start()
        ending.join(WAIT_S)
        assert ending.exitcode == 0
    later = level(tmp_path, Heard())
    later.save(3, state_of(3))
    found = later.newest()
    assert found is not None
    assert found.step == 3


def test_a_run_goes_on_and_its_checkpoints_go_where_they_can(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import holdfast.train as hf

    second = alone.parent / "second"
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", os.pathsep.join([str(second / "none"), str(second)]))
    second.mkdir()
    (second / "none").write_text("")

    def train(steps: int) -> list[int]:
        seen = []
        with hf.join() as run:
            torch.manual_seed(1)
            model = torch.nn.Linear(2, 1)
            state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), lanes=2, seed=1)
            for step in state.steps(steps):
                for lane in step.lanes:
                    lane.backward(model(torch.ones(4, 2)).square().mean())
                step.commit()
                seen.append(step.number)
        return seen

    with pytest.raises(StoreError, match="Cannot read"):
        train(2)
    (second / "none").unlink()
    assert train(2) == [1, 2]
    (second / "none").rename(second / "gone")
    (second / "none").mkdir()
    (second / "none" / "chunks").write_text("in the way")
    assert train(4) == [1, 2, 3, 4]
    assert [path.name for path in second.glob("step-*")] == ["step-000000000004.checkpoint"]
    assert train(6) == [5, 6]
