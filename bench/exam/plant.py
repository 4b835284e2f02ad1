"""The physics of a cluster with one training run on it, from first principles.

A plant is a set of forces over time: water and air temperatures, fans, power limits, links, a filer, hosts.
Faults and healthy changes alter forces. `solve` lets the GPUs settle (heat, power, clock) and trains: a step
takes as long as its slowest member computes, plus an exchange that is as slow as its slowest link.

GPU: power is static + dynamic x clock^2.4; the driver holds the average below the limit by the clock; heat
flows through a resistance to air or coolant with one time constant; above 87 C the clock is lowered until it
stays there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.exam.plan import RAMP_S, RUN, Onset, Spec

Array = NDArray[np.float64]
TICK_S = 10.0
EXPONENT = 2.4
HUNG_S = 1e9
FILER, FILER_ADDRESS = "fs-0000", "10.9.0.5"
LEAD_S: dict[Onset, float] = {"sudden": 4_500, "ramp": 4_500, "hours": 4_500, "start": 0.0, "before": 300.0}


class Chip:
    """Figures of a GPU. H200 SXM: 700 W, 1,980 MHz; MI300X: 750 W, 2,100 MHz (vendors' data sheets)."""

    def __init__(self, name: str) -> None:
        amd = name == "mi300x"
        self.limit_w, self.clock_mhz = (750.0, 2_100.0) if amd else (700.0, 1_980.0)
        self.static_w, self.dynamic_w = (140.0, 780.0) if amd else (95.0, 745.0)
        self.idle_w, self.wait_w, self.hot_c = (140.0, 330.0, 100.0) if amd else (81.0, 300.0, 87.0)
        self.memory_mib = 196_592.0 if amd else 143_771.0
        self.model = "AMD Instinct MI300X" if amd else "NVIDIA H200"


class Plant:
    """All forces are healthy until a fault changes them. Shapes: time by rack, node, GPU, port or member."""

    def __init__(self, spec: Spec, rng: np.random.Generator, *, onset: Onset, tail_s: float) -> None:
        self.spec, self.rng, self.chip = spec, rng, Chip(spec.chip)
        self.onset, self.onset_s = onset, LEAD_S[onset]
        self.t = np.arange(0.0, self.onset_s + tail_s + TICK_S, TICK_S)
        ticks, nodes, gpus = len(self.t), spec.nodes, spec.nodes * 8
        self.nodes, self.gpus = nodes, gpus
        self.run_nodes = spec.run_nodes or nodes
        self.run_gpus = self.run_nodes * 8
        self.racks = -(-nodes // 4)
        self.loops = -(-self.racks // 2)
        self.leaf_of = np.arange(nodes) // max(4, nodes // 4)
        self.leaves = 8 if spec.rail else int(self.leaf_of[-1]) + 1
        self.node_of = np.arange(gpus) // 8
        self.rack_of = np.arange(nodes) // 4
        self.loop_of = self.rack_of // 2
        self.members = self.run_gpus if spec.member_per == "gpu" else self.run_nodes
        self.member_node = np.arange(self.members) // (8 if spec.member_per == "gpu" else 1)
        # Heat and power.
        drift = 0.4 * np.sin(2 * np.pi * (self.t / 86_400 + rng.random()))[:, None]
        self.room_c = 22.0 + rng.normal(0, 0.7, self.racks) + drift
        self.supply_c = 34.0 + rng.normal(0, 0.3, self.loops) + 0.3 * drift
        self.flow = np.ones((ticks, self.loops))
        self.fan = np.ones((ticks, nodes))
        self.sink = np.ones((ticks, gpus))
        self.limit_w = np.full((ticks, gpus), self.chip.limit_w)
        self.brake = np.ones((ticks, gpus))
        self.supplies = np.full((ticks, nodes), 6.0)
        self.shelf_health = np.ones((ticks, self.racks))
        self.lottery = rng.normal(1.0, 0.05, gpus).clip(0.88, 1.12)
        self.fit = rng.normal(1.0, 0.06, gpus)
        self.intensity = np.ones((ticks, gpus))
        self.intensity[:, self.run_gpus :] = rng.uniform(0.0, 0.8)
        # GPUs' buses and memory.
        self.pcie_width, self.pcie_gen = np.full((ticks, gpus), 16.0), np.full((ticks, gpus), 5.0)
        self.nvlink = np.ones((ticks, gpus))
        self.nvlink_crc, self.nvlink_replay = np.zeros((ticks, gpus)), np.zeros((ticks, gpus))
        self.ecc_sbe, self.remapped = np.zeros((ticks, gpus)), np.zeros((ticks, gpus))
        self.pcie_replays = np.zeros((ticks, gpus))
        self.xids: list[tuple[float, int, int]] = []
        self.lost_gpu_s: dict[int, float] = {}
        # Fabric.
        self.port_rate = np.ones((ticks, nodes, 8))
        self.symbol_errors = np.zeros((ticks, nodes, 8))
        self.port_recoveries = np.zeros((ticks, nodes, 8))
        self.port_wait = np.full((ticks, nodes, 8), 0.01)
        self.ecn = np.zeros((ticks, nodes, 8))
        self.port_trained = np.ones((ticks, nodes, 8))
        self.leaf_wait, self.leaf_errors = np.full((ticks, self.leaves), 0.01), np.zeros((ticks, self.leaves))
        self.spine_wait, self.spine_errors = np.full((ticks, 2), 0.01), np.zeros((ticks, 2))
        # Hosts.
        self.cpu_wait, self.host_slow = np.full((ticks, nodes), 0.01), np.ones((ticks, nodes))
        self.io_wait, self.mem_wait = np.full((ticks, nodes), 0.004), np.zeros((ticks, nodes))
        self.load = np.full((ticks, nodes), 24.0)
        self.swap = np.zeros((ticks, nodes))
        self.mem_free = np.full((ticks, nodes), 0.72)
        self.disk_busy, self.disk_await_ms = np.full((ticks, nodes), 0.03), np.full((ticks, nodes), 0.25)
        self.disk_free = rng.uniform(0.35, 0.75, nodes) + np.zeros((ticks, nodes))
        self.clock_offset_s = rng.normal(0, 2e-5, nodes) + np.zeros((ticks, nodes))
        # The filer and the script.
        self.read_ms, self.write_ms = np.full(ticks, 1.6), np.full(ticks, 2.8)
        self.filer_others, self.retransmissions = np.full(ticks, 0.15), np.zeros(ticks)
        self.data_s = np.full((ticks, self.members), 0.012)
        self.work = np.ones((ticks, self.members))
        self.work_spread, self.gc_s = np.zeros(ticks), np.full(ticks, 0.001)
        self.stalls: list[tuple[float, float]] = []
        self.all_slower = np.ones(ticks)
        self.exchange_slower = np.ones(ticks)
        self.fragmented = np.zeros(ticks)
        self.save_every = np.full(ticks, float(spec.save_every))
        self.save_s = np.full(ticks, spec.save_s)
        self.driver = ["570.124.06"] * 2
        self.kernel = ["5.15.0-130-generic"] * 2
        self.actions: list[tuple[float, str, str]] = []
        self.stop_s: float | None = None
        self.stop_first: tuple[int, ...] = ()
        self.gone: dict[int, tuple[float, float]] = {}
        self.spare: dict[int, float] = {}
        self.maintenance: list[tuple[str, float, float, str]] = []
        self.step_base = 0
        self.planned_pauses: list[tuple[float, float, str]] = []
        self.replaced: tuple[int, int, float] | None = None
        self.outages: list[tuple[str, float, float]] = []
        self.rolled_restarts_s: float | None = None
        self.old_xid_share = 1 / 60
        self.dns_s = np.full(ticks, 0.002)
        self.pool_nodes = tuple(range(nodes - 4, nodes)) if spec.pools else ()
        self.pool_s = np.full((ticks, 4), 0.04)

    # -- for those who inject ----------------------------------------------------------------------------

    def profile(self) -> Array:
        """How far the trouble has come at each tick: 0 before it, 1 when it is whole."""
        since = self.t - self.onset_s
        ramp_s = RAMP_S[self.onset]
        if ramp_s:
            return np.asarray(np.clip(since / ramp_s, 0.0, 1.0))
        return np.asarray((since >= 0).astype(np.float64))

    def towards(self, array: Array, where: Any, value: float) -> None:
        """Move some columns from what they are to a value, as the profile goes."""
        rise = self.profile().reshape(-1, *(1,) * (array[:, where].ndim - 1))
        array[:, where] += rise * (value - array[:, where])

    def mount_name(self) -> str:
        """As discovery calls it, by its address; or as people do, by the server of its export."""
        return FILER_ADDRESS if self.spec.names == "plain" else FILER

    def node_name(self, node: int) -> str:
        return f"n{node:03d}"

    def gpu_name(self, gpu: int) -> str:
        return f"{self.node_name(gpu // 8)}.{gpu % 8}"

    def member_label(self, member: int) -> str:
        return self.gpu_name(member) if self.spec.member_per == "gpu" else self.node_name(member)

    def members_of(self, node: int) -> list[str]:
        """The names under which an answer may speak of a node's members."""
        labels = [self.member_label(int(m)) for m in np.flatnonzero(self.member_node == node)]
        return [self.node_name(node), *(f"{RUN}/{label}" for label in labels)]

    def a_node(self) -> int:
        return int(self.rng.integers(1, self.run_nodes))

    def a_gpu(self) -> int:
        return int(self.rng.integers(8, self.run_gpus))

    # -- physics -----------------------------------------------------------------------------------------

    def solve(self) -> None:
        self._compute_parts()
        self._settle()
        self._train()

    def _compute_parts(self) -> None:
        """What of a healthy step depends on the clock, the host and PCIe, and the exchange's two fabrics."""
        step = self.spec.step_s
        self.compute_s, self.exchange_s = 0.80 * step, 0.18 * step
        self.by_clock, self.by_host, self.by_pcie = 0.72, 0.10, 0.05

    def _settle(self) -> None:
        chip, air = self.chip, self.spec.cooling == "air"
        ticks = len(self.t)
        self.temp, self.power = np.zeros((ticks, self.gpus)), np.zeros((ticks, self.gpus))
        self.clock, self.busy = np.zeros((ticks, self.gpus)), np.zeros((ticks, self.gpus))
        self.hot, self.capped = np.zeros((ticks, self.gpus)), np.zeros((ticks, self.gpus))
        self.active_w = np.zeros((ticks, self.gpus))
        self.member_s = np.zeros((ticks, self.members))
        rack_of_gpu, loop_of_gpu = self.rack_of[self.node_of], self.loop_of[self.node_of]
        temp = np.full(self.gpus, 62.0)
        thermal, busy = np.ones(self.gpus), np.full(self.gpus, 0.8)
        reference = self._reference_clock()
        self.wire_s = self._exchange()
        for tick in range(ticks):
            static = chip.static_w + 0.35 * (temp - 60.0)
            room = np.maximum(self.limit_w[tick] - static, 20.0) / (chip.dynamic_w * self.lottery)
            by_power = np.minimum(1.0, room ** (1 / EXPONENT))
            share = np.minimum(np.minimum(by_power, thermal), self.brake[tick])
            active = static + chip.dynamic_w * self.lottery * share**EXPONENT
            waiting = np.minimum(chip.wait_w, active)
            load = self.intensity[tick]
            power = load * (busy * active + (1 - busy) * waiting) + (1 - load) * chip.idle_w
            if air:
                around = self.room_c[tick][rack_of_gpu] + 13.0 / self.fan[tick][self.node_of] ** 0.9
                resistance = 0.049 * self.fit / self.fan[tick][self.node_of] ** 0.7
            else:
                flow = np.maximum(self.flow[tick][loop_of_gpu], 0.05)
                around = self.supply_c[tick][loop_of_gpu] + 7.0 / flow * power / 700.0
                around = around + 9.0 * (1 / self.fan[tick][self.node_of] - 1.0)
                resistance = 0.042 * self.fit / flow**0.5
            target = around + resistance * self.sink[tick] * power
            temp = target if tick == 0 else temp + (target - temp) * (1 - np.exp(-TICK_S / 45.0))
            thermal = np.clip(thermal + np.clip(0.004 * (chip.hot_c - temp), -0.06, 0.012), 0.25, 1.0)
            compute = self._member_compute(tick, share, reference)
            step = float(np.max(compute + self.data_s[tick])) + self.wire_s[tick]
            per_gpu = compute if self.spec.member_per == "gpu" else np.repeat(compute, 8)
            busy = np.full(self.gpus, 0.75)
            busy[: self.run_gpus] = np.clip(per_gpu / step, 0.02, 1.0)
            if self.stop_s is not None and self.t[tick] > self.stop_s:
                busy[: self.run_gpus] = 0.0
            self.temp[tick], self.power[tick], self.busy[tick] = temp, power, busy
            self.clock[tick], self.active_w[tick] = share * chip.clock_mhz, active
            self.hot[tick] = (thermal < by_power - 0.004) & (thermal <= self.brake[tick])
            self.capped[tick] = (by_power < 0.985) & (by_power <= thermal)
            self.member_s[tick] = compute

    def _reference_clock(self) -> float:
        room = (self.chip.limit_w - self.chip.static_w) / self.chip.dynamic_w
        return float(min(1.0, room ** (1 / EXPONENT)))

    def _member_compute(self, tick: int, share: Array, reference: float) -> Array:
        lanes = self.pcie_width[tick] / 16 * 2.0 ** (self.pcie_gen[tick] - 5)
        factor = (
            self.by_clock * reference / share
            + self.by_pcie / lanes
            + self.by_host * self.host_slow[tick][self.node_of]
            + (1 - self.by_clock - self.by_pcie - self.by_host)
        )[: self.run_gpus]
        if self.spec.member_per == "node":
            factor = factor.reshape(-1, 8).max(1)
        mean = self.compute_s * factor * self.work[tick] * self.all_slower[tick]
        return np.asarray(mean + self.fragmented[tick] * self.compute_s)

    def _exchange(self) -> Array:
        """Two thirds cross the fabric, over the slowest port; a third goes over NVLink."""
        run = slice(0, self.run_nodes)
        slowest = self.port_rate[:, run].reshape(len(self.t), -1).min(1)
        inside = self.nvlink[:, : self.run_gpus].min(1)
        return np.asarray(self.exchange_s * self.exchange_slower * (0.66 / slowest + 0.34 / inside))

    def _train(self) -> None:
        """Step after step: what each member needed, and when the step was done."""
        rng, horizon_s = self.rng, self.t[-1]
        begun, ended, took, evals, saves = [], [], [], [], []
        parts: list[tuple[Array, Array, float, float, Array]] = []
        now_s = float(rng.uniform(0, self.spec.step_s))
        step, pause_s = 0, 0.0
        while now_s < horizon_s:
            tick = min(int(now_s / TICK_S), len(self.t) - 1)
            compute = self.member_s[tick] * (1 + 0.006 * np.abs(rng.normal(0, 1, self.members)))
            if self.work_spread[tick]:
                compute = compute * np.exp(rng.normal(0, self.work_spread[tick], self.members))
            gc = np.zeros(self.members)
            if (
                self.gc_s[tick] > 0.01
            ):  # a collection every eight steps or so, in each process at another time
                gc = (
                    (rng.random(self.members) < 1 / 8) * self.gc_s[tick] * rng.uniform(0.7, 1.3, self.members)
                )
                compute = compute + gc
            data = self.data_s[tick] * rng.uniform(0.6, 1.6, self.members)
            stalled = [s for at, s in self.stalls if now_s <= at < now_s + self.spec.step_s * 1.5]
            if stalled:
                data[int(rng.integers(self.members))] += stalled[0]
            wire = self.wire_s[tick] * (1 + 0.03 * abs(rng.normal()))
            save = 0.0
            every = int(self.save_every[tick])
            if every and step % every == every - 1:
                save = self.save_s[tick] * rng.uniform(0.9, 1.15)
            arrive = compute + data
            length = float(arrive.max()) + wire + save
            if self.spec.eval_in_step:
                length += pause_s
            else:
                now_s += pause_s
            if self.stop_s is not None and now_s + length > self.stop_s:
                break
            begun.append(now_s)
            now_s += length
            ended.append(now_s)
            took.append(length)
            parts.append((compute, data, wire, save, gc))
            if save:
                saves.append((step, now_s, save))
            step += 1
            pause_s = self._planned_s(begun[-1], now_s)
            if self.spec.eval_every and step % self.spec.eval_every == 0:
                length = self.spec.eval_s * rng.uniform(0.9, 1.1)
                evals.append((now_s, length))
                pause_s += length
        self.step_begun, self.step_ended, self.step_took = map(np.array, (begun, ended, took))
        self.step_compute = np.array([p[0] for p in parts])
        self.step_data = np.array([p[1] for p in parts])
        self.step_wire = np.array([p[2] for p in parts])
        self.step_save = np.array([p[3] for p in parts])
        self.step_gc = np.array([p[4] for p in parts])
        self.evals, self.saves = evals, saves

    def _planned_s(self, begin_s: float, end_s: float) -> float:
        return sum(length for at_s, length, _ in self.planned_pauses if begin_s <= at_s < end_s)

    def pace_s(self) -> Array:
        """How long steps take at each tick, on average; for ever once the run hangs."""
        pace = np.asarray((self.member_s + self.data_s).max(1) + self.wire_s)
        if self.stop_s is not None:
            pace = np.where(self.t > self.stop_s, HUNG_S, pace)
        return pace

    # -- truth -------------------------------------------------------------------------------------------

    def step_mean_s(self, begin_s: float, end_s: float) -> float:
        """Mean time of the steps of a span, without saves and evaluations in them."""
        inside = (self.step_ended > begin_s) & (self.step_ended <= end_s)
        if not inside.any():
            return float("nan")
        bare = (self.step_compute + self.step_data).max(1) + self.step_wire
        return float(bare[inside].mean())

    def step_mean_with_saves_s(self, begin_s: float, end_s: float) -> float:
        inside = (self.step_ended > begin_s) & (self.step_ended <= end_s)
        bare = (self.step_compute + self.step_data).max(1) + self.step_wire + self.step_save
        return float(bare[inside].mean()) if inside.any() else float("nan")
