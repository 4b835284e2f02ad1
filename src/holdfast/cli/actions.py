"""`holdfast actions`: the actions of control, taken or announced, and their results."""

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
@click.option(
    "--shadow", "only_shadow", is_flag=True, help="Only actions that were announced in shadow mode."
)
@click.option("--done", "only_done", is_flag=True, help="Only actions that were taken.")
@store_option
@json_option
def command(
    target: str | None, only_shadow: bool, only_done: bool, store_url: str | None, as_json: bool
) -> None:
    """List the actions of control on TARGET, such as a node, or on all targets, the newest first."""
    if only_shadow and only_done:
        raise InputError("No action is both taken and only announced.", hint="Give --shadow or --done.")
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
                *("for", "result"),
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
