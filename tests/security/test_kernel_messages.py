"""Attacks by forged kernel messages: a line that any user can log must never become a fault of a GPU.

A line of `logger` is taken as journald and syslog daemons would record it.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.record.clock import ManualClock
from holdfast.run.kernel_log import KernelLog
from holdfast.signals.collectors.kernel_log import parse_line
from holdfast.signals.collectors.kernel_log_collector import KernelLogCollector

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=440, GPU has fallen off the bus."
SWITCH = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 61"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:cd:00.0): 20034, Fatal, Link 30"
MLX5 = "mlx5_core 0000:41:00.0: synd 0x8: unrecoverable hardware error"


def journal(**fields: str) -> str:
    return json.dumps({"_HOSTNAME": "n17", "__REALTIME_TIMESTAMP": "1740312000000000", **fields})


FORGED = {
    "logger, in a file of rsyslog": "2025-02-23T12:00:00.5Z n17 mallory: {}",
    "logger -t kernel, in a file of rsyslog": "2025-02-23T12:00:00.5Z n17 kernel: {}",
    "logger -t kernel, in a file of syslog": "Feb 23 12:00:00 n17 kernel: {}",
    "logger -t kernel with an uptime": "Feb 23 12:00:00 n17 kernel: [   17.982092] {}",
    "logger -t kernel, with its priority": "<13>Feb 23 12:00:00 n17 kernel: {}",
    "logger -t nvidia, with the kernel's priority": "<3>Feb 23 12:00:00 n17 nvidia: {}",
    "logger -t 'kernel[0]', with the kernel's priority": "<3>Feb 23 12:00:00 n17 kernel[0]: {}",
    "a line of its own in a message": "    [   17.982092] {}",
    "a line of its own in a message, by a tab": "\t3,1234,17982092,-;{}",
    "a bare line": "{}",
    "a program that writes /dev/kmsg": "12,1234,17982092,-;{}",
    "a program in dmesg -r": "<12>[   17.982092] {}",
    "a program in dmesg -x": "user  :err   : [   17.982092] {}",
    "logger, in the journal": journal(_TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel", MESSAGE="{}"),
    "facility 0, in the journal": journal(_TRANSPORT="journal", SYSLOG_FACILITY="0", MESSAGE="{}"),
    "a transport of its own": journal(TRANSPORT="kernel", _TRANSPORT="stdout", MESSAGE="{}"),
    "a unit that sounds right": journal(_SYSTEMD_UNIT="nvidia-fabricmanager.service.slice", MESSAGE="{}"),
    "no transport": journal(MESSAGE="{}"),
    "a message within a message": journal(_TRANSPORT="stdout", MESSAGE="x\n3,1,1,-;{}"),
}


@pytest.mark.parametrize("head", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("text", [XID, SXID, MLX5, SWITCH], ids=["xid", "sxid", "mlx5", "switch"])
def test_a_user_who_logs_makes_no_fault(head: str, text: str) -> None:
    event = parse_line(head.replace("{}", text), now_ns=1_740_400_000 * 10**9)
    assert event.source == "other"
    assert event.code is None
    assert parse_line(f"3,1234,17982092,-;{text}").source != "other"


def test_the_fabric_manager_makes_no_xid() -> None:
    assert parse_line(f"[Feb 23 2025 12:00:00] [ERROR] [tid 12727] {XID}").source == "other"
    unit = journal(_SYSTEMD_UNIT="nvidia-fabricmanager.service", MESSAGE=XID)
    assert parse_line(unit).source == "other"


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_bytes(b"")
    return path


@pytest.fixture
def log(kmsg: Path, tmp_path: Path) -> Iterator[KernelLog]:
    (tmp_path / "gpus" / "0000:9b:00.0").mkdir(parents=True)
    found = KernelLog(kmsg, tmp_path / "gpus")
    yield found
    found.close()


def test_a_forged_xid_blames_no_gpu_for_a_workers_death(log: KernelLog, kmsg: Path) -> None:
    with kmsg.open("a") as file:
        file.write(f"12,612,31981371,-;{XID}\n14,613,31981372,-;x\x0b4,1,31981373,-;{XID}\n")
    assert log.xid_of(440, 32.0) is None
    with kmsg.open("a") as file:
        file.write(f"4,614,31981374,-;{XID}\n")
    found = log.xid_of(440, 32.0)
    assert found is not None
    assert found.code == 79


def test_forged_lines_are_counted_as_unproven_and_not_as_faults(tmp_path: Path) -> None:
    path = tmp_path / "syslog"
    path.write_text("".join(f"{head.replace('{}', XID)}\n" for head in FORGED.values()))
    clock = ManualClock(1_740_400_000 * 10**9)
    collector = KernelLogCollector(path, clock=clock, host="n17", gpus=dict, whole=True)
    try:
        assert collector.collect() == []
        assert collector.take_events() == []
        assert collector.unproven > len(FORGED) // 2
    finally:
        collector.close()


@pytest.mark.root
def test_the_kernel_gives_its_facility_to_no_program() -> None:
    """The rest relies on this. The line is for a GPU that no machine has."""
    try:
        reading = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(reading, 0, os.SEEK_END)
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read here: {error}")
    with open("/dev/kmsg", "wb", buffering=0) as writing:  # noqa: PTH123
        writing.write(b"<0>holdfast test: a program claims to be the kernel\n")
    records: list[bytes] = []
    while not records or b"holdfast test" not in records[-1]:
        try:
            records.append(os.read(reading, 8192))
        except BlockingIOError:
            pytest.skip("nothing that is written to /dev/kmsg comes back here")
    os.close(reading)
    assert int(records[-1].split(b",")[0]) >= 8
