"""Checkpoints in several places, the first choice first: where one cannot be written, the next is used.

A place may be full, read-only, gone, or hang. Training knows nothing of it; the record says what was tried.
"""

import sys
import threading
import time
from collections.abc import Sequence

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
from holdfast.train.manifest import ALL, Share

HANG_S_MIN, HANG_X = 300.0, 4.0
"""A save that takes longer than this, and than so many times what the longest took, counts as hanging."""


class _Attempt:
    """One save in a thread of its own, which may never end."""

    def __init__(self, checkpoints: DirectoryCheckpoints, step: int, state: State, share: Share) -> None:
        self._saved: Saved | None = None
        self._error: BaseException | None = None
        self._begun_s = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(checkpoints, step, state, share), name="holdfast save", daemon=True
        )
        self._thread.start()

    def _run(self, checkpoints: DirectoryCheckpoints, step: int, state: State, share: Share) -> None:
        try:
            self._saved = checkpoints.save(step, state, share)
        except BaseException as error:  # is raised where it is waited for
            self._error = error

    @property
    def is_going_on(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> tuple[Saved, float] | None:
        """What came of it, and in how many seconds; None: it takes longer. Raises what it raised."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        assert self._saved is not None
        return self._saved, time.monotonic() - self._begun_s


class _Level:
    """A place, and what is known of it."""

    def __init__(self, checkpoints: DirectoryCheckpoints, hang_s: float) -> None:
        self.checkpoints = checkpoints
        self._hang_s = hang_s
        self._longest_s = 0.0
        self._hanging: _Attempt | None = None

    @property
    def is_hanging(self) -> bool:
        """Whether a save is still under way that nobody waits for any more."""
        return self._hanging is not None and self._hanging.is_going_on

    def save(self, step: int, state: State, share: Share) -> Saved:
        if self.is_hanging:
            raise StoreError(
                f"The checkpoint of step {step} was not written to {self.checkpoints.place}, which hangs.",
                hint="Look at its filesystem.",
            )
        self._hanging = attempt = _Attempt(self.checkpoints, step, state, share)
        limit_s = max(self._hang_s, HANG_X * self._longest_s)
        if (done := attempt.wait(limit_s)) is None:
            raise StoreError(
                f"The checkpoint of step {step} was not written to {self.checkpoints.place} in "
                f"{limit_s:.0f} s: it hangs.",
                hint="Look at its filesystem.",
            )
        saved, took_s = done
        self._longest_s = max(self._longest_s, took_s)
        return saved


class LeveledCheckpoints:
    """Checkpoints in several places. All are read, and the newest counts, wherever it is."""

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
        """Whether a save that hangs may still read a state that it was given."""
        return any(level.is_hanging for level in self._levels)

    def save(self, step: int, state: State, share: Share = ALL) -> Saved:
        *others, last = self._levels
        for level in others if share.of == 1 else ():  # of a share, the rest is in one place
            try:
                return level.save(step, state, share)
            except StoreError as error:
                self._told("failed", step, level.checkpoints.place, f"{error.sentence} The next is tried.")
        return (last if share.of == 1 else self._levels[0]).save(step, state, share)

    def newest(self, until: Mark | None = None) -> Loaded | None:
        best: Loaded | None = None
        damaged: AllDamaged | None = None
        promised = {level: _promised(level.checkpoints, until) for level in self._levels}
        for level in sorted(self._levels, key=lambda one: promised[one], reverse=True):
            if best is not None and promised[level] <= best.mark:
                continue  # it has nothing newer, and need not be read
            try:
                found = level.checkpoints.newest(until)
            except AllDamaged as error:
                damaged = error  # each was told
                continue
            if found is not None and (best is None or found.mark > best.mark):
                best = found
        if best is None and damaged is not None:
            raise damaged
        return best

    def steps(self) -> list[int]:
        return sorted({step for level in self._levels for step in level.checkpoints.steps()})


def _promised(checkpoints: DirectoryCheckpoints, until: Mark | None) -> Mark:
    """The newest that there seems to be."""
    try:
        return max((mark for mark in checkpoints.marks() if until is None or mark <= until), default=(0, 0))
    except OSError:
        return sys.maxsize, 0  # is to be read, which says what is wrong
