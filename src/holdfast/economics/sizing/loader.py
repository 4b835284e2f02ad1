"""Whether the data loaders keep up: workers, CPUs, shards and memory against what the GPUs take.

One rank of each group that sees the same data (TP x CP) loads it, with worker processes of its own, as
PyTorch's DataLoader has them.
"""

import math
from collections.abc import Iterator
from typing import Annotated

import msgspec

from holdfast.economics.sizing.parallelism import Count, Parallelism, SizingCase

PREFETCH_USUAL = 2
"""Batches that a worker has ready: prefetch_factor of torch.utils.data.DataLoader."""
MEMORY_SHARE_MAX = 0.8
"""Of a node's memory, for what is fetched ahead; the rest is for everything else."""


class Loader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data loader's settings, and what they run on; None for what is not known, and not checked.

    workers        of each rank that loads
    samples_per_s  that one worker prepares, as measured; a sample is a sequence
    shards         files that the data come in
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
    """Why the settings cannot work."""
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
    """What will hold the GPUs up."""
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
