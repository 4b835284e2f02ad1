"""The table of published figures: it is consistent, and the right row is found and shown."""

import csv
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.flops import Chip, Precision, chip_named, peak_flops_per_s, precisions
from holdfast.ledger.references import (
    MfuReference,
    ReferenceSetup,
    bandwidth_sentence,
    differences,
    mfu_sentence,
    published,
    published_rate,
    reference_bandwidth,
    reference_mfu,
)

LLM_FOUNDRY = Path(__file__).parents[1] / "data" / "llm-foundry-mfu.csv"
BILLION = 10**9


def setup_of(row: MfuReference) -> ReferenceSetup:
    return ReferenceSetup(
        params=row.params,
        gpus=row.gpus,
        chip=row.chip,
        precision=row.precision,
        moe=row.moe,
        sequence_tokens=row.sequence_tokens,
    )


def test_every_figure_has_a_source_and_every_source_a_figure() -> None:
    table = published()
    used = {row.source for row in table.mfu} | {row.source for row in table.bandwidth}
    assert used | {model.source for model in table.models.values()} == set(table.sources)


def test_no_figure_is_beyond_belief() -> None:
    for row in published().mfu:
        assert 5 < row.mfu_percent < 75, row
        assert peak_flops_per_s(row.chip, row.precision)
        assert (row.active_params or 0) < row.params
    for bandwidth in published().bandwidth:
        assert 100 < bandwidth.bus_gb_per_s < 1000, bandwidth


def test_rows_of_llm_foundry_are_the_best_of_their_kind() -> None:
    best: dict[tuple[str, Chip, int, str], float] = {}
    with LLM_FOUNDRY.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            precision = row["Precision"].removeprefix("amp_")
            kind = ("MPT-" + row["Model"].upper(), chip_named(row["GPU"]), int(row["# GPUs"]), precision)
            if row["SeqLen (T)"] == "2048":
                best[kind] = max(best.get(kind, 0), float(row["MFU"]))
    ours = [row for row in published().mfu if row.source == "llm-foundry"]
    assert {(row.model, row.chip, row.gpus, row.precision): row.mfu_percent for row in ours} == best
    assert len(ours) == len(best)


def test_rows_of_megatron_bridge_are_their_tflops_over_the_peak() -> None:
    rows = [row for row in published().mfu if row.source == "megatron-bridge"]
    assert rows
    for row in rows:
        tflops = int(row.note.partition(" TFLOP/s")[0].replace(",", ""))
        percent = 100 * tflops * 1e12 / peak_flops_per_s(row.chip, row.precision)
        assert row.mfu_percent == pytest.approx(percent, abs=0.05)


def nearest(setup: ReferenceSetup) -> MfuReference:
    found = reference_mfu(setup)
    assert found is not None
    return found


def test_every_row_is_nearest_to_itself() -> None:
    for row in published().mfu:
        found = nearest(setup_of(row))
        assert (found.octaves_from(params=row.params, gpus=row.gpus), differences(setup_of(row), found)) == (
            0,
            (),
        )


@given(
    params=st.integers(10**7, 10**13),
    gpus=st.integers(1, 10**6),
    chip=st.sampled_from(get_args(Chip)),
    precision=st.sampled_from(get_args(Precision)),
    moe=st.booleans(),
)
def test_no_row_alike_is_nearer_than_the_one_found(
    params: int, gpus: int, chip: Chip, precision: Precision, moe: bool
) -> None:
    if precision not in precisions(chip):
        precision = "bf16"
    setup = ReferenceSetup(params=params, gpus=gpus, chip=chip, precision=precision, moe=moe)
    if all(row.precision != precision for row in published().mfu):
        assert reference_mfu(setup) is None
        return
    found = nearest(setup)
    assert found.precision == precision
    alike = [row for row in published().mfu if (row.chip, row.precision, row.moe) == (chip, precision, moe)]
    distance = found.octaves_from(params=params, gpus=gpus)
    assert not alike or distance == min(row.octaves_from(params=params, gpus=gpus) for row in alike)
    assert not alike or found in alike


def test_the_sentence_the_user_reads() -> None:
    row = nearest(ReferenceSetup(params=405 * BILLION, gpus=8192, chip="h100"))
    assert mfu_sentence(41.04, row) == (
        "41.0 % where 43.0 % is the reference (Llama 3 405B, 8,192 H100; The Llama 3 Herd of Models, Table 4)"
    )


def test_a_long_sequence_decides_between_rows_of_one_size() -> None:
    long = ReferenceSetup(params=405 * BILLION, gpus=16384, chip="h100", sequence_tokens=131072)
    assert nearest(long).mfu_percent == 38


def test_a_precision_that_nobody_published_has_no_reference_and_the_rate_of_the_next_slower_one() -> None:
    """48.1 % of the FP8 peak is not 48.1 % of the FP4 peak, which is three times as high."""
    fp4 = ReferenceSetup(params=70 * BILLION, gpus=64, chip="gb300", precision="fp4")
    assert reference_mfu(fp4) is None
    fp8 = msgspec.structs.replace(fp4, precision="fp8")
    assert published_rate(fp4) == published_rate(fp8)
    assert published_rate(fp8).reference == nearest(fp8)


def test_a_silent_source_is_compared_in_the_convention_that_defined_mfu() -> None:
    by_attention = {row.attention: row.compared_as for row in published().mfu}
    assert by_attention == {"unknown": "full", "full": "full", "causal": "causal"}


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        (ReferenceSetup(params=70 * BILLION, gpus=512, chip="h200"), ("the H100 in place of the H200",)),
        (
            ReferenceSetup(params=65 * BILLION, gpus=8192, chip="h100"),
            ("2.69 times the parameters", "1/1.78 of the GPUs"),
        ),
        (ReferenceSetup(params=3 * BILLION, gpus=8, chip="h100", precision="fp8"), ()),
        (
            ReferenceSetup(params=30 * BILLION, gpus=8, chip="b300", moe=True),
            ("the GB300 in place of the B300", "7.83 times the parameters", "32 times the GPUs"),
        ),
    ],
)
def test_what_the_row_does_not_share_with_the_run_is_told(
    setup: ReferenceSetup, told: tuple[str, ...]
) -> None:
    assert differences(setup, nearest(setup)) == told


@pytest.mark.parametrize(
    ("chip", "gpus", "bus_gb_per_s"),
    [("a100", 8, 234.9), ("h100", 8, 480), ("h100", 1024, 370), ("h200", 8, 482.3), ("gb200", 64, 834.6)],
)
def test_bandwidth_within_and_beyond_nvlink(chip: Chip, gpus: int, bus_gb_per_s: float) -> None:
    row = reference_bandwidth(chip, gpus, "all-reduce")
    assert row is not None
    assert row.bus_gb_per_s == bus_gb_per_s


def test_unpublished_bandwidth_is_none() -> None:
    assert reference_bandwidth("b300", 8, "all-reduce") is None
    assert reference_bandwidth("a100", 512, "all-reduce") is None
    assert reference_bandwidth("h100", 8, "broadcast") is None


def test_the_sentence_on_bandwidth() -> None:
    in_node, across = (reference_bandwidth("h100", gpus, "all-reduce") for gpus in (8, 1024))
    assert in_node
    assert across
    assert bandwidth_sentence(452, in_node) == (
        "452.0 GB/s where 480.0 GB/s is the reference (all-reduce, 8 H100; NVIDIA nccl-tests, issue 212)"
    )
    assert bandwidth_sentence(352.21, across).startswith(
        "352.2 GB/s where 370.0 GB/s is the reference (all-reduce, H100; What it actually takes"
    )
