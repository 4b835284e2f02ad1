"""Slurm's JSON, from `--json` of its commands or from slurmrestd, in the forms of all versions.

Until 22.05 a state is one word with flags beside it and a time is a number; later a state is a list, and a
time an object that says whether it is set.
"""

from collections.abc import Iterator

import msgspec

from holdfast.control.cluster import NodeView
from holdfast.control.seeing import PlacedJob
from holdfast.record.errors import HoldfastError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.signals.collectors.slurm import SUFFIXES, MaintenanceWindow, node_names
from holdfast.topology.discovery.slurm import gpu_count
from holdfast.wording.units import SECOND_NS

OUT_STATES = frozenset(
    {"DRAIN", "DOWN", "FAIL", "FAILING", "ERROR", "FUTURE", "POWERED_DOWN", "INVAL", "INVALID_REG"}
)
"""States in which a node gets no work. The last two are the same state: `sinfo` abbreviates it."""
RUNNING = frozenset({"RUNNING", "COMPLETING"})
ERROR_CHARS_MAX = 200


class _SetNumber(msgspec.Struct, frozen=True, kw_only=True):
    set: bool = True
    number: float = 0


_Number = int | float | _SetNumber | None
_Words = str | tuple[str, ...] | None


class SlurmNodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: _Words = None
    state_flags: _Words = None
    reason: str | None = None
    boot_time: _Number = None
    gres: str | None = None


class SlurmJobEntry(msgspec.Struct, frozen=True, kw_only=True):
    job_id: int
    job_state: _Words = None
    nodes: str | None = None
    name: str | None = None


class SlurmReservationEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    flags: _Words = None
    node_list: str | None = None
    start_time: _Number = None
    end_time: _Number = None


class _ErrorEntry(msgspec.Struct, frozen=True, kw_only=True):
    error: str | None = None
    description: str | None = None


class SlurmDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, with nodes, jobs or reservations."""

    nodes: tuple[SlurmNodeEntry, ...] | None = None
    jobs: tuple[SlurmJobEntry, ...] | None = None
    reservations: tuple[SlurmReservationEntry, ...] | None = None
    errors: tuple[_ErrorEntry, ...] | None = None

    @property
    def complaint(self) -> str:
        """Slurm's own error messages; empty if there are none."""
        said = [one.description or one.error or "an error without words" for one in self.errors or ()]
        return "; ".join(said)[:ERROR_CHARS_MAX]


def read_document(body: bytes, *, who: str) -> SlurmDocument:
    """who: the sender. Raises `HoldfastError`, also if the document reports an error: its lists are empty."""
    hint = "Nothing was done; it is asked again."
    try:
        document = msgspec.json.decode(body, type=SlurmDocument)
    except UNDECODABLE:
        raise HoldfastError(f"{who} did not answer with the JSON that was expected.", hint=hint) from None
    if document.complaint:
        raise HoldfastError(f"{who} answers: {document.complaint}.", hint=hint)
    return document


def nodes_of(document: SlurmDocument, gpus_per_node: int) -> dict[str, NodeView]:
    """gpus_per_node: for nodes without a count."""
    return {
        one.name: NodeView(
            name=one.name,
            gpus=gpu_count(f"Gres={one.gres or ''}") or gpus_per_node,
            is_out=bool({*_words(one.state), *_words(one.state_flags)} & OUT_STATES),
            reason=one.reason or "",
            since_ns=_time_ns(one.boot_time) or 0,
        )
        for one in document.nodes or ()
        if one.name
    }


def jobs_of(document: SlurmDocument) -> tuple[PlacedJob, ...]:
    """The running jobs. Lists also have waiting ones, and some that have ended."""
    return tuple(
        PlacedJob(job=str(one.job_id), name=one.name or "", nodes=nodes)
        for one in document.jobs or ()
        if {*_words(one.job_state)} & RUNNING and (nodes := node_names(one.nodes or ""))
    )


def windows_of(document: SlurmDocument) -> tuple[MaintenanceWindow, ...]:
    """Reservations for maintenance."""
    return tuple(_windows(document))


def _windows(document: SlurmDocument) -> Iterator[MaintenanceWindow]:
    for one in document.reservations or ():
        start_ns, end_ns = _time_ns(one.start_time), _time_ns(one.end_time)
        if "MAINT" in _words(one.flags) and start_ns is not None and end_ns is not None:
            yield MaintenanceWindow(
                name=one.name or "", start_ns=start_ns, end_ns=end_ns, nodes=node_names(one.node_list or "")
            )


def _words(told: _Words) -> list[str]:
    words = told.replace(",", "+").split("+") if isinstance(told, str) else told or ()
    return [word.strip().rstrip(SUFFIXES).upper() for word in words]


def _time_ns(told: _Number) -> int | None:
    if isinstance(told, _SetNumber):
        told = told.number if told.set else None
    return round(told) * SECOND_NS if told is not None and abs(told) < 1 << 40 else None
