"""What is said at a run's end of how it goes on."""

import pytest

from holdfast.run.watching import end_line
from holdfast.run.wire import RunClosed


@pytest.mark.parametrize(
    ("saved_step", "again"),
    [
        (1200, "started again with `--run r`, it goes on from its checkpoint of step 1,200"),
        (0, "started again with `--run r`, it goes on from its newest checkpoint, if it has one"),
        (
            None,
            "Holdfast saves no checkpoints of this script: started again, it goes on from its own, if any",
        ),
    ],
)
def test_a_stopped_run_says_what_it_goes_on_from(saved_step: int | None, again: str) -> None:
    over = RunClosed(outcome="stopped", code=130, reason="SIGINT", saved_step=saved_step)
    assert end_line("r", over) == f"run r stopped; {again}; `holdfast report r` shows where its time went"
