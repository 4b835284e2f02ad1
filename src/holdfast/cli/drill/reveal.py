"""`holdfast drill reveal`: show a scenario and the truth about it."""

import click

from holdfast.cli.drill.play import TableFlags, put_on_the_table
from holdfast.cli.flags import takes


@click.command("reveal")
@takes(TableFlags)
def command(asked: TableFlags) -> None:
    """Show SCENARIO as `play` does, and the truth: cause, place, time, owner, and the deciding evidence."""
    put_on_the_table(asked, reveal=True)
