"""XIDs of a log, counted in a window as dcgm-exporter counts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.record.clock import ManualClock
from holdfast.signals.collectors.kernel_log_collector import EVENTS_MAX, WINDOW_MS, KernelLogCollector
from holdfast.signals.frame import Labels

START_NS = 1_740_000_000 * 10**9
GPUS: dict[str, Labels] = {"0000:9b:00.0": {"gpu": "4", "UUID": "GPU-5", "hostname": "n17"}}


def line(xid: int, bus: str = "9b") -> str:
    return f"[  1.5] NVRM: Xid (PCI:0000:{bus}:00): {xid}, pid=1, name=a, text\n"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_NS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(line(31), encoding="utf-8")
    return path


@pytest.fixture
def followed(log: Path, clock: ManualClock) -> Iterator[KernelLogCollector]:
    collector = KernelLogCollector(log, clock=clock, host="n17", gpus=lambda: GPUS)
    yield collector
    collector.close()


def counts(collector: KernelLogCollector) -> dict[tuple[str, str], float | None]:
    readings = [(reading.labels, reading.value) for reading in collector.collect()]
    return {(labels["xid"], labels.get("gpu") or labels["pci_bus_id"]): value for labels, value in readings}


def test_xids_are_counted_for_as_long_as_the_exporter_counts_them(
    followed: KernelLogCollector, clock: ManualClock, log: Path
) -> None:
    assert counts(followed) == {("31", "4"): 1}
    clock.advance_ns(WINDOW_MS * 10**6 // 2)
    with log.open("a", encoding="utf-8") as file:
        file.write(line(31) + line(79, bus="1b") + "nothing of note\n")
    assert counts(followed) == {("31", "4"): 2, ("79", "00000000:1B:00.0"): 1}
    clock.advance_ns(WINDOW_MS * 10**6 // 2 + 1)
    assert counts(followed) == {("31", "4"): 1, ("79", "00000000:1B:00.0"): 1}
    clock.advance_ns(WINDOW_MS * 10**6)
    assert counts(followed) == {("31", "4"): 0, ("79", "00000000:1B:00.0"): 0}


def test_readings_have_the_exporters_labels(followed: KernelLogCollector) -> None:
    (reading,) = followed.collect()
    assert reading.metric == "DCGM_EXP_XID_ERRORS_COUNT"
    assert reading.labels == {**GPUS["0000:9b:00.0"], "xid": "31", "window_size_in_ms": "300000"}
    assert reading.at_ns == START_NS


def test_events_are_handed_out_once_with_their_host(followed: KernelLogCollector) -> None:
    followed.collect()
    (event,) = followed.take_events()
    assert (event.code, event.host, event.at_ns) == (31, "n17", None)
    followed.collect()
    assert followed.take_events() == []


def test_an_old_log_that_is_read_whole_is_counted_whole(data: Path, clock: ManualClock) -> None:
    path = data / "kernel-logs" / "dmesg-xid-119.log"
    collector = KernelLogCollector(path, clock=clock, host="n17", gpus=dict, whole=True)
    (reading,) = collector.collect()
    assert reading.value == 5
    assert reading.labels == {
        "pci_bus_id": "00000000:9B:00.0",
        "hostname": "n17",
        "instance": "n17",
        "xid": "119",
    }
    assert len(collector.take_events()) == 5
    collector.close()


def test_a_storm_is_bounded(followed: KernelLogCollector, log: Path) -> None:
    log.write_text("".join(line(code % 3000) for code in range(EVENTS_MAX + 50)), encoding="utf-8")
    readings = followed.collect()
    assert len(readings) == 1000
    assert len(followed.take_events()) == EVENTS_MAX
