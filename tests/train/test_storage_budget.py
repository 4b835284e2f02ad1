"""How much of shared storage saves may use: a rate for all members together, and different times for each
run.
"""

import queue
import threading
import time
from pathlib import Path

import pytest
import torch
from launching import Start
from listening import tell_nobody

from holdfast.record.clock import ManualClock
from holdfast.record.errors import InputError
from holdfast.record.events import CheckpointSaved
from holdfast.train.checkpoint import (
    COST_SHARE_MAX,
    EXPOSURE_S_MAX,
    INTERVAL_S_MIN,
    DirectoryCheckpoints,
    Writer,
)
from holdfast.train.levels import LeveledCheckpoints
from holdfast.train.storage_budget import JITTER_SHARE_MAX, StorageBudget, jitter

MB = 10**6
STATE = {"tensor": torch.arange(float(MB // 8))}
"""Half a megabyte, which is written and read back."""


def test_takers_wait_for_each_other() -> None:
    """For any number of threads and members."""
    budget = StorageBudget(100 * MB)
    begun_s = time.monotonic()
    takers = [threading.Thread(target=budget.take, args=(2 * MB, 2)) for _ in range(6)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert time.monotonic() - begun_s >= 5 * 0.04  # the first does not wait
    assert budget.paused_s <= time.monotonic() - begun_s + 1e-3
    with pytest.raises(InputError, match="No checkpoint can be written at"):
        StorageBudget(0)


def test_a_save_keeps_to_its_budget_and_tells_what_it_waited(tmp_path: Path) -> None:
    kept = DirectoryCheckpoints(tmp_path, told=tell_nobody, budget=StorageBudget(2 * MB))
    begun_s = time.monotonic()
    saved = kept.save(1, STATE)
    took_s = time.monotonic() - begun_s
    assert took_s >= 0.25  # half a megabyte cannot be read back sooner
    assert took_s >= saved.paused_ns / 1e9 > 0
    assert DirectoryCheckpoints(tmp_path, told=tell_nobody).save(2, STATE).paused_ns == 0


def test_a_save_that_waits_for_its_budget_does_not_count_as_hanging(tmp_path: Path) -> None:
    """Unlike one that takes this long by itself: see test_levels."""
    first = DirectoryCheckpoints(tmp_path / "first", told=tell_nobody, budget=StorageBudget(MB / 12))
    second = DirectoryCheckpoints(tmp_path / "second", told=tell_nobody)
    saved = LeveledCheckpoints([first, second], told=tell_nobody, hang_s=4.0).save(1, STATE)
    assert saved.paused_ns > 0
    assert "first" in saved.place


def test_at_the_end_no_save_waits(tmp_path: Path) -> None:
    kept = DirectoryCheckpoints(tmp_path, told=tell_nobody, budget=StorageBudget(1))  # it would take days
    with Writer(LeveledCheckpoints([kept], told=tell_nobody), told=tell_nobody) as writer:
        writer.offer(1, STATE)
    assert kept.steps() == [1]


def test_waiting_for_the_budget_does_not_count_as_cost(tmp_path: Path) -> None:
    """It takes no core from training, so it does not make checkpoints rare."""
    told: queue.SimpleQueue[int] = queue.SimpleQueue()

    def tell(*_: object, write_ns: int | None = None, **__: object) -> None:
        told.put(write_ns or 0)

    kept = DirectoryCheckpoints(tmp_path, told=tell_nobody, budget=StorageBudget(MB))
    with Writer(kept, told=tell) as writer:
        stall_ns = writer.offer(1, STATE)
        told.get(timeout=600)  # the save has begun
        took_ns = stall_ns + told.get(timeout=600)
        assert kept.paused_s > 0
        assert writer._cost_ns == pytest.approx(took_ns - 1e9 * kept.paused_s, abs=1e3)


def waited_s(run: str, cost_s: float) -> float:
    """How long until the second save is due, if the first has cost this much."""
    clock = ManualClock()
    checkpoints = DirectoryCheckpoints("/nowhere", told=tell_nobody)
    writer = Writer(checkpoints, told=tell_nobody, clock=clock, run=run)
    writer._cost_ns = int(1e9 * cost_s)
    while not writer.due(1):
        clock.advance_ns(10**8)
    return clock.now_ns() / 1e9


@pytest.mark.parametrize(
    ("cost_s", "least_s", "most_s"),
    [
        (0.0, INTERVAL_S_MIN, INTERVAL_S_MIN * (1 + JITTER_SHARE_MAX)),
        (1.0, EXPOSURE_S_MAX * (1 - JITTER_SHARE_MAX), EXPOSURE_S_MAX),
        (20.0, 20 / COST_SHARE_MAX, 20 / COST_SHARE_MAX * (1 + JITTER_SHARE_MAX)),
    ],
)
def test_runs_that_begin_together_do_not_save_together(cost_s: float, least_s: float, most_s: float) -> None:
    """None leaves the bounds."""
    found = [waited_s(f"run-{number}", cost_s) for number in range(8)]
    assert len({round(one, 1) for one in found}) >= 7, found
    assert least_s - 0.11 <= min(found) < max(found) <= most_s + 0.11
    assert waited_s("run-3", cost_s) == found[3]


def test_jitter_is_spread_and_always_the_same() -> None:
    drawn = [jitter("small", number) for number in range(200)]
    assert drawn == [jitter("small", number) for number in range(200)]
    assert 0.4 < sum(drawn) / 200 < 0.6
    assert min(drawn) < 0.05 < 0.95 < max(drawn)
    assert jitter("", 1) == 0


SCRIPT = """
import time, torch, holdfast.train as hf
from pathlib import Path

with hf.join() as run:
    model = torch.nn.Linear(500, 500)
    state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.01), lanes=1, seed=1)
    for step in state.steps(100_000):
        if list(Path("kept").glob("step-*.checkpoint")):
            break
        for lane in step.lanes:
            lane.backward(model(torch.randn(2, 500)).square().mean())
        step.commit()
        time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_run_keeps_to_the_rate_that_it_is_given(tmp_path: Path) -> None:
    """A megabyte is written at once, and read back a second later, when the rate allows it."""
    start = Start(tmp_path)
    given = ("--checkpoint-rate", "1MB/s", "--checkpoint-every", "3", "--checkpoints", str(tmp_path / "kept"))
    run = start("--run", "slow", "--nproc-per-node", "1", "--warm", "0", *given, script=SCRIPT)
    try:
        assert run.wait() == 0, run.err
    finally:
        run.close()
    first = start.events(CheckpointSaved)[0]
    assert first.write_ns is not None
    assert first.write_ns >= 10**9
