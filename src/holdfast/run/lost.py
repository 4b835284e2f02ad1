"""Runs of this machine that ended without a word because their coordinator and its successor were killed.

They leave behind the file by which operators find a coordinator, no longer locked by any process. The next
command that reads the record writes down that the run is over, and since when, and removes the file.
"""

import fcntl
from contextlib import suppress
from pathlib import Path

from holdfast.record.clock import SystemClock
from holdfast.record.events import RunEnded
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.run.endpoint import FILE, LostRun, run_directory
from holdfast.run.lines import LINES_FILE

REASON = "lost: its coordinator died, and no successor took its place"


def write_end(home: Path, lost: LostRun, last_ns: int) -> None:
    """Record that the run is over. last_ns: of its last event. Two processes at once record it only once."""
    directory = run_directory(home, lost.run)
    with suppress(OSError), (directory / FILE).open("r+b") as file:  # writable: NFS requires it
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (directory / FILE).exists():
            return
        ended_ns = max(lost.seen_ns, last_ns + 1)  # an event after the end would undo it
        with Recorder(home / JOURNAL_DIRECTORY, run=lost.run, clock=SystemClock()) as recorder:
            recorder.record(RunEnded, occurred_ns=ended_ns, outcome="failed", reason=REASON)
        for name in (LINES_FILE, FILE):
            (directory / name).unlink(missing_ok=True)
        with suppress(OSError):  # it contains checkpoints
            directory.rmdir()
