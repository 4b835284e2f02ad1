"""Causes that hold up a part of a run: a stage of its pipeline, and the links of one leaf switch.

What is wrong is made by hand in `field_cluster`: sixteen members in racks of four and leaves of eight.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pytest
from field_cluster import DEFAULT_ON, HOSTS, NODES, RUN, STEP_S, Field, answers, the

pytestmark = pytest.mark.slow

STEP = "holdfast_run_step_seconds"
COMPUTE, EXCHANGE = "holdfast_member_compute_seconds", "holdfast_member_exchange_seconds"
PRESSURE = "node_pressure_cpu_waiting_seconds_total"
SYMBOLS, SWITCH = "node_infiniband_symbol_error_total", "infiniband_switch_port_symbol_error_total"
RESENT = "node_infiniband_packet_sequence_errors_total"
RECOVERIES = "infiniband_switch_port_link_error_recovery_total"
LEAF_0, LEAF_1 = [f"gpu-{number:03}" for number in range(8)], [f"gpu-{number:03}" for number in range(8, 16)]
SWITCH_PORTS = 12
HOURS = 2.0


def stage(late: Collection[int], ago_min: float = 45, factor: float = 1.24, noise: float = 0.01) -> Field:
    """These members compute longer, and the others wait for them in their exchange."""
    field = Field(HOURS)
    field.slower(factor, ago_min)
    compute, exchange = field.members("compute", 5.0, noise), field.members("exchange", 1.0, 0.03)
    more_s = (factor - 1) * STEP_S
    others = [number for number in range(NODES) if number not in late]
    field.values[compute][field.row(ago_min) :, list(late)] += more_s
    field.values[exchange][field.row(ago_min) :, others] += more_s
    return field


STAGES = {
    "the last quarter, which is a rack": range(12, 16),
    "the last half, which is a leaf": range(8, 16),
    "every fourth": range(3, 16, 4),
    "two neighbours of eight": (6, 7, 14, 15),
}


@pytest.mark.parametrize("late", STAGES.values(), ids=STAGES.keys())
def test_a_late_stage_is_named_however_ranks_are_dealt_to_stages(late: Sequence[int]) -> None:
    one = the(stage(late).look())
    assert (one.cause.mechanism, one.cause.subject, one.verdict) == ("pipeline-stage", RUN, "not-hardware")
    assert one.slowdown == pytest.approx(1.24, rel=0.02)
    assert one.affected == tuple(f"{RUN}/{HOSTS[number]}" for number in late)
    assert one.confidence > 0.8


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_a_late_stage_is_told_by_means_where_single_steps_scatter_as_much(noise: float) -> None:
    """1.49 s more, where a reading has a standard deviation of 0.25 and 0.5 s."""
    one = the(stage(range(12, 16), noise=noise).look())
    assert (one.cause.mechanism, len(one.affected)) == ("pipeline-stage", 4)


def test_a_label_tells_a_stage_that_lies_irregularly() -> None:
    late = (1, 4, 9, 14)
    field = stage(late)
    assert the(field.look()).verdict == "unknown"
    for label in ("pp_rank", "stage"):
        field = stage(late)
        field.labels[COMPUTE] = [
            one | {label: "3" if number in late else str(number % 3)}
            for number, one in enumerate(field.labels[COMPUTE])
        ]
        one = the(field.look())
        assert one.cause.mechanism == "pipeline-stage"
        assert any("(3)" in evidence.text for evidence in one.evidence)


def test_how_many_stages_a_run_has_makes_it_surer() -> None:
    field = stage(range(12, 16))
    alone = the(field.look()).confidence
    field.put("holdfast_run_info", np.ones((field.rows, 1)), [RUN], [{"run": RUN, "pp_size": "4"}])
    told = the(field.look())
    assert told.cause.mechanism == "pipeline-stage"
    assert told.confidence > alone
    other = stage(range(12, 16))
    other.put("holdfast_run_info", np.ones((other.rows, 1)), [RUN], [{"run": RUN, "pp_size": "2"}])
    assert the(other.look()).confidence == pytest.approx(alone, abs=0.01)


def test_a_rack_is_not_called_a_stage_while_its_machines_are_not_seen() -> None:
    """The members of one rack are late: without CPU pressure the reason is unknown."""
    assert the(stage(range(12, 16)).look(without=[PRESSURE])).verdict == "unknown"
    assert the(stage(range(12, 16)).look([STEP, COMPUTE, EXCHANGE])).verdict == "unknown"


def test_a_rack_with_lower_clocks_is_no_stage() -> None:
    field = stage(range(12, 16))
    field.change("DCGM_FI_DEV_SM_CLOCK", 45, HOSTS[12:], by=0.8)
    assert the(field.look()).cause.mechanism != "pipeline-stage"


def test_what_other_machines_show_does_not_speak_against_a_stage() -> None:
    """A slow GPU and busy processors at nodes of other stages."""
    field = stage(range(12, 16))
    field.change("DCGM_FI_DEV_SM_CLOCK", 45, ["gpu-002.3"], by=0.7)
    field.change(PRESSURE, 20, ["gpu-005"], plus=0.3)
    assert answers(field.look())[0] == ("pipeline-stage", RUN)


def test_a_stage_that_always_had_more_to_do_is_no_incident_nor_the_cause_of_another() -> None:
    field = stage(range(12, 16), ago_min=60 * HOURS, factor=1.2)
    field.values[STEP] = field.noise(STEP_S, 1, 0.02)
    assert answers(field.look()) == []
    field.slower(1.25, 12)
    field.change(SYMBOLS, 12, ["gpu-003/mlx5_1"], plus=380)
    field.values[EXCHANGE][field.row(12) :] += 0.25 * STEP_S
    assert answers(field.look()) == [("link-errors", "gpu-003/mlx5_1")]


# -- a leaf switch -------------------------------------------------------------------------------------


def leaf_errors(
    metric: str, a_second: float, *, ports: int = 4, late: Collection[int] = range(NODES)
) -> Field:
    """leaf-0 counts errors on so many of its ports, and these members' exchange is late."""
    field = Field(HOURS)
    field.slower(1.12, 45)
    labels = [
        {"switch": f"leaf-{leaf}", "guid": f"0x{leaf}", "port": str(port)}
        for leaf in range(2)
        for port in range(SWITCH_PORTS)
    ]
    field.put(metric, np.zeros((field.rows, len(labels))), [one["switch"] for one in labels], labels)
    field.values[metric][field.row(45) :, :ports] = a_second
    exchange = field.members("exchange", 1.4)
    field.members("compute", 4.7)
    field.values[exchange][field.row(45) :, list(late)] += 0.12 * STEP_S
    return field


@pytest.mark.parametrize("late", [range(NODES), range(8)], ids=["everybody waits", "those behind it wait"])
@pytest.mark.parametrize(("metric", "a_second"), [(SWITCH, 300.0), (RECOVERIES, 0.4)])
def test_errors_that_a_leaf_counts_are_its_links(metric: str, a_second: float, late: Collection[int]) -> None:
    one = the(leaf_errors(metric, a_second, late=late).look())
    assert (one.cause.mechanism, one.cause.subject) == ("link-errors", "leaf-0")
    assert one.slowdown == pytest.approx(1.12, rel=0.02)


@pytest.mark.parametrize("hosts", [LEAF_0, LEAF_0[:2]], ids=["all hosts", "two hosts"])
def test_what_hosts_count_besides_makes_it_no_less_sure(hosts: list[str]) -> None:
    field = leaf_errors(SWITCH, 300.0)
    alone = the(field.look())
    field.change(SYMBOLS, 45, hosts, plus=300)
    both = the(field.look())
    assert (both.cause.mechanism, both.cause.subject) == ("link-errors", "leaf-0")
    assert both.confidence >= alone.confidence - 0.1


def test_hosts_ports_that_all_hang_on_one_leaf_tell_of_it() -> None:
    field = leaf_errors(SWITCH, 0.0)
    field.change(SYMBOLS, 45, LEAF_0, plus=300)
    assert answers(field.look(without=[SWITCH])) == [("link-errors", "leaf-0")]
    assert answers(field.look()) == [("link-errors", "leaf-0")]


@pytest.mark.parametrize("ports", [("0", "2"), ("0", "1", "2", "3")])
def test_a_leaf_is_told_beside_a_gpu_that_throttles_since_the_same_moment(ports: Sequence[str]) -> None:
    """With default exporters alone: hosts count errors, and nothing shows whose exchange is late."""
    field = Field(HOURS)
    field.slower(1.25, 45)
    field.change("DCGM_FI_DEV_SM_CLOCK", 45, ["gpu-012.3"], by=0.75)
    field.change("DCGM_FI_DEV_GPU_TEMP", 45, ["gpu-012.3"], plus=20)
    throttles = ("gpu-throttle", "gpu-012.3")
    assert answers(field.look(DEFAULT_ON)) == [throttles]
    behind = [f"{host}/mlx5_{port}" for host in LEAF_0 for port in ports]
    field.change(SYMBOLS, 45, behind, plus=100)
    assert answers(field.look(DEFAULT_ON)) == [throttles, ("link-errors", "leaf-0")]
    other = Field(HOURS)
    other.slower(1.25, 45)
    other.change("DCGM_FI_DEV_SM_CLOCK", 45, ["gpu-012.3"], by=0.75)
    other.change("DCGM_FI_DEV_GPU_TEMP", 45, ["gpu-012.3"], plus=20)
    other.change(SYMBOLS, 25, behind[::2], plus=100)
    assert answers(other.look(DEFAULT_ON)) == [throttles]


def test_of_all_that_send_again_those_that_do_by_far_the_most_tell_of_their_leaf() -> None:
    """Hosts that talk to one behind the leaf resend as well, but less."""
    field = leaf_errors(SWITCH, 0.0)
    names, labels = field.subjects[SYMBOLS], field.labels[SYMBOLS]
    field.put(RESENT, np.abs(field.noise(0.02, len(names), 0.3)), names, labels)
    field.change(RESENT, 45, LEAF_0, plus=40)
    field.change(RESENT, 45, LEAF_1, plus=6)
    assert answers(field.look()) == [("link-errors", "leaf-0")]


def test_one_bad_cable_is_the_hosts_port_though_the_leaf_counts_its_other_end() -> None:
    field = leaf_errors(SWITCH, 300.0, ports=1)
    field.change(SYMBOLS, 45, ["gpu-003/mlx5_1"], plus=280)
    assert answers(field.look()) == [("link-errors", "gpu-003/mlx5_1")]
    assert answers(field.look(without=[SWITCH])) == [("link-errors", "gpu-003/mlx5_1")]
    assert answers(field.look(without=[SYMBOLS])) == [("link-errors", "leaf-0")]
