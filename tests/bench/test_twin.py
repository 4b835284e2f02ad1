"""The twin's benchmark: what its figures are of. tests/cli/test_bench.py runs it."""

import pytest

from bench.twin import LARGE_GPUS, task

pytestmark = pytest.mark.slow


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
