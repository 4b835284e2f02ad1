"""`make demo-ledger`, for someone who already has a store of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import WAIT_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_demo_keeps_to_its_own_store(tmp_path: Path) -> None:
    # The environment that runs the tests is there: it needs neither to be made nor to be renewed.
    command = ["make", "demo-ledger", "--old-file", ".venv/.installed", f"bin={Path(sys.executable).parent}"]
    done = subprocess.run(
        [*command, f"demo_home={tmp_path / 'demo'}"],
        cwd=ROOT,
        env={**os.environ, "HOLDFAST_STORE": str(tmp_path / "mine.sqlite"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Run test-040104-goodput-n112-70b-a3m" in done.stdout
    assert not (tmp_path / "mine.sqlite").exists()
    page = tmp_path / "demo" / "report.html"
    assert page.is_file()
    printed = [
        line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("HOLDFAST_HOME=")
    ]
    assert sum(str(page) in line for line in printed) == 1
