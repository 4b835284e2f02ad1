"""Remarks that help readers interpret a report's numbers correctly."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice

from holdfast import wording
from holdfast.ledger.counts import Gap
from holdfast.ledger.fold import Fold
from holdfast.ledger.normal import HEALTHY_STEPS_MIN, MIXED_RATIO_MAX
from holdfast.ledger.report import IncidentReport, ReferenceStretch, Report
from holdfast.ledger.split import Silence
from holdfast.wording.units import HOUR_NS

NO_TIMES = "The log has no times: steps and their order are known, not how long they took or cost."
SHOWN_MAX = 3
"""How many remarks of one kind are shown one by one."""


def remarks(told: Report, fold: Fold) -> tuple[str, ...]:
    return (
        *_of_the_record(told, fold),
        *unknown_remarks(told),
        *_of_skipped_lanes(told, fold),
        *_of_the_reference(told),
        *gap_remarks(told),
        *incident_remarks(told),
        *_of_clocks(fold),
        *_of_counters(fold),
        *_of_the_rest(told),
    )


def _of_the_record(told: Report, fold: Fold) -> Iterator[str]:
    counts, goodput = fold.counts, told.goodput
    if told.is_untimed:
        yield NO_TIMES
        return
    if not told.gpus:
        yield "No GPUs are recorded for this run; import it with --gpus."
    elif not told.paid_gpu_ns:
        yield "The record ends at the start of the run, so there is nothing to account for yet."
    yield from device_remarks(told)
    if fold.is_cut_off:
        yield "The log ends before the run does: nothing is known, or counted, after its last line."
    elif fold.accounts.is_up:
        yield "The run has not ended; the report goes up to its last event."
    if counts.launches > counts.starts:
        yield (
            f"{counts.starts} starts hide {counts.launches - counts.starts} more launches that came to "
            f"nothing: the run was launched {counts.launches} times."
        )
    if goodput.checkpoint_span is not None and goodput.total is not None:
        whole = "what is known" if told.split.is_partly_known else "what was paid for"
        yield (
            f"Counting saved steps over elapsed time gives {100 * goodput.checkpoint_span:.2f} %. "
            f"Counting GPUs, {100 * goodput.total:.2f} % of {whole} was useful; "
            "the partition says where the rest went."
        )


def device_remarks(told: Report) -> Iterator[str]:
    if told.was_on_cpu:
        yield (
            f"Run {told.label} had GPUs in some attempts and only CPUs in others. All its hours count as "
            "GPU-hours; a rate for the run, with `from` and `to`, gives the hours on CPUs another price."
        )


def unknown_remarks(told: Report) -> Iterator[str]:
    """What is not known, and which line in a script or a log would tell."""
    if not told.split.unknown_matters:
        return
    amounts = wording.Amounts(told.paid_gpu_ns)
    for key, gpu_ns in told.split.unknown.items():
        silence = Silence(key)
        remedy = silence.remedy.replace("RUN", told.run)
        yield f"{amounts.hours(gpu_ns)} GPU-hours are not known ({silence.label}). {remedy}"


def _of_skipped_lanes(told: Report, fold: Fold) -> Iterator[str]:
    if not fold.skipped:
        return
    counts, first, last = told.counts, min(fold.skipped), max(fold.skipped)
    when = f"step {first}" if first == last else f"{counts.steps_short:,} steps from {first} to {last}"
    lanes = f"{wording.many(counts.lanes_skipped, 'lane')} of {when}"
    verb = "was" if counts.lanes_skipped == 1 else "were"
    yield (
        f"{lanes} {verb} skipped because replicas were missing; "
        f"`holdfast run --skip-lanes {told.run}` repeats the run with the same bits."
    )


def _of_the_reference(told: Report) -> Iterator[str]:
    reference = told.reference
    if reference is None or reference.uncertainty is None:
        return
    if any(one.origin == "members" for one in reference.stretches):
        yield (
            "No reference step time was declared; the reference is the time that steps would have taken if "
            "the slowest member had been as quick as the others."
        )
    else:
        yield (
            "No reference step time was declared; it is estimated from the run's own steps. "
            "A slowdown that affected all steps alike does not show."
        )
    if told.counts.steps <= HEALTHY_STEPS_MIN:
        yield (
            f"{told.counts.steps} steps are too few to tell what a step normally takes: the useful share is "
            "hardly more than a guess."
        )
    longer = [one for one in reference.stretches if one.doubt_gpu_ns]
    if longer:
        yield _of_longer_steps(longer, told)
    mixed = max((one.mixed_share for one in reference.stretches), default=0.0)
    if mixed:
        yield (
            f"{100 * mixed:.0f} % of the steps are longer than the others (up to {MIXED_RATIO_MAX:.0f} "
            "times) throughout the run. They are assumed to belong to the work, such as longer sequences, "
            "and count as useful."
        )


def _of_longer_steps(longer: list[ReferenceStretch], told: Report) -> str:
    first = longer[0]
    ratio = max(one.work_gpu_ns / (one.was_gpu_ns or one.work_gpu_ns) for one in longer)
    hours = sum(one.doubt_gpu_ns for one in longer) / HOUR_NS
    least = told.goodput.total_min
    goodput = "" if least is None else f", and goodput {100 * least:.1f} %"
    return (
        f"From {_moment(first.from_ns)} on steps take up to {ratio:.1f} times as long as before, for good, "
        "and nothing recorded says why: a larger batch or longer sequences, or a slowdown. They count as "
        f"useful. If it is a slowdown, {hours:,.2f} GPU-hours more are lost{goodput}. "
        "Declare the reference of each stage (reference.declared) to know."
    )


def gap_remarks(told: Report, priced: Callable[[Gap], str] | None = None) -> Iterator[str]:
    """Remarks on gaps. priced: a gap's cost in words."""
    open_gaps = [gap for gap in told.gaps if not gap.given_back]
    for gap in sorted(open_gaps, key=lambda gap: -gap.gpu_ns)[:SHOWN_MAX]:
        price = "" if priced is None else f", {priced(gap)}"
        yield (
            f"From {_moment(gap.from_ns)} to {_moment(gap.to_ns)} the run was down between two attempts, and "
            f"nothing says who held its {gap.gpus:,} GPUs: that time costs nothing here. If they were held, "
            f"it is {gap.gpu_ns / HOUR_NS:,.2f} GPU-hours{price} more. Record a cost.rate with the held "
            "GPUs, or import the scheduler's accounting (sacct) of this run."
        )
    if len(open_gaps) > SHOWN_MAX:
        hours = sum(gap.gpu_ns for gap in open_gaps) / HOUR_NS
        yield f"There are {len(open_gaps):,} such gaps, {hours:,.2f} GPU-hours together."
    given_back = [gap for gap in told.gaps if gap.given_back]
    if given_back:
        hours = sum(gap.to_ns - gap.from_ns for gap in given_back) / HOUR_NS
        times = wording.times(len(given_back))
        yield (
            f"The run was down between two jobs {times}, {hours:,.2f} hours together. The scheduler says "
            "that the GPUs were given back, so that time costs nothing."
        )


def incident_remarks(told: Report) -> Iterator[str]:
    """For incidents that cost more than their GPUs can in the time they lasted: where that comes from."""
    spread = (said for one in told.incidents if (said := spread_remark(one, told.gpus, told.last_ns)))
    return islice(spread, SHOWN_MAX)


def spread_remark(one: IncidentReport, gpus: int, last_ns: int) -> str:
    """Where the cost of an incident comes from, if its GPUs cannot have cost so much while it lasted."""
    lasted_ns = (last_ns if one.recovered_ns is None else one.recovered_ns) - one.began_ns
    if one.spent_ns is None or one.lost_gpu_ns <= gpus * lasted_ns:
        return ""
    from_ns, to_ns = one.spent_ns
    return (
        f"Incident {one.name} lasted {wording.duration(lasted_ns)}, and its cost is spread over "
        f"{wording.duration(to_ns - from_ns)}, from {_moment(from_ns)} to {_moment(to_ns)}: work done "
        "before it was lost, or work was done again after it."
    )


def _of_clocks(fold: Fold) -> Iterator[str]:
    for setback in fold.disorder.setbacks[:SHOWN_MAX]:
        yield (
            f"A clock was set back by {setback.back_ns_min / 1e9:,.0f} s or more at "
            f"{_moment(setback.at_ns)}: {setback.steps:,} steps have times later than steps that followed "
            "them. The ledger orders them by number, reports no incident, and counts time that the clock "
            "showed twice only once."
        )


def _of_counters(fold: Fold) -> Iterator[str]:
    counts, opening = fold.counts, fold.opening_short
    if opening is not None:
        yield (
            f"The first step that was reported is step {opening.step:,}, and there was no time for all the "
            "steps before it: the run went on from a checkpoint, and nothing says from which. What is called "
            "starting may hold steps. Record checkpoint.loaded with its step."
        )
    if (assumed := fold.opening_assumed) is not None:
        yield (
            f"The first step that was reported is step {assumed.step:,}, and the next ones are "
            f"{assumed.every:,} apart. Nothing was loaded and there was time for all the steps before it, so "
            f"they count as useful: {wording.duration(assumed.duration_ns)} of which no line tells. If the "
            "run went on from a checkpoint, that was its start. Record checkpoint.loaded with its step."
        )
    if counts.begun_again:
        times = wording.times(counts.begun_again)
        yield (
            f"The step counter began again {times} after the run was complete. That is another run of the "
            "same name, not work done again: its steps count as useful. Give each run a name of its own."
        )
    if counts.from_scratch:
        times = wording.times(counts.from_scratch)
        yield (
            f"The step counter went back to its beginning {times}, and no event says that the run was "
            "complete: the steps count as recomputed. If that was a new run, import it under a name of its "
            "own (--run)."
        )


def _of_the_rest(told: Report) -> Iterator[str]:
    wrong = [figure.wrong for figure in (told.mfu, told.bandwidth) if figure is not None and figure.wrong]
    yield from wrong
    if told.mfu is not None and not told.mfu.wrong and told.useful_parts is None:
        yield "The declared FLOPs exceed the chips' peak in the useful time; check model, chip and precision."
    if told.counts.unknown_events:
        yield f"{told.counts.unknown_events} events are of kinds that this version does not know."


def _moment(at_ns: int) -> str:
    at = datetime.fromtimestamp(at_ns // 10**9, tz=UTC)
    return f"{at.day} {at:%b, %H:%M} UTC"
