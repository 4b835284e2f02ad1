"""The pace of real members in the record, and what the ledger makes of it."""

from typing import Any

import pytest
from scripts import LANE_S

from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.events import MembersTimed
from holdfast.record.journal import Damage, read_directory

pytestmark = pytest.mark.slow

STEPS, LANES = 12, 8


def test_a_run_with_one_slow_member_is_not_its_own_reference(cluster: Any) -> None:
    """It is slow from its first step to its last: only the other members show how quick it could be."""
    done = cluster.train(
        "lopsided", members=2, steps=STEPS, lanes=LANES, checkpoint_every=STEPS, rebalances=False
    )
    assert done.ending.outcome == "completed", done.story
    read = list(read_directory(done.folder / "journal"))
    events = [event for event in read if not isinstance(event, Damage)]
    assert events == read
    timed = [event for event in events if isinstance(event, MembersTimed)]
    assert {event.subject for event in timed} == {"n0.1"}
    own_s = LANE_S * LANES / 2
    assert all(event.slowest_ns > 9.9 * own_s * 1e9 for event in timed)
    assert all(own_s * 1e9 < event.quick_ns < 0.5 * event.slowest_ns for event in timed)
    ledger = Ledger()
    ledger.add(events)
    told = report("slow", ledger.fold)
    assert told.reference is not None
    assert told.reference.origin == "members"
    stepping = told.partition["useful"] + told.partition["slowdown"]
    assert told.partition["useful"] < 0.5 * stepping
    assert told.reference.step_ns > own_s * 1e9
    # The rest of the run is its beginning and its end: it was not stopped.
    assert stepping + told.partition["starting"] + told.partition["checkpoint_stall"] == told.paid_gpu_ns
