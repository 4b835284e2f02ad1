"""Spend over many runs: every division of it sums to the whole, for any runs."""

import html
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.dashboard import finance_page
from holdfast.dashboard import finance_wording as said
from holdfast.economics.finance.finance import INCIDENTS_PER_CAUSE, FinanceQuestion, cuts_ns, finance
from holdfast.economics.finance.ownership import OwnOrRent, Terms
from holdfast.economics.finance.statement import Finance
from holdfast.economics.finance.wastes import wastes
from holdfast.economics.pricing.prices import DEFAULTS, Priced, Prices, exactly
from holdfast.economics.pricing.spending import CAUSES, Amount, Bill
from holdfast.ledger.categories import Category
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.split import LOSSES
from holdfast.ledger.window import Window, accruing, standing, within
from holdfast.record.events import (
    AnyEvent,
    CheckpointLoaded,
    CheckpointSaved,
    CostRate,
    DataMoved,
    FaultObserved,
    KnownEvent,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
)
from holdfast.wording.units import HOUR_NS

S = 10**9
TB = 10**12
RUNS_MAX = 4
EVER = Window()


class Story:
    """A run, event by event; `at_s` is the time of the next one."""

    def __init__(self, run: str = "run", *, team: str = "", gpus: int = 8, usd: float | None = None) -> None:
        self.run = run
        self.at_s = 0.0
        self.events: list[AnyEvent] = []
        self.tell(CostRate, gpus=gpus, usd_per_gpu_hour=usd)
        self.tell(RunStarted, gpus=gpus, team=team)

    def tell(self, kind: Callable[..., KnownEvent], after_s: float = 0, **fields: Any) -> "Story":
        self.at_s += after_s
        event_id = f"{self.run}-{len(self.events):010x}"
        self.events.append(kind(id=event_id, occurred_ns=round(self.at_s * S), run=self.run, **fields))
        return self

    def steps(self, first: int, last: int, step_s: float) -> "Story":
        self.tell(PhaseEntered, phase="step")
        for step in range(first, last + 1):
            self.tell(StepCommitted, step_s, step=step)
        return self

    def reported(
        self, window: Window = EVER, prices: Prices = DEFAULTS, span_ns: tuple[int, int] | None = None
    ) -> Report:
        first_ns, last_ns = window.clipped(*(span_ns or self.span_ns))
        ledger = Ledger(cuts_ns=(*cuts_ns(first_ns, last_ns, prices), *window.edges_ns))
        begin = None
        if window.from_ns is not None:
            ledger.add(event for event in self.events if event.occurred_ns < (window.from_ns or 0))
            begin = standing(ledger.fold)
        ledger.add(event for event in self.events if event.occurred_ns >= (window.from_ns or 0))
        return within(report(self.run, ledger.fold), window, begin, None)

    @property
    def span_ns(self) -> tuple[int, int]:
        return self.events[0].occurred_ns, self.events[-1].occurred_ns


def told(*stories: Story, prices: Prices = DEFAULTS, since_s: float | None = None) -> Finance:
    """The report long after the end, so that no run is assumed to go on."""
    window = Window(from_ns=None if since_s is None else round(since_s * S))
    spans = [story.span_ns for story in stories]
    span_ns = min(span[0] for span in spans), max(span[1] for span in spans)
    reports = [story.reported(window, prices, span_ns) for story in stories]
    known = {"team": [report.team for report in reports]}
    question = FinanceQuestion(now_ns=10**18, window=window, terms=Terms(), known=known)
    return finance(reports, prices, question)


def owned(read: Finance) -> OwnOrRent:
    assert read.own_or_rent is not None
    return read.own_or_rent


def at(usd_per_gpu_hour: float, **targets: float) -> Prices:
    return msgspec.structs.replace(
        DEFAULTS,
        usd_per_gpu_hour=Priced(value=usd_per_gpu_hour, assumed=False, source="a test"),
        team_targets={
            team: Priced(value=target, assumed=False, source="a test") for team, target in targets.items()
        },
    )


@st.composite
def stories(draw: st.DrawFn) -> list[Story]:
    """Runs of any team, size and price, with faults, restarts, idle time and rollbacks at any moments."""
    found = []
    for number in range(draw(st.integers(1, RUNS_MAX))):
        story = Story(
            f"run-{number}",
            team=draw(st.sampled_from(["", "a", "b"])),
            gpus=draw(st.integers(0, 5_000)),
            usd=draw(st.none() | st.floats(0, 1_000)),
        )
        story.tell(ReferenceDeclared, draw(st.floats(0, 1e5)), step_ns=draw(st.integers(1, 10 * S)))
        step = 0
        for _ in range(draw(st.integers(0, 4))):
            last = step + draw(st.integers(1, 5))
            story.steps(step + 1, last, draw(st.floats(0.001, 100)))
            if draw(st.booleans()):
                story.tell(FaultObserved, draw(st.floats(0, 50)), fault="xid")
                story.tell(RunEnded, draw(st.floats(0, 50)), outcome="failed")
                story.tell(RunStarted, draw(st.floats(0, 500)), gpus=draw(st.integers(0, 5_000)))
                last = draw(st.integers(0, last))
                story.tell(CheckpointLoaded, 1, step=last)
            step = last
        found.append(story)
    return found


@settings(max_examples=examples(30), deadline=None)
@given(stories())
def test_whatever_it_is_divided_by_it_sums_to_what_was_spent(runs: list[Story]) -> None:
    read = told(*runs)
    paid_gpu_ns = sum(story.reported().paid_gpu_ns for story in runs)
    assert read.spend.gpu_ns == paid_gpu_ns
    assert read.useful.gpu_ns + read.waste.gpu_ns + read.unknown.gpu_ns == paid_gpu_ns
    assert sum(cause.gpu_ns for cause in read.causes) == read.waste.gpu_ns
    assert sum(silence.amount.gpu_ns for silence in read.silences) == read.unknown.gpu_ns
    assert sum(run.spend.gpu_ns for run in read.runs) == paid_gpu_ns
    assert sum(team.spend.gpu_ns for team in read.teams) == paid_gpu_ns
    assert sum(team.useful.gpu_ns for team in read.teams) == read.useful.gpu_ns
    assert sum(one.paid_gpu_ns for one in read.trend.stretches) == paid_gpu_ns
    assert sum(one.useful_gpu_ns for one in read.trend.stretches) == read.useful.gpu_ns
    for run, story in zip(sorted(read.runs, key=lambda run: run.run), runs, strict=True):
        partition = story.reported().partition
        assert run.useful.gpu_ns == partition["useful"]
        for cause in CAUSES:
            assert run.causes[cause.key].gpu_ns == sum(partition[one.key] for one in cause.categories)


@settings(max_examples=examples(25), deadline=None)
@given(stories())
def test_money_is_computed_once_and_sums_as_well(runs: list[Story]) -> None:
    """Each amount is the exact one, rounded to a float once."""
    read = told(*runs)
    exact = sum(
        (exactly(run.usd_per_gpu_hour.value) * run.spend.gpu_ns / HOUR_NS for run in read.runs), Fraction()
    )
    assert read.spend.usd == float(exact)
    for parts in (
        [read.useful.usd, *(cause.usd for cause in read.causes), read.unknown.usd],
        [run.spend.usd for run in read.runs],
        [team.spend.usd for team in read.teams],
        [one.spend_usd for one in read.trend.stretches],
    ):
        assert sum(parts) == pytest.approx(read.spend.usd, rel=1e-9)


@settings(max_examples=examples(25), deadline=None)
@given(stories(), st.data())
def test_a_window_has_what_lies_in_it(runs: list[Story], data: st.DataObject) -> None:
    course = runs[0].reported().course
    bucket = data.draw(st.integers(0, len(course.buckets) - 1))
    since_ns = course.start_ns + bucket * course.bucket_ns
    if since_ns >= runs[0].reported().last_ns:
        return
    window = Window(from_ns=since_ns)
    read = finance([runs[0].reported(window)], DEFAULTS, FinanceQuestion(now_ns=10**18, window=window))
    assert read.spend.gpu_ns == sum(sum(one.values()) for one in course.buckets[bucket:])
    assert read.useful.gpu_ns == sum(one.get("useful", 0) for one in course.buckets[bucket:])


def test_every_category_of_losses_has_one_cause() -> None:
    covered = [category for cause in CAUSES for category in cause.categories]
    assert sorted(covered) == list(LOSSES)
    assert len({cause.key for cause in CAUSES}) == len(CAUSES)


# -- prices and teams ------------------------------------------------------------------------------------


def hundred(share: float, run: str = "run", team: str = "", usd: float | None = None) -> Story:
    """A hundred GPU-hours, of which this share is useful and the rest idle afterwards."""
    story = Story(run, team=team, gpus=100, usd=usd)
    story.tell(ReferenceDeclared, step_ns=36 * S, gpus=100).steps(1, round(100 * share), 36)
    return story.tell(RunEnded, outcome="completed").tell(CostRate, 36 * (100 - round(100 * share)), gpus=0)


def test_a_share_of_a_hundred_hours_in_money() -> None:
    read = told(hundred(0.6), prices=at(2.0))
    assert (read.spend.usd, read.useful.usd, read.waste.usd) == (200.0, 120.0, 80.0)
    assert read.useful_share == 0.6
    assert read.usd_per_useful_gpu_hour == pytest.approx(200 / 60)
    assert {cause.key: cause.usd for cause in read.causes if cause.usd} == {"idle": 80.0}
    assert read.point_usd == pytest.approx(200 * 0.01 / 0.6)


def test_a_recorded_price_wins_over_a_given_one_and_that_over_a_list() -> None:
    recorded, given_, listed = hundred(1, "r", usd=5.0), hundred(1, "g"), hundred(1, "l")
    listed.tell(ReferenceDeclared, chip="b200")
    prices = {run.run: run.usd_per_gpu_hour for run in told(recorded, given_, prices=at(2.0)).runs}
    assert (prices["r"].value, prices["r"].assumed) == (5.0, False)
    assert (prices["g"].value, prices["g"].assumed) == (2.0, False)
    (price,) = (run.usd_per_gpu_hour for run in told(listed).runs)
    assert (price.value, price.assumed) == (6.69, True)


def test_where_prices_differ_shares_are_of_the_money() -> None:
    read = told(hundred(1.0, "dear", usd=9.0), hundred(0.0, "cheap", usd=1.0))
    assert read.useful_share == 0.9
    assert read.spend.gpu_ns == 2 * read.useful.gpu_ns
    assert owned(read).terms.rent_usd_per_gpu_hour.value == pytest.approx(5.0)


def test_teams_against_their_targets() -> None:
    read = told(
        hundred(0.6, "one", "behind"),
        hundred(0.7, "two", "behind"),
        hundred(0.9, "three", "ahead"),
        hundred(0.5, "four"),
        prices=at(2.0, behind=0.8, ahead=0.85, absent=0.9),
    )
    teams = {team.team: team for team in read.teams}
    assert list(teams) == ["behind", "", "ahead"]
    behind = teams["behind"]
    assert (behind.runs, behind.standing, behind.target) == (2, "below", 0.8)
    assert behind.utilisation == pytest.approx(0.65)
    assert behind.short is not None
    assert behind.short.usd == pytest.approx(400 * (0.8 - 0.65), rel=1e-9)
    assert teams["ahead"].standing == "met"
    assert teams["ahead"].short == Amount(gpu_ns=0, usd=0.0)
    assert (teams[""].standing, teams[""].short) == ("no target", None)
    named = "`team_targets` of the prices names the team 'absent', which no run in the record has."
    assert named in read.remarks


def test_a_team_of_which_nothing_is_known_is_neither_below_nor_met() -> None:
    silent = Story(team="silent", gpus=10).tell(RunEnded, 3_600, outcome="completed")
    read = told(silent, prices=at(2.0, silent=0.8))
    (team,) = read.teams
    assert (team.standing, team.utilisation, team.short) == ("unknown", None, None)
    assert read.useful_share is None
    assert any("reported neither steps nor checkpoints" in remark for remark in read.remarks)


def half_known(run: str = "half", *, steps: int = 240, team: str = "t", usd: float = 2.0) -> Story:
    """Ten hours on 100 GPUs: steps of 75 s where 60 s are healthy, and nothing after them."""
    story = Story(run, team=team, gpus=100, usd=usd).tell(ReferenceDeclared, step_ns=60 * S)
    for step in range(steps):
        story.tell(StepCommitted, 75, step=step)
    return story.tell(RunEnded, 36_000 - story.at_s, outcome="completed")


def test_a_target_that_may_have_been_met_is_neither_met_nor_missed() -> None:
    """80 % of what is known was useful, half is not known: 40 to 90 %."""
    for target, stands in ((0.95, "below"), (0.85, "unknown"), (0.3, "met")):
        prices = at(2.0, t=target)
        prices = msgspec.structs.replace(prices, goodput_target=prices.team_targets["t"])
        found = told(half_known(), prices=prices)
        (team,) = found.teams
        assert team.utilisation == pytest.approx(0.8)
        assert team.utilisation_bounds == pytest.approx((0.4, 0.9))
        assert team.standing == stands
        assert (team.short is None) == (stands == "unknown")
        expected = {
            "below": ("15.0 points below, of what is known", "the target is 95.0 %: 15.0 points below."),
            "unknown": (
                "not known: 40.0 % to 90.0 %",
                "the target is 85.0 %. Whether it was met is not known: 40.0 % to 90.0 %.",
            ),
            "met": ("met", "the target is 30.0 %."),
        }[stands]
        assert said.standing(team) == expected[0]
        assert said.goodput_target(found) == f"Goodput was 80.0 % of what is known, {expected[1]}"


def test_a_useful_hour_is_never_cheaper_than_an_hour_and_has_bounds() -> None:
    """A known run at 2 USD, and one at 4 USD of which nothing is known."""
    found = told(half_known("known", steps=480, usd=2.0), half_known("bare", steps=0, usd=4.0))
    assert found.usd_per_useful_gpu_hour == pytest.approx(2.5)
    assert found.usd_per_useful_gpu_hour_bounds == pytest.approx((6_000 / 1_800, 6_000 / 800))
    assert said.hourly(found) == (
        "A useful GPU-hour cost 2.50 USD, at 2.00 USD paid; with what is not known, 3.33 USD to 7.50 USD."
    )
    page = html.unescape(finance_page.render(found))
    assert "at 2.00 USD paid; with what is not known, 3.33 USD to 7.50 USD" in page
    assert "3.00 USD" not in page
    whole = told(half_known("known", steps=480))
    assert whole.usd_per_useful_gpu_hour_bounds is None
    assert said.hourly(whole) == "A useful GPU-hour cost 2.50 USD, at 2.00 USD paid."


def test_a_minute_that_is_known_of_ten_hours_tells_next_to_nothing_of_the_price() -> None:
    found = told(half_known(steps=1))
    assert found.usd_per_useful_gpu_hour == pytest.approx(2.5)
    assert found.usd_per_useful_gpu_hour_bounds == pytest.approx((2_000 / 999.58, 1_200), rel=1e-4)
    assert "with what is not known, 2.00 USD to 1,200 USD" in said.hourly(found)


def test_a_share_and_its_bounds_are_of_one_kind() -> None:
    """Of the money if what is known cost any, else of the GPU-time."""
    free = told(half_known("known", steps=480), half_known("free", steps=0, usd=0.0))
    assert free.useful_share == pytest.approx(0.8)
    assert free.useful_share_bounds is None
    paid = told(half_known("known", steps=480, usd=0.0), half_known("paid", steps=0, usd=2.0))
    assert paid.useful_share == pytest.approx(0.8)
    assert paid.useful_share_bounds == pytest.approx((0.4, 0.9))


def test_no_gpus_no_money() -> None:
    read = told(Story(gpus=0).steps(1, 5, 10))
    assert read.spend.usd == 0
    assert read.useful_share is None
    assert read.trend.rise.verdict == "unknown"
    assert any("without recorded GPUs" in remark for remark in read.remarks)


# -- incidents, retries, data ----------------------------------------------------------------------------


def failing(times: int) -> Story:
    """Steps of 10 s on 8 GPUs; each failure takes five launches of a minute and rolls back ten steps."""
    story = Story(gpus=8, usd=3.0).tell(ReferenceDeclared, step_ns=10 * S, gpus=8)
    for number in range(times):
        first = 1 + 50 * number - 10 * number
        story.steps(first, first + 49, 10).tell(
            FaultObserved, fault=f"xid {number}", subject=f"node-{number}"
        )
        story.tell(RunEnded, outcome="failed")
        for _ in range(5):
            story.tell(RunStarted, 60, gpus=8)
        story.tell(CheckpointLoaded, 30, step=first + 39)
    return story.steps(1 + 40 * times, 50 + 40 * times, 10)


def test_the_incidents_behind_a_cause_are_the_costliest() -> None:
    read = told(failing(5))
    causes = {cause.key: cause for cause in read.causes}
    repeated = causes["repeated"]
    assert repeated.incidents_count == 5
    assert len(repeated.incidents) == INCIDENTS_PER_CAUSE
    assert repeated.incidents_gpu_ns == repeated.gpu_ns == 5 * 10 * 10 * 8 * S
    costs = [incident.usd for incident in repeated.incidents]
    assert costs == sorted(costs, reverse=True)
    assert repeated.incidents[0].usd == pytest.approx(10 * 10 * 8 / 3_600 * 3.0)
    assert repeated.incidents[0].what == "xid 0"


def test_retries_are_counted_and_priced() -> None:
    retries = told(failing(2)).retries
    assert retries.restarts == 10
    assert retries.fruitless_launches == 8
    assert retries.done_again.gpu_ns == 2 * 10 * 10 * 8 * S
    assert retries.starting_again.gpu_ns > 2 * 5 * 60 * 8 * S - 8 * S
    assert retries.share is not None
    assert 0 < retries.share < 1


def test_a_window_counts_what_happened_in_it() -> None:
    story = failing(4)
    whole, half = told(story), told(story, since_s=story.at_s / 2)
    assert whole.retries.restarts == 20
    assert half.retries.restarts == 10
    assert half.spend.gpu_ns == pytest.approx(whole.spend.gpu_ns / 2, rel=1e-3)
    assert half.runs[0].steps < whole.runs[0].steps
    assert len([c for c in half.causes if c.key == "repeated" and c.incidents_count == 2]) == 1
    assert any("cost in this window" in remark for remark in half.remarks)


def test_data_that_moved_is_summed_and_egress_priced() -> None:
    story = Story(usd=1.0).steps(1, 10, 10)
    story.tell(CheckpointSaved, step=10, size_bytes=2 * TB).tell(CheckpointSaved, step=11)
    story.tell(DataMoved, what="dataset", size_bytes=5 * TB)
    story.tell(DataMoved, what="cold", size_bytes=TB, usd=20.0)
    story.tell(DataMoved, what="egress", size_bytes=TB).tell(
        DataMoved, what="egress", size_bytes=TB, usd=50.0
    )
    data = told(story).data
    moved = {one.what: one for one in data.transfers}
    assert [one.what for one in data.transfers][:1] == ["dataset"]
    assert (moved["checkpoints_saved"].times, moved["checkpoints_saved"].sized) == (2, 1)
    assert moved["checkpoints_saved"].size_bytes == 2 * TB
    assert moved["checkpoints_saved"].usd is None
    assert (moved["dataset"].usd, moved["cold"].usd) == (None, 20.0)
    assert moved["egress"].usd == pytest.approx(50 + 1_000 * DEFAULTS.egress_usd_per_gb.value)
    assert [one.what for one in data.transfers if one.assumed] == ["egress"]
    assert data.charged_usd == pytest.approx(20 + 50 + 90)


def test_data_that_moved_before_the_window_is_not_in_it() -> None:
    story = Story(usd=1.0).tell(DataMoved, what="egress", size_bytes=TB, usd=9.0).steps(1, 100, 10)
    story.tell(DataMoved, what="egress", size_bytes=2 * TB, usd=18.0)
    (moved,) = told(story, since_s=500).data.transfers
    assert (moved.times, moved.size_bytes, moved.usd) == (1, 2 * TB, 18.0)
    assert told(Story(usd=1.0).steps(1, 9, 10), since_s=50).data.transfers == ()


def test_goodput_and_price_of_the_record_are_in_own_or_rent() -> None:
    read = told(hundred(0.6, usd=4.0))
    terms = owned(read).terms
    assert terms.rent_usd_per_gpu_hour.value == 4.0
    assert not terms.rent_usd_per_gpu_hour.assumed
    assert terms.goodput.value == 1.0  # what was lost was idle, which is no matter of goodput
    assert not terms.goodput.assumed


def test_gpus_that_cost_nothing_are_compared_with_what_others_pay() -> None:
    read = told(hundred(0.6), prices=at(0.0))
    assert (read.spend.usd, read.useful_share) == (0.0, 0.6)
    assert owned(read).terms.rent_usd_per_gpu_hour.assumed
    assert read.trend.rise.verdict == "unknown"


def test_runs_are_in_the_order_of_their_cost() -> None:
    read = told(hundred(1, "small", usd=1.0), hundred(1, "large", usd=2.0))
    assert [run.run for run in read.runs] == ["large", "small"]


def test_causes_are_in_the_order_of_their_cost() -> None:
    read = told(failing(3))
    costs = [cause.usd for cause in read.causes]
    assert costs == sorted(costs, reverse=True)
    assert {cause.key for cause in read.causes} == {cause.key for cause in CAUSES}


def test_what_is_accrued_is_no_measure_of_what_was_useful() -> None:
    """An hour of steps, then eleven unexplained hours, which are neither good nor bad."""
    story = Story(gpus=8).steps(1, 100, 36.0)
    now_ns = round(12 * HOUR_NS)
    known = accruing(story.reported(span_ns=(0, now_ns), prices=at(2.0)), now_ns)
    read = finance([known], at(2.0), FinanceQuestion(now_ns=now_ns, terms=Terms()))
    assert (read.spend.usd, read.accrued.usd, read.useful.usd) == (192.0, 176.0, 16.0)
    assert read.point_usd is None  # nothing is known to be lost
    assert owned(read).terms.goodput.value == 1.0
    assert sum(one.spend_usd for one in read.trend.stretches) == pytest.approx(192.0)
    assert sum(one.told_usd for one in read.trend.stretches) == pytest.approx(16.0)
    assert {one.useful_gpu_ns for one in read.trend.stretches if not one.paid_gpu_ns} == {0}
    assert read.trend.rise.verdict != "yes"  # an unknown result does not mean no result
    opening = "192.00 USD spent. Of the 16.00 USD that is known, 100.0 % was useful"
    assert said.headline(read).startswith(opening)


def test_a_forecast_beyond_all_dates_is_said_to_be_none() -> None:
    planned = Priced(value=1e15, assumed=False, source="a test")
    prices = msgspec.structs.replace(at(2.0), planned_steps={"run": planned})
    story = Story(gpus=8).steps(1, 100, 36.0)
    now_ns = round(2 * HOUR_NS)
    known = accruing(story.reported(span_ns=(0, now_ns), prices=prices), now_ns)
    (found,) = finance([known], prices, FinanceQuestion(now_ns=now_ns)).forecasts
    assert said.forecast(found).endswith("it would take centuries, so nothing is forecast.")


@pytest.mark.parametrize(
    ("queued", "idle", "todo"),
    [(3, 1, "Hold GPUs only once the run can start"), (1, 3, "Give GPUs back"), (0, 1, "Give GPUs back")],
)
def test_gpus_held_before_a_start_need_another_advice_than_after_an_end(
    queued: int, idle: int, todo: str
) -> None:
    bill = Bill()
    bill.add(Fraction(2), [(Category.QUEUED.key, queued * HOUR_NS), (Category.IDLE.key, idle * HOUR_NS)])
    (waste,) = wastes(bill, {"run": bill}, {"run": ""}, {})
    assert waste.todo.startswith(todo)
    assert waste.bring_usd == 2 * (queued + idle)
