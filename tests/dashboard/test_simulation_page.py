"""The simulation page: what it says is what was compared, for many runs and for one, and in a browser."""

import html
import re
import shlex
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from quantity import sampled

from holdfast import wording
from holdfast.cli.simulate import command as simulate
from holdfast.dashboard import simulation_charts
from holdfast.dashboard.simulation_page import render
from holdfast.dashboard.template import BAR_PERCENT_MIN
from holdfast.economics.pricing.prices import GIVEN
from holdfast.ledger.categories import Category
from holdfast.twin.failures import FailureClass, Hazards, Kind
from holdfast.twin.policies import Policy, policies
from holdfast.twin.presets import preset
from holdfast.twin.sweep import Comparison, Figures, Spread, summarise

pytestmark = pytest.mark.slow

PAGE_BYTES_MAX = 100_000
BROWSER_S_MAX = 300
LONG_NAME = "x" * 500
VOID = {"meta"}
HOUR_NS = 3_600 * 10**9
EVIL = "<script>alert(1)</script>"
LLAMA3 = preset("llama3-405b")
GPUS = LLAMA3.job.gpus
SPARE_NODES = LLAMA3.practice.spare_nodes
DAYS = 54
PRICE_USD = 4.0
PAID_GPU_HOURS = (GPUS + 8 * SPARE_NODES) * DAYS * 24
UNKNOWN_GPU_HOURS = 100_000

OWN_RATES: dict[Kind, float] = {"crash": 20, "hang": 5, "gray": 9, "planned": 3}
OWN_HAZARDS = Hazards(
    classes=tuple(
        FailureClass(name=kind, part="unknown", kind=kind, rate_per_1000_node_days=rate, source="ours")
        for kind, rate in OWN_RATES.items()
    )
)

LOSSES: dict[str, dict[str, int]] = {
    "restart": {"spare": 261_000, "starting": 680_000, "recomputed": 631_000, "dead_undetected": 72_000},
    "requeue": {"spare": 261_000, "recovering": 1_330_000, "recomputed": 570_000},
    "holdfast-static": {"spare": 261_000, "recovering": 33_000, "slowdown": 4_300},
    "holdfast": {"spare": 261_000, "recovering": 33_000, "slowdown": 4_300},
}
"""GPU-hours that a policy loses in the run of the first seed; each further one loses a hundredth more."""

AROUND = """<!doctype html><meta charset="utf-8">
<iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{page}"></iframe>
<pre></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const seen = (selector) => [...page.querySelectorAll(selector)].map((one) => one.getBoundingClientRect());
  const texts = seen("svg text").filter((box) => box.width);
  const cells = seen("th, td, p").filter((box) => box.width);
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    right_max: Math.max(...[...texts, ...cells].map((box) => box.right)),
    left_min: Math.min(...[...texts, ...cells].map((box) => box.left)),
    text_px_min: Math.min(...texts.map((box) => box.height)),
  }});
}};
</script>
"""


class Measured(msgspec.Struct):
    """The page in a browser: how wide it is, what its letters reach, and how high they are in charts."""

    width: float
    right_max: float
    left_min: float
    text_px_min: float


class Page(HTMLParser):
    """A page taken apart; a tag that is not closed, or closed twice, is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        assert text.startswith("<!doctype html>")
        self.open: list[str] = []
        self.tags: set[str] = set()
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
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["text"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def section(self, title: str, until: str) -> str:
        return self.text.partition(title)[2].partition(until)[0]


def played(policy: str, seed: int) -> Figures:
    """A run made up: later seeds lose a little more."""
    lost = {key: hours * (100 + seed) // 101 for key, hours in LOSSES[policy].items()}
    useful = PAID_GPU_HOURS - sum(lost.values()) - UNKNOWN_GPU_HOURS
    partition = {category.key: 0 for category in Category} | lost
    partition |= {"useful": useful, "unattributed": UNKNOWN_GPU_HOURS}
    return Figures(
        policy=policy,
        seed=seed,
        interruptions=400 + 5 * seed,
        planned=50,
        restarts=460 if policy.startswith("re") else 0,
        steps=640_000 - seed,
        rolled_back_steps=0,
        effective_time=useful / (PAID_GPU_HOURS - lost["spare"]),
        goodput=useful / (PAID_GPU_HOURS - UNKNOWN_GPU_HOURS),
        paid_gpu_hours=PAID_GPU_HOURS,
        useful_gpu_hours=useful,
        unknown_gpu_hours=UNKNOWN_GPU_HOURS,
        lost_gpu_hours=sum(lost.values()),
        cost_usd=PRICE_USD * sum(lost.values()),
        partition={key: hours * HOUR_NS for key, hours in partition.items()},
        is_exact=True,
    )


def compare(*named: str, runs: int = 20) -> Comparison:
    known: dict[str, Policy] = {one.name: one for one in policies(GPUS, SPARE_NODES)}
    groups = {name: [played(name, seed) for seed in range(1, runs + 1)] for name in named}
    return Comparison(
        preset=LLAMA3.title,
        source=LLAMA3.source,
        command="holdfast simulate --preset llama3-405b",
        gpus=GPUS,
        preset_gpus=GPUS,
        days=DAYS,
        preset_days=DAYS,
        expected_interruptions=419.0,
        reported=LLAMA3.published,
        seed=1,
        runs=runs,
        usd_per_gpu_hour=PRICE_USD,
        price_source="a list of prices",
        is_exact=True,
        policies=tuple(summarise(known[name], groups[name], groups[named[0]]) for name in named),
    )


@pytest.fixture(scope="module")
def many() -> Comparison:
    return compare("restart", "requeue", "holdfast")


def replayed(text: str) -> str:
    found = re.search(r"To play it again (holdfast simulate .*?) and --html OUT", text)
    assert found is not None
    return found[1]


def test_the_best_policy_is_held_against_the_first(many: Comparison) -> None:
    text = Page(render(many)).text
    first, best = many.policies[0], many.policies[2]
    summary = text[: text.index("Effective time by policy")]
    assert f"{LLAMA3.title} 16,384 GPUs 54 days 3 policies, 20 runs of each" in summary
    assert (
        f"{wording.percent(best.effective_time.p50)} of the time in the run is effective with Holdfast"
        in (summary)
    )
    assert f"against {wording.percent(first.effective_time.p50)} with full restart from checkpoint" in summary
    assert f"Saved against restart {wording.rough(best.saved_usd.p50)} USD" in summary
    low, high = wording.rough(best.saved_usd.p10), wording.rough(best.saved_usd.p90)
    assert f"{low.removesuffix(' million')} to {high} USD in eight of ten runs" in summary
    assert f"{wording.rough(best.saved_gpu_hours.p50)} GPU-hours" in summary
    assert f"as much as {best.saved_gpu_hours.p50 / (24 * DAYS):,.0f} GPUs do in 54 days" in summary


def test_effective_time_of_every_policy_with_its_spread(many: Comparison) -> None:
    section = Page(render(many)).section("Effective time by policy", "Where the lost GPU-hours go")
    assert "Its owners reported at least 90.0 %" in section
    for one in many.policies:
        middle, low, high = (
            wording.percent(value)
            for value in (one.effective_time.p50, one.effective_time.p10, one.effective_time.p90)
        )
        reach = high if low == high else f"{low.removesuffix(' %')} to {high}"
        assert f"{one.policy} {one.title} {middle} {reach}" in section


def test_every_loss_has_its_category_and_colour_and_they_sum(many: Comparison) -> None:
    page = render(many)
    section = Page(page).section("Where the lost GPU-hours go", "Interruptions, and how many")
    for category in Category:
        hours = [one.partition_gpu_hours[category.key] for one in many.policies]
        is_shown = category.key not in ("useful", "unattributed") and any(hours)
        row = f"{category.meaning} {' '.join(f'{value:,.0f}' for value in hours)}"
        assert (row in section) is is_shown
        assert (f'<rect class="mark c-{category.key}"' in page) is is_shown
    sums = [
        sum(hours for key, hours in one.partition_gpu_hours.items() if key not in ("useful", "unattributed"))
        for one in many.policies
    ]
    assert f"Lost {' '.join(f'{value:,.0f}' for value in sums)}" in section


def test_every_policy_has_its_three_amounts(many: Comparison) -> None:
    section = Page(render(many)).section("Where the lost GPU-hours go", "Interruptions")
    for one in many.policies:
        useful, lost = one.partition_gpu_hours["useful"], one.lost_gpu_hours_mean
        assert useful + lost + UNKNOWN_GPU_HOURS == pytest.approx(PAID_GPU_HOURS)
        three = f"Of all: {useful:,.0f} GPU-hours useful, {lost:,.0f} lost, {UNKNOWN_GPU_HOURS:,} not known."
        assert three in section


def test_bars_have_one_scale_and_are_as_long_as_the_losses(many: Comparison) -> None:
    strips = re.findall(r'<svg class="strip".*?</svg>', render(many))
    ends = [
        max(float(x) + float(width) for x, width in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', strip))
        for strip in strips
    ]
    paid = PAID_GPU_HOURS - UNKNOWN_GPU_HOURS
    lost = [paid - one.partition_gpu_hours["useful"] for one in many.policies]
    assert ends == pytest.approx([100 * value / max(lost) for value in lost], abs=BAR_PERCENT_MIN)


def test_all_figures_are_there_in_one_unit_a_row(many: Comparison) -> None:
    section = Page(render(many)).section("All figures", "Assumptions and sources")
    saved = [one.saved_usd for one in many.policies]
    assert f"Not known, GPU-hours steps that the end cuts off {UNKNOWN_GPU_HOURS:,} " in section
    assert f"Paid, million GPU-hours the job’s nodes and the spares {PAID_GPU_HOURS / 1e6:.2f} " in section
    assert saved[1].p50 < 0 < saved[2].p10
    assert (
        "Saved, million USD against the first policy 0 "
        f"−{-saved[1].p50 / 1e6:.2f} −{-saved[1].p10 / 1e6:.2f} to −{-saved[1].p90 / 1e6:.2f} "
        f"{saved[2].p50 / 1e6:.2f} {saved[2].p10 / 1e6:.2f} to {saved[2].p90 / 1e6:.2f}"
    ) in section
    assert "Restarts of the whole job 460 460 0" in section


def test_interruptions_against_what_was_to_be_expected(many: Comparison) -> None:
    section = Page(render(many)).section("Interruptions, and how many were expected", "All figures")
    assert (
        "419 failures strike the job’s nodes in 54 days, eight of ten times 393 to 445 (Poisson)" in section
    )
    assert "Its owners counted 419 (The Llama 3 Herd of Models (arXiv:2407.21783), Table 5)" in section
    assert "restart full restart from checkpoint (torchrun) 452 414 to 490" in section


def test_what_it_rests_on(many: Comparison) -> None:
    page = Page(render(many))
    section = page.section("Assumptions and sources", "Made by Holdfast")
    assert LLAMA3.source in section
    assert "Assumed: 4.00 USD a GPU-hour, for all GPUs including spares: a list of prices" in section
    for one in many.policies:
        assert f"{one.policy} 32 spare nodes {wording.opening(one.source)}" in section
    assert "Seeds 1 to 20, the same ones for every policy" in section
    assert "the events of all 60 runs" in section
    assert "to the nanosecond" in section
    assert replayed(page.text) == many.command
    priced = Page(render(msgspec.structs.replace(many, price_source=GIVEN))).text
    assert "Price 4.00 USD a GPU-hour, for all GPUs including spares: the prices file" in priced


def pages(folder: Path, words: list[str]) -> str:
    """The page that `holdfast simulate` writes."""
    path = folder / "page.html"
    run = [*words, "--processes", "1", "--html", str(path)]
    done = CliRunner().invoke(simulate, run, env={"HOLDFAST_HOME": str(folder), "HOLDFAST_PRICES": ""})
    assert done.exit_code == 0, done.output
    return path.read_text(encoding="utf-8")


def test_the_command_plays_the_same_again(tmp_path: Path) -> None:
    asked = "--preset rsc-1-1024 --policy restart --policy spares --gpus 256 --days 2.5 --spares 3"
    first = pages(tmp_path, shlex.split(f"{asked} --runs 2 --seed 7"))
    text = Page(first).text
    assert "restart 3 spare nodes" in text
    assert "spares 4 spare nodes" in text
    assert replayed(text) == f"holdfast simulate {asked} --seed 7 --runs 2"
    assert pages(tmp_path, shlex.split(replayed(text))[2:]) == first


def test_rates_prices_and_crews_of_ones_own(tmp_path: Path) -> None:
    rates, prices = tmp_path / "our rates.json", tmp_path / "our prices.toml"
    rates.write_bytes(msgspec.json.encode({"preset": OWN_HAZARDS}))
    prices.write_text("usd_per_gpu_hour = 2.5\n", encoding="utf-8")
    files = ["--rates", str(rates), "--prices", str(prices)]
    first = pages(tmp_path, ["--preset", "acme", "--days", "5", "--crews", "2", *files])
    text = Page(first).text
    assert f"Cluster and failures failures: {rates}; the rest: {preset('acme').source}" in text
    assert "2.50 USD a GPU-hour" in text
    # 256 nodes for 5 days at 25 in 1000 node-days; what is gray or planned does not interrupt.
    assert "At the cluster’s rates 32 failures strike the job’s nodes in 5 days" in text
    assert replayed(text).endswith(f"acme --days 5 --crews 2 {shlex.join(files)} --seed 1 --runs 1")
    assert pages(tmp_path, shlex.split(replayed(text))[2:]) == first


@pytest.mark.parametrize(
    ("asked", "is_theirs"),
    sampled(
        [
            ("", True),
            ("--gpus 16384 --days 54", True),
            ("--gpus 1024", False),
            ("--gpus 8192", False),
            ("--days 1", False),
            ("--days 53", False),
            ("--rates rates.json", False),
        ],
        [("--gpus 16384 --days 54", True), ("--gpus 1024", False), ("--days 1", False)],
    ),
)
def test_only_their_own_cluster_is_held_against_what_its_owners_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, is_theirs: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rates.json").write_bytes(msgspec.json.encode({"preset": LLAMA3.hazards}))
    text = Page(pages(tmp_path, ["--preset", "llama3-405b", "--policy", "restart", *asked.split()])).text
    assert ("Its owners counted 419" in text) is is_theirs
    assert ("Its owners reported at least 90.0 %" in text) is is_theirs


def test_another_size_is_told(many: Comparison) -> None:
    text = Page(render(msgspec.structs.replace(many, gpus=GPUS // 2, days=27))).text
    assert "8,192 GPUs in place of 16,384 27 days in place of 54" in text


def test_one_run_has_no_spread() -> None:
    page = render(compare("restart", "holdfast", runs=1))
    text = Page(page).text
    assert 'class="reach' not in page
    assert page.count("<circle") == 4
    assert "2 policies, 1 run of each" in text
    assert "eight of ten runs" not in text
    assert "P10" not in text
    assert "One run says nothing about spread" in text


def test_one_policy_alone() -> None:
    compared = compare("restart")
    text = Page(render(compared)).text
    assert "1 policy, 20 runs of each" in text
    assert f"Lost all the same {wording.rough(compared.policies[0].cost_usd.p50)} USD" in text


def test_nothing_is_better_than_the_first() -> None:
    text = Page(render(compare("restart", "requeue"))).text
    assert "None of the others loses less" in text
    assert "effective with full restart from checkpoint (torchrun) ." in text


def test_one_that_saves_nothing_is_not_better() -> None:
    text = Page(render(compare("holdfast-static", "holdfast"))).text
    assert "None of the others loses less" in text
    assert "Holdfast came out the same" in text


def test_policies_that_came_out_alike_are_named() -> None:
    text = Page(render(compare("restart", "holdfast-static", "holdfast"))).text
    assert "effective with Holdfast , against" in text
    assert "Holdfast, without rebalancing came out the same" in text


def test_a_ledger_that_disagrees_is_told_first(many: Comparison) -> None:
    wrong = msgspec.structs.replace(many.policies[1], is_exact=False)
    compared = msgspec.structs.replace(
        many, is_exact=False, policies=(many.policies[0], wrong, many.policies[2])
    )
    text = Page(render(compared)).text
    assert text.index("This is a defect: do not rely on this page.") < text.index("is effective with")
    assert "agree with the simulation’s own sums under requeue." in text
    assert "to the nanosecond" not in text


def test_nothing_lost_and_nothing_paid_for(many: Comparison) -> None:
    nothing = Spread(p10=0.0, p50=0.0, p90=0.0)
    fields = ("paid_gpu_hours", "lost_gpu_hours", "cost_usd", "saved_gpu_hours", "saved_usd", "interruptions")
    idle = msgspec.structs.replace(
        many.policies[0],
        partition_gpu_hours={category.key: 0.0 for category in Category},
        effective_time=nothing,
        **dict.fromkeys(fields, nothing),
    )
    assert "Nothing is lost." in Page(render(msgspec.structs.replace(many, policies=(idle,)))).text


def test_names_are_text_and_never_markup(many: Comparison) -> None:
    one = msgspec.structs.replace(many.policies[0], policy=EVIL, title=EVIL, source=EVIL)
    told = dict.fromkeys(("preset", "source", "command", "price_source"), EVIL)
    page = render(msgspec.structs.replace(many, policies=(one,), **told))
    assert EVIL not in page
    assert "script" not in Page(page).tags
    assert page.count(html.escape(EVIL)) > 10


def test_the_page_needs_nothing_else(many: Comparison) -> None:
    page = render(many)
    assert Page(page).links == []
    assert "script" not in Page(page).tags
    assert "default-src 'none'" in page
    assert len(page.encode()) < PAGE_BYTES_MAX


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted))
def test_shares_are_drawn_within_their_axis(values: list[float]) -> None:
    spread = Spread(p10=values[0], p50=values[1], p90=values[2])
    axis = simulation_charts.axis_of_shares([spread])
    places = [axis.percent(value) for value in values]
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)
    assert places == sorted(places)
    assert axis.labels[-1] == (1.0, "100 %")
    assert len({text for _, text in axis.labels}) == len(axis.labels)


@given(st.floats(0, 1e9))
def test_counts_are_drawn_within_their_axis(count: float) -> None:
    axis = simulation_charts.axis_of_counts([Spread(p10=count, p50=count, p90=count)])
    assert 0 <= axis.percent(count) <= 100


@pytest.mark.parametrize(
    ("width_px", "name"),
    sampled(
        [(width_px, name) for width_px in (320, 390, 1_280) for name in (None, LONG_NAME)],
        [(320, LONG_NAME), (1_280, None)],
    ),
    ids=lambda value: {None: "ordinary names", LONG_NAME: "names without a space"}.get(value),
)
def test_the_page_fits(
    browser: str, tmp_path: Path, many: Comparison, width_px: int, name: str | None
) -> None:
    compared = many
    if name is not None:
        worst = msgspec.structs.replace(many.policies[1], policy=name, title=name, source=name)
        compared = msgspec.structs.replace(
            many,
            source=name,
            command=name,
            price_source=name,
            policies=(many.policies[0], worst, many.policies[2]),
        )
    measured = measure(browser, tmp_path, render(compared), width_px)
    assert measured.width <= width_px
    assert measured.left_min >= 0
    assert measured.right_max <= width_px
    assert measured.text_px_min >= 12


def measure(browser: str, folder: Path, page: str, width_px: int) -> Measured:
    around = folder / "around.html"
    around.write_text(AROUND.format(width=width_px, page=html.escape(page)), encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    done = subprocess.run(
        [browser, *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom", around.as_uri()],
        capture_output=True,
        text=True,
        timeout=BROWSER_S_MAX,
        check=True,
    )
    written = re.search(r"<pre>(\{.*\})</pre>", done.stdout)
    assert written is not None, done.stderr
    return msgspec.json.decode(html.unescape(written[1]), type=Measured)


def test_the_page_is_in_the_currency_of_the_prices(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        'currency = "EUR"\n[usd_per]\nEUR = 1.25\n[[rates]]\nper_gpu_hour = 2.5\n', encoding="utf-8"
    )
    text = Page(pages(tmp_path, ["--preset", "acme", "--days", "5", "--prices", str(prices)])).text
    assert "2.00 EUR a GPU-hour" in text  # 2.50 USD
    assert "USD" not in text
    assert "Assumed: 2.00" not in text
