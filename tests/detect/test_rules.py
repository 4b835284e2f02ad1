"""Every rule against a fault made up for it: after how many observations, since when, and not in noise."""

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.finding import Finding
from holdfast.detect.rules import RULES, SIGNS, Rule
from holdfast.detect.scene import SETTLE_NS, PlannedWork
from holdfast.signals.catalogue import CATALOGUE, Scope
from holdfast.signals.frame import Floats, Frame, Labels
from holdfast.topology.graph import Kind, Topology

SCRAPE_S = 10.0
SCRAPE_NS = round(SCRAPE_S * 1e9)
ROWS, FAULTY_FROM = 120, 80
SERIES, FAULTY = 4, 1

LEVELS = {
    "densewatch_cdu_coolant_flow_lpm": 200.0,
    "FlowLitersPerMinute": 200.0,
    "densewatch_cdu_pump_speed_percent": 60.0,
    "densewatch_cdu_coolant_supply_temp_celsius": 30.0,
    "SupplyTemperatureCelsius": 30.0,
    "DCGM_FI_DEV_GPU_TEMP": 62.0,
    "DCGM_FI_DEV_MEMORY_TEMP": 72.0,
    "DCGM_FI_DEV_SM_CLOCK": 1_980.0,
    "node_infiniband_state_id": 4.0,
    "node_infiniband_physical_state_id": 5.0,
    "node_infiniband_port_transmit_wait_total": 1e5,
    "infiniband_switch_port_transmit_wait_total": 1e5,
    "node_infiniband_symbol_error_total": 0.1,
    "infiniband_switch_port_symbol_error_total": 0.1,
    "node_pressure_cpu_waiting_seconds_total": 0.05,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
    "node_hwmon_fan_rpm": 8_000.0,
    "ipmi_fan_speed_rpm": 8_000.0,
    "redfish_chassis_fan_rpm": 8_000.0,
    "redfish_chassis_temperature_celsius": 22.0,
    "ipmi_temperature_celsius": 22.0,
    "node_hwmon_temp_celsius": 22.0,
    "node_pressure_io_waiting_seconds_total": 0.02,
    "node_pressure_memory_waiting_seconds_total": 0.001,
    "node_vmstat_pswpin": 0.0,
    "node_vmstat_pswpout": 0.0,
    "node_disk_io_time_seconds_total": 0.1,
    "node_nfs_rpc_retransmissions_total": 0.0,
    "probe_dns_lookup_time_seconds": 0.002,
    "node_infiniband_local_ack_timeout_errors_total": 0.0,
    "node_infiniband_packet_sequence_errors_total": 0.1,
    "node_infiniband_out_of_sequence_packets_received_total": 1.0,
    "node_infiniband_roce_adp_retransmits_total": 0.1,
    "node_infiniband_rx_icrc_encapsulated_errors_total": 0.0,
    "node_infiniband_np_cnp_packets_sent_total": 20.0,
    "node_infiniband_np_ecn_marked_roce_packets_received_total": 20.0,
    "node_infiniband_rp_cnp_packets_handled_total": 20.0,
    "holdfast_pool_transfer_seconds": 0.04,
    "vllm:kv_cache_usage_perc": 0.5,
    "ipmi_fan_speed_state": 0.0,
    "redfish_chassis_fan_health": 1.0,
    "node_hwmon_fan_alarm": 0.0,
    "ipmi_temperature_state": 0.0,
    "ipmi_power_state": 0.0,
    "ipmi_sensor_state": 0.0,
    "node_infiniband_port_errors_received_total": 0.0,
    "node_infiniband_local_link_integrity_errors_total": 0.0,
    "node_infiniband_port_discards_received_total": 1.0,
    "holdfast_member_resent_segments_total": 0.2,
    "node_infiniband_roce_adp_retransmits_timeout_total": 0.0,
    "node_vmstat_pgmajfault": 20.0,
    "lustre_health_check": 1.0,
    **{f"node_ethtool_received_prio{priority}_pause_duration": 0.001 for priority in range(8)},
    **{f"node_ethtool_received_prio{priority}_pause": 10.0 for priority in range(8)},
    "dynamo_frontend_worker_last_time_to_first_token_seconds": 0.3,
}
"""What is usual of each metric that is held against its past."""
KIND_OF: dict[Scope, Kind] = {
    "gpu": "gpu",
    "clock_event": "gpu",
    "port": "port",
    "uplink": "leaf",
    "loop": "loop",
    "connector": "loop",
    "supply": "shelf",
    "node": "node",
    "chassis": "node",
    "disk": "node",
    "fan": "node",
    "netdev": "node",
    "lustre": "node",
    "resolver": "node",
    "member": "node",
    "decode": "node",
    "worker": "node",
    "pair": "link",
}

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.sign}-{rule.metric}")


def healthy_and_faulty(rule: Rule) -> tuple[float, float]:
    """In the rule's unit: a harmless value, and one that is clearly too much."""
    if rule.against == "limit":
        return 0.4 * rule.limit, 2 * rule.limit if rule.limit else 1 / SCRAPE_S
    level = LEVELS[rule.metric]
    away = 2 * max(rule.least, rule.least_share * level)
    return level, level - away if rule.falls else level + away


def readings(rule: Rule, faulty: slice, *, rows: int = ROWS, series: int = SERIES, seed: int = 0) -> Floats:
    """As the exporter would show them: gauges as they are, counters added up."""
    healthy, wrong = healthy_and_faulty(rule)
    values = healthy * (1 + 0.002 * np.random.default_rng(seed).standard_normal((rows, series)))
    values[faulty, FAULTY] = wrong
    values /= rule.scale
    return 1_000.0 + np.cumsum(values * SCRAPE_S, axis=0) if rule.view == "rate" else values


Made = Callable[..., Frame]


@pytest.fixture
def made(framed: Made, topology: Topology) -> Made:
    """The rule's metric of a few subjects; one of them is faulty in some rows."""

    def make(rule: Rule, faulty: slice, *, rows: int = ROWS, series: int = SERIES, seed: int = 0) -> Frame:
        names = topology.names(KIND_OF[CATALOGUE[rule.metric].scope])
        subjects = [names[number % len(names)] for number in range(series)]
        labels: Labels = {}
        if rule.named:
            labels["sensor"] = f"Front {rule.named[0].capitalize()} Temp"
        values = readings(rule, faulty, rows=rows, series=series, seed=seed)
        return framed(rule.metric, values, subjects, labels=[labels] * series, every_s=SCRAPE_S)

    return make


def of(rule: Rule, detected: Detected) -> list[Finding]:
    return [
        one
        for one in detected.machines
        if (one.sign, one.metric, one.method) == (rule.sign, rule.metric, rule.against)
    ]


def test_every_sign_says_something_and_every_metric_is_known() -> None:
    assert {rule.sign for rule in RULES} <= set(SIGNS)
    assert {rule.metric for rule in RULES} <= set(CATALOGUE)
    assert all(SIGNS.values())


@every_rule
def test_it_is_found_after_just_so_many_observations(
    rule: Rule, made: Made, looked: Callable[..., Detected]
) -> None:
    frame = made(rule, slice(FAULTY_FROM, None), rows=FAULTY_FROM + rule.scrapes)
    (found,) = of(rule, looked(frame))
    assert found.subject == frame.subjects[FAULTY]
    assert found.since_ns == frame.times_ns[FAULTY_FROM]
    assert found.noticed_ns == frame.times_ns[-1]
    assert found.until_ns is None
    healthy, faulty = healthy_and_faulty(rule)
    assert found.value == pytest.approx(faulty, rel=0.01)
    assert found.usual == pytest.approx(rule.limit if rule.against == "limit" else healthy, rel=0.01)
    assert 0.3 < found.confidence < 1
    one_less = made(rule, slice(FAULTY_FROM, None), rows=FAULTY_FROM + rule.scrapes - 1)
    assert of(rule, looked(one_less)) == []


@every_rule
def test_it_says_when_it_was_over(rule: Rule, made: Made, looked: Callable[..., Detected]) -> None:
    frame = made(rule, slice(FAULTY_FROM, FAULTY_FROM + 6), rows=FAULTY_FROM + 20)
    (found,) = of(rule, looked(frame))
    assert found.since_ns == frame.times_ns[FAULTY_FROM]
    assert found.until_ns == frame.times_ns[FAULTY_FROM + 5]
    assert found.noticed_ns == frame.times_ns[FAULTY_FROM + rule.scrapes - 1]


@every_rule
def test_it_is_surer_the_longer_it_lasts(rule: Rule, made: Made, looked: Callable[..., Detected]) -> None:
    sure = [
        of(rule, looked(made(rule, slice(FAULTY_FROM, None), rows=FAULTY_FROM + rows)))[0].confidence
        for rows in (rule.scrapes, rule.scrapes + 5)
    ]
    assert sure[0] < sure[1] < 1


@every_rule
@pytest.mark.parametrize("seed", range(3))
def test_noise_is_nothing(rule: Rule, seed: int, made: Made, looked: Callable[..., Detected]) -> None:
    assert of(rule, looked(made(rule, slice(0, 0), rows=180, series=64, seed=seed))) == []


@every_rule
def test_planned_work_hides_what_begins_in_it_and_only_that(
    rule: Rule, made: Made, looked: Callable[..., Detected], topology: Topology
) -> None:
    """Links that go down for a planned reboot were 214 false alarms (NVSentinel, issue 1701)."""
    frame = made(rule, slice(FAULTY_FROM, FAULTY_FROM + 6))
    began_ns = int(frame.times_ns[FAULTY_FROM])
    where = rack_or_itself(frame.subjects[FAULTY], topology)

    def hidden(from_ns: int, to_ns: int | None) -> bool:
        work = PlannedWork(subject=where, from_ns=from_ns, to_ns=to_ns, reason="firmware")
        return of(rule, looked(frame, planned=[work])) == []

    assert hidden(began_ns - SCRAPE_NS, began_ns + SCRAPE_NS)
    assert hidden(began_ns, None)
    assert hidden(began_ns - SETTLE_NS - SCRAPE_NS, began_ns - SETTLE_NS)
    assert not hidden(began_ns - SETTLE_NS - 2 * SCRAPE_NS, began_ns - SETTLE_NS - SCRAPE_NS)
    assert not hidden(began_ns + SCRAPE_NS, None)


def rack_or_itself(subject: str, topology: Topology) -> str:
    """Where work on it would be announced."""
    racks = topology.causes(subject, "rack") if topology.kind(subject) in ("gpu", "port", "node") else ()
    return racks[0] if racks else subject


def test_a_port_that_was_idle_may_wait_for_a_tick(framed: Made, looked: Callable[..., Detected]) -> None:
    """A tick is some nanoseconds: nothing waits for anything at one of them a second."""
    ticks = np.zeros((120, 4))
    ticks[80:84, 1] = 1
    ports = [f"n00000/mlx5_{number}" for number in range(4)]
    frame = framed("node_infiniband_port_transmit_wait_total", np.cumsum(ticks * SCRAPE_S, axis=0), ports)
    assert looked(frame).machines == ()


def test_a_missed_scrape_neither_hides_a_fault_nor_makes_one(
    made: Made, looked: Callable[..., Detected]
) -> None:
    rule = next(rule for rule in RULES if rule.sign == "symbol-errors")
    frame = made(rule, slice(FAULTY_FROM, None))
    frame.values[FAULTY_FROM + 1 :: 4, FAULTY] = np.nan
    frame.values[5::7, 0] = np.nan
    (found,) = of(rule, looked(frame))
    assert (found.since_ns, found.until_ns) == (frame.times_ns[FAULTY_FROM], None)


def test_a_counter_that_begins_again_is_not_a_burst(made: Made, looked: Callable[..., Detected]) -> None:
    """After a reboot it shows what came since, and not a fall or a jump."""
    rule = next(rule for rule in RULES if rule.sign == "symbol-errors")
    frame = made(rule, slice(0, 0))
    frame.values[60:] -= frame.values[60]
    assert of(rule, looked(frame)) == []


def test_what_creeps_up_began_before_it_mattered(framed: Made, looked: Callable[..., Detected]) -> None:
    rise = np.concatenate([np.zeros(80), np.linspace(0, 12, 40)])
    noise = 0.1 * np.random.default_rng(3).standard_normal((120, 4))
    values = 62.0 + noise + np.outer(rise, [0, 1, 0, 0])
    frame = framed("DCGM_FI_DEV_GPU_TEMP", values, [f"n00000.{number}" for number in range(4)])
    (found,) = [one for one in looked(frame).machines if one.sign == "hot-gpu"]
    began = int(np.searchsorted(frame.times_ns, found.since_ns))
    noticed = int(np.searchsorted(frame.times_ns, found.noticed_ns))
    assert 2.0 < rise[began] < 3.0
    assert 5.0 < rise[noticed] < 6.5


def test_who_was_colder_than_usual_before_had_not_begun_to_be_hot(
    framed: Made, looked: Callable[..., Detected]
) -> None:
    """A GPU that stood idle for a while and is hot after it is hot since then, not since it was idle."""
    values = 62.0 + 0.1 * np.random.default_rng(4).standard_normal((120, 4))
    values[90:105, 1] -= 20.0
    values[105:, 1] += 12.0
    frame = framed("DCGM_FI_DEV_GPU_TEMP", values, [f"n00000.{number}" for number in range(4)])
    (found,) = [one for one in looked(frame).machines if one.sign == "hot-gpu"]
    assert found.since_ns == frame.times_ns[105]
