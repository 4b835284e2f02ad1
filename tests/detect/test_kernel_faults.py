"""Faults of the kernel log on their way into the record."""

from pathlib import Path

import pytest

from holdfast.detect.kernel_faults import FaultRecord, Names, subject
from holdfast.detect.xids import CATALOGUE
from holdfast.record.errors import StoreError
from holdfast.record.events import FaultObserved
from holdfast.record.stores import open_store
from holdfast.signals.collectors.kernel_log import KernelEvent, parse_line

NAMES = Names(gpus={"0000:9b:00.0": {"gpu": "4"}}, ports={"0000:41:00.0": "mlx5_0"})
NOW_NS = 1_740_000_000 * 10**9


def event(text: str, **fields: object) -> KernelEvent:
    parsed = parse_line(f"3,1,1500000,-;{text}")
    return KernelEvent(**{**{name: getattr(parsed, name) for name in parsed.__struct_fields__}, **fields})


XID = event("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", host="n17")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, text", "n17.4"),
        ("NVRM: Xid (PCI:0000:1b:00): 79, text", "n17/0000:1b:00.0"),
        ("mlx5_core 0000:41:00.0: synd 0x8: unrecoverable hardware error", "n17/mlx5_0"),
        ("mlx5_core 0000:42:00.0: synd 0x8: unrecoverable hardware error", "n17/0000:42:00.0"),
        ("nvidia-nvswitch0: SXid (PCI:0000:9b:00.0): 20034, Fatal, Link 30", "n17/0000:9b:00.0"),
        ("NVRM: Xid (PCI:.): 79, text", "n17"),
    ],
)
def test_a_fault_is_about_what_the_topology_calls_it(line: str, expected: str) -> None:
    assert subject(event(line, host="n17"), NAMES) == expected


def kept(store: Path) -> list[FaultObserved]:
    with open_store(str(store), store.parent) as opened:
        return [one for one in opened.select() if isinstance(one, FaultObserved)]


def test_a_fault_is_kept_with_its_time_and_its_line(tmp_path: Path) -> None:
    store = tmp_path / "record.sqlite"
    FaultRecord(str(store), tmp_path, source=CATALOGUE).add([XID], NAMES, now_ns=NOW_NS)
    (fault,) = kept(store)
    assert (fault.fault, fault.severity, fault.subject, fault.run) == ("xid-79", "fatal", "n17.4", "")
    assert (fault.occurred_ns, fault.source, fault.detail) == (NOW_NS, "n17/kernel-log", XID.message)


@pytest.mark.parametrize("at_ns", [-1, 2**62 + 1])
def test_a_time_that_cannot_be_is_not_believed(tmp_path: Path, at_ns: int) -> None:
    store = tmp_path / "record.sqlite"
    odd = event(XID.message, host="n17", at_ns=at_ns)
    FaultRecord(str(store), tmp_path, source=CATALOGUE).add([odd], NAMES, now_ns=NOW_NS)
    assert [fault.occurred_ns for fault in kept(store)] == [NOW_NS]


def test_the_same_line_of_the_same_moment_is_one_fault(tmp_path: Path) -> None:
    store = tmp_path / "record.sqlite"
    first, again, later = (event(f"[  {at}.5] {XID.message}", host="n17") for at in (1, 1, 2))
    record = FaultRecord(str(store), tmp_path, source=CATALOGUE)
    record.add([first, again], NAMES, now_ns=NOW_NS)
    record.add([again, later], NAMES, now_ns=NOW_NS + 5)
    assert len(kept(store)) == 2


def test_what_a_store_refuses_is_kept_later(tmp_path: Path) -> None:
    store = tmp_path / "record.sqlite"
    store.mkdir()
    record = FaultRecord(str(store), tmp_path, source=CATALOGUE)
    with pytest.raises(StoreError):
        record.add([XID], NAMES, now_ns=NOW_NS)
    store.rmdir()
    record.add([], NAMES, now_ns=NOW_NS + 1)
    assert [fault.fault for fault in kept(store)] == ["xid-79"]
