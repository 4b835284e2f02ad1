"""Send a message: one POST of JSON, and how long to wait before the next attempt."""

from holdfast.signals.http_client import ANONYMOUS, Access, Failed, HttpClient, Limits, Manners

POST_S_MAX = 5.0
"""The limit for one POST, from resolving the host to the last byte of the answer."""
ANSWER_BYTES_MAX = 1 << 20
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
REASON_CHARS_MAX = 200

_JSON = {"Content-Type": "application/json"}


def client(url: str, *, what: str, access: Access = ANONYMOUS) -> HttpClient:
    """Uses the proxies of the environment: a receiver outside the cluster is often behind one."""
    return HttpClient(
        url,
        what=what,
        limits=Limits(total_s=POST_S_MAX, body_bytes_max=ANSWER_BYTES_MAX),
        access=access,
        manners=Manners(proxies=True),
    )


def post(http: HttpClient, body: bytes, *, path: str = "", quotes: bool = False) -> str | None:
    """The reason why the message was not accepted; None if it was.

    quotes: include the server's answer. An answer that repeats the requested path would give away a secret.
    """
    try:
        answer = http.ask("POST", path, content=body, headers=_JSON)
    except Failed as error:
        return str(error)
    if answer.is_success:
        return None
    said = f" {answer.text.strip()}" if quotes else ""
    return f"HTTP {answer.status}{said}"[:REASON_CHARS_MAX]


def backoff_s(failures: int) -> float:
    """How long to wait after this many failures in a row: twice as long each time, up to a bound."""
    return float(min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(max(0, failures - 1), 30)))
