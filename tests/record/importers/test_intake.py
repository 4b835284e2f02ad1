"""What every importer shares: times, ids, options, and the account of the lines."""

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.errors import InputError
from holdfast.record.events import NAME_CHARS_MAX, AnyEvent, StepCommitted
from holdfast.record.importers.intake import (
    BLOCK_BYTES,
    HEAD_LINES_MAX,
    LINE_BYTES_MAX,
    SKIPPED_SHOWN_MAX,
    FileReading,
    Imported,
    Lines,
    Options,
    event_id,
    said,
    time_ns,
)

APRIL_NS = 1_743_574_104 * 10**9  # 2025-04-02T06:08:24Z


def lines_of(data: bytes) -> Lines:
    return Lines(io.BytesIO(data), "log")


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("2025-04-02T06:08:24Z", APRIL_NS),
        ("2025-04-02T06:08:24", APRIL_NS),
        ("2025-04-02 06:08:24,318", APRIL_NS + 318_000_000),
        ("2025-04-02t06:08:24.318726z", APRIL_NS + 318_726_000),
        ("2025-04-02T06:08:24.123456789Z", APRIL_NS + 123_456_789),
        ("2025-04-02T06:08:24.1234567899Z", APRIL_NS + 123_456_789),
        ("2025-04-02T08:08:24+02:00", APRIL_NS),
        ("2025-04-01T23:08:24-0700", APRIL_NS),
        ("1743574104", APRIL_NS),
        ("1743574104.318726", APRIL_NS + 318_726_000),
        ("1743574104000", APRIL_NS),
        ("1743574104000000", APRIL_NS),
        ("1743574104000000001", APRIL_NS + 1),
        ("1743574104.3187261239", APRIL_NS + 318_726_123),
        ("1743574104.", APRIL_NS),
        ("1.743574104e9", APRIL_NS),
        ("17435741045e-1", APRIL_NS + 500_000_000),
        ("0", 0),
        ("12.5", 12_500_000_000),
    ],
)
def test_a_time_is_read_exactly(text: str, expected_ns: int) -> None:
    assert time_ns(text) == expected_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2025-04-02",
        "2025-13-02T06:08:24Z",
        "2025-04-02T25:08:24Z",
        "1969-12-31T23:59:59Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "-5",
        "nan",
        "inf",
        "1e99",
        "99999999999999999999",
        "٢٠٢٥",
        "True",
    ],
)
def test_what_is_no_time_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|between the years"):
        time_ns(text)


@given(st.integers(0, 2**62 // 1000))
def test_every_microsecond_survives_iso_8601(time_us: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    assert time_ns(moment.isoformat()) == time_us * 1000


def test_an_id_depends_on_what_is_said_and_when_and_by_whom() -> None:
    first = event_id("x", 5, said("run", 1))
    others = {
        event_id("y", 5, said("run", 1)),
        event_id("x", 6, said("run", 1)),
        event_id("x", 5, said("run", 2)),
        event_id("x", 5, said("run1")),
        event_id("x", 5, said("run", 1), rank=1),
    }
    assert len(others - {first}) == 5
    assert event_id("x", 5, said("run", 1)) == first


@given(
    st.tuples(st.integers(0, 2**62), st.integers(0, 9)), st.tuples(st.integers(0, 2**62), st.integers(0, 9))
)
def test_ids_of_a_source_sort_by_time_and_then_by_rank(one: tuple[int, int], other: tuple[int, int]) -> None:
    ids = [event_id("x", at_ns, b"", rank=rank) for at_ns, rank in (one, other)]
    assert (ids[0] < ids[1]) == (one < other)


def test_lines_are_numbered_as_an_editor_shows_them() -> None:
    lines = lines_of(b"\xef\xbb\xbfa\r\n\n \t\nb\x00\nc \\u0000\n  d  ")
    assert list(lines) == [(1, b"a"), (6, b"  d  ")]
    assert (lines.count, lines.skipped_count) == (4, 2)
    assert [skipped.line for skipped in lines.skipped] == [4, 5]


def test_the_head_is_read_again_and_the_header_only_once() -> None:
    content = b"".join(b"%d\n" % number for number in range(2 * HEAD_LINES_MAX)) + b"0\n"
    lines = lines_of(content)
    assert lines.head().count(b"\n") == HEAD_LINES_MAX
    assert lines.header() == b"0"
    assert [int(line) for _, line in lines] == list(range(1, 2 * HEAD_LINES_MAX))


def test_a_line_without_end_is_skipped_and_the_next_one_read() -> None:
    fits, too_long = b"a" * LINE_BYTES_MAX, b"b" * (3 * LINE_BYTES_MAX)
    lines = lines_of(fits + b"\n" + too_long + b"\nc\n" + too_long)
    assert [(number, len(line)) for number, line in lines] == [(1, LINE_BYTES_MAX), (3, 1)]
    assert [skipped.line for skipped in lines.skipped] == [2, 4]


def test_the_blocks_are_every_byte_of_the_file() -> None:
    content = b"\n".join([b"", b"a" * (2 * BLOCK_BYTES - LINE_BYTES_MAX), *([b"b"] * 2 * HEAD_LINES_MAX)])
    lines = lines_of(content)
    lines.head()
    assert b"".join(lines.blocks()) == content


def test_whoever_watches_is_told_how_much_was_read() -> None:
    told: list[int] = []
    line = b"x" * 999 + b"\n"
    for _ in Lines(io.BytesIO(line * 4_000), "log", told.append):
        pass
    assert [read_bytes // BLOCK_BYTES for read_bytes in told] == [1, 2, 3]
    assert all(read_bytes % len(line) == 0 for read_bytes in told)


def test_events_are_given_out_as_they_are_read_and_then_the_account_is_complete() -> None:
    lines = lines_of(b"1\n2\n")

    def events() -> Iterator[AnyEvent]:
        for number, content in lines:
            yield StepCommitted(id=str(number), occurred_ns=0, run=content.decode(), step=1)

    reading = FileReading("csv", lines, events())
    drawing = iter(reading)
    assert next(drawing).run == "1"
    assert reading.imported().lines == 1
    assert next(drawing).run == "2"
    assert next(drawing, None) is None
    assert (reading.imported().lines, reading.imported().runs) == (2, 2)


def test_details_of_skipped_lines_are_bounded_and_their_count_is_not() -> None:
    lines = lines_of(b"")
    for number in range(3 * SKIPPED_SHOWN_MAX):
        lines.skip(number, "x" * 10_000)
    assert (len(lines.skipped), lines.skipped_count) == (SKIPPED_SHOWN_MAX, 3 * SKIPPED_SHOWN_MAX)
    assert len(lines.skipped[0].reason) == 200


@pytest.mark.parametrize(
    ("imported", "summary"),
    [
        (Imported(format="sacct", lines=68, runs=1, runs_without_gpus=1), "68 lines, 1 run, no GPUs"),
        (Imported(format="sacct", lines=1, runs=3, runs_without_gpus=1), "1 line, 3 runs, 1 without GPUs"),
        (Imported(format="csv"), "0 lines, 0 runs"),
    ],
)
def test_the_summary_is_one_line_for_people(imported: Imported, summary: str) -> None:
    assert imported.summary() == summary


@pytest.mark.parametrize(
    "make",
    [
        lambda: Options(run=""),
        lambda: Options(run="a\nb"),
        lambda: Options(run="\udcff"),
        lambda: Options(run="r" * (NAME_CHARS_MAX + 1)),
        lambda: Options(gpus=-1),
        lambda: Options(gpus=10**400),
        lambda: Options(gpus_per_node=0),
        lambda: Options(reference_step_s=float("nan")),
        lambda: Options(reference_step_s=0.0),
        lambda: Options(usd_per_gpu_hour=float("inf")),
    ],
)
def test_options_that_cannot_be_are_refused(make: Callable[[], Options]) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.sentence.startswith("`--")
    assert caught.value.hint
