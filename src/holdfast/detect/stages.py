"""Members of one pipeline stage that compute longer while the other stages wait for them.

A label of a member's series names its stage, or a label of the run's gives the number of stages. Without
either, stages still form a regular pattern in the order of the ranks: `part_of`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panels
from holdfast.detect.rules import SIGNS
from holdfast.topology.graph import in_order
from holdfast.topology.names import member_name

METRIC, INFO = "holdfast_member_compute_seconds", "holdfast_run_info"
STAGE_LABELS = ("stage", "pipeline_stage", "pp_stage", "pp_rank", "pipeline_rank", "pp")
SIZE_LABELS = ("pp", "pp_size", "pipeline_parallel_size", "pipeline_model_parallel_size")
LATE_SHARE, OTHERS_SHARE = 0.8, 0.1
"""At least this share of its members is late, and at most this share of all others."""
LIKENESS_MIN = 0.9
"""Overlap between the late members and a part of the run: with sixteen members, none may be missing."""


class StagePart(NamedTuple):
    """A regular part of a run's members: `size` neighbours, repeated every `period`."""

    size: int
    period: int
    is_repeated: bool


def late_stage(late: Iterable[Finding], panels: Panels, run: str) -> Iterator[Finding]:
    """The one stage whose members are late, if labels tell stages. late: members that compute longer."""
    lasting = {one.subject: one for one in late if one.until_ns is None}
    if len(lasting) < 2:
        return
    for stages in _stages(panels, run):
        sizes = Counter(stages.values())
        of_late = Counter(stages[member] for member in lasting if member in stages)
        if len(sizes) < 2 or not of_late:
            continue
        stage, count = of_late.most_common(1)[0]
        others = sum(sizes.values()) - sizes[stage]
        if count < max(2, LATE_SHARE * sizes[stage]) or len(lasting) - count > OTHERS_SHARE * others:
            continue
        mine = [one for member, one in lasting.items() if stages.get(member) == stage]
        yield _finding(mine, run, stage)
        return


def _finding(mine: Sequence[Finding], run: str, stage: str) -> Finding:
    return Finding(
        sign="late-stage",
        subject=run,
        metric=METRIC,
        method="past",
        since_ns=round(median(one.since_ns for one in mine)),
        noticed_ns=round(median(one.noticed_ns for one in mine)),
        confidence=median(one.confidence for one in mine),
        value=median(one.value for one in mine),
        usual=median(one.usual for one in mine),
        unit="s",
        note=f"{SIGNS['late-stage']} ({stage})",
    )


def _stages(panels: Panels, run: str) -> Iterator[Mapping[str, str]]:
    """The stage of each member, from labels; if only the number of stages is known, for both usual orders."""
    panel = panels.value(METRIC)
    own = () if panel is None else tuple(one for one in panel.labels if one.get("run") == run)
    told = {
        member_name(run, labels["member"]): stage
        for labels in own
        if "member" in labels and (stage := _first(labels, STAGE_LABELS))
    }
    if len(set(told.values())) > 1:
        yield told
        return
    members = in_order({member_name(run, labels["member"]) for labels in own if "member" in labels})
    info = panels.value(INFO)
    sizes = {
        _first(one, SIZE_LABELS) for one in (() if info is None else info.labels) if one.get("run") == run
    }
    for size in (int(text) for text in sizes if text.isdecimal()):
        if 1 < size <= len(members):
            yield {name: str(number * size // len(members)) for number, name in enumerate(members)}
            yield {name: str(number % size) for number, name in enumerate(members)}


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def part_of(late: Collection[str], members: Sequence[str]) -> StagePart | None:
    """The regular part of the ordered members that the late ones form.

    Either every n-th member, or several neighbours at regular distances, or one of equal parts of the whole:
    these are the ways in which ranks are assigned to pipeline stages.
    """
    at = [number for number, member in enumerate(members) if member in late]
    if len(at) < 2:
        return None
    starts = [at[0], *(after for before, after in pairwise(at) if after - before > 1)]
    ends = [*(before for before, after in pairwise(at) if after - before > 1), at[-1]]
    runs = Counter(end - start + 1 for start, end in zip(starts, ends, strict=True))
    size = runs.most_common(1)[0][0]
    if len(starts) == 1:
        is_part = len(members) % size == 0 and starts[0] % size == 0 and len(members) > size
        return StagePart(size, len(members), False) if is_part else None
    period = Counter(after - before for before, after in pairwise(starts)).most_common(1)[0][0]
    part = {number for number in range(len(members)) if (number - starts[0]) % period < size}
    likeness = len(part & set(at)) / len(part | set(at))
    return StagePart(size, period, True) if likeness >= LIKENESS_MIN and period >= 2 * size else None
