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
from holdfast.record.errors import InputError, nearest
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
NO_TIME = "time not known"
PAUSE_TIMES, PAUSE_NS_MIN = 5, 10 * 10**9
"""Without a step for so many usual ones, and at least for so long, steps paused."""
MEASURED_MIN = 3
"""Commits that tell how long a step takes."""
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
            near = (nearest(kind, ev.KINDS, "") for kind in given.kinds if kind not in ev.KINDS)
            hint = " ".join(filter(None, near))
            say(f"{selection.run} has no such event; its newest is of {stamp(newest)}. {hint}".rstrip())


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
    """Steps one after another, with nothing else between them and no pause.

    paused_ns: how long before it no step came, if that was a pause. committed: its first commit and its last.
    apart: the least and the most steps from one commit to the next.
    """

    first: _Step
    last: _Step
    paused_ns: int = 0
    committed: tuple[ev.StepCommitted, ev.StepCommitted] | None = None
    apart: tuple[int, int] | None = None
    count: int = 0
    skipped: int = 0

    @classmethod
    def at(cls, event: _Step, paused_ns: int = 0) -> "_Stretch":
        begun = cls(first=event, last=event, paused_ns=paused_ns)
        begun.takes(event)
        return begun

    def takes(self, event: _Step) -> bool:
        """Whether the event goes on with these steps. A step that is done again does not, nor one after a
        pause.
        """
        known = self.committed
        if _is_untimed(event) != _is_untimed(self.first):
            return False
        if _is_untimed(event) and isinstance(event, ev.StepWitnessed) and event.step <= self.last.step:
            return True  # the loss of a step that is counted already
        is_again = isinstance(event, ev.StepCommitted) and known is not None and event.step <= known[1].step
        is_later = event.step >= self.last.step and not is_again
        if not is_later or event.subject != self.first.subject or self.pause_ns(event):
            return False
        self.last = event
        if isinstance(event, ev.StepCommitted):
            if known is not None:
                more = event.step - known[1].step
                least, most = self.apart or (more, more)
                self.apart = min(least, more), max(most, more)
            self.committed = (event if known is None else known[0]), event
            self.count += 1
            self.skipped += len(event.skipped_lanes)
        return True

    def pause_ns(self, event: _Step) -> int:
        """How long no step came before this one, if that is far longer than steps take; else 0."""
        if self.count < MEASURED_MIN:
            return 0
        since_ns = event.occurred_ns - self.last.occurred_ns
        usual_ns = self._step_ns * max(1, event.step - self.last.step)
        return since_ns if since_ns > max(PAUSE_NS_MIN, PAUSE_TIMES * usual_ns) else 0

    @property
    def _step_ns(self) -> int:
        assert self.committed is not None
        first, last = self.committed
        return (last.occurred_ns - first.occurred_ns) // (last.step - first.step)

    @property
    def line(self) -> str:
        first, last = self.first.step, self.last.step
        told = [f"{first:,}" if first == last else f"{first:,} to {last:,}"]
        if self.committed is not None and self.apart not in (None, (1, 1)):
            told.append(self._recorded(*self.committed))
        if not _is_untimed(self.first):
            told.append(f"in {wording.duration(self.last.occurred_ns - self.first.occurred_ns)}")
        if self.count > 1 and not _is_untimed(self.first):
            told.append(f"{wording.duration(self._step_ns)} a step")
        if self.paused_ns:
            told.append(f"after {wording.duration(self.paused_ns)} without a step")
        if self.skipped:
            told.append(f"{wording.many(self.skipped, 'lane')} skipped")
        return _columns(self.first, "steps", ", ".join(told))

    def _recorded(self, first: ev.StepCommitted, last: ev.StepCommitted) -> str:
        least, most = self.apart or (1, 1)
        if least == most:
            return f"one in {least:,} recorded"
        return f"{self.count:,} of {last.step - first.step + 1:,} recorded"


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
            paused_ns = 0 if self._stretch is None else self._stretch.pause_ns(event)
            yield from self.rest()
            self._stretch = _Stretch.at(event, paused_ns)

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
    subject, when = event.subject or "-", NO_TIME if _is_untimed(event) else stamp(event.occurred_ns)
    return printable(f"{when:20}  {what:20}  {subject:12}  {details}".rstrip())


def _is_untimed(event: ev.AnyEvent) -> bool:
    """Whether nothing is known of its time: it comes from a log without times."""
    return ev.is_undated(event) and not event.occurred_ns


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
