"""`holdfast bench watch`: the cost of a watch's first look and of each later one, with a real server.

A VictoriaMetrics is started and filled with the metrics of a cluster of this size. The watch looks in two
situations: while nothing is wrong, and while an incident is open since before the window, so that each look
also asks for the time before it. Seconds are processor time of our process alone.
"""

import json
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.detect.detecting import METRICS
from holdfast.diagnose.looking import LookSetting, References, look
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.record.errors import InputError
from holdfast.record.sqlite import SqliteStore
from holdfast.signals.catalogue import describe
from holdfast.signals.incremental import IncrementalSource
from holdfast.signals.prometheus import Prometheus, Raw
from holdfast.topology.file import read

SERVER = "victoria-metrics"
SERVER_WAIT_S = 120.0
GPUS_PER_NODE = 8
STEP_S, WINDOW_S, BEFORE_S = 10, 1_800, 1_500
"""BEFORE_S: history before the window, for the time before the incident."""
SINCE_S = 600
"""How long before the window the incident began."""
PHASES, KINDS = 64, 32
"""The numbers of different scrape times, and of different courses of a value; the values do not matter
here."""
BATCH_SERIES = 4_096
RUN = "pretrain"
STEPS = ("holdfast_run_step_seconds", "holdfast_member_compute_seconds", "holdfast_member_exchange_seconds")
FILLED = ("DCGM_", "node_infiniband_", "node_pressure_")


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """cpu_s: of the first look and the median later one; samples: that each fetched."""

    first_cpu_s: float
    later_cpu_s: float
    first_samples: int
    later_samples: int

    @property
    def share(self) -> float:
        return self.later_cpu_s / self.first_cpu_s


class WatchBench(msgspec.Struct, frozen=True, kw_only=True):
    """quiet: while nothing is wrong; incident: with one that is open since before the window."""

    gpus: int
    series: int
    quiet: Looks
    incident: Looks
    peak_bytes: int


@click.command("watch")
@click.option("--gpus", multiple=True, type=click.IntRange(min=GPUS_PER_NODE), default=(1_024, 4_096, 16_384))
@click.option("--looks", type=click.IntRange(min=2), default=4, show_default=True)
@json_option
def command(gpus: tuple[int, ...], looks: int, as_json: bool) -> int:
    """Look at a cluster in a real VictoriaMetrics: the first look against each later one."""
    found = [measure(count // GPUS_PER_NODE, looks) for count in gpus]
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 0


def measure(nodes: int, looks: int) -> WatchBench:
    metrics = (*STEPS, *(metric for metric in METRICS if metric.startswith(FILLED)))
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder)) as url:
        series = _Filling(url, nodes, metrics)
        # All of it lies before now: a server takes no samples from the future.
        begin_s = int(time.time()) - WINDOW_S - 2 * looks * STEP_S
        series.fill(range(begin_s - BEFORE_S, begin_s + WINDOW_S, STEP_S))
        quiet = _looked(url, series, begin_s + WINDOW_S, looks, is_open=False)
        incident = _looked(url, series, begin_s + WINDOW_S + looks * STEP_S, looks, is_open=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return WatchBench(
        gpus=nodes * GPUS_PER_NODE,
        series=series.count,
        quiet=quiet,
        incident=incident,
        peak_bytes=peak if sys.platform == "darwin" else peak * 1024,
    )


class _Counting(Prometheus):
    """samples: how many it has been sent."""

    samples = 0

    def raw(self, metric: str, window_ns: tuple[int, int]) -> Raw | None:
        found = super().raw(metric, window_ns)
        self.samples += 0 if found is None else len(found.times_ns)
        return found


def _looked(url: str, series: "_Filling", now_s: int, looks: int, *, is_open: bool) -> Looks:
    """Looks from this moment on, each after one more scrape."""
    page = read(_topology(series.nodes))
    took: list[tuple[float, int]] = []
    since_ns = (now_s - WINDOW_S - SINCE_S) * 10**9 if is_open else None
    with (
        tempfile.TemporaryDirectory() as folder,
        _Counting(url, timeout_s=SERVER_WAIT_S) as server,
        SqliteStore(Path(folder) / "record.sqlite") as store,
    ):
        setting = LookSetting(
            store=store,
            source=IncrementalSource(server),
            cluster=page.described(page.survey),
            prices=DEFAULTS,
            window_s=WINDOW_S,
            references=References(store),
        )
        for number in range(looks):
            at_s = now_s + number * STEP_S
            series.fill(range(at_s - STEP_S, at_s, STEP_S))
            began_s, before = time.process_time(), server.samples
            look(setting, [RUN], at_s * 10**9, since_ns)
            took.append((time.process_time() - began_s, server.samples - before))
    first, *later = took
    return Looks(
        first_cpu_s=first[0],
        later_cpu_s=median(cpu_s for cpu_s, _ in later),
        first_samples=first[1],
        later_samples=round(median(samples for _, samples in later)),
    )


class _Filling:
    """The cluster's series in the server, each host's scraped at a moment of its own. count: how many."""

    def __init__(self, url: str, nodes: int, metrics: Sequence[str]) -> None:
        self._url, self.nodes, self._metrics = url, nodes, metrics
        self.count = sum(len(_labels(metric, nodes)) for metric in metrics)

    def fill(self, times_s: range) -> None:
        rng = np.random.default_rng(7)
        moments_ms = rng.integers(0, STEP_S * 1000, PHASES).tolist()
        stamps = [json.dumps([at_s * 1000 + moment for at_s in times_s]) for moment in moments_ms]
        for metric in self._metrics:
            known = describe(metric)
            courses = 50.0 + rng.normal(0, 0.5, (KINDS, len(times_s)))
            if known.kind == "counter" or not known.unit:
                courses = np.zeros((KINDS, len(times_s)))  # a healthy cluster: no XID, and nothing is counted
            values = [json.dumps(np.round(course, 3).tolist()) for course in courses]
            lines = [
                f'{{"metric":{json.dumps({"__name__": metric, **labels})},'
                f'"values":{values[index % KINDS]},"timestamps":{stamps[index // GPUS_PER_NODE % PHASES]}}}\n'
                for index, labels in enumerate(_labels(metric, self.nodes))
            ]
            for first in range(0, len(lines), BATCH_SERIES):
                self._post("/api/v1/import", "".join(lines[first : first + BATCH_SERIES]).encode())
        self._post("/internal/force_flush", None)

    def _post(self, path: str, body: bytes | None) -> None:
        with urllib.request.urlopen(self._url + path, data=body, timeout=SERVER_WAIT_S):
            pass


def _labels(metric: str, nodes: int) -> list[dict[str, str]]:
    scope = describe(metric).scope
    hosts = [f"n{node:04}" for node in range(nodes)]
    if scope in ("gpu", "xid", "clock_event"):
        return [{"Hostname": host, "gpu": str(gpu)} for host in hosts for gpu in range(GPUS_PER_NODE)]
    if scope == "port":
        ports = [f"mlx5_{port}" for port in range(GPUS_PER_NODE)]
        return [{"instance": f"{host}:9100", "device": port, "port": "1"} for host in hosts for port in ports]
    if scope == "run":
        return [{"run": RUN}]
    if scope == "member":
        return [{"run": RUN, "member": host, "node": host} for host in hosts]
    return [{"instance": f"{host}:9100"} for host in hosts]


def _topology(nodes: int) -> str:
    hosts = f"n[0000-{nodes - 1:04}]"
    ports = f"mlx5_[0-{GPUS_PER_NODE - 1}]"
    return (
        f'nodes: {{"{hosts}": {{gpus: {GPUS_PER_NODE}, ports: "{ports}"}}}}\n'
        f'racks: {{"rack-[000-{-(-nodes // 4) - 1:03}]": 4 each}}\n'
        f'runs: {{{RUN}: {{nodes: "{hosts}"}}}}\n'
    )


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    """A server of its own on the loopback, until it is done with."""
    if shutil.which(SERVER) is None:
        raise InputError(f"There is no {SERVER} on this machine.", hint=f"Install Debian's {SERVER}.")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        SERVER,
        f"-storageDataPath={folder}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.maxUniqueTimeseries=1000000",
        f"-search.maxQueryDuration={SERVER_WAIT_S:.0f}s",
        "-search.latencyOffset=0s",
        "-search.disableCache",
    ]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _await(f"{url}/health")
            yield url
        finally:
            process.terminate()


def _await(url: str) -> None:
    until_s = time.monotonic() + SERVER_WAIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > until_s:
                raise InputError(f"{SERVER} does not answer.", hint="Is the machine too busy?") from None
            time.sleep(0.1)


def _show(found: Sequence[WatchBench]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("GPUs", "series", "looks", "first, CPU s", "later, CPU s", "share", "samples", "GB"):
        table.add_column(heading, justify="left" if heading == "looks" else "right")
    for one in found:
        for name, looks in (("quiet", one.quiet), ("with an incident", one.incident)):
            table.add_row(
                f"{one.gpus:,}",
                f"{one.series:,}",
                name,
                f"{looks.first_cpu_s:.2f}",
                f"{looks.later_cpu_s:.2f}",
                f"{100 * looks.share:.0f} %",
                f"{100 * looks.later_samples / looks.first_samples:.0f} %",
                f"{one.peak_bytes / 1e9:.2f}",
            )
    Console(highlight=False).print(table)
