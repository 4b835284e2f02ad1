"""The lines of a run, read while the file grows, and while it starts again."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from waiting import until

from holdfast.run.lines import KEPT_SHARE, LOOK_LINES, KeptLine, KeptLines, LinesReader

LINES = LOOK_LINES
"""After so many lines a process looks at the size of the file."""
LINE_BYTES = len("1step 000000\n")
BYTES_MAX = 4 * KEPT_SHARE * LINES * LINE_BYTES


def append(path: Path, *texts: str) -> None:
    with path.open("ab") as file:
        file.writelines(f"1{text}\n".encode() for text in texts)


def steps(first: int, last: int) -> list[str]:
    return [f"step {number:06d}" for number in range(first, last)]


def said(lines: list[KeptLine]) -> list[str]:
    return [line.data.decode().rstrip("\n") for line in lines]


@contextmanager
def kept(path: Path) -> Iterator[KeptLines]:
    lines = KeptLines.opened(path, BYTES_MAX)
    assert lines is not None
    yield lines
    lines.close()


def write(path: Path, texts: list[str]) -> None:
    """Have a process of its own append them, and wait until it has."""
    with kept(path) as lines:
        for text in texts:
            lines.keep("stdout", f"{text}\n".encode())


def test_a_viewer_that_keeps_up_loses_no_line_when_the_file_starts_again(tmp_path: Path) -> None:
    append(path := tmp_path / "lines")
    sizes, found = [], []
    with closing(LinesReader(path)) as reader:
        for first in range(0, 20 * LINES, LINES):
            write(path, steps(first, first + LINES))
            sizes.append(path.stat().st_size)
            found += said(list(reader.new()))
    assert found == steps(0, 20 * LINES)
    assert max(sizes) < BYTES_MAX + LINES * LINE_BYTES
    assert any(later < earlier for earlier, later in pairwise(sizes))  # it has started again


def test_one_that_lags_or_comes_late_gets_the_last_lines_each_once(tmp_path: Path) -> None:
    append(path := tmp_path / "lines", *steps(0, 3))
    with closing(LinesReader(path)) as slow:
        assert said(list(slow.new())) == steps(0, 3)
        for first in range(3, 20 * LINES, LINES):
            write(path, steps(first, first + LINES))
        with closing(LinesReader(path)) as late:
            found = said(list(late.new()))
        assert said(list(slow.new())) == found
        assert list(slow.new()) == []
    assert found == steps(0, first + LINES)[-len(found) :]
    assert len(found) * LINE_BYTES >= BYTES_MAX // KEPT_SHARE - LINE_BYTES


def test_several_processes_append_while_it_starts_again(tmp_path: Path) -> None:
    append(path := tmp_path / "lines")
    found: list[str] = []

    def has_read(reader: LinesReader, last: str) -> bool:
        found.extend(said(list(reader.new())))
        return last in found

    with closing(LinesReader(path)) as reader, kept(path) as one, kept(path) as other:
        for number in range(20 * LINES):
            for name, lines in (("one", one), ("other", other)):
                lines.keep("stderr", f"{name} {number:06d}\n".encode())
            if number % 50 == 0:
                until(partial(has_read, reader, f"other {number:06d}"))
    with closing(LinesReader(path)) as late:
        tail = said(list(late.new()))
    for name in ("one", "other"):
        mine = [line for line in found if line.startswith(f"{name} ")]
        assert mine == [f"{name} {number:06d}" for number in range(len(mine))]
        assert len(mine) > 19 * LINES
        assert f"{name} {20 * LINES - 1:06d}" in tail


def test_a_line_is_given_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1first\n2sec")
    with closing(LinesReader(path)) as reader:
        assert list(reader.new()) == [KeptLine("stdout", b"first\n")]
        with path.open("ab") as file:
            file.write(b"ond\n")
        assert list(reader.new()) == [KeptLine("stderr", b"second\n")]
