"""`holdfast events`: what was recorded, as it was recorded."""

import time
from collections.abc import Iterator

import click
import msgspec

from holdfast.cli.record import JOURNAL_DIRECTORY, find_run, home, ingest_directory, open_record, store_option
from holdfast.cli.words import moment
from holdfast.record.errors import InputError
from holdfast.record.events import KINDS, AnyEvent, Event, Unknown, encode, kind_of
from holdfast.record.importers.intake import time_ns
from holdfast.record.store import Selection, Store

POLL_INTERVAL_S = 0.5
_ENVELOPE = frozenset(Event.__struct_fields__)


def _time(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else time_ns(text)
    except ValueError as error:
        raise InputError(f"{parameter.opts[0]}: {error}.", hint="Write it as 2026-01-31T12:00:00Z.") from None


@click.command("events")
@click.argument("run", required=False)
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind; may be given again.")
@click.option("--subject", help="Only events about this member, node or GPU.")
@click.option("--since", callback=_time, metavar="TIME", help="Only from this time on (ISO 8601, or epoch).")
@click.option("--until", callback=_time, metavar="TIME", help="Only before this time.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new ones as they come, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON, byte for byte.")
@store_option
def command(
    run: str | None,
    kinds: tuple[str, ...],
    subject: str | None,
    since: int | None,
    until: int | None,
    limit: int | None,
    follow: bool,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Show the events of RUN (the one with the newest event if left out), by the time they occurred."""
    with open_record(store_url) as store:
        selection = Selection(
            run=find_run(store, run), subject=subject, kinds=_known(kinds), since_ns=since, until_ns=until
        )
        events = _following(store, selection) if follow else store.select(selection, limit=limit)
        for number, event in enumerate(events, start=1):
            click.echo(encode(event) if as_json else _line(event))
            if number == limit:
                return


def _known(kinds: tuple[str, ...]) -> tuple[str, ...]:
    for kind in kinds:
        # A newer version may have recorded a kind that is not known here, but every kind has a dot.
        if kind not in KINDS and "." not in kind:
            raise InputError(f"There is no kind {kind!r}.", hint=f"Known are {', '.join(KINDS)}.")
    return kinds


def _following(store: Store, selection: Selection) -> Iterator[AnyEvent]:
    """What is there, by time, and then what arrives, as it arrives. Ends with an interrupt."""
    arrived = list(store.since(0, selection))
    cursor = arrived[-1][0] if arrived else 0
    yield from sorted((event for _, event in arrived), key=lambda event: (event.occurred_ns, event.id))
    journal = home() / JOURNAL_DIRECTORY
    while True:
        if journal.is_dir():
            ingest_directory(store, journal, [])
        for arrival, event in store.since(cursor, selection):
            cursor = arrival
            yield event
        time.sleep(POLL_INTERVAL_S)


def _line(event: AnyEvent) -> str:
    if isinstance(event, Unknown):
        details = "(of a newer version)"
    else:
        fields = msgspec.structs.asdict(event).items()
        details = " ".join(f"{name}={_value(name, value)}" for name, value in fields if _is_told(name, value))
    return f"{moment(event.occurred_ns)}  {kind_of(event):20}  {event.subject or '-':12}  {details}".rstrip()


def _is_told(name: str, value: object) -> bool:
    return name not in _ENVELOPE and value not in (None, "", ())


def _value(name: str, value: object) -> object:
    return moment(value) if name == "onset_ns" and isinstance(value, int) else value
