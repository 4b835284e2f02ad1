"""The display of a run while it goes: the board, plain lines, and what members print meanwhile."""

import io
import os
import pty
import re
import subprocess
import sys
from math import inf, nan
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from waiting import WAIT_S

from holdfast.cli.live import LINE_INTERVAL_NS, Teller
from holdfast.cli.live_board import COLUMNS_MAX, SPARKS, SPARKS_ASCII, Board, sparkline
from holdfast.record.clock import ManualClock
from holdfast.run.status import Happened, MemberStatus, NodeStatus, Severity, Status
from holdfast.run.wire import Stage

pytestmark = pytest.mark.slow

S_NS = 10**9
COLOURED = re.compile(r"\x1b\[(?:\d+;)*[34]\d")


def member(name: str, *lanes: int, slot: int = 0, spare: bool = False) -> MemberStatus:
    return MemberStatus(
        name=name,
        node=name.split(".")[0],
        slot=slot,
        role="spare" if spare else "active",
        stage="starting" if spare else "reduce",
        step=213,
        lanes=lanes,
        alive=True,
    )


def happened(second: int, text: str, severity: Severity = "note") -> Happened:
    return Happened(occurred_ns=second * S_NS, text=text, severity=severity)


FULL = Status(
    run="play",
    started_ns=0,
    generation=2,
    step=212,
    steps_total=300,
    loss=2.104,
    loss_curve=tuple((step, 4.2 - step / 100) for step in range(1, 211)),
    rate=7.42,
    members=(
        member("n0.0", 0, 1),
        member("n0.1", 2, 3, slot=1),
        member("n0.2", slot=2, spare=True),
        member("n1.0", 4, 5),
        member("n1.1", 6, 7, slot=1),
    ),
    nodes=(NodeStatus(name="n0", alive=True), NodeStatus(name="n1", alive=True)),
    happened=(
        happened(1, "node n1 joined"),
        happened(12, "n0.1 lost (SIGKILL)", "trouble"),
        happened(
            13, "generation 2: n0.1+1 takes the place of n0.1; step 71 goes on with 4 members after 0.31 s"
        ),
    ),
    outcome=None,
)


def changed(status: Status, **fields: object) -> Status:
    return msgspec.structs.replace(status, **fields)


def without_n1() -> Status:
    return changed(
        FULL,
        members=(member("n0.0", 0, 1, 2, 3), member("n0.1+1", 4, 5, 6, 7, slot=1)),
        nodes=(NodeStatus(name="n0", alive=True), NodeStatus(name="n1", alive=False)),
    )


class Screen:
    """What a board draws, one status after the other."""

    def __init__(self, *, width: int = 80, height: int = 24, encoding: str = "utf-8") -> None:
        self._drawn = io.BytesIO()
        self._file = io.TextIOWrapper(self._drawn, encoding=encoding, errors="strict", newline="\n")
        self._console = Console(file=self._file, width=width, height=height, highlight=False, markup=False)
        self._status = FULL
        self._board = Board(lambda: self._status, ManualClock(34 * S_NS))

    def draw(self, status: Status) -> list[str]:
        self._status = status
        self._console.print(self._board)
        self._file.flush()
        drawn = self._drawn.getvalue().decode(self._file.encoding)
        self._drawn.seek(0)
        self._drawn.truncate()
        return [line.rstrip() for line in drawn.splitlines()]


def test_the_board_says_how_far_the_run_is_and_who_does_what() -> None:
    lines = Screen().draw(FULL)
    assert lines[1].split() == ["play", "generation", "2", "4", "members", "on", "2", "nodes", "0:34"]
    assert lines[2].split(maxsplit=1)[1] == "step 212 of 300  7.42/s  0:11 left"
    assert lines[3].startswith("loss   4.190 █")
    assert lines[3].endswith("▁ 2.100")
    assert lines[4] == "lanes   a  a  b  b  c  c  d  d"
    assert lines[6:12] == [
        "n0  a  n0.0  lanes 0-1  step 213  reduces",
        "    b  n0.1  lanes 2-3  step 213  reduces",
        "       n0.2  spare",
        "n1  c  n1.0  lanes 4-5  step 213  reduces",
        "    d  n1.1  lanes 6-7  step 213  reduces",
        "",
    ]
    assert lines[12:] == [
        " 0:01  node n1 joined",
        " 0:12  n0.1 lost (SIGKILL)",
        " 0:13  generation 2: n0.1+1 takes the place of n0.1; step 71 goes on with 4",
        "       members after 0.31 s",
    ]


@pytest.mark.parametrize("stage", get_args(Stage))
def test_the_board_has_words_for_every_stage(stage: Stage) -> None:
    there = msgspec.structs.replace(member("n0.0", 0, 1), stage=stage)
    line = next(line for line in Screen().draw(changed(FULL, members=(there,))) if "n0.0" in line)
    assert line.split("step 213")[1].strip()


def test_the_board_says_how_many_lanes_were_skipped() -> None:
    short = changed(FULL, members=FULL.members[:4], lanes_skipped=2)
    assert Screen().draw(short)[4] == "lanes   a  a  b  b  c  c   2 skipped"


def test_a_seat_keeps_its_letter_through_replacement_loss_and_return() -> None:
    screen = Screen()
    screen.draw(FULL)
    lines = screen.draw(without_n1())
    assert lines[4] == "lanes   a  a  a  a  b  b  b  b"
    assert "    b  n0.1+1  lanes 4-7  step 213  reduces" in lines
    assert "n1     lost" in lines
    returned = (member("n1.1+1", 6, 7, slot=1), member("n1.0+1", 4, 5))
    lines = screen.draw(changed(FULL, members=(*without_n1().members, *returned)))
    assert lines[8:10] == [
        "n1  c  n1.0+1  lanes 4-5  step 213  reduces",
        "    d  n1.1+1  lanes 6-7  step 213  reduces",
    ]


def test_a_run_that_has_just_begun() -> None:
    waiting = member("n0.0")
    begun = changed(
        FULL,
        generation=0,
        step=0,
        steps_total=0,
        loss=None,
        loss_curve=(),
        rate=0.0,
        happened=(),
        members=(waiting,),
    )
    lines = Screen().draw(begun)
    assert lines[1].split() == ["play", "0:34"]
    assert lines[2] == "starting"
    assert "n1    no members" in lines


def test_the_board_of_a_run_that_is_over_says_how_it_ended() -> None:
    lines = Screen().draw(changed(FULL, step=300, outcome="completed"))
    assert lines[1].split() == ["play", "completed", "0:34"]
    assert lines[2].endswith("step 300 of 300")
    assert lines[5] == " 0:01  node n1 joined"


@pytest.mark.parametrize("width", [40, 80, 132, 300])
def test_the_board_fits_the_terminal(width: int) -> None:
    members = tuple(
        member(f"n{node}.{slot}", 16 * node + 2 * slot, 16 * node + 2 * slot + 1, slot=slot)
        for node in range(8)
        for slot in range(8)
    )
    nodes = tuple(NodeStatus(name=f"n{node}", alive=True) for node in range(8))
    told = tuple(happened(second, "generation after generation, " * 4) for second in range(50))
    lines = Screen(width=width).draw(changed(FULL, members=members, nodes=nodes, happened=told))
    assert max(map(len, lines)) <= min(width, COLUMNS_MAX)
    assert len(lines) < 24
    assert any(line.endswith(" more") for line in lines)


def test_a_terminal_that_knows_only_ascii_gets_ascii() -> None:
    assert Screen(encoding="ascii").draw(FULL)[3].startswith("loss   4.190 #")


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    lines = Screen().draw(changed(FULL, happened=(happened(1, "n0.0 lost (\x1b[2J\n)"),)))
    assert lines[-1] == r" 0:01  n0.0 lost (\x1b[2J\n)"


@pytest.mark.parametrize(
    ("values", "cells", "drawn"),
    [
        ([1.0], 8, "▁"),
        ([2.0, 2.0], 8, "▁▁"),
        ([8.0, 1.0, 4.5], 8, "█▁▅"),
        ([9.0, 7.0, 1.0, 1.0], 2, "█▁"),
        ([8.0, nan, 1.0], 8, "█!▁"),
        ([inf], 8, "!"),
    ],
)
def test_a_sparkline(values: list[float], cells: int, drawn: str) -> None:
    assert sparkline(values, cells, SPARKS) == drawn


@given(st.lists(st.floats(), min_size=1, max_size=600), st.integers(1, 50))
def test_a_sparkline_takes_any_numbers(values: list[float], cells: int) -> None:
    assert len(sparkline(values, cells, SPARKS_ASCII)) == min(cells, len(values))


@given(st.lists(st.integers(0, 7), max_size=30))
def test_every_happening_is_told_once_and_in_order(news: list[int]) -> None:
    teller, texts, told = Teller(), [str(number) for number in range(sum(news))], list[str]()
    known = 0
    for count in news:
        known += count
        kept = tuple(happened(int(text), text) for text in texts[:known][-8:])
        told += teller.tell(changed(FULL, step=0, happened=kept), 0)
    assert [line.split()[1] for line in told] == texts


def test_progress_is_told_now_and_then_while_there_is_any() -> None:
    teller, quiet = Teller(), changed(FULL, happened=())
    line = "0:10 step 212 of 300, loss 2.104, 7.42 steps/s, 4 members on 2 nodes, generation 2"
    assert list(teller.tell(quiet, 10 * S_NS)) == [line]
    further = changed(quiet, step=213)
    assert list(teller.tell(further, 10 * S_NS + LINE_INTERVAL_NS - 1)) == []
    assert len(list(teller.tell(further, 10 * S_NS + LINE_INTERVAL_NS))) == 1
    assert list(teller.tell(further, 30 * S_NS)) == []  # nothing new to say
    assert list(teller.tell(changed(quiet, step=300, outcome="completed"), 40 * S_NS)) == []


SHOW = """
import subprocess, sys, time
import msgspec
from holdfast.cli.live import show
from holdfast.record.clock import SystemClock
from holdfast.run.status import Status

status = msgspec.json.decode(sys.argv[1], type=Status)
clock = SystemClock()
status = msgspec.structs.replace(status, started_ns=clock.now_ns())
with show(lambda: status, clock) as outlet:
    say = r"printf 'to stdout\\n'; printf '10 %%\\r20 %%\\r\\033[2J\\033[31mto stderr\\033[0m\\n' >&2"
    subprocess.run(["bash", "-c", say], stdout=outlet.stdout, stderr=outlet.stderr, check=True)
print("and on")
"""


def command() -> list[str]:
    return [sys.executable, "-W", "error", "-c", SHOW, msgspec.json.encode(FULL).decode()]


def on_terminal(stdout: Path | None = None, **variables: str) -> str:
    """What a terminal receives."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **variables}
    environment = {name: value for name, value in environment.items() if value}
    target = stdout.open("wb") if stdout else os.fdopen(os.dup(theirs), "wb")
    with target:
        process = subprocess.Popen(command(), stdin=theirs, stdout=target, stderr=theirs, env=environment)
    os.close(theirs)
    received = b""
    while data := _read(ours):
        received += data
    os.close(ours)
    assert process.wait(WAIT_S) == 0
    return received.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux says so when nobody holds the other end any more
        return b""


def test_on_a_terminal_lines_scroll_above_the_board() -> None:
    received = on_terminal(NO_COLOR="")
    assert COLOURED.search(received)
    above, board = received.rsplit("play", 1)
    assert "to stdout" in above
    assert "to stderr" in above
    assert "%" not in above  # it was overwritten
    assert "\x1b[2J" not in received
    assert "step 212 of 300" in board
    assert board.rstrip().endswith("and on")


def test_without_colours() -> None:
    received = on_terminal(NO_COLOR="1")
    assert "a  a  b  b" in received
    assert not COLOURED.search(received)


def test_a_stdout_that_is_a_file_gets_the_lines_as_they_are(tmp_path: Path) -> None:
    received = on_terminal(stdout=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "to stdout\nand on\n"
    assert "to stdout" not in received
    assert "to stderr" in received


def test_without_a_terminal_there_are_plain_lines() -> None:
    done = subprocess.run(command(), capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "to stdout\nand on\n"
    lines = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        *(one.text for one in FULL.happened),
        "step 212 of 300, loss 2.104, 7.42 steps/s, 4 members on 2 nodes, generation 2",
    ]


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines() -> None:
    assert "holdfast: 0:00 node n1 joined" in on_terminal(TERM="dumb")
