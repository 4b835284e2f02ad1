"""The lead by a Lease of Kubernetes (coordination.k8s.io/v1): for processes that share no database session.

A leader that could not renew for `renew_s` no longer leads. Another process takes its place no sooner than
`lease_s` after it saw the Lease change for the last time, by its own monotonic clock. The time between is as
long as a write is tried at most, so a write that the old leader began in its last moment has ended by then.
If two processes write at once, the server accepts one, by the version of the object that both have read.
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
"""A write begun in the last moment is retried for `PATIENCE_S`; its last try takes `total_s` at most."""
EVERY_S = 10.0
MISSING = 404
NEVER = frozenset({401, 403, MISSING})
"""Refusals that waiting does not change; 409, a conflict with another write, is not one of them."""


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """renew_s: a leader that could not renew for this long has lost the lead. lease_s: how long the others
    wait. every_s: between two renewals.
    """

    renew_s: float = RENEW_S
    lease_s: float = LEASE_S
    every_s: float = EVERY_S


class LeaseServer(Protocol):
    """The part of `KubernetesApi` that a lead needs. Each request is tried once."""

    def get(self, path: str, kind: type[KubeLease]) -> KubeLease: ...

    def replace(self, path: str, made: object) -> None: ...

    def close(self) -> None: ...


class LeaseLead:
    """May be used by several threads at once. name: unique to this process."""

    def __init__(
        self,
        api: LeaseServer,
        lease: str,
        name: str,
        *,
        times: LeaseTimes | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """lease: `NAMESPACE/NAME`. Raises `HoldfastError` if it cannot be read."""
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
        """Ask the server each time, so that a lead that another process took is lost at once. While the
        server does not answer, or another process writes at the same moment, the lead lasts as long as the
        last renewal. Raises `HoldfastError` if waiting does not help.
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
        """Release the Lease, so that the next leader does not have to wait."""
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
        """Whether the Lease has no holder, or its holder did not renew it in time."""
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
        """Take or renew the Lease. The server accepts it only if the Lease was not written since it was read.
        The renewal counts from the moment of the request, because the moment of the write is unknown.
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
            return  # the others wait until the Lease expires

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
    """The holder's name, as `kubectl get lease` shows it; the token makes it unique."""
    return f"{socket.gethostname()}_{token}"


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
