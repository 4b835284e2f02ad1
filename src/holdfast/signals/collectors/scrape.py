"""Read a page exported for Prometheus without a Prometheus: a run's own times, a node exporter's."""

import math
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from holdfast.record.clock import Clock
from holdfast.signals import http_client
from holdfast.signals.collectors import Unavailable
from holdfast.signals.frame import Reading

WAIT_S = 5.0
"""For the whole page: an exporter that drips counts as failed."""
BYTES_MAX = 64 << 20
"""The exporters of a large node show a few megabytes."""

_HINT = "Name the page that Prometheus would scrape, as in http://HOST:9999/metrics."
_PORTS = {"http": 80, "https": 443}


class ScrapeCollector:
    """The metrics of one exporter, with its host and port as `instance`, as Prometheus would add them.

    place: its server, without the parts of the URL that may be secret
    """

    def __init__(self, url: str, *, clock: Clock, access: http_client.Access = http_client.ANONYMOUS) -> None:
        address = http_client.checked(url, what="--scrape", is_quoted=True)
        self.place = http_client.shown(address)
        self.name = f"scrape {self.place}"
        self._instance = f"{address.host}:{address.port or _PORTS[address.scheme]}"
        self._clock = clock
        self._client = http_client.HttpClient(
            url,
            what="--scrape",
            limits=http_client.Limits(total_s=WAIT_S, body_bytes_max=BYTES_MAX),
            access=access,
            manners=http_client.Manners(redirects=True),
        )

    def collect(self) -> list[Reading]:
        at_ns = self._clock.now_ns()
        return list(self._readings(self._text(), at_ns))

    def close(self) -> None:
        self._client.close()

    def _text(self) -> str:
        try:
            answer = self._client.ask()
        except http_client.Failed as error:
            raise Unavailable(f"{self.place} does not answer: {error}.", hint=_HINT) from None
        if not answer.is_success:
            raise Unavailable(f"{self.place} answers {answer.status}.", hint=_HINT)
        return answer.text

    def _readings(self, text: str, at_ns: int) -> Iterator[Reading]:
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    value = float(sample.value)
                    if math.isfinite(value):
                        labels = {"instance": self._instance, **sample.labels}
                        yield Reading(metric=sample.name, labels=labels, at_ns=at_ns, value=value)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            sentence = f"{self.place} does not show metrics: {error}."
            raise Unavailable(sentence, hint=_HINT) from None
