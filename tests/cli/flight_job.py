"""Jobs of three ranks that hang on purpose, over Gloo on loopback, and the dumps that torch writes of them.

`python flight_job.py FOLDER` makes a folder for each case in `CASES` with a dump of each rank, and peer.json:
what torch's own analyser says of the same dumps. Ranks are forked of a process that has imported torch.
"""

import argparse
import contextlib
import importlib
import json
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RECORDER: Any = importlib.import_module("torch._C._distributed_c10d")
WORLD = 3
LIMIT_S = 100.0
POLL_INTERVAL_S = 0.02
PREFIX = "nccl_trace_rank_"
HELD = threading.Event()
"""Never set: where a rank is that does something else."""


def train_step(elements: int = 8) -> None:
    dist.all_reduce(torch.ones(elements))


def load_batch() -> None:
    HELD.wait()


def absent(rank: int, _: Any) -> None:
    if rank == 1:
        load_batch()
    train_step()


def other(rank: int, _: Any) -> None:
    if rank == 1:
        dist.all_gather([torch.ones(8) for _ in range(WORLD)], torch.ones(8))
    train_step()


def chain(rank: int, pair: Any) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which loads."""
    if rank == 0:
        dist.all_reduce(torch.ones(4), group=pair)
    if rank == 2:
        load_batch()
    train_step()


CASES: dict[str, Callable[[int, Any], None]] = {"absent": absent, "other": other, "chain": chain}
STANDING = {"absent": {0, 2}, "other": {0, 1, 2}, "chain": {0, 1}}
"""The ranks that end up in a collective."""


def be_rank(rank: int, case: str, folder: Path) -> None:
    limit, store = timedelta(seconds=LIMIT_S), f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=limit)
    pair = dist.new_group([0, 1], timeout=limit)
    for _ in range(3):
        train_step()
    dist.barrier()
    threading.Thread(target=write_dump, args=(rank, case, folder), daemon=True).start()
    with contextlib.suppress(RuntimeError):  # the others have ended: every dump is written
        CASES[case](rank, pair)
    HELD.wait(LIMIT_S)


def write_dump(rank: int, case: str, folder: Path) -> None:
    """Once the rank is where it stays: four calls are finished, and perhaps one is not."""
    states = [True] * 4 + [False] * (rank in STANDING[case])
    until(lambda: [one["retired"] for one in json.loads(without_stacks())["entries"]] == states)
    (folder / f"json_{rank}.json").write_bytes(without_stacks())
    part = folder / f"part-{rank}-"
    part.write_bytes(RECORDER._dump_fr_trace(True, True, False))
    part.rename(folder / f"{PREFIX}{rank}")
    # The first to go would end what the others wait in.
    until(lambda: len(list(folder.glob(f"{PREFIX}*"))) == WORLD)
    os._exit(0)


def without_stacks() -> bytes:
    return bytes(RECORDER._dump_fr_trace_json(True, False))


def until(condition: Callable[[], bool]) -> None:
    due_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > due_s:
            os._exit(1)
        time.sleep(POLL_INTERVAL_S)


def make(case: str, folder: Path) -> None:
    folder.mkdir()
    ranks = []
    for rank in range(WORLD):
        if not (pid := os.fork()):
            be_rank(rank, case, folder)
            os._exit(1)
        ranks.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    if any(codes):
        sys.exit(f"{case}: the ranks ended with {codes}")


def name_groups(folder: Path) -> Path:
    """The same dumps with the groups' ranks as NCCL writes them: Gloo leaves them out, and torch's analyser
    does not do without.
    """
    named = folder / "named"
    named.mkdir()
    for path in folder.glob(f"{PREFIX}*"):
        dump = pickle.loads(path.read_bytes())
        ranks = {"0": list(range(WORLD)), "1": [0, 1]}
        purposes = {"0": "default_pg", "1": "undefined"}
        dump["pg_config"] = {
            name: {"name": name, "desc": purposes[name], "ranks": str(ranks[name])} for name in ranks
        }
        (named / path.name).write_bytes(pickle.dumps(dump, 2))
    return named


def judge(folder: Path) -> list[str]:
    """What torch's own analyser says, line by line."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    said = Listener()
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(said)
    arguments: argparse.Namespace = JobConfig().parse_args([str(folder), "-p", PREFIX])
    details, version = read_dir(arguments)
    build_db(details, arguments, version)
    logger.removeHandler(said)
    return said.lines


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(folder: Path) -> None:
    importlib.import_module("torch._inductor.codecache")  # a dump with stacks does it, in every rank
    for case in CASES:
        make(case, folder / case)
        found = judge(name_groups(folder / case))
        (folder / case / "peer.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
