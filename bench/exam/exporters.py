"""What exporters show of a plant: their names, labels and intervals, and which of it is on by default.

dcgm-exporter: etc/default-counters.csv says what is on. node_exporter: README, "Enabled by default". The rest
(mountstats, pcidevice, ethtool, infiniband_exporter, ipmi_exporter, Redfish, a CDU) is only in `full`.
"""

from collections.abc import Sequence

import numpy as np

from bench.exam import noise
from bench.exam.plan import RUN
from bench.exam.plant import TICK_S, Array, Plant
from bench.exam.scrapes import Labels, Samples, Scrape

DOMAIN = "pod1.example.net"
OLD_XIDS = (13, 31, 43, 45, 94)
"""Of jobs that crashed long ago: the gauge shows the last one for ever."""
PORT_BYTES_S = 18e9
XID_WINDOW_S = 300.0


def show(plant: Plant, begin_ns: int) -> Samples:
    samples = Samples(begin_ns, plant.t)
    horizon_s = float(plant.t[-1])
    gpu_s, node_s, run_s = plant.spec.scrape_s
    _run(plant, samples, Scrape(plant.rng, 1, run_s, horizon_s))
    gpus = Scrape(plant.rng, plant.nodes, gpu_s, horizon_s, restarts=int(plant.rng.integers(0, 2)))
    hosts = Scrape(plant.rng, plant.nodes, node_s, horizon_s, restarts=int(plant.rng.integers(0, 2)))
    for scrape in (gpus, hosts):
        _disturb(plant, scrape)
    for node, (begin_s, end_s) in plant.gone.items():
        gpus.silence(node, begin_s, end_s)
        hosts.silence(node, begin_s, end_s)
    if plant.spec.chip == "mi300x":
        _amd(plant, samples, gpus)
    else:
        _dcgm(plant, samples, gpus)
    _ports(plant, samples, hosts)
    _hosts(plant, samples, hosts)
    _nfs(plant, samples, hosts)
    _sides(plant, samples, horizon_s)
    return samples


def _disturb(plant: Plant, scrape: Scrape) -> None:
    """What was done to the monitoring itself: outages of Prometheus, a new version of the exporters."""
    for _, begin_s, end_s in plant.outages:
        for target in range(plant.nodes):
            scrape.silence(target, begin_s, end_s)
    if plant.rolled_restarts_s is not None:
        for target in range(plant.nodes):
            at_s = plant.rolled_restarts_s + 20.0 * target
            scrape.silence(target, at_s, at_s + 25.0)
            scrape.restart_at[target] = at_s


def _host(plant: Plant, node: int, *, of_gpu: bool = False) -> str:
    name = plant.node_name(node)
    if plant.spec.names == "plain" or (of_gpu and plant.spec.names == "fqdn"):
        return name
    if plant.spec.names == "fqdn":
        return f"{name}.{DOMAIN}"
    return f"10.244.{node}.17" if of_gpu else f"10.1.{node // 200}.{node % 200 + 10}"


# -- the run ---------------------------------------------------------------------------------------------


def _last_step(
    plant: Plant, times_s: Array
) -> "tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], Array]":
    """Of each scrape: the last step that was done, and how many were."""
    done = np.searchsorted(plant.step_ended, times_s, side="right")
    return np.maximum(done - 1, 0), done.astype(np.float64)


def _run(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    label: Labels = {"run": RUN, "instance": f"{_host(plant, 0)}:9464", "job": "holdfast"}
    times = scrape.times_s[:, 0]
    last, done = _last_step(plant, times)
    shown = np.where(done > 0, plant.step_took[last], np.nan)
    samples.gauge("step", "holdfast_run_step_seconds", scrape, [0], [label], shown[:, None])
    base = float(plant.rng.integers(1_000, 90_000)) if plant.onset != "before" else 0.0
    plant.step_base = int(base)
    samples.gauge("step", "holdfast_run_steps_total", scrape, [0], [label], (done + base)[:, None])
    full = {
        "holdfast_run_members": np.full(len(times), float(plant.members)),
        "holdfast_run_nodes": np.full(len(times), float(plant.run_nodes)),
        "holdfast_run_generation": np.ones(len(times)),
        "holdfast_run_loss": 2.4 - 0.05 * np.log1p(done / 500) + plant.rng.normal(0, 0.01, len(times)),
    }
    if plant.saves:
        ends = np.array([at for _, at, _ in plant.saves])
        stalls = np.array([stall for *_, stall in plant.saves])
        which = np.searchsorted(ends, times, side="right") - 1
        full["holdfast_run_checkpoint_seconds"] = np.where(which >= 0, stalls[which], np.nan)
        writes = (
            1.4 * stalls[which] + plant.write_ms[np.minimum((times / TICK_S).astype(int), len(plant.t) - 1)]
        )
        full["holdfast_run_checkpoint_write_seconds"] = np.where(which >= 0, writes, np.nan)
    for metric, values in full.items():
        samples.gauge("full", metric, scrape, [0], [label], values[:, None])
    _members(plant, samples, scrape, label)


def _members(plant: Plant, samples: Samples, scrape: Scrape, label: Labels) -> None:
    labels = [
        {**label, "member": plant.member_label(m), "node": plant.node_name(int(plant.member_node[m]))}
        for m in range(plant.members)
    ]
    of, columns, there = (
        [0] * plant.members,
        list(range(plant.members)),
        np.ones((len(scrape.times_s), plant.members), bool),
    )
    if plant.replaced:  # the old member's series end, the new one's begin
        old, new, at_s = plant.replaced
        late = scrape.times_s[:, 0] >= at_s
        moved = [m for m in columns if plant.member_node[m] == old]
        name = plant.node_name(new)
        labels += [
            {**labels[m], "member": name + labels[m]["member"][len(name) :], "node": name} for m in moved
        ]
        columns += moved
        of = [0] * len(columns)
        there = np.hstack([there, np.repeat(late[:, None], len(moved), 1)])
        there[:, moved] &= ~late[:, None]
    last, done = _last_step(plant, scrape.times_s[:, 0])
    arrive = plant.step_compute + plant.step_data
    late = arrive.max(1, keepdims=True)
    exchange = plant.step_wire[:, None] * plant.rng.uniform(0.97, 1.0, arrive.shape)
    wait = late - arrive
    if not plant.spec.told:  # inside a collective nobody can tell waiting from sending
        exchange, wait = exchange + wait, np.zeros_like(wait)
    parts = {
        "compute": plant.step_compute,
        "data": plant.step_data,
        "exchange": exchange,
        "wait": wait,
        "checkpoint": np.broadcast_to(plant.step_save[:, None], arrive.shape),
    }
    there &= (done > 0)[:, None]
    for part, values in parts.items():
        if part == "wait" and not plant.spec.told:
            continue
        shown = np.where(there, values[last][:, columns], np.nan)
        samples.gauge("full", f"holdfast_member_{part}_seconds", scrape, of, labels, shown)
        total = np.where(there, np.cumsum(values, 0)[last][:, columns], np.nan)
        samples.gauge("full", f"holdfast_member_{part}_seconds_total", scrape, of, labels, total)
    gc = np.where(there, np.cumsum(plant.step_gc + 0.002, 0)[last][:, columns], np.nan)
    samples.gauge("full", "holdfast_member_gc_seconds_total", scrape, of, labels, gc)
    count = np.where(there, done[:, None], np.nan)
    samples.gauge("full", "holdfast_member_steps_total", scrape, of, labels, count)


# -- GPUs ------------------------------------------------------------------------------------------------


def _gpu_labels(plant: Plant) -> list[Labels]:
    found = []
    for gpu in range(plant.gpus):
        node, index = divmod(gpu, 8)
        one = {
            "instance": f"{_host(plant, node, of_gpu=True)}:9400",
            "job": "dcgm-exporter",
            "hostname": plant.node_name(node),
            "gpu": str(index),
            "UUID": f"GPU-{node:08x}-{index:04x}-4000-8000-{gpu:012x}",
            "pci_bus_id": f"00000000:{0x1B + 0x10 * index:02X}:00.0",
            "device": f"nvidia{index}",
            "modelName": plant.chip.model,
            "DCGM_FI_DRIVER_VERSION": plant.driver[0],
        }
        if plant.spec.names == "address" and node < plant.run_nodes:
            one |= {"namespace": "train", "pod": f"{RUN}-worker-{node}", "container": "trainer"}
        found.append(one)
    return found


def _stick(plant: Plant, values: Array) -> Array:
    """Now and then a sensor shows one value for ever."""
    if plant.rng.random() < 0.5:
        column = int(plant.rng.integers(values.shape[1]))
        first = int(plant.rng.integers(len(values) // 2))
        values[first:, column] = values[first, column]
    return values


def _gpu_values(plant: Plant, samples: Samples, scrape: Scrape, of: Sequence[int]) -> dict[str, Array]:
    """Gauges as NVML would show them at the moments of scraping."""
    rng = plant.rng

    def at(array: Array) -> Array:
        return samples.at(scrape, of, array)

    busy, load = at(plant.busy), at(plant.intensity)
    computing = rng.random(busy.shape) < busy
    clock = np.where(computing, at(plant.clock), np.minimum(plant.chip.clock_mhz, at(plant.clock) * 1.1))
    clock = np.where(load > 0.02, clock + noise.clock_mhz(rng, clock.shape), plant.chip.clock_mhz)
    power = at(plant.power) + noise.power_w(rng, busy.shape) * load
    temp = at(plant.temp) + noise.temp_c(rng, busy.shape)
    return {
        "busy": busy,
        "load": load,
        "clock": np.clip(np.round(clock / 15) * 15, 345.0, plant.chip.clock_mhz),
        "power": np.minimum(power, at(plant.limit_w) * 1.02),
        "temp": _stick(plant, np.rint(temp)),
        "memory_temp": np.rint(temp + 6 + 4 * load),
        "util": np.where(load > 0.02, np.minimum(100, rng.integers(97, 102, busy.shape)), 0.0),
    }


def _dcgm(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    rng, labels = plant.rng, _gpu_labels(plant)
    of = plant.node_of.tolist()
    shown = _gpu_values(plant, samples, scrape, of)
    busy, load = shown["busy"], shown["load"]
    for gpu, lost_s in plant.lost_gpu_s.items():  # fallen off the bus: it has no values any more
        gone = scrape.times_s[:, of[gpu]] >= lost_s
        for values in shown.values():
            values[gone, gpu] = np.nan

    def per_step(amount: float) -> Array:
        step_s = samples.at(scrape, of, np.repeat(_step_s(plant)[:, None], plant.gpus, 1))
        return amount * plant.spec.step_s / step_s * load * rng.normal(1, 0.02, busy.shape)

    tensor = np.clip(0.52 * busy * load + rng.normal(0, 0.015, busy.shape), 0, 1)
    used = plant.chip.memory_mib * np.where(
        load > 0.02,
        0.86
        + 0.1
        * samples.at(scrape, of, np.repeat(np.minimum(1, plant.fragmented * 3)[:, None], plant.gpus, 1)),
        0.004,
    )
    gauges: dict[str, Array] = {
        "DEV_SM_CLOCK": shown["clock"],
        "DEV_MEM_CLOCK": np.where(np.isnan(shown["clock"]), np.nan, 3_201.0),
        "DEV_GPU_TEMP": shown["temp"],
        "DEV_MEMORY_TEMP": shown["memory_temp"],
        "DEV_POWER_USAGE": shown["power"],
        "DEV_GPU_UTIL": shown["util"],
        "DEV_MEM_COPY_UTIL": np.clip(38 * busy * load + rng.normal(0, 2, busy.shape), 0, 100),
        "DEV_FB_USED": used,
        "DEV_FB_FREE": plant.chip.memory_mib - used,
        "DEV_NVLINK_BANDWIDTH_TOTAL": per_step(92_000.0),
        "DEV_ROW_REMAP_FAILURE": np.zeros_like(busy),
        "PROF_GR_ENGINE_ACTIVE": np.clip(
            0.985 * np.minimum(1, load * 2) + rng.normal(0, 0.004, busy.shape), 0, 1
        ),
        "PROF_PIPE_TENSOR_ACTIVE": tensor,
        "PROF_DRAM_ACTIVE": np.clip(0.43 * busy * load + rng.normal(0, 0.01, busy.shape), 0, 1),
        "PROF_PCIE_TX_BYTES": per_step(3.1e9),
        "PROF_PCIE_RX_BYTES": per_step(4.4e9),
    }
    richer: dict[str, Array] = {
        "PROF_SM_ACTIVE": np.clip(0.8 * busy * load + rng.normal(0, 0.01, busy.shape), 0, 1),
        "PROF_NVLINK_TX_BYTES": per_step(46e9),
        "PROF_NVLINK_RX_BYTES": per_step(46e9),
        "DEV_POWER_MGMT_LIMIT": samples.at(scrape, of, plant.limit_w),
        "DEV_PCIE_LINK_GEN": samples.at(scrape, of, plant.pcie_gen),
        "DEV_PCIE_LINK_WIDTH": samples.at(scrape, of, plant.pcie_width),
    }
    for group, level in ((gauges, "default"), (richer, "full")):
        for name, values in group.items():
            relabelled = _with_driver(plant, scrape, labels, of)
            for these, mask in relabelled:
                kept = values if mask is None else np.where(mask, values, np.nan)
                samples.gauge(
                    "default" if level == "default" else "full", f"DCGM_FI_{name}", scrape, of, these, kept
                )
    _gpu_counters(plant, samples, scrape, labels)
    _xids(plant, samples, scrape, labels)


def _with_driver(
    plant: Plant, scrape: Scrape, labels: list[Labels], of: Sequence[int]
) -> "list[tuple[list[Labels], np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None]]":
    """A new driver is a new label, and so a new series."""
    if plant.driver[0] == plant.driver[1]:
        return [(labels, None)]
    old = scrape.times_s[:, of] < plant.onset_s
    newer = [{**one, "DCGM_FI_DRIVER_VERSION": plant.driver[1]} for one in labels]
    return [(labels, old), (newer, ~old)]


def _step_s(plant: Plant) -> Array:
    """How long steps take at each tick; for ever once the run hangs."""
    busy = np.asarray((plant.member_s + plant.data_s).max(1) + plant.wire_s)
    if plant.stop_s is not None:
        busy = np.where(plant.t > plant.stop_s, 1e9, busy)
    return busy


def _gpu_counters(plant: Plant, samples: Samples, scrape: Scrape, labels: list[Labels]) -> None:
    rng, of = plant.rng, plant.node_of.tolist()
    shape = plant.power.shape

    def count(level: str, name: str, rates: Array, start: float | Array = 0.0, *, whole: bool = True) -> None:
        samples.counter(
            "default" if level == "default" else "full", f"DCGM_FI_DEV_{name}", scrape, of, labels,
            rates=rates, start=start, whole=whole,
        )  # fmt: skip

    zero = np.zeros(shape)
    hours = rng.uniform(200, 3_000, plant.gpus) * 3_600
    count("default", "TOTAL_ENERGY_CONSUMPTION", plant.power * 1e3, hours * 5e5)
    count("default", "PCIE_REPLAY_COUNTER", rng.poisson(1e-3 + plant.pcie_replays * TICK_S) / TICK_S)
    rows = np.asarray(np.diff(plant.remapped, axis=0, prepend=0) / TICK_S, np.float64)
    count("default", "CORRECTABLE_REMAPPED_ROWS", rows, (rng.random(plant.gpus) < 0.03).astype(np.float64))
    count("default", "UNCORRECTABLE_REMAPPED_ROWS", zero, (rng.random(plant.gpus) < 0.01).astype(float))
    active = plant.busy**0.2 * plant.intensity
    share = rng.uniform(0.9, 1.0, shape)
    count("full", "POWER_VIOLATION", 1e9 * share * plant.capped * np.minimum(1, active * 1.05), 1e12)
    braked = (plant.brake < 0.97).astype(float)
    count("full", "THERMAL_VIOLATION", 1e9 * plant.hot * rng.uniform(0.6, 1.0, shape), 1e9)
    count("full", "BOARD_LIMIT_VIOLATION", 1e9 * braked * rng.uniform(0.7, 1.0, shape), 0.0)
    count("full", "RELIABILITY_VIOLATION", 2e6 * rng.random(shape), 1e10)
    count("full", "LOW_UTIL_VIOLATION", 1e8 * (plant.intensity < 0.02), 1e11)
    quiet = rng.poisson(2e-5, shape) / TICK_S
    count("full", "ECC_SBE_VOL_TOTAL", quiet + rng.poisson(plant.ecc_sbe * TICK_S) / TICK_S)
    count("full", "ECC_DBE_VOL_TOTAL", zero)
    count("full", "ECC_SBE_AGG_TOTAL", quiet + rng.poisson(plant.ecc_sbe * TICK_S) / TICK_S, 3.0)
    count("full", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", rng.poisson(plant.nvlink_crc * TICK_S) / TICK_S)
    count("full", "NVLINK_REPLAY_ERROR_COUNT_TOTAL", rng.poisson(plant.nvlink_replay * TICK_S) / TICK_S)
    count(
        "full", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", rng.poisson(plant.nvlink_replay * TICK_S / 40) / TICK_S
    )
    _clock_events(plant, samples, scrape, labels, braked)


def _clock_events(
    plant: Plant, samples: Samples, scrape: Scrape, labels: list[Labels], braked: Array
) -> None:
    """Counts in a window of a minute: dcgm-exporter polls about once a second."""
    of = plant.node_of.tolist()
    held = {
        "power_cap": plant.capped,
        "sw_thermal": plant.hot,
        "hw_power_brake": braked,
        "hw_slowdown": braked,
    }
    for event, share in held.items():
        values = np.rint(
            60 * samples.at(scrape, of, share) * plant.rng.uniform(0.8, 1.0, scrape.times_s[:, of].shape)
        )
        chosen = np.flatnonzero(share.any(0))
        if len(chosen):
            of_chosen = [of[gpu] for gpu in chosen]
            window = {"clock_event": event, "window_size_in_ms": "60000"}
            these = [{**labels[gpu], **window} for gpu in chosen]
            samples.gauge("full", "DCGM_EXP_CLOCK_EVENTS_COUNT", scrape, of_chosen, these, values[:, chosen])


def _xids(plant: Plant, samples: Samples, scrape: Scrape, labels: list[Labels]) -> None:
    """The gauge of the last XID never clears; the count of a window does."""
    rng, of = plant.rng, plant.node_of.tolist()
    last = np.zeros((len(scrape.times_s), plant.gpus))
    old = rng.random(plant.gpus) < plant.old_xid_share
    last[:, old] = rng.choice(OLD_XIDS, int(old.sum()))
    for at_s, gpu, code in sorted(plant.xids):
        last[scrape.times_s[:, of[gpu]] >= at_s, gpu] = code
    samples.gauge("default", "DCGM_FI_DEV_XID_ERRORS", scrape, of, labels, last)
    for at_s, gpu, code in plant.xids:
        since = scrape.times_s[:, of[gpu]] - at_s
        values = np.where((since >= 0) & (since < XID_WINDOW_S), 1.0, np.nan)[:, None]
        label = {**labels[gpu], "xid": str(code), "window_size_in_ms": str(int(XID_WINDOW_S * 1e3))}
        samples.gauge("full", "DCGM_EXP_XID_ERRORS_COUNT", scrape, [of[gpu]], [label], values)


def _amd(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    """AMD's device-metrics-exporter: names of docs/configuration/metricslist.md in lower case."""
    of = plant.node_of.tolist()
    labels: list[Labels] = []
    for gpu in range(plant.gpus):
        node, index = divmod(gpu, 8)
        labels.append(
            {
                "instance": f"{_host(plant, node, of_gpu=True)}:5000",
                "job": "amd-metrics-exporter",
                "hostname": plant.node_name(node),
                "gpu_id": str(index),
                "serial_number": f"6922{gpu:06d}",
                "card_model": "102-G30211-00",
                "gpu_partition_id": "0",
            }
        )
    shown = _gpu_values(plant, samples, scrape, of)
    clocks = [{**one, "clock_index": "0", "clock_type": "GPU_CLOCK_TYPE_SYSTEM"} for one in labels]
    samples.gauge("default", "gpu_clock", scrape, of, clocks, shown["clock"])
    samples.gauge("default", "gpu_junction_temperature", scrape, of, labels, shown["temp"] + 8)
    samples.gauge("default", "gpu_memory_temperature", scrape, of, labels, shown["memory_temp"])
    samples.gauge("default", "gpu_package_power", scrape, of, labels, shown["power"])
    samples.gauge("default", "gpu_power_usage", scrape, of, labels, shown["power"])
    samples.gauge("default", "gpu_gfx_activity", scrape, of, labels, shown["util"])
    samples.gauge("default", "gpu_total_vram", scrape, of, labels, np.full_like(shown["util"], 196_592.0))
    samples.gauge(
        "default",
        "gpu_used_vram",
        scrape,
        of,
        labels,
        196_592.0 * np.where(shown["load"] > 0.02, 0.86, 0.002),
    )
    samples.gauge("default", "pcie_speed", scrape, of, labels, 2.0 ** samples.at(scrape, of, plant.pcie_gen))
    samples.gauge("default", "pcie_max_speed", scrape, of, labels, np.full_like(shown["util"], 32.0))
    hot = 100 * samples.at(scrape, of, plant.hot)
    capped = 100 * samples.at(scrape, of, plant.capped) * np.clip(shown["busy"], 0.9, 1)
    samples.gauge("default", "gpu_violation_socket_thermal_residency_percentage", scrape, of, labels, hot)
    samples.gauge("default", "gpu_violation_ppt_residency_percentage", scrape, of, labels, capped)
    ecc = plant.rng.poisson(plant.ecc_sbe * TICK_S) / TICK_S
    samples.counter("default", "gpu_ecc_correct_total", scrape, of, labels, rates=ecc, whole=True)
    samples.counter("default", "gpu_ecc_uncorrect_total", scrape, of, labels, rates=0 * ecc, whole=True)


# -- hosts and their ports -------------------------------------------------------------------------------


def _node_labels(plant: Plant) -> list[Labels]:
    return [{"instance": f"{_host(plant, node)}:9100", "job": "node"} for node in range(plant.nodes)]


def _ports(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    rng = plant.rng
    base = _node_labels(plant)
    labels = [
        {**base[node], "device": f"mlx5_{port}", "port": "1"}
        for node in range(plant.nodes)
        for port in range(8)
    ]
    of = np.repeat(np.arange(plant.nodes), 8).tolist()

    def flat(array: Array) -> Array:
        return array.reshape(len(plant.t), -1)

    load = np.repeat(plant.intensity[:, ::8], 8, 1)
    moved = PORT_BYTES_S * (plant.spec.step_s / _step_s(plant))[:, None] * load
    moved = moved * rng.normal(1, 0.02, moved.shape)
    trained = samples.at(scrape, of, flat(plant.port_trained))
    samples.gauge("default", "node_infiniband_state_id", scrape, of, labels, np.full_like(trained, 4.0))
    samples.gauge(
        "default", "node_infiniband_physical_state_id", scrape, of, labels, np.full_like(trained, 5.0)
    )
    samples.gauge("default", "node_infiniband_rate_bytes_per_second", scrape, of, labels, 5e10 * trained)

    def count(name: str, rates: Array, start: float | Array = 0.0) -> None:
        samples.counter(
            "default",
            f"node_infiniband_{name}_total",
            scrape,
            of,
            labels,
            rates=rates,
            start=start,
            whole=True,
        )

    def events(rates: Array) -> Array:
        return np.asarray(rng.poisson(rates * TICK_S) / TICK_S)

    old = rng.poisson(3, len(labels)).astype(float)
    errors = flat(plant.symbol_errors)
    count("port_data_transmitted_bytes", moved, 1e14)
    count("port_data_received_bytes", moved, 1e14)
    count("port_packets_transmitted", moved / 4_200, 3e10)
    count("port_packets_received", moved / 4_200, 3e10)
    count("link_downed", np.zeros_like(moved), (old > 5).astype(float))
    count("link_error_recovery", events(flat(plant.port_recoveries)), old)
    if plant.spec.fabric == "ib":
        count("symbol_error", events(errors + 2e-5), old * 4)
        count("port_errors_received", events(errors * 0.02), old)
        count("port_transmit_wait", flat(plant.port_wait) * 2.5e8 * rng.uniform(0.5, 1.6, moved.shape), 1e9)
        count("port_discards_transmitted", np.zeros_like(moved), 0.0)
        count("local_link_integrity_errors", events(errors * 0.001), 0.0)
        count("port_receive_remote_physical_errors", np.zeros_like(moved), 0.0)
        count("packet_sequence_errors", events(errors * 0.01), 0.0)
    else:
        marked = flat(plant.ecn) + 4.0
        count("np_ecn_marked_roce_packets_received", events(marked * 30), 1e6)
        count("np_cnp_packets_sent", events(marked), 1e5)
        count("rp_cnp_packets_handled", events(marked), 1e5)
        count("rx_icrc_encapsulated_errors", events(errors), old)
        count("out_of_sequence_packets_received", events(errors * 0.9), old)
        count("packet_sequence_errors", events(errors * 0.9), old)
        count("local_ack_timeout_errors", events(errors * 0.02), old)
        count("roce_slow_restart", events(errors * 0.05), 0.0)
        count("roce_adp_retransmits", events(errors * 0.5), 0.0)
        names = [{**base[of[i]], "device": f"ens{i % 8}np0"} for i in range(len(labels))]
        for name, rates in (("rx_prio3_pause", marked * 0.05), ("tx_prio3_pause", flat(plant.ecn) * 0.4)):
            samples.counter(
                "full", f"node_ethtool_{name}", scrape, of, names, rates=events(rates), whole=True
            )


def _hosts(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    rng, labels, of = plant.rng, _node_labels(plant), list(range(plant.nodes))
    shape = plant.cpu_wait.shape

    def count(
        name: str,
        rates: Array,
        start: float | Array = 1e4,
        extra: Labels | None = None,
        *,
        whole: bool = False,
    ) -> None:
        these = [{**one, **(extra or {})} for one in labels]
        samples.counter("default", f"node_{name}", scrape, of, these, rates=rates, start=start, whole=whole)

    def gauge(name: str, values: Array, extra: Labels | None = None) -> None:
        these = [{**one, **(extra or {})} for one in labels]
        samples.gauge("default", f"node_{name}", scrape, of, these, samples.at(scrape, of, values))

    noises = noise.Hosts(rng, shape)
    cpu = np.clip(plant.cpu_wait * rng.uniform(0.7, 1.3, shape) + noises.pressure("cpu"), 0, 1)
    io = np.clip(plant.io_wait * rng.uniform(0.7, 1.3, shape) + noises.pressure("io"), 0, 1)
    memory = np.clip(plant.mem_wait * rng.uniform(0.7, 1.3, shape) + noises.pressure("memory"), 0, 1)
    count("pressure_cpu_waiting_seconds_total", cpu)
    count("pressure_io_waiting_seconds_total", io)
    count("pressure_io_stalled_seconds_total", io * 0.6)
    count("pressure_memory_waiting_seconds_total", memory)
    count("pressure_memory_stalled_seconds_total", memory * 0.5)
    gauge("load1", plant.load * rng.uniform(0.85, 1.2, shape))
    running = np.clip(plant.load / 192, 0, 1)
    for mode, share in (
        ("user", 0.8 * running),
        ("system", 0.12 * running),
        ("iowait", 0.2 * io),
        ("idle", 1 - running),
    ):
        for cpu_number in ("0", "1"):
            count(
                "cpu_seconds_total",
                share * rng.uniform(0.8, 1.1, shape),
                1e5,
                {"cpu": cpu_number, "mode": mode},
            )
    busy = np.clip(plant.disk_busy * rng.uniform(0.5, 1.6, shape) + 0.02 * noises.disk(), 0, 1)
    # Little's law: requests a second are those under way over the time of each.
    wait_s = plant.disk_await_ms * 1e-3 * rng.uniform(0.8, 1.25, shape)
    under_way = np.where(busy > 0.9, busy / np.maximum(0.02, 1.02 - busy), busy)
    rate = under_way / wait_s
    disk = {"device": "nvme0n1"}
    count("disk_io_time_seconds_total", busy, 1e4, disk)
    count("disk_reads_completed_total", rate * 0.3, 1e7, disk, whole=True)
    count("disk_writes_completed_total", rate * 0.7, 1e7, disk, whole=True)
    count("disk_read_time_seconds_total", rate * 0.3 * wait_s, 1e4, disk)
    count("disk_write_time_seconds_total", rate * 0.7 * wait_s, 1e4, disk)
    place = {"device": "/dev/nvme0n1p1", "fstype": "xfs", "mountpoint": "/local"}
    gauge("filesystem_avail_bytes", plant.disk_free * 7.6e12, place)
    gauge("filesystem_size_bytes", np.full(shape, 7.6e12), place)
    root = {"device": "/dev/md0", "fstype": "ext4", "mountpoint": "/"}
    gauge("filesystem_avail_bytes", np.full(shape, 3.1e11), root)
    gauge("filesystem_size_bytes", np.full(shape, 4.2e11), root)
    count("vmstat_pswpin", events(rng, plant.swap * 0.6), 0.0, whole=True)
    count("vmstat_pswpout", events(rng, plant.swap), 0.0, whole=True)
    count("vmstat_pgmajfault", events(rng, 0.3 + plant.swap * 0.5), 1e5, whole=True)
    gauge("memory_MemTotal_bytes", np.full(shape, 2.16e12))
    gauge(
        "memory_MemAvailable_bytes", 2.16e12 * np.clip(plant.mem_free + rng.normal(0, 0.004, shape), 0.002, 1)
    )
    gauge("memory_SwapTotal_bytes", np.full(shape, 6.4e10))
    gauge("memory_SwapFree_bytes", 6.4e10 - np.minimum(6e10, np.cumsum(plant.swap, 0) * TICK_S * 4096 * 0.2))
    gauge("timex_offset_seconds", plant.clock_offset_s + rng.normal(0, 1e-5, shape))
    gauge("timex_sync_status", np.ones(shape))
    gauge("hwmon_temp_celsius", 44 + 0.5 * (plant.room_c[:, plant.rack_of] - 22) + rng.normal(0, 1, shape),
          {"chip": "pci0000:00_0000:00:18_3", "sensor": "temp1"})  # fmt: skip
    count("netstat_Tcp_RetransSegs", events(rng, np.full(shape, 0.2)), 1e5, whole=True)
    count("context_switches_total", 4e4 * rng.uniform(0.7, 1.3, shape), 1e10)
    for index, kernel in enumerate(dict.fromkeys(plant.kernel)):
        these = [
            {
                **one,
                "nodename": plant.node_name(node),
                "release": kernel,
                "sysname": "Linux",
                "machine": "x86_64",
            }
            for node, one in enumerate(labels)
        ]
        ones = np.ones(scrape.times_s.shape)
        if plant.kernel[0] != plant.kernel[1]:
            is_new = scrape.times_s >= plant.onset_s
            ones = np.where(is_new == bool(index), 1.0, np.nan)
        samples.gauge("default", "node_uname_info", scrape, of, these, ones)
    _pci(plant, samples, scrape)


def events(rng: np.random.Generator, rates: Array) -> Array:
    """Events a second at a mean rate."""
    return np.asarray(rng.poisson(rates * TICK_S) / TICK_S)


def _pci(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    base, of = _node_labels(plant), plant.node_of.tolist()
    labels = [
        {
            **base[gpu // 8],
            "segment": "0000",
            "bus": f"{0x1B + 0x10 * (gpu % 8):02x}",
            "device": "00",
            "function": "0",
        }
        for gpu in range(plant.gpus)
    ]
    width, gen = samples.at(scrape, of, plant.pcie_width), samples.at(scrape, of, plant.pcie_gen)
    shown = {
        "current_link_width": width,
        "max_link_width": np.full_like(width, 16.0),
        "current_link_transfers_per_second": 1e9 * 2.0**gen,
        "max_link_transfers_per_second": np.full_like(gen, 3.2e10),
    }
    for name, values in shown.items():
        samples.gauge("full", f"node_pcidevice_{name}", scrape, of, labels, values)


def _nfs(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    """One mount over NFS. mountstats is off by default; the count of calls sent again is on."""
    rng, labels, of = plant.rng, _node_labels(plant), list(range(plant.nodes))
    shape = plant.cpu_wait.shape
    ours = np.zeros(shape)
    ours[:, : plant.run_nodes] = (plant.spec.step_s / _step_s(plant))[:, None]
    reads, writes = 180 * ours + 0.5, 25 * ours + 0.2
    resent = events(rng, plant.retransmissions[:, None] * (ours > 0) + 1e-4)
    samples.counter(
        "default", "node_nfs_rpc_retransmissions_total", scrape, of, labels, rates=resent, whole=True
    )
    calls = reads + writes
    samples.counter("default", "node_nfs_rpcs_total", scrape, of, labels, rates=calls, start=1e8, whole=True)
    for operation, rate, mean_ms in (("READ", reads, plant.read_ms), ("WRITE", writes, plant.write_ms)):
        these = [
            {
                **one,
                "export": "fs-0000:/train",
                "mountaddr": "10.9.0.5",
                "operation": operation,
                "protocol": "tcp",
            }
            for one in labels
        ]
        response = rate * mean_ms[:, None] * 1e-3 * rng.uniform(0.85, 1.2, shape)
        queue = rate * np.maximum(0.02, 0.3 * (mean_ms[:, None] - 2)) * 1e-3 * rng.uniform(0.8, 1.2, shape)
        shown = {
            "requests": rate,
            "transmissions": rate + resent,
            "major_timeouts": np.zeros(shape),
            "response_time_seconds": response,
            "queue_time_seconds": queue,
            "request_time_seconds": response + queue,
        }
        for name, rates in shown.items():
            samples.counter(
                "full",
                f"node_mountstats_nfs_operations_{name}_total",
                scrape,
                of,
                these,
                rates=rates,
                start=1e6,
            )


# -- beside the hosts: BMCs, switches, cooling -------------------------------------------------------------


def _sides(plant: Plant, samples: Samples, horizon_s: float) -> None:
    rng = plant.rng
    bmcs = Scrape(rng, plant.nodes, 30.0, horizon_s)
    of = list(range(plant.nodes))
    base = [{"instance": f"{_host(plant, node)}:9290", "job": "ipmi"} for node in of]
    shape = plant.fan.shape

    def bmc(metric: str, values: Array, extra: Labels) -> None:
        samples.gauge(
            "full", metric, bmcs, of, [{**one, **extra} for one in base], samples.at(bmcs, of, values)
        )

    inlet = plant.room_c[:, plant.rack_of]
    bmc(
        "ipmi_temperature_celsius",
        np.rint(inlet + rng.normal(0, 0.3, shape)),
        {"id": "4", "name": "Inlet Temp"},
    )
    for fan in range(4):
        speed = 9_600 if plant.spec.cooling == "air" else 5_200
        # Those that still turn are driven harder; the broken ones hardly turn.
        turning = np.where(plant.fan < 0.95, (0.12 if fan < 2 else 1.25), 1.0)
        rpm = speed * turning * rng.uniform(0.98, 1.02, shape)
        bmc("ipmi_fan_speed_rpm", np.rint(rpm / 60) * 60, {"id": str(30 + fan), "name": f"FAN{fan + 1}"})
    for supply in range(6):
        good = plant.supplies > supply
        bmc("ipmi_sensor_state", np.where(good, 0.0, 2.0), {
            "id": str(60 + supply), "name": f"PS{supply + 1} Status", "type": "Power Supply"})  # fmt: skip
        chassis = [{"instance": "redfish:9610", "job": "redfish", "chassis_id": plant.node_name(node),
                    "power_supply": f"PSU {supply + 1}"} for node in of]  # fmt: skip
        values = samples.at(bmcs, of, np.where(good, 1.0, 3.0))
        samples.gauge("full", "redfish_chassis_power_powersupply_health", bmcs, of, chassis, values)
    racks = Scrape(rng, plant.racks, 30.0, horizon_s)
    of_racks = list(range(plant.racks))
    redfish = {"instance": "redfish:9610", "job": "redfish", "power_supply": "1"}
    shelves = [{**redfish, "chassis_id": f"shelf-{rack:02d}"} for rack in of_racks]
    health = samples.at(racks, of_racks, plant.shelf_health)
    samples.gauge("full", "redfish_chassis_power_powersupply_health", racks, of_racks, shelves, health)
    probe = Scrape(rng, 1, 15.0, horizon_s)
    target = [{"instance": "10.9.0.2:53", "job": "blackbox-dns", "module": "dns_internal"}]
    lookup = samples.at(probe, [0], plant.dns_s[:, None]) * rng.uniform(0.7, 1.6, (len(probe.times_s), 1))
    samples.gauge("full", "probe_dns_lookup_time_seconds", probe, [0], target, lookup)
    samples.gauge("full", "probe_duration_seconds", probe, [0], target, lookup + 0.001)
    samples.gauge("full", "probe_success", probe, [0], target, (lookup < 5.0).astype(float))
    if plant.pool_nodes:
        _pools(plant, samples, horizon_s)
    _switches(plant, samples, horizon_s)
    if plant.spec.cooling == "liquid":
        _cdus(plant, samples, horizon_s)


def _pools(plant: Plant, samples: Samples, horizon_s: float) -> None:
    """Caches from two prefill engines to two decode engines."""
    scrape = Scrape(plant.rng, 1, 10.0, horizon_s)
    a, b, c, d = (plant.node_name(node) for node in plant.pool_nodes)
    labels = [
        {"run": RUN, "source": s, "target": t, "job": "pools"} for s, t in ((a, c), (a, d), (b, c), (b, d))
    ]
    values = samples.at(scrape, [0] * 4, plant.pool_s)
    values = values * plant.rng.uniform(0.85, 1.3, values.shape)
    samples.gauge("full", "holdfast_pool_transfer_seconds", scrape, [0] * 4, labels, values)


def _switches(plant: Plant, samples: Samples, horizon_s: float) -> None:
    if plant.spec.fabric != "ib":
        return
    names = [f"leaf-{i:02d}" for i in range(plant.leaves)] + [f"spine-{i:02d}" for i in range(2)]
    scrape = Scrape(plant.rng, len(names), 30.0, horizon_s)
    of = list(range(len(names)))
    labels = [
        {"instance": "ibexporter:9315", "job": "infiniband", "switch": name, "port": "33"} for name in names
    ]
    waits = np.hstack([plant.leaf_wait, plant.spine_wait]) * 2.5e8
    waits = waits * plant.rng.uniform(0.5, 1.6, waits.shape)
    errors = events(plant.rng, np.hstack([plant.leaf_errors, plant.spine_errors]) + 2e-5)
    prefix = "infiniband_switch_port_"
    samples.counter(
        "full", f"{prefix}transmit_wait_total", scrape, of, labels, rates=waits, start=1e9, whole=True
    )
    samples.counter(
        "full", f"{prefix}symbol_error_total", scrape, of, labels, rates=errors, start=5, whole=True
    )
    recoveries = events(plant.rng, errors * 0.002)
    samples.counter(
        "full", f"{prefix}link_error_recovery_total", scrape, of, labels, rates=recoveries, whole=True
    )


def _cdus(plant: Plant, samples: Samples, horizon_s: float) -> None:
    """Heat is in balance: kW = L/min x K x 0.0698."""
    rng = plant.rng
    scrape = Scrape(rng, plant.loops, 30.0, horizon_s)
    of = list(range(plant.loops))
    labels = [
        {"instance": "densewatch:9700", "job": "densewatch", "cdu": f"cdu-{i:02d}", "protocol": "redfish"}
        for i in of
    ]
    watts = np.stack([plant.power[:, plant.loop_of[plant.node_of] == loop].sum(1) for loop in of], 1)
    heat_kw = watts * 1.05 / 1e3
    healthy_lpm = np.maximum(heat_kw[:1], 10.0) / (9.0 * 0.0698)
    lpm = healthy_lpm * plant.flow * rng.normal(1, 0.006, plant.flow.shape)
    back = plant.supply_c + heat_kw / (lpm * 0.0698)
    shown = {
        "coolant_flow_lpm": lpm,
        "coolant_supply_temp_celsius": plant.supply_c + rng.normal(0, 0.06, lpm.shape),
        "coolant_return_temp_celsius": back + rng.normal(0, 0.06, lpm.shape),
        "heat_removed_kw": heat_kw * rng.normal(1, 0.01, lpm.shape),
        "pump_speed_percent": 62 + 0 * lpm + rng.normal(0, 0.3, lpm.shape),
        "leak_detected": np.zeros_like(lpm),
    }
    for name, values in shown.items():
        samples.gauge("full", f"densewatch_cdu_{name}", scrape, of, labels, samples.at(scrape, of, values))
