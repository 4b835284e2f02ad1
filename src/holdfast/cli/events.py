"""`holdfast events`: what was recorded, as it was recorded."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.record import home, home_journal, recorded_name, store_option
from holdfast.cli.terminal import printable
from holdfast.cli.values import moment_ns
from holdfast.record import events as ev
from holdfast.record.errors import InputError, StoreError
from holdfast.record.home import HomeJournal
from holdfast.record.runs import find_run
from holdfast.record.store import Selection, Store
from holdfast.record.stores import open_store
from holdfast.record.untrusted import UNDECODABLE
from holdfast.wording import stamp

POLL_INTERVAL_S = 0.5
_ENVELOPE = frozenset(ev.Event.__struct_fields__)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    run: str | None = argument(required=False)
    kinds: tuple[str, ...] = option(
        "--kind", "Only this kind; may be given again.", multiple=True, metavar="KIND"
    )
    subject: str | None = option("Only events about this member, node or GPU.", callback=recorded_name)
    since_ns: int | None = option(
        "--since", "Only from this time on (ISO 8601, or epoch).", callback=moment_ns, metavar="TIME"
    )
    until_ns: int | None = option("--until", "Only before this time.", callback=moment_ns, metavar="TIME")
    limit: int | None = option("At most this many.", type=click.IntRange(min=1), metavar="N")
    follow: bool = option(
        "--follow", "-f", "Go on with new ones as they come, until interrupted.", is_flag=True
    )
    as_json: bool = option("--json", "Print each event as a line of JSON, byte for byte.", is_flag=True)
    store_url: str | None = shared(store_option)


class _Cause(msgspec.Struct, frozen=True, kw_only=True):
    mechanism: str
    subject: str


class _Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What a line tells of a diagnosis."""

    cause: _Cause


@click.command("events")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Show the events of RUN (the one with the newest event if left out), by the time they occurred."""
    with open_store(given.store_url, home()) as store:
        journal = home_journal(store)
        journal.take_in()
        selection = Selection(
            run=find_run(store, given.run),
            subject=given.subject,
            kinds=_known(given.kinds),
            since_ns=given.since_ns,
            until_ns=given.until_ns,
        )
        if given.follow:
            events = following(store, journal, selection)
        else:
            events = store.select(selection, limit=given.limit)
        for event in islice(events, given.limit):
            click.echo(ev.encode(event) if given.as_json else _line(event))


def _known(kinds: tuple[str, ...]) -> tuple[str, ...]:
    for kind in kinds:
        # A newer version may have recorded a kind that is not known here, but every kind has a dot.
        if kind not in ev.KINDS and "." not in kind:
            raise InputError(f"There is no kind {kind!r}.", hint=f"Known are {', '.join(ev.KINDS)}.")
    return kinds


def following(store: Store, journal: HomeJournal, selection: Selection) -> Iterator[ev.AnyEvent]:
    """What is there, by time, and then what arrives, as it arrives. Ends with an interrupt.

    A store that cannot be used for a while, as when its server restarts, is told once and waited for.
    """
    cursor = store.end()
    shown: set[str] = set()
    last: ev.AnyEvent | None = None
    is_listed = is_troubled = False
    while True:
        try:
            if not is_listed:
                for event in _present(store, selection, cursor, last, shown):
                    last = event
                    yield event
                is_listed = True
            journal.take_in()
            end = store.end()
            for arrival, event in store.since(cursor, selection):
                cursor = arrival
                if event.id not in shown:
                    yield event
            cursor = max(cursor, end)
        except StoreError as error:
            if not is_troubled:
                _say(f"{error.sentence} It is tried again.")
            is_troubled = True
        else:
            if is_troubled:
                _say("The store can be used again; nothing was missed.")
            is_troubled = False
        time.sleep(POLL_INTERVAL_S)


def _present(
    store: Store, selection: Selection, cursor: int, last: ev.AnyEvent | None, shown: set[str]
) -> Iterator[ev.AnyEvent]:
    """What is there, behind `last` where an earlier reading came so far. Adds to `shown` what arrived after
    the cursor, and will be met there again.
    """
    if last is not None:
        selection = msgspec.structs.replace(selection, since_ns=last.occurred_ns)
    present = store.select(selection)
    first = list(islice(present, 1))  # now the reading has begun, and will see nothing newer
    # What arrived between the two looks is behind the cursor, and may be among what is present as well.
    began = store.end()
    unsure = {event.id for arrival, event in store.since(cursor, selection) if arrival <= began}
    for event in chain(first, present):
        if last is not None and (event.occurred_ns, event.id) <= (last.occurred_ns, last.id):
            continue
        if event.id in unsure:
            shown.add(event.id)
        yield event


def _say(sentence: str) -> None:
    click.echo(f"holdfast: {printable(sentence)}", err=True)


def _line(event: ev.AnyEvent) -> str:
    if isinstance(event, ev.Unknown):
        details = "(not known to this version; --json shows it whole)"
    else:
        fields = _told(event).items()
        details = " ".join(f"{name}={_value(name, value)}" for name, value in fields if _is_told(name, value))
    kind, subject = ev.kind_of(event), event.subject or "-"
    return printable(f"{stamp(event.occurred_ns)}  {kind:20}  {subject:12}  {details}".rstrip())


def _told(event: ev.KnownEvent) -> dict[str, object]:
    """The fields that a line shows; of a diagnosis, which is pages long, what was found and where."""
    fields = msgspec.structs.asdict(event)
    if isinstance(event, ev.IncidentDiagnosed):
        del fields["diagnosis"]
        with suppress(*UNDECODABLE):
            cause = msgspec.json.decode(event.diagnosis, type=_Diagnosis).cause
            # Behind those of the envelope, of which the subject is one.
            return {**fields, "mechanism": cause.mechanism, "about": cause.subject}
    return fields


def _is_told(name: str, value: object) -> bool:
    is_none = value in (None, "", ()) or (name, value) == ("survived_errors", 0)
    return name not in _ENVELOPE and not is_none


def _value(name: str, value: object) -> str:
    if name == "onset_ns" and isinstance(value, int):
        return stamp(value)
    if isinstance(value, tuple):
        return ",".join(_word(str(one)) for one in value)
    return _word(str(value))


def _word(text: str) -> str:
    """As it is, unless it could be taken for more than one word or for a field: then in quotes."""
    return repr(text) if re.search(r"[\s,='\"]", text) else text
