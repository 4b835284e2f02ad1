"""`holdfast runs`: one row a run, whatever its name."""

import time
from pathlib import Path
from typing import Any

from holdfast.cli.runs import RUN_CHARS_MAX
from holdfast.record.events import Correction, KnownEvent, RunEnded, RunStarted, encode

SPRING_NS = 1_743_574_104 * 10**9
"""2 April 2025, 06:08:24 UTC."""
HOUR_NS = 3_600 * 10**9


def test_a_long_name_does_not_push_the_rest_away(holdfast: Any, tmp_path: Path) -> None:
    long = "sweep-" + "lr=3e-4," * 30
    events = [
        RunStarted(id="a-1", occurred_ns=SPRING_NS, run=long, gpus=1),
        RunStarted(id="a-2", occurred_ns=SPRING_NS + 25 * HOUR_NS, run=long, gpus=1),
        RunStarted(id="a-3", occurred_ns=SPRING_NS, run="short", gpus=1),
    ]
    (tmp_path / "two.jsonl").write_bytes(b"\n".join(map(encode, events)))
    holdfast("import", "two.jsonl")
    cut = long[: RUN_CHARS_MAX - 1] + "…"
    assert holdfast("runs").out.splitlines() == [
        f"{'run':{RUN_CHARS_MAX}}  last event            outcome  span     GPU-hours  useful  "
        "not known     USD",
        f"{cut}  2025-04-03 07:08:24Z  unknown  1 d 1 h       25.0       –    100.0 %  ~99.75",
        f"{'short':{RUN_CHARS_MAX}}  2025-04-02 06:08:24Z  unknown  0 s            0.0       –  "
        "        –    0.00",
    ]
    assert [run["run"] for run in holdfast("runs", "--json").json] == [long, "short"]


def test_each_run_has_its_last_end(holdfast: Any, tmp_path: Path) -> None:
    now_ns = time.time_ns()
    events: list[KnownEvent] = [
        RunStarted(id="a-1", occurred_ns=SPRING_NS, run="resumed", gpus=1),
        RunEnded(id="a-2", occurred_ns=SPRING_NS + 1, run="resumed", outcome="failed", reason="SIGKILL"),
        RunStarted(id="a-3", occurred_ns=SPRING_NS + 2, run="resumed", gpus=1),
        RunEnded(id="a-4", occurred_ns=SPRING_NS + 3, run="resumed", outcome="completed", survived_errors=2),
        RunStarted(id="b-1", occurred_ns=SPRING_NS, run="mistaken", gpus=1),
        RunEnded(id="b-2", occurred_ns=SPRING_NS + 1, run="mistaken", outcome="completed"),
        Correction(id="b-3", occurred_ns=SPRING_NS + 2, run="mistaken", target="b-2"),
        RunEnded(id="c-1", occurred_ns=SPRING_NS, run="again", outcome="stopped", reason="SIGTERM"),
        RunStarted(id="c-2", occurred_ns=now_ns, run="again", gpus=1),
    ]
    (tmp_path / "runs.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    holdfast("import", "runs.jsonl")
    rows = [line.split() for line in holdfast("runs").out.splitlines()[1:]]
    assert {row[0]: row[3] for row in rows} == {
        "again": "running",
        "resumed": "completed",
        "mistaken": "unknown",
    }
    listed = {run["run"]: run["ended"] for run in holdfast("runs", "--json").json}
    assert listed == {
        "again": None,
        "mistaken": None,
        "resumed": {
            "outcome": "completed",
            "reason": "",
            "survived_errors": 2,
            "ended_ns": SPRING_NS + 3,
        },
    }
