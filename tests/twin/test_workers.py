"""How work is divided and handed over to workers."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.twin.presets import preset
from holdfast.twin.study import Study
from holdfast.twin.sweep import Task
from holdfast.twin.workers import BATCH_MAX, BATCHES_IN_FLIGHT_MAX, BATCHES_PER_WORKER_MIN, batches, in_order

pytestmark = pytest.mark.slow

_JOB = preset("llama3-405b")
ONE = Task(
    study=Study(
        name=_JOB.name,
        job=_JOB.job,
        layout=_JOB.layout,
        hazards=_JOB.hazards,
        duration_ns=1,
        usd_per_gpu_hour=0.0,
    ),
    policy=_JOB.practice,
    seed=1,
)


@given(st.integers(0, 2_000), st.integers(0, 300))
def test_every_task_is_in_one_batch_and_in_its_place(tasks: int, workers: int) -> None:
    given_out = list(batches([ONE] * tasks, workers))
    assert sum(len(batch) for batch in given_out) == tasks
    assert all(1 <= len(batch) <= BATCH_MAX for batch in given_out)
    assert len(given_out) >= min(tasks, BATCHES_PER_WORKER_MIN * workers)


def test_results_keep_the_order_of_the_calls_of_which_few_are_ever_open() -> None:
    count = 3 * BATCHES_IN_FLIGHT_MAX
    opened: list[int] = []

    def calls() -> Iterator[int]:
        for number in range(count):
            opened.append(number)
            yield number

    results = in_order(calls(), lambda number: number)
    assert len(opened) == BATCHES_IN_FLIGHT_MAX  # before anybody asks
    for taken, result in enumerate(results):
        assert result == taken
        assert len(opened) <= taken + BATCHES_IN_FLIGHT_MAX
    assert len(opened) == count
