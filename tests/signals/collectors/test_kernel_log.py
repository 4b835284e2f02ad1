"""Lines of the kernel log, in every form and in none."""

import re
import subprocess
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.kernel import LINE_BYTES_MAX, pci_address
from holdfast.signals.collectors.kernel_log import KernelEvent, parse_line

XID_79 = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
NOON = datetime(2025, 2, 23, 12, 0, 0, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 10**9
LATER_NS = NOON_NS + 10**9 * 3600

FORMS = {
    "dmesg": (f"[   17.982092] {XID_79}", None, 17.982092, ""),
    "dmesg -r": (f"<3>[6085126.134786] {XID_79}", None, 6085126.134786, ""),
    "dmesg -x": (f"kern  :err   : [  12.500000] {XID_79}", None, 12.5, ""),
    "dmesg -T": (f"[Sun Feb 23 12:00:00 2025] {XID_79}", NOON_NS, None, ""),
    "dmesg iso": (f"2025-02-23T13:00:00,250000+01:00 {XID_79}", NOON_NS + 250_000_000, None, ""),
    "kmsg": (f"3,1234,17982092,-;{XID_79}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:4e:00.0", None, 17.982092, ""),
    "syslog": (f"<3>Feb 23 12:00:00 n17 kernel: [   17.982092] {XID_79}", NOON_NS, 17.982092, "n17"),
    "syslog without uptime": (f"<4>Feb 23 12:00:00 n17 kernel: {XID_79}", NOON_NS, None, "n17"),
    "journalctl json": (
        f'{{"__REALTIME_TIMESTAMP":"{NOON_NS // 1000}","_HOSTNAME":"n17","MESSAGE":"{XID_79}",'
        '"_SOURCE_MONOTONIC_TIMESTAMP":"17982092","_TRANSPORT":"kernel"}',
        NOON_NS,
        17.982092,
        "n17",
    ),
    "journalctl json bytes": (
        f'{{"__REALTIME_TIMESTAMP":"{NOON_NS // 1000}","_TRANSPORT":"kernel","_HOSTNAME":"n17",'
        f'"MESSAGE":{list(XID_79.encode())}}}',
        NOON_NS,
        None,
        "n17",
    ),
}


@pytest.mark.parametrize(("line", "at_ns", "uptime_s", "host"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_every_form_of_a_line_is_read(
    line: str, at_ns: int | None, uptime_s: float | None, host: str, as_bytes: bool
) -> None:
    event = parse_line(line.encode() if as_bytes else line, now_ns=LATER_NS)
    assert event == KernelEvent(
        source="xid",
        message=XID_79,
        at_ns=at_ns,
        uptime_s=uptime_s,
        host=host,
        code=79,
        device="0000:4e:00.0",
    )


FAULTS = [
    (
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting",
        {"code": 119, "device": "0000:9b:00.0", "pid": 2024380, "process": "nvidia-smi"},
    ),
    ("NVRM: Xid (0000:03:00): 13, Graphics Exception", {"code": 13, "device": "0000:03:00.0"}),
    (
        "NVRM: Xid (PCI:0000:ca:00 GPU-I:05): 94, pid=7194, name=python3, Contained: CE User Channel",
        {"code": 94, "device": "0000:ca:00.0", "pid": 7194, "process": "python3"},
    ),
    ("NVRM: Xid (PCI:0000:9b:00): 62", {"code": 62, "device": "0000:9b:00.0"}),
    (
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)",
        {"code": 154, "device": "0008:01:00.0", "recovery": "reset-gpu"},
    ),
    (
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain)",
        {"code": 154, "device": "0008:01:00.0", "recovery": "drain-and-reset"},
    ),
    (
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x77 (Dance)",
        {"code": 154, "device": "0008:01:00.0", "recovery": "unknown"},
    ),
    (
        "NVRM: Xid (PCI:0000:17:00): 74, pid=88, name=python, NVLink: fatal error detected on link 2(0x0)",
        {"code": 74, "device": "0000:17:00.0", "fatal": True, "link": 2, "pid": 88, "process": "python"},
    ),
    (
        "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
        {"code": 145, "device": "0018:01:00.0", "fatal": False, "link": 13},
    ),
    (
        "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
        {"code": 149, "device": "0019:01:00.0", "fatal": True},
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress PRIV error (First)",
        {"code": 12028, "device": "0000:05:00.0", "fatal": False, "link": 32},
    ),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:cd:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        {"code": 20034, "device": "0000:cd:00.0", "fatal": True, "link": 30},
    ),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:cd:00.0): 24007, Data {0x00000000}",
        {"code": 24007, "device": "0000:cd:00.0"},
    ),
    (
        "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 61",
        {"code": 20034, "device": "0000:86:00.0", "fatal": True, "link": 61},
    ),
    (
        "mlx5_core 0000:41:00.0: poll_health:852:(pid 0): device's health compromised - reached miss count",
        {"sign": "health-compromised", "device": "0000:41:00.0"},
    ),
    (
        "mlx5_core 0000:41:00.0: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error",
        {"sign": "unrecoverable-hardware-error", "device": "0000:41:00.0"},
    ),
    (
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
        {"sign": "module-high-temperature", "device": "0000:5c:00.0"},
    ),
]


@pytest.mark.parametrize(("text", "expected"), FAULTS, ids=lambda value: str(value)[:60])
def test_every_kind_of_fault_is_read(text: str, expected: dict[str, object]) -> None:
    source = "mlx5" if "mlx5" in text else "sxid" if "witch" in text else "xid"
    assert parse_line(f"[  1.5] {text}") == KernelEvent(source=source, message=text, uptime_s=1.5, **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "the channel was lost, caused by previous Xid 149",
        "mlx5_core 0000:41:00.0: firmware version: 28.41.1000",
        "",
    ],
)
def test_a_line_without_a_fault_is_other(text: str) -> None:
    assert parse_line(text) == KernelEvent(source="other", message=text)


def grepped(pattern: str, path: Path) -> int:
    """How many lines another program finds."""
    done = subprocess.run(["grep", "-ciE", pattern, path], capture_output=True, text=True, check=False)
    return int(done.stdout)


def test_real_logs_are_read_whole(data: Path) -> None:
    counts = {}
    for path in sorted((data / "kernel-logs").iterdir()):
        events = [parse_line(line) for line in path.read_bytes().splitlines()]
        counts[path.name] = [event for event in events if event.source != "other"]
        dated = [event for event in events if event.at_ns is not None]
        assert len(dated) == grepped(r"^\[.{20,24}\] ", path)
        assert len(counts[path.name]) == grepped(r"xid \(|nvswitch (non-)?fatal", path)
    assert [event.code for event in counts["dmesg-xid-119.log"]] == [119] * 5
    assert {event.process for event in counts["dmesg-xid-119.log"]} == {
        "nvidia-smi",
        "cache_mgr_main",
        "gpud",
    }
    (switch,) = counts["fabricmanager-sxid.log"]
    assert (switch.code, switch.device, switch.fatal, switch.link) == (12028, "0000:86:00.0", False, 61)


def test_the_fabric_managers_log_and_unit_are_read() -> None:
    text = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 61"
    dated = parse_line(f"[Feb 23 2025 12:00:00] [ERROR] [tid 12727] {text}")
    unit = parse_line(f'{{"_SYSTEMD_UNIT":"nvidia-fabricmanager.service","MESSAGE":"{text}"}}')
    assert (dated.source, dated.code, dated.at_ns) == ("sxid", 20034, NOON_NS)
    assert (unit.source, unit.code) == ("sxid", 20034)


@pytest.mark.parametrize(
    ("line", "at_ns", "host"),
    [
        (f"2025-02-23T12:00:00.5Z n17.lan kernel: {XID_79}", NOON_NS + 500_000_000, "n17.lan"),
        (f"2025-02-23T14:00:00+0200 n17 kernel: {XID_79}", NOON_NS, "n17"),
    ],
)
def test_what_proves_nothing_is_read_and_does_not_count(line: str, at_ns: int, host: str) -> None:
    event = parse_line(line)
    assert (event.source, event.is_unproven) == ("other", True)
    assert (event.message, event.at_ns, event.host) == (XID_79, at_ns, host)


@pytest.mark.parametrize(
    ("now", "date", "expected"),
    [
        ("2025-03-01", "Feb 23 12:00:00", "2025-02-23T12:00:00"),
        ("2025-01-01", "Dec 31 23:59:59", "2024-12-31T23:59:59"),
        ("2025-12-31T23:50:00", "Jan  1 00:10:00", "2026-01-01T00:10:00"),  # a clock that is a little ahead
        ("2026-06-01", "Feb 29 10:00:00", "2024-02-29T10:00:00"),
    ],
)
def test_a_date_without_a_year_is_the_last_one(now: str, date: str, expected: str) -> None:
    now_ns = int(datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()) * 10**9
    at_ns = parse_line(f"{date} n1 kernel: x", now_ns=now_ns).at_ns
    assert at_ns is not None
    assert datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S") == expected


def test_a_date_without_a_zone_is_in_the_zone_that_is_named() -> None:
    zone = timezone(timedelta(hours=5))
    event = parse_line("[Sun Feb 23 17:00:00 2025] x", zone=zone)
    assert event.at_ns == NOON_NS
    assert parse_line("2025-02-23T12:00:00+00:00 n1 kernel: x", zone=zone).at_ns == NOON_NS


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:9b:00", "0000:9b:00.0"),
        ("00000000:9B:00.0", "0000:9b:00.0"),
        ("PCI:0008:01:00.1", "0008:01:00.1"),
        ("9b:00", "0000:9b:00.0"),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_pci_addresses_have_one_form(text: str, address: str) -> None:
    assert pci_address(text) == address


heads = st.sampled_from(
    [line.replace(XID_79, "{}") for line, *_ in FORMS.values() if line.count(XID_79) == 1]
)
noise = st.text(max_size=60)


@settings(max_examples=examples(300))
@given(st.one_of(noise, st.text(max_size=400), st.binary(max_size=400)))
def test_no_line_whatever_raises(line: str | bytes) -> None:
    event = parse_line(line, now_ns=LATER_NS)
    assert len(event.message) <= LINE_BYTES_MAX


@settings(max_examples=examples(300))
@given(heads, st.sampled_from([text for text, _ in FAULTS]), st.data())
def test_no_damaged_line_raises(head: str, text: str, data: st.DataObject) -> None:
    line = head.replace("{}", text).encode()
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, len(line)))
    damaged = line[:start] + data.draw(st.binary(max_size=12)) + line[end:]
    parse_line(damaged, now_ns=data.draw(st.one_of(st.none(), st.integers(0, 2**62))))


@settings(max_examples=examples(200))
@given(heads, st.integers(1, 999), st.integers(0, 0xFFFF), st.integers(0, 255), noise)
def test_every_xid_is_found_behind_every_head(head: str, code: int, domain: int, bus: int, text: str) -> None:
    text = re.sub(r'[\x00-\x1f"\\\x85\u2028\u2029]', "", text)
    message = f"NVRM: Xid (PCI:{domain:04x}:{bus:02x}:00): {code}, {text}".rstrip()
    event = parse_line(head.replace("{}", message), now_ns=LATER_NS)
    assert (event.source, event.code, event.device) == ("xid", code, f"{domain:04x}:{bus:02x}:00.0")


@pytest.mark.parametrize(
    "line",
    [
        b"x" * 50_000_000,
        b"[" * 5_000_000,
        b"NVRM: Xid (PCI:" + b"0:" * 2_000_000,
        b'{"MESSAGE":' * 1_000_000,
        b"{" + b'"a":[' * 1_000_000,
        b"Feb 23 12:00:00 " + b"n17 kernel " * 1_000_000,
        b"NVSwitch fatal error 1 " + b"pci bus id " * 1_000_000,
        b"\xff\xfe" * 5_000_000,
    ],
    ids=lambda line: repr(line[:20]),
)
def test_an_endless_line_takes_no_time(line: bytes) -> None:
    begun_s = time.process_time()
    event = parse_line(line, now_ns=LATER_NS)
    assert time.process_time() - begun_s < 0.5
    assert len(event.message) <= LINE_BYTES_MAX
