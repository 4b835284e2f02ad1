"""How a training run is spread over GPUs: the case, one layout for it, and the arithmetic both share.

A world of GPUs is split as data x tensor x pipeline x context parallel (DP x TP x PP x CP); expert parallel
(EP) is carved out of DP x CP. `rules` checks layouts, `memory` and `pace` compute their needs, and `sizing`
chooses among them. Pure arithmetic.
"""

import math
from typing import Annotated, Literal

import msgspec

from holdfast.ledger.flops import Chip, Precision, Shape, memory_bytes
from holdfast.ledger.references import nvlink_domain_gpus

Count = Annotated[int, msgspec.Meta(ge=1)]

Recompute = Literal["none", "selective", "full"]
"""The part of the forward pass that is computed a second time to save memory.

none: nothing, so the attention matrices are kept unless a kernel fuses them. selective: depends on the
`Framework`. full: whole layers, of which only the input is kept.
"""

Framework = Literal["megatron", "torchtitan"]
"""The framework whose selective recomputation and sharding is meant. megatron: the attention core is
recomputed, as in Korthikanti et al. 2022. torchtitan: every second matrix, too, and FSDP keeps only weights
in float32."""

Zero = Literal[0, 1, 2, 3]
"""What is sharded over the data parallel ranks (ZeRO, Rajbhandari et al. 2020): 1 the optimizer's state, 2
also the gradients, 3 also the weights, which is FSDP."""

NODES_PER_RACK = 4
"""For nodes of eight GPUs with liquid cooling; an NVLink domain is always in one rack."""
HEADROOM_SHARE = 0.05
"""Share of a GPU's memory for uses that no formula covers: the CUDA context, buffers of NCCL, fragmentation.
Assumed: in the benchmarks that nanotron publishes (huggingface.co/nanotron) the allocator holds 1 to 7 % more
than is in use."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a run. spare_nodes: nodes that stand by, beyond `gpus`."""

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
    """The training itself, which the layout may not change.

    global_batch    sequences of a step, all GPUs together
    tokens          to train on, in all
    lanes           of a script that uses Holdfast; None: any other script
    gradient_bytes  of one gradient: 4 if gradients are summed in float32, as in Megatron-LM and Llama 3
    dropout         whether there is dropout, whose masks are kept
    framework       the framework whose memory is meant; None: any
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

    interleave   stages of the pipeline on each GPU; more make the bubble smaller and use more memory
    micro_batch  sequences that a replica computes at a time
    shard        how many of the data parallel ranks hold a copy of the model together, as with `holdfast run
                 --shard`; None: the model is sharded over all of them, if at all
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
        """GPUs of one copy of the model: of a replica or, under `shard`, of all ranks that share it."""
        return self.replica_gpus * (self.shard or 1)

    @property
    def copies(self) -> int:
        """How many copies of the model there are."""
        return self.dp // (self.shard or 1)

    @property
    def sharers(self) -> int:
        """Ranks over which ZeRO shards state."""
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
        """Ranks that an expert layer is split over: EP x TP, or EP alone if it uses TP's ranks too."""
        return self.ep * self.tp if self.dp * self.cp % self.ep == 0 else self.ep

    def __str__(self) -> str:
        split = {"TP": self.tp, "CP": self.cp, "PP": self.pp, "DP": self.dp, "EP": self.ep}
        split["SHARD"] = self.shard or 1
        return " ".join(
            f"{name}{ways}" for name, ways in split.items() if ways > 1 or name in ("TP", "PP", "DP")
        )


def micro_batches(case: SizingCase, layout: Parallelism) -> int:
    """Micro-batches that the busiest replica computes in a step (gradient accumulation).

    If they cannot be dealt evenly, some replicas have one less, and wait.
    """
    training = case.training
    if training.lanes is None:
        return max(1, math.ceil(training.global_batch // layout.micro_batch / layout.dp))
    lane_batch = training.global_batch // training.lanes
    return math.ceil(training.lanes / layout.dp) * max(1, lane_batch // layout.micro_batch)


def balance(parts: int, holders: int) -> float:
    """The share of time that holders of equal parts are busy: 1 if all hold the same number."""
    return parts / holders / math.ceil(parts / holders)


def stage_layers(layers: int, pp: int) -> tuple[int, int, int]:
    """Layers of the first, of the fullest and of the last stage of a pipeline.

    If two layers are missing for an even split, the first and the last stage have one less: the input table
    and the output head take their place, as in Llama 3. Otherwise the remainder goes to the stages in
    between.
    """
    least, extra = divmod(layers, pp)
    if extra == 0:
        return least, least, least
    if fills_with_ends(layers, pp):
        return least, least + 1, least
    return least, least + 1, least + (extra == pp - 1)


def fills_with_ends(layers: int, stages: int) -> bool:
    """Whether the stages are equal if table and head each count as a layer."""
    return stages > 1 and (layers + 2) % stages == 0


def imbalance(layers: int, pp: int) -> float:
    """By how much the fullest stage exceeds the mean: all others wait for it."""
    if layers % pp == 0 or fills_with_ends(layers, pp):
        return 1.0
    return math.ceil(layers / pp) / (layers / pp)
