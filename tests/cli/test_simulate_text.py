"""Simulated runs at a terminal: what was expected, and a table that fits 80 columns."""

import msgspec
import pytest

from holdfast import wording
from holdfast.cli.simulate_text import compact, show
from holdfast.ledger.categories import Category
from holdfast.twin.policies import policies
from holdfast.twin.sweep import Comparison, Figures, summarise

COLUMNS = 80
GPUS = 16_384
SPARE_NODES = 32
HOUR_NS = 3_600 * 10**9


def played(policy: str, seed: int) -> Figures:
    """A run made up, with figures as long as they get."""
    partition = {category.key: 0 for category in Category} | {"useful": HOUR_NS, "starting": 999 * HOUR_NS}
    return Figures(
        policy=policy,
        seed=seed,
        interruptions=10_000 + seed,
        planned=50,
        restarts=460,
        steps=1,
        rolled_back_steps=0,
        effective_time=0.99951,
        goodput=0.98,
        paid_gpu_hours=88.8e6,
        useful_gpu_hours=88.8e6,
        unknown_gpu_hours=0.0,
        lost_gpu_hours=88.8e6 + seed,
        cost_usd=(len(policy) - seed) * 88.8e6,
        partition=partition,
        is_exact=True,
    )


def compare(runs: int) -> Comparison:
    known = policies(GPUS, SPARE_NODES)
    groups = [[played(one.name, seed) for seed in range(1, runs + 1)] for one in known]
    return Comparison(
        preset="ours",
        source="made up",
        command="holdfast simulate",
        gpus=GPUS,
        preset_gpus=GPUS,
        days=54,
        preset_days=54,
        expected_interruptions=419.3,
        reported=(),
        seed=1,
        runs=runs,
        usd_per_gpu_hour=4.0,
        price_source="made up",
        is_exact=True,
        policies=tuple(summarise(one, group, groups[0]) for one, group in zip(known, groups, strict=True)),
    )


def test_the_header_names_the_spares_and_one_day(capsys: pytest.CaptureFixture[str]) -> None:
    compared = msgspec.structs.replace(compare(1), days=1)
    show(msgspec.structs.replace(compared, policies=compared.policies[:1]))
    assert f"{GPUS:,} GPUs and {SPARE_NODES:,} spare nodes for 1 day, 1 run" in capsys.readouterr().out


@pytest.mark.parametrize("runs", [1, 20])
def test_the_table_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    compared = compare(runs)
    show(compared)
    told = capsys.readouterr().out
    assert "Expected at its failure rates: 419 interruptions" in told
    table = told.split("\n\n")[1]
    rows = [line.split() for line in table.splitlines()[2:]]
    named = [["P10"], ["P90"]] if runs > 1 else []
    assert [row[:1] for row in rows] == [
        label for one in compared.policies for label in ([one.policy], *named)
    ]
    assert max(map(len, table.splitlines())) <= COLUMNS
    assert "…" not in table


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (39.82, "39.8"),
        (999.6, "1,000"),
        (447_200, "447 k"),
        (999_600, "1,000 k"),
        (-5.67e6, "−5.67 M"),
    ],
)
def test_three_figures(value: float, words: str) -> None:
    assert compact(value) == words


def test_amounts_are_in_the_currency_of_the_prices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`restart` has 7 letters: (7 - 1) * 88.8 million USD, which at 1.25 USD are 426.24 million EUR."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    with wording.in_currency("EUR", 1.25):
        show(compare(1))
    told = capsys.readouterr().out
    assert "USD" not in told
    (first,) = [line for line in told.split("\n\n")[1].splitlines() if line.startswith("restart ")]
    assert first.split()[-2:] == ["426", "M"]
    assert "3.20 EUR a GPU-hour: made up" in told
