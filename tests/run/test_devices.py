"""Failing GPUs: which members are replaced, what is recorded, and when the script is to blame."""

from collections.abc import Callable

import pytest
from memory_cluster import Cluster, Process

from holdfast.record.events import ActionTaken, FaultObserved, GenerationOpened, MemberLost
from holdfast.record.kernel import Xid
from holdfast.run.happenings import FromMember, Print
from holdfast.run.waits import DEVICE_EXIT_S, EXPLAIN_S, ns
from holdfast.run.wire import Announced, DeviceFailed, StopWorker

MakeCluster = Callable[..., Cluster]

SECOND = 10**9
ASSERT = "CUDA error: device-side assert triggered"
NO_MEMORY = "CUDA out of memory"


def up(cluster: "MakeCluster", *, nodes: int = 1, steps: int = 10**6, **options: object) -> "Cluster":
    """A cluster whose first generation has committed a step, with its pools full."""
    made = cluster(nodes_min=1, nodes_max=nodes, steps=steps, **options)
    for number in range(nodes):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
    made.deliver_all("worker")
    return made


def settle(made: "Cluster") -> None:
    """Let messages arrive without any script continuing."""
    made.deliver_all("worker")
    made.deliver_all("agent")


# ---- a GPU that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("worker", "agent"), ("agent", "worker")])
def test_a_member_whose_gpu_failed_is_replaced_and_the_cause_is_written_down(
    cluster: "MakeCluster", order: tuple[str, str]
) -> None:
    made = up(cluster, slots=2, steps=50)
    made.fail_device("n0.1", NO_MEMORY, detail="20.00 GiB was asked for; 1.00 GiB of 80.00 GiB was free")
    for role in order:
        made.deliver_all(role)
    made.until_generation(2)
    assert made.generations[1].members == ("n0.0", "n0.2")
    (fault,) = made.recorded(FaultObserved)
    assert (fault.subject, fault.fault) == ("n0.1", NO_MEMORY)
    assert fault.detail.startswith("20.00 GiB was asked for")
    assert "Traceback of n0.1" in fault.detail
    (lost,) = made.recorded(MemberLost)
    assert lost.occurred_ns == fault.occurred_ns
    said = "n0.1 lost (CUDA out of memory): 20.00 GiB was asked for; 1.00 GiB of 80.00 GiB was free"
    assert [text for text in made.said if "lost" in text] == [said]
    assert [event.action for event in made.recorded(ActionTaken)] == ["replace"]
    assert any("n0.2 takes the place of n0.1 (CUDA out of memory); step" in text for text in made.said)
    assert made.finish().outcome == "completed"


def test_also_before_the_first_commit(cluster: "MakeCluster") -> None:
    made = cluster(slots=2, steps=5)
    made.stall_steps = True
    made.join_node("n0")
    made.until_generation(1)
    made.fail_device("n0.1")
    made.until_generation(2)
    made.stall_steps = False
    assert made.finish().outcome == "completed"


def test_what_the_kernel_logged_is_in_the_line_and_in_the_record(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=50)
    failure = "CUDA error: an illegal memory access was encountered"
    xid = Xid(code=31, device="0000:01:00.0", pid=7, text="pid=7, name=python, MMU Fault: ENGINE GRAPHICS")
    made.fail_device("n0.1", failure, xid=xid)
    made.until_generation(2)
    assert f"n0.1 lost ({failure}; XID 31)" in made.said
    (fault,) = made.recorded(FaultObserved)
    assert fault.fault == failure
    assert fault.detail.startswith("XID 31 on 0000:01:00.0: pid=7, name=python, MMU Fault")


def test_a_signal_may_have_an_xid_too(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)
    made.kill("n0.1", signal=6, xid=Xid(code=79, device="0000:01:00.0", text="GPU has fallen off the bus."))
    made.until_generation(2)
    assert "n0.1 lost (SIGABRT; XID 79)" in made.said
    (fault,) = made.recorded(FaultObserved)
    assert (fault.fault, fault.detail) == (
        "SIGABRT",
        "XID 79 on 0000:01:00.0: GPU has fallen off the bus.",
    )


def test_without_its_last_words_the_exit_is_enough(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=50)
    complaint = "Traceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    made.fail_device("n0.1", is_said=False, complaint=complaint)
    made.until_generation(2)
    assert "n0.1 lost (CUDA out of memory)" in made.said
    assert made.finish().outcome == "completed"


def test_the_run_does_not_wait_for_last_words_of_a_member_that_hung_up(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=1, steps=50)
    made.fail_device("n0.0", is_said=False, complaint="torch.OutOfMemoryError: CUDA out of memory. Tried")
    made.deliver_all("worker")  # the connection ends first, without a word
    made.deliver_all("agent")
    assert not made.state.devices.failing
    assert "n0.0 lost (CUDA out of memory)" in made.said
    lost_ns = made.now_ns
    made.until_generation(2)
    assert made.now_ns - lost_ns < ns(EXPLAIN_S) // 2
    assert made.finish().outcome == "completed"


def test_the_seat_is_free_when_the_process_is_gone_and_its_memory_with_it(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    made.say_failed(made.processes["n0.1"], ASSERT)
    made.processes["n0.1"].is_paused = True  # it does not end by itself
    made.deliver_all("worker")
    assert made.state.roster.nodes["n0"].pool  # its seat is still empty
    failed_ns = made.now_ns
    made.wait(failed_ns + ns(DEVICE_EXIT_S) - SECOND)
    assert made.sent(Announced)[-1].number == 1
    made.wait(failed_ns + ns(DEVICE_EXIT_S) + SECOND)
    assert StopWorker(member="n0.1", grace_s=0) in made.sent(StopWorker)
    made.until_generation(2)
    assert f"n0.1 lost ({ASSERT})" in made.said


def test_a_script_that_goes_on_after_its_last_words_is_not_heard(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)
    process = made.processes["n0.1"]
    made.say_failed(process, ASSERT)
    made.say_failed(process, "CUDA error: something else")
    made.deliver_all("worker")
    made.kill("n0.1", signal=None, code=0)
    made.until_generation(2)
    assert [event.fault for event in made.recorded(FaultObserved)] == [ASSERT]
    assert made.generations[1].members == ("n0.0", "n0.2")


def test_what_is_never_explained_is_written_down_in_time(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)
    made.is_deaf = True
    made.say_failed(made.processes["n0.1"], ASSERT)
    made.processes["n0.1"].is_paused = True
    made.deliver_all("worker")
    made.wait(made.now_ns + ns(EXPLAIN_S) + SECOND)
    assert [event.fault for event in made.recorded(FaultObserved)] == [ASSERT]
    assert not made.state.devices.failing


# ---- the GPU, or the script ------------------------------------------------------------------------------


def test_the_same_on_every_member_is_the_scripts_mistake(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2)
    made.stall_steps = True
    for name in ("n0.0", "n0.1", "n1.0", "n1.1"):
        made.fail_device(name)
    ending = made.finish()
    assert (ending.outcome, ending.code) == ("failed", 1)
    assert ending.complaint.startswith("Traceback of n")
    assert ending.reason == (
        f"all 4 members failed at step {made.state.progress.step + 1} with the same error ({ASSERT}): "
        "this is the script's mistake, not a GPU's"
    )


def test_what_all_failed_with_is_printed_once_though_their_words_differ(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2)
    made.stall_steps = True
    for count, name in enumerate(("n0.0", "n1.0"), start=1):
        others = "Process has memory in use. " * count
        made.fail_device(name, NO_MEMORY, complaint=f"Traceback\ntorch.OutOfMemoryError: {others}")
    assert "Process" in made.finish().complaint
    assert not [effect for effect in made.effects if isinstance(effect, Print)]


def test_no_member_starts_again_before_it_is_known_whether_the_script_failed(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=1)
    made.stall_steps = True
    made.fail_device("n0.0")
    made.fail_device("n1.0")
    made.deliver_all("worker")
    late = made.queues["agent", "n1"].popleft()
    made.deliver_all("agent")
    made.run(lambda: "n0.1" in made.state.roster.waiting)  # the replacement of the first is ready
    made.wait(made.now_ns + SECOND)
    assert len(made.generations) == 1
    made.tell(late)
    assert made.finish().reason.startswith("all 2 members failed at step")
    assert len(made.generations) == 1


def test_several_but_not_all_are_hardware(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=50)
    for name in ("n1.0", "n1.1"):
        made.fail_device(name)
    made.until_generation(2)
    assert made.finish().outcome == "completed"


def test_several_that_fail_one_after_the_other_while_the_next_generation_is_announced(
    cluster: "MakeCluster",
) -> None:
    made = up(cluster, nodes=2, slots=2, steps=50, warm=0)
    made.stall_steps = True
    made.fail_device("n1.0")
    settle(made)
    assert made.sent(Announced)[-1].number == 2  # and n1.1 has not heard of it
    late = DeviceFailed(member="n1.1", generation=1, step=made.state.progress.step + 1, failure=ASSERT)
    made.from_worker(made.processes["n1.1"], late)
    made.fail_device("n1.1")
    made.stall_steps = False
    assert made.finish().outcome == "completed"


def test_what_the_work_carries_to_another_gpu_is_the_scripts_mistake(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=3)
    made.stall_steps = True
    made.fail_device("n0.1")
    made.until_generation(2)
    assert "n0.3" in made.generations[1].members
    made.fail_device("n0.3")  # the replacement, in the same seat: it may still be the GPU
    settle(made)
    assert made.generations[2].members == ("n0.0", "n0.2")  # the others do its work, at once
    made.until_generation(3)
    made.fail_device("n0.0")
    ending = made.finish()
    assert ending.code == 1
    assert ending.complaint.startswith("Traceback of n0.0")
    assert "n0.0 failed at step" in ending.reason
    assert "as n0.3 before it on another GPU, and nothing was committed in between" in ending.reason


def test_a_gpu_that_fails_again_and_again_is_left_out_and_tried_again_later(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)
    made.stall_steps = True
    made.fail_device("n0.1")
    made.until_generation(2)
    made.fail_device("n0.2")
    settle(made)
    failed_ns = made.now_ns
    assert made.generations[-1].members == ("n0.0",)
    made.until_generation(3)
    made.wait(failed_ns + SECOND - SECOND // 10)
    assert not made.state.roster.coming
    made.wait(failed_ns + SECOND + SECOND // 10)
    assert made.state.roster.coming
    made.until_generation(4)
    assert len(made.generations[3].members) == 2
    assert made.state.ending.closing is None


@pytest.mark.parametrize("second", ["CUDA error: unspecified launch failure", ASSERT])
def test_another_failure_or_another_step_is_not_the_same(cluster: "MakeCluster", second: str) -> None:
    made = up(cluster, slots=2)
    made.stall_steps = second != ASSERT
    made.fail_device("n0.1")
    made.until_generation(2)
    if second == ASSERT:
        made.until_step(made.state.progress.step + 2)
    made.fail_device("n0.0", second)
    made.until_generation(3)
    assert made.state.ending.closing is None


def test_the_only_member_is_replaced_once(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=1)
    made.stall_steps = True
    version = made.processes["n0.0"].version
    made.fail_device("n0.0")
    made.until_generation(2)
    (again,) = made.generations[1].members
    made.processes[again].version = version  # it has computed again what came after the checkpoint
    made.fail_device(again)
    ending = made.finish()
    assert ending.code == 1
    assert "as the process before it, and nothing was committed in between" in ending.reason
    assert "this is taken for the script's mistake" in ending.reason


def test_a_connection_that_failed_proves_nothing_about_the_script(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)
    made.stall_steps = True
    made.fail_device("n0.1", "NCCL error: unhandled system error")
    made.until_generation(2)
    made.fail_device("n0.0", "NCCL error: unhandled system error")
    made.until_generation(3)
    assert made.state.ending.closing is None


def test_all_fail_while_they_build_their_models(cluster: "MakeCluster") -> None:
    made = cluster(slots=2, steps=5)
    made.script = lambda process: setattr(process, "builds", False)
    made.join_node("n0")
    made.run(lambda: [process.doing for process in made.processes.values()] == ["building"] * 2)
    made.fail_device("n0.0", NO_MEMORY)
    settle(made)
    assert made.state.ending.closing is None
    made.fail_device("n0.1", NO_MEMORY)
    ending = made.finish()
    assert "all 2 members failed before the first step" in ending.reason


def test_a_newcomer_that_cannot_build_its_model_does_not_end_the_run(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0, steps=400)

    def fail(process: "Process") -> None:
        process.builds = False

    made.script = fail
    made.kill("n0.0")
    for attempt in (1, 2):
        name = f"n0.0+{attempt}"
        made.run(lambda name=name: name in made.processes and made.processes[name].doing == "building")  # type: ignore[misc]
        made.fail_device(name, NO_MEMORY)
        settle(made)
    made.script = lambda process: None
    assert made.finish().outcome == "completed"


def test_others_whose_group_broke_are_not_to_blame(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=50)
    made.break_group("n0.0", "NCCL: unhandled system error")
    made.fail_device("n0.1")
    made.until_generation(2)
    assert [event.subject for event in made.recorded(MemberLost)] == ["n0.1"]
    assert made.recorded(GenerationOpened)[1].reason == f"lost: n0.1 ({ASSERT})"
    assert not any("because" in text for text in made.said)


# ---- why there is another generation ---------------------------------------------------------------------


def opened(made: "Cluster") -> list[str]:
    return [text for text in made.said if text.startswith("generation ")]


def test_a_generation_says_why_the_one_before_broke(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=1)
    made.break_group("n1.0", "NCCL: unhandled system error: Connection closed by remote peer")
    made.deliver_all("worker")
    made.break_group("n0.0", "the group was aborted")
    made.deliver_all("worker")
    made.until_generation(2)
    because = (
        "n1.0 could not exchange gradients: NCCL: unhandled system error: Connection closed by remote peer"
    )
    assert made.recorded(GenerationOpened)[1].reason == because
    step = made.state.progress.step + 1
    start = f"generation 2: the same members again, because {because}; step {step} goes on with"
    assert opened(made)[1].startswith(start)
    made.until_step(made.state.progress.step + 1)
    (recovered,) = [text for text in made.said if " s after the failure" in text]
    assert recovered.startswith(f"step {made.state.progress.step} committed by all 2 members, ")


def test_a_reason_is_said_once_and_counted(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)
    made.stall_steps = True
    for number in (2, 3, 4):
        made.break_group("n0.0", f"Connection closed by peer [127.0.0.1]:{number}123")
        made.until_generation(number)
    first, second, third = opened(made)[1:]
    assert "because n0.0 could not exchange gradients: Connection closed" in first
    assert "the same members again, for the same reason (2 times now); step" in second
    assert "for the same reason (3 times now)" in third
    reasons = [event.reason for event in made.recorded(GenerationOpened)]
    assert reasons[3] == "n0.0 could not exchange gradients: Connection closed by peer [127.0.0.1]:4123"
    made.stall_steps = False
    made.until_step(made.state.progress.step + 1)
    made.break_group("n0.0", "Connection closed by peer [127.0.0.1]:5123")
    made.until_generation(5)
    assert "because n0.0 could not exchange gradients" in opened(made)[-1]


def test_generations_that_never_form_are_not_silent_and_their_end_says_why(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)

    def breaks() -> None:
        for process in made.processes.values():
            if process.generation is not None and process.doing != "broken":
                made.break_group(process.member, "NCCL: invalid usage")

    while made.state.ending.closing is None:
        breaks()
        settle(made)
        made.wait(made.now_ns + SECOND)
    told = [text for text in made.said if "NCCL: invalid usage" in text]
    assert told[0] == (
        "generation 2 did not form, because n0.0 could not exchange gradients: NCCL: invalid usage"
    )
    assert len(told) == 2  # and the end
    assert made.finish().reason == (
        "17 failures and not one commit in between; "
        "the last: n0.0 could not exchange gradients: NCCL: invalid usage"
    )


def test_a_generation_names_what_the_lost_died_of(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2)
    made.kill_node("n1")
    made.until_generation(2)
    assert "generation 2: without n1.0, n1.1 (node lost); step" in opened(made)[1]
    made.join_node("n1")
    made.until_generation(3)
    made.kill("n0.0")
    made.until_generation(4)
    assert "n0.2 takes the place of n0.0 (SIGKILL); step" in opened(made)[3]
    reasons = [event.reason for event in made.recorded(GenerationOpened)]
    assert reasons == [
        "",
        "lost: n1.0, n1.1 (node lost)",
        "joined: n1.0+1, n1.1+1",
        "lost: n0.0 (SIGKILL)",
    ]


def test_what_a_lost_one_died_of_is_not_guessed(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=0)
    made.kill("n0.1")
    exited = made.queues["agent", "n0"].popleft()
    made.until_generation(2)
    assert "generation 2: without n0.1; step" in opened(made)[1]
    made.tell(exited)
    assert "n0.1 lost (SIGKILL)" in made.said


def test_last_words_of_an_unknown_member_change_nothing(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2)
    said = len(made.effects)
    words = DeviceFailed(member="n9.9", generation=1, step=2, failure=ASSERT)
    made.tell(FromMember("n9.9", words))
    assert len(made.effects) == said
