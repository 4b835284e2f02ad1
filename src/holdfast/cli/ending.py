"""How a verb ends that goes on until it is told to: within a bound, whatever the servers it talks to do."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

END_S_MAX = 20.0
"""From the signal to the end of the process. Alerts that wait, sessions to close and files to finish get
their own shorter bounds; this one is for what has none, such as a resolver or a driver that hangs.
"""
EXIT_CODE = 1
STDERR = 2

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the process was told to end, by an interrupt or SIGTERM."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        # It runs before it is needed: in a signal handler a thread cannot be started safely.
        threading.Thread(target=self._leave_in_time, name="holdfast-ending", daemon=True).start()

    def _leave_in_time(self) -> None:
        self.asked.wait()
        time.sleep(END_S_MAX)
        _leave()


@contextmanager
def on_signal(ending: StopRequest, then: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, a signal asks for the end and calls `then`, which may raise."""

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
    sentence = f"holdfast: Something did not end within {END_S_MAX:g} s; left without it.\n"
    with suppress(OSError):
        os.set_blocking(STDERR, False)  # nobody may be reading it
        os.write(STDERR, sentence.encode())
    os._exit(EXIT_CODE)
