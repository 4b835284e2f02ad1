"""Two inference pools: prefill engines compute a request's key-value cache, decode engines generate from it.

The cache moves from one engine to the other over the fabric, so every pair has a path: the port of either
node and one of the spines. The run takes its samples from these pools (as reinforcement learning does): a
step waits for the slowest engine's share of them.
"""

import msgspec
import numpy as np

from holdfast.drills.levers import POOL_ENGINES, Floats, Indices
from holdfast.twin.cluster import Layout

TRANSFER_S = 0.0387
"""For the 167 MB of a request, as measured in the field with vLLM."""
PREFILL_S = 0.060
DECODE_S = 4.0
REQUESTS_PER_STEP = 4_096
PREFILL_SLOTS = 11
DECODE_SLOTS = 460
"""Requests in work at once, set so that either pool needs about 0.75 of a healthy step for its samples."""
CACHE_USED_SHARE = 0.55
"""The used share of a decode engine's cache under an even load."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The pools at one scrape.

    transfer_s     prefill engine by decode engine: the time a cache takes from one to the other
    requests       the same: the share of all requests that go this way
    cache_share    by decode engine: how full its cache is
    first_token_s  by decode engine: until a request has its first token
    samples_s      how long the pools take for the samples of one step
    """

    transfer_s: Floats
    requests: Floats
    cache_share: Floats
    first_token_s: Floats
    samples_s: float


def spine_of(layout: Layout) -> Indices:
    """Prefill engine by decode engine: the spine that carries the traffic of that pair."""
    engines = np.arange(POOL_ENGINES)
    return (engines[:, None] + engines[None, :]) % layout.spines_per_pod


def exchange(prefill_share: Floats, decode_share: Floats, spines: Floats, weights: Floats) -> Exchange:
    """The state of the pools, given the ports (by engine), spines (by pair) and the router's weights."""
    path = np.minimum(np.minimum(prefill_share[:, None], decode_share[None, :]), spines)
    transfer_s = TRANSFER_S / path
    share = weights / weights.sum()
    requests = np.broadcast_to(share / POOL_ENGINES, transfer_s.shape)
    load = share * POOL_ENGINES  # relative to a router that treats all alike
    prefill_s = REQUESTS_PER_STEP * (requests * (PREFILL_S + transfer_s)).sum(axis=1) / PREFILL_SLOTS
    decode_s = REQUESTS_PER_STEP * share * DECODE_S / DECODE_SLOTS
    queue_s = PREFILL_S * np.maximum(load - 1.0, 0.0) * POOL_ENGINES
    return Exchange(
        transfer_s=transfer_s,
        requests=requests,
        cache_share=np.minimum(CACHE_USED_SHARE * load, 1.0),
        first_token_s=PREFILL_S + transfer_s.mean(axis=0) + queue_s,
        samples_s=float(max(prefill_s.max(), decode_s.max())),
    )
