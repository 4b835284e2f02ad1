"""Chunks of checkpoints: what is written, what is kept, and what is left after damage or a kill anywhere."""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from formats import of_format
from hypothesis import given, settings
from hypothesis import strategies as st
from listening import tell_nobody
from quantity import examples
from waiting import WAIT_S, until

from holdfast.record.errors import StoreError
from holdfast.train.checkpoint import DirectoryCheckpoints, verify
from holdfast.train.chunks import (
    CHUNK_BYTES,
    FOLDER,
    PACKERS,
    PACKS_BEHIND_MAX,
    PackWriter,
    Unsound,
    locked,
    name_of,
    packs_in,
)
from holdfast.train.manifest_file import read_manifest
from holdfast.train.opening import load_checkpoint
from holdfast.train.parts import prune

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

KILLS = examples(120)
"""How many of the moments at which a save, a removal and a restore can be killed are tried."""
ROUNDS = examples(12)
fork = multiprocessing.get_context("fork")


def kept_in(directory: Path, **more: Any) -> DirectoryCheckpoints:
    return DirectoryCheckpoints(directory, told=more.pop("told", tell_nobody), read_pauses_s=(), **more)


def state_of(step: int, frozen: int = 3 * CHUNK_BYTES // 4) -> dict[str, Any]:
    """Some of it never changes, some is new in every step."""
    new = torch.arange(CHUNK_BYTES // 8 + 3) + step
    return {"step": step, "frozen": torch.arange(float(frozen)), "new": new, "few": torch.full((3,), step)}


def assert_whole(found: Any) -> None:
    assert found is not None
    expected = state_of(found.step)
    assert found.state.keys() == expected.keys()
    assert found.state["step"] == found.step
    assert all(torch.equal(found.state[key], expected[key]) for key in ("frozen", "new", "few"))


def needed_in(directory: Path) -> set[str]:
    return {pack for path in directory.glob("step-*.checkpoint") for pack, _ in read_manifest(path).packs}


# ---- names -----------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(
    size=st.integers(1, 300_000),
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    other=st.floats(0, 1, exclude_max=True),
)
def test_a_flipped_bit_has_another_name(size: int, at: float, bit: int, other: float) -> None:
    data = bytearray(random.Random(size).randbytes(size))
    before = name_of(data)
    assert name_of(bytes(data)) == before
    data[int(at * size)] ^= 1 << bit
    flipped = name_of(data)
    assert flipped != before
    data[int(other * size)] ^= 1 << bit
    assert (name_of(data) == before) == (int(at * size) == int(other * size))


# ---- what is written -------------------------------------------------------------------------------------


def test_what_has_not_changed_is_written_twice_and_never_again(tmp_path: Path) -> None:
    """Twice, so that the two newest have no file in common."""
    kept = kept_in(tmp_path)
    written = []
    for step in range(1, 7):
        saved = kept.save(step, state_of(step))
        written.append(saved.written_bytes)
        assert saved.size_bytes == sum(
            one.nbytes for one in state_of(step).values() if step and hasattr(one, "nbytes")
        )
        newest, *older = (read_manifest(kept.path(of)) for of in reversed(kept.steps()))
        assert not {pack for one in older for pack, _ in one.packs} & set(dict(newest.packs))
    new = state_of(1)["new"].nbytes
    assert written == [written[0]] * 2 + [new] * 4
    assert_whole(kept.newest())


def test_a_restart_without_progress_writes_nothing(tmp_path: Path) -> None:
    for step in (1, 2):
        kept_in(tmp_path).save(step, state_of(step))
    again = kept_in(tmp_path)
    assert_whole(again.newest())
    assert again.save(2, state_of(2)).written_bytes == 0
    assert_whole(again.newest())
    verify(again.path(1))


def test_a_pack_that_is_mostly_dead_goes(tmp_path: Path) -> None:
    """Packs of an embedding that changes here and there do not pile up."""
    kept = kept_in(tmp_path)
    table = torch.randn(40, CHUNK_BYTES // 4)
    places = random.Random(1)
    for step in range(1, 25):
        table[places.randrange(40)] += 1
        saved = kept.save(step, {"table": table})
        if step > 2:
            assert saved.written_bytes < table.nbytes
    found = kept.newest()
    assert found is not None
    assert torch.equal(found.state["table"], table)  # type: ignore[arg-type]
    assert sum(packs_in(tmp_path / FOLDER).values()) < 2 * 2.1 * table.nbytes
    assert set(packs_in(tmp_path / FOLDER)) == needed_in(tmp_path)


def test_a_writer_that_gives_up_leaves_neither_packs_nor_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes packs that are not synced yet: here the disk is slow with each."""
    monkeypatch.setattr("holdfast.train.chunks.PACK_BYTES", CHUNK_BYTES)
    goes_on, begun = threading.Event(), threading.Semaphore(0)
    sync = os.fsync

    def slow(descriptor: int) -> None:
        begun.release()
        assert goes_on.wait(600)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    packs = PackWriter(tmp_path, {})
    count = PACKS_BEHIND_MAX
    assert count > PACKERS  # so that at least one is queued
    for _ in packs.add_all(memoryview(os.urandom(CHUNK_BYTES)) for _ in range(count)):
        pass
    for _ in range(PACKERS):
        assert begun.acquire(timeout=600)
    assert len(open_packs(tmp_path)) == count
    packs.abandon()
    goes_on.set()
    until(lambda: not open_packs(tmp_path), lambda: open_packs(tmp_path))
    assert packs_in(tmp_path) == {}


def open_packs(folder: Path) -> list[str]:
    """Those of this process, including removed ones."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if (place := str(link.readlink())).startswith(f"{folder}/") and ".pack" in place:
                found.append(place)
    return found


def test_without_locks_nothing_is_shared_and_what_is_old_still_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    kept = kept_in(tmp_path)
    for step in range(1, 5):
        assert kept.save(step, state_of(step)).written_bytes > CHUNK_BYTES
    assert_whole(kept.newest())
    assert kept.steps() == [3, 4]
    assert set(packs_in(tmp_path / FOLDER)) == needed_in(tmp_path)
    # Packs left by killed writers: one just now, one long ago.
    new, old = (tmp_path / FOLDER / f"{name * 16}-000000.pack" for name in "ab")
    for left in (new, old):
        left.write_bytes(b"left")
    os.utime(old, (0, 0))
    kept.collect()
    assert old.exists()
    prune(tmp_path, 2)
    assert set(packs_in(tmp_path / FOLDER)) == needed_in(tmp_path) | {new.name}


def test_a_user_who_may_write_to_the_folder_may_lock_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    before = os.umask(0o077)
    try:
        with locked(tmp_path):
            assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o660
    finally:
        os.umask(before)


def test_a_pack_that_leads_nowhere_hides_no_other(tmp_path: Path) -> None:
    gone, there = (f"{name * 16}-000000.pack" for name in "ab")
    (tmp_path / gone).symlink_to(tmp_path / "nowhere")
    (tmp_path / there).write_bytes(b"x")
    assert packs_in(tmp_path) == {there: 1}


def test_a_manifest_that_cannot_be_read_stops_the_removal_of_chunks(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    for step in (1, 2):
        kept.save(step, state_of(step))
    there = set(packs_in(tmp_path / FOLDER))
    kept.path(2).rename(tmp_path / "elsewhere")
    kept.path(2).symlink_to(tmp_path / "unmounted")
    with pytest.raises(OSError, match="No such file"):
        kept.collect()
    with pytest.raises(StoreError):
        kept.save(3, state_of(3))
    newer = of_format((tmp_path / "elsewhere").read_bytes(), 5)
    kept.path(2).unlink()
    kept.path(2).write_bytes(newer)
    with pytest.raises(OSError, match="format 5"):
        kept.collect()
    assert set(packs_in(tmp_path / FOLDER)) == there
    kept.path(2).unlink()
    (tmp_path / "elsewhere").rename(kept.path(2))
    verify(kept.path(2))


# ---- damage ----------------------------------------------------------------------------------------------

Damage = Callable[[Path, random.Random], None]


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def remove(path: Path, chance: random.Random) -> None:
    path.unlink()


def in_their_places(path: Path, chance: random.Random) -> None:
    """Right bytes, wrong places: as when a filesystem loses the order of blocks."""
    content = path.read_bytes()
    at = chance.randrange(1, len(content))
    path.write_bytes(content[at:] + content[:at])


@pytest.mark.parametrize("damage", [flip, truncate, remove, in_their_places])
def test_any_damage_to_any_file_leaves_the_other_version(tmp_path: Path, damage: Damage) -> None:
    sound = tmp_path / "sound"
    digests = {step: kept_in(sound).save(step, state_of(step)).digest for step in range(1, 5)}
    names = [path.relative_to(sound) for path in sound.rglob("*") if path.suffix in (".checkpoint", ".pack")]
    assert len(names) > 4
    for number, name in enumerate(names):
        for seed in range(examples(8)):
            broken = tmp_path / "broken"
            shutil.copytree(sound, broken)
            damage(broken / name, random.Random(100 * number + seed))
            told: list[Any] = []
            found = kept_in(broken, told=lambda *what, **_: told.append(what)).newest()  # noqa: B023
            assert_whole(found)
            assert found is not None
            assert found.digest == digests[found.step]
            is_hurt = is_of_newest(sound, broken, name)
            assert found.step == (3 if is_hurt else 4)
            is_gone = not (broken / name).exists() and name.suffix == ".checkpoint"
            assert bool(told) == (is_hurt and not is_gone)
            shutil.rmtree(broken)


def is_of_newest(sound: Path, broken: Path, name: Path) -> bool:
    """Whether bytes of this file that the newest checkpoint needs have changed."""
    newest = "step-000000000004.checkpoint"
    before = (sound / name).read_bytes()
    after = (broken / name).read_bytes() if (broken / name).exists() else b""
    if name.suffix == ".checkpoint":
        return name.name == newest and before != after
    places = [place for _, place in read_manifest(sound / newest).chunks() if place.pack == name.name]
    stretches = [slice(place.offset, place.offset + place.size_bytes) for place in places]
    return any(before[one] != after[one] for one in stretches)


# ---- kills -----------------------------------------------------------------------------------------------

WATCHED = ("chunks.py", "pack_file.py", "manifest.py", "checkpoint.py", "whole_file.py")


def die_at(moment: int, reached: ctypes.c_longlong) -> None:
    """From here on count the lines of checkpoint code in all threads, and die at this one."""

    def count(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if event == "line":
            reached.value += 1
            if reached.value == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    threading.settrace(count)
    sys.settrace(count)


def save_and_restore(directory: Path, moment: int, reached: ctypes.c_longlong) -> None:
    """Save, write a manifest, remove the oldest checkpoint, collect its chunks, and restore."""
    torch.set_num_threads(1)
    kept = kept_in(directory)
    die_at(moment, reached)
    kept.save(4, state_of(4))
    kept.newest()
    os._exit(0)


def run_until(directory: Path, moment: int) -> int:
    """How many lines were reached."""
    reached = fork.RawValue(ctypes.c_longlong, 0)
    child = fork.Process(target=save_and_restore, args=(directory, moment, reached))
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == (0 if moment == 0 else -signal.SIGKILL)
    child.close()
    return int(reached.value)


def test_a_kill_at_any_line_leaves_the_newest_whole_version(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    digests = {step: kept_in(begun).save(step, state_of(step)).digest for step in range(1, 4)}
    digests[4] = kept_in(tmp_path / "other").save(4, state_of(4)).digest
    shutil.copytree(begun, tmp_path / "whole")
    lines = run_until(tmp_path / "whole", 0)
    assert lines > 500
    moments = random.Random(7).sample(range(1, lines * 9 // 10), min(KILLS, lines // 2))
    steps = []
    for moment in moments:
        broken = tmp_path / "broken"
        shutil.copytree(begun, broken)
        run_until(broken, moment)
        found = kept_in(broken).newest()
        assert_whole(found)
        assert found is not None
        assert found.step in (3, 4), moment
        assert found.digest == digests[found.step]
        steps.append(found.step)
        for path in broken.glob("step-*.checkpoint"):
            verify(path)
        for path in broken.glob(".*.part"):
            if path.stat().st_size == 0:
                path.unlink()  # killed before it had its lock: it stays for a minute
        later = kept_in(broken)
        later.save(5, state_of(5))
        assert_whole(later.newest())
        assert set(packs_in(broken / FOLDER)) == needed_in(broken), moment
        assert {path.name for path in broken.iterdir()} == {
            FOLDER,
            *(f"step-{step:012d}.checkpoint" for step in later.steps()),
        }
        shutil.rmtree(broken)
    assert set(steps) == {3, 4}


def save_for_ever(directory: Path, first: int, stride: int) -> None:
    torch.set_num_threads(1)
    kept = kept_in(directory)
    step = first
    while True:
        step += stride
        kept.save(step, state_of(step))


def test_two_runs_in_one_directory_remove_nothing_that_a_manifest_needs(tmp_path: Path) -> None:
    """Each reuses chunks and removes old ones, and each is killed in the middle, again and again."""
    chance = random.Random(3)
    reader = kept_in(tmp_path)
    for number in range(ROUNDS):
        first = max(reader.steps(), default=0)
        writers = [
            fork.Process(target=save_for_ever, args=(tmp_path, first + offset, 2)) for offset in range(2)
        ]
        for writer in writers:
            writer.start()
        deadline_s = time.monotonic() + WAIT_S
        while max(reader.steps(), default=0) < first + 8:
            assert time.monotonic() < deadline_s
            check_all(reader)
        time.sleep(chance.uniform(0, 0.05))  # the random moment of the kill
        for writer in writers:
            writer.kill()
            writer.join(WAIT_S)
            writer.close()
        check_all(reader)
        assert_whole(reader.newest())
        assert number < ROUNDS
    last = max(reader.steps()) + 1
    reader.save(last, state_of(last))
    assert set(packs_in(tmp_path / FOLDER)) == needed_in(tmp_path)


def test_a_checkpoint_is_opened_while_its_run_goes_on(tmp_path: Path) -> None:
    """The checkpoint may be removed as old while it is read; then a newer one is read."""
    writer = fork.Process(target=save_named_for_ever, args=(tmp_path,))
    writer.start()
    try:
        until(lambda: len(kept_in(tmp_path).steps()) == 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # none is skipped as damaged
            for _ in range(30):
                found = load_checkpoint(tmp_path)
                assert torch.equal(found.model["new"], state_of(found.step)["new"])
    finally:
        writer.kill()
        writer.join(WAIT_S)
        writer.close()


def save_named_for_ever(directory: Path) -> None:
    torch.set_num_threads(1)
    kept = kept_in(directory)
    for step in itertools.count(1):
        state = {"new": state_of(step)["new"]}
        kept.save(step, {"lanes": 1, "seed": 1, "loss": None, "names": ["model"], "state": [state]})


def check_all(kept: DirectoryCheckpoints) -> None:
    for step in kept.steps():
        try:
            verify(kept.path(step), step)
        except (Unsound, FileNotFoundError):
            assert not kept.path(step).exists()  # removed while it was read
