"""Reach and walk a Redfish service, for any purpose.

A service is not trusted to be short or free of circles: requests, bytes and time are bounded, no link is
followed twice, and none that leads out of the service.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from holdfast.signals import http_client
from holdfast.signals.collectors import Unavailable

REQUEST_TIMEOUT_S = 5.0
"""For a whole answer, also at login and logout."""
WALK_S_MAX = 30.0
"""For a whole service; a unit has a dozen resources, and slow ones answer in tenths of a second."""
REQUESTS_MAX = 500
BODY_BYTES_MAX = 1024 * 1024

ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"

_JSON = {"Content-Type": "application/json"}
Resource = dict[str, Any]
"""Whatever a service sent; nothing about it is assumed."""
Found = TypeVar("Found")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A Redfish service and how to reach it.

    name      the name of its unit in the topology; without one, a unit is called by its `Id`
    session   log in and use a token, instead of sending the password with every request
    verify    whether its certificate must be valid; authority: a file of the authorities to trust
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
        """Its name in messages; ports tell two services of one host apart."""
        return f"Redfish at {self.name or http_client.shown(self.url).partition('://')[2]}"


class RedfishConnection:
    """The connection to one service, opened when first needed and again after a refusal."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client: http_client.HttpClient | None = None
        self._session: str | None = None
        self._token: dict[str, str] = {}

    def read(self, look: Callable[["Walk"], Found]) -> Found:
        """What `look` finds on a new walk; raises `Unavailable` if the service gives nothing."""
        try:
            return look(self._walk())
        except _Refused:
            self.close()
        if self._service.session:
            # A token expires after some time without a request, or when the service restarts.
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
            # The service would also forget the session by itself, but later.
            with suppress(http_client.Failed):
                client.ask("DELETE", session, headers=self._token)
        client.close()

    def _walk(self) -> "Walk":
        if self._client is None:
            service = self._service
            signed = {} if service.session else {"user": service.user, "password": service.password}
            self._client = http_client.HttpClient(
                service.url,
                what="Redfish",
                limits=http_client.Limits(total_s=REQUEST_TIMEOUT_S, body_bytes_max=BODY_BYTES_MAX),
                access=http_client.Access(
                    headers={"Accept": "application/json", "OData-Version": "4.0"}, **signed
                ),
                # A proxy to the outside has no way to a cooling unit.
                manners=http_client.Manners(verify=_verification(service)),
            )
        if self._service.session and self._session is None:
            self._log_in(self._client)
        return Walk(self._client, self._service.title, self._token)

    def _log_in(self, client: http_client.HttpClient) -> None:
        who = {"UserName": self._service.user, "Password": self._service.password}
        try:
            answer = client.ask("POST", SESSIONS, content=msgspec.json.encode(who), headers=_JSON)
        except http_client.Failed as error:
            raise _unreachable(self._service.title, error) from None
        token = answer.headers.get("x-auth-token")
        if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED) or not token:
            raise Unavailable(f"{self._service.title} opens no session: HTTP {answer.status}.")
        self._token = {"X-Auth-Token": token}
        self._session = answer.headers.get("location", "")


class Walk:
    """The requests of one look at a service, and their bounds."""

    def __init__(self, client: http_client.HttpClient, title: str, token: Mapping[str, str]) -> None:
        self._client = client
        self._title = title
        self._token = token
        self._seen: set[str] = set()
        self._deadline_s = time.monotonic() + WALK_S_MAX

    def get(self, link: object) -> Resource | None:
        """The resource; None if the link is not one, leads in a circle, or the service does not have it.

        A resource that the service cannot give is returned as `{"@odata.id": ..., "error": ...}`.
        """
        path = link.get("@odata.id") if isinstance(link, dict) else link
        if not isinstance(path, str) or not path.startswith(ROOT) or path in self._seen:
            return None
        self._seen.add(path)
        left_s = self._deadline_s - time.monotonic()
        if len(self._seen) > REQUESTS_MAX or left_s <= 0:
            raise Unavailable(f"{self._title} is too large or too slow to be read whole.")
        try:
            answer = self._client.ask("GET", path, headers=self._token, within_s=left_s)
        except http_client.TooLong:
            return {"@odata.id": path, "error": "too long"}
        except http_client.UnsendableURL:
            return None
        except http_client.Failed as error:
            raise _unreachable(self._title, error) from None
        return _resource(path, answer)


def _resource(path: str, answer: http_client.HttpAnswer) -> Resource | None:
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise _Refused
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    if answer.status != HTTPStatus.OK:
        return {"@odata.id": path, "error": f"HTTP {answer.status}"}
    try:
        return http_client.decoded(answer.body, Resource)
    except ValueError:
        return {"@odata.id": path, "error": "no JSON object"}


class _Refused(Exception):
    """The service wants other credentials."""


def _verification(service: Service) -> ssl.SSLContext | bool:
    if not service.verify or service.authority is None:
        return service.verify
    try:
        return ssl.create_default_context(cafile=service.authority)
    except (OSError, ssl.SSLError):
        raise Unavailable(
            f"Cannot use the certificates in {service.authority}.", hint="Give a file in PEM format."
        ) from None


def _unreachable(title: str, error: http_client.Failed) -> Unavailable:
    return Unavailable(
        f"{title} does not answer: {error}.",
        hint="Is the address right, and does the service run?",
    )
