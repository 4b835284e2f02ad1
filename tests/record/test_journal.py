import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.record.errors import InputError
from holdfast.record.events import (
    AnyEvent,
    FaultObserved,
    GenerationOpened,
    RunEnded,
    RunStarted,
    StepCommitted,
    Unknown,
    decode,
    encode,
)
from holdfast.record.journal import (
    Damage,
    JournalWriter,
    follow,
    line_of,
    read,
    read_directory,
    salvage,
    spool_name,
)
from holdfast.record.spool import Drops, Owner, Spool

OWNER = Owner(token="abcdefghijkl", source="host/1", run="night")
UNKNOWN = decode(b'{"kind":"moon.phase","id":"f-1","occurred_ns":9,  "phase":["new"],"schema":7}')
EVENTS: list[AnyEvent] = [
    RunStarted(id="a-0000000000", occurred_ns=1, run="night", name="Größe \N{CRESCENT MOON}", gpus=8),
    StepCommitted(id="a-0000000001", occurred_ns=2, run="night", step=1),
    UNKNOWN,
    FaultObserved(id="a-0000000002", occurred_ns=3, fault="xid 79", detail='line\nbreak and "quotes"'),
    GenerationOpened(id="a-0000000003", occurred_ns=4, members=("m0", "m1"), causes=("a-0000000002",)),
    RunEnded(id="a-0000000004", occurred_ns=5, outcome="completed"),
]
LINES = [line_of(encode(event)) for event in EVENTS]
WHOLE = b"".join(LINES)


def _step(number: int) -> StepCommitted:
    return StepCommitted(id=f"s-{number:010x}", occurred_ns=number, step=number)


def _steps(items: Iterator[AnyEvent | Damage] | list[AnyEvent | Damage]) -> list[int]:
    return [item.step for item in items if isinstance(item, StepCommitted)]


def _write(path: Path, *numbers: int) -> None:
    with path.open("ab") as stream:
        stream.writelines(line_of(encode(_step(number))) for number in numbers)


def _leave_spool(directory: Path, *numbers: int, drops: Drops | None = None) -> Path:
    """What a killed process leaves: its spool, and the journal's link to it."""
    spools = directory.parent / "shared-memory"
    spools.mkdir(exist_ok=True)
    spool = Spool.create(spools / spool_name(OWNER.token), OWNER, 10_000)
    for number in numbers:
        assert spool.put(line_of(encode(_step(number))))
    if drops is not None:
        spool.note(drops)
    spool.close()
    link = directory / spool.path.name
    link.symlink_to(spool.path)
    return link


@contextmanager
def _files_no_longer_than(size_bytes: int) -> Iterator[None]:
    """A full disk for whoever is not allowed to mount one: writing beyond this size fails in the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_journal_cut_at_any_byte_gives_back_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "cut.journal"
    for cut in range(len(WHOLE) + 1):
        path.write_bytes(WHOLE[:cut])
        whole_lines = WHOLE[:cut].count(b"\n")
        torn = cut > len(b"".join(LINES[:whole_lines]))
        items = list(read(path))
        assert items[:whole_lines] == EVENTS[:whole_lines]
        assert [isinstance(item, Damage) and item.torn for item in items[whole_lines:]] == [True] * torn


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_flipped_byte_costs_no_more_than_the_lines_it_touches(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "flipped.journal"
    path.write_bytes(WHOLE[:position] + bytes([WHOLE[position] ^ flip]) + WHOLE[position + 1 :])
    hit = WHOLE[:position].count(b"\n")
    touched = {hit, hit + 1} if WHOLE[position : position + 1] == b"\n" else {hit}
    items = list(read(path))
    events = [item for item in items if not isinstance(item, Damage)]
    assert events == [event for index, event in enumerate(EVENTS) if index not in touched]
    assert items[hit] == next(item for item in items if isinstance(item, Damage))


@given(st.binary(max_size=500))
def test_bytes_of_any_kind_are_read_without_an_exception(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("junk") / "junk.journal"
    path.write_bytes(junk + b"\n" + WHOLE)
    items = list(read(path))
    assert items[-len(EVENTS) :] == EVENTS
    assert all(isinstance(item, Damage) for item in items[: -len(EVENTS)])


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"step.committed","id":"a","occurred_ns":1,"step":"one"}',
        b"[1, 2]",
        b'{"kind":"later","id":"a","occurred_ns":1,"deep":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
)
def test_a_sound_line_that_holds_no_event_is_damage_with_its_place(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "odd.journal"
    path.write_bytes(LINES[0] + line_of(body) + LINES[1])
    first, damage, last = read(path)
    assert (first, last) == (EVENTS[0], EVENTS[1])
    assert isinstance(damage, Damage)
    assert (damage.file, damage.line, damage.torn) == (str(path), 2, False)
    assert damage.reason.startswith("no event: ")


def test_an_unknown_event_keeps_every_byte(tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(WHOLE)
    (unknown,) = [item for item in read_directory(tmp_path) if isinstance(item, Unknown)]
    assert line_of(encode(unknown)) in LINES


def test_rotation_makes_new_files_and_old_ones_are_never_opened_again(tmp_path: Path) -> None:
    for token in ("aaaa", "bbbb"):
        writer = JournalWriter(tmp_path, token, rotate_bytes=2 * len(LINES[1]))
        for number in range(7):
            writer.write(line_of(encode(_step(number))))
        writer.sync()
        writer.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        f"{token}-{number:06d}.journal" for token in ("aaaa", "bbbb") for number in range(len(names) // 2)
    ]
    assert len(names) > 4
    assert _steps(read_directory(tmp_path)) == [*range(7), *range(7)]


def test_a_write_that_fails_half_way_leaves_no_half_line(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "aaaa")
    writer.write(LINES[0])
    with (
        _files_no_longer_than(len(LINES[0]) + len(LINES[1]) + 3),
        pytest.raises(OSError, match="File too large"),
    ):
        writer.write(LINES[1] + LINES[2])
    assert list(read_directory(tmp_path)) == EVENTS[:1]
    writer.write(LINES[1] + LINES[2])
    writer.close()
    assert list(read_directory(tmp_path)) == EVENTS[:3]


def test_a_writer_whose_directory_was_removed_begins_a_new_file(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    writer = JournalWriter(journal, "aaaa")
    writer.write(LINES[0])
    (journal / "aaaa-000000.journal").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").unlink()
    journal.rmdir()
    journal.mkdir()
    writer.sync()
    writer.write(LINES[1])
    writer.close()
    assert list(read_directory(journal)) == [EVENTS[1]]


def test_offsets_lead_on_from_where_reading_stopped(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    _write(path, 1, 2)
    offsets: dict[str, int] = {}
    reading = read_directory(tmp_path, offsets)
    assert next(reading) == _step(1)
    assert path.read_bytes()[offsets["a.journal"] :] == line_of(
        encode(_step(2))
    )  # the one in hand is covered

    assert _steps(read_directory(tmp_path, dict(offsets))) == [2]
    assert _steps(reading) == [2]
    assert list(read_directory(tmp_path, offsets)) == []

    unfinished = line_of(encode(_step(3)))
    with path.open("ab") as stream:
        stream.write(b"spilt coffee\n" + unfinished[:20])
    spilt, torn = read_directory(tmp_path, offsets)
    assert spilt == Damage(file=str(path), line=3, reason="the checksum does not match")
    assert torn == Damage(file=str(path), line=4, reason="the line is not finished", torn=True)

    with path.open("ab") as stream:
        stream.write(unfinished[20:])
    assert _steps(read_directory(tmp_path, offsets)) == [3]


def test_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(read_directory(tmp_path / "missing"))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(read(tmp_path / "missing.journal"))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(follow(tmp_path / "missing", threading.Event()))
    (tmp_path / "folder.journal").mkdir()
    _write(tmp_path / "sound.journal", 1)
    assert list(read_directory(tmp_path)) == [
        Damage(file=str(tmp_path / "folder.journal"), line=0, reason="cannot be read: Is a directory"),
        _step(1),
    ]


def test_follow_sees_rotation_new_writers_and_lines_in_pieces(tmp_path: Path) -> None:
    stop = threading.Event()
    seen: list[AnyEvent | Damage] = []

    def keep_following() -> None:
        seen.extend(follow(tmp_path, stop, poll_interval_s=0.005))

    def wait_for(count: int) -> None:
        deadline_s = time.monotonic() + 20
        while len(seen) < count and time.monotonic() < deadline_s:
            time.sleep(0.005)

    _write(tmp_path / "aaaa-000000.journal", 0)
    follower = threading.Thread(target=keep_following)
    follower.start()
    writer = JournalWriter(tmp_path, "bbbb", rotate_bytes=1)
    for number in range(1, 6):
        writer.write(line_of(encode(_step(number))))
    writer.close()
    piecewise = line_of(encode(_step(6)))
    with (tmp_path / "cccc-000000.journal").open("wb", buffering=0) as stream:
        stream.write(piecewise[:30])
        wait_for(6)
        stream.write(piecewise[30:])
    _leave_spool(tmp_path, 7)
    stop.set()
    follower.join(20)
    assert sorted(_steps(seen)) == list(range(8))
    assert len(seen) == 8


def test_a_dead_spool_becomes_a_journal_file(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    _write(journal / f"{OWNER.token}-000000.journal", 1)
    link = _leave_spool(journal, 2, 3)
    spool = link.resolve()
    assert _steps(read_directory(journal)) == [1, 2, 3]
    assert not spool.exists()
    assert sorted(path.name for path in journal.iterdir()) == [
        f"{OWNER.token}-000000.journal",
        f"{OWNER.token}-salvaged.journal",
    ]


def test_an_empty_dead_spool_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    link = _leave_spool(tmp_path / "journal")
    spool = link.resolve()
    salvage([link])
    assert not spool.exists()
    assert list((tmp_path / "journal").iterdir()) == []


def test_drops_that_a_dead_process_could_not_tell_of_are_told(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    _leave_spool(tmp_path / "journal", 1, drops=Drops(total=5, reported=2, last_ns=77))
    step, notice = read_directory(tmp_path / "journal")
    assert step == _step(1)
    assert isinstance(notice, FaultObserved)
    assert (notice.fault, notice.severity) == ("recorder-dropped", "degraded")
    assert (notice.run, notice.subject, notice.occurred_ns) == ("night", "host/1", 77)
    assert notice.detail.startswith("events dropped: 3,")


def test_many_readers_at_once_salvage_once_and_each_sees_everything(tmp_path: Path) -> None:
    for attempt in range(20):
        journal = tmp_path / str(attempt) / "journal"
        journal.mkdir(parents=True)
        _leave_spool(journal, 1, 2, 3)
        start = threading.Barrier(4)

        def read_steps(journal: Path = journal, start: threading.Barrier = start) -> set[int]:
            start.wait(20)
            return set(_steps(read_directory(journal)))

        with ThreadPoolExecutor(4) as pool:
            results = [future.result() for future in [pool.submit(read_steps) for _ in range(4)]]
        assert results == [{1, 2, 3}] * 4
        assert [path.name for path in journal.iterdir()] == [f"{OWNER.token}-salvaged.journal"]
        assert _steps(read_directory(journal)) == [1, 2, 3]


def test_a_spool_that_cannot_be_written_out_is_read_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    link = _leave_spool(tmp_path / "journal", 1, 2)
    with _files_no_longer_than(10):
        assert _steps(read_directory(tmp_path / "journal")) == [1, 2]
    assert link.exists()
    assert _steps(read_directory(tmp_path / "journal")) == [1, 2]
    assert not link.exists()


def test_a_spool_out_of_reach_and_a_foreign_file_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / spool_name("elsewhere")
    elsewhere.symlink_to("/nowhere/on/this/machine")
    foreign = tmp_path / spool_name("foreign")
    foreign.write_bytes(b"not ours")
    _write(tmp_path / "a.journal", 1)
    assert list(read_directory(tmp_path)) == [_step(1)]
    assert elsewhere.is_symlink()
    assert foreign.read_bytes() == b"not ours"
