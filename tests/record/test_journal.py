import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
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
    holds_journal,
    line_of,
    read,
    read_directory,
    salvage,
)
from holdfast.record.spool import Drops, Owner, Spool, SpoolName, journal_digest

OWNER = Owner.here(token="abcdefghijkl", run="night")
ANOTHER_UID = 65_534
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


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.mkdir()
    return path


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    """A place for spools that no other test looks at."""
    path = tmp_path / "shared-memory"
    path.mkdir()
    return path


def _leave_spool(journal: Path, spools: Path, *numbers: int, drops: Drops | None = None) -> Path:
    """What a killed process leaves."""
    name = SpoolName(journal_digest(journal), OWNER.token)
    spool = Spool.create(spools / str(name), OWNER, 10_000)
    for number in numbers:
        assert spool.put(line_of(encode(_step(number))))
    if drops is not None:
        spool.note(drops)
    spool.close()
    return spool.path


@contextmanager
def _files_no_longer_than(size_bytes: int) -> Iterator[None]:
    """A full disk for users who may not mount one: writing beyond this size fails in the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_a_journal_cut_at_any_byte_gives_back_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "cut.journal"
    for cut in range(len(WHOLE) + 1):
        path.write_bytes(WHOLE[:cut])
        whole_lines = WHOLE[:cut].count(b"\n")
        torn = cut > len(b"".join(LINES[:whole_lines]))
        items = list(read(path))
        assert items[:whole_lines] == EVENTS[:whole_lines]
        assert [isinstance(item, Damage) and item.torn for item in items[whole_lines:]] == [True] * torn


def _almost_events() -> st.SearchStrategy[bytes]:
    """An encoded event with a few bytes of it changed."""
    patches = st.tuples(st.sampled_from(EVENTS), st.integers(0, 150), st.binary(min_size=1, max_size=3))
    return patches.map(lambda patch: _patched(encode(patch[0]), patch[1], patch[2]))


def _patched(body: bytes, position: int, patch: bytes) -> bytes:
    return body[:position] + patch + body[position + len(patch) :]


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


@given(st.one_of(st.binary(max_size=200), _almost_events()))
def test_a_right_checksum_around_bytes_of_any_kind_is_read_without_an_exception(
    tmp_path_factory: pytest.TempPathFactory, body: bytes
) -> None:
    path = tmp_path_factory.mktemp("wrapped") / "wrapped.journal"
    path.write_bytes(line_of(body) + WHOLE)
    assert list(read(path))[-len(EVENTS) :] == EVENTS


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"step.committed","id":"a","occurred_ns":1,"step":1,"subject":"\xff"}',
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


@pytest.mark.parametrize("is_remade", [False, True])
@pytest.mark.parametrize("is_synced", [False, True])
def test_a_writer_whose_directory_was_removed_begins_a_new_file(
    journal: Path, is_synced: bool, is_remade: bool
) -> None:
    writer = JournalWriter(journal, "aaaa")
    writer.write(LINES[0])
    if is_synced:
        writer.sync()
    shutil.rmtree(journal)
    if is_remade:
        journal.mkdir()
    writer.sync()
    writer.write(LINES[1])
    writer.sync()
    shutil.rmtree(journal)
    writer.write(LINES[2])  # nor does it need a sync to notice
    writer.close()
    assert list(read_directory(journal)) == [EVENTS[2]]


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_writer_whose_directory_was_moved_goes_on_in_a_new_one(journal: Path, is_synced: bool) -> None:
    writer = JournalWriter(journal, "aaaa")
    writer.write(LINES[0])
    if is_synced:
        writer.sync()
    moved = journal.rename(journal.with_name("journal.old"))
    writer.write(LINES[1])
    writer.sync()
    writer.close()
    assert list(read_directory(moved)) == [EVENTS[0]]
    assert list(read_directory(journal)) == [EVENTS[1]]


@pytest.mark.root
def test_a_writer_that_cannot_sync_its_directory_begins_a_new_file() -> None:
    """As after any failed sync: it is unknown how much of the file would survive a loss of power."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, ANOTHER_UID, ANOTHER_UID)
        Path(name).chmod(0o300)  # to be written to, but not to be opened itself
        os.seteuid(ANOTHER_UID)
        try:
            writer = JournalWriter(Path(name), "aaaa")
            writer.write(LINES[0])
            with pytest.raises(PermissionError):
                writer.sync()
            writer.write(LINES[1])
            writer.close()
        finally:
            os.seteuid(0)
        assert sorted(path.name for path in Path(name).iterdir()) == [
            "aaaa-000000.journal",
            "aaaa-000001.journal",
        ]


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
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(InputError, match="cannot be read: Too many levels"):
        list(read_directory(tmp_path / "circle"))
    (tmp_path / "folder.journal").mkdir()
    _write(tmp_path / "sound.journal", 1)
    assert list(read_directory(tmp_path)) == [
        Damage(file=str(tmp_path / "folder.journal"), line=0, reason="cannot be read: Is a directory"),
        _step(1),
    ]


def test_a_relative_journal_in_a_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match="The journal journal cannot be read: No such file"):
        list(read_directory(Path("journal")))


def test_a_file_whose_name_is_no_text_is_not_read_and_told_of(tmp_path: Path) -> None:
    """No store could keep its offset; and what is told must be fit to be told, as JSON too."""
    _write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff-000000.journal")), 1)
    _write(tmp_path / "größe.journal", 2)
    offsets: dict[str, int] = {}
    step, damage = read_directory(tmp_path, offsets)
    assert step == _step(2)
    assert isinstance(damage, Damage)
    assert msgspec.json.decode(msgspec.json.encode(damage), type=Damage) == damage
    assert (damage.file, damage.line) == (f"{tmp_path}/\\xff-000000.journal", 0)
    assert list(offsets) == ["größe.journal"]


def test_a_dead_spool_becomes_a_journal_file(journal: Path, spools: Path) -> None:
    _write(journal / f"{OWNER.token}-000000.journal", 1)
    _leave_spool(journal, spools, 2, 3)
    assert _steps(read_directory(journal, spool_directory=spools)) == [1, 2, 3]
    assert list(spools.iterdir()) == []
    assert sorted(path.name for path in journal.iterdir()) == [
        f"{OWNER.token}-000000.journal",
        f"{OWNER.token}-salvaged.journal",
    ]


def test_an_empty_dead_spool_leaves_nothing(journal: Path, spools: Path) -> None:
    _leave_spool(journal, spools)
    assert salvage(journal, spools) == 1
    assert list(spools.iterdir()) == list(journal.iterdir()) == []


def test_a_spool_is_found_though_its_journal_was_never_made_or_is_gone(tmp_path: Path, spools: Path) -> None:
    journal = tmp_path / "no" / "journal"
    _leave_spool(journal, spools, 1)
    assert _steps(read_directory(journal, spool_directory=spools)) == [1]
    assert [path.name for path in journal.iterdir()] == [f"{OWNER.token}-salvaged.journal"]


def test_a_living_spool_is_read_though_its_journal_is_not_made_yet(tmp_path: Path, spools: Path) -> None:
    journal = tmp_path / "journal"
    living = Spool.adopt(_leave_spool(journal, spools, 1), {os.geteuid()})
    assert living is not None
    assert _steps(read_directory(journal, spool_directory=spools)) == [1]
    assert not journal.exists()
    living.close()


def test_a_spool_is_found_over_a_link_to_its_journal(journal: Path, spools: Path, tmp_path: Path) -> None:
    _leave_spool(journal, spools, 1)
    (tmp_path / "link").symlink_to(journal)
    assert _steps(read_directory(tmp_path / "link", spool_directory=spools)) == [1]


def test_a_spool_is_found_by_its_process_when_the_journal_has_moved(journal: Path, spools: Path) -> None:
    _write(journal / f"{OWNER.token}-000000.journal", 1)
    _leave_spool(journal, spools, 2)
    moved = journal.rename(journal.with_name("journal.old"))
    assert _steps(read_directory(moved, spool_directory=spools)) == [1, 2]


def test_a_spool_of_another_journal_is_left_alone(journal: Path, spools: Path, tmp_path: Path) -> None:
    spool = _leave_spool(tmp_path / "another", spools, 1)
    _write(journal / "bbbbbbbbbbbb-000000.journal", 2)
    assert _steps(read_directory(journal, spool_directory=spools)) == [2]
    assert spool.exists()


def test_a_spool_in_the_journal_itself_is_found(journal: Path, spools: Path, tmp_path: Path) -> None:
    """By whatever path it was known: there was no room for it in shared memory."""
    _leave_spool(tmp_path / "as-the-container-knew-it", journal, 1)
    assert holds_journal(journal)
    assert _steps(read_directory(journal, spool_directory=spools)) == [1]
    assert [path.suffix for path in journal.iterdir()] == [".journal"]


def test_drops_that_a_dead_process_could_not_tell_of_are_told(journal: Path, spools: Path) -> None:
    _leave_spool(journal, spools, 1, drops=Drops(total=5, reported=2, last_ns=77))
    step, notice = read_directory(journal, spool_directory=spools)
    assert step == _step(1)
    assert isinstance(notice, FaultObserved)
    assert (notice.fault, notice.severity) == ("recorder-dropped", "degraded")
    assert (notice.run, notice.subject, notice.occurred_ns) == ("night", OWNER.source, 77)
    assert notice.detail.startswith("events dropped: 3,")


def test_many_readers_at_once_salvage_once_and_each_sees_everything(tmp_path: Path) -> None:
    for attempt in range(20):
        journal = tmp_path / str(attempt) / "journal"
        spools = tmp_path / str(attempt) / "spools"
        journal.mkdir(parents=True)
        spools.mkdir()
        _leave_spool(journal, spools, 1, 2, 3)
        start = threading.Barrier(4)

        def read_steps(
            journal: Path = journal, spools: Path = spools, start: threading.Barrier = start
        ) -> set[int]:
            start.wait(20)
            return set(_steps(read_directory(journal, spool_directory=spools)))

        with ThreadPoolExecutor(4) as pool:
            results = [future.result() for future in [pool.submit(read_steps) for _ in range(4)]]
        assert results == [{1, 2, 3}] * 4
        assert [path.name for path in journal.iterdir()] == [f"{OWNER.token}-salvaged.journal"]
        assert _steps(read_directory(journal, spool_directory=spools)) == [1, 2, 3]


def test_a_spool_that_cannot_be_written_out_is_read_where_it_is(journal: Path, spools: Path) -> None:
    spool = _leave_spool(journal, spools, 1, 2)
    with _files_no_longer_than(10):
        assert _steps(read_directory(journal, spool_directory=spools)) == [1, 2]
    assert spool.exists()
    assert _steps(read_directory(journal, spool_directory=spools)) == [1, 2]
    assert not spool.exists()


def test_what_only_looks_like_a_spool_is_told_of_and_left_alone(journal: Path, spools: Path) -> None:
    names = [str(SpoolName(journal_digest(journal), token * 12)) for token in "abc"]
    (spools / names[0]).symlink_to(spools / names[0])
    (spools / names[1]).write_bytes(b"not ours")
    (spools / names[2]).symlink_to(journal / "target")
    (spools / "holdfast-a.spool").symlink_to("holdfast-a.spool")
    _write(journal / "a.journal", 1)
    step, *damages = read_directory(journal, spool_directory=spools)
    assert step == _step(1)
    assert [(damage.file, damage.line) for damage in damages if isinstance(damage, Damage)] == [
        (str(spools / name), 0) for name in names
    ]
    assert len(list(spools.iterdir())) == 4
    assert [path.name for path in journal.iterdir()] == ["a.journal"]


@pytest.mark.root
def test_a_spool_that_somebody_else_made_is_neither_believed_nor_removed(journal: Path, spools: Path) -> None:
    """Shared memory is anybody's to write to, and names of spools are no secret."""
    spool = _leave_spool(journal, spools, 1)
    spool.chmod(0o666)
    os.chown(spool, ANOTHER_UID, ANOTHER_UID)
    (damage,) = read_directory(journal, spool_directory=spools)
    assert isinstance(damage, Damage)
    assert damage.file == str(spool)
    assert damage.reason == "a process's last events: not a file of a trusted user"
    assert spool.exists()
    assert list(journal.iterdir()) == []


@pytest.mark.root
def test_root_salvages_for_whoever_the_journal_belongs_to(journal: Path, spools: Path) -> None:
    spool = _leave_spool(journal, spools, 1)
    for path in (spool, journal):
        os.chown(path, ANOTHER_UID, ANOTHER_UID)
    assert _steps(read_directory(journal, spool_directory=spools)) == [1]
    assert not spool.exists()


@pytest.mark.root
def test_a_reader_who_may_not_look_into_a_spool_says_so() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        journal, spools = Path(name) / "journal", Path(name) / "spools"
        journal.mkdir()
        spools.mkdir()
        _leave_spool(journal, spools, 1)
        os.seteuid(ANOTHER_UID)
        try:
            (damage,) = read_directory(journal, spool_directory=spools)
        finally:
            os.seteuid(0)
        assert isinstance(damage, Damage)
        assert damage.reason == "a process's last events: Permission denied"
        assert _steps(read_directory(journal, spool_directory=spools)) == [1]


def test_salvaging_writes_through_no_link_that_lies_in_wait(journal: Path, spools: Path) -> None:
    precious = journal.with_name("precious")
    precious.write_text("keep")
    for suffix in ("draft", "journal"):
        (journal / f"{OWNER.token}-salvaged.{suffix}").symlink_to(precious)
    _leave_spool(journal, spools, 1)
    assert _steps(read_directory(journal, spool_directory=spools)) == [1]
    assert precious.read_text() == "keep"
