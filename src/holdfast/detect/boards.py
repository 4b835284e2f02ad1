"""More rules: what boards say of themselves, what ports and hosts count, as data like those in `rules`.

States are held against the past: a fan that has been in a state of warning for months is no news.
"""

from holdfast.detect.rule import Rule

FAN = "a fan is not as it should be, by its own board"
SUPPLY = "a power supply is not as it should be, by its own board"
PRIORITIES = range(8)

BOARD_RULES: tuple[Rule, ...] = (
    *(
        Rule(sign="slow-fan", metric=metric, unit="", note=FAN, least=0.5, scrapes=2)
        for metric in ("ipmi_fan_speed_state", "redfish_chassis_fan_health", "node_hwmon_fan_alarm")
    ),
    Rule(
        sign="warm-inlet",
        metric="ipmi_temperature_state",
        unit="",
        note="air comes in too warm, by its own board",
        least=0.5,
        scrapes=2,
        named=("inlet", "ambient", "intake"),
    ),
    Rule(sign="failed-supply", metric="ipmi_power_state", unit="", note=SUPPLY, least=0.5, scrapes=2),
    Rule(
        sign="failed-supply",
        metric="ipmi_sensor_state",
        unit="",
        note=SUPPLY,
        least=0.5,
        scrapes=2,
        named=("power supply", "power unit"),
    ),
    *(
        Rule(
            sign="damaged-packets",
            metric=f"node_infiniband_{kind}_total",
            unit="/s",
            note="packets arrive damaged, or cannot be taken",
            view="rate",
            least=least,
            least_share=4.0,
            scrapes=2,
        )
        for kind, least in (
            ("port_errors_received", 0.2),
            ("local_link_integrity_errors", 0.1),
            ("port_discards_received", 10.0),
        )
    ),
    *(
        Rule(
            sign="resent-packets",
            metric=metric,
            unit="/s",
            note="packets are lost and sent again",
            view="rate",
            least=least,
            least_share=4.0,
            scrapes=2,
        )
        for metric, least in (
            ("holdfast_member_resent_segments_total", 5.0),
            ("node_infiniband_roce_adp_retransmits_timeout_total", 0.2),
        )
    ),
    *(
        Rule(
            sign="port-waits",
            metric=f"node_ethtool_received_prio{priority}_pause_duration",
            unit="share of the time",
            note="the network tells this host to wait",
            view="rate",
            scale=1e-6,
            least=0.02,
            least_share=4.0,
            scrapes=2,
        )
        for priority in PRIORITIES
    ),
    *(
        Rule(
            sign="port-waits",
            metric=f"node_ethtool_received_prio{priority}_pause",
            unit="/s",
            note="the network tells this host to wait",
            view="rate",
            least=500.0,
            least_share=4.0,
            scrapes=2,
        )
        for priority in PRIORITIES
    ),
    Rule(
        sign="thrashing",
        metric="node_vmstat_pgmajfault",
        unit="/s",
        note="pages are read from disk again and again",
        view="rate",
        least=300.0,
        least_share=4.0,
    ),
    Rule(
        sign="killed",
        metric="node_vmstat_oom_kill",
        unit="/s",
        note="processes are killed for want of memory",
        view="rate",
        against="limit",
        limit=0.0,
        scrapes=1,
    ),
    Rule(
        sign="slow-lustre",
        metric="lustre_health_check",
        unit="",
        note="Lustre is not healthy, by itself",
        least=0.5,
        falls=True,
        scrapes=2,
    ),
)
