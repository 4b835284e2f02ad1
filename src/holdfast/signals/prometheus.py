"""Frames from a server with Prometheus' HTTP API: Prometheus, VictoriaMetrics, Thanos, Mimir.

It requests the raw samples of a metric (`metric[30m]`), not their evaluation at each step (`query_range`):
the latter repeats the last value for five minutes after an exporter fell silent, and so hides gaps. Servers
limit the samples of one answer; a window that is too long is requested in halves.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.record.closing import Closable
from holdfast.signals import http_client
from holdfast.signals.catalogue import describe
from holdfast.signals.frame import Frame, Labels
from holdfast.signals.grid import Samples, on_grid
from holdfast.signals.naming import NO_BUSES, Buses, buses_of, subject_of
from holdfast.signals.source import STEP_S, SourceError
from holdfast.wording.units import SECOND_NS

TIMEOUT_S = 30.0
"""For a whole answer; a request that took longer is not repeated."""
GREETING_S = 5.0
"""For the first answer, which costs a server nothing."""
ANSWER_BYTES_MAX = 256 << 20
"""An hour of one metric of 16,384 GPUs at 10 s is 165 MB; longer answers are requested in halves."""
RETRY_WAITS_S = (0.2, 1.0)
"""Before the second and the third try, which is the last."""
WINDOW_NS_MAX = 3_600 * SECOND_NS
"""Of one query: an answer is held in memory whole."""
WINDOW_NS_MIN = SECOND_NS
"""If a server refuses even a second of a metric, nothing shorter is tried."""
NAMES_WITHIN_NS = 2 * 3_600 * SECOND_NS
"""How old a metric's last sample may be for its name to count: as far as an assessment reaches back."""
MS_NS = 1_000_000
BUSES_METRIC = "DCGM_FI_DEV_GPU_TEMP"
BUSES_NS_MAX = 600 * SECOND_NS
"""How long the known places of the GPUs are used."""
TOO_MUCH = ("too many samples", "-search.max", "exceeded the maximum", "exceeded samples limit")
"""Words in a server's error that mean that too much was requested."""
GATEWAY_CODES = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""A proxy answers with these, in its own page, if the server behind it is down."""
COMPLAINT_LENGTH_MAX = 300

_PUNCTUATION = b'[]"'
_REACH_HINT = "Is the URL right, and does the server run?"

T = TypeVar("T")
_Form = Mapping[str, str | list[str]]


class _Series(msgspec.Struct, frozen=True):
    """Both left as text: a million pairs of Python objects would take longer than all the rest."""

    metric: msgspec.Raw
    values: msgspec.Raw = msgspec.Raw(b"[]")  # native histograms have none


class _Matrix(msgspec.Struct, frozen=True):
    result: list[_Series]


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


class Raw(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Samples as scraped, ordered by series and time.

    keys: the labels of each series as the server writes them, which is always the same way.
    """

    keys: tuple[bytes, ...]
    series: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]


class _TooMuch(SourceError):
    """The server refuses to return so much at once."""


class Prometheus(Closable):
    """A server by its URL, up to where `/api/v1` begins.

    step_s: of the frames' grid. where: labels that all series must have, for a server with several clusters.
    as_of_ns: the moment to look at, if not now.
    """

    def __init__(
        self,
        url: str,
        *,
        access: http_client.Access = http_client.ANONYMOUS,
        step_s: float = STEP_S,
        where: Mapping[str, str] = {},
        timeout_s: float = TIMEOUT_S,
        as_of_ns: int | None = None,
    ) -> None:
        self._url = place(url)
        self.step_ns = round(step_s * SECOND_NS)
        self._where = dict(where)
        self._as_of_ns = as_of_ns
        self._buses: tuple[int, Buses] = (-BUSES_NS_MAX, NO_BUSES)
        self._client = http_client.HttpClient(
            url,
            what="Prometheus",
            limits=http_client.Limits(total_s=timeout_s, body_bytes_max=ANSWER_BYTES_MAX),
            access=access,
            manners=http_client.Manners(redirects=True, proxies=True),
        )

    def greet(self) -> None:
        """Raise `SourceError` if the server accepts a connection and stays silent: a query may take long, but
        this needs no time.
        """
        try:
            self._client.ask("GET", "/api/v1/status/buildinfo", within_s=GREETING_S)
        except http_client.TimedOut:
            raise self._unreachable(f"it was silent for {GREETING_S:g} s") from None
        except http_client.Failed:
            pass  # the first query tries again, and says why

    def close(self) -> None:
        self._client.close()

    def metrics(self) -> tuple[str, ...]:
        """The names of the last hours: a server keeps a name as long as the last sample that had it."""
        until_ns = time.time_ns() if self._as_of_ns is None else self._as_of_ns
        within = _times((until_ns - NAMES_WITHIN_NS, until_ns))
        names = self._get("label/__name__/values", {"match[]": self._selector(None), **within})
        return tuple(sorted(self._decoded(names, list[str])))

    def series(self, selectors: Sequence[str], window_ns: tuple[int, int]) -> list[Labels]:
        """The labels of all series that any of these selectors choose, with `__name__`."""
        form: _Form = {"match[]": list(selectors), **_times(window_ns)}
        return self._decoded(self._get("series", form), list[Labels])

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        """One metric from its raw samples, each in the nearest cell of the grid."""
        raw = self.raw(metric, window_ns)
        if raw is None:
            return None
        return on_grid(
            describe(metric),
            Samples(
                labels=tuple(map(self.labels, raw.keys)),
                series=raw.series,
                times_ns=raw.times_ns,
                values=raw.values,
            ),
            window_ns=window_ns,
            step_ns=self.step_ns,
            name=self.namer(metric, window_ns),
        )

    def labels(self, key: bytes) -> Labels:
        """The labels of a series, from the server's text, without the metric's name."""
        labels = self._decoded(key, Labels)
        labels.pop("__name__", None)
        return labels

    def namer(self, metric: str, window_ns: tuple[int, int]) -> Callable[[Labels], str | None]:
        """Maps the labels of this metric's series to subjects, as known in the window."""
        known = describe(metric)
        buses = self._learned_buses(window_ns) if known.scope == "pci" else NO_BUSES
        return lambda labels: subject_of(known, labels, buses)

    # -- asking ---------------------------------------------------------------------------------------

    def _selector(self, metric: str | None) -> str:
        """The name is a label like any other, which allows any name; without a metric, all series."""
        name = '__name__!=""' if metric is None else f"__name__={_quoted(metric)}"
        return "{" + ",".join([name, *(f"{key}={_quoted(text)}" for key, text in self._where.items())]) + "}"

    def raw(self, metric: str, window_ns: tuple[int, int]) -> Raw | None:
        """The samples of a window; None without any. Requested in parts if they are too many."""
        parts, begin_ns, length_ns = [], window_ns[0], WINDOW_NS_MAX
        while begin_ns < window_ns[1]:
            end_ns = min(begin_ns + length_ns, window_ns[1])
            try:
                parts.append(self._part(metric, (begin_ns, end_ns)))
            except _TooMuch:
                if length_ns // 2 < WINDOW_NS_MIN:
                    raise
                length_ns = min(length_ns, end_ns - begin_ns) // 2
                continue
            begin_ns = end_ns
        try:
            return _joined(parts, window_ns)
        except ValueError:
            raise self._stranger() from None

    def _part(self, metric: str, window_ns: tuple[int, int]) -> list[_Series]:
        """A range may or may not include the moment at which it begins, so request a little more."""
        begin_ms, end_ms = window_ns[0] // MS_NS, -(-window_ns[1] // MS_NS)
        query = f"{self._selector(metric)}[{end_ms - begin_ms + 1}ms]"
        data = self._get("query", {"query": query, "time": f"{end_ms / 1e3:.3f}"})
        return self._decoded(data, _Matrix).result

    def _learned_buses(self, window_ns: tuple[int, int]) -> Buses:
        learned_ns, buses = self._buses
        if abs(window_ns[1] - learned_ns) >= BUSES_NS_MAX:
            buses = buses_of(self.series([self._selector(BUSES_METRIC)], window_ns))
            self._buses = (window_ns[1], buses)
        return buses

    def _get(self, call: str, form: _Form) -> msgspec.Raw:
        """The API's answer. Transport failures and server errors are retried, refusals are not."""
        waits_s = iter(RETRY_WAITS_S)
        while True:
            try:
                answer = self._once(call, form)
            except http_client.TooLong as error:
                raise self._too_much(str(error)) from None
            except http_client.TimedOut as error:
                raise self._unreachable(str(error)) from None
            except http_client.Failed as error:
                failure = self._unreachable(str(error))
            else:
                if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return self._checked(answer)
                if _is_page(answer) and answer.status not in GATEWAY_CODES:
                    raise self._stranger()
                complaint = _complaint(answer)
                if _is_too_much(complaint):
                    raise self._too_much(complaint)
                failure = SourceError(f"{self._url} answered {answer.status}: {complaint}.", hint=_REACH_HINT)
            wait_s = next(waits_s, None)
            if wait_s is None:
                raise failure
            time.sleep(wait_s)

    def _once(self, call: str, form: _Form) -> http_client.HttpAnswer:
        """POST, because a selector may be longer than a URL; label names are available by GET only."""
        path = f"/api/v1/{call}"
        if call.startswith("label/"):
            return self._client.ask("GET", path, query=form)
        return self._client.ask("POST", path, form=form)

    def _checked(self, answer: http_client.HttpAnswer) -> msgspec.Raw:
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise SourceError(
                f"{self._url} refuses access ({answer.status}).",
                hint="Set HOLDFAST_PROMETHEUS_TOKEN, or HOLDFAST_PROMETHEUS_USER and _PASSWORD.",
            )
        body = self._decoded(answer.body, _Answer)
        if body.status == "success":
            return body.data
        complaint = _complaint(answer)
        if _is_too_much(complaint):
            raise self._too_much(complaint)
        raise SourceError(f"{self._url} answered {answer.status}: {complaint}.")

    def _decoded(self, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return http_client.decoded(data, kind)
        except ValueError:
            raise self._stranger() from None

    def _too_much(self, complaint: str) -> _TooMuch:
        return _TooMuch(
            f"{self._url} refuses to return so much: {complaint}.",
            hint="Raise the limit that the server names, or request a shorter time.",
        )

    def _unreachable(self, reason: str) -> SourceError:
        return SourceError(f"{self._url} cannot be reached: {reason}.", hint=_REACH_HINT)

    def _stranger(self) -> SourceError:
        return SourceError(
            f"{self._url} answers, but not as a Prometheus does.",
            hint="Give the URL up to where /api/v1 begins, such as http://prometheus:9090.",
        )


def place(url: str) -> str:
    """The server's address for messages and links, without user, password and query, which may be secrets."""
    address = http_client.checked(url, what="Prometheus", is_quoted=True)
    return f"{http_client.shown(address)}{http_client.written_path(address)}".rstrip("/")


def _times(window_ns: tuple[int, int]) -> dict[str, str]:
    return {"start": f"{window_ns[0] / 1e9:.3f}", "end": f"{window_ns[1] / 1e9:.3f}"}


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _complaint(answer: http_client.HttpAnswer) -> str:
    """Prometheus' own error text, if there is one."""
    try:
        text = http_client.decoded(answer.body, _Answer).error
    except ValueError:
        text = "" if _is_page(answer) else answer.text
    return " ".join((text or answer.phrase).split())[:COMPLAINT_LENGTH_MAX].rstrip(".")


def _is_page(answer: http_client.HttpAnswer) -> bool:
    """Whether it is HTML, which no Prometheus answers with and which is too long for a sentence."""
    return answer.body.lstrip().startswith(b"<")


def _is_too_much(complaint: str) -> bool:
    return any(words in complaint for words in TOO_MUCH)


def _joined(parts: list[list[_Series]], window_ns: tuple[int, int]) -> Raw | None:
    """All parts as one; a series in several parts becomes one again, in order of time."""
    numbers: dict[bytes, int] = {}
    texts, index, counts = [], [], []
    for part in parts:
        for series in part:
            if (text := bytes(series.values)) == b"[]":
                continue
            texts.append(text)
            index.append(numbers.setdefault(bytes(series.metric), len(numbers)))
            counts.append((text.count(b",") + 1) // 2)
    pairs = np.fromstring(b",".join(texts).translate(None, _PUNCTUATION).decode(), sep=",").reshape(-1, 2)
    owners = np.repeat(np.array(index, np.int64), counts)
    if len(pairs) != len(owners):
        raise ValueError("values that are not pairs of a time and a number")
    times_ns = np.rint(pairs[:, 0] * 1e3).astype(np.int64) * MS_NS
    order = np.flatnonzero((times_ns >= window_ns[0]) & (times_ns < window_ns[1]))
    if not len(order):
        return None
    if len(index) > len(numbers):
        order = order[np.lexsort((times_ns[order], owners[order]))]
    present = np.bincount(owners[order], minlength=len(numbers)) > 0
    return Raw(
        keys=tuple(key for key, is_there in zip(numbers, present.tolist(), strict=True) if is_there),
        series=(np.cumsum(present) - 1)[owners[order]],
        times_ns=times_ns[order],
        values=pairs[order, 1],
    )
