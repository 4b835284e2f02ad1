"""Replicas of several members: which members form one, which wait on the shelf, and when a part is lost."""

from collections.abc import Callable

from memory_cluster import Cluster

from holdfast.record.events import MemberLost
from holdfast.run.happenings import MoveRequested, Unreached
from holdfast.run.mesh import MeshShape
from holdfast.run.wire import Committed, Migrate, PartLost

MakeCluster = Callable[..., Cluster]
TWO = MeshShape.parse("2")


def up(cluster: MakeCluster, nodes: int, *, slots: int = 2, warm: int = 0, mesh: MeshShape = TWO) -> Cluster:
    """A run that has committed a step."""
    made = cluster(nodes_max=nodes, nodes_min=1, slots=slots, warm=warm, mesh=mesh, steps=10**6)
    for number in range(nodes):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
    made.deliver_all("worker")
    return made


def members(made: Cluster) -> tuple[str, ...]:
    generation = made.state.generations.announced
    assert generation is not None
    return generation.members


def commit(made: Cluster, *names: str, generation: int | None = None) -> None:
    """Let only these members commit a step."""
    for name in names:
        process = made.processes[name]
        process.version += 1
        number = process.generation.number if process.generation is not None else generation
        assert number is not None
        made.from_worker(process, Committed(member=name, generation=number, step=process.version, loss=1.0))
    made.deliver_all("worker")


def lose(made: Cluster, name: str) -> None:
    made.kill(name)
    made.deliver_all("agent")
    made.deliver_all("worker")


def test_a_replica_is_made_of_neighbours_and_every_rank_knows_its_part(cluster: MakeCluster) -> None:
    made = up(cluster, 2)
    assert members(made) == ("n0.0", "n0.1", "n1.0", "n1.1")
    assert [made.state.roster.members[name].rail for name in members(made)] == [0, 1, 0, 1]


def test_a_rank_is_replaced_in_its_own_replica(cluster: MakeCluster) -> None:
    made = up(cluster, 2, warm=1)
    made.kill("n1.1")
    made.until_generation(2)
    assert members(made) == ("n0.0", "n0.1", "n1.0", "n1.2")
    assert made.state.roster.members["n1.2"].rail == 1


def test_a_replica_that_lacks_a_rank_is_shelved_and_comes_back_whole(cluster: MakeCluster) -> None:
    made = up(cluster, 2)
    made.kill("n1.1")
    made.until_generation(2)
    assert members(made) == ("n0.0", "n0.1")
    assert "n1.0 on the shelf until a replica is whole" in " ".join(made.said)
    made.run(lambda: len(members(made)) == 4)
    assert members(made) == ("n0.0", "n0.1", "n1.0", "n1.1+1")


def test_ranks_of_two_broken_replicas_make_one(cluster: MakeCluster) -> None:
    made = up(cluster, 3)
    made.kill("n0.0")
    made.kill("n1.1")
    made.run(lambda: made.state.generations.number >= 2 and not made.state.generations.survivors < 4)
    assert {"n0.1", "n1.0", "n2.0", "n2.1"} <= set(members(made))
    assert [made.state.roster.members[name].rail for name in members(made)] == [0, 1] * (
        len(members(made)) // 2
    )


def test_a_part_without_a_copy_sends_all_back_to_the_beginning(cluster: MakeCluster) -> None:
    made = up(cluster, 2)
    made.kill("n0.1")
    made.kill("n1.1")
    made.deliver_all("agent")
    made.deliver_all("worker")
    assert "no member has part 2 of 2 of the state any more: all of them begin again" in made.said


def test_a_lone_replica_waits_for_a_member_in_the_empty_place(cluster: MakeCluster) -> None:
    made = up(cluster, 1)
    made.kill("n0.1")
    made.run(lambda: made.state.generations.number == 2)
    assert members(made) == ("n0.0", "n0.1+1")
    assert not any("begin again" in line for line in made.said)


def test_a_part_that_no_mirror_has_either_is_told_by_the_members(cluster: MakeCluster) -> None:
    made = up(cluster, 1)
    made.kill("n0.1")
    made.run(lambda: made.state.generations.number == 2)
    process = next(one for one in made.processes.values() if one.member == "n0.0")
    made.from_worker(process, PartLost(member="n0.0", generation=2, rail=1))
    made.deliver_all("worker")
    assert any("begin again" in line for line in made.said)


def test_tensor_parallel_ranks_stay_on_one_node(cluster: MakeCluster) -> None:
    made = up(cluster, 2, mesh=MeshShape.parse("tp=2"))
    made.kill("n0.1")
    made.until_generation(2)
    assert members(made) == ("n1.0", "n1.1")


def test_a_rank_that_is_ahead_takes_the_others_along(cluster: MakeCluster) -> None:
    """They have the sum of its step; without it they would drop the step, and it could not come back."""
    made = up(cluster, 2)
    made.stall_steps = True
    step = made.state.progress.step
    commit(made, "n1.0")
    lose(made, "n1.1")
    made.until_generation(2)
    assert members(made) == ("n1.0", "n0.1")
    assert made.state.progress.step == step + 1
    assert made.state.generations.announced is not None
    assert made.state.generations.announced.shelved == ("n0.0",)


def test_a_twin_on_the_shelf_has_the_part_too(cluster: MakeCluster) -> None:
    made = up(cluster, 3)
    made.stall_steps = True
    lose(made, "n2.1")
    made.until_generation(2)
    assert members(made) == ("n0.0", "n0.1", "n1.0", "n1.1")
    made.kill("n0.0")
    made.kill("n1.0")
    made.deliver_all("agent")
    made.deliver_all("worker")
    assert not any("begin again" in line for line in made.said)
    made.run(lambda: "n2.0" in members(made))
    assert members(made)[0] == "n2.0"


def test_a_twin_that_has_not_been_heard_of_for_some_steps_has_the_part(cluster: MakeCluster) -> None:
    made = up(cluster, 2)
    for _ in range(2):  # n1.1's commit reports are still in transit
        commit(made, "n0.0", "n0.1", "n1.0")
    lose(made, "n0.1")
    assert "begin again" not in " ".join(made.said)
    assert members(made)[1] == "n1.1"


def test_a_twin_that_has_told_of_no_step_yet_has_the_part(cluster: MakeCluster) -> None:
    made = cluster(nodes_max=2, nodes_min=1, slots=2, warm=0, mesh=TWO, steps=10**6)
    made.stall_steps = True
    for number in range(2):
        made.join_node(f"n{number}")
    made.until_generation(1)
    commit(made, "n0.0", "n0.1")  # the others' reports of the first step are still in transit
    lose(made, "n0.1")
    assert "begin again" not in " ".join(made.said)
    assert {"n0.0", "n1.0", "n1.1"} <= {name for name in made.processes if made.state.roster.living(name)}


def test_a_twin_that_was_on_the_shelf_for_long_does_not_count(cluster: MakeCluster) -> None:
    made = up(cluster, 2)
    made.script = lambda process: setattr(process, "builds", False)
    lose(made, "n1.1")
    made.until_generation(2)
    made.until_step(made.state.progress.step + 3)
    made.stall_steps = True
    made.deliver_all("worker")
    lose(made, "n0.0")
    assert (
        "no member has part 1 of 2 of the state any more: all of them begin again" not in made.said
    )  # mirror
    lose(made, "n0.1")
    assert "no member has part 1 of 2 of the state any more: all of them begin again" in made.said
    assert made.state.roster.living("n1.0") is None


def test_a_member_that_reports_too_late_that_it_is_ahead_is_replaced(cluster: MakeCluster) -> None:
    """The others make that step again, so no member may continue from the old one."""
    made = up(cluster, 2)
    made.stall_steps = True
    number = made.state.generations.number
    lose(made, "n1.1")
    made.until_generation(2)
    commit(made, "n1.0", generation=number)
    assert "n1.0 lost (ahead of the run)" in made.said
    made.stall_steps = False
    made.run(lambda: len(members(made)) == 4)
    assert "n1.0" not in members(made)


def test_a_shelved_member_does_not_repeat_the_work_of_rank_0(cluster: MakeCluster) -> None:
    """Its script may be past that work: the member that takes the lost one's place does it as rank 0."""
    made = up(cluster, 2)
    made.stall_steps = True
    lose(made, "n1.1")
    made.until_generation(2)
    made.state.progress.steps_total = made.state.progress.step
    lose(made, "n0.0")
    made.until_generation(3)
    assert members(made)[0] == "n0.0+1"


def test_a_step_that_is_kept_late_is_progress(cluster: MakeCluster) -> None:
    made = up(cluster, 2, warm=1)
    made.stall_steps = True
    for _ in range(20):
        commit(made, members(made)[0])
        lose(made, members(made)[1])
        made.until_generation(made.state.generations.number + 1)
        made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
        made.deliver_all("worker")
    assert made.state.ending.closing is None
    assert made.state.progress.setbacks <= 1


def test_a_lost_node_is_one_setback_however_many_members_it_had(cluster: MakeCluster) -> None:
    made = up(cluster, 2, warm=2)
    made.kill_node("n1")
    made.deliver_all("worker")
    made.deliver_all("agent")
    assert made.state.progress.setbacks == 1


def test_to_begin_again_is_no_setback_beside_the_losses_that_led_to_it(cluster: MakeCluster) -> None:
    made = up(cluster, 2)
    lose(made, "n0.1")
    lose(made, "n1.1")
    assert any("begin again" in line for line in made.said)
    assert made.state.progress.setbacks == 2


def test_no_member_waits_for_a_part_that_none_has(cluster: MakeCluster) -> None:
    """Nothing was committed, and all ranks with the first part are lost: newcomers start with the others."""
    made = cluster(nodes_max=2, slots=2, warm=0, mesh=TWO, steps=3)
    made.stall_steps = True
    for name in ("n0", "n1"):
        made.join_node(name)
    made.until_generation(1)
    for name in ("n0.0", "n1.0", "n1.1"):
        lose(made, name)
    made.stall_steps = False
    assert made.finish().outcome == "completed"


def test_a_member_with_the_only_copy_of_a_part_is_not_replaced(cluster: MakeCluster) -> None:
    """A single replica without mirrors: the stand-in looks for the part in vain."""
    made = up(cluster, 1, warm=1)
    made.stall_steps = True
    made.tell(MoveRequested(Migrate(member="n0.0")))
    made.run(lambda: made.state.generations.number == 2)
    made.from_worker(made.processes["n0.1"], PartLost(member="n0.1", generation=2, rail=0))
    made.deliver_all("worker")
    assert members(made) == ("n0.0", "n0.1")
    assert "n0.0 stays: no other member has part 1 of the state" in made.said
    assert not [lost for lost in made.recorded(MemberLost) if lost.subject in members(made)]
    made.until_generation(3)


def test_a_shelved_member_brings_a_part_that_the_others_lack(cluster: MakeCluster) -> None:
    """It may have made steps that the coordinator has not heard of yet."""
    made = up(cluster, 2)
    made.stall_steps = True
    lose(made, "n1.1")
    made.run(lambda: made.state.generations.number == 2)
    assert members(made) == ("n0.0", "n0.1")
    made.from_worker(made.processes["n0.1"], PartLost(member="n0.1", generation=2, rail=0))
    made.deliver_all("worker")
    assert [(lost.subject, lost.reason) for lost in made.recorded(MemberLost)] == [
        ("n1.1", "SIGKILL"),
        ("n0.0", "left behind by the others"),
    ]
    made.run(lambda: made.state.generations.number == 3)
    assert members(made)[:2] == ("n1.0", "n0.1")
    assert not any("begin again" in line for line in made.said)


def test_all_members_may_say_that_only_a_leaving_one_has_a_part(cluster: MakeCluster) -> None:
    """The next generation waits for a node, so that the second report is heard, too."""
    made = cluster(nodes_max=2, nodes_min=2, slots=2, warm=1, mesh=TWO, steps=10**6)
    for name in ("n0", "n1"):
        made.join_node(name)
    made.until_step(1)
    made.run(lambda: made.state.is_settled)
    made.processes["n1.2"].builds = False
    made.kill("n1.0")
    made.run(lambda: members(made) == ("n0.0", "n0.1"))
    made.run(lambda: made.state.generations.formed is made.state.generations.announced)
    made.kill_node("n1")
    made.deliver_all("agent")
    made.stall_steps = True
    number = made.state.generations.number + 1
    made.tell(MoveRequested(Migrate(member="n0.0")))
    made.run(lambda: made.state.generations.number == number)
    for name in ("n0.2", "n0.1"):
        made.from_worker(made.processes[name], PartLost(member=name, generation=number, rail=0))
        made.deliver_all("worker")
    assert "n0.0 stays: no other member has part 1 of the state" in made.said
    assert not any("begin again" in line for line in made.said)
    assert members(made) == ("n0.0", "n0.1")
    assert not made.state.generations.announced.lost  # type: ignore[union-attr]


def test_a_twin_that_was_not_there_when_the_last_step_was_made_does_not_have_its_sum(
    cluster: MakeCluster,
) -> None:
    made = up(cluster, 3, mesh=MeshShape.parse("tp=2"))  # ranks of two nodes make no replica
    made.script = lambda process: setattr(process, "builds", not process.member.startswith("n1"))
    lose(made, "n2.0")  # and n2.1 is on the shelf while the others continue
    made.stall_steps = True
    made.until_generation(2)
    commit(made, "n0.0", "n0.1")
    lose(made, "n1.0")
    lose(made, "n0.1")
    made.run(lambda: {"n2.0+1", "n0.1+1"} <= made.state.roster.waiting.keys())
    made.wait(made.now_ns + 10**9)
    assert "n2.0+1" not in members(made)  # n1.1 may have the sum, and n2.1 cannot
    made.processes["n1.0+1"].builds = True
    made.until_generation(4)
    assert {"n1.1", "n2.1", "n0.0"} <= {*members(made)}


def places(made: Cluster) -> dict[str, int]:
    return {node.name: node.order for node in made.state.roster.active_nodes()}


def rails(made: Cluster) -> list[int]:
    return [made.state.roster.members[name].rail for name in members(made)]


def lose_node(made: Cluster, name: str) -> None:
    made.kill_node(name)
    made.deliver_all("worker")
    made.deliver_all("agent")


def test_nodes_with_seats_of_one_part_only_do_not_wait_for_the_other(cluster: MakeCluster) -> None:
    """Nothing was committed: one of the two starts again with the missing part."""
    made = cluster(nodes_max=4, nodes_min=2, slots=1, warm=0, mesh=TWO, steps=3)
    made.stall_steps = True
    for number in range(4):
        made.join_node(f"n{number}")
    made.until_generation(1)
    lose_node(made, "n3")
    lose_node(made, "n1")
    assert places(made) == {"n0": 0, "n2": 1}
    assert "n2.0 lost (needed for another part of the model)" in made.said
    made.stall_steps = False
    assert made.finish().outcome == "completed"
    assert made.generations[-1].members == ("n0.0", "n2.0+1")


def test_a_node_with_the_state_stays_and_another_takes_the_lost_ones_place(cluster: MakeCluster) -> None:
    """n0.0 keeps the mirror of the lost part; n2.0 on the shelf has a state that is not needed."""
    made = up(cluster, 4, slots=1)
    lose_node(made, "n3")
    made.until_generation(2)
    assert members(made) == ("n0.0", "n1.0")
    made.until_step(made.state.progress.step + 2)
    lose_node(made, "n1")
    made.until_generation(3)
    assert members(made) == ("n0.0", "n2.0+1")
    assert rails(made) == [0, 1]
    assert not any("begin again" in line for line in made.said)


def test_a_member_with_the_mirror_of_a_lost_part_joins_before_its_neighbour(cluster: MakeCluster) -> None:
    """n2.0 and n3.0 are neighbours and form a replica, but n0.0's part is only in the mirror of n1.0."""
    made = cluster(nodes_max=4, nodes_min=2, slots=1, warm=0, mesh=TWO, steps=10**6, wait_s=60.0)
    for name in ("n0", "n1"):
        made.join_node(name)
    made.until_step(1)
    made.script = lambda process: setattr(process, "sticks_in", "state" if process.node == "n2" else None)
    for name in ("n2", "n3"):
        made.join_node(name)
    made.run(lambda: "n3.0" in made.state.generations.announced.regrouped)  # type: ignore[union-attr]
    assert members(made) == ("n0.0", "n1.0", "n2.0", "n3.0")
    stuck = made.processes["n2.0"]  # its state has not arrived, so no other member has this part
    stuck.sticks_in = stuck.hangs_in = None
    lose_node(made, "n0")
    assert members(made) == ("n2.0", "n1.0")
    assert made.state.launch.stalled_ns is None


def test_a_node_is_not_moved_with_the_last_copy_of_a_part(cluster: MakeCluster) -> None:
    """n3.0 has its own part and the mirror of the lost one, so n1 is moved, although its place is low."""
    made = up(cluster, 4, slots=1)
    lose_node(made, "n0")
    made.until_generation(2)
    assert members(made) == ("n2.0", "n3.0")
    made.until_step(made.state.progress.step + 2)
    lose_node(made, "n2")
    assert places(made) == {"n1": 0, "n3": 3}
    made.until_generation(3)
    assert members(made) == ("n1.0+1", "n3.0")
    assert rails(made) == [0, 1]


def test_when_a_part_is_lost_with_its_seats_all_begin_again_in_others(cluster: MakeCluster) -> None:
    made = up(cluster, 4, slots=1)
    made.kill_node("n1")
    made.kill_node("n3")
    made.deliver_all("worker")
    made.deliver_all("agent")
    assert any("begin again" in line for line in made.said)
    made.until_generation(2)
    assert [made.state.roster.members[name].node for name in members(made)] == ["n0", "n2"]
    assert rails(made) == [0, 1]


def test_tensor_parallel_ranks_of_one_seating_come_together_without_a_restart(cluster: MakeCluster) -> None:
    """Ranks of two nodes form a replica only if the nodes are neighbours."""
    made = cluster(nodes_max=4, nodes_min=2, slots=2, warm=0, mesh=MeshShape.parse("2,tp=2"), steps=3)
    made.stall_steps = True
    for number in range(4):
        made.join_node(f"n{number}")
    made.until_generation(1)
    lose_node(made, "n1")
    lose_node(made, "n2")
    made.until_generation(2)
    assert members(made) == ("n0.0", "n0.1", "n3.0", "n3.1")
    assert rails(made) == [0, 1, 2, 3]


def is_forming(made: Cluster) -> bool:
    generation = made.state.generations.announced
    return generation is not None and generation.formed_ns is None


def cut_off(made: Cluster) -> list[str]:
    return [event.subject for event in made.recorded(MemberLost) if event.reason.startswith("cut off")]


def test_a_rank_that_is_cut_off_is_given_up_if_another_has_its_part(cluster: MakeCluster) -> None:
    made = up(cluster, 3)
    lose(made, "n0.0")
    made.tell(Unreached(("n1.1",), 1))
    assert cut_off(made) == ["n1.1"]


def test_the_only_rank_that_has_a_part_is_not_given_up_because_it_is_cut_off(cluster: MakeCluster) -> None:
    made = up(cluster, 2, warm=1)
    lose(made, "n0.1")
    made.run(lambda: members(made) == ("n0.0", "n0.2", "n1.0", "n1.1"))
    assert is_forming(made)
    made.tell(Unreached(("n1.1",), 1))
    assert cut_off(made) == []


def test_no_member_is_given_up_if_half_of_them_may_be_cut_off(cluster: MakeCluster) -> None:
    made = up(cluster, 4)
    lose(made, "n0.0")
    assert is_forming(made)
    made.tell(Unreached(("n1.1",), len(members(made)) // 2))
    assert cut_off(made) == []


def test_a_member_that_has_regrouped_or_may_still_step_is_not_given_up(cluster: MakeCluster) -> None:
    made = up(cluster, 3)
    made.tell(Unreached(("n1.1",), 1))  # no member regroups
    made.tell(MoveRequested(Migrate(member="n2.0")))
    made.run(lambda: made.state.generations.announced is not made.state.generations.formed)
    assert is_forming(made)
    made.tell(Unreached(("n1.1",), 1))  # the boundary is still to come
    assert cut_off(made) == []
