"""Rounds: all collectors are asked at the same time, and none can hold up or end the others.

A collector that is still at work when its round is over may go on, and is asked again when it is done. Its
failure is reported once, until it fails differently or works again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from holdfast.record.errors import HoldfastError
from holdfast.signals.collectors import Collector
from holdfast.signals.frame import Reading

CLOSE_S_MAX = 8.0
"""For all collectors together: a logout of each, with room for a busy machine."""

Tell = Callable[[str, str], None]
"""Shows a person a sentence and a hint."""


class RoundOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a collector in a round. readings: None if it failed, for the reason in `problem`."""

    collector: str
    readings: tuple[Reading, ...] | None
    problem: str = ""


class Rounds:
    """Asks these collectors again and again."""

    def __init__(self, collectors: Sequence[Collector], tell: Tell) -> None:
        self._slots = [_Slot(collector) for collector in collectors]
        self._tell = tell

    def play(self, wait_s: float | None) -> list[RoundOutcome]:
        """One round: the results within this time; None waits for all, each of which has its own bounds."""
        for slot in self._slots:
            slot.begin()
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        for slot in self._slots:
            slot.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        outcomes = [outcome for slot in self._slots if (outcome := slot.take()) is not None]
        for slot in self._slots:
            slot.tell_news(self._tell)
        return outcomes

    def close(self) -> None:
        """Have every collector release its source, all at once; slow ones are left behind."""
        closing = [threading.Thread(target=slot.close, daemon=True) for slot in self._slots]
        deadline_s = time.monotonic() + CLOSE_S_MAX
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, deadline_s - time.monotonic()))


class _Slot:
    """A collector, and the thread that waits for it. No two of its calls overlap."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._thread: threading.Thread | None = None
        self._readings: list[Reading] | None = None
        self._problem: HoldfastError | None = None
        self._told = ""

    def begin(self) -> None:
        if self._thread is None:
            # A daemon: the process can end without waiting for a source that does not answer.
            self._thread = threading.Thread(target=self._work, name=self._collector.name, daemon=True)
            self._thread.start()

    def wait(self, seconds: float | None) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def take(self) -> RoundOutcome | None:
        """Its result; None while it is at work."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return RoundOutcome(
            collector=self._collector.name,
            readings=None if self._readings is None else tuple(self._readings),
            problem=self._problem.sentence if self._problem else "",
        )

    def tell_news(self, tell: Tell) -> None:
        problem = self._problem
        if problem is not None and problem.sentence != self._told:
            tell(problem.sentence, problem.hint)
        elif problem is None and self._told:
            tell(f"{self._collector.name} can be read again.", "")
        self._told = problem.sentence if problem else ""

    def close(self) -> None:
        with suppress(Exception):  # It may be at work; that work is lost with the process.
            self._collector.close()

    def _work(self) -> None:
        readings, problem = None, None
        try:
            readings = self._collector.collect()
        except HoldfastError as error:
            problem = error
        except Exception as error:  # a defect of ours: report it, and let the other collectors go on
            problem = HoldfastError(f"{self._collector.name} failed: {type(error).__name__}: {error}.")
        self._readings, self._problem = readings, problem
