"""The stacks of a process as faulthandler writes them, read into frames: which are the user's own, and what
their lines say. Pure, but for the reading of those lines.
"""

import linecache
import os
import re
import stat
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import msgspec

FRAMES_MAX = 24
"""Of a thread, from the innermost on: a script's own frames are among them, and a message stays small."""
THREADS_MAX = 8
SOURCE_CHARS_MAX = 80
SOURCE_BYTES_MAX = 4 << 20
"""Of a file from which a line is read."""

_FRAME = re.compile(r'^  File "([^"\0\n]+)", line (\d{1,9}) in (.{0,200})', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) [^\n]*\(most recent call first\):$", re.MULTILINE)
_OWN = str(Path(__file__).parent.parent) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """A call under way. is_own: it is the user's, not Holdfast's or a library's. source: its line of code."""

    path: str
    line: int
    function: str = ""
    is_own: bool = False
    source: str = ""

    @property
    def place(self) -> str:
        """`train.py:88`."""
        return f"{Path(self.path).name}:{self.line}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}" + (f": {self.source}" if self.source else "")


Stack = tuple[StackFrame, ...]
"""The innermost first."""


def read_stacks(text: str, *, with_source: bool = True) -> tuple[Stack, ...]:
    """Of each thread, the one that was asked first: the main thread, where a signal goes to the process.

    with_source: the user's files are read, which takes as long as their storage does.
    """
    heads = list(_THREAD.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    found = [
        (head.group().startswith("Thread"), _stack(text[head.end() : end], with_source))
        for head, end in zip(heads, ends, strict=False)
    ]
    stacks = [stack for _, stack in sorted(found, key=lambda one: one[0]) if stack]
    return tuple(stacks[:THREADS_MAX])


def _stack(text: str, with_source: bool) -> Stack:
    calls = [(path, int(line), function) for path, line, function in _FRAME.findall(text)[:FRAMES_MAX]]
    return tuple(StackFrame(*call, *_owned(call[0], call[1], with_source)) for call in calls)


def _owned(path: str, line: int, with_source: bool) -> tuple[bool, str]:
    """Whether the file is the user's, and the line if it is."""
    if is_library(path):
        return False, ""
    return True, _source(path, line) if with_source else ""


def _source(path: str, line: int) -> str:
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode) or status.st_size > SOURCE_BYTES_MAX:  # a pipe would be waited for
        return ""
    linecache.checkcache(path)
    return linecache.getline(path, line).strip()[:SOURCE_CHARS_MAX]


def own_frame(stack: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost that is the user's own or, where there is none, the innermost of all."""
    return next((frame for frame in stack if frame.is_own), stack[0] if stack else None)


def is_library(path: str) -> bool:
    return path.startswith(("<", _OWN, _STANDARD)) or any(part in path for part in _INSTALLED)


def is_holdfasts(path: str) -> bool:
    return path.startswith(_OWN)
