"""Build a report from a fold: amounts, ratios, incidents and remarks."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import accumulate, groupby
from operator import attrgetter, not_

import msgspec

from holdfast.ledger import references
from holdfast.ledger.accounts import LedgerIncident
from holdfast.ledger.categories import Category
from holdfast.ledger.counts import Declared, Saves
from holdfast.ledger.dangers import Danger
from holdfast.ledger.division import Division, silences, summed
from holdfast.ledger.flops import IMPOSSIBLE_PERCENT, Chip, chip_named, impossible, peak_flops_per_s
from holdfast.ledger.fold import Fold
from holdfast.ledger.references import bus_bytes_per_s
from holdfast.ledger.remarks import remarks
from holdfast.ledger.report import (
    CheckpointCosts,
    CheckpointReach,
    CopyReach,
    Counted,
    Course,
    Ended,
    Ettr,
    Goodput,
    IncidentReport,
    MeasuredFigure,
    ReferenceStretch,
    Report,
    ReportedPace,
    Segment,
    StepReference,
    UsefulParts,
    UsefulWork,
)
from holdfast.ledger.slow_stretches import slow_stretch, with_slow_stretches
from holdfast.ledger.split import Split, share
from holdfast.ledger.tally import PLAIN
from holdfast.record.errors import InputError
from holdfast.wording.units import HOUR_NS

OUTSIDE = (Category.IDLE, Category.SPARE, Category.DRAINED)
"""Time of held GPUs outside the run."""
_OUTSIDE_KEYS = tuple(category.key for category in OUTSIDE)
_UNKNOWN_KEY = Category.UNATTRIBUTED.key
_AS_COUNTED = (
    *("what", "subject", "severity", "noticed_ns", "recovered_ns"),
    *("restarts", "members_lost", "steps_rolled_back"),
)
"""The fields of an incident that are reported unchanged."""
TO_CORRECT = "Correct it with a reference.declared of the right chip, precision and model_flops_per_step."
SLIDING_WINDOW_NS = HOUR_NS
"""ETTR over the last hour shows how the run does now; ByteRobust (SOSP 2025) uses the same window."""
SLOW_SHARE_MIN = 0.1
"""A stretch whose steps lose a tenth to slowdown becomes an incident of its own"""
SLOW_COST_MIN = 0.005
"""... if it costs at least this share of everything paid for."""
STANDSTILL_TIMES = 5.0
"""... and is told as a standstill if no step ended for so many times their usual distance, or of buckets."""


def report(run: str, fold: Fold) -> Report:
    """The report of a fold, which is not changed and may take further events."""
    settled = fold.settled()
    told = _Reader(run, settled).report()
    return msgspec.structs.replace(told, remarks=remarks(told, settled))


def counted(fold: Fold) -> Counted:
    told = ("starts", "launches", "loads", "saves", "members_lost", "unknown_events", "takeovers")
    return Counted(
        **{name: getattr(fold.counts, name) for name in told},
        restarts=max(0, fold.counts.launches - 1),
        steps=fold.progress.kept(),
        incidents=len(fold.accounts.incidents),
        steps_short=len(fold.skipped),
        lanes_skipped=sum(fold.skipped.values()),
        saves_failed=fold.dangers.saves_failed,
    )


def dangers_of(fold: Fold) -> tuple[Danger, ...]:
    is_complete = fold.ending is not None and fold.ending.outcome == "completed"
    return tuple(fold.dangers.told(fold.saves.copies, is_complete=is_complete))


def goodput_of(split: Split, basis: str, *, is_told: bool) -> Goodput:
    """Goodput from the three amounts. is_told: whether the run reported what it did."""
    known, scheduled = split.known_gpu_ns, split.scheduled_gpu_ns
    is_told = is_told and known > 0
    unheeded = 0 if is_told else split.unknown_gpu_ns
    return Goodput(
        total=share(split.useful_gpu_ns, known) if is_told else None,
        scheduling=share(scheduled + unheeded, known + unheeded),
        runtime=share(split.useful_gpu_ns, scheduled) if is_told else None,
        program=None,
        checkpoint_span=None,
        basis=basis if is_told else "",
        bounds=split.useful_bounds,
    )


def useful_work_of(
    goodput: Goodput, known_gpu_ns: int, steps: int, tokens_per_step: int | None
) -> UsefulWork:
    hours = known_gpu_ns / HOUR_NS
    return UsefulWork(
        useful_gpu_hours_per_gpu_hour=goodput.total,
        steps_per_gpu_hour=steps / hours if hours else None,
        tokens_per_gpu_hour=steps * tokens_per_step / hours if hours and tokens_per_step else None,
    )


def recorded_price_of(segments: Iterable[Segment]) -> float | None:
    """The mean of the recorded prices; None without one, or without time."""
    priced = [one for one in segments if one.usd_per_gpu_hour is not None]
    times = [sum(one.partition.values()) for one in priced]
    usd = sum(time * Fraction(repr(one.usd_per_gpu_hour)) for time, one in zip(times, priced, strict=True))
    return float(usd / sum(times)) if sum(times) else None


def pace_of(fold: Fold) -> ReportedPace | None:
    """The steps compared with the reference that a report would use; None without one."""
    return _Reader("", fold.settled()).pace()


class _Reader:
    """Values that several parts of a report need, computed once."""

    def __init__(self, run: str, fold: Fold) -> None:
        self.run = run
        self.fold = fold
        self.accounts = fold.accounts
        self.elapsed_ns = max(0, fold.accounts.now_ns) - fold.accounts.first_ns
        self.division = Division(fold)
        self.parts = self.division.parts
        self.partition = {category.key: self.part(category) for category in Category}
        self.split = Split.of(self.partition, self.division.unknown)
        self.reference = self._reference()
        self.basis = "" if self.reference is None else _basis(self.reference)
        self.estimated = self._estimated()
        self.timed_steps = self.accounts.tally.steps_of(Category.USEFUL)
        self.kept_gpu_ns: list[int] = []  # for each bucket of the course: time in kept steps
        self.course = self._course()

    def part(self, *categories: Category) -> int:
        return sum(self.parts.get(category, 0) for category in categories)

    def report(self) -> Report:
        fold = self.fold
        mfu, hfu_percent = self._mfu()
        parts = self._useful_parts()
        goodput, steps, tokens = self._goodput(), fold.progress.kept(), fold.declared.tokens_per_step
        incidents, prices = self._incidents(), self.accounts.prices
        segments = self._segments(incidents)
        mean_price = recorded_price_of(segments)
        return Report(
            run=self.run,
            name=fold.declared.name,
            team=fold.declared.team,
            project=fold.declared.project,
            cluster=fold.declared.cluster,
            window=(None, None),
            known_ns=max(0, self.accounts.now_ns),
            held_gpus=self.accounts.shape.paid if self.accounts.is_up and not fold.is_cut_off else 0,
            is_cut_off=fold.is_cut_off,
            steps_kept=steps,
            recorded_prices=tuple(self.accounts.prices),
            accrued=None,
            segments=segments,
            ended=None if fold.ending is None else Ended.of(fold.ending),
            first_ns=self.accounts.first_ns,
            last_ns=max(0, self.accounts.now_ns),
            elapsed_s=self.elapsed_ns / 1e9,
            gpus=self.accounts.gpus_max,
            paid_gpu_ns=self.accounts.paid_gpu_ns,
            usd_per_gpu_hour=prices[-1].usd_per_gpu_hour if prices and mean_price is None else mean_price,
            chip=fold.declared.chip,
            on_cpu=fold.on_cpu,
            was_on_cpu=fold.was_on_cpu,
            tokens_per_step=tokens,
            partition=self.partition,
            split=self.split,
            goodput=goodput,
            ettr=self._ettr(),
            counts=counted(fold),
            moved=fold.moved.copy(),
            useful_work=useful_work_of(goodput, self.split.known_gpu_ns, steps, tokens),
            useful_parts=parts if parts is not None and parts.rest_gpu_ns >= 0 else None,
            reference=self.reference,
            mfu=mfu,
            mfu_unknown="" if mfu else _mfu_unknown(self.fold.declared),
            hfu_percent=hfu_percent,
            bandwidth=self._bandwidth(),
            incidents=incidents,
            saved=self._saved(),
            dangers=dangers_of(fold),
            course=self.course,
            basis=self.basis,
            estimated=self.estimated,
            gaps=tuple(fold.gaps.all),
            remarks=(),
        )

    def pace(self) -> ReportedPace | None:
        reference = self.reference
        if reference is None:
            return None
        slow = self.part(Category.SLOWDOWN)
        slow_share = share(slow, slow + self.part(Category.USEFUL, Category.RECOMPUTED))
        gpus = self.accounts.shape.active or reference.gpus
        longer = next((one for one in reference.stretches if one.doubt_gpu_ns), None)
        return ReportedPace(
            step_ns=reference.work_gpu_ns // gpus,
            origin=reference.origin,
            slowdown_share=slow_share or 0.0,
            was_ns=None if longer is None else (longer.was_gpu_ns or longer.work_gpu_ns) // gpus,
            since_ns=None if longer is None else longer.from_ns,
        )

    def _goodput(self) -> Goodput:
        useful, parts = self.part(Category.USEFUL), self._useful_parts()
        doubt = min(useful, sum(one.doubt_gpu_ns for one in self.division.plateaus))
        least = share(useful - doubt, self.split.known_gpu_ns)
        return msgspec.structs.replace(
            goodput_of(self.split, self.basis, is_told=self.fold.instrumented),
            program=None
            if parts is None or parts.model_flops_gpu_ns > useful  # impossible; a remark says so
            else share(parts.model_flops_gpu_ns, useful),
            checkpoint_span=self._checkpoint_span(),
            total_min=least if self.fold.instrumented and doubt else None,
        )

    def _checkpoint_span(self) -> float | None:
        fold = self.fold
        saved_step = fold.saves.last_step
        step_ns = fold.stages.current.step_ns
        if step_ns is None or fold.loaded_step_min is None or saved_step is None:
            return None
        steps = saved_step - fold.loaded_step_min
        return share(steps * step_ns, self.elapsed_ns) if steps > 0 else None

    def _ettr(self) -> Ettr:
        if not self.fold.instrumented:
            return Ettr(cumulative=None, sliding=None, sliding_min=None, sliding_window_ns=SLIDING_WINDOW_NS)
        buckets = self.course.buckets
        width = max(1, min(len(buckets), round(SLIDING_WINDOW_NS / self.course.bucket_ns)))
        kept = list(accumulate(self.kept_gpu_ns, initial=0))
        stayed = list(accumulate(map(_in_run, buckets), initial=0))
        unknown = list(accumulate((bucket.get(_UNKNOWN_KEY, 0) for bucket in buckets), initial=0))
        windows = []  # those in which the run was up
        for end in range(width, len(buckets) + 1):
            begin = end - width
            in_run = stayed[end] - stayed[begin]
            if in_run:
                windows.append(share(kept[end] - kept[begin], in_run - unknown[end] + unknown[begin]))
        known = [window for window in windows if window is not None]
        return Ettr(
            cumulative=share(kept[-1], stayed[-1] - unknown[-1]),
            sliding=windows[-1] if windows else None,
            sliding_min=min(known, default=None),
            sliding_window_ns=width * self.course.bucket_ns,
        )

    def _saved(self) -> CheckpointReach:
        saves, progress = self.fold.saves, self.fold.progress
        last, gaps = saves.last_step, saves.count - 1
        since = progress.kept() if last is None else max(0, (progress.position or 0) - last)
        return CheckpointReach(
            last_step=last,
            since_steps=since,
            unsaved_steps_max=None if last is None else max(since, saves.unsaved_steps_max),
            between_steps_mean=((last or 0) - (saves.first_step or 0)) / gaps if gaps > 0 else None,
            stalls=saves.stalls,
            costs=_costs(saves),
            restore_s_mean=_seconds(saves.restore_ns.value),
            proven_step=saves.proven[0] if saves.proven else None,
            proven_ns=saves.proven[1] if saves.proven else None,
            refuted_step=saves.refuted[0] if saves.refuted else None,
            refuted_ns=saves.refuted[1] if saves.refuted else None,
            copies=tuple(
                CopyReach(place=place, step=step, reason=reason)
                for place, (step, reason) in saves.copies.items()
            ),
        )

    def _useful_parts(self) -> UsefulParts | None:
        declared, peak = self.fold.declared, _peak_flops_per_s(self.fold.declared)
        if peak is None or declared.model_flops_per_step is None:
            return None
        useful = self.part(Category.USEFUL)
        model = int(declared.model_flops_per_step * self.timed_steps * 1e9 / peak)
        hardware_flops = declared.hardware_flops_per_step or declared.model_flops_per_step
        hardware = int(hardware_flops * self.timed_steps * 1e9 / peak)
        return UsefulParts(
            model_flops_gpu_ns=model,
            recompute_flops_gpu_ns=hardware - model,
            rest_gpu_ns=useful - hardware,
        )

    def _reference(self) -> StepReference | None:
        """The reference at the end of the record, with those of all stretches."""
        plateaus, gpus_max = self.division.plateaus, self.accounts.gpus_max
        if not plateaus or not gpus_max:
            return None
        stretches = self._stretches()
        last = stretches[-1]
        stages = list(self.fold.stages)
        gpus = stages[plateaus[-1].stage].step_gpus or gpus_max
        found = StepReference(
            work_gpu_ns=last.work_gpu_ns,
            step_ns=last.work_gpu_ns // gpus,
            gpus=gpus,
            origin=last.origin,
            uncertainty=_uncertainty(stretches),
            stretches=stretches,
        )
        return msgspec.structs.replace(found, basis=_basis(found) or last.origin)

    def _stretches(self) -> tuple[ReferenceStretch, ...]:
        timeline, stages = self.accounts.timeline, list(self.fold.stages)
        found = []
        for one in self.division.plateaus:
            stage, origin = stages[one.stage], self.division.origins[one.stage]
            assert origin is not None
            if origin == "declared":
                later = [other.from_ns for other in stages[one.stage + 1 :]]
                from_ns = stage.from_ns if one.stage else self.accounts.first_ns
                to_ns = later[0] if later else self.accounts.now_ns
            else:
                from_ns = timeline.origin_ns + (one.first << timeline.width_log2)
                to_ns = min(timeline.origin_ns + (one.end << timeline.width_log2), self.accounts.now_ns)
            found.append(
                ReferenceStretch(
                    from_ns=from_ns,
                    to_ns=to_ns,
                    step_ns=int(one.reference) // (stage.step_gpus or self.accounts.gpus_max),
                    work_gpu_ns=int(one.reference),
                    origin=origin,
                    uncertainty=None if origin == "declared" else one.uncertainty,
                    tokens_per_step=stage.tokens_per_step,
                    level_gpu_ns=None if origin == "declared" else one.level,
                    was_gpu_ns=one.was or None,
                    doubt_gpu_ns=one.doubt_gpu_ns,
                    mixed_share=one.mixed,
                )
            )
        return tuple(found)

    def _estimated(self) -> tuple[str, ...]:
        """The categories whose sums depend on an estimated reference."""
        if not self.basis:
            return ()
        division = self.division
        found = {
            category
            for (number, key), parts in division.splits.items()
            if key >= PLAIN and number >= 0 and division.plateaus[number].uncertainty is not None
            for category, part in parts
            if part
        }
        return tuple(category.key for category in sorted(found))

    def _mfu(self) -> tuple[MeasuredFigure | None, float | None]:
        """MFU while stepping, and HFU: the FLOPs of the kept steps over the peak of their GPU-time."""
        declared, peak = self.fold.declared, _peak_flops_per_s(self.fold.declared)
        chip, stepping_s = _chip(declared), sum(self.kept_gpu_ns) / 1e9
        if chip is None or peak is None or declared.model_flops_per_step is None or not stepping_s:
            return None, None
        per_flop = 100 * self.timed_steps / (stepping_s * peak)
        measured = per_flop * declared.model_flops_per_step
        hfu = per_flop * (declared.hardware_flops_per_step or declared.model_flops_per_step)
        assumed = chip, declared.precision, peak
        wrong = impossible("MFU", measured, *assumed) or impossible("HFU", hfu, *assumed)
        row = None
        if not wrong and declared.params:
            row = references.reference_mfu(
                references.ReferenceSetup(
                    params=declared.params,
                    gpus=self.accounts.gpus_max,
                    chip=chip,
                    precision=declared.precision,
                )
            )
        if row is not None:
            sentence = references.mfu_sentence(measured, row)
        elif measured > IMPOSSIBLE_PERCENT:
            sentence = f"{measured:,.1f} %, impossible"
        else:
            sentence = f"{measured:.1f} % of the peak{_uncompared(declared, wrong)}"
        if not wrong:
            sentence += references.above_published(measured, declared.precision)
        figure = MeasuredFigure(
            measured=measured,
            reference=None if row is None else row.mfu_percent,
            unit="%",
            sentence=sentence,
            wrong=f"{wrong} {TO_CORRECT}" if wrong else "",
        )
        return figure, hfu

    def _bandwidth(self) -> MeasuredFigure | None:
        """Bus bandwidth of the collectives that moved most; those between nodes if there are any."""
        chip = _chip(self.fold.declared)
        measured = [
            (references.reach(chip, ranks) == "network", traffic.size_bytes, collective, ranks, bus)
            for (collective, ranks), traffic in self.fold.traffic.items()
            if (bus := bus_bytes_per_s(collective, traffic.size_bytes, ranks, traffic.duration_ns))
            is not None
        ]
        if not measured:
            return None
        _, _, collective, ranks, bus = max(measured)
        row = None if chip is None else references.reference_bandwidth(chip, ranks, collective)
        wrong = "" if chip is None else references.beyond_links(collective, bus / 1e9, chip)
        if wrong:
            sentence, row = f"{bus / 1e9:,.1f} GB/s, impossible ({collective}, {ranks} ranks)", None
        elif row is None:
            sentence = f"{bus / 1e9:.1f} GB/s ({collective}, {ranks} ranks)"
        else:
            sentence = references.bandwidth_sentence(bus / 1e9, row)
        return MeasuredFigure(
            measured=bus / 1e9,
            reference=row.bus_gb_per_s if row else None,
            unit="GB/s",
            sentence=sentence,
            reach=references.reach(chip, ranks),
            wrong=wrong,
        )

    def _course(self) -> Course:
        timeline = self.accounts.timeline
        divided: dict[tuple[int, int], int] = {}
        buckets = []
        for bucket in self.division.buckets:
            parts: list[tuple[Category, int]] = []
            kept_gpu_ns = 0
            for place, gpu_ns in bucket.items():
                before = divided.get(place, 0)
                split = self.division.divided(place, gpu_ns, before)
                parts += split
                kept_gpu_ns += self.division.kept(place[1], split)
                divided[place] = before + gpu_ns
            buckets.append(summed(parts))
            self.kept_gpu_ns.append(kept_gpu_ns)
        return Course(
            start_ns=timeline.origin_ns,
            bucket_ns=1 << timeline.width_log2,
            buckets=tuple(_keyed(bucket) for bucket in buckets),
            timed=tuple(timeline.timed),
        )

    def _segments(self, found: Iterable[IncidentReport]) -> tuple[Segment, ...]:
        """The partition between the cuts. For each key, and each incident, the parts sum to the whole."""
        slow = [incident for incident in found if not incident.evidence]
        accounts = self.accounts
        cuts = accounts.cuts()
        before: dict[int, int] = {}
        blamed_before: dict[int, dict[int, int]] = {}
        blamed_in: dict[int, list[int]] = {}  # part: the incidents with losses in it
        for number, parts in cuts.blamed.items():
            for index in parts:
                blamed_in.setdefault(index, []).append(number)
        edges = [accounts.first_ns, *cuts.edges, max(accounts.first_ns, accounts.now_ns)]
        segments = []
        for index, sums in enumerate(cuts.parts):
            partition: list[tuple[Category, int]] = []
            unknown: list[tuple[str, int]] = []
            kept_gpu_ns = 0
            for key, gpu_ns in sums.items():
                parts_of = self.division.between(key, before.get(key, 0), gpu_ns)
                partition += parts_of
                unknown += silences(key, parts_of)
                kept_gpu_ns += self.division.kept(key, parts_of)
                before[key] = before.get(key, 0) + gpu_ns
            incidents: dict[str, dict[str, int]] = {}
            for number in blamed_in.get(index, ()):
                known = blamed_before.setdefault(number, {})
                if lost := self._lost(number, cuts.blamed[number][index], known):
                    incidents[str(number + 1)] = lost
            from_ns = min(max(edges[index], edges[0]), edges[-1])
            to_ns = min(max(edges[index + 1], edges[0]), edges[-1])
            if to_ns > from_ns or not index:
                segments.append(
                    Segment(
                        from_ns=from_ns,
                        to_ns=to_ns,
                        partition=_keyed(summed(partition)),
                        unknown={silence: part for silence, part in summed(unknown).items() if part},
                        kept_gpu_ns=kept_gpu_ns,
                        incidents=incidents,
                        usd_per_gpu_hour=self._recorded_price(from_ns),
                    )
                )
        return with_slow_stretches(segments, slow)

    def _lost(self, number: int, sums: Mapping[int, int], before: dict[int, int]) -> dict[str, int]:
        """An incident's losses in one segment. `before`: its sums in earlier segments; updated here."""
        incident = self.accounts.incidents[number]
        earlier = self._losses(incident, before) if before else {}
        for key, gpu_ns in sums.items():
            before[key] = before.get(key, 0) + gpu_ns
        lost = {key: part - earlier.get(key, 0) for key, part in self._losses(incident, before).items()}
        return {key: part for key, part in lost.items() if part}

    def _recorded_price(self, at_ns: int) -> float | None:
        prices = self.accounts.prices
        held = bisect_right(prices, at_ns, key=attrgetter("from_ns"))
        return prices[held - 1].usd_per_gpu_hour if held else None

    def _incidents(self) -> tuple[IncidentReport, ...]:
        """Recorded incidents and unexplained stretches of slow steps, the costliest first."""
        recorded = [
            self._incident(str(number), incident)
            for number, incident in enumerate(self.accounts.incidents, start=1)
        ]
        found = [*recorded, *self._slow_stretches(recorded)]
        return tuple(sorted(found, key=lambda incident: (-incident.lost_gpu_ns, incident.began_ns)))

    def _incident(self, name: str, incident: LedgerIncident) -> IncidentReport:
        began_ns, losses = self._began_ns(incident), self._losses(incident, incident.tally.gpu_ns)
        return IncidentReport(
            **{field: getattr(incident, field) for field in _AS_COUNTED},
            name=name,
            began_ns=began_ns,
            lost_gpu_ns=sum(losses.values()),
            losses=losses,
            evidence=tuple(incident.evidence),
            basis=self.basis if losses.keys() & set(self.estimated) else "",
            spent_ns=incident.spent if losses else None,
        )

    def _began_ns(self, incident: LedgerIncident) -> int:
        """The incident's onset; if unknown, the end of the time that its lost work can have taken."""
        if incident.silence is None:
            return incident.began_ns
        key, from_ns, to_ns = incident.silence
        dead_gpu_ns = self.division.excess_of(key)
        silent_ns = (to_ns - from_ns) * dead_gpu_ns // (self.accounts.tally.gpu_ns[key] or 1)
        return min(incident.began_ns, to_ns - silent_ns) if silent_ns else incident.began_ns

    def _losses(self, incident: LedgerIncident, sums: Mapping[int, int]) -> dict[str, int]:
        """The incident's losses by category, from these sums."""
        to_ns = incident.recovered_ns or self.accounts.now_ns
        return _keyed(self.division.losses(sums, self._began_ns(incident), to_ns))

    def _slow_stretches(self, recorded: list[IncidentReport]) -> list[IncidentReport]:
        """Runs of buckets with slow steps, as far as recorded incidents do not explain them."""
        course = self.course
        explained = sum(incident.losses.get("slowdown", 0) for incident in recorded)
        unexplained = self.part(Category.SLOWDOWN) - explained
        stretches: list[tuple[int, int, int]] = []
        for index, bucket in enumerate(course.buckets):
            slow = bucket.get("slowdown", 0)
            stepping = slow + bucket.get("useful", 0) + bucket.get("recomputed", 0)
            if slow and slow >= SLOW_SHARE_MIN * stepping:
                goes_on = stretches and stretches[-1][1] == index
                first, _, lost = stretches.pop() if goes_on else (index, index, 0)
                stretches.append((first, index + 1, lost + slow))
        found: list[tuple[tuple[int, int], int, bool]] = []
        for first, end, lost in sorted(stretches, key=lambda stretch: -stretch[2]):
            charged = min(lost, unexplained)
            if charged >= SLOW_COST_MIN * self.accounts.paid_gpu_ns:
                unexplained -= charged
                began_ns = course.start_ns + first * course.bucket_ns
                ended_ns = min(course.start_ns + end * course.bucket_ns, self.accounts.now_ns)
                found.append(((began_ns, ended_ns), charged, self._stood_still(first, end)))
        return [
            slow_stretch(
                f"slow-{number}", span_ns, lost, self._slowest(*span_ns), self.basis, stood_still=still
            )
            for number, (span_ns, lost, still) in enumerate(sorted(found), start=1)
        ]

    def _stood_still(self, first: int, end: int) -> bool:
        """Whether no step ended in most of these buckets, for far longer than steps are apart otherwise."""
        timed = self.course.timed
        silent = max((len(list(same)) for none, same in groupby(timed[first:end], not_) if none), default=0)
        return silent >= STANDSTILL_TIMES * max(1.0, len(timed) / sum(timed)) and 2 * silent >= end - first

    def _slowest(self, from_ns: int, to_ns: int) -> str:
        """The member that the others waited for in this time, if the record names exactly one."""
        names = {
            held.member
            for held in self.fold.held_up
            if min(held.to_ns, to_ns) - max(held.from_ns, from_ns) > (held.to_ns - held.from_ns) // 2
        }
        return names.pop() if len(names) == 1 else ""


def _uncertainty(stretches: tuple[ReferenceStretch, ...]) -> float | None:
    """Mean uncertainty of the levels that are references, weighted by time; None if all are declared."""
    unsure = [(one.to_ns - one.from_ns, one.uncertainty, one) for one in stretches if one.uncertainty]
    own = [found for found in unsure if found[2].level_gpu_ns == found[2].work_gpu_ns] or unsure
    weight = sum(lasted_ns for lasted_ns, _, _ in own)
    if not weight:
        return max((uncertainty for _, uncertainty, _ in own), default=None)
    return sum(lasted_ns * uncertainty for lasted_ns, uncertainty, _ in own) / weight


def _basis(reference: StepReference) -> str:
    """The basis of the figures in words; empty if nothing is estimated."""
    if reference.uncertainty is None:
        return ""
    word = "estimated from members" if reference.origin == "members" else "estimated"
    return f"{word} ± {100 * reference.uncertainty:.1f} %"


def _chip(declared: Declared) -> Chip | None:
    try:
        return None if declared.chip is None else chip_named(declared.chip)
    except InputError:
        return None  # an unknown chip has no reference


def _costs(saves: Saves) -> CheckpointCosts | None:
    if not saves.measured:
        return None
    size_bytes, written_bytes = saves.size_bytes.value, saves.written_bytes.value
    return CheckpointCosts(
        saves=saves.measured,
        size_bytes=None if size_bytes is None else round(size_bytes),
        written_bytes=None if written_bytes is None else round(written_bytes),
        stall_s=_seconds(saves.stall_ns.value),
        write_s=_seconds(saves.write_ns.value),
        exposed_s_max=_seconds(saves.exposed_ns_max),
    )


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _uncompared(declared: Declared, wrong: str) -> str:
    """Why an MFU that is possible has no reference. wrong: why its HFU cannot be."""
    if wrong:
        return ", with an impossible HFU"
    if not declared.params:
        return "; declare params to compare it with published runs"
    return f"; {references.unpublished(declared.precision)}"


def _mfu_unknown(declared: Declared) -> str:
    """Why the share of the peak is not known."""
    try:
        if declared.chip is not None:
            peak_flops_per_s(chip_named(declared.chip), declared.precision)
    except InputError as unfit:
        said = str(unfit).removesuffix(".")
        return said[0].lower() + said[1:]
    if declared.chip is None or declared.model_flops_per_step is None:
        return "declare the model's FLOPs per step and the chip"
    return "no step was timed"


def _peak_flops_per_s(declared: Declared) -> float | None:
    chip = _chip(declared)
    try:
        return None if chip is None else peak_flops_per_s(chip, declared.precision)
    except InputError:
        return None


def _in_run(bucket: dict[str, int]) -> int:
    return sum(bucket.values()) - sum(bucket.get(key, 0) for key in _OUTSIDE_KEYS)


def _keyed(parts: dict[Category, int]) -> dict[str, int]:
    """Non-zero parts by name, in the order of the categories."""
    return {category.key: part for category, part in sorted(parts.items()) if part}
