"""The lead by a Lease of Kubernetes (coordination.k8s.io/v1): for processes that share no database session.

A leader that could not renew for `renew_s` does not lead any more. Another one takes its place no sooner than
`lease_s` after it saw the Lease change for the last time, by a clock of its own that only goes forward. What
was begun in a leader's last moment is over in the time between: so long is a write tried at most. Of two that
write at once the server takes one, by the version of the object that both have read.
"""

import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from holdfast.record.errors import HoldfastError
from holdfast.schedulers.kubernetes_api import LIMITS, PATIENCE_S, KubeRefusal
from holdfast.schedulers.kubernetes_objects import KubeLease

RENEW_S = 30.0
LEASE_S = RENEW_S + PATIENCE_S + LIMITS.total_s
"""A write that was begun in the last moment is tried for a while, and the last try takes its time."""
EVERY_S = 10.0
MISSING = 404
NEVER = frozenset({401, 403, MISSING})
"""Refusals that waiting does not change. 409: somebody else has written since."""


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """renew_s: a leader that could not renew for so long has lost the lead. lease_s: so long the others wait.
    every_s: between two renewals.
    """

    renew_s: float = RENEW_S
    lease_s: float = LEASE_S
    every_s: float = EVERY_S


class LeaseServer(Protocol):
    """What of `KubernetesApi` is needed. Each is tried once."""

    def get(self, path: str, kind: type[KubeLease]) -> KubeLease: ...

    def replace(self, path: str, made: object) -> None: ...

    def close(self) -> None: ...


class LeaseLead:
    """Asked by several threads. name: of this process, and of no other."""

    def __init__(
        self,
        api: LeaseServer,
        lease: str,
        name: str,
        *,
        times: LeaseTimes | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """lease: `NAMESPACE/NAME`. Raises `HoldfastError` where it cannot be read."""
        namespace, _, self._lease_name = lease.partition("/")
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{self._lease_name}"
        self._api = api
        self._name = name
        self._times = times or LeaseTimes()
        self._now_s = now_s
        self._lock = threading.Lock()
        self._until_s = -float("inf")
        self._renewed_s = -float("inf")
        self._seen: tuple[str, float] | None = None
        try:
            self._read()
        except KubeRefusal as refusal:
            if refusal.status != MISSING:
                raise
            raise HoldfastError(
                f"There is no Lease {lease} on the Kubernetes API server.",
                hint="contrib/kubernetes/control/lease.yaml makes it.",
            ) from None

    def is_ours(self) -> bool:
        """Asks the server each time: a lead that somebody else has is lost at once. While the server is away,
        or somebody writes at the same moment, the lead lasts as long as the last renewal does. Raises
        `HoldfastError` where waiting does not help.
        """
        with self._lock:
            try:
                return self._is_ours()
            except KubeRefusal as refusal:
                if refusal.status in NEVER:
                    self._until_s = -float("inf")
                    raise
                return self._now_s() < self._until_s
            except HoldfastError:
                return self._now_s() < self._until_s

    def close(self) -> None:
        """Gives the place back, so that nobody has to wait."""
        with self._lock:
            if self._until_s > self._now_s():
                self._release()
            self._until_s = -float("inf")
            self._api.close()

    def _is_ours(self) -> bool:
        asked_s = self._now_s()
        lease = self._read()
        if lease.spec.holder_identity == self._name:
            if asked_s - self._renewed_s >= self._times.every_s or asked_s >= self._until_s:
                self._write(lease, asked_s)
            return self._now_s() < self._until_s
        self._until_s = -float("inf")
        if not self._is_free(lease):
            return False
        self._write(lease, asked_s)
        return self._now_s() < self._until_s

    def _is_free(self, lease: KubeLease) -> bool:
        """Nobody has it, or whoever has it has not renewed it for as long as it may take."""
        if not lease.spec.holder_identity:
            return True
        version, now_s = lease.metadata.resource_version, self._now_s()
        if self._seen is None or self._seen[0] != version:
            self._seen = version, now_s
        waits_s = max(self._times.lease_s, lease.spec.lease_duration_seconds or 0)
        return now_s - self._seen[1] >= waits_s

    def _read(self) -> KubeLease:
        return self._api.get(self._path, KubeLease)

    def _write(self, lease: KubeLease, asked_s: float) -> None:
        """The server takes it only if nobody has written since it was read. It counts from when it was asked
        for: when it was written nobody here knows.
        """
        is_new = lease.spec.holder_identity != self._name
        moment = _moment()
        acquired = moment if is_new else lease.spec.acquire_time or moment
        transitions = (lease.spec.lease_transitions or 0) + is_new
        self._put(lease, self._name, round(self._times.lease_s) or 1, moment, acquired, transitions)
        self._renewed_s = asked_s
        self._until_s = asked_s + self._times.renew_s

    def _release(self) -> None:
        try:
            lease = self._read()
            if lease.spec.holder_identity == self._name:
                transitions = lease.spec.lease_transitions or 0
                self._put(lease, "", 1, _moment(), lease.spec.acquire_time or _moment(), transitions)
        except HoldfastError:
            return  # the others wait until it is over by itself

    def _put(
        self, lease: KubeLease, holder: str, lasts_s: int, renewed: str, acquired: str, transitions: int
    ) -> None:
        spec: dict[str, Any] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": lasts_s,
            "renewTime": renewed,
            "acquireTime": acquired,
            "leaseTransitions": transitions,
        }
        version = {"name": self._lease_name, "resourceVersion": lease.metadata.resource_version}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        labels = {"labels": lease.metadata.labels} if lease.metadata.labels else {}
        notes = {"annotations": lease.metadata.annotations} if lease.metadata.annotations else {}
        self._api.replace(self._path, {**kind, "metadata": {**version, **labels, **notes}, "spec": spec})


def process_name(token: str) -> str:
    """As people read it in `kubectl get lease`; the token makes it unlike any other."""
    return f"{socket.gethostname()}_{token}"


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
