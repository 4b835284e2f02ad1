"""Lanes that no member computed: how they get into the record, and out of it again."""

from collections.abc import Callable

from memory_cluster import Cluster

from holdfast.record.events import StepCommitted
from holdfast.run.mesh import MeshShape
from holdfast.run.skipped import skipped_in
from holdfast.run.wire import Committed, SkippedLanes

MakeCluster = Callable[..., Cluster]


def committed(step: int, *lanes: int) -> StepCommitted:
    return StepCommitted(id=f"e{step}", occurred_ns=step, step=step, skipped_lanes=lanes)


def test_steps_that_skip_the_same_are_told_together() -> None:
    events = [committed(1), committed(2, 6, 7), committed(3, 6, 7), committed(4, 7), committed(6, 7)]
    assert skipped_in(events) == (
        SkippedLanes(2, 3, (6, 7)),
        SkippedLanes(4, 4, (7,)),
        SkippedLanes(6, 6, (7,)),
    )


def test_of_a_step_that_was_done_again_the_last_time_counts() -> None:
    assert skipped_in([committed(1, 7), committed(2, 7), committed(1), committed(2, 3)]) == (
        SkippedLanes(2, 2, (3,)),
    )


def test_steps_that_one_member_never_told_of_are_in_the_record_if_they_skipped(cluster: MakeCluster) -> None:
    made = cluster(nodes_max=4, nodes_min=1, slots=1, warm=0, steps=10**6)
    for number in range(4):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.deliver_all("worker")
    first = made.state.progress.step
    told = [made.processes[f"n{number}.0"] for number in range(3)]
    for process in told:
        assert process.generation is not None
        for _ in range(3):
            process.version += 1
            message = Committed(
                member=process.member,
                generation=process.generation.number,
                step=process.version,
                loss=1.0,
                skipped=(6, 7),
            )
            made.from_worker(process, message)
    last = told[0].version
    made.kill("n3.0")
    made.until_generation(2)
    made.run(lambda: made.state.generations.formed is made.state.generations.announced)
    steps = {event.step: event.skipped_lanes for event in made.recorded(StepCommitted)}
    assert {step: steps.get(step) for step in range(first + 1, last + 1)} == dict.fromkeys(
        range(first + 1, last + 1), (6, 7)
    )


def test_members_are_told_how_many_replicas_there_were_at_best(cluster: MakeCluster) -> None:
    made = cluster(nodes_max=3, nodes_min=1, slots=2, warm=0, mesh=MeshShape.parse("2"), steps=10**6)
    for number in range(3):
        made.join_node(f"n{number}")
    made.until_step(1)
    assert made.state.generations.replicas_most == 3
    made.kill("n1.1")
    made.until_generation(2)
    generation = made.state.generations.announced
    assert generation is not None
    assert len(generation.members) == 4
    assert made.state.generations.replicas_most == 3


def test_few_lanes_for_the_replicas_are_told_once(cluster: MakeCluster) -> None:
    made = cluster(nodes_max=20, nodes_min=1, slots=1, warm=0, steps=10**6)
    for number in range(20):
        made.join_node(f"n{number}")
    made.until_step(1)
    made.kill("n3.0")
    made.until_generation(2)
    told = [line for line in made.said if "lanes are few" in line]
    assert told == [
        "64 lanes are few for 20 replicas: without one of them a step takes 1.25 times as long as "
        "with even shares for all; with 128 lanes, 1.09 times."
    ]


def test_a_run_with_another_number_of_lanes_repeats_nothing(cluster: MakeCluster) -> None:
    skipped = (SkippedLanes(2, 3, (6, 7)),)
    made = cluster(slots=1, warm=0, skipped=skipped, skipped_of=8)
    made.join_node("n0")
    ending = made.finish()
    assert ending.code == 2
    assert ending.reason == "The run to be repeated had 8 lanes, this one has 64."
    assert "hint: Give protect() as many lanes, or leave out --skip-lanes." in ending.complaint
    again = cluster(slots=1, warm=0, skipped=skipped, skipped_of=64)
    again.join_node("n0")
    assert again.finish().outcome == "completed"
