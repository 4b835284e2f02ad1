"""Size files, the flags that override them, and the assumptions for the rest."""

import pytest

from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.economics.sizing.size_file import (
    ClusterTable,
    ModelTable,
    Request,
    TrainingTable,
    merged,
    read,
    understood,
)
from holdfast.economics.sizing.sizing import Wanted
from holdfast.record.errors import InputError

FILE = """
[model]
name = "ours"
layers = 24
hidden = 2048
heads = 16
ffn = 8192
vocab = 50000
experts = 8
active_experts = 2

[cluster]
chip = "NVIDIA H100 80GB HBM3"
gpus = 64
spare_nodes = 1

[training]
sequence_tokens = 4096
global_batch = 256
tokens = 1.5e12
gradient_bytes = 2

[layout]
tp = 2
pp = 4
zero = 1

[loader]
workers = 4
shards = 1024
"""


def complaint(text: str) -> tuple[str, str]:
    with pytest.raises(InputError) as raised:
        understood(read(text), DEFAULTS)
    return raised.value.sentence, raised.value.hint


def test_a_file_is_understood() -> None:
    found = understood(read(FILE), DEFAULTS)
    asked = found.question
    case = asked.case
    assert (case.name, case.shape.kv_heads, case.shape.head_dim) == ("ours", 16, 128)
    assert (case.cluster.chip, case.cluster.gpus_per_node, case.cluster.paid_gpus) == ("h100", 8, 72)
    assert (case.training.tokens, case.training.gradient_bytes) == (1_500_000_000_000, 2)
    assert asked.wanted == Wanted(tp=2, pp=4, cp=1, zero=1)
    assert asked.loader is not None
    assert asked.loader.shards == 1024
    assert not asked.has_free_batch
    assert [one for one in found.assumed if "tokens" in one] == []


def test_what_is_not_said_is_assumed_in_words() -> None:
    found = understood(
        Request(model=ModelTable(name="llama3-8b"), cluster=ClusterTable(chip="gb200", gpus=24)), DEFAULTS
    )
    training = found.question.case.training
    assert found.question.case.cluster.gpus_per_node == 4
    assert (training.sequence_tokens, training.global_batch) == (
        8192,
        384,
    )  # 3 x 128: 24 GPUs share it evenly
    assert training.tokens == 20 * found.question.case.shape.transformer().active_params
    assert found.question.has_free_batch
    text = "\n".join(found.assumed)
    for words in (
        "4 GPUs a node",
        "8,192 tokens",
        "batch of 384",
        "Hoffmann",
        "USD a GPU-hour",
        "5 % of a GPU",
    ):
        assert words in text


def test_flags_go_over_the_file() -> None:
    flags = Request(
        model=ModelTable(name="llama3-8b"),
        cluster=ClusterTable(gpus=128),
        training=TrainingTable(global_batch=512),
        layout=Wanted(tp=4),
    )
    found = merged(read(FILE), flags)
    assert found.model == ModelTable(name="llama3-8b")
    assert (found.cluster.gpus, found.cluster.spare_nodes) == (128, 1)
    assert (found.training.global_batch, found.training.sequence_tokens) == (512, 4096)
    assert (found.layout.tp, found.layout.pp) == (4, 4)
    assert found.loader is not None


def test_lanes_mean_that_every_member_has_the_whole_model() -> None:
    text = FILE.partition("[layout]")[0].replace("gradient_bytes = 2", "lanes = 64")
    assert understood(read(text), DEFAULTS).question.wanted == Wanted(
        tp=1, pp=1, cp=1, ep=1, interleave=1, zero=0
    )


@pytest.mark.parametrize(
    ("before", "after", "sentence", "hint"),
    [
        ("layers = 24\n", "", "layers missing.", "holdfast reference"),
        ("heads = 16", "heads = 15", "15 heads do not divide a hidden size of 2048.", "Give head_dim."),
        ("active_experts = 2", "active_experts = 9", "9 experts are active", "Check experts"),
        ('chip = "NVIDIA H100 80GB HBM3"', "", "chip missing.", "1024 GPUs"),
        ("NVIDIA H100", "TPU v5", "is not known.", "Known are"),
        ("gpus = 64", "gpus = 0", "Expected `int` >= 1 - at `$.cluster.gpus`", "docs/sizing.md"),
        ("[loader]", "[loaders]", "unknown field `loaders`", "docs/sizing.md"),
        ("zero = 1", "zero = 4", "Invalid enum value 4", "docs/sizing.md"),
        ("[model]", "[model", "is not TOML", "docs/sizing.md"),
        ("[model]", "x = " + "[" * 10_000, "is not TOML", "docs/sizing.md"),
        ("spare_nodes = 1", "spare_nodes = -1", "`$.cluster.spare_nodes`", "docs/sizing.md"),
        ("gradient_bytes = 2", "gradient_bytes = 99", "`$.training.gradient_bytes`", "docs/sizing.md"),
        ("[loader]", "[loader]\nsample_bytes = -1", "`$.loader.sample_bytes`", "docs/sizing.md"),
        ("gradient_bytes = 2", "lanes = 48", "48 lanes are not a power of two up to 65536", "Take 32 or 64."),
        ("gradient_bytes = 2", "lanes = 100000", "100000 lanes are not a power of two", "Take 65536."),
    ],
)
def test_mistakes_in_a_file_are_told(before: str, after: str, sentence: str, hint: str) -> None:
    assert before in FILE
    told, hinted = complaint(FILE.replace(before, after, 1))
    assert sentence in told
    assert hint in hinted


def test_a_model_that_is_not_known_is_told_which_are() -> None:
    sentence, hint = complaint('[model]\nname = "llama4"\n[cluster]\nchip = "h100"\ngpus = 8')
    assert sentence == "The model 'llama4' is not known."
    assert "llama3-70b" in hint
