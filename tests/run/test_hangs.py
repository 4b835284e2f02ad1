"""Which members are ended when the run makes no progress: silent, stopped, busy and hung members."""

from typing import get_args

import pytest
from memory_cluster import Cluster

from holdfast.record.events import FaultObserved, GenerationOpened, MemberLost
from holdfast.run import hangs
from holdfast.run.hangs import LOOKS
from holdfast.run.happenings import FromMember, MoveRequested, Tick, Unreached
from holdfast.run.kernel_view import KernelView
from holdfast.run.stacks import StackFrame
from holdfast.run.state import WARM
from holdfast.run.waits import (
    FORM_S_MIN,
    HUNG_S_MIN,
    IDLE_S_MAX,
    LEASE_S_MAX,
    LOCATE_S,
    OVERDUE_S_MIN,
    Observed,
    ns,
)
from holdfast.run.wire import Committed, Locate, MemberBeat, Migrate, Stage, Working

MakeCluster = type[Cluster]

SECOND = 10**9


def up(
    cluster: "MakeCluster", *, slots: int = 2, wait_s: float = 600.0, hang_after_s: float | None = None
) -> "Cluster":
    """A run that has made some steps, so that it knows how long they take."""
    made = cluster(slots=slots, steps=10**6, wait_s=wait_s, hang_after_s=hang_after_s)
    made.join_node("n0")
    made.until_step(5)
    made.deliver_all("worker")
    return made


def hang(made: "Cluster", member: str, place: str = "") -> None:
    """Let a member stay in its lanes while the others wait for it in the reduction."""
    for process in made.processes.values():
        if process.generation is not None:
            process.hangs_in = "forward" if process.member == member else "reduce"
    made.processes[member].place = place


def lost(made: "Cluster") -> list[str]:
    return [event.subject for event in made.recorded(MemberLost)]


def pass_s(made: "Cluster", seconds: float) -> None:
    """Let time pass and messages of agents and members arrive, but no script make progress."""
    until_ns = made.now_ns + round(seconds * SECOND)
    while made.now_ns < until_ns:
        assert made.ending is None, made.said
        made.wait(min(until_ns, made.now_ns + SECOND))
        made.deliver_all("agent")
        made.deliver_all("worker")


def held_up(made: "Cluster", seconds: float) -> bool:
    """Whether all wait, after this long without any commit."""
    pass_s(made, seconds)
    return hangs.is_held_up(made.state, made.now_ns)


# ---- unreachable members ---------------------------------------------------------------------------------


def test_one_that_nothing_reaches_is_ended_in_a_step_that_takes_longer_than_any(
    cluster: "MakeCluster",
) -> None:
    """All wait for it in the reduction, and so does it: no other member is to blame."""
    made = up(cluster, slots=4)
    for process in made.processes.values():
        process.hangs_in = "reduce"
    assert held_up(made, 2 * OVERDUE_S_MIN)
    made.tell(Unreached(("n0.2",), 1))
    assert lost(made) == ["n0.2"]
    assert [event.fault for event in made.recorded(FaultObserved)] == [hangs.UNREACHED]
    for process in made.processes.values():
        process.hangs_in = None
    made.until_step(made.state.progress.step + 2)
    assert lost(made) == ["n0.2"]


def test_no_member_is_ended_for_missing_answers_while_steps_are_as_usual(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=4)
    assert not held_up(made, 0.1)
    made.tell(Unreached(("n0.2",), 1))
    assert lost(made) == []


def test_a_step_is_overdue_by_what_the_run_has_seen() -> None:
    """By pauses between steps, too; and for the first step of a generation, by other first steps."""
    assert Observed().overdue_ns(is_first=False) is None
    assert Observed(step_ns_max=ns(0.01)).overdue_ns(is_first=False) == ns(OVERDUE_S_MIN)
    assert Observed(step_ns_max=ns(10)).overdue_ns(is_first=False) == ns(20)
    assert Observed(step_ns_max=ns(1), pause_ns_max=ns(30)).overdue_ns(is_first=False) == ns(60)
    compiled = Observed(step_ns_max=ns(1), first_ns_max=ns(90))
    assert compiled.overdue_ns(is_first=False) == ns(2)
    assert compiled.overdue_ns(is_first=True) == ns(180)


def test_no_member_is_ended_for_missing_answers_while_half_of_them_are_missing(
    cluster: "MakeCluster",
) -> None:
    made = up(cluster, slots=4)
    made.stall_steps = True
    assert held_up(made, 2 * OVERDUE_S_MIN)
    made.tell(Unreached(("n0.2",), 2))
    made.tell(Unreached(("n0.2", "n0.3"), 2))
    assert lost(made) == []


def test_declared_work_is_not_ended_for_missing_answers(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=4)
    made.stall_steps = True
    made.tell(FromMember("n0.1", Working(member="n0.1", work="evaluate")))
    pass_s(made, 2 * OVERDUE_S_MIN)
    made.tell(Unreached(("n0.1",), 1))
    assert lost(made) == []


# ---- silence ---------------------------------------------------------------------------------------------


def test_a_member_that_is_only_silent_is_not_given_up(cluster: "MakeCluster") -> None:
    made = up(cluster)
    hang(made, "n0.0")
    made.processes["n0.0"].is_mute = True
    pass_s(made, HUNG_S_MIN - 10)
    assert HUNG_S_MIN - 10 > LEASE_S_MAX
    made.processes["n0.0"].is_mute = False
    made.processes["n0.0"].hangs_in = made.processes["n0.1"].hangs_in = None
    made.until_step(made.state.progress.step + 2)
    assert not made.recorded(FaultObserved)


def test_members_that_are_all_silent_at_once_are_waited_for(cluster: "MakeCluster") -> None:
    made = up(cluster)
    for process in made.processes.values():
        process.is_mute, process.hangs_in = True, "reduce"
    pass_s(made, 0.9 * IDLE_S_MAX)
    for process in made.processes.values():
        process.is_mute, process.hangs_in = False, None
    made.until_step(made.state.progress.step + 2)
    assert not made.recorded(MemberLost)


def test_one_that_could_not_say_that_it_committed_is_to_blame_and_not_those_that_wait(
    cluster: "MakeCluster",
) -> None:
    """Its last message is from the reduction before: since then it holds the interpreter lock."""
    made = up(cluster, slots=3)
    hang(made, "n0.1")
    pass_s(made, 2)
    for member in ("n0.0", "n0.2"):
        said = Committed(member=member, generation=1, step=made.state.progress.step + 1, loss=None)
        made.tell(FromMember(member, said))
        made.processes[member].version += 1
    made.processes["n0.1"].hangs_in = "reduce"
    pass_s(made, HUNG_S_MIN + 2 * LOCATE_S + 2)
    assert lost(made) == ["n0.1"]


def test_one_that_is_busy_when_another_dies_has_the_time_it_has_otherwise(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=3)
    made.processes["n0.0"].hangs_in = "script"
    made.processes["n0.0"].is_mute = True
    pass_s(made, 2)
    made.kill("n0.2")
    pass_s(made, HUNG_S_MIN - 5)
    assert lost(made) == ["n0.2"]
    made.processes["n0.0"].is_mute = False
    made.processes["n0.0"].hangs_in = None
    made.until_generation(2)
    assert lost(made) == ["n0.2"]


def test_the_last_one_that_holds_the_state_is_given_up_last(cluster: "MakeCluster") -> None:
    """Its only peer died, and the replacement waits to get the state from it."""
    made = up(cluster)
    made.processes["n0.0"].hangs_in = made.processes["n0.0"].sticks_in = "script"
    made.processes["n0.0"].is_mute = True
    pass_s(made, 2)
    made.kill("n0.1")
    made.run(lambda: made.state.generations.number == 2)
    pass_s(made, 0.9 * IDLE_S_MAX)
    assert lost(made) == ["n0.1"]
    assert any("no other member has the state: waiting for at most 1800 s" in text for text in made.said)
    pass_s(made, 0.2 * IDLE_S_MAX)
    assert lost(made)[:2] == ["n0.1", "n0.0"]


def test_a_coordinator_that_was_held_up_ends_no_member(cluster: "MakeCluster") -> None:
    made = up(cluster)
    hang(made, "n0.0")
    pass_s(made, 5)
    made.now_ns += 10 * 60 * SECOND
    made.tell(Tick())
    pass_s(made, HUNG_S_MIN - 10)
    assert not made.recorded(MemberLost)


# ---- stops -----------------------------------------------------------------------------------------------


def test_members_that_are_all_stopped_are_waited_for_and_go_on(cluster: "MakeCluster") -> None:
    made = up(cluster)
    for process in made.processes.values():
        process.is_paused = True
    pass_s(made, 300)
    line = "all 2 members are stopped: waiting for at most 600 s"
    assert len([text for text in made.said if text.startswith(line)]) == 1
    assert not {"n0.0", "n0.1"}.intersection(lost(made)), "only a warm one, which holds nothing"
    for process in made.processes.values():
        process.is_paused = False
    pass_s(made, HUNG_S_MIN - 10)  # the time they were stopped does not count
    made.until_step(made.state.progress.step + 2)
    assert not {"n0.0", "n0.1"}.intersection(lost(made))


def test_members_that_stay_stopped_are_given_up_at_last(cluster: "MakeCluster") -> None:
    made = up(cluster, wait_s=60.0)
    for name in ("n0.0", "n0.1"):
        made.processes[name].is_paused = True
    pass_s(made, 55)
    assert not lost(made)
    pass_s(made, 20)
    assert sorted(lost(made)) == ["n0.0", "n0.1"]
    made.until_generation(2)


# ---- hangs -----------------------------------------------------------------------------------------------


def test_a_hang_is_told_with_its_place_and_then_ended(cluster: "MakeCluster") -> None:
    made = up(cluster)
    hang(made, "n0.1", "train.py:88")
    pass_s(made, HUNG_S_MIN / 3 + 3)
    line = (
        "n0.1 has not entered the reduction, it is at train.py:88; it is ended and replaced after at most 60"
    )
    told = [text for text in made.said if line in text]
    assert len(told) == 1
    assert told[0].startswith(f"step {made.state.progress.step + 1} has taken 12 s")
    assert not lost(made)
    pass_s(made, HUNG_S_MIN)
    assert [text for text in made.said if line in text] == told, "once, as nothing has changed"
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault) == ("n0.1", "no progress")
    assert fault.detail.startswith("no progress for 6")
    assert fault.detail.endswith(" s, at train.py:88\nn0.0: reduce, at ?")
    made.until_generation(2)
    assert "lost: n0.1 (no progress for 6" in made.recorded(GenerationOpened)[-1].reason
    assert hangs.HINT in made.said


def test_those_that_wait_are_asked_once_where_they_are(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=3)
    hang(made, "n0.1")
    pass_s(made, HUNG_S_MIN - 5)
    asked = [message.member for message in made.sent(Locate)]
    assert asked.count("n0.1") > LOOKS
    assert (asked.count("n0.0"), asked.count("n0.2")) == (1, 1)


def test_the_bound_can_be_set_and_doubles_after_it_has_ended_a_member(cluster: "MakeCluster") -> None:
    made = up(cluster, hang_after_s=3.0)
    hang(made, "n0.0")
    begun_ns = made.now_ns
    made.run(lambda: bool(lost(made)))
    assert 2.5 * SECOND < made.now_ns - begun_ns < 6 * SECOND
    made.until_step(made.state.progress.step + 3)
    made.deliver_all("worker")
    (again,) = [name for name in made.generations[-1].members if name != "n0.1"]
    hang(made, again)
    begun_ns = made.now_ns
    made.run(lambda: len(lost(made)) == 2)
    assert 5.5 * SECOND < made.now_ns - begun_ns < 9 * SECOND


@pytest.mark.parametrize(("hang_after_s", "least_s", "most_s"), [(None, 5.0, 16.0), (60.0, 55.0, 66.0)])
def test_one_that_is_seen_asleep_has_as_long_as_was_set(
    cluster: "MakeCluster", hang_after_s: float | None, least_s: float, most_s: float
) -> None:
    made = up(cluster, hang_after_s=hang_after_s)
    asleep = made.processes["n0.0"]
    asleep.stacks = ((StackFrame("/home/me/train.py", 30, "wait", is_own=True, source="time.sleep(1)"),),)
    asleep.seen = KernelView(state="S", waits_for="sleep")
    hang(made, "n0.0")
    begun_ns = made.now_ns
    made.run(lambda: bool(lost(made)))
    assert least_s * SECOND < made.now_ns - begun_ns < most_s * SECOND


def until_first_step(made: "Cluster") -> None:
    """Lose a member, and let the others be in their first step without it."""
    made.stall_steps = True
    made.kill("n0.2")
    made.until_generation(2)
    made.deliver_all("worker")
    assert made.state.generations.announced is not None
    assert made.state.generations.announced.is_fresh


@pytest.mark.parametrize(
    ("who", "seen", "least_s", "most_s"),
    [
        ("n0.1", KernelView(state="S", waits_for="sleep"), 5.0, 16.0),
        ("n0.1", KernelView(state="S", waits_for="connection"), HUNG_S_MIN - 5, HUNG_S_MIN + 6),
        ("n0.3", KernelView(state="S", waits_for="sleep"), HUNG_S_MIN - 5, HUNG_S_MIN + 6),
    ],
    ids=["asleep", "waits for data", "new"],
)
def test_the_first_step_of_a_generation_is_none_for_those_that_have_stepped_before(
    cluster: "MakeCluster", who: str, seen: KernelView, least_s: float, most_s: float
) -> None:
    """But it may have to read data for lanes that are new to it."""
    made = up(cluster, slots=3)
    until_first_step(made)
    asleep = made.processes[who]
    asleep.stacks = ((StackFrame("/home/me/train.py", 30, "wait", is_own=True, source="time.sleep(1)"),),)
    asleep.seen = seen
    hang(made, who)
    begun_ns, before = made.now_ns, lost(made)
    made.run(lambda: lost(made) != before)
    assert lost(made) == [*before, who]
    assert least_s * SECOND < made.now_ns - begun_ns < most_s * SECOND


@pytest.mark.parametrize(("is_mute", "least_s", "most_s"), [(False, 10, 16), (True, HUNG_S_MIN - 5, 75)])
def test_one_that_computes_and_cannot_speak_may_be_past_its_step(
    cluster: "MakeCluster", is_mute: bool, least_s: float, most_s: float
) -> None:
    """It may hold the interpreter lock between steps. A member that computes in its step sends messages."""
    made = up(cluster)
    busy = made.processes["n0.0"]
    busy.stacks = ((StackFrame("/home/me/train.py", 30, "sort", is_own=True, source="sorted(rows)"),),)
    hang(made, "n0.0")
    pass_s(made, 1)
    busy.is_mute = is_mute
    begun_ns = made.now_ns
    while not lost(made) and made.now_ns < begun_ns + 100 * SECOND:
        busy.seen = KernelView(state="R", cpu_s=(made.now_ns - begun_ns) / SECOND)
        pass_s(made, 1)
    assert lost(made) == ["n0.0"]
    assert least_s * SECOND <= made.now_ns - begun_ns < most_s * SECOND


def test_all_that_are_busy_at_once_have_half_an_hour(cluster: "MakeCluster") -> None:
    made = up(cluster)
    for process in made.processes.values():
        process.hangs_in = "script"
    pass_s(made, 0.9 * IDLE_S_MAX)
    assert not lost(made)
    assert any("no member waits for them: they may take 1800 s" in text for text in made.said)


def test_a_member_that_no_other_waits_for_is_reported_as_such(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=1)
    made.processes["n0.0"].hangs_in = "script"
    pass_s(made, HUNG_S_MIN)
    assert any("no member waits for it: it may take 1800 s" in text for text in made.said)


def test_what_is_set_holds_in_the_first_step_of_a_generation_too(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=3, hang_after_s=3.0)
    until_first_step(made)
    hang(made, "n0.1")
    begun_ns = made.now_ns
    made.run(lambda: "n0.1" in lost(made))
    assert made.now_ns - begun_ns < 6 * SECOND


def test_before_the_first_commit_nothing_that_is_set_holds(cluster: "MakeCluster") -> None:
    made = cluster(slots=2, steps=10**6, hang_after_s=3.0)
    made.stall_steps = True
    made.join_node("n0")
    made.until_generation(1)
    hang(made, "n0.1")
    pass_s(made, 0.9 * IDLE_S_MAX)
    assert not lost(made)
    pass_s(made, 0.2 * IDLE_S_MAX)
    assert lost(made) == ["n0.1"]


# ---- where a member hangs ------------------------------------------------------------------------------

IN_A_STEP = HUNG_S_MIN
REGROUPING = FORM_S_MIN
UNDECIDED = HUNG_S_MIN + FORM_S_MIN + HUNG_S_MIN
"""At first no member is to blame, so all start again. It does not, and has the time of a step to leave it."""
HANGS: dict[Stage, float] = {
    "data": IN_A_STEP,
    "forward": IN_A_STEP,
    "backward": IN_A_STEP,
    "reduce": UNDECIDED,
    "optimizer": IN_A_STEP,
    "script": IN_A_STEP,
    "checkpoint": IN_A_STEP,
    "meeting": UNDECIDED,
    "regroup": REGROUPING,
    "state": REGROUPING,
    "waiting": REGROUPING,
}
"""Where a member hangs forever, and after how many seconds it is ended for that."""


def test_a_hang_is_looked_for_in_every_stage() -> None:
    """A member that never becomes ready has `--wait`, and the end of the run has bounds of its own."""
    assert {*HANGS, "starting", "finished"} == {*get_args(Stage)}


@pytest.mark.parametrize("is_silent", [False, True], ids=["speaking", "silent"])
@pytest.mark.parametrize("stage", HANGS)
def test_a_hang_in_any_stage_ends_that_member_alone(
    cluster: "MakeCluster", stage: Stage, is_silent: bool
) -> None:
    made = up(cluster, slots=3)
    stuck, killed = made.processes["n0.1"], []
    stuck.sticks_in = stage
    if HANGS[stage] == REGROUPING:
        made.kill("n0.2")
        killed = ["n0.2"]
        made.run(lambda: made.state.generations.number == 2)
    else:
        stuck.hangs_in = stage
        for name in ("n0.0", "n0.2"):  # they wait for it
            made.processes[name].hangs_in = "meeting" if stage == "meeting" else "reduce"
    begun_ns, step = made.now_ns, stuck.version + (stage == "reduce")
    made.tell(FromMember("n0.1", MemberBeat(member="n0.1", step=step, stage=stage)))
    stuck.is_mute = is_silent
    made.run(lambda: "n0.1" in lost(made))
    took_s = (made.now_ns - begun_ns) / SECOND
    assert HANGS[stage] - 1 <= took_s <= HANGS[stage] + 3 * LOCATE_S + 1
    made.until_step(made.state.progress.step + 2)
    assert lost(made) == [*killed, "n0.1"]


@pytest.mark.parametrize("stage", ["regroup", "state", "waiting"])
def test_the_last_copy_is_not_ended_for_a_hang_in_regrouping(cluster: "MakeCluster", stage: Stage) -> None:
    made = up(cluster)
    made.processes["n0.0"].sticks_in = stage
    made.kill("n0.1")
    made.run(lambda: made.state.generations.number == 2)
    made.run(lambda: made.state.generations.number == (3 if stage == "state" else 2))
    pass_s(made, 0.9 * IDLE_S_MAX)
    assert lost(made) == ["n0.1"]
    pass_s(made, 0.2 * IDLE_S_MAX)
    assert lost(made)[:2] == ["n0.1", "n0.0"]


def test_one_that_leaves_a_long_step_has_the_time_to_regroup(cluster: "MakeCluster") -> None:
    """It left its lanes long after the others, and has not told them its standing yet."""
    made = up(cluster, slots=3)
    made.processes["n0.1"].hangs_in = made.processes["n0.1"].sticks_in = "forward"
    made.kill("n0.2")
    made.run(lambda: made.state.generations.number == 2)
    pass_s(made, FORM_S_MIN + 0.8 * HUNG_S_MIN)
    made.processes["n0.1"].hangs_in = "regroup"
    pass_s(made, 0.8 * FORM_S_MIN)
    assert lost(made) == ["n0.2"]
    assert made.state.generations.number == 2


# ---- boundaries ------------------------------------------------------------------------------------------


def step_all(made: "Cluster") -> None:
    for process in list(made.processes.values()):
        if process.doing == "stepping" and made.can_move(process):
            made.move(process)
    made.deliver_all("worker")


def get_ready(made: "Cluster", seconds: int) -> None:
    """Let time pass in which newcomers get ready, but no member steps."""
    for _ in range(seconds):
        for process in list(made.processes.values()):
            if process.doing == "building":
                made.move(process)
        pass_s(made, 1)


def test_growth_is_no_alarm_where_steps_are_long(cluster: "MakeCluster") -> None:
    made = cluster(slots=2, nodes_max=2, steps=10**6)
    made.join_node("n0")
    made.until_step(2)
    made.deliver_all("worker")
    for _ in range(3):
        pass_s(made, 40)
        step_all(made)
    made.join_node("n1")
    made.deliver_all("agent")
    before = len(made.said)
    get_ready(made, 40)
    assert made.state.generations.number == 2
    step_all(made)
    made.until_generation(2)
    assert not [text for text in made.said[before:] if "has not" in text]
    assert not lost(made)


def replace(made: "Cluster", member: str) -> None:
    made.tell(MoveRequested(Migrate(member=member)))
    made.run(lambda: made.state.replacing.leaving[member] in made.state.roster.members)


def test_one_that_is_to_be_replaced_and_hangs_is_ended_and_its_heir_has_the_place(
    cluster: "MakeCluster",
) -> None:
    made = up(cluster)
    hang(made, "n0.1", "train.py:88")
    made.processes["n0.1"].sticks_in = "forward"
    replace(made, "n0.1")
    stand_in = made.state.replacing.leaving["n0.1"]
    made.run(lambda: made.state.generations.number == 2)
    begun_ns = made.now_ns
    made.run(lambda: "n0.1" in lost(made))
    assert (made.now_ns - begun_ns) / SECOND < HUNG_S_MIN + FORM_S_MIN + 3 * LOCATE_S + 1
    made.until_step(made.state.progress.step + 2)
    assert lost(made) == ["n0.1"]
    assert made.state.generations.announced is not None
    assert made.state.generations.announced.members == ("n0.0", stand_in)


def test_an_heir_has_the_seat_before_a_process_that_is_only_warm(cluster: "MakeCluster") -> None:
    """The member is ended before a generation with its stand-in was announced."""
    made = up(cluster, hang_after_s=3.0)
    hang(made, "n0.1")
    replace(made, "n0.1")
    stand_in = made.state.replacing.leaving["n0.1"]
    made.processes[stand_in].builds = False
    made.run(lambda: made.state.roster.readiness(made.state.roster.nodes["n0"]) == WARM)
    made.run(lambda: "n0.1" in lost(made))
    assert made.state.roster.nodes["n0"].seats == ["n0.0", stand_in]


def test_declared_work_of_one_that_is_to_be_replaced_is_waited_for(cluster: "MakeCluster") -> None:
    made = up(cluster)
    hang(made, "n0.1")
    declare(made, "n0.1")
    replace(made, "n0.1")
    made.run(lambda: made.state.generations.number == 2)
    pass_s(made, 5 * HUNG_S_MIN)
    assert not any("has not" in text for text in made.said)
    declare(made, "n0.1", is_over=True)
    for process in made.processes.values():
        process.hangs_in = None
    made.until_generation(2)
    assert not lost(made)


def test_declared_work_of_a_replaced_member_excuses_no_other(cluster: "MakeCluster") -> None:
    made = up(cluster)
    declare(made, "n0.1")
    replace(made, "n0.1")
    made.until_generation(2)
    assert not made.state.hangs.working


# ---- declared work ---------------------------------------------------------------------------------------


def declare(made: "Cluster", member: str, *, is_over: bool = False) -> None:
    made.tell(FromMember(member, Working(member=member, work="evaluation", is_over=is_over)))


def test_declared_work_is_waited_for_in_silence(cluster: "MakeCluster") -> None:
    made = up(cluster, hang_after_s=3.0)
    declare(made, "n0.0")
    hang(made, "n0.0")
    pass_s(made, 0.9 * IDLE_S_MAX)
    assert not any(" has taken " in text for text in made.said)
    declare(made, "n0.0", is_over=True)
    pass_s(made, 2.5)
    for process in made.processes.values():
        process.hangs_in = None
    before = made.state.observed.hung_ns
    made.until_step(made.state.progress.step + 3)
    assert not lost(made)
    assert made.state.observed.hung_ns == before, "what is declared teaches nothing about steps"


def test_declared_work_that_never_ends_is_ended(cluster: "MakeCluster") -> None:
    made = up(cluster)
    declare(made, "n0.0")
    hang(made, "n0.0")
    pass_s(made, IDLE_S_MAX + 5 * LOCATE_S)
    assert lost(made) == ["n0.0"]


def test_work_ends_with_the_member_that_declared_it(cluster: "MakeCluster") -> None:
    made = up(cluster, hang_after_s=3.0)
    declare(made, "n0.0")
    made.kill("n0.0")
    made.until_generation(2)
    made.until_step(made.state.progress.step + 2)
    made.deliver_all("worker")
    hang(made, "n0.1")
    made.run(lambda: "n0.1" in lost(made), seconds=60)


# ---- how the bound is derived ----------------------------------------------------------------------------


def test_the_bound_follows_from_steps_and_from_what_the_script_does_between_them() -> None:
    assert Observed().hung_ns == ns(IDLE_S_MAX)
    assert Observed(step_ns_max=ns(0.15), first_ns_max=ns(1)).hung_ns == ns(HUNG_S_MIN)
    assert Observed(step_ns_max=ns(8)).hung_ns == ns(240)
    assert Observed(step_ns_max=ns(0.15), pause_ns_max=ns(40)).hung_ns == ns(160)
    assert Observed(step_ns_max=ns(100)).hung_ns == ns(IDLE_S_MAX)
    assert Observed(first_ns_max=ns(20)).hung_first_ns == ns(200)


@pytest.mark.parametrize("took_s", [0.5, 40.0])
def test_a_member_that_waits_does_not_make_the_step_long(cluster: "MakeCluster", took_s: float) -> None:
    """n0.0 evaluates for 40 s before the step, which takes half a second; or the step takes all that time."""
    made = up(cluster)
    step = made.state.progress.step + 1
    made.state.observed = Observed()
    made.wait((made.state.progress.committed_ns or 0) + 40 * SECOND)
    for member, own_s in (("n0.0", took_s), ("n0.1", 40.0)):
        said = Committed(member=member, generation=1, step=step, loss=None, took_s=own_s)
        made.tell(FromMember(member, said))
    assert made.state.progress.step == step
    assert made.state.observed.step_ns_max == pytest.approx(ns(took_s), rel=0.01)
    assert made.state.observed.pause_ns_max == pytest.approx(ns(40 - took_s), abs=SECOND)
