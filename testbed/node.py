"""An exporter of one node of the testbed: real values of the node, under the metric names of a GPU node.

The machine has no GPUs, no InfiniBand and no filer. What stands for what:

- DCGM's clock and thermal violation: how long the kernel has kept the node's processes from a processor.
- The activity of tensor cores: how much of a processor they took. The driver's version: that of the testbed's
  software.
- node_infiniband's rate and counters: the node's end of its virtual cable, the traffic shaper on it, and what
  was lost on the way to it.
- mountstats of NFS: this process's own small reads and writes on the shared mount, and how long they took.
- Memory, major faults and pressure of a host: those of the node's control group.
"""

import argparse
import json
import mmap
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import cgroups
from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric, UnknownMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

CLOCK_MHZ = 1980.0
"""An H100's, when nothing holds it down."""
CLOCK_MHZ_MIN = 345.0
DEVICE, PORT = "mlx5_0", "1"
RATE_BYTES = 10_000_000_000 // 8
"""What a virtual cable without a shaper says of itself: 10 Gbit/s."""
ACTIVE, LINK_UP = 4, 5
PROBE_BYTES = 4096
PROBE_INTERVAL_S = 0.5
TC_WAIT_S = 5.0


class Mount:
    """Asks the mount for a little, again and again, past the page cache, and counts how long it takes."""

    def __init__(self, folder: Path, name: str, node: str) -> None:
        self.name = name
        self.counts = {"READ": (0, 0.0), "WRITE": (0, 0.0)}
        self._file = os.open(folder / f".probe-{node}", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        self._page = mmap.mmap(-1, PROBE_BYTES)
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        while True:
            for operation in ("WRITE", "READ"):
                begun_s = time.monotonic()
                if operation == "WRITE":
                    os.pwritev(self._file, [self._page], 0)
                else:
                    os.preadv(self._file, [self._page], 0)
                count, seconds = self.counts[operation]
                self.counts[operation] = (count + 1, seconds + time.monotonic() - begun_s)
            time.sleep(PROBE_INTERVAL_S)


class NodeCollector(Collector):
    def __init__(self, given: argparse.Namespace) -> None:
        self._name = given.name
        self._limits = cgroups.limits(given.group)
        self._device = given.device
        self._software = given.software
        self._mount = Mount(given.mount, given.mount_name, given.name)
        self._last = self._spent()

    def _spent(self) -> tuple[float, float, float]:
        """The time; how long processes were kept from a processor; how long they had one."""
        return time.monotonic(), self._limits.throttled_s(), self._limits.used_s()

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._gpu()
        yield from self._port()
        yield from self._operations()
        yield from self._host()

    def _gpu(self) -> Iterator[Metric]:
        labels = {
            "gpu": "0",
            "hostname": self._name,
            "modelName": "stand-in",
            "pci_bus_id": "00000000:01:00.0",
            "DCGM_FI_DRIVER_VERSION": json.loads(self._software.read_bytes())["version"],
        }
        spent = self._spent()
        passed_s, throttled_s, used_s = (now - last for now, last in zip(spent, self._last, strict=True))
        self._last = spent
        lost, active = (each_s / max(1e-3, passed_s) for each_s in (throttled_s, used_s))
        clock = GaugeMetricFamily("DCGM_FI_DEV_SM_CLOCK", "In MHz.", labels=list(labels))
        clock.add_metric(list(labels.values()), max(CLOCK_MHZ_MIN, CLOCK_MHZ * (1 - lost)))
        yield clock
        tensor = GaugeMetricFamily(
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Share of the time.", labels=list(labels)
        )
        tensor.add_metric(list(labels.values()), round(min(1.0, active), 2))
        yield tensor
        held = UnknownMetricFamily("DCGM_FI_DEV_THERMAL_VIOLATION", "In ns.", labels=list(labels))
        held.add_metric(list(labels.values()), round(spent[1] * 1e9))
        yield held

    def _port(self) -> Iterator[Metric]:
        received, sent, dropped = _traffic(self._device)
        rate, waits, lost = _shaper(self._device)
        gauges = (("state_id", ACTIVE), ("physical_state_id", LINK_UP), ("rate_bytes_per_second", rate))
        for name, value in gauges:
            gauge = GaugeMetricFamily(f"node_infiniband_{name}", "Of the port.", labels=["device", "port"])
            gauge.add_metric([DEVICE, PORT], value)
            yield gauge
        counters = (
            ("port_data_transmitted_bytes", sent),
            ("port_data_received_bytes", received),
            ("port_discards_transmitted", dropped),
            ("port_transmit_wait", waits),
            ("port_errors_received", lost),
            ("symbol_error", lost),
        )
        for name, value in counters:
            counter = CounterMetricFamily(
                f"node_infiniband_{name}", "Of the port.", labels=["device", "port"]
            )
            counter.add_metric([DEVICE, PORT], value)
            yield counter

    def _operations(self) -> Iterator[Metric]:
        names = ["export", "mountaddr", "operation", "protocol"]
        families = [
            CounterMetricFamily(f"node_mountstats_nfs_operations_{what}", "Of the mount.", labels=names)
            for what in ("requests", "transmissions", "response_time_seconds")
        ]
        for operation, (count, seconds) in tuple(self._mount.counts.items()):
            for family, value in zip(families, (count, count, seconds), strict=True):
                family.add_metric(["/", self._mount.name, operation, "none"], value)
        yield from families

    def _host(self) -> Iterator[Metric]:
        memory = self._limits.memory()
        for name, size in (("MemTotal", memory.total_bytes), ("MemAvailable", memory.available_bytes)):
            yield GaugeMetricFamily(f"node_memory_{name}_bytes", "Of the node.", value=size)
        yield UnknownMetricFamily("node_vmstat_pgmajfault", "Of the node.", value=memory.major_faults)
        for resource in get_args(cgroups.Resource):
            waited_s = self._limits.waited_s(resource)
            yield CounterMetricFamily(
                f"node_pressure_{resource}_waiting_seconds", "Of the node.", value=waited_s
            )


def _shaper(device: str) -> tuple[float, int, int]:
    """The cable's rate in bytes a second, how often data had to wait for it, and how many packets it lost."""
    shown = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", device], capture_output=True, timeout=TC_WAIT_S, check=True
    )
    kinds = {discipline["kind"]: discipline for discipline in json.loads(shown.stdout)}
    lost = int(kinds["ingress"]["drops"]) if "ingress" in kinds else 0
    if shaper := kinds.get("tbf"):
        return float(shaper["options"]["rate"]), int(shaper["overlimits"]), lost
    return float(RATE_BYTES), 0, lost


def _traffic(device: str) -> tuple[int, int, int]:
    """Bytes received and sent, and packets that were not."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()  # of this namespace
    words = next(line for line in lines if line.strip().startswith(f"{device}:")).partition(":")[2].split()
    return int(words[0]), int(words[8]), int(words[11])


def main() -> None:
    parser = argparse.ArgumentParser(description="An exporter of one node of the testbed.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--group", required=True, help="the control group of the node's processes")
    parser.add_argument("--device", required=True, help="the node's end of its cable")
    parser.add_argument("--mount", type=Path, required=True)
    parser.add_argument("--mount-name", required=True)
    parser.add_argument("--software", type=Path, required=True, help="what is installed")
    given = parser.parse_args()
    registry = CollectorRegistry()
    registry.register(NodeCollector(given))
    start_http_server(given.port, addr=given.address, registry=registry)
    threading.Event().wait()


if __name__ == "__main__":
    main()
