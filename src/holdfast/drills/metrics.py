"""Every metric the twin can show: what it reads and how its sensor behaves.

The names are those of `signals.catalogue`, where kind, scope and meaning are; no others may be used.
"""

import msgspec

from holdfast.drills.readings import READS, Read
from holdfast.signals.catalogue import CATALOGUE as KNOWN
from holdfast.signals.catalogue import Metric as Known
from holdfast.signals.catalogue import Trap


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


class ShownMetric(msgspec.Struct, frozen=True, kw_only=True):
    """known: what everybody knows of it; read: what it would show if sensors were perfect."""

    known: Known
    read: Read
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


def _catalogue() -> dict[str, ShownMetric]:
    """Each with its sensor. Counts that nothing is said of are exact."""
    named = {prefix + name: read for prefix, reads in READS.items() for name, read in reads.items()}
    return {
        name: ShownMetric(known=KNOWN[name], read=read, sensor=_SENSORS.get(name, _EXACT))
        for name, read in named.items()
    }


CATALOGUE: dict[str, ShownMetric] = _catalogue()
