"""One node, from end to end, within a bound: schedulers kill a health check that takes longer."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.check.figures import CheckedFigure, held_against, unmeasured
from holdfast.check.gpus import counted, logged, probe, tried
from holdfast.check.host import host_figures
from holdfast.record.clock import Clock, SystemClock
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.kernel_log import KernelEvent
from holdfast.signals.collectors.kernel_log_collector import OWN_LOG, KernelLogCollector
from holdfast.signals.collectors.nvml import NvmlCollector
from holdfast.signals.frame import Reading
from holdfast.wording.units import SECOND_NS


class CheckPlan(msgspec.Struct, frozen=True, kw_only=True):
    """gpus: so many must be there; None: as many as are. folder: on the disk that is tried. most_s: for the
    whole check. since_s: so far back the kernel log counts. skipped: names, or how they begin.
    """

    gpus: int | None
    folder: Path
    most_s: float
    since_s: float
    skipped: tuple[str, ...] = ()
    log: Path = OWN_LOG


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. took_s: the whole."""

    ok: bool
    took_s: float
    checks: tuple[CheckedFigure, ...]


def check_node(plan: CheckPlan, reference: Mapping[str, float], clock: Clock | None = None) -> NodeCheck:
    begun = time.monotonic()
    clock = clock or SystemClock()
    readings, complaint = _read_gpus(clock)
    # The host while nothing else is at work, then the GPUs, which take what time is left.
    found = [one for one in host_figures(plan.folder) if not _is_skipped(one.name, plan.skipped)]
    if not _is_skipped("gpu", plan.skipped):
        found += tried(probe(begun + plan.most_s), plan.gpus, readings)
        found += counted(readings)
        if complaint and plan.gpus:
            found.append(unmeasured("gpu.driver", "", complaint))
    found += _kernel(plan, clock)
    shown = [one for one in held_against(found, reference) if not _is_skipped(one.name, plan.skipped)]
    return NodeCheck(ok=all(one.ok for one in shown), took_s=time.monotonic() - begun, checks=tuple(shown))


def _is_skipped(name: str, skipped: Sequence[str]) -> bool:
    return any(name.startswith(one) for one in skipped)


def _read_gpus(clock: Clock) -> tuple[list[Reading], str]:
    """What the driver tells, or why it does not."""
    try:
        with closing(NvmlCollector(clock=clock, host="")) as collector:
            return collector.collect(), ""
    except Unavailable as error:
        return [], str(error)
    except ModuleNotFoundError:
        return [], "pynvml is not installed, which the driver would be asked by."


def _kernel(plan: CheckPlan, clock: Clock) -> Iterator[CheckedFigure]:
    if _is_skipped("kernel.faults", plan.skipped):
        return
    try:
        yield from logged(_recent(plan, clock))
    except Unavailable as error:
        yield unmeasured("kernel.faults", "lines", str(error), ok=True)


def _recent(plan: CheckPlan, clock: Clock) -> Iterator[KernelEvent]:
    """Of lines that do not say when, all."""
    since_ns = clock.now_ns() - round(plan.since_s * SECOND_NS)
    with closing(KernelLogCollector(plan.log, clock=clock, host="", gpus=dict)) as collector:
        collector.collect()
        for event in collector.take_events():
            if event.at_ns is None or event.at_ns >= since_ns:
                yield event
