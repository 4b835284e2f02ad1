"""Who shows a metric, and how to have it shown: for `holdfast doctor`.

Which collectors of node_exporter and which counters of dcgm-exporter are on by default is as of node_exporter
1.10 (its README) and dcgm-exporter 4.5 (its etc/default-counters.csv).
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.signals.catalogue import describe


class Exporter(msgspec.Struct, frozen=True, kw_only=True):
    """prefixes: of the metrics that it shows; start: how to come by it."""

    name: str
    prefixes: tuple[str, ...]
    start: str

    def shows(self, metric: str) -> bool:
        return metric.startswith(self.prefixes)


DCGM = Exporter(
    name="dcgm-exporter",
    prefixes=("DCGM_",),
    start="Run dcgm-exporter on every node with NVIDIA GPUs, or `holdfast collect --nvml --listen :9470`.",
)
NODE = Exporter(
    name="node_exporter",
    prefixes=("node_",),
    start="Run node_exporter on every node, or `holdfast collect --node --infiniband --listen :9470`.",
)
AMD = Exporter(
    name="AMD's device-metrics-exporter",
    prefixes=("gpu_", "amd_", "pcie_"),
    start="Run device-metrics-exporter on every node with AMD GPUs.",
)
RUN = Exporter(
    name="holdfast run",
    prefixes=("holdfast_run_", "holdfast_member_"),
    start="Start the run with `holdfast run --metrics-port PORT` and scrape that port.",
)
OTHER_RUNS = "Of any other run name the metric of its steps with --step-metric, or its log with --step-log."
EXPORTERS: tuple[Exporter, ...] = (
    DCGM,
    NODE,
    AMD,
    RUN,
    Exporter(
        name="infiniband_exporter",
        prefixes=("infiniband_",),
        start="Run infiniband_exporter on one host that may ask the subnet (`--collector.switch`).",
    ),
    Exporter(
        name="densewatch",
        prefixes=("densewatch_",),
        start="`holdfast collect --redfish NAME=URL --listen :9471` for each cooling unit, or densewatch.",
    ),
    Exporter(
        name="redfish_exporter",
        prefixes=("redfish_",),
        start="Point redfish_exporter at power shelves and the nodes' controllers, or use "
        "`holdfast collect --redfish NAME=URL`.",
    ),
    Exporter(
        name="ipmi_exporter",
        prefixes=("ipmi_",),
        start="Run ipmi_exporter with the collectors `ipmi` and `dcmi`, on each node or for all controllers.",
    ),
    Exporter(
        name="lustre_exporter",
        prefixes=("lustre_",),
        start="Run lustre_exporter or lustrefs-exporter on the clients.",
    ),
    Exporter(name="chrony_exporter", prefixes=("chrony_",), start="Run chrony_exporter on every node."),
    Exporter(
        name="CoreDNS",
        prefixes=("coredns_", "probe_dns_"),
        start="Scrape CoreDNS' metrics, or probe names with blackbox_exporter.",
    ),
    Exporter(
        name="the serving engines",
        prefixes=("vllm:", "sglang:", "dynamo_", "agent_", "holdfast_pool_"),
        start="Scrape the engines' own metrics.",
    ),
)
"""Of those that share a beginning, the first that fits."""
UNKNOWN = Exporter(name="another exporter", prefixes=("",), start="Scrape the exporter that shows it.")

COLLECTORS: tuple[tuple[str, str, str], ...] = (
    ("node_mountstats_", "mountstats", "--collector.mountstats"),
    ("node_pcidevice_", "pcidevice", "--collector.pcidevice"),
    ("node_ethtool_", "ethtool", "--collector.ethtool --collector.ethtool.metrics-include='.*prio.*pause.*'"),
    ("node_infiniband_", "infiniband", ""),
    ("node_pressure_", "pressure", ""),
    ("node_disk_", "diskstats", ""),
    ("node_filesystem_", "filesystem", ""),
    ("node_vmstat_", "vmstat", ""),
    ("node_memory_", "meminfo", ""),
    ("node_nfs_", "nfs", ""),
    ("node_hwmon_", "hwmon", ""),
    ("node_nf_conntrack_", "conntrack", ""),
    ("node_timex_", "timex", ""),
    ("node_edac_", "edac", ""),
    ("node_kernel_hung_", "kernel_hung", ""),
    ("node_nvme_", "nvme", ""),
    ("node_network_", "netdev", ""),
    ("node_netstat_", "netstat", ""),
)
"""Of node_exporter: what its metrics begin with, its name, and the flag where it is off by default."""
NEEDS = {
    "pressure": "a kernel with PSI (boot with psi=1)",
    "infiniband": "adapters under /sys/class/infiniband",
    "nfs": "an NFS mount",
    "kernel_hung": "node_exporter 1.10 and Linux 6.13",
    "hwmon": "sensors under /sys/class/hwmon",
    "edac": "an EDAC driver",
    "conntrack": "the kernel module nf_conntrack",
}
"""What a collector that is on by default shows nothing without."""


def exporter_of(metric: str) -> Exporter:
    return next((one for one in EXPORTERS if one.shows(metric)), UNKNOWN)


def switching_on(exporter: Exporter, metrics: Sequence[str], *, is_there: bool) -> tuple[str, ...]:
    """What to do to have these metrics, line by line. is_there: whether it shows anything at all."""
    if exporter is DCGM:
        return tuple(_counters(metrics, is_there=is_there))
    if exporter is NODE and is_there:
        return tuple(dict.fromkeys(_collectors(metrics)))
    if exporter is RUN and "holdfast_run_step_seconds" in metrics:
        return exporter.start, OTHER_RUNS
    return (exporter.start,)


def _counters(metrics: Iterable[str], *, is_there: bool) -> Iterator[str]:
    """The lines of its file of counters: a field, its type and a text, which may have no comma."""
    if not is_there:
        yield DCGM.start
    yield "Add to its counters file (`dcgm-exporter -f FILE`):"
    for metric in metrics:
        known = describe(metric)
        yield f"  {metric}, {known.kind}, {known.meaning.replace(',', ';')}"


def _collectors(metrics: Iterable[str]) -> Iterator[str]:
    for metric in metrics:
        found = next((one for one in COLLECTORS if metric.startswith(one[0])), None)
        if found is None:
            yield f"A newer node_exporter shows {metric}."
        elif found[2]:
            yield f"Start it with {found[2]}."
        else:
            needs = f"; it needs {NEEDS[found[1]]}" if found[1] in NEEDS else ""
            yield f"Its collector {found[1]} is on by default: look for --no-collector.{found[1]}{needs}."
