"""How a verb ends that goes on until it is told to: within a bound, whatever the servers it talks to do."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

END_S_MAX = 20.0
"""From the signal to the end of the process. Alerts that wait, sessions to close and files to finish get
their own shorter bounds; this one is for what has none, such as a resolver or a driver that hangs.
"""
EXIT_CODE = 1

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Ending:
    """Whether the process was told to end, by an interrupt or SIGTERM."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def ask(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
            last = threading.Timer(END_S_MAX, _leave)
            last.daemon = True
            last.start()


@contextmanager
def on_signal(ending: Ending, then: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, a signal asks for the end and calls `then`, which may raise."""

    def told(number: int, frame: FrameType | None) -> None:
        ending.ask()
        then()

    before = {number: signal.signal(number, told) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    raise KeyboardInterrupt


def _leave() -> None:
    print(
        f"holdfast: Something did not end within {END_S_MAX:g} s; left without it.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_CODE)
