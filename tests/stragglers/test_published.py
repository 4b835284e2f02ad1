"""Against the published analysis of three real traces: a slow worker (AR), an overlong last stage (ST), and
sequences of unequal lengths (SE).
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.stragglers.trace import read_table
from holdfast.stragglers.verdict import judge
from holdfast.stragglers.whatif import Analysis, analyse

REL = 1e-5
"""The traces have single precision."""
NAMES = ("AR", "ST", "SE")


@pytest.fixture(scope="module")
def analysed(published: Path) -> dict[str, Analysis]:
    return {name: analyse(read_table(published / f"trace-{name}.parquet")) for name in NAMES}


def told(folder: Path, file: str) -> Any:
    return msgspec.json.decode((folder / file).read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_times_and_metrics(analysed: dict[str, Analysis], published: Path, name: str) -> None:
    by_worker, by_stage = told(published, f"mw-{name}.json"), told(published, f"ms-{name}.json")
    ours = analysed[name]
    assert ours.step_s == pytest.approx(by_worker["tori"], rel=REL)
    assert ours.ideal_s == pytest.approx(by_worker["tideal"], rel=REL)
    assert ours.m_w == pytest.approx(by_worker["Mw"], abs=1e-4)
    assert ours.m_s == pytest.approx(by_stage["Ms"], abs=1e-4)
    assert ours.slowest.fixed_s == pytest.approx(by_worker["trem"], rel=REL)


@pytest.mark.parametrize("name", NAMES)
def test_every_slowdown(analysed: dict[str, Analysis], published: Path, name: str) -> None:
    theirs, ours = told(published, f"result-{name}.json"), analysed[name]
    assert ours.slowdown == pytest.approx(theirs["blocking_slowdown"], rel=REL)
    assert {str(one.stage): one.slowdown for one in ours.stages} == pytest.approx(
        theirs["blocking_decompose_by_stage"], rel=REL
    )
    assert {str(one.dp_rank): one.slowdown for one in ours.replicas} == pytest.approx(
        theirs["blocking_decompose_by_dp_rank"], rel=REL
    )
    assert {one.type: one.slowdown for one in ours.operations} == pytest.approx(
        theirs["blocking_decompose_by_optype"], rel=REL
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_was_recorded(analysed: dict[str, Analysis], published: Path, name: str) -> None:
    steps = told(published, f"result-{name}.json")["step_t_base"].values()
    assert analysed[name].recorded_s == pytest.approx(sum(steps) / len(steps), rel=REL)


def test_the_slow_worker_is_named(analysed: dict[str, Analysis]) -> None:
    verdict = judge(analysed["AR"])
    assert (verdict.kind, verdict.judgement, verdict.workers) == ("worker", "cause", ("rank 0",))
    assert verdict.sentence.startswith("Rank 0 (data-parallel rank 0, stage 0) holds the step back")
    assert "23.45 s in place of 46.34 s, 100 % of the slowdown" in verdict.sentence
    assert "1.7 % of 3,079 jobs" in verdict.basis
    first, second = analysed["AR"].workers[:2]
    assert first.rank == 0
    assert first.share == pytest.approx(1.0017, abs=1e-3)
    assert second.share == pytest.approx(0, abs=0.01)


def test_the_last_stage_is_named(analysed: dict[str, Analysis]) -> None:
    verdict = judge(analysed["ST"])
    assert (verdict.kind, verdict.judgement, verdict.stage) == ("stage", "not-hardware", 3)
    assert verdict.sentence.startswith("The last stage (3) holds the step back")
    assert verdict.workers == ()


def test_unequal_sequences_are_no_machine(analysed: dict[str, Analysis]) -> None:
    verdict = judge(analysed["SE"])
    assert (verdict.kind, verdict.judgement) == ("data", "not-hardware")
    assert analysed["SE"].pattern.forward_backward == pytest.approx(0.99, abs=0.01)
    assert "Stage 1 is the tightest" in verdict.sentence
