"""Readings on their way into the signal store, which may refuse them for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.record.errors import HoldfastError
from holdfast.signals.collectors.gathering import Collected
from holdfast.signals.collectors.redfish import is_facility_water
from holdfast.signals.collectors.rounds import Tell
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore

WAITING_MAX = 100_000
"""Readings that wait while the store cannot be written: some 100 MB. The oldest are dropped, and counted."""

Outlet = Callable[[Collected], None]


@contextmanager
def storing(path: Path, tell: Tell, *, step_s: float, keep_s: float | None) -> Iterator[Outlet]:
    """Write readings to the signal store, except those of the facility's water, which is not a rack's
    coolant. Readings that the store refuses, for example because the disk is full, are offered again in the
    next round.

    keep_s: older readings are deleted; None: none are.
    """
    complaints = ComplaintBox(tell)
    waiting: list[Reading] = []
    dropped = 0
    with SignalStore(path, step_s=step_s) as store:

        def outlet(collected: Collected) -> None:
            nonlocal dropped
            waiting.extend(reading for reading in collected.readings if not is_facility_water(reading))
            with complaints.caught():
                store.append(waiting)
                waiting.clear()
                if dropped:
                    tell(f"The signals lack {dropped:,} readings: only the newest {WAITING_MAX:,} wait.", "")
                    dropped = 0
                store.merge()
                if keep_s is not None:
                    store.forget(collected.at_ns - round(keep_s * 1e9))
            if len(waiting) > WAITING_MAX:
                dropped += len(waiting) - WAITING_MAX
                del waiting[:-WAITING_MAX]

        try:
            yield outlet
        finally:
            if lost := dropped + len(waiting):
                tell(f"The signals lack the last {lost:,} readings: the store accepted none of them.", "")


class ComplaintBox:
    """Reports an outlet's failure once until it works again."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._told = ""

    @contextmanager
    def caught(self) -> Iterator[None]:
        try:
            yield
        except HoldfastError as error:
            if error.sentence != self._told:
                self._tell(error.sentence, error.hint)
            self._told = error.sentence
        else:
            self._told = ""
