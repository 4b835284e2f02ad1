"""The rules for machine readings, as data: one rule a sign.

A rule names a metric, what to compare it with, and from which difference on it matters. A difference counts
when it is at least `least`, at least `least_share` of the usual value, and `SIGMAS` times the sensor's
scatter, for `scrapes` consecutive observations. Limits come from published field practice if there is any,
and say so. Health states that boards report are compared with the past: a fan that has been in a warning
state for months is not new.
"""

from typing import Literal

import msgspec

from holdfast.detect.finding import Method
from holdfast.detect.signs import MEANINGS, Sign

SIGMAS = 6.0
"""So high that none of the million readings of half an hour reaches it by chance."""

View = Literal["value", "rate"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to look for.

    view         the reading itself, or its growth per second
    scale        from the metric's unit to `unit`
    against      past: the earlier readings of the same series; limit: `limit`
    falls        lower values are wrong
    named        only series with one of these words in a label
    grave        a hardware fault by itself, whether or not any run feels it
    """

    sign: Sign
    metric: str
    unit: str
    note: str
    view: View = "value"
    scale: float = 1.0
    against: Method = "past"
    limit: float = 0.0
    least: float = 0.0
    least_share: float = 0.0
    falls: bool = False
    scrapes: int = 3
    named: tuple[str, ...] = ()
    grave: bool = False


SYMBOLS_LEAST = 1.0
"""Per second, more than before. A clean link has a few in a week."""
WAIT_TICKS_LEAST = 1e6
"""A tick is some 22 ns, so this is about a fiftieth of the time."""
GROWTHS = ("/s", "of the time")
"""A unit with one of these endings belongs to the growth of a counter."""

INFINIBAND, SWITCH = "node_infiniband_{}_total", "infiniband_switch_port_{}_total"
NVLINK = "DCGM_FI_DEV_NVLINK_{}_ERROR_COUNT_TOTAL"
PAUSES = [f"node_ethtool_received_prio{priority}_pause" for priority in range(8)]
INLETS = ("inlet", "ambient", "intake")


class _Criterion(msgspec.Struct, frozen=True):
    """How a sign shows in a metric, in terms of `Rule`: against a limit if one is given, else the past."""

    sign: Sign
    note: str
    unit: str = ""
    limit: float | None = None
    least: float = 0.0
    least_share: float = 0.0
    falls: bool = False
    scale: float = 1.0
    scrapes: int = 3
    named: tuple[str, ...] = ()
    grave: bool = False

    def on(self, *metrics: str) -> tuple[Rule, ...]:
        """The rule for each of these metrics."""
        told = msgspec.structs.asdict(self) | {
            "limit": self.limit or 0.0,
            "against": "past" if self.limit is None else "limit",
            "view": "rate" if self.unit.endswith(GROWTHS) else "value",
        }
        return tuple(Rule(metric=metric, **told) for metric in metrics)


RULES: tuple[Rule, ...] = (
    # -- cooling and power -------------------------------------------------------------------------
    *_Criterion("low-flow", "coolant flow has fallen", "L/min", least_share=0.08, falls=True, scrapes=2).on(
        "densewatch_cdu_coolant_flow_lpm", "FlowLitersPerMinute"
    ),
    *_Criterion("pump-strained", "the pump works harder than usual", "%", least=10.0, scrapes=2).on(
        "densewatch_cdu_pump_speed_percent"
    ),
    *_Criterion("warm-supply", "coolant comes in warmer than usual", "C", least=1.5).on(
        "densewatch_cdu_coolant_supply_temp_celsius", "SupplyTemperatureCelsius"
    ),
    *_Criterion("leak", "a leak is reported", limit=0.5, scrapes=2).on("densewatch_cdu_leak_detected"),
    *_Criterion("failed-supply", "a power supply is not healthy", limit=1.5, scrapes=2).on(
        "redfish_chassis_power_powersupply_health"
    ),
    # -- GPUs --------------------------------------------------------------------------------------
    *_Criterion("memory-errors", "memory errors are being corrected", "/s", limit=0.5, grave=True).on(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
    ),
    *_Criterion(
        "uncorrected-errors", "memory errors could not be corrected", "/s", limit=0.0, scrapes=1, grave=True
    ).on("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    *_Criterion("lost-rows", "memory rows were lost", least=0.5, scrapes=2, grave=True).on(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE"
    ),
    *_Criterion("remapped-rows", "memory rows were replaced", "/s", limit=0.0, scrapes=1, grave=True).on(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"
    ),
    *_Criterion("lost-rows", "memory rows were lost", "/s", limit=0.0, scrapes=1, grave=True).on(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
    ),
    *_Criterion("bus-replays", "PCIe transfers are being repeated", "/s", limit=0.5, scrapes=2).on(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    ),
    *_Criterion("nvlink-errors", "NVLink has errors", "/s", limit=1.0).on(
        *map(NVLINK.format, ("CRC_FLIT", "CRC_DATA", "REPLAY"))
    ),
    # Links retrain when they were nearly down. More than once a minute means a bad link.
    *_Criterion("nvlink-errors", "NVLink has errors", "/s", limit=1 / 60).on(NVLINK.format("RECOVERY")),
    # -- fabric ------------------------------------------------------------------------------------
    # NVSentinel calls a link degraded from ten symbol errors a second or five recoveries a minute on, and
    # calls any link that goes down fatal.
    *_Criterion("symbol-errors", "symbols arrive corrupted", "/s", limit=10.0, scrapes=2).on(
        INFINIBAND.format("symbol_error"), SWITCH.format("symbol_error")
    ),
    *_Criterion("symbol-errors", "symbols arrive corrupted", "/s", least=SYMBOLS_LEAST, least_share=4.0).on(
        INFINIBAND.format("symbol_error"), SWITCH.format("symbol_error")
    ),
    *_Criterion("link-down", "the port is not active", least=0.5, falls=True, scrapes=2).on(
        "node_infiniband_state_id"
    ),
    *_Criterion("link-down", "the link went down", "/s", limit=0.0, scrapes=1).on(
        INFINIBAND.format("link_downed"), SWITCH.format("link_downed")
    ),
    *_Criterion("link-recoveries", "the link is not up", least=0.5, scrapes=2).on(
        "node_infiniband_physical_state_id"
    ),
    *_Criterion("link-recoveries", "the link keeps retraining", "/s", limit=5 / 60, scrapes=2).on(
        INFINIBAND.format("link_error_recovery"), SWITCH.format("link_error_recovery")
    ),
    *_Criterion(
        "port-waits", "data wait to be sent", "ticks/s", least=WAIT_TICKS_LEAST, least_share=4.0, scrapes=2
    ).on(INFINIBAND.format("port_transmit_wait")),
    *_Criterion(
        "uplink-waits",
        "the switch's uplinks are crowded",
        "ticks/s",
        least=WAIT_TICKS_LEAST,
        least_share=4.0,
        scrapes=2,
    ).on(SWITCH.format("transmit_wait")),
    *(
        rule
        for metric, least in (
            (INFINIBAND.format("local_ack_timeout_errors"), 0.2),
            (INFINIBAND.format("packet_sequence_errors"), 2.0),
            (INFINIBAND.format("out_of_sequence_packets_received"), 20.0),
            (INFINIBAND.format("roce_adp_retransmits"), 2.0),
            (INFINIBAND.format("rx_icrc_encapsulated_errors"), 0.2),
            (INFINIBAND.format("roce_adp_retransmits_timeout"), 0.2),
            ("holdfast_member_resent_segments_total", 5.0),
        )
        for rule in _Criterion(
            "resent-packets", "packets are lost and sent again", "/s", least=least, least_share=4.0, scrapes=2
        ).on(metric)
    ),
    *(
        rule
        for kind, least in (
            ("port_errors_received", 0.2),
            ("local_link_integrity_errors", 0.1),
            ("port_discards_received", 10.0),
        )
        for rule in _Criterion(
            "damaged-packets",
            "packets arrive damaged, or cannot be taken",
            "/s",
            least=least,
            least_share=4.0,
            scrapes=2,
        ).on(INFINIBAND.format(kind))
    ),
    *_Criterion(
        "port-waits", "senders receive congestion notices", "/s", least=500.0, least_share=4.0, scrapes=2
    ).on(
        INFINIBAND.format("np_cnp_packets_sent"),
        INFINIBAND.format("np_ecn_marked_roce_packets_received"),
        INFINIBAND.format("rp_cnp_packets_handled"),
    ),
    *_Criterion(
        "port-waits",
        "the network tells this host to wait",
        "share of the time",
        least=0.02,
        least_share=4.0,
        scale=1e-6,
        scrapes=2,
    ).on(*(f"{pause}_duration" for pause in PAUSES)),
    *_Criterion(
        "port-waits", "the network tells this host to wait", "/s", least=500.0, least_share=4.0, scrapes=2
    ).on(*PAUSES),
    # -- hosts -------------------------------------------------------------------------------------
    *_Criterion(
        "slow-fan", "a fan turns slower than usual", "1/min", least=500.0, least_share=0.25, falls=True
    ).on("node_hwmon_fan_rpm", "ipmi_fan_speed_rpm", "redfish_chassis_fan_rpm"),
    *_Criterion("slow-fan", "a fan is unhealthy, according to its board", least=0.5, scrapes=2).on(
        "ipmi_fan_speed_state", "redfish_chassis_fan_health", "node_hwmon_fan_alarm"
    ),
    *_Criterion("warm-inlet", "air comes in warmer than usual", "C", least=3.0, named=INLETS).on(
        "redfish_chassis_temperature_celsius", "ipmi_temperature_celsius", "node_hwmon_temp_celsius"
    ),
    *_Criterion(
        "warm-inlet", "air comes in too warm, according to the board", least=0.5, scrapes=2, named=INLETS
    ).on("ipmi_temperature_state"),
    *_Criterion(
        "failed-supply", "a power supply is unhealthy, according to its board", least=0.5, scrapes=2
    ).on("ipmi_power_state"),
    *_Criterion(
        "failed-supply",
        "a power supply is unhealthy, according to its board",
        least=0.5,
        scrapes=2,
        named=("power supply", "power unit"),
    ).on("ipmi_sensor_state"),
    *_Criterion("io-pressure", "tasks wait for I/O", "share of the time", least=0.08).on(
        "node_pressure_io_waiting_seconds_total"
    ),
    *_Criterion("memory-pressure", "tasks wait for memory", "share of the time", least=0.05).on(
        "node_pressure_memory_waiting_seconds_total"
    ),
    *_Criterion("cpu-pressure", "tasks wait for a processor", "share of the time", least=0.08).on(
        "node_pressure_cpu_waiting_seconds_total"
    ),
    *_Criterion("swapping", "the host swaps", "pages/s", least=100.0).on(
        "node_vmstat_pswpin", "node_vmstat_pswpout"
    ),
    *_Criterion(
        "thrashing", "pages are read from disk again and again", "/s", least=300.0, least_share=4.0
    ).on("node_vmstat_pgmajfault"),
    *_Criterion("killed", "processes are killed because memory ran out", "/s", limit=0.0, scrapes=1).on(
        "node_vmstat_oom_kill"
    ),
    *_Criterion("hung-tasks", "tasks hang in the kernel", "/s", limit=0.0, scrapes=1).on(
        "node_kernel_hung_tasks_total"
    ),
    *_Criterion("busy-disk", "a disk is busy nearly all the time", "share of the time", least=0.5).on(
        "node_disk_io_time_seconds_total"
    ),
    *_Criterion("resent-rpcs", "NFS calls are sent again", "/s", least=0.2, scrapes=2).on(
        "node_nfs_rpc_retransmissions_total"
    ),
    *_Criterion("slow-lustre", "Lustre reports that it is unhealthy", least=0.5, falls=True, scrapes=2).on(
        "lustre_health_check"
    ),
    *_Criterion("slow-names", "names take long to resolve", "s", least=0.1, least_share=2.0).on(
        "probe_dns_lookup_time_seconds"
    ),
    # -- pools -------------------------------------------------------------------------------------
    *_Criterion(
        "slow-transfer",
        "caches take longer between these engines",
        "s",
        least=0.005,
        least_share=0.25,
        scrapes=2,
    ).on("holdfast_pool_transfer_seconds"),
    *_Criterion("full-cache", "an engine's cache is fuller than usual", "of the cache", least=0.15).on(
        "vllm:kv_cache_usage_perc"
    ),
    *_Criterion("slow-first-token", "an engine answers late", "s", least=0.05, least_share=0.25).on(
        "dynamo_frontend_worker_last_time_to_first_token_seconds"
    ),
)

SIGNS: dict[Sign, str] = {rule.sign: rule.note for rule in RULES} | MEANINGS
"""Every sign, with its meaning."""
