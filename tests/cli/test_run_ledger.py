"""What `report` says of real runs whose story is known: every second of them is where it belongs."""

import csv
from pathlib import Path
from typing import Any

import pytest

from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore

pytestmark = pytest.mark.slow

PLAIN = """
import os, signal, time
time.sleep(0.5)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
"""


def test_a_plain_script_that_was_started_again_is_not_recovering(holdfast: Any, tmp_path: Path) -> None:
    """It never says that it works again: the record knows when its processes were up, and no more."""
    (tmp_path / "plain.py").write_text(PLAIN, encoding="utf-8")
    done = holdfast("run", "--nproc-per-node", "2", "--run", "plain", "plain.py")
    assert done.code == 0, done.err
    told = holdfast("report", "plain", "--json").json
    partition, paid = told["partition"], told["paid_gpu_ns"]
    assert partition["unattributed"] + partition["recovering"] == paid
    assert partition["unattributed"] > 2 * 1.9e9
    (incident,) = told["incidents"]
    assert incident["what"] == "SIGKILL"
    assert incident["restarts"] == 1
    # From the kill to the end were two thirds of it, however long processes take to start.
    assert incident["recovered_ns"] - incident["began_ns"] < 0.4 * paid / 2


def test_a_plain_script_without_a_gpu_has_no_price(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import time\ntime.sleep(0.5)\n", encoding="utf-8")
    words = ("run", "--nproc-per-node", "2", "--run", "plain", "plain.py")
    done = holdfast(*words, CUDA_VISIBLE_DEVICES="")
    assert done.code == 0, done.err
    assert "2 CPU members" in holdfast("report", "plain").out
    (row,) = holdfast("runs", "--json").json
    assert (row["on_cpu"], row["cost_usd"]) == (True, None)


def test_report_and_diagnose_hold_a_run_against_the_same_reference(
    holdfast: Any, data: Path, tmp_path: Path
) -> None:
    """One member was slow from the first step on: the run's own past shows nothing, its other members do."""
    with (
        (data / "runs" / "slow-signals.csv").open(encoding="utf-8", newline="") as file,
        SignalStore(tmp_path / "signals") as store,
    ):
        store.append(_reading(row) for row in csv.DictReader(file))
    assert holdfast("import", data / "runs" / "slow.jsonl").code == 0
    told = holdfast("report", "slow", "--json").json
    assert told["reference"]["origin"] == "members"
    partition = told["partition"]
    lost = partition["slowdown"] / (partition["useful"] + partition["slowdown"])
    assert lost > 0.7
    found = holdfast("diagnose", "slow", "--signals", "signals", "--step", "1s", "--json").json
    assert found["pace"]["slowdown_share"] == lost
    assert found["pace"]["step_ns"] == told["reference"]["step_ns"]
    late = next(one for one in found["incidents"] if one["affected"] == ["slow/n0.1"])
    assert abs(1 - 1 / late["slowdown"] - lost) < 0.05
    shown = holdfast("diagnose", "slow", "--signals", "signals", "--step", "1s").out
    assert "Over the whole run, 76 % of the time in steps was slowdown" in shown
    assert "not slower" not in shown


def _reading(row: dict[str, str]) -> Reading:
    member = {"member": row["member"], "node": "n0"} if row["member"] else {}
    return Reading(
        metric=row["metric"],
        labels={"run": "slow", **member},
        at_ns=int(row["at_ns"]),
        value=float(row["value"]),
    )
