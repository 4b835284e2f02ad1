"""Send alerts to a webhook: one POST of JSON for each change of an incident, in order.

A separate thread delivers them with a bounded number of attempts, so neither a slow nor a dead receiver holds
up the watcher. Messages that cannot be delivered are dropped and counted, never kept without bound.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.diagnose.alerts import Alert, alert
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.diagnose.sending import backoff_s, client, post
from holdfast.record.closing import Closable
from holdfast.record.events import IncidentState
from holdfast.signals.http_client import ANONYMOUS, Access, shown

VERSION = 1
QUEUE_MAX = 1_000
ATTEMPTS_MAX = 6
"""Half a minute with the waits in between, and up to another half if the receiver answers slowly: enough for
a receiver that restarts.
"""
STOP_POLL_S = 0.1
CLOSE_WAIT_S = 10.0
"""How long closing waits for undelivered messages, counted from `stop`."""


class WebhookMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message to a receiver. alert: sentences for people; incident: all of it, as data."""

    version: int
    state: IncidentState
    alert: Alert
    incident: Incident


def message(change: IncidentChange) -> WebhookMessage:
    return WebhookMessage(
        version=VERSION, state=change.state, alert=alert(change.incident), incident=change.incident
    )


def sent(change: IncidentChange) -> WebhookMessage | None:
    """The message to a receiver; None if it is not worth one. What becomes worth it opens."""
    if not change.is_worth:
        return None
    is_first = change.state == "changed" and not change.was_worth
    return message(msgspec.structs.replace(change, state="open") if is_first else change)


class Webhook(Closable):
    """Delivers changes to one URL. An `AlertOutlet`: `changed` returns at once."""

    def __init__(
        self, url: str, *, access: Access = ANONYMOUS, tell: Callable[[str], None] = lambda sentence: None
    ) -> None:
        """tell: is called with a sentence for each dropped message. It names the server only: the path of a
        webhook's URL is usually its password.
        """
        self._http = client(url, what="webhook", access=access)
        self._name = f"The webhook at {shown(url)}"
        self._tell = tell
        self._waiting: queue.Queue[bytes] = queue.Queue(QUEUE_MAX)
        self._stopping = threading.Event()
        self._leave_s = 0.0
        self._thread = threading.Thread(target=self._deliver_on, name="holdfast-webhook", daemon=True)
        self._thread.start()

    def changed(self, change: IncidentChange) -> None:
        if (told := sent(change)) is None:
            return
        try:
            self._waiting.put_nowait(msgspec.json.encode(told))
        except queue.Full:
            self._tell(f"{self._name} is {QUEUE_MAX:,} messages behind; one was dropped.")

    def confirmed(self, changes: Sequence[IncidentChange]) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None: ...

    def stop(self) -> None:
        """Begin to end: waiting messages get one attempt each. Does not wait for it."""
        if not self._stopping.is_set():
            self._leave_s = time.monotonic() + CLOSE_WAIT_S
            self._stopping.set()

    def close(self) -> None:
        """Deliver waiting messages within a time limit, and end. Report how many are left."""
        self.stop()
        self._thread.join(max(0.0, self._leave_s - time.monotonic()))
        if self._thread.is_alive():
            self._tell(f"{self._name} is too slow: {self._waiting.qsize() + 1:,} messages were dropped.")
        self._http.close()

    def _deliver_on(self) -> None:
        while True:
            try:
                self._deliver(self._waiting.get(timeout=STOP_POLL_S))
            except queue.Empty:
                if self._stopping.is_set():
                    return

    def _deliver(self, body: bytes) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            problem = post(self._http, body)
            if problem is None:
                return
            if self._stopping.is_set() or attempt == ATTEMPTS_MAX:
                break
            self._stopping.wait(backoff_s(attempt))
        self._tell(f"{self._name} did not accept a message ({problem}); it was dropped.")
