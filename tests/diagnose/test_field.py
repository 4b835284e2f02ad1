"""Answers on a cluster as the field has it: healthy H200s, scrapes with offsets, NCCL, hours of history.

What is looked for here was missed or mistaken on real telemetry. The cluster and its noise are made by hand
in `field_cluster`, and nothing of the twin is in it.
"""

from collections.abc import Callable

import numpy as np
import pytest
from field_cluster import DEFAULT_ON, EVERY_S, HOSTS, NODES, RUN, STEP_S, TOPOLOGY, Field, S, answers, the
from quantity import sampled

from holdfast.detect.scene import Healthy
from holdfast.diagnose.assess import CLUSTER, Inquiry, assess
from holdfast.record.events import ActionTaken, CheckpointSaved, ReferenceDeclared

pytestmark = pytest.mark.slow

STEP = "holdfast_run_step_seconds"
XIDS = "DCGM_FI_DEV_XID_ERRORS"
SYMBOLS = "node_infiniband_symbol_error_total"
TENSOR, POWER = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_POWER_USAGE"
EVERYWHERE = ["gpu-"]


# -- what is wrong, in the ways in which it shows --------------------------------------------------------


def port_errors(ago_min: float) -> Field:
    """380 symbol errors a second on one port; NCCL makes everybody's exchange late."""
    field = Field()
    field.slower(1.25, ago_min)
    field.change(SYMBOLS, ago_min, ["gpu-003/mlx5_1"], plus=380)
    exchange = field.members("exchange", 1.4)
    field.values[exchange][field.row(ago_min) :] += 1.5
    return field


def heat(field: Field, ago_min: float, where: list[str], kelvin: float, clock: float) -> None:
    field.change("DCGM_FI_DEV_SM_CLOCK", ago_min, where, by=clock)
    field.change("DCGM_FI_DEV_GPU_TEMP", ago_min, where, plus=kelvin)
    field.change("DCGM_FI_DEV_MEMORY_TEMP", ago_min, where, plus=kelvin)
    field.change("DCGM_FI_DEV_THERMAL_VIOLATION", ago_min, where, plus=5e8)
    field.change(POWER, ago_min, where, by=clock)


def hot_gpu(ago_min: float) -> Field:
    field = Field()
    field.slower(1.3, ago_min)
    heat(field, ago_min, ["gpu-006.2"], 24, 0.72)
    return field


def slow_fans(ago_min: float) -> Field:
    field = Field()
    field.slower(1.2, ago_min)
    heat(field, ago_min, ["gpu-009"], 20, 0.8)
    field.change("node_hwmon_fan_rpm", ago_min, ["gpu-009"], by=0.4)
    return field


def warm_rack(ago_min: float) -> Field:
    field = Field()
    field.slower(1.15, ago_min)
    heat(field, ago_min, ["gpu-004", "gpu-005", "gpu-006", "gpu-007"], 18, 0.85)
    return field


def cool(field: Field, ago_min: float, where: list[str], power: float, clock: float) -> None:
    field.change("DCGM_FI_DEV_SM_CLOCK", ago_min, where, by=clock)
    field.change("DCGM_FI_DEV_GPU_TEMP", ago_min, where, plus=-8)
    field.change("DCGM_FI_DEV_MEMORY_TEMP", ago_min, where, plus=-8)
    field.change(POWER, ago_min, where, by=power)


def capped(ago_min: float) -> Field:
    field = Field()
    field.slower(1.18, ago_min)
    cool(field, ago_min, EVERYWHERE, 500 / 700, 0.82)
    field.change("DCGM_FI_DEV_POWER_MGMT_LIMIT", ago_min, EVERYWHERE, by=500 / 700)
    return field


def lost_supply(ago_min: float) -> Field:
    field = Field()
    field.slower(1.3, ago_min)
    cool(field, ago_min, ["gpu-002"], 0.6, 0.7)
    health = "redfish_chassis_power_powersupply_health"
    field.put(health, np.ones((field.rows, NODES)), HOSTS, [{"chassis_id": host} for host in HOSTS])
    field.change(health, ago_min, ["gpu-002"], plus=2)
    return field


def nvlink_errors(ago_min: float) -> Field:
    field = Field()
    field.slower(1.2, ago_min)
    field.change("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", ago_min, ["gpu-011.4"], plus=900)
    field.change("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", ago_min, EVERYWHERE, by=0.83)
    field.change("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", ago_min, ["gpu-011.4"], by=0.5)
    return field


def lower_generation(ago_min: float) -> Field:
    field = Field()
    field.slower(1.2, ago_min)
    field.change("DCGM_FI_DEV_PCIE_LINK_GEN", ago_min, ["gpu-011.4"], by=0.4)
    field.change("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", ago_min, ["gpu-011.4"], plus=3)
    return field


def swapping(ago_min: float) -> Field:
    field = Field()
    field.slower(1.4, ago_min)
    field.change("node_vmstat_pswpin", ago_min, ["gpu-013"], plus=4_000)
    field.change("node_pressure_memory_waiting_seconds_total", ago_min, ["gpu-013"], plus=0.3)
    field.change("node_pressure_io_waiting_seconds_total", ago_min, ["gpu-013"], plus=0.2)
    return field


def slow_disk(ago_min: float) -> Field:
    field = Field()
    field.slower(1.3, ago_min)
    field.change("node_disk_io_time_seconds_total", ago_min, ["gpu-001"], plus=0.9)
    field.change("node_disk_write_time_seconds_total", ago_min, ["gpu-001"], by=40)
    field.change("node_pressure_io_waiting_seconds_total", ago_min, ["gpu-001"], plus=0.5)
    return field


def neighbours(ago_min: float) -> Field:
    field = Field()
    field.slower(1.25, ago_min)
    field.change("node_pressure_cpu_waiting_seconds_total", ago_min, ["gpu-010"], plus=0.45)
    return field


def failing_filer(ago_min: float) -> Field:
    field = Field()
    field.slower(1.5, ago_min)
    field.change("node_nfs_rpc_retransmissions_total", ago_min, EVERYWHERE, plus=3)
    field.change("node_pressure_io_waiting_seconds_total", ago_min, EVERYWHERE, plus=0.25)
    return field


def rollout(ago_min: float) -> Field:
    """Another driver on all nodes, and all series under other labels with it."""
    field = Field()
    field.slower(1.12, ago_min)
    clock, row = "DCGM_FI_DEV_SM_CLOCK", field.row(ago_min)
    old, new = field.values[clock].copy(), field.values[clock].copy()
    old[row:], new[:row] = np.nan, np.nan
    labels = field.labels[clock]
    after = [one | {"DCGM_FI_DRIVER_VERSION": "570.124.06"} for one in labels]
    field.put(clock, np.hstack([old, new]), field.subjects[clock] * 2, [*labels, *after])
    return field


CASES: dict[Callable[[float], Field], tuple[str, str]] = {
    port_errors: ("link-errors", "gpu-003/mlx5_1"),
    hot_gpu: ("gpu-throttle", "gpu-006.2"),
    slow_fans: ("node-cooling", "gpu-009"),
    warm_rack: ("air-cooling", "rack-1"),
    capped: ("power-cap", RUN),
    lost_supply: ("node-power", "gpu-002"),
    nvlink_errors: ("nvlink", "gpu-011.4"),
    lower_generation: ("pcie-width", "gpu-011.4"),
    swapping: ("memory-pressure", "gpu-013"),
    slow_disk: ("local-disk", "gpu-001"),
    neighbours: ("cpu-contention", "gpu-010"),
    failing_filer: ("storage-slow", "filer-0"),
    rollout: ("rollout", RUN),
}
every_case = pytest.mark.parametrize("make", list(CASES), ids=lambda make: make.__name__)
SLOWDOWNS: dict[Callable[[float], Field], float] = {
    port_errors: 1.25,
    hot_gpu: 1.3,
    capped: 1.18,
    swapping: 1.4,
    failing_filer: 1.5,
}


@every_case
def test_the_cause_is_named_with_all_telemetry_and_with_default_exporters(
    make: Callable[[float], Field],
) -> None:
    field = make(12)
    full, default, step = field.look(), field.look(DEFAULT_ON), field.look([STEP])
    assert answers(full) == [CASES[make]]
    assert answers(default) == [CASES[make]]
    assert the(full).confidence >= the(default).confidence - 0.02
    alone = the(step)
    assert (alone.verdict, alone.owner) == ("unknown", "")
    if make in SLOWDOWNS:
        for one in (the(full), the(default), alone):
            assert one.slowdown == pytest.approx(SLOWDOWNS[make], rel=0.03)


@pytest.mark.parametrize(
    "make", sampled([port_errors, hot_gpu, failing_filer], [port_errors]), ids=lambda make: make.__name__
)
def test_the_answer_is_the_same_after_ten_minutes_and_after_three_hours(
    make: Callable[[float], Field],
) -> None:
    for ago_min in (10, 45, 180):
        one = the(make(ago_min).look(DEFAULT_ON))
        assert (one.cause.mechanism, one.cause.subject) == CASES[make]
        assert one.slowdown == pytest.approx(SLOWDOWNS[make], rel=0.05)
        began_min = (Field().times_ns[-1] - one.began_ns) / 60e9
        assert began_min == pytest.approx(ago_min, abs=2.5)
        assert one.ended_ns is None


@pytest.mark.parametrize(
    "make", sampled([port_errors, hot_gpu, swapping], [hot_gpu]), ids=lambda make: make.__name__
)
def test_more_telemetry_never_makes_the_answer_worse(make: Callable[[float], Field]) -> None:
    """Sources are taken away one after the other: the answer stays, or becomes unknown, and stays so."""
    field = make(12)
    names = [name for name in field.values if name != STEP]
    np.random.default_rng(3).shuffle(names)
    was_right = True
    for count in range(0, len(names) + 1, 6):
        one = the(field.look(without=names[:count]))
        is_right = (one.cause.mechanism, one.cause.subject) == CASES[make]
        assert is_right or one.verdict == "unknown"
        assert was_right or not is_right
        was_right = is_right


# -- what is healthy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", sampled([1, 2, 3], [1]))
def test_healthy_hours_are_clean(seed: int) -> None:
    """At the power limit, with an old XID on one GPU in eighty, and half of the first rows empty."""
    field = Field(hours=2.5, seed=seed)
    for at_row in (150, 300, 450, 600):
        assert answers(field.look(at_row=at_row)) == []
        assert answers(field.look(DEFAULT_ON, at_row=at_row)) == []


def test_a_scrape_that_all_gpus_missed_costs_no_answer() -> None:
    field = nvlink_errors(10)
    field.values["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"][-20] = np.nan
    assert answers(field.look()) == [CASES[nvlink_errors]]


def test_evaluations_between_steps_are_neither_a_hang_nor_slow_steps() -> None:
    field = Field()
    steps = field.values[STEP]
    for row in range(60, field.rows, 80):
        steps[row : row + 8] = steps[row - 1]  # two minutes without a step
        steps[row + 8] = 126.0
    for at_row in (field.rows, field.rows - 15, field.rows - 40):
        assert answers(field.look(DEFAULT_ON, at_row=at_row)) == []
        assert answers(field.look([STEP], at_row=at_row)) == []
    field.slower(1.17, 20)
    assert the(field.look([STEP])).slowdown == pytest.approx(1.17, rel=0.02)


def test_an_evaluation_that_nobody_has_seen_before_is_no_hang_while_the_gpus_work() -> None:
    field = Field()
    field.values[STEP][-8:] = field.values[STEP][-9]
    assert answers(field.look(DEFAULT_ON)) == []


def test_what_gpus_did_before_the_last_step_says_nothing_of_now() -> None:
    """They are scraped once a minute, and were at work when it was last their turn."""
    field = Field()
    field.values[STEP][-3:] = field.values[STEP][-4]
    for metric in (TENSOR, POWER):
        field.values[metric][-3:] = np.nan
    assert [mechanism for mechanism, _ in answers(field.look(DEFAULT_ON))] == ["hang"]


def test_long_steps_that_come_far_more_often_than_before_are_slowness_and_no_pauses() -> None:
    """Every seventh step waits for a name to be looked up; each of them alone looks like an evaluation."""
    field = Field()
    for row in range(100, field.rows, 300):
        field.values[STEP][row] = 40.0
    assert answers(field.look([STEP])) == []
    field.values[STEP][field.row(20) :: 7] *= 4
    assert the(field.look([STEP])).slowdown == pytest.approx(1 + 3 / 7, rel=0.1)


def test_longer_steps_that_somebody_declared_are_as_they_should_be() -> None:
    field = Field()
    field.slower(1.4, 60)
    assert the(field.look([STEP])).slowdown == pytest.approx(1.4, rel=0.02)
    at_ns = int(field.times_ns[field.row(61)])
    longer = ReferenceDeclared(id="r", occurred_ns=at_ns, run=RUN, step_ns=round(1.4 * STEP_S * 1e9))
    field.events = [longer]
    field.healthy = Healthy(step_s=1.4 * STEP_S, is_declared=True)
    assert answers(field.look()) == []


def test_uneven_sequences_hold_up_another_member_each_time() -> None:
    field = Field()
    field.slower(1.2, 12)
    compute = field.members("compute", 5.0)
    late = field.values[compute][field.row(12) :]
    for row in late:
        row[field.dice.choice(NODES, 2, replace=False)] *= 1.25
    # No member collects garbage, which would look the same.
    spent = np.full((field.rows, NODES), 0.0005)
    field.put("holdfast_member_gc_seconds_total", spent, field.subjects[compute], field.labels[compute])
    one = the(field.look())
    assert (one.cause.mechanism, one.verdict) == ("sequence-length", "not-hardware")


# -- what is usual -------------------------------------------------------------------------------------


def test_noisy_steps_are_tested_by_their_mean() -> None:
    field = Field()
    field.values[STEP] *= field.dice.lognormal(0, 0.12, field.values[STEP].shape)
    field.slower(1.15, 25)
    assert the(field.look([STEP])).slowdown == pytest.approx(1.15, rel=0.05)


def test_a_slow_ramp_over_hours_is_seen() -> None:
    field = Field()
    field.values[STEP][-720:] *= np.linspace(1, 1.2, 720)[:, None]
    assert the(field.look([STEP])).slowdown == pytest.approx(1.19, rel=0.03)


def test_slow_from_the_start_is_held_against_what_was_declared() -> None:
    field = Field()
    field.values[STEP] *= 1.2
    assert answers(field.look([STEP])) == []
    at_ns = int(field.times_ns[-4])
    field.events = [ReferenceDeclared(id="r", occurred_ns=at_ns, run=RUN, step_ns=round(STEP_S * 1e9))]
    field.healthy = Healthy(step_s=1.2 * STEP_S, is_declared=True)  # as read before it was declared anew
    assert the(field.look([STEP])).slowdown == pytest.approx(1.2, rel=0.02)


def test_an_estimate_from_a_record_that_begins_in_mid_run_is_not_believed() -> None:
    field = Field()
    field.healthy = Healthy(step_s=173_881.0, is_declared=False)
    field.events = [
        CheckpointSaved(
            id=f"c{n}", occurred_ns=int(field.times_ns[row]), run=RUN, step=n, stall_ns=stall_s * S
        )
        for n, (row, stall_s) in enumerate([(400, 10), (600, 10), (800, 10), (1_000, 10), (1_190, 300)])
    ]
    assert the(field.look()).slowdown < 1.5


def test_a_gpu_that_has_always_been_slower_than_its_peers_is_found_by_them() -> None:
    field = Field()
    field.values[STEP] *= 1.3
    field.healthy = Healthy(step_s=STEP_S, is_declared=True)
    heat(field, 300, ["gpu-006.2"], 24, 0.6)
    assert answers(field.look()) == [("gpu-throttle", "gpu-006.2")]


# -- a run that stands, and hardware that is broken ----------------------------------------------------


def hung(since_rows: int) -> Field:
    """All ranks wait since one GPU fell off the bus: kernels spin, tensor cores do not."""
    field = Field()
    field.values[STEP][-since_rows:] = field.values[STEP][-since_rows - 1]
    field.values[XIDS][-since_rows:, field.of(XIDS, "gpu-007.3")] = 79
    field.values[TENSOR][-since_rows:] *= 0.01
    field.values[POWER][-since_rows:] *= 0.4
    return field


ROWS_PER_STEP = 4


def long_steps() -> Field:
    """A step takes a minute, so four scrapes show the same one."""
    field = Field()
    of_step = field.noise(60.0, 1, 0.02)[::ROWS_PER_STEP]
    field.values[STEP] = np.repeat(of_step, ROWS_PER_STEP, axis=0)[: field.rows]
    return field


def stand(field: Field, rows: slice) -> None:
    """All GPUs wait: their kernels spin, and tensor cores do not."""
    field.values[TENSOR][rows] *= 0.01
    field.values[POWER][rows] *= 0.4


@pytest.mark.parametrize("without", [(), (TENSOR,)])
def test_a_run_with_long_steps_stands_as_soon_as_all_of_its_gpus_do(without: tuple[str, ...]) -> None:
    """After a minute, which a first save may take, and long before the next step is late."""
    field = long_steps()
    end = field.rows - 1
    stand(field, slice(end - 3, None))
    assert answers(field.look(DEFAULT_ON, at_row=end, without=without)) == []
    stand(field, slice(end - 5, end - 3))
    one = the(field.look(DEFAULT_ON, at_row=end, without=without))
    assert (one.cause.mechanism, one.cause.subject) == ("hang", RUN)
    assert one.confidence > 0.9


def test_gpus_that_stand_as_they_did_before_are_no_hang() -> None:
    """In the last half minute of every tenth step something is saved, and one scrape is no proof at all."""
    field = long_steps()
    for row in range(38, field.rows, 10 * ROWS_PER_STEP):
        stand(field, slice(row, row + 2))
    ends = range(field.rows - 10 * ROWS_PER_STEP, field.rows)
    assert [answers(field.look(DEFAULT_ON, at_row=end)) for end in ends if end % 40 in (39, 0, 1)] == [[]] * 3
    other = long_steps()
    stand(other, slice(other.rows - 2, None))
    assert answers(other.look(DEFAULT_ON, at_row=other.rows - 1)) == []


@pytest.mark.parametrize("since_rows", [2, 3, 16, 120])
def test_a_run_that_stands_is_the_gravest_incident(since_rows: int) -> None:
    """Two scrapes of 15 s after the last step it is said, and it is said for as long as it lasts."""
    found = hung(since_rows).look(DEFAULT_ON)
    assert answers(found) == [("hang", RUN), ("gpu-fault", "gpu-007.3")]
    hang, fault = found.incidents
    assert hang.affected == (f"{RUN}/gpu-007",)
    assert hang.slowdown > (since_rows * EVERY_S / STEP_S) - 3
    assert hang.confidence > 0.9
    assert fault.confidence > 0.8


def test_who_stopped_first_is_said() -> None:
    field = hung(8)
    compute = field.members("compute", 5.0)
    field.values[compute][-8:] = field.values[compute][-9]
    first = field.of(compute, "gpu-012")
    field.values[compute][-9:, first] = field.values[compute][-10, first]
    field.values[XIDS][-8:] = 0
    assert the(field.look(without=[XIDS])).affected == (f"{RUN}/gpu-012",)


def test_a_run_that_is_no_longer_told_of_does_not_stand() -> None:
    field = Field()
    field.values[STEP][-20:] = np.nan
    assert answers(field.look(DEFAULT_ON)) == []


def test_broken_hardware_is_reported_though_no_run_is_slower() -> None:
    for metric, plus, mechanism in (
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 40.0, "memory-errors"),
        ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 0.1, "memory-errors"),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 0.1, "memory-errors"),
    ):
        field = Field()
        field.change(metric, 8, ["gpu-007.3"], plus=plus)
        one = the(field.look())
        assert (one.cause.mechanism, one.cause.subject) == (mechanism, "gpu-007.3")
        assert one.slowdown == 1.0


def test_broken_hardware_is_reported_though_no_run_is_known() -> None:
    field = Field()
    field.values[XIDS][-8:, field.of(XIDS, "gpu-007.3")] = 79
    found = assess(field.source(), TOPOLOGY, Inquiry(now_ns=int(field.times_ns[-1]) + 1, elsewhere=True))
    assert [(one.run, one.cause.mechanism, one.cause.subject) for one in found.incidents] == [
        (CLUSTER, "gpu-fault", "gpu-007.3")
    ]
    assert the(found).name == f"{CLUSTER}/s1"


def test_an_error_of_an_application_is_no_broken_hardware() -> None:
    field = Field()
    field.values[XIDS][-8:, field.of(XIDS, "gpu-007.3")] = 31
    assert answers(field.look()) == []


def test_name_servers_that_answer_late_are_named() -> None:
    field = Field()
    names = "coredns_dns_request_duration_seconds_{}"
    count = field.dice.gamma(20, 5, (field.rows, 2))
    labels = [{"instance": f"dns-{number}:9153"} for number in range(2)]
    field.put(names.format("count"), count, ["names"] * 2, labels)
    field.put(names.format("sum"), 0.002 * count, ["names"] * 2, labels)
    assert answers(field.look()) == []
    field.slower(1.3, 12)
    field.values[names.format("sum")][field.row(12) :] *= 200
    one = the(field.look())
    assert (one.cause.mechanism, one.cause.subject) == ("name-service", RUN)


# -- unknown -------------------------------------------------------------------------------------------


def test_unknown_is_nobodys_and_says_who_could_tell() -> None:
    field = Field()
    field.slower(1.3, 12)
    one = the(field.look([STEP]))
    assert (one.verdict, one.owner, one.cause.owner) == ("unknown", "", "")
    for team in ("hardware", "network", "storage", "facilities"):
        assert f"({team})" in one.decides
    assert "(hardware)" not in the(field.look()).decides.replace("violation times (hardware)", "")


def test_what_the_record_says_was_done_is_what_changed() -> None:
    field = Field()
    field.slower(1.12, 12)
    assert the(field.look()).verdict == "unknown"
    at_ns = int(field.times_ns[field.row(12.5)])
    field.events = [
        ActionTaken(id="a", occurred_ns=at_ns, run=RUN, subject=RUN, action="rollout", reason="NCCL 2.27.3")
    ]
    one = the(field.look())
    assert (one.cause.mechanism, one.verdict) == ("rollout", "not-hardware")
    assert any("NCCL 2.27.3" in evidence.text for evidence in one.evidence)
