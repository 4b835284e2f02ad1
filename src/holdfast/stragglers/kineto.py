"""Traces of the PyTorch profiler (Kineto): one JSON file a rank, together a trace of a data-parallel run.

The profiler marks a step as `ProfilerStep#N`. Communication is the work of NCCL's kernels, or without a GPU
that of gloo. The computation of a rank is the work of its GPU; without one it is the time of its marked
phases (`record_function("forward")` and the like) and operators, except while communication is on its way and
no operator runs: then the rank waits. Computation is cut at each launch of a communication, so that the graph
knows what the communication had to wait for.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE, gunzipped
from holdfast.stragglers.trace import NUMBER_MAX, Floats, Trace, from_columns

FILES_MAX = 100_000
BYTES_MAX = 4 * 2**30
ALIGNED_MIN = 3
"""Clocks are compared over at least this many common collectives."""

_HINT = (
    "Write one with torch.profiler's export_chrome_trace for each rank; name a file or the directory of all."
)
_US = 1e-6
_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,12})$")
_BACKEND = re.compile(r"(gloo|nccl|mpi|ucc):")
_NO_WORK = re.compile(rf"c10d::|{_BACKEND.pattern}|{_STEP.pattern}")
_COLLECTIVES = {
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "alltoall": "all-to-all",
    "send": "send-recv",
    "recv": "send-recv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
}
"""Words that a name may contain, the longer ones first, and the type here."""
_PHASES = {"backward": "backward", "forward": "forward", "optim": "optimizer-step", "data": "data"}
UNMARKED = "compute"


class _Event(msgspec.Struct, frozen=True):
    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, object] = {}

    @property
    def end(self) -> float:
        return self.ts + self.dur


class _Distributed(msgspec.Struct, frozen=True):
    rank: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] | None = None


class _File(msgspec.Struct, frozen=True, rename={"events": "traceEvents", "distributed": "distributedInfo"}):
    events: list[_Event]
    distributed: _Distributed = _Distributed()


class _Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a rank, in microseconds of its clock. group: the communicator, 0 for none."""

    kind: str
    step: int
    start: float
    duration: float
    group: int = 0


def read_profiles(path: Path) -> Trace:
    """The trace in a profiler's file, or in all of them in a directory."""
    ranks: dict[int, list[_Operation]] = {}
    for number, file in enumerate(_files(path)):
        decoded = _decoded(file)
        rank = _rank(file, decoded, number)
        if rank in ranks:
            raise InputError(f"{file} is a second trace of rank {rank}.", hint="Keep one file a rank.")
        ranks[rank] = list(_operations(decoded.events))
    if not any(ranks.values()):
        raise InputError(f"{path} has no operation within a step.", hint=_HINT)
    return _joined(ranks)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"There is no trace {path}.", hint=_HINT)
    found = sorted(one for one in path.iterdir() if one.name.endswith((".json", ".json.gz")))
    if not found or len(found) > FILES_MAX:
        raise InputError(f"{path} has {len(found):,} profiler traces (*.json, *.json.gz).", hint=_HINT)
    return found


def _decoded(path: Path) -> _File:
    try:
        if path.stat().st_size > BYTES_MAX:
            raise InputError(f"{path} is larger than {BYTES_MAX // 2**30} GiB.", hint="Record fewer steps.")
        text = gunzipped(path, BYTES_MAX) if path.suffix == ".gz" else path.read_bytes()
        if text.lstrip()[:1] == b"[":
            return _File(events=msgspec.json.decode(text, type=list[_Event]))
        return msgspec.json.decode(text, type=_File)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.", hint=_HINT) from None
    except UNDECODABLE as error:
        raise InputError(f"{path} is not a trace of the PyTorch profiler: {error}.", hint=_HINT) from None


def _rank(path: Path, decoded: _File, number: int) -> int:
    """As the profiler wrote it, else the last number in the file's name, else its place among the files."""
    if decoded.distributed.rank is not None:
        return decoded.distributed.rank
    named = re.findall(r"rank[^0-9]{0,3}(\d{1,9})", path.name.lower())
    return int(named[-1]) if named else number


# -- one rank --------------------------------------------------------------------------------------------


def _operations(events: Sequence[_Event]) -> Iterable[_Operation]:
    spans = [event for event in events if event.ph == "X" and np.isfinite(event.end) and event.dur >= 0]
    communication, work = _activity(spans)
    phases = [event for event in spans if "annotation" in event.cat and _phase(event.name)]
    for step, (first, last) in _steps(spans).items():
        within = [event for event in communication if first <= event.ts < last]
        places = _numbered(within)
        yield from (
            _Operation(kind=kind, step=step, start=event.ts, duration=event.dur, group=group)
            for event, (kind, group) in zip(within, places, strict=True)
        )
        yield from _computation(step, (first, last), within, work, phases)


def _activity(spans: Sequence[_Event]) -> tuple[list[_Event], list[_Event]]:
    """Communication in order of starts, and computation: the GPU's, or without one this machine's."""
    device = [event for event in spans if event.cat in {"kernel", "gpu_memcpy", "gpu_memset"}]
    if device:
        communication = [event for event in device if event.name.lower().startswith("nccl")]
        work = [event for event in device if not event.name.lower().startswith("nccl")]
        # A loader keeps the GPU waiting without a kernel of its own.
        work += [event for event in spans if event.cat == "user_annotation" and _phase(event.name) == "data"]
    else:
        communication = [event for event in spans if _BACKEND.match(event.name)]
        # Older profilers also list communication and step marks as operations: neither is work.
        work = [event for event in spans if event.cat == "cpu_op" and not _NO_WORK.match(event.name)]
    return sorted(communication, key=lambda event: event.ts), work


def _steps(spans: Sequence[_Event]) -> dict[int, tuple[float, float]]:
    """When each step began and ended; the whole trace if no step is marked."""
    steps: dict[int, tuple[float, float]] = {}
    for event in spans:
        if (found := _STEP.match(event.name)) and (
            event.cat != "gpu_user_annotation" or int(found[1]) not in steps
        ):
            steps[int(found[1])] = (event.ts, event.end)
    if not steps and spans:
        steps[0] = (min(event.ts for event in spans), max(event.end for event in spans) + 1)
    return steps


def _phase(name: str) -> str:
    lowered = name.lower()
    return next((phase for word, phase in _PHASES.items() if word in lowered), "")


def _collective(name: str) -> str:
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for word, kind in _COLLECTIVES.items() if word in letters), "exchange")


def _numbered(communication: Sequence[_Event]) -> list[tuple[str, int]]:
    """The type of each, with its number among those of its type and communicator, which all ranks share."""
    counts: dict[tuple[str, int], int] = {}
    numbered = []
    for event in communication:
        group = zlib.crc32(str(event.args.get("Process Group Ranks", "")).encode()) if event.args else 0
        key = (_collective(event.name), group)
        counts[key] = counts.get(key, -1) + 1
        numbered.append((f"{key[0]}/{counts[key]}", group))
    return numbered


def _computation(
    step: int,
    bounds: tuple[float, float],
    communication: Sequence[_Event],
    work: Sequence[_Event],
    phases: Sequence[_Event],
) -> Iterable[_Operation]:
    """The rank's computation in a step: one operation for each phase between launches of communication."""
    on_device = any(event.cat == "kernel" for event in work)
    edges = _edges(bounds, [*communication, *work, *phases])
    running = _covered(edges, work)
    marked = _covered(edges, [] if on_device else phases)
    busy = running | (marked & ~_covered(edges, communication))
    phase = _phase_of(edges, phases)
    launches = np.searchsorted([event.ts for event in communication], edges[:-1], side="right")
    names = [*dict.fromkeys(_PHASES.values()), UNMARKED]
    key = launches * len(names) + phase
    lengths = np.diff(edges) * busy
    for number in np.unique(key[busy & (lengths > 0)]).tolist():
        mine = (key == number) & busy
        launch, name = divmod(number, len(names))
        yield _Operation(
            kind=f"{names[name]}/{launch}",
            step=step,
            start=float(edges[:-1][mine][0]),
            duration=float(lengths[mine].sum()),
        )


def _edges(bounds: tuple[float, float], events: Sequence[_Event]) -> Floats:
    """All moments in the step at which something begins or ends."""
    moments = np.array([bounds, *((event.ts, event.end) for event in events)], dtype=np.float64)
    return np.unique(np.clip(moments, *bounds))


def _covered(edges: Floats, events: Sequence[_Event]) -> NDArray[np.bool_]:
    """The intervals between edges in which any of these events was under way."""
    depth = np.zeros(len(edges) + 1, np.int64)
    np.add.at(depth, np.searchsorted(edges, [event.ts for event in events]), 1)
    np.add.at(depth, np.searchsorted(edges, [event.end for event in events]), -1)
    covered: NDArray[np.bool_] = np.cumsum(depth)[: len(edges) - 1] > 0
    return covered


def _phase_of(edges: Floats, phases: Sequence[_Event]) -> NDArray[np.int64]:
    """The number of the phase between each two edges: the innermost one; the last number for none."""
    names = list(dict.fromkeys(_PHASES.values()))
    number = np.full(len(edges) - 1, len(names))
    for event in sorted(phases, key=lambda event: -event.dur):
        first, last = np.searchsorted(edges, (event.ts, event.end))
        number[first:last] = names.index(_phase(event.name))
    return number


# -- all ranks -------------------------------------------------------------------------------------------


def _joined(ranks: dict[int, list[_Operation]]) -> Trace:
    rows = [(rank, one) for rank, operations in ranks.items() for one in operations]
    kinds = sorted({one.kind for _, one in rows})
    numbers = {kind: number for number, kind in enumerate(kinds)}
    offsets = _offsets(ranks)
    groups = {group: number for number, group in enumerate(sorted({one.group for _, one in rows}))}
    rank = np.array([rank for rank, _ in rows])
    zeros, unsaid = np.zeros(len(rows), np.int64), np.full(len(rows), -1)
    columns = {
        "kind": np.array([numbers[one.kind] for _, one in rows]),
        "step": np.array([one.step for _, one in rows]),
        "dp_rank": rank,
        "rank": rank,
        "stage": zeros,
        "seq_id": zeros,
        "mc": np.array([groups[one.group] for _, one in rows]),
        "gmc": unsaid,
        "mb_id": unsaid,
        "start_ts": _US * np.array([one.start - offsets[rank] for rank, one in rows]),
        "duration": _US * np.array([one.duration for _, one in rows]),
    }
    return from_columns(kinds, columns)


def _offsets(ranks: dict[int, list[_Operation]]) -> dict[int, float]:
    """How far the clock of each rank is ahead: a collective ends everywhere at about the same time."""
    ends: dict[tuple[int, str, int], dict[int, float]] = {}
    for rank, operations in ranks.items():
        for one in operations:
            if one.kind.split("/")[0] in {*_COLLECTIVES.values()} - {"send-recv"}:
                ends.setdefault((one.step, one.kind, one.group), {})[rank] = one.start + one.duration
    common = [times for times in ends.values() if len(times) == len(ranks)]
    if len(common) < ALIGNED_MIN:
        return dict.fromkeys(ranks, 0.0)
    middle = [float(np.median(list(times.values()))) for times in common]
    return {
        rank: float(np.median([times[rank] - at for times, at in zip(common, middle, strict=True)]))
        for rank in ranks
    }
