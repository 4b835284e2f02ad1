"""A cluster as it looks in the field, by hand: H200s at their power limit, exporters with their own offsets.

Nothing here comes from the twin. Healthy figures are those of an H200 under load: violation time for power
is 0.90 to 1.00, clocks scatter by tens to two hundred MHz, one GPU in eighty still shows an old job's XID.
"""

from collections.abc import Collection, Sequence
from functools import cache

import numpy as np

from holdfast.detect.scene import Healthy
from holdfast.diagnose.assess import Assessment, Circumstances, Inquiry, assess
from holdfast.diagnose.incident import Incident
from holdfast.record.events import KnownEvent
from holdfast.signals.catalogue import describe
from holdfast.signals.frame import Floats, Frame, Labels
from holdfast.signals.source import Source
from holdfast.topology import file
from holdfast.topology.file import MachineSeat
from holdfast.topology.graph import Topology

S = 10**9
START_NS = 1_780_000_000 * S
EVERY_S = 15
RUN = "pretrain"
NODES, GPUS = 16, 8
HOSTS = tuple(f"gpu-{number:03}" for number in range(NODES))
STEP_S = 6.2

DEFAULT_ON = (
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "node_infiniband_symbol_error_total",
    "node_infiniband_port_transmit_wait_total",
    "node_pressure_cpu_waiting_seconds_total",
    "node_pressure_io_waiting_seconds_total",
    "node_pressure_memory_waiting_seconds_total",
    "node_vmstat_pswpin",
    "node_vmstat_pswpout",
    "node_disk_io_time_seconds_total",
    "node_nfs_rpc_retransmissions_total",
    "holdfast_run_step_seconds",
)
"""dcgm-exporter's and node_exporter's own defaults, and the step."""

_PLAN = f"""
nodes:
  gpu-[000-{NODES - 1:03}]: {{gpus: {GPUS}, ports: "mlx5_[0-3]"}}
runs:
  {RUN}: {{nodes: "gpu-[000-{NODES - 1:03}]"}}
"""
_MOUNTS = f"  filer-0: gpu-[000-{NODES - 1:03}]\n"


def topology(
    nodes_per_rack: int = 4,
    nodes_per_leaf: int = 8,
    more: str = "",
    members: Labels | None = None,
    mounts: str = _MOUNTS,
) -> Topology:
    """more: further sections of the file, such as what cools the racks. members: with their nodes, unless
    there is one for each. mounts: the lines of that section.
    """
    racks, leaves = NODES // nodes_per_rack, NODES // nodes_per_leaf
    places = (
        f"racks:\n  rack-[0-{racks - 1}]: {nodes_per_rack} each\n"
        f"leaves:\n  leaf-[0-{leaves - 1}]: {nodes_per_leaf} each\n"
    )
    page = file.read(_PLAN + f"mounts:\n{mounts}" + places + more)
    described = page.described(page.survey)
    if members is None:
        return described.topology
    seats = {member: MachineSeat(node) for member, node in members.items()}
    return described.with_members({RUN: seats}).topology


class Field:
    """Some hours of a healthy cluster, to be changed by hand. Rows are scrapes, 15 s apart."""

    def __init__(self, hours: float = 5.0, seed: int = 1) -> None:
        made = _healthy(hours, seed)
        self.rows, self.times_ns, self.dice = made.rows, made.times_ns, np.random.default_rng(seed)
        self.values = {metric: values.copy() for metric, values in made.values.items()}
        self.labels, self.subjects = dict(made.labels), dict(made.subjects)
        self.events: list[KnownEvent] = []
        self.healthy: Healthy | None = None
        self.topology = TOPOLOGY

    def noise(self, level: float, series: int, share: float) -> Floats:
        return np.asarray(level * (1 + share * self.dice.standard_normal((self.rows, series))))

    def put(self, metric: str, values: Floats, subjects: Sequence[str], labels: Sequence[Labels]) -> None:
        """values: for a counter, its growth per second."""
        self.values[metric] = values
        self.subjects[metric], self.labels[metric] = list(subjects), list(labels)

    def row(self, ago_min: float) -> int:
        return self.rows - round(ago_min * 60 / EVERY_S)

    def of(self, metric: str, *begins: str) -> list[int]:
        """The series of these hosts, GPUs or ports."""
        return [n for n, name in enumerate(self.subjects[metric]) if name.startswith(begins)]

    def change(
        self, metric: str, ago_min: float, where: Sequence[str], by: float = 1.0, plus: float = 0.0
    ) -> None:
        part = np.ix_(range(self.row(ago_min), self.rows), self.of(metric, *where))
        self.values[metric][part] = self.values[metric][part] * by + plus

    def slower(self, factor: float, ago_min: float) -> None:
        """Slow down the run's steps."""
        self.values["holdfast_run_step_seconds"][self.row(ago_min) :] *= factor

    def members(self, part: str, level_s: float, share: float = 0.01) -> str:
        metric = f"holdfast_member_{part}_seconds"
        labels = [{"run": RUN, "member": host, "node": host} for host in HOSTS]
        self.put(metric, self.noise(level_s, NODES, share), list(HOSTS), labels)
        return metric

    def look(
        self, only: Collection[str] | None = None, *, at_row: int | None = None, without: Collection[str] = ()
    ) -> Assessment:
        """Assess. only: the available metrics. As of the last row, or the one before `at_row`."""
        end = self.rows if at_row is None else at_row
        chosen = [name for name in self.values if (only is None or name in only) and name not in without]
        return assess(
            self.source(chosen),
            self.topology,
            Inquiry(now_ns=int(self.times_ns[end - 1]) + 1, runs=(RUN,)),
            Circumstances(events=self.events, healthy={} if self.healthy is None else {RUN: self.healthy}),
        )

    def source(self, metrics: Sequence[str] | None = None) -> Source:
        return _Shown(self, tuple(self.values) if metrics is None else metrics)


class _Healthy:
    """The same hours without faults, made once for all tests."""

    def __init__(self, hours: float = 5.0, seed: int = 1) -> None:
        self.rows = int(hours * 3600 / EVERY_S)
        self.dice = np.random.default_rng(seed)
        self.times_ns = START_NS + np.arange(self.rows, dtype=np.int64) * EVERY_S * S
        self.values: dict[str, Floats] = {}
        self.labels: dict[str, list[Labels]] = {}
        self.subjects: dict[str, list[str]] = {}
        self._gpus()
        self._hosts()
        self._ports()
        self.put("holdfast_run_step_seconds", self.noise(STEP_S, 1, 0.02), [RUN], [{"run": RUN}])

    def noise(self, level: float, series: int, share: float) -> Floats:
        return np.asarray(level * (1 + share * self.dice.standard_normal((self.rows, series))))

    def put(self, metric: str, values: Floats, subjects: Sequence[str], labels: Sequence[Labels]) -> None:
        self.values[metric] = values
        self.subjects[metric], self.labels[metric] = list(subjects), list(labels)

    def _gpus(self) -> None:
        names = [f"{host}.{gpu}" for host in HOSTS for gpu in range(GPUS)]
        labels = [
            {"hostname": host, "gpu": str(gpu), "DCGM_FI_DRIVER_VERSION": "550.90.07"}
            for host in HOSTS
            for gpu in range(GPUS)
        ]
        count = len(names)
        dcgm = "DCGM_FI_DEV_"
        own = self.dice.normal(0, 1, count)
        drift = 1.5 * np.sin(np.linspace(0, 3, self.rows))[:, None]
        gauges = {
            "SM_CLOCK": self.noise(1_690, count, 0.06) + 20 * own,
            "GPU_TEMP": np.round(61 + 2 * own + drift + self.dice.normal(0, 0.8, (self.rows, count))),
            "MEMORY_TEMP": np.round(71 + 2 * own + drift + self.dice.normal(0, 0.8, (self.rows, count))),
            "POWER_USAGE": self.noise(692, count, 0.012),
            "POWER_MGMT_LIMIT": np.full((self.rows, count), 700.0),
            "GPU_UTIL": np.full((self.rows, count), 100.0),
            "FB_USED": self.noise(121_000, count, 0.0005),
            "FB_FREE": self.noise(22_000, count, 0.003),
            "NVLINK_BANDWIDTH_TOTAL": self.noise(180_000, count, 0.05),
            "XID_ERRORS": np.zeros((self.rows, count)),
            "PCIE_LINK_GEN": np.full((self.rows, count), 5.0),
            "PCIE_LINK_WIDTH": np.full((self.rows, count), 16.0),
            "POWER_VIOLATION": 1e9 * self.dice.uniform(0.90, 1.0, (self.rows, count)),
            "THERMAL_VIOLATION": np.zeros((self.rows, count)),
            "ECC_SBE_VOL_TOTAL": np.zeros((self.rows, count)),
            "PCIE_REPLAY_COUNTER": np.zeros((self.rows, count)),
            "CORRECTABLE_REMAPPED_ROWS": np.zeros((self.rows, count)),
            "UNCORRECTABLE_REMAPPED_ROWS": np.zeros((self.rows, count)),
            "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": np.zeros((self.rows, count)),
        }
        gauges["XID_ERRORS"][:, 5] = 79  # of an old job
        gauges["XID_ERRORS"][:, 77] = 31
        for name, values in gauges.items():
            self.put(dcgm + name, values, names, labels)
        self.put("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", self.noise(0.44, count, 0.08), names, labels)

    def _hosts(self) -> None:
        labels = [{"instance": f"{host}:9100"} for host in HOSTS]

        def put(name: str, values: Floats, extra: Labels | None = None) -> None:
            self.put(f"node_{name}", values, list(HOSTS), [one | (extra or {}) for one in labels])

        shape = (self.rows, NODES)
        put("pressure_cpu_waiting_seconds_total", self.dice.gamma(2, 0.01, shape))
        put("pressure_io_waiting_seconds_total", self.dice.gamma(1, 0.004, shape))
        put("pressure_memory_waiting_seconds_total", self.dice.gamma(0.3, 0.0005, shape))
        put("vmstat_pswpin", np.zeros(shape))
        put("vmstat_pswpout", np.zeros(shape))
        put("disk_io_time_seconds_total", self.dice.gamma(2, 0.02, shape), {"device": "nvme0n1"})
        put("disk_writes_completed_total", self.dice.gamma(4, 10, shape), {"device": "nvme0n1"})
        put("disk_write_time_seconds_total", self.dice.gamma(4, 0.003, shape), {"device": "nvme0n1"})
        put("nfs_rpc_retransmissions_total", np.zeros(shape))
        put("hwmon_fan_rpm", np.round(self.noise(8_600, NODES, 0.01)), {"chip": "bmc", "sensor": "fan1"})

    def _ports(self) -> None:
        names = [f"{host}/mlx5_{port}" for host in HOSTS for port in range(4)]
        labels = [
            {"instance": f"{host}:9100", "device": f"mlx5_{port}"} for host in HOSTS for port in range(4)
        ]
        shape = (self.rows, len(names))
        self.put("node_infiniband_symbol_error_total", np.zeros(shape), names, labels)
        waits = self.dice.lognormal(11.5, 0.6, shape)
        self.put("node_infiniband_port_transmit_wait_total", waits, names, labels)


@cache
def _healthy(hours: float, seed: int) -> _Healthy:
    return _Healthy(hours, seed)


class _Shown:
    """The field as a source. Every host is scraped at a moment of its own, so the first row of a window is
    empty for half of them; one scrape in 400 is lost.
    """

    def __init__(self, field: Field, metrics: Sequence[str]) -> None:
        self._field, self._metrics = field, tuple(sorted(metrics))
        self._counted: dict[str, Floats] = {}

    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        field = self._field
        first, end = np.searchsorted(field.times_ns, window_ns).tolist()
        if metric not in self._metrics or first == end:
            return None
        kind = describe(metric).kind
        whole = field.values[metric]
        if kind == "counter":
            if metric not in self._counted:
                self._counted[metric] = np.nancumsum(whole * EVERY_S, axis=0) + 1e4
            whole = self._counted[metric]
        values = np.array(whole[first:end], np.float64)
        lost = _lost(field.rows)[first:end]
        subjects = field.subjects[metric]
        for column, subject in enumerate(subjects):
            host = subject.partition(".")[0].partition("/")[0]
            if host in HOSTS:
                number = HOSTS.index(host)
                values[lost[:, number], column] = np.nan
                if number % 2:
                    values[0, column] = np.nan
        return Frame(
            metric=metric,
            kind=kind,
            subjects=tuple(subjects),
            labels=tuple(field.labels[metric]),
            times_ns=field.times_ns[first:end],
            values=values,
        )


@cache
def _lost(rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.asarray(np.random.default_rng(7).random((rows, NODES)) < 1 / 400)


def answers(assessment: Assessment) -> list[tuple[str, str]]:
    return [(one.cause.mechanism, one.cause.subject) for one in assessment.incidents]


def the(assessment: Assessment) -> Incident:
    (one,) = assessment.incidents
    return one


TOPOLOGY = topology()
