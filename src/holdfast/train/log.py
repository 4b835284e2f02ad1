"""`run.log`: a log that has every step once and in order, whichever member writes it.

Every member calls the log with the same values, and rank 0 writes them. The others keep their values until
the next step they log: by then a later step has been reduced, so all members are past the earlier one, and
its rank 0 has written it. A member that becomes rank 0 writes what it has kept, after cutting off what its
predecessor wrote of the same steps. After a return to a checkpoint, lines beyond it are cut off in the same
way. A rank 0 that joined after the last step has no values for it, so the first of the other members writes
that step.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from holdfast.record.errors import InputError, StoreError

LOOK_BYTES = 1 << 16
"""How much of a log's end is read to find where to continue; more if that is not enough."""

Sink = Callable[[int, Mapping[str, object]], None]
"""Receives a step's number and its values."""


class LoggedStep(Protocol):
    """The part of a step that a log needs."""

    number: int

    @property
    def reduced(self) -> bool: ...


class Log:
    """Call it once for a step: `log(step, loss=step.loss)`."""

    def __init__(self, write: "Sink | LogFile", is_mine: Callable[[int], bool]) -> None:
        """is_mine: whether this member writes the given step."""
        self._write = write
        self._is_mine = is_mine
        self._kept: list[tuple[int, Mapping[str, object]]] = []

    def __call__(self, step: LoggedStep, **values: object) -> None:
        if not step.reduced:
            raise InputError(
                f"Step {step.number} was logged before its lanes were through.",
                hint="Log it after the loop over step.lanes.",
            )
        self._kept = [one for one in self._kept if one[0] >= step.number]
        self._kept.append((step.number, {name: _plain(name, value) for name, value in values.items()}))
        self.write_if_mine()

    def write_if_mine(self) -> None:
        """Write the kept steps if this member writes them. Also called when it may have become rank 0."""
        if self._kept and self._is_mine(self._kept[-1][0]):
            for number, values in self._kept:
                self._write(number, values)
            self._kept.clear()


class LogFile:
    """A file of JSON lines, each with its `step`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __call__(self, step: int, values: Mapping[str, object]) -> None:
        line = json.dumps({"step": step, **values}) + "\n"
        try:
            self._append(step, line.encode())
        except OSError as error:
            raise StoreError(
                f"Cannot write step {step} to {self._path}: {error.strerror}.",
                hint="Free space or make it writable, then start the run again: it resumes after this step.",
            ) from error

    def _append(self, step: int, data: bytes) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            cut_from(self._path, step)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        while data:
            data = data[os.write(self._file, data) :]


def cut_from(path: Path, step: int) -> None:
    """Cut off this step and all that follow it, and an incomplete last line."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        size = file.seek(0, os.SEEK_END)
        look = LOOK_BYTES
        while True:
            begin = max(0, size - look)
            file.seek(begin)
            kept = _kept_of(path, file.read(), step, is_whole=begin == 0)
            if kept is not None:
                file.truncate(begin + kept)
                return
            look *= 4


def _kept_of(path: Path, data: bytes, step: int, *, is_whole: bool) -> int | None:
    """How many bytes to keep, up to the last line of an earlier step; None: not in this part of the file."""
    *lines, _torn = data.split(b"\n")
    end = len(data) - len(_torn)
    for line in reversed(lines if is_whole else lines[1:]):
        if _step_of(path, line) < step:
            return end
        end -= len(line) + 1
    return 0 if is_whole else None


def _step_of(path: Path, line: bytes) -> int:
    try:
        found = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, int):
        raise InputError(
            f"{path} has a line that run.log() did not write.", hint="Give the log a file of its own."
        )
    return found


def _plain(name: str, value: object) -> object:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise InputError(
            f"{name}, a {type(value).__name__}, cannot be written as JSON.",
            hint="Log numbers, strings, lists and dicts of them.",
        ) from None
    return value
