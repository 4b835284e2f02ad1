"""The time of a step compared with published figures, and its parts."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.economics.sizing.pace import pace, setup_of
from holdfast.economics.sizing.parallelism import Cluster, Parallelism, SizingCase, Training
from holdfast.ledger.flops import Chip, Shape
from holdfast.ledger.references import published, published_rate


def case_of(
    shape: Shape, layout: Parallelism, *, sequence: int, batch: int, chip: Chip = "h100"
) -> SizingCase:
    training = Training(sequence_tokens=sequence, global_batch=batch, tokens=1)
    cluster = Cluster(chip=chip, gpus=layout.gpus)
    return SizingCase(name="model", shape=shape, cluster=cluster, training=training)


def llama(layout: Parallelism, *, sequence: int = 8192, batch: int = 2048) -> SizingCase:
    return case_of(published().models["llama3-405b"].shape, layout, sequence=sequence, batch=batch)


def mfu_percent(case: SizingCase, layout: Parallelism) -> float:
    return pace(case, layout, published_rate(setup_of(case)).reference).mfu_percent


LLAMA_8K = Parallelism(tp=8, pp=16, dp=64, interleave=8, zero=2)
LLAMA_16K = msgspec.structs.replace(LLAMA_8K, dp=128)
LLAMA_LONG = msgspec.structs.replace(LLAMA_8K, cp=16, dp=8)


@pytest.mark.parametrize(
    ("layout", "sequence", "batch", "published_percent", "points"),
    [  # Table 4 of the Llama 3 paper. The first is what REFERENCE_OVERHEAD was set by; the others follow.
        (LLAMA_8K, 8192, 2048, 43, 0.1),
        (LLAMA_16K, 8192, 2048, 41, 2),
        (LLAMA_LONG, 131_072, 128, 38, 1),
    ],
)
def test_llama_3s_layouts_come_near_their_mfu(
    layout: Parallelism, sequence: int, batch: int, published_percent: float, points: float
) -> None:
    found = mfu_percent(llama(layout, sequence=sequence, batch=batch), layout)
    assert found == pytest.approx(published_percent, abs=points)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "layout", "batch", "published_s"),
    [  # Korthikanti et al. 2022, Tables 3 and 5, with selective recomputation, on A100s
        (48, 6144, 64, Parallelism(tp=8, micro_batch=4, zero=0), 4, 1.10),
        (96, 12288, 96, Parallelism(tp=8, pp=8, interleave=3, zero=0), 64, 13.75),
        (105, 20480, 128, Parallelism(tp=8, pp=35, interleave=3, zero=0), 280, 37.83),
        (128, 25600, 160, Parallelism(tp=8, pp=64, zero=0), 512, 71.49),
    ],
    ids=["22B", "175B", "530B", "1T"],
)
def test_megatrons_steps_are_met_within_a_quarter(
    layers: int, hidden: int, heads: int, layout: Parallelism, batch: int, published_s: float
) -> None:
    shape = Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=51_200,
        gated=False,
        tied=True,
    )
    case = case_of(shape, layout, sequence=2048, batch=batch, chip="a100")
    found = pace(case, layout, published_rate(setup_of(case)).reference)
    assert found.step_s == pytest.approx(published_s, rel=0.25)


def test_a_precision_of_which_no_run_is_published_is_no_quicker_than_the_next_slower_one() -> None:
    layout = Parallelism(tp=2, pp=2, dp=16, zero=2)
    case = case_of(published().models["llama3-70b"].shape, layout, sequence=8192, batch=512, chip="gb300")
    steps_s = {}
    for precision in ("bf16", "fp8", "fp4"):
        cluster = msgspec.structs.replace(case.cluster, precision=precision)
        found = msgspec.structs.replace(case, cluster=cluster)
        steps_s[precision] = pace(found, layout, published_rate(setup_of(found)).reference).step_s
    assert steps_s["bf16"] > steps_s["fp8"] == steps_s["fp4"]


def test_the_parts_make_the_step_and_none_beats_what_was_published() -> None:
    slow = msgspec.structs.replace(LLAMA_16K, interleave=1)
    case = llama(slow)
    found = pace(case, slow, published_rate(setup_of(case)).reference)
    assert (found.step_s, found.unexplained_s) == (found.busy_s, 0)
    assert found.bubble_s == pytest.approx(15 / 16 * (found.busy_s - found.bubble_s))
    lean = Parallelism(dp=8, zero=3)
    small = case_of(published().models["llama3-8b"].shape, lean, sequence=8192, batch=512)
    reference = published_rate(setup_of(small)).reference
    bound = pace(small, lean, reference)
    assert bound.mfu_percent == pytest.approx(reference.mfu_percent)
    assert bound.unexplained_s > 0
    assert bound.busy_s + bound.unexplained_s == pytest.approx(bound.step_s)


def test_computing_layers_again_costs_a_third_of_the_flops() -> None:
    case = llama(LLAMA_16K)
    reference = published_rate(setup_of(case)).reference
    plain, again = (
        pace(case, msgspec.structs.replace(LLAMA_16K, recompute=kind), reference)
        for kind in ("selective", "full")
    )
    assert again.recompute_s == pytest.approx(plain.compute_s / 3)
    assert again.tensor_s == pytest.approx(1.5 * plain.tensor_s)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([2, 4, 8, 16]), st.sampled_from([1, 2, 4]))
def test_more_micro_batches_make_a_smaller_bubble(interleave: int, pp: int, more: int) -> None:
    # 126 layers and two ends make 128 places.
    layout = Parallelism(tp=8, pp=pp, dp=8, interleave=interleave)
    reference = published_rate(setup_of(llama(layout))).reference
    shares = []
    for batch in (256 * more, 512 * more):
        found = pace(llama(layout, batch=batch), layout, reference)
        shares.append(found.bubble_s / found.busy_s)
    assert shares[1] < shares[0]


def test_replicas_far_apart_pay_for_what_computing_does_not_hide() -> None:
    shape = published().models["llama3-70b"].shape
    layout = Parallelism(tp=1, dp=256, zero=3)
    near = case_of(shape, layout, sequence=8192, batch=256)
    short = case_of(shape, layout, sequence=512, batch=256)
    reference = published_rate(setup_of(near)).reference
    assert pace(near, layout, reference).data_s < pace(short, layout, reference).data_s


def test_what_hides_the_experts_exchange_cannot_hide_that_of_zero_as_well() -> None:
    """DeepSeek-V3 on 2,048 H800, TP4: 15,360 sequences of 4,096 tokens are 30 micro-batches on each of 512.

    Experts: 1,024 tokens a GPU, each to 8 experts of 7,168 numbers of 2 bytes, 4 times in each of 61 layers,
    all but a 128th of it over 400 Gbit/s at 92 %, which is 46 GB/s: 0.618 s a micro-batch.
    """
    layout = Parallelism(tp=4, dp=512, ep=128, zero=3)
    shape = published().models["deepseek-v3"].shape
    case = case_of(shape, layout, sequence=4096, batch=15_360, chip="h800")
    found = pace(case, layout, published_rate(setup_of(case)).reference)
    exchanged_s = 30 * 4 * 61 * 127 / 128 * 1_024 * 8 * 7_168 * 2 / 46e9
    assert found.expert_s == 0
    assert found.expert_hidden_s == pytest.approx(exchanged_s) == pytest.approx(18.54, abs=0.01)
    computing_s = found.busy_s - found.data_s
    assert found.data_hidden_s == pytest.approx(computing_s - exchanged_s)
    assert found.data_s > 0
    # Within one NVLink domain the experts' exchange leaves the network alone: all of the time hides ZeRO's.
    near = msgspec.structs.replace(layout, ep=2)
    alone = pace(case, near, published_rate(setup_of(case)).reference)
    assert alone.data_hidden_s == pytest.approx(alone.busy_s - alone.data_s)
