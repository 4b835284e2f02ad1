"""`holdfast runbook`: print what to do about an incident."""

import click

from holdfast.cli.record import json_option, open_record, recorded_name, store_option
from holdfast.cli.terminal import print_json, printable
from holdfast.diagnose import recorded as diagnosed
from holdfast.record.clock import SystemClock


@click.command("runbook")
@click.argument("incident", required=False, metavar="[INCIDENT|RUN]", callback=recorded_name)
@store_option
@json_option
def command(incident: str | None, store_url: str | None, as_json: bool) -> None:
    """Print the runbook of INCIDENT (RUN/s1, say) in Markdown, filled in with its own subjects.

    With RUN: of its newest open incident, or its newest. Without either: the same, of all runs.
    """
    from holdfast.diagnose.runbooks import runbook, seam_runbook

    with open_record(store_url) as store:
        found = diagnosed.find(store, incident)
    now_ns = SystemClock().now_ns()
    own = runbook(found.incident, now_ns=now_ns)
    across = seam_runbook(found.incident, now_ns=now_ns)
    if as_json:
        print_json(
            {"incident": found.incident.name, "state": found.state, "runbook": own, "seam_runbook": across}
        )
        return
    text = own.text if across is None else f"{own.text}\n{across.text}"
    # Names in the record come from other programs: they must not move a terminal's cursor.
    click.echo("\n".join(printable(line) for line in text.splitlines()))
