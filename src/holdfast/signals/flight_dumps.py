"""The dumps of torch's flight recorder: which collectives each rank has entered, finished and is stuck in.

Torch writes one file per rank, pickled or as JSON, when a collective times out or on request. Only what a
comparison of ranks needs is kept: thousands of ranks have millions of calls. This module only reads;
`detect.standstill` compares.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.signals.plain_pickle import NotPlain, decode

USUAL_PREFIXES = ("nccl_trace_rank_", "comm_lib_trace_rank_")
"""Torch's file names, unless TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE is set."""
MAJOR = "2"
"""Of the format; torch raises it when fields change their meaning."""
FILE_BYTES_MAX = 8 * 2**20
"""2,000 calls, torch's default, are 0.4 MB, and 1.3 MB as JSON. The worst file tried took 300 MB of RAM."""
RANKS_MAX = 32_768
"""Tried with this many ranks, with two calls each."""
CALLS_MAX = 100_000
KEPT_MAX = 16
"""Calls kept per group and rank: the newest finished ones, and as many of the oldest unfinished ones."""
LINES_MAX, SIZES_MAX, DIMENSIONS_MAX, CHARS_MAX = 64, 64, 16, 256
APART_NS_MAX = 300 * 10**9
"""Torch overwrites files and deletes none. A dump that ends by more than this before the newest begins is
left from an earlier hang; a rank that is only late has calls in common with the others, or nearly.
"""
CLOSES_BATCH = "coalesced"
"""The end of the name of the entry that closes a batch, such as one of `batch_isend_irecv`."""
TORCH = re.compile(r"(?:^|/)torch/|^<frozen ")
"""Files of torch itself: a rank's place in them says nothing."""

_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\.(?:json|pkl|pickle))?")
_DIGITS = re.compile(r"-?\d{1,19}")
_LISTED = re.compile(r"\[?[\d,\s]*\]?")

State = Literal["scheduled", "started", "finished"]


class CodeLine(msgspec.Struct, frozen=True, gc=False):
    """A place in a program. In sequences the innermost comes first."""

    function: str
    file: str
    line: int


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One entry: a collective, send or receive that a rank has called.

    group        the process group's name, torch's number or hash; `purpose`: its name in the program
    seq          the number of the collective in its group; for a send or receive, among those of this rank
    name         such as `all_reduce`, without the backend
    inputs, outputs   the number of elements of each tensor
    timed_out    given up by torch, and not finished
    lines        of the program that called it, without torch's own
    """

    group: str
    purpose: str
    seq: int
    order: int
    name: str
    backend: str
    state: State
    is_p2p: bool
    timed_out: bool
    created_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[str, ...]
    lines: tuple[CodeLine, ...]


class FlightDump(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one rank's file.

    calls     in order, for each group those that a comparison needs
    members   by group, its ranks, if the dump lists them
    reached   by group, the last collective that was entered
    first_ns, last_ns   when the first and the last of all its calls were made; 0 if unknown
    """

    rank: int
    calls: tuple[RecordedCall, ...]
    members: dict[str, tuple[int, ...]]
    reached: dict[str, int]
    first_ns: int = 0
    last_ns: int = 0


class FlightDumps(msgspec.Struct, frozen=True, kw_only=True):
    """unreadable: by rank, why its file is not used."""

    dumps: tuple[FlightDump, ...]
    unreadable: dict[int, str]


class _Malformed(ValueError):
    """It can be decoded, but is not a dump."""


def read_dumps(place: Path) -> FlightDumps:
    """All ranks' dumps in a folder, with a common prefix (`DIR/PREFIX`), or in the same series as a given
    file.
    """
    files = _files(place)
    interned: dict[object, Any] = {}
    dumps, unreadable = [], {}
    for rank in sorted(files):
        try:
            dumps.append(parse_dump(rank, _content(files[rank]), interned))
        except (OSError, ValueError) as error:
            unreadable[rank] = str(error)
    if not dumps:
        rank = min(unreadable)
        raise InputError(
            f"{files[rank]} is not a dump of torch's flight recorder: {unreadable[rank]}.",
            hint="Give the folder, or DIR/PREFIX, of files such as nccl_trace_rank_0.",
        )
    began_ns = max(dumps, key=lambda dump: dump.last_ns).first_ns
    old = {dump.rank for dump in dumps if 0 < dump.last_ns < began_ns - APART_NS_MAX}
    return FlightDumps(
        dumps=tuple(dump for dump in dumps if dump.rank not in old),
        unreadable=unreadable | dict.fromkeys(sorted(old), "it is from another time"),
    )


def _files(place: Path) -> dict[int, Path]:
    try:
        series, begins = _series(place)
    except OSError:
        raise InputError(f"Cannot read {place}.", hint="Name the folder of the dumps.") from None
    if not series:
        raise InputError(
            f"{place} has no dump of torch's flight recorder.",
            hint="Give the folder, or DIR/PREFIX, of files such as nccl_trace_rank_0.",
        )
    usual = [] if begins else [key for key in sorted(series) if key[0] in USUAL_PREFIXES]
    named = usual or [key for key in sorted(series) if key[0] == begins] or sorted(series)
    if len(named) > 1 and len({key[0] for key in named}) > 1:
        folder = next(iter(series[named[0]].values())).parent
        examples = " or ".join(str(folder / prefix) for prefix, _ in named[:2])
        raise InputError(f"{place} has several series of files.", hint=f"Name one: {examples}.")
    files = series[named[0]]
    if len(files) > RANKS_MAX:
        raise InputError(f"{place} has {len(files):,} files; at most {RANKS_MAX:,} are read.")
    return files


def _series(place: Path) -> tuple[dict[tuple[str, str], dict[int, Path]], str]:
    """Numbered files, by the text before and after the number, and the requested prefix: if the path is one
    of the files, that of its series.
    """
    folder, begins, ends = (place, "", None) if place.is_dir() else (place.parent, place.name, None)
    if (one := _NUMBERED.fullmatch(begins)) and place.is_file():
        begins, ends = one[1], one[3] or ""
    series: dict[tuple[str, str], dict[int, Path]] = {}
    for path in folder.iterdir():
        found = _NUMBERED.fullmatch(path.name) if path.name.startswith(begins) else None
        if found and (ends is None or (found[1], found[3] or "") == (begins, ends)) and path.is_file():
            series.setdefault((found[1], found[3] or ""), {})[int(found[2])] = path
    return series, begins


def _content(path: Path) -> bytes:
    with path.open("rb") as stream:
        content = stream.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX:,} bytes")
    return content


def parse_dump(rank: int, content: bytes, interned: dict[object, Any] | None = None) -> FlightDump:
    """Raises `ValueError`. interned: values that occur in many ranks' dumps are kept once."""
    try:
        said = msgspec.json.decode(content) if content.lstrip()[:1] == b"{" else decode(content)
    except NotPlain:
        raise
    except UNDECODABLE:
        raise _Malformed("its JSON is damaged") from None
    if not isinstance(said, dict) or not isinstance(said.get("version"), str):
        raise _Malformed("it has no version")
    version = said["version"]
    if version.partition(".")[0] != MAJOR:
        raise _Malformed(f"its version is {version[:CHARS_MAX]!r}; only {MAJOR}.x is supported")
    entries = _list(said.get("entries", []))
    if len(entries) > CALLS_MAX:
        raise _Malformed(f"it has more than {CALLS_MAX:,} entries")
    briefs = _in_order(_batched([_brief(entry) for entry in entries]))
    shared = {} if interned is None else interned
    made_ns = [time_ns for entry in entries if (time_ns := _whole(entry.get("time_created_ns", 0))) > 0]
    return FlightDump(
        rank=rank,
        calls=tuple(_call(entries[place], briefs[place], shared) for place in _kept(briefs)),
        members=_members(_dict(said.get("pg_config", {})), shared),
        reached=_reached(entries, briefs, _dict(said.get("pg_status", {}))),
        first_ns=min(made_ns, default=0),
        last_ns=max(made_ns, default=0),
    )


class _Brief(NamedTuple):
    """What decides whether a call is kept, so that the rest of thousands of calls need not be parsed."""

    group: str
    backend: str
    name: str
    seq: int
    is_p2p: bool
    is_retired: bool
    state: State


def _brief(entry: object) -> _Brief:
    told = _dict(entry)
    backend, _, name = _text(told.get("profiling_name")).rpartition(":")
    is_p2p = told.get("is_p2p") is True or name.startswith(("send", "recv"))
    is_retired, said = told.get("retired") is True, told.get("state")
    # Gloo never reports a call as completed, but retires it then. NCCL's watchdog retires calls that it gave
    # up.
    is_finished = said == "completed" or (is_retired and backend != "nccl")
    return _Brief(
        group=_text(next(iter(_list(told.get("process_group"))), "")),
        backend=backend,
        name=name,
        seq=_whole(told.get("p2p_seq_id" if is_p2p else "collective_seq_id")),
        is_p2p=is_p2p,
        is_retired=is_retired,
        state="finished" if is_finished else "started" if said == "started" else "scheduled",
    )


def _call(entry: object, brief: _Brief, interned: dict[object, Any]) -> RecordedCall:
    told = _dict(entry)
    purpose = _text((*_list(told.get("process_group"))[:2], "", "")[1])
    lines = tuple(_line(one, interned) for one in _list(told.get("frames", []))[:LINES_MAX])
    own = tuple(line for line in lines if line is not None)
    types = (*_list(told.get("input_dtypes", [])), *_list(told.get("output_dtypes", [])))
    return RecordedCall(
        group=brief.group,
        purpose="" if purpose == "undefined" else purpose,
        seq=brief.seq,
        order=_whole(told.get("op_id", 0)),
        name=brief.name,
        backend=brief.backend,
        state=brief.state,
        is_p2p=brief.is_p2p,
        timed_out=brief.is_retired and brief.state != "finished",
        created_ns=_whole(told.get("time_created_ns", 0)),
        inputs=_sizes(told.get("input_sizes", [])),
        outputs=_sizes(told.get("output_sizes", [])),
        types=tuple(sorted({_text(one) for one in types[:SIZES_MAX]})),
        lines=interned.setdefault(own, own),
    )


def _line(frame: object, interned: dict[object, Any]) -> CodeLine | None:
    told = _dict(frame)
    line = CodeLine(_text(told.get("name")), _text(told.get("filename")), _whole(told.get("line", 0)))
    return None if TORCH.search(line.file) else interned.setdefault(line, line)


def _batched(calls: list[_Brief]) -> list[_Brief]:
    """The calls of a batch share a number. Torch tracks only the one that closes it: the others keep their
    first state, and end as that one does.
    """
    closing = {
        (call.group, call.is_p2p, call.seq): call for call in calls if call.name.endswith(CLOSES_BATCH)
    }
    found = []
    for call in calls:
        last = closing.get((call.group, call.is_p2p, call.seq), call)
        found.append(call._replace(state=last.state, is_retired=last.is_retired))
    return found


def _in_order(calls: list[_Brief]) -> list[_Brief]:
    """NCCL's calls of a group finish in order, but a dump may be made before all are marked as finished."""
    finished: dict[str, int] = {}
    for call in calls:
        if call.state == "finished" and call.backend == "nccl" and not call.is_p2p:
            finished[call.group] = max(call.seq, finished.get(call.group, 0))
    return [
        call._replace(state="finished")
        if call.state != "finished" and not call.is_p2p and call.seq < finished.get(call.group, 0)
        else call
        for call in calls
    ]


def _kept(calls: Iterable[_Brief]) -> list[int]:
    """Of each group the newest finished and the oldest unfinished calls, and the newest of all."""
    series: dict[tuple[str, bool, bool], list[int]] = {}
    for place, call in enumerate(calls):
        series.setdefault((call.group, call.is_p2p, call.state == "finished"), []).append(place)
    kept: set[int] = set()
    for (_, _, is_finished), places in series.items():
        kept.update(places[-KEPT_MAX:] if is_finished else (*places[:KEPT_MAX], places[-1]))
    return sorted(kept)


def _members(config: Mapping[Any, Any], interned: dict[object, Any]) -> dict[str, tuple[int, ...]]:
    """Torch writes the ranks as text, `[0, 1, 2]`. Gloo does not name the group and leaves it empty.

    Every rank's dump lists all ranks: each text is parsed once, and its result is kept once.
    """
    found = {}
    for name, told in list(config.items())[:CALLS_MAX]:
        ranks = _dict(told).get("ranks")
        if isinstance(ranks, str):
            members = interned.get(ranks)
            if members is None:
                numbers = re.findall(r"\d{1,9}", ranks) if _LISTED.fullmatch(ranks) else []
                listed = tuple(map(int, numbers)) if len(numbers) <= RANKS_MAX else ()
                members = interned[ranks] = interned.setdefault(listed, listed)
            if members:
                found[_text(name)] = members
    return found


def _reached(entries: Iterable[object], calls: Iterable[_Brief], status: Mapping[Any, Any]) -> dict[str, int]:
    """By the calls, and by the status of each group, which dumps with only unfinished calls need."""
    found: dict[str, int] = {}
    for entry, call in zip(entries, calls, strict=True):
        told = status.get(str(_whole(_dict(entry).get("pg_id", -1))), {})
        last = _whole(_dict(told).get("last_enqueued_collective", -1))
        seq = -1 if call.is_p2p else call.seq
        found[call.group] = max(seq, last, found.get(call.group, -1))
    return found


def _dict(value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _Malformed("it does not have the structure of a dump")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _Malformed("it does not have the structure of a dump")
    return value  # type: ignore[return-value]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Malformed("it has something else where a name should be")
    text = value[:CHARS_MAX]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _whole(value: object) -> int:
    """JSON dumps have some numbers as text."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise _Malformed("it has something else where a number should be")
    return value


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(
        math.prod(_whole(one) for one in _list(shape)[:DIMENSIONS_MAX]) for shape in _list(value)[:SIZES_MAX]
    )
