"""Checkpoints in several places, in order of preference: if one cannot be written, the next is used.

A place may be full, read-only, gone, or hang. Training does not notice; the record says what was tried.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from holdfast.record.errors import InputError, StoreError
from holdfast.train.checkpoint import (
    AllDamaged,
    CheckpointListener,
    DirectoryCheckpoints,
    Loaded,
    Mark,
    Saved,
    State,
)
from holdfast.train.manifest_file import ALL, Share

HANG_S_MIN, HANG_X = 300.0, 4.0
"""A save that takes longer than this, and than this many times the longest save so far, counts as hanging."""
LIST_S_MAX, READ_S_MAX = 60.0, 3600.0
"""How long a place may take to list its checkpoints and to read one, so that a dead mount cannot block a
join.
"""
LOOK_S = 0.1

Outcome = TypeVar("Outcome")


class _Attempt(Generic[Outcome]):
    """Work on storage in a thread of its own, which may never end."""

    def __init__(self, work: Callable[[], Outcome]) -> None:
        self._work = work
        self._done: list[Outcome] = []
        self._error: BaseException | None = None
        self.begun_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="holdfast storage", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._done.append(self._work())
        except BaseException as error:  # raised again by outcome()
            self._error = error

    @property
    def is_going_on(self) -> bool:
        return self._thread.is_alive()

    def wait(self, until_s: Callable[[], float]) -> bool:
        """Whether it was done by this moment, which may change meanwhile."""
        while self._thread.is_alive() and (left_s := until_s() - time.monotonic()) > 0:
            self._thread.join(min(left_s, LOOK_S))
        return not self._thread.is_alive()

    def outcome(self) -> Outcome:
        """The result, once it is done. Raises what the work raised."""
        if self._error is not None:
            raise self._error
        return self._done[0]


class _Level:
    """A place and its state."""

    def __init__(self, checkpoints: DirectoryCheckpoints, hang_s: float) -> None:
        self.checkpoints = checkpoints
        self._hang_s = hang_s
        self._longest_s = 0.0
        self._hanging: _Attempt[Saved] | None = None
        self._hurry: tuple[float, float] | None = None

    @property
    def is_hanging(self) -> bool:
        """Whether a save that was given up is still under way."""
        return self._hanging is not None and self._hanging.is_going_on

    def hurry(self, within_s: float) -> None:
        """From now on allow every save, including one under way, only this much time."""
        self._hurry = time.monotonic(), within_s

    def save(self, step: int, state: State, share: Share) -> Saved:
        if self.is_hanging:
            raise StoreError(
                f"The checkpoint of step {step} was not written to {self.checkpoints.place}, which hangs.",
                hint="Look at its filesystem.",
            )
        paused_s = self.checkpoints.paused_s
        attempt = _Attempt(lambda: self.checkpoints.save(step, state, share))
        self._hanging = attempt
        if not attempt.wait(lambda: self._until_s(attempt.begun_s, self.checkpoints.paused_s - paused_s)):
            raise StoreError(
                f"The checkpoint of step {step} was not written to {self.checkpoints.place} in "
                f"{time.monotonic() - attempt.begun_s:.0f} s: it hangs.",
                hint="Look at its filesystem.",
            )
        saved = attempt.outcome()
        self._longest_s = max(self._longest_s, time.monotonic() - attempt.begun_s)
        return saved

    def _until_s(self, begun_s: float, paused_s: float) -> float:
        """When a save counts as hanging. paused_s: how long its budget delayed it so far."""
        until_s = begun_s + paused_s + max(self._hang_s, HANG_X * self._longest_s)
        if self._hurry is None:
            return until_s
        since_s, within_s = self._hurry
        return min(until_s, max(begun_s, since_s) + within_s)

    def promised(self, until: Mark | None) -> Mark:
        """The mark of the newest checkpoint that is listed."""
        return self._listed(lambda: _promised(self.checkpoints, until))

    def steps(self) -> list[int]:
        return self._listed(self.checkpoints.steps)

    def _listed(self, work: Callable[[], Outcome]) -> Outcome:
        return self._bounded(work, min(self._hang_s, LIST_S_MAX))

    def newest(self, until: Mark | None) -> Loaded | None:
        return self._bounded(lambda: self.checkpoints.newest(until), READ_S_MAX)

    def _bounded(self, work: Callable[[], Outcome], within_s: float) -> Outcome:
        attempt = _Attempt(work)
        if not attempt.wait(lambda: attempt.begun_s + within_s):
            raise StoreError(
                f"{self.checkpoints.place} could not be read in {within_s:.0f} s: it hangs. It may hold "
                "the state to resume from.",
                hint="Nothing was changed there. Check its filesystem, or leave it out of the run.",
            )
        return attempt.outcome()


class LeveledCheckpoints:
    """Checkpoints in several places. All are read, and the newest one counts, whichever place has it."""

    def __init__(
        self, levels: Sequence[DirectoryCheckpoints], *, told: CheckpointListener, hang_s: float = HANG_S_MIN
    ) -> None:
        if not levels:
            raise InputError("There is no place for checkpoints.", hint="Name at least one directory.")
        self._levels = [_Level(one, hang_s) for one in levels]
        self._told = told

    @property
    def place(self) -> str:
        return self._levels[0].checkpoints.place

    @property
    def is_read(self) -> bool:
        """Whether a hanging save may still read the state it was given."""
        return any(level.is_hanging for level in self._levels)

    def hurry(self, within_s: float) -> None:
        for level in self._levels:
            level.checkpoints.hurry(within_s)
        for level in self._levels[:-1]:  # after the last there is no other to try
            level.hurry(within_s / (len(self._levels) + 1))

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        *others, last = self._levels
        for level in others if share.of == 1 else ():  # all shares must be in one place
            try:
                return level.save(step, state, share)
            except StoreError as error:
                self._told("failed", step, level.checkpoints.place, f"{error.sentence} Trying the next.")
        return (last if share.of == 1 else self._levels[0]).save(step, state, share)

    def newest(self, until: Mark | None = None) -> Loaded | None:
        best: Loaded | None = None
        damaged: AllDamaged | None = None
        promised = {level: level.promised(until) for level in self._levels}
        for level in sorted(self._levels, key=lambda one: promised[one], reverse=True):
            if best is not None and promised[level] <= best.mark:
                continue  # it has nothing newer, and need not be read
            try:
                found = level.newest(until)
            except AllDamaged as error:
                damaged = error  # each was reported
                continue
            if found is not None and (best is None or found.mark > best.mark):
                best = found
        if best is None and damaged is not None:
            raise damaged
        return best

    def steps(self) -> list[int]:
        return sorted({step for level in self._levels for step in level.steps()})


def _promised(checkpoints: DirectoryCheckpoints, until: Mark | None) -> Mark:
    """The mark of the newest checkpoint that is listed."""
    try:
        return max((mark for mark in checkpoints.marks() if until is None or mark <= until), default=(0, 0))
    except OSError:
        return sys.maxsize, 0  # to be read first, which reports what is wrong
