"""Hours in which nothing is wrong, though something changes: each function alters a plant and causes no
trouble.
"""

from collections.abc import Callable

import numpy as np

from bench.exam.plan import Cause, Inject
from bench.exam.plant import Plant

HOUR_S = 3_600.0


def _hours(change: Callable[[Plant], None]) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        change(plant)
        return []

    return inject


def start_up() -> Inject:
    """The run has just begun: kernels are compiled, caches are cold, and GPUs are."""

    def change(plant: Plant) -> None:
        plant.all_slower *= 1 + 2.5 * np.exp(-plant.t / 90)
        plant.data_s += 0.4 * np.exp(-plant.t / 120)[:, None]

    return _hours(change)


def longer_sequences() -> Inject:
    """A curriculum: sequences grow as planned, in three stages, and so do the steps."""

    def change(plant: Plant) -> None:
        stages = np.searchsorted([HOUR_S, 2 * HOUR_S, 3 * HOUR_S], plant.t, side="right")
        plant.all_slower *= 1 + 0.06 * stages
        plant.actions.append(
            (HOUR_S, "configure", "curriculum: sequences of 4,096 to 6,144 tokens, as planned")
        )

    return _hours(change)


def warm_day() -> Inject:
    """Outside air warms the room and the water by some degrees over the afternoon."""

    def change(plant: Plant) -> None:
        rise = np.sin(np.pi * plant.t / plant.t[-1])[:, None]
        plant.room_c += 4.0 * rise
        plant.supply_c += 3.0 * rise

    return _hours(change)


def neighbours_start() -> Inject:
    """Another job starts beside this one: heat, traffic and files, but no less for the run."""

    def change(plant: Plant) -> None:
        since = plant.t >= 1.5 * HOUR_S
        plant.intensity[:, plant.run_gpus :] = since[:, None] * 1.0
        plant.port_wait += since[:, None, None] * 0.02
        plant.leaf_wait += since[:, None] * 0.03
        plant.read_ms += since * 0.9
        plant.supply_c += since[:, None] * 0.8

    return _hours(change)


def node_replaced() -> Inject:
    """A node is drained for maintenance and another takes its place; the run stands still for two minutes."""

    def change(plant: Plant) -> None:
        at_s, old, new = 1.6 * HOUR_S, 5, plant.run_nodes + 1
        plant.planned_pauses.append((at_s, 120.0, "n005 is replaced for maintenance"))
        plant.replaced = (old, new, at_s)
        late = plant.t >= at_s
        plant.intensity[late, old * 8 : old * 8 + 8] = 0.0
        plant.intensity[:, new * 8 : new * 8 + 8] = late[:, None] * 1.0
        plant.maintenance.append((plant.node_name(old), at_s - 300, at_s + 4 * HOUR_S, "memory module"))
        plant.gone[old] = (at_s + 900, at_s + 2_400)

    return _hours(change)


def exporters_updated() -> Inject:
    def change(plant: Plant) -> None:
        plant.rolled_restarts_s = 2 * HOUR_S

    return _hours(change)


def prometheus_down() -> Inject:
    def change(plant: Plant) -> None:
        plant.outages.append(("prometheus", 1.4 * HOUR_S, 1.4 * HOUR_S + 780))

    return _hours(change)


def motley_gpus() -> Inject:
    """GPUs of very different quality, and many with an XID of long ago."""

    def change(plant: Plant) -> None:
        plant.lottery = plant.rng.normal(1.0, 0.07, plant.gpus).clip(0.84, 1.15)
        plant.fit = plant.rng.normal(1.0, 0.1, plant.gpus).clip(0.8, 1.25)
        plant.old_xid_share = 0.12

    return _hours(change)


def blips() -> Inject:
    """Harmless errors: a few symbol errors, a link that recovered, a build on a node."""

    def change(plant: Plant) -> None:
        rng = plant.rng
        for _ in range(5):
            tick = int(rng.integers(60, len(plant.t) - 60))
            plant.symbol_errors[tick, int(rng.integers(plant.nodes)), int(rng.integers(8))] = 3.0
        plant.port_recoveries[int(rng.integers(60, len(plant.t))), plant.a_node(), 2] = 0.1
        node, tick = plant.a_node(), int(rng.integers(60, len(plant.t) - 90))
        plant.cpu_wait[tick : tick + 60, node] += 0.12
        plant.load[tick : tick + 60, node] += 60
        plant.disk_busy[tick : tick + 40, node] += 0.4
        plant.ecc_sbe[int(rng.integers(60, len(plant.t))), plant.a_gpu()] = 0.1

    return _hours(change)


def backup() -> Inject:
    """The filer is backed up for an hour: requests take thrice as long, loaders are ahead."""

    def change(plant: Plant) -> None:
        during = (plant.t > HOUR_S) & (plant.t < 2 * HOUR_S)
        plant.read_ms += during * 3.2
        plant.write_ms += during * 6.0
        plant.io_wait += during[:, None] * 0.015

    return _hours(change)


def skewed_clock() -> Inject:
    """A node's clock is off by seconds: a flaw of the telemetry, and of nothing else."""

    def change(plant: Plant) -> None:
        plant.clock_offset_s[:, plant.a_node()] += 2.7

    return _hours(change)


def uneven_steps() -> Inject:
    """Batches differ a little, and now and then one step takes ten seconds more."""

    def change(plant: Plant) -> None:
        plant.work_spread += 0.02
        at_s = 900.0
        while at_s < plant.t[-1]:
            plant.stalls.append((at_s, 10.0))
            at_s += float(plant.rng.uniform(1_500, 3_000))

    return _hours(change)
