"""Webhooks: delivered in order, tried again within bounds, and never waited for."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.diagnose.sending import BACKOFF_S_MAX, BACKOFF_S_MIN, backoff_s
from holdfast.diagnose.webhook import ATTEMPTS_MAX, Webhook
from holdfast.record.errors import InputError
from holdfast.signals.http_client import shown

Make = Callable[..., Incident]


def test_changes_arrive_in_order_and_whole(receiver: Any, incident: Make) -> None:
    told: list[str] = []
    with Webhook(receiver.url, tell=told.append) as webhook:
        webhook.changed(IncidentChange(state="open", at_ns=1, incident=incident()))
        webhook.changed(
            IncidentChange(state="changed", at_ns=1, incident=incident(confidence=0.99), before=incident())
        )
        webhook.changed(
            IncidentChange(state="resolved", at_ns=1, incident=incident(ended_ns=incident().began_ns + 10**9))
        )
    bodies = receiver.bodies
    assert [body["state"] for body in bodies] == ["open", "changed", "resolved"]
    assert bodies[0]["version"] == 1
    assert bodies[0]["incident"]["cause"]["subject"] == "cdu-0000"
    assert bodies[0]["alert"]["labels"]["owner"] == "facilities"
    assert told == []


def test_a_receiver_that_fails_once_is_tried_again(receiver: Any, incident: Make) -> None:
    receiver.answers = [503, 200]
    with Webhook(receiver.url) as webhook:
        webhook.changed(IncidentChange(state="open", at_ns=1, incident=incident()))
        receiver.wait(lambda bodies: len(bodies) == 1)


def test_a_dead_receiver_holds_nobody_up_and_is_told_of(free_port: int, incident: Make) -> None:
    told: list[str] = []
    begun = time.monotonic()
    with Webhook(f"http://user:secret@127.0.0.1:{free_port}/hook?token=t", tell=told.append) as webhook:
        webhook.changed(IncidentChange(state="open", at_ns=1, incident=incident()))
    assert (
        time.monotonic() - begun < sum(map(backoff_s, range(1, ATTEMPTS_MAX))) / 2
    )  # far less than all the waits
    (sentence,) = told
    assert f"http://127.0.0.1:{free_port} did not accept a message" in sentence
    assert "/hook" not in sentence
    assert "secret" not in sentence
    assert "token" not in sentence


def test_waits_grow_up_to_a_bound() -> None:
    waits = [backoff_s(failures) for failures in range(1, 40)]
    assert waits[0] == BACKOFF_S_MIN
    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF_S_MAX
    assert sum(waits[: ATTEMPTS_MAX - 1]) < 60


def test_addresses_are_shown_without_secrets() -> None:
    assert shown("https://me:pw@[::1]:8443/a?b=c") == "https://[::1]:8443"
    with pytest.raises(InputError, match="webhook"):
        Webhook("not a url")
