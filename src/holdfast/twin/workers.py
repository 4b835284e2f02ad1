"""Processes that simulate for this one: what they are given at a time, and that none of them outlives it."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from holdfast.twin.sweep import Figures, Task, play

BATCH_MAX = 16
"""Tasks that are handed over at once: enough that handing them over costs nothing."""
BATCHES_PER_WORKER_MIN = 4
"""So that who is done early finds more to do."""
BATCHES_IN_FLIGHT_MAX = 1024
"""Handed over and not yet taken back: work for as many cores, and no more to remember than that."""
LAST_WORDS_S_MAX = 2
"""What a process may take to end by itself once it is told to."""

Call = TypeVar("Call")
Result = TypeVar("Result")


def batches(tasks: Sequence[Task], workers: int) -> Iterator[Sequence[Task]]:
    size = max(1, min(BATCH_MAX, len(tasks) // (BATCHES_PER_WORKER_MIN * max(1, workers))))
    return (tasks[at : at + size] for at in range(0, len(tasks), size))


def play_batch(tasks: Sequence[Task]) -> list[Figures]:
    return [play(task) for task in tasks]


def in_order(calls: Iterator[Call], result: Callable[[Call], Result]) -> Iterator[Result]:
    """Make the first calls at once, and a further one for every result that is taken."""
    waiting = deque(islice(calls, BATCHES_IN_FLIGHT_MAX))

    def taken() -> Iterator[Result]:
        while waiting:
            yield result(waiting.popleft())
            waiting.extend(islice(calls, 1))

    return taken()


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started meanwhile never hear Ctrl-C, which a terminal sends to all; we do, afterwards."""
    resource_tracker.ensure_running()  # It would lift the block if it were started meanwhile.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(lifeline: Connection) -> None:
    """In a process that was started: end it when the other end of this pipe is closed, or its holder dies."""
    threading.Thread(target=_end_after, args=(lifeline,), daemon=True).start()


def _end_after(lifeline: Connection) -> None:
    wait([lifeline])
    # A process that has something to give back, such as a place in a cluster, does it on this signal.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_WORDS_S_MAX)
    os._exit(1)
