"""`holdfast runs`: one row a run, whatever its name."""

from pathlib import Path
from typing import Any

from holdfast.cli.runs import RUN_CHARS_MAX
from holdfast.record.events import RunStarted, encode

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
        f"{'run':{RUN_CHARS_MAX}}       events  last event            span",
        f"{cut}            2  2025-04-03 07:08:24Z  1 d 1 h",
        f"{'short':{RUN_CHARS_MAX}}            1  2025-04-02 06:08:24Z  0 s",
    ]
    assert [run["run"] for run in holdfast("runs", "--json").json] == [long, "short"]
