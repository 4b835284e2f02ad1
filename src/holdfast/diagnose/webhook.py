"""Alerts to a webhook: one POST of JSON for each change of an incident, in the order in which they happened.

A thread of its own delivers them with a bounded number of attempts, so that neither a slow nor a dead
receiver holds up the watcher. What cannot be delivered is dropped and counted, never kept without bound.
"""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx
import msgspec

from holdfast.diagnose.alerts import Alert, alert
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import Change
from holdfast.diagnose.sending import address, backoff_s, client, post, shown
from holdfast.record.events import IncidentState

VERSION = 1
QUEUE_MAX = 1_000
ATTEMPTS_MAX = 6
"""Half a minute in all: a receiver that restarts is waited for, one that is gone is not."""
CLOSE_WAIT_S = 10.0
"""How long closing waits for what is still to be delivered."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver gets. alert: for people, joined into sentences; incident: all of it, as data."""

    version: int
    state: IncidentState
    alert: Alert
    incident: Incident


def message(change: Change) -> Message:
    return Message(
        version=VERSION, state=change.state, alert=alert(change.incident), incident=change.incident
    )


class Webhook:
    """Delivers changes to one URL. `send` returns at once."""

    def __init__(self, url: str, *, tell: Callable[[str], None] = lambda sentence: None) -> None:
        """tell: is given a sentence for each message that had to be dropped."""
        self._url = address(url, what="webhook")
        self._tell = tell
        self._waiting: queue.Queue[bytes | None] = queue.Queue(QUEUE_MAX)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._deliver_on, name="holdfast-webhook", daemon=True)
        self._thread.start()

    def send(self, change: Change) -> None:
        try:
            self._waiting.put_nowait(msgspec.json.encode(message(change)))
        except queue.Full:
            self._tell(f"The webhook {shown(self._url)} is {QUEUE_MAX:,} messages behind; one was dropped.")

    def close(self) -> None:
        """Deliver what waits, one attempt each, and end."""
        self._closing.set()
        try:
            self._waiting.put(None, timeout=CLOSE_WAIT_S)
        except queue.Full:
            return  # The thread ends with the process.
        self._thread.join(CLOSE_WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _deliver_on(self) -> None:
        with client() as http:
            while (body := self._waiting.get()) is not None:
                self._deliver(http, body)

    def _deliver(self, http: httpx.Client, body: bytes) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            problem = post(http, self._url, body)
            if problem is None:
                return
            if self._closing.is_set() or attempt == ATTEMPTS_MAX:
                break
            self._closing.wait(backoff_s(attempt))
        self._tell(f"The webhook {shown(self._url)} did not take a message ({problem}); it was dropped.")
