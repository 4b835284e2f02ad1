"""`holdfast simulate` as a user calls it."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = "--preset rsc-1-1024 --days 2"
FIGURES = ("interruptions", "effective_time", "lost_gpu_hours", "cost_usd")


@pytest.fixture
def call(holdfast: Any) -> Callable[..., Any]:
    """The command as one line; it must end as expected."""

    def run(line: str, code: int = 0) -> Any:
        outcome = holdfast(*shlex.split(line))
        assert outcome.code == code, outcome.err
        return outcome

    return run


def test_one_run_is_told_in_numbers(call: Any) -> None:
    told = call(f"simulate {SMALL} --policy restart --seed 1 --json").json
    assert told["policy"] == "restart"
    assert told["is_exact"] is True
    for key in FIGURES:
        assert isinstance(told[key], int | float), key
    assert 0.9 < told["effective_time"] < 1


def test_several_runs_have_a_spread(call: Any) -> None:
    told = call(f"simulate {SMALL} --runs 4 --processes 2 --json").json
    assert [one["policy"] for one in told["policies"]] == ["restart", "holdfast"]
    for key in FIGURES:
        assert told[key]["p10"] <= told[key]["p50"] <= told[key]["p90"], key
    restart, ours = told["policies"]
    assert ours["saved_usd"]["p50"] == pytest.approx(
        restart["cost_usd"]["p50"] - ours["cost_usd"]["p50"], rel=0.3
    )


def test_the_terminal_has_every_policy(call: Any) -> None:
    shown = call(f"simulate {SMALL} --policy all --policy published").out
    for name in ("restart", "requeue", "spares", "snapshots", "replicas", "holdfast-static", "published"):
        assert name in shown
    assert "to the nanosecond" in shown


def test_its_events_are_a_record_like_any_other(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    told = call(f"simulate {SMALL} --policy holdfast --record {path} --json").json
    call(f"import {path}")
    read = call("report --json").json
    hours = {key: gpu_ns / 3.6e12 for key, gpu_ns in read["partition"].items()}
    assert hours == pytest.approx(told["partition_gpu_hours"])


def test_ones_own_rates(call: Any, data: Path, tmp_path: Path) -> None:
    rates = tmp_path / "rates.json"
    rates.write_text(call(f"plan fit {data / 'infinitehbd-fault-trace.json'} --json").out)
    told = call(f"simulate {SMALL} --policy holdfast --rates {rates} --json").json
    assert "rates.json" in told["source"]


def test_a_page(call: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    call(f"simulate {SMALL} --html {page}")
    assert "RSC-1" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        ("--policy restrat", "There is no policy 'restrat'.", "restart"),
        ("--preset llama", "There is no preset 'llama'.", "llama3-405b"),
        ("--gpus 1000", "not a multiple of that", "1,024"),
        ("--scenario cooling-pump --seed 3 --out drill", "`holdfast drill`.", "drill play NAME"),
        ("--reveal", "`holdfast drill`.", "drill reveal NAME"),
        ("--days nan", "--days nan is not a finite number from 0.001 to 10,000.", "--help"),
        ("--html - --json", "would both print to stdout", "Leave one"),
    ],
)
def test_mistakes_are_told_in_a_sentence(call: Any, arguments: str, sentence: str, hint: str) -> None:
    outcome = call(f"simulate {arguments}", code=2)
    assert sentence in outcome.err
    assert hint in outcome.err
    assert outcome.out == ""
