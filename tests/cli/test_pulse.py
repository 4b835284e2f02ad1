"""Verbs that run until they are stopped say that they work: once, and on a terminal after each turn."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import WAIT_S, until

from holdfast.cli.pulse import CLEARED
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore

STEP_METRIC = "holdfast_run_step_seconds"
LINES = {
    "watch": r"Watching 0 runs and 0 nodes by \d+ metrics?",
    "control": r"Deciding about 0 open incidents, 0 runs on 0 nodes \(in shadow: .*\)",
    "collect": r"Collecting \d+ metrics, \d+ readings \(host\)",
}


def line_of(verb: str) -> str:
    return rf"holdfast: {LINES[verb]}, every (0\.2 s|200 ms) until it is interrupted\."


def arguments(verb: str, home: Path) -> list[str]:
    further = {
        "watch": ["--signals", str(home / "signals")],
        "collect": ["--node", "--signals", str(home / "x")],
    }
    return [sys.executable, "-m", "holdfast", verb, "--every", "200ms", *further.get(verb, [])]


def test_only_what_is_watched_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    """Signals know two runs. One of them is to be watched, and one that has no signals."""
    with SignalStore(tmp_path / "signals", step_s=1.0) as store:
        now_ns = time.time_ns()
        store.append(
            Reading(metric=STEP_METRIC, labels={"run": run}, at_ns=now_ns - back * 10**9, value=0.5)
            for run in ("mine", "theirs")
            for back in range(60)
        )
    words = [*arguments("watch", tmp_path), "mine", "late"]
    with (tmp_path / "err").open("wb") as err:
        running = subprocess.Popen(words, env=environment, stderr=err, stdout=err)
    told = tmp_path / "err"
    try:
        until(lambda: "until it is interrupted" in told.read_text(), told.read_text)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(WAIT_S)
    assert "Watching 2 runs (mine, late; the steps of 1 are not seen) and" in told.read_text()


@pytest.mark.parametrize("verb", ["watch", "control", "collect"])
def test_one_line_says_that_it_works(verb: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "signals").mkdir()
    with (tmp_path / "err").open("wb") as err:
        running = subprocess.Popen(arguments(verb, tmp_path), env=environment, stderr=err, stdout=err)
    told = tmp_path / "err"
    try:
        until(lambda: re.search(line_of(verb), told.read_text()), told.read_text)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(WAIT_S)
    text = told.read_text()
    assert len(re.findall("until it is interrupted", text)) == 1
    assert "next at" not in text
    assert "\r" not in text


def test_on_a_terminal_a_line_changes_with_each_turn(environment: dict[str, str], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        arguments("collect", tmp_path), env={**environment, "TERM": "xterm"}, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while len(set(re.findall(rb"next at (\S+)", shown))) < 2:
            shown += os.read(ours, 4096)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(WAIT_S)
        os.close(ours)
    told, drawn = shown.decode().replace(CLEARED, "").split("\r\n", 1)
    assert re.fullmatch(line_of("collect"), told)
    assert "\n" not in drawn
    beats = [beat for beat in drawn.split("\r") if beat]
    assert all(re.match(rf"[0-9-]+ [0-9:]+Z  {LINES['collect']}", beat) for beat in beats)
