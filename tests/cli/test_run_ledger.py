"""What `report` says of real runs whose story is known: every second of them is where it belongs."""

from pathlib import Path
from typing import Any

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
    assert incident["recovered_ns"] - incident["began_ns"] < 0.1 * paid / 2
