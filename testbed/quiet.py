"""A healthy run in which much is slow: no member may be killed, and no alarm raised.

    python testbed/quiet.py                 # 20 minutes
    python testbed/quiet.py --minutes 3     # the same things, in shorter intervals

testbed/leisurely.py trains with three members and checkpoints every 50 steps, beside eight processes that
compete for the processors. The record is the judge: one generation, no member lost, no fault observed. Exits
with 1 otherwise. A slow member is not a false alarm while eight processes compete with three: lanes may move
a few times, but no more.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointSaved,
    FaultObserved,
    GenerationOpened,
    StepCommitted,
    kind_of,
)
from holdfast.record.journal import JOURNAL_DIRECTORY, events_of

MINUTES = 20.0
MEMBERS = 3
COMPETITORS = 8
STOP_WAIT_S = 60.0
START_WAIT_S = 120.0
POLL_INTERVAL_S = 1.0
MOVES_MAX = 12
"""How often lanes may move. After each move twice as many rounds pass before the next."""
ALARMS = ("member.lost", "fault.observed", "checkpoint.failed", "checkpoint.loaded")
SCRIPT = Path(__file__).with_name("leisurely.py")
STOPPED_CODE = 130
SLOW, MOVE = "slow member", "rebalance"


def alarms(events: list[AnyEvent]) -> list[str]:
    """Everything in the record that must not be there in a healthy run."""
    found = [
        f"{kind_of(event)} {event.subject}".strip()
        for event in events
        if kind_of(event) in ALARMS and not (isinstance(event, FaultObserved) and event.fault == SLOW)
    ]
    actions = [event.action for event in events if isinstance(event, ActionTaken)]
    found += [f"action {action}" for action in actions if action != MOVE]
    if (moves := actions.count(MOVE)) > MOVES_MAX:
        found.append(f"lanes moved {moves} times")
    generations = sum(isinstance(event, GenerationOpened) for event in events)
    if generations != 1:
        found.append(f"{generations} generations")
    for kind in (StepCommitted, CheckpointSaved):
        if not any(isinstance(event, kind) for event in events):
            found.append(f"no {kind.__name__}")
    return found


@contextmanager
def competitors() -> Iterator[None]:
    """Processes that want all the time there is."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(COMPETITORS)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def quiet(folder: Path, minutes: float) -> tuple[int | None, list[AnyEvent]]:
    """Train for so long. The exit code, and what was on record before the run was stopped."""
    home = folder / "home"
    flags = ["--run", "quiet", "--nproc-per-node", str(MEMBERS), "--checkpoint-every", "50"]
    scale = str(min(1.0, minutes / MINUTES * 2))
    command = [sys.executable, "-m", "holdfast", "run", *flags, str(SCRIPT), scale]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    process = subprocess.Popen(command, env={**kept, "HOLDFAST_HOME": str(home)}, stdout=sys.stderr)
    try:
        _await_steps(process, home)
        with competitors():
            until_s = time.monotonic() + minutes * 60
            while time.monotonic() < until_s and process.poll() is None:
                time.sleep(POLL_INTERVAL_S)
            events = events_of(home)
        process.send_signal(signal.SIGINT)
        return process.wait(STOP_WAIT_S), events
    finally:
        process.kill()  # and everything that it started goes with it
        process.wait()


def _await_steps(process: "subprocess.Popen[bytes]", home: Path) -> None:
    """Members that start beside competitors are slow, which is not what is tried here."""
    deadline_s = time.monotonic() + START_WAIT_S
    journal = home / JOURNAL_DIRECTORY
    while not journal.exists() or not any(isinstance(event, StepCommitted) for event in events_of(home)):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit("The run did not begin.")
        time.sleep(POLL_INTERVAL_S)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train undisturbed, and see that nothing is killed.")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="N")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-quiet-") as folder:
        code, events = quiet(Path(folder), given.minutes)
    counts = Counter(kind_of(event) for event in events)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    wrong = alarms(events)
    if code != STOPPED_CODE:
        wrong.append(f"exit code {code}")
    print("; ".join(wrong) if wrong else "no alarm")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
