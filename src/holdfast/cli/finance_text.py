"""The finance view in the terminal: the answer in two lines, its parts, and the assumptions."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from holdfast import wording
from holdfast.cli.tables import figure, print_bullets, table, word
from holdfast.cli.terminal import printable
from holdfast.dashboard import finance_wording as said
from holdfast.economics.finance.balance import Balance
from holdfast.economics.finance.ownership import OwnOrRent
from holdfast.economics.finance.statement import CauseSpend, Finance
from holdfast.economics.finance.trend import SpendStretch
from holdfast.economics.pricing.spending import Amount

RUNS_SHOWN_MAX = 8
NAME_CHARS_MAX = 24
MEANINGS_COLUMNS_MIN = 104
"""On a narrower terminal the meanings of causes would wrap, so they are left out."""
BASIS_CHARS = 19
"""The width of the column that marks estimates."""
SPARK_CELLS_MAX = 64
_SPARKS = " ▁▂▃▄▅▆▇█"


def show(told: Finance) -> None:
    """Print the view to stdout, as wide as the terminal and in colour if it has colours."""
    console = Console(highlight=False, markup=False)
    _head(console, told)
    if told.spend.gpu_ns:
        _causes(console, told)
        _wastes(console, told)
        _months(console, told)
        _budgets(console, told)
        _forecasts(console, told)
        _teams(console, told)
        _projects(console, told)
        _runs(console, told)
        _trend(console, told)
        _retries(console, told)
    _data(console, told)
    if told.own_or_rent is not None:
        _own_or_rent(console, told.own_or_rent)
    _assumptions(console, told)
    print_bullets(console, told.remarks)


def _head(console: Console, told: Finance) -> None:
    console.print(said.headline(told), style="bold")
    for sentence in (said.unknown(told), said.hourly(told), said.worth(told), said.accrued(told)):
        if sentence:
            console.print(sentence)
    runs, teams = wording.many(len(told.runs), "run"), {run.team for run in told.runs if run.team}
    by = f" of {wording.many(len(teams), 'team')}" if teams else ""
    when = wording.span(told.first_ns, told.last_ns) if told.last_ns else "times not known"
    console.print(f"{runs}{by}, {when}\n", style="dim")


def _causes(console: Console, told: Finance) -> None:
    table = _table("where it went", wording.currency(), "share", "GPU-h")
    if told.basis:
        table.add_column("", no_wrap=True)
    if console.width >= MEANINGS_COLUMNS_MIN + (BASIS_CHARS if told.basis else 0):
        table.add_column("which is", style="dim")
    rows = [
        ("Useful training", told.useful, told.basis, "steps that count, at the normal rate"),
        *(
            (cause.label, Amount(gpu_ns=cause.gpu_ns, usd=cause.usd), cause.basis, cause.meaning)
            for cause in told.causes
            if cause.gpu_ns
        ),
        *((("Not known", told.unknown, "", "nothing recorded says"),) if told.unknown.gpu_ns else ()),
        *((("Accrued", told.accrued, "", "still running, not known yet"),) if told.accrued.gpu_ns else ()),
        ("Sum", told.spend, "", "to the nanosecond"),
    ]
    for label, amount, basis, meaning in rows:
        cells = (*_spent(told, label, amount), *((basis,) if told.basis else ()), meaning)
        table.add_row(*cells[: len(table.columns)], style="bold" if label == "Sum" else "")
    console.print(table, "")
    _behind(console, told.causes)


def _spent(told: Finance, label: str, amount: Amount) -> tuple[str, ...]:
    usd = wording.usd_cell(amount.usd, told.spend.usd)
    hours = wording.Amounts(told.spend.gpu_ns).hours(amount.gpu_ns)
    return label, usd, wording.percent(amount.usd / told.spend.usd if told.spend.usd else None), hours


def _behind(console: Console, causes: Sequence[CauseSpend]) -> None:
    """The incidents behind the causes, the costliest of each."""
    lines = []
    for cause in causes:
        others = f"; {cause.incidents_count - 1:,} more" if cause.incidents_count > 1 else ""
        lines += [f"{cause.label}: {said.incident(one)}{others}" for one in cause.incidents[:1]]
    _print_listed(console, "The costliest incident behind each", lines)


def _wastes(console: Console, told: Finance) -> None:
    _print_listed(console, "What to do about it", [said.waste(waste) for waste in told.wastes])
    if said.has_unknown(told):
        silences = [said.silence(silence) for silence in told.silences]
        _print_listed(console, "What is not known, and which line would tell", silences)


def _print_listed(console: Console, heading: str, lines: Sequence[str]) -> None:
    print_bullets(console, lines, heading)
    if lines:
        console.print()


def _months(console: Console, told: Finance) -> None:
    if len(told.months) < 2 and not any(month.forecast_usd for month in told.months):
        return
    unknown, money = _unknown_heading(told), wording.currency()
    table = _table("month", money, "useful", "lost", *unknown, "accrued", "goodput", "at its end")
    largest = told.spend.usd
    for month in told.months:
        table.add_row(
            month.month,
            *(wording.usd_cell(part.usd, largest) for part in (month.spend, month.useful, month.waste)),
            *_unknown_cell(told, month),
            wording.usd_cell(month.accrued.usd, largest),
            _share(console, month.goodput, month.basis),
            wording.usd_cell(month.forecast_usd, largest) if month.forecast_usd is not None else "",
        )
    console.print(table, "")


def _budgets(console: Console, told: Finance) -> None:
    if not told.budgets:
        return
    table = _table("month", "budget of", wording.currency(), "spent", "forecast", "left", left=("budget of",))
    largest = max(max(one.budget_usd, one.actual_usd) for one in told.budgets)
    for one in told.budgets:
        amounts = (one.budget_usd, one.actual_usd, one.forecast_usd, one.left_usd)
        style = "red" if one.left_usd < 0 else ""
        cells = [wording.usd_cell(amount, largest) for amount in amounts]
        table.add_row(one.month, _named(said.budget_of(one)), *cells, style=style)
    console.print(table, "")


def _forecasts(console: Console, told: Finance) -> None:
    for forecast in told.forecasts:
        console.print(printable(said.forecast(forecast)))
    if told.forecasts:
        console.print()


def _projects(console: Console, told: Finance) -> None:
    if not any(one.project for one in told.projects):
        return
    table = _table("project", wording.currency(), "useful", *_unknown_heading(told), "runs")
    for one in told.projects:
        table.add_row(
            _named(one.project or said.NO_PROJECT),
            wording.usd_cell(one.spend.usd, told.spend.usd),
            wording.percent(one.useful_share),
            *_unknown_cell(told, one),
            f"{one.runs:,}",
        )
    console.print(table, "")


def _teams(console: Console, told: Finance) -> None:
    if not any(team.team or team.target for team in told.teams):
        return
    short, money = f"short, {wording.currency()}", wording.currency()
    unknown = _unknown_heading(told)
    table = _table(
        "team", money, *unknown, "utilisation", "target", "standing", short, left=("team", "standing")
    )
    for team in told.teams:
        table.add_row(
            _named(said.team(team)),
            wording.usd_cell(team.spend.usd, told.spend.usd),
            *_unknown_cell(told, team),
            _share(console, team.utilisation, team.basis),
            wording.percent(team.target),
            said.standing(team),
            wording.usd_cell(team.short.usd, told.spend.usd) if team.short else wording.UNKNOWN,
        )
    console.print(table, "")


def _runs(console: Console, told: Finance) -> None:
    if len(told.runs) < 2:
        return
    table = _table(
        *("run", wording.currency(), "useful", *_unknown_heading(told), "per useful h", "lost mostly to"),
        left=("run", "lost mostly to"),
    )
    labels = {cause.key: cause.label for cause in told.causes}
    for run in told.runs[:RUNS_SHOWN_MAX]:
        most = max(run.causes, key=lambda key: run.causes[key].gpu_ns)
        table.add_row(
            printable(wording.run_label(run.run, run.name, NAME_CHARS_MAX)),
            wording.usd_cell(run.spend.usd, told.spend.usd),
            _share(console, run.useful_share, run.basis),
            *_unknown_cell(told, run),
            wording.usd_cell(run.usd_per_useful_gpu_hour, 0.0),
            labels[most].lower() if run.causes[most].gpu_ns else wording.UNKNOWN,
        )
    console.print(table)
    if len(told.runs) > RUNS_SHOWN_MAX:
        rest = told.runs[RUNS_SHOWN_MAX:]
        spent = wording.usd(sum(run.spend.usd for run in rest))
        console.print(f"and {wording.many(len(rest), 'run')} more, {spent}; --json has them", style="dim")
    console.print()


def _trend(console: Console, told: Finance) -> None:
    style = "bold red" if told.trend.rise.verdict == "yes" else "bold"
    console.print(said.verdict(told.trend.rise), style=style)
    stretches = told.trend.stretches
    if len(stretches) > 1:
        line = Text("useful share  ").append(_spark(stretches), style="green")
        console.print(line, no_wrap=True, overflow="crop")
    console.print(said.rise(told.trend.rise))
    for sentence in filter(None, (said.left_out(told), said.goodput_target(told))):
        console.print(sentence)
    console.print()


def _spark(stretches: Sequence[SpendStretch]) -> str:
    """The useful share over time, a cell for each few stretches; blank if nothing is known."""
    grouped = -(-len(stretches) // SPARK_CELLS_MAX)
    cells = []
    for first in range(0, len(stretches), grouped):
        group = stretches[first : first + grouped]
        known, useful = (
            sum(one.known_gpu_ns for one in group),
            sum(one.useful_gpu_ns for one in group),
        )
        cells.append(_SPARKS[1 + round((len(_SPARKS) - 2) * useful / known)] if known else _SPARKS[0])
    return "".join(cells)


def _retries(console: Console, told: Finance) -> None:
    retries = told.retries
    again_usd = retries.starting_again.usd + retries.done_again.usd
    again, twice = wording.usd(retries.starting_again.usd), wording.usd(retries.done_again.usd)
    came = f", {retries.fruitless_launches:,} launches came to nothing" if retries.fruitless_launches else ""
    console.print("Retries", style="bold")
    if not retries.restarts and not again_usd:
        console.print("Nothing had to be tried again.\n")
        return
    tried = f"{wording.many(retries.restarts, 'restart')}{came}."
    cost = f"Starting again cost {again}, doing again {twice}: {wording.percent(retries.share)} of the spend."
    console.print(f"{tried} {cost}\n")


def _data(console: Console, told: Finance) -> None:
    data = told.data
    if not data.transfers:
        return
    table = _table("data moved", "times", "size", "charged", left=("data moved",))
    for moved in data.transfers:
        table.add_row(
            said.transfer(moved), f"{moved.times:,}", said.transfer_size(moved), said.transfer_usd(moved)
        )
    console.print(table)
    if data.charged_usd:
        console.print(f"{wording.usd(data.charged_usd)} charged, on top of the spend above.")
    if data.stall.gpu_ns:
        console.print(f"GPUs that stood still for data and checkpoints cost {wording.usd(data.stall.usd)}.")
    console.print()


def _own_or_rent(console: Console, found: OwnOrRent) -> None:
    console.print("Own or rent", style="bold")
    for sentence in (said.choice(found), said.break_even(found), said.point(found), said.guesses(found)):
        console.print(sentence)
    console.print()


def _assumptions(console: Console, told: Finance) -> None:
    assumed = said.assumptions(told)
    if not assumed:
        return
    console.print("Assumed, because it was not given", style="bold")
    rows = ((what, printable(value.source)) for what, value in assumed)
    console.print(table(word(), Column(style="dim"), rows=rows))


def _table(*headings: str, left: tuple[str, ...] = ()) -> Table:
    """A table of figures. The first column, and those in `left`, hold words, which may wrap."""
    words = (headings[0], *left)
    return table(*(heading if heading in words else figure(heading) for heading in headings))


def _unknown_heading(told: Finance) -> tuple[str, ...]:
    """The heading of the column for what is not known; none if that is next to nothing."""
    return ("not known",) if said.has_unknown(told) else ()


def _unknown_cell(told: Finance, of: Balance) -> tuple[str, ...]:
    return (wording.usd_cell(of.unknown.usd, told.spend.usd),) if said.has_unknown(told) else ()


def _share(console: Console, share: float | None, basis: str) -> str:
    """A share with its basis, abbreviated on a narrow terminal."""
    told = basis if console.width >= MEANINGS_COLUMNS_MIN else basis.replace("estimated", "est.")
    return wording.resting(wording.percent(share), told)


def _named(name: str) -> str:
    return printable(wording.short(name, NAME_CHARS_MAX))
