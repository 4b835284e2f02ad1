"""`holdfast events`: show the events of a run, with steps in one line for a stretch of them."""

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain

import click
import msgspec

from holdfast import wording
from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.record import home, home_journal, recorded_name, store_option
from holdfast.cli.terminal import fitted, printable, say
from holdfast.cli.values import moment_ns
from holdfast.record import events as ev
from holdfast.record.errors import InputError
from holdfast.record.following import following
from holdfast.record.runs import find_run
from holdfast.record.store import Selection
from holdfast.record.stores import open_store
from holdfast.record.untrusted import UNDECODABLE
from holdfast.wording import stamp

_Step = ev.StepBegun | ev.StepCommitted | ev.StepWitnessed
SHA256_CHARS = 12
"""As much of a fingerprint as tells scripts apart; `--json` has all of it."""
KIND_AT = 22
"""Where the kind of an event begins in its line."""
_ENVELOPE = frozenset(ev.Event.__struct_fields__)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    run: str | None = argument(required=False)
    kinds: tuple[str, ...] = option("--kind", "Only this kind. May be repeated.", metavar="KIND")
    subject: str | None = option("Only events about this member, node or GPU.", callback=recorded_name)
    steps: bool = option("Show each step; otherwise a stretch of steps is one line.")
    since_ns: int | None = option(
        "--since",
        "Only from this time on, or since so long: 1h.",
        callback=moment_ns,
        metavar="TIME",
    )
    until_ns: int | None = option("--until", "Only before this time.", callback=moment_ns, metavar="TIME")
    limit: int | None = option(
        "Only the last N lines; with --follow, and those to come.", type=click.IntRange(min=1), metavar="N"
    )
    follow: bool = option("--follow", "-f", "Go on with new ones as they come, until interrupted.")
    as_json: bool = option("--json", "Print every event as a line of JSON, byte for byte.")
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
        is_each = given.steps or given.as_json or bool(given.kinds)
        lines = _Lines(ev.encode if given.as_json else _line, is_each=is_each)
        if given.follow:
            _follow(lines, given.limit, partial(following, store, journal, selection, say))
            return
        shown = chain(chain.from_iterable(map(lines.take, store.select(selection))), lines.rest())
        line = None
        for line in shown if given.limit is None else deque(shown, given.limit):
            _echo(line)
        if line is None:
            newest = next(one.last_ns for one in store.runs() if one.run == selection.run)
            say(f"{selection.run} has no such event; its newest is of {stamp(newest)}.")


def _follow(
    lines: "_Lines", limit: int | None, follow: Callable[[Callable[[], None]], Iterator[ev.AnyEvent]]
) -> None:
    """Print the lines so far, or the last of them, and then new ones. A stretch of steps that goes on is
    printed in pieces, whenever nothing more has come.
    """
    past: deque[str | bytes] | None = None if limit is None else deque(maxlen=limit)

    def put(new: Iterable[str | bytes]) -> None:
        if past is not None:
            past.extend(new)
            return
        for line in new:
            _echo(line)

    def rest() -> None:
        nonlocal past
        put(lines.rest())
        kept, past = past or (), None
        put(kept)

    for event in follow(rest):
        put(lines.take(event))


def _echo(line: str | bytes) -> None:
    """Print a line; on a terminal it goes on below its kind. JSON stays as it is."""
    click.echo(fitted(line, sys.stdout, hang=" " * KIND_AT) if isinstance(line, str) else line)


class _Stretch(msgspec.Struct, kw_only=True):
    """Steps one after another, and nothing else between them."""

    first: _Step
    last: _Step
    begun_step: int
    committed: list[int]
    """When steps were committed: the first and the last of them."""
    committed_step: int = -1
    count: int = 0
    skipped: int = 0

    @classmethod
    def at(cls, event: _Step) -> "_Stretch":
        return cls(first=event, last=event, begun_step=event.step, committed=[])

    def takes(self, event: _Step) -> bool:
        """Whether the event goes on with these steps; a step that is done again does not."""
        is_again = isinstance(event, ev.StepCommitted) and event.step <= self.committed_step
        is_later = event.step >= self.last.step and not is_again
        if not is_later or event.subject != self.first.subject:
            return False
        self.last = event
        if isinstance(event, ev.StepCommitted):
            self.committed = [*self.committed[:1], event.occurred_ns]
            self.committed_step, self.count = event.step, self.count + 1
            self.skipped += len(event.skipped_lanes)
        return True

    @property
    def line(self) -> str:
        first, last = self.first.step, self.last.step
        steps = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        lasted = self.last.occurred_ns - self.first.occurred_ns
        told = f"{steps}, in {wording.duration(lasted)}"
        if self.count > 1:
            each_ns = (self.committed[-1] - self.committed[0]) // (self.count - 1)
            told += f", {wording.duration(each_ns)} a step"
        if self.skipped:
            told += f", {wording.many(self.skipped, 'lane')} skipped"
        return _columns(self.first, "steps", told)


class _Lines:
    """Turns events into lines: each; or a stretch of steps in one, and an incident that goes on only with
    another cause. write: the line of one event.
    """

    def __init__(self, write: Callable[[ev.AnyEvent], str | bytes], *, is_each: bool) -> None:
        self._write, self._is_each = write, is_each
        self._stretch: _Stretch | None = None
        self._causes: dict[str, _Cause | None] = {}

    def take(self, event: ev.AnyEvent) -> Iterator[str | bytes]:
        """The lines that are complete with this event."""
        if self._is_each or not isinstance(event, _Step):
            if not self._is_each and isinstance(event, ev.IncidentDiagnosed) and self._is_again(event):
                return
            yield from self.rest()
            yield self._write(event)
        elif self._stretch is None or not self._stretch.takes(event):
            yield from self.rest()
            self._stretch = _Stretch.at(event)
            self._stretch.takes(event)

    def _is_again(self, event: ev.IncidentDiagnosed) -> bool:
        """Whether an incident goes on, with the cause that was last shown."""
        before, cause = self._causes.get(event.incident), _cause_of(event)
        self._causes[event.incident] = cause
        return event.state == "changed" and cause is not None and cause == before

    def rest(self) -> Iterator[str | bytes]:
        """The line of a stretch that may go on."""
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            yield self._write(stretch.first) if stretch.first is stretch.last else stretch.line


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
        details = " ".join(_detail(name, value) for name, value in fields if _is_told(name, value))
    return _columns(event, ev.kind_of(event), details)


def _columns(event: ev.AnyEvent, what: str, details: str) -> str:
    subject = event.subject or "-"
    return printable(f"{stamp(event.occurred_ns)}  {what:20}  {subject:12}  {details}".rstrip())


def _told(event: ev.KnownEvent) -> dict[str, object]:
    """The fields that a line shows. A diagnosis is pages long: only its mechanism and subject are shown."""
    fields = msgspec.structs.asdict(event)
    if isinstance(event, ev.IncidentDiagnosed):
        del fields["diagnosis"]
        if (cause := _cause_of(event)) is not None:
            # After the fields of the envelope, of which `subject` is one.
            return {**fields, "mechanism": cause.mechanism, "about": cause.subject}
    return fields


def _cause_of(event: ev.IncidentDiagnosed) -> _Cause | None:
    """None if it cannot be decoded: it comes from a newer version."""
    with suppress(*UNDECODABLE):
        return msgspec.json.decode(event.diagnosis, type=_Diagnosis).cause
    return None


def _is_told(name: str, value: object) -> bool:
    is_none = value in (None, "", ()) or (name, value) == ("survived_errors", 0)
    return name not in _ENVELOPE and not is_none


def _detail(name: str, value: object) -> str:
    """The field and its value; a quantity with its unit, in place of the one in the field's name."""
    if isinstance(value, int) and name == "onset_ns":
        return f"onset={_word(stamp(value))}"
    if isinstance(value, int) and name.endswith("_ns"):
        return f"{name.removesuffix('_ns')}={_joined(wording.duration(value))}"
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')}={_joined(wording.size(value))}"
    if isinstance(value, tuple):
        return f"{name}={','.join(_word(str(one)) for one in value)}"
    if name.endswith("_sha256"):
        return f"{name}={str(value)[:SHA256_CHARS]}"
    return f"{name}={_word(str(value))}"


def _joined(quantity: str) -> str:
    return quantity.replace(" ", "")


def _word(text: str) -> str:
    """The text, in quotes if it could be mistaken for several words or for a field."""
    return repr(text) if re.search(r"[\s,='\"]", text) else text
