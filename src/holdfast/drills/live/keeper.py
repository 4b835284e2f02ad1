"""The process that ends a drill's fault in time: `python -m holdfast.drills.live.keeper NOTE`.

It is in a session of its own, and does not depend on its parent. It ends when the time is up, or as soon as
its note is gone.
"""

import signal
import sys
import time
from pathlib import Path

from holdfast.drills.live.keeping import READY, DrillNote, KnownProcess, put_back, read_note

LOOK_S = 0.1
FREE_S = 1.3
"""How long a slowed process runs freely: longer than an agent's interval between two checks, so that the
agent does not find it stopped each time and take it for dead. """
STOPPED_S, BETWEEN_S, STOPS = 0.2, 0.05, 9
"""Then it is stopped nine times: of 3.55 s in all it runs for 1.75 s."""


def main(path: Path) -> int:
    note = read_note(path)
    if note is None:
        return 1
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    try:
        while time.time_ns() < note.due_ns and _stands(path, note):
            if note.slowed is not None:
                _slow(path, note, note.slowed)
            else:
                time.sleep(LOOK_S)
    finally:
        put_back(note)
        if _stands(path, note):
            path.unlink(missing_ok=True)
    return 0


def _stands(path: Path, note: DrillNote) -> bool:
    found = read_note(path)
    return found is not None and found.id == note.id


def _slow(path: Path, note: DrillNote, process: KnownProcess) -> None:
    """Slow the process for one round."""
    time.sleep(FREE_S)
    for _ in range(STOPS):
        if not _stands(path, note):
            return
        try:
            process.signalled(signal.SIGSTOP)
            time.sleep(STOPPED_S)
        finally:
            process.signalled(signal.SIGCONT)
        time.sleep(BETWEEN_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # puts everything back, as at the end
    sys.exit(main(Path(sys.argv[1])))
