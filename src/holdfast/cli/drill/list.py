"""`holdfast drill list`: the scenarios by name."""

import click

from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json


@click.command("list")
@json_option
def command(as_json: bool) -> None:
    """List the scenarios."""
    from holdfast.cli.drill.text import show_list
    from holdfast.drills.scenarios import SCENARIOS

    if as_json:
        print_json({one.name: one.title for one in SCENARIOS.values()})
    else:
        show_list()
