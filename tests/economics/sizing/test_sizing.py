"""Rules and their sentences, survival of a lost node, data loaders, and the nearest layouts that fit."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.economics.sizing.parallelism import (
    Cluster,
    Parallelism,
    SizingCase,
    Training,
    balance,
    micro_batches,
)
from holdfast.economics.sizing.rules import Loader, loader_refusals, loader_warnings, refusals, warnings
from holdfast.economics.sizing.sizing import (
    Sized,
    SizingQuestion,
    Wanted,
    answer,
    fitting,
    nearest_gpus,
    suitable_batch,
)
from holdfast.ledger.flops import Chip
from holdfast.ledger.references import published
from holdfast.record.errors import InputError


def case_of(
    model: str = "llama3-70b",
    *,
    gpus: int = 64,
    chip: Chip = "h100",
    batch: int = 512,
    sequence: int = 8192,
    lanes: int | None = None,
    spare_nodes: int = 0,
) -> SizingCase:
    per_node = 4 if chip in ("gb200", "gb300") else 8
    return SizingCase(
        name=model,
        shape=published().models[model].shape,
        cluster=Cluster(chip=chip, gpus=gpus, gpus_per_node=per_node, spare_nodes=spare_nodes),
        training=Training(sequence_tokens=sequence, global_batch=batch, tokens=10**12, lanes=lanes),
    )


def question(case: SizingCase, **settled: int | str) -> SizingQuestion:
    return SizingQuestion(case=case, usd_per_gpu_hour=2.0, wanted=msgspec.convert(settled, Wanted))


def only(sentences: Iterable[str]) -> str:
    (sentence,) = sentences
    return sentence


def refusal(asked: SizingQuestion) -> tuple[str, str]:
    with pytest.raises(InputError) as raised:
        answer(asked)
    return raised.value.sentence, raised.value.hint


# ---- rules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "layout", "reason"),
    [
        (case_of(gpus=20), Parallelism(tp=4, pp=5), "not a whole number of nodes of 8"),
        (case_of(), Parallelism(tp=16, dp=4), "beyond the 8 GPUs of an NVLink domain"),
        (case_of("qwen3-30b-a3b"), Parallelism(tp=8, dp=8), "4 key-value heads"),
        (case_of(), Parallelism(pp=128, dp=1, tp=1), "more than the 80 layers"),
        (case_of(), Parallelism(tp=8, dp=8, interleave=2), "nothing to interleave"),
        (case_of(sequence=8200), Parallelism(tp=4, cp=8, dp=2), "into 16 equal pieces"),
        (case_of(), Parallelism(tp=8, dp=8, ep=8), "not a mixture of experts"),
        (case_of("mixtral-8x7b"), Parallelism(dp=64, ep=16), "does not divide the 8 experts"),
        (case_of("mixtral-8x7b"), Parallelism(tp=1, pp=16, dp=4, ep=8), "DP x CP x TP = 4"),
        (case_of(), Parallelism(tp=8, dp=4), "= 32 are not the 64 GPUs"),
        (case_of(batch=100), Parallelism(tp=8, dp=8), "does not divide by DP 8 x micro-batch 1"),
        (case_of(lanes=32, gpus=8), Parallelism(tp=8, zero=0), "hold the whole model"),
        (case_of(lanes=32), Parallelism(dp=64, zero=0), "64 members cannot share 32 lanes"),
        (case_of(lanes=128, batch=64), Parallelism(dp=64, zero=0), "does not divide by 128 lanes"),
        (case_of(lanes=128), Parallelism(dp=64, zero=0, micro_batch=8), "A lane's batch of 4 sequences"),
    ],
)
def test_what_is_wrong_is_told_with_its_reason(case: SizingCase, layout: Parallelism, reason: str) -> None:
    found = list(refusals(case, layout))
    assert any(reason in sentence for sentence in found), found
    assert all(sentence.endswith(".") for sentence in found)


def test_tensor_parallelism_may_span_a_rack_that_nvlink_joins() -> None:
    layout = Parallelism(tp=8, dp=9)
    assert list(refusals(case_of(gpus=72, chip="gb200", batch=576), layout)) == []
    assert any(
        "straddle" in one for one in refusals(case_of(gpus=72, chip="gb200"), Parallelism(tp=6, dp=12))
    )


@pytest.mark.parametrize(
    ("case", "layout", "warning"),
    [
        (case_of(gpus=24), Parallelism(tp=8, pp=3), "1.2 % above the mean"),
        (case_of(batch=16), Parallelism(tp=8, pp=8), "idle for 44 % of the time it computes"),
        (case_of("mixtral-8x7b"), Parallelism(tp=2, dp=32, ep=8), "goes over the network"),
        (case_of(lanes=32, gpus=24), Parallelism(dp=24, zero=0), "time of 2 lanes where 1.33 are the mean"),
        (case_of(lanes=64), Parallelism(dp=64, zero=0), "64 lanes are few for 64 replicas"),
        (case_of(batch=8, gpus=64), Parallelism(tp=1, pp=8, dp=8), "8 micro-batches are few for 8 replicas"),
        (case_of(batch=24), Parallelism(tp=4, pp=16, interleave=5), "not a multiple of PP 16"),
        (case_of(), Parallelism(tp=8, pp=2, dp=4, interleave=3), "do not divide into 6 interleaved stages"),
    ],
)
def test_what_costs_time_is_warned_of(case: SizingCase, layout: Parallelism, warning: str) -> None:
    assert list(refusals(case, layout)) == []
    assert any(warning in sentence for sentence in warnings(case, layout)), list(warnings(case, layout))


@given(st.integers(1, 4096), st.integers(1, 512))
def test_balance_is_the_mean_over_the_most(lanes: int, members: int) -> None:
    dealt = [lanes // members + (rank < lanes % members) for rank in range(members)]
    assert balance(lanes, members) == pytest.approx(sum(dealt) / members / max(dealt))


# ---- the choice ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_llama_3s_own_layout_is_the_best_for_its_cluster() -> None:
    case = case_of("llama3-405b", gpus=16_384, batch=2048)
    best = answer(question(case)).sized[0]
    assert str(best.layout) == "TP8 PP16 DP128"  # Table 4
    assert best.micro_batches == 16


@pytest.mark.slow
def test_llama_3_405bs_gpu_hours_are_met() -> None:
    # The model card says 30.84 million GPU-hours, with failures in them; 15.6e12 tokens (section 3.4). The
    # median of what is published is 43 %; Llama 3 itself reached 41 % on so many.
    case = case_of("llama3-405b", gpus=16_384, batch=2048)
    training = msgspec.structs.replace(case.training, tokens=15_600_000_000_000)
    best = answer(question(msgspec.structs.replace(case, training=training))).sized[0]
    assert best.days * 24 * 16_384 == pytest.approx(30.84e6, rel=0.1)


@pytest.mark.parametrize(
    ("gpus", "sequence", "batch", "cp", "dp"),
    [(8192, 8192, 2048, 1, 64), (16_384, 8192, 2048, 1, 128), (16_384, 131_072, 128, 16, 8)],
)
def test_llama_3s_layouts_are_accepted(gpus: int, sequence: int, batch: int, cp: int, dp: int) -> None:
    case = case_of("llama3-405b", gpus=gpus, batch=batch, sequence=sequence)
    (checked,) = answer(question(case, tp=8, pp=16, cp=cp, recompute="selective")).sized
    assert checked.layout.dp == dp
    assert checked.memory_bytes <= case.cluster.usable_bytes


@settings(max_examples=examples(25), deadline=None)
@given(
    st.sampled_from(["llama3-8b", "llama3-70b", "mixtral-8x7b", "gpt3-175b"]),
    st.integers(1, 40),
    st.sampled_from([64, 96, 512]),
)
def test_every_layout_that_is_proposed_keeps_all_rules(model: str, nodes: int, batch: int) -> None:
    case = case_of(model, gpus=8 * nodes, batch=batch, sequence=2048)
    for layout in fitting(question(case)):
        assert layout.gpus == 8 * nodes
        assert micro_batches(case, layout) * layout.dp * layout.micro_batch == batch
        assert case.shape.layers % layout.pp == 0 or (case.shape.layers + 2) % layout.pp == 0
        assert list(refusals(case, layout)) == []


@pytest.mark.slow
def test_the_ranking_is_by_cost_with_one_row_for_a_split() -> None:
    sized = answer(question(case_of(gpus=1024))).sized
    assert [one.usd for one in sized] == sorted(one.usd for one in sized)
    assert len({str(one.layout) for one in sized}) == len(sized)
    best = sized[0]
    steps = 10**12 / (512 * 8192)
    assert best.days == pytest.approx(steps * best.pace.step_s / 86_400)
    assert best.usd == pytest.approx(best.days * 24 * 1024 * 2.0)


def test_spare_nodes_are_paid_for() -> None:
    without, spared = (
        answer(question(case_of(gpus=64, spare_nodes=spares), tp=8, pp=4)).sized[0] for spares in (0, 1)
    )
    assert spared.usd == pytest.approx(without.usd * 72 / 64)
    assert spared.survival.sentence == "a spare node takes its place"


# ---- refused, with the nearest right ones ----------------------------------------------------------------


def test_nineteen_gpus_are_refused_with_sixteen_and_twenty_four() -> None:
    case = case_of("llama3-8b", gpus=19, batch=suitable_batch(19, 8192))
    sentence, hint = refusal(msgspec.structs.replace(question(case), has_free_batch=True))
    assert sentence.startswith("19 GPUs are not a whole number of nodes of 8")
    assert hint == "The nearest numbers of GPUs that fit are 16 and 24."
    # With a batch of 512, which does not divide by three, the next is 32.
    assert nearest_gpus(question(case_of("llama3-8b", gpus=19))) == (16, 32)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_the_number() -> None:
    sentence, hint = refusal(question(case_of("llama3-405b", gpus=16)))
    assert "needs 350.0 to 522.2 GiB a GPU (by formula gradients 94.5, optimizer 283.5" in sentence
    assert sentence.endswith("where the H100 has 79.6 GiB.")
    assert hint == "The nearest number of GPUs that fits is 96."


def test_a_wrong_layout_is_refused_with_the_nearest_right_ones() -> None:
    sentence, hint = refusal(question(case_of(gpus=1024), tp=8, pp=3, cp=1))
    assert sentence.startswith("TP 8 x PP 3 x CP 1 x DP 42 = 1,008 are not the 1,024 GPUs")
    assert hint == "The nearest that fit are TP8 PP4 DP32, TP8 PP2 DP64 and TP4 PP4 DP64."
    sentence, hint = refusal(question(case_of(gpus=1024), tp=3))
    assert "TP 3" in sentence
    assert "TP4" in hint


def test_a_layout_that_needs_sharding_is_told_which() -> None:
    sentence, hint = refusal(question(case_of(gpus=1024), tp=8, pp=1, cp=1, zero=0))
    assert "optimizer 98.6" in sentence
    assert hint.startswith("The nearest that fit are TP8 PP1 DP128 with ZeRO 1")


def test_lanes_beyond_their_number_are_refused_with_what_fits() -> None:
    settled = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "interleave": 1, "zero": 0}
    case = case_of("llama3-8b", gpus=72, chip="b300", lanes=64)
    sentence, hint = refusal(question(case, **settled))
    assert sentence == "72 members cannot share 64 lanes: each needs one at least."
    assert hint == "The nearest number of GPUs that fits is 64."


@given(st.integers(1, 5000), st.sampled_from([2048, 8192, 131_072]))
def test_a_suitable_batch_divides_by_the_odd_part_of_the_gpus(gpus: int, sequence: int) -> None:
    odd = gpus
    while odd % 2 == 0:
        odd //= 2
    batch = suitable_batch(gpus, sequence)
    assert batch % odd == 0
    assert batch == odd or 0.7 < batch * sequence / 4e6 < 1.42


# ---- the loss of a node ----------------------------------------------------------------------------------


def sized_as(case: SizingCase, **settled: int | str) -> Sized:
    return answer(question(case, **settled)).sized[0]


def test_replicas_go_on_without_the_one_that_a_node_took() -> None:
    after = sized_as(case_of(gpus=1024), tp=8, pp=4, cp=1).survival
    assert (after.survives, after.dp, after.idle_gpus, after.needs_saved) == (True, 31, 24, True)
    # 512 micro-batches: 17 in place of 16 for the busiest of 31.
    assert after.slowdown == pytest.approx(17 / 16, abs=0.02)


def test_a_node_takes_all_replicas_that_it_holds() -> None:
    after = sized_as(case_of("llama3-8b", gpus=64), tp=1, pp=1, cp=1).survival
    assert (after.dp, after.idle_gpus) == (56, 0)


def test_without_another_replica_only_a_spare_node_helps() -> None:
    alone = case_of("llama3-405b", gpus=256)
    settled = {"tp": 8, "pp": 32, "cp": 1}
    assert not sized_as(alone, **settled).survival.survives
    assert any("does not survive" in one for one in sized_as(alone, **settled).warnings)
    spared = case_of("llama3-405b", gpus=256, spare_nodes=1)
    assert sized_as(spared, **settled).survival.survives


def test_experts_that_replicas_share_go_together() -> None:
    after = sized_as(case_of("mixtral-8x7b", gpus=64), tp=2, pp=1, cp=1, ep=8).survival
    assert after.dp == 24  # a node holds 4 of 32, and all 8 that share its experts go


def test_state_shared_among_fewer_may_no_longer_fit() -> None:
    # 16 bytes of 70.6e9 parameters over 16 GPUs are 66 GiB; over the 8 that are left, 132.
    after = sized_as(case_of(gpus=16), tp=8, pp=1, zero=3, recompute="full", micro_batch=1).survival
    assert not after.survives
    assert after.sentence.startswith("with 1 of 2 replicas a GPU needs 1")


@pytest.mark.slow
def test_only_those_that_survive_are_ranked_when_asked() -> None:
    asked = msgspec.structs.replace(question(case_of("llama3-405b", gpus=256)), must_survive=True)
    assert all(one.survival.survives for one in answer(asked).sized)
    sentence, hint = refusal(
        msgspec.structs.replace(question(case_of("llama3-8b", gpus=8)), must_survive=True)
    )
    assert sentence == "llama3-8b fits on 8 GPUs, but no layout survives the loss of a node."
    assert hint == "Add a spare node, or more nodes."


def test_members_with_the_whole_model_have_their_state_from_a_peer() -> None:
    settled = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "interleave": 1, "zero": 0}
    after = sized_as(case_of("llama3-8b", gpus=32, chip="b300", lanes=64), **settled).survival
    assert (after.survives, after.dp, after.needs_saved) == (True, 24, False)
    # 64 lanes on 24 members: 3 for the busiest, where 2 were before.
    assert after.slowdown == pytest.approx(3 / 2, abs=0.01)


def sharded(gpus: int = 64, lanes: int | None = 256, **settled: int) -> Sized:
    """The layout of `holdfast run --shard 8`."""
    asked = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "interleave": 1, "zero": 3, "shard": 8, **settled}
    return sized_as(case_of("llama3-8b", gpus=gpus, lanes=lanes), **asked)


def test_a_replica_of_several_members_shares_the_state_among_its_own_ranks() -> None:
    params = case_of("llama3-8b").shape.transformer().params
    used = sharded().memory
    assert used.optimizer_bytes == pytest.approx(12 * params / 8, rel=0.001)
    # 256 lanes over 64 ranks are 4 on each, and so 3 sheets of what a rank has.
    assert used.gradients_bytes == pytest.approx(3 * 4 * params / 8, rel=0.001)
    assert sharded(gpus=128).memory.optimizer_bytes == used.optimizer_bytes
    assert str(sharded().layout) == "TP1 PP1 DP64 SHARD8"


def test_replicas_of_several_members_have_their_state_from_a_peer() -> None:
    found = sharded()
    assert [one.outcome for one in found.losses] == ["refilled", "shelved", "shelved"]
    after = found.survival
    assert (after.survives, after.dp, after.needs_saved, after.idle_gpus) == (True, 7, False, 0)
    # 32 lanes of a replica on 7: 5 for the busiest, where 4 were before.
    assert after.slowdown == pytest.approx(5 / 4, abs=0.01)
    two_nodes = sharded(shard=16)
    assert (two_nodes.survival.dp, two_nodes.survival.idle_gpus) == (3, 8)
    assert sized_as(case_of("llama3-8b")).losses == ()


@pytest.mark.parametrize(
    ("settled", "reason"),
    [
        ({"shard": 3, "dp": 63}, "SHARD 3 is not a power of two"),
        ({"shard": 16, "dp": 24, "gpus": 24}, "DP 24 does not divide into replicas over 16 ranks"),
        ({"shard": 2, "tp": 2, "dp": 3, "gpus": 6}, "Replicas of 4 GPUs do not fit nodes of 6"),
    ],
)
def test_replicas_that_do_not_fit_are_refused(settled: dict[str, int], reason: str) -> None:
    layout = {name: count for name, count in settled.items() if name != "gpus"}
    case = case_of("llama3-8b", gpus=settled.get("gpus", 64), lanes=256)
    if settled.get("gpus") == 6:
        case = msgspec.structs.replace(case, cluster=Cluster(chip="h100", gpus=6, gpus_per_node=6))
    assert any(reason in one for one in refusals(case, msgspec.convert({**layout, "zero": 3}, Parallelism)))


# ---- the data loader -------------------------------------------------------------------------------------

TP8 = Parallelism(tp=8, dp=8)
LOADER = Loader(workers=4)


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (Loader(workers=4, shards=31), "31 shards are fewer than the 32 workers"),
        (Loader(workers=4, shards=32), ""),
        (
            Loader(workers=8, prefetch=4, sample_bytes=10**9, node_memory_bytes=32 * 2**30),
            "takes 29.8 GiB of a node's 32 GiB",
        ),
        (Loader(workers=8, prefetch=2, sample_bytes=10**9, node_memory_bytes=32 * 2**30), ""),
    ],
)
def test_a_loader_that_cannot_work_is_refused(loader: Loader, reason: str) -> None:
    found = list(loader_refusals(case_of(), TP8, loader))
    assert [reason in sentence for sentence in found] == [True] * bool(reason)


def test_a_batch_that_cannot_be_dealt_out_is_what_to_change() -> None:
    sentence, hint = refusal(
        question(case_of("llama3-8b", gpus=64, batch=100), tp=1, pp=1, cp=1, micro_batch=1)
    )
    assert "A global batch of 100 sequences does not divide" in sentence
    assert hint == "The nearest global batches that fit are 64 and 128."


def test_a_loader_that_cannot_work_is_what_to_change() -> None:
    with pytest.raises(InputError) as caught:
        answer(SizingQuestion(case=case_of(), usd_per_gpu_hour=1.0, loader=Loader(workers=4, shards=1)))
    assert "1 shard is fewer" in caught.value.sentence
    assert caught.value.hint == "The model fits; [loader] needs more shards, or fewer workers."


def test_too_many_workers_for_the_cpus() -> None:
    loader = msgspec.structs.replace(LOADER, cpus_per_node=32)
    flat = Parallelism(dp=64)
    assert list(loader_warnings(case_of(), TP8, loader, 1.0)) == []
    assert only(loader_warnings(case_of(), flat, loader, 1.0)) == (
        "The 8 ranks of a node and their loaders' workers are 40 processes for 32 CPUs: they take turns. "
        "3 workers a rank would not."
    )


def test_shards_that_replicas_cannot_share_evenly() -> None:
    loader = msgspec.structs.replace(LOADER, shards=100)
    assert "100 shards do not divide by DP 8" in only(loader_warnings(case_of(), TP8, loader, 1.0))


def test_a_loader_that_is_too_slow_is_told_what_keeps_up() -> None:
    # 512 samples in 10 s: 51.2 a second, where 8 ranks x 4 workers give 32.
    loader = msgspec.structs.replace(LOADER, samples_per_s=1.0)
    assert only(loader_warnings(case_of(), TP8, loader, 10.0)) == (
        "The loaders give 32.0 samples/s and the GPUs take 51.2: a step takes 16.0 s in place of 10.0 s. "
        "7 workers a rank keep up."
    )


def test_a_loader_is_checked_with_every_layout() -> None:
    asked = msgspec.structs.replace(question(case_of()), loader=Loader(workers=4, shards=16))
    assert {one.layout.dp for one in answer(asked).sized} <= {1, 2, 4}
