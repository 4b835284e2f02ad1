"""Ends verbs that run until they are stopped: within a bound, even if a server does not answer."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

END_S_MAX = 20.0
"""From the signal to the end of the process. Waiting alerts, open sessions and unfinished files have their
own shorter bounds; this one is for everything else, such as a resolver or a driver that hangs.
"""
EXIT_CODE = 1
STDERR = 2

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the process was told to end, by an interrupt or SIGTERM."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        # Started now, because a signal handler cannot start a thread safely.
        threading.Thread(target=self._leave_in_time, name="holdfast-ending", daemon=True).start()

    def _leave_in_time(self) -> None:
        self.asked.wait()
        time.sleep(END_S_MAX)
        _leave()


@contextmanager
def on_signal(ending: StopRequest, then: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, a signal sets `ending.asked` and calls `then`, which may raise."""

    def told(number: int, frame: FrameType | None) -> None:
        ending.asked.set()
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
    sentence = f"holdfast: Something did not end within {END_S_MAX:g} s; ended without it.\n"
    with suppress(OSError):
        os.set_blocking(STDERR, False)  # a full pipe without a reader would block
        os.write(STDERR, sentence.encode())
    os._exit(EXIT_CODE)
