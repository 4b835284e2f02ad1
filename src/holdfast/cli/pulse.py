"""Shows that a verb that runs until it is stopped is at work.

Its first turn that succeeds is told in one line. On a terminal a further line below follows, which each turn
overwrites; a log does not get it.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast import wording
from holdfast.cli.live import NO_BOARD
from holdfast.cli.terminal import printable, say

CLEARED = "\r\x1b[2K"


class Pulse:
    """what: what the verb does, as in `Watching`. every_s: how often it does it."""

    def __init__(self, what: str, every_s: float) -> None:
        self._what, self._every_s = what, every_s
        self._has_begun = False
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM") not in NO_BOARD

    @contextmanager
    def shown(self) -> Iterator["Pulse"]:
        """Leave the terminal as it was."""
        try:
            yield self
        finally:
            self.clear()

    def clear(self) -> None:
        """Before a turn, which may print something."""
        self._write(CLEARED)

    def beat(self, seen: str, now_ns: int) -> None:
        """After a turn. seen: what it was about."""
        every = wording.duration(round(self._every_s * 1e9))
        if not self._has_begun:
            self._has_begun = True
            say(f"{self._what} {seen}, every {every} until it is interrupted.")
        next_ns = now_ns + round(self._every_s * 1e9)
        line = f"{wording.stamp(now_ns)}  {self._what} {seen}; next at {wording.stamp(next_ns)[-9:]}"
        self._write(f"{CLEARED}{printable(line)[: shutil.get_terminal_size().columns - 1]}\r")

    def _write(self, text: str) -> None:
        if self._is_shown:
            with suppress(OSError):
                sys.stderr.write(text)
                sys.stderr.flush()
