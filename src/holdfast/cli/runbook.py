"""`holdfast runbook`: print what to do about an incident."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.markdown_text import text_lines
from holdfast.cli.record import home, json_option, open_record, recorded_name, store_option
from holdfast.cli.signal_sources import url_option
from holdfast.cli.terminal import print_json, printable, tell
from holdfast.diagnose import recorded as diagnosed
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError
from holdfast.record.files import is_directory
from holdfast.signals.frame import Labels

if TYPE_CHECKING:
    from holdfast.signals.store import SignalStore


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    incident: str | None = argument(required=False, metavar="[INCIDENT|RUN]", callback=recorded_name)
    markdown: bool = option("Print Markdown on a terminal, too, as into a file or a pipe.")
    prometheus_url: str | None = option(
        "--prometheus",
        "Name hosts in queries by the labels that they have there.  [default: $HOLDFAST_PROMETHEUS, or "
        "signals in $HOLDFAST_HOME]",
        envvar="HOLDFAST_PROMETHEUS",
        callback=url_option,
        metavar="URL",
    )
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("runbook")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Print the runbook of INCIDENT (RUN/s1, say), filled in with its own subjects.

    With RUN: of its newest open incident, or its newest. Without either: the same, of all runs. On a terminal
    it is text, into a file or a pipe Markdown.
    """
    from holdfast.diagnose.runbooks import runbook, seam_runbook

    with open_record(given.store_url) as store:
        found = diagnosed.find(store, given.incident)
    now_ns = SystemClock().now_ns()
    series = _series(given.prometheus_url, found.incident.ended_ns)
    own = runbook(found.incident, now_ns=now_ns, series=series)
    across = seam_runbook(found.incident, now_ns=now_ns, series=series)
    if given.as_json:
        print_json(
            {"incident": found.incident.name, "state": found.state, "runbook": own, "seam_runbook": across}
        )
        return
    text = own.text if across is None else f"{own.text}\n{across.text}"
    # Names in the record come from other programs: they must not move a terminal's cursor.
    safe = "\n".join(printable(line) for line in text.splitlines())
    if sys.stdout.isatty() and not given.markdown:
        safe = "\n".join(text_lines(safe, shutil.get_terminal_size().columns))
    click.echo(safe)


def _series(url: str | None, at_ns: int | None) -> list[Labels]:
    """The series of the cluster's exporters; none if they cannot be read, as the runbook is needed anyway."""
    from holdfast.diagnose.host_labels import NEEDED
    from holdfast.signals.surveys import Systems, series_of

    try:
        with _stored(url) as store:
            systems = Systems(prometheus=url, signals=store, at_ns=at_ns)
            return [labels for _, series in series_of(systems, NEEDED) for labels in series]
    except HoldfastError as error:
        tell(f"{error.sentence} Queries name hosts by the usual labels of exporters.", error.hint)
        return []


@contextmanager
def _stored(url: str | None) -> Iterator["SignalStore | None"]:
    """The embedded store, if there is one and no server is named."""
    from holdfast.signals.opening import SIGNALS_DIRECTORY
    from holdfast.signals.store import SignalStore

    directory = Path(os.environ.get("HOLDFAST_SIGNALS") or home() / SIGNALS_DIRECTORY)
    if url is not None or not is_directory(directory):
        yield None
        return
    with SignalStore(directory) as store:
        yield store
