"""Logs that grow, are rotated, cut off, and never end a line."""

from pathlib import Path

import pytest

from holdfast.record.kernel import LINE_BYTES_MAX
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.kernel_log_collector import CHUNK_BYTES, LogFollower


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_bytes(b"one\ntwo\n")
    return path


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_each_line_comes_once_and_whole(log: Path) -> None:
    follower = LogFollower(log)
    assert list(follower.new_lines()) == [b"one", b"two"]
    assert list(follower.new_lines()) == []
    append(log, b"thr")
    assert list(follower.new_lines()) == []
    append(log, b"ee\nfour\n")
    assert list(follower.new_lines()) == [b"three", b"four"]
    follower.close()


def test_the_whole_log_has_an_unfinished_last_line(log: Path) -> None:
    append(log, b"thr")
    follower = LogFollower(log)
    assert list(follower.all_lines()) == [b"one", b"two", b"thr"]
    follower.close()


def test_a_rotated_log_is_followed_into_its_new_file(log: Path) -> None:
    follower = LogFollower(log)
    assert len(list(follower.new_lines())) == 2
    append(log, b"last words\n")
    log.rename(log.with_suffix(".1"))
    log.write_bytes(b"first words\n")
    assert list(follower.new_lines()) == [b"last words"]
    assert list(follower.new_lines()) == [b"first words"]
    follower.close()


def test_a_log_that_was_cut_off_is_read_from_its_start(log: Path) -> None:
    follower = LogFollower(log)
    assert len(list(follower.new_lines())) == 2
    log.write_bytes(b"new\n")
    list(follower.new_lines())  # finds out
    assert list(follower.new_lines()) == [b"new"]
    follower.close()


def test_a_log_that_is_not_there_may_come_later(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path / "none.log")
    with pytest.raises(Unavailable, match=r"none\.log cannot be read: No such file"):
        list(follower.new_lines())
    (tmp_path / "none.log").write_bytes(b"here\n")
    assert list(follower.new_lines()) == [b"here"]
    follower.close()


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path)
    with pytest.raises(Unavailable, match="Is a directory"):
        list(follower.all_lines())
    follower.close()


def test_a_line_without_end_is_not_kept(log: Path) -> None:
    follower = LogFollower(log)
    list(follower.new_lines())
    for _ in range(20):
        append(log, b"x" * CHUNK_BYTES)
        assert list(follower.new_lines()) == []
    append(log, b"\nfour\n")
    endless, four = follower.new_lines()
    assert len(endless) <= LINE_BYTES_MAX + CHUNK_BYTES
    assert four == b"four"
    follower.close()
