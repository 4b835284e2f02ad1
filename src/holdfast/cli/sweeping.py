"""How many simulated runs get done: here, in a pool of processes, or on a Ray cluster."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from rich.console import Console
from rich.progress import Progress

from holdfast.record.errors import InputError
from holdfast.twin.sweep import Figures, Task, play

CHUNK_MAX = 16
"""Tasks that a process gets at once: enough that asking for more costs nothing."""


def sweep(tasks: Sequence[Task], *, processes: int | None, ray_address: str | None) -> list[Figures]:
    """Play all of them, in their order, with a progress bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        return list(progress.track(_played(tasks, processes, ray_address), total=len(tasks)))


def _played(tasks: Sequence[Task], processes: int | None, ray_address: str | None) -> Iterable[Figures]:
    if ray_address is not None:
        return _by_ray(tasks, ray_address)
    workers = min(len(tasks), processes or os.cpu_count() or 1)
    return map(play, tasks) if workers == 1 else _by_pool(tasks, workers)


def _by_pool(tasks: Sequence[Task], workers: int) -> Iterator[Figures]:
    # Forked processes would inherit locks that other threads hold; a fresh interpreter takes half a second.
    context = multiprocessing.get_context("spawn")
    chunk = max(1, min(CHUNK_MAX, len(tasks) // (4 * workers)))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(play, tasks, chunksize=chunk)


def _by_ray(tasks: Sequence[Task], address: str) -> Iterator[Figures]:
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray is not installed here.", hint="`pip install ray`, or leave --ray out to use this machine."
        ) from None
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        remote = ray.remote(play)
        yield from (ray.get(reference) for reference in [remote.remote(task) for task in tasks])
    finally:
        ray.shutdown()
