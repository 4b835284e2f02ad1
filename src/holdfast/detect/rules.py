"""What is looked for in the readings of machines, as data: one rule a sign.

A rule names a metric, what it is held against, and from which difference on it matters. A difference counts
when it is at least `least`, at least `least_share` of what is usual, and `SIGMAS` times what the sensor
scatters; and only after `scrapes` consecutive observations. Limits come from the field where somebody
published one, and say so.
"""

from holdfast.detect.boards import BOARD_RULES
from holdfast.detect.rule import SIGMAS, Rule
from holdfast.detect.signs import MEANINGS, Sign

__all__ = ["RULES", "SIGMAS", "SIGNS", "Rule"]

SYMBOLS_LEAST = 1.0
"""A second, more than before. A link that runs clean has some in a week."""
WAIT_TICKS_LEAST = 1e6
"""A tick is some 22 ns: less than a fiftieth of the time."""

RULES: tuple[Rule, ...] = (
    # -- cooling and power -------------------------------------------------------------------------
    Rule(
        sign="low-flow",
        metric="densewatch_cdu_coolant_flow_lpm",
        unit="L/min",
        note="coolant flow has fallen",
        least_share=0.08,
        falls=True,
        scrapes=2,
    ),
    Rule(
        sign="low-flow",
        metric="FlowLitersPerMinute",
        unit="L/min",
        note="coolant flow has fallen",
        least_share=0.08,
        falls=True,
        scrapes=2,
    ),
    Rule(
        sign="pump-strained",
        metric="densewatch_cdu_pump_speed_percent",
        unit="%",
        note="the pump is asked for more than usual",
        least=10.0,
        scrapes=2,
    ),
    Rule(
        sign="warm-supply",
        metric="densewatch_cdu_coolant_supply_temp_celsius",
        unit="C",
        note="coolant comes in warmer than usual",
        least=1.5,
    ),
    Rule(
        sign="warm-supply",
        metric="SupplyTemperatureCelsius",
        unit="C",
        note="coolant comes in warmer than usual",
        least=1.5,
    ),
    Rule(
        sign="leak",
        metric="densewatch_cdu_leak_detected",
        unit="",
        note="a leak is reported",
        against="limit",
        limit=0.5,
        scrapes=2,
    ),
    Rule(
        sign="failed-supply",
        metric="redfish_chassis_power_powersupply_health",
        unit="",
        note="a power supply is not healthy",
        against="limit",
        limit=1.5,
        scrapes=2,
    ),
    # -- GPUs --------------------------------------------------------------------------------------
    Rule(
        sign="memory-errors",
        metric="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        unit="/s",
        note="memory errors are being corrected",
        view="rate",
        against="limit",
        limit=0.5,
        grave=True,
    ),
    Rule(
        sign="uncorrected-errors",
        metric="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        unit="/s",
        note="memory errors could not be corrected",
        view="rate",
        against="limit",
        limit=0.0,
        scrapes=1,
        grave=True,
    ),
    Rule(
        sign="lost-rows",
        metric="DCGM_FI_DEV_ROW_REMAP_FAILURE",
        unit="",
        note="memory rows were lost",
        least=0.5,
        scrapes=2,
        grave=True,
    ),
    Rule(
        sign="remapped-rows",
        metric="DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        unit="/s",
        note="memory rows were replaced",
        view="rate",
        against="limit",
        limit=0.0,
        scrapes=1,
        grave=True,
    ),
    Rule(
        sign="lost-rows",
        metric="DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        unit="/s",
        note="memory rows were lost",
        view="rate",
        against="limit",
        limit=0.0,
        scrapes=1,
        grave=True,
    ),
    Rule(
        sign="bus-replays",
        metric="DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        unit="/s",
        note="PCIe transfers are being repeated",
        view="rate",
        against="limit",
        limit=0.5,
        scrapes=2,
    ),
    *(
        Rule(
            sign="nvlink-errors",
            metric=f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL",
            unit="/s",
            note="NVLink has errors",
            view="rate",
            against="limit",
            limit=limit,
        )
        # Links retrain when they were nearly down. More than once a minute means a bad link.
        for kind, limit in (("CRC_FLIT", 1.0), ("CRC_DATA", 1.0), ("REPLAY", 1.0), ("RECOVERY", 1 / 60))
    ),
    # -- fabric ------------------------------------------------------------------------------------
    Rule(
        sign="symbol-errors",
        metric="node_infiniband_symbol_error_total",
        unit="/s",
        note="symbols arrive corrupted",
        view="rate",
        against="limit",
        limit=10.0,  # degraded, by NVSentinel
        scrapes=2,
    ),
    Rule(
        sign="symbol-errors",
        metric="node_infiniband_symbol_error_total",
        unit="/s",
        note="symbols arrive corrupted",
        view="rate",
        least=SYMBOLS_LEAST,
        least_share=4.0,
    ),
    Rule(
        sign="link-recoveries",
        metric="node_infiniband_link_error_recovery_total",
        unit="/s",
        note="the link keeps retraining",
        view="rate",
        against="limit",
        limit=5 / 60,  # degraded, by NVSentinel
        scrapes=2,
    ),
    Rule(
        sign="link-down",
        metric="node_infiniband_link_downed_total",
        unit="/s",
        note="the link went down",
        view="rate",
        against="limit",
        limit=0.0,  # fatal on any, by NVSentinel
        scrapes=1,
    ),
    Rule(
        sign="link-down",
        metric="node_infiniband_state_id",
        unit="",
        note="the port is not active",
        least=0.5,
        falls=True,
        scrapes=2,
    ),
    Rule(
        sign="link-recoveries",
        metric="node_infiniband_physical_state_id",
        unit="",
        note="the link is not up",
        least=0.5,
        scrapes=2,
    ),
    Rule(
        sign="port-waits",
        metric="node_infiniband_port_transmit_wait_total",
        unit="ticks/s",
        note="data wait to be sent",
        view="rate",
        least=WAIT_TICKS_LEAST,
        least_share=4.0,
        scrapes=2,
    ),
    Rule(
        sign="uplink-waits",
        metric="infiniband_switch_port_transmit_wait_total",
        unit="ticks/s",
        note="the switch's uplinks are crowded",
        view="rate",
        least=WAIT_TICKS_LEAST,
        least_share=4.0,
        scrapes=2,
    ),
    Rule(
        sign="symbol-errors",
        metric="infiniband_switch_port_symbol_error_total",
        unit="/s",
        note="symbols arrive corrupted",
        view="rate",
        against="limit",
        limit=10.0,
        scrapes=2,
    ),
    Rule(
        sign="symbol-errors",
        metric="infiniband_switch_port_symbol_error_total",
        unit="/s",
        note="symbols arrive corrupted",
        view="rate",
        least=SYMBOLS_LEAST,
        least_share=4.0,
    ),
    Rule(
        sign="link-recoveries",
        metric="infiniband_switch_port_link_error_recovery_total",
        unit="/s",
        note="the link keeps retraining",
        view="rate",
        against="limit",
        limit=5 / 60,
        scrapes=2,
    ),
    Rule(
        sign="link-down",
        metric="infiniband_switch_port_link_downed_total",
        unit="/s",
        note="the link went down",
        view="rate",
        against="limit",
        limit=0.0,
        scrapes=1,
    ),
    *(
        Rule(
            sign="resent-packets",
            metric=f"node_infiniband_{kind}_total",
            unit="/s",
            note="packets are lost and sent again",
            view="rate",
            least=least,
            least_share=4.0,
            scrapes=2,
        )
        for kind, least in (
            ("local_ack_timeout_errors", 0.2),
            ("packet_sequence_errors", 2.0),
            ("out_of_sequence_packets_received", 20.0),
            ("roce_adp_retransmits", 2.0),
            ("rx_icrc_encapsulated_errors", 0.2),
        )
    ),
    *(
        Rule(
            sign="port-waits",
            metric=f"node_infiniband_{kind}_total",
            unit="/s",
            note="senders are told of congestion",
            view="rate",
            least=500.0,
            least_share=4.0,
            scrapes=2,
        )
        for kind in (
            "np_cnp_packets_sent",
            "np_ecn_marked_roce_packets_received",
            "rp_cnp_packets_handled",
        )
    ),
    # -- hosts -------------------------------------------------------------------------------------
    Rule(
        sign="slow-fan",
        metric="node_hwmon_fan_rpm",
        unit="1/min",
        note="a fan turns slower than usual",
        least=500.0,
        least_share=0.25,
        falls=True,
    ),
    Rule(
        sign="slow-fan",
        metric="ipmi_fan_speed_rpm",
        unit="1/min",
        note="a fan turns slower than usual",
        least=500.0,
        least_share=0.25,
        falls=True,
    ),
    Rule(
        sign="slow-fan",
        metric="redfish_chassis_fan_rpm",
        unit="1/min",
        note="a fan turns slower than usual",
        least=500.0,
        least_share=0.25,
        falls=True,
    ),
    *(
        Rule(
            sign="warm-inlet",
            metric=metric,
            unit="C",
            note="air comes in warmer than usual",
            least=3.0,
            named=("inlet", "ambient", "intake"),
        )
        for metric in (
            "redfish_chassis_temperature_celsius",
            "ipmi_temperature_celsius",
            "node_hwmon_temp_celsius",
        )
    ),
    Rule(
        sign="io-pressure",
        metric="node_pressure_io_waiting_seconds_total",
        unit="share of the time",
        note="tasks wait for I/O",
        view="rate",
        least=0.08,
    ),
    Rule(
        sign="memory-pressure",
        metric="node_pressure_memory_waiting_seconds_total",
        unit="share of the time",
        note="tasks wait for memory",
        view="rate",
        least=0.05,
    ),
    *(
        Rule(
            sign="swapping",
            metric=f"node_vmstat_{kind}",
            unit="pages/s",
            note="the host swaps",
            view="rate",
            least=100.0,
        )
        for kind in ("pswpin", "pswpout")
    ),
    Rule(
        sign="busy-disk",
        metric="node_disk_io_time_seconds_total",
        unit="share of the time",
        note="a disk is busy nearly all the time",
        view="rate",
        least=0.5,
    ),
    Rule(
        sign="resent-rpcs",
        metric="node_nfs_rpc_retransmissions_total",
        unit="/s",
        note="calls to NFS are sent again",
        view="rate",
        least=0.2,
        scrapes=2,
    ),
    Rule(
        sign="slow-names",
        metric="probe_dns_lookup_time_seconds",
        unit="s",
        note="names take long to resolve",
        least=0.1,
        least_share=2.0,
    ),
    Rule(
        sign="cpu-pressure",
        metric="node_pressure_cpu_waiting_seconds_total",
        unit="share of the time",
        note="tasks wait for a processor",
        view="rate",
        least=0.08,
    ),
    Rule(
        sign="hung-tasks",
        metric="node_kernel_hung_tasks_total",
        unit="/s",
        note="tasks hang in the kernel",
        view="rate",
        against="limit",
        limit=0.0,
        scrapes=1,
    ),
    # -- pools -------------------------------------------------------------------------------------
    Rule(
        sign="slow-transfer",
        metric="holdfast_pool_transfer_seconds",
        unit="s",
        note="caches take longer between these engines",
        least=0.005,
        least_share=0.25,
        scrapes=2,
    ),
    Rule(
        sign="full-cache",
        metric="vllm:kv_cache_usage_perc",
        unit="of the cache",
        note="an engine's cache is fuller than usual",
        least=0.15,
    ),
    Rule(
        sign="slow-first-token",
        metric="dynamo_frontend_worker_last_time_to_first_token_seconds",
        unit="s",
        note="an engine answers late",
        least=0.05,
        least_share=0.25,
    ),
    *BOARD_RULES,
)
"""Against the past unless something else is said."""

SIGNS: dict[Sign, str] = {rule.sign: rule.note for rule in RULES} | MEANINGS
"""Every sign there is, and what it says."""
