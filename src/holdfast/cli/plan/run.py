"""`holdfast plan run`: foresee when a run will be done, how sure that is, and what would make it sooner."""

from pathlib import Path

import click
import msgspec

from holdfast.cli.flags import FiniteRange, option, shared, takes
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.sweeping import sweep
from holdfast.cli.terminal import print_json
from holdfast.cli.values import moment_ns
from holdfast.twin.case import RunFlags, case
from holdfast.twin.foresight import Depth, answer
from holdfast.wording.parsing import count, seconds, seconds_with_unit, some_seconds


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    preset: str | None = option(
        "A published cluster, such as llama3-405b; with --gpus, resized.", metavar="NAME"
    )
    run: str | None = option("A run in the record, from its present step; with --steps.", metavar="RUN")
    gpus: int | None = option("A run of your own on this many GPUs; with --days.", type=count)
    days: float | None = option(
        "How long it would train if nothing ever happened.", type=FiniteRange(0.001, 10_000)
    )
    steps: int | None = option("The number of the last step of --run.", type=count)
    step_s: float | None = option("Seconds a step.", type=FiniteRange(0.001, 10**7))
    member_gpus: int | None = option(
        "GPUs of one model replica.  [default: a node's]", type=count, metavar="N"
    )
    shard: str | None = option(
        "The same, as for `holdfast run`: 4, or shard=2,tp=2; shows what it survives.",
        metavar="N|DIM=N,...",
    )
    mtbf_s: float | None = option(
        "--mtbf", "Between failures of the whole run.", type=seconds_with_unit, metavar="TIME"
    )
    rates: Path | None = option("What `plan fit --json` found, instead.")
    policy: str | None = option("The policy for failures: restart, spares, holdfast, ...", metavar="NAME")
    spares: int | None = option("Nodes that stand by.", type=click.IntRange(0, 10**6), metavar="N")
    interval_s: float | None = option(
        "--interval", "From one checkpoint to the next.", type=some_seconds, metavar="TIME"
    )
    stall_s: float | None = option(
        "--stall", "How long a checkpoint stops training.", type=seconds, metavar="TIME"
    )
    chip: str | None = option("Such as h100, for its price.")
    start_ns: int | None = option("--start", "When it starts, for dates.", callback=moment_ns, metavar="DATE")
    bad_percent: float = option(
        "GPUs that are bad.", type=FiniteRange(0.001, 50), default=1.0, show_default=True
    )
    slowdown: float = option(
        "How many times as long a step takes with a slow GPU.",
        type=FiniteRange(1.001, 100),
        default=1.3,
        show_default=True,
    )
    runs: int = option(
        "Simulated; 0: formulas only.", type=click.IntRange(0, 10_000), default=10, show_default=True
    )
    seed: int = option(
        "Seed of the first simulated run.", type=click.IntRange(0), default=1, show_default=True
    )
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("run")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Foresee the end of a run, and what would bring it nearer.

    The end has a spread (P10, P50, P90), from a formula and from simulated runs, side by side. Possible
    changes are priced, and so is a share of bad GPUs. docs/expectation.md has the formulas. Times are 90s,
    5m, 3.1h or 2d; without a unit, seconds.

    Example: holdfast plan run --gpus 1024 --days 10 --mtbf 20h --start 2026-09-01
    """
    asked = msgspec.convert(given, RunFlags, from_attributes=True)
    depth = msgspec.convert(given, Depth, from_attributes=True)
    prices = load_planning_prices(given.prices_path)
    with in_currency(prices):
        asked_for = case(asked, prices, lambda: open_record(given.store_url))
        found = answer(asked_for, depth, lambda tasks: sweep(tasks, processes=None, ray_address=None))
    if given.as_json:
        print_json(found)
        return
    from holdfast.cli.plan.run_text import show

    with in_currency(prices):
        show(found)
