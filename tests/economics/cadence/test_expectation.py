"""The closed forms compared with published figures and with runs drawn one failure at a time."""

from math import comb, exp, sqrt

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantity import sampled

from holdfast.economics.cadence.cadence import mtbf_of_nodes_s, young_work_s
from holdfast.economics.cadence.expectation import (
    Degraded,
    Interruption,
    Prospect,
    Setting,
    completion,
    effect,
    ettr,
    hit_share,
    rebalanced_output,
    slowdown_for,
    spares_for,
    standstill,
    unit_gpus_for,
    worth,
)
from holdfast.wording.units import DAY_S

pytestmark = pytest.mark.slow

RSC_1, RSC_2 = 6.50, 2.34
"""Failures per 1000 node-days of Meta's two research clusters (arXiv:2410.21680v2)."""


def setting(gpus: int, rate: float, *, restart_min: float, interval_min: float) -> Setting:
    return Setting(
        nodes=gpus / 8,
        failures_per_1000_node_days=rate,
        restart_s=60 * restart_min,
        interval_s=60 * interval_min,
    )


# ---- as published ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "computed", "printed"),
    [
        (setting(16_000, RSC_1, restart_min=5, interval_min=60), 0.684, 0.7),
        (setting(16_000, RSC_1, restart_min=5, interval_min=5), 0.932, 0.93),
        (setting(100_000, RSC_1, restart_min=5, interval_min=7), 0.520, 0.5),
        (setting(100_000, RSC_2, restart_min=2, interval_min=2), 0.939, 0.9),
    ],
)
def test_the_rows_of_kokolis(of: Setting, computed: float, printed: float) -> None:
    """The paper prints one digit or two, and "at least 0.9" in the last row."""
    assert ettr(of) == pytest.approx(computed, abs=0.0005)
    assert ettr(of) == pytest.approx(printed, abs=0.04)


def test_mean_time_to_failure_as_the_paper_projects_it() -> None:
    assert mtbf_of_nodes_s(16_384 / 8, RSC_1) / 3_600 == pytest.approx(1.8, abs=0.05)
    assert mtbf_of_nodes_s(131_072 / 8, RSC_1) / 3_600 == pytest.approx(0.23, abs=0.01)


def test_the_paper_contradicts_itself_at_1024_gpus() -> None:
    """It prints 7.9 h; its own rate gives 28.8 h. 7.9 h is what was observed for jobs of that size."""
    assert mtbf_of_nodes_s(1_024 / 8, RSC_1) / 3_600 == pytest.approx(28.8, abs=0.1)
    assert mtbf_of_nodes_s(1_024 / 8, RSC_1) / 3_600 != pytest.approx(7.9, rel=0.5)


def test_llama3_has_a_failure_every_three_hours() -> None:
    assert mtbf_of_nodes_s(2_048, 1000 * 419 / (2_048 * 54)) / 3_600 == pytest.approx(3.09, abs=0.005)


def test_the_best_interval_is_about_the_best() -> None:
    of = Setting(nodes=2_000, failures_per_1000_node_days=RSC_1, restart_s=300, interval_s=1, stall_s=10)
    best_s = young_work_s(of.stall_s, of.mttf_s)
    assert best_s == pytest.approx(sqrt(2 * 10 * 86_400 / 13))

    def at(interval_s: float) -> float:
        return ettr(msgspec.structs.replace(of, interval_s=interval_s))

    assert at(best_s) > max(at(0.7 * best_s), at(1.4 * best_s))


def test_a_job_that_gets_nowhere_has_no_effective_time_and_is_told_why() -> None:
    of = setting(1_000_000, RSC_1, restart_min=5, interval_min=60)
    assert ettr(of) == 0
    assert "a failure costs 35 min, on average, and one comes every 1 min 46 s" in standstill(of)


@given(
    nodes=st.floats(1, 1e6),
    rate=st.floats(1e-3, 1e4),
    restart_s=st.floats(0, 1e5),
    interval_s=st.floats(1, 1e6),
)
def test_the_share_is_a_share_and_zero_is_explained(
    nodes: float, rate: float, restart_s: float, interval_s: float
) -> None:
    of = Setting(
        nodes=nodes, failures_per_1000_node_days=rate, restart_s=restart_s, interval_s=interval_s, stall_s=9
    )
    assert 0 <= ettr(of) <= 1
    assert (ettr(of) == 0) == bool(standstill(of))


# ---- mean and spread -------------------------------------------------------------------------------------


def plain(per_day: float, stop_s: float, undone_s_max: float, **rest: float) -> Prospect:
    kind = Interruption(name="failure", per_day=per_day, stop_s=stop_s, undone_s_max=undone_s_max)
    return msgspec.structs.replace(Prospect(nodes=128, interruptions=(kind,)), **rest)


@given(
    stop_s=st.floats(0, 1e4),
    least_s=st.floats(0, 1e3),
    span_s=st.one_of(st.just(0.0), st.floats(1, 1e4)),
    rate_per_s=st.floats(0, 1e-3),
    powers=st.sampled_from([(1, 0), (0, 1), (2, 1), (0, 3)]),
)
def test_moments_of_an_interruption(
    stop_s: float, least_s: float, span_s: float, rate_per_s: float, powers: tuple[int, int]
) -> None:
    of = Interruption(
        name="failure", per_day=1, stop_s=stop_s, undone_s_min=least_s, undone_s_max=least_s + span_s
    )
    since_s = (np.arange(20_000) + 0.5) / 20_000 * span_s
    again_s = least_s + since_s
    values = (stop_s + again_s) ** powers[0] * again_s ** powers[1]
    expected = float(np.average(values, weights=np.exp(-rate_per_s * since_s)))
    assert of.moment(*powers, rate_per_s) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_goodput_is_kokolis_where_his_assumptions_hold() -> None:
    """An interval and a restart that are short beside the time between failures."""
    of = setting(1_024, RSC_1, restart_min=5, interval_min=10)
    here = plain(RSC_1 / 1000 * 128, of.restart_s, of.interval_s)
    assert here.goodput == pytest.approx(ettr(of), abs=1e-4)
    stalled = msgspec.structs.replace(of, stall_s=30)
    assert msgspec.structs.replace(here, stall_share=30 / 600).goodput == pytest.approx(
        ettr(stalled), abs=1e-4
    )


def test_kokolis_is_too_dark_where_failures_come_as_often_as_checkpoints() -> None:
    """RSC-1 at 16,384 GPUs, a checkpoint an hour and a failure every 1.8 h: exactly 0.71 and not 0.68.

    The exact value is that of Aupy et al. 2013: T / [(mu + D) (e^(T/mu) - 1)].
    """
    of = setting(16_384, RSC_1, restart_min=5, interval_min=60)
    here = plain(RSC_1 / 1000 * 2_048, of.restart_s, of.interval_s)
    mu = mtbf_of_nodes_s(2_048, RSC_1)
    assert here.goodput == pytest.approx(3_600 / ((mu + 300) * (exp(3_600 / mu) - 1)))
    assert here.goodput - ettr(of) == pytest.approx(0.038, abs=0.001)


def drawn_ends_s(of: Prospect, work_s: float, runs: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When runs end if every failure is drawn: a run keeps whole intervals of what it did since the last."""
    rng = np.random.default_rng(4)
    kinds = of.interruptions
    rates = np.array([kind.per_day / DAY_S for kind in kinds])
    upto, mean_s = np.cumsum(rates) / rates.sum(), 1 / float(rates.sum())
    ends = np.empty(runs)
    for run in range(runs):
        left_s, now_s = work_s * (1 + of.stall_share), 0.0
        while (up_s := rng.exponential(mean_s)) < left_s:
            kind = kinds[int(np.searchsorted(upto, rng.random()))]
            interval_s = kind.undone_s_max
            left_s -= up_s // interval_s * interval_s if interval_s else up_s
            now_s += up_s + kind.stop_s
        ends[run] = now_s + left_s
    return ends


@pytest.mark.parametrize("per_day", sampled([0.5, 3.0, 10.0], [3.0]))
def test_quantiles_of_the_end_against_runs_drawn_one_by_one(per_day: float) -> None:
    """Ten days of work that become eleven or more: mean to 1 %, quantiles to a tenth of their spread."""
    crash = Interruption(name="crash", per_day=per_day, stop_s=900, undone_s_max=3_600)
    hang = Interruption(name="hang", per_day=per_day / 5, stop_s=3_600, undone_s_max=3_600)
    planned = Interruption(name="planned", per_day=per_day / 10, stop_s=1_800)
    of = Prospect(nodes=128, interruptions=(crash, hang, planned), stall_share=0.01)
    work_s = 10 * DAY_S
    ends = drawn_ends_s(of, work_s, 3_000)
    found = completion(of, work_s)
    assert found is not None
    assert found.mean_s == pytest.approx(float(ends.mean()), rel=0.01)
    assert found.mean_s == pytest.approx(work_s / of.goodput)
    spread_s = found.p90_s - found.p10_s
    for quantile, told in ((0.1, found.p10_s), (0.5, found.p50_s), (0.9, found.p90_s)):
        assert told == pytest.approx(float(np.quantile(ends, quantile)), abs=0.1 * spread_s)
    assert found.is_rough == (per_day < 1)


def test_a_run_nothing_happens_to_takes_its_work() -> None:
    found = completion(Prospect(nodes=1, interruptions=()), 1_000)
    assert found is not None
    assert (found.p10_s, found.mean_s, found.p90_s) == (1_000, 1_000, 1_000)


def test_no_quantile_is_before_the_work_is_done() -> None:
    found = completion(plain(0.01, 3_600, 3_600), DAY_S)
    assert found is not None
    assert found.is_rough
    assert found.p10_s == DAY_S


def test_a_run_that_never_ends_has_no_end() -> None:
    assert completion(plain(240, 60, 0), DAY_S) is not None
    never = Interruption(name="failure", per_day=240, stop_s=0, undone_s_min=400, undone_s_max=400)
    assert completion(Prospect(nodes=1, interruptions=(never,)), DAY_S) is None
    assert completion(plain(1, 1, 1, nodes_out=1e4), DAY_S) is None


def test_an_uncertain_rate_widens_the_end() -> None:
    sure, unsure = (completion(plain(5, 900, 3_600, rate_spread=spread), 30 * DAY_S) for spread in (0, 0.5))
    assert sure is not None
    assert unsure is not None
    assert unsure.mean_s == sure.mean_s
    assert unsure.p90_s - unsure.p10_s > 2 * (sure.p90_s - sure.p10_s)


# ---- nodes that are away ---------------------------------------------------------------------------------


def test_a_run_that_needs_all_waits_while_one_is_away() -> None:
    assert plain(0, 0, 0, nodes_out=0.5).staffed == pytest.approx(exp(-0.5))
    assert plain(0, 0, 0, nodes_out=0.5, spare_nodes=1).staffed == pytest.approx(1.5 * exp(-0.5))


def test_a_run_that_shrinks_loses_only_the_replicas() -> None:
    here = plain(0, 0, 0, nodes_out=0.5, unit_nodes=4)
    assert here.staffed == pytest.approx(1 - 0.5 * 4 / 128)
    spared = msgspec.structs.replace(here, spare_nodes=1)
    missing = 0.5 - (1 - exp(-0.5))
    assert spared.staffed == pytest.approx(1 - missing * 4 / 128)


@given(nodes_out=st.floats(0, 40), share=st.floats(0.5, 0.999))
def test_spares_are_enough_and_no_more(nodes_out: float, share: float) -> None:
    spares = spares_for(nodes_out, share)
    here = plain(0, 0, 0, nodes_out=nodes_out)
    assert msgspec.structs.replace(here, spare_nodes=spares).staffed >= share
    if spares > 0:
        assert msgspec.structs.replace(here, spare_nodes=spares - 1).staffed < share


def test_any_number_of_spares_is_counted_at_once() -> None:
    here = plain(0, 0, 0, nodes_out=0.5, spare_nodes=1_000_000, unit_nodes=4)
    assert here.staffed == pytest.approx(1)


def test_a_run_that_fails_all_the_time_gets_nowhere() -> None:
    """Failures so frequent that no interval is ever half done."""
    here = plain(1e12, 60, 3_600)
    assert here.goodput == 0
    assert completion(here, DAY_S) is None


# ---- what a change is worth ------------------------------------------------------------------------------


def test_worth_is_the_difference_of_the_means() -> None:
    before, after = plain(5, 900, 3_600), plain(5, 60, 3_600)
    found = worth("faster", before=before, after=after, work_s=10 * DAY_S, gpus=1_024, usd_per_gpu_hour=2)
    slow, fast = completion(before, 10 * DAY_S), completion(after, 10 * DAY_S)
    assert found is not None
    assert slow is not None
    assert fast is not None
    assert found.gained == pytest.approx(after.goodput - before.goodput)
    assert found.days_sooner == pytest.approx((slow.mean_s - fast.mean_s) / DAY_S)
    assert found.gpu_hours == pytest.approx(24 * 1_024 * found.days_sooner)
    assert found.usd == pytest.approx(2 * found.gpu_hours)


def test_spares_are_paid_for() -> None:
    before = plain(0.1, 60, 0, nodes_out=0.1)
    after = msgspec.structs.replace(before, spare_nodes=64)
    found = worth("spares", before=before, after=after, work_s=10 * DAY_S, gpus=1_024, usd_per_gpu_hour=2)
    assert found is not None
    assert found.days_sooner > 0
    assert found.gpu_hours == pytest.approx(24 * 1_024 * (found.days_sooner - 5), rel=0.01)


def test_nothing_is_worth_a_number_if_the_run_never_ends() -> None:
    hopeless = plain(1, 1, 1, nodes_out=1e4)
    assert worth("x", before=hopeless, after=plain(1, 1, 1), work_s=1, gpus=1, usd_per_gpu_hour=1) is None


# ---- one per cent ----------------------------------------------------------------------------------------


def degraded(**changes: float) -> Degraded:
    plain = Degraded(share=0.01, slowdown=1.3, gpus=1_024, member_gpus=8, lanes=1_024)
    return msgspec.structs.replace(plain, **changes)


def test_one_per_cent_of_gpus_are_eight_per_cent_of_nodes() -> None:
    assert effect(degraded()).nodes_hit == pytest.approx(1 - 0.99**8)
    assert effect(degraded()).without_nodes == pytest.approx(0.923, abs=0.0005)


def test_one_per_cent_costs_ten_where_eleven_gpus_go_together() -> None:
    assert unit_gpus_for(0.01, 0.10) == 11
    assert hit_share(0.01, 10) < 0.10 <= hit_share(0.01, 11)
    assert 1 - effect(degraded(member_gpus=16)).without_members == pytest.approx(0.149, abs=0.0005)


def test_one_slow_gpu_in_a_run_that_waits_costs_ten_per_cent() -> None:
    slowdown = slowdown_for(0.10)
    assert slowdown == pytest.approx(1 / 0.9)
    assert effect(degraded(slowdown=slowdown)).waiting == pytest.approx(0.90, abs=1e-3)
    assert effect(degraded(share=0.0, slowdown=slowdown)).waiting == 1.0


@given(member_gpus=st.sampled_from([1, 2, 4, 8, 16, 64]), share=st.floats(0, 0.1), slowdown=st.floats(1, 3))
def test_gathering_never_makes_it_worse(member_gpus: int, share: float, slowdown: float) -> None:
    """A node of several replicas gathers nothing; a replica of several nodes does."""
    found = effect(degraded(member_gpus=member_gpus, share=share, slowdown=slowdown))
    assert found.gathered >= found.rebalanced - 1e-9
    assert found.rebalanced >= found.waiting - 1e-9
    if member_gpus <= 8:
        assert found.gathered == found.rebalanced


def test_dealing_by_speed_beats_waiting_on_few_gpus() -> None:
    """Of 8 replicas of 8 GPUs, each has a bad one with the chance 1 - 0.99^8; 8 lanes each.

    One or two at 1.3: 7 x 9 + 6 and 6 x 9 + 2 x 6 lanes are done in 9 instead of 8. Three or four: in 9.1
    they do 7 each, and the others 9. Five: 3 x 10 + 5 x 7 in 10. From six on the others cannot take enough:
    10.4.
    """
    hit = 1 - 0.99**8
    ends = [8, 9, 9, 9.1, 9.1, 10, 10.4, 10.4, 10.4]
    expected = sum(comb(8, k) * hit**k * (1 - hit) ** (8 - k) * 8 / end for k, end in enumerate(ends))
    found = effect(degraded(gpus=64, lanes=64))
    assert found.rebalanced == pytest.approx(expected, rel=1e-9)
    assert (round(found.waiting, 3), round(found.rebalanced, 3)) == (0.891, 0.947)


@given(
    members=st.integers(1, 300),
    slow_share=st.floats(0, 1),
    slowdown=st.floats(1, 3),
    lanes_each=st.integers(1, 16),
)
def test_rebalancing_is_never_worse_than_waiting_nor_better_than_the_speeds_allow(
    members: int, slow_share: float, slowdown: float, lanes_each: int
) -> None:
    slow = round(members * slow_share)
    output = rebalanced_output(members, slow, slowdown, lanes_each * members)
    assert output >= 1 / slowdown - 1e-9
    assert output <= (members - slow + slow / slowdown) / members + 1e-9


@pytest.mark.parametrize(
    ("lanes", "output"),
    [(8, 1 / 1.25), (32, 4 / 5), (64, 8 / 9), (1_024, 128 / 132)],
)
def test_many_lanes_deal_finely(lanes: int, output: float) -> None:
    """One of eight members at 80 %: with 128 lanes each, 131.3 would be even, and 132 is the next whole one.

    With one lane each there is nothing to deal, and all wait.
    """
    assert rebalanced_output(8, 1, 1.25, lanes) == pytest.approx(output)
