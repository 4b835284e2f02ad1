"""Faults in a record: their nodes, their outages, and how many nodes were watched."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.economics.fitting.outages import Observation, OutageFacts, RunPaid, declares_nodes, observe
from holdfast.record.errors import InputError
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    Correction,
    CostRate,
    FaultObserved,
    MemberJoined,
)
from holdfast.wording.units import DAY_NS

HOUR_NS = DAY_NS // 24
RUN = RunPaid(first_ns=0, last_ns=10 * DAY_NS, paid_gpu_ns=16 * 10 * DAY_NS, gpus_max=16)
TEN_NODES = OutageFacts(nodes=10, days=10)


def fault(at_h: float, node: str = "n1", kind: str = "hardware/GPU", run: str = "") -> FaultObserved:
    identity = f"fault {node} {at_h} {kind}"
    return FaultObserved(
        id=identity, occurred_ns=round(at_h * HOUR_NS), subject=node, fault=kind, run=run, onset_ns=None
    )


def action(at_h: float, word: str, node: str = "n1", reason: str = "", gpus: int = 0) -> ActionTaken:
    identity = f"{word} {node} {at_h} {reason}"
    return ActionTaken(
        id=identity, occurred_ns=round(at_h * HOUR_NS), subject=node, action=word, reason=reason, gpus=gpus
    )


def outages_h(seen: Observation) -> list[float | None]:
    return [None if f.outage_ns is None else f.outage_ns / HOUR_NS for f in seen.faults]


def test_an_outage_lasts_until_its_node_is_restored() -> None:
    seen = observe([fault(1), action(2, "drain"), action(7, "restore")], (), TEN_NODES)
    assert outages_h(seen) == [6.0]
    assert not seen.faults[0].is_open


def test_an_outage_that_is_not_over_lasts_to_the_end_of_what_is_known() -> None:
    seen = observe([fault(1), action(1, "drain"), fault(49, "n2")], (), OutageFacts(nodes=10))
    assert outages_h(seen) == [48.0, None]
    assert [f.is_open for f in seen.faults] == [True, False]


def test_a_fault_whose_node_was_never_taken_out_has_no_outage() -> None:
    assert outages_h(observe([fault(1)], (), TEN_NODES)) == [None]


def test_a_drain_for_maintenance_is_no_fault() -> None:
    assert observe([action(1, "drain"), action(2, "restore")], (), TEN_NODES).faults == ()


def test_a_restore_ends_the_fault_it_names_and_one_without_a_name_ends_all() -> None:
    events: list[AnyEvent] = [fault(1), fault(2, kind="hardware/NIC"), action(2, "drain")]
    named = observe([*events, action(5, "restore", reason="hardware/NIC")], (), TEN_NODES)
    assert [(f.kind, f.is_open) for f in named.faults] == [("hardware/GPU", True), ("hardware/NIC", False)]
    assert outages_h(observe([*events, action(5, "restore")], (), TEN_NODES)) == [4.0, 3.0]


def test_a_fault_is_dated_by_its_onset_and_counts_for_the_node_of_its_member() -> None:
    joined = MemberJoined(id="j", occurred_ns=0, run="r", subject="worker-3", node="n7")
    seen_late = FaultObserved(
        id="f", occurred_ns=5 * HOUR_NS, onset_ns=4 * HOUR_NS, run="r", subject="worker-3", fault="SIGKILL"
    )
    (found,) = observe([joined, seen_late], (RUN,), OutageFacts()).faults
    assert (found.node, found.at_ns, found.level) == ("n7", 4 * HOUR_NS, "")


def test_what_is_corrected_or_about_the_recorder_does_not_count() -> None:
    wrong = fault(1)
    events: list[AnyEvent] = [
        wrong,
        fault(2, kind="recorder-dropped"),
        Correction(id="c", occurred_ns=9, target=wrong.id),
    ]
    assert observe(events, (), TEN_NODES).faults == ()


def rate(at_day: int, gpus: int | None, run: str = "") -> CostRate:
    return CostRate(id=f"rate {at_day}", occurred_ns=at_day * DAY_NS, gpus=gpus, run=run)


def test_the_clusters_own_rates_say_how_many_nodes_there_are() -> None:
    events: list[AnyEvent] = [
        rate(0, 80),
        rate(10, 40),
        rate(20, 0),
        fault(24 * 21),
        action(24 * 21, "drain", gpus=8),
    ]
    seen = observe(events, (RUN,), OutageFacts())
    assert (seen.nodes, seen.node_days, seen.source) == (10, 10 * 10 + 5 * 10, "declared")
    assert (seen.days, seen.assumptions) == (21, ())


@pytest.mark.parametrize(
    ("event", "declares"), [(rate(0, 80), True), (rate(0, None), False), (rate(0, 80, "r"), False)]
)
def test_only_a_rate_of_the_cluster_with_gpus_declares_nodes(event: CostRate, declares: bool) -> None:
    assert declares_nodes([event]) is declares


def test_what_runs_paid_for_says_how_long_nodes_were_watched() -> None:
    seen = observe([fault(1)], (RUN, RUN), OutageFacts())
    assert (seen.nodes, seen.node_days, seen.source) == (4, 40, "paid")
    assert seen.assumptions[0] == "Each node is assumed to have 8 GPUs."
    assert observe([fault(1)], (RUN, RUN), OutageFacts(gpus_per_node=4)).nodes == 8


def test_runs_one_after_the_other_have_the_same_nodes() -> None:
    later = RunPaid(first_ns=RUN.last_ns, last_ns=2 * RUN.last_ns, paid_gpu_ns=RUN.paid_gpu_ns, gpus_max=16)
    seen = observe([fault(1)], (RUN, later), OutageFacts())
    assert (seen.nodes, seen.node_days) == (2, 40)


def test_members_tell_how_many_gpus_a_node_has() -> None:
    joined = [
        MemberJoined(id=f"j{n}", occurred_ns=n, run="r", subject=f"w{n}", node=f"n{n // 4}", gpus=1)
        for n in range(16)
    ]
    seen = observe([*joined, fault(1)], (RUN,), OutageFacts())
    assert (seen.nodes, seen.node_days) == (4, 40)


def test_failing_all_else_only_nodes_with_faults_are_known_and_that_is_said() -> None:
    seen = observe([fault(0), fault(24, "n2")], (), OutageFacts())
    assert (seen.nodes, seen.node_days, seen.source) == (2, 2, "seen")
    assert "Only the 2 nodes that had faults are known" in seen.assumptions[0]


def test_what_the_user_says_counts_before_everything() -> None:
    events: list[AnyEvent] = [rate(0, 80), fault(24)]
    assert observe(events, (RUN,), OutageFacts(nodes=7)).node_days == 70
    assert observe(events, (RUN,), OutageFacts(nodes=7, days=100)).node_days == 700
    assert observe(events, (RUN,), OutageFacts(days=100)).node_days == 1000


def test_what_the_record_leaves_out_is_said() -> None:
    lossy = RunPaid(first_ns=0, last_ns=DAY_NS, paid_gpu_ns=1, gpus_max=8, members_lost=5)
    seen = observe([fault(1, node="")], (lossy,), TEN_NODES)
    assert seen.assumptions == (
        "1 of the faults name no node; they count in rates only.",
        "5 members were lost, but the record has only 1 fault, and only faults count.",
    )


@pytest.mark.parametrize(
    ("events", "given_", "sentence"),
    [
        ([], OutageFacts(), "The record has neither faults nor runs."),
        ([fault(1)], OutageFacts(), "The record does not say how many nodes were watched."),
        ([fault(1)], OutageFacts(nodes=5), "How long the nodes were watched is unknown."),
        (
            [fault(1), fault(2, "n2")],
            OutageFacts(nodes=1),
            "2 nodes had faults, but the number of nodes is 1.",
        ),
    ],
)
def test_what_cannot_be_known_is_asked_for(
    events: Sequence[AnyEvent], given_: OutageFacts, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        observe(events, (), given_)
    assert caught.value.sentence == sentence
    assert caught.value.hint


def test_days_that_are_fewer_than_the_record_has_are_refused() -> None:
    """Two faults, 21 h and 24 h * 21 + 1 h after the beginning: 20 d 4 h, or 20.17 days, apart."""
    events = [fault(21), fault(24 * 21 + 1)]
    assert observe(events, (), OutageFacts(nodes=10, days=20.2)).node_days == pytest.approx(202)
    with pytest.raises(InputError) as caught:
        observe(events, (), OutageFacts(nodes=10, days=2))
    assert caught.value.sentence == "The faults span 20.2 days, but `--days` says that 2 were watched."
    assert caught.value.hint == "Give at least 20.2, or leave `--days` out."


words = st.sampled_from(["fault", "drain", "restore"])
stories = st.lists(st.tuples(st.integers(0, 240), st.sampled_from("abc"), words), min_size=1, unique=True)


@given(story=stories, data=st.data())
def test_the_order_in_which_events_arrive_does_not_matter(
    story: list[tuple[int, str, str]], data: st.DataObject
) -> None:
    events: list[AnyEvent] = [
        fault(at, node) if word == "fault" else action(at, word, node) for at, node, word in story
    ]
    seen = observe(events, (), TEN_NODES)
    assert observe(data.draw(st.permutations(events)), (), TEN_NODES) == seen
    assert len(seen.faults) == sum(word == "fault" for _, _, word in story)
    assert all(f.outage_ns is None or f.outage_ns >= 0 for f in seen.faults)
    assert all(f.outage_ns is not None for f in seen.faults if f.is_open)
