"""Every promise of docs/lanes.md in one run over NCCL: replace, shrink, grow, return; losses on the way."""

import re

from forked_cluster import Cluster

from holdfast.run.wire import Moment, PlannedFault

STEPS = 260
PACE_S = 0.15
"""So that whoever comes back comes back before the end."""


def fault(number: int, step: int, moment: Moment, rank: int, *, node: bool = False) -> PlannedFault:
    return PlannedFault(
        id=number, step=step, moment=moment, rank=rank, fault="node" if node else "kill", for_s=0.3
    )


FAULTS = (
    fault(1, 5, "lane", 1),
    fault(2, 15, "reduce", 0),
    fault(3, 25, "commit", 2),
    fault(4, 35, "lane", 3, node=True),
    fault(5, 90, "lane", 1),
    fault(6, 90, "state", 1),  # who takes the state
    fault(7, 110, "lane", 1),
    fault(8, 110, "state", 0),  # who gives it
    fault(9, 130, "lane", 2),
    fault(10, 130, "regroup", 3),
    fault(11, 150, "reduce", 1, node=True),
    fault(12, 170, "lane", 1),
    fault(13, 170, "join", 0),  # who comes in its place
)


def test_every_promise_is_kept_in_one_run(cluster: Cluster) -> None:
    alone = cluster.train("plain", steps=STEPS)
    disturbed = cluster.train("plain", nodes=4, steps=STEPS, faults=FAULTS, pace_s=PACE_S)
    said = disturbed.story
    assert disturbed.ending.outcome == "completed", said
    assert disturbed.struck == len(FAULTS), said
    assert disturbed.unexplained == [], said
    assert disturbed.steps_lost == 0
    assert disturbed.digest == alone.digest
    assert disturbed.losses.items() <= alone.losses.items()
    assert re.search(r"generation \d+: n\d\.\S+ takes the place of n\d\.", said), said  # replaced
    # Who has rank 3 by then depends on who came back first.
    shrunk = re.search(
        r"generation \d+: without (n\d)\.\S+ \(node lost\); step 35 goes on with 3 members", said
    )
    assert shrunk, said
    assert re.search(rf"generation \d+: with {shrunk[1]}\.\S+; step \d+ goes on with 4 members", said), (
        said
    )  # grown
