"""How a training run is spread over GPUs: what is asked, one answer to it, and the arithmetic both share.

A world of GPUs is split as data x tensor x pipeline x context parallel (DP x TP x PP x CP); expert parallel
(EP) is carved out of DP x CP. What is right is in `rules`, what it takes in `memory` and `pace`, what to
choose in `sizing`. Pure arithmetic.
"""

import math
from typing import Annotated, Literal

import msgspec

from holdfast.ledger.flops import Chip, Precision, Shape, memory_bytes
from holdfast.ledger.references import nvlink_domain_gpus

Count = Annotated[int, msgspec.Meta(ge=1)]

Recompute = Literal["none", "selective", "full"]
"""What of the forward pass is computed a second time to save memory.

none: nothing, so the attention matrices are kept unless a kernel fuses them. selective: what the framework
means by it (`Framework`). full: whole layers, of which only the input is kept.
"""

Framework = Literal["megatron", "torchtitan"]
"""Whose selective recomputation and sharding is meant. megatron: the attention core is computed again, as
Korthikanti et al. 2022 do. torchtitan: every second matrix, too, and FSDP has no weights besides those in
float32."""

Zero = Literal[0, 1, 2, 3]
"""What the data parallel ranks share out among them (ZeRO, Rajbhandari et al. 2020): 1 the optimizer's state,
2 the gradients too, 3 the weights too, which is FSDP."""

NODES_PER_RACK = 4
"""Of eight GPUs each, with liquid cooling; what NVLink joins is in one rack, too."""
HEADROOM_SHARE = 0.05
"""Of a GPU's memory, for what no formula has: the CUDA context, buffers of NCCL, fragmentation. Assumed: in
the benchmarks that nanotron publishes (huggingface.co/nanotron) the allocator holds 1 to 7 % more than is in
use."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a run. spare_nodes: those that stand by, beyond `gpus`."""

    chip: Chip
    gpus: int
    gpus_per_node: int = 8
    spare_nodes: int = 0
    precision: Precision = "bf16"

    @property
    def domain_gpus(self) -> int:
        """GPUs that NVLink joins."""
        return nvlink_domain_gpus(self.chip, self.gpus_per_node)

    @property
    def nodes_per_rack(self) -> int:
        return max(NODES_PER_RACK, self.domain_gpus // self.gpus_per_node)

    @property
    def usable_bytes(self) -> int:
        """Memory of one GPU, less headroom."""
        return round(self.memory_bytes * (1 - HEADROOM_SHARE))

    @property
    def memory_bytes(self) -> int:
        """Memory of one GPU."""
        return memory_bytes(self.chip)

    @property
    def paid_gpus(self) -> int:
        return self.gpus + self.spare_nodes * self.gpus_per_node


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What the layout may not change: the training itself.

    global_batch    sequences of a step, all GPUs together
    tokens          to be trained on, in all
    lanes           of a script that joins Holdfast; None: any other
    gradient_bytes  of one gradient: 4 where they are summed in float32, as Megatron-LM and Llama 3 do
    dropout         whether there is dropout, whose masks are kept
    framework       whose memory is meant; None: any
    """

    sequence_tokens: int
    global_batch: int
    tokens: int
    lanes: int | None = None
    gradient_bytes: int = 4
    dropout: bool = False
    framework: Framework | None = None

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.sequence_tokens


class SizingCase(msgspec.Struct, frozen=True, kw_only=True):
    """A model, on a cluster, in a training."""

    name: str
    shape: Shape
    cluster: Cluster
    training: Training


class Parallelism(msgspec.Struct, frozen=True, kw_only=True):
    """One layout.

    interleave   stages of the pipeline that a GPU has; with several the bubble is smaller, and memory larger
    micro_batch  sequences that a replica computes at a time
    shard        of the data parallel ranks, how many hold a copy of the model together, as with `holdfast run
                 --shard`; None: the model is not shared out like that, but over all of them, if at all
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    interleave: int = 1
    micro_batch: int = 1
    zero: Zero = 1
    recompute: Recompute = "selective"
    shard: int | None = None

    @property
    def copy_gpus(self) -> int:
        """GPUs that go together: of a replica and, under `shard`, of those that it shares the model with."""
        return self.replica_gpus * (self.shard or 1)

    @property
    def copies(self) -> int:
        """How many of these there are."""
        return self.dp // (self.shard or 1)

    @property
    def sharers(self) -> int:
        """Ranks over which ZeRO shares state out."""
        return (self.shard or self.dp) * self.cp

    @property
    def replica_gpus(self) -> int:
        """GPUs that hold the model once."""
        return self.tp * self.pp * self.cp

    @property
    def gpus(self) -> int:
        return self.replica_gpus * self.dp

    @property
    def expert_ways(self) -> int:
        """Ranks that an expert layer is split over: EP and TP, or EP alone where it takes TP's ranks too."""
        return self.ep * self.tp if self.dp * self.cp % self.ep == 0 else self.ep

    def __str__(self) -> str:
        split = {"TP": self.tp, "CP": self.cp, "PP": self.pp, "DP": self.dp, "EP": self.ep}
        split["SHARD"] = self.shard or 1
        return " ".join(
            f"{name}{ways}" for name, ways in split.items() if ways > 1 or name in ("TP", "PP", "DP")
        )


def micro_batches(case: SizingCase, layout: Parallelism) -> int:
    """That the busiest replica computes in a step, one after the other: gradient accumulation.

    Where they cannot be dealt out evenly, some replicas have one less, and wait.
    """
    training = case.training
    if training.lanes is None:
        return max(1, math.ceil(training.global_batch // layout.micro_batch / layout.dp))
    lane_batch = training.global_batch // training.lanes
    return math.ceil(training.lanes / layout.dp) * max(1, lane_batch // layout.micro_batch)


def balance(parts: int, holders: int) -> float:
    """The share of their time that holders of equal parts are busy: 1 where all have as many."""
    return parts / holders / math.ceil(parts / holders)


def stage_layers(layers: int, pp: int) -> tuple[int, int, int]:
    """Layers of the first, of the fullest and of the last stage of a pipeline.

    Where two are missing for an even split, the first and the last stage have one less: the input table and
    the output head stand in their place, as in Llama 3. What is left over otherwise goes to the stages
    between.
    """
    least, extra = divmod(layers, pp)
    if extra == 0:
        return least, least, least
    if fills_with_ends(layers, pp):
        return least, least + 1, least
    return least, least + 1, least + (extra == pp - 1)


def fills_with_ends(layers: int, stages: int) -> bool:
    """Whether table and head, each in the place of a layer, make the stages equal."""
    return stages > 1 and (layers + 2) % stages == 0


def imbalance(layers: int, pp: int) -> float:
    """By how much the fullest stage exceeds the mean: all others wait for it."""
    if layers % pp == 0 or fills_with_ends(layers, pp):
        return 1.0
    return math.ceil(layers / pp) / (layers / pp)
