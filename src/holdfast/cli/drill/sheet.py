"""`holdfast drill sheet`: write a tabletop as a page: roles, injects over time, questions, a score sheet."""

from pathlib import Path

import click

from holdfast.cli.drill.play import ScenarioFlags
from holdfast.cli.flags import option, shared, takes
from holdfast.cli.pages import html_option, require_one_output, write_page
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.record.errors import InputError


class _Flags(ScenarioFlags, frozen=True, kw_only=True):
    reveal: bool = option("The facilitator's copy, with the truth.")
    html_path: Path | None = shared(html_option)
    prices_path: Path | None = shared(prices_option)
    as_json: bool = shared(json_option)


@click.command("sheet")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Make the page of a tabletop of SCENARIO: a card for each role, injects over time, a score sheet."""
    from holdfast.dashboard.sheet_page import render
    from holdfast.drills.sheet import sheet

    require_one_output(given.html_path, given.as_json)
    usd = load_prices(given.prices_path).usd_per_gpu_hour.value
    if given.html_path is None and not given.as_json:
        raise InputError(
            "No output is named for the page.", hint="Name a file with --html, or get the data with --json."
        )
    made = sheet(given.played(), usd_per_gpu_hour=usd, reveal=given.reveal)
    if given.as_json:
        print_json(made)
    if given.html_path is not None:
        write_page(render(made), given.html_path)
