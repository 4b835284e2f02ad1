"""`holdfast events --follow`: what a live process records is seen as it comes."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.record.events import RunStarted, StepCommitted
from holdfast.record.recorder import Recorder

WAIT_S = 30


def test_what_is_recorded_on_this_machine_is_in_the_record(holdfast: Any, tmp_path: Path) -> None:
    with Recorder(tmp_path / "home" / "journal", run="live") as recorder:
        recorder.record(RunStarted, gpus=1)
        assert "run.started" in holdfast("events", "live").out  # while the process still runs
    assert len(holdfast("events", "live").out.splitlines()) == 1


def test_following(holdfast: Any, environment: dict[str, str], tmp_path: Path) -> None:
    with Recorder(tmp_path / "home" / "journal", run="live") as recorder:
        recorder.record(RunStarted, gpus=1)
        holdfast("runs")
        follower = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "events", "live", "--follow"],
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert follower.stdout is not None
        try:
            assert "run.started" in follower.stdout.readline()
            begun = time.monotonic()
            recorder.record(StepCommitted, step=1)
            assert "step.committed" in follower.stdout.readline()
            assert time.monotonic() - begun < WAIT_S
        finally:
            follower.send_signal(signal.SIGINT)
            _, complaints = follower.communicate(timeout=WAIT_S)
    assert (follower.returncode, complaints) == (130, "")
