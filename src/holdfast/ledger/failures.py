"""Figures for planning, from a run's record: failures, their duration, and the cost of checkpoints."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from holdfast.ledger.categories import Category
from holdfast.ledger.report import IncidentReport, Report
from holdfast.record.events import CheckpointBegun, CheckpointSaved
from holdfast.record.store import Selection, Store


class RecordedFailures(msgspec.Struct, frozen=True, kw_only=True):
    """The failures that stopped a run, without those that only slowed it down.

    up_s      time in which the run was up and could fail
    repair_s  for each failure that is over, the time until the first commit after it
    """

    count: int
    up_s: float
    repair_s: tuple[float, ...]

    @property
    def repair_s_mean(self) -> float | None:
        return fmean(self.repair_s) if self.repair_s else None


def failures(told: Report) -> RecordedFailures:
    fatal = [incident for incident in told.incidents if incident.severity == "fatal"]
    return RecordedFailures(
        count=len(fatal),
        up_s=told.elapsed_s - _down_ns(fatal, told.last_ns) / 1e9,
        repair_s=tuple(
            (one.recovered_ns - one.began_ns) / 1e9 for one in fatal if one.recovered_ns is not None
        ),
    )


def _down_ns(fatal: Sequence[IncidentReport], last_ns: int) -> int:
    """Time down; overlapping failures count once."""
    down_ns = until_ns = 0
    for one in sorted(fatal, key=lambda incident: incident.began_ns):
        ended_ns = last_ns if one.recovered_ns is None else one.recovered_ns
        down_ns += max(0, ended_ns - max(one.began_ns, until_ns))
        until_ns = max(until_ns, ended_ns)
    return down_ns


def stall_s(told: Report) -> float | None:
    """Mean wait for a checkpoint, of those that say how long training waited; None if none does."""
    stalled_gpu_ns = told.partition[Category.CHECKPOINT_STALL.key]
    if not stalled_gpu_ns or not told.saved.stalls or not told.gpus:
        return None
    return stalled_gpu_ns / told.gpus / told.saved.stalls / 1e9


def write_s(store: Store, run: str) -> float | None:
    """Mean time to write one background checkpoint; None if there was none."""
    kinds = ("checkpoint.begun", "checkpoint.saved")
    begun_ns: dict[int, int] = {}
    took_ns: list[int] = []
    for event in store.select(Selection(run=run, kinds=kinds)):
        if isinstance(event, CheckpointBegun) and not event.blocking:
            begun_ns[event.step] = event.occurred_ns
        elif isinstance(event, CheckpointSaved) and event.step in begun_ns:
            told_ns = max(0, event.occurred_ns - begun_ns.pop(event.step))
            took_ns.append(told_ns if event.write_ns is None else event.write_ns)
    return fmean(took_ns) / 1e9 if took_ns else None
