"""PCIe links below their width, and errors that a driver named."""

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.detect import devices
from holdfast.detect.detecting import Detected
from holdfast.detect.devices import WIDTH, WIDTH_MAX, XID_COUNTS, XIDS
from holdfast.detect.pace import STEP
from holdfast.detect.xids import Override, policy
from holdfast.signals.frame import Frame, Labels

ROWS, SINCE = 180, 100
GPUS = tuple(f"n00000.{number}" for number in range(8))

Made = Callable[..., Frame]
Looked = Callable[..., Detected]


def identities(node: str = "n00000") -> list[Labels]:
    return [
        {"segment": "0000", "bus": f"{16 + bus:02x}", "device": "00", "function": "0", "instance": node}
        for bus in range(len(GPUS))
    ]


def test_a_link_with_fewer_lanes_than_its_device(framed: Made, looked: Looked) -> None:
    widths = np.full((ROWS, len(GPUS)), 16.0)
    widths[SINCE:, 3] = 8.0
    now = framed(WIDTH, widths, GPUS, labels=identities())
    most = framed(WIDTH_MAX, np.full((ROWS, len(GPUS)), 16.0), GPUS, labels=identities())
    (found,) = looked(now, most).machines
    assert (found.sign, found.subject, found.method) == ("narrow-bus", GPUS[3], "physics")
    assert (found.value, found.usual) == (8.0, 16.0)
    assert found.since_ns == now.times_ns[SINCE]
    assert found.noticed_ns == now.times_ns[SINCE + 1]
    assert looked(now, most, now_ns=int(now.times_ns[SINCE])).machines == ()


def test_a_link_that_was_always_narrow_is_found_as_well(framed: Made, looked: Looked) -> None:
    widths = np.full((ROWS, len(GPUS)), 16.0)
    widths[:, 3] = 4.0
    now = framed(WIDTH, widths, GPUS, labels=identities())
    most = framed(WIDTH_MAX, np.full((ROWS, len(GPUS)), 16.0), GPUS, labels=identities())
    (found,) = looked(now, most).machines
    assert found.since_ns == now.times_ns[0]


def test_each_device_is_held_against_its_own_width(framed: Made, looked: Looked) -> None:
    """Not every card has sixteen lanes, and the two metrics need not list them in one order."""
    lanes = np.array([16.0, 16, 8, 8, 4, 4, 1, 1])
    now = framed(WIDTH, np.tile(lanes, (ROWS, 1)), GPUS, labels=identities())
    most = framed(WIDTH_MAX, np.tile(lanes[::-1], (ROWS, 1)), GPUS[::-1], labels=identities()[::-1])
    assert looked(now, most).machines == ()


def test_without_a_width_to_hold_it_against_nothing_is_narrow(framed: Made, looked: Looked) -> None:
    now = framed(WIDTH, np.full((ROWS, len(GPUS)), 8.0), GPUS, labels=identities())
    assert looked(now).machines == ()
    elsewhere = framed(WIDTH_MAX, np.full((ROWS, len(GPUS)), 16.0), GPUS, labels=identities("n00009"))
    assert looked(now, elsewhere).machines == ()


# -- XIDs ----------------------------------------------------------------------------------------------

FATAL, IGNORED = 79, 43
"""A GPU that has fallen off the bus, and an application that was at fault itself."""


def test_the_codes_of_these_tests_are_what_they_are_meant_to_be() -> None:
    assert policy(FATAL).severity == "fatal"
    assert policy(IGNORED).severity == "none"


def xids(framed: Made, code: float, since: int = SINCE) -> Frame:
    values = np.zeros((ROWS, len(GPUS)))
    values[since:, 5] = code
    return framed(XIDS, values, GPUS)


def test_a_code_that_appears_is_news(framed: Made, looked: Looked) -> None:
    frame = xids(framed, FATAL)
    (found,) = looked(frame).machines
    assert (found.sign, found.subject, found.value) == ("xid", GPUS[5], FATAL)
    assert found.since_ns == found.noticed_ns == frame.times_ns[SINCE]
    assert found.grave
    assert found.until_ns is None, "a GPU that fell off the bus is not back because it is silent"
    assert str(FATAL) in found.note


def test_an_error_of_the_application_is_over_with_it(framed: Made, looked: Looked) -> None:
    frame = xids(framed, 31)
    (found,) = looked(frame).machines
    assert (found.until_ns, found.grave) == (frame.times_ns[SINCE], False)
    (fresh,) = looked(frame, now_ns=int(frame.times_ns[SINCE + 3])).machines
    assert fresh.until_ns is None


@pytest.mark.parametrize("empty", [1, 2, 5])
def test_an_empty_first_row_is_not_zero(empty: int, framed: Made, looked: Looked) -> None:
    """Exporters are scraped at moments of their own: of half of them a window begins with nothing."""
    frame = xids(framed, FATAL, since=0)
    frame.values[:empty] = np.nan
    assert looked(frame).machines == ()


def test_an_old_code_under_the_labels_of_a_new_job_is_no_news(framed: Made, looked: Looked) -> None:
    values = np.full((ROWS, 2), FATAL, np.float64)
    values[SINCE:, 0] = values[:SINCE, 1] = np.nan
    labels = [{"hostname": "n00000", "gpu": "5", "pod": pod} for pod in ("old", "new")]
    assert looked(framed(XIDS, values, [GPUS[5]] * 2, labels=labels)).machines == ()
    values[SINCE:, 1] = 31
    (found,) = looked(framed(XIDS, values, [GPUS[5]] * 2, labels=labels)).machines
    assert found.value == 31


def test_a_host_that_is_first_seen_with_a_code_had_it_before(framed: Made, looked: Looked) -> None:
    frame = xids(framed, FATAL, since=0)
    frame.values[:SINCE] = np.nan
    assert looked(frame).machines == ()


def test_a_code_that_was_there_before_is_none(framed: Made, looked: Looked) -> None:
    assert looked(xids(framed, FATAL, since=0)).machines == ()


def test_a_missed_scrape_does_not_make_an_old_code_news(framed: Made, looked: Looked) -> None:
    frame = xids(framed, FATAL, since=0)
    frame.values[90, 5] = np.nan
    assert looked(frame).machines == ()


def test_a_code_that_gives_way_to_another_is_news(framed: Made, looked: Looked) -> None:
    frame = xids(framed, FATAL)
    frame.values[:SINCE, 5] = 31
    (found,) = looked(frame).machines
    assert (found.value, found.since_ns) == (FATAL, frame.times_ns[SINCE])


def test_a_series_of_its_own_for_each_code_is_news_when_it_appears(framed: Made, looked: Looked) -> None:
    frame = xids(framed, FATAL)
    frame.values[:SINCE, 5] = np.nan
    (found,) = looked(frame).machines
    assert found.since_ns == frame.times_ns[SINCE]


def test_what_the_policy_ignores_is_nothing_unless_the_site_decides_otherwise(
    framed: Made, looked: Looked
) -> None:
    frame = xids(framed, IGNORED)
    assert looked(frame).machines == ()
    (found,) = looked(frame, xids={IGNORED: Override(severity="degraded", text="not here")}).machines
    assert found.value == IGNORED
    assert "not here" in found.note
    assert looked(xids(framed, FATAL), xids={FATAL: Override(action="ignore")}).machines == ()


@pytest.mark.parametrize("label", ["", "many", "-1"])
def test_counts_have_their_code_in_a_label(label: str, framed: Made, looked: Looked) -> None:
    counts = np.zeros((ROWS, 1))
    counts[SINCE:] = 1
    (found,) = looked(framed(XID_COUNTS, counts, GPUS[:1], labels=[{"xid": str(FATAL)}])).machines
    assert found.value == FATAL
    assert looked(framed(XID_COUNTS, counts, GPUS[:1], labels=[{"xid": label}])).machines == ()


def test_codes_are_read_once_at_a_look(framed: Made, looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a run stands, and whether its hardware broke is asked for."""
    asked: list[int] = []

    def counted(code: int, **options: object) -> object:
        asked.append(code)
        return policy(code)

    monkeypatch.setattr(devices, "policy", counted)
    steps = np.full((ROWS, 1), 6.0) + 0.001 * np.arange(ROWS)[:, None]
    steps[SINCE:] = 6.5
    stood = framed(STEP, steps, ["pretrain"], labels=[{"run": "pretrain"}])
    detected = looked(xids(framed, FATAL), stood)
    assert "no-step" in {one.sign for one in detected.runs["pretrain"]}
    assert [one.sign for one in detected.machines] == ["xid"]
    assert asked == [FATAL]
