"""Write faults from the kernel log to the record: once each, however often a log is read."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.detect.xids import NO_OVERRIDES, KernelVerdict, Overrides, Source, verdict
from holdfast.record.events import NAME_CHARS_MAX, FaultObserved
from holdfast.record.stores import open_store
from holdfast.signals.collectors.kernel_log import KernelEvent
from holdfast.signals.frame import Labels
from holdfast.topology.names import gpu_name, port_name

ID_PREFIX = "kernel-"
DIGEST_CHARS = 32
DETAIL_CHARS_MAX = 1000
PENDING_MAX = 10_000
"""Faults that wait while the store cannot be written; beyond this the oldest are dropped, and counted."""
TIME_NS_MAX = 2**62


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What is behind a PCI address: a GPU by its labels, a network adapter by its name."""

    gpus: Mapping[str, Labels]
    ports: Mapping[str, str]


class FaultRecord:
    """Writes faults to the record. The store is opened for each batch: faults are rare.

    dropped: faults lost because the store could not be written for too long
    """

    def __init__(
        self, url: str | None, home: Path, *, source: Source, overrides: Overrides = NO_OVERRIDES
    ) -> None:
        self._url = url
        self._home = home
        self._source: Source = source
        self._overrides = overrides
        self._pending: list[FaultObserved] = []
        self.dropped = 0

    def add(self, events: list[KernelEvent], names: Names, *, now_ns: int) -> None:
        """Record what the policy calls a fault. On `StoreError` the faults are kept for the next call."""
        for event in events:
            judged = verdict(event, source=self._source, overrides=self._overrides)
            if judged is not None and judged.severity != "none":
                self._pending.append(observed(event, judged, names, now_ns=now_ns))
        self.dropped += max(0, len(self._pending) - PENDING_MAX)
        del self._pending[:-PENDING_MAX]
        if self._pending:
            with open_store(self._url, self._home) as store:
                store.ingest(self._pending)
                self._pending.clear()


def observed(event: KernelEvent, judged: KernelVerdict, names: Names, *, now_ns: int) -> FaultObserved:
    """The event for the record. Its id is a digest of the line, so reading a log again adds nothing."""
    at_ns = event.at_ns if event.at_ns is not None and 0 <= event.at_ns <= TIME_NS_MAX else now_ns
    when = event.at_ns if event.uptime_s is None else event.uptime_s
    said = "\n".join(map(str, (event.host, when, event.source, event.code, event.device, event.message)))
    digest = hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:DIGEST_CHARS]
    return FaultObserved(
        id=ID_PREFIX + digest,
        occurred_ns=at_ns,
        recorded_ns=now_ns,
        source=f"{event.host}/kernel-log"[:NAME_CHARS_MAX],
        subject=subject(event, names)[:NAME_CHARS_MAX],
        fault=judged.fault,
        severity="fatal" if judged.severity == "fatal" else "degraded",
        detail=event.message[:DETAIL_CHARS_MAX],
    )


def subject(event: KernelEvent, names: Names) -> str:
    """The GPU or port by its name in the topology, if known; else the host and the PCI address."""
    gpu, port = names.gpus.get(event.device), names.ports.get(event.device)
    if event.source == "xid" and gpu is not None:
        return gpu_name(event.host, gpu["gpu"])
    if event.source == "mlx5" and port is not None:
        return port_name(event.host, port)
    return f"{event.host}/{event.device}" if event.device else event.host
