"""The memory that a layout takes on a GPU, by formula.

Activations are counted as Korthikanti et al. 2022 do ("Reducing Activation Recomputation in Large Transformer
Models", Table 2), tensor by tensor, so that gated feed-forward layers, fewer key and value heads, experts and
models without dropout are counted as well; for a GPT it is their 34 s b h. It is what a fused implementation
must keep; docs/sizing.md holds it against what others measured. Norms, biases and the like are left out.
"""

import math

import msgspec

from holdfast.economics.parallelism import Case, Parallelism, Training, micro_batches, stage_layers
from holdfast.ledger.flops import Shape

WEIGHT_BYTES = 2
"""bfloat16; with FP8 arithmetic, too, the weights are kept so."""
OPTIMIZER_BYTES = 12
"""Adam in mixed precision: a weight and two moments in float32 (Rajbhandari et al. 2020, section 3.1)."""
ELEMENT_BYTES = 2
"""Of an activation."""
MASK_BYTES = 1
"""Of one element of a dropout mask."""
LOGIT_BYTES = 12
"""Of one logit: itself and its gradient in bfloat16, both again in float32 for the loss. Korthikanti et al.
count 4; the memory that torchtitan publishes for long sequences is met with 12, and missed by half with 4."""
GATHERED_LAYERS = 2
"""Layers whose weights a GPU has in full with ZeRO 3: the one that it computes, and the next on its way."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Of the fullest GPU.

    gathered  what ZeRO puts together for a moment
    logits    what the loss needs, on the last stage
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    activations_bytes: int
    logits_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(msgspec.structs.astuple(self))


def memory(case: Case, layout: Parallelism) -> Memory:
    """Of the GPU that has most: on the first stage, on the second, or on the last one of the pipeline."""
    stages = sorted({0, min(1, layout.pp - 1), layout.pp - 1})
    return max((_stage(case, layout, stage) for stage in stages), key=lambda found: found.total_bytes)


def layer_activation_bytes(shape: Shape, *, sequence_tokens: int, dropout: bool) -> tuple[float, float]:
    """Kept for one token in one layer, on all GPUs together: besides the attention core, and by it.

    Two norms keep their inputs, every matrix its input, the activation function what it is applied to, and
    attention its queries, keys and values. A token that is sent to several experts is copied for each.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * shape.hidden + 2 * queries + 2 * keys
    inner = 3 if shape.gated else 2
    copies = 2 * shape.active_experts * shape.hidden if shape.experts > 1 else 0
    ffn = 2 * shape.hidden + inner * (shape.active_experts * shape.ffn + shape.shared_ffn) + copies
    masks = 2 * shape.hidden * MASK_BYTES if dropout else 0
    # Of each pair of tokens the softmax's output is kept, with dropout also the mask and what passed it.
    pair = 2 * ELEMENT_BYTES + MASK_BYTES if dropout else ELEMENT_BYTES
    return ELEMENT_BYTES * (attention + ffn) + masks, float(pair * shape.heads * sequence_tokens)


def stage_params(shape: Shape, layout: Parallelism, stage: int) -> tuple[float, float]:
    """Parameters that a GPU of this stage has to do with: those that all have, and those of its experts."""
    layers = _layers(shape, layout, stage)
    dense = layers * (shape.attention_params + shape.shared_params)
    experts = layers * shape.experts * shape.expert_params
    if shape.experts == 1:
        dense, experts = dense + experts, 0
    ends = (stage == 0) + (stage == layout.pp - 1)
    tables = 1 if shape.tied and layout.pp == 1 else ends
    return (dense + tables * shape.table_params) / layout.tp, experts / (layout.tp * layout.ep)


def least_state_bytes(shape: Shape, training: Training, gpus: int) -> float:
    """Weights, gradients and optimizer, spread evenly over all GPUs: no layout takes less."""
    each = WEIGHT_BYTES + training.gradient_bytes + OPTIMIZER_BYTES
    return shape.transformer().params * each / gpus


def lane_sheets(lanes: int) -> int:
    """Copies of the gradients that a member needs to add this many lanes along the tree (docs/lanes.md)."""
    return max(2, (lanes - 1).bit_length() + 1)


def _stage(case: Case, layout: Parallelism, stage: int) -> Memory:
    dense, experts = stage_params(case.shape, layout, stage)
    sharers = layout.dp * layout.cp
    shared = dense / sharers + experts * layout.ep / sharers
    whole = dense + experts
    gradients = (shared if layout.zero >= 2 else whole) * case.training.gradient_bytes
    if case.training.lanes is not None:
        gradients *= lane_sheets(math.ceil(case.training.lanes / layout.dp))
    return Memory(
        weights_bytes=round((shared if layout.zero == 3 else whole) * WEIGHT_BYTES),
        gradients_bytes=round(gradients),
        optimizer_bytes=round((shared if layout.zero >= 1 else whole) * OPTIMIZER_BYTES),
        gathered_bytes=round(_gathered_bytes(case, layout)) if sharers > 1 else 0,
        activations_bytes=round(_activations_bytes(case, layout, stage)),
        logits_bytes=round(_logits_bytes(case, layout)) if stage == layout.pp - 1 else 0,
    )


def _gathered_bytes(case: Case, layout: Parallelism) -> float:
    shape = case.shape
    layer = (shape.attention_params + shape.shared_params) / layout.tp
    layer += shape.experts * shape.expert_params / (layout.tp * layout.ep)
    gradients = layer * case.training.gradient_bytes if layout.zero >= 2 else 0.0
    return gradients + (GATHERED_LAYERS * layer * WEIGHT_BYTES if layout.zero == 3 else 0.0)


def _activations_bytes(case: Case, layout: Parallelism, stage: int) -> float:
    """Of all micro-batches that are under way on this stage, whose backward pass is still to come."""
    training = case.training
    kept, core = layer_activation_bytes(
        case.shape, sequence_tokens=training.sequence_tokens, dropout=training.dropout
    )
    layers_held = _layers(case.shape, layout, stage) / layout.interleave * _chunks_held(case, layout, stage)
    tokens = _tokens(case, layout)
    if layout.recompute == "full":
        # The inputs of all layers, and all of the one that is being computed again.
        return tokens * (layers_held * ELEMENT_BYTES * case.shape.hidden + kept)
    return tokens * layers_held * (kept + (core if layout.recompute == "none" else 0.0))


def _chunks_held(case: Case, layout: Parallelism, stage: int) -> int:
    """Micro-batches under way at once, times the stages that this GPU has of each.

    The schedule is one forward, one backward, plain or interleaved (Narayanan et al. 2021, section 2.2).
    """
    count, behind = micro_batches(case, layout), layout.pp - stage - 1
    if layout.interleave == 1:
        return min(count, behind + 1)
    return min(count * layout.interleave, 2 * behind + (layout.interleave - 1) * layout.pp + 1)


def _logits_bytes(case: Case, layout: Parallelism) -> float:
    last_norm = 2 * ELEMENT_BYTES * case.shape.hidden
    return _tokens(case, layout) * (last_norm + LOGIT_BYTES * case.shape.vocab)


def _tokens(case: Case, layout: Parallelism) -> float:
    """Of a micro-batch, on one GPU: tensor parallel ranks share them out too (sequence parallelism)."""
    return layout.micro_batch * case.training.sequence_tokens / (layout.cp * layout.tp)


def _layers(shape: Shape, layout: Parallelism, stage: int) -> int:
    first, fullest, last = stage_layers(shape.layers, layout.pp)
    if stage == 0:
        return first
    return last if stage == layout.pp - 1 else fullest
