"""Real servers for the sources: Prometheus and VictoriaMetrics, with one history, scraping real exporters.

They are installed and run like the servers of the whole suite. The history is an hour old, and has a gap. The
server has little patience with large queries, so that every long window has to be asked for in parts.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from servers import daemon
from waiting import answers, free_port, until

from holdfast.signals.frame import Reading

SECOND_NS = 10**9
STEP_S = 10
HISTORY_SCRAPES = 60
HISTORY_HOSTS = 5
MISSED = range(20, 26)
"""Scrapes that the first host misses: less than the five minutes for which Prometheus repeats a value."""
LIVE_S, DARK_S = 4, 3
LIVE_SCRAPES = 4
"""A life lasts until each server has seen so much of it: a busy one misses a scrape now and then."""
STEPS_PER_S = 48
"""Of the exporter that lives."""
SAMPLES_MAX = 400
"""The most that Prometheus gives at once; all of the history is more."""


@pytest.fixture(scope="session")
def history() -> tuple[Reading, ...]:
    """Two GPUs' temperatures and energies on each of some hosts, scraped at a moment of each host's own."""
    begin_ns = (time.time_ns() // SECOND_NS - 3600) // STEP_S * STEP_S * SECOND_NS
    rng = np.random.default_rng(5)
    readings = []
    for scrape in range(HISTORY_SCRAPES):
        for host in range(HISTORY_HOSTS):
            moment_ms = host * 2_400 + int(rng.integers(-20, 20)) + 50
            at_ns = begin_ns + scrape * STEP_S * SECOND_NS + moment_ms * 10**6
            if host == 0 and scrape in MISSED:
                continue
            for gpu in range(2):
                labels = {
                    "hostname": f"n{host}",
                    "gpu": str(gpu),
                    "pci_bus_id": f"00000000:{gpu + 1:02X}:00.0",
                }
                values = {
                    "DCGM_FI_DEV_GPU_TEMP": 40.0 + host + scrape % 7,
                    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1e12 + 5e6 * scrape,
                }
                readings += [
                    Reading(metric=metric, labels=labels, at_ns=at_ns, value=value)
                    for metric, value in values.items()
                ]
    return tuple(sorted(readings, key=lambda reading: (reading.metric, str(reading.labels), reading.at_ns)))


@pytest.fixture(scope="session")
def exporter_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def node_exporter(need: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real node exporter."""
    need("prometheus-node-exporter")
    home, port = tmp_path_factory.mktemp("node-exporter"), free_port()
    with daemon(["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"], home):
        _await(f"http://127.0.0.1:{port}/metrics", home / "prometheus-node-exporter.log")
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def scrape_settings(node_exporter: str, exporter_port: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = tmp_path_factory.mktemp("scraping") / "scrape.yml"
    settings.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: node, static_configs: [{{targets: ['{node_exporter}']}}]}}\n"
        f"  - {{job_name: made, static_configs: [{{targets: ['127.0.0.1:{exporter_port}']}}]}}\n",
        encoding="utf-8",
    )
    return settings


@pytest.fixture(scope="session")
def prometheus(
    need: Callable[..., None],
    history: tuple[Reading, ...],
    scrape_settings: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    need("prometheus")
    home, port = tmp_path_factory.mktemp("prometheus"), free_port()
    lines = [f"{_exposed(reading)} {reading.at_ns / SECOND_NS:.3f}\n" for reading in history]
    (home / "history.txt").write_text("".join(lines) + "# EOF\n", encoding="utf-8")
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(home / "history.txt"), str(home)]
    subprocess.run(blocks, check=True, capture_output=True)
    command = [
        "prometheus",
        f"--config.file={scrape_settings}",
        f"--storage.tsdb.path={home}",
        f"--query.max-samples={SAMPLES_MAX}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with daemon(command, home):
        _await(f"http://127.0.0.1:{port}/-/ready", home / "prometheus.log")
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def victoria(
    need: Callable[..., None],
    history: tuple[Reading, ...],
    scrape_settings: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    need("victoria-metrics")
    home, port = tmp_path_factory.mktemp("victoria"), free_port()
    command = [
        "victoria-metrics",
        f"-storageDataPath={home}",
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-promscrape.config={scrape_settings}",
        "-search.latencyOffset=0s",
    ]
    with daemon(command, home):
        url = f"http://127.0.0.1:{port}"
        _await(f"{url}/health", home / "victoria-metrics.log")
        lines = [f"{_exposed(reading)} {reading.at_ns // 10**6}\n" for reading in history]
        httpx.post(f"{url}/api/v1/import/prometheus", content="".join(lines)).raise_for_status()
        httpx.get(f"{url}/internal/force_flush").raise_for_status()
        yield url


@pytest.fixture(scope="session")
def lived(prometheus: str, victoria: str, exporter_port: int) -> tuple[int, int, int]:
    """An exporter that works, is gone and comes back, scraped by both: when it began, went dark and ended."""
    urls = (prometheus, victoria)
    _await_scrapes(urls, 'count(up{job="made"})', 1)  # they look for their targets for some seconds
    begin_ns = time.time_ns()
    _export(exporter_port, urls, start=1_000.0, scrapes=LIVE_SCRAPES)
    dark_ns = time.time_ns()
    time.sleep(DARK_S)
    _export(exporter_port, urls, start=0.0, scrapes=2 * LIVE_SCRAPES)
    return begin_ns, dark_ns, time.time_ns()


def _export(port: int, urls: tuple[str, ...], *, start: float, scrapes: int) -> None:
    """A process's life, until each server has so many scrapes of all lives: its counter begins at `start`."""
    registry = CollectorRegistry()
    registry.register(_Life(start))
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        time.sleep(LIVE_S)
        _await_scrapes(urls, "count_over_time(made_level[10m])", scrapes)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Life(Collector):
    """Counts at one pace, however busy the machine is: it reads the clock when it is asked."""

    def __init__(self, start: float) -> None:
        self._start, self._begun_s = start, time.monotonic()

    def collect(self) -> Iterator[Metric]:
        lived_s = time.monotonic() - self._begun_s
        yield CounterMetricFamily("made_steps", "Steps.", self._start + STEPS_PER_S * lived_s)
        yield GaugeMetricFamily("made_level", "A level.", lived_s)


def _await_scrapes(urls: tuple[str, ...], query: str, least: float) -> None:
    """Until every server answers such a number, or a larger one."""

    def has_it(url: str) -> bool:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()["data"]["result"]
        return bool(answer) and float(answer[0]["value"][1]) >= least

    until(lambda: all(map(has_it, urls)))


def _exposed(reading: Reading) -> str:
    labels = ",".join(f'{key}="{text}"' for key, text in reading.labels.items())
    return f"{reading.metric}{{{labels}}} {reading.value}"


def _await(url: str, log: Path) -> None:
    until(lambda: answers(url), lambda: log.read_text(encoding="utf-8"))
