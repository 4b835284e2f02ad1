"""Anything that is exported for Prometheus, read without one: a run's own times, a node exporter's."""

import math
from collections.abc import Iterator

import httpx
from prometheus_client.parser import text_string_to_metric_families

from holdfast.record.clock import Clock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.reading import Reading

WAIT_S = 5.0
BYTES_MAX = 64 << 20
"""The exporters of a large node show a few megabytes."""


class ScrapeCollector:
    """What one exporter shows, with its host and port as `instance`, as Prometheus would add them."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        self.name = f"scrape {url}"
        self._clock = clock
        try:
            self._url = httpx.URL(url)
            self._client = httpx.Client(timeout=WAIT_S, follow_redirects=True, trust_env=False)
        except (httpx.InvalidURL, ValueError) as error:
            raise Unavailable(
                f"{url!r} is no URL: {error}.", hint="As in http://HOST:9999/metrics."
            ) from None

    def collect(self) -> list[Reading]:
        at_ns = self._clock.now_ns()
        return list(self._readings(self._text(), at_ns))

    def close(self) -> None:
        self._client.close()

    def _text(self) -> str:
        hint = "Name the page that Prometheus would scrape, as in http://HOST:9999/metrics."
        body = bytearray()
        try:
            with self._client.stream("GET", self._url) as answer:
                answer.raise_for_status()
                for piece in answer.iter_bytes():
                    body += piece
                    if len(body) > BYTES_MAX:
                        raise Unavailable(f"{self._url} does not end.", hint=hint)
        except httpx.HTTPStatusError as error:
            sentence = f"{self._url} answers {error.response.status_code}."
            raise Unavailable(sentence, hint=hint) from None
        except httpx.HTTPError as error:
            raise Unavailable(
                f"{self._url} does not answer: {error or type(error).__name__}.", hint=hint
            ) from None
        return body.decode("utf-8", "replace")

    def _readings(self, text: str, at_ns: int) -> Iterator[Reading]:
        instance = f"{self._url.host}:{self._url.port or 80}"
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    value = float(sample.value)
                    if math.isfinite(value):
                        labels = {"instance": instance, **sample.labels}
                        yield Reading(metric=sample.name, labels=labels, at_ns=at_ns, value=value)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            sentence = f"{self._url} shows something that is no metrics: {error}."
            raise Unavailable(sentence, hint="Name the page that Prometheus would scrape.") from None
