"""`holdfast drill reveal`: a scenario, and what it really was."""

import click

from holdfast.cli.drill.play import ScenarioFlags, put_on_the_table
from holdfast.cli.flags import takes


@click.command("reveal")
@takes(ScenarioFlags)
def command(asked: ScenarioFlags) -> None:
    """Show what `play` shows of SCENARIO, and the truth: cause, place, time, owner, and what settles it."""
    put_on_the_table(asked, reveal=True)
