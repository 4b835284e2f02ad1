"""Every metric the twin can show: its real name, whose it is, and how its sensor behaves.

The names are those of dcgm-exporter, node_exporter, infiniband_exporter, densewatch, Redfish, Slurm's
exporter, vLLM and Dynamo; Holdfast's own begin with `holdfast_`. No other names may be used.
"""

from typing import Literal

import msgspec

from holdfast.signals.frame import Kind
from holdfast.twin import readings
from holdfast.twin.readings import Read

Scope = Literal[
    "gpu",
    "clock_event",
    "xid",
    "port",
    "pci",
    "node",
    "nfs",
    "loop",
    "connector",
    "supply",
    "uplink",
    "slurm",
    "run",
    "member",
    "decode",
    "worker",
    "pair",
]
"""What a metric has a series for; `series` knows their labels."""
Trap = Literal["ns-or-us", "saturates", "fahrenheit", "watts", "words"]
"""What is known to go wrong with a metric in the field: its unit, its width, or words in place of numbers."""


class Sensor(msgspec.Struct, frozen=True, kw_only=True):
    """How truth becomes a reading.

    noise    of each reading, in the metric's unit
    spread   of the sensors among each other, relative
    quantum  readings are multiples of this; 0: they are not rounded
    sticks   now and then such a sensor shows one value for ever
    start    a counter is anywhere up to this when the looking begins
    """

    noise: float = 0.0
    spread: float = 0.0
    quantum: float = 0.0
    sticks: bool = False
    start: float = 0.0
    trap: Trap | None = None


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    scope: Scope
    read: Read
    meaning: str
    sensor: Sensor


_EXACT = Sensor()
_WHOLE = Sensor(quantum=1.0)

_SENSORS: dict[str, Sensor] = {
    "DCGM_FI_DEV_SM_CLOCK": Sensor(noise=4.0, quantum=15.0),
    "DCGM_FI_DEV_GPU_TEMP": Sensor(noise=0.4, spread=0.004, quantum=1.0, sticks=True),
    "DCGM_FI_DEV_MEMORY_TEMP": Sensor(noise=0.4, spread=0.006, quantum=1.0),
    "DCGM_FI_DEV_POWER_USAGE": Sensor(noise=5.0, spread=0.01, quantum=0.1, sticks=True),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Sensor(quantum=1.0, start=1e12),
    "DCGM_FI_DEV_GPU_UTIL": _WHOLE,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Sensor(noise=0.006, quantum=1e-6),
    "DCGM_FI_PROF_DRAM_ACTIVE": Sensor(noise=0.006, quantum=1e-6),
    "DCGM_FI_PROF_PCIE_RX_BYTES": Sensor(spread=0.01, quantum=1.0),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": Sensor(quantum=1.0, start=3),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Sensor(quantum=1.0, start=2),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": Sensor(quantum=1.0, start=1),
    "DCGM_FI_DEV_THERMAL_VIOLATION": Sensor(quantum=1.0, trap="ns-or-us"),
    "DCGM_FI_DEV_POWER_VIOLATION": Sensor(quantum=1.0, trap="ns-or-us"),
    "node_infiniband_symbol_error_total": Sensor(quantum=1.0, start=4),
    "node_infiniband_link_error_recovery_total": Sensor(quantum=1.0, start=2),
    "node_infiniband_link_downed_total": Sensor(quantum=1.0, start=2),
    "node_infiniband_port_transmit_wait_total": Sensor(quantum=1.0, start=1e9, trap="saturates"),
    "node_infiniband_port_data_transmitted_bytes_total": Sensor(quantum=4.0, start=1e15),
    "node_infiniband_port_data_received_bytes_total": Sensor(quantum=4.0, start=1e15),
    "infiniband_switch_port_transmit_wait_total": Sensor(quantum=1.0, start=1e9),
    "node_pressure_cpu_waiting_seconds_total": Sensor(quantum=1e-6, start=1e5),
    "node_pressure_io_waiting_seconds_total": Sensor(quantum=1e-6, start=1e5),
    "node_nfs_rpc_retransmissions_total": Sensor(quantum=1.0, start=40),
    "node_mountstats_nfs_operations_requests_total": Sensor(quantum=1.0, start=1e9),
    "node_mountstats_nfs_operations_transmissions_total": Sensor(quantum=1.0, start=1e9),
    "node_mountstats_nfs_operations_response_time_seconds_total": Sensor(quantum=1e-3, start=1e7),
    "densewatch_cdu_coolant_flow_lpm": Sensor(noise=0.8, quantum=0.1, sticks=True),
    "densewatch_cdu_coolant_supply_temp_celsius": Sensor(noise=0.05, quantum=0.1, trap="fahrenheit"),
    "densewatch_cdu_coolant_return_temp_celsius": Sensor(noise=0.05, quantum=0.1),
    "densewatch_cdu_heat_removed_kw": Sensor(noise=0.4, quantum=0.01, trap="watts"),
    "densewatch_cdu_pump_speed_percent": Sensor(noise=0.2, quantum=0.1),
    "FlowLitersPerMinute": Sensor(noise=0.8, quantum=0.01, trap="words"),
    "RatedFlowLitersPerMinute": Sensor(quantum=0.01, trap="words"),
    "SupplyTemperatureCelsius": Sensor(noise=0.05, quantum=0.01, trap="words"),
    "ReturnTemperatureCelsius": Sensor(noise=0.05, quantum=0.01, trap="words"),
    "HeatRemovedkW": Sensor(noise=0.4, quantum=0.01, trap="words"),
    "holdfast_pool_transfer_seconds": Sensor(noise=8e-4, quantum=1e-6),
    "vllm:nixl_xfer_time_seconds_count": Sensor(quantum=1.0, start=1e6),
    "vllm:nixl_xfer_time_seconds_sum": Sensor(quantum=1e-6, start=4e4),
    "vllm:kv_cache_usage_perc": Sensor(noise=0.01, quantum=1e-4),
    "dynamo_frontend_worker_last_time_to_first_token_seconds": Sensor(noise=0.006, quantum=1e-6),
}
"""Of those that are not exact."""

_Row = tuple[str, Kind, Scope, Read, str]

_DCGM: tuple[_Row, ...] = (
    ("SM_CLOCK", "gauge", "gpu", readings.sm_clock, "Clock of the multiprocessors (MHz)."),
    ("GPU_TEMP", "gauge", "gpu", readings.gpu_temperature, "Temperature of the GPU (C)."),
    ("MEMORY_TEMP", "gauge", "gpu", readings.memory_temperature, "Temperature of its memory (C)."),
    ("POWER_USAGE", "gauge", "gpu", readings.power, "Power it draws (W)."),
    (
        "TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "gpu",
        readings.energy,
        "Energy since the driver was loaded (mJ).",
    ),
    ("GPU_UTIL", "gauge", "gpu", readings.utilisation, "Time with a kernel on it, waiting or not (%)."),
    ("PCIE_REPLAY_COUNTER", "counter", "gpu", readings.pcie_replays, "PCIe retries."),
    ("XID_ERRORS", "gauge", "xid", readings.last_xid, "The last XID; never clears, and hides repeats."),
    ("ECC_SBE_VOL_TOTAL", "counter", "gpu", readings.corrected, "Memory errors that ECC corrected."),
    (
        "CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "gpu",
        readings.remapped,
        "Rows replaced after corrected errors.",
    ),
    (
        "UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "gpu",
        readings.lost_rows,
        "Rows replaced after other errors.",
    ),
    ("THERMAL_VIOLATION", "counter", "gpu", readings.hot_s, "Time with a low clock for heat (ns or us)."),
    ("POWER_VIOLATION", "counter", "gpu", readings.braked_s, "Time with a low clock for power (ns or us)."),
)

_PORT: tuple[_Row, ...] = (
    ("state_id", "gauge", "port", readings.port_state, "Logical state of the port (4: active)."),
    ("physical_state_id", "gauge", "port", readings.port_physical_state, "Physical state (5: link up)."),
    ("rate_bytes_per_second", "gauge", "port", readings.port_rate, "Rate the link was trained to."),
    ("symbol_error_total", "counter", "port", readings.symbol_errors, "Symbols with errors."),
    ("link_error_recovery_total", "counter", "port", readings.recoveries, "Times the link recovered."),
    ("link_downed_total", "counter", "port", readings.downs, "Times it failed to recover and went down."),
    (
        "port_transmit_wait_total",
        "counter",
        "port",
        readings.transmit_wait,
        "Ticks with data it might not send.",
    ),
    ("port_data_transmitted_bytes_total", "counter", "port", readings.sent_bytes, "Bytes sent."),
    ("port_data_received_bytes_total", "counter", "port", readings.sent_bytes, "Bytes received."),
)

_NFS: tuple[_Row, ...] = (
    ("requests_total", "counter", "nfs", readings.nfs_requests, "Requests, by operation."),
    ("transmissions_total", "counter", "nfs", readings.nfs_transmissions, "Requests, with those sent again."),
    ("major_timeouts_total", "counter", "nfs", readings.nfs_major_timeouts, "Major timeouts."),
    (
        "response_time_seconds_total",
        "counter",
        "nfs",
        readings.nfs_response,
        "Time until the replies, in all.",
    ),
)

_CDU: tuple[_Row, ...] = (
    ("coolant_flow_lpm", "gauge", "loop", readings.flow, "Coolant flow (L/min)."),
    ("coolant_supply_temp_celsius", "gauge", "loop", readings.supply, "Coolant to the racks."),
    ("coolant_return_temp_celsius", "gauge", "loop", readings.returned, "Coolant from the racks."),
    ("heat_removed_kw", "gauge", "loop", readings.heat, "Heat taken out of the racks."),
    ("pump_speed_percent", "gauge", "loop", readings.pump, "Speed asked of the pump."),
)

_MEMBER: tuple[_Row, ...] = (
    ("compute_seconds", "gauge", "member", readings.member_compute, "Last step: computing its lanes."),
    ("data_seconds", "gauge", "member", readings.member_data, "Last step: waiting for its data."),
    (
        "exchange_seconds",
        "gauge",
        "member",
        readings.member_exchange,
        "Last step: its part of the reduction.",
    ),
    ("wait_seconds", "gauge", "member", readings.member_wait, "Last step: waiting for the other members."),
    ("gc_seconds_total", "counter", "member", readings.member_collected, "In the garbage collector."),
)

_OTHERS: tuple[_Row, ...] = (
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "gpu", readings.tensor_active, "Tensor cores at work."),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "gpu",
        readings.memory_active,
        "Cycles in which memory moves data.",
    ),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "gpu", readings.pcie_received, "Received over PCIe (B/s)."),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", "gauge", "clock_event", readings.clock_events, "Low clocks, by reason."),
    (
        "infiniband_switch_port_transmit_wait_total",
        "counter",
        "uplink",
        readings.switch_wait,
        "Of an uplink.",
    ),
    ("node_pcidevice_current_link_width", "gauge", "pci", readings.pci_width, "PCIe lanes in use."),
    ("node_pcidevice_max_link_width", "gauge", "pci", readings.pci_width_max, "PCIe lanes it has."),
    ("node_pressure_cpu_waiting_seconds_total", "counter", "node", readings.cpu_pressure, "Waits for a CPU."),
    ("node_pressure_io_waiting_seconds_total", "counter", "node", readings.io_pressure, "Waits for I/O."),
    ("node_kernel_hung_tasks_total", "counter", "node", readings.hung_tasks, "Tasks stuck for two minutes."),
    ("node_nfs_rpc_retransmissions_total", "counter", "node", readings.retransmissions, "Calls sent again."),
    ("FlowLitersPerMinute", "gauge", "connector", readings.flow, "Redfish: coolant flow."),
    ("RatedFlowLitersPerMinute", "gauge", "connector", readings.rated_flow, "Redfish: what it is built for."),
    ("SupplyTemperatureCelsius", "gauge", "connector", readings.supply, "Redfish: coolant to the racks."),
    ("ReturnTemperatureCelsius", "gauge", "connector", readings.returned, "Redfish: coolant from the racks."),
    ("HeatRemovedkW", "gauge", "connector", readings.heat, "Redfish: heat taken out of the racks."),
    ("redfish_chassis_power_powersupply_health", "gauge", "supply", readings.supplies, "1 OK, 3 critical."),
    ("slurm_nodes_maint", "gauge", "slurm", readings.nodes_in_maintenance, "Nodes in maintenance."),
    ("slurm_nodes_alloc", "gauge", "slurm", readings.nodes_allocated, "Nodes given to jobs."),
    (
        "holdfast_run_step_seconds",
        "gauge",
        "run",
        readings.run_step,
        "Last step, with the wait for its data.",
    ),
    ("holdfast_run_steps_total", "counter", "run", readings.run_steps, "Steps committed."),
    (
        "holdfast_run_checkpoint_seconds",
        "gauge",
        "run",
        readings.run_checkpoint,
        "Last stall for a checkpoint.",
    ),
    ("holdfast_pool_transfer_seconds", "gauge", "pair", readings.pair_transfer, "A cache, engine to engine."),
    ("vllm:nixl_xfer_time_seconds_count", "counter", "decode", readings.transfers, "Caches that came."),
    ("vllm:nixl_xfer_time_seconds_sum", "counter", "decode", readings.transfer_time, "Their time, in all."),
    ("vllm:kv_cache_usage_perc", "gauge", "decode", readings.cache_usage, "How full a cache is (1: full)."),
    (
        "dynamo_frontend_worker_last_time_to_first_token_seconds",
        "gauge",
        "worker",
        readings.first_token,
        "Until the last request had its first token.",
    ),
)

_FAMILIES: tuple[tuple[str, tuple[_Row, ...]], ...] = (
    ("DCGM_FI_DEV_", _DCGM),
    ("node_infiniband_", _PORT),
    ("node_mountstats_nfs_operations_", _NFS),
    ("densewatch_cdu_", _CDU),
    ("holdfast_member_", _MEMBER),
    ("", _OTHERS),
)


def _catalogue() -> dict[str, Metric]:
    """The rows under their full names, each with its sensor. Counts that nothing is said of are exact."""
    return {
        prefix + name: Metric(
            name=prefix + name,
            kind=kind,
            scope=scope,
            read=read,
            meaning=meaning,
            sensor=_SENSORS.get(prefix + name, _EXACT),
        )
        for prefix, rows in _FAMILIES
        for name, kind, scope, read, meaning in rows
    }


CATALOGUE: dict[str, Metric] = _catalogue()
