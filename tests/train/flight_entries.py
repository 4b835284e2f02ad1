"""Dumps as torch writes them, of ranks that made the given calls."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CREATED_NS = 1_794_887_615_000_000_000


def entry(name: str = "nccl:all_reduce", seq: int = 1, state: str = "started", **more: Any) -> dict[str, Any]:
    """One call. group: its name and its description."""
    is_p2p = "send" in name or "recv" in name
    group = more.pop("group", ("0", "default_pg"))
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/usr/lib/python3/torch/distributed/c10d.py", "line": 9},
            {"name": "train_step", "filename": "train.py", "line": 40 + seq},
        ],
        "record_id": seq,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": 0 if is_p2p else seq,
        "p2p_seq_id": seq if is_p2p else 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": CREATED_NS + seq,
        "input_sizes": [[8, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 2]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": is_p2p,
        **more,
    }


def dump(
    entries: Sequence[Mapping[str, Any]], ranks: Mapping[str, Sequence[int]], **more: Any
) -> dict[str, Any]:
    """ranks: by group."""
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": "", "ranks": str(list(members))} for name, members in ranks.items()
        },
        "comm_lib_version": "2.27.3",
        "pg_status": {},
        "entries": list(entries),
        **more,
    }


def write(folder: Path, dumps: Mapping[int, object], prefix: str = "nccl_trace_rank_") -> Path:
    folder.mkdir(exist_ok=True)
    for rank, content in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(
            content if isinstance(content, bytes) else pickle.dumps(content, 2)
        )
    return folder
