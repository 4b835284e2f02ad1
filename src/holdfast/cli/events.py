"""`holdfast events`: show events as they were recorded."""

import re
from contextlib import suppress
from itertools import islice

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.record import home, home_journal, recorded_name, store_option
from holdfast.cli.terminal import printable, say
from holdfast.cli.values import moment_ns
from holdfast.record import events as ev
from holdfast.record.errors import InputError
from holdfast.record.following import following
from holdfast.record.runs import find_run
from holdfast.record.store import Selection
from holdfast.record.stores import open_store
from holdfast.record.untrusted import UNDECODABLE
from holdfast.wording import stamp

_ENVELOPE = frozenset(ev.Event.__struct_fields__)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    run: str | None = argument(required=False)
    kinds: tuple[str, ...] = option("--kind", "Only this kind. May be repeated.", metavar="KIND")
    subject: str | None = option("Only events about this member, node or GPU.", callback=recorded_name)
    since_ns: int | None = option(
        "--since", "Only from this time on (ISO 8601, or epoch).", callback=moment_ns, metavar="TIME"
    )
    until_ns: int | None = option("--until", "Only before this time.", callback=moment_ns, metavar="TIME")
    limit: int | None = option("At most this many.", type=click.IntRange(min=1), metavar="N")
    follow: bool = option("--follow", "-f", "Go on with new ones as they come, until interrupted.")
    as_json: bool = option("--json", "Print each event as a line of JSON, byte for byte.")
    store_url: str | None = shared(store_option)


class _Cause(msgspec.Struct, frozen=True, kw_only=True):
    mechanism: str
    subject: str


class _Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a diagnosis that a line shows."""

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
            events = following(store, journal, selection, say)
        else:
            events = store.select(selection, limit=given.limit)
        for event in islice(events, given.limit):
            click.echo(ev.encode(event) if given.as_json else _line(event))


def _known(kinds: tuple[str, ...]) -> tuple[str, ...]:
    for kind in kinds:
        # A newer version may have recorded an unknown kind, but every kind has a dot.
        if kind not in ev.KINDS and "." not in kind:
            raise InputError(f"Unknown kind {kind!r}.", hint=f"Known are {', '.join(ev.KINDS)}.")
    return kinds


def _line(event: ev.AnyEvent) -> str:
    if isinstance(event, ev.Unknown):
        details = "(not known to this version; --json shows it whole)"
    else:
        fields = _told(event).items()
        details = " ".join(f"{name}={_value(name, value)}" for name, value in fields if _is_told(name, value))
    kind, subject = ev.kind_of(event), event.subject or "-"
    return printable(f"{stamp(event.occurred_ns)}  {kind:20}  {subject:12}  {details}".rstrip())


def _told(event: ev.KnownEvent) -> dict[str, object]:
    """The fields that a line shows. A diagnosis is pages long: only its mechanism and subject are shown."""
    fields = msgspec.structs.asdict(event)
    if isinstance(event, ev.IncidentDiagnosed):
        del fields["diagnosis"]
        with suppress(*UNDECODABLE):
            cause = msgspec.json.decode(event.diagnosis, type=_Diagnosis).cause
            # After the fields of the envelope, of which `subject` is one.
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
    """The text, in quotes if it could be mistaken for several words or for a field."""
    return repr(text) if re.search(r"[\s,='\"]", text) else text
