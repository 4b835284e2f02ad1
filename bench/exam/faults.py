"""What goes wrong: each function changes a plant's forces and says which answers are right, level by level.

What can be told is judged from what the exporters of a level show, not from what the product can do. Full:
everything. Default: dcgm-exporter's and node_exporter's defaults and the step time. Step: the step time
alone, which tells a hang; and the record, which tells of saves and of changes.
"""

from collections.abc import Sequence

import numpy as np

from bench.exam.plan import RUN, Cause, Inject, Level, Pair
from bench.exam.plant import Plant


def _cause(
    kind: str,
    full: Sequence[Pair],
    default: Sequence[Pair],
    why: str,
    *,
    step: Sequence[Pair] = (),
    hang: bool = False,
    first: tuple[str, ...] = (),
) -> Cause:
    accepted: dict[Level, tuple[Pair, ...]] = {
        "full": tuple(full),
        "default": tuple(default),
        "step": tuple(step),
    }
    return Cause(kind=kind, accepted=accepted, why=why, hang=hang, first=first)


# -- heat and power --------------------------------------------------------------------------------------


def gpu_throttle(sink: float = 3.0) -> Inject:
    """Dried paste or a loose heatsink: one GPU runs into its limit of temperature."""

    def inject(plant: Plant) -> list[Cause]:
        gpu = plant.a_gpu()
        plant.towards(plant.sink, gpu, sink)
        right = [("gpu-throttle", plant.gpu_name(gpu))]
        return [_cause("gpu-throttle", right, right, "its temperature and clock are on by default")]

    return inject


def gpu_power(share: float = 0.72) -> Inject:
    """A board whose own power stage is weak: one GPU is held at a lower power."""

    def inject(plant: Plant) -> list[Cause]:
        gpu = plant.a_gpu()
        plant.towards(plant.brake, gpu, share)
        right = [("gpu-throttle", plant.gpu_name(gpu))]
        return [_cause("gpu-throttle", right, right, "its power and clock are low, its neighbours' are not")]

    return inject


def node_cooling(fan: float = 0.42) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        node = plant.a_node()
        plant.towards(plant.fan, node, fan)
        if plant.spec.cooling == "liquid":  # a clogged cold plate manifold: all GPUs of the node
            plant.towards(plant.sink, slice(node * 8, node * 8 + 8), 2.2)
        right = [("node-cooling", plant.node_name(node))]
        return [
            _cause("node-cooling", right, right, "all GPUs of one node are hot and slow, its rack's are not")
        ]

    return inject


def air_cooling(rise_c: float = 27.0, *, site: bool = False) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        if site:
            plant.towards(plant.room_c, slice(None), 22.0 + rise_c)
            every = [("air-cooling", f"rack-{rack:02d}") for rack in range(plant.racks)]
            right = [
                ("air-cooling", "water-0"),
                ("air-cooling", "crah-00"),
                ("coolant-supply", "water-0"),
                *every,
            ]
            return [_cause("air-cooling", right, right, "GPUs of all racks are hot together")]
        rack = int(plant.rng.integers(0, plant.run_nodes // 4))
        plant.towards(plant.room_c, rack, 22.0 + rise_c)
        right = [("air-cooling", f"rack-{rack:02d}")]
        return [_cause("air-cooling", right, right, "all GPUs of one rack are hot and slow")]

    return inject


def coolant_flow(flow: float = 0.24) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        loop = int(plant.rng.integers(0, plant.loop_of[plant.run_nodes - 1] + 1))
        plant.towards(plant.flow, loop, flow)
        name = f"cdu-{loop:02d}"
        either = [("coolant-flow", name), ("coolant-supply", name)]
        why = "by default the GPUs of one loop are hot, which does not tell flow from temperature"
        return [_cause("coolant-flow", [("coolant-flow", name)], either, why)]

    return inject


def coolant_supply(rise_c: float = 27.0, *, circuit: bool = False) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        loop = int(plant.rng.integers(0, plant.loop_of[plant.run_nodes - 1] + 1))
        where: int | slice = slice(None) if circuit else loop
        plant.towards(plant.supply_c, where, 34.0 + rise_c)
        name = "water-0" if circuit else f"cdu-{loop:02d}"
        full = [("coolant-supply", name)]
        either = [*full, ("coolant-flow", name), ("air-cooling", name)]
        return [_cause("coolant-supply", full, either, "by default only the GPUs show it")]

    return inject


def power_brake(share: float = 0.62) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        rack = int(plant.rng.integers(0, plant.run_nodes // 4))
        gpus = np.flatnonzero(plant.rack_of[plant.node_of] == rack)
        plant.towards(plant.brake, gpus, share)
        plant.towards(plant.shelf_health, rack, 3.0)
        right = [("power-brake", f"shelf-{rack:02d}")]
        default = [*right, ("power-brake", f"rack-{rack:02d}"), ("power-cap", f"rack-{rack:02d}")]
        return [
            _cause("power-brake", right, default, "power, clock and heat of one rack's GPUs fall together")
        ]

    return inject


def power_cap(watts: float = 430.0, *, whole: bool = True) -> Inject:
    """A limit that was lowered on purpose, on all GPUs or on those of some racks."""

    def inject(plant: Plant) -> list[Cause]:
        racks = np.arange(plant.racks) if whole else np.array([0])
        gpus = np.flatnonzero(np.isin(plant.rack_of[plant.node_of], racks))
        plant.towards(plant.limit_w, gpus, watts)
        right = [("power-cap", "*")] if whole else [("power-cap", "rack-00"), ("power-cap", "shelf-00")]
        default = right if whole else [*right, ("power-brake", "shelf-00"), ("power-brake", "rack-00")]
        why = "power and temperature of many GPUs fall together; the limit itself is off by default"
        return [_cause("power-cap", right, default, why)]

    return inject


def node_power(share: float = 0.55) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        node = plant.a_node()
        plant.towards(plant.brake, slice(node * 8, node * 8 + 8), share)
        plant.towards(plant.supplies, node, 4.0)
        name = plant.node_name(node)
        default = [("node-power", name), ("power-brake", name), ("power-cap", name), ("slow-node", name)]
        why = "by default the node's GPUs draw less and are slow, but its supplies are not seen"
        return [_cause("node-power", [("node-power", name)], default, why)]

    return inject


# -- fabric ----------------------------------------------------------------------------------------------


def link_errors(rate: float = 0.45, errors: float = 380.0) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        node, port = plant.a_node(), int(plant.rng.integers(0, 8))
        rise = plant.profile()
        plant.port_rate[:, node, port] += rise * (rate - 1)
        plant.symbol_errors[:, node, port] += rise * errors
        plant.port_recoveries[:, node, port] += rise * 0.01
        right = [("link-errors", f"{plant.node_name(node)}/mlx5_{port}")]
        return [_cause("link-errors", right, right, "the port's own counters are on by default")]

    return inject


def switch_errors(rate: float = 0.5, *, spine: bool = False) -> Inject:
    """An uplink of a leaf, or a spine, with errors: seen only by the switches' exporter."""

    def inject(plant: Plant) -> list[Cause]:
        rise = plant.profile()
        leaf = int(plant.rng.integers(0, plant.leaf_of[plant.run_nodes - 1] + 1))
        nodes = np.arange(plant.nodes) if spine else np.flatnonzero(plant.leaf_of == leaf)
        plant.port_rate[:, nodes] += rise[:, None, None] * (rate - 1)
        if spine:
            plant.spine_errors[:, 1] += rise * 250
        else:
            plant.leaf_errors[:, leaf] += rise * 250
        name = "spine-01" if spine else f"leaf-{leaf:02d}"
        return [_cause("link-errors", [("link-errors", name)], [], "only the switch's own counters show it")]

    return inject


def leaf_congestion(rate: float = 0.5, *, spine: bool = False) -> Inject:
    """Another job fills the uplinks: ports beneath may not send."""

    def inject(plant: Plant) -> list[Cause]:
        rise = plant.profile()
        leaf = int(plant.rng.integers(0, plant.leaf_of[plant.run_nodes - 1] + 1))
        nodes = np.arange(plant.nodes) if spine else np.flatnonzero(plant.leaf_of == leaf)
        plant.port_rate[:, nodes] += rise[:, None, None] * (rate - 1)
        plant.port_wait[:, nodes] += rise[:, None, None] * 0.35
        plant.ecn[:, nodes] += rise[:, None, None] * 900
        if spine:
            plant.spine_wait[:, 0] += rise * 0.5
            plant.leaf_wait += rise[:, None] * 0.25
            right = [("leaf-congestion", "spine-00")]
            every = [("leaf-congestion", name) for name in ("spine-00", "spine-01")]
            return [
                _cause("leaf-congestion", right, every, "by default all ports wait alike, of both spines")
            ]
        plant.leaf_wait[:, leaf] += rise * 0.5
        right = [("leaf-congestion", f"leaf-{leaf:02d}")]
        return [_cause("leaf-congestion", right, right, "ports of one leaf wait, others do not")]

    return inject


def rail_congestion(rate: float = 0.45) -> Inject:
    """The same where every port of a node has a leaf of its own: one port of all nodes may not send."""

    def inject(plant: Plant) -> list[Cause]:
        rise = plant.profile()
        leaf = int(plant.rng.integers(0, plant.leaves))
        plant.port_rate[:, :, leaf] += rise[:, None] * (rate - 1)
        plant.port_wait[:, :, leaf] += rise[:, None] * 0.35
        plant.leaf_wait[:, leaf] += rise * 0.5
        right = [("leaf-congestion", f"leaf-{leaf:02d}")]
        return [_cause("leaf-congestion", right, right, "one rail's ports wait, others do not")]

    return inject


def port_downgrade() -> Inject:
    """A cable that trained at half its rate after it was touched: no errors, a lower rate."""

    def inject(plant: Plant) -> list[Cause]:
        node, port = plant.a_node(), int(plant.rng.integers(0, 8))
        rise = plant.profile()
        plant.port_rate[:, node, port] -= rise * 0.5
        plant.port_trained[:, node, port] -= rise * 0.5
        right = [("link-errors", f"{plant.node_name(node)}/mlx5_{port}")]
        return [_cause("link-errors", right, right, "the rate that a port was trained to is on by default")]

    return inject


def nvlink(rate: float = 0.4, *, errors: bool = True) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        gpu = plant.a_gpu()
        rise = plant.profile()
        plant.nvlink[:, gpu] += rise * (rate - 1)
        right = [("nvlink", plant.gpu_name(gpu)), ("nvlink", plant.node_name(gpu // 8))]
        if errors:
            plant.nvlink_crc[:, gpu] += rise * 40
            plant.nvlink_replay[:, gpu] += rise * 25
            return [_cause("nvlink", right, [], "its error counters are off by default")]
        plant.xids.append((plant.onset_s + 5, gpu, 74))
        also = [*right, ("gpu-fault", plant.gpu_name(gpu))]
        return [_cause("nvlink", also, also, "XID 74 is NVLink's own, and the XID is on by default")]

    return inject


# -- GPUs and buses --------------------------------------------------------------------------------------


def pcie(*, width: float = 16.0, gen: float = 5.0) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        gpu = plant.a_gpu()
        rise = plant.profile() > 0.5
        plant.pcie_width[rise, gpu] = width
        plant.pcie_gen[rise, gpu] = gen
        plant.pcie_replays[rise, gpu] += 0.2
        amd = plant.spec.chip == "mi300x"
        right = [("pcie-width", plant.gpu_name(gpu))]
        why = (
            "AMD's exporter shows the speed by default" if amd else "width and generation are off by default"
        )
        return [_cause("pcie-width", right, right if amd and gen < 5 else [], why)]

    return inject


def memory_errors(rate: float = 30.0, slow: float = 1.12) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        gpu = plant.a_gpu()
        rise = plant.profile()
        plant.ecc_sbe[:, gpu] += rise * rate
        since_s = np.maximum(0, plant.t - plant.onset_s)
        plant.remapped[:, gpu] = np.floor(rise * (1 + since_s / 1_500))
        member = gpu if plant.spec.member_per == "gpu" else gpu // 8
        plant.work[:, member] *= 1 + rise * (slow - 1)
        right = [("memory-errors", plant.gpu_name(gpu))]
        return [_cause("memory-errors", right, right, "ECC counts are off by default, remapped rows are on")]

    return inject


def gpu_fault(code: int = 62, slow: float = 1.25) -> Inject:
    """A GPU that goes on, slower, after an XID: its microcontroller halted (62), its GSP timed out (119)."""

    def inject(plant: Plant) -> list[Cause]:
        gpu = plant.a_gpu()
        rise = plant.profile()
        plant.xids.append((plant.onset_s + 3, gpu, code))
        member = gpu if plant.spec.member_per == "gpu" else gpu // 8
        plant.work[:, member] *= 1 + rise * (slow - 1)
        right = [("gpu-fault", plant.gpu_name(gpu))]
        return [_cause("gpu-fault", right, right, "the last XID is on by default")]

    return inject


# -- hosts -----------------------------------------------------------------------------------------------


def cpu_contention(slow: float = 3.5, *, nodes: int = 1) -> Inject:
    """A noisy neighbour, or a cron job on a whole rack: launches wait for a CPU."""

    def inject(plant: Plant) -> list[Cause]:
        node = plant.a_node()
        where = np.array([node])
        right = [("cpu-contention", plant.node_name(node))]
        if nodes == 4:
            rack = int(plant.rng.integers(0, plant.run_nodes // 4))
            where = np.flatnonzero(plant.rack_of == rack)
            right = [("cpu-contention", f"rack-{rack:02d}")]
        elif nodes > 4:
            where = np.arange(plant.run_nodes)
            right = [("cpu-contention", RUN)]
        plant.towards(plant.host_slow, where, slow)
        plant.towards(plant.cpu_wait, where, 0.45)
        plant.towards(plant.load, where, 260.0)
        return [_cause("cpu-contention", right, right, "pressure and load are on by default")]

    return inject


def memory_pressure(slow: float = 3.8) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        node = plant.a_node()
        plant.towards(plant.host_slow, node, slow)
        plant.towards(plant.mem_wait, node, 0.35)
        plant.towards(plant.io_wait, node, 0.12)
        plant.towards(plant.mem_free, node, 0.012)
        plant.towards(plant.swap, node, 2_500.0)
        right = [("memory-pressure", plant.node_name(node))]
        return [_cause("memory-pressure", right, right, "pressure, swap and free memory are on by default")]

    return inject


def local_disk(wait_s: float = 1.1, *, full: bool = False) -> Inject:
    """A node reads its shards from a local disk that is failing, or full and busy making room."""

    def inject(plant: Plant) -> list[Cause]:
        node = plant.a_node()
        plant.towards(plant.disk_busy, node, 0.99)
        plant.towards(plant.disk_await_ms, node, 45.0)
        plant.towards(plant.io_wait, node, 0.4)
        if full:
            plant.towards(plant.disk_free, node, 0.004)
        members = np.flatnonzero(plant.member_node == node)
        plant.towards(plant.data_s, members, wait_s)
        right = [("local-disk", plant.node_name(node))]
        return [_cause("local-disk", right, right, "the disk's time and space are on by default")]

    return inject


def slow_node(slow: float = 1.2) -> Inject:
    """One node is late and nothing shows why: a BIOS setting, a wrong NUMA binding."""

    def inject(plant: Plant) -> list[Cause]:
        node = plant.a_node()
        members = np.flatnonzero(plant.member_node == node)
        rise = plant.profile()
        plant.work[:, members] *= 1 + rise[:, None] * (slow - 1)
        right = [("slow-node", name) for name in plant.members_of(node)]
        return [_cause("slow-node", right, [], "only members' own times show who is late")]

    return inject


def name_service(stall_s: float = 9.0) -> Inject:
    """A directory stalls: every half minute some process waits for a lookup. blackbox_exporter shows it."""

    def inject(plant: Plant) -> list[Cause]:
        at_s = plant.onset_s
        plant.dns_s += plant.profile() * stall_s * 0.6
        while at_s < plant.t[-1]:
            plant.stalls.append((at_s, stall_s * float(plant.rng.uniform(0.8, 1.2))))
            at_s += float(plant.rng.uniform(20, 40))
        right = [("name-service", "*")]
        return [_cause("name-service", right, [], "only a probe of the name server shows lookups")]

    return inject


# -- storage ---------------------------------------------------------------------------------------------


def storage_slow(read_ms: float = 60.0, wait_s: float = 1.3, *, retransmit: bool = True) -> Inject:
    """The filer itself is slow: every request takes long, with no more of them than before."""

    def inject(plant: Plant) -> list[Cause]:
        rise = plant.profile()
        plant.read_ms += rise * (read_ms - 1.6)
        plant.write_ms += rise * 1.6 * read_ms
        plant.retransmissions += rise * (1.5 if retransmit else 0)
        plant.towards(plant.io_wait, slice(0, plant.run_nodes), 0.3)
        plant.towards(plant.data_s, slice(None), wait_s)
        right = [("storage-slow", plant.mount_name()), ("storage-crowded", plant.mount_name())]
        default = right if retransmit else []
        why = "by default only calls sent again and pressure of I/O on all nodes show it"
        return [_cause("storage-slow", right, default, why)]

    return inject


def storage_crowded(wait_s: float = 1.2) -> Inject:
    """Another job's nodes flood the filer; their own requests are seen on their hosts."""

    def inject(plant: Plant) -> list[Cause]:
        rise = plant.profile()
        bursts = (np.sin(2 * np.pi * plant.t / 240.0) > -0.3).astype(float)
        plant.read_ms += rise * bursts * 40
        plant.write_ms += rise * bursts * 90
        plant.filer_others += rise * bursts * 0.8
        plant.towards(plant.io_wait, slice(0, plant.run_nodes), 0.2)
        plant.data_s += (rise * bursts)[:, None] * wait_s
        right = [("storage-crowded", plant.mount_name()), ("storage-slow", plant.mount_name())]
        return [_cause("storage-crowded", right, [], "mountstats is off by default")]

    return inject


# -- the script ------------------------------------------------------------------------------------------


def checkpoint_cadence(every: int = 12) -> Inject:
    """The script saves ten times as often as before."""

    def inject(plant: Plant) -> list[Cause]:
        begun = plant.profile() > 0
        plant.save_every[begun] = every
        right = [("checkpoint-cadence", RUN)]
        return [_cause("checkpoint-cadence", right, right, "the record has every checkpoint", step=right)]

    return inject


def garbage_collection(pause_s: float = 1.6) -> Inject:
    def inject(plant: Plant) -> list[Cause]:
        plant.gc_s += plant.profile() * pause_s
        right = [("garbage-collection", RUN)]
        return [_cause("garbage-collection", right, [], "only members' own counters show it")]

    return inject


def sequence_length(spread: float = 0.11) -> Inject:
    """Sequences of very different lengths: in each step another member has the longest."""

    def inject(plant: Plant) -> list[Cause]:
        plant.work_spread += plant.profile() * spread
        right = [("sequence-length", RUN)]
        return [_cause("sequence-length", right, [], "only members' own times show it")]

    return inject


def data_loader(wait_s: float = 1.4) -> Inject:
    """Too few loader workers for a new dataset: all members wait, storage is quick and CPUs are idle."""

    def inject(plant: Plant) -> list[Cause]:
        plant.towards(plant.data_s, slice(None), wait_s)
        right = [("data-loader", RUN)]
        return [_cause("data-loader", right, [], "only members' own times show that they wait for data")]

    return inject


def pipeline_stage(slow: float = 1.3, stages: int = 4) -> Inject:
    """The last stage has the output layer: a quarter of the members, on every node, has more to do."""

    def inject(plant: Plant) -> list[Cause]:
        members = np.arange(plant.members)
        last = members % stages == stages - 1
        rise = plant.profile()
        plant.work[:, last] *= 1 + rise[:, None] * (slow - 1)
        right = [("pipeline-stage", RUN)]
        return [_cause("pipeline-stage", right, [], "only members' own times show it")]

    return inject


def rollout(slow: float = 1.15, *, by: str = "driver") -> Inject:
    """Everything is slower since a change: a driver, a kernel, or an image that the record tells of."""

    def inject(plant: Plant) -> list[Cause]:
        rise = plant.profile()
        plant.all_slower *= 1 + rise * (slow - 1)
        plant.exchange_slower *= 1 + rise * (slow - 1)
        right = [("rollout", RUN)]
        plant.planned_pauses.append((plant.onset_s - 240, 230.0, "maintenance window"))
        if by == "driver":
            plant.driver = ["570.124.06", "580.65.06"]
        elif by == "kernel":
            plant.kernel = ["5.15.0-130-generic", "6.8.0-52-generic"]
        else:
            plant.actions.append(
                (plant.onset_s - 30, "rollout", "image trainer:25.01 -> 25.03; NCCL 2.23.4 -> 2.26.2")
            )
        step = right if by == "image" else []
        return [_cause("rollout", right, right, f"the {by} is seen to change when it began", step=step)]

    return inject


def fragmentation(slow: float = 0.22) -> Inject:
    """The allocator retries more and more: all members slower and slower, memory full."""

    def inject(plant: Plant) -> list[Cause]:
        hours = np.maximum(0, plant.t - plant.onset_s) / 5_400
        plant.fragmented += (
            np.minimum(1.0, hours) * slow if plant.onset != "sudden" else plant.profile() * slow
        )
        right = [("fragmentation", RUN)]
        return [_cause("fragmentation", right, [], "nothing on by default tells it from longer sequences")]

    return inject


def hang(*, xid: int = 0, lost: bool = False, data: bool = False) -> Inject:
    """No step any more: a GPU fell off the bus, or one member never came to the collective."""

    def inject(plant: Plant) -> list[Cause]:
        gpu = plant.a_gpu()
        member = gpu if plant.spec.member_per == "gpu" else gpu // 8
        plant.stop_s = plant.onset_s
        plant.stop_first = (member,)
        label = plant.member_label(member)
        right = [("hang", RUN), ("hang", f"{RUN}/{label}"), ("hang", plant.node_name(gpu // 8))]
        hang_only = list(right)
        if xid:
            plant.xids.append((plant.onset_s - 1, gpu, xid))
            right.append(("gpu-fault", plant.gpu_name(gpu)))
        if lost:
            plant.lost_gpu_s[gpu] = plant.onset_s
        if data:
            node = gpu // 8
            plant.towards(plant.io_wait, node, 0.9)
        why = "the step time alone shows only that no step is made"
        return [
            _cause(
                "hang", right, right, why, step=hang_only, hang=True, first=(label, plant.node_name(gpu // 8))
            )
        ]

    return inject


def pool_path(slow: float = 6.0, wait_s: float = 1.2) -> Inject:
    """One way between two engines is slow, and rollouts arrive late for everybody."""

    def inject(plant: Plant) -> list[Cause]:
        pair = int(plant.rng.integers(0, 4))
        rise = plant.profile()
        plant.pool_s[:, pair] *= 1 + rise * (slow - 1)
        plant.towards(plant.data_s, slice(None), wait_s)
        source, target = plant.pool_nodes[pair // 2], plant.pool_nodes[2 + pair % 2]
        ends = [plant.node_name(source), plant.node_name(target)]
        right = [("pool-path", ">".join(ends)), *(("pool-path", end) for end in ends)]
        right += [("pool-path", f"{end}/mlx5_{port}") for end in ends for port in range(8)]
        return [_cause("pool-path", right, [], "only the engines' own transfers show it")]

    return inject


def decoys() -> Inject:
    """What is wrong elsewhere or was wrong before: no cause of anything."""

    def inject(plant: Plant) -> list[Cause]:
        rng = plant.rng
        plant.symbol_errors[:, plant.a_node(), int(rng.integers(8))] += 0.4
        if plant.run_gpus < plant.gpus:
            plant.sink[:, int(rng.integers(plant.run_gpus, plant.gpus))] = 3.0
            plant.cpu_wait[:, plant.run_nodes :] += 0.3
        return []

    return inject


def both(*injects: Inject) -> Inject:
    return lambda plant: [cause for inject in injects for cause in inject(plant)]


def nothing() -> Inject:
    return lambda plant: []
