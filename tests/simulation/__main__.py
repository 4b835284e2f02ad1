"""Run schedules: `python -m tests.simulation --seeds 0:10000 --processes 2`. Tell one: `--seed 17`.

With `--heirs` the schedules are about machines that are cut off or die, and which of them coordinates.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.heirs import run_heirs, run_many_heirs
from tests.simulation.schedule import run_many, story

CHUNK = 250
"""How many schedules a process runs at once."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seeds", default="0:1000", metavar="A:B", help="schedules from A up to, but not with, B"
    )
    parser.add_argument("--seed", type=int, help="run this one, and tell its story")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--heirs", action="store_true", help="schedules of succession")
    told = parser.parse_args()
    if told.seed is not None and told.heirs:
        world, heirs_failure = run_heirs(told.seed)
        print("\n".join((*world.story, *world.wrong)))
        return int(heirs_failure is not None)
    if told.seed is not None:
        text, failure = story(told.seed)
        print(text)
        return int(failure is not None)
    first, _, last = told.seeds.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        parser.error(f"--seeds {told.seeds} is not in the form A:B")
    run = run_many_heirs if told.heirs else run_many
    return _run(range(int(first), int(last)), told.processes, run)


def _run(seeds: range, processes: int, run: Callable[[range], Sequence[object]]) -> int:
    began_s = time.monotonic()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    failed = done = 0
    with ProcessPoolExecutor(processes) as pool:
        for chunk, failures in zip(chunks, pool.map(run, chunks), strict=True):
            done += len(chunk)
            failed += len(failures)
            for failure in failures:
                print(failure, flush=True)
    took_s = time.monotonic() - began_s
    print(
        f"{done} schedules in {took_s:.1f} s with {processes} processes ({done / took_s:.0f} a second); "
        f"{failed} failed"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
