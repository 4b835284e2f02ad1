"""Whether the telemetry covers the machines beneath a run, by name and by clock."""

from collections.abc import Collection, Iterator

import msgspec
import numpy as np

from holdfast import wording
from holdfast.signals.quality import TRUST, Flaw
from holdfast.signals.source import Source
from holdfast.topology.graph import Topology, in_order
from holdfast.topology.hostlist import fold

NAMES_CHARS_MAX = 80


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """trust: the remaining trust in what is said about a run; flaw: why it is reduced."""

    trust: float = 1.0
    flaw: Flaw | None = None


def coverage(topology: Topology, run: str, hosts: Collection[str]) -> Coverage:
    """hosts: those with telemetry. If there are none at all, names are not the problem."""
    if not hosts:
        return Coverage()
    nodes = topology.causes(run, "node") if run in topology else ()
    if not nodes:
        text = f"It is not known which nodes {run} uses, so findings at any machine count."
        return Coverage(flaw=_flaw(run, text))
    if not (dark := in_order({*nodes} - {*hosts})):
        return Coverage()
    share = len(dark) / len(nodes)
    shown = wording.short(fold(dark), NAMES_CHARS_MAX)
    text = f"No exporter shows {_many(len(dark), len(nodes))} of {run}, {shown}: no cause there can be seen."
    if strays := in_order({*hosts} - _at_work(topology)):
        text += f" Exporters show {wording.short(fold(strays), NAMES_CHARS_MAX)}, which no run uses. If these"
        text += " are the same machines under other names, `holdfast doctor` shows which."
    return Coverage(trust=1.0 - (1.0 - TRUST["names"]) * share, flaw=_flaw(run, text))


def _many(dark: int, nodes: int) -> str:
    if nodes == 1:
        return "the only node"
    return f"any of the {nodes:,} nodes" if dark == nodes else f"{dark:,} of the {nodes:,} nodes"


def _at_work(topology: Topology) -> set[str]:
    users = (*topology.names("run"), *topology.names("pool"))
    return {node for user in users for node in topology.causes(user, "node")}


def _flaw(run: str, text: str) -> Flaw:
    return Flaw(kind="names", subject=run, metric="", since_ns=None, text=text)


OFFSETS = ("node_timex_offset_seconds", "chrony_tracking_last_offset_seconds")
OFFSET_S_MAX = 0.1
"""A clock under NTP is off by some milliseconds; a step of a run takes longer than this."""
WITHIN_NS = 300 * 10**9


def skewed(source: Source, now_ns: int) -> Iterator[Flaw]:
    """Hosts whose clocks are wrong, each by the first metric that shows it: the times they record are off."""
    there, told = set(source.metrics()), set()
    for metric in OFFSETS:
        frame = source.frame(metric, (now_ns - WITHIN_NS, now_ns + 1)) if metric in there else None
        if frame is None or not len(frame.times_ns):
            continue
        known = np.flatnonzero(np.isfinite(frame.values).any(axis=0))
        offsets_s = np.nanmedian(frame.values[:, known], axis=0)
        for column, offset_s in zip(known.tolist(), offsets_s.tolist(), strict=True):
            host = frame.subjects[column]
            if abs(offset_s) > OFFSET_S_MAX and host not in told:
                told.add(host)
                off = wording.seconds(abs(offset_s))
                text = f"The clock of {host} is off by {off}: the times it records are wrong."
                yield Flaw(kind="clock", subject=host, metric=metric, since_ns=None, text=text)
