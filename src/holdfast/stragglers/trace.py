"""A trace of operations in columns, and how to read it from a table: Parquet or CSV, through DuckDB.

A row is one operation of one worker in one step. Rows are ordered by step, worker and start; `graph` relies
on this order.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.record.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROWS_MAX = 200_000_000
WORKERS_MAX = 1_000_000
TYPES_MAX = 1_000
NUMBER_MAX = 2**40
"""No rank, step or microbatch has a greater number; products of these numbers serve as keys."""
SECONDS_MAX = 1e7

_REQUIRED = ("step", "optype", "start_ts", "duration")
_COLUMNS_HINT = (
    "It needs the columns step, optype, start_ts and duration (in seconds), and has use for dp_rank, stage, "
    "rank, seq_id, mc, gmc and mb_id."
)


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the grid of replicas and stages. slot: its number among the ranks that share the place."""

    dp_rank: int
    stage: int
    rank: int
    slot: int = 0
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or f"rank {self.rank}"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Operations in columns. `kind`, `step` and `worker` are indices into `kinds`, `steps` and `workers`.

    seq          the number of the operation among those of its type, step and worker
    chunk        the part of the model on its worker; global_chunk: in the whole model; -1: unknown
    microbatch   -1: unknown
    start_s      from the beginning of the step
    """

    kinds: tuple[str, ...]
    steps: tuple[int, ...]
    workers: tuple[WorkerPlace, ...]
    kind: Ints
    step: Ints
    worker: Ints
    seq: Ints
    chunk: Ints
    global_chunk: Ints
    microbatch: Ints
    start_s: Floats
    duration_s: Floats

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def end_s(self) -> Floats:
        return self.start_s + self.duration_s

    @property
    def stages(self) -> tuple[int, ...]:
        return tuple(sorted({worker.stage for worker in self.workers}))

    @property
    def dp_ranks(self) -> tuple[int, ...]:
        return tuple(sorted({worker.dp_rank for worker in self.workers}))


def read_table(path: Path) -> Trace:
    """The trace in a Parquet or CSV file."""
    if not path.is_file():
        raise InputError(f"There is no trace {path}.", hint="Name a Parquet, CSV or JSON file.")
    columns = _columns(path)
    return from_columns(columns.pop("kinds"), columns)


def from_columns(
    kinds: list[str], columns: Mapping[str, Any], names: Mapping[int, str] | None = None
) -> Trace:
    """A trace from columns in any order of rows. names: of workers by their rank."""
    checked = {name: _numbers(name, columns[name]) for name in _WHOLE}
    start, duration = (_seconds(name, columns[name]) for name in ("start_ts", "duration"))
    if not len(start):
        raise InputError("The trace has no operations.", hint=_COLUMNS_HINT)
    steps, step = np.unique(checked["step"], return_inverse=True)
    workers, worker = _workers(checked, names or {})
    order = np.lexsort((checked["seq_id"], start, worker, step))
    first = np.full(len(steps), np.inf)
    np.minimum.at(first, step, start)
    return Trace(
        kinds=tuple(kinds),
        steps=tuple(steps.tolist()),
        workers=workers,
        kind=checked["kind"][order],
        step=step[order],
        worker=worker[order],
        seq=checked["seq_id"][order],
        chunk=checked["mc"][order],
        global_chunk=checked["gmc"][order],
        microbatch=checked["mb_id"][order],
        start_s=(start - first[step])[order],
        duration_s=duration[order],
    )


_WHOLE = ("kind", "step", "dp_rank", "stage", "rank", "seq_id", "mc", "gmc", "mb_id")


def _columns(path: Path) -> dict[str, Any]:
    """Columns of the file as arrays; types of operations as numbers in `kinds`."""
    import duckdb

    reader = "read_parquet" if path.suffix.lower() in {".parquet", ".pq"} else "read_csv"
    source = f"{reader}($path)"
    named = {"path": literal_glob(path)}
    try:
        with duckdb.connect() as database:
            described = database.execute(f"DESCRIBE SELECT * FROM {source}", named).fetchall()
            known = {str(row[0]): str(row[1]) for row in described}
            if missing := [name for name in _REQUIRED if name not in known]:
                raise InputError(f"{path} has no column {missing[0]}.", hint=_COLUMNS_HINT)
            rows = database.execute(f"SELECT count(*) FROM {source}", named).fetchall()[0][0]
            if rows > ROWS_MAX:
                raise InputError(f"{path} has {rows:,} operations.", hint=f"{ROWS_MAX:,} is the most.")
            kinds = _kinds(
                database.execute(f"SELECT DISTINCT optype::VARCHAR FROM {source}", named).fetchall()
            )
            query = ", ".join(_selected(known))
            told = {**named, "kinds": kinds}
            columns: dict[str, Any] = database.execute(f"SELECT {query} FROM {source}", told).fetchnumpy()
    except duckdb.Error as error:
        raise unreadable(path, error, what="a trace", hint=_COLUMNS_HINT) from None
    return {**columns, "kinds": kinds}


def unreadable(path: Path, error: Exception, *, what: str, hint: str) -> InputError:
    """An error in our own words: DuckDB's are about a query that the user has not written."""
    import duckdb

    of_columns = isinstance(error, (duckdb.BinderException, duckdb.ConversionException))
    why = (
        "a column is missing, or has a value that is not a number"
        if of_columns
        else "it is damaged, or not a table"
    )
    return InputError(f"{path} cannot be read as {what}: {why}.", hint=hint)


def literal_glob(path: Path) -> str:
    """The path with its special characters escaped: DuckDB would read it as a pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))


def _kinds(found: list[tuple[Any, ...]]) -> list[str]:
    kinds = sorted(row[0] for row in found if row[0])
    if len(kinds) < len(found):
        raise InputError("Some operation has no optype.", hint="Every row names what it did, as gc does.")
    if len(kinds) > TYPES_MAX:
        raise InputError(
            f"The trace has {len(kinds):,} types of operations.",
            hint="A type says what is done, as forward-compute; which one it is belongs in seq_id.",
        )
    return kinds


def _selected(known: Mapping[str, str]) -> list[str]:
    """The columns of the query: missing ones are filled in."""
    seq = "row_number() OVER (PARTITION BY {} optype ORDER BY start_ts) - 1"
    places = "".join(f"{name}, " for name in ("step", "dp_rank", "stage", "rank") if name in known)
    rank = "rank" if "rank" in known else _derived_rank(known)
    return [
        "list_position($kinds::VARCHAR[], optype::VARCHAR) - 1 AS kind",
        "step::BIGINT AS step",
        *(f"{name if name in known else '0'}::BIGINT AS {name}" for name in ("dp_rank", "stage")),
        f"({rank})::BIGINT AS rank",
        f"({'seq_id' if 'seq_id' in known else seq.format(places)})::BIGINT AS seq_id",
        *(
            f"{f'coalesce({name}, -1)' if name in known else '-1'}::BIGINT AS {name}"
            for name in ("mc", "gmc", "mb_id")
        ),
        *(f"{name}::DOUBLE AS {name}" for name in ("start_ts", "duration")),
    ]


def _derived_rank(known: Mapping[str, str]) -> str:
    """Replicas side by side within a stage, as launchers number them."""
    dp_rank, stage = (name if name in known else "0" for name in ("dp_rank", "stage"))
    return f"{stage} * (max({dp_rank}) OVER () + 1) + {dp_rank}"


def _numbers(name: str, values: Any) -> Ints:
    if np.ma.is_masked(values):
        raise InputError(f"Some operation has no {name}.", hint="Every row needs one, or none has.")
    numbers = np.asarray(values, dtype=np.int64)
    if len(numbers) and (numbers.min() < -1 or numbers.max() > NUMBER_MAX):
        raise InputError(f"Some operation has an impossible {name}.", hint="Numbers count from 0.")
    return numbers


def _seconds(name: str, values: Any) -> Floats:
    seconds = np.asarray(np.ma.filled(values, np.nan), dtype=np.float64)
    if not np.isfinite(seconds).all():
        raise InputError(f"Some operation has no {name}.", hint="Leave out operations that did not end.")
    if name == "duration" and len(seconds) and (seconds.min() < 0 or seconds.max() > SECONDS_MAX):
        raise InputError(
            "Some operation has an impossible duration.", hint="Durations are seconds from 0 on."
        )
    return seconds


def _workers(columns: Mapping[str, Ints], names: Mapping[int, str]) -> tuple[tuple[WorkerPlace, ...], Ints]:
    places = np.stack([columns[name] for name in ("dp_rank", "stage", "rank")])
    if places.min() < 0:
        raise InputError("Some operation has a dp_rank, stage or rank below 0.", hint="They count from 0.")
    # One number per place, so that a single sort finds them all.
    shape = tuple(int(most) + 1 for most in places.max(axis=1))
    if shape[0] * shape[1] * shape[2] > 2**62:
        raise InputError("The ranks of the trace are out of all proportion.", hint="They count from 0.")
    found, worker = np.unique(np.ravel_multi_index(tuple(places), shape), return_inverse=True)
    if len(found) > WORKERS_MAX:
        raise InputError(f"The trace has {len(found):,} workers.", hint=f"{WORKERS_MAX:,} is the most.")
    workers: list[WorkerPlace] = []
    for dp_rank, stage, rank in zip(*(axis.tolist() for axis in np.unravel_index(found, shape)), strict=True):
        last = workers[-1] if workers else None
        is_beside = last is not None and (last.dp_rank, last.stage) == (dp_rank, stage)
        slot = last.slot + 1 if last is not None and is_beside else 0
        workers.append(
            WorkerPlace(dp_rank=dp_rank, stage=stage, rank=rank, slot=slot, name=names.get(rank, ""))
        )
    return tuple(workers), worker.astype(np.int64)
