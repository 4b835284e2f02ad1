"""Send alerts to an Alertmanager and keep them there while they hold, even if it is down at times.

Alertmanager forgets an alert whose `endsAt` has passed, so an open alert is sent again before that with a new
`endsAt`. Hence there is no queue: a separate thread sends the current alerts whenever they change and once a
minute. Alerts that could not be delivered are part of the next attempt, and the watcher never waits.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

import msgspec

from holdfast.diagnose.alerts import Alert, alert, no_milder
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.diagnose.sending import backoff_s, client, post
from holdfast.diagnose.wording import moment
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.closing import Closable
from holdfast.signals.http_client import ANONYMOUS, Access, shown
from holdfast.signals.prometheus import place
from holdfast.wording.units import SECOND_NS

RESEND_S = 60.0
"""The interval of Prometheus."""
EXPIRY_RESENDS = 4
"""An alert stays valid for this many sendings: it survives a few failures, and expires soon after a watch."""
RESOLVED_KEPT_MAX = 1_000
"""Resolved alerts that could not be delivered yet; beyond this the oldest are dropped."""
CLOSE_WAIT_S = 6.0
"""How long closing waits for the last sending, counted from `stop`."""
ALERTS_PATH = "/api/v2/alerts"

_Identity = tuple[tuple[str, str], ...]


class _Posted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An alert as Alertmanager's API (v2) accepts it."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str
    generator_url: str = msgspec.field(default="", name="generatorURL")


class Alertmanager(Closable):
    """Keeps one Alertmanager informed. An `AlertOutlet` that gets all open incidents and never blocks."""

    def __init__(
        self,
        url: str,
        *,
        access: Access = ANONYMOUS,
        generator: str = "",
        every_s: float = RESEND_S,
        clock: Clock | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """generator: the URL of a Prometheus that can graph an alert's run. Its user and password are not
        passed on: more people read an alert than may query that server.

        tell: is called with a sentence when Alertmanager stops or starts answering.
        """
        self._http = client(url, what="Alertmanager", access=access)
        self._name = f"Alertmanager at {shown(url)}"
        self._generator = place(generator) if generator else ""
        self._every_s = max(RESEND_S, every_s)
        self._clock = clock or SystemClock()
        self._tell = tell
        self._lock = threading.Condition()
        self._open: dict[str, Alert] = {}
        self._over: dict[_Identity, Alert] = {}
        self._changed = self._stopping = False
        self._leave_s = 0.0
        self._thread = threading.Thread(target=self._send_on, name="holdfast-alertmanager", daemon=True)
        self._thread.start()

    def changed(self, change: IncidentChange) -> None: ...

    def confirmed(self, changes: Sequence[IncidentChange]) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None:
        self.hold(map(alert, incidents))

    def hold(self, alerts: Iterable[Alert]) -> None:
        """Set the open alerts. Earlier ones that are not among them are over."""
        with self._lock:
            now = {one.incident: no_milder(one, self._open.get(one.incident)) for one in alerts}
            at_ns = self._clock.now_ns()
            for name, before in self._open.items():
                after = now.get(name)
                if after is None or after.labels != before.labels:
                    # Alertmanager identifies an alert by its labels: with another cause it is a new alert.
                    ended_ns = max(at_ns, before.starts_ns)
                    self._over[_identity(before)] = msgspec.structs.replace(before, ends_ns=ended_ns)
            for one in now.values():
                self._over.pop(_identity(one), None)
            while len(self._over) > RESOLVED_KEPT_MAX:
                self._over.pop(next(iter(self._over)))
            # Other news about an alert, such as its cost, can wait for its next sending.
            self._changed = self._changed or _identities(now) != _identities(self._open)
            self._open = now
            self._lock.notify()

    def stop(self) -> None:
        """Begin to end: unsent alerts get one attempt. Does not wait for it."""
        with self._lock:
            if not self._stopping:
                self._leave_s = time.monotonic() + CLOSE_WAIT_S
            self._stopping = True
            self._lock.notify()

    def close(self) -> None:
        """Send unsent alerts once, and end. Open alerts are left to expire: nothing has resolved them."""
        self.stop()
        self._thread.join(max(0.0, self._leave_s - time.monotonic()))
        self._http.close()

    def _send_on(self) -> None:
        failures, wait_s = 0, self._every_s
        while True:
            with self._lock:
                # A new alert does not wait for the next attempt at an old one.
                self._lock.wait_for(lambda: self._changed or self._stopping, wait_s)
                last, self._changed = self._stopping, False
                open_, over = list(self._open.values()), dict(self._over)
            body = self._body(open_, over.values())
            problem = post(self._http, body, path=ALERTS_PATH, quotes=True) if open_ or over else None
            failures = self._judge(problem, failures)
            if problem is None:
                self._forget(over)
            if last:
                return
            wait_s = min(backoff_s(failures), self._every_s) if failures else self._every_s

    def _judge(self, problem: str | None, failures: int) -> int:
        if problem is not None:
            if not failures:
                self._tell(f"{self._name} did not accept the alerts ({problem}); retrying.")
            return failures + 1
        if failures:
            self._tell(f"{self._name} accepts alerts again.")
        return 0

    def _forget(self, delivered: dict[_Identity, Alert]) -> None:
        with self._lock:
            for identity, one in delivered.items():
                if self._over.get(identity) == one:
                    del self._over[identity]

    def _body(self, open_: Iterable[Alert], over: Iterable[Alert]) -> bytes:
        ends_ns = self._clock.now_ns() + round(EXPIRY_RESENDS * self._every_s * SECOND_NS)
        posted = [self._posted(one, ends_ns) for one in open_]
        posted += [self._posted(one, one.ends_ns or ends_ns) for one in over]
        return msgspec.json.encode(posted)

    def _posted(self, one: Alert, ends_ns: int) -> _Posted:
        return _Posted(
            labels=one.labels,
            annotations=one.annotations,
            starts_at=moment(one.starts_ns),
            ends_at=moment(ends_ns),
            generator_url=self._graph(one),
        )

    def _graph(self, one: Alert) -> str:
        """The URL of a graph of the run's step time, as Prometheus' own alerts link to their expression."""
        if not self._generator:
            return ""
        run = one.labels["run"].replace("\\", "\\\\").replace('"', '\\"')
        expression = f'holdfast_run_step_seconds{{run="{run}"}}'
        return f"{self._generator}/graph?g0.expr={quote(expression)}&g0.tab=0"


def _identity(one: Alert) -> _Identity:
    return tuple(sorted(one.labels.items()))


def _identities(alerts: dict[str, Alert]) -> set[_Identity]:
    return {_identity(one) for one in alerts.values()}
