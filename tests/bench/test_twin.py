"""The twin's benchmark, on few days of the run: the keys others rely on, and what they are figures of."""

from typing import Any

import pytest

from holdfast.cli.bench.twin import LARGE_GPUS, task


def test_what_is_measured(holdfast: Any) -> None:
    outcome = holdfast("bench", "twin", "--days", "2", "--seeds", "4", "--json")
    told = outcome.json
    assert outcome.code == 0
    assert {"llama3_s", "peak_bytes_100k"} <= set(told)
    assert told["is_exact"] is True
    assert all(value > 0 for value in told.values())
    assert told["growth"] == pytest.approx(told["us_per_failure_4x"] / told["us_per_failure"])
    assert told["thousand_seeds_min"] == pytest.approx(told["seeds_s"] / told["seeds"] * 1000 / 60)
    assert 30e6 < told["peak_bytes_100k"] < 2e9  # an interpreter with numpy at least, and what was promised


def test_its_sentences(holdfast: Any) -> None:
    shown = holdfast("bench", "twin", "--days", "1", "--seeds", "4").out
    assert "16,384 GPUs for 1 day: " in shown
    assert "4 seeds on 2 processes" in shown
    assert "agreed with the simulation to the nanosecond" in shown


def test_more_failures_and_more_gpus_are_the_same_run_otherwise() -> None:
    usual, often, large = (
        task("holdfast", 54),
        task("holdfast", 54, failures_times=4),
        task("holdfast", 54, gpus=LARGE_GPUS),
    )
    rate = usual.study.hazards.rate_per_1000_node_days
    assert often.study.hazards.rate_per_1000_node_days == pytest.approx(4 * rate)
    assert large.study.hazards == usual.study.hazards
    assert (usual.study.job.gpus, large.study.job.gpus) == (16_384, LARGE_GPUS)
    assert often.policy.spare_nodes == 4 * usual.policy.spare_nodes
