"""`holdfast drill live`: a real fault in a real run, with a hypothesis before it and a verdict after."""

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.going import RunFirst
from holdfast.cli.pages import html_option, require_one_output, write_page
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.record import home, home_journal, json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable, say
from holdfast.record.errors import InputError
from holdfast.record.store import Store
from holdfast.wording.parsing import some_seconds
from holdfast.wording.units import HOUR_S

if TYPE_CHECKING:
    from holdfast.drills.live.judging import LiveVerdict
    from holdfast.drills.live.playing import LiveDrill

EXIT_NOT_RIGHT = 1
END_S_MAX = 7 * 86_400.0
"""How long to wait for the run's end, if its bits are compared."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    run: str = argument()
    scenario: str = argument(required=False, default="")
    target: str = option("The member or node to strike.  [default: at random]", default="", metavar="NAME")
    for_s: float | None = option(
        "--for", "How long the fault lasts.  [default: the scenario's]", type=some_seconds, metavar="TIME"
    )
    wait_s: float = option(
        "--wait",
        "How long the run may take to recover.",
        type=some_seconds,
        default="3m",
        show_default=True,
        metavar="TIME",
    )
    seed: int | None = option("Chooses the target if none is named.", type=click.IntRange(min=0))
    reference: str = option(
        "The digest of an undisturbed run: wait for this run's end, and compare.",
        default="",
        metavar="DIGEST",
    )
    abort: bool = option("Undo at once all changes that a drill of RUN has made, and end.")
    html_path: Path | None = shared(html_option)
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("live", cls=RunFirst)
@takes(_Flags)
def command(given: _Flags) -> int:
    """Make the fault of SCENARIO in RUN, which is live on this machine, and judge the result by the record.

    `holdfast drill list --live` lists the scenarios. Exit code 0: everything that could be judged is right;
    1: something is not; 2: the drill was refused, and nothing was struck; 3: it was aborted, and not judged.
    """
    if given.abort:
        return _abort(given.run)
    if not given.scenario:
        raise InputError("No scenario is named.", hint="`holdfast drill list --live` lists them.")
    require_one_output(given.html_path, given.as_json)
    if given.reference and not _DIGEST.fullmatch(given.reference):
        raise InputError(
            f"{given.reference!r} is not a digest.",
            hint="`holdfast run` prints it in its last line: 64 characters from 0 to f.",
        )
    with open_record(given.store_url) as store:
        return _play(given, store)


def _abort(run: str) -> int:
    from holdfast.drills.live.keeping import abort
    from holdfast.drills.live.scenarios import title_of

    note = abort(home(), run)
    if note is None:
        click.echo(f"No drill of {printable(run)} is under way.", err=True)
    else:
        click.echo(printable(f"{title_of(note.scenario, note.target)} is over; all changes are undone."))
    return 0


def drill_of(store: Store, run: str, wait_s: float, prices_path: Path | None = None) -> "LiveDrill":
    from holdfast.drills.live.playing import DrillSetting, LiveDrill

    setting = DrillSetting(
        home=home(),
        store=store,
        take_in=home_journal(store).take_in,
        usd_per_gpu_hour=load_prices(prices_path).usd_per_gpu_hour.value,
        wait_s=wait_s,
        end_s=END_S_MAX,
    )
    return LiveDrill(setting, run)


def _play(given: _Flags, store: Store) -> int:
    from holdfast.drills.live.scenarios import live_scenario

    scenario = live_scenario(given.scenario)
    drill = drill_of(store, given.run, given.wait_s, given.prices_path)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    plan = drill.planned(scenario, target=given.target, for_s=given.for_s, seed=seed)
    say(f"{scenario.name}: {scenario.title}; target {plan.target}, seed {seed}.")
    say(f"Hypothesis: {scenario.hypothesis} It touches {scenario.radius}.")
    say(f"Forecast: {plan.forecast.gpu_hours * HOUR_S:,.1f} GPU-seconds lost.")
    verdict = drill.played(plan, reference=given.reference, say=say)
    if given.html_path is not None:
        from holdfast.dashboard.drill_page import render

        write_page(render(verdict), given.html_path)
    if given.as_json:
        print_json(as_data(verdict))
    else:
        from holdfast.cli.drill.live_text import show

        show(verdict)
    right, judged = verdict.score
    return 0 if right == judged else EXIT_NOT_RIGHT


def as_data(verdict: "LiveVerdict") -> dict[str, object]:
    right, judged = verdict.score
    return {**msgspec.to_builtins(verdict), "score": right, "judged": judged}
