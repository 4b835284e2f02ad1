"""A source whose subjects have their names in the topology, whatever an exporter calls its host.

It remembers for one evaluation which hosts had any series: finding nothing at a machine without readings must
not pass for health.
"""

from collections.abc import Container
from typing import get_args

import msgspec

from holdfast.signals.catalogue import OfGpus, OfHosts, Scope, describe
from holdfast.signals.frame import Frame, Labels
from holdfast.signals.source import Source
from holdfast.topology.hosts import Hosts
from holdfast.topology.names import host_names_of, host_of

HOSTED: dict[Scope, str] = {
    **dict.fromkeys(get_args(OfGpus), "."),
    **dict.fromkeys(get_args(OfHosts), ""),
    "port": "/",
}
"""Scopes whose subjects are hosts or begin with one, and the separator after the host."""
CHASSIS: frozenset[Scope] = frozenset({"chassis", "supply"})
"""Scopes whose subjects are shelves or racks, or a node's own: every controller has a chassis `1`."""


class Namer:
    """Maps subjects to those of the topology. It may live as long as its hosts: it forgets nothing."""

    def __init__(self, hosts: Hosts, subjects: Container[str] = ()) -> None:
        """subjects: all that the topology has."""
        self._hosts = hosts
        self._subjects = subjects
        self._known: dict[Scope, dict[str, tuple[str, str]]] = {scope: {} for scope in HOSTED}

    def chassis(self, subject: str, labels: Labels) -> str:
        """A shelf or rack in the topology; else the node whose controller reports it, if there is one."""
        if subject in self._subjects:
            return subject
        nodes = (self._hosts.node(name) for name in (subject, *host_names_of(labels)))
        return next(filter(None, nodes), subject)

    def named(self, scope: Scope, subject: str, labels: Labels) -> tuple[str, str]:
        """The subject, and its host."""
        known = self._known[scope].get(subject)
        if known is not None:
            return known
        first = host_of(labels)
        host = first if first and subject.startswith(first) else _host(scope, subject)
        called = self._hosts.node(host)
        rest = subject[len(host) :]
        if called is None:
            # Another label of the series may name the host; other series with that name need not have the
            # label.
            other = self._hosts.of(labels) if host == first else host
            return other + rest, other
        self._known[scope][subject] = called + rest, called
        return self._known[scope][subject]


def _host(scope: Scope, subject: str) -> str:
    if scope == "port":
        return subject.partition("/")[0]
    return subject.rpartition(HOSTED[scope])[0] if HOSTED[scope] else subject


class NamedSource:
    """Another source with renamed subjects. hosts: those with a series in any frame so far, by metric."""

    def __init__(self, source: Source, namer: Namer) -> None:
        self._source = source
        self._namer = namer
        self.hosts: dict[str, set[str]] = {}

    def metrics(self) -> tuple[str, ...]:
        return self._source.metrics()

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        frame = self._source.frame(metric, window_ns)
        scope = describe(metric).scope
        if frame is None:
            return None
        if scope in CHASSIS:
            pairs = zip(frame.subjects, frame.labels, strict=True)
            subjects = tuple(self._namer.chassis(subject, labels) for subject, labels in pairs)
            return msgspec.structs.replace(frame, subjects=subjects)
        if scope not in HOSTED:
            return frame
        named = [
            self._namer.named(scope, subject, labels)
            for subject, labels in zip(frame.subjects, frame.labels, strict=True)
        ]
        self.hosts.setdefault(metric, set()).update(host for _, host in named)
        return msgspec.structs.replace(frame, subjects=tuple(subject for subject, _ in named))
