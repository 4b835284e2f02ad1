"""`holdfast simulate`: simulate a run on a cluster that breaks, under one policy or several."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.flags import FiniteRange, option, shared, takes
from holdfast.cli.pages import html_option, require_one_output, writable, write_file, write_page
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable, say
from holdfast.economics.pricing.prices import Prices
from holdfast.record.errors import InputError
from holdfast.record.events import encode
from holdfast.twin.comparing import SimulationAsked, compare
from holdfast.twin.policies import policies
from holdfast.twin.presets import names
from holdfast.twin.sweep import Comparison, Figures, Task
from holdfast.twin.sweeping import announcement

RUNS_MAX = 100_000
SPARES_MAX = 100_000
DAYS_MAX = 10_000
DEFAULT_PRESET = "llama3-405b"


def _moved(context: click.Context, option: click.Parameter, value: object) -> None:
    """Name the verbs that play scenarios, which earlier versions did here."""
    if value:
        raise InputError(
            "Scenarios have a command of their own: `holdfast drill`.",
            hint="`holdfast drill list` names them, `drill play NAME --out DIR` plays one, and "
            "`drill reveal NAME` shows the truth.",
        )


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    preset: str = option(
        f"A published cluster: {', '.join(names())}.",
        default=DEFAULT_PRESET,
        show_default=True,
        metavar="NAME",
    )
    policies: tuple[str, ...] = option(
        "--policy",
        f"The policy for failures. May be repeated: {', '.join(one.name for one in policies(8, 0))},",
        "published (what the cluster's owners did), or all.  [default: restart and holdfast]",
        metavar="NAME",
    )
    gpus: int | None = option("The same kind of cluster with this many GPUs.", type=click.IntRange(min=1))
    days: float | None = option("How long the run is simulated.", type=FiniteRange(0.001, DAYS_MAX))
    seed: int = option(type=click.IntRange(min=0), default=1, show_default=True)
    runs: int = option(
        "Seeds from --seed on.", type=click.IntRange(1, RUNS_MAX), default=1, show_default=True
    )
    spares: int | None = option(
        "Spare nodes beside the job's.", type=click.IntRange(0, SPARES_MAX), metavar="NODES"
    )
    crews: int | None = option("Machines repaired at a time.  [default: all]", type=click.IntRange(min=1))
    rates: Path | None = option(
        "Your own failures, as `holdfast plan fit --json` writes them.",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
    )
    processes: int | None = option(
        "Processes to share runs.  [default: the cores]", type=click.IntRange(min=1)
    )
    ray: str | None = option(
        "Share the runs over this Ray cluster instead; `auto`: the local one.", metavar="ADDRESS"
    )
    record: Path | None = option(
        "Write the events of the first run, for `holdfast import`.",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=writable("events"),
        metavar="OUT",
    )
    html_path: Path | None = shared(html_option)
    prices_path: Path | None = shared(prices_option)
    as_json: bool = shared(json_option)


@click.command("simulate")
@takes(_Flags)
@click.option("--scenario", hidden=True, expose_value=False, callback=_moved)
@click.option("--out", hidden=True, expose_value=False, callback=_moved)
@click.option("--reveal", hidden=True, expose_value=False, callback=_moved, is_flag=True)
def command(given: _Flags) -> None:
    """Simulate a training run on a cluster that breaks, and compare policies by their losses."""
    require_one_output(given.html_path, given.as_json)
    prices = load_planning_prices(given.prices_path)
    compared = _simulate(given, prices)
    with in_currency(prices):
        if given.html_path is not None:
            from holdfast.dashboard.simulation_page import render

            write_page(render(compared), given.html_path)
        if given.as_json:
            print_json(_as_json(compared))
        elif given.html_path is None:
            from holdfast.cli.simulate_text import show

            show(compared)


def _simulate(given: _Flags, prices: Prices) -> Comparison:
    from holdfast.cli.sweeping import sweep

    def played(tasks: list[Task]) -> list[Figures]:
        if sys.stderr.isatty() and not given.as_json:
            say(announcement(tasks, processes=given.processes, ray_address=given.ray))
        if given.record is not None:
            _write_record(tasks[0], given.record, prices)
        return sweep(tasks, processes=given.processes, ray_address=given.ray)

    asked = msgspec.convert(given, SimulationAsked, from_attributes=True)
    return compare(asked, prices, _command(given), played)


def _command(asked: _Flags) -> str:
    """The command that plays the same runs again, without flags that only distribute the work."""
    words = ["holdfast", "simulate", "--preset", asked.preset]
    for name in asked.policies:
        words += ["--policy", name]
    given = {
        "--gpus": asked.gpus,
        "--days": None if asked.days is None else repr(asked.days).removesuffix(".0"),
        "--spares": asked.spares,
        "--crews": asked.crews,
        "--rates": asked.rates and click.format_filename(asked.rates),
        "--prices": asked.prices_path and click.format_filename(asked.prices_path),
        "--seed": asked.seed,
        "--runs": asked.runs,
    }
    for flag, value in given.items():
        if value is not None:
            words += [flag, str(value)]
    return shlex.join(words)


def _write_record(task: Task, path: Path, prices: Prices) -> None:
    """The record has the price before the factors: they multiply a recorded price when it is read."""
    from holdfast.twin.simulation import simulate

    price = msgspec.structs.replace(prices, factors={}).planned(task.study.job.chip)
    study = msgspec.structs.replace(task.study, usd_per_gpu_hour=price.value)
    events = simulate(study, task.policy, task.seed).events
    write_file(b"".join(encode(event) + b"\n" for event in events), path, "events")
    click.echo(f"{len(events):,} events are in {printable(str(path))}", err=True)


def _as_json(compared: Comparison) -> dict[str, Any]:
    """The result as JSON. The first policy's figures are also at the top level."""
    shown = msgspec.to_builtins(compared)
    if compared.runs == 1:
        shown["policies"] = [_plain(one) for one in shown["policies"]]
    first = {key: value for key, value in shown["policies"][0].items() if key not in shown}
    return {**first, **shown}


def _plain(summary: dict[str, Any]) -> dict[str, Any]:
    """The quantiles; of a single run they are all the same number."""
    return {
        key: value["p50"] if isinstance(value, dict) and "p50" in value else value
        for key, value in summary.items()
    }
