"""The embedded store of signals: a directory of Parquet files that DuckDB reads.

Each `append` writes one file aside, forces it to disk and then renames it: a killed process loses only what
it was writing. A file never changes, so any number of processes may read while others write; DuckDB's own
file would admit only one process as soon as it writes. The process that gets the lock merges small files now
and then. A merged file and its parts may exist together for a moment, or after a crash: a sample that occurs
twice is the same sample.
"""

import fcntl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import duckdb
import msgspec
import numpy as np

from holdfast.record.closing import Closable
from holdfast.record.errors import StoreError
from holdfast.record.files import make_private_directory, sync
from holdfast.signals.catalogue import describe
from holdfast.signals.frame import Frame, Labels, Reading
from holdfast.signals.grid import Samples, on_grid
from holdfast.signals.naming import NO_BUSES, Buses, buses_of, subject_of
from holdfast.signals.source import STEP_S
from holdfast.wording.units import SECOND_NS

MERGE_FILES = 32
"""This many files are merged into one, and then as many of those: a day at 10 s, 8,640 files, ends as 70."""
MERGES_MAX = 2
READ_TRIES_MAX = 5
"""Listed files may have been merged or deleted before they are read."""
PARTIAL_AGE_S_MAX = 3_600.0
"""A file that is still unfinished after this time was left by a killed process."""
BUSES_METRIC = "DCGM_FI_DEV_GPU_TEMP"
ALL_TIME_NS = (-(2**63), 2**63 - 1)
PARTIAL, LOCK = ".partial", "lock"
_ORDER = "ORDER BY metric, series, at_ns"

T = TypeVar("T")


class _Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A file; its name tells the times in it, and how often it was merged."""

    path: Path
    first_ns: int
    last_ns: int
    merges: int


class SignalStore(Closable):
    """Signals in a directory, which is created if missing."""

    def __init__(self, path: str | Path, *, step_s: float = STEP_S) -> None:
        """step_s: of the frames' grid, and the interval of the readings."""
        self._root = Path(path)
        self._step_ns = round(step_s * SECOND_NS)
        try:
            make_private_directory(self._root)
        except OSError as error:
            raise StoreError(
                f"Cannot create the signals' directory {self._root}: {error.strerror}.",
                hint="Give a directory that you may write to.",
            ) from None
        self._engine = duckdb.connect()

    def close(self) -> None:
        self._engine.close()

    def append(self, readings: Iterable[Reading]) -> None:
        """Write all of these or none. When it returns they are on disk."""
        rows = list(readings)
        if rows:
            times_ns = [row.at_ns for row in rows]
            self._engine.register("incoming", _columns(rows))
            self._write("incoming", min(times_ns), max(times_ns), merges=0)
            self._engine.unregister("incoming")

    def metrics(self) -> tuple[str, ...]:
        def read(files: str) -> tuple[str, ...]:
            rows = self._engine.execute(f"SELECT DISTINCT metric FROM {files} ORDER BY metric").fetchall()
            return tuple(name for (name,) in rows)

        return self._read(ALL_TIME_NS, read) or ()

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        """One metric on a grid of the store's step."""
        samples = self._samples(metric, window_ns)
        if samples is None:
            return None
        known = describe(metric)
        buses = self._buses(window_ns) if known.scope == "pci" else NO_BUSES
        return on_grid(
            known,
            samples,
            window_ns=window_ns,
            step_ns=self._step_ns,
            name=lambda labels: subject_of(known, labels, buses),
        )

    def series(self, names: str, window_ns: tuple[int, int]) -> list[Labels]:
        """The labels of all series of these metrics, with `__name__`. names: a regular expression."""

        def read(files: str) -> list[Labels]:
            rows = self._engine.execute(
                f"SELECT DISTINCT metric, labels FROM {files} "
                "WHERE regexp_full_match(metric, $1) AND at_ns >= $2 AND at_ns < $3",
                [names, *window_ns],
            ).fetchall()
            return [
                {"__name__": name, **msgspec.json.decode(labels, type=Labels)}
                for name, labels in sorted(rows)
            ]

        return self._read(window_ns, read) or []

    def forget(self, before_ns: int) -> int:
        """Delete the files whose samples are all older, and return how many there were."""
        with self._locked() as is_ours:
            old = [segment for segment in self._segments() if segment.last_ns < before_ns] if is_ours else []
            _delete(segment.path for segment in old)
        return len(old)

    # -- reading --------------------------------------------------------------------------------------

    def _segments(self) -> list[_Segment]:
        found = (_segment(path) for path in sorted(self._root.glob("*.parquet")))
        return [segment for segment in found if segment]

    def _read(self, window_ns: tuple[int, int], read: Callable[[str], T]) -> T | None:
        """What `read` makes of the files with samples of that time; None without such files."""
        failure = ""
        for _ in range(READ_TRIES_MAX):
            paths = [
                segment.path.as_posix().replace("'", "''")
                for segment in self._segments()
                if segment.last_ns >= window_ns[0] and segment.first_ns < window_ns[1]
            ]
            if not paths:
                return None
            try:
                return read("read_parquet([" + ", ".join(f"'{path}'" for path in paths) + "])")
            except duckdb.Error as error:
                failure = str(error).splitlines()[0].rstrip(".")
        raise StoreError(
            f"The signals in {self._root} cannot be read: {failure}.",
            hint="Move away the file that `holdfast collect` did not write, or that was changed since.",
        )

    def _samples(self, metric: str, window_ns: tuple[int, int]) -> Samples | None:
        """All queries read the same files, so that their results fit together."""
        query = "SELECT {} FROM {} WHERE metric = $1 AND at_ns >= $2 AND at_ns < $3 "
        parameters = [metric, *window_ns]

        def read(files: str) -> Samples | None:
            numbers = self._engine.execute(
                query.format("series, at_ns, value, word <> '' AS is_word", files) + "ORDER BY series, at_ns",
                parameters,
            ).fetchnumpy()
            if not len(numbers["series"]):
                return None
            keys, series = np.unique(numbers["series"], return_inverse=True)
            labels = dict(
                self._engine.execute(
                    query.format("series, any_value(labels)", files) + "GROUP BY series", parameters
                ).fetchall()
            )
            words = self._engine.execute(
                query.format("word", files) + "AND word <> '' ORDER BY series, at_ns", parameters
            ).fetchall()
            where = np.flatnonzero(numbers["is_word"]).tolist()
            return Samples(
                labels=tuple(msgspec.json.decode(labels[key], type=Labels) for key in keys.tolist()),
                series=series.astype(np.int64),
                times_ns=numbers["at_ns"],
                values=np.ma.filled(numbers["value"], np.nan),  # DuckDB takes NaN for a NULL
                words=tuple((at, text) for at, (text,) in zip(where, words, strict=True)),
            )

        return self._read(window_ns, read)

    def _buses(self, window_ns: tuple[int, int]) -> Buses:
        samples = self._samples(BUSES_METRIC, window_ns)
        return buses_of(samples.labels) if samples else NO_BUSES

    # -- writing --------------------------------------------------------------------------------------

    def _write(self, table: str, first_ns: int, last_ns: int, *, merges: int) -> None:
        """Write a table to a new file, under another name until it is complete and on disk."""
        path = self._root / f"{first_ns}_{last_ns}_{merges}_{uuid.uuid4().hex}.parquet"
        partial = path.with_suffix(PARTIAL)
        target = partial.as_posix().replace("'", "''")
        try:
            self._engine.execute(f"COPY (SELECT * FROM {table} {_ORDER}) TO '{target}' (FORMAT parquet)")
            sync(partial)
            partial.rename(path)
            sync(self._root)
        except (OSError, duckdb.Error) as error:
            for name in (partial, path):  # the second, if only the directory could not be synced
                name.unlink(missing_ok=True)
            # Without the file's name, which changes each time: a lasting failure is reported once.
            failure = str(error).splitlines()[0].rstrip(".").replace(partial.name, "…")
            raise StoreError(
                f"The signals cannot be written to {self._root}: {failure}.",
                hint="Is the disk full, or a file there not as `holdfast collect` wrote it?",
            ) from None

    def merge(self) -> None:
        """Merge many small files into one, if there are enough, for example after each `append`. One merge at
        most, so that none takes long. A process without the lock does nothing.
        """
        with self._locked() as is_ours:
            if not is_ours:
                return
            _delete(path for path in self._root.glob(f"*{PARTIAL}") if _age_s(path) > PARTIAL_AGE_S_MAX)
            for merges in range(MERGES_MAX):
                alike = [segment for segment in self._segments() if segment.merges == merges][:MERGE_FILES]
                if len(alike) == MERGE_FILES:
                    self._merge_all(alike, merges + 1)
                    return

    def _merge_all(self, segments: Sequence[_Segment], merges: int) -> None:
        paths = ", ".join("'" + one.path.as_posix().replace("'", "''") + "'" for one in segments)
        first_ns, last_ns = min(one.first_ns for one in segments), max(one.last_ns for one in segments)
        self._write(f"read_parquet([{paths}])", first_ns, last_ns, merges=merges)
        _delete(segment.path for segment in segments)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether the lock is ours; the kernel releases it when the process dies."""
        with (self._root / LOCK).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True


def _columns(rows: Sequence[Reading]) -> dict[str, "np.ndarray[tuple[int], np.dtype[np.generic]]"]:
    labels = [msgspec.json.encode(row.labels, order="sorted").decode() for row in rows]
    keys = {text: blake2b(text.encode(), digest_size=8).digest() for text in set(labels)}
    return {
        "metric": np.array([row.metric for row in rows], object),
        "series": np.array([int.from_bytes(keys[text], "little") for text in labels], np.uint64),
        "labels": np.array(labels, object),
        "at_ns": np.array([row.at_ns for row in rows], np.int64),
        "value": np.array([np.nan if row.value is None else row.value for row in rows], np.float64),
        "word": np.array([row.word for row in rows], object),
    }


def _segment(path: Path) -> _Segment | None:
    """None for a file that is not ours."""
    try:
        first_ns, last_ns, merges, _ = path.stem.split("_")
        return _Segment(path=path, first_ns=int(first_ns), last_ns=int(last_ns), merges=int(merges))
    except ValueError:
        return None


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
