"""InfiniBand and RoCE ports of this node: whether they are up, their rate, and the errors that they count."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.check.figures import CheckedFigure, figure
from holdfast.record.clock import SystemClock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.infiniband import BYTES_PER_GIGABIT, PREFIX, InfinibandCollector

ACTIVE, LINK_UP = 4, 5
"""Values of a port's state and physical state, as the kernel numbers them."""
LOSSES = frozenset({"link_downed_total", "link_error_recovery_total"})
"""Counters of how often a link was lost or had to be trained again."""
ERRORS = frozenset(
    {
        "excessive_buffer_overrun_errors_total",
        "local_link_integrity_errors_total",
        "port_errors_received_total",
        "port_receive_remote_physical_errors_total",
        "symbol_error_total",
    }
)
"""Counters that hardly grow on a sound link."""
ERRORS_MAX = 10
"""During a check. One wrong bit in 10^15 is allowed: at 400 Gb/s that is one in forty minutes."""


class PortSeen(msgspec.Struct, kw_only=True):
    """One port now. rate: Gb/s; errors, losses: totals of its counters."""

    state: float = 0
    physical: float = 0
    rate: float = 0
    errors: float = 0
    losses: float = 0


def look_at_ports(root: Path) -> dict[str, PortSeen]:
    """The ports by `DEVICE.PORT`; empty if there is no adapter."""
    found: dict[str, PortSeen] = {}
    try:
        readings = InfinibandCollector(root, clock=SystemClock(), host="").collect()
    except Unavailable:
        return {}
    for one in readings:
        if "port" not in one.labels or one.value is None:
            continue
        port = found.setdefault(f"{one.labels['device']}.{one.labels['port']}", PortSeen())
        match one.metric.removeprefix(PREFIX):
            case "state_id":
                port.state = one.value
            case "physical_state_id":
                port.physical = one.value
            case "rate_bytes_per_second":
                port.rate = one.value / BYTES_PER_GIGABIT
            case name if name in ERRORS:
                port.errors += one.value
            case name if name in LOSSES:
                port.losses += one.value
    return found


def judged_ports(before: dict[str, PortSeen], after: dict[str, PortSeen]) -> Iterator[CheckedFigure]:
    """before, after: the ports before and after the check. A port without a link may be unused: only a
    reference says how many must be active.
    """
    linked = {name: port for name, port in after.items() if port.physical == LINK_UP}
    if after:
        active = sum(port.state == ACTIVE for port in after.values())
        yield figure("ports.active", active, "", least=len(linked))
    for name, port in linked.items():
        yield figure(f"port.{name}.rate", port.rate, "Gb/s")
        then = before.get(name, port)
        yield figure(f"port.{name}.errors", port.errors - then.errors, "errors", most=ERRORS_MAX)
        yield figure(f"port.{name}.losses", port.losses - then.losses, "times", most=0)
