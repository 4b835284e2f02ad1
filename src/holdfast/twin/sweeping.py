"""Run many simulations: in this process, in a pool of processes, or on a Ray cluster."""

import multiprocessing
import os
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from holdfast import wording
from holdfast.record.errors import HoldfastError
from holdfast.twin.sweep import Figures, Task, expected_interruptions, play
from holdfast.twin.workers import batches, deaf_to_interrupts, end_with, in_order, play_batch
from holdfast.wording.units import DAY_NS

START_S = 1.0
PLAY_S_PER_INTERRUPTION = 0.009
"""Processor time. Llama 3's 54 days with 419 expected interruptions took 2.6 s under the policy `restart` and
4.9 s under `holdfast`.
"""


def announcement(tasks: Sequence[Task], *, processes: int | None, ray_address: str | None) -> str:
    """The sentence for people who wait: what is being simulated, and about how long it takes here."""
    study, days = tasks[0].study, tasks[0].study.duration_ns / DAY_NS
    policies = ", ".join(dict.fromkeys(task.policy.name for task in tasks))
    sentence = (
        f"Simulating {wording.many(len(tasks), 'run')} of {wording.many(days, 'day')} on "
        f"{study.job.gpus:,} GPUs ({policies})"
    )
    if ray_address is not None:
        return f"{sentence} on Ray."
    rounds = len(tasks) / _workers(len(tasks), processes)
    takes_s = START_S + PLAY_S_PER_INTERRUPTION * expected_interruptions(study) * rounds
    return f"{sentence}; this takes about {wording.lasting(takes_s)}."


def played(
    tasks: Sequence[Task], *, processes: int | None, ray_address: str | None
) -> Generator[Figures, None, None]:
    """The figures of all tasks, in order. Closing the generator ends the processes that it started."""
    workers = _workers(len(tasks), processes)
    if ray_address is not None:
        from holdfast.twin.ray_cluster import played_by_ray

        yield from played_by_ray(tasks, ray_address)
    elif workers <= 1:
        yield from map(play, tasks)
    else:
        yield from _by_pool(tasks, workers)


def _workers(tasks: int, processes: int | None) -> int:
    return min(tasks, processes or os.cpu_count() or 1)


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
