"""Worker processes for simulations: batches of tasks, and their end together with this process."""

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
"""Tasks per batch: enough that the handover costs nothing."""
BATCHES_PER_WORKER_MIN = 4
"""So that a worker that finishes early gets more work."""
BATCHES_IN_FLIGHT_MAX = 1024
"""Submitted batches without a result yet: enough for as many cores, and a bound on memory."""
LAST_WORDS_S_MAX = 2
"""How long a process may take to end by itself once it is told to."""

Call = TypeVar("Call")
Result = TypeVar("Result")


def batches(tasks: Sequence[Task], workers: int) -> Iterator[Sequence[Task]]:
    size = max(1, min(BATCH_MAX, len(tasks) // (BATCHES_PER_WORKER_MIN * max(1, workers))))
    return (tasks[at : at + size] for at in range(0, len(tasks), size))


def play_batch(tasks: Sequence[Task]) -> list[Figures]:
    return [play(task) for task in tasks]


def in_order(calls: Iterator[Call], result: Callable[[Call], Result]) -> Iterator[Result]:
    """Make the first calls at once, and another one for every result taken. Results come in order."""
    waiting = deque(islice(calls, BATCHES_IN_FLIGHT_MAX))

    def taken() -> Iterator[Result]:
        while waiting:
            yield result(waiting.popleft())
            waiting.extend(islice(calls, 1))

    return taken()


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started in this block ignore Ctrl-C, which a terminal sends to all; this process does not."""
    resource_tracker.ensure_running()  # Started later, it would unblock the signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(lifeline: Connection) -> None:
    """End this worker process when the other end of the pipe is closed, or its holder dies."""
    threading.Thread(target=_end_after, args=(lifeline,), daemon=True).start()


def _end_after(lifeline: Connection) -> None:
    wait([lifeline])
    # On this signal a process can clean up, such as leaving a cluster.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_WORDS_S_MAX)
    os._exit(1)
