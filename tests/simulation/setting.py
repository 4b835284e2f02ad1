"""The setting of one schedule: the run, the network's behaviour and the faults, all drawn from its seed."""

import random
from typing import Literal

import msgspec

from holdfast.run.mesh import MeshShape
from holdfast.run.state import RunPolicy
from holdfast.run.waits import ns

Point = Literal[
    "start",
    "join",
    "ready",
    "regroup",
    "group",
    "state",
    "seated",
    "lanes",
    "reduce",
    "sum",
    "commit",
    "finished",
]
"""Where in its script a member is when a fault strikes."""
POINTS: tuple[Point, ...] = (
    "start",
    "join",
    "ready",
    "regroup",
    "group",
    "state",
    "seated",
    "lanes",
    "reduce",
    "sum",
    "commit",
    "finished",
)
FaultKind = Literal[
    "kill",
    "node",
    "power",
    "partition",
    "line",
    "pause",
    "agent pause",
    "hang",
    "wire",
    "slow",
    "lag",
    "hold up",
    "raise",
    "device",
    "replace",
    "drain",
    "stop",
    "deaf",
]
KINDS: tuple[tuple[FaultKind, int], ...] = (
    ("kill", 12),
    ("node", 4),
    ("power", 2),
    ("partition", 2),
    ("line", 4),
    ("pause", 3),
    ("agent pause", 1),
    ("hang", 1),
    ("wire", 3),
    ("slow", 2),
    ("lag", 4),
    ("hold up", 2),
    ("raise", 1),
    ("device", 1),
    ("replace", 2),
    ("drain", 1),
    ("stop", 1),
)
"""The possible faults and their relative frequencies."""
DEAF_SHARE = 0.15
"""The share of schedules in which a member is also deaf for a while. It is drawn last, so that the other
draws stay what they were before this fault existed."""
WARM_UP_SHARE = 0.3
"""The share of schedules in which warm processes need time to warm up."""
WARM_UPS_SINCE = 64_000_000
"""Earlier seeds are named in tests, and keep their schedules."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Strikes `after_ns` after members have reached `point` a number of times: the member that did, or
    another one. for_ns: how long it lasts, if that matters. returns: whether a lost node comes back.
    """

    kind: FaultKind
    point: Point
    times: int
    other: bool
    after_ns: int
    for_ns: int
    returns: bool

    def __str__(self) -> str:
        whom = "another member than the one" if self.other else "the member"
        later = f"{self.after_ns / 1e6:.1f} ms later"
        return f"{self.kind}: {whom} that is number {self.times} at {self.point!r}, {later}"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule's setting. nodes: how many join, `late` of them after a while. delay_ns: the usual delay
    of a message. spikes: how many of a thousand take seconds. lane_ns: the time of a lane. build_ns: from
    admission to `protect`. warm_up_ns: what a warm process needs to get warm. checkpoint_every: in steps; 0
    for none. mirror_every: as in `protect`. is_smaller: lanes of missing members are skipped.
    """

    policy: RunPolicy
    nodes: int
    late: int
    steps: int
    lanes: int
    delay_ns: int
    spikes: int
    lane_ns: int
    build_ns: int
    checkpoint_every: int
    mirror_every: int
    is_smaller: bool
    faults: tuple[Fault, ...]
    warm_up_ns: int = 0

    def __str__(self) -> str:
        policy = self.policy
        mesh = f", replicas of {policy.mesh.ranks}" if policy.mesh.ranks > 1 else ""
        smaller = ", smaller batches" if self.is_smaller else ""
        warming = f" after {self.warm_up_ns / 1e9:g} s" if self.warm_up_ns else ""
        return (
            f"{self.nodes} nodes ({policy.nodes_min} to {policy.nodes_max}) of {policy.slots}{mesh}, "
            f"{policy.warm} warm{warming}, {self.steps} steps of {self.lanes} lanes{smaller}, "
            f"a checkpoint every {self.checkpoint_every}"
        )


_SHAPES: tuple[tuple[int, int, int], ...] = (
    # nodes, slots, ranks of a replica
    (1, 1, 1),
    (1, 2, 1),
    (1, 3, 1),
    (2, 1, 1),
    (2, 2, 1),
    (3, 1, 1),
    (1, 2, 2),
    (2, 1, 2),
    (2, 2, 2),
    (3, 2, 2),
    (4, 1, 2),
    (1, 4, 2),
    (1, 4, 4),
)
_WEIGHTS = (2, 6, 3, 4, 4, 3, 3, 2, 4, 1, 2, 3, 1)
_FAULTS = (0, 1, 2, 3, 4, 5)
_FAULT_WEIGHTS = (1, 6, 6, 4, 2, 1)


def drawn(seed: int) -> Setting:
    """The setting of this seed."""
    draw = random.Random(seed)
    nodes, slots, ranks = draw.choices(_SHAPES, _WEIGHTS)[0]
    spare = int(draw.random() < 0.2)
    least = -(-ranks // slots)
    mesh = MeshShape(sizes=(("shard", ranks),)) if ranks > 1 else MeshShape()
    if ranks > 1 and slots % ranks == 0 and draw.random() < 0.3:
        mesh = MeshShape(sizes=(("tp", ranks),))
    policy = RunPolicy(
        run="r",
        slots=slots,
        nodes_min=draw.randint(least, nodes),
        nodes_max=nodes,
        warm=draw.choice((0, 1, 1, 2)),
        wait_s=draw.choice((60.0, 120.0)),
        hang_after_s=draw.choice((None, 10.0)),
        mesh=mesh,
        grace_s=2.0,
    )
    count = draw.choices(_FAULTS, _FAULT_WEIGHTS)[0]
    is_storm = draw.random() < 0.5
    setting = Setting(
        policy=policy,
        nodes=nodes + spare,
        late=draw.randint(0, max(0, nodes + spare - policy.nodes_min)) if draw.random() < 0.3 else 0,
        steps=draw.randint(2, 4),
        lanes=draw.choice((4, 8)) * mesh.slices,
        delay_ns=draw.choice((100_000, 1_000_000, 20_000_000)),
        spikes=draw.choice((0, 0, 5, 20)),
        lane_ns=draw.choice((300_000, 3_000_000, 50_000_000)),
        build_ns=draw.choice((10_000_000, 400_000_000)),
        checkpoint_every=draw.choice((0, 1, 2)),
        mirror_every=draw.choice((0, 1, 2, 8)),
        is_smaller=draw.random() < 0.25,
        faults=tuple(_storm(draw) if is_storm else _fault(draw) for _ in range(count)),
    )
    if draw.random() < DEAF_SHARE:
        deaf = msgspec.structs.replace(_fault(draw), kind="deaf")
        setting = msgspec.structs.replace(setting, faults=(*setting.faults, deaf))
    if seed >= WARM_UPS_SINCE and draw.random() < WARM_UP_SHARE:
        setting = msgspec.structs.replace(setting, warm_up_ns=ns(draw.choice((0.05, 0.5, 5.0))))
    return setting


def _storm(draw: random.Random) -> Fault:
    """One of several faults that strike where they hurt most: while members regroup, and around a commit."""
    return Fault(
        kind=draw.choice(("kill", "kill", "kill", "line", "wire", "node")),
        point=draw.choice(("regroup", "state", "reduce", "sum", "sum", "commit", "commit")),
        times=draw.randint(1, 9),
        other=draw.random() < 0.4,
        after_ns=draw.choice((0, 0, 300_000)),
        for_ns=ns(draw.choice((0.5, 3.0))),
        returns=True,
    )


def _fault(draw: random.Random) -> Fault:
    return Fault(
        kind=draw.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0],
        point=draw.choice(POINTS),
        times=draw.randint(1, 12),
        other=draw.random() < 0.4,
        after_ns=draw.choice((0, 0, draw.randrange(5_000_000), draw.randrange(2_000_000_000))),
        for_ns=ns(draw.choice((0.5, 3.0, 8.0, 40.0))),
        returns=draw.random() < 0.85,
    )
