"""What is usual on a cluster as the field has it: shapes of healthy hours that raise nothing, and causes that
are told by who is late, by what changed and by how much more one host has than the others.
"""

from collections.abc import Callable

import numpy as np
import pytest
from field_cluster import DEFAULT_ON, HOSTS, NODES, RUN, STEP_S, Field, answers, the, topology
from quantity import sampled

from holdfast.detect.mounts import REQUESTS, RESPONSE, SENT
from holdfast.detect.pace import LANES
from holdfast.detect.scene import Healthy
from holdfast.record.events import ActionTaken, MemberJoined

pytestmark = pytest.mark.slow

STEP = "holdfast_run_step_seconds"
COLLECTOR = "holdfast_member_gc_seconds_total"
LABELS = [{"run": RUN, "member": host, "node": host} for host in HOSTS]


# -- healthy hours -------------------------------------------------------------------------------------


def evaluations(field: Field) -> None:
    """Every ten minutes, from the beginning on."""
    field.values[STEP][20::40] = 45.0


def saves_in_steps(field: Field) -> None:
    field.values[STEP][12::16] *= 2.6


def warm_up(field: Field) -> None:
    field.values[STEP][:16] *= np.linspace(2.5, 1.0, 16)[:, None]


def two_lengths(field: Field) -> None:
    """Three steps in ten have long sequences."""
    field.values[STEP] *= 1 + 0.4 * (field.dice.random(field.values[STEP].shape) < 0.3)


def drift(field: Field) -> None:
    field.values[STEP] *= 1 + 0.02 * np.sin(np.linspace(0, 9, field.rows))[:, None]


def counted(field: Field) -> None:
    """Two steps between scrapes or three, as a count of steps tells it, at times two for a while."""
    between = field.dice.choice([2, 3], size=field.rows, p=[0.6, 0.4])
    between[100:116] = 2
    marks = 1 + 1e-6 * (np.arange(field.rows) % 2)
    field.values[STEP] = (15.0 / between * marks)[:, None]


HEALTHY = [evaluations, saves_in_steps, warm_up, two_lengths, drift, counted]


@pytest.mark.parametrize("shape", HEALTHY, ids=lambda shape: shape.__name__)
def test_odd_shapes_of_healthy_hours_raise_nothing(shape: Callable[[Field], None]) -> None:
    """Not at the first look after half an hour, nor later."""
    field = Field(hours=2.5)
    shape(field)
    for at_row in (120, 240, 600):
        assert answers(field.look([STEP], at_row=at_row)) == []


@pytest.mark.parametrize("ago", [1, 2, 3, 4])
@pytest.mark.parametrize("pause_s", [21.0, 90.0])
def test_a_pause_in_the_last_readings_is_no_slowness(pause_s: float, ago: int) -> None:
    """The third evaluation of a young run, a few readings before the look."""
    field = Field(hours=0.5)
    field.values[STEP][[38, 78, field.rows - ago]] += pause_s
    assert answers(field.look([STEP])) == []


def test_steps_that_are_slow_at_the_last_readings_are_told() -> None:
    """Three of them are no pause."""
    field = Field(hours=0.5)
    field.values[STEP][-3:] *= 2.5
    assert the(field.look([STEP])).slowdown == pytest.approx(2.5, rel=0.1)


def test_a_node_that_was_drained_and_is_used_again_is_no_longer_out_of_use() -> None:
    field = Field()
    field.slower(1.25, 12)
    field.change("node_pressure_cpu_waiting_seconds_total", 12, ["gpu-010"], plus=0.45)
    drained_ns, joined_ns = (int(field.times_ns[field.row(ago_min)]) for ago_min in (90, 80))
    drain = ActionTaken(id="d", occurred_ns=drained_ns, run=RUN, subject="gpu-010", action="drain")
    field.events = [drain]
    assert the(field.look(DEFAULT_ON)).verdict == "unknown"
    joined = MemberJoined(
        id="j", occurred_ns=joined_ns, run=RUN, subject=f"{RUN}/gpu-010", node="gpu-010", gpus=8
    )
    field.events = [drain, joined]
    assert answers(field.look(DEFAULT_ON)) == [("cpu-contention", "gpu-010")]


# -- members that are late by turns --------------------------------------------------------------------


def by_turns(ago_min: float, pause_s: float, *, collected: bool) -> Field:
    """One member in thirty-two stands still in a step; where it collects garbage, it says so."""
    field = Field()
    compute = field.members("compute", 4.6)
    row = field.row(ago_min)
    paused = field.dice.random((field.rows - row, NODES)) < 1 / 32
    field.values[compute][row:] += pause_s * paused
    field.values[STEP][row:, 0] += pause_s * paused.any(axis=1)
    spent = np.full((field.rows, NODES), 0.0005)
    spent[row:] += collected * pause_s * paused / STEP_S
    field.put(COLLECTOR, spent, list(HOSTS), LABELS)
    return field


@pytest.mark.parametrize("ago_min", sampled([10, 180], [10]))
def test_members_that_collect_garbage_by_turns_are_told_from_uneven_sequences(ago_min: float) -> None:
    for collected, mechanism in ((True, "garbage-collection"), (False, "sequence-length")):
        one = the(by_turns(ago_min, 2.0, collected=collected).look())
        assert (one.cause.mechanism, one.cause.subject, one.verdict) == (mechanism, RUN, "not-hardware")


@pytest.mark.parametrize("collected", [True, False])
def test_without_the_collectors_time_nobody_knows_whether_it_is_the_sequences(collected: bool) -> None:
    one = the(by_turns(10, 2.0, collected=collected).look(without=[COLLECTOR]))
    assert one.verdict == "unknown"
    assert "garbage collector" in one.decides


def waiting_in_the_exchange(ago_min: float, share: float, *, collected: bool) -> Field:
    """Members compute longer by turns; with NCCL all others wait for them in their exchange."""
    field = Field()
    compute, exchange = field.members("compute", 4.6), field.members("exchange", 1.2, 0.02)
    row = field.row(ago_min)
    longer = 1.6 * (field.dice.random((field.rows - row, NODES)) < share)
    field.values[compute][row:] += longer
    slowest = field.values[compute].max(axis=1)
    field.values[exchange] += slowest[:, None] - field.values[compute]
    field.values[STEP][:, 0] = slowest + 1.5
    spent = np.full((field.rows, NODES), 0.0005)
    spent[row:] += collected * longer / STEP_S
    field.put(COLLECTOR, spent, list(HOSTS), LABELS)
    return field


@pytest.mark.parametrize("share", [0.03, 0.12, 0.3])
@pytest.mark.parametrize("ago_min", [45, 180])
def test_members_that_are_waited_for_in_the_exchange_are_late_by_turns(ago_min: float, share: float) -> None:
    for collected, mechanism in ((True, "garbage-collection"), (False, "sequence-length")):
        field = waiting_in_the_exchange(ago_min, share, collected=collected)
        one = the(field.look([name for name in field.values if name.startswith("holdfast_")]))
        assert (one.cause.mechanism, one.verdict) == (mechanism, "not-hardware")
        assert one.confidence > 0.7


# -- one among many ------------------------------------------------------------------------------------


def test_of_many_hosts_that_swap_the_one_that_swaps_far_more_is_named() -> None:
    field = Field()
    field.slower(1.4, 12)
    for metric, all_of_them, worst in (
        ("node_vmstat_pswpin", 150, 4_000),
        ("node_pressure_memory_waiting_seconds_total", 0.07, 0.4),
    ):
        field.change(metric, 12, ["gpu-"], plus=all_of_them)
        field.change(metric, 12, ["gpu-013"], plus=worst)
    assert answers(field.look()) == [("memory-pressure", "gpu-013")]


def test_of_many_ports_that_send_again_the_one_that_loses_packets_is_named() -> None:
    """All peers of the leaf send again what one port lost."""
    field = Field()
    field.slower(1.25, 12)
    ports = field.subjects["node_infiniband_symbol_error_total"]
    labels = field.labels["node_infiniband_symbol_error_total"]
    metric = "node_infiniband_packet_sequence_errors_total"
    field.put(metric, np.zeros((field.rows, len(ports))), ports, labels)
    field.change(metric, 12, HOSTS[:8], plus=6)
    field.change(metric, 12, ["gpu-003/mlx5_1"], plus=90)
    assert answers(field.look()) == [("link-errors", "gpu-003/mlx5_1")]


def test_a_node_that_is_late_for_no_measured_reason_is_named_as_that() -> None:
    field = Field()
    compute = field.members("compute", 4.6)
    field.slower(1.2, 12)
    field.change(compute, 12, ["gpu-005"], by=1.25)
    assert answers(field.look()) == [("slow-node", "gpu-005")]


def test_processors_that_are_short_on_all_hosts_may_be_the_runs_own_doing() -> None:
    field = Field()
    field.slower(1.25, 12)
    field.change("node_pressure_cpu_waiting_seconds_total", 12, ["gpu-"], plus=0.3)
    one = the(field.look(DEFAULT_ON))
    assert (one.cause.mechanism, one.cause.subject) == ("cpu-contention", RUN)
    assert 0.5 < one.confidence < 0.6
    field.members("data", 0.2)  # No member waits for data, so it is not the loader.
    assert the(field.look()).confidence > 0.75


# -- a filer by its address ----------------------------------------------------------------------------

FILER, HOME = "10.9.0.5", "10.9.0.9"
"""The topology has one mount, `filer-0`, and no address."""


def mounted(field: Field, *addresses: str) -> None:
    """Every host of the run and two of other users read from each of these servers."""
    clients = (*HOSTS, "cpu-000", "cpu-001")
    places = [(client, address) for client in clients for address in addresses]
    labels = [
        {"instance": f"{client}:9100", "mountaddr": address, "operation": "READ"}
        for client, address in places
    ]
    subjects = [client for client, _ in places]
    asked = field.noise(40.0, len(places), 0.1)
    field.put(REQUESTS, asked, subjects, labels)
    field.put(RESPONSE, asked * field.noise(0.004, len(places), 0.05), subjects, labels)
    field.put(SENT, asked.copy(), subjects, labels)


@pytest.mark.parametrize("address", [FILER, "filer-0"])
def test_a_crowded_filer_that_slows_nobody_is_no_incident(address: str) -> None:
    field = Field()
    mounted(field, address)
    for metric in (REQUESTS, RESPONSE, SENT):
        field.change(metric, 12, ["cpu-"], by=30.0)
    look = field.look()
    assert [(one.sign, one.subject) for one in look.findings if one.sign == "busy-mount"] == [
        ("busy-mount", address)
    ]
    assert answers(look) == []


def test_a_failing_filer_that_is_also_known_by_its_address_is_one_incident() -> None:
    """Its address is known of one node; clients count late answers and repeated calls under it."""
    field = Field()
    field.topology = topology(mounts=f"  filer-0: gpu-[000-015]\n  {FILER}: gpu-000\n")
    mounted(field, FILER)
    field.slower(1.3, 10)
    everywhere = ["gpu-", "cpu-"]
    field.change(RESPONSE, 10, everywhere, by=8.0)
    field.change(SENT, 10, everywhere, by=1.1)
    field.change("node_pressure_io_waiting_seconds_total", 10, ["gpu-"], plus=0.25)
    field.change("node_nfs_rpc_retransmissions_total", 10, ["gpu-"], plus=3)
    field.change(field.members("data", 0.2), 10, ["gpu-"], plus=0.3 * STEP_S)
    assert answers(field.look()) == [("storage-slow", "filer-0")]


def test_two_filers_that_fail_at_once_are_two_incidents() -> None:
    field = Field()
    field.topology = topology(mounts="  filer-0: gpu-[000-007]\n  filer-1: gpu-[008-015]\n")
    places = [(host, f"filer-{number // 8}") for number, host in enumerate(HOSTS)]
    labels = [{"instance": f"{host}:9100", "mountaddr": at, "operation": "READ"} for host, at in places]
    asked = field.noise(40.0, len(HOSTS), 0.1)
    for metric, values in ((REQUESTS, asked), (RESPONSE, asked * 0.004), (SENT, asked.copy())):
        field.put(metric, values, HOSTS, labels)
    field.slower(1.3, 10)
    field.change(RESPONSE, 10, ["gpu-"], by=10.0)
    field.change(SENT, 10, ["gpu-"], by=1.1)
    field.change("node_nfs_rpc_retransmissions_total", 10, ["gpu-"], plus=3)
    field.change(field.members("data", 0.2), 10, ["gpu-"], plus=0.3 * STEP_S)
    assert sorted(answers(field.look())) == [("storage-slow", "filer-0"), ("storage-slow", "filer-1")]


# -- from the first step on ----------------------------------------------------------------------------


@pytest.mark.parametrize("ago_min", [10, 45])
def test_a_gpu_that_throttles_from_the_first_step_on_is_told_by_its_clock(ago_min: float) -> None:
    """GPUs were idle and cold before, so that all of them have become hotter; this one by 6 K more."""
    field = Field(3.0)
    field.healthy = Healthy(step_s=STEP_S, is_declared=True)
    row = field.row(ago_min)
    field.values["holdfast_run_step_seconds"][:] *= 1.15
    field.values["holdfast_run_step_seconds"][:row] = np.nan
    field.change("DCGM_FI_DEV_GPU_TEMP", ago_min, ["gpu-006.2"], plus=6.0)
    field.change("DCGM_FI_DEV_SM_CLOCK", ago_min, ["gpu-006.2"], by=0.8)
    field.change("DCGM_FI_DEV_POWER_USAGE", ago_min, ["gpu-006.2"], by=0.85)
    for metric, idle in (("GPU_TEMP", 38), ("MEMORY_TEMP", 42), ("POWER_USAGE", 120), ("GPU_UTIL", 0)):
        field.values[f"DCGM_FI_DEV_{metric}"][:row] = idle
    assert answers(field.look(DEFAULT_ON)) == [("gpu-throttle", "gpu-006.2")]


@pytest.mark.parametrize("ago_min", [10, 45])
def test_a_host_short_of_processors_and_a_bad_port_elsewhere_are_both_named(ago_min: float) -> None:
    field = Field(3.0)
    field.slower(1.25, ago_min)
    symbols, retrained = "node_infiniband_symbol_error_total", "node_infiniband_link_error_recovery_total"
    field.put(retrained, field.values[symbols].copy(), field.subjects[symbols], field.labels[symbols])
    field.change(symbols, ago_min, ["gpu-003/mlx5_1"], plus=20)
    field.change(retrained, ago_min, ["gpu-003/mlx5_1"], plus=1)
    field.change("node_pressure_cpu_waiting_seconds_total", ago_min, ["gpu-010"], plus=0.3)
    found = answers(field.look([*DEFAULT_ON, retrained]))
    assert sorted(found) == [("cpu-contention", "gpu-010"), ("link-errors", "gpu-003/mlx5_1")]


# -- a full disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ago_min", [10, 45])
@pytest.mark.parametrize("left_at_first", [0.4, 0.06])
def test_a_local_disk_that_filled_up_over_hours_is_no_slow_filer(
    ago_min: float, left_at_first: float
) -> None:
    """Hosts wait for I/O with the one whose disk is full."""
    field = Field()
    field.slower(1.04, ago_min)
    size = np.full((field.rows, NODES), 7e12)
    left = 0.4 * size
    full_row = field.row(ago_min)
    left[:, 3] = 7e12 * np.interp(np.arange(field.rows), (0, full_row), (left_at_first, 0.0))
    labels = [{"instance": f"{host}:9100", "mountpoint": "/scratch", "fstype": "xfs"} for host in HOSTS]
    field.put("node_filesystem_avail_bytes", left, HOSTS, labels)
    field.put("node_filesystem_size_bytes", size, HOSTS, labels)
    field.change("node_pressure_io_waiting_seconds_total", ago_min, ["gpu-"], plus=0.2)
    default = [*DEFAULT_ON, "node_filesystem_avail_bytes", "node_filesystem_size_bytes"]
    assert answers(field.look(default)) == [("local-disk", "gpu-003")]


def test_one_host_that_waits_for_io_is_no_slow_filer_however_many_members_it_has() -> None:
    """All hosts read from the filer, and the others do not wait."""
    field = Field()
    field.topology = topology(members={f"{host}.{gpu}": host for host in HOSTS for gpu in range(8)})
    field.slower(1.1, 10)
    field.change("node_pressure_io_waiting_seconds_total", 10, ["gpu-003"], plus=0.15)
    assert answers(field.look(DEFAULT_ON)) == [("unknown", RUN)]


# -- what changed, and since when ----------------------------------------------------------------------


@pytest.mark.parametrize("ago_min", [12, 45, 180])
@pytest.mark.parametrize("where", ["label", "record"])
def test_a_change_some_minutes_before_is_named_hours_later(ago_min: float, where: str) -> None:
    field = Field()
    field.slower(1.15, ago_min)
    row = field.row(ago_min + 4)
    if where == "record":
        at_ns = int(field.times_ns[row])
        field.events = [
            ActionTaken(id="a", occurred_ns=at_ns, run=RUN, subject=RUN, action="upgrade-nccl", reason="2.27")
        ]
    else:
        shown = np.full((field.rows, 2), np.nan)
        shown[:row, 0] = shown[row:, 1] = 1.0
        labels = [{"run": RUN, "nccl": version} for version in ("2.20.5", "2.27.3")]
        field.put("holdfast_run_info", shown, [RUN, RUN], labels)
    assert answers(field.look()) == [("rollout", RUN)]


def test_a_fault_after_hours_of_drift_begins_when_it_did() -> None:
    """Six per cent slower since two hours, three times as slow for twelve minutes."""
    field = Field()
    field.slower(1.06, 120)
    field.slower(2.8, 12)
    one = the(field.look([STEP]))
    assert (field.times_ns[-1] - one.began_ns) / 60e9 == pytest.approx(12, abs=1.5)
    assert one.slowdown == pytest.approx(1.06 * 2.8, rel=0.05)


def test_a_slow_ramp_is_held_against_the_hours_before_it() -> None:
    """A filter clogs over three hours: the minutes before steps were slower were warm already."""
    field = Field(hours=6.0)
    row = field.row(180)
    ramp = np.linspace(0, 1, field.rows - row)[:, None]
    hot = np.clip(ramp - 0.3, 0, 1) / 0.7
    for metric, kelvin in (("DCGM_FI_DEV_GPU_TEMP", 22), ("DCGM_FI_DEV_MEMORY_TEMP", 22)):
        field.values[metric][row:, field.of(metric, "gpu-009")] += kelvin * ramp
    for metric in ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"):
        field.values[metric][row:, field.of(metric, "gpu-009")] *= 1 - 0.3 * hot
    field.values["node_hwmon_fan_rpm"][row:, field.of("node_hwmon_fan_rpm", "gpu-009")] *= 1 - 0.5 * ramp
    field.values[STEP][row:] *= 1 + 0.35 * hot
    assert answers(field.look()) == [("node-cooling", "gpu-009")]


# -- more work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("longer", "slowdown"), [(1.25, None), (1.1, None), (1.5, 1.2)])
def test_steps_of_a_larger_batch_are_held_against_what_it_would_take(
    longer: float, slowdown: float | None
) -> None:
    """From 64 lanes to 80, a quarter more."""
    field = Field()
    row = field.row(12)
    field.slower(longer, 12)
    lanes = np.full((field.rows, 1), 64.0)
    lanes[row:] = 80.0
    field.put(LANES, lanes, [RUN], [{"run": RUN}])
    looks = [field.look([STEP, LANES], at_row=at_row) for at_row in (row + 4, row + 20, field.rows)]
    expected = [] if slowdown is None else [pytest.approx(slowdown, rel=0.03)]
    assert [[one.slowdown for one in look.incidents] for look in looks] == [expected] * 3


@pytest.mark.parametrize("is_throttled", [False, True])
def test_where_all_compute_longer_and_gpus_do_as_ever_a_step_may_have_more_to_do(is_throttled: bool) -> None:
    field = Field()
    compute = field.members("compute", 4.6)
    field.slower(1.25, 12)
    field.change(compute, 12, HOSTS, by=1.3)
    if is_throttled:
        field.change("DCGM_FI_DEV_SM_CLOCK", 12, ["gpu-"], by=0.75)
    one = field.look().incidents[0]
    assert (one.verdict == "unknown" and "more work" in one.decides) is not is_throttled


def test_a_larger_batch_that_nobody_told_of_is_unknown_and_hardly_sure() -> None:
    """All members compute longer for hours, by the same factor and with nothing else: not by turns either."""
    field = Field(hours=4.0)
    growth = np.ones((field.rows, 1))
    growth[-480:, 0] = np.linspace(1, 1.4, 480)
    compute = field.members("compute", 5.0)
    field.values[compute] *= growth
    field.values[STEP] *= growth
    field.put(COLLECTOR, np.full((field.rows, NODES), 0.0005), list(HOSTS), LABELS)
    for at_row in (field.rows - 300, field.rows):
        one = the(field.look(at_row=at_row))
        assert one.verdict == "unknown"
        assert one.confidence <= 0.3
        assert "a larger batch" in one.decides
    field.put(LANES, np.round(256 * growth), [RUN], [{"run": RUN}])
    assert answers(field.look()) == []


# -- when it began -------------------------------------------------------------------------------------


def test_on_a_busy_machine_slow_steps_begin_with_the_fault_and_not_with_a_long_step_before_it() -> None:
    """Steps scatter by 6 % to one side, some in a row; a third more since three minutes ago."""
    began = []
    for seed in range(12):
        field, dice = Field(hours=0.15), np.random.default_rng(seed)
        longer = dice.exponential(0.06, field.rows)
        for row in np.flatnonzero(dice.random(field.rows) < 0.08):
            longer[row : row + 3] += 0.09
        field.values[STEP][:, 0] = STEP_S * (1 + longer)
        field.slower(1.33, 3.0)
        one = the(field.look([STEP]))
        fault_ns = int(field.times_ns[field.row(3.0)])
        assert one.noticed_ns > fault_ns
        began.append(round((one.began_ns - fault_ns) / 1e9))
    assert began.count(0) >= 11
    assert all(abs(apart_s) <= 15 for apart_s in began)
