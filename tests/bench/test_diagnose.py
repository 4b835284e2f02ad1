"""`holdfast bench diagnose`: the keys it promises, and figures that anyone gets again."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.diagnose import FIRST_SEED, TUNING_SEEDS
from bench.papers import MECHANISM_OF
from holdfast.drills.scenarios import SCENARIOS

pytestmark = pytest.mark.slow

WAIT_S = 600
"""Half a minute of one processor, which others may want as well."""
SMALLEST = ("--seeds=1", "--first-seed=1", "--quiet-days=0", "--small-only", "--processes=1", "--json")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home: Path = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "bench", "diagnose", *SMALLEST],
        env={**os.environ, "HOLDFAST_HOME": str(home), "NO_COLOR": "1"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout)


def test_seeds_that_are_reported_are_not_those_that_were_looked_at() -> None:
    assert FIRST_SEED not in TUNING_SEEDS
    assert max(TUNING_SEEDS) < FIRST_SEED


@pytest.mark.soak
def test_it_says_what_was_played(bench: Any) -> None:
    assert bench["incidents"] == bench["kinds"] == len(MECHANISM_OF)
    assert bench["seeds"] == [1, 1]
    assert bench["tuning_seeds"] == [1, 99]
    assert bench["gpus"] == [1_024]


@pytest.mark.soak
@pytest.mark.parametrize("key", ["precision", "recall", "domain_accuracy", "owner_accuracy"])
def test_a_share_is_a_share_and_as_good_as_promised(bench: Any, key: str) -> None:
    assert 0.8 <= bench[key] <= 1


@pytest.mark.soak
def test_times_and_alarms_are_as_promised(bench: Any) -> None:
    assert 0 < bench["detect_s_median"] < 60
    assert bench["detect_s_median"] <= bench["detect_s_p90"]
    assert bench["detect_s_median"] <= bench["name_s_median"]
    assert bench["false_alarms"] == 0
    assert bench["false_alarms_per_day"] == 0
    assert bench["quiet_days"] > 0.1


@pytest.mark.soak
def test_every_kind_is_told_on_its_own(bench: Any) -> None:
    kinds = {kind["kind"]: kind for kind in bench["by_kind"]}
    assert set(kinds) == set(SCENARIOS)
    for name, kind in kinds.items():
        assert kind["plays"] == 1
        for share in ("precision", "recall", "domain_accuracy", "owner_accuracy"):
            assert 0 <= kind[share] <= 1
        assert (kind["detect_s_median"] is not None) or name not in MECHANISM_OF
    named = [kinds[name]["recall"] for name in MECHANISM_OF]
    assert bench["recall"] == pytest.approx(sum(named) / len(named))


@pytest.mark.soak
def test_a_miss_can_be_played_again(bench: Any) -> None:
    for miss in bench["misses"]:
        assert miss["kind"] in SCENARIOS
        assert (miss["seed"], miss["gpus"]) == (1, 1_024)
    missed = {miss["kind"] for miss in bench["misses"]}
    assert {kind["kind"] for kind in bench["by_kind"] if kind["recall"] < 1} <= missed


@pytest.mark.soak
def test_what_a_look_costs_is_measured(bench: Any) -> None:
    cost = bench["evaluation"]
    assert (cost["gpus"], cost["metrics"]) == (1_024, 20)
    assert cost["values"] >= 15 * 1_024 * 180
    assert 0 < cost["seconds"] < 20
    assert 0 < cost["growth"] < 3
    assert 0 < cost["peak_bytes"] < 2e9
