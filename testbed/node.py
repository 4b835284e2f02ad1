"""An exporter of one node of the testbed: what is real there, under the names that a GPU node would show it.

The machine has no GPUs, no InfiniBand and no filer. What stands for what:

- DCGM's clock and thermal violation: how long the kernel has kept the node's processes from a processor.
- node_infiniband's rate and counters: the node's end of its virtual cable, and the traffic shaper on it.
- mountstats of NFS: this process's own small reads and writes on the shared mount, and how long they took.
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
    def __init__(self, name: str, limits: cgroups.Limits, device: str, mount: Mount) -> None:
        self._name = name
        self._limits = limits
        self._device = device
        self._mount = mount
        self._last = (time.monotonic(), limits.throttled_s())

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._gpu()
        yield from self._port()
        yield from self._operations()

    def _gpu(self) -> Iterator[Metric]:
        labels = {
            "gpu": "0",
            "hostname": self._name,
            "modelName": "stand-in",
            "pci_bus_id": "00000000:01:00.0",
        }
        now_s, throttled_s = time.monotonic(), self._limits.throttled_s()
        share = (throttled_s - self._last[1]) / max(1e-3, now_s - self._last[0])
        self._last = (now_s, throttled_s)
        clock = GaugeMetricFamily("DCGM_FI_DEV_SM_CLOCK", "In MHz.", labels=list(labels))
        clock.add_metric(list(labels.values()), max(CLOCK_MHZ_MIN, CLOCK_MHZ * (1 - share)))
        yield clock
        held = UnknownMetricFamily("DCGM_FI_DEV_THERMAL_VIOLATION", "In ns.", labels=list(labels))
        held.add_metric(list(labels.values()), round(throttled_s * 1e9))
        yield held

    def _port(self) -> Iterator[Metric]:
        received, sent, dropped = _traffic(self._device)
        rate, waits = _shaper(self._device)
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


def _shaper(device: str) -> tuple[float, int]:
    """The rate of the cable in bytes a second, and how often something had to wait for it."""
    shown = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", device], capture_output=True, timeout=TC_WAIT_S, check=True
    )
    for discipline in json.loads(shown.stdout):
        if discipline["kind"] == "tbf":
            return float(discipline["options"]["rate"]), int(discipline["overlimits"])
    return float(RATE_BYTES), 0


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
    given = parser.parse_args()
    registry = CollectorRegistry()
    mount = Mount(given.mount, given.mount_name, given.name)
    registry.register(NodeCollector(given.name, cgroups.limits(given.group), given.device, mount))
    start_http_server(given.port, addr=given.address, registry=registry)
    threading.Event().wait()


if __name__ == "__main__":
    main()
