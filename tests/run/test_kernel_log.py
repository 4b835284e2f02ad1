"""The kernel log as an agent reads it. The lines are those of an H200 whose process was made to fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.record.kernel import Xid
from holdfast.run.agent import may_be_gpus
from holdfast.run.kernel_log import KEPT_MAX, RECENT_S, KernelLog
from holdfast.run.output import LastWords
from holdfast.run.wire import CODE_DEVICE_FAILED

ASSERTED = "4,612,31981371,-;NVRM: Xid (PCI:0000:00:06): 43, pid=440, name=python3, channel 0x0000000a\n"
FAULTED = (
    "4,613,35783259,-;NVRM: Xid (PCI:0000:00:06): 31, pid=464, name=python3, channel 0x0000000a, "
    "intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_4 faulted @ 0x83de_8fe00000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE\n"
)
LOST = (
    "4,614,40000000,-;NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(LOST.replace("40000000", "1000000"), encoding="ascii")
    return path


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    """The driver's folder on a machine with one GPU."""
    gpus = tmp_path / "gpus"
    (gpus / "0000:00:06.0").mkdir(parents=True)
    return gpus


@pytest.fixture
def log(path: Path, gpus: Path) -> Iterator[KernelLog]:
    log = KernelLog(path, gpus)
    yield log
    log.close()


def add(path: Path, *lines: str) -> None:
    with path.open("a", encoding="ascii") as file:
        file.writelines(lines)


def test_lines_from_before_belong_to_no_process(log: KernelLog) -> None:
    assert log.xid_of(464, 2.0) is None


def test_a_line_is_found_by_its_process(log: KernelLog, path: Path) -> None:
    add(path, ASSERTED, "6,615,36000000,-;something else\n SUBSYSTEM=pci\n", FAULTED)
    xid = log.xid_of(464, 36.0)
    assert xid is not None
    assert (xid.code, xid.device, xid.pid, xid.process) == (31, "0000:00:06.0", 464, "python3")
    assert "MMU Fault: ENGINE GRAPHICS" in xid.text
    assert log.xid_of(440, 1000.0) == Xid(
        code=43,
        device="0000:00:06.0",
        pid=440,
        process="python3",
        text="pid=440, name=python3, channel 0x0000000a",
    )
    assert log.xid_of(1, 36.0) is None


def test_a_line_about_no_process_counts_while_it_is_recent(log: KernelLog, path: Path) -> None:
    add(path, ASSERTED, LOST)
    xid = log.xid_of(1, 40.0 + RECENT_S - 1)
    assert xid is not None
    assert (xid.code, xid.pid) == (79, None)
    assert log.xid_of(1, 40.0 + RECENT_S + 1) is None
    asserted = log.xid_of(440, 41.0)
    assert asserted is not None
    assert asserted.code == 43


@pytest.mark.parametrize("seen", [[], ["0000:00:06.0", "0000:00:07.0"]])
def test_a_line_about_no_process_does_not_count_unless_one_gpu_is_seen(
    path: Path, tmp_path: Path, seen: list[str]
) -> None:
    for address in seen:
        (tmp_path / "seen" / address).mkdir(parents=True)
    log = KernelLog(path, tmp_path / "seen")
    add(path, ASSERTED, LOST)
    assert log.xid_of(1, 41.0) is None
    asserted = log.xid_of(440, 41.0)
    assert asserted is not None
    assert asserted.code == 43
    log.close()


def test_a_line_about_a_gpu_that_is_not_visible_here_belongs_to_no_process(
    log: KernelLog, path: Path
) -> None:
    """A container may see one GPU but the log of all."""
    add(path, LOST.replace("0000:00:06", "0000:00:09"))
    assert log.xid_of(1, 41.0) is None


def test_only_so_much_is_kept(log: KernelLog, path: Path) -> None:
    for number in range(3 * KEPT_MAX):
        add(path, ASSERTED.replace("pid=440", f"pid={number}"))
    looks = (log.xid_of(3 * KEPT_MAX - 1, 0.0) for _ in range(100))  # each is cut short on a busy machine
    assert any(xid is not None for xid in looks)
    assert log.xid_of(0, 0.0) is None


@pytest.mark.parametrize("name", ["nothing", "."])
def test_where_it_cannot_be_read_there_is_nothing(tmp_path: Path, name: str) -> None:
    log = KernelLog(tmp_path / name, tmp_path / name)
    assert log.xid_of(1, 0.0) is None
    log.close()


@pytest.mark.parametrize(
    ("returncode", "complaint", "expected"),
    [
        (CODE_DEVICE_FAILED, "", True),
        (-6, "", True),
        (-11, "", True),
        (1, "RuntimeError: CUDA error: unspecified launch failure", True),
        (1, "ValueError: a mistake", False),
        (0, "", False),
        (-9, "", False),
    ],
)
def test_the_log_is_looked_at_where_it_may_have_been_a_gpu(
    returncode: int, complaint: str, expected: bool
) -> None:
    assert may_be_gpus(returncode, LastWords(tail=(), complaint=complaint)) is expected
