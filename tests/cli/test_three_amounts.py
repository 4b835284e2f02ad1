"""One record, asked for by every verb: useful, lost and not known are the same three everywhere."""

import csv
import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import wording
from holdfast.economics.finance.statement import Finance
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointLoaded,
    CheckpointSaved,
    CostRate,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunEnded,
    RunStarted,
    StepCommitted,
    encode,
)
from holdfast.wording.units import HOUR_NS, MINUTE_NS
from tests.economics.finance.shown import assert_three

pytestmark = pytest.mark.slow

OCTOBER_NS = 1_790_812_800 * 10**9  # 1 October 2026
GPUS = 100
PRICE_USD = 2.0
Holdfast = Callable[..., Any]


class Lines:
    """The lines of a run of ten hours on a hundred GPUs at 2 USD, whose steps take a minute."""

    def __init__(self, run: str, team: str) -> None:
        self.run, self.events = run, list[AnyEvent]()
        self.tell(0, RunStarted, gpus=GPUS, team=team)
        self.tell(0, CostRate, usd_per_gpu_hour=PRICE_USD)

    def tell(self, hours: float, kind: Callable[..., AnyEvent], **fields: Any) -> "Lines":
        at_ns = OCTOBER_NS + round(hours * HOUR_NS)
        self.events.append(
            kind(id=f"{self.run}-{len(self.events):05}", occurred_ns=at_ns, run=self.run, **fields)
        )
        return self

    def steps(self, hours: float) -> "Lines":
        self.tell(0, ReferenceDeclared, step_ns=MINUTE_NS)
        for step in range(round(hours * 60)):
            self.tell((step + 1) / 60, StepCommitted, step=step)
        return self

    def stepping(self, hours: float, *, first: int, last: int) -> "Lines":
        """Steps of a minute from this moment on."""
        for number, step in enumerate(range(first, last + 1), 1):
            self.tell(hours + number / 60, StepCommitted, step=step)
        return self

    def end(self) -> "Lines":
        return self.tell(10, RunEnded, outcome="completed")


def taken_in(holdfast: Holdfast, folder: Path, *runs: Lines) -> None:
    events = [event for run in runs for event in run.events]
    (folder / "runs.jsonl").write_bytes(b"\n".join(map(encode, events)))
    assert holdfast("import", folder / "runs.jsonl").code == 0


def asked(holdfast: Holdfast, run: str, *when: str) -> dict[str, tuple[int, int, int]]:
    """The three amounts, in GPU-nanoseconds, from every verb that reads the record of this run.

    when: the options that name a window, the same for all.
    """
    found = {}
    for verb in ("report", "cost"):
        split = holdfast(verb, run, *when, "--json").json["split"]
        found[verb] = split["useful_gpu_ns"], split["lost_gpu_ns"], split["unknown_gpu_ns"]
    told = holdfast("finance", "--run", run, *when, "--json")
    finance = told.json
    found["finance"] = tuple(finance[name]["gpu_ns"] for name in ("useful", "waste", "unknown"))
    sums = {"useful": 0, "unexplained": 0, "accrued": 0, "": 0}
    for row in csv.DictReader(io.StringIO(holdfast("finance", "--run", run, *when, "--csv", "-").out)):
        cause = row["x_Cause"] if row["x_Cause"] in sums else ""
        sums[cause] += round(float(row["ConsumedQuantity"]) * HOUR_NS)
    found["invoice"] = sums["useful"], sums[""], sums["unexplained"]
    assert sums["accrued"] == pytest.approx(finance["accrued"]["gpu_ns"], abs=10**6)
    paid_gpu_ns = sum(found["report"])
    said = wording.Amounts(paid_gpu_ns).three(*found["report"])
    pages = {
        "report": holdfast("report", run, *when).out,
        "cost": holdfast("cost", run, *when).out,
        "page": html.unescape(holdfast("report", run, *when, "--html", "-").out),
    }
    for page, text in pages.items():
        assert said in text, page
    printed = holdfast("finance", "--run", run, *when).out
    drawn = holdfast("finance", "--run", run, *when, "--html", "-").out
    assert_three(msgspec.json.decode(told.out, type=Finance), printed, drawn)
    return found


def agree(found: dict[str, tuple[int, int, int]]) -> None:
    assert found["report"] == found["cost"] == found["finance"]
    for verb, three in found.items():
        assert three == pytest.approx(found["report"], abs=10**6), verb  # an invoice has nine decimals


def test_a_run_with_a_hole_has_the_same_three_amounts_everywhere(holdfast: Holdfast, tmp_path: Path) -> None:
    taken_in(holdfast, tmp_path, Lines("half", "a").steps(5).end())
    found = asked(holdfast, "half")
    agree(found)
    hours = tuple(part / HOUR_NS for part in found["report"])
    assert hours == (500, 0, 500)
    assert "It lost 0 of the 500 GPU-hours that are known." in holdfast("cost", "half").out
    cost = holdfast("cost", "half", "--json").json
    assert cost["unknown_usd"] == 1_000
    assert cost["checkpointing"]["actual"]["steps"] == cost["checkpointing"]["healthy"]["steps"] == 1_440
    told = holdfast("finance").out
    assert "Spend rises faster" not in told
    assert "1,000 USD, mostly in half: after the last recorded step. Record in the script" in told


def test_a_real_record_and_a_simulated_one_agree_with_all_that_reads_them(
    holdfast: Holdfast, data: Path, tmp_path: Path
) -> None:
    holdfast("import", data / "google-70b-112-nodes-events.jsonl", "--reference-step-s", "8")
    agree(asked(holdfast, "test-040104-goodput-n112-70b-a3m"))
    simulated = ("simulate", "--gpus", "128", "--days", "0.3", "--policy", "restart", "--seed", "3")
    policy = holdfast(*simulated, "--record", tmp_path / "twin.jsonl", "--json").json["policies"][0]
    holdfast("import", tmp_path / "twin.jsonl")
    found = asked(holdfast, "llama3-405b")
    names = ("useful_gpu_hours", "lost_gpu_hours", "unknown_gpu_hours")
    useful, lost, unknown = (round(_middle(policy[name]) * HOUR_NS) for name in names)
    found["simulate"] = useful, lost, unknown
    agree(found)
    three = wording.Amounts(sum(found["report"])).three(*found["report"])
    assert three in holdfast(*simulated).out
    assert three in html.unescape(holdfast(*simulated, "--html", "-").out)


def test_a_run_with_all_that_may_happen_has_the_same_three_amounts_everywhere(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    """Members, a drained node, a rollback, a silent attempt that failed, two months; and it goes on."""
    run = Lines("stormy", "a").tell(0, ReferenceDeclared, step_ns=MINUTE_NS)
    for member in ("a", "b"):
        run.tell(0, MemberJoined, subject=member, node=f"node-{member}", gpus=GPUS // 2)
    run.tell(0.1, GenerationOpened, generation=1, members=("a", "b"), step=0)
    run.stepping(0.1, first=0, last=120).tell(2.2, CheckpointSaved, step=60)
    run.tell(2.5, MemberLost, subject="b", reason="exit code 1")
    run.tell(2.6, MemberJoined, subject="c", node="node-c", gpus=GPUS // 2)
    run.tell(2.6, GenerationOpened, generation=2, members=("a", "c"), step=60)
    run.tell(2.7, CheckpointLoaded, step=60).stepping(2.7, first=61, last=150)
    run.tell(4.5, ActionTaken, subject="node-c", action="drain", gpus=GPUS // 2)
    run.tell(4.6, RunEnded, outcome="failed")
    run.tell(5, RunStarted, gpus=GPUS).tell(7, RunEnded, outcome="failed", reason="NCCL init timeout")
    run.tell(8, RunStarted, gpus=GPUS).tell(8.2, CheckpointLoaded, step=60)
    run.stepping(8.2, first=61, last=200).tell(700, RunStarted, gpus=GPUS)
    run.stepping(701, first=201, last=400).tell(746, PhaseEntered, phase="eval")
    taken_in(holdfast, tmp_path, run)
    as_of = ("--as-of", "2026-11-01T12:00:00Z")
    found = asked(holdfast, "stormy", *as_of)
    agree(found)
    assert all(found["report"])
    told = holdfast("finance", *as_of, "--json").json
    assert told["accrued"]["gpu_ns"] == 10 * GPUS * HOUR_NS
    parts = [asked(holdfast, "stormy", *as_of, "--month", month) for month in ("2026-10", "2026-11")]
    for part in parts:
        agree(part)
    sums = tuple(map(sum, zip(*(part["report"] for part in parts), strict=True)))
    assert sums == found["report"]
    last = (*as_of, "--from", "2026-11-01T03:00:00Z")
    assert holdfast("cost", "stormy", *last, "--json").json["paid_gpu_hours"] == 0  # all of it is accrued


EUROS = """currency = "EUR"
[usd_per]
EUR = 1.25
[factors]
tax = 1.19
discount = 0.8
"""
RATES = """
[[rates]]
per_gpu_hour = 2.5
to = 2026-10-01T05:00:00Z
[[rates]]
per_gpu_hour = 4.0
from = 2026-10-01T05:00:00Z
"""


def paid_usd(holdfast: Holdfast, run: str, *prices: object) -> dict[str, float]:
    """The price of a run that has ended, in USD, from every verb that prices its hours."""
    told = holdfast("report", run, *prices, "--json").json
    found = {"report": told["paid_usd"]}
    found["hours of the report"] = told["usd_per_gpu_hour"] * told["paid_gpu_ns"] / HOUR_NS
    finance = holdfast("finance", "--run", run, *prices, "--json").json
    found["finance"] = finance["spend"]["usd"]
    found["runs"] = next(one for one in holdfast("runs", *prices, "--json").json if one["run"] == run)[
        "cost_usd"
    ]
    rows = csv.DictReader(io.StringIO(holdfast("finance", "--run", run, *prices, "--csv", "-").out))
    usd_per = finance["prices"]["currency"]["usd_per"]
    found["invoice"] = sum(float(row["BilledCost"]) for row in rows) * usd_per
    cost = holdfast("cost", run, *prices, "--json").json
    (price,) = (one for one in cost["total"]["layers"][0]["inputs"] if one["name"] == "price")
    found["cost"] = price["value"] * cost["paid_gpu_hours"]
    with wording.in_currency(finance["prices"]["currency"]["code"], usd_per):
        said = wording.usd(found["finance"])
    pages = {
        "report": holdfast("report", run, *prices).out,
        "page": html.unescape(holdfast("report", run, *prices, "--html", "-").out),
        "finance": holdfast("finance", "--run", run, *prices).out,
        "finance's page": html.unescape(holdfast("finance", "--run", run, *prices, "--html", "-").out),
        "runs": holdfast("runs", *prices, COLUMNS="200").out,
    }
    for page, text in pages.items():
        assert (said.partition(" ")[0] if page == "runs" else said) in text, page
    return found


@pytest.mark.parametrize(
    ("recorded", "prices", "usd"),
    [
        (True, EUROS, 2_000 * 1.19 * 0.8),
        (True, EUROS + RATES, 2_000 * 1.19 * 0.8),
        (False, "usd_per_gpu_hour = 3.0\n" + EUROS, 3_000 * 1.19 * 0.8),
        (False, EUROS + RATES, (500 * 2.5 + 500 * 4) * 1.19 * 0.8),
        (True, "", 2_000),
    ],
    ids=["recorded", "recorded over rates", "one price", "rates", "no file"],
)
def test_a_run_has_the_same_price_everywhere(
    holdfast: Holdfast, tmp_path: Path, recorded: bool, prices: str, usd: float
) -> None:
    run = Lines("dear", "a")
    if not recorded:
        run.events.pop()
    taken_in(holdfast, tmp_path, run.steps(10).end())
    (tmp_path / "prices.toml").write_text(prices, encoding="utf-8")
    cost = " ".join(holdfast("cost", "dear", "--prices", tmp_path / "prices.toml").out.split())
    assert ("paid before the factors: 1.52 EUR with them" in cost) == (recorded and "rates" in prices)
    found = paid_usd(holdfast, "dear", "--prices", tmp_path / "prices.toml")
    assert found == pytest.approx(dict.fromkeys(found, usd))


def test_a_simulated_record_costs_what_the_simulation_said(holdfast: Holdfast, tmp_path: Path) -> None:
    """The factors count once: the record has the price before them."""
    prices = tmp_path / "prices.toml"
    prices.write_text("usd_per_gpu_hour = 3.0\n" + EUROS, encoding="utf-8")
    asked_for = ("simulate", "--gpus", "128", "--days", "0.1", "--policy", "restart", "--prices", prices)
    told = holdfast(*asked_for, "--record", tmp_path / "twin.jsonl", "--json").json
    assert told["usd_per_gpu_hour"] == pytest.approx(3 * 1.19 * 0.8)
    holdfast("import", tmp_path / "twin.jsonl")
    report = holdfast("report", "llama3-405b", "--prices", prices, "--json").json
    assert report["usd_per_gpu_hour"] == pytest.approx(told["usd_per_gpu_hour"])


def test_a_share_of_what_is_known_is_not_called_one_of_all(holdfast: Holdfast, tmp_path: Path) -> None:
    """Less than 1 % is not known, but the useful share has other digits with it: 89.9 %, 89.5 % of all."""
    run = Lines("brief", "a").tell(0, ReferenceDeclared, step_ns=MINUTE_NS)
    run.stepping(1, first=0, last=536).tell(10, RunEnded, outcome="completed")
    taken_in(holdfast, tmp_path, run)
    split = holdfast("report", "brief", "--json").json["split"]
    useful, lost, unknown = (split[name] for name in ("useful_gpu_ns", "lost_gpu_ns", "unknown_gpu_ns"))
    of_known, of_all = useful / (useful + lost), useful / (useful + lost + unknown)
    assert 0 < unknown < 0.01 * (useful + lost)
    assert (wording.percent(of_known), wording.percent(of_all)) == ("89.9 %", "89.5 %")
    agree(asked(holdfast, "brief"))
    shown = " ".join(holdfast("report", "brief").out.split())
    assert "89.9 % of the 995 GPU-hours that are known were useful. Of all 1,000 GPU-hours paid" in shown
    finance = " ".join(holdfast("finance", "--run", "brief").out.split())
    assert "2,000 USD spent. Of the 1,990 USD that is known, 89.9 % was useful" in finance
    page = html.unescape(holdfast("report", "brief", "--html", "-").out)
    assert "of the GPU time that is known was useful" in page


def _middle(spread: dict[str, float] | float) -> float:
    return spread["p50"] if isinstance(spread, dict) else spread


def test_a_run_that_recorded_only_its_start_and_end_lost_nothing(holdfast: Holdfast, tmp_path: Path) -> None:
    """Two runs of 1,000 GPU-hours: one useful all the time, and one of which nothing is known."""
    taken_in(holdfast, tmp_path, Lines("known", "a").steps(10).end(), Lines("bare", "b").end())
    prices = tmp_path / "prices.toml"
    prices.write_text("[team_targets]\na = 0.9\nb = 0.9\n", encoding="utf-8")
    told = holdfast("finance", "--prices", prices, "--json").json
    assert [told[name]["usd"] for name in ("spend", "useful", "waste", "unknown")] == [4_000, 2_000, 0, 2_000]
    assert (told["useful_share"], told["useful_share_bounds"]) == (1, [0.5, 1])
    assert (told["usd_per_useful_gpu_hour"], told["point_usd"], told["wastes"]) == (2, None, [])
    assert [(one["silence"], one["amount"]["usd"]) for one in told["silences"]] == [("no_steps", 2_000)]
    teams = {team["team"]: (team["utilisation"], team["standing"], team["short"]) for team in told["teams"]}
    assert teams == {"a": (1, "met", {"gpu_ns": 0, "usd": 0}), "b": (None, "unknown", None)}
    shown = " ".join(holdfast("finance", "--prices", prices).out.split())
    assert "4,000 USD spent. Of the 2,000 USD that is known, 100.0 % was useful, 0.00 USD lost." in shown
    assert "2,000 USD is not known to be useful or lost: with it, 50.0 % to 100.0 % was useful." in shown
    assert "holdfast import LOG --run bare" in shown
    agree(asked(holdfast, "bare"))
    listed = {
        one["run"]: (one["useful_share"], one["unknown_share"]) for one in holdfast("runs", "--json").json
    }
    assert listed == {"known": (1, 0), "bare": (None, 1)}
    own = holdfast("finance", "--own-or-rent", "--json").json["own_or_rent"]["terms"]["goodput"]
    assert own["value"] == 1
    assert own["source"].endswith("in the 50.0 % of their time that is known")


SACCT = "JobID|JobName|Account|State|Submit|Start|End|NNodes|NodeList|AllocTRES|ReqTRES"


def test_a_month_of_a_schedulers_accounts_is_not_a_month_of_waste(holdfast: Holdfast, tmp_path: Path) -> None:
    """Thirty jobs of 20 hours on 64 GPUs, and one run that recorded its steps and spent an hour starting."""
    rows = [
        f"{100 + day}|train-{day}|lab|COMPLETED|2026-10-{day:02}T00:00:00|2026-10-{day:02}T01:00:00|"
        f"2026-10-{day:02}T21:00:00|8|n[1-8]|billing=1,gres/gpu=64,node=8|billing=1,gres/gpu=64,node=8"
        for day in range(1, 31)
    ]
    (tmp_path / "sacct.txt").write_text("\n".join([SACCT, *rows]) + "\n", encoding="utf-8")
    assert holdfast("import", tmp_path / "sacct.txt").code == 0
    late = Lines("told", "a")
    late.tell(0, ReferenceDeclared, step_ns=MINUTE_NS)
    for step in range(9 * 60):
        late.tell(1 + (step + 1) / 60, StepCommitted, step=step)
    taken_in(holdfast, tmp_path, late.end())
    told = holdfast("finance", "--json").json
    jobs_gpu_ns = 30 * 20 * 64 * HOUR_NS
    assert told["unknown"]["gpu_ns"] == jobs_gpu_ns
    assert (told["useful"]["gpu_ns"], told["waste"]["gpu_ns"]) == (900 * HOUR_NS, 100 * HOUR_NS)
    assert told["useful_share"] == 0.9
    assert told["point_usd"] == pytest.approx(1_000 * PRICE_USD * 0.01 / 0.9)
    assert told["usd_per_useful_gpu_hour"] == pytest.approx(PRICE_USD / 0.9)
    bare = {run["run"]: run["useful_share"] for run in told["runs"] if run["run"] != "told"}
    assert len(bare) == 30
    assert set(bare.values()) == {None}
