"""Drawn failures against the process they are drawn from: counts, moments, nodes, and the cost of drawing."""

from time import process_time

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples
from scipy import stats

from holdfast.twin.cluster import Domain, Layout
from holdfast.twin.failures import Failure, FailureClass, Hazards, LemonShare, draw
from holdfast.wording.units import DAY_NS, HOUR_NS

SEEDS = 40
DAYS = 54
LAYOUT = Layout(gpus=16_384)


def failure_class(rate: float = 3.79, **changes: object) -> FailureClass:
    plain = FailureClass(name="gpu", part="gpu", rate_per_1000_node_days=rate, source="a test")
    return msgspec.structs.replace(plain, **changes)


def drawn(hazards: Hazards, seed: int = 1, *, layout: Layout = LAYOUT, days: float = DAYS) -> list[Failure]:
    return draw(hazards, layout, round(days * DAY_NS), np.random.default_rng(seed))


def in_the_middle(count: int, expected: float) -> bool:
    """Whether the count is in the range of a Poisson number of this mean, except once in a million."""
    low, high = stats.poisson(expected).interval(1 - 1e-6)
    return bool(low <= count <= high)


def test_counts_are_poisson() -> None:
    hazards = Hazards(classes=(failure_class(),))
    expected = 3.79 / 1000 * 2_048 * DAYS
    counts = [len(drawn(hazards, seed)) for seed in range(SEEDS)]
    assert in_the_middle(sum(counts), SEEDS * expected)
    # A Poisson number's variance is its mean; over 40 seeds the ratio is chi-square with 39 degrees.
    dispersion = (SEEDS - 1) * np.var(counts, ddof=1) / expected
    assert stats.chi2(SEEDS - 1).cdf(dispersion) == pytest.approx(0.5, abs=0.4999)


def test_each_class_has_its_own_rate() -> None:
    rows = tuple(failure_class(rate, name=f"class-{rate:g}") for rate in (0.0, 0.5, 5.0))
    failures = [failure for seed in range(10) for failure in drawn(Hazards(classes=rows), seed)]
    for row in rows:
        count = sum(failure.row == row for failure in failures)
        assert in_the_middle(count, 10 * row.rate_per_1000_node_days / 1000 * 2_048 * DAYS)


def test_the_same_seed_gives_the_same_failures() -> None:
    lemons = LemonShare(share=0.01, factor=20, source="a test")
    hazards = Hazards(classes=(failure_class(transient_share=0.5, repair_median_h=20.0),), lemons=lemons)
    assert drawn(hazards, 7) == drawn(hazards, 7)
    assert drawn(hazards, 7) != drawn(hazards, 8)


def test_failures_are_in_order_and_within_the_run() -> None:
    hazards = Hazards(classes=(failure_class(), failure_class(1.0, reach="loop")))
    moments = [failure.at_ns for failure in drawn(hazards)]
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] < DAYS * DAY_NS


def test_without_a_shape_every_hour_is_like_any_other() -> None:
    moments = [failure.at_ns / (DAYS * DAY_NS) for failure in drawn(Hazards(classes=(failure_class(40),)))]
    assert stats.kstest(moments, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("shape", [0.5, 0.8, 2.0])
@pytest.mark.parametrize("age_days", [0.0, 30.0])
def test_age_bends_the_intensity(shape: float, age_days: float) -> None:
    row = failure_class(20, weibull_shape=shape)
    hazards = Hazards(classes=(row,), age_days=age_days, rated_age_days=60)
    failures = drawn(hazards, 3)
    end = age_days + DAYS
    assert in_the_middle(len(failures), hazards.expected(row, LAYOUT.nodes, DAYS * DAY_NS))

    def share_before(days: float) -> float:
        """Of the cumulative intensity of a Weibull hazard, t^shape."""
        return float(((age_days + days) ** shape - age_days**shape) / (end**shape - age_days**shape))

    days = np.array([failure.at_ns / DAY_NS for failure in failures])
    assert stats.kstest(days, np.vectorize(share_before)).pvalue > 1e-4


def test_the_rate_is_the_given_one_at_the_rated_age() -> None:
    row = failure_class(weibull_shape=0.6)
    hazards = Hazards(classes=(row,), age_days=365.0 - 0.005, rated_age_days=365.0)
    per_day = hazards.expected(row, 1_000, DAY_NS // 100) * 100
    assert per_day == pytest.approx(row.rate_per_1000_node_days, rel=1e-6)


def test_infant_mortality_is_more_failures_while_young() -> None:
    row = failure_class(weibull_shape=0.5)
    young, old = (
        Hazards(classes=(row,), age_days=age).expected(row, 2_048, 30 * DAY_NS) for age in (0.0, 300.0)
    )
    assert young > 3 * old


def test_lemons_get_their_share_and_the_total_stays() -> None:
    lemons = LemonShare(share=0.02, factor=30, source="a test")
    hazards = Hazards(classes=(failure_class(40),), lemons=lemons)
    failures = drawn(hazards, 5)
    assert in_the_middle(len(failures), 40 / 1000 * 2_048 * DAYS)
    by_node = np.bincount([failure.node for failure in failures], minlength=2_048)
    worst = np.sort(by_node)[-round(0.02 * 2_048) :]
    assert lemons.failures_share == pytest.approx(0.6 / 1.58)
    assert worst.sum() / len(failures) == pytest.approx(lemons.failures_share, abs=0.03)


def test_what_nodes_share_does_not_prefer_lemons() -> None:
    lemons = LemonShare(share=0.01, factor=1_000, source="a test")
    failures = drawn(Hazards(classes=(failure_class(reach="rack"),), lemons=lemons))
    racks = {failure.node for failure in failures}
    assert len(racks) > 100


@pytest.mark.parametrize("gpus", [8, 16])
def test_a_cluster_too_small_for_a_lemon_has_none(gpus: int) -> None:
    hazards = Hazards(classes=(failure_class(500),), lemons=LemonShare(share=0.01, factor=9, source="a test"))
    failures = drawn(hazards, layout=Layout(gpus=gpus))
    assert {failure.node for failure in failures} == set(range(gpus // 8))


@settings(max_examples=examples(50), deadline=None)
@given(
    reach=st.sampled_from(("node", "rack", "shelf", "loop", "leaf", "pod", "mount", "cluster")),
    gpus=st.integers(8, 20_000),
    seed=st.integers(0, 2**32),
)
def test_what_goes_together_is_a_whole_domain(reach: Domain, gpus: int, seed: int) -> None:
    layout = Layout(gpus=gpus)
    hazards = Hazards(classes=(failure_class(20 * 1000 / layout.nodes, reach=reach),))
    for failure in drawn(hazards, seed, layout=layout, days=1):
        number = layout.number(reach, failure.node)
        assert range(failure.node, failure.node + failure.nodes) == layout.nodes_of(reach, number)
        assert 0 <= failure.node < failure.node + failure.nodes <= layout.nodes


def test_some_machines_are_fine_and_the_others_take_their_time() -> None:
    row = failure_class(40, transient_share=0.73, repair_median_h=20.4, repair_sigma=1.9)
    failures = drawn(Hazards(classes=(row,)))
    transient = [failure for failure in failures if failure.is_transient]
    repairs_h = [failure.repair_ns / HOUR_NS for failure in failures if not failure.is_transient]
    assert len(transient) / len(failures) == pytest.approx(0.73, abs=0.03)
    assert {failure.repair_ns for failure in transient} == {0}
    assert np.median(repairs_h) == pytest.approx(20.4, rel=0.15)
    assert np.std(np.log(repairs_h)) == pytest.approx(1.9, rel=0.1)


def test_a_failure_knows_its_class() -> None:
    row = failure_class(kind="gray", slowdown=1.3)
    first = drawn(Hazards(classes=(row,)))[0]
    assert (first.kind, first.slowdown) == ("gray", 1.3)


def test_drawing_costs_failures_and_not_nodes_or_days() -> None:
    """A thousand times the nodes and days with the same number of failures takes hardly longer."""

    def seconds(nodes: int, days: float) -> float:
        hazards = Hazards(classes=(failure_class(2_000 * 1000 / (nodes * days)),))
        began = process_time()
        for seed in range(5):
            drawn(hazards, seed, layout=Layout(gpus=8 * nodes), days=days)
        return process_time() - began

    seconds(10, 10)
    assert seconds(10_000, 300) < 20 * seconds(10, 10)
