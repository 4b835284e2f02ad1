"""`holdfast drill play`: a scenario as an operator would see it, in the terminal, as data and as files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.record.files import is_directory

Verb = TypeVar("Verb", bound=Callable[..., Any])


def scenario_options(verb: Verb) -> Verb:
    """What `play` and `reveal` are told about a scenario."""
    for declare in (
        json_option,
        click.option(
            "--out",
            "directory",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="DIR",
            help="Write events, signals, topology and truth there.",
        ),
        click.option(
            "--gpus", type=click.IntRange(min=1), help="How many GPUs the cluster has.  [default: 512]"
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=1,
            show_default=True,
            help="Draws place, time and strength.",
        ),
        click.argument("scenario"),
    ):
        verb = declare(verb)
    return verb


@click.command("play")
@scenario_options
def command(**asked: Any) -> None:
    """Play SCENARIO and show what an operator would see. `holdfast drill list` names the scenarios."""
    put_on_the_table(reveal=False, **asked)


def put_on_the_table(
    *, scenario: str, seed: int, gpus: int | None, directory: Path | None, as_json: bool, reveal: bool
) -> None:
    from holdfast.cli.drill import text
    from holdfast.drills import folder
    from holdfast.drills.scenarios import TABLETOP, play
    from holdfast.drills.tabletop import tabletop

    if directory is not None and is_directory(directory) and any(directory.iterdir()):
        raise InputError(
            f"{directory} is not empty; it may hold another drill.", hint="Name a new or an empty directory."
        )
    layout = TABLETOP if gpus is None else msgspec.structs.replace(TABLETOP, gpus=gpus)
    played = play(scenario, seed, layout=layout)
    if directory is not None:
        for path in folder.write(played, directory):
            click.echo(f"Wrote {printable(str(path))}", err=True)
    if as_json:
        print_json(tabletop(played, reveal=reveal))
    else:
        text.show(played, reveal)
