"""Response times over all clients of a mount: slow reads, slow writes, calls sent again, and quiet ones."""

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.detect.finding import Finding
from holdfast.detect.mounts import REQUESTS, RESPONSE, SENT
from holdfast.signals.frame import Floats, Frame

ROWS, SINCE, SCRAPE_S = 180, 120, 10.0
CLIENTS = tuple(f"n{number:05}" for number in range(8))
ASKED_PER_S, RESPONSE_S = 40.0, 0.004

Looked = Callable[..., Detected]
Made = Callable[..., list[Frame]]


@pytest.fixture
def mounted(framed: Callable[..., Frame]) -> Made:
    """The three counters of a mount's clients, from their rates: asked and again a second, seconds each."""

    def make(
        asked: Floats,
        response_s: Floats,
        again: Floats,
        *,
        operation: str = "READ",
        every_s: float = SCRAPE_S,
        **called: str,
    ) -> list[Frame]:
        called = called or {"mountaddr": "fs-0000"}
        labels = [{**called, "operation": operation, "instance": f"{client}:9100"} for client in CLIENTS]
        rates = {REQUESTS: asked, RESPONSE: asked * response_s, SENT: asked + again}
        return [
            framed(metric, 1e6 + np.cumsum(rate * every_s, axis=0), CLIENTS, labels=labels, every_s=every_s)
            for metric, rate in rates.items()
        ]

    return make


def usual(seed: int = 0) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(seed)
    asked = ASKED_PER_S * (1 + 0.1 * rng.standard_normal((ROWS, len(CLIENTS))))
    response_s = RESPONSE_S * (1 + 0.05 * rng.standard_normal(asked.shape))
    return asked, response_s, np.zeros_like(asked)


def found_in(detected: Detected) -> dict[str, Finding]:
    return {one.sign: one for one in detected.machines}


def test_a_healthy_mount_has_no_findings(mounted: Made, looked: Looked) -> None:
    for seed in range(5):
        assert looked(*mounted(*usual(seed))).machines == ()


@pytest.mark.parametrize(("operation", "sign"), [("READ", "slow-reads"), ("WRITE", "slow-writes")])
def test_a_mount_that_answers_late(operation: str, sign: str, mounted: Made, looked: Looked) -> None:
    asked, response_s, again = usual()
    response_s[SINCE:] *= 3
    frames = mounted(asked, response_s, again, operation=operation)
    found = found_in(looked(*frames))
    assert set(found) == {sign}
    assert found[sign].subject == "fs-0000"
    assert found[sign].since_ns == frames[0].times_ns[SINCE]
    assert found[sign].noticed_ns == frames[0].times_ns[SINCE + 1]
    assert found[sign].until_ns is None
    assert found[sign].value == pytest.approx(3 * RESPONSE_S, rel=0.05)
    assert found[sign].usual == pytest.approx(RESPONSE_S, rel=0.05)


@pytest.mark.parametrize(("server", "subject"), [("fs-0000", "fs-0000"), ("filer-9", "10.0.0.9")])
def test_a_filer_is_called_as_the_topology_calls_it(
    server: str, subject: str, mounted: Made, looked: Looked
) -> None:
    asked, response_s, again = usual()
    response_s[SINCE:] *= 3
    frames = mounted(asked, response_s, again, export=f"{server}:/train", mountaddr="10.0.0.9")
    assert found_in(looked(*frames))["slow-reads"].subject == subject


@pytest.mark.parametrize(("lasts", "signs"), [(3, set()), (8, {"slow-writes"})])
def test_a_hiccup_of_seconds_is_not_a_slow_mount(
    lasts: int, signs: set[str], mounted: Made, looked: Looked
) -> None:
    asked, response_s, again = usual()
    response_s[SINCE : SINCE + lasts] *= 10
    frames = mounted(asked, response_s, again, operation="WRITE", every_s=1.0)
    assert set(found_in(looked(*frames, window_s=ROWS))) == signs


def test_one_client_that_is_slow_is_not_its_mount(mounted: Made, looked: Looked) -> None:
    asked, response_s, again = usual()
    response_s[SINCE:, 2] *= 3
    assert looked(*mounted(asked, response_s, again)).machines == ()


def test_calls_that_are_sent_again(mounted: Made, looked: Looked) -> None:
    asked, response_s, again = usual()
    again[SINCE:] = 0.01 * asked[SINCE:]
    frames = mounted(asked, response_s, again)
    found = found_in(looked(*frames))
    assert set(found) == {"resent-calls"}
    assert found["resent-calls"].value == pytest.approx(0.01, rel=0.05)
    assert found["resent-calls"].since_ns == frames[0].times_ns[SINCE]


def test_without_transmissions_nothing_is_said_to_be_sent_again(mounted: Made, looked: Looked) -> None:
    asked, response_s, again = usual()
    again[SINCE:] = 0.01 * asked[SINCE:]
    requests, response, _ = mounted(asked, response_s, again)
    assert looked(requests, response).machines == ()


def test_a_mount_that_is_hardly_asked_says_nothing(mounted: Made, looked: Looked) -> None:
    asked, response_s, again = usual()
    response_s[SINCE:] *= 10
    assert looked(*mounted(asked / 1_000, response_s, again)).machines == ()


def test_a_mount_that_is_asked_now_and_then_is_slow_until_it_answers_quickly_again(
    mounted: Made, looked: Looked
) -> None:
    """A minute of writing in every five; the time between shows nothing."""
    asked, response_s, again = usual()
    asked[np.arange(ROWS) % 30 >= 6] = 0.0
    response_s[SINCE:] *= 3
    frames = mounted(asked, response_s, again, operation="WRITE")
    last_but_quiet_ns = int(frames[0].times_ns[ROWS - 6])
    found = found_in(looked(*frames, now_ns=last_but_quiet_ns))["slow-writes"]
    assert found.until_ns is None
    response_s[150:] = RESPONSE_S
    response_s[SINCE:150] = RESPONSE_S
    assert looked(*mounted(asked, response_s, again, operation="WRITE")).machines == ()


def test_a_mount_that_answers_quickly_for_a_minute_is_over(mounted: Made, looked: Looked) -> None:
    """Read every second, with a slow answer now and then, as any disk has it."""
    asked, response_s, again = usual()
    response_s[70:100] += 0.04
    response_s[130] = response_s[150] = 0.012
    (slow,) = looked(*mounted(asked, response_s, again, every_s=1.0)).machines
    assert slow.until_ns is not None
    assert (slow.until_ns - slow.since_ns) / 1e9 == pytest.approx(29, abs=2)


def test_a_client_that_is_missing_at_times_changes_nothing(mounted: Made, looked: Looked) -> None:
    asked, response_s, again = usual()
    frames = mounted(asked, response_s, again)
    for frame in frames:
        frame.values[10::17, 3] = np.nan
        frame.values[90:, 5] = np.nan
    assert looked(*frames).machines == ()


def test_clients_in_another_order_are_the_same_clients(
    mounted: Made, looked: Looked, framed: Callable[..., Frame]
) -> None:
    asked, response_s, again = usual()
    response_s[SINCE:] *= 3
    requests, response, sent = mounted(asked, response_s, again)
    turned = framed(
        response.metric,
        response.values[:, ::-1],
        response.subjects[::-1],
        labels=response.labels[::-1],
    )
    assert looked(requests, turned, sent).machines == looked(requests, response, sent).machines


def test_a_counter_that_begins_later_than_the_other_is_no_mistake(
    mounted: Made, looked: Looked, framed: Callable[..., Frame]
) -> None:
    """Each metric is read on its own, and their first scrapes need not be the same one."""
    asked, response_s, again = usual()
    response_s[SINCE:] *= 3
    requests, response, sent = mounted(asked, response_s, again)
    later = framed(
        response.metric, response.values[1:], response.subjects, labels=response.labels, from_s=SCRAPE_S
    )
    assert set(found_in(looked(requests, later, sent))) == {"slow-reads"}


def test_other_operations_are_not_looked_at(mounted: Made, looked: Looked) -> None:
    asked, response_s, again = usual()
    response_s[SINCE:] *= 3
    assert looked(*mounted(asked, response_s, again, operation="GETATTR")).machines == ()
