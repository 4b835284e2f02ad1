"""Faults made for real, each with what a diagnosis has to find."""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster import MOUNT
from services import CDUS, KERNELS_S, RUN, VERSION, Services

HOT_LOOP, HOT_NODES = CDUS[1], (2, 3)
"""The nodes of the second loop, as topology.yaml has it."""
HOT_CPU_SHARE = 0.05
"""Of one processor: a fraction of what a member needs to keep its pace."""
CLOGGED_PASSAGE = 0.4
SLOW_NODE, SLOW_RATE = 1, "60mbit"
SLOW_BYTES_PER_S = 600_000
LOSSY_NODE, LOST_SHARE = 1, 0.1
FULL_NODE = 3
FILL_ROUNDS, FILL_PAUSE_S, FILL_BYTES = 40, 0.05, (1 << 20, 4096)
SHORT_NODE, ROOM_BYTES = 2, 48 << 20
"""What is left of its memory: less than the table that its member looks up."""
NEW_VERSION, NEW_KERNELS_S = "575.51.03", 0.2
HUNG_NODE = 2
HANG_S = 26.0
"""Diagnosis waits for 20 s before it calls a run that stands a hang."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """name; what it is in words; how to make and to undo it; the truth: domain, subject, mechanisms.

    affected  members, all of which and no other must be named; empty: not asked for
    least_s   how long it lasts, if that is longer than others do
    """

    name: str
    what: str
    make: Callable[[Services], None]
    undo: Callable[[Services], None]
    domain: str
    subject: str
    mechanisms: tuple[str, ...]
    affected: tuple[str, ...] = ()
    least_s: float = 0.0


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


def _lose_packets(services: Services) -> None:
    services.cluster.nodes[LOSSY_NODE].lose(LOST_SHARE)


def _lose_none(services: Services) -> None:
    services.cluster.nodes[LOSSY_NODE].lose(0.0)


def _runaway_log(services: Services) -> Path:
    return services.cluster.nodes[FULL_NODE].disk / "runaway.log"


def _fill_disk(services: Services) -> None:
    """Again and again: what the member has just removed must not leave it room."""
    with _runaway_log(services).open("wb", buffering=0) as log:
        for _ in range(FILL_ROUNDS):
            for size in FILL_BYTES:
                _write_until_full(log.fileno(), size)
            time.sleep(FILL_PAUSE_S)


def _write_until_full(file: int, size: int) -> None:
    block = bytes(size)
    try:
        while os.write(file, block) == size:
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _free_disk(services: Services) -> None:
    _runaway_log(services).unlink(missing_ok=True)


def _take_memory(services: Services) -> None:
    services.start_hog(services.cluster.nodes[SHORT_NODE], ROOM_BYTES)


def _give_memory(services: Services) -> None:
    services.end_hog()


def _roll_out(services: Services) -> None:
    services.install(NEW_VERSION, NEW_KERNELS_S)


def _roll_back(services: Services) -> None:
    services.install(VERSION, KERNELS_S)


def _hang(services: Services) -> None:
    (services.faults / "hang").write_text(f"n{HUNG_NODE}", encoding="ascii")


def _go_on(services: Services) -> None:
    (services.faults / "hang").unlink(missing_ok=True)


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
    Fault(
        name="loss",
        what=f"one node's cable loses {LOST_SHARE:.0%} of its packets",
        make=_lose_packets,
        undo=_lose_none,
        domain="fabric",
        subject=f"n{LOSSY_NODE}/mlx5_0",
        mechanisms=("link-errors",),
    ),
    Fault(
        name="disk",
        what="a log fills one node's own disk",
        make=_fill_disk,
        undo=_free_disk,
        domain="storage",
        subject=f"n{FULL_NODE}",
        mechanisms=("local-disk",),
    ),
    Fault(
        name="memory",
        what="something takes one node's memory",
        make=_take_memory,
        undo=_give_memory,
        domain="host",
        subject=f"n{SHORT_NODE}",
        mechanisms=("memory-pressure",),
    ),
    Fault(
        name="rollout",
        what="all nodes get other software at once, with slower kernels",
        make=_roll_out,
        undo=_roll_back,
        domain="software",
        subject=RUN,
        mechanisms=("rollout",),
    ),
    Fault(
        name="hang",
        what="one member stands still, and the others wait for it",
        make=_hang,
        undo=_go_on,
        domain="software",
        subject=RUN,
        mechanisms=("hang",),
        affected=(f"{RUN}/n{HUNG_NODE}.0",),
        least_s=HANG_S,
    ),
)
