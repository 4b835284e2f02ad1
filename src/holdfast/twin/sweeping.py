"""Run many simulations: in this process, in a pool of processes, or on a Ray cluster."""

import multiprocessing
import os
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from holdfast.record.errors import HoldfastError
from holdfast.twin.sweep import Figures, Task, play
from holdfast.twin.workers import batches, deaf_to_interrupts, end_with, in_order, play_batch


def played(
    tasks: Sequence[Task], *, processes: int | None, ray_address: str | None
) -> Generator[Figures, None, None]:
    """The figures of all tasks, in order. Closing the generator ends the processes that it started."""
    workers = min(len(tasks), processes or os.cpu_count() or 1)
    if ray_address is not None:
        from holdfast.twin.ray_cluster import played_by_ray

        yield from played_by_ray(tasks, ray_address)
    elif workers <= 1:
        yield from map(play, tasks)
    else:
        yield from _by_pool(tasks, workers)


def _by_pool(tasks: Sequence[Task], workers: int) -> Generator[Figures, None, None]:
    # Forked processes would inherit locks that other threads hold; a fresh interpreter takes half a second.
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    with lifeline, held, ProcessPoolExecutor(workers, context, end_with, (lifeline,)) as pool:
        calls = (pool.submit(play_batch, batch) for batch in batches(tasks, workers))
        try:
            with deaf_to_interrupts():
                batched = in_order(calls, Future.result)
            for figures in batched:
                yield from figures
        except BrokenProcessPool:
            raise HoldfastError(
                "A simulating process was killed, perhaps because memory ran out.",
                hint="Use fewer --processes.",
            ) from None
        except BaseException:
            held.close()  # Otherwise the pool would wait for running simulations.
            raise
