"""Parsers of the kernel log that a run and its signals share: a GPU's Xid, and a record of /dev/kmsg.

Pure functions of one line. signals/collectors/kernel_log.py has the other forms of lines, and the other
faults in them.
"""

import re

import msgspec

LINE_BYTES_MAX = 8192
"""Bytes read of a line. The kernel cuts a record of /dev/kmsg at this length too."""
DIGITS_MAX = 18
"""The most digits of a number that is accepted: within 64 bits."""


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """An error that NVIDIA's driver has logged.

    device: the PCI address of the GPU, `0000:9b:00.0`. pid, process: the process that used it, if the line
    names it. text: the rest of the line after the code.
    """

    code: int
    device: str = ""
    pid: int | None = None
    process: str = ""
    text: str = ""


def parse_xid(text: str) -> Xid | None:
    """The Xid in the text of a line, if there is one. Never raises."""
    found = _XID.search(text)
    if not found:
        return None
    told = found[3] or ""
    pid, process = _PID.search(told), _PROCESS.search(told)
    return Xid(
        code=int(found[2]),
        device=pci_address(found[1]),
        pid=int(pid[1]) if pid else None,
        process=process[1].strip() if process and process[1].strip("'\"") != "<unknown>" else "",
        text=told,
    )


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record of /dev/kmsg. is_kernels: it has the kernel's facility, 0, which only the kernel itself can
    use; records of programs have another.
    """

    uptime_s: float
    text: str
    is_kernels: bool


def parse_kmsg(record: str) -> KernelRecord | None:
    """Parse a record of /dev/kmsg; None if the text is not one."""
    found = _KMSG.fullmatch(record)
    if not found:
        return None
    # A record goes on with lines of its own, ` SUBSYSTEM=...`, which are not its text.
    return KernelRecord(
        uptime_s=int(found[2]) / 1e6,
        text=found[3].partition("\n")[0],
        is_kernels=is_kernel_facility(found[1]),
    )


def is_kernel_facility(priority: str) -> bool:
    """Whether a priority, which is the facility times 8 plus the level, has the kernel's facility."""
    return int(priority) < 8


def pci_address(text: str) -> str:
    """A PCI address in the one form used here, `0000:9b:00.0`; empty if the text is not one.

    The driver writes 0000:9b:00, NVML and the fabric manager 00000000:9B:00.0.
    """
    found = _PCI.fullmatch(text.strip())
    if not found:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


_PCI = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE | re.ASCII
)
_KMSG = re.compile(rf"(\d{{1,6}}),\d{{1,20}},(\d{{1,{DIGITS_MAX}}}),[^;]*;(.*)", re.ASCII | re.DOTALL)
_XID = re.compile(
    r"\bXid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]{0,64}\): (\d{1,9})(?:, (.*))?", re.ASCII | re.DOTALL
)
_PID = re.compile(r"\bpid='?(\d{1,9})\b", re.ASCII)
_PROCESS = re.compile(r"\bname=([^,]{1,256})")
