"""Slurm's accounting as `sacct --parsable2` prints it: a header, then a line for every job, attempt and step.

Each job is a run, and each line that `--duplicates` shows of a requeued job is an attempt at it; of a job
that was resized, a piece of one. Steps belong to their job; they stand for it only if its own line is
missing. Times are local to the cluster and have no zone: they are taken as UTC.

A job that runs held its GPUs at least until the newest moment in the file, which was written no earlier.

Lines of a job may stand far apart, and accounting files are large: rows wait in a temporary database on disk,
and memory holds one job at a time.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import Any

import msgspec

from holdfast.record import events
from holdfast.record.errors import InputError
from holdfast.record.importers import intake

_SOURCE = "sacct"
_COMMAND = (
    "sacct --allusers --duplicates --parsable2 --delimiter='|#' "
    "--format=JobID,JobName,Account,State,Submit,Start,End,NNodes,NodeList,AllocTRES,ReqTRES"
)
"""The command for a file with all fields that are read here."""

_FAILED = ("FAILED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "OUT_OF_MEMORY", "SPECIAL_EXIT")
_STOPPED = ("TIMEOUT", "DEADLINE", "CANCELLED", "REVOKED")
"""The limit was the user's own: nothing broke, and long runs are often cut into jobs this way."""
_NOT_ENDED = (
    *("REQUEUE_HOLD", "REQUEUE_FED", "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED"),
    *("RESIZING", "SIGNALING", "STAGE_OUT", "COMPLETING"),
)
OUTCOMES: dict[str, events.Outcome | None] = {
    "COMPLETED": "completed",
    **dict.fromkeys(_FAILED, "failed"),
    **dict.fromkeys(_STOPPED, "stopped"),
    **dict.fromkeys(("PREEMPTED", "REQUEUED"), "preempted"),
    **dict.fromkeys(_NOT_ENDED),
}
"""Slurm's job states and how an attempt in that state ended; None if it has not."""

_FAULTS = {"NODE_FAIL": "node-fail", "BOOT_FAIL": "boot-fail"}
"""The states that mean a broken machine, not a broken job."""

_JOB = re.compile(r"([0-9]+(?:_(?:[0-9]+|\[[^\]]*\]))?(?:\+[0-9]+)?)(?:\.([A-Za-z0-9_+]+))?")
"""A job, a task of an array (`7_3`, or `7_[4-9]` while they wait) or a part of a heterogeneous job (`7+1`);
then its step (`7.batch`)."""


class _Rank(IntEnum):
    """The order of events within one second, the resolution of Slurm's clock.

    The next submission follows an end; only an attempt that began in the same second ends after it. The ids
    give this order and not causes, because an attempt must read the same whatever other lines the file has,
    and because the ledger puts an effect after all events of that moment that have no cause.
    """

    FAULT = 0
    END = 1
    SUBMISSION = 2
    START = 3
    RESIZE = 4
    FAULT_AT_ONCE = 5
    END_AT_ONCE = 6
    HELD = 7


_WAITING = {"PENDING", "REQUEUE_HOLD", "REQUEUE_FED"}
_NO_TIME = {"", "Unknown", "None", "N/A"}
_NO_NODES = {"", "None", "None assigned"}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_RECORD_LINES_MAX = 16
"""Names may contain newlines, which sacct prints unchanged; a record is never joined from more lines."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The index of each field, and the delimiter. trailing: also after the last field (`--parsable`)."""

    fields: dict[str, int]
    width: int
    delimiter: str
    trailing: bool

    def split(self, record: str) -> list[str]:
        return (record.removesuffix(self.delimiter) if self.trailing else record).split(self.delimiter)


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one line that are used here.

    step        empty on a job's own line
    asked_gpus  the requested GPUs, known before anything is allocated
    resized     it continues an attempt that had another size until then
    """

    job: str
    step: str
    state: str
    submit_ns: int | None
    start_ns: int | None
    end_ns: int | None
    gpus: int
    asked_gpus: int
    name: str
    team: str
    cluster: str
    node: str
    resized: bool = False

    @property
    def first_ns(self) -> int:
        return min(self._moments())

    @property
    def last_ns(self) -> int:
        return max(self._moments())

    def _moments(self) -> list[int]:
        return [at for at in (self.submit_ns, self.start_ns, self.end_ns) if at is not None]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Row)


def is_header(line: str) -> bool:
    """Whether this line names the fields of sacct; also in the human-readable form, which `read` refuses."""
    return bool({"JobID", "JobIDRaw"} & _header(line).fields.keys())


def read(lines: intake.Lines, options: intake.Options) -> intake.FileReading:
    """The events of every job in the file, each job a run."""
    header = _usable(_header(lines.header().decode("utf-8", "replace")), lines.name)
    shelf = _Shelf()
    shelf.add_rows(_rows(lines, header, options))
    without = shelf.add_attempts(options.run)
    found = (
        event for run, attempts in shelf.runs() for event in _events(run, attempts, options, shelf.newest_ns)
    )
    return intake.FileReading("sacct", lines, found, runs_without_gpus=without)


class _Shelf:
    """Rows on disk, by job; then the attempts they make up, by run and time. newest_ns: of all moments."""

    def __init__(self) -> None:
        self.newest_ns = 0
        self._database = sqlite3.connect("")  # a temporary file that SQLite deletes
        self._database.executescript(
            """
            CREATE TABLE row (job TEXT, packed BLOB);
            CREATE TABLE attempt (run TEXT, first_ns INTEGER, gpus INTEGER, packed BLOB);
            """
        )

    def add_rows(self, rows: Iterable[_Row]) -> None:
        self._database.executemany("INSERT INTO row VALUES (?, ?)", self._packed(rows))

    def _packed(self, rows: Iterable[_Row]) -> Iterator[tuple[str, bytes]]:
        for row in rows:
            self.newest_ns = max(self.newest_ns, row.last_ns)
            yield row.job, _encoder.encode(row)

    def add_attempts(self, run: str | None) -> int:
        """Add every job's attempts, for a run of its own or for this one. Return how many runs have no
        GPU."""
        found = self._database.execute("SELECT job, packed FROM row ORDER BY job, rowid")
        for job, rows in groupby(found, key=lambda row: str(row[0])):
            attempts = _attempts(_decoder.decode(packed) for _, packed in rows)
            self._database.executemany(
                "INSERT INTO attempt VALUES (?, ?, ?, ?)",
                ((run or job, row.first_ns, row.gpus, _encoder.encode(row)) for row in attempts),
            )
        ((without,),) = self._database.execute(
            "SELECT count(*) FROM (SELECT run FROM attempt GROUP BY run HAVING max(gpus) = 0)"
        )
        return int(without)

    def runs(self) -> Iterator[tuple[str, Iterator[_Row]]]:
        """Each run and its attempts in order of time."""
        found = self._database.execute("SELECT run, packed FROM attempt ORDER BY run, first_ns, rowid")
        for run, rows in groupby(found, key=lambda row: str(row[0])):
            yield run, (_decoder.decode(packed) for _, packed in rows)


def _rows(lines: intake.Lines, header: _Header, options: intake.Options) -> Iterator[_Row]:
    """The usable lines, in their order."""
    for number, values in _records(lines, header):
        try:
            row = _row(header, values, options)
        except ValueError as error:
            lines.skip(number, str(error))
            continue
        if "\ufffd" in row.name + row.team + row.cluster + row.node:
            lines.replaced_count += 1
        yield row


def _attempts(rows: Iterable[_Row]) -> list[_Row]:
    """The attempts at a job: those it has lines for, or else one built from its steps."""
    attempts: dict[_Key, _Row] = {}
    seen_by_steps: _Row | None = None
    for row in rows:
        if row.step:
            seen_by_steps = _joined(seen_by_steps, row)
        else:
            _take(attempts, row)
    if attempts or seen_by_steps is None:
        return [*_in_order(attempts.values())]
    return [seen_by_steps]


def _header(line: str) -> _Header:
    """Parse the header. Names of fields are letters only, so the delimiter is what follows the first."""
    found = re.match(r"\s*[A-Za-z]+([^A-Za-z0-9]+)", line)
    delimiter = found[1] if found else "|"
    names = line.split() if delimiter.isspace() else line.removesuffix(delimiter).split(delimiter)
    return _Header(
        fields={name: index for index, name in enumerate(names)},
        width=len(names),
        delimiter=delimiter,
        trailing=line.endswith(delimiter),
    )


def _usable(header: _Header, name: str) -> _Header:
    if not header.delimiter.strip(" "):
        raise InputError(
            f"{name} is sacct's output for people, in which long values are cut off.",
            hint=f"Use `{_COMMAND}`.",
        )
    if missing := [field for field in ("State", "Start", "End") if field not in header.fields]:
        raise InputError(f"{name} lacks sacct's {' and '.join(missing)}.", hint=f"Use `{_COMMAND}`.")
    return header


def _records(lines: intake.Lines, header: _Header) -> Iterator[tuple[int, list[str]]]:
    """The fields of each record and the number of its first line; records split by newlines are joined."""
    held: list[tuple[int, str]] = []
    for number, content in lines:
        text = content.decode("utf-8", "replace")
        alone = header.split(text)
        joined = header.split("\n".join([*(part for _, part in held), text])) if held else alone
        if held and len(joined) == header.width != len(alone):
            yield held[0][0], joined
            held.clear()
        elif len(alone) < header.width and len(joined) < header.width and len(held) < _RECORD_LINES_MAX:
            held.append((number, text))
        else:
            _give_up(lines, held, header)
            if len(alone) == header.width:
                yield number, alone
            else:
                _give_up(lines, [(number, text)], header)
    _give_up(lines, held, header)


def _give_up(lines: intake.Lines, held: list[tuple[int, str]], header: _Header) -> None:
    for number, text in held:
        found = len(header.split(text))
        excuse = ": a name may hold the delimiter" if found > header.width else ""
        lines.skip(number, f"it has {found} fields and the header {header.width}{excuse}")
    held.clear()


def _row(header: _Header, values: list[str], options: intake.Options) -> _Row:
    """Parse a record; raises `ValueError` with the reason if it cannot be used."""

    def field(*names: str) -> str:
        for name in names:
            index = header.fields.get(name)
            if index is not None and (value := values[index].strip()):
                return value
        return ""

    job = _JOB.fullmatch(field("JobID", "JobIDRaw"))
    if not job:
        raise ValueError(f"JobID {field('JobID', 'JobIDRaw')[:40]!r} is not a job")
    state = field("State").partition(" ")[0]
    if state not in OUTCOMES:
        raise ValueError(f"State {state[:40]!r} is unknown")
    submit_ns, start_ns, end_ns = (_time_ns(name, field(name)) for name in ("Submit", "Start", "End"))
    nodes = field("NodeList")
    node = field("FailedNode") or ("" if nodes in _NO_NODES or re.search(r"[\[,]", nodes) else nodes)
    intake.require_name("JobID", job[1])
    intake.require_name("the node", node)
    if state in _WAITING or (start_ns == end_ns and nodes == "None assigned"):
        start_ns = None  # It never got a node; some versions of Slurm put the time of the cancellation here.
    if submit_ns is start_ns is end_ns is None:
        raise ValueError("it has none of Submit, Start and End")
    requested = field("ReqTRES")
    gpus = _gpus(field("AllocTRES"), field("AllocGRES"), requested, field("NNodes", "AllocNodes"), options)
    return _Row(
        job=job[1],
        step=job[2] or "",
        state=state,
        submit_ns=submit_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        gpus=gpus,
        asked_gpus=min(_tres_gpus(requested), intake.GPUS_MAX) or gpus,
        name=field("JobName"),
        team=field("Account", "User"),
        cluster=field("Cluster"),
        node=node,
    )


def _time_ns(name: str, text: str) -> int | None:
    try:
        return None if text in _NO_TIME else intake.time_ns(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _gpus(alloc_tres: str, alloc_gres: str, req_tres: str, nodes: str, options: intake.Options) -> int:
    """The allocated GPUs, else the requested ones, else the user's number: accounting may not know GPUs."""
    gpus = _tres_gpus(alloc_tres) or _gres_gpus(alloc_gres) or _tres_gpus(req_tres)
    if not gpus and options.gpus_per_node:
        gpus = (_count(nodes) or 0) * options.gpus_per_node
    gpus = gpus or options.gpus or 0
    if gpus > intake.GPUS_MAX:
        raise ValueError(f"{gpus} GPUs exceed the limit of {intake.GPUS_MAX}")
    return gpus


def _tres_gpus(tres: str) -> int:
    """`gres/gpu=16` is the total; `gres/gpu:h100=8` is a part of it, and stands alone on some clusters."""
    items = [item.partition("=") for item in tres.split(",")]
    total = sum(_count(value) or 0 for name, _, value in items if name == "gres/gpu")
    return total or sum(_count(value) or 0 for name, _, value in items if name.startswith("gres/gpu:"))


def _gres_gpus(gres: str) -> int:
    """`gpu:8`, `gpu:a100:8(S:0-1)`, or `gpu` for one."""
    items = (re.sub(r"^gres[:/]", "", item).split(":") for item in re.sub(r"\([^)]*\)", "", gres).split(","))
    return sum(1 if (count := _count(item[-1])) is None else count for item in items if item[0] == "gpu")


def _count(text: str) -> int | None:
    """A number as Slurm prints it: `1536`, `1.50K`; None if it is not a number."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMG]?)", text)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


_Key = tuple[int, int | None]
"""When it was submitted and started: a requeue has its own first value, a resize at least its own second."""


def _take(attempts: dict[_Key, _Row], row: _Row) -> None:
    """Keep the latest line of an attempt.

    Several outputs in one file show an attempt more than once: then a known end stays known.
    """
    key = (row.first_ns if row.submit_ns is None else row.submit_ns, row.start_ns)
    if key not in attempts or OUTCOMES[attempts[key].state] is None or OUTCOMES[row.state] is not None:
        attempts[key] = row


def _in_order(rows: Iterable[_Row]) -> Iterator[_Row]:
    """The attempts at a job by time, without lines from while they waited; resizes are marked."""
    rows = sorted(rows, key=lambda row: (row.first_ns, row.start_ns or 0))
    started = {row.submit_ns for row in rows if row.start_ns is not None}
    previous: _Row | None = None
    for row in rows:
        if row.start_ns is None and row.submit_ns in started:
            continue
        resized = previous is not None and _goes_on(previous, row)
        told = resized or (previous is not None and previous.submit_ns == row.submit_ns)
        previous = row
        yield msgspec.structs.replace(row, submit_ns=None if told else row.submit_ns, resized=resized)


def _goes_on(previous: _Row, row: _Row) -> bool:
    """Whether this line continues a job that was being resized: it begins where the other ends."""
    began_ns = row.start_ns
    return began_ns is not None and previous.state == "RESIZING" and previous.end_ns in (None, began_ns)


def _joined(job: _Row | None, step: _Row) -> _Row:
    """A job built from its steps: it lasts as long as they do, and ends like the one that ends last.

    Its submission time is unknown: a step's own Submit is when the step began.
    """
    step = msgspec.structs.replace(step, submit_ns=None, start_ns=step.start_ns or step.submit_ns)
    if job is None:
        return step
    last = step if _end_order(step) >= _end_order(job) else job
    starts = [at for at in (job.start_ns, step.start_ns) if at is not None]
    return msgspec.structs.replace(last, start_ns=min(starts, default=None), gpus=max(job.gpus, step.gpus))


def _end_order(row: _Row) -> float:
    return float("inf") if row.end_ns is None else row.end_ns


def _events(
    run: str, rows: Iterable[_Row], options: intake.Options, newest_ns: int
) -> Iterator[events.AnyEvent]:
    """Every attempt at the run; rows: in order of time. newest_ns: the newest moment in the file."""
    row: _Row | None = None
    for number, row in enumerate(rows):
        if number == 0:
            yield from intake.declarations(run, row.first_ns, options, _SOURCE, gpus=row.gpus)
        yield from _begun(run, row)
        outcome = OUTCOMES[row.state]
        if outcome is not None and row.end_ns is not None:
            yield from _ended(run, row, outcome, row.end_ns)
    if row is not None and _holds(row) and newest_ns > row.last_ns:
        facts = intake.said(run, row.job, _Rank.HELD.name, newest_ns)
        yield intake.made(events.CostRate, _SOURCE, run, newest_ns, facts, rank=_Rank.HELD)


def _holds(row: _Row) -> bool:
    """Whether the attempt had its GPUs when the file was written."""
    return row.start_ns is not None and row.end_ns is None and OUTCOMES[row.state] is None


def _event(
    kind: type[events.KnownEvent], run: str, row: _Row, rank: _Rank, at_ns: int, **fields: Any
) -> events.KnownEvent:
    return intake.made(kind, _SOURCE, run, at_ns, intake.said(run, row.job, rank.name), rank=rank, **fields)


def _begun(run: str, row: _Row) -> Iterator[events.AnyEvent]:
    whose = {"name": row.name, "team": row.team, "cluster": row.cluster}
    if row.submit_ns is not None:
        asked = row.asked_gpus
        yield _event(events.RunSubmitted, run, row, _Rank.SUBMISSION, row.submit_ns, gpus=asked, **whose)
    if row.start_ns is not None and row.resized:
        yield _event(events.GenerationOpened, run, row, _Rank.RESIZE, row.start_ns, gpus=row.gpus)
    elif row.start_ns is not None:
        yield _event(events.RunStarted, run, row, _Rank.START, row.start_ns, gpus=row.gpus, **whose)


def _ended(run: str, row: _Row, outcome: events.Outcome, at_ns: int) -> Iterator[events.AnyEvent]:
    at_once = at_ns in (row.submit_ns, row.start_ns)
    if row.state in _FAULTS:
        rank = _Rank.FAULT_AT_ONCE if at_once else _Rank.FAULT
        yield _event(events.FaultObserved, run, row, rank, at_ns, subject=row.node, fault=_FAULTS[row.state])
    rank = _Rank.END_AT_ONCE if at_once else _Rank.END
    yield _event(events.RunEnded, run, row, rank, at_ns, outcome=outcome, reason=row.state)
