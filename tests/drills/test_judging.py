"""The verdict of a live drill: from the record, and none if nothing could have noticed the fault."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.control.actions import ControlAction
from holdfast.dashboard.drill_page import render
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.drills.live.judging import DrilledRun, LiveVerdict, forecast, judged
from holdfast.drills.live.scenarios import LIVE_SCENARIOS, live_scenario
from holdfast.drills.live.scene import LiveMember, LiveScene
from holdfast.drills.live.striking import LiveStrike, chosen_target, refusal
from holdfast.record import events
from holdfast.record.errors import InputError

SECOND = 10**9
AT = 1_000 * SECOND
DIGEST = "ab" * 32
DATA = Path(__file__).parents[1] / "data"
EVIL = "<script>alert(1)</script>"


def scene(nodes: int = 2, slots: int = 2, successor: int = 7) -> LiveScene:
    members = tuple(
        LiveMember(name=f"n{node}.{slot}", node=f"n{node}", pid=1)
        for node in range(nodes)
        for slot in range(slots)
    )
    return LiveScene(run="big", members=members, coordinator=5, successor=successor, step_s=1.0, place="")


class Story:
    """Events of a run since it was struck, each so many seconds after it."""

    def __init__(self) -> None:
        self.events: list[events.AnyEvent] = []

    def __call__(self, kind: Any, at_s: float, **fields: Any) -> "Story":
        at_ns = AT + round(at_s * SECOND)
        identity = f"e{len(self.events):03}"
        self.events.append(kind(id=identity, occurred_ns=at_ns, recorded_ns=at_ns, run="big", **fields))
        return self

    def steps(self, first_s: int, last_s: int) -> "Story":
        for at_s in range(first_s, last_s + 1):
            self(events.StepCommitted, at_s, step=100 + at_s)
        return self


def verdict(
    name: str,
    recorded: Sequence[events.AnyEvent],
    *,
    target: str = "n0.1",
    ends_s: float = 0.0,
    again_s: Sequence[float] = (),
    **fields: Any,
) -> LiveVerdict:
    scenario = live_scenario(name)
    subjects = (target,) if scenario.reach in ("member", "node", "coordinator-and-member") else ()
    before = scene()
    return judged(
        DrilledRun(
            scenario=scenario,
            before=before,
            strike=LiveStrike(
                at_ns=AT,
                ends_ns=AT + round(ends_s * SECOND),
                subjects=subjects,
                node=target.partition(".")[0],
                again_ns=tuple(AT + round(at_s * SECOND) for at_s in again_s),
            ),
            target=target,
            forecast=forecast(scenario, before, target, ends_s, 2.0),
            usd=2.0,
            now_ns=AT + 200 * SECOND,
            recorded=recorded,
            **fields,
        )
    )


def killed() -> Story:
    told = Story()(events.FaultObserved, 0.5, subject="n0.1", fault="SIGKILL")
    told(events.MemberLost, 0.5, subject="n0.1")
    told(events.ActionTaken, 0.6, subject="n0.1", action="replace")
    return told(events.GenerationOpened, 1.5, generation=2, members=("n0.0", "n0.2", "n1.0", "n1.1")).steps(
        2, 6
    )


def test_a_run_that_did_all_of_it_right() -> None:
    found = verdict("worker-killed", killed().events, digest=DIGEST, reference=DIGEST)
    assert (found.recovered, found.bits_equal, found.cause_right, found.action_right) == (True,) * 4
    assert found.detect_s == pytest.approx(0.5)
    assert found.recover_s == pytest.approx(4.0)
    assert found.score == (6, 6)
    # Four seconds passed, in which three steps of a second each were made: one was lost, on four GPUs.
    assert found.cost.gpu_hours * 3_600 == pytest.approx(4.0)
    assert found.cost.usd == pytest.approx(4.0 / 3_600 * 2.0)


def test_other_bits_are_wrong_and_no_reference_is_no_verdict() -> None:
    assert verdict("worker-killed", killed().events, digest=DIGEST, reference="0" * 64).bits_equal is False
    assert verdict("worker-killed", killed().events).bits_equal is None


def test_a_run_that_stays_smaller_has_not_recovered() -> None:
    told = Story()(events.FaultObserved, 0.5, subject="n0.1", fault="SIGKILL")
    told(events.MemberLost, 0.5, subject="n0.1")(events.ActionTaken, 0.6, subject="n0.1", action="shrink")
    told(events.GenerationOpened, 1.0, generation=2, members=("n0.0", "n1.0", "n1.1")).steps(2, 90)
    found = verdict("worker-killed", told.events)
    assert (found.recovered, found.recover_s, found.action_right) == (False, None, True)


def test_who_blames_somebody_else_has_not_found_the_cause() -> None:
    told = killed()(events.FaultObserved, 0.7, subject="n1.0", fault="deadlock on a lock")
    assert verdict("worker-killed", told.events).cause_right is False
    unnoticed = Story().steps(1, 9)
    assert verdict("worker-killed", unnoticed.events).detect_s is None


def test_a_fault_of_the_run_as_a_whole_blames_nobody() -> None:
    told = Story()(events.FaultObserved, 0.1, fault="storage slow", severity="degraded")
    found = verdict("worker-killed", [*told.events, *killed().events])
    assert (found.cause_right, found.causes) == (True, ("n0.1: SIGKILL",))
    assert "noticed: storage slow" in [row.what for row in found.timeline]


def slowed() -> Story:
    told = Story()(events.FaultObserved, 2, subject="n0.1", fault="slow member", severity="degraded")
    return told(events.ActionTaken, 2, subject="n0.1", action="rebalance").steps(3, 40)


def test_others_that_are_slow_too_do_not_make_the_cause_wrong() -> None:
    told = slowed()(events.FaultObserved, 1, subject="n1.0", fault="slow member", severity="degraded")
    assert verdict("half-speed", told.events, ends_s=30.0).cause_right
    other = Story()(events.FaultObserved, 1, subject="n1.0", fault="slow member", severity="degraded")
    found = verdict("half-speed", other.steps(2, 40).events, ends_s=30.0)
    assert (found.cause_right, found.causes) == (False, ("n1.0: slow member",))


def test_what_happens_after_the_recovery_is_not_judged() -> None:
    told = slowed()(events.FaultObserved, 90, subject="n1.0", fault="SIGKILL")
    told(events.MemberLost, 90, subject="n1.0")(events.ActionTaken, 90, subject="n1.0", action="replace")
    found = verdict("half-speed", told.events, ends_s=30.0, digest=DIGEST, reference=DIGEST)
    assert found.cause_right
    assert found.actions == ("rebalance n0.1",)
    early = slowed()(events.FaultObserved, 20, subject="n1.0", fault="SIGKILL")
    assert verdict("half-speed", early.events, ends_s=30.0).cause_right is False


def test_what_lasts_is_over_before_the_run_counts_as_recovered() -> None:
    told = slowed()
    found = verdict("half-speed", told.events, ends_s=30.0)
    assert found.recover_s == pytest.approx(33.0)
    assert not verdict("half-speed", told.events, ends_s=60.0).recovered


def test_two_at_once_need_both_signs() -> None:
    assert verdict("two-at-once", killed().events).cause_right is False
    both = killed()(events.ActionTaken, 0.3, subject="coordinator", action="take over")
    found = verdict("two-at-once", both.events)
    assert found.cause_right
    assert found.detect_s == pytest.approx(0.5)


def test_a_bad_node_is_lost_three_times() -> None:
    told = Story()
    for at_s in (1, 11, 21):
        told(events.FaultObserved, at_s, subject="n1", fault="node lost")
        told(events.MemberLost, at_s, subject="n1.0")(
            events.ActionTaken, at_s, subject="n1.0", action="shrink"
        )
        told(events.GenerationOpened, at_s + 5, members=("n0.0", "n0.1", "n1.0", "n1.1"))
    found = verdict("bad-node", told.steps(27, 33).events, target="n1", again_s=(10.5, 19.0))
    assert found.detect_s == pytest.approx(2.0)  # the longest of the three
    assert (found.cause_right, found.recovered) == (True, True)
    assert [row.what for row in found.timeline].count("again: n1") == 2
    twice = [one for one in told.events if one.occurred_ns < AT + 20 * SECOND]
    assert verdict("bad-node", twice, target="n1", again_s=(10.5,)).cause_right is False


def test_a_full_disk_is_over_with_the_next_checkpoint() -> None:
    told = Story()(events.CheckpointFailed, 3, step=103, reason="No space left on device").steps(1, 40)
    assert not verdict("full-disk", told.events, target="storage", ends_s=20.0).recovered
    told(events.CheckpointSaved, 35, step=135)
    found = verdict("full-disk", told.events, target="storage", ends_s=20.0)
    assert (found.recovered, found.cause_right, found.action_right) == (True, True, True)
    assert found.recover_s == pytest.approx(35.0)
    # What it cost is known with the third step: the run loses nothing while it waits for a checkpoint.
    halted = [one for one in told.events if not 30 <= (one.occurred_ns - AT) / SECOND < 35]
    assert found.cost == verdict("full-disk", halted, target="storage", ends_s=20.0).cost


def test_only_a_diagnosis_names_a_slow_link() -> None:
    told = Story().steps(1, 70)
    assert verdict("slow-link", told.events, target="n1", ends_s=60.0).cause_right is None
    sample = msgspec.json.decode((DATA / "incident.json").read_bytes(), type=Incident)
    for mechanism, is_right in (("link-errors", True), ("data-loader", False)):
        cause = msgspec.structs.replace(sample.cause, mechanism=mechanism)
        incident = msgspec.structs.replace(sample, cause=cause)
        named = Story().steps(1, 70)(
            events.IncidentDiagnosed, 9, incident="big/s1", state="open", diagnosis=diagnosis(incident)
        )
        assert verdict("slow-link", named.events, target="n1", ends_s=60.0).cause_right is is_right


@pytest.mark.parametrize(("action", "is_right"), [("watch", True), ("drain-now", True), ("reboot", False)])
def test_what_control_did_or_said_is_judged_too(action: ControlAction, is_right: bool) -> None:
    told = Story()(events.FaultObserved, 1, subject="n1", fault="node lost")
    told(events.MemberLost, 1, subject="n1.0")(events.ActionTaken, 1, subject="n1.0", action="shrink")
    acted = events.ControlActed(
        id="c1", occurred_ns=AT + SECOND, subject="n1", action=action, stage="decided", mode="shadow"
    )
    found = verdict("node-lost", told.events, target="n1", control=(acted,))
    assert found.action_right is is_right
    assert f"control (shadow): {action} n1" in found.actions


def test_what_is_beyond_the_radius_is_refused() -> None:
    lost, killed_ = live_scenario("node-lost"), live_scenario("worker-killed")
    assert refusal(lost, scene(), "n1", 10.0) == ""
    assert "needs 2" in refusal(lost, scene(nodes=1), "n0", 10.0)
    uneven = msgspec.structs.replace(scene(), members=scene().members[:3])
    assert "more than half" in refusal(lost, uneven, "n0", 10.0)
    assert "no other holds" in refusal(killed_, scene(nodes=1, slots=1), "n0.0", 0.0)
    assert "300 s at most" in refusal(lost, scene(), "n1", 301.0)
    seldom = msgspec.structs.replace(scene(), saves_s=600.0)
    assert "10 min apart" in refusal(live_scenario("full-disk"), seldom, "storage", 60.0)
    assert refusal(live_scenario("full-disk"), seldom, "storage", 600.0).startswith("a fault may last")
    assert "no successor" in refusal(live_scenario("two-at-once"), scene(successor=0), "n0.0", 0.0)


def test_the_target_is_the_same_for_the_same_seed() -> None:
    scenario = live_scenario("worker-killed")
    drawn = [chosen_target(scenario, scene(), "", seed) for seed in range(20)]
    assert drawn == [chosen_target(scenario, scene(), "", seed) for seed in range(20)]
    assert len(set(drawn)) > 1
    for name, target in (("worker-killed", "n9.9"), ("coordinator-killed", "n0.0")):
        with pytest.raises(InputError):
            chosen_target(live_scenario(name), scene(), target, 1)
    with pytest.raises(InputError, match="worker-killd"):
        live_scenario("worker-killd")


def test_every_scenario_of_the_issue_is_there() -> None:
    assert [*LIVE_SCENARIOS] == [
        *("worker-killed", "node-lost", "agent-frozen", "half-speed", "slow-storage", "slow-link"),
        *("full-disk", "coordinator-killed", "bad-node", "two-at-once"),
    ]


def test_the_page_says_what_was_judged_and_escapes_names() -> None:
    found = verdict("worker-killed", killed().events, digest=DIGEST, reference=DIGEST)
    page = render(msgspec.structs.replace(found, run=EVIL))
    assert "6 of 6" in page
    assert "It held." in page
    assert "noticed: n0.1, SIGKILL" in page
    assert EVIL not in page
    worse = render(verdict("worker-killed", Story().steps(1, 9).events))
    assert "It did not hold." in worse
