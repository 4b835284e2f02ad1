"""A run's ledger as data: the partition, the ratios, the incidents, the course over time.

A report is read from a settled fold. The field names are the keys of `holdfast report --json`; times are
nanoseconds, GPU-time is GPU-nanoseconds, ratios are between 0 and 1, and None means that the record does not
say. Rendering happens elsewhere.
"""

from typing import Self

import msgspec

from holdfast import wording
from holdfast.ledger.counts import Gap, MovedBytes, MovedFor
from holdfast.ledger.dangers import Danger
from holdfast.ledger.division import Origin
from holdfast.ledger.references import Reach
from holdfast.ledger.split import Split
from holdfast.record.events import Outcome, RunEnded, Severity


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """total = scheduling x runtime: useful over what is known of the time paid for. Times program: model
    FLOPs over the peak of that time. If nothing is known of what the run did, scheduling is of all paid time.

    bounds: total if all that is not known was lost, or useful; None if all is known. basis: what total and
    runtime are based on, if that is an estimate: "estimated ± 0.4 %". total_min: total if steps that grew
    longer for good, for no recorded reason, were a slowdown. checkpoint_span: the definition of Google's
    resiliency tool: (last step saved - first step loaded) x reference step time / elapsed time. It ignores
    GPU counts and does not show what was lost, or where.
    """

    total: float | None
    scheduling: float | None
    runtime: float | None
    program: float | None
    checkpoint_span: float | None
    basis: str = ""
    total_min: float | None = None
    bounds: tuple[float, float] | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. survived_errors: how often its script failed on a member and the run went on."""

    outcome: Outcome
    reason: str
    survived_errors: int
    ended_ns: int

    @classmethod
    def of(cls, event: RunEnded) -> Self:
        return cls(
            outcome=event.outcome,
            reason=event.reason,
            survived_errors=event.survived_errors,
            ended_ns=event.occurred_ns,
        )


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """starts: launches with nothing recorded between them count once. restarts: all launches but the first.
    steps_short: steps with skipped lanes, `lanes_skipped` lanes in all. takeovers: how often a successor
    replaced a lost coordinator. saves_failed: checkpoints that could not be saved.
    """

    starts: int
    launches: int
    restarts: int
    loads: int
    saves: int
    steps: int
    members_lost: int
    incidents: int
    unknown_events: int
    steps_short: int = 0
    lanes_skipped: int = 0
    takeovers: int = 0
    saves_failed: int = 0


class ReferenceStretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the run whose steps have one reference: a declared stage, or an estimated plateau.

    level_gpu_ns  what its steps took, if the reference is an estimate
    was_gpu_ns    the reference before, if steps became longer for no recorded reason
    doubt_gpu_ns  the slowdown there may be in that case; it is counted as useful
    mixed_share   share of longer steps throughout that are assumed to belong to the work
    """

    from_ns: int
    to_ns: int
    step_ns: int
    work_gpu_ns: int
    origin: Origin
    uncertainty: float | None
    tokens_per_step: int | None
    level_gpu_ns: int | None = None
    was_gpu_ns: int | None = None
    doubt_gpu_ns: int = 0
    mixed_share: float = 0.0


class StepReference(msgspec.Struct, frozen=True, kw_only=True):
    """A normal step at the end of the record: its work, and its time on `gpus` GPUs.

    origin       declared; or else the quicker of estimated, from the run's own steps, and members, what its
                 steps would have taken if the slowest member had been as quick as the others
    basis        the same in words, with its uncertainty: "estimated ± 0.4 %"
    uncertainty  as a share; None if the reference was declared
    stretches    every reference that holds somewhere in the run, in order of time
    """

    work_gpu_ns: int
    step_ns: int
    gpus: int
    origin: Origin
    basis: str = ""
    uncertainty: float | None = None
    stretches: tuple[ReferenceStretch, ...] = ()


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """An estimated reference compared with another run or a published figure. ratio: this run's over it."""

    source: str
    ratio: float
    sentence: str


class ReportedPace(msgspec.Struct, frozen=True, kw_only=True):
    """A run's steps compared with a healthy step.

    step_ns: a healthy step on the GPUs the run has now, or had. slowdown_share: of the time in steps.
    was_ns, since_ns: a healthy step before steps became longer for good, if nothing recorded says why, and
    when that was. The longer ones count as healthy, but may be slow.
    """

    step_ns: int
    origin: Origin
    slowdown_share: float
    was_ns: int | None = None
    since_ns: int | None = None


class Ettr(msgspec.Struct, frozen=True, kw_only=True):
    """Effective training time ratio: time in steps that were kept, at any speed, over what is known of the
    time in the run.
    """

    cumulative: float | None
    sliding: float | None
    sliding_min: float | None
    sliding_window_ns: int


class UsefulWork(msgspec.Struct, frozen=True, kw_only=True):
    """The yield of one paid GPU-hour, of those of which it is known what they were used for."""

    useful_gpu_hours_per_gpu_hour: float | None
    steps_per_gpu_hour: float | None
    tokens_per_gpu_hour: float | None


class UsefulParts(msgspec.Struct, frozen=True, kw_only=True):
    """The useful GPU-ns: the time the FLOPs need at the peak. rest: communication, bubbles, all else.

    There are none if the FLOPs need more than the useful time.
    """

    model_flops_gpu_ns: int
    recompute_flops_gpu_ns: int
    rest_gpu_ns: int


class MeasuredFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A measured number, its published reference, and a sentence with both.

    reach: for a bandwidth, whether it was measured within one NVLink domain or over the network. wrong: why
    it cannot be, and how to correct it; empty if it can. It has no reference then.
    """

    measured: float
    reference: float | None
    unit: str
    sentence: str
    reach: Reach | None = None
    wrong: str = ""


class IncidentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One incident and its cost. recovered_ns: the first commit after it; None if there was none.

    name: users ask for it as RUN/name. Incidents are numbered in the order in which they were noticed, so
    numbers stay as the record grows; slow stretches that the ledger found (slow-1, ...) by onset.
    basis: what its losses are based on, if that is an estimate.
    spent_ns: from when to when it cost GPU-time: work that was lost in it was done before it began, and work
    is done again after the recovery. None if it cost nothing.
    """

    name: str
    what: str
    subject: str
    severity: Severity
    began_ns: int
    noticed_ns: int
    recovered_ns: int | None
    restarts: int
    members_lost: int
    steps_rolled_back: int
    lost_gpu_ns: int
    losses: dict[str, int]
    evidence: tuple[str, ...]
    basis: str = ""
    spent_ns: tuple[int, int] | None = None


class CopyReach(msgspec.Struct, frozen=True, kw_only=True):
    """A further place that checkpoints are copied to. step: the last one there. reason: why the next copy
    failed; empty if it did not.
    """

    place: str
    step: int | None
    reason: str = ""


class CheckpointReach(msgspec.Struct, frozen=True, kw_only=True):
    """How far checkpoints reach. since_steps: steps that the run has and no checkpoint does.

    unsaved_steps_max: the most that it ever had after its first checkpoint. between_steps_mean: between
    consecutive checkpoints that saved new steps. stalls: how many of them say how long training waited.
    costs: None if none were recorded. proven_step, proven_ns: the last checkpoint that was verified by
    loading it and computing with it, and when; refuted_step, refuted_ns: the last that failed this. copies:
    in further places.
    """

    last_step: int | None
    since_steps: int
    unsaved_steps_max: int | None
    between_steps_mean: float | None
    stalls: int = 0
    costs: "CheckpointCosts | None" = None
    restore_s_mean: float | None = None
    proven_step: int | None = None
    proven_ns: int | None = None
    refuted_step: int | None = None
    refuted_ns: int | None = None
    copies: tuple[CopyReach, ...] = ()


class CheckpointCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean costs of saves, each over those that recorded it; None if none did. saves: how many recorded any.
    written_bytes: without data already stored. exposed_s_max: the most work that the loss of all members
    would have cost.
    """

    saves: int
    size_bytes: int | None
    written_bytes: int | None
    stall_s: float | None
    write_s: float | None
    exposed_s_max: float | None


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The partition over time: GPU-ns by category in buckets of `bucket_ns`, from `start_ns` on.

    For every category, the buckets sum to the partition, to the nanosecond. timed: how many times steps were
    timed in each bucket; a commit of many steps times them once.
    """

    start_ns: int
    bucket_ns: int
    buckets: tuple[dict[str, int], ...]
    timed: tuple[int, ...]


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The partition between two moments at which the accounts were cut, to the nanosecond.

    unknown           the unattributed part, by silence
    kept_gpu_ns       the part in steps that the run kept, at any speed
    incidents         the losses of each recorded incident here, by its name and category
    usd_per_gpu_hour  the recorded price, if any
    """

    from_ns: int
    to_ns: int
    partition: dict[str, int]
    unknown: dict[str, int]
    kept_gpu_ns: int
    incidents: dict[str, dict[str, int]]
    usd_per_gpu_hour: float | None


class Accrued(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-time since the last event of a run that has not ended. Nothing says yet how it was used."""

    from_ns: int
    to_ns: int
    gpus: int
    gpu_ns: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of one run. `partition` sums to `paid_gpu_ns`, to the nanosecond, and so does `split`.

    paid_usd: the price of the hours paid for, if prices were asked and one is known.
    usd_per_gpu_hour: the mean price of these hours then; before, the mean of the recorded prices.
    ended: its last end; None if it has not ended, or went on after that.
    basis: what the categories named in `estimated` are based on; empty if nothing is estimated.
    opinions: second opinions on an estimated reference, if any were asked for.
    gaps: between attempts, if nothing says that the GPUs were held, or a scheduler says they were not.
    window: the part of the run's time that this report covers; None: no bound on that side.
    known_ns: the time of the run's last event, whatever the window is.
    held_gpus: how many GPUs the run held at its last event, if it has not ended.
    is_cut_off: it was imported from a log that ends before the run does: nothing is known since, or held.
    steps_kept: how many steps the run has at its last event, whatever the window is.
    recorded_prices: (since when, USD per GPU-hour), whatever the window is.
    accrued: GPU-time held since the last event, if the run has not ended; not in `paid_gpu_ns`.
    dangers: what endangered the run; those that are not over come first.
    on_cpu: whether no member ever had a GPU, so that its GPU-hours are hours of such members.
    was_on_cpu: whether members of some attempts had none, whose hours count as GPU-hours all the same.
    segments: the partition over time, cut where prices change and windows begin.
    """

    run: str
    name: str
    team: str
    project: str
    cluster: str
    window: tuple[int | None, int | None]
    known_ns: int
    held_gpus: int
    is_cut_off: bool
    steps_kept: int
    recorded_prices: tuple[tuple[int, float], ...]
    accrued: Accrued | None
    segments: tuple[Segment, ...]
    ended: Ended | None
    first_ns: int
    last_ns: int
    elapsed_s: float
    gpus: int
    paid_gpu_ns: int
    paid_usd: float | None = None
    usd_per_gpu_hour: float | None
    chip: str | None
    on_cpu: bool
    was_on_cpu: bool
    tokens_per_step: int | None
    partition: dict[str, int]
    split: Split
    goodput: Goodput
    ettr: Ettr
    counts: Counted
    moved: dict[MovedFor, MovedBytes]
    useful_work: UsefulWork
    useful_parts: UsefulParts | None
    reference: StepReference | None
    mfu: MeasuredFigure | None
    mfu_unknown: str = ""
    hfu_percent: float | None
    bandwidth: MeasuredFigure | None
    incidents: tuple[IncidentReport, ...]
    saved: CheckpointReach
    dangers: tuple[Danger, ...] = ()
    course: Course
    basis: str
    estimated: tuple[str, ...]
    gaps: tuple[Gap, ...]
    opinions: tuple[Opinion, ...] = ()
    remarks: tuple[str, ...]

    @property
    def is_untimed(self) -> bool:
        """Whether the log that it was imported from has no times: only steps and their order are known."""
        return self.is_cut_off and not self.known_ns

    @property
    def label(self) -> str:
        return wording.run_label(self.run, self.name)

    @property
    def counted(self) -> str:
        """What is paid for by the hour."""
        return wording.CPU_MEMBER if self.on_cpu else wording.GPU

    @property
    def amounts(self) -> wording.Amounts:
        return wording.Amounts(self.paid_gpu_ns, self.counted)
