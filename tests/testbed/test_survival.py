"""The table of faults, in short: one that a run survives and one that it must not, made for real."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SURVIVAL = Path(__file__).parents[2] / "testbed" / "survival.py"
WAIT_S = 400.0


def survival(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SURVIVAL), *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.soak
def test_a_kill_is_survived_with_the_same_bits_and_a_mistake_is_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- faults -->\nold\n<!-- /faults -->\nafter\n", encoding="utf-8")
    faults = ("--only", "kill-reduce", "--only", "exception-again")
    done = survival(*faults, "--brief", "--repetitions", "1", "--json", "--write", str(page))
    assert done.returncode == 0, done.stderr
    kill, mistake = json.loads(done.stdout)
    assert kill["name"] == "kill-reduce"
    assert kill["samples"][0]["same_bits"]
    assert 0 < kill["samples"][0]["next_commit_s"] < 60
    assert "generation" in kill["samples"][0]["said"]
    assert mistake["samples"][0]["code"] == 1
    assert mistake["samples"][0]["next_commit_s"] is None
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- faults -->\n")
    assert "| … in the reduction | goes on | " in text
    assert "| An exception in the script, each time | fails, exit 1 | - | - | " in text
    assert text.endswith("\n<!-- /faults -->\nafter\n")
    assert "old" not in text


def test_an_unknown_fault_is_told() -> None:
    done = survival("--only", "flood")
    assert done.returncode == 1
    assert done.stderr.startswith("There is no fault flood; there are kill-lane, ")
