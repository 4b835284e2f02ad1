"""What is looked for in the readings of machines, as data: one rule a sign.

A rule names a metric, what it is held against, and from which difference on it matters. A difference counts
when it is at least `least`, at least `least_share` of what is usual, and `SIGMAS` times what the sensor
scatters; and only after `scrapes` consecutive observations. Limits come from the field where somebody
published one, and say so.
"""

from typing import Literal

import msgspec

from holdfast.detect.finding import Method

SIGMAS = 6.0
"""Among a million readings of half an hour, nobody may be so far off by chance."""

View = Literal["value", "rate"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to look for.

    view         the reading itself, or its growth per second
    scale        from the metric's unit to `unit`
    against      past: what the series itself showed before; limit: `limit`
    falls        it is wrong when it gets less
    only         only series with one of these values of a label
    """

    sign: str
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
    only: tuple[str, tuple[str, ...]] | None = None


NS_TO_SHARE = 1e-9
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
        sign="hot-gpu",
        metric="DCGM_FI_DEV_GPU_TEMP",
        unit="C",
        note="hotter than usual",
        least=6.0,
    ),
    Rule(
        sign="hot-gpu",
        metric="DCGM_FI_DEV_MEMORY_TEMP",
        unit="C",
        note="hotter than usual",
        least=8.0,
    ),
    Rule(
        sign="low-clock",
        metric="DCGM_FI_DEV_SM_CLOCK",
        unit="MHz",
        note="the clock is lower than usual",
        least=60.0,
        least_share=0.04,
        falls=True,
    ),
    Rule(
        sign="thermal-throttle",
        metric="DCGM_FI_DEV_THERMAL_VIOLATION",
        unit="share of the time",
        note="clocks are held down for heat",
        view="rate",
        scale=NS_TO_SHARE,
        against="limit",
        limit=0.05,
        scrapes=2,
    ),
    Rule(
        sign="thermal-throttle",
        metric="DCGM_EXP_CLOCK_EVENTS_COUNT",
        unit="per scrape",
        note="clocks are held down for heat",
        against="limit",
        limit=0.6,
        only=("clock_event", ("sw_thermal", "hw_thermal")),
        scrapes=2,
    ),
    Rule(
        sign="power-throttle",
        metric="DCGM_FI_DEV_POWER_VIOLATION",
        unit="share of the time",
        note="clocks are held down for power",
        view="rate",
        scale=NS_TO_SHARE,
        against="limit",
        limit=0.05,
        scrapes=2,
    ),
    Rule(
        sign="power-throttle",
        metric="DCGM_EXP_CLOCK_EVENTS_COUNT",
        unit="per scrape",
        note="clocks are held down for power",
        against="limit",
        limit=0.6,
        only=("clock_event", ("hw_power_brake", "power_cap")),
        scrapes=2,
    ),
    Rule(
        sign="memory-errors",
        metric="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        unit="/s",
        note="memory errors are being corrected",
        view="rate",
        against="limit",
        limit=0.5,
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
            limit=1.0,
        )
        for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
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
    # -- hosts -------------------------------------------------------------------------------------
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
)
"""Against the past unless something else is said."""

SIGNS: dict[str, str] = {rule.sign: rule.note for rule in RULES} | {
    "slow-link": "the link was trained to a lower rate than others",
    "heating": "is heating up towards its limit",
    "slow-step": "steps take longer",
    "late-compute": "computes longer than it did",
    "late-exchange": "its exchange takes longer",
    "late-data": "waits for its data",
    "wandering": "another member is late each time",
    "slow-checkpoint": "checkpoints hold training up for longer",
    "frequent-checkpoints": "checkpoints are made more often, or are larger",
    "collecting": "members spend more time in the garbage collector",
    "slow-reads": "reads take longer on this mount",
    "slow-writes": "writes take longer on this mount",
    "resent-calls": "calls to this mount are sent again",
    "narrow-bus": "the PCIe link has fewer lanes than the device",
    "xid": "the driver reported an error",
    "memory-xid": "the driver reported an error of the memory",
    "nvlink-xid": "the driver reported an error of NVLink",
}
"""Every sign there is, and what it says."""
