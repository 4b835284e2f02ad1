"""Shows a live run: a board at the foot of the terminal, or plain lines without a terminal.

Both are on stderr. The display only reads the coordinator's `Status` again and again; the run neither waits
for it nor depends on it. live_board.py draws the board.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.cli.live_text import progress, since
from holdfast.cli.terminal import printable
from holdfast.record.clock import Clock
from holdfast.run.nodes import LineOutlet
from holdfast.run.output import STREAMS
from holdfast.run.status import Happened, Status

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_HZ = 8
LINE_INTERVAL_NS = 5 * 10**9
"""Without a terminal: the interval of the lines that show the progress."""
READ_BYTES = 64 << 10
DRAIN_WAIT_S = 2.0
"""How long the members' last lines may take to come after the end."""
NO_BOARD = ("dumb", "unknown")
"""Terminals that cannot move their cursor."""


@contextmanager
def show(status: Callable[[], Status], clock: Clock) -> Iterator[LineOutlet]:
    """Show the run until the block is left; `status` is called from a thread of the display."""
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in NO_BOARD
    with _board(status, clock) if on_terminal else _lines(status, clock) as outlet:
        yield outlet


@contextmanager
def _board(status: Callable[[], Status], clock: Clock) -> Iterator[LineOutlet]:
    from rich.console import Console
    from rich.live import Live

    from holdfast.cli.live_board import Board

    console = Console(stderr=True, highlight=False, markup=False)
    live = Live(
        Board(status, clock),
        console=console,
        refresh_per_second=REFRESH_HZ,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with live, _above(console) as outlet:
        yield outlet


@contextmanager
def _above(console: "Console") -> Iterator[LineOutlet]:
    """An outlet whose lines scroll above the board. A stdout that is not a terminal gets them unchanged."""
    reading, writing = os.pipe()
    passing = threading.Thread(target=_pass_on, args=(reading, console), name="holdfast-live", daemon=True)
    passing.start()
    try:
        yield LineOutlet(stdout=writing if sys.stdout.isatty() else STREAMS["stdout"], stderr=writing)
    finally:
        os.close(writing)
        passing.join(DRAIN_WAIT_S)


def _pass_on(reading: int, console: "Console") -> None:
    """Print all whole lines at once, because the board is drawn again after each print."""
    rest = b""
    while data := os.read(reading, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            _print_above(lines, console)
    if rest:
        _print_above([rest], console)
    os.close(reading)


def _print_above(lines: list[bytes], console: "Console") -> None:
    from rich.text import Text

    # Of a line that overwrites itself (progress bars) only the last state is kept, and of escape sequences
    # only the colours: others would damage the board.
    shown = (line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace") for line in lines)
    console.print(Text("\n").join(map(Text.from_ansi, shown)), soft_wrap=True)


@contextmanager
def _lines(status: Callable[[], Status], clock: Clock) -> Iterator[LineOutlet]:
    teller = Teller()
    over = threading.Event()

    def tell() -> None:
        for line in teller.tell(status(), clock.now_ns()):
            print(f"holdfast: {line}", file=sys.stderr, flush=True)

    def keep_telling() -> None:
        while not over.wait(1 / REFRESH_HZ):
            tell()

    telling = threading.Thread(target=keep_telling, name="holdfast-live", daemon=True)
    telling.start()
    try:
        yield LineOutlet()
    finally:
        over.set()
        telling.join()
        tell()


class Teller:
    """Turns statuses into lines: each happening once, and the progress at intervals."""

    def __init__(self) -> None:
        self._last: Happened | None = None
        self._told_step = 0
        self._due_ns = 0

    def tell(self, status: Status, now_ns: int) -> Iterator[str]:
        for happened in self._new(status.happened):
            yield f"{since(status.started_ns, happened.occurred_ns)} {printable(happened.text)}"
        if status.outcome is None and status.step > self._told_step and now_ns >= self._due_ns:
            self._told_step, self._due_ns = status.step, now_ns + LINE_INTERVAL_NS
            yield f"{since(status.started_ns, now_ns)} {progress(status)}"

    def _new(self, happened: tuple[Happened, ...]) -> tuple[Happened, ...]:
        """The happenings after the last one printed; all, if that one is too old to be in the list."""
        places = reversed(range(len(happened)))
        told = next((place + 1 for place in places if happened[place] == self._last), 0)
        self._last = happened[-1] if happened else self._last
        return happened[told:]
