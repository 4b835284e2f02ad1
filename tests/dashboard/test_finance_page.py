"""The finance page: what it says is what was computed, for ordinary stores and odd ones, and in a browser."""

import html
import re
import subprocess
from html.parser import HTMLParser
from math import isclose
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantity import sampled

from holdfast import wording
from holdfast.dashboard import finance_charts
from holdfast.dashboard.finance_page import RUNS_SHOWN_MAX, render
from holdfast.economics.finance.finance import FinanceQuestion, cuts_ns, finance
from holdfast.economics.finance.ownership import Terms, read
from holdfast.economics.finance.statement import Finance
from holdfast.economics.pricing.prices import DEFAULTS, Priced
from holdfast.economics.pricing.spending import CAUSES
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.events import AnyEvent, RunStarted
from holdfast.record.importers import Options, import_file

DATA = Path(__file__).parents[1] / "data"
PAGE_BYTES_MAX = 200_000
BROWSER_S_MAX = 300
VOID = {"meta"}
TARGETS = {"pretraining": 0.9, "post-training": 0.85, "vision": 0.6}

AROUND = """<!doctype html><meta charset="utf-8">
<iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{page}"></iframe>
<pre></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  page.querySelector(".column").dispatchEvent(new PointerEvent("pointerover", {{ bubbles: true }}));
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    said: page.querySelector("output").textContent,
  }});
}};
</script>
"""
LATER = FinanceQuestion(now_ns=1_900_000_000 * 10**9, terms=Terms())
"""Long after, so that no run is taken to go on."""


class Page(HTMLParser):
    """A page taken apart; a tag that is not closed, or closed twice, is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        assert text.startswith("<!doctype html>")
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def reports(file: str) -> list[Report]:
    by_run: dict[str, list[AnyEvent]] = {}
    with import_file(DATA / file, Options()) as reading:
        for event in reading:
            by_run.setdefault(event.run, []).append(event)
    moments = [event.occurred_ns for events in by_run.values() for event in events]
    found = []
    for run, events in by_run.items():
        ledger = Ledger(cuts_ns=cuts_ns(min(moments), max(moments), DEFAULTS))
        ledger.add(sorted(events, key=lambda event: (event.occurred_ns, event.id)))
        found.append(report(run, ledger.fold))
    return found


@pytest.fixture(scope="module")
def month() -> Finance:
    targets = {team: Priced(value=share, assumed=False, source="a test") for team, share in TARGETS.items()}
    wanted = Priced(value=0.92, assumed=False, source="a test")
    budget = Priced(value=2_000_000.0, assumed=False, source="a test")
    prices = msgspec.structs.replace(
        DEFAULTS, team_targets=targets, goodput_target=wanted, team_budgets={"pretraining": budget}
    )
    return finance(reports("three-teams.csv"), prices, LATER)


def of(*told: Report) -> Finance:
    return finance(told, DEFAULTS, LATER)


def told_run(events: list[AnyEvent], run: str = "run") -> Report:
    ledger = Ledger()
    ledger.add(events)
    return report(run, ledger.fold)


def test_the_four_numbers_come_first(month: Finance) -> None:
    text = Page(render(month)).text
    first = text[: text.index("Where the money went")]
    assert "28 d 1 h 3 runs 3 teams 796,314 GPU-hours paid for" in first
    assert "Spent 2,056,963 USD Useful" in first
    assert "Useful 1,832,038 USD 89.1 % of the spend, estimated ± 0.1 %" in first
    assert "Lost 224,924 USD 10.9 % of the spend" in first
    assert "Not known 0.00 USD 0.0 % of the spend" in first
    assert "A useful GPU-hour 2.91 USD at 2.58 USD paid" in first


def test_every_cause_is_there_with_its_incidents_and_they_sum(month: Finance) -> None:
    text = Page(render(month)).text
    section = text[text.index("Where the money went") : text.index("Teams against target")]
    for cause in month.causes:
        assert (f"{cause.label} {cause.meaning}" in section) is bool(cause.gpu_ns)
        if cause.gpu_ns:
            assert f"{wording.usd_cell(cause.usd, month.spend.usd)} {wording.percent(cause.share)}" in section
    assert "coolant inlet too warm, GPUs throttled (loop-3), 138,445 USD (pretrain-70b/3)" in section
    assert "Spent 2,056,963 100.0 %" in section


def test_teams_trend_retries_data_and_owning_are_told(month: Finance) -> None:
    text = Page(render(month)).text
    for expected in (
        "vision 1 run 57.1 % estimated ± 0.1 % 60.0 % 1,645 USD 56,502",
        "pretraining 1 run 90.2 % estimated ± 0.1 % 90.0 % met 1,793,659",
        "Spend rises faster than progress.",
        "19.8 % more, and at least 11.5 % more with 95 % confidence",
        "Launches that came to nothing 17",
        "Egress 5 4.6 TB 417.60 USD assumed",
        "Owning is cheaper: 2.57 USD for a useful GPU-hour, rented 2.85 USD, at 80.0 % utilisation.",
        "One point of goodput is worth 200.06 USD a year for a rented GPU",
        "server_usd_per_gpu = 33750 DGX H100, about 270,000 USD (SemiAnalysis, May 2023), over 8",
    ):
        assert expected in text


def test_the_page_needs_nothing_else(month: Finance) -> None:
    page = render(month)
    assert Page(page).links == []
    assert "default-src 'none'" in page
    assert len(page.encode()) < PAGE_BYTES_MAX


def test_every_cause_has_a_colour_of_its_own() -> None:
    colours = [cause.categories[0] for cause in CAUSES]
    assert len(set(colours)) == len(colours)


def test_what_others_named_is_text_and_never_markup(month: Finance) -> None:
    evil = "<script>alert(1)</script>"
    run = msgspec.structs.replace(month.runs[0], name=evil, team=evil)
    team = msgspec.structs.replace(month.teams[0], team=evil)
    incident = msgspec.structs.replace(month.causes[0].incidents[0], what=evil, run=evil)
    cause = msgspec.structs.replace(month.causes[0], incidents=(incident,))
    page = render(
        msgspec.structs.replace(month, runs=(run,), teams=(team,), causes=(cause,), remarks=(evil,))
    )
    assert evil not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 6


def test_months_budgets_wastes_and_what_to_charge_back_are_told(month: Finance) -> None:
    text = Page(render(month)).text
    for expected in (
        "2026-10 2,056,963 1,832,038 224,924 0 88.9 % estimated ± 0.1 % – –",
        "team pretraining 2026-10 2,000,000 1,793,659 – 206,341",
        "Running slowly mostly in pretrain-70b Mend what the record names: coolant inlet too "
        "warm, GPUs throttled (loop-3).",
        "138,445 138,445 all of it: steps at their reference again",
        "the line across is the target, 92.0 %",
        "Goodput was 88.9 %, the target is 92.0 %: 3.1 points below.",
        "pretraining – 2026-10 1,793,658.88",
        "Invoice 2,056,962.56 USD",
    ):
        assert expected in text


def test_owning_is_told_only_where_it_was_asked_for(month: Finance) -> None:
    text = Page(render(msgspec.structs.replace(month, own_or_rent=None))).text
    assert "Own or rent" not in text
    assert "server_usd_per_gpu" not in text


def test_a_page_in_another_currency_has_that_one_alone(month: Finance) -> None:
    """At 4 USD a GOLD every axis is in GOLD, with a quarter of the amounts."""
    choice = month.own_or_rent
    assert choice is not None
    with wording.in_currency("GOLD", 4.0):
        page, drawn = render(month), finance_charts.choice(choice)
        spent = finance_charts.money(month.trend)
    assert f"rented {choice.rent_usd_per_useful_gpu_hour / 4:,.2f}<" in drawn
    axes = re.findall(r'y="10" text-anchor="end">([^<]*)<', page)
    assert axes.count("GOLD") == 3
    assert "USD" not in axes
    assert "A useful GPU-hour, GOLD, by utilisation" in page
    assert f">{choice.own_usd_per_gpu_year / 4:,.0f}<" in page
    levels = finance_charts.round_levels(month.spend.usd / 4)
    assert f">{finance_charts._level(levels[-1])}<" in spent


@pytest.mark.parametrize("gpus", [0, 8], ids=["no GPUs", "no time"])
def test_nothing_paid_for(gpus: int) -> None:
    text = Page(render(of(told_run([RunStarted(id="a", occurred_ns=0, gpus=gpus)])))).text
    assert "Nothing is recorded to have been paid for in this time." in text
    assert "Own or rent" in text


def test_a_run_that_told_nothing() -> None:
    events: list[AnyEvent] = [
        RunStarted(id="a", occurred_ns=0, gpus=8),
        RunStarted(id="b", occurred_ns=3_600 * 10**9, gpus=8),
    ]
    text = Page(render(of(told_run(events)))).text
    assert "Useful Not known – of what is known" in text
    assert "Not known nothing recorded says whether it was useful or lost" in text
    assert "no step was recorded. Import the log of the training" in text


def test_many_runs_are_counted_and_summed(month: Finance) -> None:
    runs = month.runs[:1] * (RUNS_SHOWN_MAX + 2)
    text = Page(render(msgspec.structs.replace(month, runs=runs))).text
    assert f"2 more runs, {wording.usd(2 * month.runs[0].spend.usd)} together." in text


@pytest.mark.parametrize("terms", ["", "rent_usd_per_gpu_hour = 0.5", "utilisation = 0.01\ngoodput = 0.02"])
def test_owning_is_drawn_wherever_the_two_meet(terms: str) -> None:
    question = FinanceQuestion(now_ns=LATER.now_ns, terms=read(terms))
    found = finance(reports("three-teams.csv"), DEFAULTS, question).own_or_rent
    assert found is not None
    drawn = str(finance_charts.choice(found))
    heights = [float(y) for y in re.findall(r'y2?="(-?[\d.]+)"', drawn)]
    assert all(0 <= y <= finance_charts.CHOICE_HEIGHT + 60 for y in heights)
    assert ("break-even" in drawn) is (found.break_even_utilisation <= 1)


@given(st.floats(1e-6, 1e15))
def test_levels_are_few_even_and_reach_the_top(value_max: float) -> None:
    levels = finance_charts.round_levels(value_max)
    assert levels[0] == 0
    assert 2 <= len(levels) <= finance_charts.LEVELS + 2
    assert levels[-1] >= value_max * (1 - 1e-6)
    assert levels[-2] < value_max
    assert all(isclose(level, number * levels[1]) for number, level in enumerate(levels))


@pytest.mark.parametrize("width_px", sampled([320, 390, 1_280], [320, 1_280]))
def test_the_page_fits_and_answers(browser: str, tmp_path: Path, month: Finance, width_px: int) -> None:
    around = tmp_path / "around.html"
    around.write_text(AROUND.format(width=width_px, page=html.escape(render(month))), encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    done = subprocess.run(
        [browser, *switches, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", around.as_uri()],
        capture_output=True,
        text=True,
        timeout=BROWSER_S_MAX,
        check=True,
    )
    written = re.search(r"<pre>(\{.*\})</pre>", done.stdout)
    assert written is not None, done.stderr
    measured = msgspec.json.decode(html.unescape(written[1]))
    assert measured["width"] <= width_px
    assert measured["said"].startswith("Until 1 Oct 2026, 12:00: ")
