"""FLOPs and utilisation compared with published measurements."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.ledger.flops import (
    Chip,
    Precision,
    Shape,
    Throughput,
    Transformer,
    chip_named,
    hardware_flops_per_token,
    impossible,
    model_flops_per_token,
    packed_sequence_tokens,
    peak_flops_per_s,
    utilisation,
)
from holdfast.ledger.references import published
from holdfast.record.errors import InputError

LLM_FOUNDRY = Path(__file__).parents[1] / "data" / "llm-foundry-mfu.csv"
POINTS_MAX = 0.15
"""How far, in percentage points, a published MFU or HFU may be from ours."""

MPT_LAYERS_AND_WIDTH = {
    "125m": (12, 768),
    "350m": (24, 1024),
    "760m": (24, 1536),
    "1b": (24, 2048),
    "3b": (32, 2560),
    "7b": (32, 4096),
    "13b": (40, 5120),
    "30b": (48, 7168),
    "70b": (80, 8192),
}
"""n_layers and d_model of mosaicml/llm-foundry, scripts/train/yamls/pretrain."""

sizes = st.integers(1, 10**6)
transformers = st.builds(
    Transformer, params=sizes, active_params=sizes, layers=st.integers(1, 200), attention_width=sizes
)


def llm_foundry_throughput(row: dict[str, str]) -> Throughput:
    layers, width = MPT_LAYERS_AND_WIDTH[row["Model"]]
    params = int(row["NumParams"])
    precision: Precision = "fp8" if row["Precision"].endswith("fp8") else "bf16"
    return Throughput(
        model=Transformer(params=params, active_params=params, layers=layers, attention_width=width),
        sequence_tokens=int(row["SeqLen (T)"]),
        tokens_per_s=float(row["Throughput (T/s)"]),
        gpus=int(row["# GPUs"]),
        peak_flops_per_s=peak_flops_per_s(chip_named(row["GPU"]), precision),
        recompute=1.0 if row["Activation Checkpointing"] == "True" else 0.0,
    )


def test_all_rows_of_llm_foundry_are_reproduced() -> None:
    with LLM_FOUNDRY.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 216

    def points_off(row: dict[str, str]) -> float:
        ours = utilisation(llm_foundry_throughput(row), "full")
        return max(abs(ours.mfu_percent - float(row["MFU"])), abs(ours.hfu_percent - float(row["HFU"])))

    worst = max(rows, key=points_off)
    assert points_off(worst) <= POINTS_MAX, f"{worst}: {utilisation(llm_foundry_throughput(worst), 'full')}"


@pytest.mark.parametrize(
    ("name", "flops_per_token"),
    [
        ("nemotron4-15b", 93_994_352_640),
        ("nemotron4-340b", 510_966_890_496 + 1_565_515_579_392 + 28_311_552_000),
    ],
)
def test_full_attention_is_what_nvidia_works_out_by_hand(name: str, flops_per_token: int) -> None:
    """NVIDIA/dgxc-benchmarking v25.05.05, nemotron/README.md, notes; sequences of 4,096."""
    model = published().models[name].shape.transformer()
    assert model_flops_per_token(model, 4096, "full") == flops_per_token


@pytest.mark.parametrize(
    ("name", "sequence_tokens", "tokens_per_gpu_s", "tflops_per_gpu"),
    [
        ("llama3-405b", 8192, 326, 822),
        ("llama3-405b", 8192, 1048, 2646),
        ("llama3-70b", 8192, 1633, 734),
        ("llama3-8b", 8192, 14451, 744),
        ("qwen3-235b-a22b", 4096, 9015, 1335),
        ("qwen3-30b-a3b", 4096, 45275, 1041),
    ],
)
def test_causal_attention_is_what_megatron_reports(
    name: str, sequence_tokens: int, tokens_per_gpu_s: int, tflops_per_gpu: int
) -> None:
    """NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md; the last two have experts."""
    model = published().models[name].shape.transformer()
    ours = tokens_per_gpu_s * model_flops_per_token(model, sequence_tokens, "causal") / 1e12
    assert ours == pytest.approx(tflops_per_gpu, rel=2e-3)  # both published figures are rounded


@given(model=transformers, sequence_tokens=sizes, recompute=st.floats(0, 1))
def test_the_conventions_differ_twofold_on_the_attention_core(
    model: Transformer, sequence_tokens: int, recompute: float
) -> None:
    without = hardware_flops_per_token(model, 0, "full", recompute=recompute)
    causal = hardware_flops_per_token(model, sequence_tokens, "causal", recompute=recompute)
    full = hardware_flops_per_token(model, sequence_tokens, "full", recompute=recompute)
    assert full - without == pytest.approx(2 * (causal - without))


@given(model=transformers, sequence_tokens=sizes)
def test_recomputing_all_of_the_forward_pass_costs_a_third_more(
    model: Transformer, sequence_tokens: int
) -> None:
    once = model_flops_per_token(model, sequence_tokens, "full")
    assert hardware_flops_per_token(model, sequence_tokens, "full", recompute=0) == once
    assert hardware_flops_per_token(model, sequence_tokens, "full", recompute=1) == pytest.approx(
        once * 4 / 3
    )


@given(model=transformers, lengths=st.lists(sizes, min_size=1, max_size=20))
def test_packed_documents_cost_what_they_cost_alone(model: Transformer, lengths: list[int]) -> None:
    packed = sum(lengths) * model_flops_per_token(model, packed_sequence_tokens(lengths), "causal")
    alone = sum(length * model_flops_per_token(model, length, "causal") for length in lengths)
    assert packed == pytest.approx(alone)


@pytest.mark.parametrize(
    ("name", "params", "active_params"),
    [
        ("llama3-8b", 8.03e9, 7.5e9),
        ("llama3-70b", 70.6e9, 69.5e9),
        ("llama3-405b", 405.8e9, 403.7e9),
        ("mixtral-8x7b", 46.7e9, 12.75e9),
        ("mpt-70b", 64.86e9, 64.86e9),
        ("qwen3-235b-a22b", 235e9, 21.5e9),
    ],
)
def test_parameters_follow_from_the_shape(name: str, params: float, active_params: float) -> None:
    model = published().models[name].shape.transformer()
    assert model.params == pytest.approx(params, rel=2e-3)
    assert model.active_params == pytest.approx(active_params, rel=2e-3)


def test_shared_experts_count_for_every_token_and_the_others_for_few() -> None:
    dense = Shape(layers=1, hidden=8, heads=2, kv_heads=2, head_dim=4, vocab=10, ffn=0)
    gated = replace(dense, ffn=16, experts=4, active_experts=2, shared_ffn=5)
    plain = replace(gated, gated=False)
    without, with_gate, with_none = dense.transformer(), gated.transformer(), plain.transformer()
    router = 8 * 4
    assert with_gate.params - without.params == 3 * 8 * (4 * 16 + 5) + router
    assert with_gate.active_params - without.active_params == 3 * 8 * (2 * 16 + 5)
    assert with_none.active_params - without.active_params == 2 * 8 * (2 * 16 + 5)
    assert (with_gate.moe, without.moe) == (True, False)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("h100", "h100"),
        ("h100_80gb", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("a100_40gb", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100"),
        ("NVIDIA H200", "h200"),
        ("DGX-B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("GB300 NVL72", "gb300"),
        ("H100 with NVLink", "h100"),
    ],
)
def test_chips_go_by_many_names(name: str, chip: Chip) -> None:
    assert chip_named(name) == chip


@pytest.mark.parametrize("name", ["", "V100", "NVIDIA GH200 480GB", "H8000", "H1000", "NVIDIA H20"])
def test_a_chip_that_is_not_known_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(InputError) as refused:
        chip_named(name)
    assert "h100" in refused.value.hint


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL"])
def test_boards_with_a_lower_peak_are_not_taken_for_the_module(name: str) -> None:
    with pytest.raises(InputError, match="peak is below"):
        chip_named(name)


def test_a_precision_the_chip_has_not_is_refused() -> None:
    assert peak_flops_per_s("h200", "fp8") == 1979e12
    with pytest.raises(InputError, match="no fp8"):
        peak_flops_per_s("a100", "fp8")


@pytest.mark.parametrize(
    ("chip", "precision", "tflops"),
    [("b200", "fp4", 9000), ("gb300", "fp4", 15_000), ("mi300x", "fp8", 2615), ("mi355x", "bf16", 2517)],
)
def test_the_peak_depends_on_the_precision(chip: Chip, precision: Precision, tflops: int) -> None:
    assert peak_flops_per_s(chip, precision) == tflops * 1e12
    with pytest.raises(InputError, match="no fp4") as caught:
        peak_flops_per_s("h100", "fp4")
    assert caught.value.hint == "Use fp8 or bf16."


def test_more_than_the_peak_is_an_error_of_peak_precision_or_chip() -> None:
    assert impossible("MFU", 100.0, "h100", "bf16", 989e12) == ""
    said = impossible("MFU", 185.5, "h100", "bf16", 989e12)
    assert said.startswith(
        "An MFU of 185.5 % is impossible: the peak, the precision or the chip is not that of the run"
    )
    assert "Assumed are 989 TFLOP/s a GPU (H100, dense bf16)." in said
    assert said.endswith("It would be 92.7 % in fp8, 81.5 % on B200, 74.9 % on GB200.")
    assert "Assumed are 500 TFLOP/s a GPU (dense bf16)." in impossible("MFU", 1e6, None, "bf16", 500e12)
