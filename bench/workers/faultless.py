"""Steps without faults, Holdfast's and plain DDP's in turn in the same processes; then their reductions.

Run under `holdfast run`, whose environment DDP's group is made from. Rank 0 writes what it measured.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

import holdfast.train as hf
from holdfast.train import tree
from holdfast.train.group import Rendezvous
from holdfast.train.reduction import Reduction
from holdfast.train.sheets import BucketLayout, Sheet
from holdfast.train.tcp import Credentials, TcpGroup
from model import SEED, batch, build

SAMPLES = 32
"""A step's batch: steps long enough to be worth distributing."""
BLOCK_STEPS = 2
REDUCE_PARAMETERS = 16
REDUCE_ELEMENTS = 1 << 19
"""Of each parameter: 32 MiB of gradients together."""
WARM_UP_ROUNDS = 2
CREDENTIALS = Credentials("faultless", os.environ.get("HOLDFAST_TOKEN", ""))

Pair = tuple[float, float]
"""Seconds: Holdfast's, and the peer's."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    with hf.join() as run:
        steps = alternate_steps(run, given.lanes, given.rounds)
        reductions = alternate_reductions(given.rounds)
    if dist.get_rank() == 0:
        given.result.write_text(json.dumps({"steps": steps, "reductions": reductions}), encoding="ascii")
    dist.destroy_process_group()


def alternate_steps(run: hf.Run, lanes: int, rounds: int) -> list[Pair]:
    """Blocks of steps of the same model with the same batch, in turn, and in turn who is first."""
    model, optimizer = build()
    state = run.protect(model, optimizer, lanes=lanes, seed=SEED)
    protected_steps = state.steps((WARM_UP_ROUNDS + rounds) * BLOCK_STEPS)
    plain_model, plain_optimizer = build()
    replica = DistributedDataParallel(plain_model)
    rank, world = dist.get_rank(), dist.get_world_size()

    def protected_block() -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)  # as `protect` left it
        for step in islice(protected_steps, BLOCK_STEPS):
            for lane in step.lanes:
                lane.backward(model(*batch(step.number, lane.index, lanes, samples=SAMPLES)))
            step.commit()

    def plain_block() -> None:
        torch.use_deterministic_algorithms(False)
        for number in range(BLOCK_STEPS):
            plain_optimizer.zero_grad()
            replica(*batch(number, rank, world, samples=SAMPLES)).backward()
            plain_optimizer.step()

    return alternate(protected_block, plain_block, rounds)


def alternate_reductions(rounds: int) -> list[Pair]:
    """The tree's sum of one lane a member, and gloo's of as many bytes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters = [torch.nn.Parameter(torch.empty(REDUCE_ELEMENTS)) for _ in range(REDUCE_PARAMETERS)]
    layout = BucketLayout(parameters, [], world)
    held, total = Sheet(layout), Sheet(layout)
    held.clear()
    nodes = [tree.cover(lanes) for lanes in tree.deal(world, world)]
    group = TcpGroup(_rendezvous(), rank=rank, size=world, address="127.0.0.1", credentials=CREDENTIALS)
    reduction = Reduction(group, layout, nodes)
    flat = torch.zeros(sum(flat.numel() for flat in total.flats))

    def tree_sum() -> None:
        reduction.begin({nodes[rank][0]: held}, total)
        for bucket in range(layout.buckets):
            reduction.launch(bucket)
        reduction.finish()

    def plain_sum() -> None:
        dist.all_reduce(flat)

    try:
        return alternate(tree_sum, plain_sum, rounds)
    finally:
        dist.barrier()  # no member closes while another still receives
        group.close()


def _rendezvous() -> Rendezvous:
    """Through a store of DDP's kind: there is no coordinator in this measurement."""
    store = PrefixStore("reduction", dist.distributed_c10d._get_default_store())

    def publish(key: str, value: bytes) -> None:
        store.set(key, value.hex())

    def lookup(key: str) -> bytes:
        return bytes.fromhex(store.get(key).decode())

    return Rendezvous(publish, lookup)


def alternate(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> list[Pair]:
    """Seconds of each, taken in turn; all members begin at the same time."""
    pairs = []
    for number in range(WARM_UP_ROUNDS + rounds):
        if number % 2:
            first_s, second_s = _timed_s(ours), _timed_s(theirs)
        else:
            second_s, first_s = _timed_s(theirs), _timed_s(ours)
        pairs.append((first_s, second_s))
    return pairs[WARM_UP_ROUNDS:]


def _timed_s(work: Callable[[], None]) -> float:
    dist.barrier()
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
