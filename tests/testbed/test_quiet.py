"""A run that is slow here and there, and in which nothing is wrong, is left alone."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

QUIET = Path(__file__).parents[2] / "testbed" / "quiet.py"
MINUTES = 4
WAIT_S = 600.0


@pytest.mark.soak
def test_nothing_is_killed_where_nothing_is_wrong() -> None:
    done = subprocess.run(
        [sys.executable, str(QUIET), "--minutes", str(MINUTES)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no alarm\n")
