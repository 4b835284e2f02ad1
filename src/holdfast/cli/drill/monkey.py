"""`holdfast drill monkey`: make unannounced faults in a run, at random moments within budgets."""

import secrets
from collections.abc import Iterator

import click
import msgspec

from holdfast import wording
from holdfast.cli.drill.live import as_data, drill_of
from holdfast.cli.ending import StopRequest, on_signal
from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.going import RunFirst
from holdfast.cli.record import home, json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable, say
from holdfast.diagnose.lifecycle import restored
from holdfast.drills.live.judging import DRILL
from holdfast.drills.live.monkey import (
    SAFE,
    DueDrill,
    MonkeyBudget,
    allowance,
    fitting,
    hindrance,
    is_missed,
    read_hours,
    require_budget,
    upcoming,
)
from holdfast.drills.live.playing import DrillAborted
from holdfast.drills.live.scenarios import live_scenario, title_of
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError
from holdfast.record.events import ActionTaken
from holdfast.record.store import Selection, Store
from holdfast.run.endpoint import find_endpoint

LISTED_MAX = 20
WAIT_S = 180.0


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    run: str = argument()
    per_day: int = option(
        "Most drills per day.", type=click.IntRange(min=1), default=2, show_default=True, metavar="N"
    )
    hours: str = option(
        "The hours for drills, by this machine's clock.", default="9-17", show_default=True, metavar="FROM-TO"
    )
    weekends: bool = option("Also on Saturday and Sunday.")
    scenario: tuple[str, ...] = option(
        f"Only this one. May be repeated.  [default: {', '.join(SAFE)}]", metavar="NAME"
    )
    seed: int | None = option("Draws moments, scenarios and targets.", type=click.IntRange(min=0))
    list_only: bool = option("--list", "Print the next drills, and strike nothing.")
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("monkey", cls=RunFirst)
@takes(_Flags)
def command(given: _Flags) -> int:
    """Make drills of `holdfast drill live` in RUN, which is live here, at random moments, unannounced.

    A drill is skipped while something is wrong already, or when the day's budget is spent. The command
    goes on until an interrupt or SIGTERM; a fault that is under way then ends by itself.
    """
    budget = MonkeyBudget(
        per_day=given.per_day,
        hours=read_hours(given.hours),
        scenarios=given.scenario or SAFE,
        weekends=given.weekends,
    )
    require_budget(budget)
    find_endpoint(home(), given.run)
    budget = _fitting(given, budget)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    say(f"Seed {seed}: at most {wording.many(budget.per_day, 'drill')} a day, {_between(budget)}.")
    if given.list_only:
        _list(given, budget, seed)
        return 0
    _go_on(given, budget, seed)
    return 0


def _fitting(given: _Flags, budget: MonkeyBudget) -> MonkeyBudget:
    """The budget without the scenarios that do not fit the run as it is now."""
    with open_record(given.store_url) as store:
        misfits = drill_of(store, given.run, WAIT_S).misfits(budget.scenarios)
    for name, why in misfits.items():
        say(f"{name} is left out: {why}.")
    return fitting(budget, misfits)


def _between(budget: MonkeyBudget) -> str:
    first, last = budget.hours
    return f"between {first}:00 and {last}:00"


def _list(given: _Flags, budget: MonkeyBudget, seed: int) -> None:
    due = [one for one, _ in zip(_due(budget, seed), range(LISTED_MAX), strict=False)]
    if given.as_json:
        print_json(due)
        return
    for one in due:
        click.echo(f"{wording.stamp(one.at_ns)}  {one.scenario}  seed {one.seed}")


def _due(budget: MonkeyBudget, seed: int) -> Iterator[DueDrill]:
    return upcoming(SystemClock().now_ns(), budget, seed, zone=None)


def _go_on(given: _Flags, budget: MonkeyBudget, seed: int) -> None:
    ending, clock = StopRequest(), SystemClock()
    with on_signal(ending, lambda: None):
        for due in _due(budget, seed):
            if ending.asked.wait(max(0.0, (due.at_ns - clock.now_ns()) / 1e9)):
                say("Stopped; nothing is under way.")
                return
            if is_missed(due, clock.now_ns()):
                say(f"{due.scenario} is left out: its moment has passed.")
                continue
            try:
                _strike(given, budget, due)
            except DrillAborted as error:
                say(error.sentence)
            except HoldfastError as error:  # the run has ended, or the scenario does not fit it now
                say(f"{due.scenario} is left out: {error.sentence}")


def _strike(given: _Flags, budget: MonkeyBudget, due: DueDrill) -> None:
    with open_record(given.store_url) as store:
        left = allowance(_done_ns(store, given.run), SystemClock().now_ns(), budget)
        if why := hindrance(_open(store, given.run), left):
            say(f"{due.scenario} is left out: {why}.")
            return
        drill = drill_of(store, given.run, WAIT_S)
        plan = drill.planned(live_scenario(due.scenario), target="", for_s=None, seed=due.seed)
        verdict = drill.played(plan, say=say)
    right, judged = verdict.score
    if given.as_json:
        click.echo(msgspec.json.encode(as_data(verdict)))
    else:
        click.echo(printable(f"{title_of(verdict.scenario, verdict.target)}: {right} of {judged} right"))


def _done_ns(store: Store, run: str) -> list[int]:
    actions = store.select(Selection(run=run, kinds=("action.taken",)))
    return [one.occurred_ns for one in actions if isinstance(one, ActionTaken) and one.action == DRILL]


def _open(store: Store, run: str) -> set[str]:
    told = store.select(Selection(run=run, kinds=("incident.diagnosed",)))
    last = {one.incident.name: one.state for one in restored(told)}
    return {name for name, state in last.items() if state != "resolved"}
