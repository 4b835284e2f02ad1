"""Holds the rule that a skipped test passes at home and fails where HOLDFAST_NO_SKIP=1 is set."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import pytest

def test_passes():
    pass

def test_needs_a_server():
    pytest.skip("no server here")
"""


@pytest.mark.parametrize(("no_skip", "status"), [("", 0), ("1", 1)])
def test_a_skip_fails_the_session_only_where_it_must(tmp_path: Path, no_skip: str, status: int) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_session.py").write_text(SESSION, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "HOLDFAST_NO_SKIP": no_skip},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "no server here" in done.stdout
    assert ("1 skipped, which is a failure here" in done.stdout) == bool(status)
