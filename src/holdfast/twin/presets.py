"""Published clusters and jobs, to check the simulation against and to start a study from.

presets.toml has the counted failures of each, its layout and job, how its owners recovered (their practice),
and the figures they reported. The time of a step is the model's FLOPs, counted with full attention, at the
published TFLOP/s per GPU.
"""

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from holdfast.ledger.flops import Chip, model_flops_per_token
from holdfast.ledger.references import published as published_references
from holdfast.record.errors import InputError, nearest
from holdfast.record.untrusted import UNDECODABLE
from holdfast.twin.cluster import Layout
from holdfast.twin.counts import Count, classes
from holdfast.twin.failures import Hazards, LemonShare
from holdfast.twin.lanes import lanes_for
from holdfast.twin.policies import Policy
from holdfast.twin.study import Checkpointing, Job

_SEQUENCE_TOKENS = 8_192

Bound = Literal["about", "at least", "at most"]


class ReportedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A number that the owners reported. effective_time and the like are shares, 0 to 1."""

    name: str
    value: float
    source: str
    bound: Bound = "about"


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A published cluster and its job.

    layout    the nodes of the job; a policy's spares are extra
    practice  how its owners noticed failures and recovered
    """

    name: str
    title: str
    layout: Layout
    hazards: Hazards
    job: Job
    practice: Policy
    duration_days: float
    published: tuple[ReportedFigure, ...]
    source: str


def names() -> tuple[str, ...]:
    return tuple(_all())


@cache
def preset(name: str) -> Preset:
    """A published cluster by its name."""
    if published := _all().get(name):
        return published.preset(name)
    hint = nearest(name, _all(), f"There are {', '.join(_all())}.", likeness=0.3)
    raise InputError(f"There is no preset {name!r}.", hint=hint)


def resized(of: Preset, gpus: int) -> Preset:
    """The same cluster and job with another number of GPUs; the work of a step and the spares scale."""
    if gpus < of.job.member_gpus or gpus % of.job.member_gpus:
        near = max(1, round(gpus / of.job.member_gpus)) * of.job.member_gpus
        raise InputError(
            f"A replica of {of.name} has {of.job.member_gpus} GPUs; {gpus:,} is not a multiple of that.",
            hint=f"The nearest number of GPUs is {near:,}.",
        )
    ratio = gpus / of.job.gpus
    tokens = round(of.job.tokens_per_step * ratio)
    job = msgspec.structs.replace(
        of.job,
        gpus=gpus,
        lanes=lanes_for(tokens // _SEQUENCE_TOKENS, gpus // of.job.member_gpus),
        tokens_per_step=tokens,
        flops_per_step=of.job.flops_per_step * ratio,
    )
    spares = max(1, round(of.practice.spare_nodes * ratio))
    return msgspec.structs.replace(
        of,
        job=job,
        layout=msgspec.structs.replace(of.layout, gpus=gpus),
        practice=msgspec.structs.replace(of.practice, spare_nodes=spares),
        published=(),
    )


def hazards_from(data: bytes) -> Hazards:
    """The user's own failure classes, as `holdfast plan fit --json` writes them under `preset`."""
    try:
        return msgspec.json.decode(data, type=_Fitted).preset
    except UNDECODABLE as error:
        raise InputError(
            f"These are not failure rates: {error}.",
            hint="Make the file with `holdfast plan fit --json > rates.json`.",
        ) from error


class _Fitted(msgspec.Struct, frozen=True):
    preset: Hazards


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """The model, the hardware and the batch of a step."""

    model: str
    chip: Chip
    gpus: int
    member_gpus: int
    sequences_per_step: int
    tflops_per_gpu: float


class _Practice(msgspec.Struct, frozen=True, kw_only=True):
    detect_s: float
    hang_s: float
    restart_s: float
    spare_nodes: int
    source: str


class _Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of presets.toml. node_days: the node-days in which failures were counted; counted: by whom."""

    title: str
    duration_days: float
    source: str
    layout: Layout
    work: _Work
    checkpointing: Checkpointing
    node_days: float
    counted: str
    counts: tuple[Count, ...]
    practice: _Practice
    lemons: LemonShare | None = None
    published: tuple[ReportedFigure, ...] = ()

    def preset(self, name: str) -> Preset:
        return Preset(
            name=name,
            title=self.title,
            layout=self.layout,
            hazards=Hazards(classes=classes(self.counts, self.node_days, self.counted), lemons=self.lemons),
            job=_job(self.work, self.checkpointing),
            practice=Policy(
                name="published",
                title="as its owners did",
                recovery="restart",
                **msgspec.structs.asdict(self.practice),
            ),
            duration_days=self.duration_days,
            published=self.published,
            source=self.source,
        )


def _job(work: _Work, checkpointing: Checkpointing) -> Job:
    model = published_references().models[work.model].shape.transformer()
    tokens = work.sequences_per_step * _SEQUENCE_TOKENS
    flops = tokens * model_flops_per_token(model, _SEQUENCE_TOKENS, "full")
    return Job(
        model=work.model,
        chip=work.chip,
        gpus=work.gpus,
        member_gpus=work.member_gpus,
        lanes=lanes_for(work.sequences_per_step, work.gpus // work.member_gpus),
        step_ns=round(1e9 * flops / (work.gpus * work.tflops_per_gpu * 1e12)),
        tokens_per_step=tokens,
        flops_per_step=flops,
        checkpointing=checkpointing,
    )


@cache
def _all() -> dict[str, _Published]:
    data = (files(__package__) / "presets.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, _Published])
