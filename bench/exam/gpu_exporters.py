"""dcgm-exporter and AMD's device-metrics-exporter: etc/default-counters.csv says what is on by default."""

from collections.abc import Sequence

import numpy as np

from bench.exam import noise
from bench.exam.names import host
from bench.exam.plan import RUN
from bench.exam.plant import TICK_S, Array, Plant
from bench.exam.scrapes import Labels, Samples, Scrape

OLD_XIDS = (13, 31, 43, 45, 94)
"""Of jobs that crashed long ago: the gauge shows the last one for ever."""
XID_WINDOW_S = 300.0
IDLE_LOAD, IDLE_CLOCK_MHZ = 0.02, 345.0


def _gpu_labels(plant: Plant) -> list[Labels]:
    found = []
    for gpu in range(plant.gpus):
        node, index = divmod(gpu, 8)
        one = {
            "instance": f"{host(plant, node, of_gpu=True)}:9400",
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
    # Power is a mean of a second and the clock is of a moment: either shows one phase of a step.
    computing = rng.random(busy.shape) < busy * load
    is_idle = load <= IDLE_LOAD
    clock, active_w, chip = at(plant.clock), at(plant.active_w), plant.chip
    held = (at(plant.hot) > 0) | (at(plant.brake) < 1)
    clock = np.where(
        computing,
        clock + noise.clock_mhz(rng, busy.shape),
        np.where(held, clock, chip.clock_mhz),
    )
    clock = np.where(is_idle, IDLE_CLOCK_MHZ, clock)
    at_limit = active_w + noise.power_at_limit_w(rng, busy.shape)
    below = active_w + 0.5 * noise.power_w(rng, busy.shape)
    mixed = chip.wait_w + (active_w - chip.wait_w) * rng.uniform(0, 0.7, busy.shape)
    waiting = np.where(
        busy > 0, np.minimum(mixed, active_w), chip.wait_w + 0.2 * noise.power_w(rng, busy.shape)
    )
    power = np.where(computing, np.where(at(plant.capped) > 0, at_limit, below), waiting)
    power = np.where(is_idle, chip.idle_w + rng.normal(0, 0.2, busy.shape), power)
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


def dcgm(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    rng, labels = plant.rng, _gpu_labels(plant)
    of = plant.node_of.tolist()
    shown = _gpu_values(plant, samples, scrape, of)
    busy, load = shown["busy"], shown["load"]
    for gpu, lost_s in plant.lost_gpu_s.items():  # fallen off the bus: it has no values any more
        gone = scrape.times_s[:, of[gpu]] >= lost_s
        for values in shown.values():
            values[gone, gpu] = np.nan

    def per_step(amount: float) -> Array:
        step_s = samples.at(scrape, of, np.repeat(plant.pace_s()[:, None], plant.gpus, 1))
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
    count("default", "UNCORRECTABLE_REMAPPED_ROWS", zero, (rng.random(plant.gpus) < 0.01).astype(np.float64))
    active: Array = np.asarray(plant.busy**0.2 * plant.intensity, np.float64)
    share = rng.uniform(0.9, 1.0, shape)
    count("full", "POWER_VIOLATION", 1e9 * share * plant.capped * np.minimum(1, active * 1.05), 1e12)
    braked = (plant.brake < 0.97).astype(np.float64)
    count("full", "THERMAL_VIOLATION", 1e9 * plant.hot * rng.uniform(0.6, 1.0, shape), 1e9)
    count("full", "BOARD_LIMIT_VIOLATION", 1e9 * braked * rng.uniform(0.7, 1.0, shape), 0.0)
    count("full", "RELIABILITY_VIOLATION", 2e6 * rng.random(shape), 1e10)
    count("full", "LOW_UTIL_VIOLATION", np.where(plant.intensity < 0.02, 1e8, 0.0), 1e11)
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
    if plant.spec.names == "address":
        _coded(samples, scrape, of, labels, last)
    else:
        samples.gauge("default", "DCGM_FI_DEV_XID_ERRORS", scrape, of, labels, last)
    for at_s, gpu, code in plant.xids:
        since = scrape.times_s[:, of[gpu]] - at_s
        values = np.where((since >= 0) & (since < XID_WINDOW_S), 1.0, np.nan)[:, None]
        label = {**labels[gpu], "xid": str(code), "window_size_in_ms": str(int(XID_WINDOW_S * 1e3))}
        samples.gauge("full", "DCGM_EXP_XID_ERRORS_COUNT", scrape, [of[gpu]], [label], values)


def _coded(samples: Samples, scrape: Scrape, of: Sequence[int], labels: list[Labels], last: Array) -> None:
    """Newer exporters have the code in a label as well, so a new XID is a new series."""
    for code in np.unique(last).astype(int).tolist():
        chosen = np.flatnonzero((last == code).any(0))
        text = {"err_code": str(code), "err_msg": "No Error" if code == 0 else f"XID {code}"}
        these = [{**labels[gpu], **text} for gpu in chosen]
        values = np.where(last[:, chosen] == code, last[:, chosen], np.nan)
        samples.gauge(
            "default", "DCGM_FI_DEV_XID_ERRORS", scrape, [of[int(gpu)] for gpu in chosen], these, values
        )


def amd(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    """AMD's device-metrics-exporter: names of docs/configuration/metricslist.md in lower case."""
    of = plant.node_of.tolist()
    labels: list[Labels] = []
    for gpu in range(plant.gpus):
        node, index = divmod(gpu, 8)
        labels.append(
            {
                "instance": f"{host(plant, node, of_gpu=True)}:5000",
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
    samples.gauge("default", "gpu_junction_temperature", scrape, of, labels, shown["temp"])
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
