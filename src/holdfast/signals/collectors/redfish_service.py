"""A Redfish service as it is reached and walked, whatever is looked for in it.

A service is not trusted to be short or free of circles: requests, bytes and time are bounded, no link is
followed twice, and none that leads out of the service.
"""

import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import httpx
import msgspec

from holdfast.signals.collectors import Unavailable

REQUEST_TIMEOUT_S = 5.0
WALK_S_MAX = 30.0
"""For all of a service; a unit has a dozen resources, and slow ones answer in tenths of a second."""
REQUESTS_MAX = 500
BODY_BYTES_MAX = 1024 * 1024

ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"

Resource = dict[str, Any]
"""Whatever a service sent; nothing about it is taken for granted."""
Found = TypeVar("Found")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A Redfish service and how it is reached.

    name      what its unit is called in the topology; without one, a unit is called by its `Id`
    session   log in and use a token, instead of sending the password with every request
    verify    whether its certificate must be good; authority: a file of those that may vouch for it
    """

    url: str
    name: str = ""
    user: str = ""
    password: str = ""
    session: bool = False
    verify: bool = True
    authority: str | None = None

    @property
    def title(self) -> str:
        """What it is called in messages; two services of one host are told apart by their ports."""
        return f"Redfish at {self.name or httpx.URL(self.url).netloc.decode()}"


class Connection:
    """The way to one service, opened when it is first needed and again after a refusal."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client: httpx.Client | None = None
        self._session: str | None = None

    def read(self, look: Callable[["Walk"], Found]) -> Found:
        """What `look` finds on a walk of its own; `Unavailable` where the service gives nothing."""
        try:
            return look(self._walk())
        except _Refused:
            self.close()
        if self._service.session:
            # A token runs out after some time without a request, or when the service starts anew.
            with suppress(_Refused):
                return look(self._walk())
            self.close()
        raise Unavailable(
            f"{self._service.title} refuses the user {self._service.user!r}.",
            hint="Set HOLDFAST_REDFISH_USER and HOLDFAST_REDFISH_PASSWORD.",
        )

    def close(self) -> None:
        """Log out: a service has room for a few sessions only."""
        client, session = self._client, self._session
        self._client = self._session = None
        if client is None:
            return
        if session and session.startswith(ROOT):
            # It forgets the session by itself too, but later.
            with suppress(httpx.HTTPError):
                client.delete(session)
        client.close()

    def _walk(self) -> "Walk":
        if self._client is None:
            service = self._service
            basic = httpx.BasicAuth(service.user, service.password) if service.user else None
            self._client = httpx.Client(
                base_url=service.url,
                auth=None if service.session else basic,
                verify=_verification(service),
                timeout=REQUEST_TIMEOUT_S,
                # Unpacked, a small answer might be a large one.
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "OData-Version": "4.0"},
                # A proxy for the outside has no way to a cooling unit.
                trust_env=False,
            )
        if self._service.session and self._session is None:
            self._log_in(self._client)
        return Walk(self._client, self._service.title)

    def _log_in(self, client: httpx.Client) -> None:
        who = {"UserName": self._service.user, "Password": self._service.password}
        try:
            answer = client.post(SESSIONS, json=who)
        except (httpx.HTTPError, UnicodeError) as error:
            raise _unreachable(self._service.title, error) from None
        token = answer.headers.get("X-Auth-Token")
        if answer.status_code not in (httpx.codes.OK, httpx.codes.CREATED) or not token:
            raise Unavailable(f"{self._service.title} opens no session: HTTP {answer.status_code}.")
        client.headers["X-Auth-Token"] = token
        self._session = answer.headers.get("Location", "")


class Walk:
    """The requests of one look at a service, and their bounds."""

    def __init__(self, client: httpx.Client, title: str) -> None:
        self._client = client
        self._title = title
        self._seen: set[str] = set()
        self._deadline_s = time.monotonic() + WALK_S_MAX

    def get(self, link: object) -> Resource | None:
        """The resource; None where the link is none, leads in a circle, or the service does not have it.

        What it cannot give is told as `{"@odata.id": ..., "error": ...}`.
        """
        path = link.get("@odata.id") if isinstance(link, dict) else link
        if not isinstance(path, str) or not path.startswith(ROOT) or path in self._seen:
            return None
        self._seen.add(path)
        if len(self._seen) > REQUESTS_MAX or time.monotonic() > self._deadline_s:
            raise Unavailable(f"{self._title} is too large or too slow to be read whole.")
        try:
            with self._client.stream("GET", path) as answer:
                return self._resource(path, answer)
        except httpx.InvalidURL:
            return None
        except (httpx.HTTPError, UnicodeError) as error:  # the latter for a host that is no name
            raise _unreachable(self._title, error) from None

    def _resource(self, path: str, answer: httpx.Response) -> Resource | None:
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise _Refused
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.status_code != httpx.codes.OK:
            return {"@odata.id": path, "error": f"HTTP {answer.status_code}"}
        body = bytearray()
        for chunk in answer.iter_bytes():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return {"@odata.id": path, "error": "too long"}
            # Each chunk comes in time, but there may be no end of them.
            if time.monotonic() > self._deadline_s:
                raise Unavailable(f"{self._title} is too slow to be read whole.")
        try:
            resource = msgspec.json.decode(bytes(body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            resource = None
        return resource if isinstance(resource, dict) else {"@odata.id": path, "error": "no JSON object"}


class _Refused(Exception):
    """The service wants other credentials."""


def _verification(service: Service) -> ssl.SSLContext | bool:
    if not service.verify or service.authority is None:
        return service.verify
    try:
        return ssl.create_default_context(cafile=service.authority)
    except (OSError, ssl.SSLError):
        raise Unavailable(
            f"The certificates in {service.authority} cannot be used.", hint="A file in PEM format is wanted."
        ) from None


def _unreachable(title: str, error: httpx.HTTPError | UnicodeError) -> Unavailable:
    return Unavailable(
        f"{title} does not answer: {str(error).rstrip('.') or type(error).__name__}.",
        hint="Is the address right, and does the service run?",
    )
