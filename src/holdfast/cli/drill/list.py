"""`holdfast drill list`: the scenarios by name."""

import click

from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json


@click.command("list")
@click.option("--live", "is_live", is_flag=True, help="List those of `holdfast drill live`.")
@json_option
def command(is_live: bool, as_json: bool) -> None:
    """List the scenarios."""
    if is_live:
        _list_live(as_json)
        return
    from holdfast.cli.drill.text import show_list
    from holdfast.drills.scenarios import SCENARIOS

    if as_json:
        print_json({one.name: one.title for one in SCENARIOS.values()})
    else:
        show_list()


def _list_live(as_json: bool) -> None:
    from holdfast.cli.drill.live_text import show_live_list
    from holdfast.drills.live.scenarios import LIVE_SCENARIOS

    if as_json:
        print_json({one.name: one.title for one in LIVE_SCENARIOS.values()})
    else:
        show_live_list()
