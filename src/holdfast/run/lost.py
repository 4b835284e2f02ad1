"""Runs of this machine that ended without a word: their coordinator was killed, and so was its successor.

What they leave behind is the file by which operators find a coordinator, which nobody holds any more. Whoever
looks at the record next writes down that the run is over, and since when, and takes the file away.
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
    """Record that the run is over. last_ns: of its last event. Two who do so at once do it once."""
    directory = run_directory(home, lost.run)
    with suppress(OSError), (directory / FILE).open("r+b") as file:  # NFS locks no other file alone
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (directory / FILE).exists():
            return
        ended_ns = max(lost.seen_ns, last_ns + 1)  # an event that follows an end undoes it
        with Recorder(home / JOURNAL_DIRECTORY, run=lost.run, clock=SystemClock()) as recorder:
            recorder.record(RunEnded, occurred_ns=ended_ns, outcome="failed", reason=REASON)
        for name in (LINES_FILE, FILE):
            (directory / name).unlink(missing_ok=True)
        with suppress(OSError):  # there are checkpoints in it
            directory.rmdir()
