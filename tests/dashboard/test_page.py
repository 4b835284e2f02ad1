"""The page of a report: what it says is what the report says, for ordinary runs and for odd ones."""

import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast import wording
from holdfast.dashboard.page import GROUPS, INCIDENTS_SHOWN_MAX, STACKS_SHOWN_MAX, render
from holdfast.economics.pricing.cost import run_cost
from holdfast.economics.pricing.prices import DEFAULTS, read
from holdfast.ledger.categories import Category
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Course, IncidentReport, MeasuredFigure, Report
from holdfast.ledger.reporting import report
from holdfast.ledger.timeline import BUCKETS_MAX
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointBegun,
    CheckpointLoaded,
    CheckpointSaved,
    CollectiveTimed,
    CostRate,
    FaultObserved,
    KnownEvent,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    RunSubmitted,
    StepCommitted,
)
from holdfast.record.importers import Options, import_file

PUBLISHED = Path(__file__).parents[1] / "data" / "google-70b-112-nodes-events.jsonl"
PAGE_BYTES_MAX = 300_000
NOON_NS = 1_743_595_200 * 10**9
"""2 April 2025, 12:00 UTC."""

VOID = {"meta"}
"""What HTML leaves without an end; in SVG an element may end itself."""


class Page(HTMLParser):
    """A page taken apart; a tag that is not closed, or closed twice, is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        assert text.startswith("<!doctype html>")
        self.html = text
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.titles: list[str] = []
        self.script = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} stands twice"
        assert "svg" in self.open or tag not in {"rect", "line", "path", "text"}
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.script += data
        elif self.open[-1:] == ["title"] and "svg" in self.open:
            self.titles.append(data)
        elif self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, every run of blanks one blank."""
        return " ".join(" ".join(self.words).split())

    def marks(self, tag: str) -> set[str]:
        """The categories that elements of this kind are coloured as."""
        classes = " ".join(attributes.get("class", "") for name, attributes in self.elements if name == tag)
        return set(re.findall(r"\bc-(\w+)", classes))

    def attributes(self, tag: str, name: str) -> list[str]:
        return [
            attributes[name] for found, attributes in self.elements if found == tag and name in attributes
        ]


class Story:
    """A run told event by event; `at_s` is when the next one happens."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.events: list[AnyEvent] = []

    def tell(self, kind: Callable[..., KnownEvent], after_s: float = 0, **fields: Any) -> "Story":
        self.at_s += after_s
        at_ns = NOON_NS + round(self.at_s * 10**9)
        self.events.append(
            kind(id=f"story-{len(self.events):010x}", occurred_ns=at_ns, run="story", **fields)
        )
        return self

    def steps(self, first: int, last: int, step_s: float) -> "Story":
        for step in range(first, last + 1):
            self.tell(StepCommitted, step_s, step=step)
        return self

    def report(self, run: str = "story") -> Report:
        ledger = Ledger()
        ledger.add(self.events)
        return report(run, ledger.fold)


def eventful() -> Report:
    """A run with something of nearly everything, the two numbers among it."""
    story = Story().tell(RunSubmitted, name="llama-70b-pretrain", team="foundation models")
    story.tell(CostRate, gpus=144).tell(RunStarted, 600)
    story.tell(
        ReferenceDeclared,
        step_ns=10 * 10**9,
        gpus=128,
        tokens_per_step=4_194_304,
        model_flops_per_step=4_194_304 * 6 * 70e9 * 0.3,
        params=70_000_000_000,
        chip="h100",
        precision="bf16",
    )
    for node in range(18):
        story.tell(MemberJoined, subject=f"node-{node:02d}", gpus=8, role="spare" if node > 15 else "active")
    story.tell(PhaseEntered, phase="init").tell(CheckpointLoaded, 300, step=0).steps(1, 60, 10)
    story.tell(CheckpointBegun, step=60).tell(CheckpointSaved, 45, step=60).steps(61, 100, 10)
    story.tell(PhaseEntered, phase="eval").tell(PhaseEntered, 240, phase="step").steps(101, 130, 10)
    story.tell(
        FaultObserved,
        200,
        fault="XID 79: GPU fell off the bus",
        subject="node-03",
        onset_ns=story_ns(story, 20),
    )
    story.tell(ActionTaken, 120, action="replace").tell(MemberLost, subject="node-03", reason="drained")
    story.tell(MemberJoined, 30, subject="node-16", gpus=8)
    story.tell(CheckpointLoaded, 90, step=60).steps(61, 160, 10)
    story.tell(FaultObserved, fault="thermal throttling", subject="rack-7", severity="degraded").steps(
        161, 200, 14
    )
    story.tell(ActionTaken, action="rebalance").steps(201, 260, 10)
    story.tell(PhaseEntered, phase="data").tell(PhaseEntered, 130, phase="step").steps(261, 290, 10)
    story.tell(
        CollectiveTimed, collective="all-reduce", size_bytes=8 * 2**30, ranks=128, duration_ns=48_000_000
    )
    story.tell(PhaseEntered, phase="stop").tell(RunEnded, 300, outcome="completed").tell(
        CostRate, 900, gpus=0
    )
    return story.report()


def story_ns(story: Story, after_s: float) -> int:
    return NOON_NS + round((story.at_s + after_s) * 10**9)


def quiet(**changes: Any) -> Report:
    """A hundred steps on eight GPUs with nothing the matter, changed as the test wants it."""
    story = Story().tell(RunStarted, gpus=8).tell(PhaseEntered, phase="step").steps(1, 100, 10)
    return msgspec.structs.replace(story.report(), **changes)


def incident(number: int, **changes: Any) -> IncidentReport:
    began_ns = NOON_NS + number * 10**9
    return msgspec.structs.replace(
        IncidentReport(
            name=str(number),
            what="link down",
            subject=f"leaf-{number}",
            severity="fatal",
            began_ns=began_ns,
            noticed_ns=began_ns + 20 * 10**9,
            recovered_ns=began_ns + 90 * 10**9,
            restarts=1,
            members_lost=0,
            steps_rolled_back=3,
            lost_gpu_ns=36 * 10**11,
            losses={"recovering": 30 * 10**11, "discarded": 6 * 10**11},
            evidence=(f"event-{number}",),
        ),
        **changes,
    )


@pytest.fixture(scope="module")
def published() -> Report:
    """The run of 112 nodes that Google published."""
    ledger = Ledger()
    with import_file(PUBLISHED, Options(reference_step_s=8)) as reading:
        ledger.add(sorted(reading, key=lambda event: (event.occurred_ns, event.id)))
    return report("google", ledger.fold)


# -- what it says ------------------------------------------------------------------------------------


def test_the_published_run_in_ten_seconds(published: Report) -> None:
    text = Page(render(published)).text
    first, _, rest = text.partition("Where the GPU time went")
    assert "2 Apr 2025, 06:08 to 15:57 UTC 9 h 49 min 896 GPUs 8,802 GPU-hours paid for" in first
    assert "41.6 % of the GPU time paid for was useful: 3,659 of 8,802 GPU-hours." in first
    assert re.search(
        r"Largest losses Starting 3,941 GPU-hours 44.8 % .* Discarded 624 GPU-hours 7.1 % .*"
        r" Dead undetected 259 GPU-hours 2.9 %",
        first,
    )
    assert "Not known: declare the model's FLOPs per step and the chip." in first
    assert "Record how long collectives take (collective.timed events) to get it." in first
    assert "100.0 % scheduling of what was paid for, a run had × 41.6 % runtime" in rest
    assert "48 starts hide 20 more launches" in rest


@pytest.mark.parametrize(
    ("told", "shown", "is_alarming"),
    [
        ({"outcome": "completed"}, "Completed", False),
        ({"outcome": "completed", "survived_errors": 2}, "Completed with 2 survived errors", False),
        ({"outcome": "stopped", "reason": "SIGTERM"}, "Stopped: SIGTERM", False),
        (
            {"outcome": "failed", "reason": "<b> is no tensor", "survived_errors": 1},
            "Failed with 1 survived error: <b> is no tensor",
            True,
        ),
    ],
)
def test_how_the_run_ended(told: dict[str, Any], shown: str, is_alarming: bool) -> None:
    story = Story().tell(RunStarted, gpus=8).steps(1, 9, 10)
    assert "ended" not in " ".join(Page(render(story.report())).attributes("p", "class"))
    page = Page(render(story.tell(RunEnded, **told).report()))
    assert shown in page.text
    assert ("ended alarm" if is_alarming else "ended") in page.attributes("p", "class")


def test_every_category_is_in_the_ledger_with_its_exact_sum_and_meaning(published: Report) -> None:
    text = Page(render(published)).text
    ledger = text[text.index("The ledger Every GPU-second") :]
    amounts = wording.Amounts(published.paid_gpu_ns)
    for category in Category:
        part = published.partition[category.key]
        label = wording.opening(category.label)
        figures = f"{amounts.hours(part)} {amounts.share(part)} {wording.exact_seconds(part)}"
        assert f"{label} {category.meaning} {figures}" in ledger
    assert "sum to 31,686,399.799936000 GPU-seconds, which is exactly what was paid for" in ledger


def test_the_groups_have_every_category_once() -> None:
    grouped = [category for _, categories in GROUPS for category in categories]
    assert sorted(grouped) == list(Category)


def test_a_sum_that_is_wrong_is_not_called_exact() -> None:
    text = Page(render(quiet(paid_gpu_ns=8_001 * 10**9))).text
    assert "which is exactly what was paid for" not in text
    assert "sum to 8,000.000000000 GPU-seconds, but 8,001.000000000 were paid for. This is a defect" in text


def test_the_waterfall_falls_from_all_to_what_was_useful(published: Report) -> None:
    page = Page(render(published))
    table = page.html[page.html.index('class="waterfall"') : page.html.index("Nothing went to")]
    bars = [
        (float(left), float(width))
        for left, width in re.findall(r'x="([\d.]+)%" y="18%" width="([\d.]+)%', table)
    ]
    shares = [
        100 * part / published.paid_gpu_ns for key, part in published.partition.items() if key != "useful"
    ]
    shares = sorted((share for share in shares if share), reverse=True)
    assert [width for _, width in bars[1:-1]] == pytest.approx(
        [max(0.25, share) for share in shares], abs=0.01
    )
    for index, (left, _) in enumerate(bars[1:]):
        assert left == pytest.approx(
            max(0, 100 - sum(shares[: index + 1]) - 41.57 * (index == len(shares))), abs=0.02
        )
    zeros = [category.label for category in Category if not published.partition[category.key]]
    assert f"Nothing went to: {', '.join(zeros)}." in page.text


def test_what_is_in_the_chart_is_in_the_legend(published: Report) -> None:
    for told in (published, eventful()):
        page = Page(render(told))
        drawn = {key for bucket in told.course.buckets for key in bucket}
        assert page.marks("path") == drawn
        legend = page.html[page.html.index('class="legend"') : page.html.index("Incidents</h2>")]
        assert set(re.findall(r"\bc-(\w+)", legend)) == drawn
        assert all(f"</i>{Category[key.upper()].label}</li>" in legend for key in drawn)


def test_the_worst_incidents_have_rows_and_the_rest_a_sum(published: Report) -> None:
    page = Page(render(published))
    amounts = wording.Amounts(published.paid_gpu_ns)
    all_gpu_ns, rest_gpu_ns = (
        sum(one.lost_gpu_ns for one in published.incidents[start:]) for start in (0, INCIDENTS_SHOWN_MAX)
    )
    assert f"22 incidents lost {amounts.hours(all_gpu_ns)} GPU-hours" in page.text
    assert f"2 more incidents lost {amounts.hours(rest_gpu_ns)} GPU-hours together." in page.text
    assert all(f" {amounts.hours(one.lost_gpu_ns)} " in page.text for one in published.incidents[:20])
    rows = page.attributes("tr", "id")
    assert rows == [f"incident-{one.name}" for one in published.incidents[:INCIDENTS_SHOWN_MAX]]
    assert set(page.attributes("a", "href")) <= {f"#{row}" for row in rows}


def test_an_incident_has_the_name_that_it_can_be_asked_for_by(published: Report) -> None:
    page = Page(render(published))
    began = sorted(published.incidents, key=lambda one: one.began_ns)
    assert [one.name for one in began] == [str(number) for number in range(1, 23)]
    worst = published.incidents[0]
    assert f" {worst.name} {wording.moment(worst.began_ns)} Unexplained restart" in page.text
    named = {title.split(":")[0] for title in page.titles if title.startswith("Incident ")}
    assert f"Incident {worst.name}" in named
    assert named <= {f"Incident {one.name}" for one in published.incidents}


# -- what it cost ------------------------------------------------------------------------------------


def cost_section(page: Page) -> str:
    return page.html[page.html.index("What it cost</h2>") : page.html.index("Goodput</h2>")]


def test_the_stack_has_the_five_layers_of_the_cost(published: Report) -> None:
    page, cost = Page(render(published)), run_cost(published, DEFAULTS)
    section = cost_section(page)
    amounts = [layer.usd or 0.0 for layer in cost.total.layers]
    stack = section[section.index('class="stack"') :].partition("</svg>")[0]
    widths = re.findall(r'l-(\w+)" x="[\d.]+%" width="([\d.]+)%', stack)
    assert [key for key, _ in widths] == [layer.key for layer in cost.total.layers]
    assert [float(width) for _, width in widths] == pytest.approx(
        [100 * amount / sum(amounts) for amount in amounts], abs=0.01
    )
    for layer in cost.total.layers:
        assert f"{wording.opening(layer.title)} {layer.formula} {layer.usd:,.0f} " in page.text
    assert cost.total.together is not None
    assert cost.total.together.caveat in page.text
    least, most = cost.total.together.usd_min, cost.total.together.usd_max
    assert f"In money between {least:,.0f} USD and {most:,.0f} USD, in five layers." in page.text


def test_the_costliest_incidents_have_a_stack_each(published: Report) -> None:
    section = cost_section(Page(render(published)))
    rows = re.findall(r'<a href="#incident-(\w+)">', section)
    assert rows == [one.name for one in published.incidents[:STACKS_SHOWN_MAX]]
    assert section.count('class="stack"') == 1 + STACKS_SHOWN_MAX
    assert "100.00%" not in section  # the layers of one share the length of its bar


def test_every_price_says_whether_it_is_assumed(published: Report) -> None:
    assert cost_section(Page(render(published))).count("<b>Assumed:</b>") == 7
    own = read("usd_per_gpu_hour = 1.25\nusd_per_day_of_delay = 1000")
    page = Page(render(published, own))
    assert cost_section(page).count("<b>Assumed:</b>") == 5
    assert "Price 1.25 USD/GPU-h the prices file" in page.text
    assert "Value of a day 1,000 USD/day the prices file" in page.text


def test_gpus_that_cost_nothing(published: Report) -> None:
    free = read("usd_per_gpu_hour = 0\nlabour_usd_per_hour = 0")
    section = cost_section(Page(render(published, free)))
    assert "between 0.00 USD and 0.00 USD" in section
    assert '<rect class="mark l-' not in section


def test_a_loss_without_incidents_has_no_table_of_them() -> None:
    page = Page(
        render(
            Story()
            .tell(RunStarted, gpus=8)
            .steps(1, 5, 10)
            .tell(RunEnded, outcome="completed")
            .tell(CostRate, gpus=8)
            .tell(CostRate, 60, gpus=0)
            .report()
        )
    )
    assert "GPU-hours were lost" in page.text
    assert "Costliest incidents" not in page.text


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({}, "2 Apr 2025, 12:01 Link down leaf-60 20 s 1 min 30 s 1 3 1.00"),
        ({"recovered_ns": None}, "Link down leaf-60 20 s not recovered 1 3 1.00"),
        ({"subject": "", "members_lost": 8}, "Link down 8 members lost 20 s 1 min 30 s 1 3 1.00"),
        ({"severity": "degraded", "members_lost": 1}, "leaf-60 slowed the run 1 member lost 20 s"),
        ({"noticed_ns": NOON_NS + 60 * 10**9}, "Link down leaf-60 at once 1 min 30 s"),
        ({"noticed_ns": NOON_NS + 60 * 10**9, "evidence": ()}, "Link down leaf-60 never reported 1 min 30 s"),
    ],
)
def test_the_row_of_an_incident(changes: dict[str, Any], row: str) -> None:
    page = Page(render(quiet(incidents=(incident(60, **changes),))))
    assert row in page.text
    strip = page.html[page.html.index('class="strip"') :].partition("</svg>")[0]
    assert re.findall(r'c-(\w+)" x="([\d.]+)%" width="([\d.]+)%', strip) == [
        ("recovering", "0.00", "83.33"),
        ("discarded", "83.33", "16.67"),
    ]


def test_an_eventful_run_tells_what_it_knows() -> None:
    told = eventful()
    text = Page(render(told)).text
    assert told.mfu is not None
    assert told.mfu.reference is not None
    assert told.bandwidth is not None
    assert told.goodput.program is not None
    assert "Training run · foundation models story (llama-70b-pretrain)" in text
    assert f"{told.mfu.measured:.1f} % reference {told.mfu.reference:.1f} % {told.mfu.sentence}" in text
    assert f"{told.bandwidth.measured:.1f} GB/s reference" in text
    assert told.bandwidth.sentence in text
    program, total = wording.percent(told.goodput.program), wording.percent(told.goodput.total)
    assert f"{total} useful scheduling × runtime × {program} program" in text
    assert "A normal step, declared 10 s on 128 GPUs" in text
    assert f"Tokens per GPU-hour {told.useful_work.tokens_per_gpu_hour:,.0f}" in text


# -- odd runs ----------------------------------------------------------------------------------------


def test_nothing_paid_for() -> None:
    text = Page(render(Story().tell(RunStarted).steps(1, 5, 10).report())).text
    assert "No GPU time was paid for" in text
    assert "Nothing was paid for at any time." in text
    assert "what it lost cannot be priced" in text
    assert "sum to 0.000000000 GPU-seconds" in text


def test_a_run_of_no_length() -> None:
    text = Page(render(Story().tell(RunStarted, gpus=8).report())).text
    assert "2 Apr 2025, 12:00:00 to 12:00:00 UTC 0 s" in text
    assert "No GPU time was paid for" in text


def test_no_incidents_and_nothing_lost() -> None:
    page = Page(render(quiet()))
    assert (
        "100.0 % of the GPU time paid for was useful: 2.22 of 2.22 GPU-hours, estimated ± 0.2 %." in page.text
    )
    assert "Nothing was lost." in page.text
    assert "No incidents are recorded." in page.text
    assert "Nothing was lost, so there is nothing to price." in page.text
    assert page.attributes("a", "href") == []


def test_a_job_of_which_only_start_and_end_are_known() -> None:
    page = Page(render(Story().tell(RunStarted, gpus=64).tell(RunEnded, 3_600, outcome="completed").report()))
    assert "Unknown Nothing recorded says how the 64.00 GPU-hours paid for were used." in page.text
    assert page.marks("path") == {"unattributed"}
    assert "c-useful" not in " ".join(page.attributes("p", "class"))
    assert "0.0 % of the GPU time" not in page.text


def test_what_is_not_known_is_no_loss_and_said_beside_the_headline() -> None:
    """100 steps of 10 s, and as long again without a line."""
    story = Story().tell(RunStarted, gpus=8).steps(1, 100, 10)
    page = Page(render(story.tell(RunEnded, 1_000, outcome="completed").report()))
    assert "of the GPU time that is known was useful: 2.22 of 2.22 GPU-hours" in page.text
    assert "2.22 GPU-hours useful, 0.00 lost, 2.22 not known" in page.text
    assert "50.0 % of what was paid for is not known; of all of it, 50.0 % to 100.0 % was" in page.text
    assert "Nothing is known to have been lost." in page.text
    assert "2.22 GPU-hours are not known (after the last recorded step). Record in the script" in page.text


def test_what_was_paid_in_money_is_in_the_head() -> None:
    assert "2.22 GPU-hours paid for (5.56 USD)" in Page(render(quiet(paid_usd=5.5555))).text
    assert "USD" not in Page(render(quiet(paid_usd=None))).text


def test_an_impossible_hfu_has_no_parts_of_the_useful_time() -> None:
    flops, story = 989e12 * 8 * 10, Story().tell(RunStarted, gpus=8)
    story.tell(
        ReferenceDeclared,
        chip="h100",
        params=70 * 10**9,
        model_flops_per_step=0.5 * flops,
        hardware_flops_per_step=1.5 * flops,
    )
    page = Page(render(story.steps(1, 100, 10).report()))
    assert "FLOPs computed again to save memory" not in page.text
    assert "An HFU of 150.0 % is impossible" in page.text


def test_a_number_without_a_reference() -> None:
    figure = MeasuredFigure(measured=51.25, reference=None, unit="%", sentence="51.2 % of the peak")
    page = Page(render(quiet(mfu=figure)))
    assert "51.2 % 51.2 % of the peak" in page.text
    assert "reference" not in page.attributes("line", "class")


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "&amp;'\""]
)
def test_what_others_named_is_text(hostile: str) -> None:
    named = incident(1, what=hostile, subject=hostile)
    told = quiet(run=hostile, name=hostile, team=hostile, incidents=(named,), remarks=(hostile,))
    page, plain = Page(render(told)), Page(render(quiet(incidents=(incident(1),), remarks=("",))))
    assert page.text.count(hostile) >= 6
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]


@pytest.mark.slow
def test_as_many_buckets_as_there_can_be() -> None:
    keys = [category.key for category in Category]
    width_ns = 2**36
    buckets = tuple(
        {key: (1 + (index * 7 + place * 13) % 29) * width_ns for place, key in enumerate(keys)}
        for index in range(BUCKETS_MAX)
    )
    partition = {key: sum(bucket[key] for bucket in buckets) for key in keys}
    told = quiet(
        course=Course(start_ns=NOON_NS, bucket_ns=width_ns, buckets=buckets, timed=(1,) * BUCKETS_MAX),
        last_ns=NOON_NS + BUCKETS_MAX * width_ns,
        partition=partition,
        paid_gpu_ns=sum(partition.values()),
        incidents=tuple(incident(number * 7) for number in range(4_000)),
    )
    page = Page(render(told))
    assert page.marks("path") == set(keys)
    assert "3,980 more incidents lost 3,980 GPU-hours together." in page.text
    assert len(page.html.encode()) < PAGE_BYTES_MAX


def test_very_long_names_are_cut() -> None:
    name = "n" * 5_000
    text = Page(render(quiet(name=name, team=name, incidents=(incident(1, what=name, subject=name),)))).text
    assert "n" * (wording.NAME_CHARS_MAX - 1) + "…" in text
    assert "n" * wording.NAME_CHARS_MAX not in text


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    parts=st.dictionaries(st.sampled_from([category.key for category in Category]), st.integers(0, 2**62)),
    name=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    spread=st.lists(st.integers(0, 5_000), max_size=60),
    end_s=st.integers(0, 2**32),
)
def test_any_report_makes_a_page(parts: dict[str, int], name: str, spread: list[int], end_s: int) -> None:
    """Of whatever amounts, names and moments: well formed, every number there, nothing outside its chart."""
    told = quiet(
        name=name,
        partition=parts,
        paid_gpu_ns=sum(parts.values()),
        course=Course(
            start_ns=NOON_NS,
            bucket_ns=2**40,
            buckets=(parts,) * (1 + len(spread)),
            timed=(1,) * (1 + len(spread)),
        ),
        last_ns=NOON_NS + end_s * 10**9,
        incidents=tuple(incident(at) for at in spread),
    )
    page = Page(render(told))
    assert " ".join(wording.short(name).split()) in page.text
    assert all(wording.exact_seconds(part) in page.text for part in parts.values())
    assert "defect" not in page.text
    percentages = [float(at) for at in re.findall(r'(?:x|x1|x2|width)="([^"%]+)%"', page.html)]
    assert all(0 <= at <= 100.01 for at in percentages)


# -- what it does not need ---------------------------------------------------------------------------


def test_the_page_is_small_and_loads_nothing(published: Report) -> None:
    page = Page(render(published))
    assert len(page.html.encode()) < 100_000
    assert not re.search(r"https?:|@import|url\((?!#hatch\))", page.html)
    assert not {"img", "link", "iframe", "object", "embed", "form", "base"} & {
        tag for tag, _ in page.elements
    }
    assert not any("src" in attributes or "style" in attributes for _, attributes in page.elements)
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_only_the_pages_own_script_may_run(published: Report) -> None:
    page = Page(render(published))
    own = b64encode(sha256(page.script.encode()).digest()).decode()
    assert page.attributes("meta", "content")[0].split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{own}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_same_report_makes_the_same_page(published: Report) -> None:
    assert render(published) == render(published)


def test_a_window_that_lost_steps_says_so(published: Report) -> None:
    """Steps 101 to 112 were rolled back in it, and none was made."""
    fewer = msgspec.structs.replace(published, counts=msgspec.structs.replace(published.counts, steps=-12))
    text = Page(render(fewer)).text
    assert "Steps 12 steps fewer than before" in text
    assert "-12" not in text
