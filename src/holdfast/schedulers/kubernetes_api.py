"""A client of the Kubernetes API server, by a pod's service account or a kubeconfig, within bounds.

A list is requested once: the caller asks again if it fails. Requests of an action are retried for a while
when the server does not answer. A lost answer does not show whether the write was done, so callers make
idempotent writes.
"""

import copy
import os
import re
import ssl
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.secret_files import read_secret
from holdfast.record.untrusted import UNDECODABLE
from holdfast.schedulers.kubernetes_objects import KubePage, KubeStatus
from holdfast.signals.http_client import Failed, HttpAnswer, HttpClient, Limits, Manners, decoded, shown
from holdfast.topology import document

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The files of a pod's service account."""
LIMITS = Limits(total_s=30.0, body_bytes_max=256 << 20)
PAGE_ITEMS, PAGES_MAX = 500, 4_000
PATIENCE_S = 60.0
"""How long requests of an action are retried."""
PAUSE_S, PAUSE_S_MAX = 0.25, 4.0
_TOKEN = re.compile(r"[!-~]+")
_AWAY = frozenset({429, 500, 502, 503, 504})
"""Statuses that a retry may change. An eviction that a disruption budget forbids is 429, too: the caller then
excludes it.
"""
_HINT = "See `kubectl config view` for what this user may reach."
T = TypeVar("T")


class KubeRefusal(HoldfastError):
    """The server refused. status: of HTTP."""

    def __init__(self, status: int, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.status = status


class KubeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """token_path: read at every request, because the token is renewed. ca: PEM; certificate: chain and key,
    PEM.
    """

    server: str
    token: str = ""
    token_path: Path | None = None
    ca: str = ""
    certificate: str = ""
    is_verified: bool = True


class _ClusterEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False


class _UserEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: dict[str, Any] | None = None


class _ContextEntry(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    user: str = ""


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cluster: _ClusterEntry | None = None
    user: _UserEntry | None = None
    context: _ContextEntry | None = None


class _KubeConfig(msgspec.Struct, frozen=True, kw_only=True):
    current_context: str = msgspec.field(default="", name="current-context")
    clusters: tuple[_Named, ...] | None = None
    users: tuple[_Named, ...] | None = None
    contexts: tuple[_Named, ...] | None = None


def find_access() -> KubeAccess:
    """Find the server as `kubectl` does: by $KUBECONFIG, else a pod's own account, else ~/.kube/config."""
    named = os.environ.get("KUBECONFIG", "")
    if not named and (host := os.environ.get("KUBERNETES_SERVICE_HOST")):
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        host = f"[{host}]" if ":" in host else host
        ca = _text(ACCOUNT / "ca.crt", what="the account's authority")
        return KubeAccess(server=f"https://{host}:{port}", token_path=ACCOUNT / "token", ca=ca)
    path = Path(named.split(os.pathsep)[0]) if named else Path.home() / ".kube" / "config"
    hint = "Name one by $KUBECONFIG, or run control in a pod with a service account."
    text = read_secret(path, what="the kubeconfig", hint=hint, is_private=False, encoding="utf-8")
    try:
        return read_kubeconfig(text, path.parent)
    except InputError as error:
        raise InputError(f"{path}: {error.sentence}", hint=error.hint) from None


def read_kubeconfig(text: str, folder: Path) -> KubeAccess:
    """The access of the current context. folder: the one that the file's paths are relative to."""
    try:
        config = msgspec.convert(document.read(text).data, _KubeConfig)
    except (InputError, msgspec.ValidationError):
        raise InputError("This is not a kubeconfig.", hint=_HINT) from None
    context = _find(config.contexts, config.current_context, "context").context
    if context is None:
        raise InputError("The kubeconfig has no current context.", hint="`kubectl config use-context`")
    cluster = _find(config.clusters, context.cluster, "cluster").cluster
    user = _find(config.users, context.user, "user").user if context.user else _UserEntry()
    if cluster is None or user is None:
        raise InputError("The kubeconfig's current context leads nowhere.", hint=_HINT)
    if user.exec is not None:
        raise InputError(
            "The kubeconfig gets its credentials by a command, which control does not run.",
            hint="Run control in a pod with a service account, or name a `tokenFile`.",
        )
    chain = _material(folder, user.client_certificate, user.client_certificate_data)
    key = _material(folder, user.client_key, user.client_key_data)
    return KubeAccess(
        server=cluster.server,
        token=user.token,
        token_path=folder / user.token_file if user.token_file else None,
        ca=_material(folder, cluster.certificate_authority, cluster.certificate_authority_data),
        certificate=f"{chain}\n{key}" if chain else "",
        is_verified=not cluster.insecure_skip_tls_verify,
    )


def _find(entries: tuple[_Named, ...] | None, name: str, what: str) -> _Named:
    for entry in entries or ():
        if entry.name == name:
            return entry
    raise InputError(f"The kubeconfig has no {what} {name!r}.", hint=_HINT)


def _material(folder: Path, path: str, data: str) -> str:
    if not data:
        return _text(folder / path, what="the kubeconfig's certificate") if path else ""
    try:
        return b64decode(data, validate=True).decode("ascii")
    except ValueError:
        raise InputError("The kubeconfig has a certificate that is not base64.", hint=_HINT) from None


def _text(path: Path, *, what: str) -> str:
    # Kubernetes mounts these files so that every user of the container can read them.
    return read_secret(path, what=what, hint=_HINT, is_private=False)


def _verify(access: KubeAccess) -> ssl.SSLContext | bool:
    if not access.server.startswith("https"):
        return True
    try:
        context = ssl.create_default_context(cadata=access.ca or None)
        if not access.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate:
            with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:  # ssl reads files only
                file.write(access.certificate)
                file.flush()
                # Without any password, ssl would ask for one on the terminal; this one is wrong.
                context.load_cert_chain(file.name, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InputError(f"The kubeconfig's certificates cannot be used: {error}.", hint=_HINT) from None
    return context


class KubernetesApi:
    """May be used by several threads at once."""

    def __init__(self, access: KubeAccess, *, patience_s: float = PATIENCE_S) -> None:
        self._access = access
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._client = HttpClient(
            access.server, what="Kubernetes", limits=LIMITS, manners=Manners(verify=_verify(access))
        )

    def get(self, path: str, kind: type[T]) -> T:
        return _decoded(self._ask_patiently("GET", path), kind)

    def items(self, path: str, kind: type[T], *, is_patient: bool = False, **query: str) -> Iterator[T]:
        """All items of a list, read a page at a time."""
        ask, more = self._ask_patiently if is_patient else self._ask, ""
        for _ in range(PAGES_MAX):
            asked = {"limit": str(PAGE_ITEMS), **query} | ({"continue": more} if more else {})
            page = _decoded(ask("GET", path, query=asked), KubePage[kind])  # type: ignore[valid-type]
            yield from page.items or ()
            if not (more := page.metadata.more):
                return
        raise HoldfastError(
            f"The Kubernetes API server lists more than {PAGES_MAX:,} pages of {path}.", hint=_HINT
        )

    def patch(self, path: str, change: object, *, manager: str, form: str = "merge") -> None:
        """form: `strategic-merge` merges some lists by a key."""
        self._ask_patiently(
            "PATCH",
            path,
            query={"fieldManager": manager},
            content=msgspec.json.encode(change),
            headers={"Content-Type": f"application/{form}-patch+json"},
        )

    def create(self, path: str, made: object, *, is_final: frozenset[int] = frozenset()) -> None:
        """is_final: refusals that are not retried."""
        self._ask_patiently(
            "POST",
            path,
            content=msgspec.json.encode(made),
            headers={"Content-Type": "application/json"},
            is_final=is_final,
        )

    def replace(self, path: str, made: object) -> None:
        """The server refuses it (409) if the object has another version than `made`."""
        self._ask_patiently(
            "PUT", path, content=msgspec.json.encode(made), headers={"Content-Type": "application/json"}
        )

    def delete(self, path: str) -> None:
        self._ask_patiently("DELETE", path)

    def impatient(self) -> "KubernetesApi":
        """The same client without retries."""
        found = copy.copy(self)
        found._patience_s = 0.0
        return found

    def close(self) -> None:
        self._client.close()

    def _ask_patiently(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        is_final: frozenset[int] = frozenset(),
    ) -> HttpAnswer:
        until, pause_s = time.monotonic() + self._patience_s, PAUSE_S
        while True:
            try:
                return self._ask(method, path, query=query, content=content, headers=headers)
            except KubeRefusal as refusal:
                if refusal.status not in _AWAY - is_final or time.monotonic() >= until:
                    raise
            except InputError:
                raise  # waiting does not correct it
            except HoldfastError:
                if time.monotonic() >= until:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        sent = {"Accept": "application/json", **self._authorisation(), **(headers or {})}
        try:
            with self._lock:
                answer = self._client.ask(method, path, query=query, content=content, headers=sent)
        except Failed as error:
            raise HoldfastError(
                f"The Kubernetes API server at {shown(self._access.server)} does not answer: {error}.",
                hint="`kubectl get --raw /readyz` asks it how it is.",
            ) from None
        if not answer.is_success:
            raise _refusal(answer)
        return answer

    def _authorisation(self) -> dict[str, str]:
        path, token = self._access.token_path, self._access.token
        if path is not None:
            token = _text(path, what="the token")
        if not (token := token.strip()):
            return {}
        if not _TOKEN.fullmatch(token):
            raise InputError(
                "The token for the Kubernetes API server has invalid characters.",
                hint="It is one line of printable ASCII without spaces.",
            )
        return {"Authorization": f"Bearer {token}"}


def _decoded(answer: HttpAnswer, kind: type[T]) -> T:
    try:
        return decoded(answer.body, kind)
    except ValueError as error:
        raise HoldfastError(f"The Kubernetes API server sent {error}.", hint=_HINT) from None


def _refusal(answer: HttpAnswer) -> KubeRefusal:
    try:
        told = msgspec.json.decode(answer.body, type=KubeStatus).message
    except UNDECODABLE:
        told = ""
    hint = "Its account needs the rights of contrib/kubernetes/control." if answer.status == 403 else ""
    return KubeRefusal(
        answer.status, f"Kubernetes refuses ({answer.status}): {told or answer.phrase}.", hint=hint
    )
