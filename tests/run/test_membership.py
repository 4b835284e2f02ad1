"""The membership, driven by a cluster in memory, which checks its promises at every turn."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cluster import Cluster, Process
from quantity import examples

from holdfast.record.events import (
    ActionTaken,
    CheckpointLoaded,
    FaultObserved,
    GenerationOpened,
    MemberJoined,
    MemberLost,
    RunEnded,
    RunStarted,
    StepCommitted,
)
from holdfast.run.happenings import (
    Disconnected,
    FromMember,
    FromNode,
    Print,
    Record,
    StopRequested,
    StrikeRequested,
    Tick,
    ToMembers,
)
from holdfast.run.history import MARKS_MAX, Worked
from holdfast.run.membership import advance, deadline
from holdfast.run.waits import IDLE_S_MAX, REPLACE_S_MIN, Observed, backoff_ns, ns
from holdfast.run.wire import (
    CODE_DEVICE_FAILED,
    COORDINATOR_GONE,
    Admitted,
    Announced,
    Checkpointed,
    Committed,
    Dealt,
    DeviceFailed,
    Dismissed,
    EndNode,
    Finished,
    FromWorker,
    MemberBeat,
    NodeBeat,
    Planned,
    PlannedFault,
    Regrouped,
    Released,
    ShowWorker,
    Stage,
    StartWorker,
    StopWorker,
    Strike,
    StrikeNode,
    StrikeWorker,
    Struck,
    WarmedUp,
    WorkerExited,
    WorkerJoined,
)

MakeCluster = Callable[..., Cluster]

MS = 10**6
SECOND = 10**9
TURNS_MAX = 4000
EXCUSES = (
    "failures and not one commit in between",
    "after the training was complete",
    "the script's mistake",
)
"""Reasons that may end a harassed run."""


def up(cluster: "MakeCluster", *, nodes: int = 1, **options: object) -> "Cluster":
    """A cluster whose first generation steps, with its pools full."""
    made = cluster(nodes_max=nodes, **options)
    for number in range(nodes):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming and pools_are_parked(made))
    return made


def lingering(cluster: "MakeCluster") -> "Cluster":
    """A run whose training is complete and whose scripts still have work to do."""
    made = up(cluster, nodes=2, slots=1, warm=0, steps=1000)
    for process in made.processes.values():
        process.lingers = True
    made.steps = made.state.progress.step
    made.run(lambda: bool(made.sent(Released)))
    return made


def load_at(made: "Cluster", step: int) -> None:
    """Let processes that start from now on begin with a checkpoint."""

    def load(process: "Process") -> None:
        process.version = step
        loaded = Checkpointed(member=process.member, happened="loaded", step=step, place="p")
        made.from_worker(process, loaded)

    made.script = load


def pools_are_parked(made: "Cluster") -> bool:
    pools = [name for node in made.state.roster.nodes.values() for name in node.pool.values()]
    return all(made.state.roster.members[name].reached == "parked" for name in pools)


# ---- start and end ---------------------------------------------------------------------------------------


def test_an_undisturbed_run_is_one_generation_and_completes(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=4)
    assert made.finish().outcome == "completed"
    assert [generation.members for generation in made.generations] == [("n0.0", "n0.1", "n1.0", "n1.1")]
    assert [event.step for event in made.recorded(StepCommitted)] == [1, 2, 3, 4]
    (started,) = made.recorded(RunStarted)
    (opened,) = made.recorded(GenerationOpened)
    assert (started.gpus, opened.gpus, opened.step) == (2, 4, 0)  # one node was enough, two came
    assert [event.outcome for event in made.recorded(RunEnded)] == ["completed"]
    assert not made.recorded(MemberLost)
    assert made.said[-1].startswith("completed")


def test_ranks_follow_nodes_and_slots_whatever_comes_first(cluster: "MakeCluster") -> None:
    made = cluster(nodes_min=3, nodes_max=3, slots=2)
    for name in ("n2", "n10", "n1"):
        made.join_node(name)
    made.until_generation(1)
    assert made.generations[0].members == ("n1.0", "n1.1", "n2.0", "n2.1", "n10.0", "n10.1")


def test_workers_start_with_what_torchrun_would_set(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, warm=0)
    starts = {message.member: message.environment for message in made.sent(StartWorker)}
    environment = starts["n1.0"]
    assert environment["RANK"] == "2"
    assert environment["WORLD_SIZE"] == "4"
    assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "2")
    assert (environment["GROUP_RANK"], environment["GROUP_WORLD_SIZE"]) == ("1", "2")
    assert environment["MASTER_PORT"] == "1000"
    assert environment["HOLDFAST_MEMBER"] == "n1.0"


def test_a_warm_process_starts_with_a_rank_that_exists(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=1)
    environment = next(message.environment for message in made.sent(StartWorker) if message.member == "n0.2")
    assert (environment["LOCAL_RANK"], environment["RANK"], environment["WORLD_SIZE"]) == ("0", "0", "2")


def test_with_too_few_nodes_the_run_waits_and_then_fails(cluster: "MakeCluster") -> None:
    made = cluster(nodes_min=2, nodes_max=2, wait_s=30.0)
    made.join_node("n0")
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("failed", 1)
    assert "only 1 of at least 2 nodes" in ending.reason
    assert not made.sent(StartWorker)


@pytest.mark.parametrize(("own", "late_s", "members"), [(2, 29.0, 2), (2, 31.0, 1), (1, 29.0, 1)])
def test_the_first_start_waits_for_the_nodes_that_the_launcher_starts(
    cluster: "MakeCluster", own: int, late_s: float, members: int
) -> None:
    made = cluster(joins=False, slots=1, nodes_min=1, nodes_max=2, nodes_own=own)
    made.join_node("n0")
    late_ns = made.state.now_ns + int(late_s * 1e9)
    made.run(lambda: made.state.now_ns >= late_ns)
    made.join_node("n1")
    made.run(lambda: bool(made.sent(StartWorker)))
    assert {message.environment["WORLD_SIZE"] for message in made.sent(StartWorker)} == {str(members)}


def test_a_member_that_never_gets_ready_is_not_waited_for_for_ever(cluster: "MakeCluster") -> None:
    made = cluster(slots=2)

    made.script = lambda process: setattr(process, "builds", process.member != "n0.1")
    made.join_node("n0")
    made.until_generation(1)
    assert made.generations[0].members == ("n0.0",)


def test_a_newcomer_that_never_gets_ready_loses_its_seat(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=10**6, wait_s=20.0)
    made.script = lambda process: setattr(process, "builds", process.member != "n0.0+1")
    made.kill("n0.0")
    made.until_generation(2)
    made.stall_steps = True  # so that time passes
    made.until_generation(3)
    assert made.generations[2].members == ("n0.1", "n0.0+2")
    faults = [(event.subject, event.fault) for event in made.recorded(FaultObserved)]
    assert faults == [("n0.0", "SIGKILL"), ("n0.0+1", "not ready in time")]


def test_exit_0_without_finishing_counts_as_left(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=1000)
    made.leave("n0.0")
    made.until_generation(2)
    assert made.generations[1].members == ("n0.1",)
    assert not made.recorded(FaultObserved)
    made.leave("n0.1")
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("stopped", 0)
    assert ending.reason == f"the script exited at step {made.state.progress.step} of 1000 (exit 0)"


def test_a_script_that_is_stopped_after_the_training_has_its_grace(cluster: "MakeCluster") -> None:
    made = lingering(cluster)
    made.tell(StopRequested("SIGTERM", 143))
    assert {message.grace_s for message in made.sent(StopWorker) if message.member == "n0.0"} == {10.0}
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("stopped", 143)


@pytest.mark.parametrize("how", ["kill", "node", "never"])
def test_a_script_that_does_not_end_well_after_the_training_fails_the_run(
    cluster: "MakeCluster", how: str
) -> None:
    made = lingering(cluster)
    match how:
        case "kill":
            made.kill("n0.0")
        case "node":
            made.kill_node("n0")
        case "never":
            made.wait(made.now_ns + ns(IDLE_S_MAX) + SECOND)
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("failed", 1)
    assert "after the training was complete" in ending.reason
    assert {"kill": "SIGKILL", "node": "node n0", "never": "1800 s"}[how] in ending.reason


def test_a_member_that_was_lost_before_the_end_does_not_spoil_it(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=1000)
    made.steps = made.state.progress.step
    made.processes["n0.0"].hangs_in = "forward"
    made.run(lambda: made.processes["n0.1"].is_finished and not any(made.queues.values()))
    made.kill("n0.0")
    exited = made.queues["agent", "n0"].popleft()
    made.run(lambda: made.state.ending.closing is not None)
    made.tell(exited)
    assert made.finish().outcome == "completed"


def test_a_warm_process_that_was_never_needed_is_not_lost_at_the_end(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=1, warm=1, steps=20)
    assert made.finish().outcome == "completed"
    assert made.sent(StopWorker)
    assert not made.recorded(MemberLost)


@pytest.mark.parametrize("how", ["kill", "node"])
def test_a_newcomer_before_whom_the_end_came_does_not_spoil_it(cluster: "MakeCluster", how: str) -> None:
    made = up(cluster, nodes=2, slots=1, warm=0, steps=1000)
    made.kill_node("n1")
    made.run(lambda: "n1" not in made.state.roster.nodes)
    made.join_node("n1")
    made.run(lambda: any(process.doing == "building" for process in made.processes.values()))
    (newcomer,) = (process for process in made.processes.values() if process.doing == "building")
    newcomer.builds = False
    last = made.processes["n0.0"]
    newcomer.lingers = last.lingers = True
    made.steps = made.state.progress.step
    made.run(lambda: bool(made.sent(Released)))
    if how == "kill":
        made.kill(newcomer.member)
    else:
        made.kill_node("n1")
    made.run(lambda: not any(made.queues.values()))
    made.leave(last.member)
    assert made.finish().outcome == "completed"


@pytest.mark.parametrize("warm", [0, 1])
def test_what_was_cut_short_after_the_last_step_is_done_again(cluster: "MakeCluster", warm: int) -> None:
    made = up(cluster, slots=2, warm=warm, steps=1000)
    made.steps = made.state.progress.step
    made.processes["n0.0"].hangs_in = "forward"  # it saves the weights
    made.run(lambda: made.processes["n0.1"].is_finished and not any(made.queues.values()))
    made.kill("n0.0")
    assert made.finish().outcome == "completed"
    (again,) = set(made.sent(Announced)[-1].members) - {"n0.1"}
    assert again != "n0.0"
    assert again not in [event.subject for event in made.recorded(MemberLost)]


def test_a_busy_member_does_not_hold_up_members_that_are_finished(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=1000)
    made.steps = made.state.progress.step
    made.processes["n0.0"].hangs_in = "forward"  # it evaluates what the others have finished with
    made.run(lambda: made.processes["n0.1"].is_finished and not any(made.queues.values()))
    made.wait(made.now_ns + round(0.9 * IDLE_S_MAX) * SECOND)
    assert not made.recorded(MemberLost)
    made.processes["n0.0"].hangs_in = None
    assert made.finish().outcome == "completed"


def test_different_digests_fail_the_run_and_say_whose(cluster: "MakeCluster") -> None:
    made = cluster(slots=3, steps=2)
    made.script = lambda process: setattr(process, "digest", "x" if process.member == "n0.1" else "d")
    made.join_node("n0")
    ending = made.finish()
    assert ending.outcome == "failed"
    assert "n0.1 differs from n0.0" in ending.reason


def test_stop_ends_all_members_and_a_second_stop_ends_them_at_once(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=1000)
    made.is_deaf = True
    made.tell(StopRequested("SIGTERM", 143))
    assert {message.grace_s for message in made.sent(StopWorker)} == {10.0}
    made.tell(StopRequested("SIGTERM", 143))
    assert made.sent(StopWorker)[-1].grace_s == 0
    ending = made.finish()  # though no agent ever says that a process went
    assert (ending.outcome, ending.code) == ("stopped", 143)
    assert made.sent(EndNode)


# ---- leaving the loop over steps -------------------------------------------------------------------------


def beat(made: "Cluster", name: str, step: int, stage: Stage) -> None:
    made.tell(FromMember(name, MemberBeat(member=name, step=step, stage=stage)))


def leave_loop(made: "Cluster", name: str, **told: object) -> int:
    """Let the script leave its loop over steps here. Return the step after which it left."""
    process = made.processes[name]
    process.doing, process.is_finished = "finished", True
    fields = {"step": process.version, "digest": "d", "steps_total": made.steps, **told}
    made.tell(FromMember(name, Finished(member=name, **fields)))  # type: ignore[arg-type]
    return process.version


def stepping(cluster: "MakeCluster", members: int = 2) -> "Cluster":
    """All members have just committed the same step."""
    made = up(cluster, slots=members, warm=0, steps=1000)
    made.run(lambda: len({process.version for process in made.processes.values()}) == 1)
    made.deliver_all("worker")
    return made


@pytest.mark.parametrize("warm", [0, 1])
@pytest.mark.parametrize("left", [0, 1], ids=["all have told", "some have told"])
def test_rank_0s_work_after_the_last_step_is_repeated_even_if_no_member_is_done(
    cluster: "MakeCluster", warm: int, left: int
) -> None:
    """The others end meanwhile. Until a member has repeated its part, no other is rank 0."""
    made = up(cluster, slots=2, warm=warm, steps=1000)
    made.run(lambda: len({process.version for process in made.processes.values() if process.version}) == 1)
    made.deliver_all("worker")
    made.steps = made.state.progress.steps_total = made.state.progress.step + left
    made.state.roster.members["n0.0"].reported = (1, made.steps)
    made.kill("n0.0", signal=None, code=1)
    made.deliver_all("worker")
    made.deliver_all("agent")
    made.processes["n0.1"].version = made.steps  # its commit report is in transit
    leave_loop(made, "n0.1")
    assert made.state.ending.closing is None
    assert made.finish().outcome == "completed"
    again = "n0.2" if warm else "n0.0+1"
    assert [generation.members[0] for generation in made.generations] == ["n0.0", again]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_loop_over_more_steps_shows_that_the_last_one_was_not(cluster: "MakeCluster", when: str) -> None:
    """Rank 0 is lost between two epochs, before or after another member has reached the second one."""
    made = stepping(cluster)
    made.state.progress.steps_total = made.state.progress.step
    planned = FromMember("n0.1", Planned(member="n0.1", steps_total=1000))
    if when == "after":
        made.tell(planned)
    made.kill("n0.0")
    made.deliver_all("worker")
    made.deliver_all("agent")
    if when == "before":
        assert len(made.generations) == 1  # a member has to repeat rank 0's last part
        made.tell(planned)
    assert made.generations[-1].members == ("n0.1",)
    made.tell(FromMember("n0.1", Planned(member="n0.1", steps_total=3)))  # of a loop that was left
    assert made.state.progress.steps_total == 1000
    made.run(lambda: len(made.generations[-1].members) == 2)
    assert made.generations[-1].members[0] == "n0.1"
    assert made.finish().outcome == "completed"


def test_leaving_the_loop_alone_is_told_as_soon_as_another_one_goes_on(cluster: "MakeCluster") -> None:
    made = stepping(cluster, 3)
    step = leave_loop(made, "n0.0", place="train.py:88")
    beat(made, "n0.2", step, "script")
    assert made.state.ending.closing is None
    beat(made, "n0.1", step + 1, "forward")
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("failed", 2)
    assert ending.reason == (
        f"n0.0 left the loop over steps after step {step} (train.py:88), but n0.1 has begun step {step + 1}."
    )
    assert "run.broadcast()" in ending.complaint
    assert not made.sent(Dismissed)  # which would keep them from writing a checkpoint
    assert {stop.grace_s for stop in made.sent(StopWorker)} == {10.0}


def test_a_member_that_began_another_step_before_is_noticed_too(cluster: "MakeCluster") -> None:
    made = stepping(cluster)
    beat(made, "n0.1", made.processes["n0.0"].version + 1, "reduce")
    leave_loop(made, "n0.0")
    assert made.finish().code == 2


@pytest.mark.parametrize("is_exit", [False, True])
def test_all_members_may_leave_the_loop_early(cluster: "MakeCluster", is_exit: bool) -> None:
    made = stepping(cluster)
    step = leave_loop(made, "n0.0", place="train.py:88", is_exit=is_exit)
    beat(made, "n0.1", step, "optimizer")
    made.now_ns += 30 * SECOND
    leave_loop(made, "n0.1", place="train.py:88", is_exit=is_exit)
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("stopped" if is_exit else "completed", 0)
    told = f"the script exited at step {step} of 1000 (exit 0)"
    assert ending.reason == (told if is_exit else "")
    assert made.said[-1] == (f"stopped: {told}, digest d" if is_exit else f"completed: step {step}, digest d")
    assert [event.outcome for event in made.recorded(RunEnded)] == [ending.outcome]


def test_an_exit_after_the_last_step_is_a_completion(cluster: "MakeCluster") -> None:
    made = stepping(cluster)
    for name in ("n0.0", "n0.1"):
        leave_loop(made, name, steps_total=made.state.progress.step, is_exit=True)
    assert made.finish().outcome == "completed"


def test_all_members_may_leave_in_the_middle_of_a_step(cluster: "MakeCluster") -> None:
    made = stepping(cluster)
    step = leave_loop(made, "n0.0", begun=made.state.progress.step + 1, is_exit=True)
    beat(made, "n0.1", step + 1, "reduce")
    assert made.state.ending.closing is None
    leave_loop(made, "n0.1", begun=step + 1, is_exit=True)
    assert made.finish().outcome == "stopped"


def test_leaving_in_the_middle_of_a_step_alone_is_told(cluster: "MakeCluster") -> None:
    made = stepping(cluster)
    step = leave_loop(made, "n0.0", begun=made.state.progress.step + 1)
    made.now_ns += 2 * SECOND
    beat(made, "n0.1", step + 1, "forward")  # it may take its time there, and leave as well
    assert made.state.ending.closing is None
    beat(made, "n0.1", step + 1, "reduce")
    assert made.finish().reason == (
        f"n0.0 left the loop over steps in the middle of step {step + 1}, but n0.1 waits for it there."
    )


def test_a_newcomer_after_the_last_step_is_no_sign_of_a_mistake(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=1, steps=1000)
    made.steps = made.state.progress.step
    made.processes["n0.0"].hangs_in = "script"
    made.run(lambda: made.processes["n0.1"].is_finished and not any(made.queues.values()))
    made.kill("n0.0")
    made.run(lambda: len(made.generations) > 1)
    (newcomer,) = set(made.generations[-1].members) - {"n0.1"}
    stages: tuple[Stage, ...] = ("waiting", "regroup", "state", "script")
    for stage in stages:
        beat(made, newcomer, made.state.progress.step + 1, stage)
    assert made.finish().outcome == "completed"


def test_a_member_that_finishes_while_the_run_ends_may_leave(cluster: "MakeCluster") -> None:
    made = stepping(cluster)
    made.is_deaf = True
    made.tell(StopRequested("SIGTERM", 143))
    leave_loop(made, "n0.0", is_exit=True)  # by a signal handler of its own
    assert ToMembers(("n0.0",), Released(outcome="stopped")) in made.effects


# ---- what is lost, and how long it takes -----------------------------------------------------------------


def test_going_back_to_a_checkpoint_says_what_is_lost(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=1000)
    made.until_step(9)
    at_step = {event.step: event.occurred_ns for event in made.recorded(StepCommitted)}
    step, took_s = made.state.progress.step, (at_step[made.state.progress.step] - at_step[4]) / 1e9
    load_at(made, 4)
    made.kill("n0.0")
    made.kill("n0.1")
    made.until_generation(made.state.generations.number + 1)
    (told,) = [text for text in made.said if "no member has the state" in text]
    assert told == (
        f"no member has the state: back to the checkpoint at step 4; {step - 4} steps ({took_s:.1f} s) "
        "will be computed again"
    )


def test_without_a_checkpoint_all_is_lost(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=1000)
    made.kill_node("n0")
    made.run(lambda: "n0" not in made.state.roster.nodes)
    step = made.state.progress.step
    made.join_node("n0")
    made.until_generation(made.state.generations.number + 1)
    (told,) = [text for text in made.said if "no member has the state" in text]
    assert told.startswith(f"no member has the state: back to the start; {step} step")


def test_a_recovery_takes_until_all_have_committed(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=3, warm=2, steps=1000)
    made.stall_steps = True
    made.kill("n0.0")
    made.run(lambda: bool(made.recorded(MemberLost)))
    lost_ns = made.recorded(MemberLost)[0].occurred_ns
    made.until_generation(2)
    made.wait(made.now_ns + 3 * SECOND)
    made.kill("n0.1")
    made.until_generation(3)
    assert not [text for text in made.said if "after the loss" in text]
    made.stall_steps = False
    made.until_step(made.state.progress.step + 3)
    (told,) = [text for text in made.said if "after the loss" in text]
    first = next(event for event in made.recorded(StepCommitted) if event.occurred_ns > lost_ns)
    took_s = (first.occurred_ns - lost_ns) / 1e9
    assert took_s > 3
    assert told == f"step {first.step} committed by all 3 members, {took_s:.2f} s after the loss"


def test_growing_is_no_recovery(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=1, warm=0, steps=1000)
    made.kill_node("n1")
    made.until_step(made.state.progress.step + 5)
    made.join_node("n1")
    made.until_generation(3)
    made.until_step(made.state.progress.step + 3)
    (told,) = [text for text in made.said if "after the loss" in text]
    assert "committed by the only member" in told


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=2000), st.floats(0, 1))
def test_work_is_remembered_within_bounds(took_ns: list[int], share: float) -> None:
    worked = Worked()
    for step, each_ns in enumerate(took_ns, 1):
        worked.note(step, each_ns)
    assert len(worked.marks) <= MARKS_MAX
    back_to = round(share * len(took_ns))
    total_ns, lost_ns = sum(took_ns), worked.since_ns(back_to)
    assert (worked.since_ns(0), worked.since_ns(len(took_ns))) == (total_ns, 0)
    assert 0 <= lost_ns <= total_ns
    if len(took_ns) <= MARKS_MAX:
        assert lost_ns == sum(took_ns[back_to:])
    worked.go_back(back_to)
    assert (worked.total_ns, worked.since_ns(back_to)) == (total_ns - lost_ns, 0)


# ---- replace, shrink, grow -------------------------------------------------------------------------------


def test_a_killed_member_is_replaced_by_a_warm_one_in_its_place(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=50)
    made.kill("n0.0")
    made.until_generation(2)
    assert made.generations[1].members == ("n0.1", "n0.2", "n1.0", "n1.1")
    assert not made.generations[1].at_boundary
    actions = [(event.action, event.subject) for event in made.recorded(ActionTaken)]
    assert actions == [("replace", "n0.0")]
    assert any("n0.2 takes the place of n0.0" in text for text in made.said)
    made.run(lambda: "n0.2+1" in made.state.roster.nodes["n0"].pool.values())  # the pool is filled again
    assert made.finish().outcome == "completed"


@pytest.mark.parametrize("is_warm", [False, True])
def test_only_a_process_that_is_warm_is_waited_for(cluster: "MakeCluster", is_warm: bool) -> None:
    """The others waited ten seconds for one that was still warming up, though they could step without it."""
    made = cluster(nodes_max=1, slots=2, warm=1, steps=10**6)
    made.warms_up = True
    made.join_node("n0")
    made.until_generation(1)
    made.run(lambda: pools_are_parked(made))
    spare = made.processes["n0.2"]
    spare.builds = False
    if is_warm:
        made.from_worker(spare, WarmedUp(member="n0.2"))
    made.until_step(made.state.progress.step + 1)
    killed_ns = made.now_ns
    made.kill("n0.0")
    made.until_generation(2)
    assert made.generations[1].members == ("n0.1",)
    waited_s = (made.now_ns - killed_ns) / 1e9
    assert waited_s >= REPLACE_S_MIN if is_warm else waited_s < REPLACE_S_MIN / 2
    made.from_worker(spare, WarmedUp(member="n0.2"))
    spare.builds = True
    made.until_generation(3)
    assert made.generations[2].members == ("n0.1", "n0.2")


def test_of_two_processes_in_the_pool_the_warm_one_steps_in(cluster: "MakeCluster") -> None:
    made = cluster(nodes_max=1, slots=2, warm=2, steps=10**6)
    made.warms_up = True
    made.join_node("n0")
    made.until_generation(1)
    made.run(lambda: pools_are_parked(made))
    made.from_worker(made.processes["n0.3"], WarmedUp(member="n0.3"))
    made.kill("n0.0")
    made.until_generation(2)
    assert made.generations[1].members == ("n0.1", "n0.3")


def test_of_two_spare_nodes_the_one_whose_process_is_further_steps_in(cluster: "MakeCluster") -> None:
    made = cluster(nodes_max=1, slots=1, warm=1, steps=10**6)
    made.warms_up = True
    made.join_node("n0")
    made.until_generation(1)
    made.joins = False
    made.join_node("n1")
    made.run(lambda: "n1.0" in made.processes)
    made.joins = True
    made.join_node("n2")
    made.run(lambda: "n2.0" in made.processes and made.state.roster.members["n2.0"].reached == "parked")
    made.kill_node("n0")
    made.run(lambda: "n0" not in made.state.roster.nodes and made.state.roster.nodes_active == 1)
    assert [node.name for node in made.state.roster.active_nodes()] == ["n2"]


def test_rank_0_is_the_oldest_member_and_stays_where_it_is(cluster: "MakeCluster") -> None:
    """As long as it lives, and then the next oldest, whichever members join and seats are filled again."""
    made = up(cluster, nodes=2, slots=2, steps=1000)
    firsts = [made.generations[0].members[0]]
    for victim in ("n0.0", "n0.2", "n1.0", "n0.1", "n1.1"):
        number = made.state.generations.number
        made.kill(victim)
        made.until_generation(number + 1)
        made.run(
            lambda: not made.state.roster.short and not made.state.roster.coming and pools_are_parked(made)
        )
        firsts.append(made.generations[-1].members[0])
    # The replacements of n0.0, n0.2 and n1.0 joined later than n0.1 and n1.1, whatever their seats.
    assert firsts == ["n0.0", "n0.1", "n0.1", "n0.1", "n1.1", firsts[-1]]
    members = [made.state.roster.members[name] for name in made.generations[-1].members]
    assert members[0].since_generation == min(member.since_generation for member in members)
    assert made.finish().outcome == "completed"


def test_a_generation_tells_of_those_before_it_that_never_formed(cluster: "MakeCluster") -> None:
    """Two are lost one after the other, the second before the first one's replacement has regrouped."""
    made = up(cluster, nodes=3, slots=1, steps=50)
    made.kill("n1.0")
    made.run(lambda: made.state.generations.number == 2)
    assert made.state.generations.announced is not None
    assert made.state.generations.announced.formed_ns is None
    made.kill("n0.0")
    made.until_generation(3)
    made.run(lambda: len(made.recorded(GenerationOpened)) > 1)
    line = next(text for text in made.said if "generation 3" in text)
    assert "n1.1 takes the place of n1.0 (SIGKILL)" in line
    assert "n0.1 takes the place of n0.0 (SIGKILL)" in line
    *_, opened = made.recorded(GenerationOpened)
    assert "n1.0" in opened.reason
    assert "n0.0" in opened.reason


def test_a_replacement_that_is_replaced_stands_for_whom_it_replaced(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=1, warm=2, steps=50)
    made.kill("n1.0")
    made.run(lambda: made.state.generations.number == 2)
    made.kill("n1.1")
    made.until_generation(3)
    made.run(lambda: len(made.recorded(GenerationOpened)) > 1)
    line = next(text for text in made.said if "generation 3" in text)
    assert "n1.2 takes the place of n1.0" in line
    assert "n1.1" not in line


def test_a_loss_is_told_with_its_cause_though_the_run_has_shrunk_at_once(cluster: "MakeCluster") -> None:
    """The connection ends before the agent reports the cause of death."""
    made = up(cluster, nodes=2, slots=1, warm=0, steps=200)
    made.tell(Disconnected("worker", "n1.0"))
    assert made.state.generations.number == 2
    made.kill("n1.0")
    made.run(lambda: len(made.recorded(GenerationOpened)) > 1)
    assert any("without n1.0 (SIGKILL)" in text for text in made.said), made.said


def test_a_process_needed_before_it_has_joined_is_shown_from_then_on(cluster: "MakeCluster") -> None:
    """Once it has joined, it is admitted at once, and might print before its agent is told."""
    made = up(cluster, slots=1, warm=1, steps=10**6)
    made.kill("n0.1")
    made.deliver_all("agent")
    made.kill("n0.0")
    made.deliver_all("agent")
    assert made.state.roster.members["n0.1+1"].reached == "started"
    assert ShowWorker(member="n0.1+1", slot=0) in made.sent(ShowWorker)


def test_the_replacement_is_asked_for_in_the_same_turn(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=50)
    exited = FromNode("n0", WorkerExited(member="n0.0", signal=9))
    effects = advance(made.state, exited, made.now_ns)
    assert ToMembers(("n0.2",), Admitted(slot=0, slots=2)) in effects


def test_the_record_has_how_long_the_slowest_took_for_each_part(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=50)
    made.kill("n0.0")
    made.until_generation(2)
    made.run(lambda: len(made.recorded(GenerationOpened)) > 1)
    made.run(lambda: "n0.2+1" in made.state.roster.members)
    made.kill("n0.1")
    made.until_generation(3)
    for opened in made.recorded(GenerationOpened):
        slowest = max(map(len, opened.members))
        parts = (opened.abort_ns, opened.group_ns, opened.state_ns)
        assert parts == (MS, 10 * MS * (1 + slowest), 100 * MS)


def test_a_newcomer_is_missing_until_it_is_in_a_generation(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=200)
    made.script = lambda process: setattr(process, "builds", False)
    made.kill("n0.0")
    made.run(lambda: "n0.0+1" in made.processes and made.state.generations.number == 2)
    made.until_step(made.state.progress.step + 2)
    assert [event.subject for event in made.recorded(MemberJoined)] == ["n0.0", "n0.1"]
    made.processes["n0.0+1"].builds = True
    made.until_generation(3)
    *_, joined = made.recorded(MemberJoined)
    assert (joined.subject, joined.role, joined.gpus) == ("n0.0+1", "active", 1)
    assert joined.occurred_ns <= made.recorded(GenerationOpened)[-1].occurred_ns


def test_a_replacement_that_takes_too_long_comes_later(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=5000)
    made.processes["n0.2"].builds = False
    made.kill("n0.0")
    made.until_generation(2)
    assert made.generations[1].members == ("n0.1",)
    took_ns = made.recorded(GenerationOpened)[1].occurred_ns - made.recorded(MemberLost)[0].occurred_ns
    assert took_ns <= made.state.observed.replace_ns + SECOND // 5
    made.processes["n0.2"].builds = True
    made.until_generation(3)
    assert made.generations[2].members == ("n0.1", "n0.2")
    assert made.generations[2].at_boundary


def test_a_replacement_too_late_for_one_loss_is_not_waited_for_after_another(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    made.processes["n1.2"].builds = False
    late = made.state.roster.members["n1.2"]
    late.reached = "started"  # it has not come to `join()` yet
    made.kill("n1.0")
    made.until_generation(2)
    made.tell(FromMember("n1.2", WorkerJoined(member="n1.2", pid=1)))
    assert late.admitted_ns == made.now_ns
    made.kill_node("n0")
    made.until_generation(3)
    took_ns = made.recorded(GenerationOpened)[2].occurred_ns - made.recorded(MemberLost)[-1].occurred_ns
    assert took_ns < SECOND // 10


def test_a_replacement_that_dies_is_not_waited_for(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=50)
    made.processes["n0.2"].builds = False
    made.kill("n0.0")
    made.run(lambda: made.state.roster.members["n0.2"].reached == "admitted")
    made.kill("n0.2")
    made.until_generation(2)
    assert made.generations[1].members == ("n0.1",)
    assert made.finish().outcome == "completed"


def test_without_a_pool_the_run_shrinks_at_once_and_grows_again(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=200)
    made.kill("n0.0")
    made.until_generation(3)
    shrunk, grown = made.generations[1:3]
    assert (shrunk.members, shrunk.at_boundary) == (("n0.1",), False)
    assert (grown.members, grown.at_boundary) == (("n0.1", "n0.0+1"), True)
    assert [event.action for event in made.recorded(ActionTaken)] == ["shrink", "grow"]
    assert made.finish().outcome == "completed"


def test_a_lost_node_shrinks_the_run_and_its_return_is_one_generation(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=400)
    made.kill_node("n1")
    made.until_generation(2)
    assert made.generations[1].members == ("n0.0", "n0.1")
    made.join_node("n1")
    made.until_generation(3)
    assert made.generations[2].members == ("n0.0", "n0.1", "n1.0+1", "n1.1+1")
    assert [event.gpus for event in made.recorded(GenerationOpened)] == [4, None, None]
    faults = [(event.subject, event.fault) for event in made.recorded(FaultObserved)]
    assert faults == [("n1", "node lost")]


def test_a_spare_node_takes_the_place_of_a_lost_one(cluster: "MakeCluster") -> None:
    made = cluster(nodes_min=2, nodes_max=2, slots=1, steps=500)
    for name in ("n0", "n1"):
        made.join_node(name)
    made.until_step(1)
    made.join_node("n2")
    made.run(lambda: "n2.0" in made.processes and made.state.roster.members["n2.0"].reached == "parked")
    assert made.state.roster.members["n2.0"].role == "spare"
    made.kill_node("n0")
    made.until_generation(2)
    assert made.generations[1].members == ("n1.0", "n2.0")
    assert [event.action for event in made.recorded(ActionTaken)] == ["replace"]


def test_below_the_least_nodes_the_run_waits_for_one(cluster: "MakeCluster") -> None:
    made = cluster(nodes_min=2, nodes_max=2, steps=50, wait_s=60.0)
    made.join_node("n0")
    made.join_node("n1")
    made.until_step(1)
    made.kill_node("n1")
    made.run(lambda: any("waiting for nodes: 1 of at least 2" in text for text in made.said))
    assert len(made.generations) == 1
    made.join_node("n1")
    assert made.finish().outcome == "completed"
    assert made.generations[-1].members == ("n0.0", "n1.0+1")


def test_each_wait_for_a_node_is_as_long_as_the_first(cluster: "MakeCluster") -> None:
    """The only node comes back and is lost again before its member is ready. Neither the run's earlier wait
    nor the member's time to get ready is part of the next wait.
    """
    made = up(cluster, slots=1, warm=0, wait_s=60.0)
    made.script = lambda process: setattr(process, "builds", False)
    for _ in range(4):
        made.kill_node("n0")
        made.deliver_all("worker")
        made.deliver_all("agent")
        made.wait(made.now_ns + 40 * SECOND)
        made.join_node("n0")
        made.run(lambda: any(process.doing == "building" for process in made.processes.values()))
        made.wait(made.now_ns + 40 * SECOND)
    for process in made.processes.values():
        process.builds = True
    assert made.finish().outcome == "completed"


def test_a_node_that_comes_and_goes_without_a_commit_is_not_waited_for_for_ever(
    cluster: "MakeCluster",
) -> None:
    made = up(cluster, slots=1, warm=0, wait_s=60.0)
    made.script = lambda process: setattr(process, "builds", False)
    for _ in range(40):
        if made.ending is not None:
            break
        made.kill_node("n0")
        made.deliver_all("worker")
        made.deliver_all("agent")
        made.wait(made.now_ns + 10 * SECOND)
        if made.ending is None:
            made.join_node("n0")
            made.deliver_all("agent")
    assert "failures and not one commit in between" in made.finish().reason


def test_a_node_that_comes_back_has_no_longer_than_that_for_its_members(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=1, warm=0, wait_s=60.0)
    made.script = lambda process: setattr(process, "builds", False)
    made.kill_node("n0")
    made.deliver_all("worker")
    made.deliver_all("agent")
    made.wait(made.now_ns + 40 * SECOND)
    made.join_node("n0")
    made.deliver_all("agent")
    returned_ns = made.now_ns
    assert "waited 60 s in vain for members that are ready" in made.finish().reason
    assert made.now_ns - returned_ns < 70 * SECOND


def test_when_all_members_are_lost_the_run_continues_from_a_checkpoint(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=30)
    made.until_step(9)
    made.kill("n0.0")
    made.kill("n0.1")
    load_at(made, 4)
    made.until_generation(made.state.generations.number + 1)
    (event,) = made.recorded(CheckpointLoaded)
    assert (event.step, event.place) == (4, "p")
    assert made.recorded(GenerationOpened)[-1].step == 4
    assert made.finish().outcome == "completed"


@pytest.mark.parametrize(
    ("snapshots", "what"), [({"n0.0": 4, "n0.1": 4}, "snapshot"), ({"n0.0": 3}, "checkpoint")]
)
def test_it_is_a_snapshot_only_if_the_run_goes_on_from_one(
    cluster: "MakeCluster", snapshots: dict[str, int], what: str
) -> None:
    made = up(cluster, slots=2, warm=0, steps=30)
    made.until_step(9)

    def load(process: "Process") -> None:
        seat = process.member.partition("+")[0]
        process.version = snapshots.get(seat, 4)
        made.from_worker(
            process,
            Checkpointed(
                member=process.member,
                happened="loaded",
                step=process.version,
                place="p",
                is_snapshot=seat in snapshots,
            ),
        )

    made.script = load
    made.kill("n0.0")
    made.kill("n0.1")
    made.until_generation(made.state.generations.number + 1)
    (event,) = made.recorded(CheckpointLoaded)
    assert (event.step, event.is_snapshot) == (4, what == "snapshot")
    assert any(f"back to the {what} at step 4" in line for line in made.said)


def test_a_step_that_only_some_committed_before_a_loss_is_kept(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=1000)
    survivor, victim = made.processes["n0.1"], made.processes["n0.0"]
    while survivor.version <= victim.version:
        made.move(survivor)
    version = survivor.version
    made.kill("n0.0")
    made.until_generation(2)
    steps = [event.step for event in made.recorded(StepCommitted)]
    assert version in steps
    assert len(steps) == len(set(steps))
    committed = next(event for event in made.recorded(StepCommitted) if event.step == version)
    assert committed.occurred_ns < made.recorded(MemberLost)[0].occurred_ns


def test_a_planned_join_fault_strikes_one_newcomer_only(cluster: "MakeCluster") -> None:
    fault = PlannedFault(id=1, step=2, moment="join", rank=0)
    made = up(cluster, slots=2, warm=2, steps=200, faults=(fault,))
    made.until_step(3)
    made.kill("n0.0")
    made.kill("n0.1")
    made.run(lambda: made.state.generations.number == 2)
    handed = [message.faults for message in made.sent(Admitted) if message.faults]
    assert handed == [(fault,)]
    assert made.generations[-1].faults == ()


def test_a_fault_that_struck_is_not_planned_any_more(cluster: "MakeCluster") -> None:
    fault = PlannedFault(id=7, step=2, moment="reduce", rank=0)
    made = up(cluster, slots=2, steps=200, faults=(fault,))
    assert made.generations[0].faults == (fault,)
    made.tell(FromMember("n0.0", Struck(member="n0.0", fault=7)))
    struck_ns = made.now_ns
    assert [message.fault for message in made.sent(Struck)] == [7]  # the others know
    made.kill("n0.0")
    made.until_generation(2)
    assert made.generations[1].faults == ()
    assert made.recorded(MemberLost)[0].onset_ns == struck_ns


def test_a_planned_pause_ends_by_itself(cluster: "MakeCluster") -> None:
    fault = PlannedFault(id=7, step=2, moment="lane", rank=0, fault="pause", for_s=2.0)
    made = up(cluster, slots=2, steps=200, faults=(fault,))
    made.tell(FromMember("n0.0", Struck(member="n0.0", fault=7)))
    wakes = StrikeWorker(member="n0.0", fault="pause", for_s=2.0, stops_itself=True)
    assert made.sent(StrikeWorker) == [wakes]


def test_a_fault_that_was_survived_is_not_when_a_later_loss_began(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    made.tell(StrikeRequested(Strike(fault="pause", target="n0.0")))
    made.processes["n0.0"].is_paused = False
    made.wait(made.now_ns + 100 * SECOND)
    made.deliver_all("agent")
    made.deliver_all("worker")
    heard_ns = made.state.roster.members["n0.0"].seen_ns
    made.kill("n0.0")
    made.until_generation(2)
    assert made.recorded(MemberLost)[0].onset_ns == heard_ns


# ---- losses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_first", [True, False])
def test_a_loss_counts_once_and_is_recorded_with_its_signal(cluster: "MakeCluster", exit_first: bool) -> None:
    made = up(cluster, slots=2, steps=200)
    made.kill("n0.0")
    made.deliver_all("agent" if exit_first else "worker")
    made.until_generation(2)
    made.until_step(made.state.progress.step + 2)
    (lost,) = made.recorded(MemberLost)
    (fault,) = made.recorded(FaultObserved)
    assert (lost.subject, fault.subject, fault.fault) == ("n0.0", "n0.0", "SIGKILL")
    assert (lost.reason, lost.causes) == ("SIGKILL", (fault.id,))
    assert lost.occurred_ns == fault.occurred_ns
    assert [text for text in made.said if "n0.0 lost" in text] == ["n0.0 lost (SIGKILL)"]


def test_a_stopped_member_is_fenced_and_given_up(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=1000)
    made.processes["n0.0"].is_paused = True
    began_ns = made.now_ns
    made.until_generation(2)
    assert "n0.0" not in made.generations[1].members
    assert StopWorker(member="n0.0", grace_s=0) in made.sent(StopWorker)
    assert 4 * SECOND < made.now_ns - began_ns < 12 * SECOND
    (fault,) = made.recorded(FaultObserved)
    assert fault.fault == "stopped"
    assert fault.onset_ns is not None
    assert fault.onset_ns <= began_ns + 2 * SECOND
    assert "n0.0 is stopped (SIGSTOP); it is replaced after 5 s unless it continues" in made.said


def test_a_coordinator_that_was_held_up_gives_no_node_up(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    made.now_ns += 60 * SECOND
    made.tell(Tick())
    assert not made.recorded(MemberLost)
    due_ns = deadline(made.state)
    assert due_ns is not None
    assert due_ns > made.now_ns


def test_a_member_whose_step_never_ends_is_ended(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    made.processes["n0.0"].hangs_in = "forward"
    made.processes["n0.1"].hangs_in = "reduce"
    made.until_generation(2)
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault) == ("n0.0", "no progress")


def test_a_generation_that_breaks_without_a_loss_is_opened_again(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=1000)
    made.break_group("n0.0")
    made.until_generation(2)
    assert made.generations[1].members == made.generations[0].members
    assert not made.recorded(MemberLost)
    assert made.finish().outcome == "completed"


def test_a_script_that_raises_before_the_first_commit_ends_the_run(cluster: "MakeCluster") -> None:
    made = cluster(slots=2, steps=10**6)
    made.join_node("n0")
    made.run(lambda: made.state.launch.is_protected)
    made.leave("n0.1", code=1, complaint="Traceback: boom")
    ending = made.finish()
    assert (ending.outcome, ending.code, ending.complaint) == ("failed", 1, "Traceback: boom")


def test_a_script_that_raises_later_is_replaced_but_not_twice_the_same(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=2, steps=10**6)
    made.leave("n0.0", code=1, complaint="Traceback: boom")
    made.until_generation(2)
    made.until_step(made.state.progress.step + 1)
    made.leave("n0.1", code=1, complaint="Traceback: boom")
    made.until_generation(3)
    made.until_step(made.state.progress.step + 1)
    for name in made.generations[-1].members:
        made.leave(name, code=1, complaint="Traceback: boom")
    ending = made.finish()
    assert ending.outcome == "failed"
    assert "failed again" in ending.reason


BOOM = "Traceback (most recent call last):\n  line {line}\nValueError: boom"


def fail_script(made: "Cluster", name: str, stage: Stage, line: int = 1) -> None:
    """Let the script raise on this member, and report where it was."""
    beat(made, name, made.state.progress.step, stage)
    made.leave(name, code=1, complaint=BOOM.format(line=line))


def printed(made: "Cluster") -> list[tuple[str, str]]:
    return [(effect.member, effect.text) for effect in made.effects if isinstance(effect, Print)]


@pytest.mark.parametrize("stage", ["script", "forward"])
def test_a_failure_that_comes_again_outside_a_step_ends_the_run(cluster: "MakeCluster", stage: Stage) -> None:
    made = up(cluster, slots=2, warm=2, steps=100)
    fail_script(made, "n0.0", stage)
    made.until_generation(2)
    made.until_step(made.state.progress.step + 5)
    survivor = made.generations[-1].members[-1]
    fail_script(made, survivor, stage, line=2)
    ending = made.finish()
    (ended,) = made.recorded(RunEnded)
    assert ended.survived_errors == (1 if stage == "script" else 2)
    assert printed(made) == [("n0.0", BOOM.format(line=1))]
    if stage == "script":
        assert (ending.outcome, ending.code, ending.complaint) == ("failed", 1, BOOM.format(line=2))
        assert f"failed again on {survivor} after step " in ending.reason
    else:
        assert ending.outcome == "completed"
        assert "completed with 2 survived errors: step 100, digest d" in made.said


def test_a_failure_of_all_members_is_printed_once_with_the_end(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=100)
    fail_script(made, "n0.0", "script")
    fail_script(made, "n0.1", "script")
    assert made.finish().complaint == BOOM.format(line=1)
    assert not printed(made)


def test_a_failure_is_printed_once_the_run_has_come_further(cluster: "MakeCluster") -> None:
    """Repeated steps do not show whether the failure happens again."""
    made = up(cluster, slots=2, warm=2, steps=100)
    made.until_step(5)
    fail_script(made, "n0.0", "forward")
    made.kill("n0.1")
    made.until_generation(2)
    made.run(lambda: made.state.progress.step == 2)
    reached = made.state.progress.step_max
    assert not printed(made)
    made.until_step(reached + 1)
    assert printed(made) == [("n0.0", BOOM.format(line=1))]


def test_what_fails_after_the_last_step_fails_the_run_if_it_fails_again(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=1, steps=1000)
    made.steps = made.state.progress.step
    made.script = lambda process: setattr(process, "hangs_in", None)
    made.processes["n0.0"].hangs_in = "script"  # it saves the weights
    made.run(lambda: made.processes["n0.1"].is_finished and not any(made.queues.values()))
    fail_script(made, "n0.0", "script")
    made.run(lambda: len(made.generations) > 1)
    (again,) = set(made.generations[-1].members) - {"n0.1"}
    fail_script(made, again, "script")
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("failed", 1)
    assert printed(made) in ([], [("n0.0", BOOM.format(line=1))])


def test_the_traceback_of_a_failed_gpu_is_printed_once(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=2, steps=1000)
    for name in ("n0.0", "n0.1"):
        made.fail_device(name, complaint="Traceback: CUDA error")
        made.until_generation(made.state.generations.number + 1)
        made.until_step(made.state.progress.step + 2)
    assert printed(made) == [("n0.0", "Traceback: CUDA error")]
    made.steps = made.state.progress.step + 1
    made.finish()
    assert made.recorded(RunEnded)[0].survived_errors == 0  # of the script


@pytest.mark.parametrize("is_over", [False, True], ids=["goes on", "is over"])
def test_a_script_that_takes_long_to_end_is_still_explained(cluster: "MakeCluster", is_over: bool) -> None:
    made = up(cluster, slots=2, warm=0, steps=10**6)
    made.leave("n0.0", code=1, complaint="Traceback (most recent call last):\nValueError: boom")
    exited = made.queues["agent", "n0"].popleft()
    made.until_generation(2)
    if is_over:
        made.steps = made.state.progress.step
        made.run(lambda: made.state.ending.closing is not None)
    else:
        made.wait(made.now_ns + 5 * SECOND)
    made.tell(exited)
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault) == ("n0.0", "exit 1")
    assert "ValueError: boom" in fault.detail
    assert "n0.0 lost (exit 1): ValueError: boom" in made.said


def test_a_process_that_exits_with_0_in_a_step_is_told_of_as_lost(cluster: "MakeCluster") -> None:
    """As with os._exit(0), where the connection ends first."""
    made = up(cluster, slots=2, steps=10**6)
    made.kill("n0.0", signal=None, code=0)
    made.deliver_all("worker")
    made.until_generation(2)
    assert "n0.0 lost (exit 0)" in made.said


def test_what_a_script_raised_is_said_though_the_run_goes_on(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    made.leave("n0.0", code=1, complaint="Traceback (most recent call last):\n  ...\nValueError: boom\n")
    made.until_generation(2)
    assert "n0.0 lost (exit 1): ValueError: boom" in made.said


@pytest.mark.parametrize("code", [0, 1])
def test_a_warm_process_that_fails_costs_the_run_nothing(cluster: "MakeCluster", code: int) -> None:
    made = cluster(slots=2, steps=500)
    made.stall_steps = True  # nothing is committed yet
    made.join_node("n0")
    made.run(lambda: "n0.2" in made.processes and not made.queues["agent", "n0"])
    for _ in range(3):
        name = made.state.roster.nodes["n0"].pool[2]
        made.leave(name, code=code, complaint="Traceback: no such device")
        made.run(lambda name=name: made.state.roster.nodes["n0"].pool.get(2, name) != name)  # type: ignore[misc]
    made.stall_steps = False
    assert made.finish().outcome == "completed"
    assert len(made.generations) == 1


def test_a_sentence_for_the_user_that_two_members_end_with_ends_the_run_with_code_2(
    cluster: "MakeCluster",
) -> None:
    """The connection ends first; the agent sees the exit and the last words a moment later."""
    made = up(cluster, slots=3, warm=0, steps=10**6)
    for number, name in enumerate(("n0.1", "n0.0")):
        made.leave(name, code=2, complaint=f"holdfast: lanes={number} is wrong.\n  hint: take 8")
        made.deliver_all("worker")
        made.deliver_all("agent")
    assert made.state.ending.closing is not None, made.said
    end = made.state.ending.closing.end
    assert (end.outcome, end.code, end.reason) == ("failed", 2, "lanes=1 is wrong.")


def test_a_mistake_that_comes_again_after_a_commit_is_survived_in_a_step_alone(
    cluster: "MakeCluster",
) -> None:
    """Like a script that raises: in a step, data or a machine may be to blame."""
    made = up(cluster, slots=2, warm=0, steps=10**6)
    for number, name in enumerate(("n0.1", "n0.0"), start=1):
        made.leave(name, code=2, complaint=f"holdfast: Lane {number} is wrong.")
        made.until_generation(2 * number + 1)
        step = made.state.progress.step
        made.run(lambda step=step: made.state.progress.step > step + 2)  # type: ignore[misc]
    assert made.state.ending.closing is None
    made.state.roster.members["n0.0+1"].stage = "script"
    made.leave("n0.0+1", code=2, complaint="holdfast: Lane 3 is wrong.")
    ending = made.finish()
    assert (ending.outcome, ending.code, ending.reason) == ("failed", 2, "Lane 3 is wrong.")


def test_a_sentence_of_the_only_member_ends_the_run(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=1, warm=0, steps=10**6)
    made.leave("n0.0", code=2, complaint="holdfast: It is wrong.")
    ending = made.finish()
    assert (ending.outcome, ending.code, ending.reason) == ("failed", 2, "It is wrong.")


def test_a_sentence_that_only_one_of_several_members_ends_with_is_survived(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=10**6)
    made.leave("n0.1", code=2, complaint="holdfast: Lane 1 had 0 calls of lane.backward(), not 1.")
    made.until_generation(3)
    assert made.state.ending.closing is None
    assert "n0.1 lost (exit 2): Lane 1 had 0 calls of lane.backward(), not 1." in made.said


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        (COORDINATOR_GONE, "n0.0 lost (connection ended)"),
        ("The disk is full.", "n0.0+1 lost (exit 2): The disk is full."),
    ],
    ids=["cut off", "a newcomer"],
)
def test_a_sentence_that_is_not_the_runs_ends_only_its_member(
    cluster: "MakeCluster", sentence: str, why: str
) -> None:
    made = up(cluster, slots=2, warm=0, steps=10**6)
    victim = "n0.0"
    if sentence != COORDINATOR_GONE:
        made.script = lambda process: setattr(process, "builds", False)
        made.kill(victim)
        made.run(lambda: "n0.0+1" in made.state.roster.members)
        victim = "n0.0+1"
        made.script = lambda process: None
    made.leave(victim, code=2, complaint=f"holdfast: {sentence}\n  hint: None.")
    made.until_generation(3)
    assert why in made.said
    assert made.state.ending.closing is None


def test_a_member_cut_off_before_any_has_joined_is_started_again(cluster: "MakeCluster") -> None:
    """It was at `join()`, so the script joins; the run once counted as completed here."""
    made = cluster(slots=1, warm=0)
    made.join_node("n0")
    made.run(lambda: "n0.0" in made.processes)
    made.queues["worker", "n0.0"].clear()  # the message that it has joined never arrives
    made.leave("n0.0", code=2, complaint=f"holdfast: {COORDINATOR_GONE}")
    assert made.finish().outcome == "completed"
    assert "n0.0 lost (connection ended)" in made.said
    assert [generation.members for generation in made.generations] == [("n0.0+1",)]
    assert made.state.progress.step == 5


def test_losses_without_a_commit_are_bounded(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=1, steps=10**6)
    made.stall_steps = True
    for _ in range(40):
        if made.ending is not None:
            break
        made.run(lambda: bool(made.processes) or made.ending is not None)
        for name in list(made.processes):
            made.kill(name)
    ending = made.finish()
    assert ending.outcome == "failed"
    assert "failures and not one commit in between; the last: n0." in ending.reason
    assert ending.reason.endswith(" lost (SIGKILL)")


@pytest.mark.parametrize(
    ("different", "told"),
    [
        ({"lanes": 16}, "n0.0 has lanes=64 and n0.1 has lanes=16."),
        ({"torch": "2.6"}, "n0.0 has torch=2.13.0 and n0.1 has torch=2.6."),
        (
            {"model": "other", "parts": {"weight": "v"}},
            "The model of n0.1 differs from that of n0.0 in weight.",
        ),
    ],
)
def test_members_that_are_built_differently_are_refused(
    cluster: "MakeCluster", different: dict[str, object], told: str
) -> None:
    made = cluster(slots=2)
    made.script = lambda process: process.differ(**different) if process.member == "n0.1" else None
    made.join_node("n0")
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("failed", 2)
    assert ending.reason == told
    (dismissed,) = made.sent(Dismissed)
    assert dismissed.sentence == told
    assert not made.generations


def test_more_members_than_lanes_are_refused(cluster: "MakeCluster") -> None:
    made = cluster(slots=3)
    made.script = lambda process: process.differ(lanes=2)
    made.join_node("n0")
    ending = made.finish()
    assert (ending.code, ending.reason) == (2, "3 members cannot share 2 lanes.")


def test_a_newcomer_that_is_built_differently_does_not_stop_the_others(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=1, warm=0, steps=300)
    made.kill_node("n1")
    made.until_generation(2)
    made.script = lambda process: process.differ(torch="1.0")
    made.join_node("n1")
    assert made.finish().outcome == "completed"
    assert len(made.generations) == 2
    assert any("n1.0+1 cannot take part" in text for text in made.said)


# ---- a script that never joins ---------------------------------------------------------------------------


def test_a_script_that_never_joins_is_restarted_as_a_whole(cluster: "MakeCluster") -> None:
    made = cluster(joins=False, slots=2)
    made.join_node("n0")
    made.run(lambda: len(made.processes) == 2)
    made.leave("n0.1", code=1, complaint="Traceback: boom")
    made.run(lambda: "n0.1+1" in made.processes)
    starts = {message.member: message.environment for message in made.sent(StartWorker)}
    assert starts["n0.0"]["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert starts["n0.1+1"]["TORCHELASTIC_RESTART_COUNT"] == "1"
    assert starts["n0.1+1"]["MASTER_PORT"] != starts["n0.1"]["MASTER_PORT"]
    for name in list(made.processes):
        made.leave(name)
    assert made.finish().outcome == "completed"
    assert [event.members for event in made.recorded(GenerationOpened)] == [
        ("n0.0", "n0.1"),
        ("n0.0+1", "n0.1+1"),
    ]
    assert len(made.recorded(RunStarted)) == 2
    assert [event.action for event in made.recorded(ActionTaken)] == ["restart"]
    assert [event.role for event in made.recorded(MemberJoined)] == ["active"] * 4  # and no warm ones


def test_a_script_that_fails_before_it_joins_may_join_after_the_restart(cluster: "MakeCluster") -> None:
    made = cluster(joins=False, slots=2)
    made.join_node("n0")
    made.run(lambda: len(made.processes) == 2)
    made.leave("n0.0")
    made.run(lambda: made.state.roster.running == 1)
    made.kill("n0.1")
    made.joins = True
    assert made.finish().outcome == "completed"
    (restart,) = made.recorded(ActionTaken)
    assert restart.causes == ("lost n0.1",)
    assert [event.generation for event in made.recorded(GenerationOpened)] == [1, 2]
    assert made.generations[0].members == ("n0.0+1", "n0.1+1")


def test_restarts_are_bounded_and_the_last_complaint_is_told_once(cluster: "MakeCluster") -> None:
    made = cluster(joins=False, slots=2, max_restarts=2)
    made.join_node("n0")
    for attempt in range(3):
        made.run(lambda: len(made.processes) == 2)
        made.leave(next(iter(made.processes)), code=1, complaint=f"Traceback: {attempt}")
        made.run(lambda: len(made.processes) < 2)
    ending = made.finish()
    assert (ending.outcome, ending.complaint) == ("failed", "Traceback: 2")
    assert "after 2 restarts" in ending.reason


def test_a_script_that_never_joins_is_complete_only_if_all_of_it_ended_well(cluster: "MakeCluster") -> None:
    made = cluster(joins=False, slots=2)
    made.join_node("n0")
    made.run(lambda: len(made.processes) == 2)
    failed = DeviceFailed(member="n0.1", generation=0, step=0, failure="CUDA error", detail="")
    made.tell(FromMember("n0.1", failed))
    made.leave("n0.1", code=CODE_DEVICE_FAILED)
    made.leave("n0.0")
    made.run(lambda: len(made.processes) == 2)
    assert "restart 1 of at most 3: n0.1 was lost" in made.said
    for name in list(made.processes):
        made.leave(name)
    assert made.finish().outcome == "completed"


def test_a_lost_node_restarts_a_plain_script_on_the_others(cluster: "MakeCluster") -> None:
    made = cluster(joins=False, slots=1, nodes_min=1, nodes_max=2)
    made.join_node("n0")
    made.join_node("n1")
    made.run(lambda: len(made.processes) == 2)
    made.kill_node("n0")
    made.run(lambda: "n1.0+1" in made.processes)
    starts = {message.member: message.environment for message in made.sent(StartWorker)}
    assert (starts["n1.0"]["RANK"], starts["n1.0+1"]["RANK"]) == ("1", "0")
    assert starts["n1.0+1"]["WORLD_SIZE"] == "1"


# ---- strikes ---------------------------------------------------------------------------------------------


def test_strikes_reach_whom_they_name_or_one_that_the_seed_picks(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    made.tell(StrikeRequested(Strike(fault="kill", target="n0.1")))
    assert made.answer is not None
    assert made.answer.ok
    made.until_generation(2)
    assert made.recorded(MemberLost)[0].subject == "n0.1"
    made.tell(StrikeRequested(Strike(fault="kill", seed=5)))
    assert made.answer.ok
    made.until_generation(3)
    made.tell(StrikeRequested(Strike(fault="node", target="n1")))
    made.until_generation(4)
    assert "n1" not in made.state.roster.nodes
    made.tell(StrikeRequested(Strike(fault="pause", target="n9.9")))
    assert not made.answer.ok
    assert "no member or node 'n9.9'" in made.answer.sentence


def test_a_member_is_not_taken_for_its_node(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    made.tell(StrikeRequested(Strike(fault="node", target="n1.1")))
    assert made.answer is not None
    assert not made.answer.ok
    assert made.answer.sentence == "n1.1 is a member; its node is n1"
    assert made.answer.hint == "To strike the whole node, name n1."
    assert not made.sent(StrikeNode)


# ---- time ------------------------------------------------------------------------------------------------


def test_waits_follow_what_was_seen_within_their_bounds() -> None:
    fresh = Observed()
    assert fresh.lease_ns == ns(5)
    assert fresh.replace_ns == ns(0.5)
    seen = Observed(gap_ns_max=ns(2), ready_ns_max=ns(3), form_ns_max=ns(20))
    assert seen.lease_ns == ns(8)
    assert seen.replace_ns == ns(6)
    assert seen.form_wait_ns == ns(100)
    slow = Observed(gap_ns_max=ns(100), ready_ns_max=ns(100), form_ns_max=ns(1000))
    assert slow.lease_ns == ns(30)
    assert slow.replace_ns == 0  # too slow to be waited for at all
    assert slow.form_wait_ns == ns(900)
    assert fresh.form_wait_ns == ns(900)  # none was seen yet


def test_backing_off_is_bounded() -> None:
    waits_ns = [backoff_ns(failures) for failures in range(40)]
    assert waits_ns == sorted(waits_ns)
    assert waits_ns[1] == 0
    assert waits_ns[-1] == ns(60)


def test_lanes_are_those_that_were_dealt_last(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    for generation, lanes in ((1, (4, 5)), (0, (7,))):
        made.tell(FromMember("n0.1", Dealt(member="n0.1", generation=generation, lanes=lanes)))
    assert made.state.roster.members["n0.1"].lanes == (4, 5)


def test_what_old_generations_say_changes_nothing(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    made.kill("n0.0")
    made.until_generation(2)
    step = made.state.progress.step
    late: list[FromWorker] = [
        Committed(member="n0.1", generation=1, step=step + 50, loss=None),
        Regrouped(member="n0.1", generation=1, version=9, lanes=(), steps_total=9, parts_s={}),
    ]
    for message in late:
        made.tell(FromMember("n0.1", message))
        made.tell(FromMember("n0.1", message))
    made.tell(FromMember("n9.9", late[0]))
    made.tell(FromNode("n9", NodeBeat(node="n9")))
    assert made.state.progress.step == step
    assert made.state.generations.number == 2


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 3),
    nodes=st.integers(1, 3),
    spare_nodes=st.integers(0, 1),
    warm=st.integers(0, 2),
    steps=st.sampled_from([2, 10, 30]),
    faults=st.integers(0, 12),
    at_least_all=st.booleans(),
)
def test_whatever_fails_in_whatever_order_the_run_ends(
    cluster: "MakeCluster",
    seed: int,
    slots: int,
    nodes: int,
    spare_nodes: int,
    warm: int,
    steps: int,
    faults: int,
    at_least_all: bool,
) -> None:
    """Random interleavings with random faults; the promises are checked at each turn, the end here."""
    made = cluster(
        slots=slots, nodes_min=nodes if at_least_all else 1, nodes_max=nodes, warm=warm, steps=steps
    )
    for number in range(nodes + spare_nodes):
        made.join_node(f"n{number}")
    harass(made, random.Random(seed), faults)
    ending = made.finish()
    assert ending.outcome == "completed" or any(reason in ending.reason for reason in EXCUSES)
    assert made.replay() == made.effects
    check_steps(made)


def harass(made: "Cluster", generator: random.Random, faults: int) -> None:
    """Let events happen in any order, with faults in between; in the end all nodes that are away return."""
    away: list[str] = []
    for turn in range(TURNS_MAX):
        if made.ending is not None:
            return
        possible = made.choices()
        if faults and made.processes and generator.random() < 0.03:
            faults -= 1
            harm(made, generator, turn, away)
        elif away and (not possible or generator.random() < 0.03):
            bring_back(made, away)
        elif possible and generator.random() < 0.97:
            generator.choice(possible)()
        else:
            made.wait(made.now_ns + generator.choice((SECOND // 100, SECOND, 10 * SECOND)))
    made.run(lambda: not any(made.queues.values()) or made.ending is not None)
    bring_back(made, away)


def harm(made: "Cluster", generator: random.Random, turn: int, away: list[str]) -> None:
    victim = generator.choice(sorted(made.processes))
    kind = generator.choice(("kill", "kill", "pause", "node", "raise", "device", "mute", "stuck"))
    if kind == "node" and made.agents:
        node = generator.choice(sorted(made.agents))
        made.kill_node(node)
        away.append(node)
    elif kind == "pause":
        made.processes[victim].is_paused = True
    elif kind == "raise" and made.state.progress.has_committed and made.state.ending.closing is None:
        made.leave(victim, code=1, complaint=f"Traceback: {'!' * turn}")
    elif kind in ("device", "mute") and made.state.launch.is_protected and made.state.ending.closing is None:
        made.fail_device(victim, is_said=kind == "device")
    elif kind == "stuck" and made.state.launch.is_protected and made.processes[victim].generation is not None:
        made.say_failed(made.processes[victim], f"CUDA error: {turn}")
        made.processes[victim].is_paused = True
    else:
        made.kill(victim)


def bring_back(made: "Cluster", away: list[str]) -> None:
    """Bring nodes back as soon as the run has noticed their loss."""
    for node in list(away):
        if ("agent", node) not in made.queues and made.ending is None:
            away.remove(node)
            made.join_node(node)


def check_steps(made: "Cluster") -> None:
    """Every recorded step is one further than the step from which its generation continued."""
    reached = 0
    for event in [effect.event for effect in made.effects if isinstance(effect, Record)]:
        if isinstance(event, GenerationOpened) and event.step is not None:
            assert event.step <= reached
            reached = event.step
        elif isinstance(event, StepCommitted):
            assert event.step > reached
            reached = event.step


def test_only_members_that_are_through_are_released(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=3)
    made.run(lambda: any(process.is_finished for process in made.processes.values()))
    made.run(lambda: bool(made.sent(Released)))
    assert all(process.is_finished for process in made.processes.values() if process.generation)
    assert made.sent(Announced)[0].number == 1


# ---- a script that ends before it is in a generation -----------------------------------------------------


@pytest.mark.parametrize("first", ["worker", "agent"])
@pytest.mark.parametrize("warm", [0, 1])
def test_a_script_that_joins_and_ends_is_run_once(cluster: "MakeCluster", first: str, warm: int) -> None:
    """Its connection may end before its agent sees its successful exit. The run once started it again, until
    it failed after seventeen such losses.
    """
    made = cluster(slots=2, warm=warm)
    made.script = lambda process: setattr(process, "builds", False)
    made.join_node("n0")
    made.run(lambda: {process.doing for process in made.processes.values()} == {"building"})
    for name in ("n0.0", "n0.1"):
        made.leave(name)
        made.deliver_all(first)
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("completed", 0)
    assert {"n0.0 left: its script ended", "n0.1 left: its script ended"} <= {*made.said}
    assert [message.member for message in made.sent(StartWorker)] == ["n0.0", "n0.1"]


@pytest.mark.parametrize("first", ["worker", "agent"])
def test_a_run_whose_last_process_leaves_does_not_wait_for_another(
    cluster: "MakeCluster", first: str
) -> None:
    """The only member was killed, and its replacement has nothing to do."""
    made = up(cluster, slots=1, warm=0, steps=1000)
    made.script = lambda process: setattr(process, "builds", False)
    made.kill("n0.0")
    made.run(lambda: "n0.0+1" in made.processes and made.processes["n0.0+1"].doing == "building")
    step, at_ns = made.state.progress.step, made.now_ns
    made.leave("n0.0+1")
    made.deliver_all(first)
    ending = made.finish()
    assert (ending.outcome, ending.reason) == (
        "stopped",
        f"the script exited at step {step} of 1000 (exit 0)",
    )
    assert made.now_ns - at_ns < SECOND


def test_the_seat_of_a_member_in_no_generation_is_free_once_its_end_is_known(cluster: "MakeCluster") -> None:
    made = cluster(slots=2, warm=0, steps=3)
    made.script = lambda process: setattr(process, "builds", process.member != "n0.1")
    made.join_node("n0")
    made.run(lambda: bool(made.state.roster.waiting))
    made.kill("n0.1")
    made.deliver_all("worker")
    assert "n0.1+1" not in made.state.roster.members
    assert not made.generations  # n0.0 waits for the one that takes its place
    made.deliver_all("agent")
    assert "n0.1+1" in made.state.roster.members
    assert made.finish().outcome == "completed"
    assert made.generations[0].members == ("n0.0", "n0.1+1")


def test_a_seat_does_not_wait_for_ever_for_how_its_process_ended(cluster: "MakeCluster") -> None:
    made = cluster(slots=1, warm=0, steps=3)
    made.script = lambda process: setattr(process, "builds", process.member != "n0.0")
    made.join_node("n0")
    made.run(lambda: "n0.0" in made.processes and made.processes["n0.0"].doing == "building")
    made.tell(Disconnected("worker", "n0.0"))
    assert made.finish().outcome == "completed"
    assert made.generations[0].members == ("n0.0+1",)
    assert "n0.0 lost (connection ended)" in made.said
