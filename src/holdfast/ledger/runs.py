"""A run's accounts from its events in a store: over its whole life, or in a window of time."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import msgspec

from holdfast.ledger.fold import Fold
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.window import Window, WindowStanding, accruing, standing, within
from holdfast.record.events import Correction
from holdfast.record.store import RunSummary, Selection, Store

Progress = Callable[[list[RunSummary]], AbstractContextManager[Iterable[RunSummary]]]
"""Yields the runs one by one and shows the progress of reading them."""


class AskedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The window asked for, and the moment of asking. until_ns: if given, later events are not read."""

    window: Window
    now_ns: int
    until_ns: int | None = None


def ledger_of(store: Store, run: str, cuts_ns: Iterable[int] = ()) -> Ledger:
    """An empty ledger for a run, which already knows the run's corrections."""
    corrections = store.select(Selection(run=run, kinds=("correction",)))
    return Ledger((event for event in corrections if isinstance(event, Correction)), cuts_ns)


def fold_run(store: Store, run: str) -> Fold:
    """The accounts of a run, from all of its events."""
    ledger = ledger_of(store, run)
    ledger.add(store.select(Selection(run=run)))
    return ledger.fold


def read_run(store: Store, run: str, look: AskedWindow, cuts_ns: Iterable[int] = ()) -> Report:
    """The report of a run in the window, with its accrued cost up to `look.now_ns`."""
    window = look.window
    ledger = ledger_of(store, run, (*cuts_ns, *window.edges_ns))
    edges = sorted(edge for edge in window.edges_ns if look.until_ns is None or edge < look.until_ns)
    standings: dict[int, WindowStanding] = {}
    since_ns: int | None = None
    for edge in edges:
        ledger.add(store.select(Selection(run=run, since_ns=since_ns, until_ns=edge)))
        standings[edge] = standing(ledger.fold)
        since_ns = edge
    ledger.add(store.select(Selection(run=run, since_ns=since_ns, until_ns=look.until_ns)))
    if look.until_ns is not None and ledger.fold.is_cut_off:
        later = Selection(run=run, since_ns=look.until_ns)
        if next(iter(store.select(later, limit=1)), None) is not None:
            ledger.fold.source = ""  # the log is not at its end there, so the run was known to go on
    told = accruing(report(run, ledger.fold), look.now_ns)
    begin = None
    if window.from_ns is not None:
        # If the window begins after the last event read, everything counts as before it.
        begin = standings.get(window.from_ns) or standing(ledger.fold)
    end = None if window.to_ns is None else standings.get(window.to_ns)
    return within(told, window, begin, end)
