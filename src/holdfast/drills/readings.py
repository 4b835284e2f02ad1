"""The twin's state as perfect sensors would show it, metric by metric: scrape by series.

A reader takes the history and, for random events, a generator. `READS` has the readers by metric name.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.drills import fabric, pools, storage
from holdfast.drills.levers import PCIE_WIDTH, Floats, Indices, on_which
from holdfast.drills.plant import CLOCK_MAX_MHZ, SUPPLIES_PER_SHELF
from holdfast.drills.training import EXCHANGE_S, STEP_S
from holdfast.drills.world import HOST_COPY_S, History

Read = Callable[[History, np.random.Generator], Floats]

IDLE_MHZ = 345.0
CLOCK_CHECKS_PER_S = 1.0
"""How often dcgm-exporter checks the reasons for a low clock."""
COPY_BYTES_PER_STEP = HOST_COPY_S * 50e9
EXCHANGE_BYTES_PER_STEP = EXCHANGE_S * fabric.ACHIEVED_SHARE * fabric.PORT_BYTES_PER_S
REMAPS_PER_ERROR = 0.002
REPLAYS_PER_S = 2.0
"""On a PCIe link that has trained down."""
DOWNS_PER_RECOVERY = 0.1
BACKGROUND_SHARE, BACKGROUND_PER_S = 0.01, 2e-3
"""The share of GPUs and ports with harmless errors, and their rate: far below any threshold for action."""
HUNG_TASKS_PER_S = 0.004
MAJOR_TIMEOUTS_PER_RETRANSMISSION = 0.02
XIDS_BEYOND_ECC = (48, 95)
PHYSICAL_LINK_UP, PHYSICAL_RECOVERING = 5.0, 6.0
STATE_ACTIVE = 4.0
HEALTH_OK, HEALTH_CRITICAL = 1.0, 3.0


# -- GPUs ---------------------------------------------------------------------------------------------


def _flat(values: NDArray[Any]) -> Floats:
    return values.reshape(len(values), -1)


def _of_every_gpu(history: History, value: float) -> Floats:
    return np.full((history.ticks, history.layout.nodes * history.layout.gpus_per_node), value)


def _by_gpu(by_node: Floats, history: History) -> Floats:
    return np.repeat(by_node, history.layout.gpus_per_node, axis=1)


def _summed(rates: Floats, history: History) -> Floats:
    """A counter from its rate a second."""
    return np.cumsum(rates, axis=0, dtype=np.float64) * history.scrape_s


def _happened(rates: Floats, history: History, rng: np.random.Generator) -> Floats:
    """A counter of random events at these rates a second; few subjects ever have any."""
    counts = np.zeros(rates.shape)
    active = rates.max(axis=0) > 0
    # A difference of single-precision sums may be slightly below zero.
    counts[:, active] = rng.poisson(np.maximum(rates[:, active], 0.0) * history.scrape_s)
    return np.cumsum(counts, axis=0)


def _background(history: History, rng: np.random.Generator) -> Floats:
    """By GPU: the rate of errors that some have all the time, and that do no harm."""
    gpus = history.layout.nodes * history.layout.gpus_per_node
    return np.where(rng.random(gpus) < BACKGROUND_SHARE, BACKGROUND_PER_S, 0.0)


def _is_idle(history: History) -> Floats:
    """Scrape by GPU: whether nothing runs on its node."""
    idle = np.isnan(history.compute_s)
    idle[:, history.cast.prefill.start : history.cast.decode.stop] = False
    return _by_gpu(idle, history)


def sm_clock(history: History, _: np.random.Generator) -> Floats:
    running = _flat(history.clock_share) * CLOCK_MAX_MHZ
    return np.where(_is_idle(history), IDLE_MHZ, running)


def utilisation(history: History, _: np.random.Generator) -> Floats:
    # GPUs wait for others by spinning: in this metric a GPU that waits is as busy as any.
    busy = np.broadcast_to(100.0 * history.stepping_share[:, None], history.compute_s.shape)
    return np.where(_is_idle(history), 0.0, _by_gpu(busy, history))


def pcie_replays(history: History, rng: np.random.Generator) -> Floats:
    narrow = history.levers.over_time("pcie_width") < PCIE_WIDTH
    return _happened(REPLAYS_PER_S * narrow + _background(history, rng), history, rng)


def lost_rows(history: History, _: np.random.Generator) -> Floats:
    """Rows lost to a fatal error, which ECC could not correct."""
    rows = np.zeros((history.ticks, history.layout.nodes * history.layout.gpus_per_node))
    for xid in history.xids:
        if xid.code in XIDS_BEYOND_ECC:
            rows[history.times_ns >= xid.at_ns, xid.gpu] += 1
    return rows


def last_xid(history: History, _: np.random.Generator) -> Floats:
    """One column per GPU for "no error", and then one for each error, which its labels name."""
    gpus = history.layout.nodes * history.layout.gpus_per_node
    values = np.zeros((history.ticks, gpus + len(history.xids)), np.float32)
    for index, xid in enumerate(history.xids):
        later = [other.at_ns for other in history.xids if other.gpu == xid.gpu and other.at_ns > xid.at_ns]
        shown = (history.times_ns >= xid.at_ns) & (history.times_ns < min(later, default=2**62))
        values[:, gpus + index] = np.where(shown, xid.code, np.nan)
        values[history.times_ns >= xid.at_ns, xid.gpu] = np.nan
    return values


def clock_events(history: History, _: np.random.Generator) -> Floats:
    seen = np.stack([_flat(history.is_hot), _flat(history.is_braked)], axis=2)
    return _flat(seen) * (CLOCK_CHECKS_PER_S * history.scrape_s)


# -- fabric -------------------------------------------------------------------------------------------


def _steps_per_s(history: History) -> Floats:
    return history.stepping_share / np.nan_to_num(history.step_s, nan=STEP_S)


def _is_member(history: History) -> Floats:
    return np.isfinite(history.compute_s).astype(np.float32)


def port_physical_state(history: History, rng: np.random.Generator) -> Floats:
    recovering = history.levers.over_time("recoveries") * fabric.RECOVERY_S
    hit = rng.random(recovering.shape, np.float32) < recovering
    return np.where(hit, PHYSICAL_RECOVERING, PHYSICAL_LINK_UP)


def _waiting(history: History) -> Floats:
    """Scrape by leaf: ticks a second that one of its ports waits."""
    return fabric.waiting_share(history.levers) * history.stepping_share[:, None] * fabric.WAIT_TICKS_PER_S


def transmit_wait(history: History, _: np.random.Generator) -> Floats:
    by_node = _waiting(history)[:, on_which(history.layout, "leaf")]
    return _summed(_by_gpu(by_node, history), history)


def sent_bytes(history: History, _: np.random.Generator) -> Floats:
    by_node = _steps_per_s(history)[:, None] * _is_member(history) * EXCHANGE_BYTES_PER_STEP
    return _summed(_by_gpu(by_node, history), history)


# -- hosts and storage --------------------------------------------------------------------------------


def cpu_pressure(history: History, _: np.random.Generator) -> Floats:
    loading = history.levers.over_time("loader") / STEP_S
    return _summed(np.minimum(0.01 + history.levers.over_time("cpu") + loading, 1.0), history)


def _by_node(by_mount: Floats, history: History) -> Floats:
    return by_mount[:, on_which(history.layout, "mount")]


def io_pressure(history: History, _: np.random.Generator) -> Floats:
    read_s = storage.read_s(_by_node(history.read_rates, history))
    waiting = np.maximum(read_s - STEP_S, 0.0) / read_s + history.writing_share[:, None]
    return _summed(0.01 + _is_member(history) * np.minimum(waiting, 0.9), history)


def hung_tasks(history: History, rng: np.random.Generator) -> Floats:
    stuck = storage.timeouts_share(_by_node(history.read_rates, history)) > 0
    return _happened(HUNG_TASKS_PER_S * stuck, history, rng)


def _nfs_rates(history: History) -> Floats:
    """Scrape by node and operation: a client's bytes a second."""
    return np.stack([_by_node(history.read_rates, history), _by_node(history.write_rates, history)], axis=2)


def _operations(history: History) -> Floats:
    """Scrape by node and operation: how many a second."""
    reads = _steps_per_s(history) * storage.READ_BYTES_PER_STEP
    share = np.stack([np.broadcast_to(reads[:, None], history.compute_s.shape), _written(history)], axis=2)
    return share * _is_member(history)[:, :, None] / storage.OPERATION_BYTES


def _written(history: History) -> Floats:
    """Scrape by node: bytes a second into checkpoints."""
    return history.writing_share[:, None] * _by_node(history.write_rates, history)


def _sent_again(history: History) -> Floats:
    """Scrape by node and operation: retransmissions a second. A filer that is only busy has none."""
    share = storage.timeouts_share(_by_node(history.read_rates, history))
    return _operations(history) * share[:, :, None]


# -- cooling, power, scheduler ------------------------------------------------------------------------


def rated_flow(history: History, _: np.random.Generator) -> Floats:
    rated_lpm = history.flow_lpm[0] / history.levers.at("flow", 0)
    return np.broadcast_to(rated_lpm, history.flow_lpm.shape)


def supplies(history: History, _: np.random.Generator) -> Floats:
    left = np.round(history.levers.over_time("supplies") * SUPPLIES_PER_SHELF)
    gone = np.arange(SUPPLIES_PER_SHELF) >= left[:, :, None]
    return _flat(np.where(gone, HEALTH_CRITICAL, HEALTH_OK))


def _counted(is_so: Floats) -> Floats:
    """The number of nodes for which this holds, by scrape."""
    count: Floats = is_so.sum(axis=1, keepdims=True)
    return count


# -- the run and its pools ----------------------------------------------------------------------------


def ever_members(history: History) -> Indices:
    """The nodes that were in the run at any time."""
    return np.flatnonzero(np.isfinite(history.compute_s).any(axis=0))


def _requests_per_s(history: History) -> Floats:
    return history.requests * (pools.REQUESTS_PER_STEP * _steps_per_s(history))[:, None, None]


READS: dict[str, dict[str, Read]] = {
    "DCGM_FI_DEV_": {
        "SM_CLOCK": sm_clock,
        "GPU_TEMP": lambda history, _: _flat(history.temperature_c),
        "MEMORY_TEMP": lambda history, _: _flat(history.temperature_c) + 5.0 + 0.008 * _flat(history.power_w),
        "POWER_USAGE": lambda history, _: _flat(history.power_w),
        "TOTAL_ENERGY_CONSUMPTION": lambda history, _: _summed(_flat(history.power_w) * 1_000, history),
        "GPU_UTIL": utilisation,
        "PCIE_REPLAY_COUNTER": pcie_replays,
        "XID_ERRORS": last_xid,
        "ECC_SBE_VOL_TOTAL": lambda history, rng: _happened(
            history.levers.over_time("ecc") + _background(history, rng), history, rng
        ),
        "CORRECTABLE_REMAPPED_ROWS": lambda history, rng: _happened(
            REMAPS_PER_ERROR * history.levers.over_time("ecc"), history, rng
        ),
        "UNCORRECTABLE_REMAPPED_ROWS": lost_rows,
        "THERMAL_VIOLATION": lambda history, _: _summed(_flat(history.is_hot), history),
        "POWER_VIOLATION": lambda history, _: _summed(_flat(history.is_braked), history),
    },
    "node_infiniband_": {
        "state_id": lambda history, _: _of_every_gpu(history, STATE_ACTIVE),
        "physical_state_id": port_physical_state,
        "rate_bytes_per_second": lambda history, _: _of_every_gpu(history, fabric.PORT_BYTES_PER_S),
        "symbol_error_total": lambda history, rng: _happened(
            history.levers.over_time("symbols") + _background(history, rng), history, rng
        ),
        "link_error_recovery_total": lambda history, rng: _happened(
            history.levers.over_time("recoveries"), history, rng
        ),
        "link_downed_total": lambda history, rng: _happened(
            DOWNS_PER_RECOVERY * history.levers.over_time("recoveries"), history, rng
        ),
        "port_transmit_wait_total": transmit_wait,
        "port_data_transmitted_bytes_total": sent_bytes,
        "port_data_received_bytes_total": sent_bytes,
    },
    "node_mountstats_nfs_operations_": {
        "requests_total": lambda history, _: _summed(_flat(_operations(history)), history),
        "transmissions_total": lambda history, _: _summed(
            _flat(_operations(history) + _sent_again(history)), history
        ),
        "major_timeouts_total": lambda history, rng: _happened(
            MAJOR_TIMEOUTS_PER_RETRANSMISSION * _flat(_sent_again(history)), history, rng
        ),
        "response_time_seconds_total": lambda history, _: _summed(
            _flat(_operations(history) * storage.response_s(_nfs_rates(history))), history
        ),
    },
    "densewatch_cdu_": {
        "coolant_flow_lpm": lambda history, _: history.flow_lpm,
        "coolant_supply_temp_celsius": lambda history, _: history.supply_c,
        "coolant_return_temp_celsius": lambda history, _: history.return_c,
        "heat_removed_kw": lambda history, _: history.heat_kw,
        "pump_speed_percent": lambda history, _: history.pump_percent,
    },
    "holdfast_member_": {
        "compute_seconds": lambda history, _: history.compute_s[:, ever_members(history)],
        "data_seconds": lambda history, _: history.data_s[:, ever_members(history)],
        "exchange_seconds": lambda history, _: history.exchange_s[:, ever_members(history)],
        "wait_seconds": lambda history, _: history.wait_s[:, ever_members(history)],
        "gc_seconds_total": lambda history, _: history.collected_s[:, ever_members(history)],
    },
    "": {
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": lambda history, _: 0.46 * _by_gpu(history.activity, history),
        "DCGM_FI_PROF_DRAM_ACTIVE": lambda history, _: 0.38 * _by_gpu(history.activity, history),
        "DCGM_FI_PROF_PCIE_RX_BYTES": lambda history, _: _by_gpu(
            _steps_per_s(history)[:, None] * _is_member(history) * COPY_BYTES_PER_STEP, history
        ),
        "DCGM_EXP_CLOCK_EVENTS_COUNT": clock_events,
        "infiniband_switch_port_transmit_wait_total": lambda history, _: _summed(
            np.repeat(_waiting(history), history.layout.spines_per_pod, axis=1), history
        ),
        "node_pcidevice_current_link_width": lambda history, _: history.levers.over_time("pcie_width"),
        "node_pcidevice_max_link_width": lambda history, _: _of_every_gpu(history, float(PCIE_WIDTH)),
        "node_pressure_cpu_waiting_seconds_total": cpu_pressure,
        "node_pressure_io_waiting_seconds_total": io_pressure,
        "node_kernel_hung_tasks_total": hung_tasks,
        "node_nfs_rpc_retransmissions_total": lambda history, rng: _happened(
            _sent_again(history).sum(axis=2), history, rng
        ),
        "FlowLitersPerMinute": lambda history, _: history.flow_lpm,
        "RatedFlowLitersPerMinute": rated_flow,
        "SupplyTemperatureCelsius": lambda history, _: history.supply_c,
        "ReturnTemperatureCelsius": lambda history, _: history.return_c,
        "HeatRemovedkW": lambda history, _: history.heat_kw,
        "redfish_chassis_power_powersupply_health": supplies,
        "slurm_nodes_maint": lambda history, _: _counted(history.levers.over_time("down")),
        "slurm_nodes_alloc": lambda history, _: _counted(_is_member(history)),
        "holdfast_run_step_seconds": lambda history, _: history.step_s[:, None],
        "holdfast_run_steps_total": lambda history, _: history.steps[:, None].astype(np.float64),
        "holdfast_run_checkpoint_seconds": lambda history, _: history.checkpoint_s[:, None],
        "holdfast_pool_transfer_seconds": lambda history, _: _flat(history.transfer_s),
        "vllm:nixl_xfer_time_seconds_count": lambda history, _: np.floor(
            _summed(_requests_per_s(history).sum(axis=1), history)
        ),
        "vllm:nixl_xfer_time_seconds_sum": lambda history, _: _summed(
            (_requests_per_s(history) * history.transfer_s).sum(axis=1), history
        ),
        "vllm:kv_cache_usage_perc": lambda history, _: history.cache_share,
        "dynamo_frontend_worker_last_time_to_first_token_seconds": lambda history, _: history.first_token_s,
    },
}
"""The reader of each metric, grouped by the beginning of its name."""
