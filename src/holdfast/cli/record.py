"""How the verbs reach the record: the store that was named, with this machine's own journal taken in."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.files import is_there
from holdfast.cli.terminal import printable
from holdfast.dashboard import wording
from holdfast.ledger.fold import Fold
from holdfast.ledger.ledger import Ledger
from holdfast.record import journal
from holdfast.record.errors import InputError
from holdfast.record.events import AnyEvent, Correction
from holdfast.record.journal import Damage, read_directory
from holdfast.record.store import Ingested, Selection, Store, open_store
from holdfast.twin.tape import SOURCE as SIMULATED

Verb = TypeVar("Verb", bound=Callable[..., Any])

Names = TypeVar("Names", str, tuple[str, ...], None)

_NAMES_HINT = "`holdfast runs` and `holdfast incidents` list the names there are."
DAMAGES_SHOWN_MAX = 5
"""How many damaged places of that journal are shown with their reason; all of them are counted."""


def store_option(verb: Verb) -> Verb:
    return click.option(
        "--store",
        "store_url",
        envvar="HOLDFAST_STORE",
        metavar="URL",
        help="The store: an SQLite file or postgresql://…  [default: $HOLDFAST_STORE, or a file in "
        "$HOLDFAST_HOME, which is ~/.holdfast unless set]",
    )(verb)


def json_option(verb: Verb) -> Verb:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(verb)


def shown_store(url: str) -> str:
    """The store as it was named, without what may be a password: the user and the query of a URL."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}"


def recorded_name(context: click.Context, parameter: click.Parameter, name: Names) -> Names:
    """The callback of a parameter that takes names of the record, one or several: those are UTF-8."""
    names: Sequence[str] = [name] if isinstance(name, str) else name or ()
    for one in names:
        if any("\ud800" <= letter <= "\udfff" for letter in one):
            raise InputError(f"{one!r} is no name in the record: it is not UTF-8.", hint=_NAMES_HINT)
    return name


def home() -> Path:
    return journal.home(os.environ)


@contextmanager
def open_record(store_url: str | None) -> Iterator[Store]:
    """The store, up to date with what was recorded on this machine."""
    with open_store(store_url, home()) as store:
        HomeJournal(store).take_in()
        yield store


class HomeJournal:
    """What the processes of this machine recorded, on its way into the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[Damage] = set()

    def take_in(self) -> None:
        """Take in what is new and tell on stderr what of it is damaged: the next reading begins behind it.

        An unfinished line is no news: its writer is about to finish it, or died over it.
        """
        directory = home() / journal.JOURNAL_DIRECTORY
        damages: list[Damage] = []
        try:
            ingest_directory(self._store, directory, damages)
        except InputError:
            if is_there(directory):
                raise
            return  # nobody has recorded here yet, not even what is still on its way to this directory
        news = [damage for damage in damages if not damage.torn and damage not in self._told]
        self._told.update(news)
        if news:
            _tell(news)


def _tell(damages: Sequence[Damage]) -> None:
    places = wording.many(len(damages), "place")
    click.echo(f"holdfast: This machine's own journal could not be read in {places}:", err=True)
    for damage in damages[:DAMAGES_SHOWN_MAX]:
        line = f", line {damage.line}" if damage.line else ""
        click.echo(printable(f"  {damage.file}{line}: {damage.reason}"), err=True)
    if len(damages) > DAMAGES_SHOWN_MAX:
        click.echo(f"  and {len(damages) - DAMAGES_SHOWN_MAX:,} more", err=True)


def ingest_directory(store: Store, directory: Path, damages: list[Damage]) -> Ingested:
    """Take in what is new in a journal directory; what cannot be read is added to `damages`."""
    prefix = f"journal:{directory.resolve()}/"
    marks = store.marks()
    offsets = {name.removeprefix(prefix): mark for name, mark in marks.items() if name.startswith(prefix)}
    events = _events_of(read_directory(directory, offsets), damages)
    return store.ingest(events, marks=_Marks(prefix, offsets))


def _events_of(items: Iterable[AnyEvent | Damage], damages: list[Damage]) -> Iterator[AnyEvent]:
    for item in items:
        if isinstance(item, Damage):
            damages.append(item)
        else:
            yield item


class _Marks(Mapping[str, int]):
    """A reading's offsets as marks, as they are when the store writes them: after the last event."""

    def __init__(self, prefix: str, offsets: dict[str, int]) -> None:
        self._prefix = prefix
        self._offsets = offsets

    def __getitem__(self, name: str) -> int:
        return self._offsets[name.removeprefix(self._prefix)]

    def __iter__(self) -> Iterator[str]:
        return (self._prefix + name for name in self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


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
        near = get_close_matches(name, runs, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}?" if near else "`holdfast runs` lists them."
        raise InputError(f"There is no run {name!r} in the store.", hint=hint)
    return name


def simulated_runs(store: Store) -> frozenset[str]:
    """The runs that only the twin has had: nobody paid for them, and nothing broke."""
    begun = store.select(Selection(kinds=("run.started",)))
    return frozenset(event.run for event in begun if event.source == SIMULATED)


def left_out(simulated: int) -> str:
    """The remark where simulated runs do not count."""
    are = "is" if simulated == 1 else "are"
    return f"{wording.many(simulated, 'simulated run')} {are} left out; `--run` names one to read it."


def ledger_of(store: Store, run: str, cuts_ns: Iterable[int] = ()) -> Ledger:
    """The ledger of a run, to add its events to; its corrections are known to it."""
    corrections = store.select(Selection(run=run, kinds=("correction",)))
    return Ledger((event for event in corrections if isinstance(event, Correction)), cuts_ns)


def fold_run(store: Store, run: str) -> Fold:
    """The accounts of a run, from all of its events."""
    ledger = ledger_of(store, run)
    ledger.add(store.select(Selection(run=run)))
    return ledger.fold
