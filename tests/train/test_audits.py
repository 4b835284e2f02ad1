"""Silent corruption in live runs: it is found before the step is committed, and leaves no trace."""

import math
import re
from typing import Any

import pytest
from quantity import sampled

from holdfast.record.events import FaultObserved, MemberLost
from holdfast.record.journal import read_directory
from holdfast.run.wire import PlannedFault
from holdfast.train.audits import odd_lane

pytestmark = pytest.mark.slow

STEPS, STRUCK = 8, 4
PACE_S = 0.2
"""Step time: long enough that states are compared in every step, also on a busy machine."""
REPLACED = re.compile(r"(takes the place of|without) n0\.1 \(silent corruption: ")
"""Whether another process takes its place at once depends on whether one is warm by then."""
EVERYTHING = ["gradient", "activation", "weight", "optimizer"]


def corrupt(what: Any, *, bits: int = 1, lasting: bool = False, number: int = 7) -> PlannedFault:
    return PlannedFault(
        id=number, step=STRUCK, moment="lane", rank=1, fault="corrupt", what=what, bits=bits, lasting=lasting
    )


@pytest.fixture(scope="module")
def digest(cluster: Any) -> str:
    """The digest of a member by itself."""
    found: str = cluster.train("double_and_scaled", steps=STEPS).digest
    return found


def train(cluster: Any, *faults: PlannedFault, members: int = 4, does: str = "", **more: Any) -> Any:
    return cluster.train(
        "double_and_scaled",
        members=members,
        steps=STEPS,
        audit_rate=1.0,
        pace_s=PACE_S,
        does=does,
        faults=faults,
        **more,
    )


@pytest.mark.parametrize(
    ("what", "bits"),
    sampled([(what, bits) for what in EVERYTHING for bits in (1, 5)], [("gradient", 1), ("weight", 1)]),
)
def test_a_member_that_is_wrong_is_named_and_replaced_before_the_step_is_kept(
    cluster: Any, digest: str, what: str, bits: int
) -> None:
    run = train(cluster, corrupt(what, bits=bits))
    assert run.ending.outcome == "completed", run.story
    assert run.struck == 1
    assert run.digest == digest
    assert any(line.startswith("silent corruption on node n0: ") and "n0.1" in line for line in run.said)
    assert any(REPLACED.search(line) for line in run.said), run.story
    events = list(read_directory(run.folder / "journal"))
    (fault,) = (one for one in events if isinstance(one, FaultObserved))
    (lost,) = (one for one in events if isinstance(one, MemberLost) and one.reason != "exit 0")
    assert (fault.subject, fault.fault) == ("n0.1", "silent corruption")
    assert f"step {STRUCK}" in fault.detail
    assert (lost.subject, lost.causes) == ("n0.1", (fault.id,))


def test_a_chip_that_is_always_wrong_is_outvoted(cluster: Any, digest: str) -> None:
    run = train(cluster, corrupt("gradient", lasting=True))
    assert run.ending.outcome == "completed", run.story
    assert run.digest == digest
    assert any(
        "n0.1 computes lane" in line and "differently from 3 other members" in line for line in run.said
    )


def test_of_two_members_neither_is_blamed_without_proof(cluster: Any) -> None:
    run = train(cluster, corrupt("gradient", lasting=True), members=2)
    assert run.ending.outcome == "completed", run.story
    assert sum("only a third member could show which" in line for line in run.said) == 1, run.story
    assert not any(" lost " in line for line in run.said), run.story
    faults = [one for one in read_directory(run.folder / "journal") if isinstance(one, FaultObserved)]
    assert {(one.subject, one.severity) for one in faults} == {("n0.0", "degraded"), ("n0.1", "degraded")}


def test_of_two_members_with_different_states_the_run_goes_back_to_its_checkpoint(
    cluster: Any, digest: str
) -> None:
    run = train(cluster, corrupt("weight"), members=2, checkpoint_every=2)
    assert run.ending.outcome == "completed", run.story
    assert any("goes back to its checkpoint" in line for line in run.said), run.story
    assert run.digest == digest


def test_no_member_is_blamed_for_a_kernel_that_is_not_deterministic(cluster: Any) -> None:
    run = train(cluster, does="noise")
    assert run.ending.outcome == "completed", run.story
    assert sum("a kernel is not deterministic" in line for line in run.said) == 1, run.story
    assert not any(" lost " in line for line in run.said), run.story


def test_a_loss_that_is_not_a_number_is_traced_to_its_lane(cluster: Any) -> None:
    run = train(cluster, does=f"nan {STRUCK} 3")
    assert run.ending.outcome == "completed", run.story
    told = [line for line in run.said if "it is not corruption" in line]
    assert [line.startswith(f"the loss of lane 3 in step {STRUCK} is nan") for line in told] == [True]
    assert not any(" lost " in line for line in run.said), run.story


@pytest.mark.parametrize(
    "build",
    sampled(
        ["plain", "batch_norm", "tied_and_unused", "accumulating", "half", "overflowing"], ["batch_norm"]
    ),
)
def test_clean_members_agree_while_one_is_killed(cluster: Any, build: str) -> None:
    kill = PlannedFault(id=1, step=STRUCK, moment="reduce", rank=2)
    run = cluster.train(build, members=3, steps=STEPS, audit_rate=1.0, faults=(kill,))
    assert run.ending.outcome == "completed", run.story
    assert run.digest == cluster.train(build, steps=STEPS).digest
    assert not any("corruption" in line for line in run.said), run.story


@pytest.mark.soak
def test_a_thousand_clean_audits_raise_no_alarm(cluster: Any) -> None:
    steps, lanes = 130, 8
    run = cluster.train("plain", members=4, steps=steps, lanes=lanes, audit_rate=1.0)
    assert run.ending.outcome == "completed", run.story
    assert steps * lanes > 1000
    assert not any("corruption" in line or " lost " in line for line in run.said), run.story


@pytest.mark.soak
def test_as_many_single_wrong_lanes_are_found_as_the_rate_says(cluster: Any) -> None:
    rate, struck = 0.25, 100
    faults = [
        PlannedFault(id=number, step=4 * number, moment="lane", rank=number % 4, fault="corrupt")
        for number in range(1, struck + 1)
    ]
    run = cluster.train(
        "plain", members=4, steps=4 * struck + 4, audit_rate=rate, faults=faults, pace_s=0.02, warm=2
    )
    assert run.ending.outcome == "completed", run.story
    assert run.struck == struck, run.story
    found = sum(" lost (silent corruption: " in line for line in run.said)
    deviations = (found - rate * struck) / math.sqrt(rate * (1 - rate) * struck)
    print(f"{found} of {struck} single wrong lanes found at a rate of {rate}: {deviations:+.1f} deviations")
    assert abs(deviations) < 3.5, run.story


@pytest.mark.parametrize(
    ("losses", "before", "lane"),
    [
        ([1.0, 2.0, 3.0], 2.0, None),
        ([1.0, float("nan"), 3.0], 2.0, 1),
        ([1.0, float("-inf"), float("nan")], None, 1),
        ([1.0, 100.0, 3.0], 2.0, 1),
        ([1.0, 100.0, 3.0], 40.0, None),
        ([1.0, 100.0, 3.0], None, None),
        ([0.0, 0.0], 0.0, None),
    ],
)
def test_an_odd_loss_is_one_lanes_own(losses: list[float], before: float | None, lane: int | None) -> None:
    assert odd_lane(losses, before) == lane
