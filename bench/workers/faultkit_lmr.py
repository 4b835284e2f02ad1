"""Peer: DDP with lm-resiliency's SCOUT and GEMINI, under the faults of its own kit, started by torchrun.

It leaves restarts to a manager that it does not ship. Here that is the smallest one that acts on each of its
reports: a worker that is told of a fault ends, torchrun starts all of them again, GEMINI restores them.

SCOUT synchronises with a CUDA device around each replay, even on a machine without one, and needs NCCL.
So that it can take part on a machine without GPUs, both groups are Gloo's, and clocks stand in for CUDA's.
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from faultkit_faults import Faults
from faultkit_model import SAMPLES, build, digest
from model import batch
from progress import CommitLog, task

CHECK_EVERY = "BENCH_FAULTKIT_EVERY"
"""The variable with the steps from one check, and checkpoint, to the next."""
HANG_AFTER = "BENCH_FAULTKIT_HANG_S"
REPORTED = 75
"""The exit code of a worker that ends because of a report."""
SLOW_TIMES, SLOW_MS = 3.0, 50.0
"""What SCOUT calls slow, chosen for workers that share cores; its own values are 1.1 times and 2 ms."""


class ClockEvent:
    """Stands in for an event of CUDA."""

    def __init__(self, **_: Any) -> None:
        self._at_s = 0.0

    def record(self, *_: Any) -> None:
        self._at_s = time.perf_counter()

    def elapsed_time(self, other: "ClockEvent") -> float:
        return 1000 * (other._at_s - self._at_s)

    def synchronize(self) -> None:
        pass


def without_cuda() -> None:
    cuda: Any = torch.cuda
    cuda.synchronize = lambda *_: None
    cuda.current_stream = lambda *_: None
    cuda.Event = ClockEvent


class Reports:
    """Writes what SCOUT reports to a file, and ends the worker if a rank is named."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._file = os.open(folder / "reports.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def take(self, report: Mapping[str, Any]) -> None:
        told = {"at_ns": time.monotonic_ns(), "by": self._rank, "report": dict(report)}
        os.write(self._file, (json.dumps(told, default=str) + "\n").encode())
        if report.get("scope", "rank") != "peer_group":
            os._exit(REPORTED)


class CheckpointLog(logging.Handler):
    """Writes to a file what GEMINI logs as a warning or an error: that is how it tells of checkpoints."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.WARNING)
        self._file = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        told = {"at_ns": time.monotonic_ns(), "said": record.getMessage()}
        os.write(self._file, (json.dumps(told) + "\n").encode())


def main() -> None:
    given = task()
    commits = CommitLog(given.folder)
    without_cuda()
    logging.getLogger("lm_resiliency.checkpointing").addHandler(CheckpointLog(given.folder))
    lmr = import_module("lm_resiliency")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = build()
    replica = DistributedDataParallel(model)
    protection = lmr.enable_resiliency(
        replica,
        optimizer,
        interval=int(os.environ[CHECK_EVERY]),
        device=torch.device("cpu"),
        group=dist.new_group(backend="gloo"),
        nccl_group=dist.new_group(backend="gloo"),
        checkpoint=lmr.InMemoryCkptConfig(
            replication_jump=world // 2,
            disk_flush_interval=0,
            disk_folder=str(given.folder / "gemini"),
            run_id="faultkit",
            verify_integrity=True,
            pin_memory=False,
        ),
        replay=lmr.ReplayHarnessConfig(
            scale_factors=[],
            rotate_layers=False,
            enable_temporal=False,
            straggler_min_slowdown_ratio=SLOW_TIMES,
            straggler_min_slowdown_ms=SLOW_MS,
            hang_stall_threshold_s=float(os.environ[HANG_AFTER]),
        ),
        orchestration=lmr.OrchestrationHooks(report_fault=Reports(given.folder, rank).take),
    )
    # After it, as its documents say: it sees a fault of one step before the kit takes it back.
    faults = Faults(given.folder, replica, optimizer)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        faults.begin(rank, model.layers[0])
    for step in range(protection.step_count + 1, given.steps + 1):
        faults.note()
        optimizer.zero_grad()
        loss = replica(*batch(step, rank, world, samples=SAMPLES))
        if not faults.leaves_out:
            loss.backward()
        optimizer.step()
        commits.add(step, 0)
    (given.folder / f"{os.getpid()}.digest").write_text(digest(model, optimizer), encoding="ascii")
    protection.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
