"""A small language to write a run's history in: times in seconds, one call an event."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.ledger.categories import Category
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.events import AnyEvent, KnownEvent, StepBegun, StepCommitted

SECOND = 10**9


class Story:
    """Events of one run in the order they are told; `at` is the time in seconds of the next one."""

    def __init__(self) -> None:
        self.at: float = 0
        self.events: list[AnyEvent] = []

    def tell(self, kind: Callable[..., KnownEvent], **fields: Any) -> str:
        """Record an event now. Return its id."""
        event_id = f"story-{len(self.events):010x}"
        self.events.append(kind(id=event_id, occurred_ns=round(self.at * SECOND), run="story", **fields))
        return event_id

    def wait(self, seconds: float) -> "Story":
        self.at += seconds
        return self

    def steps(self, first: int, last: int, seconds: float) -> "Story":
        """Steps first..last, each begun and committed, one after the other."""
        for step in range(first, last + 1):
            self.tell(StepBegun, step=step)
            self.wait(seconds)
            self.tell(StepCommitted, step=step)
        return self

    def report(self) -> Report:
        ledger = Ledger()
        ledger.add(self.events)
        told = report("story", ledger.fold)
        assert sum(told.partition.values()) == told.paid_gpu_ns
        assert sum(sum(bucket.values()) for bucket in told.course.buckets) == told.paid_gpu_ns
        return told

    def gpu_s(self) -> dict[str, float]:
        """The partition in GPU-seconds, without zeros."""
        return {key: part / SECOND for key, part in self.report().partition.items() if part}


@pytest.fixture
def story() -> Story:
    return Story()


def losses_s(told: Report, index: int = 0) -> dict[str, float]:
    return {key: part / SECOND for key, part in told.incidents[index].losses.items()}


@pytest.fixture
def categories() -> list[str]:
    return [category.key for category in Category]
