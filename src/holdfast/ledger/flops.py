"""FLOPs of a transformer per token, and a throughput as a share of the chips' peak (MFU, HFU).

A token costs 6 N + 12 L H Q T: six for each parameter it is multiplied with (two forward, four backward) and
in each layer the attention core over its sequence (PaLM, Chowdhery et al. 2022, appendix B). Recomputing the
part r of the forward pass makes it (6 + 2r) N + (12 + 4r) L H Q T: the hardware's FLOPs, not the model's.
Two conventions for the attention core are in use and differ by a factor of exactly two, so every figure here
names its own. Norms, activations, biases and the experts' router are left out, as PaLM and Megatron-LM do.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from holdfast.record.errors import InputError

Attention = Literal["full", "causal"]
"""full: every token against its whole sequence (PaLM). causal: the half that the mask keeps (Megatron-LM)."""

Chip = Literal["a100", "h100", "h800", "h200", "b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi355x"]
Precision = Literal["bf16", "fp8", "fp4"]


class _ChipFacts(NamedTuple):
    """One GPU's dense (not sparse) peaks in TFLOP/s, its memory in MiB, and its link to other GPUs."""

    tflops: dict[Precision, int]
    memory_mib: int
    link_gb_per_s: int


_HOPPER: dict[Precision, int] = {"bf16": 989, "fp8": 1979}

_CHIPS: dict[Chip, _ChipFacts] = {
    "a100": _ChipFacts({"bf16": 312}, 81_920, 300),
    "h100": _ChipFacts(_HOPPER, 81_559, 450),
    "h800": _ChipFacts(_HOPPER, 81_559, 200),
    "h200": _ChipFacts(_HOPPER, 143_771, 450),
    "b200": _ChipFacts({"bf16": 2250, "fp8": 4500, "fp4": 9000}, 183_359, 900),
    "b300": _ChipFacts({"bf16": 2250, "fp8": 4500, "fp4": 13_500}, 275_040, 900),
    "gb200": _ChipFacts({"bf16": 2450, "fp8": 4900, "fp4": 10_000}, 189_471, 900),
    "gb300": _ChipFacts({"bf16": 2450, "fp8": 4900, "fp4": 15_000}, 284_208, 900),
    "mi300x": _ChipFacts({"bf16": 1307, "fp8": 2615}, 196_592, 448),
    "mi325x": _ChipFacts({"bf16": 1307, "fp8": 2615}, 262_128, 448),
    "mi355x": _ChipFacts({"bf16": 2517, "fp8": 5033, "fp4": 10_066}, 294_896, 538),
}
"""Peaks of A100 and H200: their NVIDIA data sheets, the H200 equal to the H100; so is the H800, an H100
with a slower NVLink. Other peaks of NVIDIA in bf16 and fp8: README of github.com/NVIDIA/dgxc-benchmarking,
"Peak Theoretical Throughput". FP4: NVIDIA's data sheets of HGX B200, HGX B300, GB200 NVL72 and GB300 NVL72,
the dense figure over the number of GPUs. MI300X, MI325X, MI355X: AMD's data sheets. Memory as nvidia-smi or
rocm-smi show it: the data sheet's figure less the driver's share. A100, H100: the 80 GB models. Links:
NVLink or Infinity Fabric in one direction, all links of a GPU together, from the same data sheets.
"""

IMPOSSIBLE_PERCENT = 100.0
OTHERS_SHOWN_MAX = 3
"""How many precisions and chips are named with which a share of the peak would be possible."""

_CHIP = re.compile(rf"(?<![a-z0-9])({'|'.join(get_args(Chip))})(?![0-9])")
_SLOWER_BOARD = re.compile(r"pcie|nvl(?!ink|[0-9])")
"""Hopper chips also come as PCIe and NVL boards with lower peaks; NVL72 names a rack and NVLink a link."""

_MATRICES = {True: 3, False: 2}
"""Matrices of a feed-forward layer: a gated one (SwiGLU) has a third, hence the factor of 1.5."""


class Transformer(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that determine a decoder's FLOPs.

    params           all parameters: the size that models are named by
    active_params    those that one token is multiplied with: of the experts only the chosen ones
    attention_width  heads x head dimension, PaLM's H Q; usually the hidden size
    moe              whether it is a mixture of experts
    """

    params: int
    active_params: int
    layers: int
    attention_width: int
    moe: bool = False


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder by its dimensions, from which the parameters follow.

    ffn         inner width of the feed-forward layer, or of one expert
    gated       whether the feed-forward layer has a gate matrix (SwiGLU)
    tied        whether the input table and the output head are one matrix
    shared_ffn  inner width of the shared feed-forward layer that every token passes
    dense_layers   how many of the first layers have no experts, but a feed-forward layer as wide as the
                   active experts and the shared layer together
    latent_params  one layer's attention parameters if they do not follow from the heads (MLA); 0: they do
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    experts: int = 1
    active_experts: int = 1
    shared_ffn: int = 0
    dense_layers: int = 0
    latent_params: int = 0

    @property
    def attention_params(self) -> int:
        """Per layer."""
        return self.latent_params or 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def expert_params(self) -> int:
        """Per expert and layer; in a dense model, of the feed-forward layer."""
        return _MATRICES[self.gated] * self.hidden * self.ffn

    @property
    def shared_params(self) -> int:
        """Per layer, besides attention and experts: the shared feed-forward layer and the router."""
        return _MATRICES[self.gated] * self.hidden * self.shared_ffn + self.router_params

    @property
    def router_params(self) -> int:
        """Per layer: the router that chooses the experts."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def table_params(self) -> int:
        """Of the input table, or of the output head."""
        return self.vocab * self.hidden

    def transformer(self) -> Transformer:
        layer = self.attention_params + self.shared_params + self.experts * self.expert_params
        unused = (self.experts - self.active_experts) * self.expert_params
        without = self.dense_layers * (unused + self.router_params)
        return Transformer(
            params=self.layers * layer - without + self.table_params * (1 if self.tied else 2),
            # A lookup in the input table multiplies nothing, so only the output head counts.
            active_params=self.layers * (layer - unused - self.router_params) + self.table_params,
            layers=self.layers,
            attention_width=self.heads * self.head_dim,
            moe=self.experts > 1,
        )


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a second of all GPUs together, with the model and the hardware.

    recompute  the part of the forward pass that is computed a second time, 0 to 1
    """

    model: Transformer
    sequence_tokens: float
    tokens_per_s: float
    gpus: int
    peak_flops_per_s: float
    recompute: float = 0.0


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """The share of the peak in the model's FLOPs (MFU) and in the hardware's (HFU), under one convention."""

    mfu_percent: float
    hfu_percent: float
    model_tflops_per_gpu: float


def model_flops_per_token(model: Transformer, sequence_tokens: float, attention: Attention) -> float:
    """FLOPs of the forward and backward pass per token, without recomputation."""
    return hardware_flops_per_token(model, sequence_tokens, attention, recompute=0.0)


def hardware_flops_per_token(
    model: Transformer, sequence_tokens: float, attention: Attention, *, recompute: float
) -> float:
    """FLOPs per token when the chips compute the fraction `recompute` of the forward pass twice."""
    kept = 1.0 if attention == "full" else 0.5
    core = model.layers * model.attention_width * sequence_tokens * kept
    return (6 + 2 * recompute) * model.active_params + (12 + 4 * recompute) * core


def packed_sequence_tokens(lengths: Sequence[int]) -> float:
    """The sequence length that costs as much attention per token as these packed documents.

    Attention within a document of L tokens costs L squared; all tokens share the sum of the squares.
    """
    return sum(length**2 for length in lengths) / sum(lengths)


def utilisation(throughput: Throughput, attention: Attention) -> Utilisation:
    """MFU and HFU of a throughput, with the attention core counted by the given convention."""
    model, length = throughput.model, throughput.sequence_tokens
    flops = model_flops_per_token(model, length, attention)
    hardware_flops = hardware_flops_per_token(model, length, attention, recompute=throughput.recompute)
    tokens_per_gpu_s = throughput.tokens_per_s / throughput.gpus
    return Utilisation(
        mfu_percent=100 * tokens_per_gpu_s * flops / throughput.peak_flops_per_s,
        hfu_percent=100 * tokens_per_gpu_s * hardware_flops / throughput.peak_flops_per_s,
        model_tflops_per_gpu=tokens_per_gpu_s * flops / 1e12,
    )


def peak_flops_per_s(chip: Chip, precision: Precision) -> float:
    """Dense peak of one GPU."""
    tflops = _CHIPS[chip].tflops
    if precision in tflops:
        return tflops[precision] * 1e12
    raise InputError(
        f"The {chip.upper()} has no {precision} arithmetic.", hint=f"Use {' or '.join(reversed(tflops))}."
    )


def precisions(chip: Chip) -> tuple[Precision, ...]:
    """Those that the chip has arithmetic for."""
    return tuple(_CHIPS[chip].tflops)


def assumed_peak(chip: Chip | None, precision: Precision, peak_flops_per_s: float) -> str:
    """The peak that a share of it assumes, in words."""
    named = "" if chip is None else f"{chip.upper()}, "
    return f"{peak_flops_per_s / 1e12:,.0f} TFLOP/s a GPU ({named}dense {precision})"


def impossible(
    what: str, percent: float, chip: Chip | None, precision: Precision, peak_flops_per_s: float
) -> str:
    """What must be wrong if a share of the peak is above 100 %: what was assumed, and what else it may be.

    what: the share, such as MFU. Empty if the share is possible.
    """
    if percent <= IMPOSSIBLE_PERCENT:
        return ""
    higher = [] if chip is None else [(f"in {name}", peak) for name, peak in _CHIPS[chip].tflops.items()]
    higher += [(f"on {other.upper()}", facts.tflops.get(precision, 0)) for other, facts in _CHIPS.items()]
    others: dict[str, str] = {}
    for name, tflops in higher:
        if percent * peak_flops_per_s <= IMPOSSIBLE_PERCENT * tflops * 1e12:
            others.setdefault(f"{percent * peak_flops_per_s / (tflops * 1e12):.1f} %", name)
    shown = ", ".join(f"{share} {name}" for share, name in list(others.items())[:OTHERS_SHOWN_MAX])
    return (
        f"An {what} of {percent:,.1f} % is impossible: the peak, the precision or the chip is not that of "
        "the run, or its FLOPs are counted too high, as full attention is on long sequences. Assumed are "
        f"{assumed_peak(chip, precision, peak_flops_per_s)}.{f' It would be {shown}.' if shown else ''}"
    )


def link_bytes_per_s(chip: Chip) -> float:
    """What one GPU can send to the others of its node, or receive, over all of its links."""
    return _CHIPS[chip].link_gb_per_s * 1e9


def memory_bytes(chip: Chip) -> int:
    """Memory of one GPU that programs can use."""
    return _CHIPS[chip].memory_mib << 20


def chip_named(name: str) -> Chip:
    """The chip meant by a name such as `h100_80gb`, `DGX-H100` or `NVIDIA H100 80GB HBM3`."""
    lower = name.lower()
    found = _CHIP.search(lower)
    if found is None:
        known = ", ".join(get_args(Chip))
        raise InputError(f"The chip {name!r} is not known.", hint=f"Known are {known}.")
    chip: Chip = msgspec.convert(found[1], Chip)
    if chip in ("h100", "h800", "h200") and _SLOWER_BOARD.search(lower):
        raise InputError(
            f"{name!r} is a PCIe or NVL board, whose peak is below that of the SXM module.",
            hint="Give its dense peak in TFLOP/s instead, from its data sheet.",
        )
    return chip
