"""`holdfast plan run`: when a run will be done, how sure that is, and what would make it sooner."""

from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.durations import seconds, seconds_with_unit, some_seconds
from holdfast.cli.moments import moment_ns
from holdfast.cli.numbers import count, number_between
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option, open_record, store_option
from holdfast.cli.sweeping import sweep
from holdfast.cli.terminal import print_json
from holdfast.twin.case import RunFlags, case
from holdfast.twin.foresight import Depth, answer


class _Flags(RunFlags, frozen=True, kw_only=True):
    """The command line, typed; None for what was not given."""

    runs: int
    seed: int
    bad_percent: float
    slowdown: float
    prices_path: Path | None
    store_url: str | None
    as_json: bool


_DAYS = number_between(0.001, 10_000)
_SECONDS = number_between(0.001, 10**7)


@click.command("run")
@click.option(
    "--preset", metavar="NAME", help="A published cluster, such as llama3-405b; with --gpus, resized."
)
@click.option("--run", metavar="RUN", help="A run in the record, from where it is now; with --steps.")
@click.option("--gpus", type=count, help="A run of one's own on so many GPUs; with --days.")
@click.option("--days", type=_DAYS, help="How long it would train if nothing ever happened.")
@click.option("--steps", type=count, help="The number of the last step of --run.")
@click.option("--step-s", type=_SECONDS, help="Seconds a step.")
@click.option(
    "--member-gpus", type=count, metavar="N", help="GPUs of one model replica.  [default: a node's]"
)
@click.option(
    "--mtbf", "mtbf_s", type=seconds_with_unit, metavar="TIME", help="Between failures of the whole run."
)
@click.option(
    "--rates", type=click.Path(path_type=Path), metavar="FILE", help="What `plan fit --json` found, instead."
)
@click.option("--policy", metavar="NAME", help="What is done about a failure: restart, spares, holdfast, ...")
@click.option("--spares", type=click.IntRange(0, 10**6), metavar="N", help="Nodes that stand by.")
@click.option(
    "--interval", "interval_s", type=some_seconds, metavar="TIME", help="From one checkpoint to the next."
)
@click.option(
    "--stall", "stall_s", type=seconds, metavar="TIME", help="For how long a checkpoint stops training."
)
@click.option("--chip", help="Such as h100, for its price.")
@click.option("--start", "start_ns", callback=moment_ns, metavar="DATE", help="When it starts, for dates.")
@click.option(
    "--bad-percent",
    type=number_between(0.001, 50),
    default=1.0,
    show_default=True,
    help="GPUs that are bad.",
)
@click.option(
    "--slowdown",
    type=number_between(1.001, 100),
    default=1.3,
    show_default=True,
    help="What a slow GPU does to the step time.",
)
@click.option(
    "--runs",
    type=click.IntRange(0, 10_000),
    default=10,
    show_default=True,
    help="Simulated; 0: formulas only.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first of them.")
@prices_option
@store_option
@json_option
def command(**flags: Any) -> None:
    """Foresee the end of a run, and what would bring it nearer.

    The end has a spread (P10, P50, P90), from a formula and from simulated runs, side by side. What could be
    changed is priced. A share of bad GPUs is followed to the output it costs. docs/expectation.md has the
    formulas. Times are 90s, 5m, 3.1h or 2d; without a unit, seconds.

    Example: holdfast plan run --gpus 1024 --days 10 --mtbf 20h --start 2026-09-01
    """
    given = msgspec.convert(flags, _Flags)
    prices = load_planning_prices(given.prices_path)
    depth = Depth(runs=given.runs, seed=given.seed, bad_percent=given.bad_percent, slowdown=given.slowdown)
    with in_currency(prices):
        asked = case(given, prices, lambda: open_record(given.store_url))
        found = answer(asked, depth, lambda tasks: sweep(tasks, processes=None, ray_address=None))
    if given.as_json:
        print_json(found)
        return
    from holdfast.cli.plan.run_text import show

    with in_currency(prices):
        show(found)
