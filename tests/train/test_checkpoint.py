import ctypes
import fcntl
import multiprocessing
import os
import random
import resource
import stat
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from formats import numbered, of_format
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples, sampled
from waiting import WAIT_S, until

from holdfast.record.clock import ManualClock
from holdfast.record.errors import InputError, StoreError
from holdfast.train.checkpoint import (
    COST_SHARE_MAX,
    EXPOSURE_S_MAX,
    DirectoryCheckpoints,
    Happened,
    Loaded,
    Mark,
    Saved,
    Snapshot,
    State,
    Writer,
)
from holdfast.train.chunks import FOLDER, packs_in
from holdfast.train.manifest_file import ALL, Share, read_manifest

# From Python 3.12 on: the children here save and die, and do not use other threads' locks.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

KILL_AFTER_SAVES_MAX = 2
"""Kills come within this many times the duration of a save: some saves finish before, and every part of one
is hit.
"""
ELEMENTS = 1 << 18
fork = multiprocessing.get_context("fork")


class Heard(NamedTuple):
    happened: str
    step: int
    place: str
    reason: str
    stall_ns: int | None
    size_bytes: int | None
    written_bytes: int | None
    write_ns: int | None
    exposed_ns: int | None


class Listener(list[Heard]):
    """Collects what happens to checkpoints."""

    def __call__(
        self,
        happened: Happened,
        step: int,
        place: str,
        reason: str = "",
        *,
        stall_ns: int | None = None,
        size_bytes: int | None = None,
        written_bytes: int | None = None,
        write_ns: int | None = None,
        exposed_ns: int | None = None,
    ) -> None:
        sizes = size_bytes, written_bytes
        self.append(Heard(happened, step, place, reason, stall_ns, *sizes, write_ns, exposed_ns))

    def kinds(self) -> list[tuple[str, int]]:
        return [(heard.happened, heard.step) for heard in self]


@pytest.fixture
def told() -> Listener:
    return Listener()


@pytest.fixture
def checkpoints(tmp_path: Path, told: Listener) -> DirectoryCheckpoints:
    return DirectoryCheckpoints(tmp_path / "made" / "when needed", told=told)


def state_of(step: int, elements: int = ELEMENTS) -> dict[str, object]:
    """A state in which every tensor names its step, so that mixed-up tensors show."""
    return {"step": step, "tensors": [torch.arange(elements) + step, torch.full((7,), -step)]}


def assert_whole(loaded: Loaded) -> None:
    assert loaded.state["step"] == loaded.step
    tensors = loaded.state["tensors"]
    assert isinstance(tensors, list)
    assert torch.equal(tensors[0], torch.arange(len(tensors[0])) + loaded.step)
    assert torch.equal(tensors[1], torch.full((7,), -loaded.step))


# ---- keeping ---------------------------------------------------------------------------------------------


def test_what_was_saved_comes_back(checkpoints: DirectoryCheckpoints, told: Listener) -> None:
    assert checkpoints.newest() is None
    assert checkpoints.steps() == []
    saved = checkpoints.save(7, state_of(7))
    loaded = checkpoints.newest()
    assert loaded is not None
    assert (loaded.step, loaded.place) == (7, saved.place)
    assert_whole(loaded)
    assert loaded.digest == saved.digest
    assert saved.size_bytes == 8 * (ELEMENTS + 7)
    assert told == []


def test_a_training_state_comes_back_with_types_and_ties(checkpoints: DirectoryCheckpoints) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(np.float64(1e-3)))
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3, 3])
    scheduler.base_lrs = [np.float64(1e-3)]  # as when a learning rate was computed with numpy
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    state = {
        "model": model.state_dict(),
        "others": [optimizer.state_dict(), scheduler.state_dict()],
        "plain": (None, True, 2**70, 0.1, 1j, "text", b"bytes", torch.bfloat16, torch.Size([2, 3])),
        "half": torch.randn(3, dtype=torch.bfloat16),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "slice": torch.randn(100_000)[::50_000],
    }
    saved = checkpoints.save(1, Snapshot(state).state)
    assert saved.size_bytes < 100_000  # a slice does not bring the whole along
    loaded = checkpoints.newest()
    assert loaded is not None
    assert_equal(loaded.state, state)
    weights = loaded.state["model"]
    assert type(weights) is OrderedDict
    assert weights._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    assert weights["0.weight"].data_ptr() == weights["2.weight"].data_ptr()
    assert type(loaded.state["others"][1]["milestones"]) is Counter  # type: ignore[index]
    scheduler.load_state_dict(loaded.state["others"][1])  # type: ignore[index]


def assert_equal(left: object, right: object) -> None:
    if isinstance(right, torch.Tensor):
        assert isinstance(left, torch.Tensor)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert torch.equal(left, right)
    elif isinstance(right, dict):
        assert isinstance(left, dict)
        assert left.keys() == right.keys()
        for key in right:
            assert_equal(left[key], right[key])
    elif isinstance(right, list | tuple):
        assert type(left) is type(right)
        assert isinstance(left, list | tuple)
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        assert left == right


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Fraction(1, 2), "inner.x"),
        ([1, {1, 2}], r"inner.x\[1\]"),
        ({Fraction(1, 2): 1}, "a key of inner.x"),
        (torch.eye(2).to_sparse(), "inner.x"),
        (np.zeros(2), "inner.x"),
    ],
)
def test_what_cannot_be_kept_is_named(value: object, named: str) -> None:
    with pytest.raises(InputError, match=f"cannot keep {named}, a "):
        Snapshot({"inner": {"x": value}})


def test_nothing_is_kept_that_could_not_be_loaded(checkpoints: DirectoryCheckpoints) -> None:
    with pytest.raises(StoreError, match=r"Fraction"):
        checkpoints.save(1, {"x": Fraction(1, 2)})
    assert checkpoints.steps() == []


def test_the_newest_few_are_kept(checkpoints: DirectoryCheckpoints) -> None:
    for step in (1, 2, 3, 10, 5):
        checkpoints.save(step, state_of(step, 10))
    # Step 5 is from a member that is behind: it must not remove later steps.
    assert checkpoints.steps() == [3, 5, 10]
    checkpoints.save(11, state_of(11, 10))
    assert checkpoints.steps() == [10, 11]
    assert files_in(checkpoints) == ["step-000000000010.checkpoint", "step-000000000011.checkpoint"]


def files_in(checkpoints: DirectoryCheckpoints) -> list[str]:
    """All files except chunks; the chunks must be those that are needed."""
    directory = Path(checkpoints.place)
    found = sorted(path.name for path in directory.iterdir() if path.name != FOLDER)
    needed = {
        pack
        for name in found
        if name.endswith(".checkpoint")
        for pack, _ in read_manifest(directory / name).packs
    }
    assert set(packs_in(directory / FOLDER)) == needed
    return found


def test_a_directory_keeps_at_least_one(tmp_path: Path, told: Listener) -> None:
    with pytest.raises(InputError, match="keep=0"):
        DirectoryCheckpoints(tmp_path, keep=0, told=told)
    only = DirectoryCheckpoints(tmp_path, keep=1, told=told)
    for step in (1, 2):
        only.save(step, state_of(step, 10))
        assert only.steps() == [step]


# ---- refusing --------------------------------------------------------------------------------------------


damages = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(0, 7)),
    st.tuples(st.just("truncate"), st.floats(0, 1, exclude_max=True), st.just(0)),
    st.tuples(st.just("append"), st.just(0.0), st.integers(1, 100)),
    st.tuples(st.just("zero"), st.floats(0, 1, exclude_max=True), st.just(0)),
)


@settings(max_examples=examples(150), deadline=None)
@given(damage=damages, elements=st.sampled_from([50, 500, 300_000]), is_of_manifest=st.booleans())
def test_no_damage_is_loaded_and_the_one_before_is(
    tmp_path_factory: pytest.TempPathFactory,
    damage: tuple[str, float, int],
    elements: int,
    is_of_manifest: bool,
) -> None:
    told = Listener()
    checkpoints = DirectoryCheckpoints(tmp_path_factory.mktemp("damaged"), told=told)
    checkpoints.save(1, state_of(1, elements))
    path = Path(checkpoints.save(2, state_of(2, elements)).place)
    packs = [path.parent / FOLDER / pack for pack, _ in read_manifest(path).packs]
    target = path if is_of_manifest or not packs else packs[0]
    sound = target.read_bytes()
    content = damaged(sound, *damage)
    target.write_bytes(content)
    loaded = checkpoints.newest()
    assert loaded is not None
    assert_whole(loaded)
    if content == sound or (content.startswith(sound) and target != path):
        assert loaded.step == 2  # zeros where there were zeros, or bytes that are never read
        return
    assert loaded.step == 1
    assert told.kinds() == [("failed", 2)]
    assert told[0].place == str(path)
    assert told[0].reason


def damaged(content: bytes, how: str, where: float, amount: int) -> bytes:
    at = int(where * len(content))
    if how == "flip":
        return content[:at] + bytes([content[at] ^ 1 << amount]) + content[at + 1 :]
    if how == "truncate":
        return content[:at]
    if how == "append":
        return content + b"x" * amount
    return content[:at].ljust(len(content), b"\0")


def test_what_only_looks_like_a_checkpoint_is_told_of_and_passed_over(
    checkpoints: DirectoryCheckpoints, told: Listener
) -> None:
    sound = Path(checkpoints.save(1, state_of(1, 10)).place)
    newer = sound.with_name("step-000000000009.checkpoint")
    contents = {
        "inside its header": b"",
        "not a checkpoint": b"#!/bin/sh\n" * 100,
        "of step 1": sound.read_bytes(),
        "never existed": of_format(sound.read_bytes(), 0),
        "its format number is damaged: it says 7": numbered(sound.read_bytes(), 7),
    }
    for content in contents.values():
        newer.write_bytes(content)
        loaded = checkpoints.newest()
        assert loaded is not None
        assert loaded.step == 1
    newer.unlink()
    newer.mkdir()
    checkpoints.newest()
    newer.rmdir()
    os.mkfifo(newer)
    checkpoints.newest()
    assert told.kinds() == [("failed", 9)] * (len(contents) + 2)
    for heard, pattern in zip(told, [*contents, "plain file", "plain file"], strict=True):
        assert pattern in heard.reason


@pytest.mark.parametrize("is_of_manifest", [True, False])
def test_what_storage_has_lost_is_passed_over_by_name_and_saving_goes_on(
    tmp_path: Path, told: Listener, is_of_manifest: bool
) -> None:
    checkpoints = DirectoryCheckpoints(tmp_path, told=told, read_pauses_s=(0.0, 0.0))
    for step in (1, 2):
        checkpoints.save(step, state_of(step))
    lost = unreadable(checkpoints.path(2), is_of_manifest)
    loaded = checkpoints.newest()
    assert loaded is not None
    assert loaded.step == 1
    assert_whole(loaded)
    assert told.kinds() == [("failed", 2)]  # once, after the last attempt
    assert told[0].reason == f"{lost.name} cannot be read: Input/output error"
    # A member that has refused nothing can save as well, and unreadable checkpoints go with the old ones.
    another = DirectoryCheckpoints(tmp_path, told=told)
    for step in (3, 4, 5):
        another.save(step, state_of(step))
    assert another.steps() == [4, 5]


def test_a_run_ends_where_storage_has_lost_all_that_there_is(tmp_path: Path, told: Listener) -> None:
    checkpoints = DirectoryCheckpoints(tmp_path, told=told, read_pauses_s=())
    checkpoints.save(1, state_of(1))
    lost = unreadable(checkpoints.path(1), is_of_manifest=False)
    with pytest.raises(StoreError, match="Input/output error") as caught:
        checkpoints.newest()
    assert str(lost) in caught.value.sentence


def unreadable(manifest: Path, is_of_manifest: bool) -> Path:
    """A file of a checkpoint for which the kernel returns the error of a bad disk from now on."""
    (pack,) = (manifest.parent / FOLDER / name for name, _ in read_manifest(manifest).packs)
    file = manifest if is_of_manifest else pack
    file.unlink()
    file.symlink_to("/proc/self/mem")  # nothing is mapped where it begins
    return file


@pytest.mark.parametrize(
    ("version", "sentence", "hint"),
    [
        (3, "an older Holdfast wrote it", "checkpoint import"),
        (5, "a newer Holdfast wrote it", "Go on with the"),
    ],
)
def test_what_another_version_wrote_does_not_send_the_run_back(
    checkpoints: DirectoryCheckpoints, told: Listener, version: int, sentence: str, hint: str
) -> None:
    sound = Path(checkpoints.save(1, state_of(1, 10)).place)
    other = sound.with_name("step-000000000009.checkpoint")
    other.write_bytes(of_format(sound.read_bytes(), version))
    with pytest.raises(StoreError, match=sentence) as caught:
        checkpoints.newest()
    assert str(other) in caught.value.sentence
    assert hint in caught.value.hint
    assert told == []
    assert checkpoints.steps() == [1, 9]


def test_other_files_and_a_missing_directory_are_no_checkpoints(tmp_path: Path, told: Listener) -> None:
    (tmp_path / "README").write_text("not a checkpoint")
    for name in ("step-12.checkpoint", "step-0000000000012.checkpoint", "step-٠٠٠٠٠٠٠٠٠٠١٢.checkpoint"):
        (tmp_path / name).write_text("nor this")
    assert DirectoryCheckpoints(tmp_path, told=told).newest() is None
    assert DirectoryCheckpoints(tmp_path / "nowhere", told=told).newest() is None
    assert told == []
    impossible = DirectoryCheckpoints(tmp_path / "README", told=told)
    with pytest.raises(StoreError, match="could not be written"):
        impossible.save(1, state_of(1, 10))


def test_what_was_refused_does_not_count_as_kept(checkpoints: DirectoryCheckpoints, told: Listener) -> None:
    for step in (1, 2, 3):
        checkpoints.save(step, state_of(step, 10))
    Path(checkpoints.place, "step-000000000003.checkpoint").write_bytes(b"torn")
    assert checkpoints.newest() is not None
    checkpoints.save(4, state_of(4, 10))
    assert checkpoints.steps() == [2, 4]
    Path(checkpoints.place, "step-000000000004.checkpoint").write_bytes(b"torn")
    checkpoints.newest()
    checkpoints.save(4, state_of(4, 10))  # once saved anew it counts again
    checkpoints.save(5, state_of(5, 10))
    assert checkpoints.steps() == [4, 5]


# ---- writers that die, and several of them ---------------------------------------------------------------


def save_on(directory: Path, durable: ctypes.c_longlong, stride: int = 1) -> None:
    """Save one step after the other for ever, and report which is durable."""
    torch.set_num_threads(1)
    checkpoints = DirectoryCheckpoints(directory, told=Listener())
    step = durable.value
    while True:
        step += stride
        checkpoints.save(step, state_of(step))
        durable.value = step


@pytest.mark.parametrize("kills", sampled([15, 100], [15]))
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, kills: int) -> None:
    told = Listener()
    checkpoints = DirectoryCheckpoints(tmp_path, told=told)
    durable = fork.RawValue(ctypes.c_longlong, 0)  # without a lock, which a kill would leave locked
    moments = random.Random(1)
    save_s = 0.0
    steps_seen = set()
    for _ in range(kills):
        writer = fork.Process(target=save_on, args=(tmp_path, durable))
        began_s = time.monotonic()
        writer.start()
        if not save_s:
            until(lambda: durable.value > 0)
            save_s = time.monotonic() - began_s
        time.sleep(moments.uniform(0, KILL_AFTER_SAVES_MAX * save_s))
        writer.kill()
        writer.join(WAIT_S)
        assert writer.exitcode == -9
        writer.close()
        loaded = checkpoints.newest()
        assert loaded is not None
        assert_whole(loaded)
        assert loaded.step in (durable.value, durable.value + 1)
        steps_seen.add(loaded.step)
    assert len(steps_seen) > kills // 10
    # Only half-written checkpoints were ever skipped, and that did happen.
    assert told
    assert {heard.reason for heard in told} == {"its writer died before it was complete"}
    checkpoints.save(durable.value + 2, state_of(durable.value + 2))
    # A writer that was killed before it could lock its file leaves it empty; such a file stays for a minute.
    for path in tmp_path.glob(".*.part"):
        assert path.stat().st_size == 0
        path.unlink()
    files_in(checkpoints)


def test_writers_and_a_reader_at_once_do_each_other_no_harm(tmp_path: Path) -> None:
    """As when a paused member wakes up and continues saving while another has taken its place."""
    told = Listener()
    checkpoints = DirectoryCheckpoints(tmp_path, told=told)
    marks = [fork.RawValue(ctypes.c_longlong, start) for start in (0, 0, 1)]
    writers = [
        fork.Process(target=save_on, args=(tmp_path, mark, stride))
        for mark, stride in zip(marks, (1, 3, 2), strict=True)
    ]
    for writer in writers:
        writer.start()
    try:
        deadline_s = time.monotonic() + WAIT_S
        reads = 0
        while reads < 30 or min(mark.value for mark in marks) < 12:
            assert time.monotonic() < deadline_s
            assert all(writer.is_alive() for writer in writers)
            durable = max(mark.value for mark in marks)
            loaded = checkpoints.newest()
            if loaded is None:
                assert durable <= 1
                continue
            assert_whole(loaded)
            assert loaded.step >= durable
            reads += 1
    finally:
        for writer in writers:
            writer.kill()
            writer.join(WAIT_S)
            writer.close()
    assert told == []


def test_a_part_that_is_being_written_is_not_removed(
    checkpoints: DirectoryCheckpoints, told: Listener
) -> None:
    checkpoints.save(1, state_of(1, 10))
    part = Path(checkpoints.place, ".step-000000000002.0123456789abcdef.part")
    part.write_bytes(b"half")
    with part.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        checkpoints.newest()
        checkpoints.save(3, state_of(3, 10))
        assert part.exists()
        assert told == []
    checkpoints.newest()
    assert told.kinds() == [("failed", 2)]
    checkpoints.save(4, state_of(4, 10))
    assert not part.exists()


def run_out_of_room(directory: Path, report: "multiprocessing.connection.Connection[object, object]") -> None:
    """No file may grow beyond a megabyte here, so writing fails as on a full disk."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    told = Listener()
    checkpoints = DirectoryCheckpoints(directory, told=told)
    with Writer(checkpoints, told=told) as writer:
        for step, elements in ((1, 10), (2, 1 << 20), (3, 1 << 20), (4, 10)):
            writer.offer(step, state_of(step, elements))
            while not told or told[-1].step < step or told[-1].happened == "begun":
                time.sleep(0.001)
    report.send(list(told))
    report.close()


def test_a_full_disk_is_told_of_and_training_goes_on(
    checkpoints: DirectoryCheckpoints, told: Listener
) -> None:
    here, there = fork.Pipe()
    process = fork.Process(target=run_out_of_room, args=(Path(checkpoints.place), there))
    process.start()
    there.close()
    assert here.poll(WAIT_S)
    heard: list[Heard] = here.recv()
    process.join(WAIT_S)
    assert process.exitcode == 0
    process.close()
    here.close()
    assert [(one.happened, one.step) for one in heard if one.happened != "begun"] == [
        ("saved", 1),
        ("failed", 2),
        ("failed", 3),
        ("saved", 4),
    ]
    assert "File too large" in heard[3].reason
    assert checkpoints.steps() == [1, 4]
    assert checkpoints.newest() is not None
    assert told == []
    assert len(files_in(checkpoints)) == 2


# ---- in the background -----------------------------------------------------------------------------------


class SlowCheckpoints:
    """Keeps copies in memory, each when the test allows it; can fail, and takes time by a clock
    of its own.
    """

    place = "memory"
    is_read = False

    def __init__(self, clock: ManualClock, took_ns: int = 0) -> None:
        self._clock = clock
        self.took_ns = took_ns
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.kept: dict[int, tuple[float, int]] = {}
        self.error: Exception | None = None

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        self.entered.release()
        assert self.gate.acquire(timeout=WAIT_S)
        self._clock.advance_ns(self.took_ns)
        if self.error:
            raise self.error
        tensor = state["tensor"]
        assert isinstance(tensor, torch.Tensor)
        self.kept[step] = tensor[0].item(), tensor.data_ptr()
        return Saved(
            step=step, place=f"memory/{step}", size_bytes=1_000 * step, written_bytes=step, digest=""
        )

    def hurry(self, within_s: float) -> None:
        pass

    def newest(self, until: Mark | None = None) -> Loaded | None:
        raise NotImplementedError

    def steps(self) -> list[int]:
        return sorted(self.kept)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def slow(clock: ManualClock) -> SlowCheckpoints:
    return SlowCheckpoints(clock)


@pytest.fixture
def writer(slow: SlowCheckpoints, clock: ManualClock, told: Listener) -> Iterator[Writer]:
    with Writer(slow, told=told, clock=clock) as made:
        yield made
        for _ in range(10):
            slow.gate.release()


def wait_for_news(told: Listener, count: int) -> None:
    until(lambda: len(told) == count)


def test_what_a_save_took_and_what_was_at_stake_until_then_are_told(
    writer: Writer, slow: SlowCheckpoints, clock: ManualClock, told: Listener
) -> None:
    slow.took_ns = 7
    for number, error in enumerate((None, StoreError("full", hint=""), None), 1):
        slow.error = error
        clock.advance_ns(100)
        writer.offer(number, {"tensor": torch.ones(1)})
        slow.gate.release()
        wait_for_news(told, 2 * number)
    assert [(one.happened, one.write_ns, one.exposed_ns) for one in told if one.happened != "begun"] == [
        ("saved", 7, 107),  # since the writer was made
        ("failed", None, None),
        ("saved", 7, 7 + 100 + 7 + 100 + 7),  # since the state of the first was copied
    ]


def test_training_goes_on_while_a_checkpoint_is_written(
    writer: Writer, slow: SlowCheckpoints, told: Listener
) -> None:
    tensor = torch.ones(100)
    writer.offer(1, {"tensor": tensor})
    assert slow.entered.acquire(timeout=WAIT_S)
    for step in (2, 3, 4):  # one is being written; of the waiting ones the newest stays
        tensor.fill_(step)
        writer.offer(step, {"tensor": tensor})
    tensor.fill_(99)
    slow.gate.release()
    slow.gate.release()
    assert writer.close()
    assert {step: value for step, (value, _) in slow.kept.items()} == {1: 1.0, 4: 4.0}
    assert told.kinds() == [("begun", 1), ("saved", 1), ("begun", 4), ("saved", 4)]
    assert told[1].place == "memory/1"
    assert told[0].stall_ns is None
    assert told[1].stall_ns == 0  # by a clock that stood still meanwhile
    assert (told[0].size_bytes, told[1].size_bytes, told[1].written_bytes) == (None, 1_000, 1)
    with pytest.raises(RuntimeError, match="closed"):
        writer.offer(5, {"tensor": tensor})


def test_the_memory_of_one_copy_is_used_for_the_next(
    writer: Writer, slow: SlowCheckpoints, told: Listener
) -> None:
    for step in (1, 2, 3):
        slow.gate.release()
        writer.offer(step, {"tensor": torch.full((1000,), step)})
        wait_for_news(told, 2 * step)
    assert [value for value, _ in slow.kept.values()] == [1, 2, 3]
    assert len({address for _, address in slow.kept.values()}) == 1


@settings(max_examples=examples(50))
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), max_size=6),
    later=st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), max_size=6),
)
def test_a_copy_in_used_memory_is_as_good_as_in_fresh(
    shapes: list[tuple[int, ...]], later: list[tuple[int, ...]]
) -> None:
    first = Snapshot({"list": [torch.randn(shape) for shape in shapes]})
    second = Snapshot(first.state)
    state = {"list": [torch.randn(shape) for shape in later]}
    assert_equal(Snapshot(state, spare=first).state, state)
    assert len(second.state["list"]) == len(shapes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), RuntimeError("line one\nline two"), MemoryError()]
)
def test_a_checkpoint_that_fails_is_told_of_and_the_next_is_written(
    writer: Writer, slow: SlowCheckpoints, told: Listener, error: Exception
) -> None:
    slow.error = error
    slow.gate.release()
    writer.offer(1, {"tensor": torch.ones(1)})
    wait_for_news(told, 2)
    slow.error = None
    slow.gate.release()
    writer.offer(2, {"tensor": torch.ones(1)})
    assert writer.close()
    assert told.kinds() == [("begun", 1), ("failed", 1), ("begun", 2), ("saved", 2)]
    assert told[1].reason
    assert "\n" not in told[1].reason


def test_the_next_is_due_by_what_the_last_has_cost(
    writer: Writer, slow: SlowCheckpoints, clock: ManualClock, told: Listener
) -> None:
    second_ns = 10**9
    assert not writer.due(1)
    clock.advance_ns(10 * second_ns - 1)
    assert not writer.due(2)
    clock.advance_ns(1)
    assert writer.due(3)
    writer.offer(3, {"tensor": torch.ones(1)})
    clock.advance_ns(100 * second_ns)
    assert not writer.due(4)  # one is being written
    slow.gate.release()
    wait_for_news(told, 2)
    clock.advance_ns(round(100 * second_ns / COST_SHARE_MAX) - 100 * second_ns - 1)
    assert not writer.due(5)
    clock.advance_ns(1)
    assert writer.due(6)


@pytest.mark.parametrize(
    ("cost_s", "nodes", "failures", "interval_s"),
    [
        (1, 1, 0, EXPOSURE_S_MAX),  # a failure is 264 days away, but no more than this is put at risk
        (1, 128, 0, EXPOSURE_S_MAX),  # 2 days: 597 s, and a little more for every minute without a failure
        (1, 2048, 0, 151),  # 3.1 h
        (1, 2048, 3, 76),  # ... of which three minutes had as many: 0.8 h
        (1, 1, 5, 188),  # five in three minutes outweigh the usual rate: 4.8 h
        (1, 100_000, 0, 50),  # 4 min, 22 s: more often than the cost allows
        (20, 2048, 0, 1_000),
        (0, 2048, 0, 10),
    ],
)
def test_the_next_is_due_by_what_it_costs_and_how_often_such_a_run_fails(
    slow: SlowCheckpoints,
    clock: ManualClock,
    told: Listener,
    writer: Writer,
    cost_s: float,
    nodes: int,
    failures: int,
    interval_s: float,
) -> None:
    slow.took_ns = int(cost_s * 1e9)
    slow.gate.release()
    writer.offer(1, {"tensor": torch.ones(1)})
    wait_for_news(told, 2)
    waited_s = cost_s
    while not writer.due(2, nodes=nodes, failures=failures):
        clock.advance_ns(10**9)
        waited_s += 1
    assert waited_s == pytest.approx(interval_s, abs=2)


def test_every_so_many_steps_where_that_is_asked_for(slow: SlowCheckpoints, told: Listener) -> None:
    with Writer(slow, told=told, every_steps=3) as writer:
        assert [step for step in range(1, 10) if writer.due(step)] == [3, 6, 9]
        assert not writer.due(10, nodes=10**6, failures=100)  # whatever economics would say
    for mistake in ({"every_steps": 0}, {"interval_s": -1.0}):
        with pytest.raises(InputError, match="is no"):
            Writer(slow, told=told, **mistake)


def test_storage_that_hangs_does_not_hold_up_the_end(writer: Writer, slow: SlowCheckpoints) -> None:
    writer.offer(1, {"tensor": torch.ones(1)})
    assert slow.entered.acquire(timeout=WAIT_S)
    began_s = time.monotonic()
    assert not writer.close(timeout_s=0.05)
    assert time.monotonic() - began_s < WAIT_S / 2
    slow.gate.release()
    assert writer.close()


def test_a_state_that_cannot_be_kept_is_an_input_error(writer: Writer) -> None:
    with pytest.raises(InputError, match="cannot keep x"):
        writer.offer(1, {"x": Fraction(1, 2)})


def test_a_file_has_the_permissions_that_the_user_wants(checkpoints: DirectoryCheckpoints) -> None:
    before = os.umask(0o027)
    try:
        saved = checkpoints.save(1, state_of(1, 10))
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(saved.place).stat().st_mode) == 0o640
