"""What of a host takes two metrics to say: Lustre's times, TCP segments that are sent again; clocks."""

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.signals.frame import Floats, Frame

Made = Callable[..., Frame]
Noisy = Callable[..., Floats]
Looked = Callable[..., Detected]

ROWS, SINCE, HOSTS = 180, 100, 4
NAMES = [f"n{number:05}" for number in range(HOSTS)]
LABELS = [{"instance": name} for name in NAMES]


def counted(rates: Floats) -> Floats:
    """The counter that grows at these rates, read every ten seconds."""
    return np.asarray(1_000.0 + np.cumsum(rates * 10.0, axis=0))


def test_lustre_that_takes_long_for_each_operation(framed: Made, noisy: Noisy, looked: Looked) -> None:
    """A client has a series for each operation; 2 ms each, then 40."""
    operations = noisy(100.0, ROWS, 2 * HOSTS)
    spent_us = operations * 2_000.0
    spent_us[SINCE:, [1, 1 + HOSTS]] *= 20
    names, labels = NAMES * 2, [one | {"operation": kind} for kind in ("read", "write") for one in LABELS]
    count = framed("lustre_stats_total", counted(operations), names, labels=labels)
    time = framed("lustre_stats_time_total", counted(spent_us), names, labels=labels)
    (found,) = looked(count, time).machines
    assert (found.sign, found.subject, found.until_ns) == ("slow-lustre", NAMES[1], None)
    assert found.value == pytest.approx(0.04, rel=0.05)
    assert found.usual == pytest.approx(0.002, rel=0.05)


def test_segments_that_are_sent_again_count_as_a_share_of_those_sent(
    framed: Made, noisy: Noisy, looked: Looked
) -> None:
    """One host sends ten times as much, and so ten times as much again; another loses one in twenty."""
    sent = noisy(5_000.0, ROWS, HOSTS)
    again = sent * 0.0005
    sent[SINCE:, 0] *= 10
    again[SINCE:, 0] *= 10
    again[SINCE:, 2] = 250.0
    frames = (
        framed("node_netstat_Tcp_OutSegs", counted(sent), NAMES, labels=LABELS),
        framed("node_netstat_Tcp_RetransSegs", counted(again), NAMES, labels=LABELS),
    )
    (found,) = looked(*frames).machines
    assert (found.sign, found.subject) == ("resent-packets", NAMES[2])
    assert found.value == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("metric", ["chrony_tracking_last_offset_seconds", "node_timex_offset_seconds"])
def test_clocks_that_are_off_either_way(metric: str, framed: Made, looked: Looked) -> None:
    offsets = np.full((ROWS, HOSTS), 1e-5)
    offsets[SINCE:, 1] = -0.4
    offsets[SINCE:, 2] = 0.05
    (found,) = looked(framed(metric, offsets, NAMES, labels=LABELS)).machines
    assert (found.sign, found.subject) == ("clock-off", NAMES[1])
    assert found.value == pytest.approx(0.4)
