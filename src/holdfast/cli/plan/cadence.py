"""`holdfast plan cadence`: how often to checkpoint, and what the present setting costs."""

import math
from pathlib import Path

import click
import msgspec

from holdfast.cli.flags import FiniteRange, option, shared, takes
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.terminal import print_json
from holdfast.economics.cadence.advice import advise
from holdfast.economics.cadence.cadence import CheckpointLevel
from holdfast.economics.cadence.distributions import read_gaps, simulated, with_gaps
from holdfast.economics.cadence.inputs import CadenceInputs, Recorded, read_run, settle
from holdfast.record.runs import find_run
from holdfast.wording.parsing import seconds, seconds_with_unit, some_seconds

COUNT_MAX = 10**7


def _level(text: str) -> CheckpointLevel:
    """Parse NAME:STALL:SHARE, as in memory:0.5s:90% or memory:0.5s:0.9."""
    name, *rest = text.split(":")
    if len(rest) != 2 or not name:
        raise click.BadParameter(f"{text!r} is not a level; write NAME:STALL:SHARE, as in memory:0.5s:90%.")
    stall, share = rest
    try:
        survives = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        survives = math.nan
    if not 0 <= survives <= 1:
        raise click.BadParameter(f"{share!r} is not a share of failures; write 90% or 0.9.")
    return CheckpointLevel(name=name, stall_s=some_seconds(stall), survives=survives)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    mtbf_s: float | None = option(
        "--mtbf",
        "Mean time between failures that stop the run, such as 3.1h.",
        type=seconds_with_unit,
        metavar="TIME",
    )
    gpus: int | None = option("GPUs of the run.", type=click.IntRange(1, COUNT_MAX))
    nodes: int | None = option(
        "Nodes of the run.  [default: one for 8 GPUs]", type=click.IntRange(1, COUNT_MAX)
    )
    failures_per_1000_node_days: float | None = option(
        "How often a node stops the run, in place of --mtbf.  [default: 3.79, Llama 3's]",
        type=FiniteRange(1e-6, 1e6),
    )
    stall_s: float | None = option(
        "--stall", "How long a checkpoint stops training.", type=some_seconds, metavar="TIME"
    )
    write_s: float | None = option(
        "--write",
        "From then until the checkpoint is usable; training goes on meanwhile.",
        type=seconds,
        metavar="TIME",
    )
    restore_s: float | None = option(
        "--restore", "How long loading a checkpoint takes.", type=seconds, metavar="TIME"
    )
    downtime_s: float | None = option(
        "--downtime", "From a failure until loading begins.", type=seconds, metavar="TIME"
    )
    step_s: float | None = option(
        "--step", "How long a step takes; intervals are then whole steps.", type=some_seconds, metavar="TIME"
    )
    interval_s: float | None = option(
        "--interval",
        "The present interval, from one checkpoint to the next.",
        type=some_seconds,
        metavar="TIME",
    )
    levels: tuple[CheckpointLevel, ...] = option(
        "--level",
        "Another place for checkpoints: its stall, and the share of failures it survives, as",
        "in memory:0.5s:90%. May be repeated.",
        type=_level,
        metavar="NAME:STALL:SHARE",
    )
    distribution: str = option(
        "Distribution of failures: exponential, weibull:0.7, gamma:0.5, lognormal:1, or gaps:FILE",
        "with a time on each line.  [default: exponential]",
        default="exponential",
        metavar="KIND:SHAPE",
    )
    run: str | None = option("Take missing values from the record of this run.", metavar="RUN")
    seed: int = option("Seed of the simulation.", type=click.IntRange(0), default=0, show_default=True)
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("cadence")
@takes(_Flags)
def command(asked: _Flags) -> None:
    """Show how often to checkpoint, by every known rule, and what the present interval costs a day.

    Times are 90s, 5m, 3.1h or 2d; without a unit, seconds. Values that are neither given nor recorded are
    assumed, and marked so.

    Example: holdfast plan cadence --gpus 16384 --stall 30s --write 2m --step 10s --interval 1h
    """
    gaps = read_gaps(asked.distribution, seconds)
    recorded = Recorded()
    if asked.run is not None:
        with open_record(asked.store_url) as store:
            recorded = read_run(store, find_run(store, asked.run))
    prices = load_planning_prices(asked.prices_path)
    given = with_gaps(msgspec.convert(asked, CadenceInputs, from_attributes=True), gaps)
    case, inputs = settle(given, recorded, prices)
    advice = advise(case, inputs, simulated(asked.distribution, gaps, case.mtbf_s, asked.seed))
    if asked.as_json:
        print_json(advice)
        return
    from holdfast.cli.plan.cadence_text import show

    with in_currency(prices):
        show(advice)
