"""The fault trace published with InfiniteHBD: one JSON array of faults that begin and end on GPU servers.

https://github.com/stepfun-ai/InfiniteHBD-Trace. The file names the nodes that had faults and counts days from
an origin; its README says how many nodes were watched, since when and for how long, and this module has these
figures. Every entry is read by itself, so parts of a trace may be imported in any order.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, Any, Literal

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.events import ActionTaken, AnyEvent, CostRate, FaultObserved, KnownEvent
from holdfast.record.importers import intake

_SOURCE = "infinitehbd"
KEYS = (b'"node_id"', b'"event_time"', b'"event_type"', b'"fault_type"')

# The README: "400 GPU servers", "348 days of fault data starting from March 30, 2024". The zone is unknown,
# and the entries reach 0.98 days further; docs/fitting.md says how that changes a rate.
NODES = 400
DAYS = 348
BEGAN_NS = 1_711_756_800 * 10**9
DAY_MS = 86_400_000
GPUS_PER_NODE = 8
"""Unknown, too: the README speaks of thousands of GPUs in hundreds of nodes. No rate depends on it."""

DAYS_MAX = 10_000.0
FILE_BYTES_MAX = 1 << 28
"""An array is read at once; the published one has 330 KB."""


class _FaultType(msgspec.Struct, frozen=True, kw_only=True):
    level: str = msgspec.field(name="Level")
    part: str = msgspec.field(name="Class")
    description: str = msgspec.field(name="Desc")


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One element of the array. event_time: days, to four decimals."""

    node_id: str
    event_time: Annotated[float, msgspec.Meta(ge=0, le=DAYS_MAX)]
    event_type: Literal["fault_start", "fault_end"]
    fault_type: _FaultType

    @property
    def at_ns(self) -> int:
        # Through milliseconds, which a float holds exactly, unlike nanoseconds.
        return BEGAN_NS + round(self.event_time * DAY_MS) * 10**6

    @property
    def fault(self) -> str:
        """`hardware/GPU` for a `Hardware Failure` of the class `GPU`: the level stands before the slash."""
        return f"{self.fault_type.level.partition(' ')[0].lower()}/{self.fault_type.part}"


class _Rank(IntEnum):
    """The order of events at one moment: a fault that was over at once still began before it ended."""

    FAULT = 0
    DRAIN = 1
    RESTORE = 2
    END = 3


_elements = msgspec.json.Decoder(list[msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)


def is_head(head: bytes) -> bool:
    """Whether a file that begins like this is such a trace."""
    return head.lstrip().startswith(b"[") and all(key in head for key in KEYS)


def read(lines: intake.Lines, options: intake.Options) -> intake.FileReading:
    """A fault and a drain for each beginning, a restore for each end, and the GPUs watched."""
    return intake.FileReading("infinitehbd", lines, _events(lines, _entries(lines), options))


def _entries(lines: intake.Lines) -> list[tuple[int, bytes]]:
    """The elements of the array, each with the number of the line on which it begins."""
    content = b"".join(_bounded(lines))
    try:
        elements = [bytes(element) for element in _elements.decode(content)]
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{lines.name} is not a whole JSON array: {intake.reason_of(error)}.",
            hint="Download it again: an array that was cut off cannot be read.",
        ) from None
    numbered, line, at = [], 1, 0
    for element in elements:
        found = content.index(element, at)
        line += content.count(b"\n", at, found)
        numbered.append((line, element))
        line += element.count(b"\n")
        at = found + len(element)
    return numbered


def _bounded(lines: intake.Lines) -> Iterator[bytes]:
    size_bytes = 0
    for block in lines.blocks():
        size_bytes += len(block)
        if size_bytes > FILE_BYTES_MAX:
            raise InputError(
                f"{lines.name} is larger than {FILE_BYTES_MAX:,} bytes.",
                hint="Cut the array into several files.",
            )
        yield block


def _events(
    lines: intake.Lines, entries: list[tuple[int, bytes]], options: intake.Options
) -> Iterator[AnyEvent]:
    """The events of the entries, then the number of GPUs; a file without usable entries gives neither."""
    run, gpus_per_node = options.run or "", options.gpus_per_node or GPUS_PER_NODE
    is_of_use = False
    for line, element in entries:
        lines.count += 1
        try:
            entry = _entry.decode(element)
            intake.require_name("node_id", entry.node_id)
            if b"\\u0000" in element:
                raise ValueError("it holds a NUL character, which no text has")
        except (ValueError, RecursionError) as error:
            lines.skip(line, intake.reason_of(error))
        else:
            is_of_use = True
            yield from _told(entry, run, gpus_per_node)
    if is_of_use:
        gpus = options.gpus or NODES * gpus_per_node
        yield from intake.declarations(run, BEGAN_NS, options, _SOURCE, gpus=gpus, held=True)
        yield _watched_no_more(run)


def _watched_no_more(run: str) -> CostRate:
    at_ns = BEGAN_NS + DAYS * DAY_MS * 10**6
    facts = intake.said(run, "cost.rate", "end")
    return intake.made(CostRate, _SOURCE, run, at_ns, facts, rank=_Rank.END, gpus=0)


def _told(entry: _Entry, run: str, gpus_per_node: int) -> Iterator[AnyEvent]:
    begins, what = entry.event_type == "fault_start", entry.fault_type.description
    if begins:
        yield _event(FaultObserved, entry, run, _Rank.FAULT, fault=entry.fault, detail=what)
    action, rank = ("drain", _Rank.DRAIN) if begins else ("restore", _Rank.RESTORE)
    yield _event(ActionTaken, entry, run, rank, action=action, gpus=gpus_per_node, reason=entry.fault)


def _event(kind: type[KnownEvent], entry: _Entry, run: str, rank: _Rank, **fields: Any) -> KnownEvent:
    node, what = entry.node_id, entry.fault_type.description
    facts = intake.said(run, rank.name, node, entry.fault, what)
    return intake.made(kind, _SOURCE, run, entry.at_ns, facts, rank=rank, subject=node, **fields)
