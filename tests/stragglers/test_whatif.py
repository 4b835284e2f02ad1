"""What-ifs and verdicts on made-up jobs whose cause is known."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.stragglers import whatif
from holdfast.stragglers.trace import Trace
from holdfast.stragglers.verdict import StragglerVerdict, judge
from holdfast.stragglers.whatif import WORKERS_RANKED_MAX, Analysis, analyse

Rows = list[dict[str, Any]]
Traced = Callable[[Rows], Trace]


def judged(trace: Trace) -> tuple[Analysis, StragglerVerdict]:
    analysis = analyse(trace)
    return analysis, judge(analysis)


def test_a_uniform_job_is_its_own_ideal(job: Any) -> None:
    analysis, verdict = judged(job(dp=3, pp=4, microbatches=8, steps=3).trace())
    assert analysis.step_s == pytest.approx(analysis.recorded_s)
    assert analysis.step_s == pytest.approx(analysis.ideal_s)
    assert analysis.m_w is None
    assert {one.share for one in analysis.workers} == {None}
    assert verdict.kind == "none"
    assert "Nothing holds the step back" in verdict.sentence


@settings(max_examples=examples(10), deadline=None)
@given(dp=st.integers(1, 4), stage=st.integers(0, 3), factor=st.floats(1.5, 4))
def test_a_slow_worker_is_found_wherever_it_is(job: Any, dp: int, stage: int, factor: float) -> None:
    analysis, verdict = judged(job(dp=5, pp=4, microbatches=8, slow={(dp, stage): factor}).trace())
    assert verdict.kind == "worker"
    assert verdict.workers == (f"rank {stage * 5 + dp}",)
    assert (analysis.workers[0].dp_rank, analysis.workers[0].stage) == (dp, stage)
    assert analysis.m_w is not None
    assert analysis.m_w > 0.9


def test_two_slow_workers_are_found_together(job: Any) -> None:
    """Each alone explains little, and the places where their row and column cross are not blamed."""
    analysis, verdict = judged(job(dp=4, pp=4, microbatches=8, slow={(0, 1): 2.0, (3, 2): 2.0}).trace())
    assert verdict.kind == "worker"
    assert set(verdict.workers) == {"rank 4", "rank 11"}
    assert {one.rank for one in analysis.workers[:2]} == {4, 11}
    assert all((one.share or 0.0) < 0.2 for one in analysis.workers)


def test_a_long_stage_is_the_partition(job: Any) -> None:
    slow = {(dp, 1): 1.6 for dp in range(4)}
    _, verdict = judged(job(dp=4, pp=4, microbatches=8, slow=slow).trace())
    assert (verdict.kind, verdict.stage, verdict.judgement) == ("stage", 1, "not-hardware")


def test_a_slow_replica_is_told_as_one(job: Any) -> None:
    slow = {(2, stage): 1.6 for stage in range(4)}
    analysis, verdict = judged(job(dp=4, pp=4, microbatches=8, slow=slow).trace())
    assert verdict.kind == "replica"
    assert set(verdict.workers) == {f"rank {4 * stage + 2}" for stage in range(4)}
    assert max(analysis.replicas, key=lambda one: one.slowdown).dp_rank == 2


def test_the_only_worker_of_a_stage_may_be_an_overlong_stage(job: Any) -> None:
    _, verdict = judged(job(dp=1, pp=4, microbatches=8, slow={(0, 3): 2.0}).trace())
    assert (verdict.kind, verdict.judgement) == ("worker", "unknown")
    assert "cannot tell a slow machine from an overlong stage" in verdict.sentence


def test_unequal_sequences(job: Any) -> None:
    random = np.random.default_rng(4)
    varies = {
        (step, dp, batch): float(random.lognormal(0, 0.6))
        for step in range(8)
        for dp in range(6)
        for batch in range(8)
    }
    analysis, verdict = judged(job(dp=6, pp=2, microbatches=8, steps=8, varies=varies).trace())
    assert (verdict.kind, verdict.judgement) == ("data", "not-hardware")
    assert analysis.pattern.forward_backward == pytest.approx(1.0, abs=0.01)


def test_pauses_that_move_around(job: Any) -> None:
    """A pause a step, each time on another worker, and only in the backward pass."""
    trace = job(dp=6, pp=1, microbatches=8, steps=12).trace()
    durations = trace.duration_s.copy()
    backward = np.flatnonzero(trace.kind == trace.kinds.index("backward-compute"))
    for step in range(12):
        mine = backward[(trace.step[backward] == step) & (trace.worker[backward] == step % 6)]
        durations[mine[step % 8]] += 1.0
    analysis, verdict = judged(_shifted(trace, durations))
    assert (verdict.kind, verdict.judgement) == ("pauses", "not-hardware")
    assert (analysis.pattern.pauses, analysis.pattern.pausing_workers) == (12, 6)
    assert "12 operations were interrupted" in verdict.sentence


def _shifted(trace: Trace, durations_s: Any) -> Trace:
    """The trace with other durations: what comes later on the same worker and step begins later."""
    later = durations_s - trace.duration_s
    track = trace.step * len(trace.workers) + trace.worker
    delay = np.cumsum(later) - later
    first = np.searchsorted(track, track)
    return msgspec.structs.replace(
        trace, start_s=trace.start_s + delay - delay[first], duration_s=durations_s
    )


def test_slow_communication(job: Any, traced: Traced) -> None:
    """A reduce-scatter that now and then takes ten times as long, after everybody is there."""
    rows = job(dp=3, pp=1, microbatches=2, steps=10).rows()
    late = {"grads-reduce-scatter": 0, "optimizer-clip-main-grad": 2, "optimizer": 2}
    for row in rows:
        if row["step"] % 5 == 0 and row["optype"] in late:
            row["start_ts"] += late[row["optype"]]
            row["duration"] += 2 if row["optype"] == "grads-reduce-scatter" else 0
    analysis, verdict = judged(traced(rows))
    assert (verdict.kind, verdict.operation) == ("communication", "grads-reduce-scatter")
    assert analysis.communication_share == pytest.approx(1.0, abs=0.01)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_shares_are_what_they_say(job: Any, seed: int) -> None:
    """Everything ideal is the ideal; of one worker or stage in a job of one, it is all of the slowdown."""
    random = np.random.default_rng(seed)
    varies = {(s, 0, b): float(random.uniform(0.5, 2)) for s in range(3) for b in range(4)}
    analysis = analyse(job(dp=1, pp=1, steps=3, varies=varies).trace())
    assert analysis.m_s is None
    assert analysis.workers[0].slowdown == pytest.approx(analysis.slowdown)
    if analysis.workers[0].share is not None:
        assert analysis.workers[0].share == pytest.approx(1.0)
    assert analysis.scores == pytest.approx((analysis.slowdown,))


def test_only_the_highest_scores_are_looked_at_one_by_one(job: Any) -> None:
    analysis = analyse(
        job(dp=WORKERS_RANKED_MAX + 6, pp=1, microbatches=1, steps=1, slow={(3, 0): 2.0}).trace()
    )
    assert len(analysis.workers) == WORKERS_RANKED_MAX
    assert len(analysis.scores) == analysis.worker_count == WORKERS_RANKED_MAX + 6
    assert analysis.workers[0].rank == 3
    assert len(analysis.slowest.names) == 3  # 3 % of 70, rounded up


def test_batches_change_nothing(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = job(dp=3, pp=2, steps=5, slow={(1, 1): 1.5}).trace()
    whole = analyse(trace)
    monkeypatch.setattr(whatif, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(whatif, "COLUMNS_AT_ONCE", 2)
    assert analyse(trace) == whole


def test_operations_that_take_no_time(job: Any, traced: Traced) -> None:
    rows = [{**row, "start_ts": 0.0, "duration": 0.0} for row in job().rows()]
    analysis, verdict = judged(traced(rows))
    assert (analysis.step_s, analysis.slowdown, verdict.kind) == (0.0, 1.0, "none")


def test_a_type_of_ones_own_runs_in_order(job: Any, traced: Traced) -> None:
    rows = job(dp=2, pp=1, microbatches=1, steps=1).rows()
    own = {**rows[0], "optype": "my-loader", "start_ts": -1.0, "duration": 1.0, "mc": -1}
    rows += [{**own, "dp_rank": rank, "rank": rank} for rank in (0, 1)]
    analysis = analyse(traced(rows))
    assert analysis.step_s == pytest.approx(analysis.recorded_s - 0.05)  # the gather need not wait for it
    assert "my-loader" in {one.type for one in analysis.operations}
