"""The report on a trace: its figures, the verdict, and the scores of its workers by place."""

from collections.abc import Iterator

import msgspec

from holdfast.stragglers.meta import Meta, gaps
from holdfast.stragglers.trace import Trace
from holdfast.stragglers.verdict import StragglerVerdict, judge
from holdfast.stragglers.whatif import Analysis, analyse

FIDELITY_MIN = 0.9
FIDELITY_MAX = 1.05
"""In the published traces, simulated and recorded steps differ by 1 to 2 %."""


class StragglerReport(msgspec.Struct, frozen=True, kw_only=True):
    """heat: the score of each place, a row for each data-parallel rank and a column for each stage; None
    without a worker. If several workers share a place, it is the highest. gaps: what the trace lacks of its
    job, and doubts about the simulation.
    """

    title: str
    dp_ranks: tuple[str, ...]
    stages: tuple[int, ...]
    heat: tuple[tuple[float | None, ...], ...]
    gaps: tuple[str, ...]
    analysis: Analysis
    verdict: StragglerVerdict


def report_on(trace: Trace, meta: Meta, *, title: str) -> StragglerReport:
    analysis = analyse(trace)
    return StragglerReport(
        title=title,
        dp_ranks=_row_names(trace),
        stages=trace.stages,
        heat=_heat(trace, analysis.scores),
        gaps=(*gaps(meta, trace), *_doubts(analysis)),
        analysis=analysis,
        verdict=judge(analysis),
    )


def _doubts(analysis: Analysis) -> Iterator[str]:
    """Doubts about the simulation: it should take about as long as the step did."""
    if analysis.step_s < FIDELITY_MIN * analysis.recorded_s:
        yield (
            f"The operations account for only {analysis.step_s / analysis.recorded_s:.0%} of the recorded "
            "step: workers were idle without waiting for each other, or the trace lacks some of their work."
        )
    if analysis.step_s > FIDELITY_MAX * analysis.recorded_s:
        yield (
            f"The simulated step takes {analysis.step_s / analysis.recorded_s - 1:.0%} longer than the "
            "recorded one: times or numbers of the trace are not consistent."
        )


def _row_names(trace: Trace) -> tuple[str, ...]:
    """The names of the rows. A worker with a name is alone in its row."""
    names = {worker.dp_rank: worker.name or f"dp {worker.dp_rank}" for worker in trace.workers}
    return tuple(names[dp_rank] for dp_rank in trace.dp_ranks)


def _heat(trace: Trace, scores: tuple[float, ...]) -> tuple[tuple[float | None, ...], ...]:
    places: dict[tuple[int, int], float] = {}
    for worker, score in zip(trace.workers, scores, strict=True):
        place = (worker.dp_rank, worker.stage)
        places[place] = max(score, places.get(place, score))
    return tuple(tuple(places.get((row, stage)) for stage in trace.stages) for row in trace.dp_ranks)
