"""Clusters and jobs that others have published, to hold the simulation against, and to start one's own from.

Each has its failures by class, with rates from the published counts, a layout, a job, how its owners
recovered (their practice), and the figures they reported. What a paper does not say is assumed here, and the
`source` beside the number says so. A step takes the model's FLOPs, counted with full attention, at the
published TFLOP/s per GPU.
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import Literal

import msgspec

from holdfast.ledger.flops import Chip, model_flops_per_token
from holdfast.ledger.references import published as published_references
from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.twin.cluster import Layout
from holdfast.twin.counts import Count, classes
from holdfast.twin.failures import Hazards, LemonShare, Part
from holdfast.twin.job import Checkpointing, Job
from holdfast.twin.lanes import lanes_for
from holdfast.twin.policies import Policy

_SEQUENCE_TOKENS = 8_192
_LLAMA3 = "The Llama 3 Herd of Models (arXiv:2407.21783)"
_FT_HSDP = "Training LLMs with Fault Tolerant HSDP on 100,000 GPUs (arXiv:2602.00277)"
_RSC = "Revisiting Reliability in Large-Scale Machine Learning Research Clusters (arXiv:2410.21680v2)"
_BYTEROBUST = "Robust LLM Training Infrastructure at ByteDance (arXiv:2509.16293)"
_BYTECHECKPOINT = "ByteCheckpoint (arXiv:2407.20143), 405B on 8,960 GPUs"
_INFINITEHBD = "InfiniteHBD (arXiv:2502.03885), fault trace"
_ACME = "Characterization of Large Language Model Development in the Datacenter (arXiv:2403.07648)"

Bound = Literal["about", "at least", "at most"]


class ReportedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A number that its owners reported. effective_time and the like are shares, 0 to 1."""

    name: str
    value: float
    source: str
    bound: Bound = "about"


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A published cluster and its job.

    layout    the nodes of the job; the spares of a policy are further ones
    practice  how its owners noticed a failure and went on
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
    return tuple(_PRESETS)


@cache
def preset(name: str) -> Preset:
    """A published cluster by its name."""
    if make := _PRESETS.get(name):
        return make()
    near = get_close_matches(name, _PRESETS, n=1, cutoff=0.3)
    raise InputError(
        f"There is no preset {name!r}.",
        hint=f"Did you mean {near[0]}?" if near else f"There are {', '.join(_PRESETS)}.",
    )


def resized(of: Preset, gpus: int) -> Preset:
    """The same kind of cluster and job on other GPUs: the work of a step and the spares grow with them."""
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
    """One's own failure classes: what `holdfast plan fit --json` wrote under `preset`."""
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
    """What a job's step is made of."""

    model: str
    chip: Chip
    gpus: int
    member_gpus: int
    sequences_per_step: int
    tflops_per_gpu: float
    checkpointing: Checkpointing


def _job(work: _Work) -> Job:
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
        checkpointing=work.checkpointing,
    )


def _practice(*, detect_s: float, hang_s: float, restart_s: float, spare_nodes: int, source: str) -> Policy:
    return Policy(
        name="published",
        title="as its owners did",
        recovery="restart",
        detect_s=detect_s,
        hang_s=hang_s,
        restart_s=restart_s,
        spare_nodes=spare_nodes,
        source=source,
    )


_LLAMA3_ROWS = (
    Count("faulty-gpu", "gpu", 148),
    Count("gpu-hbm3", "memory", 72),
    Count("software-bug", "software", 54, transient=1.0),
    Count("switch-or-cable", "fabric", 35, reach="leaf"),
    Count("host-maintenance", "host", 32, transient=0.0),
    Count("gpu-sram", "memory", 19),
    Count("gpu-system-processor", "gpu", 17),
    Count("nic", "fabric", 7, transient=0.0),
    Count("nccl-watchdog", "unknown", 7, transient=1.0, kind="hang"),
    Count("silent-data-corruption", "gpu", 6, transient=0.0),
    Count("gpu-thermal", "cooling", 6),
    Count("ssd", "storage", 3, transient=0.0),
    Count("power-supply", "power", 3, transient=0.0),
    Count("server-chassis", "host", 2, transient=0.0),
    Count("io-expansion-board", "host", 2, transient=0.0),
    Count("dependency", "software", 2, transient=1.0),
    Count("cpu", "host", 2, transient=0.0),
    Count("system-memory", "host", 2, transient=0.0),
    Count("planned-maintenance", "planned", 47, transient=1.0, kind="planned", reach="cluster"),
)

_LLAMA3_LAYOUT = Layout(
    gpus=16_384,
    nodes_per_rack=2,
    racks_per_loop=16,
    nodes_per_leaf=2,
    leaves_per_pod=192,
    nodes_per_mount=256,
)
"""Section 3.3.1: two servers of eight GPUs to a rack and its switch, 192 racks to a pod of 3,072 GPUs.
Cooling loops and mounts are assumed."""

_LLAMA3_CHECKPOINTING = Checkpointing(interval_s=600, stall_s=0.59, write_s=51.06, restore_s=129.49)
"""The paper names no interval: ten minutes are assumed. The rest: ByteCheckpoint's table."""


def _llama3() -> Preset:
    work = _Work(
        model="llama3-405b",
        chip="h100",
        gpus=16_384,
        member_gpus=8 * 16,
        sequences_per_step=2_048,
        tflops_per_gpu=400,
        checkpointing=_LLAMA3_CHECKPOINTING,
    )
    return Preset(
        name="llama3-405b",
        title="Llama 3 405B: 16,384 H100, 54 days",
        layout=_LLAMA3_LAYOUT,
        hazards=Hazards(classes=classes(_LLAMA3_ROWS, 2_048 * 54, f"{_LLAMA3}, Table 5")),
        job=_job(work),
        practice=_practice(
            detect_s=60,
            hang_s=600,
            restart_s=200,
            spare_nodes=32,
            source=f"Restart at 16K GPUs: {_FT_HSDP}. Assumed: a minute to see a crash, for a hang the ten "
            "minutes of NCCL's watchdog; enough spares, as the cluster had 24K GPUs.",
        ),
        duration_days=54,
        published=(
            ReportedFigure(name="interruptions_unexpected", value=419, source=f"{_LLAMA3}, Table 5"),
            ReportedFigure(name="interruptions", value=466, source=f"{_LLAMA3}, section 3.3.4"),
            ReportedFigure(
                name="effective_time", value=0.90, bound="at least", source=f"{_LLAMA3}, section 3.3.4"
            ),
        ),
        source=f"{_LLAMA3}, sections 3.3.1-3.3.4, Tables 4 and 5. Lanes: one sequence each. "
        f"Checkpoints: every ten minutes assumed; stall, write and restore from {_BYTECHECKPOINT}.",
    )


_META_32K_ROWS = (
    Count("gpu-hbm3", "memory", 155),
    Count("pcie", "host", 122),
    Count("nccl-watchdog", "unknown", 61, transient=1.0, kind="hang"),
    Count("faulty-compute", "gpu", 50, transient=0.0),
    Count("software-bug", "software", 48, transient=1.0),
    Count("host-maintenance", "host", 42, transient=0.0),
    Count("kernel", "software", 39, transient=1.0),
    Count("reboot", "host", 38, transient=1.0),
    Count("silent-data-corruption", "gpu", 37, transient=0.0),
    Count("switch-or-cable", "fabric", 36, reach="leaf"),
    Count("ssd", "storage", 30, transient=0.0),
    Count("gpu-sram", "memory", 8),
    Count("unknown", "unknown", 7),
    Count("system-memory", "host", 2, transient=0.0),
    Count("cooling", "cooling", 2, transient=0.0),
    Count("gpu-thermal", "cooling", 1),
)

_META_32K_RATE = 2.3
"""Failures per 1000 server-days, which makes the 678 of the table about 72 days of 4,096 servers."""


def _meta_32k() -> Preset:
    node_days = 1000 * sum(row.count for row in _META_32K_ROWS) / _META_32K_RATE
    work = _Work(
        model="llama3-405b",
        chip="h100",
        gpus=32_768,
        member_gpus=128,
        sequences_per_step=4_096,
        tflops_per_gpu=400,
        checkpointing=_LLAMA3_CHECKPOINTING,
    )
    return Preset(
        name="meta-32k",
        title="Meta: about 32,000 H100, 678 failures",
        layout=msgspec.structs.replace(_LLAMA3_LAYOUT, gpus=32_768),
        hazards=Hazards(classes=classes(_META_32K_ROWS, node_days, _FT_HSDP)),
        job=_job(work),
        practice=_practice(
            detect_s=60,
            hang_s=600,
            restart_s=400,
            spare_nodes=32,
            source=f"{_FT_HSDP}: restart between its 300 s at 22K and 600 s at 64K GPUs. "
            "Assumed: detection, spares.",
        ),
        duration_days=node_days / 4_096,
        published=(
            ReportedFigure(name="interruptions_unexpected", value=678, source=_FT_HSDP),
            ReportedFigure(name="rate_per_1000_node_days", value=_META_32K_RATE, source=_FT_HSDP),
        ),
        source=f"{_FT_HSDP}. Assumed: layout, model and step as Llama 3's on twice the GPUs; the days follow "
        "from the count and the rate.",
    )


def _rsc(
    cluster: str, gpus: int, rate_per_1000_node_days: float, published: tuple[ReportedFigure, ...]
) -> Preset:
    """One of the two research clusters, under the assumptions of the paper's own formula."""
    work = _Work(
        model="llama3-70b",
        chip="a100",
        gpus=gpus,
        member_gpus=32,
        sequences_per_step=gpus // 8,
        tflops_per_gpu=125,
        checkpointing=Checkpointing(interval_s=3_600, stall_s=0, write_s=0, restore_s=0),
    )
    rows = (Count("infrastructure", "unknown", rate_per_1000_node_days),)
    return Preset(
        name=cluster.lower() if gpus == _RSC_GPUS else f"{cluster.lower()}-{gpus}",
        title=f"{cluster}: a job of {gpus:,} A100",
        layout=Layout(gpus=gpus),
        hazards=Hazards(classes=classes(rows, 1000, f"{_RSC}, r_f of {cluster}")),
        job=_job(work),
        practice=_practice(
            detect_s=0,
            hang_s=0,
            restart_s=300,
            spare_nodes=gpus // 256,
            source=f"{_RSC}: u0 of five minutes, from the failure to the next step. Assumed: spares.",
        ),
        duration_days=30,
        published=published,
        source=f"{_RSC}: u0 = 5 min, a checkpoint every hour, w = 0. Assumed: layout, model, step time; "
        "its formula depends on none of them.",
    )


_RSC_GPUS = 16_384


def _rsc_1() -> Preset:
    figures = (
        ReportedFigure(name="effective_time", value=0.70, source=f"{_RSC}, projection at 16K GPUs"),
        ReportedFigure(name="mttf_h", value=1.8, source=f"{_RSC}, projection at 16,384 GPUs"),
    )
    return _rsc("RSC-1", _RSC_GPUS, 6.50, figures)


_BYTEROBUST_ROWS = (
    Count("cuda-error", "gpu", 19_968),
    Count("cpu-overload", "host", 6_095, transient=1.0),
    Count("cpu-out-of-memory", "software", 5_567, transient=1.0),
    Count("disk-space", "storage", 2_755, transient=1.0),
    Count("infiniband", "fabric", 1_599),
    Count("filesystem-mount", "storage", 1_176, transient=1.0),
    Count("hdfs", "storage", 1_104, transient=1.0),
    Count("container", "software", 781, transient=1.0),
    Count("kernel-panic", "host", 203),
    Count("gpu-memory", "memory", 188),
    Count("external", "unknown", 128),
    Count("gpu-unavailable", "gpu", 76, transient=0.0),
    Count("disk", "storage", 47, transient=0.0),
    Count("hang", "unknown", 5_506, kind="hang"),
    Count("mfu-decline", "cooling", 442, transient=0.0, kind="gray", slowdown=1.3),
    Count("nan", "gpu", 148, transient=0.0),
    Count("manual-restart", "planned", 9_582, transient=1.0, kind="planned", reach="cluster"),
)

_BYTEROBUST_RATE = 1000 * 466 / (2_048 * 54)
"""Their table counts over all jobs, not over node-days: assumed is Llama 3's rate with planned stops."""


def _byterobust() -> Preset:
    work = _Work(
        model="llama3-70b",
        chip="h100",
        gpus=9_600,
        member_gpus=64,
        sequences_per_step=2_048,
        tflops_per_gpu=400,
        checkpointing=Checkpointing(interval_s=600, stall_s=0.04, write_s=30, restore_s=30),
    )
    node_days = 1000 * sum(row.count for row in _BYTEROBUST_ROWS) / _BYTEROBUST_RATE
    return Preset(
        name="byterobust-9600",
        title="ByteRobust: 9,600 GPUs, three months",
        layout=Layout(gpus=9_600),
        hazards=Hazards(classes=classes(_BYTEROBUST_ROWS, node_days, f"{_BYTEROBUST}, counts as shares")),
        job=_job(work),
        practice=_practice(
            detect_s=30,
            hang_s=600,
            restart_s=60,
            spare_nodes=32,
            source=f"{_BYTEROBUST}: detection 2-60 s by inspections, ten minutes by timeout; hot update "
            "46-65 s where a requeue takes 454-768 s. Assumed: 32 spares, as its 2-4 warm ones are refilled.",
        ),
        duration_days=90,
        published=(
            ReportedFigure(
                name="effective_time", value=0.97, bound="at most", source=f"{_BYTEROBUST}, abstract"
            ),
        ),
        source=f"{_BYTEROBUST}. Assumed: rate (Llama 3's), model, layout, a checkpoint every "
        "ten minutes, written in 30 s, and that a decline of MFU is one node at 1.3 times its step time.",
    )


_INFINITEHBD_DAYS = 348

_INFINITEHBD_COUNTS: tuple[tuple[str, Part, int], ...] = (
    ("gpu", "gpu", 158),
    ("unknown", "unknown", 144),
    ("stress-test", "unknown", 97),
    ("cable", "fabric", 40),
    ("fan", "cooling", 33),
    ("nic", "fabric", 30),
    ("power-supply", "power", 26),
    ("software", "software", 24),
    ("other", "unknown", 21),
    ("host", "host", 11),
)

_INFINITEHBD_ROWS = tuple(
    # Each of them took its node out for a while, so none is transient.
    Count(name, part, count, transient=0.0)
    for name, part, count in _INFINITEHBD_COUNTS
)


def _infinitehbd() -> Preset:
    work = _Work(
        model="llama3-70b",
        chip="h100",
        gpus=3_200,
        member_gpus=32,
        sequences_per_step=512,
        tflops_per_gpu=400,
        checkpointing=Checkpointing(interval_s=1_800, stall_s=5, write_s=40, restore_s=60),
    )
    return Preset(
        name="infinitehbd",
        title="InfiniteHBD's trace: 400 nodes, 348 days",
        layout=Layout(gpus=3_200),
        hazards=Hazards(
            classes=classes(_INFINITEHBD_ROWS, 400 * _INFINITEHBD_DAYS, _INFINITEHBD),
            lemons=LemonShare(
                share=0.267,
                factor=6.5,
                source=f"{_INFINITEHBD}: two Poisson rates of maximum likelihood for the 400 nodes' counts.",
            ),
        ),
        job=_job(work),
        practice=_practice(
            detect_s=60,
            hang_s=600,
            restart_s=300,
            spare_nodes=32,
            source="assumed",
        ),
        duration_days=_INFINITEHBD_DAYS,
        published=(
            ReportedFigure(name="faults", value=584, source=_INFINITEHBD),
            ReportedFigure(name="rate_per_1000_node_days", value=4.20, source=_INFINITEHBD),
            ReportedFigure(name="repair_median_h", value=20.4, source=_INFINITEHBD),
            ReportedFigure(name="repair_mean_h", value=133, source=_INFINITEHBD),
            ReportedFigure(name="nodes_with_five_faults", value=33, source=_INFINITEHBD),
        ),
        source=f"{_INFINITEHBD}: each fault took its node out. Assumed: job, checkpoints and recovery.",
    )


_ACME_ROWS = (
    Count("nvlink", "gpu", 54),
    Count("cuda", "gpu", 21),
    Count("node", "host", 16, transient=0.0),
    Count("ecc", "memory", 12),
    Count("network", "fabric", 12),
    Count("connection", "fabric", 147, transient=1.0),
    Count("s3-storage", "storage", 10, transient=1.0),
    Count("nccl-timeout", "fabric", 6, kind="hang"),
    Count("nccl-remote", "fabric", 3),
)

_ACME_NODE_DAYS = (2_288 + 2_416) / 8 * 184
"""Assumed: all GPUs of Seren and Kalos, in nodes of 8, for the 184 days from March to August 2023."""


def _acme() -> Preset:
    work = _Work(
        model="llama3-70b",
        chip="a100",
        gpus=2_048,
        member_gpus=32,
        sequences_per_step=512,
        tflops_per_gpu=125,
        checkpointing=Checkpointing(interval_s=1_800, stall_s=10, write_s=60, restore_s=120),
    )
    return Preset(
        name="acme",
        title="Acme: a job of 2,048 A100",
        layout=Layout(gpus=2_048),
        hazards=Hazards(classes=classes(_ACME_ROWS, _ACME_NODE_DAYS, f"{_ACME}, infrastructure rows")),
        job=_job(work),
        practice=_practice(
            detect_s=300,
            hang_s=1_800,
            restart_s=900,
            spare_nodes=8,
            source="assumed",
        ),
        duration_days=30,
        published=(
            ReportedFigure(name="failures", value=sum(row.count for row in _ACME_ROWS), source=_ACME),
        ),
        source=f"{_ACME}: failed jobs of two clusters in six months. Assumed: job, checkpoints and recovery.",
    )


_PRESETS: dict[str, Callable[[], Preset]] = {
    "llama3-405b": _llama3,
    "meta-32k": _meta_32k,
    "rsc-1": _rsc_1,
    "rsc-1-1024": lambda: _rsc("RSC-1", 1_024, 6.50, ()),
    "rsc-2": lambda: _rsc("RSC-2", _RSC_GPUS, 2.34, ()),
    "rsc-2-1024": lambda: _rsc("RSC-2", 1_024, 2.34, ()),
    "byterobust-9600": _byterobust,
    "infinitehbd": _infinitehbd,
    "acme": _acme,
}
