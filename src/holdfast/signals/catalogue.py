"""Every metric that Holdfast reads: its exact name, what it counts, in what unit, and what is wrong with it.

The names are those of dcgm-exporter, AMD's device-metrics-exporter and amd_smi_exporter, node_exporter,
ipmi_exporter, infiniband_exporter, the Redfish schema and its exporters, densewatch, lustre_exporter and
lustrefs-exporter, chrony_exporter, CoreDNS, Slurm's exporters, vLLM, SGLang, NIXL, Dynamo and NCCL's
inspector; Holdfast's own begin with `holdfast_`. A metric of another name can be read as well, but nothing is
known of it.
"""

from typing import Literal

import msgspec

from holdfast.signals.frame import Kind

Scope = Literal[
    "gpu",
    "clock_event",
    "xid",
    "port",
    "pci",
    "node",
    "disk",
    "filesystem",
    "fan",
    "netdev",
    "lustre",
    "resolver",
    "amd_smi",
    "nfs",
    "loop",
    "connector",
    "supply",
    "chassis",
    "switch",
    "uplink",
    "slurm",
    "run",
    "member",
    "decode",
    "worker",
    "pair",
]
"""What a metric has a series for, and so how its labels name a subject: `naming` knows."""
Trap = Literal[
    "ns-or-us",
    "saturates",
    "fahrenheit",
    "watts",
    "words",
    "never-clears",
    "four-byte-words",
    "counter-or-rate",
    "rpm-or-percent",
    "idles-low",
]
"""What is known to go wrong with a metric in the field.

ns-or-us: exporters disagree on the unit. saturates: stops at its width. fahrenheit, watts: some sensors have
that unit in spite of the name. words: text in place of a number. never-clears: shows the last error for ever.
four-byte-words: the kernel's own counter is a quarter of what node_exporter shows. counter-or-rate: by
version, a total that only grows or what moves in a second. rpm-or-percent: by machine; a label may tell.
idles-low: low as long as there is no work, to save power.
"""
COUNTER_SUFFIXES = ("_total", "_count", "_sum", "_bucket")


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. low, high: what physics allows; None: any number may be true.

    sensed: a sensor's reading of the world, which never stands quite still.
    """

    name: str
    kind: Kind
    unit: str
    scope: Scope
    meaning: str
    trap: Trap | None = None
    low: float | None = None
    high: float | None = None
    sensed: bool = False


_Row = tuple[str, str, str]
"""The end of a name, the unit, the meaning."""

_DCGM: tuple[_Row, ...] = (
    ("SM_CLOCK", "MHz", "Clock of the multiprocessors."),
    ("MEM_CLOCK", "MHz", "Clock of the memory."),
    ("GPU_TEMP", "C", "Temperature of the GPU."),
    ("MEMORY_TEMP", "C", "Temperature of its memory."),
    ("POWER_USAGE", "W", "Power it draws."),
    ("POWER_MGMT_LIMIT", "W", "Power it is held to: what was set, at most what the board allows."),
    ("ENFORCED_POWER_LIMIT", "W", "Power it is held to by all limits together."),
    ("FAN_SPEED", "%", "Speed asked of its own fan."),
    ("PCIE_LINK_GEN", "", "PCIe generation that its link was trained to."),
    ("PCIE_MAX_LINK_GEN", "", "PCIe generation that GPU and slot allow."),
    ("PCIE_LINK_WIDTH", "lanes", "PCIe lanes in use."),
    ("PCIE_MAX_LINK_WIDTH", "lanes", "PCIe lanes that GPU and slot have."),
    ("GPU_UTIL", "%", "Time with a kernel on it, waiting or not."),
    ("MEM_COPY_UTIL", "%", "Time in which memory was read or written."),
    ("FB_FREE", "MiB", "Memory that is free."),
    ("FB_USED", "MiB", "Memory in use."),
    ("FB_RESERVED", "MiB", "Memory that the driver keeps."),
    ("NVLINK_BANDWIDTH_TOTAL", "MB/s", "Over all of its NVLinks."),
    ("ROW_REMAP_FAILURE", "", "1: a row of memory could not be replaced."),
    ("RETIRED_PENDING", "pages", "Pages that will be retired at the next reset."),
)
_DCGM_COUNTS: tuple[_Row, ...] = (
    ("TOTAL_ENERGY_CONSUMPTION", "mJ", "Energy since the driver was loaded."),
    ("PCIE_REPLAY_COUNTER", "", "PCIe retries."),
    ("ECC_SBE_VOL_TOTAL", "", "Memory errors that ECC corrected, since the driver was loaded."),
    ("ECC_DBE_VOL_TOTAL", "", "Memory errors that ECC could not correct, since the driver was loaded."),
    ("ECC_SBE_AGG_TOTAL", "", "Memory errors that ECC corrected, ever."),
    ("ECC_DBE_AGG_TOTAL", "", "Memory errors that ECC could not correct, ever."),
    ("RETIRED_SBE", "pages", "Pages retired for corrected errors."),
    ("RETIRED_DBE", "pages", "Pages retired for others."),
    ("CORRECTABLE_REMAPPED_ROWS", "rows", "Rows replaced after corrected errors."),
    ("UNCORRECTABLE_REMAPPED_ROWS", "rows", "Rows replaced after other errors."),
    ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "", "NVLink: flow units with a wrong checksum."),
    ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "", "NVLink: data with a wrong checksum."),
    ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "", "NVLink: packets sent again."),
    ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "", "NVLink: times a link was trained again."),
    ("POWER_VIOLATION", "ns", "Time with a low clock for power."),
    ("THERMAL_VIOLATION", "ns", "Time with a low clock for heat."),
    ("SYNC_BOOST_VIOLATION", "ns", "Time with a low clock for the group's sake."),
    ("BOARD_LIMIT_VIOLATION", "ns", "Time with a low clock for the board's limit."),
    ("LOW_UTIL_VIOLATION", "ns", "Time with a low clock for want of work."),
    ("RELIABILITY_VIOLATION", "ns", "Time with a low clock for the voltage's reliability."),
)
_DCGM_SHARES: tuple[_Row, ...] = (
    ("GR_ENGINE_ACTIVE", "share", "Time with any engine at work."),
    ("SM_ACTIVE", "share", "Multiprocessors with a warp."),
    ("SM_OCCUPANCY", "share", "Warps in place, of those that fit."),
    ("PIPE_TENSOR_ACTIVE", "share", "Tensor cores at work."),
    ("DRAM_ACTIVE", "share", "Cycles in which memory moves data."),
    ("PCIE_TX_BYTES", "B/s", "Sent over PCIe."),
    ("PCIE_RX_BYTES", "B/s", "Received over PCIe."),
    ("NVLINK_TX_BYTES", "B/s", "Sent over NVLink."),
    ("NVLINK_RX_BYTES", "B/s", "Received over NVLink."),
)
_GPU_EXTRA: tuple[_Row, ...] = (
    ("DCGM_EXP_GPU_HEALTH_STATUS", "", "DCGM's own verdict, by watch."),
    ("DCGM_EXP_P2P_STATUS", "", "Whether a GPU reaches another of its node."),
    ("redfish_gpu_temperature_tlimit_celsius", "C", "How far a GPU is from its limit."),
    ("redfish_gpu_nvlink_bit_error_rate", "share", "NVLink: bits in error."),
)
_PORT_STATES: tuple[_Row, ...] = (
    ("state_id", "", "Logical state of the port (4: active)."),
    ("physical_state_id", "", "Physical state (5: link up)."),
    ("rate_bytes_per_second", "B/s", "Rate the link was trained to."),
    ("info", "", "Board and firmware."),
)
_PORT_COUNTS: tuple[_Row, ...] = (
    ("symbol_error_total", "", "Symbols with errors."),
    ("link_error_recovery_total", "", "Times the link recovered."),
    ("link_downed_total", "", "Times it failed to recover and went down."),
    ("local_link_integrity_errors_total", "", "Times there were too many local errors."),
    ("excessive_buffer_overrun_errors_total", "", "Times a buffer overran again and again."),
    ("port_errors_received_total", "", "Packets received with errors."),
    ("port_discards_received_total", "", "Packets received and thrown away."),
    ("port_discards_transmitted_total", "", "Packets not sent, for the port was down or congested."),
    ("port_constraint_errors_received_total", "", "Packets received against the rules of the partition."),
    ("port_constraint_errors_transmitted_total", "", "Packets not sent for these rules."),
    ("port_receive_remote_physical_errors_total", "", "Packets that somebody upstream had marked as bad."),
    ("port_receive_switch_relay_errors_total", "", "Packets that a switch could not pass on."),
    ("vl15_dropped_total", "", "Management packets dropped."),
    ("port_transmit_wait_total", "ticks", "Ticks with data it might not send."),
    ("port_data_transmitted_bytes_total", "B", "Bytes sent."),
    ("port_data_received_bytes_total", "B", "Bytes received."),
    ("port_packets_transmitted_total", "", "Packets sent."),
    ("port_packets_received_total", "", "Packets received."),
    ("out_of_sequence_packets_received_total", "", "RDMA: packets out of order."),
    ("packet_sequence_errors_total", "", "RDMA: naks for a wrong sequence."),
    ("local_ack_timeout_errors_total", "", "RDMA: acknowledgements that did not come."),
    ("rnr_nak_retry_packets_received_total", "", "RDMA: the receiver was not ready."),
    ("out_of_buffer_drops_total", "", "RDMA: packets without a buffer."),
    ("implied_nak_seq_errors_total", "", "RDMA: naks that were implied."),
    ("duplicate_requests_packets_total", "", "RDMA: requests that came twice."),
    ("np_cnp_packets_sent_total", "", "RoCE: congestion told to the sender."),
    ("np_ecn_marked_roce_packets_received_total", "", "RoCE: packets marked for congestion."),
    ("rp_cnp_packets_handled_total", "", "RoCE: congestion heeded as sender."),
    ("roce_slow_restart_total", "", "RoCE: restarts at a low rate."),
    ("roce_adp_retransmits_total", "", "RoCE: packets sent again."),
    ("roce_adp_retransmits_timeout_total", "", "RoCE: the same, for a timeout."),
    ("rx_icrc_encapsulated_errors_total", "", "RoCE: packets with a wrong checksum."),
)
_NETDEV_COUNTS: tuple[_Row, ...] = tuple(
    (f"{way}_prio{priority}_{what}", unit, f"PFC: {meaning}, priority {priority}.")
    for way, sense in (("received", "this host was told to wait"), ("transmitted", "it told the switch to"))
    for priority in range(8)
    for what, unit, meaning in (("pause", "", sense), ("pause_duration", "us", f"time for which {sense}"))
)
"""`rx_prio3_pause` and the like of `ethtool -S` on mlx5, as node_exporter spells them."""
_NETDEV: tuple[_Row, ...] = (
    ("receive_drop_total", "", "Packets received and dropped."),
    ("receive_errs_total", "", "Packets received with errors."),
    ("transmit_drop_total", "", "Packets dropped before they were sent."),
    ("transmit_errs_total", "", "Packets that could not be sent."),
    ("receive_bytes_total", "B", "Bytes received."),
    ("transmit_bytes_total", "B", "Bytes sent."),
)
_SWITCH_PORT: tuple[_Row, ...] = (
    ("symbol_error_total", "", "Switch: symbols with errors."),
    ("link_error_recovery_total", "", "Switch: times the link recovered."),
    ("link_downed_total", "", "Switch: times it went down."),
    ("transmit_wait_total", "ticks", "Of an uplink."),
)
_SWITCH: tuple[_Row, ...] = (
    ("switch_temperature_celsius", "C", "Temperature of a switch."),
    ("switch_fan_rpm", "1/min", "Speed of its fans."),
    ("switch_power_supply_watts", "W", "Power it draws."),
    ("switch_uplink_info", "", "Which port leads where."),
)
_NFS: tuple[_Row, ...] = (
    ("requests_total", "", "Requests, by operation."),
    ("transmissions_total", "", "Requests, with those sent again."),
    ("major_timeouts_total", "", "Major timeouts."),
    ("queue_time_seconds_total", "s", "Time until they were sent, in all."),
    ("response_time_seconds_total", "s", "Time until the replies, in all."),
    ("request_time_seconds_total", "s", "Both, in all."),
)
_HOST_COUNTS: tuple[_Row, ...] = (
    ("nfs_rpc_retransmissions_total", "", "Calls sent again."),
    ("nfs_rpcs_total", "", "Calls to NFS servers."),
    ("pressure_irq_stalled_seconds_total", "s", "Waits of everything for interrupts."),
    ("vmstat_pswpin", "pages", "Pages read back from swap."),
    ("vmstat_pswpout", "pages", "Pages written to swap."),
    ("vmstat_pgmajfault", "", "Page faults that needed a disk."),
    ("vmstat_oom_kill", "", "Processes killed for want of memory."),
    ("nf_conntrack_stat_drop", "", "Packets dropped, for the table of connections was full."),
    ("nf_conntrack_stat_insert_failed", "", "Connections that found no place in the table."),
    ("netstat_Tcp_RetransSegs", "", "TCP segments sent again."),
    ("netstat_Tcp_OutSegs", "", "TCP segments sent."),
    ("softnet_dropped_total", "", "Packets dropped, for a processor was too slow."),
    ("cpu_package_throttles_total", "", "Times a processor was slowed down for heat."),
    ("pressure_cpu_waiting_seconds_total", "s", "Waits for a CPU."),
    ("pressure_io_waiting_seconds_total", "s", "Waits for I/O."),
    ("pressure_io_stalled_seconds_total", "s", "Waits of everything for I/O."),
    ("pressure_memory_waiting_seconds_total", "s", "Waits for memory."),
    ("pressure_memory_stalled_seconds_total", "s", "Waits of everything for memory."),
    ("kernel_hung_tasks_total", "", "Tasks stuck for two minutes."),
    ("edac_correctable_errors_total", "", "Errors of host memory that were corrected."),
    ("edac_uncorrectable_errors_total", "", "Errors of host memory that were not."),
)
_DISK_COUNTS: tuple[_Row, ...] = (
    ("io_time_seconds_total", "s", "Time with any request under way; an NVMe at 1 may still have room."),
    ("io_time_weighted_seconds_total", "s", "The same, times the requests under way."),
    ("read_time_seconds_total", "s", "Time of all reads."),
    ("write_time_seconds_total", "s", "Time of all writes."),
    ("reads_completed_total", "", "Reads."),
    ("writes_completed_total", "", "Writes."),
    ("read_bytes_total", "B", "Bytes read."),
    ("written_bytes_total", "B", "Bytes written."),
)
_FILESYSTEM: tuple[_Row, ...] = (
    ("avail_bytes", "B", "Room for users."),
    ("size_bytes", "B", "Size of the file system."),
    ("files_free", "", "Files that may still be made."),
    ("files", "", "Files that it has room for."),
    ("readonly", "", "1: it can only be read."),
    ("device_error", "", "1: it did not say how full it is."),
)
_NVME: tuple[_Row, ...] = (
    ("temperature_celsius", "C", "Temperature of a drive."),
    ("percentage_used_ratio", "", "Of a drive's rated life; may be more than 1."),
    ("available_spare_ratio", "share", "Spare blocks that are left."),
)
_NVME_COUNTS: tuple[_Row, ...] = (
    ("critical_warning_total", "", "What a drive warns of, as bits."),
    ("media_errors_total", "", "Data that a drive could not recover."),
)
_HOST: tuple[_Row, ...] = (
    ("hwmon_temp_celsius", "C", "Temperature at a chip's sensor."),
    ("nvme_info", "", "A drive's model, firmware and state."),
    ("uname_info", "", "What a host calls itself."),
    ("load1", "", "Tasks that run or wait."),
    ("procs_blocked", "", "Tasks that wait for I/O."),
    ("memory_MemTotal_bytes", "B", "Memory of the host."),
    ("memory_MemAvailable_bytes", "B", "Memory to be had without swapping."),
    ("memory_SwapTotal_bytes", "B", "Room to swap to."),
    ("memory_SwapFree_bytes", "B", "Room to swap to that is left."),
    ("nf_conntrack_entries", "", "Connections in the table."),
    ("nf_conntrack_entries_limit", "", "Connections that it has room for."),
    ("timex_offset_seconds", "s", "How far the clock is off, by the kernel."),
    ("timex_maxerror_seconds", "s", "How far it may be off at most."),
    ("timex_estimated_error_seconds", "s", "How far it is off, by estimate."),
    ("timex_sync_status", "", "1: the clock is synchronised."),
)
_CHRONY: tuple[_Row, ...] = (
    ("last_offset_seconds", "s", "How far the clock was off at the last update."),
    ("rms_offset_seconds", "s", "The same, over a longer time."),
    ("root_dispersion_seconds", "s", "How far it may be off by all that lies between."),
    ("stratum", "", "Steps to a reference clock; 0: not synchronised."),
)
_IPMI: tuple[_Row, ...] = (
    ("temperature_celsius", "C", "Temperature at a sensor of the board, `Inlet Temp` among them."),
    ("temperature_state", "", "0 nominal, 1 warning, 2 critical."),
    ("power_watts", "W", "Power at a sensor of the board."),
    ("power_state", "", "0 nominal, 1 warning, 2 critical."),
    ("dcmi_power_consumption_current_watts", "W", "Power of the whole machine."),
    ("sensor_state", "", "0 nominal, 1 warning, 2 critical; of supplies `type` says so."),
)
_IPMI_FANS: tuple[_Row, ...] = (
    ("fan_speed_rpm", "1/min", "Speed of a fan."),
    ("fan_speed_ratio", "share", "Speed asked of a fan."),
    ("fan_speed_state", "", "0 nominal, 1 warning, 2 critical."),
)
_HWMON_FANS: tuple[_Row, ...] = (
    ("fan_rpm", "1/min", "Speed of a fan; 0 where none is plugged in."),
    ("fan_min_rpm", "1/min", "The least it may have."),
    ("fan_alarm", "", "1: too slow, by the chip."),
)
_LUSTRE_COUNTS: tuple[_Row, ...] = (
    ("read_samples_total", "", "Lustre: reads."),
    ("write_samples_total", "", "Lustre: writes."),
    ("read_bytes_total", "B", "Lustre: bytes read."),
    ("write_bytes_total", "B", "Lustre: bytes written."),
    ("stats_total", "", "Lustre: operations."),
    ("stats_time_total", "us", "Lustre: time of the operations."),
)
_LUSTRE: tuple[_Row, ...] = (
    ("rpcs_in_flight", "", "Lustre: requests under way, by how many at once."),
    ("available_kilobytes", "KiB", "Lustre: room that is left."),
    ("capacity_kilobytes", "KiB", "Lustre: size."),
    ("health_check", "", "Lustre: 1 healthy, 0 not."),
)
_RESOLVER_COUNTS: tuple[_Row, ...] = (
    ("coredns_dns_request_duration_seconds_sum", "s", "CoreDNS: time of all answers."),
    ("coredns_dns_request_duration_seconds_count", "", "CoreDNS: answers."),
)
_PROBE: tuple[_Row, ...] = (
    ("probe_dns_lookup_time_seconds", "s", "blackbox_exporter: how long a name took to look up."),
)
_PCI: tuple[_Row, ...] = (
    ("current_link_width", "lanes", "PCIe lanes in use."),
    ("max_link_width", "lanes", "PCIe lanes it has."),
    ("current_link_transfers_per_second", "1/s", "PCIe: rate of a lane."),
    ("max_link_transfers_per_second", "1/s", "PCIe: rate it is built for."),
)
_CDU: tuple[_Row, ...] = (
    ("coolant_flow_lpm", "L/min", "Coolant flow."),
    ("coolant_supply_temp_celsius", "C", "Coolant to the racks."),
    ("coolant_return_temp_celsius", "C", "Coolant from the racks."),
    ("heat_removed_kw", "kW", "Heat taken out of the racks."),
    ("pump_speed_percent", "%", "Speed asked of the pump."),
    ("leak_detected", "", "1: there is water where none should be."),
)
_CONNECTOR: tuple[_Row, ...] = (
    ("FlowLitersPerMinute", "L/min", "Redfish: coolant flow."),
    ("RatedFlowLitersPerMinute", "L/min", "Redfish: what it is built for."),
    ("SupplyTemperatureCelsius", "C", "Redfish: coolant to the racks."),
    ("ReturnTemperatureCelsius", "C", "Redfish: coolant from the racks."),
    ("DeltaTemperatureCelsius", "K", "Redfish: how much warmer it comes back."),
    ("SupplyPressurekPa", "kPa", "Redfish: pressure to the racks."),
    ("ReturnPressurekPa", "kPa", "Redfish: pressure from the racks."),
    ("DeltaPressurekPa", "kPa", "Redfish: what the racks take of it."),
    ("HeatRemovedkW", "kW", "Redfish: heat taken out of the racks."),
    ("ValvePositionPercent", "%", "Redfish: how far the valve is open."),
    ("PumpSpeedPercent", "%", "Redfish: speed of a pump."),
    ("FluidLevelPercent", "%", "Redfish: how full a reservoir is."),
    ("FluidLevelStatus", "", "Redfish: the same in a word."),
    ("ServiceHours", "h", "Redfish: how long a filter has been in use."),
)
_CHASSIS: tuple[_Row, ...] = (
    ("temperature_celsius", "C", "Temperature at a chassis' sensor, its inlet's among them."),
    ("fan_rpm", "1/min", "Speed of a fan."),
    ("fan_rpm_percentage", "%", "Speed of a fan, of what it can."),
    ("fan_health", "", "1 OK, 2 warning, 3 critical."),
    ("power_average_consumed_watts", "W", "Power it draws."),
    ("power_powersupply_power_input_watts", "W", "Power into a supply."),
    ("power_powersupply_power_output_watts", "W", "Power out of a supply."),
    ("leak_detector_health", "", "1 OK, 2 warning, 3 critical."),
)
_AMD: tuple[_Row, ...] = (
    ("gpu_junction_temperature", "C", "AMD: hottest spot of a GPU."),
    ("gpu_edge_temperature", "C", "AMD: edge of a GPU (MI200)."),
    ("gpu_memory_temperature", "C", "AMD: its memory."),
    ("gpu_package_power", "W", "AMD: power it draws."),
    ("gpu_average_package_power", "W", "AMD: power it draws, on average (MI200)."),
    ("gpu_power_usage", "W", "AMD: power it draws."),
    ("gpu_gfx_activity", "%", "AMD: time with the engine at work."),
    ("gpu_umc_activity", "%", "AMD: time in which memory was read or written."),
    ("gpu_clock", "MHz", "AMD: clocks, by `clock_type`; `system` is that of the compute units."),
    ("gpu_used_vram", "MiB", "AMD: memory in use."),
    ("gpu_free_vram", "MiB", "AMD: memory that is free."),
    ("pcie_speed", "GT/s", "AMD: rate of a PCIe lane."),
    ("pcie_max_speed", "GT/s", "AMD: rate it is built for."),
    ("gpu_violation_ppt_residency_percentage", "%", "AMD: time with a low clock for power."),
    ("gpu_violation_processor_hot_residency_percentage", "%", "AMD: time with a low clock for heat."),
    ("gpu_violation_socket_thermal_residency_percentage", "%", "AMD: the same, of the socket."),
    ("gpu_violation_vr_thermal_residency_percentage", "%", "AMD: the same, of the voltage regulators."),
    ("gpu_violation_hbm_thermal_residency_percentage", "%", "AMD: the same, of the memory."),
    ("gpu_health", "", "AMD: 1 healthy, 0 not."),
)
_AMD_COUNTS: tuple[_Row, ...] = (
    ("gpu_energy_consumed", "uJ", "AMD: energy since the driver was loaded."),
    ("gpu_ecc_correct_total", "", "AMD: memory errors that were corrected."),
    ("gpu_ecc_uncorrect_total", "", "AMD: memory errors that were not."),
    ("pcie_replay_count", "", "AMD: PCIe retries."),
    ("gpu_xgmi_link_rx", "KB", "AMD: received over an XGMI link."),
    ("gpu_xgmi_link_tx", "KB", "AMD: sent over an XGMI link."),
)
_AMD_SMI: tuple[_Row, ...] = (
    ("gpu_power", "uW", "amd_smi_exporter: power it draws."),
    ("gpu_power_cap", "uW", "amd_smi_exporter: power it is held to."),
    ("gpu_current_temperature", "mC", "amd_smi_exporter: temperature."),
    ("gpu_SCLK", "Hz", "amd_smi_exporter: clock of the compute units."),
    ("gpu_MCLK", "Hz", "amd_smi_exporter: clock of the memory."),
    ("gpu_use_percent", "%", "amd_smi_exporter: time with the engine at work."),
)
_THROTTLE: tuple[_Row, ...] = (
    ("thermal_throttle_duration_seconds_total", "s", "Time with a low clock for heat."),
    ("power_throttle_duration_seconds_total", "s", "Time with a low clock for power."),
)
_SLURM: tuple[_Row, ...] = tuple(
    (f"nodes_{state}", "nodes", f"Nodes {meaning}.")
    for state, meaning in (
        ("alloc", "given to jobs"),
        ("comp", "completing"),
        ("down", "down"),
        ("drain", "drained or draining"),
        ("err", "in error"),
        ("fail", "failed or failing"),
        ("idle", "idle"),
        ("maint", "in maintenance"),
        ("mix", "shared by jobs"),
        ("resv", "reserved"),
    )
)
_RUN: tuple[_Row, ...] = (
    ("step_seconds", "s", "Last step, with the wait for its data."),
    ("checkpoint_seconds", "s", "Last stall for a checkpoint."),
    ("checkpoint_write_seconds", "s", "The last checkpoint, until it was durable."),
    ("steps_planned", "steps", "The step that the run is to end with."),
    ("loss", "", "Loss of the last step."),
    ("generation", "", "Counts changes of the members."),
    ("members", "", "Members that take part."),
    ("nodes", "nodes", "Nodes that are there."),
    ("lanes", "", "Lanes of a step."),
    ("info", "", "What runs, in its labels: image, nccl, driver, config."),
)
_MEMBER: tuple[_Row, ...] = (
    ("compute_seconds", "s", "Last step: computing its lanes."),
    ("data_seconds", "s", "Last step: waiting for its data."),
    ("exchange_seconds", "s", "Last step: its part of the reduction."),
    ("wait_seconds", "s", "Last step: waiting for the other members."),
    ("checkpoint_seconds", "s", "Last step: standing still for a checkpoint."),
    ("lanes", "", "Lanes that it computes."),
    ("waiting", "", "1 while it waits for others, in the reduction or elsewhere."),
    ("in_step", "", "1 from its first lane to its commit, 0 between steps."),
)
_MEMBER_COUNTS: tuple[_Row, ...] = (
    ("compute_seconds_total", "s", "Computing its lanes, in all."),
    ("data_seconds_total", "s", "Waiting for its data, in all."),
    ("exchange_seconds_total", "s", "Its part of the reductions, in all."),
    ("wait_seconds_total", "s", "Waiting for the other members, in all."),
    ("checkpoint_seconds_total", "s", "Standing still for checkpoints, in all."),
    ("gc_seconds_total", "s", "In the garbage collector, in all."),
    ("steps_total", "steps", "Steps that it has measured."),
    ("resent_segments_total", "", "TCP segments sent to other members again."),
    ("alloc_retries_total", "", "Times the allocator freed cached memory and tried again."),
)
_ENGINE: tuple[_Row, ...] = (
    ("vllm:kv_cache_usage_perc", "share", "How full a cache is (1: full)."),
    ("sglang:kv_transfer_latency_ms", "ms", "SGLang: the last transfer of a cache."),
    ("sglang:kv_transfer_speed_gb_s", "GB/s", "SGLang: its rate."),
    ("sglang:kv_transfer_total_mb", "MB", "SGLang: its size."),
    ("sglang:num_decode_transfer_queue_reqs", "", "SGLang: requests that wait for a transfer."),
    ("sglang:num_prefill_bootstrap_queue_reqs", "", "SGLang: requests that wait for a partner."),
    ("sglang:num_prefill_inflight_queue_reqs", "", "SGLang: transfers under way."),
    ("agent_xfer_time_us", "us", "NIXL: the last transfer."),
    ("agent_xfer_post_time_us", "us", "NIXL: the time to post it."),
)
_ENGINE_COUNTS: tuple[_Row, ...] = (
    ("vllm:nixl_xfer_time_seconds_count", "", "Caches that came."),
    ("vllm:nixl_xfer_time_seconds_sum", "s", "Their time, in all."),
    ("vllm:nixl_bytes_transferred_sum", "B", "Their bytes, in all."),
    ("vllm:nixl_num_failed_transfers_total", "", "Transfers that failed."),
    ("vllm:nixl_num_failed_notifications_total", "", "Notifications that failed."),
    ("vllm:nixl_num_kv_expired_reqs_total", "", "Requests whose cache was gone before it was fetched."),
    ("sglang:num_transfer_failed_reqs_total", "", "SGLang: transfers that failed."),
    ("sglang:num_bootstrap_failed_reqs_total", "", "SGLang: requests that found no partner."),
    ("agent_tx_bytes_total", "B", "NIXL: bytes sent."),
    ("agent_rx_bytes_total", "B", "NIXL: bytes received."),
    ("agent_errors_total", "", "NIXL: errors, by status."),
)
_WORKER: tuple[_Row, ...] = (
    ("last_time_to_first_token_seconds", "s", "Until the last request had its first token."),
    ("last_inter_token_latency_seconds", "s", "Between the last request's tokens."),
)

_FAMILIES: tuple[tuple[str, Kind, Scope, tuple[_Row, ...]], ...] = (
    ("DCGM_FI_DEV_", "gauge", "gpu", _DCGM),
    ("DCGM_FI_DEV_", "counter", "gpu", _DCGM_COUNTS),
    ("DCGM_FI_PROF_", "gauge", "gpu", _DCGM_SHARES),
    (
        "DCGM_FI_DEV_",
        "gauge",
        "xid",
        (("XID_ERRORS", "", "The last XID; never clears, and hides repeats."),),
    ),
    ("DCGM_EXP_", "gauge", "xid", (("XID_ERRORS_COUNT", "", "XIDs in a window, by code."),)),
    ("DCGM_EXP_", "gauge", "clock_event", (("CLOCK_EVENTS_COUNT", "", "Low clocks, by reason."),)),
    ("", "gauge", "gpu", _GPU_EXTRA),
    ("", "gauge", "gpu", _AMD),
    ("", "counter", "gpu", _AMD_COUNTS),
    ("amd_", "gauge", "gpu", _AMD),
    ("amd_", "counter", "gpu", _AMD_COUNTS),
    ("amd_", "gauge", "amd_smi", _AMD_SMI),
    ("redfish_gpu_", "counter", "gpu", (("nvlink_symbol_errors", "", "NVLink: symbols with errors."),)),
    ("redfish_telemetry_", "counter", "gpu", _THROTTLE),
    ("node_infiniband_", "gauge", "port", _PORT_STATES),
    ("node_infiniband_", "counter", "port", _PORT_COUNTS),
    ("infiniband_switch_port_", "counter", "uplink", _SWITCH_PORT),
    ("infiniband_", "gauge", "switch", _SWITCH),
    ("node_mountstats_nfs_operations_", "counter", "nfs", _NFS),
    ("node_pcidevice_", "gauge", "pci", _PCI),
    ("node_ethtool_", "counter", "netdev", _NETDEV_COUNTS),
    ("node_network_", "counter", "netdev", _NETDEV),
    ("node_disk_", "counter", "disk", _DISK_COUNTS),
    ("node_filesystem_", "gauge", "filesystem", _FILESYSTEM),
    ("node_hwmon_", "gauge", "fan", _HWMON_FANS),
    ("nvme_", "gauge", "disk", _NVME),
    ("nvme_", "counter", "disk", _NVME_COUNTS),
    ("ipmi_", "gauge", "fan", _IPMI_FANS),
    ("ipmi_", "gauge", "node", _IPMI),
    ("chrony_tracking_", "gauge", "node", _CHRONY),
    ("lustre_", "gauge", "lustre", _LUSTRE),
    ("lustre_", "counter", "lustre", _LUSTRE_COUNTS),
    ("", "gauge", "node", _PROBE),
    ("", "counter", "resolver", _RESOLVER_COUNTS),
    ("node_", "counter", "node", _HOST_COUNTS),
    ("node_", "gauge", "node", _HOST),
    ("kube_", "gauge", "node", (("pod_container_info", "", "Kubernetes: the image of a container."),)),
    ("densewatch_cdu_", "gauge", "loop", _CDU),
    ("", "gauge", "connector", _CONNECTOR),
    ("redfish_chassis_", "gauge", "chassis", _CHASSIS),
    (
        "redfish_chassis_",
        "gauge",
        "supply",
        (("power_powersupply_health", "", "1 OK, 2 warning, 3 critical."),),
    ),
    ("slurm_", "gauge", "slurm", _SLURM),
    ("holdfast_run_", "gauge", "run", _RUN),
    ("holdfast_run_", "counter", "run", (("steps_total", "steps", "Steps committed."),)),
    ("holdfast_member_", "gauge", "member", _MEMBER),
    ("holdfast_member_", "counter", "member", _MEMBER_COUNTS),
    ("holdfast_pool_", "gauge", "pair", (("transfer_seconds", "s", "A cache, engine to engine."),)),
    ("", "gauge", "decode", _ENGINE),
    ("", "counter", "decode", _ENGINE_COUNTS),
    ("dynamo_frontend_worker_", "gauge", "worker", _WORKER),
    (
        "nccl_",
        "gauge",
        "gpu",
        (
            ("bus_bandwidth_gbs", "GB/s", "NCCL's inspector: bandwidth of a collective."),
            ("collective_exec_time_microseconds", "us", "NCCL's inspector: its time."),
        ),
    ),
)

_TRAPS: dict[str, Trap] = {
    **{f"DCGM_FI_DEV_{name}": "ns-or-us" for name, unit, _ in _DCGM_COUNTS if unit == "ns"},
    "DCGM_FI_DEV_XID_ERRORS": "never-clears",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "counter-or-rate",
    "DCGM_FI_DEV_PCIE_LINK_GEN": "idles-low",
    "redfish_chassis_fan_rpm": "rpm-or-percent",
    "node_infiniband_port_transmit_wait_total": "saturates",
    "infiniband_switch_port_transmit_wait_total": "saturates",
    "node_infiniband_port_data_transmitted_bytes_total": "four-byte-words",
    "node_infiniband_port_data_received_bytes_total": "four-byte-words",
    "densewatch_cdu_coolant_supply_temp_celsius": "fahrenheit",
    "densewatch_cdu_coolant_return_temp_celsius": "fahrenheit",
    "densewatch_cdu_heat_removed_kw": "watts",
    **{name: "words" for name, _, _ in _CONNECTOR},
}

_BOUNDS_BY_UNIT: dict[str, tuple[float, float]] = {
    "%": (-5, 105),
    "share": (-0.05, 1.05),
    "MHz": (0, 5_000),
    "W": (0, 5_000),
    "kW": (0, 5_000),
    "L/min": (0, 10_000),
    "1/min": (0, 100_000),
    "kPa": (0, 2_000),
    "K": (-20, 80),
    "lanes": (0, 32),
    "C": (-20, 150),
    "s": (0, float("inf")),
    "ms": (0, float("inf")),
    "us": (0, float("inf")),
    "MiB": (0, float("inf")),
}
"""Of gauges, with what a sensor may be off by. The largest coolant distribution units move less than 5 MW,
and the hottest chip allowed is far below 150 C."""
_BOUNDS: dict[str, tuple[float, float]] = {
    "DCGM_FI_DEV_GPU_TEMP": (1, 130),
    "DCGM_FI_DEV_MEMORY_TEMP": (1, 130),
    "DCGM_FI_DEV_PCIE_LINK_GEN": (0, 10),
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": (0, 10),
    "node_timex_offset_seconds": (-1e9, 1e9),
    "chrony_tracking_last_offset_seconds": (-1e9, 1e9),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (0, 1e12),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (0, 1e12),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (0, 1e13),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (0, 1e13),
    "densewatch_cdu_coolant_supply_temp_celsius": (1, 65),
    "densewatch_cdu_coolant_return_temp_celsius": (1, 90),
    "SupplyTemperatureCelsius": (1, 65),
    "ReturnTemperatureCelsius": (1, 90),
}
_SENSED = {
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "densewatch_cdu_coolant_flow_lpm",
    "densewatch_cdu_coolant_supply_temp_celsius",
    "densewatch_cdu_coolant_return_temp_celsius",
    "densewatch_cdu_heat_removed_kw",
    "FlowLitersPerMinute",
    "SupplyTemperatureCelsius",
    "ReturnTemperatureCelsius",
    "HeatRemovedkW",
    "infiniband_switch_temperature_celsius",
    "gpu_junction_temperature",
    "gpu_memory_temperature",
    "gpu_package_power",
}


def _metric(name: str, kind: Kind, unit: str, scope: Scope, meaning: str) -> Metric:
    bounds = _BOUNDS.get(name, _BOUNDS_BY_UNIT.get(unit)) if kind == "gauge" else None
    low, high = bounds or (None, None)
    return Metric(
        name=name,
        kind=kind,
        unit=unit,
        scope=scope,
        meaning=meaning,
        trap=_TRAPS.get(name),
        low=low,
        high=high,
        sensed=name in _SENSED,
    )


CATALOGUE: dict[str, Metric] = {
    prefix + name: _metric(prefix + name, kind, unit, scope, meaning)
    for prefix, kind, scope, rows in _FAMILIES
    for name, unit, meaning in rows
}


def describe(name: str) -> Metric:
    """What is known of a metric. Of one that is not in the catalogue, what its name tells."""
    known = CATALOGUE.get(name)
    if known is not None:
        return known
    kind: Kind = "counter" if name.endswith(COUNTER_SUFFIXES) else "gauge"
    scopes = [scope for prefix, _, scope, _ in _FAMILIES if prefix and name.startswith(prefix)]
    return Metric(name=name, kind=kind, unit="", scope=scopes[0] if scopes else "node", meaning="")
