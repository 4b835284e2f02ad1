"""`holdfast runs`: list the runs in the store: GPU-hours, useful share, cost, outcome."""

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from holdfast import wording
from holdfast.cli.prices import in_currency, load_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import fitted, print_json, printable
from holdfast.cli.windows import reading
from holdfast.economics.pricing.listing import Listed, listed
from holdfast.ledger.split import unknown_matters
from holdfast.record.runs import simulated_runs

RUN_CHARS_MAX = 40
"""A longer name is cut, so that the rest of its row fits; `--json` has the whole name."""
RUNNING_NS_MAX = 600 * 10**9
"""A run without an event for longer than this may have died unnoticed."""
ASSUMED = "~"
"""Marks an amount at an assumed price, and a share that is estimated."""


@click.command("runs")
@prices_option
@store_option
@json_option
def command(prices_path: Path | None, store_url: str | None, as_json: bool) -> None:
    """List the runs in the store, the one with the newest event first.

    With each: GPU-hours paid for, the useful share of those that are known, what they cost, and how it ended.
    """
    prices = load_prices(prices_path)
    now_ns = time.time_ns()
    with open_record(store_url) as store:
        simulated = simulated_runs(store)
        with reading(store.runs()) as summaries:
            runs = [listed(store, one, prices, now_ns, one.run in simulated) for one in summaries]
    if as_json:
        print_json(runs)
        return
    if not runs:
        click.echo("The store has no runs yet; import some with `holdfast import FILE`.", err=True)
        return
    with in_currency(prices):
        _show(runs, now_ns)


def _show(runs: Sequence[Listed], now_ns: int) -> None:
    names = [printable(wording.run_label(one.run, one.name, RUN_CHARS_MAX)) for one in runs]
    width = max(len("run"), *map(len, names))
    has_unknown = any(unknown_matters(one.unknown_share or 0.0, 1) for one in runs)
    rows = [_cells(one, now_ns, has_unknown=has_unknown) for one in runs]
    unknown = ("not known",) if has_unknown else ()
    headings = ("last event", "outcome", "span", "GPU-hours", "useful", *unknown, wording.currency())
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    aligned = ("<", "<", "<", *(">" for _ in headings[3:]))
    between = "  "
    if sys.stdout.isatty() and width + sum(widths) + 2 * len(widths) > shutil.get_terminal_size().columns:
        between, width = "\n  ", 0  # the figures of a run are below its name
    for name, cells in zip(("run", *names), (headings, *rows), strict=True):
        told = "  ".join(
            f"{cell:{side}{wide}}" for cell, side, wide in zip(cells, aligned, widths, strict=True)
        )
        click.echo(fitted(f"{name:{width}}{between}{told}", sys.stdout))
    if not sys.stderr.isatty():
        return
    if any(one.useful_basis for one in runs):
        click.echo(f"{ASSUMED} before a share: estimated from the run's own steps; see its report", err=True)
    if any(one.cost_assumed and one.cost_usd for one in runs):
        click.echo(
            f"{ASSUMED} before money: at a list price that is assumed; `--prices` gives yours", err=True
        )


def _cells(one: Listed, now_ns: int, *, has_unknown: bool) -> tuple[str, ...]:
    cost, useful = wording.UNKNOWN, wording.percent(one.useful_share)
    if one.simulated:
        cost = "simulated"
    elif one.cost_usd is not None:
        amount = wording.usd_cell(one.cost_usd, one.cost_usd)
        cost = f"{ASSUMED}{amount}" if one.cost_assumed and one.cost_usd else amount
    return (
        wording.stamp(one.last_ns) if one.last_ns else wording.UNKNOWN,
        _outcome(one, now_ns),
        wording.duration(one.last_ns - one.first_ns) if one.last_ns else wording.UNKNOWN,
        wording.UNKNOWN if one.on_cpu else f"{one.gpu_hours:,.1f}",
        f"{ASSUMED}{useful}" if one.useful_basis and one.useful_share else useful,
        *((wording.percent(one.unknown_share),) if has_unknown else ()),
        cost,
    )


def _outcome(one: Listed, now_ns: int) -> str:
    """The outcome in a word; for a run without an end, the age of its last event."""
    if one.ended is not None:
        return one.ended.outcome
    if one.is_cut_off:
        return "log ends"
    return "running" if now_ns - one.last_ns < RUNNING_NS_MAX else "unknown"
