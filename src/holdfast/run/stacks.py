"""Parse the stacks that faulthandler writes of a process into frames, with the source of the user's own ones.
Pure, except that it reads those source lines.
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
"""Frames per thread, from the innermost on: enough to include the script's own, in a small message."""
THREADS_MAX = 8
SOURCE_CHARS_MAX = 80
SOURCE_BYTES_MAX = 4 << 20
"""The largest file from which a line is read."""

_FRAME = re.compile(r'^  File "([^"\0\n]+)", line (\d{1,9}) in (.{0,200})', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) [^\n]*\(most recent call first\):$", re.MULTILINE)
_OWN = str(Path(__file__).parent.parent) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """A call in progress. is_own: it is the user's, not Holdfast's or a library's. source: its line."""

    path: str
    line: int
    function: str = ""
    is_own: bool = False
    source: str = ""

    @property
    def place(self) -> str:
        """Such as `train.py:88`."""
        return f"{Path(self.path).name}:{self.line}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}" + (f": {self.source}" if self.source else "")


Stack = tuple[StackFrame, ...]
"""Frames, the innermost first."""


def read_stacks(text: str, *, with_source: bool = True) -> tuple[Stack, ...]:
    """The stack of each thread, first that of the thread that wrote them: the main thread, since a signal to
    the process is handled there.

    with_source: read the user's files, which may be on slow storage.
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
    """Whether the file is the user's, and its source line if it is."""
    if is_library(path):
        return False, ""
    return True, _source(path, line) if with_source else ""


def _source(path: str, line: int) -> str:
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode) or status.st_size > SOURCE_BYTES_MAX:  # reading a pipe would block
        return ""
    linecache.checkcache(path)
    return linecache.getline(path, line).strip()[:SOURCE_CHARS_MAX]


def own_frame(stack: Sequence[StackFrame]) -> StackFrame | None:
    """The user's innermost frame or, if there is none, the innermost of all."""
    return next((frame for frame in stack if frame.is_own), stack[0] if stack else None)


def is_library(path: str) -> bool:
    return path.startswith(("<", _OWN, _STANDARD)) or any(part in path for part in _INSTALLED)


def is_holdfasts(path: str) -> bool:
    return path.startswith(_OWN)
