"""`holdfast run --prove-every`: checkpoints are proven while the run goes on, and it reports the result."""

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from launching import Start
from waiting import until

from holdfast.record.events import CheckpointVerified
from holdfast.run import wire
from holdfast.run.prover import ProofOrder, Prover, verdict_of

SCRIPT = """
import os, time, torch, holdfast.train as hf
from pathlib import Path

with hf.join() as run:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = run.protect(model, optimizer, lanes=2, seed=1)
    for step in state.steps(1_000):
        if Path("stop").exists():
            break
        for lane in step.lanes:
            lane.backward((model(torch.randn(8, 64)) - TARGET).square().mean())
        step.commit()
        # Quick until the checkpoint has its step; then slow, so that it stays.
        for _ in range(step.number if step.number > 12 else 0):
            time.sleep(0 if Path("stop").exists() else 0.5)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "said", "sound"),
    [
        ("1", "checkpoint of step 10 proven: step 11, computed from it, has the loss", True),
        pytest.param(
            "os.getpid()",
            "the checkpoint of step 10 is NOT what the run computed: step 11",
            False,
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_run_proves_its_checkpoints(tmp_path: Path, target: str, said: str, sound: bool) -> None:
    """The second script computes something else in each process, as a faulty chip does."""
    start = Start(tmp_path)
    kept = ("--checkpoint-every", "10", "--prove-every", "1s")
    flags = ("--run", "proved", "--nproc-per-node", "1", "--warm", "0", "--metrics-port", "0", *kept)
    run = start(*flags, script=SCRIPT.replace("TARGET", target))
    try:
        run.until_said("metrics at ")
        (url,) = [found[0] for line in tuple(run.err) if (found := re.search(r"http://\S+/metrics", line))]
        run.until_said(said)
        with urllib.request.urlopen(url, timeout=60) as page:
            metrics = page.read().decode()
        assert f'holdfast_run_checkpoint_refuted{{run="proved"}} {0 if sound else 1}.0' in metrics
        assert ("holdfast_run_checkpoint_proven_timestamp_seconds{" in metrics) == sound
        assert ('holdfast_run_checkpoint_proven_step{run="proved"} 10.0' in metrics) == sound
        assert 'holdfast_run_checkpoint_exposure_steps{run="proved"}' in metrics
        (tmp_path / "stop").touch()
        assert run.wait() == 0, run.err
    finally:
        (tmp_path / "stop").touch()
        run.close()
    first = start.events(CheckpointVerified)[0]
    assert (first.step, first.sound) == (10, sound)
    report = start.verb("report", "proved").stdout
    assert ("step 10 proven" in " ".join(report.split())) == sound, report


FREQUENT = """
import time, torch, holdfast.train as hf
from pathlib import Path

with hf.join() as run:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = run.protect(model, optimizer, lanes=2, seed=1)
    for step in state.steps(1_000_000):
        if Path("stop").exists():
            break
        for lane in step.lanes:
            lane.backward((model(torch.randn(8, 64)) - 1).square().mean())
        step.commit()
        time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.soak
def test_a_checkpoint_stays_while_it_is_proven_however_often_the_run_saves(tmp_path: Path) -> None:
    """A save takes a moment, a proof takes seconds: without a hold the run removes the
    checkpoint meanwhile.
    """
    start = Start(tmp_path)
    kept = ("--checkpoint-every", "2", "--prove-every", "1s")
    flags = ("--run", "often", "--nproc-per-node", "1", "--warm", "0", *kept)
    run = start(*flags, script=FREQUENT)
    try:
        until(
            lambda: [line for line in tuple(run.err) if re.search(r"checkpoint of step \d+ proven: ", line)],
            lambda: run.err,
        )
        assert not [line for line in run.err if "was removed while" in line], run.err
        (tmp_path / "stop").touch()
        assert run.wait() == 0, run.err
    finally:
        (tmp_path / "stop").touch()
        run.close()
    assert start.events(CheckpointVerified)[0].sound


def test_what_a_proof_prints_is_understood() -> None:
    proven = verdict_of(0, '{"step": 5, "is_proven": true, "reason": "it is"}', "")
    assert (proven.step, proven.verdict, proven.reason) == (5, "proven", "it is")
    assert verdict_of(1, '{"step": 5, "is_proven": false, "reason": "no"}', "").verdict == "refuted"
    err = "words of the script\nholdfast: There is no checkpoint in /x.\nA hint.\n"
    assert verdict_of(2, "", err).reason == "There is no checkpoint in /x"
    for out in ("", "{", "[]", '{"step": "x"}', '{"is_proven": true}'):
        found = verdict_of(1, out, "Traceback")
        assert (found.verdict, found.reason) == ("untried", "the proof ended with exit code 1")


def test_a_proof_that_cannot_be_started_is_told_and_the_next_is_tried() -> None:
    told: list[wire.Proven] = []
    order = ProofOrder(every_s=0.001, run="small", checkpoints="/x", words=("x" * (1 << 22),))

    async def prove_twice() -> None:
        is_enough = asyncio.Event()

        def hear(found: wire.Proven) -> None:
            told.append(found)
            if len(told) == 2:
                is_enough.set()

        proving = asyncio.create_task(Prover(order, hear).keep())
        await asyncio.wait_for(is_enough.wait(), 120)
        proving.cancel()
        await asyncio.wait([proving])

    asyncio.run(prove_twice())
    assert {(one.verdict, one.reason) for one in told} == {("untried", "Argument list too long")}
