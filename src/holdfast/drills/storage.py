"""Shared mounts: a filer's bandwidth, shared fairly among the nodes that use it.

The run reads its data and writes its checkpoints here, and so may other jobs. Everything is by mount; a run
that uses several is as slow as the slowest of them.
"""

import msgspec
import numpy as np

from holdfast.drills.levers import Floats, Levers
from holdfast.twin.cluster import Layout

MOUNT_BYTES_PER_S_PER_NODE = 0.5e9
"""A filer's bandwidth scales with its clients."""
CLIENT_BYTES_PER_S_MAX = 2e9
"""The most that one node's mount can take, even from an idle filer."""
READ_BYTES_PER_STEP = 1.2e9
"""By node: text and images of a step, including data read in vain."""
CHECKPOINT_BYTES_PER_GPU = 0.8e9
"""Weights and optimizer of 70e9 parameters at 12 bytes, over 1,024 GPUs."""
OPERATION_BYTES = 2**20
RESPONSE_S = 0.004
"""An operation on a mount that is not crowded."""
CROWDED_SHARE = 0.45
"""Below this share of its usual rate a client's requests begin to time out and are sent again."""
TIMEOUTS_SHARE_MAX = 0.02


def fair_rates(demands: Floats, clients: Floats, capacity: float) -> Floats:
    """Max-min fairness: the rate of each client of each class, none above its demand.

    demands: the rate that one client of a class would take; clients: how many the class has.
    """
    rates = np.zeros(len(demands))
    left, waiting = capacity, float(clients.sum())
    for index in np.argsort(demands, kind="stable"):
        if waiting <= 0:
            break
        rates[index] = min(float(demands[index]), left / waiting)
        left -= rates[index] * float(clients[index])
        waiting -= float(clients[index])
    return rates


class Rates(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """By mount: bytes a second for one node of the run while all of them use it."""

    read: Floats
    write: Floats


def client_rates(layout: Layout, levers: Levers, tick: int) -> Rates:
    """The run's rates. Other jobs write; reads come from the filer's cache."""
    neighbours, delivered = levers.at("neighbours", tick), levers.at("capacity", tick)
    demands = np.full(2, CLIENT_BYTES_PER_S_MAX)
    write = np.empty(layout.count("mount"), np.float32)
    for mount in range(len(write)):
        nodes = len(layout.nodes_of("mount", mount))
        capacity = nodes * MOUNT_BYTES_PER_S_PER_NODE * float(delivered[mount])
        write[mount] = fair_rates(demands, nodes * np.array([1.0, neighbours[mount]]), capacity)[0]
    return Rates(read=MOUNT_BYTES_PER_S_PER_NODE * delivered, write=write)


def write_s(layout: Layout, rates: Floats, state: float) -> float:
    """How long a blocking checkpoint takes: every node writes its part, and the last one counts.

    state: the size of a checkpoint as a multiple of the usual one.
    """
    return state * CHECKPOINT_BYTES_PER_GPU * layout.gpus_per_node / float(rates.min())


def read_s(rates: Floats) -> Floats:
    """By mount: how long a node takes to read the data of a step."""
    return READ_BYTES_PER_STEP / rates


def response_s(rates: Floats) -> Floats:
    """The time of an operation if clients get these rates."""
    return RESPONSE_S * MOUNT_BYTES_PER_S_PER_NODE / rates


def timeouts_share(rates: Floats) -> Floats:
    """The share of operations that have to be sent again."""
    crowded = 1.0 - rates / (CROWDED_SHARE * MOUNT_BYTES_PER_S_PER_NODE)
    share: Floats = TIMEOUTS_SHARE_MAX * np.clip(crowded, 0.0, 1.0)
    return share
