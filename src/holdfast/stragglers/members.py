"""The parts of a run's steps, as measured by its members: data, computation, exchange with the others.

A step ends for all members with the exchange, so the next one begins for all of them together.
"""

from pathlib import Path
from typing import Any

import numpy as np

from holdfast.record.errors import InputError
from holdfast.stragglers.trace import Trace, from_columns, literal_glob, unreadable

PARTS = ("data", "compute", "exchange")
_HINT = "It needs the columns member, step, compute_s, data_s and exchange_s."


def read_members(path: Path) -> Trace:
    """The trace in a CSV or JSONL file with a row for each member and step."""
    import duckdb

    if not path.is_file():
        raise InputError(f"There is no trace {path}.", hint=_HINT)
    reader = "read_csv" if path.suffix.lower() == ".csv" else "read_json"
    columns = ", ".join(
        [
            "member::VARCHAR AS member",
            "step::BIGINT AS step",
            *(f"{part}_s::DOUBLE AS {part}" for part in PARTS),
        ]
    )
    try:
        with duckdb.connect() as database:
            read: dict[str, Any] = database.execute(
                f"SELECT {columns} FROM {reader}($path) ORDER BY step, member", {"path": literal_glob(path)}
            ).fetchnumpy()
    except duckdb.Error as error:
        raise unreadable(path, error, what="steps of members", hint=_HINT) from None
    if any(np.ma.is_masked(column) for column in read.values()):
        raise InputError(f"{path} has a row without one of its values.", hint=_HINT)
    return _trace(read)


def _trace(read: dict[str, Any]) -> Trace:
    names, rank = np.unique(np.asarray(read["member"], dtype=str), return_inverse=True)
    ends = np.cumsum([np.asarray(read[part]) for part in PARTS], axis=0)
    count = len(rank)
    columns = {
        "kind": np.repeat(np.arange(len(PARTS)), count),
        "step": np.tile(read["step"], len(PARTS)),
        "dp_rank": np.tile(rank, len(PARTS)),
        "rank": np.tile(rank, len(PARTS)),
        **dict.fromkeys(("stage", "seq_id"), np.zeros(len(PARTS) * count, np.int64)),
        **dict.fromkeys(("mc", "gmc", "mb_id"), np.full(len(PARTS) * count, -1)),
        "start_ts": np.concatenate([np.zeros(count), *ends[:-1]]),
        "duration": np.concatenate([read[part] for part in PARTS]),
    }
    return from_columns(list(PARTS), columns, names=dict(enumerate(names.tolist())))
