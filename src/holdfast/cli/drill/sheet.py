"""`holdfast drill sheet`: write a tabletop as a page: roles, injects over time, questions, a score sheet."""

from pathlib import Path

import click
import msgspec

from holdfast.cli.drill.play import GPUS_MAX
from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.pages import html_option, require_one_output, write_page
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.record.errors import InputError


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str = argument()
    seed: int = option(
        "Draws place, time and strength.", type=click.IntRange(min=0), default=1, show_default=True
    )
    reveal: bool = option("The facilitator's copy, with the truth.")
    gpus: int | None = option(
        "How many GPUs the cluster has.  [default: 512]", type=click.IntRange(1, GPUS_MAX)
    )
    html_path: Path | None = shared(html_option)
    prices_path: Path | None = shared(prices_option)
    as_json: bool = shared(json_option)


@click.command("sheet")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Make the page of a tabletop of SCENARIO: a card for each role, injects over time, a score sheet."""
    from holdfast.dashboard.sheet_page import render
    from holdfast.drills.scenarios import TABLETOP, play
    from holdfast.drills.sheet import sheet

    require_one_output(given.html_path, given.as_json)
    layout = TABLETOP if given.gpus is None else msgspec.structs.replace(TABLETOP, gpus=given.gpus)
    played = play(given.scenario, given.seed, layout=layout)
    usd = load_prices(given.prices_path).usd_per_gpu_hour.value
    if given.html_path is None and not given.as_json:
        raise InputError(
            "No output is named for the page.", hint="Name a file with --html, or get the data with --json."
        )
    made = sheet(played, usd_per_gpu_hour=usd, reveal=given.reveal)
    if given.as_json:
        print_json(made)
    if given.html_path is not None:
        write_page(render(made), given.html_path)
