"""The order of operations: made-up jobs take as long as they were worked out to, whatever their shape."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.stragglers.graph import Graph, build
from holdfast.stragglers.trace import Floats, Trace
from holdfast.stragglers.whatif import step_times_s

Rows = list[dict[str, Any]]
Traced = Callable[[Rows], Trace]


def own_s(graph: Graph) -> Floats:
    """Every node's own duration."""
    return np.where(graph.row >= 0, graph.duration_s[graph.row], 0.0)


def simulated_s(trace: Trace) -> Floats:
    graph = build(trace, slice(0, len(trace)))
    return step_times_s(graph, own_s(graph)[:, np.newaxis])[:, 0]


def recorded_s(trace: Trace) -> Floats:
    times = np.zeros(len(trace.steps))
    np.maximum.at(times, trace.step, trace.end_s)
    return times


def same(trace: Trace) -> bool:
    return bool(np.allclose(simulated_s(trace), recorded_s(trace), rtol=0, atol=1e-9))


SHAPES: list[dict[str, Any]] = [
    {"dp": 1, "pp": 1},
    {"dp": 4, "pp": 1},
    {"dp": 1, "pp": 4},
    {"dp": 2, "pp": 4, "microbatches": 8},
    {"dp": 2, "pp": 4, "microbatches": 2},
    {"dp": 2, "pp": 3, "microbatches": 1, "steps": 3},
    {"dp": 2, "pp": 2, "chunks": 2},
    {"dp": 3, "pp": 4, "chunks": 3, "microbatches": 8},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: " ".join(f"{k}{v}" for k, v in shape.items()))
def test_a_job_takes_as_long_as_it_did(job: Any, shape: dict[str, Any]) -> None:
    slow = {(shape["dp"] - 1, shape["pp"] // 2): 1.7}
    assert same(job(**shape, slow=slow, varies={(0, 0, 0): 2.5}).trace())


@settings(max_examples=examples(25), deadline=None)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32 - 1))
def test_any_durations(job: Any, shape: dict[str, Any], seed: int) -> None:
    assert same(uneven(job, shape, seed).trace())


def uneven(job: Any, shape: dict[str, Any], seed: int) -> Any:
    """A job of this shape in which nothing takes as long as anything else."""
    random = np.random.default_rng(seed)
    places = [(dp, stage) for dp in range(shape["dp"]) for stage in range(shape["pp"])]
    batches = [(step, dp, number) for step in range(3) for dp in range(shape["dp"]) for number in range(8)]
    return job(
        **shape,
        slow={place: float(random.uniform(0.5, 3)) for place in places},
        varies={batch: float(random.uniform(0.2, 4)) for batch in batches},
    )


@settings(max_examples=examples(25), deadline=None)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32 - 1), longer=st.floats(1, 10))
def test_a_slower_operation_never_makes_a_step_faster(
    job: Any, shape: dict[str, Any], seed: int, longer: float
) -> None:
    trace = uneven(job, shape, seed).trace()
    graph = build(trace, slice(0, len(trace)))
    random = np.random.default_rng(seed)
    durations = own_s(graph)[:, np.newaxis]
    slower = durations * np.where(random.random(durations.shape) < 0.1, longer, 1.0)
    assert (step_times_s(graph, slower) >= step_times_s(graph, durations.copy()) - 1e-12).all()


@settings(max_examples=examples(15), deadline=None)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32 - 1))
def test_what_ifs_side_by_side_are_those_one_by_one(job: Any, shape: dict[str, Any], seed: int) -> None:
    trace = uneven(job, shape, seed).trace()
    graph = build(trace, slice(0, len(trace)))
    many = np.random.default_rng(seed).random((len(graph.row), 5)) * (graph.row >= 0)[:, np.newaxis]
    together = step_times_s(graph, many.copy())
    for column in range(5):
        assert (step_times_s(graph, many[:, [column]]) == together[:, [column]]).all()


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_rows_means_nothing(job: Any, traced: Traced, seed: int) -> None:
    rows = uneven(job, SHAPES[-1], seed).rows()
    np.random.default_rng(seed).shuffle(rows)
    assert same(traced(rows))


def test_steps_apart_are_steps_together(job: Any) -> None:
    trace = uneven(job, {"dp": 2, "pp": 4, "microbatches": 8, "steps": 3}, 1).trace()
    begins = np.searchsorted(trace.step, np.arange(4))
    for step, (first, last) in enumerate(pairwise(begins.tolist())):
        graph = build(trace, slice(first, last))
        alone = step_times_s(graph, own_s(graph)[:, np.newaxis])
        assert alone[:, 0].tolist() == pytest.approx([simulated_s(trace)[step]])


# -- what profilers write ----------------------------------------------------------------------------------


def without_numbers(rows: Rows, *names: str) -> Rows:
    return [{**row, **dict.fromkeys(names, -1)} for row in rows]


@pytest.mark.parametrize("shape", SHAPES[3:], ids=str)
@pytest.mark.parametrize("names", [("gmc",), ("mb_id",), ("gmc", "mb_id")], ids=str)
def test_chunks_and_microbatches_need_not_be_told(
    job: Any, traced: Traced, shape: dict[str, Any], names: tuple[str, ...]
) -> None:
    rows = uneven(job, shape, 3).rows()
    assert same(traced(without_numbers(rows, *names)))


def test_transfers_that_never_were_are_ignored(job: Any, traced: Traced) -> None:
    """With virtual stages a profiler writes both ends for every computation, also those without a peer."""
    rows = uneven(job, {"dp": 2, "pp": 2, "chunks": 2}, 5).rows()
    last = 3
    for row in list(rows):
        direction, _, what = row["optype"].partition("-")
        if what != "compute":
            continue
        begin, end = row["start_ts"], row["start_ts"] + row["duration"]
        goes = 1 if direction == "forward" else -1
        if not 0 <= row["gmc"] + goes <= last:
            rows.append({**row, "optype": f"{direction}-send", "start_ts": end, "duration": 0.0})
        if not 0 <= row["gmc"] - goes <= last:
            rows.append({**row, "optype": f"{direction}-recv", "start_ts": begin, "duration": 0.0})
    trace = traced(rows)
    assert len(trace) > len(job(dp=2, pp=2, chunks=2).trace())
    assert same(trace)


def test_an_end_after_the_last_computation_is_ignored(job: Any, traced: Traced) -> None:
    rows = job(pp=3, microbatches=6).rows()
    template = next(row for row in rows if row["optype"] == "forward-recv")
    rows.append({**template, "start_ts": 5.0, "duration": 1e-6, "seq_id": 99})
    trace = traced(rows)
    assert simulated_s(trace).tolist() == pytest.approx(
        simulated_s(job(pp=3, microbatches=6).trace()).tolist()
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**32 - 1),
    part=st.floats(0, 0.3),
)
def test_missing_operations_are_borne(
    job: Any, traced: Traced, shape: dict[str, Any], seed: int, part: float
) -> None:
    """Whatever is left out, the rest is simulated, and takes no longer than it did."""
    rows = uneven(job, shape, seed).rows()
    keeps = np.random.default_rng(seed).random(len(rows)) >= part
    trace = traced([row for row, kept in zip(rows, keeps, strict=True) if kept or row is rows[0]])
    try:
        times = simulated_s(trace)
    except InputError as error:
        pytest.fail(error.sentence)
    assert (times <= recorded_s(trace) + 1e-6).all()
    assert (times > 0).all()


@pytest.mark.parametrize(
    "gone",
    [
        ("forward-send", "forward-recv", "backward-send", "backward-recv"),
        ("params-all-gather", "grads-reduce-scatter"),
        ("optimizer-clip-main-grad", "optimizer", "gc"),
        ("backward-compute",),
        ("forward-compute", "backward-compute"),
    ],
    ids=lambda gone: gone[0],
)
def test_whole_types_may_be_missing(job: Any, traced: Traced, gone: tuple[str, ...]) -> None:
    rows = [row for row in uneven(job, SHAPES[3], 7).rows() if row["optype"] not in gone]
    trace = traced(rows)
    assert (simulated_s(trace) <= recorded_s(trace) + 1e-6).all()


def test_a_worker_without_anything_in_one_step(job: Any, traced: Traced) -> None:
    rows = [r for r in job(dp=3, pp=2).rows() if (r["step"], r["dp_rank"], r["stage"]) != (1, 1, 0)]
    trace = traced(rows)
    assert len(trace.workers) == 6
    assert simulated_s(trace)[0] == pytest.approx(recorded_s(trace)[0])


def test_several_ranks_in_one_place(job: Any, traced: Traced) -> None:
    """Ranks that share a place, as of tensor parallelism, each have their own peers."""
    rows = uneven(job, SHAPES[3], 9).rows()
    twice = [{**row, "rank": 2 * row["rank"] + half} for row in rows for half in (0, 1)]
    trace = traced(twice)
    assert len(trace.workers) == 16
    assert {worker.slot for worker in trace.workers} == {0, 1}
    assert same(trace)


def test_gradients_scattered_while_the_backward_pass_runs(traced: Traced) -> None:
    """Then a scatter waits for its chunk's last backward pass, and the end of the step for the scatter."""
    moments = {
        "forward-compute": (0.0, 0.3),
        "backward-compute": (0.3, 0.7),
        "grads-reduce-scatter": (0.7, 0.9),
        "layernorm-grads-all-reduce": (0.9, 0.91),
        "separate-grads-all-reduce": (0.91, 0.95),
        "optimizer-clip-main-grad": (0.95, 0.96),
        "optimizer": (0.96, 1.0),
    }
    place = {"step": 0, "stage": 0, "seq_id": 0, "mc": 0, "gmc": 0, "mb_id": 0}
    rows = [
        {**place, "dp_rank": rank, "rank": rank, "optype": kind, "start_ts": begin, "duration": end - begin}
        for rank in (0, 1)
        for kind, (begin, end) in moments.items()
    ]
    trace = traced(rows)
    assert same(trace)
    graph = build(trace, slice(0, len(trace)))
    for kind in moments:
        longer = (graph.row >= 0) & (trace.kind[graph.row] == trace.kinds.index(kind))
        times = step_times_s(graph, (own_s(graph) + 10.0 * longer)[:, np.newaxis])
        assert times.tolist() == [[pytest.approx(11.0)]], kind


def crossed(rows: Rows) -> Rows:
    """The second stage takes the two microbatches the other way round than the first sends them."""
    is_crossed = [row["optype"] == "forward-compute" and row["stage"] == 1 for row in rows]
    return [
        {**row, "mb_id": 1 - row["mb_id"]} if swap else row
        for row, swap in zip(rows, is_crossed, strict=True)
    ]


def test_wrong_numbers_are_seen_by_their_times(job: Any, traced: Traced) -> None:
    trace = traced(crossed(job(dp=1, pp=2, microbatches=2, steps=1).rows()))
    assert (simulated_s(trace) <= recorded_s(trace)).all()


def test_operations_in_a_circle_are_told(job: Any, traced: Traced) -> None:
    """Where there is no time to tell by, the numbers are believed."""
    rows = crossed(job(dp=1, pp=2, microbatches=2, steps=1).rows())
    with pytest.raises(InputError, match="In step 0 operations wait for each other in a circle"):
        simulated_s(traced([{**row, "start_ts": 0.0, "duration": 0.0} for row in rows]))
