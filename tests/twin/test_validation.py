"""The twin compared with published figures: interruptions, effective time, and the closed form."""

import pytest
from quantity import sampled
from scipy import stats

from holdfast.economics.cadence.expectation import Setting, ettr
from holdfast.twin.policies import Policy, policy
from holdfast.twin.presets import Preset, preset
from holdfast.twin.study import Study
from holdfast.twin.sweep import Figures, Task, play

pytestmark = pytest.mark.slow

DAY_NS = 86_400 * 10**9


def played(of: Preset, by: Policy, seed: int, days: float) -> Figures:
    study = Study(
        name=of.name,
        job=of.job,
        layout=of.layout,
        hazards=of.hazards,
        duration_ns=round(days * DAY_NS),
        usd_per_gpu_hour=4.0,
    )
    figures = play(Task(study=study, policy=by, seed=seed))
    assert figures.is_exact
    return figures


@pytest.mark.parametrize("seed", sampled([1, 2], [1]))
def test_llama_3s_interruptions_and_effective_time(seed: int) -> None:
    llama = preset("llama3-405b")
    low, high = stats.poisson.interval(0.99, 419)
    figures = played(llama, llama.practice, seed, 54)
    assert low <= figures.interruptions <= high
    assert figures.effective_time > 0.90


@pytest.mark.parametrize(
    ("name", "rate"), sampled([("rsc-1-1024", 6.50), ("rsc-2-1024", 2.34)], [("rsc-2-1024", 2.34)])
)
def test_the_closed_form_where_it_holds(name: str, rate: float) -> None:
    of = preset(name)
    setting = Setting(nodes=128, failures_per_1000_node_days=rate, restart_s=300, interval_s=3_600)
    figures = played(of, of.practice, 1, 300)
    assert figures.effective_time == pytest.approx(ettr(setting), abs=0.02)


def test_byterobust_comes_to_its_97_per_cent() -> None:
    of = preset("byterobust-9600")
    assert played(of, of.practice, 1, 60).effective_time == pytest.approx(0.97, abs=0.01)


@pytest.mark.parametrize("seed", sampled([1, 2, 3], [1]))
def test_holdfasts_policy_loses_less_than_a_restart_on_every_seed(seed: int) -> None:
    llama = preset("llama3-405b")
    lost = [
        played(llama, policy(name, llama.job.gpus, 32), seed, 7).lost_gpu_hours
        for name in ("restart", "holdfast")
    ]
    assert lost[1] < lost[0]
