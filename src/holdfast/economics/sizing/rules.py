"""Rules that a layout must follow, each with its reason as a sentence.

`refusals` say why a layout cannot work; `warnings` say why it works, but not well. Data loaders have both,
too. Memory is in `memory`, time in `pace`.
"""

import math
from collections.abc import Iterator
from typing import Annotated

import msgspec

from holdfast.economics.sizing.parallelism import (
    Count,
    Parallelism,
    SizingCase,
    balance,
    fills_with_ends,
    imbalance,
    micro_batches,
)
from holdfast.wording.lanes import few_lanes

BALANCE_MIN = 0.9
"""Warn if the deal of lanes leaves members idle for more than a tenth of the step."""
BUBBLE_MAX = 0.25
"""Warn if the wait in the pipeline exceeds this share of the time it computes."""


def refusals(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    """Reasons why the layout cannot work; none if it can."""
    yield from _nodes(case)
    yield from _tensor(case, layout)
    yield from _pipeline(case, layout)
    yield from _context(case, layout)
    yield from _experts(case, layout)
    yield from _world(case, layout)
    yield from _copies(case, layout)
    yield from _batch(case, layout) if case.training.lanes is None else _lanes(case, layout)


def warnings(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    """Reasons why a working layout loses time."""
    excess = imbalance(case.shape.layers, layout.pp) - 1
    if excess:
        yield (
            f"{case.shape.layers} layers over PP {layout.pp} leave the fullest stage {100 * excess:.1f} % "
            "above the mean, and all others wait for it."
        )
    stages = layout.pp * layout.interleave
    if (
        layout.interleave > 1
        and case.shape.layers % stages
        and not fills_with_ends(case.shape.layers, stages)
    ):
        yield (
            f"{case.shape.layers} layers do not divide into {stages} interleaved stages (PP {layout.pp} x "
            f"{layout.interleave}): the framework must let you assign layers to stages."
        )
    count = micro_batches(case, layout)
    bubble = bubble_share(layout, count)
    if bubble > BUBBLE_MAX:
        yield (
            f"The pipeline stands idle for {100 * bubble:.0f} % of the time it computes: {count} "
            f"micro-batches are few for {layout.pp} stages."
        )
    if layout.interleave > 1 and count % layout.pp:
        yield (
            f"{count} micro-batches are not a multiple of PP {layout.pp}: some interleaved schedules move "
            "them in groups of that many, and refuse others."
        )
    if layout.ep * layout.tp > case.cluster.domain_gpus:
        yield (
            f"EP {layout.ep} x TP {layout.tp} reaches beyond the {case.cluster.domain_gpus} GPUs of an "
            "NVLink domain: its all-to-all in every layer goes over the network."
        )
    lanes = case.training.lanes
    if lanes is not None and balance(lanes, layout.dp) < BALANCE_MIN:
        yield lane_balance_sentence(lanes, layout.dp)
    elif doubt := _few_parts(case, layout):
        yield doubt


def _few_parts(case: SizingCase, layout: Parallelism) -> str:
    """A warning if a lost replica's share is hard to deal evenly. Here micro-batches count as lanes."""
    if case.training.lanes is not None:
        return few_lanes(case.training.lanes, layout.copies, layout.shard or 1)
    parts = case.training.global_batch // layout.micro_batch
    return few_lanes(parts, layout.dp, what="micro-batches") if layout.pp > 1 else ""


def bubble_share(layout: Parallelism, count: int) -> float:
    """The wait in the pipeline over the time it computes (Narayanan et al. 2021, section 2.2)."""
    return (layout.pp - 1) / (layout.interleave * count)


def lane_balance_sentence(lanes: int, members: int) -> str:
    """The cost of an uneven deal, in a sentence."""
    most = -(-lanes // members)
    return (
        f"{members} members share {lanes} lanes unevenly: a step takes the time of {most} lanes where "
        f"{lanes / members:.2f} are the mean, {100 * balance(lanes, members):.0f} % busy."
    )


def _nodes(case: SizingCase) -> Iterator[str]:
    gpus, per_node = case.cluster.gpus, case.cluster.gpus_per_node
    if gpus > per_node and gpus % per_node:
        yield (
            f"{gpus:,} GPUs are not a whole number of nodes of {per_node}: groups of GPUs would straddle "
            "nodes unevenly, and the slowest group sets the pace."
        )


def _tensor(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    tp, shape, domain, node = layout.tp, case.shape, case.cluster.domain_gpus, case.cluster.gpus_per_node
    if tp > domain:
        yield (
            f"TP {tp} reaches beyond the {domain} GPUs of an NVLink domain: it exchanges activations "
            "several times in every layer, and the network is about a tenth as fast."
        )
    elif tp > 1 and node % tp and tp % node:
        yield f"TP {tp} does not tile nodes of {node} GPUs: a group would straddle two of them."
    if shape.heads % tp or shape.kv_heads % tp:
        yield (
            f"TP {tp} does not divide the {shape.heads} heads and {shape.kv_heads} key-value heads: each "
            "GPU computes whole heads."
        )
    if shape.ffn % tp:
        yield f"TP {tp} does not divide the feed-forward width of {shape.ffn}: all GPUs hold equal slices."


def _pipeline(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    layers, stages = case.shape.layers, layout.pp * layout.interleave
    if stages > layers and not fills_with_ends(layers, stages):
        yield f"{stages} stages are more than the {layers} layers: each needs one at least."
    if layout.interleave > 1 and layout.pp == 1:
        yield "There is nothing to interleave without a pipeline: PP is 1."


def _context(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    tokens = case.training.sequence_tokens
    if layout.cp > 1 and tokens % (2 * layout.cp):
        yield (
            f"CP {layout.cp} does not cut {tokens:,} tokens into {2 * layout.cp} equal pieces: each GPU "
            "has one from the front and one from the back, so that the causal mask leaves all with as "
            "much work."
        )


def _experts(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    ep, experts = layout.ep, case.shape.experts
    if ep > 1 and experts == 1:
        yield f"EP {ep} has nothing to divide: {case.name} is not a mixture of experts."
    elif experts % ep:
        yield f"EP {ep} does not divide the {experts} experts: each GPU holds as many."
    if layout.gpus // layout.pp % ep:
        yield (
            f"EP {ep} does not divide DP x CP x TP = {layout.gpus // layout.pp}: the ranks that share out "
            "experts are those of one stage."
        )


def _world(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    if layout.gpus != case.cluster.gpus:
        product = f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp}"
        yield (
            f"{product} x DP {layout.dp} = {layout.gpus:,} are not the {case.cluster.gpus:,} GPUs: every "
            "GPU has one place."
        )


def _copies(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    """Refusals for replicas of several members."""
    if layout.shard is None:
        return
    if layout.shard & (layout.shard - 1):
        yield f"SHARD {layout.shard} is not a power of two: gradients are added along a binary tree."
    if layout.dp % layout.shard:
        yield f"DP {layout.dp} does not divide into replicas over {layout.shard} ranks: each is whole."
    if layout.copy_gpus % case.cluster.gpus_per_node and case.cluster.gpus_per_node % layout.copy_gpus:
        yield (
            f"Replicas of {layout.copy_gpus} GPUs do not fit nodes of {case.cluster.gpus_per_node}: make one "
            "a multiple of the other."
        )


def _batch(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    together, batch = layout.dp * layout.micro_batch, case.training.global_batch
    if batch % together:
        yield (
            f"A global batch of {batch:,} sequences does not divide by DP {layout.dp} x micro-batch "
            f"{layout.micro_batch} = {together:,}: some replicas would have a micro-batch more than "
            "others, and the others would wait."
        )


def _lanes(case: SizingCase, layout: Parallelism) -> Iterator[str]:
    lanes, batch = case.training.lanes or 0, case.training.global_batch
    if layout.shard is None and (layout.replica_gpus > 1 or layout.ep > 1 or layout.zero):
        yield (
            f"Lanes are dealt to members that hold the whole model each; {layout} with ZeRO {layout.zero} "
            "splits it. --shard says how members hold it together."
        )
    if layout.dp > lanes:
        yield f"{layout.dp} members cannot share {lanes} lanes: each needs one at least."
    if batch % lanes:
        yield f"A global batch of {batch:,} sequences does not divide by {lanes} lanes: all have as many."
    elif batch // lanes % layout.micro_batch:
        yield (
            f"A lane's batch of {batch // lanes} sequences does not divide by the micro-batch "
            f"{layout.micro_batch}: a lane is computed in whole ones."
        )


PREFETCH_USUAL = 2
"""Batches that a worker prefetches: prefetch_factor of torch.utils.data.DataLoader."""
MEMORY_SHARE_MAX = 0.8
"""Share of a node's memory for prefetched data; the rest is for everything else."""


class Loader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data loader's settings and its hardware; None: unknown, and not checked.

    One rank of each group that sees the same data (TP x CP) loads it, with its own worker processes, as in
    PyTorch's DataLoader.

    workers        of each rank that loads
    samples_per_s  measured rate of one worker; a sample is a sequence
    shards         number of data files
    sample_bytes   of one sample in memory
    """

    workers: Annotated[int, msgspec.Meta(ge=0)]
    prefetch: Count = PREFETCH_USUAL
    samples_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    shards: Count | None = None
    sample_bytes: Count | None = None
    cpus_per_node: Count | None = None
    node_memory_bytes: Count | None = None


def loader_refusals(case: SizingCase, layout: Parallelism, loader: Loader) -> Iterator[str]:
    """Reasons why the settings cannot work."""
    readers = layout.dp * max(1, loader.workers)
    if loader.shards is not None and loader.shards < readers:
        shards = "1 shard is" if loader.shards == 1 else f"{loader.shards:,} shards are"
        yield (
            f"{shards} fewer than the {readers:,} workers that read them (DP "
            f"{layout.dp} x {max(1, loader.workers)}): the others would have nothing to read."
        )
    if loader.sample_bytes is None or loader.node_memory_bytes is None:
        return
    ahead = _loading_ranks_per_node(case, layout) * loader.workers * loader.prefetch
    needed = ahead * layout.micro_batch * loader.sample_bytes
    if needed > MEMORY_SHARE_MAX * loader.node_memory_bytes:
        yield (
            f"Fetching ahead takes {needed / 2**30:,.1f} GiB of a node's "
            f"{loader.node_memory_bytes / 2**30:,.0f} GiB: {ahead} batches of {layout.micro_batch} x "
            f"{loader.sample_bytes:,} bytes."
        )


def loader_warnings(case: SizingCase, layout: Parallelism, loader: Loader, step_s: float) -> Iterator[str]:
    """Reasons why the loader will delay the GPUs."""
    busy = _loading_ranks_per_node(case, layout) * loader.workers + case.cluster.gpus_per_node
    if loader.cpus_per_node is not None and busy > loader.cpus_per_node:
        yield (
            f"The {case.cluster.gpus_per_node} ranks of a node and their loaders' workers are {busy} "
            f"processes for {loader.cpus_per_node} CPUs: they take turns. "
            f"{_workers_max(case, layout, loader)} workers a rank would not."
        )
    if loader.shards is not None and loader.shards % layout.dp:
        yield (
            f"{loader.shards:,} shards do not divide by DP {layout.dp}: some replicas run through their data "
            "before the others."
        )
    if loader.samples_per_s is not None:
        given = layout.dp * max(1, loader.workers) * loader.samples_per_s
        taken = case.training.global_batch / step_s
        if given < taken:
            enough = math.ceil(taken / (layout.dp * loader.samples_per_s))
            yield (
                f"The loaders give {given:,.1f} samples/s and the GPUs take {taken:,.1f}: a step takes "
                f"{case.training.global_batch / given:,.1f} s in place of {step_s:,.1f} s. {enough} "
                "workers a rank keep up."
            )


def _loading_ranks_per_node(case: SizingCase, layout: Parallelism) -> int:
    return max(1, min(case.cluster.gpus, case.cluster.gpus_per_node) // (layout.tp * layout.cp))


def _workers_max(case: SizingCase, layout: Parallelism, loader: Loader) -> int:
    left = (loader.cpus_per_node or 0) - case.cluster.gpus_per_node
    return max(0, left // _loading_ranks_per_node(case, layout))
