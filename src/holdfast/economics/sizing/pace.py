"""The time of a step in a layout: FLOPs at a published rate, plus the overhead of the layout.

The rate comes from the median of the published MFU near the run (`ledger.references`). That MFU already
includes its own run's bubble, communication and recomputation, and its layout is rarely published. So every
published run is assumed to have lost what Llama 3's own layout costs by this module's arithmetic,
REFERENCE_OVERHEAD: the busy rate is the published MFU times that, and a layout is never credited with more
than the published MFU. It is a share of the chip's peak in the reference's precision: if no run in FP4 is
published, FP4 is as quick as FP8. Ratios between layouts are meaningful; the level is only as good as the
reference.
"""

from functools import cache

import msgspec

from holdfast.economics.sizing.memory import ELEMENT_BYTES, WEIGHT_BYTES, stage_params
from holdfast.economics.sizing.parallelism import (
    Cluster,
    Parallelism,
    Recompute,
    SizingCase,
    imbalance,
    micro_batches,
)
from holdfast.economics.sizing.rules import bubble_share
from holdfast.ledger.flops import Chip, model_flops_per_token, peak_flops_per_s
from holdfast.ledger.references import MfuReference, ReferenceSetup, reference_bandwidth
from holdfast.record.events import Collective

REFERENCE_OVERHEAD = 1.23
"""Llama 3 405B on 8,192 H100 (TP8 PP16 DP64, 32 sequences a replica; Table 4): the time of a step by this
module over its FLOPs at the busy rate, with the eight interleaved stages that its 126 layers and two ends
allow."""

_NETWORK_GBIT_PER_S: dict[Chip, int] = {"a100": 200, "b300": 800, "gb300": 800}
_NETWORK_GBIT_PER_S_USUAL = 400
"""Of one GPU's network card: NVIDIA's DGX A100, H100, H200, B200, GB200 and B300 data sheets."""
NETWORK_SHARE = 0.92
"""Of the line: the 370 GB/s of `holdfast reference --chip h100`, with eight cards of 400 Gbit/s."""
_SAME_NVLINK: dict[Chip, Chip] = {"b300": "b200", "gb300": "gb200"}
"""Chips without a published bandwidth, and those with NVLink of the same generation."""
_NVLINK_GB_PER_S: dict[Chip, float] = {"h800": 160, "mi300x": 304, "mi325x": 304, "mi355x": 304}
"""H800: measured by DeepSeek (README of github.com/deepseek-ai/DeepEP): an H100 with a slower NVLink. MI300X:
the least of a healthy node in AMD's acceptance guide for Instinct, also taken for its successors."""

FORWARD_SHARE = 1 / 3
"""Of a step's FLOPs: the backward pass has twice as many as the forward one."""
LAYER_EXCHANGES: dict[Recompute, int] = {"none": 4, "selective": 4, "full": 6}
"""All-reduces of tensor parallelism in a layer, or pairs of gather and scatter: two forward, two backward,
and two more if the forward pass is recomputed (Shoeybi et al. 2019)."""
KEY_VALUE_EXCHANGES = 3
"""Exchanges of context parallelism in a layer: keys and values forward and backward, and their gradients."""
EXPERT_EXCHANGES = 4
"""All-to-alls in a layer: tokens to their experts and back, forward and backward."""

ROUNDING_SHARE = 1e-9
"""The rounding error of the sum of a step's parts, as a share of the step."""


class StepPace(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step and its parts, in seconds of the fullest stage.

    compute_s    the model's FLOPs at the busy rate
    recompute_s  recomputation
    tensor_s, context_s, pipeline_s  exchanges within a replica, assumed not to overlap with computing
    expert_s     the part of the experts' exchange that computing does not hide, as in DeepSeek-V3's pipeline
    imbalance_s  waiting for the fullest stage
    bubble_s     waiting for the pipeline to fill and to drain
    data_s       the part of the exchange between replicas (gradients, weights) that computing does not hide
    expert_hidden_s, data_hidden_s  the hidden parts of both, which do not count in the step
    """

    step_s: float
    mfu_percent: float
    compute_s: float
    recompute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    pipeline_s: float
    imbalance_s: float
    bubble_s: float
    data_s: float
    expert_hidden_s: float
    data_hidden_s: float

    @property
    def busy_s(self) -> float:
        """The sum of all parts; less than a step if the published rate limits it."""
        return float(sum(msgspec.structs.astuple(self)[2:-2]))

    @property
    def unexplained_s(self) -> float:
        """Time that the published run took beyond these parts; 0 if the parts take longer than it did."""
        left_s = self.step_s - self.busy_s
        return left_s if left_s > ROUNDING_SHARE * self.step_s else 0.0


def pace(case: SizingCase, layout: Parallelism, reference: MfuReference) -> StepPace:
    """The step of a layout, at a rate from the reference's MFU."""
    count, micro = micro_batches(case, layout), _micro_batch(case, layout, reference)
    busy_s = count * micro.total_s
    imbalance_s = (imbalance(case.shape.layers, layout.pp) - 1) * busy_s
    bubble_s = bubble_share(layout, count) * (busy_s + imbalance_s)
    expert_hidden_s = _expert_s(case, layout, _tokens(case, layout)) - micro.expert_s
    # Both exchanges share one network: computing that hides the experts' exchange cannot hide the other.
    shared_s = expert_hidden_s if layout.tp * layout.ep > case.cluster.domain_gpus else 0.0
    data_s, data_hidden_s = _data_s(case, layout, count, micro.total_s - shared_s)
    flops = case.training.tokens_per_step * _flops_per_token(case, reference)
    peak = peak_flops_per_s(case.cluster.chip, case.cluster.precision) * layout.gpus
    published_s = flops / (_published_flops_per_s(case, reference) * layout.gpus)
    step_s = max(published_s, busy_s + imbalance_s + bubble_s + data_s)
    return StepPace(
        step_s=step_s,
        mfu_percent=100 * flops / (peak * step_s),
        **{name: count * part_s for name, part_s in msgspec.structs.asdict(micro).items()},
        imbalance_s=imbalance_s,
        bubble_s=bubble_s,
        data_s=data_s,
        expert_hidden_s=count * expert_hidden_s,
        data_hidden_s=data_hidden_s,
    )


def setup_of(case: SizingCase) -> ReferenceSetup:
    """The case in the terms of the published references."""
    model = case.shape.transformer()
    return ReferenceSetup(
        params=model.params,
        gpus=case.cluster.gpus,
        chip=case.cluster.chip,
        precision=case.cluster.precision,
        moe=model.moe,
        sequence_tokens=case.training.sequence_tokens,
    )


class _MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch on one stage, forward and backward."""

    compute_s: float
    recompute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    pipeline_s: float

    @property
    def total_s(self) -> float:
        return float(sum(msgspec.structs.astuple(self)))


def _micro_batch(case: SizingCase, layout: Parallelism, reference: MfuReference) -> _MicroBatch:
    rate = _published_flops_per_s(case, reference) * REFERENCE_OVERHEAD * layout.replica_gpus
    tokens = _tokens(case, layout)
    compute_s = tokens * _flops_per_token(case, reference) / rate
    return _MicroBatch(
        compute_s=compute_s,
        recompute_s=compute_s * FORWARD_SHARE if layout.recompute == "full" else 0.0,
        tensor_s=_tensor_s(case, layout, tokens),
        context_s=_context_s(case, layout, tokens),
        expert_s=max(0.0, _expert_s(case, layout, tokens) - compute_s),
        pipeline_s=_pipeline_s(case, layout, tokens),
    )


def _published_flops_per_s(case: SizingCase, reference: MfuReference) -> float:
    """Of one GPU of this chip, at the reference's share of its peak."""
    return peak_flops_per_s(case.cluster.chip, reference.precision) * reference.mfu_percent / 100


def _tokens(case: SizingCase, layout: Parallelism) -> int:
    return case.training.sequence_tokens * layout.micro_batch


def _flops_per_token(case: SizingCase, reference: MfuReference) -> float:
    model = case.shape.transformer()
    return model_flops_per_token(model, case.training.sequence_tokens, reference.compared_as)


def _tensor_s(case: SizingCase, layout: Parallelism, tokens: int) -> float:
    size = tokens / layout.cp * case.shape.hidden * ELEMENT_BYTES
    exchanges = LAYER_EXCHANGES[layout.recompute] * case.shape.layers / layout.pp
    return exchanges * 2 * _others(layout.tp) * size / _nvlink_bytes_per_s(case.cluster)


def _context_s(case: SizingCase, layout: Parallelism, tokens: int) -> float:
    keys_and_values = 2 * case.shape.kv_heads * case.shape.head_dim / layout.tp
    size = tokens * keys_and_values * ELEMENT_BYTES
    exchanges = KEY_VALUE_EXCHANGES * case.shape.layers / layout.pp
    return exchanges * _others(layout.cp) * size / _bytes_per_s(case.cluster, layout.tp * layout.cp)


def _expert_s(case: SizingCase, layout: Parallelism, tokens: int) -> float:
    copies = case.shape.active_experts * case.shape.hidden
    size = tokens / (layout.cp * layout.tp) * copies * ELEMENT_BYTES
    exchanges = EXPERT_EXCHANGES * case.shape.layers / layout.pp
    return exchanges * _others(layout.ep) * size / _bytes_per_s(case.cluster, layout.tp * layout.ep)


def _pipeline_s(case: SizingCase, layout: Parallelism, tokens: int) -> float:
    """Exchanges with the next stage, forward and backward, for each stage on a GPU."""
    if layout.pp == 1:
        return 0.0
    size = tokens / (layout.cp * layout.tp) * case.shape.hidden * ELEMENT_BYTES
    return 2 * layout.interleave * size / _bytes_per_s(case.cluster, layout.replica_gpus)


def _data_s(case: SizingCase, layout: Parallelism, count: int, micro_s: float) -> tuple[float, float]:
    """The exchange between replicas: the part that computing a micro-batch (`micro_s`) does not hide, and
    the hidden part.

    With ZeRO 2 gradients are exchanged in every micro-batch, with ZeRO 3 also weights, twice; otherwise once
    a step. If some of the ranks hold a copy of the model together, they exchange their parts of the gradients
    with the other copies once a step.
    """
    ranks = layout.sharers
    if layout.dp * layout.cp == 1:
        return 0.0, 0.0
    params = max(sum(stage_params(case.shape, layout, stage)) for stage in (0, layout.pp - 1))
    per_node = max(1, min(ranks, case.cluster.gpus_per_node // layout.tp))
    speed = _network_bytes_per_s(case.cluster) * per_node
    if ranks * layout.tp <= case.cluster.domain_gpus:
        speed = _nvlink_bytes_per_s(case.cluster)
    gradients_s = _others(ranks) * params * case.training.gradient_bytes / speed
    weights_s = _others(ranks) * params * WEIGHT_BYTES / speed
    each, once = {
        2: (gradients_s, weights_s),
        3: (gradients_s + 2 * weights_s, 0.0),
    }.get(layout.zero, (0.0, gradients_s + weights_s))
    if layout.shard is not None:
        once += _rail_s(case, layout, params)
    exposed_s = count * max(0.0, each - micro_s) + max(0.0, once - micro_s)
    return exposed_s, count * each + once - exposed_s


def _rail_s(case: SizingCase, layout: Parallelism, params: float) -> float:
    """The sum of a part's gradients over all copies of the model, scattered and gathered again."""
    cluster = case.cluster
    speed = _network_bytes_per_s(cluster) * max(
        1, min(layout.copies, cluster.gpus_per_node // layout.copy_gpus)
    )
    if layout.gpus <= cluster.domain_gpus:
        speed = _nvlink_bytes_per_s(cluster)
    size = params / layout.sharers * case.training.gradient_bytes
    return 2 * _others(layout.copies) * size / speed


def _others(ranks: int) -> float:
    """The share of data that comes from the other ranks of a group."""
    return (ranks - 1) / ranks


def _bytes_per_s(cluster: Cluster, reach_gpus: int) -> float:
    return (
        _nvlink_bytes_per_s(cluster) if reach_gpus <= cluster.domain_gpus else _network_bytes_per_s(cluster)
    )


def _nvlink_bytes_per_s(cluster: Cluster) -> float:
    if known := _NVLINK_GB_PER_S.get(cluster.chip):
        return known * 1e9
    return _bus_gb_per_s(_SAME_NVLINK.get(cluster.chip, cluster.chip)) * 1e9


@cache
def _bus_gb_per_s(chip: Chip) -> float:
    kinds: tuple[Collective, ...] = ("all-gather", "all-reduce")
    rows = (reference_bandwidth(chip, 2, kind) for kind in kinds)
    return next(row.bus_gb_per_s for row in rows if row)


def _network_bytes_per_s(cluster: Cluster) -> float:
    gbit_per_s = _NETWORK_GBIT_PER_S.get(cluster.chip, _NETWORK_GBIT_PER_S_USUAL)
    return gbit_per_s / 8 * 1e9 * NETWORK_SHARE
