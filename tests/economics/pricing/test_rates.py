"""Each hour at its own price: time lines against a sum hour by hour, layers over months, cents that sum."""

import csv
import io
import json
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.economics.finance.finance import FinanceQuestion, cuts_ns, finance
from holdfast.economics.finance.invoice import COLUMNS, InvoiceLine, focus_csv, largest_remainder
from holdfast.economics.finance.statement import Finance
from holdfast.economics.finance.wastes import REMEDIES, WASTES_MAX
from holdfast.economics.pricing.asked import priced
from holdfast.economics.pricing.cost import run_cost
from holdfast.economics.pricing.months import month_at, month_of, months_between
from holdfast.economics.pricing.prices import Prices, read
from holdfast.economics.pricing.pricing import Pricing
from holdfast.economics.pricing.rates import SUBJECTS, edges_ns
from holdfast.economics.pricing.spending import CAUSES
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.window import Window, accruing, within
from holdfast.record.errors import InputError
from holdfast.record.events import (
    AnyEvent,
    CostRate,
    FaultObserved,
    KnownEvent,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
)

S = 10**9
HOUR = 3_600 * S
OCTOBER, NOVEMBER, DECEMBER = (month_of(2026, number).from_ns for number in (10, 11, 12))
HALVED = read("[[rates]]\nper_gpu_hour = 2\nto = 2026-11-01\n[[rates]]\nper_gpu_hour = 1\nfrom = 2026-11-01")


class Story:
    """A run, event by event."""

    def __init__(self, at_ns: int = OCTOBER, run: str = "run", gpus: int = 1_000, **named: Any) -> None:
        self.run, self.at_ns = run, at_ns
        self.events: list[AnyEvent] = []
        self.tell(RunStarted, gpus=gpus, **named)

    def tell(self, kind: Callable[..., KnownEvent], after_ns: int = 0, **fields: Any) -> "Story":
        self.at_ns += after_ns
        event_id = f"{self.run}-{len(self.events):06}"
        self.events.append(kind(id=event_id, occurred_ns=self.at_ns, run=self.run, **fields))
        return self

    def until(self, at_ns: int, kind: Callable[..., KnownEvent], **fields: Any) -> "Story":
        return self.tell(kind, at_ns - self.at_ns, **fields)

    def reported(
        self, prices: Prices, window: Window | None = None, now_ns: int = DECEMBER, *, until: bool = False
    ) -> Report:
        """until: events from `now_ns` on are not read."""
        window = window or Window()
        cuts = cuts_ns(self.events[0].occurred_ns, max(now_ns, self.at_ns), prices)
        ledger = Ledger(cuts_ns=(*cuts, *window.edges_ns))
        ledger.add(event for event in self.events if not until or event.occurred_ns < now_ns)
        return within(accruing(report(self.run, ledger.fold), now_ns), window, None, None)


def spend(prices: Prices, *reports: Report, now_ns: int = DECEMBER, window: Window | None = None) -> Finance:
    return finance(reports, prices, FinanceQuestion(now_ns=now_ns, window=window or Window()))


def two_months(**named: Any) -> Story:
    """1,000 GPUs through October and November."""
    return Story(**named).until(DECEMBER, RunEnded, outcome="completed")


# -- hand-made truths --------------------------------------------------------------------------------------


def test_october_of_a_run_through_two_months() -> None:
    prices = read("usd_per_gpu_hour = 2")
    window = Window(to_ns=NOVEMBER)
    assert spend(prices, two_months().reported(prices, window), window=window).spend.usd == 1_488_000
    whole = spend(prices, two_months().reported(prices))
    assert [(month.month, month.spend.usd) for month in whole.months] == [
        ("2026-10", 1_488_000),
        ("2026-11", 1_440_000),
    ]


def test_a_price_that_halves_is_halved_from_then_on() -> None:
    window = Window(from_ns=NOVEMBER)
    assert spend(HALVED, two_months().reported(HALVED, window), window=window).spend.usd == 720_000
    whole = spend(HALVED, two_months().reported(HALVED))
    assert whole.spend.usd == 1_488_000 + 720_000
    assert whole.invoice.months == {"2026-10": 148_800_000, "2026-11": 72_000_000}


def test_a_recorded_price_that_halves_is_halved_from_then_on() -> None:
    story = Story().tell(CostRate, usd_per_gpu_hour=2.0).until(NOVEMBER, CostRate, usd_per_gpu_hour=1.0)
    story.until(DECEMBER, RunEnded, outcome="completed")
    prices = read("")
    window = Window(from_ns=NOVEMBER)
    found = story.reported(prices, window)
    asked = priced(found, prices)
    assert (asked.paid_usd, asked.usd_per_gpu_hour) == (720_000, 1.0)
    whole = priced(story.reported(prices), prices)
    assert whole.paid_usd == 1_488_000 + 720_000
    assert spend(prices, found, window=window).spend.usd == 720_000


def test_waste_costs_what_its_hours_cost() -> None:
    """Ten useful hours at 4 USD, then ten idle ones at 8 USD: the waste is 8 an hour, not 6."""
    story = Story(gpus=10).tell(CostRate, gpus=10, usd_per_gpu_hour=4.0)
    story.tell(ReferenceDeclared, step_ns=HOUR, gpus=10).tell(PhaseEntered, phase="step")
    for step in range(1, 11):
        story.tell(StepCommitted, HOUR, step=step)
    story.tell(RunEnded, outcome="completed").tell(CostRate, usd_per_gpu_hour=8.0)
    story.tell(CostRate, 10 * HOUR, gpus=0)
    prices = read("")
    found = spend(prices, story.reported(prices))
    assert (found.useful.usd, found.waste.usd) == (400, 800)
    cost = run_cost(story.reported(prices), prices)
    assert cost.total.layers[0].usd == 800
    assert cost.total.layers[0].inputs[-1].value == 8.0


def test_layers_of_months_sum_to_those_of_the_whole() -> None:
    """A fault from the last days of October into November, while the price halves."""
    day = 24 * HOUR
    story = Story(NOVEMBER - 4 * day, gpus=100).tell(CostRate, gpus=100)
    story.tell(ReferenceDeclared, step_ns=HOUR, gpus=100).tell(PhaseEntered, phase="step")
    for step in range(1, 49):
        story.tell(StepCommitted, HOUR, step=step)
    story.tell(FaultObserved, HOUR, fault="XID 79", subject="n1").tell(RunEnded, HOUR, outcome="failed")
    story.tell(RunStarted, 3 * day, gpus=100).tell(PhaseEntered, phase="step")
    for step in range(47, 90):
        story.tell(StepCommitted, HOUR, step=step)
    story.tell(RunEnded, outcome="completed").tell(CostRate, gpus=0)
    october = run_cost(story.reported(HALVED, Window(to_ns=NOVEMBER)), HALVED)
    november = run_cost(story.reported(HALVED, Window(from_ns=NOVEMBER)), HALVED)
    whole = run_cost(story.reported(HALVED), HALVED)
    for part in ("total", "in_incidents", "elsewhere"):
        parts = (getattr(one, part).layers for one in (october, november, whole))
        for first, second, sum_ in zip(*parts, strict=True):
            assert (first.usd or 0) + (second.usd or 0) == pytest.approx(sum_.usd, abs=1e-6), first.key
    slip = {layer.key: layer for layer in whole.total.layers}["schedule_slip"]
    assert slip.usd is not None
    lost = sum(layer.usd or 0 for layer in whole.total.layers if layer.key in ("direct_compute", "rollback"))
    assert slip.usd == pytest.approx(lost)
    # After 48 steps an hour of work was lost; then 47 hours of October stood still, at 2 USD.
    assert october.total.layers[0].usd == pytest.approx(100 * 47 * 2)


# -- time lines, brute force ---------------------------------------------------------------------------------


def brute_force(rates: list[dict[str, Any]], subject: dict[str, str], hour: int) -> Fraction:
    """The price of an hour: of the rates that hold, the most specific, then the last."""
    best: tuple[Any, Fraction] | None = None
    for number, rate in enumerate(rates):
        if any(rate.get(key) not in (None, subject[key]) for key in SUBJECTS):
            continue
        if not rate.get("from", -1) <= hour < rate.get("to", 10**9):
            continue
        rank = [key in rate for key in SUBJECTS], number
        if best is None or rank > best[0]:
            best = rank, Fraction(str(rate["price"]))
    return Fraction("7.25") if best is None else best[1]


@pytest.mark.slow
def test_random_time_lines_against_a_sum_hour_by_hour() -> None:
    for seed in range(150):
        random = Random(seed)
        rates: list[dict[str, Any]] = []
        for _ in range(random.randrange(12)):
            rate: dict[str, Any] = {"price": random.randrange(1, 900) / 100}
            if random.random() < 0.8:
                rate["from"] = random.randrange(200)
            if random.random() < 0.6:
                rate["to"] = rate.get("from", 0) + random.randrange(1, 100)
            for key, names in (("run", "rx"), ("team", "ab"), ("cluster", "ew"), ("chip", ("h100", "b200"))):
                if random.random() < 0.25:
                    rate[key] = random.choice(names)
            rates.append(rate)
        text = ["usd_per_gpu_hour = 7.25"]
        for rate in rates:
            text += ["[[rates]]", f"per_gpu_hour = {rate['price']}"]
            for key in ("from", "to"):
                if key in rate:
                    hours = rate[key]
                    text.append(f"{key} = 2026-10-{1 + hours // 24:02}T{hours % 24:02}:00:00Z")
            text += [f'{key} = "{rate[key]}"' for key in SUBJECTS if key in rate]
        prices = read("\n".join(text))
        first, hours = random.randrange(50), random.randrange(1, 200)
        story = Story(OCTOBER + first * HOUR, "r", 3, team="a", cluster="e")
        story.tell(ReferenceDeclared, chip="H100").tell(RunEnded, hours * HOUR, outcome="completed")
        subject = {"run": "r", "team": "a", "cluster": "e", "chip": "h100"}
        truth = 3 * sum(
            (brute_force(rates, subject, hour) for hour in range(first, first + hours)), Fraction()
        )
        charges = Pricing(story.reported(prices), prices).charges()
        assert sum((charge.usd(charge.gpu_ns) for charge in charges), Fraction()) == truth, seed


def test_factors_multiply_and_currencies_convert() -> None:
    prices = read(
        'currency = "EUR"\nbudget = 100\n[usd_per]\nEUR = 1.25\n[factors]\ntax = 1.2\noverhead = 1.5\n'
        '[[rates]]\nper_gpu_hour = 2\ncurrency = "EUR"\nkind = "spot"'
    )
    story = Story(gpus=1).tell(RunEnded, 100 * HOUR, outcome="completed")
    found = spend(prices, story.reported(prices))
    assert found.spend.usd == pytest.approx(100 * 2 * 1.25 * 1.2 * 1.5)
    assert (found.invoice.currency, found.invoice.cents) == ("EUR", 100 * 2 * 180)
    assert found.budgets[0].budget_usd == 125
    assert found.budgets[0].left_usd == pytest.approx(125 - 450)


# -- accruals, forecasts, budgets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planned", "november_usd"),
    [("", 10 * 2 * 30 * 24), ("run = 100", 240 + 52 * 20), ("run = 10_000", 10 * 2 * 30 * 24)],
    ids=["none", "done within the month", "done after the month"],
)
def test_what_still_runs_is_accrued_and_forecast(planned: str, november_usd: int) -> None:
    """10 GPUs since 30 October, heard of on the 31st; the look is at noon of 1 November."""
    prices = read(f"budget = 5_000\n[planned_steps]\n{planned}\n[[rates]]\nper_gpu_hour = 2")
    day = 24 * HOUR
    story = Story(NOVEMBER - 2 * day, gpus=10, team="vision", project="eyes")
    story.tell(ReferenceDeclared, step_ns=HOUR, gpus=10).tell(PhaseEntered, phase="step")
    for step in range(1, 49):
        story.tell(StepCommitted, HOUR, step=step)
    now_ns = NOVEMBER + 12 * HOUR
    found = spend(prices, story.reported(prices, now_ns=now_ns), now_ns=now_ns)
    assert (found.useful.usd, found.waste.usd, found.accrued.usd) == (960, 0, 240)
    assert found.spend.usd == 1_200
    assert (found.wastes, found.useful_share) == ((), 1.0)
    october, november = found.months
    assert (october.spend.usd, october.forecast_usd) == (960, None)
    assert (november.spend.usd, november.accrued.usd) == (240, 240)
    assert november.forecast_usd == november_usd
    assert [(line.month, line.left_usd) for line in found.budgets] == [
        ("2026-10", 5_000 - 960),
        ("2026-11", 5_000 - november_usd),
    ]
    for forecast in found.forecasts:
        to_go = forecast.planned_steps - 48
        assert (forecast.steps, forecast.to_go_usd) == (48, to_go * 20)
        assert forecast.end_ns == now_ns + to_go * HOUR
    assert {line.cause for line in found.invoice.lines} == {"useful", "accrued"}
    assert [(one.project, one.spend.usd) for one in found.projects] == [("eyes", 1_200)]


def test_a_run_to_its_end_costs_what_its_hours_will() -> None:
    """24 steps of an hour in October at 8 USD; of the 24 to go, 12 in October and 12 in November at 2 USD."""
    prices = read(
        "[planned_steps]\nrun = 48\n[factors]\ntax = 1.5\n[[rates]]\nper_gpu_hour = 8\nto = 2026-11-01\n"
        "[[rates]]\nper_gpu_hour = 2\nfrom = 2026-11-01"
    )
    story = Story(NOVEMBER - 36 * HOUR, gpus=10)
    story.tell(ReferenceDeclared, step_ns=HOUR, gpus=10).tell(PhaseEntered, phase="step")
    for step in range(1, 25):
        story.tell(StepCommitted, HOUR, step=step)
    now_ns = story.at_ns + S
    (forecast,) = spend(prices, story.reported(prices, now_ns=now_ns), now_ns=now_ns).forecasts
    assert forecast.end_ns is not None
    assert forecast.end_ns == now_ns + 24 * HOUR
    october_ns, november_ns = NOVEMBER - now_ns, forecast.end_ns - NOVEMBER
    assert forecast.to_go_usd == float(Fraction(15 * (8 * october_ns + 2 * november_ns), HOUR))


def test_a_run_that_fell_silent_is_named_with_its_price() -> None:
    prices = read("usd_per_gpu_hour = 2")
    story = Story(gpus=10)
    window = Window(from_ns=NOVEMBER)
    found = spend(prices, story.reported(prices, window, NOVEMBER), now_ns=NOVEMBER, window=window)
    assert found.spend.gpu_ns == 0
    (remark, *_) = [one for one in found.remarks if "last heard of" in one]
    assert "31.0 days ago" in remark
    assert "10 GPUs, that costs 480 USD a day" in remark


def test_a_run_is_meant_by_its_id_or_its_name() -> None:
    prices = read(
        "usd_per_gpu_hour = 9\n[planned_steps]\nllama = 100\nrun-1041 = 50\n"
        '[[rates]]\nper_gpu_hour = 2\nrun = "llama"\n[[rates]]\nper_gpu_hour = 3\nrun = "run-1041"'
    )
    reports = []
    for run, name in (("run-1040", "llama"), ("run-1041", "llama"), ("run-1042", "mistral")):
        story = Story(run=run, gpus=1, name=name).tell(StepCommitted, HOUR, step=0)
        reports.append(story.tell(RunEnded, outcome="completed").reported(prices))
    known = {"run": ["llama", "run-1040", "run-1041"]}
    found = finance(reports, prices, FinanceQuestion(now_ns=DECEMBER, known=known))
    usd = {one.run: one.spend.usd for one in found.runs}
    assert usd == {"run-1040": 2, "run-1041": 3, "run-1042": 9}
    planned = {one.run: one.planned_steps for one in found.forecasts}
    assert planned == {"run-1040": 100, "run-1041": 50}
    assert not [remark for remark in found.remarks if "names the run" in remark]


def test_names_that_nothing_has_and_prices_that_are_overruled_are_said() -> None:
    prices = read(
        "[team_budgets]\nvisoin = 1\n[project_budgets]\neyes = 1\n"
        '[[rates]]\nper_gpu_hour = 1\nteam = "vision"\n[[rates]]\nper_gpu_hour = 1\nchip = "h20"'
    )
    story = Story(gpus=1, team="vision").tell(CostRate, usd_per_gpu_hour=3.0)
    story.tell(RunEnded, HOUR, outcome="completed")
    known = {"team": ["vision"], "run": ["run"], "chip": ["H100"]}
    found = finance([story.reported(prices)], prices, FinanceQuestion(now_ns=DECEMBER, known=known))
    text = "\n".join(found.remarks)
    assert "names the team 'visoin', which no run in the record has; did you mean 'vision'?" in text
    assert "names the project 'eyes'" in text
    assert "Rate 2 of the prices names the chip 'h20'" in text
    assert "Rate 1 " not in text
    assert (
        "Run run recorded 3.00 USD a GPU-hour (cost.rate), which is what was paid; the 1.00 USD of rate 1"
        in text
    )


# -- the invoice ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lines_sum_to_the_invoice_to_the_cent_and_months_stand_alone() -> None:
    for seed in range(20):
        random = Random(seed)
        prices = read(f"usd_per_gpu_hour = {random.randrange(100, 999) / 300!r}")
        reports = []
        for number in range(3):
            story = Story(
                NOVEMBER - random.randrange(1, 30 * 24 * 3_600) * S, f"run-{number}", random.randrange(1, 9)
            )
            story.tell(CostRate, gpus=9).tell(PhaseEntered, random.randrange(10**15), phase="step")
            for step in range(1, 4):
                story.tell(StepCommitted, random.randrange(10**14), step=step)
            reports.append(
                story.tell(RunEnded, random.randrange(10**15), outcome="completed").reported(prices)
            )
        found = spend(prices, *reports)
        assert sum(line.cents for line in found.invoice.lines) == found.invoice.cents
        assert abs(found.invoice.cents - found.spend.usd * 100) <= len(found.months)
        for month in found.months:
            assert abs(found.invoice.months[month.month] - month.spend.usd * 100) <= 0.5 + 1e-6
        rows = list(
            csv.DictReader(
                io.StringIO(focus_csv(found.invoice, months_between(found.first_ns, found.last_ns)))
            )
        )
        assert sum(round(float(row["BilledCost"]) * 100) for row in rows) == found.invoice.cents


def test_months_teams_projects_runs_and_lines_are_all_less_than_a_cent_from_their_exact_cost() -> None:
    random = Random(7)
    prices = read("usd_per_gpu_hour = 3.137")
    reports = []
    for number in range(24):
        team, project = f"team-{number % 4}", f"project-{number % 3}"
        story = Story(run=f"run-{number}", gpus=random.randrange(1, 9), team=team, project=project)
        story.tell(PhaseEntered, random.randrange(10**13), phase="init")
        for step in range(1, 4):
            story.tell(StepCommitted, random.randrange(10**14), step=step)
        story.tell(PhaseEntered, phase="eval")
        reports.append(story.tell(RunEnded, random.randrange(10**14), outcome="completed").reported(prices))
    lines = spend(prices, *reports).invoice.lines
    levels: tuple[Callable[[InvoiceLine], tuple[str, ...]], ...] = (
        lambda line: (line.month,),
        lambda line: (line.month, line.team),
        lambda line: (line.month, line.team, line.project),
        lambda line: (line.month, line.run),
        lambda line: (line.month, line.run, line.cause, line.kind or ""),
    )
    for level in levels:
        off: dict[tuple[str, ...], float] = {}
        for line in lines:
            off[level(line)] = off.get(level(line), 0.0) + line.cents - 100 * line.usd
        assert max(map(abs, off.values())) < 1, level


def year_of_three_teams(random: Random, prices: Prices, window: Window) -> list[Report]:
    """Runs of three teams in every month of a year, all of them in two projects."""
    stories = []
    for month in range(1, 13):
        for number in range(9):
            story = Story(
                month_of(2026, month).from_ns,
                f"run-{month}-{number}",
                random.randrange(1, 9),
                team=f"team-{number % 3}",
                project=f"project-{number % 2}",
            )
            stories.append(story.tell(RunEnded, random.randrange(10**14), outcome="completed"))
    found = [story.reported(prices, window) for story in stories]
    return [one for one in found if one.paid_gpu_ns]


def test_a_year_is_the_sum_of_its_months_and_off_by_less_than_a_cent_for_each_part_rounded() -> None:
    prices = read("usd_per_gpu_hour = 3.137")
    october = Window(from_ns=OCTOBER, to_ns=NOVEMBER)
    alone = spend(prices, *year_of_three_teams(Random(7), prices, october), window=october).invoice
    whole = spend(prices, *year_of_three_teams(Random(7), prices, Window())).invoice
    assert alone.lines == tuple(line for line in whole.lines if line.month == "2026-10")
    assert whole.cents == sum(whole.months.values())
    levels: tuple[
        tuple[float, Callable[[InvoiceLine], str], Callable[[InvoiceLine], tuple[str, ...]]], ...
    ] = (
        (0.5, lambda line: "all", lambda line: (line.month,)),
        (1, lambda line: line.team, lambda line: (line.month,)),
        (1, lambda line: line.project, lambda line: (line.month, line.team)),
    )
    for cents_each, level, part in levels:
        off: dict[str, float] = {}
        parts: dict[str, set[tuple[str, ...]]] = {}
        for line in whole.lines:
            key = level(line)
            off[key] = off.get(key, 0.0) + line.cents - 100 * line.usd
            parts.setdefault(key, set()).add(part(line))
        for key, cents in off.items():
            assert abs(cents) <= cents_each * len(parts[key]) + 1e-6


@settings(max_examples=examples(40), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(1, 4), st.floats(0.01, 99))
def test_whatever_the_runs_teams_and_months_every_sum_holds_to_the_cent(
    random: Random, runs: int, teams: int, price: float
) -> None:
    prices = read(f"usd_per_gpu_hour = {price!r}")
    reports = []
    for number in range(runs):
        began_ns = month_of(2026, random.randrange(1, 13)).from_ns + random.randrange(10**15)
        story = Story(
            began_ns, f"run-{number}", random.randrange(1, 9), team=f"team-{random.randrange(teams)}"
        )
        story.tell(StepCommitted, random.randrange(1, 10**13), step=1)
        story.tell(PhaseEntered, random.randrange(1, 10**13), phase="eval")
        reports.append(
            story.tell(RunEnded, random.randrange(1, 10**16), outcome="completed").reported(prices)
        )
    found = spend(prices, *reports)
    lines, months = found.invoice.lines, found.invoice.months
    assert sum(line.cents for line in lines) == sum(months.values()) == found.invoice.cents
    for month, cents in months.items():
        own = [line for line in lines if line.month == month]
        assert sum(line.cents for line in own) == cents
        assert abs(cents - sum(100 * line.usd for line in own)) <= 0.5 + 1e-6
        for team in {line.team for line in own}:
            of_team = [line for line in own if line.team == team]
            assert abs(sum(line.cents - 100 * line.usd for line in of_team)) < 1 + 1e-6
    assert all(abs(line.cents - 100 * line.usd) < 1 + 1e-6 for line in lines)


def test_cents_go_where_most_was_cut_off() -> None:
    assert largest_remainder(100, [Fraction(100, 3)] * 3) == [34, 33, 33]
    assert largest_remainder(2, [Fraction("0.5"), Fraction("0.9"), Fraction("0.6")]) == [0, 1, 1]
    assert largest_remainder(0, []) == []


def test_the_columns_are_those_of_focus() -> None:
    prices = read('[[rates]]\nper_gpu_hour = 2\nkind = "reserved"')
    story = Story(run="=cmd()", gpus=1, team="vision", project="eyes", cluster="west")
    found = spend(prices, story.tell(RunEnded, 10 * HOUR, outcome="completed").reported(prices))
    (row,) = csv.DictReader(io.StringIO(focus_csv(found.invoice, [month_at(OCTOBER)])))
    assert tuple(row) == tuple(COLUMNS)
    wanted = {
        "BilledCost": "20.00",
        "EffectiveCost": "20.00",
        "ListCost": "20.00",
        "BillingCurrency": "USD",
        "BillingPeriodStart": "2026-10-01T00:00:00Z",
        "BillingPeriodEnd": "2026-11-01T00:00:00Z",
        "ChargePeriodStart": "2026-10-01T00:00:00Z",
        "ChargePeriodEnd": "2026-10-01T10:00:00Z",
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": "Committed",
        "PricingQuantity": "10.000000000",
        "ResourceId": "'=cmd()",
        "ServiceCategory": "AI and Machine Learning",
        "SubAccountId": "vision",
        "x_Project": "eyes",
    }
    assert {key: row[key] for key in wanted} == wanted
    assert json.loads(row["Tags"]) == {
        "team": "vision",
        "project": "eyes",
        "cluster": "west",
        "run": "=cmd()",
        "cause": "unexplained",
        "price": "reserved",
    }


def test_every_cause_has_a_remedy() -> None:
    assert REMEDIES.keys() == {cause.key for cause in CAUSES}
    assert WASTES_MAX == 5


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("rates = 2", "`rates` in the prices is not a list of tables", "[[rates]]"),
        ("[[rates]]\nkind = 'spot'", "Rate 1 in the prices has no `per_gpu_hour`", "per_gpu_hour = 2.5"),
        ("[[rates]]\nper_gpu_hour = -1", "Rate 1 in the prices has no `per_gpu_hour`", "per_gpu_hour = 2.5"),
        ("[[rates]]\nper_gpu_hour = 1\nkind = 'free'", "of the kind 'free'", "reserved, on-demand"),
        ("[[rates]]\nper_gpu_hour = 1\nteem = 'a'", "Rate 1 in the prices has no key `teem`", "`team`"),
        (
            "[[rates]]\nper_gpu_hour = 1\nteam = 3",
            "`team` of rate 1 in the prices must be text",
            'team = "name"',
        ),
        (
            "[[rates]]\nper_gpu_hour = 1\nfrom = 'soon'",
            "`from` of rate 1 in the prices is not a date",
            "2026-10-01",
        ),
        (
            "[[rates]]\nper_gpu_hour = 1\nfrom = 2026-10-02\nto = 2026-10-01",
            "Rate 1 in the prices ends before it begins",
            "later than `from`",
        ),
        ("[[rates]]\nper_gpu_hour = 1\ncurrency = 'EUR'", "whose worth in USD is not given", "[usd_per]"),
        ("currency = 'EUR'", "The report is in 'EUR'", "[usd_per]"),
        ("currency = 3", "`currency` in the prices must be text", 'currency = "EUR"'),
        ("goodput_target = 90", "`goodput_target` in the prices is 90", "goodput_target = 0.9"),
        ("team_budgets = 9", "`team_budgets` in the prices is not a table", "[team_budgets]"),
    ],
)
def test_a_mistake_in_the_rates_is_a_sentence_and_a_hint(text: str, sentence: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        read(text)
    assert sentence in raised.value.sentence
    assert hint in raised.value.hint


def test_moments_of_rates_are_utc_unless_they_say_otherwise() -> None:
    prices = read(
        "[[rates]]\nper_gpu_hour = 1\nfrom = 2026-10-01\n"
        "[[rates]]\nper_gpu_hour = 1\nfrom = 2026-10-01T02:00:00+02:00\nto = '2026-11-01'"
    )
    assert edges_ns(prices.rates) == {OCTOBER, NOVEMBER}


def test_a_gap_has_the_price_of_its_own_time() -> None:
    """Ten hours down at 8 USD, before the price fell to 4: ten GPUs would have cost 800 USD."""
    story = Story(gpus=10).tell(CostRate, usd_per_gpu_hour=8.0).tell(RunEnded, HOUR, outcome="failed")
    story.tell(RunStarted, 10 * HOUR, gpus=10).tell(CostRate, HOUR, usd_per_gpu_hour=4.0)
    story.tell(RunEnded, HOUR, outcome="completed")
    (remark,) = (one for one in spend(read(""), story.reported(read(""))).remarks if "went down" in one)
    assert remark.endswith("If they were held, 800.00 USD more were paid.")


def test_remarks_are_in_the_currency_of_the_report() -> None:
    """The same 800 USD, at 2 USD a GOLD; and a recorded 8 USD against 6 USD of a rate."""
    prices = read("currency = 'GOLD'\n[[rates]]\nper_gpu_hour = 6\n[usd_per]\nGOLD = 2")
    story = Story(gpus=10).tell(CostRate, usd_per_gpu_hour=8.0).tell(RunEnded, HOUR, outcome="failed")
    story.tell(RunStarted, 10 * HOUR, gpus=10).tell(RunEnded, HOUR, outcome="completed")
    told = story.reported(prices)
    remarks = [*spend(prices, told).remarks, *run_cost(told, prices).remarks]
    assert any("If they were held, 400.00 GOLD more were paid." in one for one in remarks)
    assert any("recorded 4.00 GOLD a GPU-hour" in one and "the 3.00 GOLD of rate 1" in one for one in remarks)
    assert not any("USD" in one for one in remarks)


def test_a_currency_that_is_worth_nothing_is_a_mistake() -> None:
    with pytest.raises(InputError, match=r"`usd_per\.EUR` in the prices is 0, and must be between 0.000001"):
        read('[usd_per]\nEUR = 0\n[[rates]]\nper_gpu_hour = 2\ncurrency = "EUR"')


def test_a_dollar_is_worth_a_dollar() -> None:
    with pytest.raises(InputError, match=r"`usd_per\.USD` in the prices is not 1"):
        read("[usd_per]\nUSD = 2")
    assert read("[usd_per]\nUSD = 1").currency.usd_per == 1


def test_a_tax_rate_is_not_taken_for_a_factor() -> None:
    with pytest.raises(InputError, match=r"`factors\.tax` in the prices is 0\.19") as raised:
        read("[factors]\ntax = 0.19")
    assert raised.value.hint == "A factor multiplies the price: 19 % more is 1.19, 60 % off is 0.4."
    assert read("[factors]\ndiscount = 0.8").factor == Fraction(8, 10)


def test_cents_are_exact_however_large_the_invoice() -> None:
    """Near 1e17 floats are 16 apart."""
    prices = read("usd_per_gpu_hour = 98_765_432_109_876.5")
    told = spend(prices, Story().tell(RunEnded, HOUR, outcome="completed").reported(prices))
    (row,) = csv.DictReader(io.StringIO(focus_csv(told.invoice, months_between(OCTOBER, NOVEMBER))))
    assert row["BilledCost"] == "98765432109876500.00"
