"""Where the output goes and what is in it: hostile names, full disks, closed and narrow streams."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantity import sampled
from waiting import WAIT_S

from holdfast.cli.terminal import printable
from holdfast.record.events import (
    AnyEvent,
    CheckpointVerified,
    Correction,
    FaultObserved,
    GenerationOpened,
    RunStarted,
    StepCommitted,
    encode,
)

SPRING_NS = 1_743_574_104 * 10**9
"""2 April 2025, 06:08:24 UTC."""
HOSTILE = "red \x1b[31m, clipboard \x1b]52;c;aGk=\x07, C1 \x9b31m, bidi \u202e, line\n2025-04-02 run.ended"
VERBS = [
    "report",
    "report --json",
    "report --html -",
    "events",
    "events --json",
    "runs",
    "reference",
    "--help",
]
VERBS_AND_BUFFERS = sampled(
    [*((verb, "") for verb in VERBS), ("report", "1"), ("events --json", "1")],
    [("report --html -", ""), ("--help", ""), ("events --json", "1")],
)


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_that_a_terminal_obeys_is_printed(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()
    if "\\" not in text and text.isascii():
        assert shown.encode().decode("unicode_escape") == text


@pytest.fixture
def hostile(holdfast: Any, tmp_path: Path) -> Any:
    """A store whose run, members and faults have names that no terminal should be given."""
    at: dict[str, Any] = {"run": HOSTILE, "subject": HOSTILE}
    events: list[AnyEvent] = [
        RunStarted(id="a-1", occurred_ns=SPRING_NS, gpus=8, name=HOSTILE, **at),
        FaultObserved(id="a-2", occurred_ns=SPRING_NS + 10**9, fault=HOSTILE, detail=HOSTILE, **at),
        StepCommitted(id="a-3", occurred_ns=SPRING_NS + 3 * 10**9, step=1, **at),
    ]
    newer = (
        encode(events[-1]).replace(b'"step.committed"', b'"step.\\u001b[2Jcommitted"').replace(b"a-3", b"a-4")
    )
    (tmp_path / "hostile.jsonl").write_bytes(b"\n".join([*map(encode, events), newer]))
    assert holdfast("import", "hostile.jsonl").code == 0
    return holdfast


@pytest.mark.parametrize("verb", ["report", "events", "runs"])
def test_recorded_names_are_printed_as_text(hostile: Any, verb: str) -> None:
    done = hostile(verb)
    assert (done.code, done.err) == (0, "")
    assert all(line.isprintable() for line in done.out.split("\n"))
    assert r"\x1b[31m" in done.out
    if verb == "events":
        assert len(done.out.splitlines()) == 4
        assert r"step.\x1b[2Jcommitted" in done.out


def test_lines_of_events(holdfast: Any, tmp_path: Path) -> None:
    """What could be taken for more than one word or field is in quotes; a list has commas."""
    at: dict[str, Any] = {"occurred_ns": SPRING_NS, "run": "r"}
    events: list[AnyEvent] = [
        GenerationOpened(id="a-1", generation=3, members=("node-1", "node 2"), gpus=16, **at),
        CheckpointVerified(id="a-2", step=60, sound=False, reason="disk='a'", **at),
        FaultObserved(id="a-3", subject="node-7", fault="hang", onset_ns=SPRING_NS - 10**9, **at),
        Correction(id="a-4", target="a-2", reason="counted twice", **at),
    ]
    newer = b'{"kind":"node.cordoned","id":"a-5","occurred_ns":%d,"run":"r","why":{"x":1}}' % SPRING_NS
    (tmp_path / "odd.jsonl").write_bytes(b"\n".join([*map(encode, events), newer]))
    holdfast("import", "odd.jsonl")
    lines = holdfast("events").out.splitlines()
    assert all(line.startswith("2025-04-02 06:08:24Z  ") for line in lines)
    assert [re.split("  +", line, maxsplit=3)[3] for line in lines] == [
        "generation=3 members=node-1,'node 2' gpus=16",
        '''step=60 sound=False reason="disk='a'"''',
        "fault=hang severity=fatal onset='2025-04-02 06:08:23Z'",
        "target=a-2 reason='counted twice'",
        "(not known to this version; --json shows it whole)",
    ]


@pytest.fixture
def stored(holdfast: Any, data: Path) -> Any:
    assert holdfast("import", data / "steps.csv", "--run", "mine", "--gpus", "8").code == 0
    return holdfast


@pytest.mark.parametrize(("verb", "unbuffered"), VERBS_AND_BUFFERS)
def test_a_full_disk(stored: Any, shell: Any, verb: str, unbuffered: str) -> None:
    done = shell(f"holdfast {verb} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.code == 2
    sentence, hint = done.err.splitlines()
    assert sentence == "holdfast: No space left for the output: No space left on device."
    assert hint.startswith("  hint: ")


@pytest.mark.parametrize("verb", sampled(VERBS, ["report", "--help"]))
def test_a_closed_stdout(stored: Any, shell: Any, verb: str) -> None:
    said_nothing = shell("true")
    assert shell(f"holdfast {verb} >&-") == said_nothing
    assert shell(f"holdfast {verb} >&- 2>&-") == said_nothing


def test_where_nobody_can_be_told_the_exit_code_tells(shell: Any) -> None:
    assert shell("holdfast report nobody 2> /dev/full").code == 2


@pytest.mark.parametrize(("verb", "unbuffered"), VERBS_AND_BUFFERS)
def test_a_reader_that_has_seen_enough_is_no_error(
    stored: Any, environment: dict[str, str], verb: str, unbuffered: str
) -> None:
    unread, pipe = os.pipe()
    os.close(unread)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *verb.split()],
            env={**environment, "PYTHONUNBUFFERED": unbuffered},
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )
    finally:
        os.close(pipe)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("verb", "encoding", "replaced"),
    [
        ("report", "ascii", "\n?  useful"),
        ("report", "latin-1", "\n?  useful"),
        ("reference", "ascii", ""),
        ("import --help", "latin-1", "postgresql://?"),
    ],
)
def test_an_encoding_that_knows_little(stored: Any, verb: str, encoding: str, replaced: str) -> None:
    done = stored(*verb.split(), PYTHONIOENCODING=encoding)
    assert (done.code, done.err) == (0, "")
    assert replaced in done.out


def test_json_is_utf_8_whatever_the_encoding(holdfast: Any, tmp_path: Path) -> None:
    name = "größer-λ"
    (tmp_path / "one.jsonl").write_bytes(encode(RunStarted(id="a-1", occurred_ns=1, run=name, gpus=1)))
    holdfast("import", "one.jsonl")
    assert holdfast("report", "--json", PYTHONIOENCODING="latin-1").json["run"] == name
    assert holdfast("runs", "--json", PYTHONIOENCODING="latin-1").json[0]["run"] == name
