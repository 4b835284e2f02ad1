"""`holdfast incidents`: list the diagnosed incidents, and which of them are still open."""

import click
import msgspec

from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json
from holdfast.diagnose import recorded as diagnosed
from holdfast.record.runs import find_run, run_names


@click.command("incidents")
@click.argument("run", required=False)
@click.option("--open", "only_open", is_flag=True, help="Only those that are not over.")
@store_option
@json_option
def command(run: str | None, only_open: bool, store_url: str | None, as_json: bool) -> None:
    """List the incidents of RUN, or of all runs, that `watch` or `diagnose --record` have found.

    The newest comes first, each as it was last seen.
    """
    with open_record(store_url) as store:
        names = run_names(store)
        named = () if run is None else (find_run(store, run),)
        known = diagnosed.latest(diagnosed.changes_of(store, *named))
    shown = [change for change in known if not only_open or change.state != "resolved"]
    if as_json:
        print_json([{"state": change.state, **msgspec.to_builtins(change.incident)} for change in shown])
    elif shown:
        from holdfast.cli.incident_text import show_list

        show_list([(change.state, change.incident) for change in shown], names)
    else:
        click.echo(f"The record has no {'open ' if only_open else ''}incident.", err=True)
