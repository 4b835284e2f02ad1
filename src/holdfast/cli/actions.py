"""`holdfast actions`: what control did, or would have done, and what came of it."""

import click
import msgspec
from rich.console import Console

from holdfast import wording
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.tables import figure, table, word
from holdfast.cli.terminal import print_json, printable
from holdfast.control.controlling import acts_in
from holdfast.control.history import Act
from holdfast.record.errors import InputError


@click.command("actions")
@click.argument("target", required=False)
@click.option("--shadow", "only_shadow", is_flag=True, help="Only what would have been done.")
@click.option("--done", "only_done", is_flag=True, help="Only what was done.")
@store_option
@json_option
def command(
    target: str | None, only_shadow: bool, only_done: bool, store_url: str | None, as_json: bool
) -> None:
    """List what control did about TARGET, a node say, or about all: the newest first."""
    if only_shadow and only_done:
        raise InputError("Nothing is both done and only said.", hint="Give --shadow or --done, or neither.")
    with open_record(store_url) as store:
        found = [
            act
            for act in acts_in(store)
            if (target is None or act.target == target)
            and (not only_shadow or act.mode == "shadow")
            and (not only_done or act.mode == "act")
        ]
    if as_json:
        print_json([msgspec.to_builtins(act) for act in found])
    elif found:
        Console(highlight=False, markup=False).print(
            table(
                *(word("when"), word("action"), word("target"), word("mode"), word("stage")),
                figure("GPU-hours"),
                *("for", "what came of it"),
                rows=[_row(act) for act in found],
            )
        )
    else:
        about = "" if target is None else f" about {printable(target)}"
        click.echo(f"The record has no action of control{about}.", err=True)


def _row(act: Act) -> tuple[str, ...]:
    price = "-" if act.decision is None else wording.rough(round(act.decision.price.gpu_hours, 1))
    return (
        wording.stamp(act.at_ns),
        act.action,
        printable(act.target),
        act.mode,
        act.stage,
        price,
        printable(act.rule),
        printable(act.outcome),
    )
