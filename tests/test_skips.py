"""Holds the rule that a skipped test passes at home and fails where HOLDFAST_NO_SKIP=1 is set; and that a
server that cannot be installed, or not run by its own user, breaks no session.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
PYPROJECT = CONFTEST.parents[1] / "pyproject.toml"
SESSION_S_MAX = 120
OPTIONS = ("-p", "no:cacheprovider", "-o", f"pythonpath={CONFTEST.parent / 'train'}")

SKIPPING = """
import pytest

def test_passes():
    pass

def test_needs_a_server():
    pytest.skip("no server here")
"""
SOAKING = """
import pytest

def test_passes():
    pass

@pytest.mark.soak
def test_takes_minutes():
    raise AssertionError
"""
BROWSING = """
def test_needs_a_browser(browser):
    pass
"""
QUERYING = """
import psycopg

def test_needs_a_database(postgres_database):
    with psycopg.connect(postgres_database()) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
"""


def session(folder: Path, test: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run this test in a session of its own, with the conftest.py in the folder or a copy of ours."""
    (folder / "test_session.py").write_text(test, encoding="utf-8")
    if not (folder / "conftest.py").exists():
        shutil.copy(CONFTEST, folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", *OPTIONS, "--rootdir", folder, folder],
        env={**os.environ, "HOLDFAST_NO_SKIP": "", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SESSION_S_MAX,
    )


def alter_conftest(folder: Path, line: str, other: str) -> None:
    text = CONFTEST.read_text(encoding="utf-8")
    assert text.count(f"\n{line}\n") == 1
    (folder / "conftest.py").write_text(text.replace(line, other), encoding="utf-8")


@pytest.mark.parametrize(("no_skip", "status"), [("", 0), ("1", 1)])
def test_a_skip_fails_the_session_only_where_it_must(tmp_path: Path, no_skip: str, status: int) -> None:
    done = session(tmp_path, SKIPPING, HOLDFAST_NO_SKIP=no_skip)
    assert done.returncode == status, done.stdout + done.stderr
    assert "no server here" in done.stdout
    assert ("1 skipped, which is a failure here" in done.stdout) == bool(status)


def test_what_is_left_to_a_soak_is_not_skipped(tmp_path: Path) -> None:
    """`-m` comes from pyproject.toml here, as it does for the suite."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.read_text(encoding="utf-8"), encoding="utf-8")
    done = session(tmp_path, SOAKING, HOLDFAST_NO_SKIP="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 deselected" in done.stdout


def test_an_installation_that_hangs_is_a_skip_and_tells_why(tmp_path: Path) -> None:
    alter_conftest(tmp_path, "INSTALL_WAIT_S = 600", "INSTALL_WAIT_S = 0.2")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, script in (("apt-get", "echo slow; sleep 300"), ("sudo", 'shift; exec "$@"')):
        (commands / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (commands / name).chmod(0o755)
    for name in ("sleep", "timeout"):
        (commands / name).symlink_to(str(shutil.which(name)))
    done = session(tmp_path, BROWSING, PATH=str(commands), TMPDIR=str(tmp_path))  # and a lock of its own
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert "chromium` took longer than 0.2 s" in done.stdout


@pytest.mark.usefixtures("postgres_server")  # so that it is installed
def test_a_server_needs_no_user_of_its_own(tmp_path: Path) -> None:
    alter_conftest(
        tmp_path, 'POSTGRES_USERS = ("postgres", "nobody")', 'POSTGRES_USERS = ("no-such-user", "nobody")'
    )
    done = session(tmp_path, QUERYING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
