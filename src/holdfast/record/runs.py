"""Runs in a store: found by name, and whether they are simulated, live or over."""

from collections import deque
from collections.abc import Iterable

from holdfast import wording
from holdfast.record.errors import InputError, nearest
from holdfast.record.events import RunEnded, RunStarted
from holdfast.record.store import Selection, Store
from holdfast.wording.units import DAY_NS

SIMULATED = "twin"
"""The source of events that happened in a simulation."""
LIVE_NS_MAX = DAY_NS
"""A run without an event for longer than this is not live, whether or not its end was recorded."""


def find_run(store: Store, name: str | None) -> str:
    """The run of this name; without one, the run with the newest event."""
    runs = [summary.run for summary in store.runs()]
    if not runs:
        raise InputError(
            "The store holds no runs yet.", hint="Take something in with `holdfast import FILE`."
        )
    if name is None:
        return runs[0]
    if name not in runs:
        hint = nearest(name, runs, "`holdfast runs` lists them.", likeness=0.4, quote="'")
        raise InputError(f"There is no run {name!r} in the store.", hint=hint)
    return name


def simulated_runs(store: Store) -> frozenset[str]:
    """The runs that only the twin played: they cost nothing, and nothing broke."""
    begun = store.select(Selection(kinds=("run.started",)))
    return frozenset(event.run for event in begun if event.source == SIMULATED)


def recent_runs(store: Store, at_ns: int) -> frozenset[str]:
    """The runs with a recent event. A diagnosis of a run does not count as its event."""
    return frozenset(
        summary.run
        for summary in store.runs()
        if summary.events and summary.first_ns <= at_ns <= summary.last_ns + LIVE_NS_MAX
    )


def begins_ns(store: Store, runs: Iterable[str], at_ns: int) -> dict[str, int]:
    """The last start of each run that had ended before it, from the record."""
    found = {}
    for run in runs:
        selection = Selection(run=run, kinds=("run.started", "run.ended"), until_ns=at_ns + 1)
        last = deque(store.select(selection), maxlen=2)
        if len(last) == 2 and isinstance(last[0], RunEnded) and isinstance(last[1], RunStarted):
            found[run] = last[1].occurred_ns
    return found


def ends_ns(store: Store, runs: Iterable[str], at_ns: int) -> dict[str, int]:
    """The end of each run that had ended by then, from the record."""
    found = {}
    for run in runs:
        selection = Selection(run=run, kinds=("run.started", "run.ended"), until_ns=at_ns + 1)
        last = deque(store.select(selection), maxlen=1)
        if last and isinstance(last[0], RunEnded):
            found[run] = last[0].occurred_ns
    return found


def simulated_remark(simulated: int) -> str:
    """The remark that simulated runs do not count."""
    are = "is" if simulated == 1 else "are"
    return f"{wording.many(simulated, 'simulated run')} {are} left out; `--run` names one to read it."
