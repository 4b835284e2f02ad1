"""Members that the operator wants replaced: by which process, when, and what if one is lost meanwhile."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cluster import SECOND, Cluster, Process
from quantity import examples

from holdfast.record.events import (
    ActionTaken,
    Event,
    FaultObserved,
    GenerationOpened,
    MemberJoined,
    MemberLost,
)
from holdfast.run.happenings import FromMember, FromNode, MoveRequested
from holdfast.run.replacing import unknown
from holdfast.run.wire import (
    Answer,
    Broken,
    Drain,
    Finished,
    Migrate,
    Move,
    Restore,
    StopWorker,
    WorkerExited,
    Working,
)

MakeCluster = Callable[..., Cluster]

EXCUSES = ("failures and not one commit in between", "after the training was complete")
"""Reasons that may end a run in which members are killed at random."""


def up(cluster: "MakeCluster", *, nodes: int = 1, **options: object) -> "Cluster":
    """A cluster whose first generation has committed a step, with its pools full."""
    made = cluster(nodes_max=nodes, **options)
    for number in range(nodes):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
    made.deliver_all("worker")
    return made


def ask(made: "Cluster", member: str, *, asks_only: bool = False) -> Answer:
    return tell(made, move_of(member, asks_only=asks_only))


def move_of(name: str, *, asks_only: bool = False) -> Move:
    """The move that migrates a member or drains a node."""
    if "." in name:
        return Migrate(member=name, asks_only=asks_only)
    return Drain(node=name, asks_only=asks_only)


def tell(made: "Cluster", move: Move) -> Answer:
    made.tell(MoveRequested(move))
    assert made.answer is not None
    return made.answer


def leaving(cluster: "MakeCluster", name: str, *, nodes: int = 1, slots: int = 2) -> "Cluster":
    """A cluster that has just announced the generation without this member or node."""
    made = up(cluster, nodes=nodes, slots=slots, steps=10**6)
    ask(made, name)
    made.run(lambda: made.state.generations.number == 2)
    return made


def announced(cluster: "MakeCluster", member: str, *, nodes: int = 1) -> "Cluster":
    """A cluster in which the generation without the member is announced and the one before still steps."""
    made = leaving(cluster, member, nodes=nodes)
    made.deliver_all("worker")
    made.deliver_all("agent")
    assert made.state.generations.announced is not None
    assert [*made.state.generations.announced.leaving] == [member]
    assert made.state.generations.announced.formed_ns is None
    return made


def active(made: "Cluster") -> set[str]:
    """The active members according to the record."""
    names: set[str] = set()
    for event in made.recorded(Event):
        if isinstance(event, MemberJoined) and event.role == "active":
            names.add(event.subject)
        elif isinstance(event, (MemberJoined, MemberLost)):
            names.discard(event.subject)
    return names


@pytest.mark.parametrize("warm", [0, 1])
def test_a_warm_process_takes_the_place_at_a_step_boundary(cluster: "MakeCluster", warm: int) -> None:
    made = up(cluster, slots=2, warm=warm, steps=10**6)
    answer = ask(made, "n0.1")
    assert (answer.ok, answer.is_done) == (True, False)
    made.until_generation(2)
    assert [(one.members, one.at_boundary) for one in made.generations[1:]] == [(("n0.0", "n0.2"), True)]
    assert [stop.member for stop in made.sent(StopWorker)] == ["n0.1"]
    answer = ask(made, "n0.1", asks_only=True)
    assert (answer.ok, answer.is_done, answer.sentence) == (True, True, "n0.2 has taken the place of n0.1")
    made.run(lambda: "n0.1" not in made.state.roster.members)
    made.steps = made.state.progress.step + 1
    assert made.finish().outcome == "completed"
    assert made.state.roster.nodes["n0"].seats == ["n0.0", "n0.2"]


def test_the_record_has_an_action_and_neither_fault_nor_loss(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    before = len(made.recorded(MemberJoined))
    ask(made, "n0.0")
    made.until_generation(2)
    made.run(lambda: made.state.progress.step > made.state.generations.formed.regrouped["n0.1"] + 2)  # type: ignore[union-attr]
    assert not made.recorded(MemberLost)
    assert not made.recorded(FaultObserved)
    (action,) = made.recorded(ActionTaken)
    assert (action.action, action.subject, action.reason, action.causes) == (
        "migrate",
        "n0.0",
        "asked for by the operator",
        (),
    )
    events = made.recorded(MemberJoined)[before:]
    joined = [(one.subject, one.role, one.gpus) for one in events if one.subject in ("n0.0", "n0.2")]
    assert joined == [("n0.0", "spare", 0), ("n0.2", "active", 1)]
    assert made.recorded(GenerationOpened)[-1].reason == "replaced, asked for by the operator: n0.0"
    assert any("n0.2 takes the place of n0.0 (asked for by the operator)" in line for line in made.said)
    assert (made.state.progress.setbacks, made.state.roster.vacant) == (0, {})


def test_several_at_once_and_one_after_the_other(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    for name in ("n0.0", "n0.1", "n1.1"):
        assert ask(made, name).ok
    made.run(lambda: not made.state.replacing.leaving)
    assert made.state.generations.announced is not None
    assert made.state.generations.announced.names.isdisjoint({"n0.0", "n0.1", "n1.1"})
    assert len(made.state.generations.announced.members) == 4
    assert not made.recorded(MemberLost)


def test_a_member_with_the_state_stays_if_all_are_to_leave(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, warm=2, steps=10**6)
    for name in ("n0.0", "n0.1"):
        assert ask(made, name).ok
    made.run(lambda: not made.state.replacing.leaving)
    assert [len({"n0.0", "n0.1"} & {*one.members}) for one in made.generations] == [2, 1, 0]
    assert made.state.progress.step_max == made.state.progress.step


def test_a_replacement_needs_no_room_in_the_lanes(cluster: "MakeCluster") -> None:
    made = cluster(slots=2, steps=10**6)
    made.script = lambda process: process.differ(lanes=2)
    made.join_node("n0")
    made.until_step(1)
    assert ask(made, "n0.0").ok
    made.until_generation(2)
    assert made.generations[-1].members == ("n0.1", "n0.2")  # the oldest is rank 0


def test_before_there_are_members_that_is_said(cluster: MakeCluster) -> None:
    state = cluster(slots=2, steps=10**6).state
    assert "members: none now, while the run forms or regroups; nodes:" in unknown(state, "n0.1")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("n0.7", "no member or node 'n0.7'; members: n0.0, n0.1; nodes: n0"),
        ("n0.2", "no member or node 'n0.2'; members: n0.0, n0.1; nodes: n0"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(
    cluster: "MakeCluster", name: str, sentence: str
) -> None:
    answer = ask(up(cluster, slots=2, steps=10**6), name)
    assert (answer.ok, answer.is_mistake, answer.sentence) == (False, True, sentence)


def test_the_only_member_cannot_hand_over_its_state(cluster: "MakeCluster") -> None:
    answer = ask(up(cluster, slots=1, steps=10**6), "n0.0")
    assert (answer.ok, answer.is_mistake) == (False, False)
    assert "the only member" in answer.sentence


@pytest.mark.parametrize("spares", [0, 1])
def test_a_node_is_drained_and_a_spare_one_takes_part(cluster: "MakeCluster", spares: int) -> None:
    made = cluster(nodes_max=2, slots=2, steps=10**6)
    for number in range(2 + spares):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
    answer = ask(made, "n0")
    assert (answer.ok, answer.is_done) == (True, False)
    made.until_generation(2)
    assert (made.generations[1].members, made.generations[1].at_boundary) == (("n1.0", "n1.1"), True)
    answer = ask(made, "n0", asks_only=True)
    assert (answer.ok, answer.is_done, answer.sentence) == (True, True, "n0 no longer has members")
    made.until_step(made.state.progress.step + 20)
    assert made.generations[-1].members == (("n1.0", "n1.1"), ("n1.0", "n2.0", "n2.1", "n1.1"))[spares]
    assert not made.recorded(MemberLost)
    drain = made.recorded(ActionTaken)[0]
    assert (drain.action, drain.subject, drain.gpus) == ("drain", "n0", 2)
    assert not [one for one in made.processes.values() if one.node == "n0"]
    made.join_node("n0")  # started again, it takes part again, where there is room
    made.run(lambda: not made.state.roster.nodes["n0"].is_drained)


def test_a_node_that_is_restored_takes_part_again(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    assert tell(made, Restore(node="n1")).sentence == "n1 is not drained"
    ask(made, "n1")
    early = tell(made, Restore(node="n1"))
    assert (early.ok, early.sentence) == (False, "n1 is still being drained")
    made.until_generation(2)
    made.until_step(made.state.progress.step + 5)
    assert {name.partition(".")[0] for name in made.generations[-1].members} == {"n0"}
    assert tell(made, Restore(node="n1")).ok
    made.until_step(made.state.progress.step + 20)
    assert sorted(name.partition(".")[0] for name in made.generations[-1].members) == ["n0", "n0", "n1", "n1"]
    actions = [(event.action, event.subject) for event in made.recorded(ActionTaken)]
    assert [one for one in actions if one[0] in ("drain", "restore")] == [("drain", "n1"), ("restore", "n1")]
    assert tell(made, Restore(node="n7")).is_mistake
    assert not made.recorded(MemberLost)


def test_a_node_is_migrated_to_the_spare_node_that_is_named(cluster: "MakeCluster") -> None:
    made = cluster(nodes_max=2, slots=2, steps=10**6)
    for number in range(4):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.run(lambda: not made.state.roster.short and not made.state.roster.coming)
    assert tell(made, Migrate(member="n0", to="n1")).sentence == "n1 is not a spare node; spare nodes: n2, n3"
    for member in ("n0", "n0.0"):
        unknown = tell(made, Migrate(member=member, to="n7"))
        assert (unknown.is_mistake, unknown.sentence) == (True, "no node 'n7'; it has n0, n1, n2, n3")
    for to in ("n0", "n3"):
        refused = tell(made, Migrate(member="n0.0", to=to))
        assert (refused.ok, refused.is_mistake) == (False, True)
        assert refused.sentence == "--to is for nodes: the member n0.0 stays on n0"
        assert refused.hint
    itself = tell(made, Migrate(member="n0", to="n0"))
    assert (itself.is_mistake, itself.sentence) == (True, "n0 cannot take its own place")
    assert tell(made, Migrate(member="n0", to="n3")).ok
    made.until_generation(2)
    made.until_step(made.state.progress.step + 20)
    assert {name.partition(".")[0] for name in made.generations[-1].members} == {"n1", "n3"}


def test_a_node_is_not_migrated_where_no_node_is_spare(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    drain = f"`holdfast drain {made.state.policy.run} n1`"
    hint = f"To go on without it, use {drain}: the others share its lanes."
    sentence = "no spare node can take the place of n1"
    assert tell(made, Migrate(member="n1")) == Answer(ok=False, sentence=sentence, hint=hint)


def test_a_node_that_the_run_cannot_do_without_is_not_drained(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=10**6)
    assert ask(made, "n0").sentence == "n0 cannot be drained: no member of another node has the state"
    made = up(cluster, nodes=2, nodes_min=2, steps=10**6)
    assert ask(made, "n0").sentence == "the run needs at least 2 nodes"


def test_a_complete_run_replaces_no_member(cluster: "MakeCluster") -> None:
    made = up(cluster, slots=2, steps=3)
    made.finish()
    assert ask(made, "n0.0") == Answer(ok=False, sentence="the run is over")


@pytest.mark.parametrize("who", ["another", "stand-in", "itself"])
@pytest.mark.parametrize("when", ["building", "announced", "changing"])
def test_a_loss_meanwhile_costs_no_state(cluster: "MakeCluster", who: str, when: str) -> None:
    """With two members: if the other one is lost, only the leaving one has the state."""
    made = up(cluster, slots=2, steps=10**6)
    step = made.state.progress.step
    ask(made, "n0.1")
    made.run(lambda: "n0.2" in made.processes and made.processes["n0.2"].doing == "building")
    if when != "building":
        made.run(lambda: made.state.generations.number == 2)
    if when == "changing":
        made.run(lambda: made.processes["n0.1"].doing == "ready")
    made.kill({"another": "n0.0", "stand-in": "n0.2", "itself": "n0.1"}[who])
    made.run(lambda: made.state.progress.step > step + 5 and len(made.state.generations.formed.members) == 2)  # type: ignore[union-attr]
    assert made.state.progress.step_max == made.state.progress.step
    assert len(made.recorded(MemberLost)) == 1
    assert not made.state.replacing.leaving
    members = {name for name, member in made.state.roster.members.items() if not member.is_lost}
    assert {name for node in made.state.roster.nodes.values() for name in node.seats} <= members
    assert made.state.generations.announced is not None
    assert made.state.generations.announced.names == set(made.state.roster.nodes["n0"].seats) == active(made)
    made.steps = made.state.progress.step + 1
    assert made.finish().outcome == "completed"


def test_a_collective_that_breaks_meanwhile_puts_the_replacement_off(cluster: "MakeCluster") -> None:
    """The member that is to leave may have the step that the other one lacks."""
    made = leaving(cluster, "n0.1")
    made.break_group("n0.0")
    made.run(lambda: not made.state.replacing.leaving)
    *before, (_, heir) = [one.members for one in made.generations]
    assert before == [("n0.0", "n0.1"), ("n0.0", "n0.2"), ("n0.0", "n0.1")]
    assert heir not in ("n0.1", "n0.2")
    assert not made.recorded(MemberLost)
    assert "generation 2 did not form, because n0.0 could not exchange gradients: reset" in made.said
    assert ask(made, "n0.1", asks_only=True).sentence == f"{heir} has taken the place of n0.1"


def test_a_drain_that_a_broken_collective_puts_off_is_done_afterwards(cluster: "MakeCluster") -> None:
    made = leaving(cluster, "n1", nodes=2)
    made.break_group("n0.1")
    made.run(lambda: not made.state.replacing.leaving)
    assert [len(one.members) for one in made.generations] == [4, 2, 4, 2]
    assert ask(made, "n1", asks_only=True).sentence == "n1 no longer has members"


def test_what_broke_before_a_boundary_does_not_concern_the_generation_that_formed_there(
    cluster: "MakeCluster",
) -> None:
    """The member that leaves missed the end of the step, which the other has."""
    made = leaving(cluster, "n1", nodes=2, slots=1)
    made.tell(FromMember("n1.0", Broken(member="n1.0", generation=1, reason="reset", operation="exchange")))
    made.until_step(made.state.progress.step + 5)
    assert [one.members for one in made.generations] == [("n0.0", "n1.0"), ("n0.0",)]
    assert made.state.generations.announced is made.state.generations.formed


def test_what_broke_before_a_boundary_does_not_hide_that_the_next_generation_breaks(
    cluster: "MakeCluster",
) -> None:
    made = leaving(cluster, "n1", nodes=2, slots=1)
    for member, number in (("n1.0", 1), ("n0.0", 2)):
        broken = Broken(member=member, generation=number, reason="reset", operation="exchange")
        made.tell(FromMember(member, broken))
    made.wait(made.now_ns + SECOND)
    assert made.state.generations.number == 3
    assert "generation 2 did not form, because n0.0 could not exchange: reset" in made.said


def test_a_member_that_is_lost_first_is_replaced_as_after_any_loss(cluster: "MakeCluster") -> None:
    """Its stand-in was already announced in its place; the loss is still recorded and reported."""
    made = announced(cluster, "n0.1")
    made.kill("n0.1")
    made.until_step(made.state.progress.step + 5)
    assert active(made) == {"n0.0", "n0.2"}
    (action,) = made.recorded(ActionTaken)
    assert (action.action, action.subject, action.causes) == ("replace", "n0.1", ("lost n0.1",))
    opened = made.recorded(GenerationOpened)[-1]
    assert (opened.reason, opened.causes) == ("lost: n0.1 (SIGKILL)", ("lost n0.1",))
    assert any("generation 3: n0.2 takes the place of n0.1 (SIGKILL)" in line for line in made.said)
    assert any("after the loss" in line for line in made.said)
    assert ask(made, "n0.1", asks_only=True).sentence == "n0.2 has taken the place of n0.1"


@pytest.mark.parametrize("member", ["n0.0", "n0.1"])
def test_a_member_that_is_lost_after_the_last_step_has_its_part_done_by_its_heir(
    cluster: "MakeCluster", member: str
) -> None:
    """No further boundary comes. Rank 0's own work is done by a member as rank 0."""
    made = announced(cluster, member)
    (other,) = {"n0.0", "n0.1"} - {member}
    process = made.processes[other]
    process.doing, process.is_finished = "finished", True
    made.tell(FromMember(other, Finished(member=other, step=process.version, digest="d")))
    assert made.state.ending.closing is None
    made.processes.pop(member)
    made.tell(FromNode("n0", WorkerExited(member=member, signal=9, port=1)))  # the agent's report comes first
    assert made.generations[-1].members == (("n0.2", "n0.1") if member == "n0.0" else ("n0.0", "n0.2"))
    assert not made.state.ending.is_cut_short
    made.steps = process.version
    assert made.finish().outcome == "completed"


def test_a_stand_in_for_another_member_does_not_keep_a_run_that_is_through(cluster: "MakeCluster") -> None:
    """Rank 0 is lost with its node after the last step. The stand-in waits for a boundary that never comes.
    Generations once followed each other without end, because it seemed to join with the next one.
    """
    made = up(cluster, nodes=2, slots=1, steps=10**6)
    made.stall_steps = True
    made.processes["n1.1"].builds = False
    ask(made, "n1.0")
    made.deliver_all("worker")
    process = made.processes["n1.0"]
    process.doing, process.is_finished = "finished", True
    made.tell(FromMember("n1.0", Finished(member="n1.0", step=process.version, digest="d")))
    made.processes["n1.1"].builds = True
    made.run(lambda: "n1.1" in made.state.roster.waiting)
    made.kill_node("n0")
    made.deliver_all("worker")
    made.deliver_all("agent")
    made.run(lambda: made.state.ending.closing is not None or made.state.generations.number > 5)
    assert made.state.generations.number == 1
    assert made.finish().outcome == "completed"


def test_a_node_that_is_lost_meanwhile_is_gone_without_the_replacement(cluster: "MakeCluster") -> None:
    made = announced(cluster, "n0.1", nodes=2)
    made.kill_node("n1")
    made.deliver_all("agent")
    made.until_generation(3)
    assert made.generations[-1].members == ("n0.0", "n0.1")
    assert ask(made, "n0.1", asks_only=True).sentence == "n0.1 stays: n1.0 and 1 more were lost meanwhile"


@pytest.mark.parametrize("name", ["n1", "n1.1"])
def test_asking_how_it_stands_begins_nothing_and_finds_no_mistake(cluster: "MakeCluster", name: str) -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    assert ask(made, name).ok
    made.kill_node("n1")
    made.deliver_all("agent")
    made.deliver_all("worker")
    answer = ask(made, name, asks_only=True)
    assert (answer.ok, answer.is_done, answer.is_mistake) == (False, True, False)
    assert f"{name} was lost" in answer.sentence
    assert not ask(made, "n0.0", asks_only=True).ok
    assert not made.state.replacing.leaving


def test_a_drained_node_whose_members_are_lost_has_none_any_more(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, steps=10**6)
    assert ask(made, "n1").ok
    made.kill("n1.0")
    made.until_step(made.state.progress.step + 5)
    answer = ask(made, "n1", asks_only=True)
    assert (answer.is_done, answer.sentence) == (True, "n1 no longer has members")
    assert (made.state.roster.nodes_active, active(made)) == (1, {"n0.0"})


def test_an_heir_on_a_node_that_is_drained_meanwhile_inherits_nothing(cluster: "MakeCluster") -> None:
    made = announced(cluster, "n1.1", nodes=2)
    assert ask(made, "n1").ok
    made.kill("n1.1")
    made.deliver_all("worker")
    made.run(lambda: not made.state.replacing.leaving)
    made.until_step(made.state.progress.step + 5)
    assert {name for one in made.generations[2:] for name in one.members} == {"n0.0", "n0.1", "n1.0"}
    assert ask(made, "n1", asks_only=True).sentence == "n1 no longer has members"
    assert active(made) == {"n0.0", "n0.1"}


def test_a_node_that_is_not_drained_after_all_keeps_its_warm_processes(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=2, steps=10**6)
    ask(made, "n1")
    made.run(lambda: made.state.generations.number == 2)
    made.kill("n0.0")
    made.until_generation(3)
    answer = ask(made, "n1", asks_only=True)
    assert (answer.ok, answer.sentence) == (False, "n1 keeps its members: n0.0 was lost meanwhile")
    made.kill("n1.2")
    made.run(lambda: bool(made.state.roster.nodes["n1"].pool) and not made.state.roster.short)


def hold_up(made: "Cluster", process: "Process", *, declared: bool) -> None:
    """Let a member stay in declared work, or in its lanes, while others wait for it."""
    assert process.generation is not None
    if declared:
        process.hangs_in = "script"
        made.from_worker(process, Working(member=process.member, work="evaluation"))
        return
    for name in process.generation.members:
        if name in made.processes:
            made.processes[name].hangs_in = "forward" if name == process.member else "reduce"


def let_go(made: "Cluster", process: "Process") -> None:
    """Let the member continue: the declared work is over."""
    if made.processes.get(process.member) is process:
        process.hangs_in = None
        made.from_worker(process, Working(member=process.member, work="evaluation", is_over=True))


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 3),
    nodes=st.integers(1, 3),
    warm=st.integers(0, 2),
    asked=st.integers(1, 6),
    faults=st.integers(0, 6),
)
def test_whatever_fails_while_members_are_replaced_the_run_ends(
    cluster: "MakeCluster", seed: int, slots: int, nodes: int, warm: int, asked: int, faults: int
) -> None:
    made = cluster(slots=slots, nodes_max=nodes, warm=warm, steps=30, hang_after_s=3)
    for number in range(nodes):
        made.join_node(f"n{number}")
    dice = random.Random(seed)
    todo = ["ask"] * asked + [dice.choice(["kill", "node", "hang", "work"]) for _ in range(faults)]
    working: list[Process] = []
    dice.shuffle(todo)
    for turn in range(4000):
        if made.ending is not None:
            break
        if todo and turn > 100 and dice.random() < 0.1:
            what = todo.pop()
            if what == "ask":
                generation = made.state.generations.announced
                names = [*(generation.members if generation else ()), *made.agents, "?"]
                made.tell(MoveRequested(move_of(dice.choice(names))))
            elif what == "node" and made.agents:
                node = dice.choice(sorted(made.agents))
                made.kill_node(node)
                made.join_node(node)
            elif what in ("hang", "work"):
                stepping = [one for one in made.processes.values() if one.doing == "stepping"]
                formed = (
                    made.state.generations.formed
                )  # until its first commit a generation may take half an hour
                is_warm = formed is not None and not formed.is_fresh
                if is_warm and len(stepping) > 1 and not any(one.hangs_in for one in stepping):
                    hold_up(made, dice.choice(stepping), declared=what == "work")
                    working += [one for one in stepping if one.hangs_in == "script"]
            elif made.processes:
                made.kill(dice.choice(sorted(made.processes)))
        if working and dice.random() < 0.02:
            let_go(made, working.pop())
        choices = made.choices()
        if choices:
            dice.choice(choices)()
        else:
            made.wait(made.now_ns + 50 * 10**6)
    for process in working:
        let_go(made, process)
    ending = made.finish()
    assert ending.outcome == "completed" or any(reason in ending.reason for reason in EXCUSES)
    assert made.replay() == made.effects
    if ending.outcome == "completed" and (generation := made.state.generations.announced) is not None:
        stand_ins = {*generation.leaving.values()} if generation.formed_ns is None else set()
        assert active(made) == {*generation.present} - stand_ins - {*generation.lost}


def test_members_without_the_one_that_stayed_are_apart_until_a_generation_forms(
    cluster: "MakeCluster",
) -> None:
    """The one that stayed may have made steps by itself, before it died. The next generation never forms."""
    made = up(cluster, nodes=2, slots=1, warm=1, steps=1000)
    ask(made, "n1")
    made.run(lambda: made.state.generations.number == 2)
    made.kill("n0.0")
    made.run(lambda: made.state.generations.number == 3)
    third = made.state.generations.announced
    assert third is not None
    assert "n1.0" in third.members
    made.kill(next(name for name in third.members if name != "n1.0"))
    made.until_generation(4)
    made.until_step(made.state.progress.step + 1)
    ask(made, "n1")
    made.until_generation(5)
    told = {each.number: each.is_apart for each in made.generations}
    assert told == {1: False, 2: False, 3: True, 4: True, 5: False}


def test_a_node_may_be_named_by_its_machine(cluster: "MakeCluster") -> None:
    made = up(cluster, nodes=2, slots=1, steps=10**6)
    for name, host in (("n0", "vm-0.example"), ("n1", "vm-1.example")):
        made.state.roster.nodes[name].host = host
    assert tell(made, Drain(node="vm-2")).is_mistake
    assert tell(made, Drain(node="vm-1")).sentence == "n1 is being drained"
    made.state.roster.nodes["n0"].host = "vm-1"
    assert tell(made, Drain(node="vm-1")).is_mistake  # both are on it
