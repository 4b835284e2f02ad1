"""Frames under real names and labels, with the noise and the faults of the field, cheap at 16,384 GPUs."""

import time

import numpy as np
import pytest

from holdfast.drills.fabric import WAIT_TICKS_MAX
from holdfast.drills.metrics import CATALOGUE
from holdfast.drills.scenarios import SCENARIOS, Played, play
from holdfast.drills.telemetry import CLEAN, Dirt
from holdfast.record.errors import InputError
from holdfast.signals.frame import Frame
from holdfast.twin.cluster import Layout

pytestmark = pytest.mark.slow

EVERYTHING = 1.0
LARGE_SECONDS_MAX = 30.0
LARGE_BYTES_MAX = 10**9

DCGM_DEV = """SM_CLOCK MEM_CLOCK GPU_TEMP MEMORY_TEMP POWER_USAGE TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER
GPU_UTIL XID_ERRORS UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS ROW_REMAP_FAILURE POWER_VIOLATION
THERMAL_VIOLATION ECC_SBE_VOL_TOTAL"""
DCGM_PROF = "GR_ENGINE_ACTIVE PIPE_TENSOR_ACTIVE DRAM_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"
INFINIBAND = """state_id physical_state_id rate_bytes_per_second symbol_error_total link_downed_total
link_error_recovery_total port_transmit_wait_total port_data_received_bytes_total
port_data_transmitted_bytes_total"""
MOUNTSTATS = "requests_total transmissions_total major_timeouts_total response_time_seconds_total"
HOST = """nfs_rpc_retransmissions_total kernel_hung_tasks_total pressure_cpu_waiting_seconds_total
pressure_io_waiting_seconds_total pcidevice_current_link_width pcidevice_max_link_width"""
REDFISH = """FlowLitersPerMinute RatedFlowLitersPerMinute SupplyTemperatureCelsius ReturnTemperatureCelsius
HeatRemovedkW"""
DENSEWATCH = """coolant_supply_temp_celsius coolant_return_temp_celsius coolant_flow_lpm heat_removed_kw
pump_speed_percent"""
OTHERS = """DCGM_EXP_CLOCK_EVENTS_COUNT redfish_chassis_power_powersupply_health slurm_nodes_maint
slurm_nodes_alloc infiniband_switch_port_transmit_wait_total
vllm:nixl_xfer_time_seconds_count vllm:nixl_xfer_time_seconds_sum
vllm:kv_cache_usage_perc dynamo_frontend_worker_last_time_to_first_token_seconds"""

KNOWN = {
    prefix + name
    for prefix, names in (
        ("DCGM_FI_DEV_", DCGM_DEV),
        ("DCGM_FI_PROF_", DCGM_PROF),
        ("node_infiniband_", INFINIBAND),
        ("node_mountstats_nfs_operations_", MOUNTSTATS),
        ("node_", HOST),
        ("", REDFISH),
        ("densewatch_cdu_", DENSEWATCH),
        ("", OTHERS),
    )
    for name in names.split()
}
"""What the exporters' own documentation has, of all that the twin shows."""


@pytest.fixture(scope="module")
def clean() -> Played:
    return play("cooling-pump", 1, dirt=CLEAN)


def dirty(name: str = "quiet", **shares: float) -> Played:
    """Clean but for this."""
    return play(name, 1, dirt=Dirt(**{**dict.fromkeys(Dirt.__struct_fields__, 0.0), **shares}))


def of(samples: Frame, subject: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return samples.values[:, samples.subjects.index(subject)].astype(float)


def test_no_metric_has_an_invented_name() -> None:
    foreign = {name for name in CATALOGUE if not name.startswith("holdfast_")}
    assert foreign - KNOWN == set()


def test_labels_are_the_exporters_own(clean: Played) -> None:
    keys = {
        name: set(clean.telemetry.sample(name).labels[0]) - {"instance", "hpc_job"}
        for name in CATALOGUE
        if clean.telemetry.has([name])
    }
    gpu = {"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname"}
    assert keys["DCGM_FI_DEV_GPU_TEMP"] == gpu
    assert keys["DCGM_EXP_CLOCK_EVENTS_COUNT"] == {*gpu, "clock_event"}
    assert keys["DCGM_FI_DEV_XID_ERRORS"] == {*gpu, "err_code", "err_msg"}
    assert keys["node_infiniband_symbol_error_total"] == {"device", "port"}
    assert keys["node_mountstats_nfs_operations_requests_total"] == {
        "export",
        "mountaddr",
        "operation",
        "protocol",
    }
    assert keys["densewatch_cdu_coolant_flow_lpm"] == {"cdu", "protocol"}
    assert keys["holdfast_member_compute_seconds"] == {"run", "member", "node"}


def test_no_two_series_have_the_same_labels() -> None:
    telemetry = play("pool-link", 1).telemetry
    for samples in map(telemetry.sample, telemetry.metrics):
        assert len({tuple(sorted(labels.items())) for labels in samples.labels}) == len(samples.labels)
        assert samples.values.shape == (len(samples.times_ns), len(samples.subjects))


@pytest.mark.parametrize(
    ("metric", "quantum"),
    [("DCGM_FI_DEV_GPU_TEMP", 1), ("DCGM_FI_DEV_SM_CLOCK", 15), ("DCGM_FI_DEV_POWER_USAGE", 0.1)],
)
def test_readings_are_rounded_as_the_sensor_rounds(clean: Played, metric: str, quantum: float) -> None:
    values = clean.telemetry.sample(metric).values
    np.testing.assert_allclose(values / quantum, np.round(values / quantum), atol=2e-3)


def test_the_heat_balance_holds_in_the_samples_up_to_their_noise(clean: Played) -> None:
    supply, back, flow, heat = (
        clean.telemetry.sample(f"densewatch_cdu_{name}").values
        for name in (
            "coolant_supply_temp_celsius",
            "coolant_return_temp_celsius",
            "coolant_flow_lpm",
            "heat_removed_kw",
        )
    )
    assert flow * (back - supply) * 0.0698 == pytest.approx(heat, rel=0.08)
    assert (flow * (back - supply) * 0.0698).mean() == pytest.approx(heat.mean(), rel=0.005)


def test_energy_is_the_sum_of_power(clean: Played) -> None:
    power = of(clean.telemetry.sample("DCGM_FI_DEV_POWER_USAGE"), "n00003.2")
    energy = of(clean.telemetry.sample("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"), "n00003.2")
    # A sensor of power may be a few percent off; the counter of energy is another one.
    assert (energy[-1] - energy[0]) / 1e3 == pytest.approx(power[1:].sum() * 10, rel=0.04)


def test_a_gpu_that_waits_looks_as_busy_as_any(clean: Played) -> None:
    cause = clean.truth
    utilisation, tensor = (
        clean.telemetry.sample(name) for name in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
    )
    waiting = next(f"{node}.0" for node in ("n00059", "n00001") if node not in cause.affected)
    during = (tensor.times_ns > cause.began_ns + 200 * 10**9) & (tensor.times_ns < (cause.ended_ns or 2**62))
    before = tensor.times_ns < cause.began_ns
    assert np.median(of(utilisation, waiting)[during]) == np.median(of(utilisation, waiting)[before])
    assert np.median(of(tensor, waiting)[during]) < 0.97 * np.median(of(tensor, waiting)[before])


def test_a_metric_is_the_same_whatever_else_is_asked_for(clean: Played) -> None:
    name = "node_infiniband_symbol_error_total"
    alone = play("cooling-pump", 1, dirt=CLEAN).telemetry.sample(name)
    every = map(clean.telemetry.sample, clean.telemetry.metrics)
    among = [samples for samples in every if samples.metric == name]
    assert alone.values.tobytes() == among[0].values.tobytes()


def test_a_window_is_a_part_of_the_whole(clean: Played) -> None:
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    whole = clean.telemetry.sample(name)
    part = clean.telemetry.sample(name, (int(whole.times_ns[20]), int(whole.times_ns[50])))
    assert part.times_ns.tolist() == whole.times_ns[20:50].tolist()
    assert part.values.tobytes() == whole.values[20:50].tobytes()


def test_a_name_that_is_not_there_is_refused(clean: Played) -> None:
    with pytest.raises(InputError, match="no metric DCGM_FI_DEV_MOOD"):
        clean.telemetry.sample("DCGM_FI_DEV_MOOD")


# -- what goes wrong on the way -----------------------------------------------------------------------


def test_a_missed_scrape_misses_all_of_a_node() -> None:
    telemetry = dirty(missed_share=0.05).telemetry
    temperature, width = (
        telemetry.sample(name) for name in ("DCGM_FI_DEV_GPU_TEMP", "node_pcidevice_current_link_width")
    )
    missed = np.isnan(temperature.values)
    assert missed.mean() == pytest.approx(0.05, rel=0.1)
    assert (missed == np.isnan(width.values)).all()
    assert (missed.reshape(len(missed), -1, 8).all(axis=2) == missed[:, ::8]).all()


def test_a_stuck_gauge_never_moves_again() -> None:
    values = dirty("cooling-pump", stuck_share=0.1).telemetry.sample("DCGM_FI_DEV_POWER_USAGE").values
    stuck = (np.diff(values[-20:], axis=0) == 0).all(axis=0)
    assert 0.03 < stuck.mean() < 0.2


def test_a_late_exporter_shows_what_was_there_a_scrape_ago() -> None:
    name = "node_pcidevice_current_link_width"
    on_time, late = (
        play("pcie-downgrade", 1, dirt=dirt).telemetry.sample(name)
        for dirt in (CLEAN, Dirt(missed_share=0, late_share=EVERYTHING))
    )
    assert (late.values[1:] == on_time.values[:-1]).all()
    assert on_time.values.min() < 16


def test_violations_are_in_nanoseconds_or_in_microseconds() -> None:
    ns, us = (
        play("cooling-pump", 1, dirt=Dirt(missed_share=0, microseconds_share=share)).telemetry.sample(
            "DCGM_FI_DEV_THERMAL_VIOLATION"
        )
        for share in (0.0, EVERYTHING)
    )
    assert ns.values.max() > 60e9
    assert ns.values[-1] == pytest.approx(1_000 * us.values[-1])
    elapsed_ns = ns.times_ns[-1] - ns.times_ns[0]
    assert ns.values.max() <= elapsed_ns + 10 * 10**9  # calibrated against wall time it is a time


def test_a_narrow_counter_stops_at_its_width() -> None:
    values = (
        dirty(saturated_share=EVERYTHING).telemetry.sample("node_infiniband_port_transmit_wait_total").values
    )
    assert (values == WAIT_TICKS_MAX).all()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("densewatch_cdu_coolant_supply_temp_celsius", 86.0),
        ("densewatch_cdu_heat_removed_kw", 112_000.0),
    ],
)
def test_a_unit_may_contradict_the_name(name: str, wrong: float) -> None:
    values = dirty(wrong_unit_share=EVERYTHING).telemetry.sample(name).values
    assert np.median(values) == pytest.approx(wrong, rel=0.05)


def test_words_stand_where_numbers_should() -> None:
    samples = dirty(words_share=0.1).telemetry.sample("ReturnTemperatureCelsius")
    assert len(samples.words) == pytest.approx(0.1 * samples.values.size, rel=0.3)
    assert {word.text for word in samples.words} == {"Null"}
    assert all(np.isnan(samples.values[word.time, word.series]) for word in samples.words)
    times_ns = samples.times_ns
    part = dirty(words_share=0.1).telemetry.sample(samples.metric, (int(times_ns[30]), int(times_ns[60])))
    assert [(word.time + 30, word.series) for word in part.words] == [
        (word.time, word.series) for word in samples.words if 30 <= word.time < 60
    ]


def test_a_flow_too_small_for_its_meter_is_out_of_range() -> None:
    played = play("cooling-pump", 1)
    samples = played.telemetry.sample("FlowLitersPerMinute")
    beyond = {samples.subjects[word.series] for word in samples.words if word.text == "Out of range"}
    assert beyond == {played.truth.cause.subject}


def test_counters_begin_again_after_a_reboot() -> None:
    played = play("planned-maintenance", 1, dirt=CLEAN)
    energy = of(played.telemetry.sample("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"), "n00063.0")
    off = np.flatnonzero(np.isnan(energy))
    assert (np.diff(off) == 1).all()
    assert len(off) > 10
    assert energy[off[-1] + 1] < energy[off[0] - 1]
    assert energy[off[-1] + 1] < 90 * 1e3 * 30  # what it took since
    assert np.isfinite(of(played.telemetry.sample("DCGM_FI_DEV_GPU_TEMP"), "n00000.0")).all()


def test_an_xid_never_clears_and_the_last_one_hides_the_one_before() -> None:
    played = play("hbm-errors", 1, dirt=CLEAN)
    samples = played.telemetry.sample("DCGM_FI_DEV_XID_ERRORS")
    gpu = played.truth.cause.subject
    codes = [
        (labels["err_code"], samples.values[:, index])
        for index, labels in enumerate(samples.labels)
        if samples.subjects[index] == gpu
    ]
    assert [code for code, _ in codes] == ["0", "63", "95"]
    assert np.isfinite([values for _, values in codes]).sum(axis=0).tolist() == [1] * len(samples.times_ns)
    assert [values[-1] for _, values in codes][2] == 95
    healthy = [index for index, subject in enumerate(samples.subjects) if subject != gpu]
    assert (samples.values[:, healthy] == 0).all()


def test_every_metric_appears_in_some_scenario() -> None:
    there = set(play("quiet", 1).telemetry.metrics) | set(play("pool-link", 1).telemetry.metrics)
    assert there == set(CATALOGUE)
    assert any(scenario.with_pools for scenario in SCENARIOS.values())


@pytest.mark.soak
def test_16384_gpus_20_metrics_half_an_hour_are_cheap() -> None:
    begun = time.process_time()
    played = play("cooling-pump", 1, layout=Layout(gpus=16_384))
    metrics = [name for name, metric in CATALOGUE.items() if metric.known.scope in ("gpu", "port")][:20]
    values, largest_bytes = 0, 0
    for samples in map(played.telemetry.sample, metrics):
        values += samples.values.size
        largest_bytes = max(largest_bytes, samples.values.nbytes)
    assert values == 16_384 * 20 * 180
    assert 10 * largest_bytes < LARGE_BYTES_MAX
    assert time.process_time() - begun < LARGE_SECONDS_MAX
