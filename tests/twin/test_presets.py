"""The presets compared with published figures, and their assumptions."""

import msgspec
import numpy as np
import pytest
from scipy import stats

from holdfast.record.errors import InputError
from holdfast.twin import presets
from holdfast.twin.counts import TRANSIENT_SHARE
from holdfast.twin.failures import Hazards, draw
from holdfast.twin.presets import Preset, hazards_from, preset, resized
from holdfast.wording.units import DAY_NS

EVERY = pytest.mark.parametrize("name", presets.names())

LLAMA3_COUNTS = {
    "faulty-gpu": 148,
    "gpu-hbm3": 72,
    "software-bug": 54,
    "switch-or-cable": 35,
    "host-maintenance": 32,
    "gpu-sram": 19,
    "gpu-system-processor": 17,
    "nic": 7,
    "nccl-watchdog": 7,
    "silent-data-corruption": 6,
    "gpu-thermal": 6,
    "ssd": 3,
    "power-supply": 3,
    "server-chassis": 2,
    "io-expansion-board": 2,
    "dependency": 2,
    "cpu": 2,
    "system-memory": 2,
}
"""Llama 3 (arXiv:2407.21783), Table 5."""

LLAMA3_PERCENTAGES = (
    30.1,
    17.2,
    12.9,
    8.4,
    7.6,
    4.5,
    4.1,
    1.7,
    1.7,
    1.4,
    1.4,
    0.7,
    0.7,
    0.5,
    0.5,
    0.5,
    0.5,
    0.5,
)
"""The same table's column of shares, in the same order."""


def expected(of: Preset, *, planned: bool) -> float:
    duration_ns = round(of.duration_days * DAY_NS)
    return sum(
        of.hazards.expected(row, of.layout.nodes, duration_ns)
        for row in of.hazards.classes
        if planned or row.kind != "planned"
    )


def test_llama3_expects_every_count_of_its_table() -> None:
    of = preset("llama3-405b")
    found = {
        row.name: of.hazards.expected(row, of.layout.nodes, 54 * DAY_NS)
        for row in of.hazards.classes
        if row.kind != "planned"
    }
    assert found == pytest.approx(LLAMA3_COUNTS)


def test_llama3_totals() -> None:
    of = preset("llama3-405b")
    assert sum(LLAMA3_COUNTS.values()) == 419
    assert expected(of, planned=False) == pytest.approx(419)
    assert expected(of, planned=True) == pytest.approx(466)
    unplanned_rate = 1000 * 419 / (of.layout.nodes * 54)
    assert round(unplanned_rate, 2) == 3.79
    assert round(54 * 24 / 419, 2) == 3.09


def test_llama3_prints_shares_that_its_counts_contradict() -> None:
    """The shares sum to 95 % and not to 100 %, and 148 of 419 are 35.3 %, not 30.1 %: hence the counts."""
    assert sum(LLAMA3_PERCENTAGES) == pytest.approx(94.9)
    shares = [round(100 * count / 419, 1) for count in LLAMA3_COUNTS.values()]
    wrong = [
        name
        for name, share, printed in zip(LLAMA3_COUNTS, shares, LLAMA3_PERCENTAGES, strict=True)
        if abs(share - printed) > 0.05
    ]
    assert wrong == ["faulty-gpu"]


def test_llama3_drawn_is_within_the_poisson_interval() -> None:
    of = preset("llama3-405b")
    low, high = stats.poisson(419).interval(0.999)
    for seed in range(10):
        failures = draw(of.hazards, of.layout, 54 * DAY_NS, np.random.default_rng(seed))
        assert low <= sum(failure.kind != "planned" for failure in failures) <= high


def test_llama3_steps() -> None:
    job = preset("llama3-405b").job
    assert (job.gpus, job.member_gpus, job.members) == (16_384, 128, 128)
    assert job.tokens_per_step == 16 * 2**20
    tflops_per_gpu = job.flops_per_step / (job.step_ns / 1e9) / job.gpus / 1e12
    assert tflops_per_gpu == pytest.approx(400, rel=1e-6)
    assert 6 < job.step_ns / 1e9 < 7


def test_llama3_layout() -> None:
    layout = preset("llama3-405b").layout
    assert layout.size("rack") * layout.gpus_per_node == 16
    assert layout.size("pod") * layout.gpus_per_node == 3_072


@pytest.mark.parametrize(
    ("name", "rate"),
    [("meta-32k", 2.3), ("rsc-1", 6.50), ("rsc-1-1024", 6.50), ("rsc-2", 2.34), ("infinitehbd", 4.20)],
)
def test_published_rates(name: str, rate: float) -> None:
    assert preset(name).hazards.rate_per_1000_node_days == pytest.approx(rate, abs=0.005)


def test_meta_32k_expects_its_678() -> None:
    assert expected(preset("meta-32k"), planned=True) == pytest.approx(678)


def test_byterobust_keeps_the_shares_of_its_table() -> None:
    rows = preset("byterobust-9600").hazards.classes
    rates = {row.name: row.rate_per_1000_node_days for row in rows}
    assert rates["hang"] / rates["cuda-error"] == pytest.approx(5_506 / 19_968)
    kinds = {row.name: row.kind for row in rows if row.kind != "crash"}
    assert kinds == {"hang": "hang", "mfu-decline": "gray", "manual-restart": "planned"}


def test_infinitehbd_is_its_trace() -> None:
    of = preset("infinitehbd")
    assert expected(of, planned=True) == pytest.approx(584)
    failures = [
        failure
        for seed in range(10)
        for failure in draw(of.hazards, of.layout, 348 * DAY_NS, np.random.default_rng(seed))
    ]
    repairs_h = [failure.repair_ns / 3.6e12 for failure in failures]
    assert np.median(repairs_h) == pytest.approx(20.4, rel=0.15)
    assert np.mean(repairs_h) == pytest.approx(133, rel=0.15)


def test_infinitehbd_lemons_explain_the_nodes_with_five_faults() -> None:
    """33 of 400 nodes had five faults or more; the same rate for all would make five such nodes."""
    of = preset("infinitehbd")
    assert of.hazards.lemons is not None
    found, without = (
        np.mean([_nodes_with_five(of, hazards, seed) for seed in range(20)])
        for hazards in (of.hazards, msgspec.structs.replace(of.hazards, lemons=None))
    )
    assert found == pytest.approx(33, abs=6)
    assert without < 10


def _nodes_with_five(of: Preset, hazards: Hazards, seed: int) -> int:
    failures = draw(hazards, of.layout, 348 * DAY_NS, np.random.default_rng(seed))
    return int((np.bincount([failure.node for failure in failures], minlength=400) >= 5).sum())


@EVERY
def test_presets_are_consistent(name: str) -> None:
    of = preset(name)
    assert of.name == name
    assert of.layout.gpus == of.job.gpus
    assert of.job.gpus % of.job.member_gpus == 0
    assert of.job.lanes & (of.job.lanes - 1) == 0
    assert of.job.members <= of.job.lanes
    assert of.job.member_gpus % of.layout.gpus_per_node == 0
    names = [row.name for row in of.hazards.classes]
    assert len(set(names)) == len(names)


@EVERY
def test_every_number_has_a_source(name: str) -> None:
    of = preset(name)
    sources = [of.source, of.practice.source, *(row.source for row in of.hazards.classes)]
    sources += [figure.source for figure in of.published]
    assert all("arXiv:" in source or source == "assumed" for source in sources)


@pytest.mark.parametrize("name", ["llama3-405b", "meta-32k", "rsc-1", "acme"])
def test_about_as_many_are_transient_as_unicron_found(name: str) -> None:
    rows = [row for row in preset(name).hazards.classes if row.kind != "planned"]
    transient = sum(row.rate_per_1000_node_days * row.transient_share for row in rows)
    share = transient / sum(row.rate_per_1000_node_days for row in rows)
    assert share == pytest.approx(TRANSIENT_SHARE, abs=1e-9)


def test_a_name_that_is_nearly_right_is_named() -> None:
    with pytest.raises(InputError) as caught:
        preset("lama3-405")
    assert caught.value.hint == "Did you mean llama3-405b?"


def test_a_name_that_is_nothing_gets_the_list() -> None:
    with pytest.raises(InputError) as caught:
        preset("?")
    assert caught.value.hint == f"There are {', '.join(presets.names())}."


def test_resized_keeps_the_step_and_grows_its_work() -> None:
    of = preset("llama3-405b")
    larger = resized(of, 98_304)
    assert larger.layout.gpus == larger.job.gpus == 98_304
    assert larger.job.step_ns == of.job.step_ns
    assert larger.job.tokens_per_step == 6 * of.job.tokens_per_step
    assert larger.job.members <= larger.job.lanes
    assert larger.published == ()


def test_resized_keeps_the_share_of_spares_and_at_least_one() -> None:
    """32 spare nodes beside 16,384 GPUs are 2 beside 1,024, and would be a quarter of one beside 128."""
    of = preset("llama3-405b")
    assert (of.job.gpus, of.practice.spare_nodes) == (16_384, 32)
    assert resized(of, 1_024).practice.spare_nodes == 2
    assert resized(of, 128).practice.spare_nodes == 1


def test_resized_refuses_parts_of_a_replica() -> None:
    with pytest.raises(InputError, match="not a multiple") as caught:
        resized(preset("llama3-405b"), 1_000)
    assert "1,024" in caught.value.hint


def test_own_rates_are_read() -> None:
    hazards = preset("infinitehbd").hazards
    written = msgspec.json.encode({"preset": hazards, "faults_per_1000_node_days": 4.2})
    assert hazards_from(written) == hazards


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"no json",
        b'{"preset": {"classes": [{"name": "gpu"}]}}',
        b'{"preset": {"classes": [], "age_days": -1}}',
    ],
)
def test_what_are_no_rates_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="not failure rates") as caught:
        hazards_from(data)
    assert "plan fit" in caught.value.hint
