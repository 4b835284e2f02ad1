"""`holdfast runs`: what is in the store."""

import click
import msgspec

from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.words import duration, moment


@click.command("runs")
@store_option
@json_option
def command(store_url: str | None, as_json: bool) -> None:
    """List the runs in the store, the one with the newest event first."""
    with open_record(store_url) as store:
        runs = store.runs()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(runs), indent=2).decode())
        return
    if not runs:
        click.echo("The store holds no runs yet; take something in with `holdfast import FILE`.", err=True)
        return
    width = max(len("run"), *(len(summary.run) for summary in runs))
    click.echo(f"{'run':{width}}  {'events':>11}  {'first event':20}  {'last event':20}  span")
    for summary in runs:
        span = duration(summary.last_ns - summary.first_ns)
        first, last = moment(summary.first_ns), moment(summary.last_ns)
        click.echo(f"{summary.run:{width}}  {summary.events:>11,}  {first:20}  {last:20}  {span}")
