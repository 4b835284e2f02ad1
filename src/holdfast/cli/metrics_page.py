"""`--listen HOST:PORT`: serves a verb's metrics for Prometheus."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.registry import Collector, CollectorRegistry

from holdfast.record.errors import InputError
from holdfast.run.metrics import PATH, url_of
from holdfast.run.metrics import page as metrics_page
from holdfast.run.pages import serving

EVERYWHERE = "0.0.0.0"
PORT_MAX = 65_535


@contextmanager
def serving_metrics(address: str, metrics: Collector | CollectorRegistry) -> Iterator[str]:
    """Serve metrics while the block lasts, and yield the page's URL. Without a host: on every address."""
    host, port = _host_and_port(address)
    with serving(host, port, {PATH: lambda: metrics_page(metrics)}) as bound:
        yield url_of(host, bound)


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else PORT_MAX + 1
    if not colon or number > PORT_MAX:
        raise InputError(f"{text!r} is not in the form HOST:PORT.", hint="Write --listen 127.0.0.1:9470.")
    return host.strip("[]") or EVERYWHERE, number
