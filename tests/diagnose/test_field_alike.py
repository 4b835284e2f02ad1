"""Causes that look like others: told apart by a sign of their own, or by who does not show it.

What is wrong is made by hand in `field_cluster`: sixteen members in racks of four and leaves of eight.
"""

import numpy as np
import pytest
from field_cluster import DEFAULT_ON, EVERY_S, GPUS, HOSTS, NODES, RUN, STEP_S, Field, answers, the, topology
from quantity import sampled

pytestmark = pytest.mark.slow

STEP = "holdfast_run_step_seconds"
COLLECTOR = "holdfast_member_gc_seconds_total"
RETRIES = "holdfast_member_alloc_retries_total"
BUFFER = "DCGM_FI_DEV_FB_USED"
INLET, SUPPLY = "redfish_chassis_temperature_celsius", "SupplyTemperatureCelsius"
SWITCH = "infiniband_switch_port_symbol_error_total"
PRESSURE = "node_pressure_cpu_waiting_seconds_total"
LABELS = [{"run": RUN, "member": host, "node": host} for host in HOSTS]
HOURS = 3.0


# -- fragmented memory ---------------------------------------------------------------------------------


def by_turns(pauses_per_s: float, pause_s: float, *, grows: bool = True) -> Field:
    """Members pause at moments of their own, for 45 minutes, more and more often where it grows; the others
    wait for them. No member collects garbage, and no allocator has to try again.
    """
    field = Field(HOURS)
    compute, exchange = field.members("compute", 4.6), field.members("exchange", 1.2, 0.02)
    row = field.row(45)
    often = pauses_per_s * np.linspace(0 if grows else 1, 1, field.rows - row)[:, None]
    paused = field.dice.poisson(STEP_S * often, (field.rows - row, NODES))
    field.values[compute][row:] += pause_s * paused
    slowest = field.values[compute].max(axis=1)
    field.values[exchange] += slowest[:, None] - field.values[compute]
    field.values[STEP][:, 0] = slowest + 1.5
    field.put(COLLECTOR, np.full((field.rows, NODES), 0.0005), list(HOSTS), LABELS)
    field.put(RETRIES, np.zeros((field.rows, NODES)), list(HOSTS), LABELS)
    return field


def retried(field: Field, per_s: float, ago_min: float) -> None:
    """Every member's allocator tries again so often at last, by chance and more and more often."""
    row = field.row(ago_min)
    often = per_s * EVERY_S * np.linspace(0, 1, field.rows - row)[:, None]
    field.values[RETRIES][row:] += field.dice.poisson(often, (field.rows - row, NODES)) / EVERY_S


@pytest.mark.parametrize(
    ("per_s", "pause_s"), sampled([(0.005, 1.5), (0.02, 0.6), (0.1, 0.4)], [(0.005, 1.5), (0.1, 0.4)])
)
def test_retries_of_the_allocator_tell_fragmentation_from_uneven_sequences(
    per_s: float, pause_s: float
) -> None:
    """With the fewest of them, a scrape of a member in twenty-five shows any."""
    field = by_turns(per_s, pause_s)
    without = the(field.look())
    assert without.cause.mechanism == "sequence-length"
    retried(field, per_s, 45)
    one = the(field.look())
    assert (one.cause.mechanism, one.cause.subject, one.verdict) == ("fragmentation", RUN, "not-hardware")
    assert one.confidence > 0.9
    assert {each.cause.mechanism: each.confidence for each in one.alternatives}["sequence-length"] < 0.05


@pytest.mark.parametrize(("per_s", "pause_s"), [(0.008, 0.4), (0.01, 0.3)])
def test_retries_that_grew_before_the_window_began_are_fragmentation(per_s: float, pause_s: float) -> None:
    """Steps show it so late that the window's first third has half of the retries already."""
    field = by_turns(per_s, pause_s)
    retried(field, per_s, 45)
    one = the(field.look())
    assert (one.cause.mechanism, one.cause.subject) == ("fragmentation", RUN)
    assert one.confidence > 0.9


def slowly(
    final: float, grows_min: float, ago_min: float, retry_s: float, power: float, always: float
) -> Field:
    """All members have retries, more and more often for some time, and steps are longer by that at last."""
    field = Field(5.5)
    compute = field.members("compute", 4.6)
    field.members("exchange", 1.2, 0.02)
    row = field.row(ago_min)
    grown = np.clip(np.arange(field.rows - row) * EVERY_S / 60 / grows_min, 0, 1) ** power
    field.values[compute][row:] += final * STEP_S * grown[:, None]
    field.values[STEP][row:, 0] += final * STEP_S * grown
    often = np.full((field.rows, NODES), always)
    often[row:] += (final / retry_s * grown / NODES)[:, None]
    field.put(RETRIES, field.dice.poisson(often * EVERY_S) / EVERY_S, list(HOSTS), LABELS)
    return field


@pytest.mark.parametrize(("final", "ago_min"), sampled([(0.1, 100), (0.1, 200), (0.15, 100)], [(0.1, 200)]))
def test_retries_that_stand_out_long_after_steps_became_longer_are_fragmentation(
    final: float, ago_min: float
) -> None:
    """At first they are too few to be told from chance, and hours later the minutes between are not read."""
    field = slowly(final, 120, ago_min, 0.8, 2.0, 0.002)
    for without in ((), ("holdfast_member_compute_seconds", "holdfast_member_exchange_seconds")):
        assert answers(field.look(without=without)) == [("fragmentation", RUN)]


@pytest.mark.parametrize("ago_min", sampled(range(20, 44, 4), [20, 40]))
def test_the_first_to_stand_out_is_not_a_slow_node_where_all_become_slower(ago_min: float) -> None:
    """All by the same and more and more; no allocator reports it."""
    field = slowly(0.12, 60, ago_min, 0.8, 1.0, 0.0)
    field.values[RETRIES][:] = 0.0
    assert "slow-node" not in [mechanism for mechanism, _ in answers(field.look())]


def test_retries_that_there_always_were_leave_it_with_the_sequences() -> None:
    field = by_turns(0.02, 0.6)
    field.values[RETRIES] += field.dice.poisson(0.01 * EVERY_S, (field.rows, NODES)) / EVERY_S
    assert answers(field.look()) == [("sequence-length", RUN)]


@pytest.mark.parametrize("ago_min", sampled([10, 45, 180], [10, 180]))
@pytest.mark.parametrize("at_min", sampled([4, 9], [4]))
def test_retries_of_one_moment_do_not_tell_why_steps_are_longer(ago_min: float, at_min: float) -> None:
    """All members have them after an evaluation; there was none in the minutes before the run was slower."""
    field = Field(5.5)
    field.slower(1.2, ago_min)
    field.put(RETRIES, np.zeros((field.rows, NODES)), list(HOSTS), LABELS)
    field.values[RETRIES][field.row(at_min)] = 1 / EVERY_S
    assert answers(field.look()) == [("unknown", RUN)]


def filled(ago_min: float, grows_min: float) -> Field:
    """Steps become longer by a fifth within so much time, and a tenth more memory is used; nothing counts
    retries.
    """
    field = slowly(0.2, grows_min, ago_min, 0.8, 1.0, 0.0)
    row = field.row(ago_min)
    grown = np.clip(np.arange(field.rows - row) * EVERY_S / 60 / grows_min, 0, 1)[:, None]
    field.values[BUFFER][row:] *= 1 + 0.1 * grown
    del field.values[RETRIES]
    return field


@pytest.mark.parametrize("ago_min", [45, 180])
def test_memory_that_fills_up_as_steps_become_longer_is_fragmentation(ago_min: float) -> None:
    one = the(filled(ago_min, 80).look())
    assert (one.cause.mechanism, one.cause.subject, one.verdict) == ("fragmentation", RUN, "not-hardware")
    assert one.confidence > 0.6


@pytest.mark.parametrize("ago_min", sampled([12, 45, 180], [12]))
def test_more_memory_at_once_is_of_steps_that_have_more_to_do(ago_min: float) -> None:
    assert answers(filled(ago_min, EVERY_S / 60).look()) == [("unknown", RUN)]


def test_memory_that_fills_up_and_slows_nobody_is_no_incident() -> None:
    field = Field(HOURS)
    field.values[BUFFER] *= np.linspace(1, 1.15, field.rows)[:, None]
    assert answers(field.look()) == []


def test_more_retries_that_slow_nobody_are_no_incident() -> None:
    field = by_turns(0.0, 0.0)
    retried(field, 0.02, 45)
    assert answers(field.look()) == []


# -- short of processors -------------------------------------------------------------------------------


def contended(hosts: range, seed: int, *, waits: float = 0.3) -> Field:
    """Tasks wait for a processor on these hosts, on some more than on others, and their members are late."""
    field = Field(HOURS, seed)
    field.slower(1.16, 45)
    row, where = field.row(45), list(hosts)
    field.values[PRESSURE][row:, where] += waits * np.exp(0.4 * field.dice.standard_normal(len(where)))
    compute, exchange = field.members("compute", 4.6), field.members("exchange", 1.2, 0.03)
    longer = np.zeros((field.rows - row, NODES))
    longer[:, where] = 0.16 * STEP_S * field.dice.uniform(0.6, 1.0, (field.rows - row, len(where)))
    field.values[compute][row:] += longer
    field.values[exchange][row:] += longer.max(axis=1)[:, None] - longer
    return field


@pytest.mark.parametrize("nodes_per_rack", [8, 4])
@pytest.mark.parametrize(("waits", "seed"), sampled([(0.3, 1), (0.1, 3), (0.1, 5)], [(0.3, 1), (0.1, 3)]))
def test_all_hosts_that_are_short_of_processors_are_the_run_and_no_rack(
    waits: float, seed: int, nodes_per_rack: int
) -> None:
    """With 0.1, a third of them is not found to be short."""
    field = contended(range(NODES), seed, waits=waits)
    field.topology = topology(nodes_per_rack)
    one = the(field.look())
    assert (one.cause.mechanism, one.cause.subject) == ("cpu-contention", RUN)
    assert one.slowdown == pytest.approx(1.16, rel=0.02)


@pytest.mark.parametrize("nodes_per_rack", [8, 4])
def test_a_rack_that_is_short_of_processors_while_the_others_are_not_is_named(nodes_per_rack: int) -> None:
    field = contended(range(nodes_per_rack), 1)
    field.topology = topology(nodes_per_rack)
    assert answers(field.look()) == [("cpu-contention", "rack-0")]


def test_two_racks_of_four_that_are_short_of_processors_are_not_the_run() -> None:
    named = answers(contended(range(8), 1).look())
    assert named
    assert ("cpu-contention", RUN) not in named


def test_neighbours_everywhere_that_take_processors_by_turns_are_no_uneven_sequences() -> None:
    field = by_turns(0.03, 1.0, grows=False)
    assert the(field.look()).cause.mechanism == "sequence-length"
    row = field.row(45)
    field.values[PRESSURE][row:] += field.dice.gamma(3, 0.1, (field.rows - row, NODES))
    assert answers(field.look()) == [("cpu-contention", RUN)]


def test_one_slow_gpu_does_not_argue_against_processors_that_are_short_everywhere() -> None:
    field = contended(range(NODES), 1)
    field.change("DCGM_FI_DEV_SM_CLOCK", 40, ["gpu-005.3"], by=0.9)
    assert answers(field.look()) == [("cpu-contention", RUN)]


def test_one_host_that_waits_for_its_disk_does_not_argue_against_the_loader() -> None:
    """All members wait for data, and reads take as long as ever."""
    field = Field(HOURS)
    field.slower(1.3, 45)
    field.change(field.members("data", 0.2), 45, HOSTS, plus=0.3 * STEP_S)
    asked = field.noise(40.0, NODES, 0.1)
    family = "node_mountstats_nfs_operations_{}_total"
    labels = [{"instance": f"{host}:9100", "mountaddr": "filer-0", "operation": "READ"} for host in HOSTS]
    field.put(family.format("requests"), asked, HOSTS, labels)
    field.put(family.format("response_time_seconds"), 0.004 * asked, HOSTS, labels)
    assert answers(field.look()) == [("data-loader", RUN)]
    field.change("node_pressure_io_waiting_seconds_total", 40, ["gpu-004"], plus=0.2)
    assert answers(field.look()) == [("data-loader", RUN)]


# -- warm air ------------------------------------------------------------------------------------------

UNITS = {
    "one for each rack": "loops:\n  crah-[0-3]: 1 each\n",
    "two for two racks": "loops:\n  crah-[0-1]: 2 each\n",
    "all for all": "loops:\n  crah-[0-1]: all\n",
}
SITE = "circuits:\n  site-0: all\n"


def warm_air(more: str, racks: range = range(4), *, kelvin: float = 8.0) -> Field:
    """Air comes in warm at these racks, and their GPUs throttle; of the units nothing is measured."""
    field = Field(HOURS)
    field.topology = topology(4, 8, more)
    field.slower(1.1, 45)
    row = field.row(45)
    hosts = [host for rack in racks for host in HOSTS[4 * rack : 4 * rack + 4]]
    field.put(INLET, field.noise(24, NODES, 0.01), HOSTS, [{"sensor": "Inlet Temp"}] * NODES)
    field.change(INLET, 45, hosts, plus=kelvin)
    for metric in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP"):
        field.change(metric, 45, hosts, plus=1.7 * kelvin)
    for metric in ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"):
        field.change(metric, 45, hosts, by=0.88)
    field.change("DCGM_FI_DEV_THERMAL_VIOLATION", 45, hosts, plus=4e8)
    compute = field.members("compute", 4.6)
    field.values[compute][row:, field.of(compute, *hosts)] += 0.1 * STEP_S
    return field


@pytest.mark.parametrize("ago_min", sampled([10, 45, 180], [10, 180]))
@pytest.mark.parametrize(("hosts", "subject"), [(HOSTS, RUN), (HOSTS[4:8], "rack-1")])
def test_warm_gpus_with_lower_clocks_are_enough_where_nothing_else_is_read(
    hosts: tuple[str, ...], subject: str, ago_min: float
) -> None:
    """By 6 K and a twentieth, where a single GPU's clock scatters by more, and its heat by nearly as much."""
    field = Field()
    field.slower(1.05, ago_min)
    for metric in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP"):
        field.change(metric, ago_min, hosts, plus=6.0)
    for metric in ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"):
        field.change(metric, ago_min, hosts, by=0.95)
    one = the(field.look(DEFAULT_ON))
    assert (one.cause.mechanism, one.cause.subject) == ("air-cooling", subject)
    assert (field.times_ns[-1] - one.began_ns) / 60e9 == pytest.approx(ago_min, abs=1.5)


@pytest.mark.parametrize("kelvin", sampled([8.0, 3.5], [3.5]))
@pytest.mark.parametrize("units", UNITS.values(), ids=UNITS.keys())
def test_warm_air_at_all_racks_is_the_sites_and_not_that_of_one_unit(units: str, kelvin: float) -> None:
    field = warm_air(units + SITE, kelvin=kelvin)
    for look in (field.look(), field.look(without=[INLET])):
        one = the(look)
        assert (one.cause.mechanism, one.cause.subject, one.owner) == ("air-cooling", "site-0", "facilities")
        assert one.confidence > 0.8
        assert one.slowdown == pytest.approx(1.1, rel=0.02)


@pytest.mark.parametrize("units", ["", *UNITS.values()], ids=["none known", *UNITS.keys()])
def test_where_nothing_that_is_known_cools_all_racks_warm_air_is_the_runs(units: str) -> None:
    assert answers(warm_air(units).look()) == [("air-cooling", RUN)]


def test_warm_air_of_units_that_measure_it_is_no_warm_coolant() -> None:
    field = warm_air(UNITS["one for each rack"] + SITE)
    units = [f"crah-{number}" for number in range(4)]
    field.put(SUPPLY, field.noise(18, 4, 0.01), units, [{} for _ in units])
    field.values[SUPPLY][field.row(45) :] += 8
    for look in (field.look(), field.look(without=[INLET])):
        assert answers(look) == [("air-cooling", "site-0")]


def test_warm_air_at_one_rack_is_that_racks() -> None:
    assert answers(warm_air("", range(1, 2)).look()) == [("air-cooling", "rack-1")]


def test_warm_coolant_of_a_site_with_loops_of_coolant_is_no_warm_air() -> None:
    field = warm_air("loops:\n  cdu-[0-3]: 1 each\n" + SITE)
    units = [f"cdu-{number}" for number in range(4)]
    field.put(SUPPLY, field.noise(28, 4, 0.01), units, [{} for _ in units])
    field.values[SUPPLY][field.row(45) :] += 8
    assert answers(field.look(without=[INLET])) == [("coolant-supply", "site-0")]


def warmed(more: str, hosts: tuple[str, ...], ago_min: float, felt_min: float) -> Field:
    """These hosts' GPUs become hotter from then on, most of it within minutes. From 20 K on they throttle,
    which keeps them at their limit, and steps become longer.
    """
    field = Field(HOURS)
    field.topology = topology(4, 8, more)
    first, felt = field.row(ago_min), field.row(felt_min)
    at = (first, (2 * first + felt) / 3, felt, felt + 40)
    warmer = np.interp(np.arange(field.rows), at, (0.0, 18.0, 20.0, 21.0))[:, None]
    slower = np.interp(np.arange(field.rows), (felt, felt + 40), (1.0, 0.88))[:, None]
    for metric in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP"):
        field.values[metric][:, field.of(metric, *hosts)] += warmer
    for metric in ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"):
        field.values[metric][:, field.of(metric, *hosts)] *= slower
    field.values[STEP] /= slower
    return field


@pytest.mark.parametrize("felt_min", sampled([10, 19, 25], [10, 25]))
@pytest.mark.parametrize(("hosts", "subject"), [(HOSTS, "site-0"), (HOSTS[4:8], "rack-1")])
def test_air_that_became_warm_before_steps_became_longer_is_no_power_cap(
    hosts: tuple[str, ...], subject: str, felt_min: float
) -> None:
    """The window begins when GPUs are hot already and steps are as quick as ever."""
    look = warmed(UNITS["all for all"] + SITE, hosts, felt_min + 25, felt_min).look(DEFAULT_ON)
    assert answers(look) == [("air-cooling", subject)]


def test_a_rack_whose_power_is_held_down_by_turns_is_told_by_its_peers() -> None:
    """For seventeen minutes, then not for three. What was before is no better known than the window."""
    field = Field(HOURS)
    for ago_min, until_min in ((75, 58), (55, 38), (35, 18), (15, 0)):
        rows = slice(field.row(ago_min), field.row(until_min))
        field.values[STEP][rows] *= 1.2
        for metric, by in (("DCGM_FI_DEV_SM_CLOCK", 0.75), ("DCGM_FI_DEV_POWER_USAGE", 0.55)):
            field.values[metric][rows, field.of(metric, *HOSTS[4:8])] *= by
    assert answers(field.look(DEFAULT_ON)) == [("power-cap", "rack-1")]


LOOPS = "loops:\n  cdu-[0-1]: 2 each\ncircuits:\n  water-0: all\n"


@pytest.mark.parametrize("by_chance", [(), ("gpu-012.3",)])
def test_one_hot_loop_of_two_is_not_the_water_of_both(by_chance: tuple[str, ...]) -> None:
    """Nothing measures whether its coolant is too warm or too little; another clock is low by chance."""
    field = warmed(LOOPS, HOSTS[:8], 45, 30)
    field.change("DCGM_FI_DEV_SM_CLOCK", 30, by_chance, by=0.9)
    one = the(field.look(DEFAULT_ON))
    assert one.cause.subject == "cdu-0"
    assert one.cause.mechanism in ("coolant-flow", "coolant-supply")
    assert one.confidence < 0.6


def test_hot_loops_of_one_circuit_are_its_water() -> None:
    one = the(warmed(LOOPS, HOSTS, 45, 30).look(DEFAULT_ON))
    assert (one.cause.mechanism, one.cause.subject) == ("coolant-supply", "water-0")


# -- a spine -------------------------------------------------------------------------------------------

SPINES = "spines:\n  spine-[0-1]: all\n"


def spine_errors(a_second: float, ports: int = 4, *, counted_by: tuple[str, ...] = ("spine-0",)) -> Field:
    """These switches count errors on so many of their ports, and everybody's exchange is late."""
    field = Field(HOURS)
    field.topology = topology(4, 4, SPINES)
    field.slower(1.12, 45)
    switches = [*(f"leaf-{number}" for number in range(4)), "spine-0", "spine-1"]
    labels = [{"switch": switch, "port": str(port)} for switch in switches for port in range(12)]
    field.put(SWITCH, np.zeros((field.rows, len(labels))), [one["switch"] for one in labels], labels)
    for number, one in enumerate(labels):
        if one["switch"] in counted_by and int(one["port"]) < ports:
            field.values[SWITCH][field.row(45) :, number] = a_second * field.dice.uniform(0.7, 1.3)
    exchange = field.members("exchange", 1.4)
    field.members("compute", 4.7)
    field.values[exchange][field.row(45) :] += 0.12 * STEP_S
    return field


@pytest.mark.parametrize("ports", [1, 4])
@pytest.mark.parametrize("a_second", sampled([3.0, 300.0], [3.0]))
def test_errors_that_a_spine_counts_are_its_links_whether_or_not_it_has_a_place(
    a_second: float, ports: int
) -> None:
    field = spine_errors(a_second, ports)
    for known in (field.topology, topology(4, 4)):
        field.topology = known
        one = the(field.look())
        assert (one.cause.mechanism, one.cause.subject, one.owner) == ("link-errors", "spine-0", "network")
        assert one.confidence > 0.9
        assert one.slowdown == pytest.approx(1.12, rel=0.02)


def test_a_spine_without_a_place_is_not_named_while_nobodys_exchange_is_late() -> None:
    field = spine_errors(300.0)
    field.topology = topology(4, 4)
    field.members("exchange", 1.4)
    assert the(field.look()).verdict == "unknown"


def test_few_errors_that_there_always_were_are_not_why() -> None:
    field = spine_errors(3.0)
    field.values[SWITCH][:] = field.values[SWITCH][-1]
    assert the(field.look()).verdict == "unknown"


def test_few_errors_that_slow_nobody_are_no_incident() -> None:
    field = spine_errors(3.0)
    field.slower(1 / 1.12, 45)
    field.members("exchange", 1.4)
    assert answers(field.look()) == []


def test_of_two_spines_that_fit_as_well_neither_is_sure() -> None:
    """All leaves count errors, and the spines do not say which of them it is."""
    one = the(spine_errors(300.0, counted_by=("leaf-0", "leaf-1", "leaf-2", "leaf-3")).look())
    assert (one.cause.mechanism, one.cause.kind) == ("link-errors", "spine")
    assert one.confidence <= 0.5
    assert one.alternatives[0].cause.subject == "spine-1"


# -- a slow node ---------------------------------------------------------------------------------------

GPU_LABELS = [{"run": RUN, "member": f"{host}.{gpu}", "node": host} for host in HOSTS for gpu in range(GPUS)]


def slow_node(*, a_member_per_gpu: bool, noise: float = 0.01, uneven: float = 0.0) -> Field:
    """The members of one node compute longer, by amounts that scatter by this share. All others wait for them
    in their exchange, and no reading of any machine is unusual.
    """
    field = Field(HOURS)
    field.slower(1.23, 45)
    row = field.row(45)
    labels = GPU_LABELS if a_member_per_gpu else LABELS
    names = [one["member"] if one["member"] == one["node"] else f"{RUN}/{one['member']}" for one in labels]
    mine = [number for number, one in enumerate(labels) if one["node"] == "gpu-005"]
    longer = np.zeros((field.rows - row, len(names)))
    longer[:, mine] = 0.23 * STEP_S * (1 + uneven * field.dice.standard_normal((len(longer), len(mine))))
    compute, exchange = field.noise(4.6, len(names), noise), field.noise(1.2, len(names), 0.03)
    compute[row:] += longer
    exchange[row:] += longer.max(axis=1)[:, None] - longer
    field.put("holdfast_member_compute_seconds", compute, names, labels)
    field.put("holdfast_member_exchange_seconds", exchange, names, labels)
    field.put(COLLECTOR, np.full((field.rows, len(names)), 0.0005), names, labels)
    if a_member_per_gpu:
        field.topology = topology(members={one["member"]: one["node"] for one in GPU_LABELS})
    return field


@pytest.mark.parametrize("a_member_per_gpu", [False, True])
@pytest.mark.parametrize(
    ("noise", "uneven"), sampled([(0.01, 0.0), (0.06, 0.0), (0.01, 0.3)], [(0.06, 0.0), (0.01, 0.3)])
)
def test_a_node_that_all_others_wait_for_is_named_though_nothing_of_it_is_unusual(
    noise: float, uneven: float, a_member_per_gpu: bool
) -> None:
    """Its processes may be bound to the memory of the other socket, which no exporter shows."""
    one = the(slow_node(a_member_per_gpu=a_member_per_gpu, noise=noise, uneven=uneven).look())
    assert (one.cause.mechanism, one.cause.subject) == ("slow-node", "gpu-005")
    assert len(one.affected) == (GPUS if a_member_per_gpu else 1)
    assert one.confidence > 0.7
    assert one.slowdown == pytest.approx(1.23, rel=0.02)


@pytest.mark.parametrize("label", ["pp_size", "stage"])
def test_a_node_is_a_node_though_the_pipeline_has_as_many_stages_as_there_are_nodes(label: str) -> None:
    """A stage is on several nodes wherever there is more than one replica of the model."""
    field = slow_node(a_member_per_gpu=True)
    if label == "pp_size":
        field.put("holdfast_run_info", np.ones((field.rows, 1)), [RUN], [{"run": RUN, label: str(NODES)}])
    else:
        compute = "holdfast_member_compute_seconds"
        field.labels[compute] = [one | {label: one["node"]} for one in field.labels[compute]]
    one = the(field.look())
    assert (one.cause.mechanism, one.cause.subject) == ("slow-node", "gpu-005")
    assert one.confidence > 0.7


def test_a_node_that_only_waits_is_not_the_slow_one() -> None:
    """Others pause by turns for 45 minutes, and it happens to wait at last; it computes as ever."""
    assert "slow-node" not in [mechanism for mechanism, _ in answers(by_turns(0.005, 0.5).look())]


def test_a_slow_node_whose_machine_is_not_measured_is_less_sure() -> None:
    field = slow_node(a_member_per_gpu=False)
    told = the(field.look())
    alone = the(field.look([name for name in field.values if name.startswith("holdfast_")]))
    assert alone.cause.subject == "gpu-005"
    assert alone.confidence < told.confidence - 0.05


# -- two at once ---------------------------------------------------------------------------------------

NVLINK, CRC = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"
NARROW = "DCGM_FI_DEV_PCIE_LINK_WIDTH"


def narrow_bus() -> Field:
    """One GPU's PCIe link has a quarter of its width; its member is late, and all others wait for it."""
    field = Field(HOURS)
    field.slower(1.15, 45)
    field.change(NARROW, 45, ["gpu-003.2"], by=0.25)
    field.change(NVLINK, 45, ["gpu-"], by=0.87)
    compute, exchange = field.members("compute", 4.6), field.members("exchange", 1.2, 0.03)
    longer = np.zeros(NODES)
    longer[3] = 0.15 * STEP_S
    field.values[compute][field.row(45) :] += longer
    field.values[exchange][field.row(45) :] += longer.max() - longer
    return field


@pytest.mark.parametrize("where", ["gpu-011.4", "gpu-011"])
@pytest.mark.parametrize(
    ("metric", "by", "plus"), [(NVLINK, 0.5, 0.0), (CRC, 1.0, 20.0)], ids=["slow", "with errors"]
)
def test_a_broken_nvlink_is_named_though_all_wait_for_a_narrow_bus_elsewhere(
    metric: str, by: float, plus: float, where: str
) -> None:
    """Its own cost does not show: its members wait for the other one."""
    field = narrow_bus()
    field.change(metric, 45, [where], by=by, plus=plus)
    look = field.look()
    assert answers(look) == [("pcie-width", "gpu-003.2"), ("nvlink", where)]
    assert look.incidents[0].slowdown == pytest.approx(1.15, rel=0.02)
    assert look.incidents[1].slowdown == 1.0


def test_an_nvlink_of_the_same_host_that_moves_less_comes_of_it() -> None:
    field = narrow_bus()
    field.change(NVLINK, 45, ["gpu-003.5"], by=0.5)
    assert answers(field.look()) == [("pcie-width", "gpu-003.2")]


def test_an_nvlink_that_moves_less_while_the_run_is_as_quick_as_ever_is_no_incident() -> None:
    field = Field(HOURS)
    field.change(NVLINK, 45, ["gpu-011.4"], by=0.5)
    assert answers(field.look()) == []
