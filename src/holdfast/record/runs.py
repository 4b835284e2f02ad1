"""Runs in a store: found by id or name, and whether they are simulated, live or over."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from holdfast import wording
from holdfast.record.errors import InputError, nearest
from holdfast.record.events import IMPORTED, REMARKS, AnyEvent, RunEnded, RunStarted, RunSubmitted
from holdfast.record.store import Selection, Store
from holdfast.wording.units import DAY_NS

SIMULATED = "twin"
"""The source of events that happened in a simulation."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
MEANT_SHOWN_MAX = 10
"""How many runs of one name are listed; the newest first."""
LIVE_NS_MAX = DAY_NS
"""A run without an event for longer than this is not live, whether or not its end was recorded."""


def find_run(store: Store, asked: str | None) -> str:
    """The id of the run that has this id or name; without one, of the run with the newest event."""
    runs = store.runs()
    if not runs:
        raise InputError(
            "The store holds no runs yet.", hint="Take something in with `holdfast import FILE`."
        )
    if asked is None:
        return runs[0].run
    if (found := known_run(store, asked)) is not None:
        return found
    hint = nearest(
        asked,
        [*(one.run for one in runs), *run_names(store).values()],
        "`holdfast runs` lists them.",
        likeness=0.4,
        quote="'",
    )
    raise InputError(f"There is no run {asked!r} in the store.", hint=hint)


def known_run(store: Store, asked: str) -> str | None:
    """The id of the run that `asked` means, if the record has one."""
    begun_ns = {one.run: one.first_ns for one in store.runs()}
    return asked if asked in begun_ns else meant(asked, begun_ns, run_names(store))


def meant(asked: str, begun_ns: Mapping[str, int], names: Mapping[str, str] = NO_NAMES) -> str | None:
    """The one of these ids that `asked` means, as an id or as a name. Raise `InputError` if it may mean
    several. begun_ns: when each began. names: of ids that have another name.

    The beginning of an id means nothing: job-10 is not job-102, even where the record has no job-10.
    """
    if asked in begun_ns:
        return asked
    found = [run for run in begun_ns if asked and names.get(run) == asked]
    if len(found) < 2:
        return next(iter(found), None)
    shown = sorted(found, key=lambda run: (-begun_ns[run], run))[:MEANT_SHOWN_MAX]
    told = ", ".join(f"{run} (began {wording.stamp(begun_ns[run])})" for run in shown)
    more = f" and {len(found) - len(shown):,} more" if len(found) > len(shown) else ""
    raise InputError(
        f"{asked!r} is the name of {len(found):,} runs: {told}{more}.",
        hint="Name one of them by its id.",
    )


def run_names(store: Store, run: str | None = None) -> dict[str, str]:
    """The last name of each run, or of one run, that is called otherwise than its id."""
    begun = store.select(Selection(run=run, kinds=("run.submitted", "run.started")))
    named = (event for event in begun if isinstance(event, RunSubmitted | RunStarted))
    return {event.run: event.name for event in named if event.name not in ("", event.run)}


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


def cut_off_ns(store: Store, run: str, at_ns: int) -> int | None:
    """The last moment that is known of a run whose log ends before it does; None for any other run."""
    last_ns = next((one.last_ns for one in store.runs() if one.run == run and one.events), None)
    if last_ns is None or last_ns > at_ns:
        return None
    signs = [*_signs(store, Selection(run=run, since_ns=last_ns))]
    signs = signs or [*deque(_signs(store, Selection(run=run)), maxlen=1)]
    return last_ns if all(event.source in IMPORTED for event in signs) else None


def _signs(store: Store, selection: Selection) -> Iterator[AnyEvent]:
    """The events that tell what the run does."""
    return (event for event in store.select(selection) if type(event) not in REMARKS)


def simulated_remark(simulated: int) -> str:
    """The remark that simulated runs do not count."""
    are = "is" if simulated == 1 else "are"
    return f"{wording.many(simulated, 'simulated run')} {are} left out; `--run` names one to read it."
