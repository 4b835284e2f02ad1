"""Faults made for real, each with what a diagnosis has to find."""

from collections.abc import Callable
from dataclasses import dataclass

from cluster import MOUNT
from services import CDUS, RUN, Services

HOT_LOOP, HOT_NODES = CDUS[1], (2, 3)
"""The nodes of the second loop, as topology.yaml has it."""
HOT_CPU_SHARE = 0.05
"""Of one processor: a fraction of what a member needs to keep its pace."""
CLOGGED_PASSAGE = 0.4
SLOW_NODE, SLOW_RATE = 1, "60mbit"
SLOW_BYTES_PER_S = 600_000


@dataclass(frozen=True, kw_only=True)
class Fault:
    """name; what it is in words; how to make and to undo it; the truth: domain, subject, mechanisms."""

    name: str
    what: str
    make: Callable[[Services], None]
    undo: Callable[[Services], None]
    domain: str
    subject: str
    mechanisms: tuple[str, ...]


def _cool_less(services: Services) -> None:
    services.set_cdu(HOT_LOOP, passage=CLOGGED_PASSAGE)
    for number in HOT_NODES:
        services.cluster.nodes[number].limits.limit_cpu(HOT_CPU_SHARE)


def _cool_again(services: Services) -> None:
    services.set_cdu(HOT_LOOP, passage=1.0)
    for number in HOT_NODES:
        services.cluster.nodes[number].limits.limit_cpu(None)


def _slow_link(services: Services) -> None:
    services.cluster.nodes[SLOW_NODE].limit_link(SLOW_RATE)


def _mend_link(services: Services) -> None:
    services.cluster.nodes[SLOW_NODE].limit_link(None)


def _slow_storage(services: Services) -> None:
    for node in services.cluster.nodes:
        node.limits.limit_device(services.cluster.device, SLOW_BYTES_PER_S)


def _mend_storage(services: Services) -> None:
    for node in services.cluster.nodes:
        node.limits.limit_device(services.cluster.device, None)


def _switch(name: str) -> tuple[Callable[[Services], None], Callable[[Services], None]]:
    """A fault of the script's own."""
    return (
        lambda services: (services.faults / name).touch(),
        lambda services: (services.faults / name).unlink(missing_ok=True),
    )


_stall_loader, _mend_loader = _switch("loader")
_collect_garbage, _stop_collecting = _switch("gc")

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="cooling",
        what="half the coolant of one loop, and its nodes throttle",
        make=_cool_less,
        undo=_cool_again,
        domain="cooling",
        subject=HOT_LOOP,
        mechanisms=("coolant-flow",),
    ),
    Fault(
        name="link",
        what=f"one node's link at {SLOW_RATE}",
        make=_slow_link,
        undo=_mend_link,
        domain="fabric",
        subject=f"n{SLOW_NODE}/mlx5_0",
        mechanisms=("link-errors",),
    ),
    Fault(
        name="storage",
        what="the mount of samples and checkpoints is slow",
        make=_slow_storage,
        undo=_mend_storage,
        domain="storage",
        subject=MOUNT,
        mechanisms=("storage-slow", "storage-crowded"),
    ),
    Fault(
        name="loader",
        what="the data loader stalls on all members",
        make=_stall_loader,
        undo=_mend_loader,
        domain="software",
        subject=RUN,
        mechanisms=("data-loader",),
    ),
    Fault(
        name="gc",
        what="members collect garbage in turn",
        make=_collect_garbage,
        undo=_stop_collecting,
        domain="software",
        subject=RUN,
        mechanisms=("garbage-collection",),
    ),
)
