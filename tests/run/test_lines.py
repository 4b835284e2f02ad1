"""The lines of a run, read while the file grows, and while it starts again."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.run.lines import READ_BYTES, KeptLine, LinesReader


def append(path: Path, *texts: str) -> None:
    with path.open("ab") as file:
        file.writelines(f"1{text}\n".encode() for text in texts)


def steps(first: int, last: int) -> list[str]:
    return [f"step {number:06d}" for number in range(first, last)]


def said(lines: list[KeptLine]) -> list[str]:
    return [line.data.decode().rstrip("\n") for line in lines]


@pytest.mark.parametrize("new", [1, 3, 5, 900])
def test_a_file_that_started_again_is_read_from_its_beginning(tmp_path: Path, new: int) -> None:
    """Whether it is now shorter than what was read, as long, or longer."""
    append(path := tmp_path / "lines", *steps(0, 3))
    with closing(LinesReader(path)) as reader:
        assert said(list(reader.new())) == steps(0, 3)
        assert list(reader.new()) == []
        os.truncate(path, 0)
        append(path, *steps(3, 3 + new))
        assert said(list(reader.new())) == steps(3, 3 + new)
        assert list(reader.new()) == []


def test_a_file_that_starts_again_while_a_slow_viewer_reads_it_loses_nothing_new(tmp_path: Path) -> None:
    count = 3 * READ_BYTES // len("1step 000000\n")
    append(path := tmp_path / "lines", *steps(0, count))
    with closing(LinesReader(path)) as reader:
        lines = reader.new()
        assert said([next(lines)]) == steps(0, 1)
        os.truncate(path, 0)
        append(path, *steps(count, 2 * count))
        found = said(list(lines))
    assert found[-count:] == steps(count, 2 * count)
    assert found == sorted(set(found))  # no line twice, and none that was never written


def test_a_line_is_given_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1first\n2sec")
    with closing(LinesReader(path)) as reader:
        assert list(reader.new()) == [KeptLine("stdout", b"first\n")]
        with path.open("ab") as file:
            file.write(b"ond\n")
        assert list(reader.new()) == [KeptLine("stderr", b"second\n")]
