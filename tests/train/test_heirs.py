"""A run whose coordinator's machine is killed as a whole ends with the bits of an undisturbed one."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Start
from networks import NetworkedRun, network
from quantity import sampled
from test_succession import ENDED, SCRIPT
from waiting import alone, until

from holdfast.record.events import GenerationOpened

pytestmark = [pytest.mark.root, pytest.mark.slow]

MOMENTS_S = 3.0
PACE_S = 0.04
"""Pause between steps: dead machines are found and replaced in the same time, whatever members compute."""
SEEDS = range(10)


@pytest.mark.parametrize(
    ("fault", "seed"), sampled([*(("kill", seed) for seed in SEEDS), ("cut", 0), ("cut", 1)], [("kill", 0)])
)
def test_the_bits_are_those_of_a_run_in_which_nothing_happened(
    tmp_path: Path, need: Callable[..., None], fault: str, seed: int
) -> None:
    need("iproute2", "util-linux")
    with alone("networks"), network(3) as machines:
        run = NetworkedRun(tmp_path, machines)
        try:
            run.start(script=SCRIPT.replace("sleep(0.01)", f"sleep({PACE_S})"))
            for launched in run.launched:
                launched.until_printed("pid")
            run.launched[0].until_said("3 members")
            run.until_heirs()
            time.sleep(random.Random(seed).uniform(0, MOMENTS_S))
            struck_s = time.monotonic()
            if fault == "kill":
                run.kill(0)
            else:
                machines[0].cut("in", "out")
            until(run.coordinating, run.tell)
            print(f"{fault} {seed}: another machine coordinates after {time.monotonic() - struck_s:.1f} s")
            (number,) = run.coordinating()
            journal = Start(tmp_path / str(number))
            until((tmp_path / str(number) / "home" / "journal").is_dir, run.tell)  # its first event makes it
            until(lambda: [len(one.members) for one in journal.events(GenerationOpened)] == [2], run.tell)
            if fault == "cut":
                machines[0].heal()
                until(
                    lambda: [len(one.members) for one in journal.events(GenerationOpened)][1:] == [3],
                    run.tell,
                )
            codes = run.finish()
            assert codes[1:] == [0, 0], run.tell()
            assert codes[0] == (0 if fault == "cut" else -signal.SIGKILL)
        finally:
            run.close()
    ended = [match for one in run.launched[1:] for line in one.out if (match := re.search(ENDED, line))]
    (digest,), (step,) = {match[1] for match in ended}, {match[2] for match in ended}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path / "1",
        env={**os.environ, "STEPS": step, "HOLDFAST_HOME": str(tmp_path / "alone")},
        capture_output=True,
        text=True,
        check=True,
    )
    (expected,) = re.findall(ENDED, done.stdout)
    assert (digest, step) == expected[:2]
