"""`holdfast runs`: what is in the store."""

import click

from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable
from holdfast.dashboard.wording import duration, short, stamp

RUN_CHARS_MAX = 40
"""A longer name is cut, so that the rest of every row still fits beside it; `--json` has the whole."""


@click.command("runs")
@store_option
@json_option
def command(store_url: str | None, as_json: bool) -> None:
    """List the runs in the store, the one with the newest event first."""
    with open_record(store_url) as store:
        runs = store.runs()
    if as_json:
        print_json(runs)
        return
    if not runs:
        click.echo("The store holds no runs yet; take something in with `holdfast import FILE`.", err=True)
        return
    names = [short(printable(summary.run), RUN_CHARS_MAX) for summary in runs]
    width = max(len("run"), *map(len, names))
    click.echo(f"{'run':{width}}  {'events':>11}  {'last event':20}  span")
    for name, summary in zip(names, runs, strict=True):
        span = duration(summary.last_ns - summary.first_ns)
        click.echo(f"{name:{width}}  {summary.events:>11,}  {stamp(summary.last_ns):20}  {span}")
