"""The members' output: every line once, whole, in order and named; and their complaints, held back."""

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import WAIT_S

from holdfast.run.output import (
    BACKLOG_LINES_MAX,
    CLOSE_WAIT_S,
    HELD_BYTES_MAX,
    HOLD_S,
    LINE_BYTES_MAX,
    QUIET_S,
    TAIL_LINES_MAX,
    MemberOutput,
    Printer,
    Stream,
)

ATTEMPTS = 5
"""In at least one of them the machine has time for us."""
TRACEBACK = b"""\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
ValueError: no such step
and here is why
"""
CHAINED = b"""\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
KeyError: 'step'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    other()
ValueError: no such step
"""
GROUP = b"""\
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 1, in <module>
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: one
    +------------------------------------
"""
SYNTAX_ERROR = b"""\
  File "train.py", line 1
    a b
    ^^^
SyntaxError: invalid syntax
"""
THREAD = b"Exception in thread Thread-1 (work):\n" + TRACEBACK
SENTENCE = b"holdfast: There are fewer lanes than members.\n  hint: Take 8.\n"
COMPLAINTS = [TRACEBACK, CHAINED, GROUP, SYNTAX_ERROR, THREAD, SENTENCE]


class Terminal:
    """Keeps the printed lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[Stream, bytes]] = []
        self.output = MemberOutput("n0.1", self.write)

    def write(self, stream: Stream, line: bytes) -> None:
        self.lines.append((stream, line))

    def text(self, stream: Stream) -> bytes:
        return b"".join(line for where, line in self.lines if where == stream)


def named(text: bytes) -> bytes:
    return b"".join(b"[n0.1] " + line for line in text.splitlines(keepends=True))


def test_every_line_is_printed_to_its_stream_behind_the_name() -> None:
    terminal = Terminal()
    terminal.output.feed("stdout", b"one\ntw", 0)
    terminal.output.feed("stderr", b"careful\n", 0)
    terminal.output.feed("stdout", b"o\nthree", 0)
    assert terminal.lines == [
        ("stdout", b"[n0.1] one\n"),
        ("stderr", b"[n0.1] careful\n"),
        ("stdout", b"[n0.1] two\n"),
    ]
    assert terminal.output.end(1, failed=False).tail == ("one", "careful", "two", "three")
    assert terminal.lines[-1] == ("stdout", b"[n0.1] three\n")


@given(
    text=st.lists(st.sampled_from([b"a", b"long word", b"\n", b"\r", b"\r\n", b"\xff", TRACEBACK, SENTENCE])),
    sizes=st.lists(st.integers(1, 30), min_size=1),
)
def test_nothing_is_lost_repeated_or_moved_however_it_is_read(text: list[bytes], sizes: list[int]) -> None:
    terminal = Terminal()
    whole = b"".join(text)
    place = count = 0
    while place < len(whole):
        size = sizes[count % len(sizes)]
        terminal.output.feed("stderr", whole[place : place + size], count * QUIET_S / 3)
        place, count = place + size, count + 1
    terminal.output.end(count, failed=False)
    printed = b"".join(line.removeprefix(b"[n0.1] ") for _stream, line in terminal.lines)
    assert printed.removesuffix(b"\n") == whole.removesuffix(b"\n")


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_what_a_process_fails_with_is_its_complaint_and_not_printed(complaint: bytes) -> None:
    terminal = Terminal()
    for line in (b"before\n" + complaint).splitlines(keepends=True):
        terminal.output.feed("stderr", line, 1)
    words = terminal.output.end(1 + 0.9 * HOLD_S, failed=True)
    assert words.complaint == complaint.decode().rstrip()
    assert terminal.text("stderr") == b"[n0.1] before\n"
    assert words.tail[-1] == complaint.decode().splitlines()[-1]


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_what_a_process_survives_is_printed_in_its_place(complaint: bytes) -> None:
    terminal = Terminal()
    terminal.output.feed("stderr", complaint + b"going on\n", 1)
    assert terminal.text("stderr") == b""
    assert terminal.output.due_s == 1 + HOLD_S
    terminal.output.release()
    terminal.output.feed("stderr", b"still there\n", 2)
    assert terminal.text("stderr") == named(complaint + b"going on\nstill there\n")
    assert terminal.output.due_s is None
    assert terminal.output.end(3, failed=True).complaint == ""


def test_a_complaint_of_a_process_that_a_signal_ends_is_printed() -> None:
    terminal = Terminal()
    terminal.output.feed("stderr", TRACEBACK, 1)
    assert terminal.output.end(1, failed=False).complaint == ""
    assert terminal.text("stderr") == named(TRACEBACK)


def test_only_the_last_of_two_tracebacks_is_the_complaint() -> None:
    terminal = Terminal()
    terminal.output.feed("stderr", b"Traceback (most recent call last):\nKeyError: 1\n" + TRACEBACK, 1)
    assert terminal.output.end(1, failed=True).complaint == TRACEBACK.decode().rstrip()
    assert terminal.text("stderr") == named(b"Traceback (most recent call last):\nKeyError: 1\n")


def test_trouble_at_the_interpreters_end_does_not_replace_the_complaint() -> None:
    trouble = b"Exception ignored in: <function f>\nTraceback (most recent call last):\nTypeError: None\n"
    terminal = Terminal()
    terminal.output.feed("stderr", TRACEBACK + trouble, 1)
    assert terminal.output.end(1, failed=True).complaint == (TRACEBACK + trouble).decode().rstrip()


def test_ranks_and_log_lines_of_a_process_group_are_no_part_of_the_complaint() -> None:
    ranked = b"".join(b"[rank3]: " + line for line in TRACEBACK.splitlines(keepends=True))
    warning = b"[rank3]:[W1115 05:14:02.881 ProcessGroup.cpp:1] Warning: group was not destroyed\n"
    terminal = Terminal()
    terminal.output.feed("stderr", ranked + warning, 1)
    assert terminal.output.end(1, failed=True).complaint == TRACEBACK.decode().rstrip()
    assert terminal.text("stderr") == named(warning)


def test_what_follows_a_sentence_and_its_hint_is_printed() -> None:
    terminal = Terminal()
    terminal.output.feed("stderr", SENTENCE + b"bye\n  bye\n", 1)
    assert terminal.output.end(1, failed=True).complaint == SENTENCE.decode().rstrip()
    assert terminal.text("stderr") == named(b"bye\n  bye\n")


def test_stdout_does_not_wait_for_a_complaint() -> None:
    terminal = Terminal()
    terminal.output.feed("stderr", TRACEBACK, 1)
    terminal.output.feed("stdout", TRACEBACK, 1)
    assert terminal.text("stdout") == named(TRACEBACK)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_process_that_prints_on_has_survived(stream: Stream) -> None:
    terminal = Terminal()
    terminal.output.feed("stderr", TRACEBACK, 1)
    terminal.output.feed(stream, b"step 8\n", 1 + 1.1 * QUIET_S)
    assert b"".join(line for _stream, line in terminal.lines) == named(TRACEBACK + b"step 8\n")
    assert terminal.output.due_s is None


def test_no_more_is_held_than_fits() -> None:
    terminal = Terminal()
    line = b"x" * 1000 + b"\n"
    terminal.output.feed("stderr", TRACEBACK + line * (HELD_BYTES_MAX // 1000), 1)
    assert terminal.text("stderr").startswith(named(TRACEBACK))
    assert terminal.output.due_s is None


def test_a_line_without_end_comes_in_pieces() -> None:
    terminal = Terminal()
    terminal.output.feed("stdout", b"x" * (2 * LINE_BYTES_MAX + 1), 1)
    assert [len(line) for _stream, line in terminal.lines] == [LINE_BYTES_MAX + len("[n0.1] \n")] * 2


def test_the_tail_is_bounded_and_leaves_out_what_was_overwritten() -> None:
    terminal = Terminal()
    lines = b"".join(b"%d\n" % number for number in range(100))
    terminal.output.feed("stdout", lines + b"10 %\r20 %\rdone\n", 1)
    tail = terminal.output.end(1, failed=False).tail
    assert len(tail) == TAIL_LINES_MAX
    assert tail[-2:] == ("99", "done")


def test_everything_is_logged_as_it_was_printed() -> None:
    logged: list[tuple[Stream, bytes]] = []
    output = MemberOutput("n0.1", lambda _stream, _line: None, lambda *line: logged.append(line))
    output.feed("stderr", SENTENCE, 1)
    assert logged == [("stderr", line) for line in SENTENCE.splitlines(keepends=True)]


def test_a_slow_reader_fills_the_printer_and_is_told_of_when_it_has_read() -> None:
    has_room = threading.Event()
    reads, writes = os.pipe()
    printer = Printer(has_room.set)
    line = b"x" * 999 + b"\n"
    count = 0
    while not printer.is_full():  # a pipe takes 64 of them
        printer.put(writes, line)
        count += 1
        assert count < 2 * BACKLOG_LINES_MAX
    assert not has_room.wait(0.05)
    printer.put_end(writes)
    received = b""
    while data := os.read(reads, 1 << 16):
        received += data
    assert has_room.wait(WAIT_S)
    assert received == line * count
    printer.close()
    os.close(reads)


def test_a_reader_that_has_left_blocks_no_writer() -> None:
    took_s = []
    for _ in range(ATTEMPTS):
        reads, writes = os.pipe()
        os.close(reads)
        printer = Printer(lambda: None)
        for _ in range(10):
            printer.put(writes, b"no one reads this\n")
        begun_s = time.monotonic()
        printer.close()
        took_s.append(time.monotonic() - begun_s)
        os.close(writes)
    assert min(took_s) < CLOSE_WAIT_S
