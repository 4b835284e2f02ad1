"""One suite for both stores, against real databases; then what each does when its database is broken."""

import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantity import examples, sampled
from waiting import WAIT_S

from holdfast.record.errors import HoldfastError, InputError, StoreError
from holdfast.record.events import (
    ID_CHARS_MAX,
    NAME_CHARS_MAX,
    AnyEvent,
    Correction,
    FaultObserved,
    IncidentDiagnosed,
    MemberJoined,
    RunStarted,
    StepCommitted,
    Unknown,
    decode,
    encode,
    kind_of,
)
from holdfast.record.postgres import PostgresStore
from holdfast.record.sql import BATCH_EVENTS
from holdfast.record.sqlite import SqliteStore, is_on_network
from holdfast.record.store import Ingested, RunSummary, Selection, Store
from holdfast.record.stores import open_store

pytestmark = pytest.mark.slow


FreshUrl = Callable[[], str]

EVENTS: list[AnyEvent] = [
    RunStarted(id="a-1", occurred_ns=10, run="night", gpus=8),
    MemberJoined(id="a-2", occurred_ns=30, run="night", subject="m0", node="n1"),
    StepCommitted(id="a-4", occurred_ns=20, run="night", step=1),
    StepCommitted(id="a-3", occurred_ns=20, run="night", step=2),
    FaultObserved(id="b-1", occurred_ns=25, recorded_ns=26, source="h/1", subject="n1", fault="xid 79"),
    FaultObserved(id="c-1", occurred_ns=40, run="day", subject="n1", fault="Größe \N{CRESCENT MOON}\x00"),
    decode(b'{"kind":"moon.phase","id":"d-1","occurred_ns":15,  "run":"day","phase":["new"],"schema":7}'),
]
BY_TIME = ["a-1", "d-1", "a-3", "a-4", "b-1", "a-2", "c-1"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def fresh_url(request: pytest.FixtureRequest, tmp_path: Path) -> FreshUrl:
    """Makes a place for a new store at each call."""
    if request.param == "postgres":
        make: FreshUrl = request.getfixturevalue("postgres_database")
        return make
    numbers = count()
    return lambda: f"sqlite://{tmp_path}/{next(numbers)}.sqlite"


@pytest.fixture
def url(fresh_url: FreshUrl) -> str:
    return fresh_url()


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    with open_store(url, tmp_path) as store:
        yield store


def _steps(number: int, *, token: str = "s", run: str = "night") -> Iterator[StepCommitted]:
    return (
        StepCommitted(id=f"{token}-{step:010x}", occurred_ns=1_000 + step, run=run, step=step)
        for step in range(number)
    )


def _ids(events: Iterable[AnyEvent]) -> list[str]:
    return [event.id for event in events]


def _content(store: Store) -> tuple[list[bytes], list[RunSummary], dict[str, int]]:
    return [encode(event) for event in store.select()], store.runs(), store.marks()


# What a store does.


def test_a_new_store_is_empty(store: Store) -> None:
    assert _content(store) == ([], [], {})
    assert list(store.since(0)) == []
    assert store.end() == 0


def test_events_come_back_by_time_and_id_with_every_byte(store: Store) -> None:
    assert store.ingest(EVENTS) == Ingested(new=7, known=0, conflicting=0)
    assert _ids(store.select()) == BY_TIME
    assert {encode(event) for event in store.select()} == {encode(event) for event in EVENTS}
    assert list(store.select(Selection(kinds=("moon.phase",)))) == [EVENTS[-1]]


def test_the_same_events_again_change_nothing(store: Store) -> None:
    store.ingest(EVENTS, marks={"journal": 1})
    before = _content(store), list(store.since(0))
    assert store.ingest(reversed(EVENTS)) == Ingested(new=0, known=7, conflicting=0)
    assert store.ingest([*EVENTS[:3], *EVENTS[:3]]) == Ingested(new=0, known=6, conflicting=0)
    assert (_content(store), list(store.since(0))) == before


def test_of_two_events_with_one_id_the_first_is_kept(store: Store) -> None:
    first = StepCommitted(id="s-1", occurred_ns=5, run="night", step=1)
    other = StepCommitted(id="s-1", occurred_ns=9, run="day", step=2)
    assert store.ingest([first, other, first]) == Ingested(new=1, known=1, conflicting=1)
    assert store.ingest([other, *_steps(1)]) == Ingested(new=1, known=0, conflicting=1)
    assert next(store.select()) == first
    assert [summary.run for summary in store.runs()] == ["night"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(run="night"), ["a-1", "a-3", "a-4", "a-2"]),
        (Selection(run=""), ["b-1"]),
        (Selection(run="dusk"), []),
        (Selection(subject="n1"), ["b-1", "c-1"]),
        (Selection(subject=""), ["a-1", "d-1", "a-3", "a-4"]),
        (Selection(run="day", subject="n1"), ["c-1"]),
        (Selection(kinds=("step.committed",)), ["a-3", "a-4"]),
        (Selection(kinds=("fault.observed", "run.started")), ["a-1", "b-1", "c-1"]),
        (Selection(run="night", kinds=("step.committed", "run.started")), ["a-1", "a-3", "a-4"]),
        (Selection(subject="n1", kinds=("member.joined",)), []),
        (Selection(since_ns=20, until_ns=30), ["a-3", "a-4", "b-1"]),
        (Selection(run="night", since_ns=21), ["a-2"]),
        (Selection(subject="n1", until_ns=40), ["b-1"]),
        (Selection(since_ns=-(2**90), until_ns=2**90), BY_TIME),
        (Selection(since_ns=2**90), []),
    ],
)
def test_a_selection_restricts(store: Store, selection: Selection, expected: list[str]) -> None:
    store.ingest(EVENTS)
    assert _ids(store.select(selection)) == expected
    assert _ids(store.select(selection, limit=2)) == expected[:2]
    assert sorted(event.id for _, event in store.since(0, selection)) == sorted(expected)


def test_since_goes_on_where_it_stopped(store: Store) -> None:
    store.ingest(EVENTS[:3])
    arrived = list(store.since(0))
    assert [event for _, event in arrived] == EVENTS[:3]
    cursor = arrived[-1][0]
    assert list(store.since(cursor)) == []
    store.ingest(EVENTS)
    assert [event for _, event in store.since(cursor)] == EVENTS[3:]
    assert _ids(event for _, event in store.since(cursor, Selection(run="night"))) == ["a-3"]
    assert list(store.since(arrived[0][0]))[:2] == arrived[1:]


def test_the_end_is_where_the_next_one_arrives(store: Store) -> None:
    store.ingest(EVENTS)
    end = store.end()
    assert end == list(store.since(0))[-1][0]
    store.ingest(reversed(EVENTS))  # takes numbers in PostgreSQL, and adds nothing
    assert store.end() == end
    store.ingest(_steps(1))
    assert [event for _, event in store.since(end)] == list(_steps(1))
    assert store.end() == list(store.since(end))[-1][0]


def test_the_longest_names_are_kept(store: Store) -> None:
    # Four bytes a character, and nothing that a database could compress.
    generator = random.Random(1)

    def name(chars: int) -> str:
        return "".join(chr(generator.randrange(0x10000, 0x110000)) for _ in range(chars))

    run, subject, source = (name(NAME_CHARS_MAX) for _ in range(3))
    event = FaultObserved(
        id=name(ID_CHARS_MAX), occurred_ns=2**62, run=run, subject=subject, source=source, fault="xid 79"
    )
    store.ingest([event])
    assert list(store.select(Selection(run=run, subject=subject))) == [event]
    assert list(store.select(Selection(subject=subject, kinds=("fault.observed",)))) == [event]


def test_what_no_read_could_give_back_is_refused(store: Store) -> None:
    unreadable: list[AnyEvent] = [
        StepCommitted(id="i" * (ID_CHARS_MAX + 1), occurred_ns=1, step=1),
        StepCommitted(id="", occurred_ns=1, step=1),
        StepCommitted(id="x", occurred_ns=1, run="r" * (NAME_CHARS_MAX + 1), step=1),
        StepCommitted(id="x", occurred_ns=1, subject="s" * (NAME_CHARS_MAX + 1), step=1),
        StepCommitted(id="x", occurred_ns=1, source="h" * 100_000, step=1),
        StepCommitted(id="x", occurred_ns=2**63, step=1),
        StepCommitted(id="x", occurred_ns=1, step=-1),
        Unknown(id="x", occurred_ns=1, kind="moon.phase"),
    ]
    for event in unreadable:
        told = _refusal(partial(store.ingest, [EVENTS[0], event], marks={"journal": 5}), InputError)
        assert told.startswith(f"The event {event.id[:ID_CHARS_MAX]!r} cannot be kept: ")
    assert _content(store) == ([], [], {})
    assert store.ingest(EVENTS).new == len(EVENTS)
    assert _ids(store.select()) == BY_TIME


def test_runs_are_counted_and_the_newest_comes_first(store: Store) -> None:
    store.ingest(EVENTS[:5])
    assert store.runs() == [RunSummary(run="night", events=4, first_ns=10, last_ns=30)]
    store.ingest(EVENTS)
    store.ingest([StepCommitted(id="e-1", occurred_ns=5, run="night", step=3)])
    assert store.runs() == [
        RunSummary(run="day", events=2, first_ns=15, last_ns=40),
        RunSummary(run="night", events=5, first_ns=5, last_ns=30),
    ]


def _opinion(number: int, at_ns: int, run: str = "night") -> IncidentDiagnosed:
    return IncidentDiagnosed(
        id=f"o-{number}", occurred_ns=at_ns, run=run, incident=f"{run}/s1", state="open", diagnosis="{}"
    )


def test_an_opinion_about_a_run_is_kept_and_makes_it_neither_longer_nor_newer(store: Store) -> None:
    store.ingest([_opinion(1, 5), *EVENTS, _opinion(2, 2**61)])
    store.ingest([_opinion(3, 2**62), _opinion(4, 1)])
    assert store.runs() == [
        RunSummary(run="day", events=2, first_ns=15, last_ns=40),
        RunSummary(run="night", events=4, first_ns=10, last_ns=30),
    ]
    assert _ids(store.select(Selection(since_ns=41))) == ["o-2", "o-3"]
    kinds = ("incident.diagnosed", "fault.observed")
    assert _ids(store.select(Selection(kinds=kinds, until_ns=10))) == ["o-4", "o-1"]


def test_a_run_of_which_there_are_only_opinions_comes_last_until_it_has_an_event(store: Store) -> None:
    store.ingest([_opinion(1, 70, "dusk"), *EVENTS])
    store.ingest([_opinion(2, 60, "dusk")])
    assert store.runs()[-1] == RunSummary(run="dusk", events=0, first_ns=60, last_ns=70)
    store.ingest([StepCommitted(id="e-1", occurred_ns=65, run="dusk", step=1)])
    assert store.runs()[0] == RunSummary(run="dusk", events=1, first_ns=65, last_ns=65)


def test_the_last_mark_counts(store: Store) -> None:
    store.ingest([], marks={"a": 1, "b": 2**62})
    store.ingest(EVENTS, marks={"a": 7})
    store.ingest([], marks={"a": 3})
    assert store.marks() == {"a": 3, "b": 2**62}


def test_marks_may_grow_while_events_are_drawn(store: Store) -> None:
    marks: dict[str, int] = {}

    def drawing() -> Iterator[AnyEvent]:
        for event in EVENTS:
            yield event
            marks["journal"] = marks.get("journal", 0) + len(encode(event))

    store.ingest(drawing(), marks=marks)
    assert store.marks() == {"journal": sum(len(encode(event)) for event in EVENTS)}


@pytest.mark.parametrize("number", [BATCH_EVENTS, 2 * BATCH_EVENTS + 1])
def test_batches_do_not_show(store: Store, number: int) -> None:
    assert store.ingest(_steps(number), marks={"journal": 5}) == Ingested(new=number, known=0, conflicting=0)
    expected = list(_steps(number))
    assert list(store.select()) == expected
    assert [event for _, event in store.since(0)] == expected
    assert store.runs() == [RunSummary(run="night", events=number, first_ns=1_000, last_ns=999 + number)]
    assert store.marks() == {"journal": 5}


def test_an_input_that_breaks_leaves_whole_batches_and_no_mark(store: Store) -> None:
    def breaking() -> Iterator[AnyEvent]:
        yield from _steps(BATCH_EVENTS + 1)
        raise ConnectionError("the input broke")

    with pytest.raises(ConnectionError):
        store.ingest(breaking(), marks={"journal": 5})
    assert len(list(store.select())) == BATCH_EVENTS
    assert store.marks() == {}
    assert store.ingest(_steps(BATCH_EVENTS + 1)).new == 1


def test_a_read_sees_the_store_as_it_was_and_does_not_stop_writing(store: Store) -> None:
    store.ingest(_steps(20))
    for number, event in enumerate(store.select()):
        assert isinstance(event, StepCommitted)
        store.ingest([Correction(id=f"x-{number}", occurred_ns=10**9, run="night", target=event.id)])
    assert store.runs() == [RunSummary(run="night", events=40, first_ns=1_000, last_ns=10**9)]


def test_a_read_may_be_given_up(store: Store) -> None:
    store.ingest(_steps(50))
    reading = store.select()
    assert _ids(islice(reading, 3)) == _ids(_steps(3))
    del reading
    assert store.ingest(_steps(51)).new == 1


def test_a_store_outlives_its_opening(url: str, tmp_path: Path) -> None:
    with open_store(url, tmp_path) as store:
        store.ingest(EVENTS, marks={"journal": 9})
        content = _content(store)
    with open_store(url, tmp_path) as store:
        assert _content(store) == content


# Any selection from any events is what a plain filter would give.

_NAMES = st.sampled_from(
    ["", "a", "A", "é", "z", "\x00", "\x01", "\x01\x02", "a\x00", "'; --", "%s ?"]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
_TIMES = st.integers(0, 12) | st.sampled_from([2**62])
_KINDS = (StepCommitted, RunStarted, FaultObserved)


@st.composite
def _events(draw: st.DrawFn) -> AnyEvent:
    envelope = {
        "id": draw(_NAMES.filter(bool)),
        "occurred_ns": draw(_TIMES),
        "run": draw(_NAMES),
        "subject": draw(_NAMES),
        "step": draw(st.integers(0, 3)),
        "fault": "",
        "kind": draw(st.sampled_from([*(kind.__struct_config__.tag for kind in _KINDS), "moon.phase"])),
    }
    return decode(msgspec.json.encode(envelope))


_SELECTIONS = st.builds(
    Selection,
    run=st.none() | _NAMES,
    subject=st.none() | _NAMES,
    kinds=st.lists(st.sampled_from(["step.committed", "run.started", "moon.phase"]), max_size=2).map(tuple),
    since_ns=st.none() | _TIMES,
    until_ns=st.none() | _TIMES,
)


def _holds(selection: Selection, event: AnyEvent) -> bool:
    return (
        selection.run in (None, event.run)
        and selection.subject in (None, event.subject)
        and (not selection.kinds or kind_of(event) in selection.kinds)
        and (selection.since_ns is None or event.occurred_ns >= selection.since_ns)
        and (selection.until_ns is None or event.occurred_ns < selection.until_ns)
    )


@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=st.lists(_events(), max_size=30), selections=st.lists(_SELECTIONS, min_size=1, max_size=4))
def test_a_selection_is_a_filter(
    fresh_url: FreshUrl, tmp_path: Path, events: list[AnyEvent], selections: list[Selection]
) -> None:
    kept: dict[str, AnyEvent] = {}
    for event in events:
        kept.setdefault(event.id, event)
    conflicting = sum(encode(event) != encode(kept[event.id]) for event in events)
    runs = {event.run for event in kept.values()} - {""}
    with open_store(fresh_url(), tmp_path) as store:
        known = len(events) - len(kept) - conflicting
        assert store.ingest(events) == Ingested(new=len(kept), known=known, conflicting=conflicting)
        assert {summary.run for summary in store.runs()} == runs
        for selection in [Selection(), *selections]:
            expected = [event for event in kept.values() if _holds(selection, event)]
            assert [event for _, event in store.since(0, selection)] == expected
            expected.sort(key=lambda event: (event.occurred_ns, event.id))
            assert list(store.select(selection)) == expected


# Several processes, some of which die.

_CHILD = """
import sys
from itertools import islice
from pathlib import Path
from holdfast.record.events import StepCommitted
from holdfast.record.stores import open_store

url, token, number, chunk, moment = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])

def steps():
    for step in range(number):
        if step == moment:
            print("now", flush=True)
        yield StepCommitted(id=f"{token}-{step:010x}", occurred_ns=1_000 + step, run="night", step=step)

with open_store(url, Path()) as store:
    events = steps()
    while batch := islice(events, chunk):
        if not store.ingest(batch, marks={token: number} if chunk >= number else {}).new:
            break
"""


def _ingesting(
    url: str, token: str, number: int, *, chunk: int, moment: int = -1
) -> "subprocess.Popen[bytes]":
    """A process that ingests `number` steps, `chunk` at a time, and says so just before the step `moment`."""
    words = [url, token, str(number), str(chunk), str(moment)]
    return subprocess.Popen([sys.executable, "-c", _CHILD, *words], stdout=subprocess.PIPE)


def _finished(process: "subprocess.Popen[bytes]") -> int:
    with process:
        return process.wait(WAIT_S)


@pytest.mark.parametrize("seed", sampled(range(5), [0]))
def test_ingest_may_be_killed_at_any_moment(url: str, tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    number = 2 * BATCH_EVENTS + 5_000
    child = _ingesting(url, "s", number, chunk=number, moment=generator.randrange(number))
    assert child.stdout is not None
    assert child.stdout.readline() == b"now\n"
    time.sleep(generator.uniform(0, 0.1))
    child.send_signal(signal.SIGKILL)
    assert _finished(child) in (-signal.SIGKILL, 0)

    expected = list(_steps(number))
    with open_store(url, tmp_path) as store:
        marks, left = store.marks(), list(store.select())
        assert left == expected[: len(left)]
        assert marks == {} or (marks == {"s": number} and left == expected)
        assert [summary.events for summary in store.runs()] == ([len(left)] if left else [])
        again = store.ingest(_steps(number), marks={"s": number})
        assert again == Ingested(new=number - len(left), known=len(left), conflicting=0)
        assert list(store.select()) == expected
        assert store.marks() == {"s": number}
        assert store.runs() == [RunSummary(run="night", events=number, first_ns=1_000, last_ns=999 + number)]


def test_a_follower_misses_nothing_of_concurrent_writers(url: str, tmp_path: Path) -> None:
    number = 300
    writers = [_ingesting(url, token, number, chunk=3) for token in ("s", "t", "u")]
    seen: list[AnyEvent] = []
    with open_store(url, tmp_path) as store:
        cursor, is_over = 0, False
        while not is_over:
            is_over = all(writer.poll() is not None for writer in writers)
            end = store.end()
            for arrival, event in store.since(cursor):
                cursor = arrival
                seen.append(event)
            cursor = max(cursor, end)
        assert [_finished(writer) for writer in writers] == [0, 0, 0]
        assert [event for _, event in store.since(0)] == seen
    for token in ("s", "t", "u"):
        assert [event for event in seen if event.id.startswith(token)] == list(_steps(number, token=token))


def test_processes_may_make_a_store_at_once_and_ingest_the_same(url: str, tmp_path: Path) -> None:
    writers = [_ingesting(url, "s", 3_000, chunk=3_000) for _ in range(4)]
    assert [_finished(writer) for writer in writers] == [0] * 4
    with open_store(url, tmp_path) as store:
        assert list(store.select()) == list(_steps(3_000))
        assert store.runs() == [RunSummary(run="night", events=3_000, first_ns=1_000, last_ns=3_999)]


# What is told when a store cannot be used.


def _refusal(attempt: Callable[[], object], kind: type[HoldfastError] = StoreError) -> str:
    with pytest.raises(kind) as caught:
        attempt()
    assert caught.value.hint
    sentence: str = caught.value.sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def _locked_for(url: str, wait_s: float) -> Store:
    if url.startswith("sqlite"):
        return SqliteStore(Path(urlsplit(url).path), lock_wait_s=wait_s)
    return PostgresStore(url, lock_wait_s=wait_s)


_HOLD_LOCK = {
    "sqlite": "import sqlite3; c = sqlite3.connect(sys.argv[1][9:]); c.execute('BEGIN IMMEDIATE')",
    "postgresql": "import psycopg; c = psycopg.connect(sys.argv[1]);"
    " c.execute('LOCK TABLE holdfast.store IN EXCLUSIVE MODE')",
}


@contextmanager
def _writer_that_hangs(url: str) -> Iterator[None]:
    """Another process with the lock that every writer takes."""
    script = f"import sys; {_HOLD_LOCK[urlsplit(url).scheme]}; print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.kill()


def test_a_locked_store_is_given_up_in_bounded_time(url: str) -> None:
    with _locked_for(url, 0.2) as store:
        with _writer_that_hangs(url):  # for as long as it takes to be refused
            assert "is locked by another process" in _refusal(lambda: store.ingest(EVENTS))
        assert store.ingest(EVENTS).new == len(EVENTS)


def test_a_locked_store_can_be_read_and_take_in_nothing_new(url: str, tmp_path: Path) -> None:
    with open_store(url, tmp_path) as store:
        store.ingest(EVENTS, marks={"a": 1, "b": 2})
        content = _content(store)
    with _writer_that_hangs(url), _locked_for(url, 0.2) as store:
        assert store.ingest([], marks={"a": 1, "b": 2}) == Ingested(new=0, known=0, conflicting=0)
        assert _content(store) == content
        assert "is locked by another process" in _refusal(lambda: store.ingest([], marks={"a": 1, "b": 3}))


def _set_schema_version(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(urlsplit(url).path)) as connection:
            connection.execute("PRAGMA user_version = 2")
    else:
        with psycopg.connect(url) as client:
            client.execute("UPDATE holdfast.store SET schema_version = 2")


def test_a_newer_schema_is_refused(url: str, tmp_path: Path) -> None:
    open_store(url, tmp_path).close()
    _set_schema_version(url)
    assert "newer Holdfast: it has schema 2, not 1" in _refusal(lambda: open_store(url, tmp_path))


def _damage_a_body(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(urlsplit(url).path)) as connection, connection:
            connection.execute("UPDATE events SET body = x'7b'")
    else:
        with psycopg.connect(url) as client:
            client.execute(r"UPDATE holdfast.events SET body = '\x7b'")


def test_bytes_that_are_no_event_are_told(store: Store, url: str) -> None:
    store.ingest(EVENTS)
    _damage_a_body(url)
    assert "is damaged: it holds bytes that are not an event" in _refusal(lambda: list(store.select()))
    assert "is damaged: it holds bytes that are not an event" in _refusal(lambda: list(store.since(0)))


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@host/db",
        "record.txt",
        "record",
        "",
        "sqlite://record.db",
        "sqlite:///",
        "sqlite:///%2F",
        "sqlite:///record%00.db",
        "sqlite:x.db",
        "sqlite://me:secret@host/record.db",
        "sqlite+pysqlite:///record.db",
        "postgresql+psycopg://me:secret@host/db",
        "my-sql://me:secret@host/record.db",
        "host=127.0.0.1 password=secret dbname=x",
        "host=127.0.0.1 password = secret dbname=record.db",
        "my.name:secret@host/db",
        "secret@host/db",
    ],
)
def test_what_names_no_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert "secret" not in _refusal(lambda: open_store(url, tmp_path), InputError)
    assert list(tmp_path.iterdir()) == []


def test_a_url_with_a_driver_is_told_how_to_be_written(tmp_path: Path) -> None:
    url = "postgresql+psycopg://me:secret@host/db"
    assert "plain postgresql://." in _refusal(lambda: open_store(url, tmp_path), InputError)


def test_a_name_that_holds_no_secret_is_repeated(tmp_path: Path) -> None:
    assert "'runs/record.txt'" in _refusal(lambda: open_store("runs/record.txt", tmp_path), InputError)


def test_paths_and_urls_lead_to_the_same_file(tmp_path: Path) -> None:
    with open_store(None, tmp_path / "deep" / "home") as store:
        store.ingest(EVENTS)
    path = tmp_path / "deep" / "home" / "record.sqlite"
    escaped = str(path).replace("record", "r%65cord")
    for url in (str(path), f"sqlite://{path}", f"sqlite:///{path}", f"sqlite://{escaped}"):
        with open_store(url, tmp_path) as store:
            assert len(list(store.select())) == len(EVENTS)


def test_a_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made" in _refusal(lambda: open_store(None, tmp_path / "file" / "home"))


# SQLite.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.sqlite"


@pytest.fixture
def filled(path: Path) -> Path:
    with SqliteStore(path) as store:
        store.ingest(_steps(5_000))
    return path


@pytest.mark.parametrize("size_bytes", [2, 99, 100, 5_000, 1_000_000])
def test_a_file_of_garbage_is_refused_and_left_alone(path: Path, size_bytes: int) -> None:
    garbage = random.Random(size_bytes).randbytes(size_bytes)
    path.write_bytes(garbage)
    assert "is not a SQLite database" in _refusal(lambda: SqliteStore(path))
    assert path.read_bytes() == garbage


def test_a_file_cut_in_half_is_refused(filled: Path) -> None:
    os.truncate(filled, filled.stat().st_size // 2)
    assert "is damaged" in _refusal(lambda: SqliteStore(filled))


def test_a_file_with_a_hole_in_it_is_told_when_it_is_met(filled: Path) -> None:
    with filled.open("r+b") as stream:
        stream.seek(filled.stat().st_size // 4)
        stream.write(b"\xa5" * (filled.stat().st_size // 2))
    assert "is damaged" in _refusal(lambda: list(SqliteStore(filled).select()))


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()  # what a process leaves that is killed while it makes one
    with SqliteStore(path) as store:
        assert store.ingest(EVENTS).new == len(EVENTS)


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (id TEXT)")
    before = path.read_bytes()
    assert "of another program" in _refusal(lambda: SqliteStore(path))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "cannot be opened" in _refusal(lambda: SqliteStore(tmp_path))


def test_a_missing_directory_is_told_and_not_made(tmp_path: Path) -> None:
    assert "cannot be opened" in _refusal(lambda: SqliteStore(tmp_path / "typo" / "record.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_removed_is_not_replaced_by_an_empty_one(filled: Path) -> None:
    with SqliteStore(filled) as store:
        for file in filled.parent.iterdir():
            file.unlink()
        assert "cannot be opened" in _refusal(lambda: list(store.select()))
    assert not filled.exists()


# As the kernel writes it in /proc/self/mountinfo, see proc_pid_mountinfo(5).
MOUNTS = r"""22 1 259:2 / / rw,relatime shared:1 - xfs /dev/nvme0n1p2 rw,attr2,inode64,logbufs=8
23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
31 22 0:27 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64
88 22 0:44 / /home rw,relatime shared:60 - autofs /etc/auto.home rw,fd=7,timeout=300,indirect
91 88 0:52 / /home/ada rw,relatime shared:63 - nfs4 filer:/home/ada rw,vers=4.2,hard,proto=tcp
92 88 0:53 /local /home/ada/local rw,relatime shared:64 master:2 - ext4 /dev/nvme1n1 rw
93 22 0:54 / /scratch rw,noatime shared:65 - lustre 10.1.0.1@o2ib:/scratch rw,flock,lazystatfs
94 22 0:55 / /mnt/big\040disk rw,relatime shared:66 - fuse.sshfs ada@far:/disk rw,user_id=1000
95 22 259:5 / /mnt/windows rw,relatime shared:67 - fuseblk /dev/nvme2n1p1 rw,user_id=0
96 22 259:6 / /data rw,relatime shared:68 - ext4 /dev/nvme3n1 rw
97 96 0:56 / /data rw,relatime shared:69 - gpfs data rw
"""


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("/var/lib/record.sqlite", False),
        ("/dev/shm/record.sqlite", False),
        ("/home/ada/.holdfast/record.sqlite", True),
        ("/home/ada/local/record.sqlite", False),
        ("/home/adam/record.sqlite", False),
        ("/scratch/record.sqlite", True),
        ("/mnt/big disk/record.sqlite", True),
        ("/mnt/windows/record.sqlite", False),
        ("/data/record.sqlite", True),
    ],
)
def test_a_network_filesystem_is_known_by_its_mount(place: str, expected: bool) -> None:
    assert is_on_network(Path(place), MOUNTS) is expected
    assert is_on_network(Path(place), "") is False


def _journal_mode(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        ((mode,),) = connection.execute("PRAGMA journal_mode")
        return str(mode)


def test_on_a_network_nothing_is_shared_but_the_file(path: Path) -> None:
    with SqliteStore(path, on_network=True) as store, SqliteStore(path, on_network=True) as other:
        assert store.ingest(EVENTS[:3]).new == 3
        assert other.ingest(EVENTS, marks={"journal": 1}).new == len(EVENTS) - 3
        assert _content(store) == _content(other)
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        assert _journal_mode(path) == "delete"


@pytest.mark.parametrize(("on_network", "mode"), [(True, "delete"), (False, "wal")])
def test_a_file_that_was_moved_gets_the_mode_of_its_new_place(
    path: Path, on_network: bool, mode: str
) -> None:
    with SqliteStore(path, on_network=not on_network) as store:
        store.ingest(EVENTS)
        content = _content(store)
    with SqliteStore(path, on_network=on_network) as store:
        assert _journal_mode(path) == mode
        assert _content(store) == content


def test_a_store_on_this_machine_has_a_log_beside_it(path: Path) -> None:
    with open_store(str(path), path.parent):
        assert _journal_mode(path) == "wal"


def test_the_tables_need_no_newer_library_than_is_asked_for(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as connection:
        schema = [text for (text,) in connection.execute("SELECT sql FROM sqlite_schema")]
    assert len(schema) > 3
    assert not any("STRICT" in (text or "") for text in schema)  # since 3.37


def test_an_older_library_is_refused(path: Path) -> None:
    script = (
        "import sqlite3, sys; from pathlib import Path; from holdfast.record.sqlite import SqliteStore\n"
        "sqlite3.sqlite_version_info, sqlite3.sqlite_version = (3, 33, 0), '3.33.0'\n"
        "try: SqliteStore(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    told = _run_python("-c", script, str(path))
    assert told == "StoreError SQLite 3.33.0 is too old for a store: 3.34 or newer is needed.\n"
    assert not path.exists()


_READ_THEN_WRITE = """
import sys
from pathlib import Path
from holdfast.record.errors import StoreError
from holdfast.record.events import StepCommitted
from holdfast.record.sqlite import SqliteStore

with SqliteStore(Path(sys.argv[1])) as store:
    print(len(list(store.select())))
    try:
        store.ingest([StepCommitted(id="new", occurred_ns=1, step=1)])
    except StoreError as error:
        print(error.sentence)
"""


def test_a_read_only_file_can_be_read_and_says_so_when_written(filled: Path) -> None:
    filled.chmod(0o444)
    # Root may write to any file, unless that one privilege is taken away.
    command = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    command += [sys.executable, "-c", _READ_THEN_WRITE, str(filled)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    number, sentence = done.stdout.splitlines()
    assert number == "5000"
    assert "may not be written" in sentence


# PostgreSQL.


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_an_unreachable_server_is_told(tmp_path: Path) -> None:
    url = f"postgresql://me:secret@127.0.0.1:{_closed_port()}/record"
    sentence = _refusal(lambda: open_store(url, tmp_path))
    assert "Connection refused" in sentence
    assert "secret" not in sentence


def test_a_wrong_password_is_told_without_it(postgres_server: str, tmp_path: Path) -> None:
    port = urlsplit(postgres_server).port
    url = f"postgres://holdfast:secret@127.0.0.1:{port}/postgres"
    sentence = _refusal(lambda: open_store(url, tmp_path))
    assert 'password authentication failed for user "holdfast"' in sentence
    assert "secret" not in sentence


def test_a_wrong_database_is_told(postgres_server: str, tmp_path: Path) -> None:
    sentence = _refusal(lambda: open_store(postgres_server + "typo", tmp_path))
    assert sentence.endswith('cannot be used: database "typo" does not exist.')
    assert "tide" not in sentence


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sec@ret@host/db",
        "postgresql://me:sec/ret@host/db",
        "postgresql://me:123/ret@host/db",
        "postgresql://me:sec%zzret@host/db",
        "postgresql://me:secret@[::1/db",
        "postgresql://me:secret@host:port/db",
    ],
)
def test_a_password_is_not_told_when_it_breaks_the_url(tmp_path: Path, url: str) -> None:
    sentence = _refusal(lambda: open_store(url, tmp_path), InputError)
    assert sentence == "The URL of the PostgreSQL store cannot be read."


def test_a_broken_connection_ends_a_read_and_no_write(postgres_database: FreshUrl, tmp_path: Path) -> None:
    url = postgres_database()
    with open_store(url, tmp_path) as store, psycopg.connect(url, autocommit=True) as killer:
        store.ingest(_steps(20_000))
        reading = store.select()
        next(reading)
        killer.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert "terminating connection" in _refusal(lambda: list(reading))
        assert store.ingest(EVENTS).new == len(EVENTS)


def test_without_psycopg_it_says_what_to_install(tmp_path: Path) -> None:
    # An interpreter that sees Holdfast and msgspec, and no other package.
    packages = tmp_path / "packages"
    packages.mkdir()
    for module in (msgspec, sys.modules["holdfast"]):
        assert module.__file__ is not None
        (packages / module.__name__).symlink_to(Path(module.__file__).parent)
    script = (
        "from pathlib import Path; from holdfast.record.stores import open_store\n"
        "try: open_store('postgresql://host/db', Path())\n"
        "except Exception as error: print(type(error).__name__, error.hint)"
    )
    done = _run_python("-S", "-c", script, environment={"PYTHONPATH": str(packages)})
    assert done == "InputError Run `pip install 'psycopg[binary]'`.\n"


def test_importing_the_store_imports_no_driver() -> None:
    script = "import sys, holdfast.record.store; print({'psycopg', 'sqlite3'} & sys.modules.keys())"
    assert _run_python("-c", script) == "set()\n"


def _run_python(*words: str, environment: Mapping[str, str] = {}) -> str:
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
    ).stdout
