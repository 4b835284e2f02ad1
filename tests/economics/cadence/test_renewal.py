"""Simulated failures compared with the exact formula and with the sums of other distributions."""

import numpy as np
import pytest
from quantity import sampled
from scipy import stats

from holdfast.economics.cadence import renewal
from holdfast.economics.cadence.cadence import Costs, efficiency
from holdfast.economics.cadence.renewal import (
    FamilyGaps,
    RecordedGaps,
    optimum_s,
    simulate_efficiency,
    simulated_optimum_s,
)
from holdfast.record.errors import InputError

pytestmark = pytest.mark.slow

STDERRS_MAX = 4
MTBF_S = 7_519.0
AUPY = Costs(stall_s=600, restore_s=600, downtime_s=60)
BACKGROUND = Costs(stall_s=30, write_s=60, restore_s=120, downtime_s=300)
SHAPES: list[tuple[renewal.Kind, float]] = [
    ("exponential", 1.0),
    ("weibull", 0.7),
    ("weibull", 1.5),
    ("gamma", 0.5),
    ("lognormal", 1.0),
]


def seeded() -> np.random.Generator:
    return np.random.default_rng(11)


def gaps_of(kind: renewal.Kind, mtbf_s: float, shape: float = 1.0) -> FamilyGaps:
    return FamilyGaps(kind=kind, mtbf_s=mtbf_s, shape=shape)


def scipys(kind: renewal.Kind, shape: float) -> stats.rv_continuous:
    """The same distributions with their scale found by scipy, not by our formulas."""
    family = {
        "exponential": stats.expon(),
        "weibull": stats.weibull_min(shape),
        "gamma": stats.gamma(shape),
        "lognormal": stats.lognorm(shape),
    }[kind]
    return type(family)(family.dist, *family.args, scale=MTBF_S / family.mean())


def summed(interval_s: float, costs: Costs, kind: renewal.Kind, shape: float) -> float:
    """The n-th checkpoint after a failure is kept if the next failure comes after R + W + n T: sum over n."""
    gaps = scipys(kind, shape)
    at_s = costs.restore_s + costs.write_s + interval_s * np.arange(1, 3_000)
    return float((interval_s - costs.stall_s) * gaps.sf(at_s).sum() / (MTBF_S + costs.downtime_s))


@pytest.mark.parametrize("costs", [AUPY, BACKGROUND])
@pytest.mark.parametrize("interval_s", [700.0, 3_000.0, 12_000.0])
def test_exponential_failures_agree_with_the_exact_formula(interval_s: float, costs: Costs) -> None:
    simulated = simulate_efficiency(interval_s, costs, gaps_of("exponential", MTBF_S).draw(seeded()))
    assert 0 < simulated.stderr < 0.0015
    assert abs(simulated.efficiency - efficiency(interval_s, costs, MTBF_S)) < STDERRS_MAX * simulated.stderr


@pytest.mark.parametrize(("kind", "shape"), SHAPES)
def test_any_distribution_agrees_with_its_own_sum(kind: renewal.Kind, shape: float) -> None:
    drawn = gaps_of(kind, MTBF_S, shape).draw(seeded())
    assert drawn.mean() == pytest.approx(MTBF_S, rel=0.02)
    for interval_s in (900.0, 3_218.0):
        simulated = simulate_efficiency(interval_s, BACKGROUND, drawn)
        expected = summed(interval_s, BACKGROUND, kind, shape)
        assert abs(simulated.efficiency - expected) < STDERRS_MAX * simulated.stderr


def test_the_standard_error_is_what_repeating_shows() -> None:
    gaps, rng = gaps_of("weibull", MTBF_S, 0.7), seeded()
    again = [simulate_efficiency(3_000, AUPY, gaps.draw(rng, failures=2_000)) for _ in range(200)]
    spread = np.std([one.efficiency for one in again])
    assert np.mean([one.stderr for one in again]) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize(("kind", "shape"), SHAPES)
@pytest.mark.parametrize("costs", sampled([AUPY, BACKGROUND], [BACKGROUND]))
def test_the_optimum_that_is_found_keeps_what_the_best_would(
    kind: renewal.Kind, shape: float, costs: Costs
) -> None:
    found_s = simulated_optimum_s(costs, gaps_of(kind, MTBF_S, shape).draw(seeded(), failures=50_000))
    best = max(summed(interval_s, costs, kind, shape) for interval_s in np.geomspace(400, 8_000, 40))
    assert summed(found_s, costs, kind, shape) == pytest.approx(best, abs=0.001)


def test_the_exponential_optimum_is_found() -> None:
    drawn = gaps_of("exponential", MTBF_S).draw(seeded())
    assert simulated_optimum_s(AUPY, drawn) == pytest.approx(optimum_s(AUPY, MTBF_S), rel=0.05)
    slow = Costs(stall_s=600, write_s=9_000)
    assert simulated_optimum_s(slow, drawn) == pytest.approx(slow.interval_s_min, rel=0.001)


def test_failures_that_come_in_clusters_want_fewer_checkpoints() -> None:
    """Below 1, Weibull's shape makes a failure likely soon after another, which undoes little then."""
    clustered, even = (gaps_of("weibull", MTBF_S, shape).draw(seeded()) for shape in (0.7, 1.5))
    best_s = optimum_s(AUPY, MTBF_S)
    assert simulated_optimum_s(AUPY, clustered) > 1.05 * best_s
    assert simulated_optimum_s(AUPY, even) < 0.97 * best_s
    kept = {name: simulate_efficiency(best_s, AUPY, drawn) for name, drawn in (("c", clustered), ("e", even))}
    exponential = efficiency(best_s, AUPY, MTBF_S)
    assert kept["c"].efficiency - exponential > STDERRS_MAX * kept["c"].stderr
    assert exponential - kept["e"].efficiency > STDERRS_MAX * kept["e"].stderr


def test_intervals_are_compared_on_the_same_failures() -> None:
    gaps = gaps_of("gamma", MTBF_S, 0.5)
    assert (gaps.draw(seeded()) == gaps.draw(seeded())).all()
    drawn = gaps.draw(seeded())
    assert simulate_efficiency(3_000, AUPY, drawn) == simulate_efficiency(3_000, AUPY, drawn)


def test_gaps_that_were_recorded_are_drawn_again_a_little_blurred() -> None:
    observed = gaps_of("exponential", MTBF_S).draw(seeded(), failures=400)
    gaps = RecordedGaps(observed.tolist())
    drawn = gaps.draw(seeded())
    assert drawn.mean() == pytest.approx(gaps.mean_s, rel=0.02)
    assert len(np.unique(drawn)) > len(observed)
    assert simulated_optimum_s(AUPY, drawn) == pytest.approx(optimum_s(AUPY, MTBF_S), rel=0.15)


def test_a_clockwork_of_failures_is_outwitted() -> None:
    # Every hour, to the second: one checkpoint just before each.
    drawn = RecordedGaps([3_600.0] * 5).draw(seeded(), failures=10)
    assert simulated_optimum_s(Costs(stall_s=60), drawn) == pytest.approx(3_600, rel=0.01)


@pytest.mark.parametrize("gaps_s", [[], [1.0] * 4, [0.0] * 10])
def test_too_few_gaps_are_refused(gaps_s: list[float]) -> None:
    with pytest.raises(InputError, match="say too little"):
        RecordedGaps(gaps_s)


@pytest.mark.parametrize("shape", [0.0, -1.0, 0.01, 50.0, float("nan")])
def test_a_shape_that_cannot_be_simulated_is_refused(shape: float) -> None:
    with pytest.raises(InputError, match="cannot be simulated"):
        gaps_of("lognormal", 1.0, shape)
