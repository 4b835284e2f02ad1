"""A drill for people: the operator's view, questions and, only on request, the truth.

The view is the same for every scenario, so that nothing in its form gives the cause away: the run's own story
from its events, and a board of signals, each with the worst of its subjects.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast import wording
from holdfast.drills.levers import Floats
from holdfast.drills.scenarios import Played, Truth
from holdfast.drills.telemetry import Telemetry
from holdfast.record import events as ev
from holdfast.signals.frame import Frame

SLOW_SHARE = 0.05
SLOW_STEPS, USUAL_STEPS = 3, 10
"""A line is written after `SLOW_STEPS` steps in a row that are slower by `SLOW_SHARE`, or `USUAL_STEPS` that
are not."""
LONG_CHECKPOINT = 1.5
"""A line is written for a checkpoint that takes this many times the first one's time."""
GENERAL_QUESTIONS = (
    "What changed first, and what came after it? Which of it is a cause, and which only a consequence?",
    "Whose system is it in? Whom do you call, and what do you ask them to look at?",
    "What does it cost an hour, and what would you do before the cause is known?",
)


class StoryLine(msgspec.Struct, frozen=True, kw_only=True):
    at_ns: int
    what: str


class BoardRow(msgspec.Struct, frozen=True, kw_only=True):
    """One signal of the board, scrape by scrape; None for a missing reading.

    notable: changes smaller than this are noise, and are not drawn.
    """

    label: str
    unit: str
    notable: float
    values: tuple[float | None, ...]


class Tabletop(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the players get; `truth` only if it is revealed."""

    run: str
    seed: int
    gpus: int
    first_ns: int
    last_ns: int
    told: str
    story: tuple[StoryLine, ...]
    board: tuple[BoardRow, ...]
    questions: tuple[str, ...]
    truth: Truth | None


def tabletop(played: Played, *, reveal: bool) -> Tabletop:
    """The scenario as data, which `--json` prints."""
    return Tabletop(
        run=played.run,
        seed=played.seed,
        gpus=played.layout.gpus,
        first_ns=played.events[0].occurred_ns,
        last_ns=played.events[-1].occurred_ns,
        told=played.scenario.told,
        story=tuple(sorted(_story(played), key=lambda line: line.at_ns)),
        board=tuple(_board(played.telemetry)),
        questions=(*GENERAL_QUESTIONS, *played.scenario.questions),
        truth=played.truth if reveal else None,
    )


# -- the run's story ----------------------------------------------------------------------------------


def _story(played: Played) -> Iterator[StoryLine]:
    yield from _slow_stretches(played)
    usual_ns = 0
    for event in played.events:
        what = ""
        match event:
            case ev.ActionTaken(action=action, subject=subject, reason=reason):
                what = f"{action} {subject}: {reason}"
            case ev.FaultObserved(fault=fault, subject=subject, detail=detail):
                what = f"{subject} reports {fault}: {detail}"
            case ev.MemberLost(subject=subject):
                what = f"member {subject} is lost"
            case ev.GenerationOpened(generation=generation, step=step):
                what = f"the run goes on from step {step:,} as generation {generation}"
            case ev.CheckpointSaved(stall_ns=int(stall_ns)):
                usual_ns = usual_ns or stall_ns
                if stall_ns > LONG_CHECKPOINT * usual_ns:
                    what = (
                        f"a checkpoint took {wording.duration(stall_ns)}, before {wording.duration(usual_ns)}"
                    )
        if what:
            yield StoryLine(at_ns=event.occurred_ns, what=what)


def _slow_stretches(played: Played) -> Iterator[StoryLine]:
    """When steps became slow, and when they were as usual again. Checkpoints do not count into a step."""
    saved = {
        event.step: event.stall_ns or 0 for event in played.events if isinstance(event, ev.CheckpointSaved)
    }
    commits = [event for event in played.events if isinstance(event, ev.StepCommitted)]
    usual_ns = played.healthy_step_s * 1e9
    slow: list[int] = []
    lines: list[StoryLine] = []
    is_slow = False
    for before, after in pairwise(commits):
        took_ns = after.occurred_ns - before.occurred_ns - saved.get(before.step, 0)
        if (took_ns > (1 + SLOW_SHARE) * usual_ns) == is_slow:
            slow.clear()
            continue
        slow.append(before.occurred_ns)
        if len(slow) == (USUAL_STEPS if is_slow else SLOW_STEPS):
            is_slow = not is_slow
            took = f"steps take {took_ns / 1e9:.2f} s, usually {usual_ns / 1e9:.2f} s"
            lines.append(StoryLine(at_ns=slow[0], what=took if is_slow else "steps are as usual again"))
            slow.clear()
    yield from lines


# -- the board ----------------------------------------------------------------------------------------


class _Gauge(NamedTuple):
    """A row of the board: its metrics, and how to find the worst value in them."""

    label: str
    unit: str
    notable: float
    metrics: tuple[str, ...]
    worst: Callable[..., Floats]


def _highest(samples: Frame) -> Floats:
    return _over(np.nanmax, samples.values)


def _lowest(samples: Frame) -> Floats:
    return _over(np.nanmin, samples.values)


def _over(reduce: Callable[..., Floats], values: Floats) -> Floats:
    """Reduce over the series at each time; NaN if none has a value."""
    seen = np.isfinite(values).any(axis=1)
    result = np.full(len(values), np.nan)
    result[seen] = reduce(values[seen], axis=1)
    return result


def _lowest_in_run(samples: Frame) -> Floats:
    in_run = ["hpc_job" in labels for labels in samples.labels]
    return _over(np.nanmin, samples.values[:, in_run])


def _total_kw(samples: Frame) -> Floats:
    return _over(np.nansum, samples.values) / 1_000


def _fastest_growth(samples: Frame) -> Floats:
    """The fastest growth a second of any of the counters; a reset does not count."""
    step_s = np.diff(samples.times_ns)[:, None] / 1e9
    grown = np.diff(samples.values, axis=0) / step_s
    return np.concatenate([[np.nan], _over(np.nanmax, np.where(grown < 0, np.nan, grown))])


def _growth_m(samples: Frame) -> Floats:
    return _fastest_growth(samples) / 1e6


def _highest_ms(samples: Frame) -> Floats:
    return _highest(samples) * 1_000


def _slowest_reply_ms(waited: Frame, requests: Frame) -> Floats:
    """The mean time of a reply at the node that waits longest; NaN without a request."""
    asked = np.diff(requests.values, axis=0)
    mean_s = np.divide(
        np.diff(waited.values, axis=0), asked, where=asked > 0, out=np.full(asked.shape, np.nan)
    )
    return np.concatenate([[np.nan], _over(np.nanmax, mean_s * 1_000)])


_NFS = "node_mountstats_nfs_operations_"
_CDU = "densewatch_cdu_"

_BOARD = (
    _Gauge("step", "s", 0.3, ("holdfast_run_step_seconds",), _highest),
    _Gauge("checkpoint", "s", 2.0, ("holdfast_run_checkpoint_seconds",), _highest),
    _Gauge("slowest to compute", "s", 0.2, ("holdfast_member_compute_seconds",), _highest),
    _Gauge("longest wait for data", "s", 0.2, ("holdfast_member_data_seconds",), _highest),
    _Gauge("slowest exchange", "s", 0.1, ("holdfast_member_exchange_seconds",), _highest),
    _Gauge("slowest pair of engines", "ms", 10.0, ("holdfast_pool_transfer_seconds",), _highest_ms),
    _Gauge("fullest cache", "", 0.1, ("vllm:kv_cache_usage_perc",), _highest),
    _Gauge("hottest GPU", "C", 6.0, ("DCGM_FI_DEV_GPU_TEMP",), _highest),
    _Gauge("lowest clock", "MHz", 60.0, ("DCGM_FI_DEV_SM_CLOCK",), _lowest_in_run),
    _Gauge("power of all GPUs", "kW", 10.0, ("DCGM_FI_DEV_POWER_USAGE",), _total_kw),
    _Gauge("most memory errors", "/s", 1.0, ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",), _fastest_growth),
    _Gauge("narrowest PCIe link", "wide", 1.0, ("node_pcidevice_current_link_width",), _lowest),
    _Gauge("worst power supply", "", 0.5, ("redfish_chassis_power_powersupply_health",), _highest),
    _Gauge("lowest coolant flow", "L/min", 10.0, (_CDU + "coolant_flow_lpm",), _lowest),
    _Gauge("warmest coolant", "C", 2.0, (_CDU + "coolant_supply_temp_celsius",), _highest),
    _Gauge("most symbol errors", "/s", 2.0, ("node_infiniband_symbol_error_total",), _fastest_growth),
    _Gauge("longest wait to send", "M/s", 1.0, ("infiniband_switch_port_transmit_wait_total",), _growth_m),
    _Gauge(
        "slowest storage reply",
        "ms",
        2.0,
        (_NFS + "response_time_seconds_total", _NFS + "requests_total"),
        _slowest_reply_ms,
    ),
    _Gauge("most retransmissions", "/s", 0.2, ("node_nfs_rpc_retransmissions_total",), _fastest_growth),
    _Gauge("most CPU pressure", "s/s", 0.05, ("node_pressure_cpu_waiting_seconds_total",), _fastest_growth),
)


def _board(telemetry: Telemetry) -> Iterator[BoardRow]:
    for gauge in _BOARD:
        if telemetry.has(gauge.metrics):
            values = gauge.worst(*map(telemetry.sample, gauge.metrics)).tolist()
            seen = tuple(value if np.isfinite(value) else None for value in values)
            yield BoardRow(label=gauge.label, unit=gauge.unit, notable=gauge.notable, values=seen)
