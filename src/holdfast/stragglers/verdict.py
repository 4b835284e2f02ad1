"""The figures of a trace as one judgement: what holds the step back, and whether that is hardware.

The most specific explanation that accounts for half of the slowdown wins: a few workers before a stage, a
stage before a replica, all of these before a type of operation. Variation from one microbatch to the next
comes before a stage: it shows in all workers, and most in the busiest stage.
"""

from typing import Literal

import msgspec

from holdfast import wording
from holdfast.stragglers.whatif import HALF, Analysis

Kind = Literal["none", "worker", "data", "pauses", "stage", "replica", "communication", "operation", "spread"]
Judgement = Literal["cause", "not-hardware", "unknown"]
"""As for an incident: a cause in some system; software or data; or no explanation."""

SLOWDOWN_MIN = 1.03
"""Below this there is nothing to explain: the published analysis looks no further either."""
CORRELATION_MIN = 0.9
"""Above this, forward and backward passes vary together because their sequences do. Among the published
traces the one with unequal sequences has 0.99, the two others 0.85 and 0.89.
"""
PAUSES_SHARE_MAX = 0.05
"""Pauses are rare among the operations; frequent long operations are how the work is."""
ONE_WORKERS_PAUSES_MAX = 0.5
"""If one worker has more than this share of the pauses, they are that worker's."""

NAMED_MAX = 8
"""How many workers a sentence names."""

SOURCE = "Lin et al., OSDI 2025"
_RARE = f"rare: 1.7 % of 3,079 jobs had more than half explained by 3 % of their workers ({SOURCE})"


class StragglerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """sentence: with the numbers; basis: the threshold and its source; advice: what to do next.

    workers, stage, operation: what it is about, by name; empty or None if it is about something else
    """

    kind: Kind
    judgement: Judgement
    sentence: str
    basis: str
    advice: str
    share: float | None = None
    workers: tuple[str, ...] = ()
    stage: int | None = None
    operation: str = ""


def judge(analysis: Analysis) -> StragglerVerdict:
    if analysis.slowdown < SLOWDOWN_MIN:
        return _none(analysis)
    if _explains(analysis.m_w):
        return _worker(analysis)
    tried = (_data, _pauses, _stage, _replica, _suspects, _communication, _operation)
    return next((found for one in tried if (found := one(analysis)) is not None), _spread(analysis))


def _explains(share: float | None) -> bool:
    return share is not None and share >= HALF


def _none(analysis: Analysis) -> StragglerVerdict:
    return StragglerVerdict(
        kind="none",
        judgement="not-hardware",
        sentence=f"Nothing holds the step back: it takes {seconds(analysis.step_s)}, and "
        f"{seconds(analysis.ideal_s)} with everything at its ideal ({_percent(analysis.slowdown - 1)} more).",
        basis=f"Below {_percent(SLOWDOWN_MIN - 1)} a slowdown is not taken apart ({SOURCE}, artifact).",
        advice="If the step is still too slow, it is slow everywhere alike: hold it against a reference.",
    )


def _worker(analysis: Analysis) -> StragglerVerdict:
    """Name the fewest workers that explain half; the slowest 3 % may be many."""
    named = analysis.suspects if _explains(analysis.suspects.share) else analysis.slowest
    one = len(named.names) == 1
    kind = analysis.operations[0].type
    lone = one and len(analysis.stages) > 1 and len(analysis.replicas) == 1
    caveat = (
        " It is the only worker of its stage: the trace cannot tell a slow machine from an overlong stage."
    )
    return StragglerVerdict(
        kind="worker",
        judgement="unknown" if lone else "cause",
        sentence=f"{_places(analysis, named.names)} {'holds' if one else 'hold'} the step back: with "
        f"{'its' if one else 'their'} durations at the ideal it takes {seconds(named.fixed_s)} in place of "
        f"{seconds(analysis.step_s)}, {_percent(named.share)} of the slowdown, mostly in {kind}."
        f"{caveat if lone else ''}",
        basis=f"M_W, what the slowest 3 % of the workers explain, is {_ratio(analysis.m_w)} and over "
        f"{HALF:g}; that is {_RARE}.",
        advice=_worker_advice(kind),
        share=named.share,
        workers=named.names,
    )


def _worker_advice(operation: str) -> str:
    """If a worker is slow to get its data, the machine may be healthy."""
    if operation == "data":
        return "Look at what feeds it: its loader, the storage beneath, the share of the data it reads."
    return "Look at that machine: clocks, temperature and cooling, ECC, its links, who else runs there."


def _data(analysis: Analysis) -> StragglerVerdict | None:
    correlation = analysis.pattern.forward_backward
    if correlation is None or correlation < CORRELATION_MIN or not _explains(analysis.variation_share):
        return None
    worst = max(analysis.stages, key=lambda one: one.share or 0.0)
    beside = ""
    if len(analysis.stages) > 1 and _explains(worst.share):
        beside = f" Stage {worst.stage} is the tightest: it alone explains {_percent(worst.share)}."
    return StragglerVerdict(
        kind="data",
        judgement="not-hardware",
        sentence="No machine is slow: the work differs from one microbatch to the next, as with sequences of "
        f"different lengths. Without that the slowdown would be {_percent(analysis.variation_share)} smaller."
        f"{beside}",
        basis=f"Forward and backward passes of a microbatch vary together (correlation {correlation:.2f}, "
        f"over {CORRELATION_MIN:g}), and the slowest 3 % of the workers explain only "
        f"{_percent(analysis.m_w)} ({SOURCE}).",
        advice="Balance sequences over microbatches and ranks by their cost, which grows with the square of "
        "a length, not by tokens alone.",
        share=analysis.variation_share,
    )


def _pauses(analysis: Analysis) -> StragglerVerdict | None:
    pattern = analysis.pattern
    rare = pattern.pauses <= PAUSES_SHARE_MAX * analysis.operation_count
    roams = pattern.pausing_workers > 1 and pattern.pauses_of_one <= ONE_WORKERS_PAUSES_MAX
    if not (rare and roams and _explains(analysis.pauses_share)):
        return None
    return StragglerVerdict(
        kind="pauses",
        judgement="not-hardware",
        sentence=f"No machine is slow: {pattern.pauses:,} operations were interrupted, now on one worker and "
        f"now on another ({pattern.pausing_workers} of {analysis.worker_count}), as by a garbage collector. "
        f"Without these pauses the slowdown would be {_percent(analysis.pauses_share)} smaller.",
        basis="A pause is an operation half again as long as usual for its worker and type; no worker has "
        f"more than {_percent(pattern.pauses_of_one)} of their time.",
        advice="Collect garbage on all ranks in the same step (gc.disable, then gc.collect every so many "
        "steps), and look for whatever else runs from time to time.",
        share=analysis.pauses_share,
    )


def _stage(analysis: Analysis) -> StragglerVerdict | None:
    if len(analysis.stages) < 2:
        return None
    worst = max(analysis.stages, key=lambda one: one.share or 0.0)
    if not _explains(worst.share):
        return None
    last = worst == analysis.stages[-1]
    fixed_s = analysis.step_s - (worst.share or 0.0) * (analysis.step_s - analysis.ideal_s)
    which = f"The last stage ({worst.stage})" if last else f"Stage {worst.stage}"
    return StragglerVerdict(
        kind="stage",
        judgement="not-hardware",
        sentence=f"{which} holds the step back on all of its workers alike: with its "
        f"durations at the ideal it takes {seconds(fixed_s)} "
        f"in place of {seconds(analysis.step_s)}, {_percent(worst.share)} of the slowdown.",
        basis=f"{'M_S' if last else 'Its share'} is {_ratio(worst.share)} and over {HALF:g} ({SOURCE}); the "
        f"slowest 3 % of the workers explain {_percent(analysis.m_w)}, so it is the partition, no machine.",
        advice="Give that stage fewer layers: the loss and the output head take time like layers do."
        if last
        else "Give that stage fewer layers.",
        share=worst.share,
        stage=worst.stage,
    )


def _replica(analysis: Analysis) -> StragglerVerdict | None:
    worst = max(analysis.replicas, key=lambda one: one.share or 0.0)
    if len(analysis.replicas) < 2 or len(analysis.stages) < 2 or not _explains(worst.share):
        return None
    names = tuple(one.name for one in analysis.workers if one.dp_rank == worst.dp_rank)
    return StragglerVerdict(
        kind="replica",
        judgement="unknown",
        sentence=f"Data-parallel rank {worst.dp_rank} holds the step back in all of its stages: it explains "
        f"{_percent(worst.share)} of the slowdown.",
        basis=f"Its share is over {HALF:g}; no stage and no 3 % of the workers has as much ({SOURCE}).",
        advice="See what its machines share (rack, switch, cooling loop), and whether it gets other data.",
        share=worst.share,
        workers=names,
    )


def _suspects(analysis: Analysis) -> StragglerVerdict | None:
    found = analysis.suspects
    if not _explains(found.share):
        return None
    return StragglerVerdict(
        kind="worker",
        judgement="cause",
        sentence=f"{_places(analysis, found.names)} hold the step back together: with their durations at the "
        f"ideal it takes {seconds(found.fixed_s)} in place of {seconds(analysis.step_s)}, "
        f"{_percent(found.share)} of the slowdown.",
        basis=f"{len(found.names)} of {analysis.worker_count} workers explain more than {HALF:g}; the "
        f"slowest 3 % alone {_percent(analysis.m_w)} ({SOURCE}).",
        advice="Look at these machines and at what they share: rack, switch, cooling loop, power.",
        share=found.share,
        workers=found.names,
    )


def _communication(analysis: Analysis) -> StragglerVerdict | None:
    if not _explains(analysis.communication_share):
        return None
    worst = max(
        (one for one in analysis.operations if one.is_communication), key=lambda one: one.share or 0.0
    )
    return StragglerVerdict(
        kind="communication",
        judgement="cause",
        sentence=f"Communication holds the step back: at its ideal the slowdown would be "
        f"{_percent(analysis.communication_share)} smaller, {worst.type} alone {_percent(worst.share)}.",
        basis=f"Its share is over {HALF:g}. A transfer counts from when its last participant is there, so "
        f"waiting for a slow worker is not in it ({SOURCE}).",
        advice="Look at the links and switches between those workers, and at what else uses them.",
        share=analysis.communication_share,
        operation=worst.type,
    )


def _operation(analysis: Analysis) -> StragglerVerdict | None:
    worst = max(analysis.operations, key=lambda one: one.share or 0.0)
    if not _explains(worst.share):
        return None
    return StragglerVerdict(
        kind="operation",
        judgement="unknown",
        sentence=f"{worst.type} holds the step back, on no worker or stage in particular: at its ideal the "
        f"slowdown would be {_percent(worst.share)} smaller.",
        basis=f"Its share is over {HALF:g}; the slowest 3 % of the workers explain {_percent(analysis.m_w)} "
        f"({SOURCE}).",
        advice="See why the time for this work varies so much: its input, its kernels, what runs beside it.",
        share=worst.share,
        operation=worst.type,
    )


def _spread(analysis: Analysis) -> StragglerVerdict:
    return StragglerVerdict(
        kind="spread",
        judgement="unknown",
        sentence=f"No part alone explains half of the slowdown ({_percent(analysis.slowdown - 1)}): the "
        f"slowest 3 % of the workers explain {_percent(analysis.m_w)}, and "
        f"{analysis.operations[0].type} most of all operations.",
        basis=f"The threshold is {HALF:g} of the slowdown ({SOURCE}).",
        advice="Take a longer trace; if the result is the same, look for noise on all machines.",
    )


def _places(analysis: Analysis, names: tuple[str, ...]) -> str:
    """`Rank 0 (data-parallel rank 0, stage 0)`."""
    by_name = {one.name: one for one in analysis.workers}
    told = [
        f"{name} (data-parallel rank {by_name[name].dp_rank}, stage {by_name[name].stage})"
        if name in by_name and len(analysis.stages) > 1
        else name
        for name in names[:NAMED_MAX]
    ]
    if len(names) > NAMED_MAX:
        told.append(f"{len(names) - NAMED_MAX} more")
    joined = ", ".join(told[:-1]) + " and " + told[-1] if len(told) > 1 else told[0]
    return joined[:1].upper() + joined[1:] if joined.startswith("rank ") else joined


def seconds(value_s: float) -> str:
    """`46.34 s`, `18.2 ms`."""
    if value_s >= 1:
        return f"{wording.number(value_s, 4)} s"
    return f"{wording.number(1_000 * value_s, 3)} ms"


def _percent(share: float | None) -> str:
    """A slowdown in whole percent; a share a little below 0 is shown as 0."""
    return (
        "nothing"
        if share is None
        else f"{abs(100 * share) if round(100 * share) == 0 else 100 * share:.0f} %"
    )


def _ratio(share: float | None) -> str:
    return "nothing" if share is None else f"{share:.2f}"
