"""The case for `holdfast plan run`: a published cluster, the user's own cluster, or a run in the record.

All three become a study that the twin can simulate, a policy, and the work that is left. Missing values are
assumed, each with its source.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import ceil, sqrt
from pathlib import Path

import msgspec

from holdfast import wording
from holdfast.economics.cadence.cadence import (
    FAILURES_PER_1000_NODE_DAYS,
    check_interval,
    learned_mtbf_s,
    mtbf_of_nodes_s,
    tells_rate,
)
from holdfast.economics.cadence.inputs import (
    BYTECHECKPOINT,
    INTERVAL_S,
    KOKOLIS_HOURLY,
    SAVE_S,
    STALL_S,
    WAITED_FOR,
)
from holdfast.economics.pricing.prices import Priced, Prices
from holdfast.ledger.failures import RecordedFailures, failures, stall_s, write_s
from holdfast.ledger.flops import Chip, chip_named
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.ledger.runs import fold_run
from holdfast.record.clock import SystemClock
from holdfast.record.errors import InputError
from holdfast.record.files import contents
from holdfast.record.runs import find_run
from holdfast.record.store import Store
from holdfast.run.mesh import MeshShape
from holdfast.twin import outlook
from holdfast.twin.cluster import Layout
from holdfast.twin.failures import Hazards
from holdfast.twin.policies import Policy, policy
from holdfast.twin.presets import hazards_from, preset, resized
from holdfast.twin.study import Checkpointing, Job, Study, best_interval_s, mtbf_s
from holdfast.wording.units import DAY_S

RATE_SPREAD = 0.45
"""How much published rates differ: 2.3, 2.34, 3.79, 4.20 and 6.50 per 1000 node-days, sd over mean."""

STALE_NS = 3_600 * 10**9
"""A run whose record ends longer ago than this may have stopped."""

HORIZON = 4
"""A simulated run is given up after this many times its work."""

GPUS_MAX = 10**7
LANES_EACH = 8
LANES_MAX = 1_024
STEP_S = 10.0
CHIP: Chip = "h100"
RESTORE_S = 60.0
_FLAGS = {"mtbf_s": "--mtbf"}
"""Flags whose names differ from the field names."""
_RATE_SOURCE = "Llama 3, 419 unexpected interruptions in 54 days on 16,384 H100 (arXiv:2407.21783)"


class RunFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that describe the run; None if not given."""

    preset: str | None
    run: str | None
    gpus: int | None
    member_gpus: int | None
    shard: str | None
    days: float | None
    steps: int | None
    step_s: float | None
    mtbf_s: float | None
    rates: Path | None
    policy: str | None
    spares: int | None
    interval_s: float | None
    stall_s: float | None
    chip: str | None
    start_ns: int | None


class Assumed(msgspec.Struct, frozen=True, kw_only=True):
    """A value the user did not give, and the source of the assumption."""

    what: str
    value: str
    source: str


class _Assumptions(list[Assumed]):
    def add(self, what: str, value: str, source: str) -> None:
        self.append(Assumed(what=what, value=value, source=source))


class ForecastCase(msgspec.Struct, frozen=True, kw_only=True):
    """A run to forecast. work_s: the training time that is left if nothing fails.

    rate_spread: how uncertain the failure rate is, as in `Prospect`. start_ns: None if no start was given.
    mesh: how the members of a replica share the model, if given.
    """

    title: str
    study: Study
    policy: Policy
    work_s: float
    rate_spread: float
    start_ns: int | None
    assumed: tuple[Assumed, ...]
    mesh: MeshShape = MeshShape()


def case(
    asked: RunFlags, prices: Prices, record: Callable[[], AbstractContextManager[Store]]
) -> ForecastCase:
    """The case that the flags describe. record: opens the store if --run is given."""
    given = [flag for flag in ("preset", "run", "gpus") if getattr(asked, flag) is not None]
    if asked.run is not None and given == ["run"]:
        with record() as store:
            return _from_record(asked, prices, store)
    if asked.preset is not None and asked.run is None:
        return _from_preset(asked, prices)
    if given == ["gpus"]:
        return _own(asked, prices)
    raise InputError(
        "Give exactly one thing to forecast: a published cluster, a run, or a number of GPUs.",
        hint="Give --preset NAME (with or without --gpus), --run RUN, or --gpus N --days D.",
    )


def _from_preset(asked: RunFlags, prices: Prices) -> ForecastCase:
    _refuse(asked, "--preset", "member_gpus", "shard", "chip", "steps", "step_s")
    of = preset(asked.preset or "")
    if asked.gpus is not None:
        of = resized(of, asked.gpus)
    assumed = _Assumptions()
    assumed.add("the cluster", of.title, of.source)
    hazards, spread = of.hazards, 0.0
    if asked.mtbf_s is not None or asked.rates is not None:
        hazards, spread = _hazards(asked, of.layout, assumed)
    practice = of.practice
    if asked.policy is None:
        assumed.add("recovery", practice.title, practice.source)
    days = asked.days if asked.days is not None else of.duration_days
    started = _Started(
        asked=asked,
        title=of.title if asked.gpus is None else f"{of.name} on {asked.gpus:,} {of.job.chip.upper()}",
        job=of.job,
        layout=of.layout,
        hazards=hazards,
        practice=practice,
        price=prices.planned(of.job.chip),
        work_s=days * DAY_S,
        rate_spread=spread,
    )
    return _finished(started, assumed)


def _own(asked: RunFlags, prices: Prices) -> ForecastCase:
    _refuse(asked, "--gpus", "steps")
    if asked.days is None:
        raise InputError(
            "The amount of work is missing.", hint="Give --days: the training time if nothing ever failed."
        )
    assumed = _Assumptions()
    gpus, chip = asked.gpus or 0, chip_named(asked.chip or CHIP)
    if gpus > GPUS_MAX:
        raise InputError(
            f"At most {GPUS_MAX:,} GPUs can be planned for; {gpus:,} were given.", hint="Give fewer --gpus."
        )
    layout = _layout(gpus)
    hazards, spread = _hazards(asked, layout, assumed)
    if asked.chip is None:
        assumed.add("chip", chip.upper(), "the default; set it with --chip")
    started = _Started(
        asked=asked,
        title=f"{gpus:,} {chip.upper()}",
        job=msgspec.structs.replace(
            _job(asked, gpus, chip, assumed), checkpointing=_checkpointing(asked, _Saves(), assumed)
        ),
        layout=layout,
        hazards=hazards,
        practice=None,
        price=prices.planned(chip),
        work_s=asked.days * DAY_S,
        rate_spread=spread,
    )
    return _finished(started, assumed)


def _layout(gpus: int) -> Layout:
    """The layout of the cluster in which the kinds of failure were counted, at this size."""
    return msgspec.structs.replace(preset("llama3-405b").layout, gpus=gpus)


def _hazards(asked: RunFlags, layout: Layout, assumed: _Assumptions) -> tuple[Hazards, float]:
    """The user's failures, and the uncertainty of their rate. Without --rates their mixture is Llama 3's."""
    if asked.rates is not None:
        if asked.mtbf_s is not None:
            raise InputError("--rates and --mtbf both set the failure rate.", hint="Leave one of them out.")
        return hazards_from(contents(asked.rates, what="rates", hint="Check the name.")), 0.0
    mixture = preset("llama3-405b").hazards.unplanned()
    assumed.add("kinds of failure", "as in Llama 3", _RATE_SOURCE)
    if asked.mtbf_s is not None:
        per_1000_node_days = 1000 * DAY_S / asked.mtbf_s / layout.nodes
        return mixture.scaled(per_1000_node_days / mixture.rate_per_1000_node_days), 0.0
    value = f"{FAILURES_PER_1000_NODE_DAYS:.2f} per 1000 node-days"
    assumed.add("failure rate", value, _RATE_SOURCE)
    return mixture, RATE_SPREAD


def _mesh(asked: RunFlags) -> MeshShape:
    if asked.shard is None:
        return MeshShape()
    _refuse(asked, "--shard", "member_gpus")
    return MeshShape.parse(asked.shard)


def _job(asked: RunFlags, gpus: int, chip: Chip, assumed: _Assumptions) -> Job:
    per_node = min(gpus, _layout(gpus).gpus_per_node)
    mesh = _mesh(asked)
    if mesh.sizes:
        mesh.check_fits(slots=per_node, nodes_min=gpus // per_node)
    member_gpus = mesh.ranks if mesh.sizes else asked.member_gpus or per_node
    if gpus % member_gpus:
        near = max(1, round(gpus / member_gpus)) * member_gpus
        raise InputError(
            f"{gpus:,} GPUs are not a whole number of replicas of {member_gpus}.",
            hint=f"The nearest number of GPUs is {near:,}; or say with --member-gpus how many a replica has.",
        )
    if asked.member_gpus is None and asked.shard is None:
        assumed.add("a model replica", f"{member_gpus} GPUs", "one node; set it with --member-gpus")
    members = gpus // member_gpus
    lanes = max(1 << (members - 1).bit_length(), min(LANES_MAX, 1 << (LANES_EACH * members - 1).bit_length()))
    like = preset("llama3-405b").job
    step_s = STEP_S if asked.step_s is None else asked.step_s
    if asked.step_s is None:
        assumed.add("a step", f"{wording.number(step_s)} s", "a guess; set it with --step-s")
    ratio = gpus * step_s * 1e9 / (like.gpus * like.step_ns)
    return msgspec.structs.replace(
        like,
        chip=chip,
        gpus=gpus,
        member_gpus=member_gpus,
        lanes=lanes,
        step_ns=round(step_s * 1e9),
        tokens_per_step=round(like.tokens_per_step * ratio),
        flops_per_step=like.flops_per_step * ratio,
    )


class _Saves(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded checkpoint times; None if not recorded. work_s: the work between two checkpoints."""

    work_s: float | None = None
    stall_s: float | None = None
    write_s: float | None = None
    restore_s: float | None = None


def _checkpointing(asked: RunFlags, saves: _Saves, assumed: _Assumptions) -> Checkpointing:
    """The given values, else the recorded ones, else the same assumptions as `plan cadence`."""

    def known(what: str, values: tuple[float | None, ...], usual: tuple[float, str]) -> float:
        found_s = next((value for value in values if value is not None), None)
        if found_s is not None:
            return found_s
        usual_s, source = usual
        value = f"every {usual_s / 60:.0f} min" if what == "checkpoints" else f"{wording.number(usual_s)} s"
        assumed.add(what, value, source)
        return usual_s

    is_known = asked.stall_s is not None or saves.stall_s is not None
    stalls_s = known("checkpoint stall", (asked.stall_s, saves.stall_s), (STALL_S, BYTECHECKPOINT))
    written = (0.0, WAITED_FOR) if is_known else (SAVE_S - STALL_S, BYTECHECKPOINT)
    interval_s = None if saves.work_s is None else saves.work_s + stalls_s
    return Checkpointing(
        interval_s=known("checkpoints", (asked.interval_s, interval_s), (INTERVAL_S, KOKOLIS_HOURLY)),
        stall_s=stalls_s,
        write_s=known("writing one", (saves.write_s,), written),
        restore_s=known("loading one", (saves.restore_s,), (RESTORE_S, "a guess")),
    )


class _Started(msgspec.Struct, frozen=True, kw_only=True):
    """A case before the steps common to all. practice: how it recovers unless --policy says otherwise."""

    asked: RunFlags
    title: str
    job: Job
    layout: Layout
    hazards: Hazards
    practice: Policy | None
    price: Priced
    work_s: float
    rate_spread: float
    start_ns: int | None = None


def _finished(of: _Started, assumed: _Assumptions) -> ForecastCase:
    asked = of.asked
    if of.price.assumed:
        value = wording.usd(of.price.value)
        assumed.add("a GPU-hour", value, of.price.source)
    kept = {"interval_s": asked.interval_s, "stall_s": asked.stall_s}
    checkpointing = msgspec.structs.replace(
        of.job.checkpointing, **{name: value for name, value in kept.items() if value is not None}
    )
    study = Study(
        name=of.title,
        job=msgspec.structs.replace(
            of.job,
            checkpointing=checkpointing,
            steps_total=max(1, ceil(of.work_s / (of.job.step_ns / 1e9))),
        ),
        layout=of.layout,
        hazards=of.hazards,
        duration_ns=ceil(HORIZON * of.work_s * 1e9),
        usd_per_gpu_hour=of.price.value,
    )
    study = _saving_in_time(study, assumed)
    check_interval(study.job.checkpointing.interval_s, study.job.checkpointing.stall_s)
    return ForecastCase(
        title=of.title,
        study=study,
        policy=_policy(of, study, assumed),
        work_s=of.work_s,
        rate_spread=of.rate_spread,
        start_ns=asked.start_ns if asked.start_ns is not None else of.start_ns,
        assumed=tuple(assumed),
        mesh=_mesh(asked),
    )


def _saving_in_time(study: Study, assumed: _Assumptions) -> Study:
    """If the run fails more often than it saves, replace an assumed interval by the best one."""
    best_s = best_interval_s(study)
    checkpointing = study.job.checkpointing
    at = next((number for number, one in enumerate(assumed) if one.what == "checkpoints"), None)
    if best_s is None or at is None or checkpointing.stall_s < checkpointing.interval_s < mtbf_s(study):
        return study
    assumed[at] = Assumed(
        what="checkpoints", value=f"every {best_s:.0f} s", source="the best for such failures"
    )
    saving = msgspec.structs.replace(checkpointing, interval_s=best_s)
    return msgspec.structs.replace(study, job=msgspec.structs.replace(study.job, checkpointing=saving))


def _policy(of: _Started, study: Study, assumed: _Assumptions) -> Policy:
    asked = of.asked
    if asked.spares is not None:
        spares = asked.spares
    elif of.practice is not None and of.practice.spare_nodes:
        spares = of.practice.spare_nodes
    elif spares := outlook.spares_needed(study):
        value = f"{spares}, enough for {100 * outlook.COMPLETE_SHARE:.0f} % of the time"
        assumed.add("spare nodes", value, "repair times of InfiniteHBD's trace")
    if asked.policy is None and of.practice is not None:
        return msgspec.structs.replace(of.practice, spare_nodes=spares)
    usual = "restart" if asked.shard is None else "holdfast"
    named = policy(asked.policy or usual, study.job.gpus, spares, is_sharded=_mesh(asked).ranks > 1)
    assumed.add("recovery", named.title, named.source)
    return msgspec.structs.replace(named, spare_nodes=spares)


def _from_record(asked: RunFlags, prices: Prices, store: Store) -> ForecastCase:
    """A recorded run: its own failure rate and recovery times, and the steps that are left."""
    _refuse(asked, "--run", "days", "gpus", "chip", "mtbf_s", "rates")
    name = find_run(store, asked.run)
    fold = fold_run(store, name)
    told, position = report(name, fold), fold.settled().progress.position
    writes_s = write_s(store, name)
    if not told.gpus:
        raise InputError(f"No GPUs are recorded for {name}.", hint="Import it with --gpus.")
    if told.reference is None or position is None:
        raise InputError(f"{name} has no steps yet, so its speed is unknown.", hint="Wait for some steps.")
    hint = "Give its last step with --steps N."
    if asked.steps is None:
        raise InputError(f"{name} is at step {position:,}, and its last step is not known.", hint=hint)
    if asked.steps <= position:
        raise InputError(
            f"{name} is already at step {position:,}; --steps {asked.steps:,} is not ahead of it.", hint=hint
        )
    assumed = _Assumptions()
    step_s = asked.step_s or told.reference.step_ns / 1e9
    if asked.step_s is None and told.basis:
        source = f"{told.basis} from {wording.many(told.counts.steps, 'step')}; set it with --step-s"
        assumed.add("a step", f"{wording.number(step_s, 3)} s", source)
    layout = _layout(told.gpus)
    failed = failures(told)
    job = _job(msgspec.structs.replace(asked, step_s=step_s), told.gpus, _known_chip(told.chip), assumed)
    saved = told.saved.between_steps_mean
    saves = _Saves(
        work_s=saved * step_s if saved else None,
        stall_s=stall_s(told),
        write_s=writes_s,
        restore_s=0.0 if failed.repair_s else None,  # the recorded recoveries include it
    )
    started = _Started(
        asked=asked,
        title=f"{name}, {told.gpus:,} GPUs",
        job=msgspec.structs.replace(job, checkpointing=_checkpointing(asked, saves, assumed)),
        layout=layout,
        hazards=_recorded_hazards(failed, layout, assumed),
        practice=_recorded_practice(told, failed, assumed),
        price=prices.planned(told.chip, told.usd_per_gpu_hour),
        work_s=(asked.steps - position) * step_s,
        rate_spread=1 / sqrt(1 + failed.count),
        start_ns=_resumed_ns(told.last_ns, assumed),
    )
    return _finished(started, assumed)


def _resumed_ns(last_ns: int, assumed: _Assumptions) -> int:
    """When the remaining work begins: not before now, even if the record ended long ago."""
    now_ns = SystemClock().now_ns()
    if now_ns - last_ns > STALE_NS:
        hours = (now_ns - last_ns) / 3.6e12
        assumed.add("it goes on", "now", f"its record ended {hours:,.0f} h ago")
    return max(last_ns, now_ns)


def _recorded_hazards(failed: RecordedFailures, layout: Layout, assumed: _Assumptions) -> Hazards:
    """The run's own failure rate while it was up; if it rarely failed, weighed with published rates.

    A recorded recovery includes its wait for nodes, so the simulation does not wait for them again.
    """
    mtbf_s = learned_mtbf_s(mtbf_of_nodes_s(layout.nodes), failed.count, failed.up_s)
    source = f"{failed.count} in {failed.up_s / 3_600:,.1f} h so far"
    if not tells_rate(failed.count, failed.up_s):
        source += f"; with so few, also {_RATE_SOURCE}"
    value = f"one in {mtbf_s / 3_600:,.2f} h that the run is up"
    assumed.add("failure rate", value, source)
    like = preset("llama3-405b").hazards.unplanned()
    lasting = tuple(msgspec.structs.replace(row, transient_share=1.0) for row in like.classes)
    per_1000_node_days = 1000 * DAY_S / mtbf_s / layout.nodes
    return Hazards(classes=lasting).scaled(per_1000_node_days / like.rate_per_1000_node_days)


def _known_chip(chip: str | None) -> Chip:
    try:
        return chip_named(chip or CHIP)
    except InputError:
        return CHIP


def _recorded_practice(told: Report, failed: RecordedFailures, assumed: _Assumptions) -> Policy | None:
    """Recovery in the mean time that the run took from a failure to its next commit; None without failures.

    That time includes failed launches, so no further failure can strike during it. A run that has never gone
    back to a checkpoint is assumed to continue from memory in the future, too.
    """
    mean_s = failed.repair_s_mean
    if mean_s is None:
        return None
    source = f"mean of its {len(failed.repair_s)} recoveries"
    assumed.add("recovery", f"{mean_s:,.0f} s", source)
    returns = any(one.steps_rolled_back for one in told.incidents)
    if not returns:
        why = "so far it never went back to a checkpoint, so their interval does not matter here"
        assumed.add("state", "kept in memory", why)
    return Policy(
        name="recorded",
        title="as the run did so far",
        recovery="restart",
        hang_s=0.0,
        requeue_s=mean_s,
        snapshot_steps=None if returns else 1,
        source=source,
    )


def _refuse(asked: RunFlags, beside: str, *flags: str) -> None:
    given = [flag for flag in flags if getattr(asked, flag) is not None]
    if given:
        names = ", ".join(_FLAGS.get(flag, "--" + flag.replace("_", "-")) for flag in given)
        raise InputError(f"{names} cannot be given beside {beside}.", hint="Leave one of them out.")
