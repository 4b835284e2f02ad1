"""The kernel log: faults of GPUs, NVSwitches and network adapters, from every usual form of log lines.

`parse_line` is a pure function of one line and never raises: fields that a line lacks are None or empty, and
a line without a fault is an event of source `other`. It reads `dmesg` (seconds since boot, `-T`, `-r`,
`--time-format iso`), `journalctl` (short, short-iso, json), `/dev/kmsg`, syslog of either kind, and the
fabric manager's own log.

A fault counts only if the form of its line proves its writer: the kernel's facility or transport, the form of
`dmesg`, or that of the fabric manager's log. A tag proves nothing: any user can set it, with `logger -t
kernel`. In formats with multi-line messages continuation lines are indented, so an indented line proves
nothing either.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal

import msgspec

from holdfast.record import kernel

FUTURE_MAX = timedelta(days=1)
"""How far ahead of ours a clock may be before a date without a year is taken for one of the year before."""

FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"

Source = Literal["xid", "sxid", "mlx5", "other"]
Recovery = Literal["none", "reset-gpu", "reboot", "drain-p2p", "drain-and-reset", "unknown"]
"""The action that XID 154 names; NVML numbers them from 0 on in this order."""
_RECOVERIES: tuple[Recovery, ...] = ("none", "reset-gpu", "reboot", "drain-p2p", "drain-and-reset")


class KernelEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the log.

    at_ns     when, since 1970; None if the line does not say
    uptime_s  when, since the boot of that machine
    host      the machine, if the line names it
    code      the XID or SXID
    sign      for an mlx5 line: which of the known messages it is
    device    the PCI address of the GPU, switch or adapter: `0000:9b:00.0`
    fatal     whether the line says so: NVSwitch and NVLink errors do
    pid, process  the user of the GPU
    link      the NVLink, if one is named
    recovery  for XID 154: the action that the driver names
    is_unproven  for source `other`: it reads like a fault, but any user may have written it
    """

    source: Source
    message: str
    at_ns: int | None = None
    uptime_s: float | None = None
    host: str = ""
    code: int | None = None
    sign: str = ""
    device: str = ""
    fatal: bool | None = None
    pid: int | None = None
    process: str = ""
    link: int | None = None
    recovery: Recovery | None = None
    is_unproven: bool = False


Writer = Literal["kernel", "fabric manager", "anybody"]


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the text of a line. by: its writer, as far as that is proven."""

    text: str
    by: Writer = "anybody"
    at_ns: int | None = None
    uptime_s: float | None = None
    host: str = ""


def parse_line(line: str | bytes, *, now_ns: int | None = None, zone: tzinfo | None = UTC) -> KernelEvent:
    """Parse a line.

    now_ns: about when it was read, which gives syslog's dates their year. zone: of times without one; None
    for this machine's own.
    """
    text = line[: kernel.LINE_BYTES_MAX]
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    head = _head(text.rstrip("\r\n\x00 ").replace("\x00", "\ufffd"), _Reckoning(now_ns=now_ns, zone=zone))
    event = _fabric_manager(head)
    if head.by != "fabric manager":
        event = event or _xid(head) or _sxid(head) or _mlx5(head)
    if event is not None and head.by != "anybody":
        return event
    return msgspec.structs.replace(_event(head, source="other"), is_unproven=event is not None)


# Headers: each form has one pattern and one reader, and the first that fits is used.


class _Reckoning(msgspec.Struct, frozen=True, kw_only=True):
    """What turns an incomplete date into a time."""

    now_ns: int | None
    zone: tzinfo | None


_Reader = Callable[["re.Match[str]", _Reckoning], _Head]

_UPTIME = re.compile(
    r"(?:<(\d{1,3})>|kern\s*:\w+\s*: )?\[\s*(\d{1,12}\.\d{1,9})\] ?(.*)", re.ASCII | re.DOTALL
)
_CTIME = re.compile(
    r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\] ?(.*)", re.ASCII | re.DOTALL
)
_FABRIC = re.compile(
    r"\[([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d{4}) (\d\d:\d\d:\d\d)\] (?:\[\w+\] )*(?:\[tid \d+\] )?(.*)",
    re.ASCII | re.DOTALL,
)
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:([.,])(\d{1,9}))?(Z|[+-]\d\d:?\d\d)? (.*)", re.ASCII | re.DOTALL
)
_SYSLOG = re.compile(
    r"(?:<(\d{1,3})>)?([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d)(?:\.\d+)? (.*)", re.ASCII | re.DOTALL
)
_TAGGED = re.compile(r"([\w.:-]{1,255}) ([\w./-]{1,64}(?:\[\d{1,9}\])?): (.*)", re.ASCII | re.DOTALL)
"""A host and a program before the text: `n17 kernel: `."""


def _head(line: str, reckoning: _Reckoning) -> _Head:
    if line.startswith("{"):
        return _journal_head(line)
    if record := kernel.parse_kmsg(line):
        by: Writer = "kernel" if record.is_kernels else "anybody"
        return _Head(text=record.text, uptime_s=record.uptime_s, by=by)
    for pattern, read in _HEADS:
        if found := pattern.fullmatch(line):
            return read(found, reckoning)
    return _Head(text=line)


def _uptime_head(found: "re.Match[str]", reckoning: _Reckoning) -> _Head:
    by: Writer = "kernel" if kernel.is_kernel_facility(found[1] or "0") else "anybody"
    return _Head(text=found[3], uptime_s=float(found[2]), by=by)


def _ctime_head(found: "re.Match[str]", reckoning: _Reckoning) -> _Head:
    month, day, clock, year, text = found.groups()
    return _Head(text=text, at_ns=_date_ns(f"{year} {month} {day} {clock}", reckoning), by="kernel")


def _fabric_head(found: "re.Match[str]", reckoning: _Reckoning) -> _Head:
    month, day, year, clock, text = found.groups()
    return _Head(text=text, at_ns=_date_ns(f"{year} {month} {day} {clock}", reckoning), by="fabric manager")


def _iso_head(found: "re.Match[str]", reckoning: _Reckoning) -> _Head:
    second, point, fraction, zone, rest = found.groups()
    at_ns = _moment_ns(
        lambda: (
            datetime.fromisoformat(second + zone)
            if zone
            else datetime.fromisoformat(second).replace(tzinfo=reckoning.zone)
        )
    )
    if at_ns is not None:
        at_ns += int((fraction or "").ljust(9, "0"))
    if point == ",":  # only dmesg writes a comma
        return _Head(text=rest, at_ns=at_ns, by="kernel")
    return _tagged(rest, at_ns)


def _syslog_head(found: "re.Match[str]", reckoning: _Reckoning) -> _Head:
    priority, month, day, clock, rest = found.groups()
    return _tagged(rest, _yearless_ns(f"{month} {day} {clock}", reckoning), priority)


_HEADS: tuple[tuple["re.Pattern[str]", _Reader], ...] = (
    (_UPTIME, _uptime_head),
    (_CTIME, _ctime_head),
    (_FABRIC, _fabric_head),
    (_ISO, _iso_head),
    (_SYSLOG, _syslog_head),
)


def _tagged(rest: str, at_ns: int | None, priority: str | None = None) -> _Head:
    """The text behind a date: host and program, and sometimes the uptime as well. It is the kernel's if both
    say so, the tag and the facility, which daemons let no program but the kernel use.
    """
    tagged = _TAGGED.fullmatch(rest)
    host, tag, text = tagged.groups() if tagged else ("", "", rest)
    is_kernels = tag == "kernel" and priority is not None and kernel.is_kernel_facility(priority)
    by: Writer = "kernel" if is_kernels else "anybody"
    within = _UPTIME.fullmatch(text)
    if within:
        return _Head(text=within[3], at_ns=at_ns, uptime_s=float(within[2]), host=host, by=by)
    return _Head(text=text, at_ns=at_ns, host=host, by=by)


class _JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """From `journalctl -o json`. A message that is not text comes as a list of its bytes. Fields that begin
    with `_` are journald's own: no program that logs can set them.
    """

    transport: str = msgspec.field(name="_TRANSPORT", default="")
    unit: str = msgspec.field(name="_SYSTEMD_UNIT", default="")
    message: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    host: str = msgspec.field(name="_HOSTNAME", default="")
    realtime_us: str = msgspec.field(name="__REALTIME_TIMESTAMP", default="")
    source_realtime_us: str = msgspec.field(name="_SOURCE_REALTIME_TIMESTAMP", default="")
    monotonic_us: str = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default="")


_journal_decoder = msgspec.json.Decoder(_JournalEntry)


def _journal_head(line: str) -> _Head:
    try:
        entry = _journal_decoder.decode(line.encode("utf-8", "replace"))
        message = entry.message or ""
        text = message if isinstance(message, str) else bytes(message).decode("utf-8", "replace")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _Head(text=line)
    at_us = _whole(entry.source_realtime_us) or _whole(entry.realtime_us)
    uptime_us = _whole(entry.monotonic_us)
    return _Head(
        text=text.strip("\r\n\x00 ").partition("\n")[0],
        at_ns=at_us * 1000 if at_us else None,
        uptime_s=None if uptime_us is None else uptime_us / 1e6,
        host=entry.host,
        by=_journal_writer(entry),
    )


def _journal_writer(entry: _JournalEntry) -> Writer:
    if entry.transport == "kernel":
        return "kernel"
    return "fabric manager" if entry.unit == FABRIC_MANAGER_UNIT else "anybody"


def _whole(digits: str) -> int | None:
    return int(digits) if re.fullmatch(rf"\d{{1,{kernel.DIGITS_MAX - 2}}}", digits, re.ASCII) else None


def _date_ns(text: str, reckoning: _Reckoning) -> int | None:
    return _moment_ns(lambda: datetime.strptime(text, "%Y %b %d %H:%M:%S").replace(tzinfo=reckoning.zone))


def _yearless_ns(text: str, reckoning: _Reckoning) -> int | None:
    """Syslog leaves out the year: take the last one in which the date was not in the future."""
    if reckoning.now_ns is None:
        return None
    now = datetime.fromtimestamp(reckoning.now_ns / 1e9, UTC)
    latest_ns = int((now + FUTURE_MAX).timestamp() * 1e9)
    # Four years contain a 29th of February.
    years = (_date_ns(f"{now.year + 1 - back:04} {text}", reckoning) for back in range(6))
    return next((at_ns for at_ns in years if at_ns is not None and at_ns <= latest_ns), None)


def _moment_ns(read: Callable[[], datetime]) -> int | None:
    try:
        return int(read().timestamp()) * 10**9
    except (ValueError, OverflowError):
        return None


# Faults.

_SXID = re.compile(
    r"\bSXid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]{0,64}\): (\d{1,9})(?:, (.*))?", re.ASCII | re.DOTALL
)
_SWITCH = re.compile(
    r"\bNVSwitch (non-)?fatal error (\d{1,9})\b.*?\bpci bus id ([0-9a-fA-F:.]+)(?:.*?\bport (\d{1,4}))?",
    re.ASCII | re.DOTALL,
)
_MLX5 = re.compile(r"\bmlx5_core ([0-9a-fA-F:.]*[0-9a-fA-F]): (.*)", re.ASCII | re.DOTALL)
_FATAL = re.compile(r"\b(non-?)?fatal\b", re.ASCII | re.IGNORECASE)
_LINK = re.compile(r"\blink (-?\d{1,4})\b", re.ASCII | re.IGNORECASE)
_RECOVERY = re.compile(
    r"\brecovery action changed from 0x[0-9a-f]+.*? to 0x([0-9a-f]{1,8})\b", re.ASCII | re.IGNORECASE
)

_MLX5_SIGNS: tuple[tuple[str, "re.Pattern[str]"], ...] = (
    ("health-compromised", re.compile(r"health compromised - reached miss count")),
    ("unrecoverable-hardware-error", re.compile(r"unrecoverable hardware error")),
    ("module-high-temperature", re.compile(r"Port module event.*High Temperature")),
)

NVLINK_XIDS = frozenset({74, *range(144, 151)})
"""XIDs of NVLinks: their text says whether one is fatal, and on which link."""
RECOVERY_XID = 154


def _event(head: _Head, *, source: Source) -> KernelEvent:
    return KernelEvent(
        source=source, message=head.text, at_ns=head.at_ns, uptime_s=head.uptime_s, host=head.host
    )


def _xid(head: _Head) -> KernelEvent | None:
    xid = kernel.parse_xid(head.text)
    if xid is None:
        return None
    return msgspec.structs.replace(
        _event(head, source="xid"),
        code=xid.code,
        device=xid.device,
        pid=xid.pid,
        process=xid.process,
        fatal=_fatal(xid.text) if xid.code in NVLINK_XIDS else None,
        link=_link(xid.text) if xid.code in NVLINK_XIDS else None,
        recovery=_recovery(xid.text) if xid.code == RECOVERY_XID else None,
    )


def _sxid(head: _Head) -> KernelEvent | None:
    found = _SXID.search(head.text)
    if not found:
        return None
    text = found[3] or ""
    return msgspec.structs.replace(
        _event(head, source="sxid"),
        code=int(found[2]),
        device=kernel.pci_address(found[1]),
        fatal=_fatal(text),
        link=_link(text),
    )


def _fabric_manager(head: _Head) -> KernelEvent | None:
    found = _SWITCH.search(head.text)
    if not found:
        return None
    return msgspec.structs.replace(
        _event(head, source="sxid"),
        code=int(found[2]),
        device=kernel.pci_address(found[3]),
        fatal=not found[1],
        link=int(found[4]) if found[4] else None,
    )


def _mlx5(head: _Head) -> KernelEvent | None:
    found = _MLX5.search(head.text)
    if not found:
        return None
    sign = next((sign for sign, pattern in _MLX5_SIGNS if pattern.search(found[2])), "")
    if not sign:
        return None
    return msgspec.structs.replace(
        _event(head, source="mlx5"), sign=sign, device=kernel.pci_address(found[1])
    )


def _fatal(text: str) -> bool | None:
    found = _FATAL.search(text)
    return not found[1] if found else None


def _link(text: str) -> int | None:
    """-1 in the driver's text means no particular link."""
    found = _LINK.search(text)
    return int(found[1]) if found and found[1] != "-1" else None


def _recovery(text: str) -> Recovery:
    found = _RECOVERY.search(text)
    number = int(found[1], 16) if found else len(_RECOVERIES)
    return _RECOVERIES[number] if number < len(_RECOVERIES) else "unknown"
