"""`holdfast runs`: what is in the store, and what came of it: GPU-hours, useful share, cost, outcome."""

import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import click
import msgspec

from holdfast import wording
from holdfast.cli.prices import in_currency, load_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable
from holdfast.cli.windows import reading
from holdfast.economics.pricing.prices import Prices
from holdfast.economics.pricing.pricing import Pricing
from holdfast.economics.pricing.rates import edges_ns
from holdfast.ledger.report import Ended
from holdfast.ledger.runs import AskedWindow, read_run
from holdfast.ledger.window import Window
from holdfast.record.runs import simulated_runs
from holdfast.record.store import RunSummary, Store
from holdfast.wording.units import HOUR_NS

RUN_CHARS_MAX = 40
"""A longer name is cut, so that the rest of every row still fits beside it; `--json` has the whole."""
RUNNING_NS_MAX = 600 * 10**9
"""A run of which nothing was recorded for longer may have died without a word."""
ASSUMED = "~"
"""Before an amount that rests on a price nobody gave, and a share that rests on an estimate."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list. ended: its last end; None where none is recorded since it was started last.

    gpu_hours: paid for, with what a run that goes on accrued since its last event. useful_share: of what is
    accounted for; None where nothing tells. useful_basis: how good that is, where it is an estimate.
    cost_usd: None of a simulated run, which nobody paid for, and of one without recorded GPUs.
    """

    run: str
    team: str
    events: int
    first_ns: int
    last_ns: int
    ended: Ended | None
    gpus: int
    gpu_hours: float
    useful_share: float | None
    useful_basis: str
    cost_usd: float | None
    cost_assumed: bool
    simulated: bool


@click.command("runs")
@prices_option
@store_option
@json_option
def command(prices_path: Path | None, store_url: str | None, as_json: bool) -> None:
    """List the runs in the store, the one with the newest event first.

    With each: GPU-hours paid for, their useful share, what they cost, and how it ended.
    """
    prices = load_prices(prices_path)
    now_ns = time.time_ns()
    with open_record(store_url) as store:
        simulated = simulated_runs(store)
        with reading(store.runs()) as summaries:
            runs = [_listed(store, one, prices, now_ns, one.run in simulated) for one in summaries]
    if as_json:
        print_json(runs)
        return
    if not runs:
        click.echo("The store holds no runs yet; take something in with `holdfast import FILE`.", err=True)
        return
    with in_currency(prices):
        _show(runs, now_ns)


def _listed(store: Store, summary: RunSummary, prices: Prices, now_ns: int, simulated: bool) -> Listed:
    look = AskedWindow(window=Window(), now_ns=now_ns)
    told = read_run(store, summary.run, look, edges_ns(prices.rates))
    charges = [charge for charge in Pricing(told, prices).charges() if charge.gpu_ns]
    gpu_ns = sum(charge.gpu_ns for charge in charges)
    usd = sum((charge.usd(charge.gpu_ns) for charge in charges), Fraction())
    return Listed(
        **msgspec.structs.asdict(summary),
        team=told.team,
        ended=told.ended,
        gpus=told.gpus,
        gpu_hours=gpu_ns / HOUR_NS,
        useful_share=told.goodput.total,
        useful_basis=told.goodput.basis,
        cost_usd=None if simulated or not told.gpus else float(usd),
        cost_assumed=any(charge.price.assumed for charge in charges),
        simulated=simulated,
    )


def _show(runs: Sequence[Listed], now_ns: int) -> None:
    names = [wording.short(printable(listed.run), RUN_CHARS_MAX) for listed in runs]
    width = max(len("run"), *map(len, names))
    rows = [_cells(listed, now_ns) for listed in runs]
    headings = ("last event", "outcome", "span", "GPU-hours", "useful", wording.currency())
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    aligned = ("<", "<", "<", ">", ">", ">")
    for name, cells in zip(("run", *names), (headings, *rows), strict=True):
        told = "  ".join(
            f"{cell:{side}{wide}}" for cell, side, wide in zip(cells, aligned, widths, strict=True)
        )
        click.echo(f"{name:{width}}  {told}")
    if not sys.stderr.isatty():
        return
    if any(listed.useful_basis for listed in runs):
        click.echo(f"{ASSUMED} before a share: estimated from the run's own steps; see its report", err=True)
    if any(listed.cost_assumed and listed.cost_usd for listed in runs):
        click.echo(
            f"{ASSUMED} before money: at a list price that is assumed; `--prices` gives yours", err=True
        )


def _cells(listed: Listed, now_ns: int) -> tuple[str, ...]:
    cost, useful = wording.UNKNOWN, wording.percent(listed.useful_share)
    if listed.simulated:
        cost = "simulated"
    elif listed.cost_usd is not None:
        amount = wording.usd_cell(listed.cost_usd, listed.cost_usd)
        cost = f"{ASSUMED}{amount}" if listed.cost_assumed and listed.cost_usd else amount
    return (
        wording.stamp(listed.last_ns),
        _outcome(listed, now_ns),
        wording.duration(listed.last_ns - listed.first_ns),
        f"{listed.gpu_hours:,.1f}",
        f"{ASSUMED}{useful}" if listed.useful_basis and listed.useful_share else useful,
        cost,
    )


def _outcome(listed: Listed, now_ns: int) -> str:
    """In a word; of a run without an end nobody can say more than how old its last event is."""
    if listed.ended is not None:
        return listed.ended.outcome
    return "running" if now_ns - listed.last_ns < RUNNING_NS_MAX else "unknown"
