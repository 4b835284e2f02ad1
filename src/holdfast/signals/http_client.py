"""The one HTTP client: for Prometheus, Redfish, exporters, Alertmanager and webhooks. No server is trusted.

A server may drip, never end, send a gzip bomb, nest without end or redirect elsewhere. So every exchange has
a bound on its whole time, from resolving the host to the last byte of the answer, and on its bytes after
decompression. httpx itself only bounds each single read; its asynchronous client can be cancelled at any
point, which is why exchanges run on an event loop in a separate thread. Callers do not see it.
"""

import asyncio
import functools
import ipaddress
import os
import re
import socket
import ssl
import threading
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from holdfast.record.errors import InputError

REDIRECTS_MAX = 3
PORT_MAX = 65_535
REASON_CHARS_MAX = 200
JSON_DEPTH_MAX = 32
"""For documents without a type, such as Redfish's; real ones nest a dozen deep. A typed document is as deep
as its type, and the decoder bounds what it skips.
"""
LOOP_GRACE_S = 1.0
"""How much longer than the limit to wait for the loop to report the timeout."""
CLOSE_S_MAX = 1.0
USER_AGENT = "holdfast"
URL_HINT = "Write http://HOST:PORT or https://HOST."
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USER_END = re.compile("[@＠]|%40")
"""The end of a user's name and password, also if it is escaped or of full width."""
_PLACE_END = re.compile(r"[/?#\\]")

_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
_EITHER_FORM = 47
"""zlib's window bits for gzip and zlib alike."""

T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of an exchange. total_s: all of it, redirects included. body_bytes_max: after decompression."""

    total_s: float
    body_bytes_max: int


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials. bearer: a token; user, password: basic authentication; headers: for example a tenant's."""

    bearer: str = ""
    user: str = ""
    password: str = ""
    headers: Mapping[str, str] = {}


ANONYMOUS = Access()


class Manners(msgspec.Struct, frozen=True, kw_only=True):
    """How to contact a server.

    redirects  follow them, but only on the given host
    proxies    use those of the environment: a receiver outside the cluster is often behind one
    verify     which certificates are good: those of the known authorities, all (False), or a context's
    socket     a unix socket that leads to the server, whatever host the URL names
    """

    redirects: bool = False
    proxies: bool = False
    verify: ssl.SSLContext | bool = True
    socket: Path | None = None


PLAIN = Manners()


class Failed(Exception):
    """No answer, or none that may be used. The reason contains no URL."""


class UnsendableURL(Failed):
    """A path that no request can be made from, such as a link that a server gave."""


class TimedOut(Failed):
    """The answer was not complete in time."""


class TooLong(Failed):
    """The answer is too long to hold in memory."""


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    phrase: str
    headers: Mapping[str, str]
    """Names are in lower case."""
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class HttpClient:
    """The connection to one server. Any thread may use it, one at a time."""

    def __init__(
        self, url: str, *, what: str, limits: Limits, access: Access = ANONYMOUS, manners: Manners = PLAIN
    ) -> None:
        """what: the server's role, for the `InputError` about a bad URL."""
        self._url = checked(url, what=what)
        self._limits = limits
        self._redirects = manners.redirects
        self._loop = _loop()
        self._client = httpx.AsyncClient(
            headers=_headers(self._url, access),
            timeout=limits.total_s,
            verify=_known_authorities(manners.proxies) if manners.verify is True else manners.verify,
            trust_env=manners.proxies,
            transport=None if manners.socket is None else httpx.AsyncHTTPTransport(uds=str(manners.socket)),
        )

    def ask(
        self,
        method: str = "GET",
        path: str = "",
        *,
        query: Mapping[str, str | Sequence[str]] | None = None,
        form: Mapping[str, str | Sequence[str]] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float | None = None,
    ) -> HttpAnswer:
        """The server's answer at its URL and `path`. Raises `Failed` without one, or if it took too long.

        within_s: a shorter time than the limits give.
        """
        limit_s = self._limits.total_s if within_s is None else min(within_s, self._limits.total_s)
        try:
            request = self._client.build_request(
                method,
                _joined(self._url, path),
                params=None if query is None else dict(query),
                data=None if form is None else dict(form),
                content=content,
                headers=headers,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UnsendableURL(_reason(error)) from None
        exchange = asyncio.run_coroutine_threadsafe(self._within(request, limit_s), self._loop)
        return self._result(exchange, limit_s)

    def close(self) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop)
        try:
            closing.result(CLOSE_S_MAX)
        except Exception:  # The rest of a connection ends with the process.
            closing.cancel()

    def _result(self, exchange: "Future[HttpAnswer]", limit_s: float) -> HttpAnswer:
        try:
            return exchange.result(max(0.0, limit_s) + LOOP_GRACE_S)
        except TimeoutError:
            raise TimedOut("it did not answer in time") from None
        finally:
            exchange.cancel()  # also if the wait itself was interrupted

    async def _within(self, request: httpx.Request, limit_s: float) -> HttpAnswer:
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(request)
        except (Failed, TimeoutError):
            raise
        except httpx.TimeoutException:
            raise TimedOut("it did not answer in time") from None
        except Exception as error:
            # Servers, resolvers and TLS make libraries raise more than they document; all of it means no
            # answer.
            raise Failed(_reason(error)) from None

    async def _exchange(self, request: httpx.Request) -> HttpAnswer:
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._client.send(request, stream=True)
            try:
                onward = answer.next_request if self._redirects else None
                if onward is None:
                    return HttpAnswer(
                        status=answer.status_code,
                        phrase=answer.reason_phrase,
                        headers={name.lower(): value for name, value in answer.headers.items()},
                        body=await _body(answer, self._limits.body_bytes_max),
                    )
            finally:
                await answer.aclose()
            _refuse_elsewhere(self._url, onward.url)
            request = onward
        raise Failed("it redirects too often")


async def _body(answer: httpx.Response, bytes_max: int) -> bytes:
    """The answer, decompressed. We ask for no compression; a compressed answer has the same bound."""
    encoding = answer.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", *_PACKED):
        raise Failed(f"it compresses its answer ({encoding[:REASON_CHARS_MAX]}), which was not requested")
    unpacking = zlib.decompressobj(wbits=_EITHER_FORM) if encoding in _PACKED else None
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece if unpacking is None else unpacking.decompress(piece, bytes_max - len(body) + 1)
        if len(body) > bytes_max:
            raise TooLong(f"its answer is longer than {bytes_max / 2**20:,.0f} MiB")
    if unpacking is not None and (not unpacking.eof or unpacking.unused_data):
        raise Failed("its answer is not compressed as it says")
    return bytes(body)


def checked(url: str, *, what: str, hint: str = URL_HINT, is_quoted: bool = False) -> httpx.URL:
    """The URL; `InputError` if nothing could be sent to it. is_quoted: the error shows it as far as that is
    safe; otherwise not at all, because all of it may be a secret.
    """
    try:
        address = httpx.URL(url)
        if address.scheme in ("http", "https") and _is_host(address.host) and _is_port(address.port):
            return address.copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError):
        pass
    raise InputError(f"Invalid {what} URL{f': {_quotable(url)!r}' if is_quoted else ''}.", hint=hint)


def _quotable(url: str) -> str:
    """What may be shown of a text that is not a URL: nothing after the scheme if it may name a user, and no
    path and no query.
    """
    begun = _SCHEME.match(url)
    scheme = begun[0] if begun else ""
    rest = url.removeprefix(scheme)
    place = "" if _USER_END.search(rest) else _PLACE_END.split(rest, maxsplit=1)[0]
    return f"{scheme}{place}{'' if place == rest else '…'}"


def shown(url: str | httpx.URL) -> str:
    """The server of a URL: user, password, path and query may be secrets, and are not shown."""
    address = httpx.URL(url)
    return f"{address.scheme}://{address.netloc.decode()}"


def written_path(url: httpx.URL) -> str:
    """The path as written, without the query."""
    return url.raw_path.partition(b"?")[0].decode()


def decoded(body: bytes, kind: type[T]) -> T:
    """The body as JSON of this type; `ValueError` if it is anything else."""
    try:
        found = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError("not the JSON that was expected") from None
    if isinstance(found, dict | list) and _is_deep(found):
        raise ValueError("JSON that is nested too deep")
    return found


def _is_deep(document: object) -> bool:
    level = [document]
    for _ in range(JSON_DEPTH_MAX):
        level = [part for whole in level for part in _parts(whole)]
        if not level:
            return False
    return True


def _parts(whole: object) -> Iterator[object]:
    if isinstance(whole, dict):
        yield from whole.values()
    elif isinstance(whole, list):
        yield from whole


def _is_host(host: str) -> bool:
    """Whether a resolver can be asked for it: `a..b` would only raise there."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            return bool(host.encode("idna")) and "%" not in host
        except UnicodeError:
            return False
    return True


def _is_port(port: int | None) -> bool:
    """None: the scheme's default."""
    return port is None or 0 < port <= PORT_MAX


def _headers(url: httpx.URL, access: Access) -> dict[str, str]:
    """The headers of each request, with credentials; httpx drops these if a redirect leaves the origin."""
    # Within one data centre, compressing takes a server longer than sending.
    headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **access.headers}
    user, password = (access.user, access.password) if access.user else (url.username, url.password)
    if access.bearer:
        headers["Authorization"] = f"Bearer {access.bearer}"
    elif user:
        headers["Authorization"] = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
    return headers


def _joined(url: httpx.URL, path: str) -> httpx.URL:
    """The URL with `path` appended, and without the URL's query if there is a path."""
    plain = url.copy_with(userinfo=b"")
    if not path:
        return plain
    return httpx.URL(f"{shown(plain)}{written_path(plain).rstrip('/')}{path}")


def _refuse_elsewhere(named: httpx.URL, onward: httpx.URL) -> None:
    """A server must not send us to others: within a cluster we may reach hosts that it may not."""
    if onward.host != named.host:
        raise Failed("it redirects to another host")
    if named.scheme == "https" and onward.scheme != "https":
        raise Failed("it redirects from https to http")


def _reason(error: BaseException) -> str:
    """The reason, in the words of the kernel, the resolver or TLS."""
    chain: list[BaseException] = [error]
    while (before := _beneath(chain[-1])) is not None and before not in chain:
        chain.append(before)
    for one in reversed(chain):
        if isinstance(one, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {one.verify_message}"
        if isinstance(one, ssl.SSLError | socket.gaierror) and one.strerror:
            return one.strerror[:REASON_CHARS_MAX]
        if isinstance(one, OSError) and one.errno:
            return os.strerror(one.errno)
    return (str(error) or type(error).__name__).rstrip(".")[:REASON_CHARS_MAX]


def _beneath(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or error.__context__


@functools.cache
def _known_authorities(trust_env: bool) -> ssl.SSLContext:
    """The default authorities. Reading them takes longer than anything else in a client."""
    return httpx.create_ssl_context(trust_env=trust_env)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all clients of this process. Its thread ends with the process and delays no exit."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="holdfast-http", daemon=True).start()
    return loop
