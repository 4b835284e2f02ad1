"""Stacks of ranks beside their dumps: the output of `py-spy dump`, one file a rank, `stack_rank_N.txt`."""

import re
from collections.abc import Iterable
from pathlib import Path

from holdfast.signals.flight_dumps import CHARS_MAX, LINES_MAX, CodeLine

FILES_MAX = 16
FILE_BYTES_MAX = 2**20

_HEADING = re.compile(r'Thread .*"MainThread"')
_LINE = re.compile(r"\s+(\S.{0,255}?) \(([^()]{1,1024}):(\d{1,9})\)")


def read_stacks(place: Path, ranks: Iterable[int]) -> dict[int, tuple[CodeLine, ...]]:
    """Where these ranks' main threads are, for those with a file in the folder of the dumps."""
    found = {}
    for rank in list(ranks)[:FILES_MAX]:
        try:
            folder = place if place.is_dir() else place.parent
            with (folder / f"stack_rank_{rank}.txt").open("rb") as stream:
                content = stream.read(FILE_BYTES_MAX)
        except OSError:
            continue
        if lines := parse_stack(content):
            found[rank] = lines
    return found


def parse_stack(content: bytes) -> tuple[CodeLine, ...]:
    """The main thread's lines, the innermost first; empty if there is no such thread."""
    lines: list[CodeLine] = []
    is_main = False
    for text in content.decode("utf-8", "replace").splitlines():
        if text.startswith("Thread "):
            is_main = _HEADING.match(text) is not None
        elif is_main and (at := _LINE.fullmatch(text)) and len(lines) < LINES_MAX:
            lines.append(CodeLine(at[1][:CHARS_MAX], at[2][:CHARS_MAX], int(at[3])))
    return tuple(lines)
