"""Second opinions on an estimated reference: earlier runs of the same model, and published figures.

A run that is slow from its first step to its last has no faster step to compare with. Two other figures can
show it: the time of a step in another run of the same model, and the share of the chips' peak that others
published.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.ledger.counts import Declared
from holdfast.ledger.fold import Fold
from holdfast.ledger.report import Opinion, Report
from holdfast.ledger.reporting import report
from holdfast.ledger.runs import fold_run
from holdfast.record.store import RunSummary, Selection, Store

SLOWER_RATIO_MIN = 1.1
"""Below this ratio two references agree: runs on different nodes differ as much."""
MFU_SHARE_MIN = 0.7
"""A run below this share of the nearest published MFU is called slow; published figures are good ones."""
PUBLISHED = "published"
_COUNTER = re.compile(r"[-_.]?[0-9]+$")
STEM_CHARS_MIN = 3


class Kin(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a run's model. stem: the run's name without its number."""

    name: str
    stem: str
    params: int | None
    chip: str | None

    @classmethod
    def of(cls, run: str, declared: Declared) -> "Kin":
        stem = _COUNTER.sub("", run)
        numbered = stem != run and len(stem) >= STEM_CHARS_MIN
        return cls(
            name=declared.name, stem=stem if numbered else "", params=declared.params, chip=declared.chip
        )

    def is_like(self, other: "Kin") -> bool:
        """Whether size and chip are the same if both are known; else whether the names are."""
        if self.params is not None and other.params is not None:
            return self.params == other.params and self.chip in (None, other.chip)
        return bool(self.name and self.name == other.name) or bool(self.stem and self.stem == other.stem)


def says_slow(opinion: Opinion) -> bool:
    """Whether the run is slower by more than such figures usually differ."""
    return opinion.ratio >= (1 / MFU_SHARE_MIN if opinion.source == PUBLISHED else SLOWER_RATIO_MIN)


def _by_run(told: Report, other: Report) -> Opinion | None:
    if told.reference is None or other.reference is None:
        return None
    ours, theirs = float(told.reference.work_gpu_ns), float(other.reference.work_gpu_ns)
    is_by_token = told.tokens_per_step is not None and other.tokens_per_step is not None
    if is_by_token:
        ours, theirs = ours / (told.tokens_per_step or 1), theirs / (other.tokens_per_step or 1)
    ratio = ours / theirs
    per = "token" if is_by_token else "step"
    if ratio >= SLOWER_RATIO_MIN:
        share = 100 * (1 - 1 / ratio)
        sentence = (
            f"This run is {ratio:.1f} times slower than your run {other.run}, in GPU-time a {per}. If both "
            f"do the same work, {share:.0f} % of what is called useful here is slowdown."
        )
    elif ratio * SLOWER_RATIO_MIN <= 1:
        sentence = (
            f"This run is {1 / ratio:.1f} times quicker than your run {other.run}, in GPU-time a {per}."
        )
    else:
        sentence = f"Your run {other.run} took as much GPU-time a {per}, within {100 * abs(ratio - 1):.0f} %."
    return Opinion(source=other.run, ratio=ratio, sentence=sentence)


def _by_publication(told: Report) -> Opinion | None:
    figure = told.mfu
    if figure is None or not figure.measured:
        return None
    if not figure.reference:
        sentence = f"No published figure can be compared with this run: its MFU is {figure.sentence}."
        return Opinion(source=PUBLISHED, ratio=1.0, sentence=sentence)
    ratio = figure.reference / figure.measured
    if figure.measured < MFU_SHARE_MIN * figure.reference:
        verdict = f"This run may be {ratio:.1f} times slower than it could be"
    elif figure.measured * MFU_SHARE_MIN > figure.reference:
        verdict = "This run is quicker than published ones of its kind"
    else:
        verdict = "Published figures agree with the reference"
    return Opinion(source=PUBLISHED, ratio=ratio, sentence=f"{verdict}: MFU is {figure.sentence}.")


ALONE = (
    "There is no second opinion on this reference: the record has no earlier run of the same model, and no "
    "FLOPs are declared to compare with published figures. If this run is slow from its first step on, the "
    "report cannot show it."
)


def with_opinions(told: Report, earlier: Sequence[Report]) -> Report:
    """The report with second opinions on its reference, also added to its remarks.

    earlier: reports of earlier runs of the same model.
    """
    if told.reference is None or told.reference.uncertainty is None:
        return told
    by_runs = (opinion for other in earlier if (opinion := _by_run(told, other)) is not None)
    quickest = max(by_runs, key=lambda opinion: opinion.ratio, default=None)
    found = tuple(opinion for opinion in (quickest, _by_publication(told)) if opinion is not None)
    said = tuple(opinion.sentence for opinion in found) or (ALONE,)
    return msgspec.structs.replace(told, opinions=found, remarks=(*told.remarks, *said))


RUNS_MAX = 5
"""How many earlier runs are read, the latest first."""
EVENTS_MAX = 500_000
"""How many events are read for second opinions in all: more would take too long."""


def consulted(store: Store, told: Report) -> Report:
    """The report with second opinions from earlier runs in the store and from published figures."""
    if told.reference is None or told.reference.uncertainty is None:
        return told
    earlier = _affordable(_earlier(told.run, _kins(store), store.runs()))
    return with_opinions(told, [report(run, fold_run(store, run)) for run in earlier])


def compared(store: Store, reports: Sequence[Report]) -> list[Report]:
    """The reports, each with second opinions from the earlier ones among them."""
    kins, summaries, known = _kins(store), store.runs(), {told.run: told for told in reports}
    return [
        with_opinions(
            told, [known[one.run] for one in _earlier(told.run, kins, summaries) if one.run in known]
        )
        for told in reports
    ]


def _earlier(run: str, kins: Mapping[str, Kin], summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs of the same model that began before this run."""
    began_ns = next((one.first_ns for one in summaries if one.run == run), 0)
    return [
        one
        for one in summaries
        if one.first_ns < began_ns and one.events and one.run in kins and kins[run].is_like(kins[one.run])
    ]


def _affordable(summaries: Iterable[RunSummary]) -> list[str]:
    """The first of these runs that can be read in reasonable time; runs that are too long are skipped."""
    found: list[str] = []
    left = EVENTS_MAX
    for summary in summaries:
        if len(found) < RUNS_MAX and summary.events <= left:
            left -= summary.events
            found.append(summary.run)
    return found


def _kins(store: Store) -> dict[str, Kin]:
    """The model of every run, from a few of its events."""
    folds: dict[str, Fold] = {summary.run: Fold() for summary in store.runs()}
    for event in store.select(Selection(kinds=("run.submitted", "run.started", "reference.declared"))):
        if event.run in folds:
            folds[event.run].apply(event)
    return {run: Kin.of(run, fold.declared) for run, fold in folds.items()}
