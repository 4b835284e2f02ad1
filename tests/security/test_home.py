"""Attacks by other users of the machine on this user's data: the home, its files, a run's token."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.record.errors import InputError
from holdfast.record.events import RunStarted
from holdfast.record.files import make_private_directory, make_private_file
from holdfast.record.journal import JOURNAL_DIRECTORY, JournalWriter
from holdfast.record.recorder import Recorder
from holdfast.record.stores import open_store
from holdfast.run.endpoint import Endpoint, reserved
from holdfast.run.site import TOKEN_CHARS_MIN, survey
from holdfast.signals.store import SignalStore as SignalStore


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(home: Path) -> list[Path]:
    return [path for path in (home, *home.rglob("*")) if mode(path) & 0o077]


def test_no_other_user_can_read_a_home_or_its_files(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    with Recorder(home / JOURNAL_DIRECTORY, run="r") as recorder:
        recorder.record(RunStarted, gpus=1)
    with open_store(None, home):
        pass
    with reserved(home, "r") as reservation:
        reservation.publish(Endpoint(host="127.0.0.1", port=1, token="t" * 32, pid=1))
        assert len(list(home.rglob("*"))) >= 5
        assert open_to_others(home) == []
    assert mode(tmp_path / "a") == 0o700


def test_a_signal_store_is_private(tmp_path: Path) -> None:
    SignalStore(tmp_path / "home" / "signals").close()
    assert mode(tmp_path / "home") == mode(tmp_path / "home" / "signals") == 0o700


def test_a_home_of_an_older_version_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".holdfast"
    (home / "journal").mkdir(parents=True)
    home.chmod(0o755)
    writer = JournalWriter(home / "journal", "a")
    writer.write(b"")
    writer.close()
    assert mode(home) == 0o700


def test_a_home_that_is_shared_on_purpose_stays_so(tmp_path: Path) -> None:
    home = tmp_path / "team"
    home.mkdir()
    home.chmod(0o770)
    make_private_directory(home / "journal")
    assert (mode(home), mode(home / "journal")) == (0o770, 0o700)


def test_a_private_file_is_made_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        make_private_file(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("token", ["a", "password", "x" * (TOKEN_CHARS_MIN - 1)])
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(InputError, match=f"a token has at least {TOKEN_CHARS_MIN}"):
        survey(("127.0.0.1", 0), token, is_shared=True)
    assert survey(("127.0.0.1", 0), "x" * TOKEN_CHARS_MIN, is_shared=True).token == "x" * TOKEN_CHARS_MIN


def test_a_token_that_holdfast_makes_cannot_be_guessed() -> None:
    tokens = {survey(None, "", is_shared=False).token for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 32
