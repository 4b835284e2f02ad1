"""The embedded store: what is appended is there, for other processes as well, and after a SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import StoreError
from holdfast.signals.frame import Reading, Word
from holdfast.signals.quality import inspect
from holdfast.signals.store import MERGE_FILES, PARTIAL, SignalStore

METRIC = "FlowLitersPerMinute"
STEP_NS = 10 * 10**9
SERIES = 50

WRITER = f"""
import sys
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore
with SignalStore(sys.argv[1]) as store:
    for scrape in range(10_000):
        store.append(
            Reading(metric="{METRIC}", labels={{"cdu": str(number)}}, at_ns=scrape * {STEP_NS}, value=scrape)
            for number in range({SERIES})
        )
        print(scrape, flush=True)
"""
"""Appends for ever, and says after each time which scrape is safe."""


def reading(scrape: int, value: float | None, *, cdu: str = "cdu-0", word: str = "") -> Reading:
    labels = {"cdu": cdu}
    return Reading(metric=METRIC, labels=labels, at_ns=scrape * STEP_NS, value=value, word=word)


def test_words_are_kept_in_their_place(tmp_path: Path) -> None:
    with SignalStore(tmp_path) as store:
        store.append([reading(0, 40.0), reading(0, 41.0, cdu="cdu-1")])
        store.append([reading(1, None, word="Null"), reading(1, None, cdu="cdu-1", word="42.5")])
        frame = store.frame(METRIC, (0, 2 * STEP_NS))
    assert frame is not None
    series = {subject: index for index, subject in enumerate(frame.subjects)}
    assert np.isnan(frame.values[1]).all()
    assert sorted(frame.words, key=lambda word: word.text) == [
        Word(time=1, series=series["cdu-1"], text="42.5"),
        Word(time=1, series=series["cdu-0"], text="Null"),
    ]
    inspected = inspect(frame)
    assert inspected.frame.values[1, series["cdu-1"]] == 42.5
    assert [(flaw.kind, flaw.subject) for flaw in inspected.flaws] == [("words", "cdu-0")]


numbers = st.one_of(st.none(), st.floats(allow_nan=False, width=64))


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "ü '"]), numbers), min_size=1, max_size=5))
def test_what_is_appended_is_there(
    tmp_path_factory: pytest.TempPathFactory, scrapes: list[dict[str, float | None]]
) -> None:
    with SignalStore(tmp_path_factory.mktemp("it's")) as store:
        for scrape, values in enumerate(scrapes):
            values |= {"always": float(scrape), "too": float(scrape)}  # most samples set the grid's step
            store.append(reading(scrape, value, cdu=cdu) for cdu, value in values.items())
        frame = store.frame(METRIC, (0, len(scrapes) * STEP_NS))
        assert store.metrics() == (METRIC,)
    assert frame is not None
    assert set(frame.subjects) == {cdu for values in scrapes for cdu in values}
    for index, cdu in enumerate(frame.subjects):
        column = [values.get(cdu) for values in scrapes]
        known = np.array([np.nan if value is None else value for value in column])
        assert np.array_equal(frame.values[:, index], known, equal_nan=True)


def test_many_small_files_become_one(tmp_path: Path) -> None:
    with SignalStore(tmp_path) as store:
        for scrape in range(2 * MERGE_FILES):
            store.append([reading(scrape, float(scrape))])
            store.merge()
        frame = store.frame(METRIC, (0, 2 * MERGE_FILES * STEP_NS))
    assert len(list(tmp_path.glob("*.parquet"))) < MERGE_FILES
    assert frame is not None
    assert frame.values[:, 0].tolist() == list(range(2 * MERGE_FILES))


def test_what_is_old_is_forgotten(tmp_path: Path) -> None:
    with SignalStore(tmp_path) as store:
        for scrape in range(4):
            store.append([reading(scrape, float(scrape))])
        assert store.forget(2 * STEP_NS) == 2
        frame = store.frame(METRIC, (0, 4 * STEP_NS))
    assert frame is not None
    assert frame.values[:, 0].tolist() == pytest.approx([np.nan, np.nan, 2, 3], nan_ok=True)


def test_a_file_that_is_none_of_ours_is_told(tmp_path: Path) -> None:
    with SignalStore(tmp_path) as store:
        store.append([reading(0, 1.0)])
        (tmp_path / "0_9_0_abc.parquet").write_bytes(b"no such format")
        with pytest.raises(StoreError, match=r"cannot be read: .*0_9_0_abc.parquet"):
            store.metrics()


def test_a_coarser_rhythm_gets_a_coarser_grid(tmp_path: Path) -> None:
    with SignalStore(tmp_path) as store:
        store.append([reading(scrape, 1.0) for scrape in range(0, 18, 6)])
        frame = store.frame(METRIC, (0, 18 * STEP_NS))
    assert frame is not None
    assert np.diff(frame.times_ns).tolist() == [60 * 10**9] * 2
    assert np.isfinite(frame.values).all()


@pytest.mark.slow
def test_killed_while_writing_it_loses_nothing_that_was_safe_and_is_read_meanwhile(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        safe = -1
        with SignalStore(tmp_path) as reader:
            while safe < MERGE_FILES + 8:
                safe = int(writer.stdout.readline())
                if safe % 8 == 0:
                    assert whole_scrapes(reader) > safe
        writer.send_signal(signal.SIGKILL)
        safe = max([safe, *(int(line) for line in writer.stdout)])
    with SignalStore(tmp_path) as store:
        assert safe < whole_scrapes(store) <= safe + 2  # the one in work may have had its name already
        store.append([Reading(metric="after", labels={"cdu": "x"}, at_ns=0, value=1.0)])
        assert store.metrics() == (METRIC, "after")


def whole_scrapes(store: SignalStore) -> int:
    frame = store.frame(METRIC, (0, 10_000 * STEP_NS))
    assert frame is not None
    there = np.isfinite(frame.values)
    count = int(there.any(axis=1).sum())
    assert frame.values[:count].tolist() == [[float(scrape)] * SERIES for scrape in range(count)]
    return count


def test_what_a_killed_writer_left_is_cleared_away(tmp_path: Path) -> None:
    left, fresh = tmp_path / f"left{PARTIAL}", tmp_path / f"fresh{PARTIAL}"
    for path in (left, fresh, tmp_path / "stranger.parquet"):
        path.write_bytes(b"half a file")
    day_ago_s = time.time() - 86_400
    os.utime(left, (day_ago_s, day_ago_s))
    with SignalStore(tmp_path) as store:
        store.append([reading(0, 1.0)])
        store.merge()
        assert store.metrics() == (METRIC,)
    assert not left.exists()
    assert fresh.exists()


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="Cannot create"):
        SignalStore(tmp_path / "file" / "signals")


def test_a_directory_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with SignalStore(tmp_path / "signals") as store:
        (tmp_path / "signals").rmdir()
        with pytest.raises(StoreError, match="cannot be written"):
            store.append([reading(0, 1.0)])
