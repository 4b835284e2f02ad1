"""What verbs print on terminals of 80 and 120 columns: no line is wider, no word broken, nothing cut."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.terminal import folded

WIDE = 1_000
BAR = re.compile(r"(.)\1{3}")
"""What is drawn is as wide as its terminal."""
SHORTER = {"(est.", "~", "est."}
"""What narrow terminals have in place of words."""
VERBS = [
    "report my-run",
    "cost my-run",
    "finance",
    "diagnose my-run",
    "doctor",
    "runs",
    "incidents",
    "events my-run",
    "report a-run-that-does-not-exist-and-has-a-name-of-many-words",
    "plan cadence --gpus 16384 --stall 30s --interval 1h",
    "plan run --preset llama3-405b --runs 2",
    "plan size --model llama3-70b --chip h100 --gpus 64",
    "plan fit faults.json",
    "simulate --preset acme --days 1 --runs 1",
]


@pytest.fixture
def shown(
    take_in: Callable[..., None], environment: dict[str, str], data: Path, tmp_path: Path
) -> Callable[[str, int], str]:
    """What a command prints on a terminal that has so many columns."""
    take_in(data / "steps.csv", "--run", "my-run", "--gpus", "8")
    (tmp_path / "faults.json").symlink_to(data / "infinitehbd-fault-trace.json")
    variables = {name: value for name, value in environment.items() if name != "COLUMNS"}

    def show(line: str, columns: int) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *line.split()],
            env={**variables, "TERM": "dumb"},
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        printed = b""
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # the terminal has been left
                break
            if not piece:
                break
            printed += piece
        os.close(ours)
        process.wait()
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", printed.decode()).replace("\r\n", "\n")

    return show


@pytest.mark.parametrize("line", VERBS)
def test_no_line_is_wider_no_word_is_broken_and_nothing_is_cut(
    shown: Callable[[str, int], str], line: str
) -> None:
    whole = shown(line, WIDE)
    known = {word for said in whole.split() for word in (said, f"~{said}")} | SHORTER
    assert whole.strip()
    for columns in (80, 120):
        lines = shown(line, columns).splitlines()
        assert [line for line in lines if len(line) > columns and not _is_copied(line)] == []
        assert [line for line in lines if "…" in line] == []
        words = {word for line in lines for word in line.split()}
        assert {word for word in words - known if not BAR.search(word)} == set()


def _is_copied(line: str) -> bool:
    """A line of a file, which would not work in two."""
    return bool(re.match(r"  +[A-Z_]+, (gauge|counter), ", line))


def test_only_a_word_that_is_longer_than_a_line_is_broken(holdfast: Any) -> None:
    assert folded("holdfast: one two three\n  hint: four", 16) == "holdfast: one\n  two three\n  hint: four"
    assert folded("one https://example.org/long two", 12) == "one\n  https://ex\n  ample.org/\n  long\n  two"
    assert folded("  kind  a=1 b=2 c=3", 12, " " * 6) == "  kind  a=1\n        b=2\n        c=3"
    refused = holdfast("import", f"{'no-such-' * 12} file", COLUMNS="80")
    assert len(refused.err.splitlines()[0]) > 100  # a program that reads it has whole lines
