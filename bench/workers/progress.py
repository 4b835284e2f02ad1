"""How a contestant tells the harness what it has committed, and its checkpoint where it needs one."""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker was told: how many members make how many steps, how many processes more stand by, and the
    folder for commits and checkpoint.
    """

    steps: int
    members: int
    spares: int
    folder: Path


def task() -> Task:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--spares", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    return Task(**vars(parser.parse_args()))


class CommitLog:
    """A file for each process, named by its id: a line of `step world monotonic_ns` for each commit."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / f"{os.getpid()}.commits", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, step: int, world: int) -> None:
        """world: how many processes commit it."""
        os.write(self._file, f"{step} {world} {time.monotonic_ns()}\n".encode())


class MarkLog:
    """Where a process is on its way into a run: a line of `mark monotonic_ns` for each."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / f"{os.getpid()}.marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, mark: str) -> None:
        os.write(self._file, f"{mark} {time.monotonic_ns()}\n".encode())


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whole or not at all: a kill while it is written leaves the one before."""
    unfinished = folder / "checkpoint.unfinished"
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(folder / "checkpoint")


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step that the checkpoint has, 0 where there is none."""
    if not (folder / "checkpoint").exists():
        return 0
    checkpoint = torch.load(folder / "checkpoint", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return int(checkpoint["step"])
