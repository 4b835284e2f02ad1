"""Opens the record for the verbs: the named store, with this machine's own journal read into it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click

from holdfast import wording
from holdfast.cli.terminal import printable
from holdfast.record import journal
from holdfast.record.errors import InputError
from holdfast.record.home import HomeJournal
from holdfast.record.journal import Damage
from holdfast.record.store import Store
from holdfast.record.stores import open_store
from holdfast.run.endpoint import lost_runs
from holdfast.run.lost import write_end

Names = TypeVar("Names", str, tuple[str, ...], None)

_NAMES_HINT = "`holdfast runs` and `holdfast incidents` list the names there are."
DAMAGES_SHOWN_MAX = 5
"""How many damaged places of the journal are shown with their reason; all of them are counted."""


store_option = click.option(
    "--store",
    "store_url",
    envvar="HOLDFAST_STORE",
    metavar="URL",
    help="The store: an SQLite file or postgresql://…  [default: $HOLDFAST_STORE, or a file in "
    "$HOLDFAST_HOME, which is ~/.holdfast unless set]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def shown_store(url: str) -> str:
    """The store as it was named, without parts that may hold a password: user and query of a URL."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}"


def recorded_name(context: click.Context, parameter: click.Parameter, name: Names) -> Names:
    """The callback of a parameter that takes one or several names of the record, which must be UTF-8."""
    names: Sequence[str] = [name] if isinstance(name, str) else name or ()
    for one in names:
        if any("\ud800" <= letter <= "\udfff" for letter in one):
            raise InputError(f"{one!r} cannot be a name in the record: it is not UTF-8.", hint=_NAMES_HINT)
    return name


def home() -> Path:
    return journal.home(os.environ)


@contextmanager
def open_record(store_url: str | None) -> Iterator[Store]:
    """The store, with all events recorded on this machine."""
    with open_store(store_url, home()) as store:
        home_journal(store).take_in()
        if lost := lost_runs(home()):
            last_ns = {summary.run: summary.last_ns for summary in store.runs()}
            for one in lost:
                write_end(home(), one, last_ns.get(one.run, 0))
            home_journal(store).take_in()
        yield store


def home_journal(store: Store) -> HomeJournal:
    """This machine's journal, to be read into the store; damaged places are reported on stderr."""
    return HomeJournal(store, home(), _tell)


def _tell(damages: Sequence[Damage]) -> None:
    places = wording.many(len(damages), "place")
    click.echo(f"holdfast: This machine's own journal could not be read in {places}:", err=True)
    for damage in damages[:DAMAGES_SHOWN_MAX]:
        line = f", line {damage.line}" if damage.line else ""
        click.echo(printable(f"  {damage.file}{line}: {damage.reason}"), err=True)
    if len(damages) > DAMAGES_SHOWN_MAX:
        click.echo(f"  and {len(damages) - DAMAGES_SHOWN_MAX:,} more", err=True)
