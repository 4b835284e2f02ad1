"""`holdfast cost` as its user runs it: on the published run, on odd runs, and with mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli.cost_text import show
from holdfast.economics.pricing.cost import run_cost
from holdfast.economics.pricing.layers import LAYER_TITLES
from holdfast.economics.pricing.prices import DEFAULTS, read, template
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.events import ReferenceDeclared, RunStarted, StepCommitted

GOOGLE = "google-70b-112-nodes-events.jsonl"
RUN = "test-040104-goodput-n112-70b-a3m"

Holdfast = Callable[..., Any]


@pytest.fixture
def imported(holdfast: Holdfast, take_in: Callable[..., None], data: Path) -> Holdfast:
    take_in(data / GOOGLE, "--reference-step-s", "8")
    return holdfast


def test_a_run_in_five_layers(imported: Holdfast) -> None:
    cost = imported("cost", "--json").json
    assert cost["run"] == RUN
    layers = {layer["key"]: layer for layer in cost["total"]["layers"]}
    assert list(layers) == list(LAYER_TITLES)
    told = imported("report", "--json").json
    lost_gpu_h = (told["paid_gpu_ns"] - told["partition"]["useful"]) / 3.6e12
    assert cost["total"]["lost_gpu_hours"] == pytest.approx(lost_gpu_h)
    assert layers["direct_compute"]["usd"] + layers["rollback"]["usd"] == pytest.approx(3.99 * lost_gpu_h)
    assert all(layer["formula"] and layer["inputs"] for layer in layers.values())
    assert len(cost["incidents"]) == 22
    shown = imported("cost").out
    assert "In money between 33,568 USD and 55,114 USD, in five layers:" in shown
    for layer in cost["total"]["layers"]:
        assert f"{layer['title']:20}  {layer['usd']:6,.0f}" in shown
        assert layer["formula"] in shown
    assert "Assumed\nprice              3.99 USD/GPU-h  H100, Lambda, list prices" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_an_incident_by_the_number_in_the_report(imported: Holdfast) -> None:
    worst = imported("report", "--json").json["incidents"][0]
    number = worst["name"]
    assert f"\n{number:>3}  2 Apr, 12:20  8 unexplained restarts" in imported("report").out
    cost = imported("cost", f"{RUN}/{number}", "--json").json
    assert (cost["name"], cost["what"], cost["over"]) == (number, "unexplained restart", True)
    assert cost["stack"]["lost_gpu_hours"] == pytest.approx(worst["lost_gpu_ns"] / 3.6e12)
    shown = imported("cost", f"{RUN}/{number}").out
    assert shown.startswith(f"Incident {RUN}/{number}: unexplained restart\n2 Apr 2025, 12:20 to 13:03 UTC")
    assert "of a day's progress." in shown
    assert "# direct #" in shown.replace("##", "#")
    (labour,) = (layer for layer in cost["stack"]["layers"] if layer["key"] == "response_labour")
    (calls,) = (one for one in labour["inputs"] if one["name"] == "calls")
    assert (calls["value"], calls["unit"]) == (1, "incident")


def test_an_incident_that_is_not_over(imported: Holdfast) -> None:
    shown = imported("cost", f"{RUN}/22").out
    assert " so far, 896 GPUs\n" in shown
    assert "• The incident is not over; this is what it has cost so far.\n" in shown


def test_prices_of_ones_own(imported: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("usd_per_gpu_hour = 2\nusd_per_day_of_delay = 240_000\n", encoding="utf-8")
    named = imported("cost", "--prices", path).out
    assert "Given price 2 USD/GPU-h the prices file value of a day 240,000 USD/day" in " ".join(named.split())
    assert "and what the delay is worth." in " ".join(named.split())
    assert imported("cost", HOLDFAST_PRICES=str(path)).out == named
    (tmp_path / "home" / "prices.toml").write_bytes(path.read_bytes())
    assert imported("cost").out == named
    page = imported("report", "--html", "-").out
    assert "240,000 USD/day" in page


def test_the_template_is_a_prices_file(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("cost", "--example-prices")
    assert (done.code, done.out, done.err) == (0, template(), "")


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("respondrs = 2", "The prices have no key `respondrs`.", "Did you mean `responders`?"),
        ("responders = ", "The prices are not TOML", "--example-prices"),
    ],
)
def test_a_mistake_in_the_prices(
    imported: Holdfast, tmp_path: Path, text: str, sentence: str, hint: str
) -> None:
    (tmp_path / "prices.toml").write_text(text, encoding="utf-8")
    done = imported("cost", "--prices", tmp_path / "prices.toml")
    assert (done.code, done.out) == (2, "")
    assert f"prices.toml: {sentence}" in done.err
    assert hint in done.err


def test_prices_that_cannot_be_read(imported: Holdfast, tmp_path: Path) -> None:
    assert "cannot be read" in (gone := imported("cost", "--prices", tmp_path / "gone.toml")).err
    assert "cannot be read" in (folder := imported("cost", "--prices", tmp_path)).err
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in (binary := imported("cost", "--prices", tmp_path / "binary")).err
    assert {gone.code, folder.code, binary.code} == {2}


@pytest.mark.parametrize(
    ("subject", "sentence", "hint"),
    [
        (f"{RUN}/99", "has no incident '99'", f"`holdfast report {RUN}`"),
        (f"{RUN}/", "has no incident ''", f"`holdfast report {RUN}`"),
        (f"{RUN}x/3", f"There is no run '{RUN}x'", f"Did you mean '{RUN}'?"),
        ("nothing/like it", "There is no run 'nothing/like it'", "`holdfast runs`"),
    ],
)
def test_what_is_not_there(imported: Holdfast, subject: str, sentence: str, hint: str) -> None:
    done = imported("cost", subject)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert hint in done.err


def test_a_run_whose_name_has_a_slash(holdfast: Holdfast, tmp_path: Path) -> None:
    rows = ["step,time", *(f"{step},{1_760_000_000 + 10 * step}" for step in range(1, 101))]
    (tmp_path / "steps.csv").write_text("\n".join(rows), encoding="utf-8")
    assert holdfast("import", tmp_path / "steps.csv", "--run", "team/7", "--gpus", "8").code == 0
    done = holdfast("cost", "team/7")
    assert done.code == 0
    assert "It lost 0 of 2.2 GPU-hours.\n2.20 GPU-hours useful, 0.00 lost, 0.00 not known\n" in done.out
    assert "No incidents are recorded." in done.out
    none = holdfast("cost", "team/7/1")
    assert "Run 'team/7' has no incident '1'" in none.err
    assert "It has none." in none.err


def test_a_run_without_gpus(holdfast: Holdfast, data: Path) -> None:
    holdfast("import", data / "slurm" / "sacct.txt")
    done = holdfast("cost")
    assert done.code == 0
    assert "• No GPUs are recorded for this run, so only labour can be priced" in done.out
    assert "In money" not in done.out


def test_no_figure_of_an_incident_is_cut_off_on_80_columns(holdfast: Holdfast, data: Path) -> None:
    assert holdfast("import", data / "three-teams.csv").code == 0
    shown = holdfast("cost", "pretrain-70b", COLUMNS="80").out
    for line in holdfast("cost", "pretrain-70b", "--json").json["incidents"]:
        figures = [line["name"], *(f"{usd:,.0f}" for usd in line["usd"].values())]
        rows = (row.split() for row in shown.splitlines())
        assert any(row[:1] == figures[:1] and row[-5:] == figures[1:] for row in rows)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120])
def test_it_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ledger = Ledger()
    ledger.add(
        [
            RunStarted(id="a-000", occurred_ns=0, run="r" * 200, gpus=8),
            ReferenceDeclared(
                id="a-001", occurred_ns=0, run="r", step_ns=10**10, gpus=8, tokens_per_step=10**7
            ),
            *(
                StepCommitted(id=f"a-{n + 2:03}", occurred_ns=n * 25 * 10**9, run="r", step=n)
                for n in range(1, 200)
            ),
        ]
    )
    cost = run_cost(report("r", ledger.fold), read("usd_per_gpu_hour = 2"))
    show(cost)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert "tokens" in shown
    assert "GPU-hours lost, rollback apart × price" in " ".join(shown.split())


def test_names_from_others_are_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger()
    ledger.add([RunStarted(id="a", occurred_ns=0, run="r", gpus=1)])
    cost = run_cost(report("\x1b[2Jr", ledger.fold), DEFAULTS)
    show(msgspec.structs.replace(cost, remarks=("\x1b]0;x\x07",)))
    assert "\x1b" not in capsys.readouterr().out


def test_a_window_and_a_price_that_rises_in_it_are_told(holdfast: Holdfast, tmp_path: Path) -> None:
    """8 GPUs for an hour: 2 EUR until half past, 3 EUR then, with a step every 10 s but for 600 s at 09:45.

    The window has 40 minutes: 10 of them at 2 EUR, 30 at 3. The 590 s beyond a step cost 8 * 590 / 3600 * 3.
    """
    at = [*range(0, 2_701, 10), *range(3_300, 3_601, 10)]
    rows = ["step,time", *(f"{step},{1_793_523_600 + seconds}" for step, seconds in enumerate(at, start=1))]
    (tmp_path / "steps.csv").write_text("\n".join(rows) + "\n")
    assert holdfast("import", "steps.csv", "--run", "r", "--gpus", "8", "--reference-step-s", "10").code == 0
    (tmp_path / "prices.toml").write_text(
        'currency = "EUR"\n[usd_per]\nEUR = 1.25\n'
        '[[rates]]\nper_gpu_hour = 2\ncurrency = "EUR"\n'
        '[[rates]]\nfrom = 2026-11-01T09:30:00Z\nper_gpu_hour = 3\ncurrency = "EUR"\n'
    )
    window = ("--from", "2026-11-01T09:20:00Z", "--prices", "prices.toml")
    shown = holdfast("cost", "r", *window).out
    rise = "The price of a GPU-hour went from 2.00 EUR to 3.00 EUR at 2026-11-01 09:30 UTC"
    assert "Only from 1 Nov 2026, 09:20" in shown
    assert rise in " ".join(shown.split())
    assert "Only this window is priced" in shown
    told = holdfast("cost", "r", *window, "--json").json
    assert told["window"] == [1_793_524_800 * 10**9, None]
    layers = {layer["key"]: layer["usd"] for layer in told["total"]["layers"]}
    assert layers["direct_compute"] == pytest.approx(8 * 590 / 3_600 * 3 * 1.25)
    spent = holdfast("finance", *window)
    assert rise in " ".join(spent.out.split())
    assert "19.33 EUR" not in spent.out  # not at a mean price
    spend = holdfast("finance", *window, "--json").json["spend"]["usd"]
    assert spend == pytest.approx(8 * (10 * 2 + 30 * 3) / 60 * 1.25)
    # Before half past nothing changes, and nothing is said.
    early = holdfast("cost", "r", "--to", "2026-11-01T09:20:00Z", "--prices", "prices.toml").out
    assert "The price of a GPU-hour went" not in early
