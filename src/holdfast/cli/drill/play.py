"""`holdfast drill play`: show a scenario as an operator would see it, as text, as data or as files."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.pages import writable_directory
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.record.errors import InputError
from holdfast.record.files import is_directory

if TYPE_CHECKING:
    from holdfast.drills.scenarios import Played

GPUS_MAX = 131_072


class ScenarioFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of all verbs that play a scenario."""

    scenario: str = argument()
    seed: int = option(
        "Draws place, time and strength.", type=click.IntRange(min=0), default=1, show_default=True
    )
    gpus: int | None = option(
        "How many GPUs the cluster has: a multiple of 8 from 256 on.  [default: 512]",
        type=click.IntRange(1, GPUS_MAX),
    )

    def played(self) -> "Played":
        from holdfast.drills.scenarios import TABLETOP, play

        layout = TABLETOP if self.gpus is None else msgspec.structs.replace(TABLETOP, gpus=self.gpus)
        return play(self.scenario, self.seed, layout=layout)


class TableFlags(ScenarioFlags, frozen=True, kw_only=True):
    """The flags of `play` and `reveal`."""

    directory: Path | None = option(
        "--out",
        "Write events, signals, topology and truth there.",
        type=click.Path(path_type=Path, file_okay=False),
        callback=writable_directory("scenario"),
        metavar="DIR",
    )
    as_json: bool = shared(json_option)


@click.command("play")
@takes(TableFlags)
def command(asked: TableFlags) -> None:
    """Play SCENARIO and show what an operator would see. `holdfast drill list` lists the scenarios."""
    put_on_the_table(asked, reveal=False)


def put_on_the_table(asked: TableFlags, *, reveal: bool) -> None:
    from holdfast.cli.drill import text
    from holdfast.drills import folder
    from holdfast.drills.tabletop import tabletop

    directory = asked.directory
    if directory is not None and is_directory(directory) and any(directory.iterdir()):
        raise InputError(
            f"{directory} is not empty; it may hold another drill.", hint="Name a new or an empty directory."
        )
    played = asked.played()
    if directory is not None:
        for path in folder.write(played, directory):
            click.echo(f"Wrote {printable(str(path))}", err=True)
    if asked.as_json:
        print_json(tabletop(played, reveal=reveal))
    else:
        text.show(played, reveal)
