"""A run on one machine, which it calls `n0`, and whose exporters call it by its own name."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.record.events import CostRate, MemberJoined, RunStarted, StepCommitted, encode
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore
from holdfast.wording import stamp

Holdfast = Callable[..., Any]
S = 10**9
FIRST_NS, SLOW_NS, END_NS = (1_772_442_000 * S + minutes * 60 * S for minutes in (0, 30, 45))
STEP_S, SLOW_STEP_S = 4.0, 6.0


def recorded(path: Path, host: str) -> Path:
    """A run of two members on `n0`, whose steps take half as long again from a moment on."""
    made: list[Any] = [
        RunStarted(id="started", occurred_ns=FIRST_NS, run="prod", gpus=2),
        CostRate(id="rate", occurred_ns=FIRST_NS, run="prod", gpus=2),
        *(
            MemberJoined(id=name, occurred_ns=FIRST_NS, run="prod", subject=name, node="n0", host=host)
            for name in ("n0.0", "n0.1")
        ),
    ]
    at_ns, step = FIRST_NS, 0
    while (at_ns := at_ns + round((STEP_S if at_ns < SLOW_NS else SLOW_STEP_S) * S)) <= END_NS:
        step += 1
        made.append(StepCommitted(id=f"{step}", occurred_ns=at_ns, run="prod", step=step))
    path.write_bytes(b"".join(encode(event) + b"\n" for event in made))
    return path


@pytest.fixture
def signals(tmp_path: Path) -> Path:
    """GPU 1 gets hot, and its clock falls, when steps become longer."""
    with SignalStore(tmp_path / "signals") as store:
        for at_ns in range(FIRST_NS, END_NS + 1, 10 * S):
            wave = math.sin(at_ns / S)
            store.append(
                Reading(
                    metric=metric,
                    labels={"gpu": str(gpu), "instance": "train-7.example.com:9400"},
                    at_ns=at_ns,
                    value=hot if gpu and at_ns >= SLOW_NS else usual + wave,
                )
                for gpu in (0, 1)
                for metric, usual, hot in (
                    ("DCGM_FI_DEV_SM_CLOCK", 1_900.0, 1_150.0),
                    ("DCGM_FI_DEV_GPU_TEMP", 60.0, 88.0),
                    ("DCGM_FI_DEV_POWER_USAGE", 650.0, 400.0),
                    ("DCGM_FI_DEV_GPU_UTIL", 98.0, 98.0),
                )
            )
    return tmp_path / "signals"


@pytest.mark.parametrize("host", ["train-7", "TRAIN-7.example.com"])
def test_the_gpu_is_found_whatever_the_run_calls_its_node(
    holdfast: Holdfast, signals: Path, tmp_path: Path, host: str
) -> None:
    assert holdfast("import", recorded(tmp_path / "events.jsonl", host)).code == 0
    asked = ("diagnose", "prod", "--signals", signals, "--at", stamp(END_NS).replace(" ", "T"))
    told = holdfast(*asked, "--json").json
    (incident,) = told["incidents"]
    assert incident["cause"]["mechanism"] == "gpu-throttle"
    assert incident["path"] == ["train-7.example.com.1", "prod/n0.1", "prod"]
    assert "It is the run's only node" in incident["action"]
    assert [flaw for flaw in told["quality"]["flaws"] if flaw["kind"] == "names"] == []
    assert told["quality"]["steps_from"] == "record"
    assert holdfast(*asked, "--record").code == 0
    steps = " ".join(holdfast("runbook", "prod").out.split())
    assert "The run has no other node to go on with. Stop it (`holdfast stop prod`)" in steps
    assert "go on without the node" not in steps
    assert "holdfast drain prod" not in steps


def test_a_node_that_nothing_shows_is_told_once_and_in_plain_words(
    holdfast: Holdfast, signals: Path, tmp_path: Path
) -> None:
    assert holdfast("import", recorded(tmp_path / "events.jsonl", "")).code == 0
    at = stamp(END_NS).replace(" ", "T")
    out = " ".join(holdfast("diagnose", "prod", "--signals", signals, "--at", at).out.split())
    assert out.count("No exporter shows the only node of prod, n0: no cause there can be seen.") == 1
    assert "though it is measured" not in out
    assert "at train-7" not in out
