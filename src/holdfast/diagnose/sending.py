"""How a message leaves: one POST of JSON, and how long to wait before the next attempt."""

from urllib.parse import urlsplit

import httpx

from holdfast.record.errors import InputError

POST_S_MAX = 5.0
"""What one POST may take, from the connection to the answer."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
REASON_CHARS_MAX = 200

USER_AGENT = "holdfast"


def address(url: str, *, what: str) -> str:
    """The URL without a slash at its end; an `InputError` where it is none. What may be a password in it is
    not repeated.
    """
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise InputError(f"The URL of the {what} is none.", hint="Write it as http://HOST:PORT.")
    return url.rstrip("/")


def shown(url: str) -> str:
    """The URL without user, password and query, for messages."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def client() -> httpx.Client:
    """Proxies of the environment are used: a receiver outside the cluster is often behind one."""
    return httpx.Client(timeout=POST_S_MAX, headers={"User-Agent": USER_AGENT})


def post(http: httpx.Client, url: str, body: bytes) -> str | None:
    """Why it was not taken; None where it was."""
    try:
        answer = http.post(url, content=body, headers={"Content-Type": "application/json"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return (str(error) or type(error).__name__)[:REASON_CHARS_MAX]
    if answer.is_success:
        return None
    return f"HTTP {answer.status_code} {answer.text.strip()}"[:REASON_CHARS_MAX]


def backoff_s(failures: int) -> float:
    """What to wait after so many failures in a row: twice as long each time, up to a bound."""
    return float(min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(max(0, failures - 1), 30)))
