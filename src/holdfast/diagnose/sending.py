"""How a message leaves: one POST of JSON, and how long to wait before the next attempt."""

from holdfast.signals.http_client import ANONYMOUS, Access, Failed, HttpClient, Limits, Manners

POST_S_MAX = 5.0
"""What one POST may take, from the name of the host to the last byte of the answer."""
ANSWER_BYTES_MAX = 1 << 20
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
REASON_CHARS_MAX = 200

_JSON = {"Content-Type": "application/json"}


def client(url: str, *, what: str, access: Access = ANONYMOUS) -> HttpClient:
    """Proxies of the environment are used: a receiver outside the cluster is often behind one."""
    return HttpClient(
        url,
        what=what,
        limits=Limits(total_s=POST_S_MAX, body_bytes_max=ANSWER_BYTES_MAX),
        access=access,
        manners=Manners(proxies=True),
    )


def post(http: HttpClient, body: bytes, *, path: str = "", quotes: bool = False) -> str | None:
    """Why it was not taken; None where it was.

    quotes: repeat what the server answered. One that repeats the path it was asked for gives away a secret.
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
    """What to wait after so many failures in a row: twice as long each time, up to a bound."""
    return float(min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(max(0, failures - 1), 30)))
