"""`holdfast drill reveal`: a scenario, and what it really was."""

from typing import Any

import click

from holdfast.cli.drill.play import put_on_the_table, scenario_options


@click.command("reveal")
@scenario_options
def command(**asked: Any) -> None:
    """Show what `play` shows of SCENARIO, and the truth: cause, place, time, owner, and what settles it."""
    put_on_the_table(reveal=True, **asked)
