"""The memory that a layout takes on a GPU: by formula, and as a range.

Activations are counted as in Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer
Models", Table 2), tensor by tensor, so that gated feed-forward layers, fewer key and value heads, experts and
models without dropout are covered; for a GPT the result is their 34 s b h. Frameworks keep different tensors,
so the formula depends on the framework. Published measurements lie around the formula; `memory_range` says
how far, and docs/sizing.md compares both with every published row. Norms and biases are left out.
"""

import math

import msgspec

from holdfast import wording
from holdfast.economics.sizing.parallelism import (
    Framework,
    Parallelism,
    SizingCase,
    Training,
    micro_batches,
    stage_layers,
)
from holdfast.ledger.flops import Shape

WEIGHT_BYTES = 2
"""bfloat16; weights are kept in it with FP8 arithmetic, too."""
OPTIMIZER_BYTES = 12
"""Adam in mixed precision: a weight and two moments in float32 (Rajbhandari et al. 2020, section 3.1)."""
ELEMENT_BYTES = 2
"""Of an activation."""
MASK_BYTES = 1
"""Of one element of a dropout mask."""
LOGIT_BYTES = 12
"""Of one logit: itself and its gradient in bfloat16, and both in float32 for the loss. 12 reproduces the
memory that torchtitan published in 2024."""
LOGIT_BYTES_FUSED = 4
"""The same with a fused loss: as Korthikanti et al. count, and as torchtitan's compiled loss takes (its H200
rows of June 2025)."""
GATHERED_LAYERS = 2
"""Layers whose full weights a GPU has with ZeRO 3: the one it computes, and the next one in transfer."""
TENSOR_GATHERED = 4
"""With tensor parallelism, full sequences that a GPU has for a moment: the inputs of attention and of the
feed-forward layer, and their gradients (Korthikanti et al. 2022, section 4.2.2)."""

LOW_SHARE = 0.9
HIGH_SHARE, HIGH_SHARE_PIPELINE = 1.2, 1.35
"""The range as multiples of the formula: every memory that torchtitan published lies within (docs/sizing.md
lists the rows). Below 1: fused kernels, tensors freed early. Above 1: fragmentation, buffers, and tensors
that a pipeline's schedule keeps."""


ALLOCATOR_SHARE, ALLOCATOR_SHARE_PIPELINE = 0.05, 0.18
"""What PyTorch's allocator holds beyond the tensors of the formula, as fragments and buffers: the medians of
torchtitan's rows for the H100 (docs/sizing.md). Nothing is added for Megatron-LM: it publishes no memory, and
by the formula alone thirteen of its layouts that ran take 95 % of the GPU's memory or more."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory use of the fullest GPU.

    gathered  tensors that ZeRO and tensor parallelism gather for a moment
    logits    memory of the loss, on the last stage
    allocator  beyond the tensors, by what was published
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    activations_bytes: int
    logits_bytes: int
    allocator_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(msgspec.structs.astuple(self))


class MemoryRange(msgspec.Struct, frozen=True, kw_only=True):
    """The range of memory a GPU may need; all published runs are within it. basis: where it comes from."""

    low_bytes: int
    high_bytes: int
    basis: str


def memory(case: SizingCase, layout: Parallelism) -> MemoryUse:
    """Of the fullest GPU, on the first, the second or the last stage: the formula, and what the allocator
    holds beyond it, so that the sum is in the middle of what was published.
    """
    framework = framework_of(case, layout)
    found = _fullest(case, layout, _Count(framework=framework))
    if framework == "megatron":
        return found
    share = ALLOCATOR_SHARE_PIPELINE if layout.pp > 1 else ALLOCATOR_SHARE
    return msgspec.structs.replace(found, allocator_bytes=round(share * found.total_bytes))


def memory_range(case: SizingCase, layout: Parallelism) -> MemoryRange:
    """The range over all frameworks, or for the named one."""
    named = case.training.framework
    frameworks: tuple[Framework, ...] = (named,) if named else ("torchtitan", "megatron")
    high_share = HIGH_SHARE_PIPELINE if layout.pp > 1 else HIGH_SHARE
    lean = (_fullest(case, layout, _Count(framework=one, is_lean=True)) for one in frameworks)
    full = (_fullest(case, layout, _Count(framework=one)) for one in frameworks)
    return MemoryRange(
        low_bytes=round(LOW_SHARE * min(found.total_bytes for found in lean)),
        high_bytes=round(high_share * max(found.total_bytes for found in full)),
        basis=(
            f"the formula for {' and '.join(frameworks)}, from {LOW_SHARE:g} times it with fused loss and "
            f"attention to {wording.number(high_share)} times it: torchtitan's published figures "
            "are within that range"
        ),
    )


def framework_of(case: SizingCase, layout: Parallelism) -> Framework:
    """The framework that the formula follows. If none was named, ZeRO 3 means FSDP, as in torchtitan."""
    return case.training.framework or ("torchtitan" if layout.zero == 3 else "megatron")


def selective_bytes(shape: Shape, framework: Framework, kept: float) -> float:
    """Bytes kept per token and layer with selective recomputation. kept: all but the attention core.

    Megatron-LM recomputes the attention core and keeps the rest. torchtitan keeps the layer's input, the
    output of attention and the result of every second matrix, and recomputes the rest (`selective_ac_option =
    "op"`): of query, key, value, output, gate, up and down it keeps query, value, gate and down; of a layer
    without a gate query, value and up.
    """
    if framework == "megatron":
        return kept
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inner = shape.active_experts * shape.ffn + shape.shared_ffn
    ends = 2 * shape.hidden if shape.gated else shape.hidden
    return ELEMENT_BYTES * (ends + 2 * queries + keys + inner)


def layer_activation_bytes(shape: Shape, *, sequence_tokens: int, dropout: bool) -> tuple[float, float]:
    """Bytes kept per token and layer, on all GPUs together: outside the attention core, and in it.

    Two norms, every matrix and the activation function keep their inputs, and attention its queries, keys and
    values. A token that is sent to several experts is copied for each.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * shape.hidden + 2 * queries + 2 * keys
    inner = 3 if shape.gated else 2
    copies = 2 * shape.active_experts * shape.hidden if shape.experts > 1 else 0
    ffn = 2 * shape.hidden + inner * (shape.active_experts * shape.ffn + shape.shared_ffn) + copies
    masks = 2 * shape.hidden * MASK_BYTES if dropout else 0
    # For each pair of tokens the softmax's output is kept; with dropout also its mask and its output.
    pair = 2 * ELEMENT_BYTES + MASK_BYTES if dropout else ELEMENT_BYTES
    return ELEMENT_BYTES * (attention + ffn) + masks, float(pair * shape.heads * sequence_tokens)


def stage_params(shape: Shape, layout: Parallelism, stage: int) -> tuple[float, float]:
    """Parameters that a GPU of this stage computes with: those outside the experts, and its experts'."""
    layers = _layers(shape, layout, stage)
    dense_layers = min(layers, shape.dense_layers) if stage == 0 else 0
    dense = layers * (shape.attention_params + shape.shared_params)
    dense += dense_layers * shape.active_experts * shape.expert_params
    experts = (layers - dense_layers) * shape.experts * shape.expert_params
    if shape.experts == 1:
        dense, experts = dense + experts, 0
    ends = (stage == 0) + (stage == layout.pp - 1)
    tables = 1 if shape.tied and layout.pp == 1 else ends
    return (dense + tables * shape.table_params) / layout.tp, experts / layout.expert_ways


def least_state_bytes(shape: Shape, training: Training, gpus: int) -> float:
    """Weights, gradients and optimizer, spread evenly over all GPUs: no layout takes less."""
    each = WEIGHT_BYTES + training.gradient_bytes + OPTIMIZER_BYTES
    return shape.transformer().params * each / gpus


def lane_sheets(lanes: int) -> int:
    """Copies of the gradients that a member needs to sum this many lanes along the tree (docs/lanes.md)."""
    return max(2, (lanes - 1).bit_length() + 1)


class _Count(msgspec.Struct, frozen=True, kw_only=True):
    """How to count. is_lean: with fused kernels for the loss and for attention."""

    framework: Framework
    is_lean: bool = False


def _fullest(case: SizingCase, layout: Parallelism, count: _Count) -> MemoryUse:
    stages = sorted({0, min(1, layout.pp - 1), layout.pp - 1})
    return max((_stage(case, layout, stage, count) for stage in stages), key=lambda found: found.total_bytes)


def _stage(case: SizingCase, layout: Parallelism, stage: int, count: _Count) -> MemoryUse:
    dense, experts = stage_params(case.shape, layout, stage)
    sharers = layout.sharers
    shared = dense / sharers + experts * layout.expert_ways / (layout.tp * sharers)
    whole = dense + experts
    gradients = (shared if layout.zero >= 2 else whole) * case.training.gradient_bytes
    # FSDP keeps only the weights in float32, which belong to the optimizer.
    weights = 0.0 if count.framework == "torchtitan" and layout.zero == 3 else shared
    if case.training.lanes is not None:
        gradients *= lane_sheets(math.ceil(case.training.lanes / layout.dp))
    return MemoryUse(
        weights_bytes=round((weights if layout.zero == 3 else whole) * WEIGHT_BYTES),
        gradients_bytes=round(gradients),
        optimizer_bytes=round((shared if layout.zero >= 1 else whole) * OPTIMIZER_BYTES),
        gathered_bytes=round(_gathered_bytes(case, layout, stage, count) + _sequences_bytes(case, layout)),
        activations_bytes=round(_activations_bytes(case, layout, stage, count)),
        logits_bytes=round(_logits_bytes(case, layout, count)) if stage == layout.pp - 1 else 0,
    )


def _sequences_bytes(case: SizingCase, layout: Parallelism) -> float:
    """Sequences that tensor parallelism gathers."""
    if layout.tp == 1:
        return 0.0
    return TENSOR_GATHERED * _tokens(case, layout) * layout.tp * case.shape.hidden * ELEMENT_BYTES


def _gathered_bytes(case: SizingCase, layout: Parallelism, stage: int, count: _Count) -> float:
    """Weights and gradients that ZeRO gathers; FSDP keeps those of table and head for a whole step."""
    shape = case.shape
    if layout.sharers == 1:
        return 0.0
    layer = (shape.attention_params + shape.shared_params) / layout.tp
    layer += shape.experts * shape.expert_params / layout.expert_ways
    gradients = layer * case.training.gradient_bytes if layout.zero >= 2 else 0.0
    if layout.zero < 3:
        return gradients
    ends = (stage == 0) + (stage == layout.pp - 1) if count.framework == "torchtitan" else 0
    tables = ends * shape.table_params / layout.tp * 2 * WEIGHT_BYTES
    return gradients + GATHERED_LAYERS * layer * WEIGHT_BYTES + tables


def _activations_bytes(case: SizingCase, layout: Parallelism, stage: int, count: _Count) -> float:
    """Activations of all micro-batches on this stage whose backward pass is still to come."""
    training = case.training
    kept, core = layer_activation_bytes(
        case.shape, sequence_tokens=training.sequence_tokens, dropout=training.dropout
    )
    layers_held = _layers(case.shape, layout, stage) / layout.interleave * _chunks_held(case, layout, stage)
    tokens = _tokens(case, layout)
    if layout.recompute == "full":
        # The inputs of all layers, and all activations of the layer that is being recomputed.
        return tokens * (layers_held * ELEMENT_BYTES * case.shape.hidden + kept)
    if layout.recompute == "selective":
        return tokens * layers_held * selective_bytes(case.shape, count.framework, kept)
    is_fused = count.is_lean or count.framework == "torchtitan"
    return tokens * layers_held * (kept + (0.0 if is_fused else core))


def _chunks_held(case: SizingCase, layout: Parallelism, stage: int) -> int:
    """Micro-batches in flight at once, times the stages of each on this GPU.

    The schedule is one forward, one backward, plain or interleaved (Narayanan et al. 2021, section 2.2).
    """
    count, behind = micro_batches(case, layout), layout.pp - stage - 1
    if layout.interleave == 1:
        return min(count, behind + 1)
    return min(count * layout.interleave, 2 * behind + (layout.interleave - 1) * layout.pp + 1)


def _logits_bytes(case: SizingCase, layout: Parallelism, count: _Count) -> float:
    last_norm = 2 * ELEMENT_BYTES * case.shape.hidden
    each = LOGIT_BYTES_FUSED if count.is_lean else LOGIT_BYTES
    return _tokens(case, layout) * (last_norm + each * case.shape.vocab)


def _tokens(case: SizingCase, layout: Parallelism) -> float:
    """Tokens of a micro-batch on one GPU; tensor parallel ranks share them, too (sequence parallelism)."""
    return layout.micro_batch * case.training.sequence_tokens / (layout.cp * layout.tp)


def _layers(shape: Shape, layout: Parallelism, stage: int) -> int:
    first, fullest, last = stage_layers(shape.layers, layout.pp)
    if stage == 0:
        return first
    return last if stage == layout.pp - 1 else fullest
