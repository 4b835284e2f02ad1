"""Slurm by slurmrestd, at a unix socket or a URL: reads its state, and updates nodes if its API can.

/openapi/v3 lists the APIs of a slurmrestd and what they can do. Nodes can be updated from v0.0.39 on, which
came with Slurm 23.02; no version can requeue jobs.
"""

import os
import pwd
import re
import threading
from pathlib import Path

import msgspec

from holdfast.control.cluster import NodeView
from holdfast.control.policy import SlurmPolicy
from holdfast.control.seeing import PlacedJob
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.secret_files import read_secret
from holdfast.schedulers.scheduler import require_name
from holdfast.schedulers.slurm_documents import (
    SlurmDocument,
    jobs_of,
    nodes_of,
    read_document,
    windows_of,
)
from holdfast.signals.collectors.slurm import MaintenanceWindow
from holdfast.signals.http_client import Failed, HttpAnswer, HttpClient, Limits, Manners, decoded, shown

LIMITS = Limits(total_s=30.0, body_bytes_max=256 << 20)
UNIX = "unix:"
LOCAL = "http://localhost"
"""The host name in HTTP requests over a unix socket."""
UNAUTHORISED = (401, 403)
_TOKEN = re.compile(r"[!-~]+")
_NODES = re.compile(r"/slurm/(v0\.0\.(\d{1,6}))/nodes/?")
_HINT = "Does slurmctld answer, and is the token valid? `scontrol ping`; `scontrol token`."


class _OpenApi(msgspec.Struct, frozen=True, kw_only=True):
    paths: dict[str, dict[str, msgspec.Raw]] = {}


class RestApi(msgspec.Struct, frozen=True, kw_only=True):
    """The API of a slurmrestd. version: such as v0.0.40. paths: as it spells them, by the path without a
    slash at its end.
    """

    version: str
    paths: dict[str, str]
    can_update: bool


def read_api(body: bytes) -> RestApi:
    """The newest API of a slurmrestd. Raises `HoldfastError`."""
    try:
        told = decoded(body, _OpenApi).paths
    except ValueError as error:
        raise HoldfastError(f"slurmrestd sent {error}.", hint=_HINT) from None
    found = [match for path in told if (match := _NODES.fullmatch(path))]
    if not found:
        raise HoldfastError(
            "slurmrestd has no API that lists nodes.", hint="Start it with -s openapi/v0.0.38, or a newer."
        )
    version = max(found, key=lambda match: int(match[2]))[1]
    own = {path.rstrip("/"): path for path in told if path.startswith(f"/slurm/{version}/")}
    one = own.get(f"/slurm/{version}/node/{{node_name}}", "")
    return RestApi(version=version, paths=own, can_update="post" in told.get(one, {}))


class SlurmRest:
    """May be used by several threads at once."""

    def __init__(self, policy: SlurmPolicy, gpus_per_node: int, limits: Limits = LIMITS) -> None:
        """Raises `InputError` if the address in the policy cannot be used."""
        self._policy = policy
        self._gpus_per_node = gpus_per_node
        self._api: RestApi | None = None
        self._lock = threading.Lock()
        path = policy.rest.removeprefix(UNIX) if policy.rest.startswith(UNIX) else ""
        self._place = policy.rest if path else shown(policy.rest)
        self._client = HttpClient(
            LOCAL if path else policy.rest,
            what="slurmrestd",
            limits=limits,
            manners=Manners(socket=Path(path) if path else None),
        )

    @property
    def version(self) -> str:
        return self._known().version

    @property
    def can_update(self) -> bool:
        return self._known().can_update

    def nodes(self) -> dict[str, NodeView]:
        return nodes_of(self._document("nodes"), self._gpus_per_node)

    def jobs(self) -> tuple[PlacedJob, ...]:
        return jobs_of(self._document("jobs"))

    def windows(self) -> tuple[MaintenanceWindow, ...]:
        return windows_of(self._document("reservations"))

    def update(self, node: str, state: str, reason: str = "") -> None:
        """state: DRAIN, with a reason, or RESUME. Only if `can_update`."""
        change = {"state": [state]} | ({"reason": reason} if reason else {})
        path = f"/slurm/{self.version}/node/{require_name(node)}"
        self._read(self._ask("POST", path, msgspec.json.encode(change)))

    def close(self) -> None:
        self._client.close()

    def _known(self) -> RestApi:
        api = self._api  # another thread may forget it
        if api is None:
            self._api = api = read_api(self._sound(self._ask("GET", "/openapi/v3")).body)
        return api

    def _document(self, what: str) -> SlurmDocument:
        api = self._known()
        path = api.paths.get(f"/slurm/{api.version}/{what}")
        if path is None:
            raise HoldfastError(f"slurmrestd {api.version} does not list {what}.", hint=_HINT)
        document = self._read(self._ask("GET", path))
        if getattr(document, what) is None:
            raise HoldfastError(f"slurmrestd sent no {what}.", hint=_HINT)
        return document

    def _read(self, answer: HttpAnswer) -> SlurmDocument:
        return read_document(self._sound(answer).body, who="slurmrestd")

    def _sound(self, answer: HttpAnswer) -> HttpAnswer:
        if answer.is_success:
            return answer
        if answer.status in UNAUTHORISED:
            raise HoldfastError(
                f"slurmrestd does not accept our token ({answer.status}).",
                hint="Set SLURM_JWT, or slurm.token_file in the policy; `scontrol token` makes one.",
            )
        self._api = None  # slurmrestd may have been updated, and have other paths now
        try:
            said = decoded(answer.body, SlurmDocument).complaint
        except ValueError:
            said = ""
        raise HoldfastError(f"slurmrestd answers {answer.status}: {said or answer.phrase}.", hint=_HINT)

    def _ask(self, method: str, path: str, content: bytes | None = None) -> HttpAnswer:
        # A slurmrestd may hang up after any answer, so each request has its own connection.
        headers = {"Accept": "application/json", "Connection": "close", **self._authorisation()}
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            with self._lock:
                return self._client.ask(method, path, content=content, headers=headers)
        except Failed as error:
            raise HoldfastError(
                f"slurmrestd at {self._place} does not answer: {error}.", hint="Is it running there?"
            ) from None

    def _authorisation(self) -> dict[str, str]:
        """The headers for a request. The token is read each time, because it is renewed."""
        token = os.environ.get("SLURM_JWT", "")
        if self._policy.token_file:
            token = _token_in(Path(self._policy.token_file))
        if not token:
            return {}
        if not _TOKEN.fullmatch(token):
            raise InputError(
                "The token for slurmrestd has invalid characters.",
                hint="It is one line of printable ASCII without spaces.",
            )
        return {"X-SLURM-USER-NAME": self._policy.user or _own_name(), "X-SLURM-USER-TOKEN": token}


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise InputError(
            f"User {os.geteuid()} has no name here, and slurmrestd needs the name that its token is for.",
            hint="Set slurm.user in the policy.",
        ) from None


def _token_in(path: Path) -> str:
    """The token in this file, which holds it alone or as `scontrol token` prints it."""
    what, hint = "the token for slurmrestd", "See slurm.token_file in the policy."
    text = read_secret(path, what=what, hint=hint, is_private=True)
    if token := text.strip().removeprefix("SLURM_JWT="):
        return token
    raise HoldfastError(f"The token for slurmrestd is missing: {path} is empty.", hint="`scontrol token`.")
