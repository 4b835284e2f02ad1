"""Scripts that leave their steps early, alone or all together, or fail after them."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import scripts
from scripts import LEAVES_AFTER

from holdfast.record.events import RunEnded
from holdfast.record.journal import read_directory

pytestmark = pytest.mark.slow

TOLD_S_MAX = 60.0
"""From the start of a run to its end, on a busy machine. Noticing a hang would take ten minutes after so few
steps, so no test waits for that.
"""


def ended(result: Any) -> RunEnded:
    (end,) = [event for event in read_directory(result.folder / "journal") if isinstance(event, RunEnded)]
    return end


@pytest.mark.parametrize("does", ["break alone", "exit alone"])
def test_leaving_alone_is_told_at_once_with_the_line(cluster: Any, does: str) -> None:
    begun_s = time.monotonic()
    result = cluster.train("plain", members=2, steps=200, checkpoint_every=1000, does=does)
    assert time.monotonic() - begun_s < TOLD_S_MAX
    assert (result.ending.outcome, result.ending.code) == ("failed", 2)
    pattern = (
        rf"n0\.0 left the loop over steps after step {LEAVES_AFTER} \(\S*scripts\.py:\d+\), "
        rf"but n0\.1 has begun step {LEAVES_AFTER + 1}\."
    )
    assert re.fullmatch(pattern, result.ending.reason), result.ending.reason
    kept = [path.name for path in (result.folder / "checkpoints").glob("step-*")]
    assert kept == [f"step-{LEAVES_AFTER:012d}.checkpoint"]  # to resume from once the script is fixed


def test_a_loop_that_is_left_and_kept_is_named_by_its_own_line(cluster: Any) -> None:
    """As in a progress bar: the line at which the script left the loop is unknown."""
    result = cluster.train("plain", members=2, steps=200, checkpoint_every=1000, does="break kept")
    assert result.ending.outcome == "failed"
    line = next(
        number
        for number, text in enumerate(Path(scripts.__file__).read_text().splitlines(), start=1)
        if "in kept" in text
    )
    assert f"after step {LEAVES_AFTER} (scripts.py:{line}), but n0.1" in result.ending.reason


def test_exiting_together_is_not_a_completion_and_can_be_resumed(cluster: Any) -> None:
    result = cluster.train("plain", members=2, steps=200, checkpoint_every=1000, does="exit")
    assert (result.ending.outcome, result.ending.code) == ("stopped", 0)
    assert result.ending.reason == f"the script exited at step {LEAVES_AFTER} of 200 (exit 0)"
    assert ended(result).outcome == "stopped"
    assert [path.name for path in (result.folder / "checkpoints").glob("step-*")]


@pytest.mark.parametrize("does", ["fail at the end", "fail at the end, first"])
def test_what_fails_twice_after_the_last_step_fails_the_run(cluster: Any, does: str) -> None:
    """Whether the others are done by then, or come to their end before rank 0's part is done."""
    result = cluster.train("plain", members=2, does=does)
    assert (result.ending.outcome, result.ending.code) == ("failed", 1), result.story
    assert re.match(r"the script failed again on n0\.\S+ after step 12,", result.ending.reason), result.story
    assert ended(result).survived_errors == 1
