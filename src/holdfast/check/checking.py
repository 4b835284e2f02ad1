"""The whole check of a node, within a time limit: schedulers kill a health check that takes longer."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.check.fabric import try_fabric
from holdfast.check.figures import CheckedFigure, held_against, owed, unmeasured
from holdfast.check.gpus import (
    SUSTAINED,
    SUSTAINING,
    counted,
    logged,
    plugged_in,
    probe,
    probe_for,
    tried,
)
from holdfast.check.host import PARTS, look_at_host
from holdfast.check.ports import judged_ports, look_at_ports
from holdfast.detect.suspects import EACH_GPU, SuspectPart, wanted
from holdfast.record.clock import Clock, SystemClock
from holdfast.record.errors import InputError
from holdfast.run.seeking import Address
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.infiniband import SYSFS
from holdfast.signals.collectors.kernel_log import KernelEvent
from holdfast.signals.collectors.kernel_log_collector import OWN_LOG, KernelLogCollector
from holdfast.wording.units import SECOND_NS

HOST_SHARE, FABRIC_SHARE, GPU_SHARE = 0.5, 0.3, 0.5
"""Shares of the time: the most that host and fabric may take, and the least that the fabric leaves to GPUs.
`--for gpu` took 21 s on an H200 (docs/check.md), of the 50 s that a check has by default.
"""

KINDS = ("gpu", "fabric", "port", "disk", "memory", "clock", "kernel")
"""The beginnings of the checks' names."""


class CheckPlan(msgspec.Struct, frozen=True, kw_only=True):
    """gpus: the number that must be present; None: as many as are plugged in. folder: on the disk to try.
    most_s: time limit of the whole check. since_s: how far back the kernel log counts. skipped: names of
    checks, or their beginnings. part: the part that the node was drained for; it is tried longer and must be
    proven good. peers: nodes that are known to be good; the link to the first one that answers is tried, with
    this token. ports: the kernel's tree of adapters. log: the kernel log.
    """

    gpus: int | None
    folder: Path
    most_s: float
    since_s: float
    skipped: tuple[str, ...] = ()
    part: SuspectPart | None = None
    peers: tuple[Address, ...] = ()
    token: str = ""
    ports: Path = SYSFS
    log: Path = OWN_LOG


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result. took_s: of the whole check."""

    ok: bool
    took_s: float
    checks: tuple[CheckedFigure, ...]


def check_node(plan: CheckPlan, reference: Mapping[str, float], clock: Clock | None = None) -> NodeCheck:
    begun = time.monotonic()
    ports = look_at_ports(plan.ports)
    asked = [part for part in PARTS if not _is_skipped("gpu" if part == "driver" else part, plan.skipped)]
    count = plugged_in() if plan.gpus is None else plan.gpus
    # The host is tried while nothing else runs; the GPUs come last and have the rest of the time.
    host = look_at_host(plan.folder, asked, begun + HOST_SHARE * plan.most_s)
    found = host.figures
    if plan.peers and not _is_skipped("fabric", plan.skipped):
        until_s = fabric_until_s(plan, begun, time.monotonic(), gpus=count)
        found += try_fabric(plan.peers, plan.token, until_s)
    if not _is_skipped("gpu", plan.skipped):
        probed = probe(begun + plan.most_s, probe_for(plan.part, plan.most_s))
        found += tried(probed, count, host.readings)
        found += counted(host.readings)
        if host.complaint and count:
            found.append(unmeasured("gpu.driver", "", host.complaint))
    found += _kernel(plan, clock or SystemClock())
    found += judged_ports(ports, look_at_ports(plan.ports))
    known = {name: value for name, value in reference.items() if _is_asked(name, plan)}
    shown = [one for one in held_against(found, known) if not _is_skipped(one.name, plan.skipped)]
    shown = shown if plan.part is None else owed(shown, plan.part)
    return NodeCheck(ok=all(one.ok for one in shown), took_s=time.monotonic() - begun, checks=tuple(shown))


def fabric_until_s(plan: CheckPlan, begun_s: float, now_s: float, *, gpus: int) -> float:
    """Until when the fabric may be tried. A busy peer or a slow disk must not cost the GPUs their time,
    unless the node was drained for its fabric.
    """
    until_s = now_s + FABRIC_SHARE * plan.most_s
    if not gpus or plan.part == "fabric" or _is_skipped("gpu", plan.skipped):
        return until_s
    return min(until_s, begun_s + (1 - GPU_SHARE) * plan.most_s)


def require_known(skipped: Sequence[str], part: SuspectPart | None = None) -> None:
    """Raises `InputError` if no check's name begins with one of these, or if one of them leaves out a check
    that has to clear this part.
    """
    for one in skipped:
        if not one or not any(one.startswith(kind) or kind.startswith(one) for kind in KINDS):
            raise InputError(
                f"No check's name begins with {one!r}.", hint=f"They begin with: {', '.join(KINDS)}."
            )
    for name in wanted(part) if part else ():
        if any(name.replace("*", "").startswith(one) or _is_of_a_gpu(name, one) for one in skipped):
            raise InputError(
                f"--for {part} needs {name}, which --skip leaves out.", hint="Give one of the two."
            )


def _is_of_a_gpu(name: str, skipped: str) -> bool:
    """Whether `skipped` leaves out a figure such as `gpu*.product` for one GPU."""
    return name.startswith(EACH_GPU) and bool(re.match(r"gpu\d", skipped))


def _is_asked(name: str, plan: CheckPlan) -> bool:
    """Whether this check measures the figure: some are only measured on request."""
    if name.startswith("fabric."):
        return bool(plan.peers)
    return name.rpartition(".")[2] not in SUSTAINED or plan.part in SUSTAINING


def _is_skipped(name: str, skipped: Sequence[str]) -> bool:
    return any(name.startswith(one) for one in skipped)


def _kernel(plan: CheckPlan, clock: Clock) -> Iterator[CheckedFigure]:
    if _is_skipped("kernel.faults", plan.skipped):
        return
    try:
        yield from logged(_recent(plan, clock))
    except Unavailable as error:
        yield unmeasured("kernel.faults", "lines", str(error), ok=True)


def _recent(plan: CheckPlan, clock: Clock) -> Iterator[KernelEvent]:
    """The events since `plan.since_s`, and all that have no time."""
    since_ns = clock.now_ns() - round(plan.since_s * SECOND_NS)
    with closing(KernelLogCollector(plan.log, clock=clock, host="", gpus=dict)) as collector:
        collector.collect()
        for event in collector.take_events():
            if event.at_ns is None or event.at_ns >= since_ns:
                yield event
