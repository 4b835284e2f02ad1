"""Snapshots in memory: they are found as they were kept, completely or not at all; a run
resumes from them.
"""

import errno
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from forked_cluster import Cluster
from launching import Start
from mass_kills import goes_on_from, killing
from quantity import sampled
from waiting import is_alive, until

from holdfast.record.errors import StoreError
from holdfast.record.events import CheckpointFailed
from holdfast.record.journal import read_directory
from holdfast.run import memory
from holdfast.run.memory import HeldMemory
from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.manifest_file import Share
from holdfast.train.snapshot_file import PAGE_BYTES, MemoryFile
from holdfast.train.snapshots import (
    BUSY,
    DUE,
    READY,
    SNAPSHOT,
    MemoryFirst,
    MemorySnapshots,
    each_hashed,
)

CPU = torch.device("cpu")
ALONE = Share(0, 1, "a")
FLIPS = 40
LARGE = 3 << 18
"""Elements of 4 bytes: three chunks."""


class Heard:
    """Collects reports."""

    def __init__(self) -> None:
        self.kept_steps: list[int] = []
        self.failures: list[tuple[int, str]] = []

    def kept(self, step: int, stall_ns: int, size_bytes: int) -> None:
        self.kept_steps.append(step)

    def failed(self, step: int, place: str, reason: str) -> None:
        self.failures.append((step, reason))


@pytest.fixture
def held() -> Iterator[HeldMemory]:
    made = HeldMemory(3)
    yield made
    made.close()


def state_of(step: int) -> dict[str, object]:
    """Tensors of all kinds: large, small, empty, tied, transposed, half, whole numbers, text."""
    numbers = torch.arange(LARGE, dtype=torch.float32) + step
    tied = torch.full((700,), float(step))
    return {
        "version": step,
        "loss": step / 8,
        "names": ["model"],
        "state": [
            {
                "weight": numbers.view(3, -1),
                "turned": (numbers[: 1 << 18] * 2).view(512, 512).t(),
                "one": tied,
                "other": tied,
                "count": torch.tensor(step),
                "none": torch.empty(0),
                "half": torch.ones(33, dtype=torch.bfloat16) * step,
                "strided": torch.arange(8000.0)[::2] + step,
            }
        ],
    }


def same(found: object, wanted: object) -> bool:
    if isinstance(wanted, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype == wanted.dtype and torch.equal(found, wanted)
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and all(map(same, found, wanted))
    return found == wanted


def snapshots(held: HeldMemory, slot: int = 0, **told: object) -> tuple[MemorySnapshots, Heard]:
    heard = Heard()
    return MemorySnapshots(held.slots, slot, node="n0", device=CPU, told=heard, **told), heard  # type: ignore[arg-type]


def take(kept: MemorySnapshots, step: int, share: Share = ALONE) -> None:
    kept.take(step, state_of(step), share)
    until(lambda: not kept.is_busy)


# ---- keeping and finding ---------------------------------------------------------------------------------


def test_the_newest_is_found_by_another_process_of_the_node(held: HeldMemory) -> None:
    kept, heard = snapshots(held)
    for step in (10, 20, 30):
        take(kept, step)
    found = snapshots(held, 1)[0].newest()
    assert found is not None
    assert (found.step, found.preference, found.history, found.place) == (
        30,
        SNAPSHOT,
        "a",
        "the memory of n0",
    )
    assert same(found.state, state_of(30))
    loaded: dict[str, torch.Tensor] = found.state["state"][0]  # type: ignore[index]
    assert loaded["one"].data_ptr() == loaded["other"].data_ptr()
    assert heard.kept_steps == [10, 20, 30]


def test_older_ones_are_found_up_to_a_mark(held: HeldMemory) -> None:
    kept, _ = snapshots(held)
    take(kept, 10)
    take(kept, 20)
    found = kept.newest((19, SNAPSHOT))
    assert found is not None
    assert found.step == 10
    assert kept.newest((9, SNAPSHOT)) is None


def test_members_of_a_node_keep_it_together(held: HeldMemory) -> None:
    for slot in range(3):
        kept, _ = snapshots(held, slot)
        take(kept, 10, Share(slot, 3, "a"))
        found = kept.newest()
        assert (found is not None) == (slot == 2)
        kept.close()
    assert found is not None
    assert same(found.state, state_of(10))


def test_shares_of_two_attempts_make_no_snapshot(held: HeldMemory) -> None:
    for slot, history in enumerate("aab"):
        kept, _ = snapshots(held, slot)
        take(kept, 10, Share(slot, 3, history))
    assert kept.newest() is None


def test_a_rank_gets_its_own_part_and_no_other(held: HeldMemory) -> None:
    first, _ = snapshots(held, 0, part=(0, 2))
    second, _ = snapshots(held, 1, part=(1, 2))
    take(first, 10)
    take(second, 20)
    for of, step in ((first, 10), (second, 20)):
        found = of.newest()
        assert found is not None
        assert found.step == step
    assert snapshots(held, 2)[0].newest() is None


def test_what_the_node_needs_is_not_written_over(held: HeldMemory) -> None:
    """One member is a snapshot ahead of the other: its older one is the newest complete one."""
    ahead, _ = snapshots(held, 0)
    behind, _ = snapshots(held, 1)
    for kept, number in ((ahead, 0), (behind, 1)):
        take(kept, 10, Share(number, 2, "a"))
    take(ahead, 20, Share(0, 2, "a"))
    take(ahead, 30, Share(0, 2, "a"))
    found = ahead.newest()
    assert found is not None
    assert found.step == 10


def test_what_all_ranks_of_the_node_have_is_not_written_over(held: HeldMemory) -> None:
    """One rank is a snapshot ahead of the other: the run can only resume from what both have."""
    ahead, _ = snapshots(held, 0, part=(0, 2))
    behind, _ = snapshots(held, 1, part=(1, 2))
    for step in (10, 20):
        take(behind, step)
    for step in (20, 30, 40):
        take(ahead, step)
    found = ahead.newest((39, SNAPSHOT))
    assert found is not None
    assert found.step == 20
    take(behind, 40)
    found = behind.newest((39, SNAPSHOT))
    assert found is not None
    assert found.step == 20
    take(ahead, 50)
    found = ahead.newest((49, SNAPSHOT))
    assert found is not None
    assert found.step == 40


def test_a_slot_has_one_writer(held: HeldMemory) -> None:
    first, _ = snapshots(held)
    take(first, 10)
    second, heard = snapshots(held)
    take(second, 20)
    assert heard.kept_steps == []
    first.close()
    take(second, 20)
    assert heard.kept_steps == [20]


def test_a_new_writer_leaves_what_is_there(held: HeldMemory) -> None:
    first, _ = snapshots(held)
    take(first, 10)
    take(first, 20)
    first.close()
    second, _ = snapshots(held)
    take(second, 30)
    found = second.newest((29, SNAPSHOT))
    assert found is not None
    assert found.step == 20


def test_what_may_be_wrong_is_forgotten_in_all_slots(held: HeldMemory) -> None:
    for slot in range(2):
        take(snapshots(held, slot)[0], 10 + slot)
    kept, _ = snapshots(held, 2)
    kept.forget()
    assert kept.newest() is None


def test_what_is_still_being_hashed_is_forgotten_too(
    held: HeldMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_hashing, may_go_on = threading.Event(), threading.Event()

    def hash_later(work: Sequence[Callable[[], bytes]], threads_max: int) -> list[bytes]:
        is_hashing.set()
        assert may_go_on.wait(60)
        return each_hashed(work, threads_max)

    monkeypatch.setattr("holdfast.train.snapshots.each_hashed", hash_later)
    kept, heard = snapshots(held)
    kept.take(10, state_of(10), ALONE)
    assert is_hashing.wait(60)
    kept.forget()
    may_go_on.set()
    until(lambda: not kept.is_busy)
    assert kept.newest() is None
    assert heard.kept_steps == []
    take(kept, 20)
    found = kept.newest()
    assert found is not None
    assert found.step == 20


def test_when_one_is_due(held: HeldMemory) -> None:
    kept, _ = snapshots(held, every=5)
    assert [kept.readiness(step) for step in (4, 5, 6)] == [READY, DUE, READY]
    assert BUSY not in (READY, DUE)
    patient, _ = snapshots(held)
    assert patient.readiness(5) == READY  # the first second has not passed
    until(lambda: patient.readiness(5) == DUE)


def test_too_little_memory_switches_them_off_with_a_sentence(
    held: HeldMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.train.snapshots.MEMORY_SHARE_MAX", 0.0)
    kept, heard = snapshots(held, every=1)
    take(kept, 1)
    take(kept, 2)
    ((step, reason),) = heard.failures
    assert step == 1
    assert re.fullmatch(
        r"snapshots are off: they would take 0.0 GB more of the [\d.]+ GB of memory that n0 has left", reason
    )
    assert kept.readiness(3) == READY


def test_only_what_they_grow_by_is_asked_of_the_memory_that_is_left(
    held: HeldMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, heard = snapshots(held)
    take(kept, 10)
    taken_bytes = [MemoryFile(descriptor).taken_bytes for descriptor in held.slots[0]]
    monkeypatch.setattr("holdfast.train.snapshots.memory_left_bytes", lambda: sum(taken_bytes))
    kept.take(20, {**state_of(20), "more": torch.ones(1 << 16)}, ALONE)  # little of it is new
    until(lambda: not kept.is_busy)
    assert heard.kept_steps == [10, 20]
    other, told = snapshots(held, 1)
    take(other, 10)  # memory of another slot is not free
    assert len(told.failures) == 1
    found = other.newest()
    assert found is not None
    assert found.step == 20


def test_memory_is_given_back_when_they_are_switched_off(
    held: HeldMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, heard = snapshots(held)
    take(kept, 10)
    files = [MemoryFile(descriptor) for descriptor in held.slots[0]]
    read = files[0].mapped(files[0].size_bytes)  # as another member does
    assert any(read[:PAGE_BYTES])
    assert all(file.taken_bytes for file in files)
    monkeypatch.setattr("holdfast.train.snapshots.memory_left_bytes", lambda: 0)
    kept.take(20, {**state_of(20), "more": torch.ones(1 << 16)}, ALONE)
    assert len(heard.failures) == 1
    assert [file.taken_bytes for file in files] == [0, 0]
    assert kept.newest() is None
    assert not any(read[:])  # and the reader is not killed
    kept.close()
    monkeypatch.undo()
    take(snapshots(held)[0], 30)
    found = kept.newest()
    assert found is not None
    assert found.step == 30


def test_a_failed_device_does_not_prevent_closing(held: HeldMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = snapshots(held)
    take(kept, 10)
    monkeypatch.setattr("holdfast.train.snapshots.MemorySnapshots.settle", no_thread)
    kept.close()
    next_one, heard = snapshots(held)
    take(next_one, 20)  # the slot is free
    assert heard.kept_steps == [20]


def test_a_hash_that_fails_in_any_thread_is_raised() -> None:
    work = [lambda: b"x"] * 8
    assert each_hashed(work, 4) == [b"x"] * 8
    for number in range(8):
        failing: list[Callable[[], bytes]] = [*work[:number], partial(int, "x"), *work[number + 1 :]]  # type: ignore[list-item]
        with pytest.raises(ValueError, match="invalid literal"):
            each_hashed(failing, 4)


def no_room(*_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def refuse(*_: object) -> None:
    raise ValueError("mmap length is greater than file size")


@pytest.mark.parametrize(
    ("where", "failure", "told"),
    [
        ("os.open", no_room, "Too many open files"),
        ("holdfast.train.snapshots.memory_left_bytes", no_room, "Too many open files"),
        ("holdfast.train.snapshots.MemoryFile.mapped", refuse, "mmap length"),
        ("threading.Thread.start", no_thread, "can't start new thread"),
        ("holdfast.train.snapshots.MemoryFile.header", no_room, "Too many open files"),
        ("holdfast.train.snapshots.each_hashed", no_thread, "can't start new thread"),
    ],
)
def test_training_goes_on_where_a_snapshot_cannot_be_taken(
    held: HeldMemory, monkeypatch: pytest.MonkeyPatch, where: str, failure: Callable[..., None], told: str
) -> None:
    kept, heard = snapshots(held, every=1)
    with monkeypatch.context() as patched:
        patched.setattr(where, failure)
        kept.take(1, state_of(1), ALONE)
        until(lambda: not kept.is_busy)
    ((step, reason),) = heard.failures
    assert step == 1
    assert reason.startswith("snapshots are off, ")
    assert told in reason
    take(kept, 2)
    assert (heard.kept_steps, len(heard.failures)) == ([], 1)
    assert kept.newest() is None
    kept.close()


def test_memory_that_cannot_be_reached_is_said_and_raises_nothing(
    held: HeldMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, heard = snapshots(held, every=1)
    monkeypatch.setattr("holdfast.train.snapshots.MemoryFile.header", no_room)
    monkeypatch.setattr("holdfast.train.snapshots.MemoryFile.blank", no_room)
    assert kept.newest() is None
    kept.forget()
    assert [reason[:37] for _, reason in heard.failures] == [
        "snapshots are off, because none can b",
        "snapshots are off, because one could ",
    ]


# ---- damage ----------------------------------------------------------------------------------------------


def flip(descriptor: int, at: int, bit: int) -> None:
    (byte,) = os.pread(descriptor, 1, at)
    os.pwrite(descriptor, bytes([byte ^ 1 << bit]), at)


def test_any_flipped_bit_is_found_and_the_version_before_is_taken(held: HeldMemory) -> None:
    kept, _ = snapshots(held)
    take(kept, 10)
    take(kept, 20)
    header = MemoryFile(held.slots[0][1]).header()
    assert header is not None
    assert header.step == 20
    draw = random.Random(1)
    data = range(PAGE_BYTES, header.data_bytes)
    note = range(header.data_bytes, header.data_bytes + header.note_bytes)
    for at in [draw.choice(draw.choice([range(200), data, note])) for _ in range(FLIPS)]:
        bit = draw.randrange(8)
        flip(held.slots[0][1], at, bit)
        reader, heard = snapshots(held, 1)
        found = reader.newest()
        assert found is not None
        # A byte after the header or between two tensors does not matter.
        assert found.step == (10 if heard.failures else 20), at
        assert same(found.state, state_of(found.step)), at
        flip(held.slots[0][1], at, bit)


def test_where_both_are_damaged_the_checkpoint_is_taken(held: HeldMemory, tmp_path: Path) -> None:
    stored = DirectoryCheckpoints(tmp_path, told=lambda *_, **__: None)
    stored.save(5, state_of(5))
    kept, heard = snapshots(held)
    take(kept, 10)
    take(kept, 20)
    for descriptor in held.slots[0]:
        flip(descriptor, 8192, 3)
    found = MemoryFirst(kept, stored).newest()
    assert found is not None
    assert found.step == 5
    assert [step for step, _ in heard.failures] == [20, 10]
    assert "the snapshot of step 20 is damaged" in heard.failures[0][1]


def test_a_file_that_was_cut_short_is_damaged(held: HeldMemory) -> None:
    kept, heard = snapshots(held)
    take(kept, 10)
    os.ftruncate(held.slots[0][0], 8192)
    assert kept.newest() is None
    assert len(heard.failures) == 1


def test_a_checkpoint_that_is_newer_is_taken(held: HeldMemory, tmp_path: Path) -> None:
    stored = DirectoryCheckpoints(tmp_path, told=lambda *_, **__: None)
    kept, _ = snapshots(held)
    take(kept, 10)
    for step, wanted in ((9, 10), (10, 10), (11, 11)):
        stored.save(step, state_of(step))
        found = MemoryFirst(kept, stored).newest()
        assert found is not None
        assert found.step == wanted


def test_storage_that_cannot_be_read_does_not_matter_then(held: HeldMemory, tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    stored = DirectoryCheckpoints(tmp_path / "gone", told=lambda *_, **__: None)
    kept, _ = snapshots(held)
    take(kept, 10)
    found = MemoryFirst(kept, stored).newest()
    assert found is not None
    assert found.step == 10


class Unlisted(DirectoryCheckpoints):
    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(path, told=lambda *_, **__: None)
        self._error = error

    def steps(self) -> list[int]:
        raise self._error


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), StoreError("it hangs", hint="Look at it.")]
)
def test_that_storage_cannot_be_listed_is_said(held: HeldMemory, tmp_path: Path, error: Exception) -> None:
    kept, heard = snapshots(held)
    take(kept, 10)
    found = MemoryFirst(kept, Unlisted(tmp_path, error)).newest()
    assert found is not None
    assert found.step == 10
    assert heard.failures == [
        (
            10,
            "resuming from the snapshot of step 10; a newer checkpoint may exist, but storage could not be "
            f"read: {error}",
        )
    ]


# ---- kills -----------------------------------------------------------------------------------------------

KILLS = """
    import os, random, signal, sys, time
    sys.path.insert(0, sys.argv[1])
    from test_snapshots import snapshots, state_of, same, take
    from holdfast.run.memory import HeldMemory
    import torch

    torch.set_num_threads(1)  # the threads of a pool are not there after a fork
    draw = random.Random(int(sys.argv[2]))
    kills = int(sys.argv[3])
    held = HeldMemory(1)
    step = seen = 0
    for _ in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            kept, _ = snapshots(held)
            while True:
                step += 1
                take(kept, step)
                os.write(writing, step.to_bytes(4, "big"))
        os.close(writing)
        for _ in range(draw.randrange(1, 3)):
            seen = int.from_bytes(os.read(reading, 4), "big") or seen
        time.sleep(draw.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while said := os.read(reading, 4):
            seen = int.from_bytes(said, "big")
        os.close(reading)
        kept, _ = snapshots(held)
        found = kept.newest()
        assert found is not None and seen <= found.step <= seen + 1, (seen, found and found.step)
        assert same(found.state, state_of(found.step))
        step = found.step
    print("survived", kills)
"""


def survive(seed: int, kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLS), str(Path(__file__).parent), str(seed), str(kills)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout == f"survived {kills}\n", done.stderr


@pytest.mark.slow
def test_the_newest_whole_one_survives_kills() -> None:
    survive(1, 10)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_the_newest_whole_one_survives_hundreds_of_kills(seed: int) -> None:
    survive(seed, 100)


# ---- runs ------------------------------------------------------------------------------------------------


def memory_of_node(pid: int) -> list[Path]:
    return [link for link in Path(f"/proc/{pid}/fd").iterdir() if memory.NAME in str(link.readlink())]


def spoil_all(node: int) -> None:
    """Flip a bit in all tensors that the node has in memory."""
    for link in memory_of_node(node):
        with link.open("r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size:
                flip(file.fileno(), 4096 + 17, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "members", "nodes", "shard", "kills"),
    sampled(
        [
            ("plain", 1, 1, "", (7, 12)),
            ("plain", 2, 2, "", (7, 12)),
            ("sharded", 2, 1, "2", (7,)),
            ("sharded", 2, 1, "2", (7, 12)),
        ],
        [("plain", 2, 2, "", (7, 12)), ("sharded", 2, 1, "2", (7,))],
    ),
)
def test_all_members_killed_at_once_go_on_from_the_snapshot(
    cluster: Cluster, build: str, members: int, nodes: int, shard: str, kills: tuple[int, ...]
) -> None:
    """There are no checkpoints: without snapshots they would begin anew."""
    steps = kills[-1] + 6
    run = cluster.train(
        build,
        members=members,
        nodes=nodes,
        shard=shard,
        steps=steps,
        pace_s=0.02,
        snapshot_every=2,
        meanwhile=killing(cluster, list(kills)),
    )
    assert run.ending.outcome == "completed", run.story
    assert len(goes_on_from(run)) >= len(kills), run.story
    assert min(goes_on_from(run)) >= 2, run.story
    assert all(step % 2 == 0 for step in goes_on_from(run)), run.story
    alone = cluster.undisturbed(build, shard=shard and "1", steps=steps)
    assert run.digest == alone.digest, run.story


@pytest.mark.slow
def test_damaged_memory_is_found_and_the_checkpoint_is_taken(cluster: Cluster) -> None:
    meanwhile = killing(cluster, [7], spoil_all)
    run = cluster.train(
        "plain", members=2, steps=12, pace_s=0.02, snapshot_every=3, checkpoint_every=1, meanwhile=meanwhile
    )
    assert run.digest == cluster.undisturbed("plain").digest, run.story
    assert any("is damaged" in line for line in run.said), run.story
    found = [event for event in read_directory(run.folder / "journal") if isinstance(event, CheckpointFailed)]
    assert any("is damaged" in event.reason and event.place == "the memory of n0" for event in found)


@pytest.mark.soak
def test_all_members_killed_at_once_twenty_times(cluster: Cluster) -> None:
    kills = list(range(6, 126, 6))
    meanwhile = killing(cluster, kills)
    run = cluster.train(
        "plain", members=3, steps=130, pace_s=0.02, snapshot_every=2, meanwhile=meanwhile, run_s_max=1200
    )
    assert run.digest == cluster.train("plain", steps=130).digest, run.story
    assert run.steps_lost <= 4 * len(kills), run.story


SCRIPT = """
import os, time
import torch
import holdfast.train as hf

with hf.join() as run:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = run.protect(model, optimizer, lanes=4, seed=1)
    for step in state.steps(30):
        for lane in step.lanes:
            lane.backward((model(torch.randn(8, 64)) - 1).square().mean())
        step.commit()
        print("pid", os.getpid(), "step", step.number, flush=True)
        time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_real_agent_keeps_the_memory_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    start = Start(tmp_path)
    every = ("--nproc-per-node", "1", "--warm", "0", "--snapshot-every", "1", "--checkpoint-every", "1000")
    run = start("--run", "killed", *every, script=SCRIPT)
    try:
        run.until_printed(r"step 10\b")
        os.kill(run.pids()[-1], signal.SIGKILL)
        run.until_said("goes on with 1 member")
        (agent,) = run.agents()
        assert memory_of_node(agent)
        assert run.wait() == 0, run.err
        (line,) = [line for line in run.err if "goes on with 1 member" in line]
        assert int(re.search(r"step (\d+) goes on", line)[1]) > 5, line  # type: ignore[index]
        assert not is_alive(agent)  # and with it the memory, which has no name anywhere
        assert not list(Path("/dev/shm").glob(f"*{memory.NAME}*"))
    finally:
        run.close()
