"""`holdfast stop`: end a live run of this machine."""

import click

from holdfast.cli.going import answer_of
from holdfast.cli.terminal import printable
from holdfast.run.wire import Stop, fresh_asker


@click.command("stop")
@click.argument("run")
def command(run: str) -> None:
    """End RUN, which is live on this machine, as SIGTERM to its `holdfast run` would.

    Members have the time of --shutdown-timeout to leave; a second `holdfast stop` does not wait for them.
    """
    wish = Stop(reason="SIGTERM", asker=fresh_asker())
    answer = answer_of(run, wish)
    click.echo(printable(answer.sentence))
