"""The way in: which format a file is in, what is refused and how, and that no bytes at all break it."""

import json
import os
import time
import tracemalloc
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent, StepCommitted, decode, encode
from holdfast.record.importers import Imported, Options, detect, import_file
from holdfast.record.importers.intake import SKIPPED_SHOWN_MAX
from holdfast.record.journal import line_of

DATA = Path(__file__).parents[2] / "data"
GOOGLE = DATA / "google-70b-112-nodes-events.jsonl"
SACCT = DATA / "slurm" / "sacct.txt"
TRACE = DATA / "infinitehbd-fault-trace.json"
OWN = b'{"kind":"step.committed","id":"h-1","occurred_ns":5,"run":"llm","step":3}'
TABLE = b"time,kind,run,step\n2025-04-02T06:08:24Z,step.committed,llm,3\n"
JOURNAL = [
    line_of(encode(StepCommitted(id=f"h-{step}", occurred_ns=step, run="llm", step=step)))
    for step in range(50)
]


class Told(Imported, frozen=True, kw_only=True):
    """A reading that was drawn to its end."""

    events: tuple[AnyEvent, ...]


def told(path: Path, options: Options | None = None) -> Told:
    with import_file(path, options or Options()) as reading:
        events = tuple(reading)
    return Told(events=events, **msgspec.structs.asdict(reading.imported()))


def told_through_a_pipe(folder: Path, content: bytes) -> Told:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=[content])
    writer.start()
    imported = told(pipe)
    writer.join()
    return imported


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (b'0a1b2c3d {"kind":"step.committed"}', "journal"),
        (b'\n\n{"timestamp": "x", "job_name": "j", "event_type": "e", "step": 5}', "google-resiliency"),
        (b'ut":5}\n\x00\xff\n0a1b2c3d {"kind":"step.committed"}\n', "journal"),
        (b'{"ut":5}\n0a1b2c3d {"kind":"step.committed"}\n', "journal"),
        (b'cut": 5}\n', None),
        (b'{"cut": \n' + OWN, "jsonl"),
        (b'{"step": 1, "time": 5}\n{"event_type": 1}', "jsonl"),
        (OWN, "jsonl"),
        (TABLE, "csv"),
        (b'"Time";"Step"\r\n1;2', "csv"),
        (b"occurred_ns\tstep\n1\t2", "csv"),
        (b"JobID|State|Start|End\n1|COMPLETED||", "sacct"),
        (b"Account|#JobIDRaw|#State|#\n", "sacct"),
        (b"       JobID    JobName  Partition \n------------ ---------- ----------", "sacct"),
        (b"JobID,State,Start,End", "sacct"),
        (b"a,b,c\n1,2,3", None),
        (b"[\n{", None),
        (b'[{"node_id": "n", "event_time": 1, "event_type": "fault_end", "fault_type": {}}]', "infinitehbd"),
        (b'{\n  "jobs": [', None),
        (b"", None),
        (b"\n \n", None),
        (b"\xff\xfe\x00", None),
    ],
)
def test_the_format_is_told_from_the_first_lines(head: bytes, form: str | None) -> None:
    assert detect(head) == form


def test_the_published_files_are_recognised() -> None:
    assert detect(GOOGLE.read_bytes()[:10_000]) == "google-resiliency"
    assert detect(SACCT.read_bytes()[:10_000]) == "sacct"
    assert detect(TRACE.read_bytes()[:1_000]) == "infinitehbd"


@pytest.mark.parametrize(
    ("content", "form", "events"),
    [(OWN, "jsonl", 1), (TABLE, "csv", 1), (b"\xef\xbb\xbf" + TABLE.replace(b"\n", b"\r\n"), "csv", 1)],
)
def test_a_file_is_read_in_its_format(tmp_path: Path, content: bytes, form: str, events: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    imported = told(path)
    assert (imported.format, len(imported.events), imported.skipped_count) == (form, events, 0)


def test_a_journal_is_read_with_an_account_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"".join([*JOURNAL[:3], b"\n", *JOURNAL[3:]])[:-7])
    imported = told(path)
    assert [event.occurred_ns for event in imported.events] == list(range(49))
    assert (imported.format, imported.summary()) == ("journal", "51 lines, 1 run")
    assert [skipped.line for skipped in imported.skipped] == [4, 51]


@pytest.mark.parametrize(
    "damage", [JOURNAL[0][5:], JOURNAL[0].replace(b"0", b"1"), b"\0" * 4096 + b"\n", b"\xff\n", b"\n"]
)
def test_a_journal_whose_first_line_is_damaged_is_one_all_the_same(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"".join([damage, *JOURNAL[1:]]))
    imported = told(path)
    assert [event.occurred_ns for event in imported.events] == list(range(1, 50))
    assert [skipped.line for skipped in imported.skipped] == [1]


def test_a_journal_may_come_through_a_pipe(tmp_path: Path) -> None:
    content = b"".join([JOURNAL[0][5:], b"\n", *JOURNAL[1:]])
    path = tmp_path / "segment"
    path.write_bytes(content)
    imported = told_through_a_pipe(tmp_path, content)
    assert imported == told(path)
    assert (len(imported.events), imported.skipped_count) == (49, 2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty."),
        (b"\n  \n\n", "is empty."),
        (b"\xef\xbb\xbf", "is empty."),
        (b"\x7fELF\x00\x01", "is binary, not text."),
        ('{"time": 1}'.encode("utf-16"), "is binary, not text."),
        (b'{"time": 1}\n\x00', "is binary, not text."),
        (b"\x1f\x8b\x08\x00", "is compressed."),
        (b"Dear diary,\nnothing happened.", "is in no format that Holdfast reads."),
        (b"[" * 3_000_000, "is in no format that Holdfast reads."),
        (b"8012944_24093.0|COMPLETED|2020-11-16T11:59:11", "looks like sacct's output without its header."),
    ],
)
def test_what_cannot_be_read_at_all_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        told(path)
    assert caught.value.sentence == f"{path} {sentence}"
    assert caught.value.hint


def test_a_file_that_is_not_there_or_not_ours_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        told(tmp_path / "gone")
    assert caught.value.sentence == f"{tmp_path / 'gone'} cannot be read: No such file or directory."
    with pytest.raises(InputError, match="cannot be read"):
        told(Path("/proc/self/mem"))  # opens for anybody, and then cannot be read


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    assert told_through_a_pipe(tmp_path, SACCT.read_bytes()) == told(SACCT)


def test_the_published_run_takes_well_under_a_second() -> None:
    began_s = time.process_time()
    told(GOOGLE)
    assert time.process_time() - began_s < 1


@pytest.mark.slow
def test_a_large_table_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    peaks_bytes = []
    for rows in (2_000, 20_000):
        path = tmp_path / "steps.csv"
        path.write_text("step,time\n" + "".join(f"{n},{10**9 + n}\n" for n in range(rows)), encoding="utf-8")
        with import_file(path, Options(run="a", gpus=8)) as reading:
            tracemalloc.start()
            assert sum(1 for _ in reading) == rows + 1
            peaks_bytes.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks_bytes[1] < 1.2 * peaks_bytes[0] < 2**20


def _check(imported: Told) -> None:
    """What holds for every import of anything."""
    assert all(decode(encode(event)) == event for event in imported.events)
    if imported.format != "journal":
        assert len({event.id for event in imported.events}) == len(set(imported.events))
    assert len(imported.skipped) == min(imported.skipped_count, SKIPPED_SHOWN_MAX)
    assert imported.skipped_count <= imported.lines
    assert all(skipped.line > 0 and skipped.reason for skipped in imported.skipped)


def _import(folder: Path, content: bytes, options: Options) -> None:
    path = folder / "log"
    path.write_bytes(content)
    refusal = None
    try:
        _check(told(path, options))
    except InputError as error:
        refusal = error
    assert refusal is None or (refusal.sentence.startswith(str(path)) and refusal.hint)


SEEDS = [
    b"\n".join(GOOGLE.read_bytes().split(b"\n")[number] for number in (0, 1, 112, 113, 117, 118)),
    b"\n".join(SACCT.read_bytes().split(b"\n")[:3]),
    b"JobID|#State|#Submit|#Start|#End|#AllocTRES|#\n7|#NODE_FAIL|#2025-01-01T00:00:00|#2025-01-01T00:01:00|#"
    b"2025-01-01T00:02:00|#gres/gpu=8|#\n7|#RUNNING|#2025-01-01T00:02:00|#2025-01-01T00:03:00|#Unknown|#gpu:8|#",
    TABLE + b"1743574104.5,run.ended,llm,\n,,,\n",
    b"".join(JOURNAL[:3]),
    json.dumps(json.loads(TRACE.read_bytes())[:3], indent=4).encode(),
    OWN + b'\n{"time": 1743574104, "run": "a", "step": 5, "loss": [1, {"x": null}]}\n',
]
HOSTILE = [
    b"",
    b"\x00",
    b"\xff",
    b"\n",
    b"|",
    b"{",
    b"}",
    b'"',
    b",",
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 400,
    b"\\ud800",
]
options = st.builds(
    Options,
    run=st.none() | st.just("named"),
    gpus=st.none() | st.just(64),
    gpus_per_node=st.none() | st.just(4),
    reference_step_s=st.none() | st.just(8.0),
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400), options=options)
def test_no_bytes_break_it(tmp_path: Path, content: bytes, options: Options) -> None:
    _import(tmp_path, content, options)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(HOSTILE) | st.binary(max_size=4)),
        max_size=5,
    ),
    options=options,
)
def test_no_damage_to_a_real_line_breaks_it(
    tmp_path: Path, seed: bytes, changes: list[tuple[float, int, bytes]], options: Options
) -> None:
    for place, cut, put in changes:
        start = int(place * len(seed))
        seed = seed[:start] + put + seed[start + cut :]
    _import(tmp_path, seed, options)


text = st.text('a"\\\0\n\ud800\u00e9', max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    "event_type",
    "job_name",
    "timestamp",
    "node_rank",
    "step",
    "time",
    "kind",
    "id",
    "occurred_ns",
    "run",
]
VALUES = [
    "job_started",
    "job_terminated",
    "checkpoint_saved",
    "step.committed",
    "2025-04-02T06:08:24",
    5,
    0.0,
]


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES) | json_values), min_size=1, max_size=8
    ),
    options=options,
)
def test_no_json_breaks_it(tmp_path: Path, rows: list[dict[str, object]], options: Options) -> None:
    _import(tmp_path, "\n".join(json.dumps(row) for row in rows).encode(), options)
