"""The tiers and the rule of skips: a skipped test says what it needs, passes at home and fails where
HOLDFAST_NO_SKIP=1 is set; a server that cannot be installed, or not run by its own user, breaks no session.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import servers
from quantity import sampled

pytestmark = pytest.mark.slow

CONFTEST = Path(__file__).with_name("conftest.py")
PYPROJECT = CONFTEST.parents[1] / "pyproject.toml"
SESSION_S_MAX = 400
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
ROOTING = """
import pytest

def test_passes():
    pass

@pytest.mark.root
def test_needs_root():
    pass
"""
COUNTING = """
from hypothesis import given, settings, strategies as st
from quantity import examples

seen = []

@settings(max_examples=examples(20), database=None)
@given(st.integers())
def test_sees(number):
    seen.append(number)

def test_saw_many():
    assert len(seen) >= 200
"""
QUERYING = """
import psycopg

def test_needs_a_database(postgres_database):
    with psycopg.connect(postgres_database()) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
"""


def session(folder: Path, test: str, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run this test in a session of its own, with the conftest.py in the folder or a copy of ours."""
    (folder / "test_session.py").write_text(test, encoding="utf-8")
    if not (folder / "conftest.py").exists():
        shutil.copy(CONFTEST, folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", *OPTIONS, *words, "--rootdir", folder, folder],
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


@pytest.mark.parametrize(("no_skip", "status"), sampled([("", 0), ("1", 1)], [("1", 1)]))
def test_a_skip_fails_the_session_only_where_it_must(tmp_path: Path, no_skip: str, status: int) -> None:
    done = session(tmp_path, SKIPPING, HOLDFAST_NO_SKIP=no_skip)
    assert done.returncode == status, done.stdout + done.stderr
    assert "no server here" in done.stdout
    assert ("1 skipped, which is a failure here" in done.stdout) == bool(status)


@pytest.mark.soak
def test_what_is_left_to_a_soak_is_not_skipped(tmp_path: Path) -> None:
    """`-m` comes from pyproject.toml here, as it does for the suite."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.read_text(encoding="utf-8"), encoding="utf-8")
    done = session(tmp_path, SOAKING, HOLDFAST_NO_SKIP="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 deselected" in done.stdout


@pytest.mark.soak
def test_what_needs_a_program_that_is_missing_says_how_to_get_it(tmp_path: Path) -> None:
    done = session(tmp_path, BROWSING, PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert f"not installed: chromium; {servers.INSTALL}" in done.stdout
    assert "1 need servers or programs: make servers installs them" in done.stdout


@pytest.mark.soak
def test_what_needs_root_says_how_to_run_it(tmp_path: Path) -> None:
    check = '        if item.get_closest_marker("root") is not None'
    alter_conftest(tmp_path, f"{check} and os.geteuid() != 0:", f"{check}:")
    done = session(tmp_path, ROOTING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
    assert "1 need root: sudo .venv/bin/python -m pytest -m root" in done.stdout


@pytest.mark.soak
def test_a_test_that_needs_a_server_is_marked_by_itself(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.read_text(encoding="utf-8"), encoding="utf-8")
    done = session(tmp_path, SKIPPING + BROWSING + QUERYING.replace("import psycopg", ""), "-m", "server")
    assert "3 deselected" not in done.stdout
    assert "2 deselected" in done.stdout, done.stdout + done.stderr


@pytest.mark.soak
def test_a_soak_tries_more_examples(tmp_path: Path) -> None:
    counts = [session(tmp_path, COUNTING, *words).stdout for words in ((), ("--hypothesis-profile=soak",))]
    assert ["2 passed" in told for told in counts] == [False, True], counts
    assert "1 failed, 1 passed" in counts[0]


def commands_in(folder: Path, **scripts: str) -> str:
    """A directory for $PATH with these commands, and with what they need."""
    for name, script in scripts.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name.replace("_", "-")).chmod(0o755)
    for name in ("sleep", "timeout"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


def test_an_installation_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = commands_in(tmp_path, apt_get="echo slow; sleep 300", sudo='shift; exec "$@"')
    monkeypatch.setenv("PATH", path)
    with pytest.raises(servers.InstallFailed, match=r"chromium` took longer than 0\.2 s"):
        servers.install(["chromium"], wait_s=0.2)


def test_the_script_says_what_it_installs_and_what_to_do_where_it_cannot(tmp_path: Path) -> None:
    path = commands_in(tmp_path, apt_get="echo no network; exit 100", sudo='shift; exec "$@"')
    done = subprocess.run(
        [sys.executable, servers.__file__],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=SESSION_S_MAX,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert servers.PACKAGES.keys() <= rows.keys()
    assert "to be installed" in rows["chromium"]
    assert rows["chromium"].endswith("for the pages, in a browser")
    assert "no network" in done.stderr
    assert "make quick" in done.stderr


@pytest.mark.usefixtures("postgres_server")  # so that it is installed
@pytest.mark.soak
def test_a_server_needs_no_user_of_its_own(tmp_path: Path) -> None:
    alter_conftest(
        tmp_path, 'POSTGRES_USERS = ("postgres", "nobody")', 'POSTGRES_USERS = ("no-such-user", "nobody")'
    )
    done = session(tmp_path, QUERYING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
