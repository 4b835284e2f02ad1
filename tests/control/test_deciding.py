"""What is decided about incidents: the cheapest that may be done, priced beside the others."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.control.actions import ACTIONS, ControlAction, said
from holdfast.control.cluster import ClusterView, NodeView
from holdfast.control.deciding import decisions, looks_like_a_bad_detector
from holdfast.control.decision import ControlDecision
from holdfast.control.history import ControlHistory
from holdfast.control.policy import Bound, BreakerBound, Budget, ControlPolicy, RulePolicy
from holdfast.diagnose.incident import Incident
from holdfast.record.events import BreakerChanged, ControlActed, ControlStage
from holdfast.wording.units import DAY_NS, HOUR_NS, MINUTE_NS

from .conftest import NOW_NS

MakeIncident = Callable[..., Incident]
MakeCluster = Callable[..., ClusterView]
ACT = ControlPolicy(mode="act")
ELASTIC = {"is_elastic": True, "can_move": True}


def only(cluster: ClusterView, policy: ControlPolicy = ACT) -> ControlDecision:
    (decision,) = decisions(NOW_NS, cluster, policy)
    return decision


def acted(
    action: ControlAction, target: str, *, ago_ns: int, stage: ControlStage = "done", number: int = 0
) -> list[ControlActed]:
    """The events of an act that was decided and came to this at one moment."""
    name = f"act-{action}-{target}-{ago_ns}-{number}"
    common: dict[str, Any] = {"occurred_ns": NOW_NS - ago_ns, "subject": target, "action": action}
    first = ControlActed(id=name, stage="decided", mode="act", rule="gpu-throttle", **common)
    if stage == "decided":
        return [first]
    return [first, ControlActed(id=f"{name}-{stage}", stage=stage, mode="act", causes=(name,), **common)]


def prices(decision: ControlDecision) -> dict[str, float]:
    return {one.action: one.price.gpu_hours for one in decision.alternatives}


def test_a_slow_node_of_a_job_is_drained_where_that_is_cheaper(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    """88 % of 128 GPUs: 15.4 GPU-hours an hour. A stop loses 16 minutes of 128 GPUs, and the node is out for
    4 hours, or as long as a check takes; if it was not the node, a person is called after a while."""
    decision = only(cluster(incident(), run={"saved_ns": NOW_NS - MINUTE_NS}))
    assert (decision.action, decision.target, decision.mode) == ("drain-now", "n17", "act")
    assert prices(decision)["watch"] == pytest.approx(0.12 * 128 * 24)
    stop = (1 / 60 + 0.25) * 128
    out = 8 * (0.95 * 4 + 0.05 * 0.1)
    assert prices(decision)["drain-now"] == pytest.approx(stop + out + 0.05 * 0.12 * 128 * 1.25)
    told = "drain n17 now: 65.5 GPU-hours, 297.00 USD; go on at 88.0 %: 369 GPU-hours, 1,475 USD in 1 d; "
    assert decision.reason.startswith(told)
    assert decision.price.usd == pytest.approx(4 * prices(decision)["drain-now"] + 0.05 * 700)
    assert decision.incidents == ("pretrain/n17",)


def test_what_loses_little_is_watched(incident: MakeIncident, cluster: MakeCluster) -> None:
    decision = only(cluster(incident(slowdown=1.004)))
    assert decision.action == "watch"
    assert decision.price == min((one.price for one in decision.alternatives), key=lambda one: one.usd)


def test_a_run_that_goes_on_by_itself_moves_to_a_spare(incident: MakeIncident, cluster: MakeCluster) -> None:
    assert only(cluster(incident(), run={**ELASTIC, "spares": 1})).action == "migrate"


def test_without_a_spare_the_node_is_drained_and_the_run_shrinks(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    assert only(cluster(incident(), run=ELASTIC)).action == "drain-now"
    without_scheduler = frozenset(ACTIONS) - {"drain-now", "drain-when-done"}
    decision = only(cluster(incident(slowdown=1.5), run=ELASTIC, can=without_scheduler))
    assert decision.action == "shrink"


def test_to_move_to_a_spare_prices_are_enough(incident: MakeIncident, cluster: MakeCluster) -> None:
    """A wrong move costs seconds; what is drained for it afterwards is checked, and back."""
    unsure = incident(confidence=0.3)
    spare = {**ELASTIC, "spares": 1}
    assert only(cluster(unsure, run=spare)).action == "migrate"
    suspect = only(cluster(incident(confidence=0.3, quality=0.2), run=spare))
    assert suspect.action != "migrate"


def test_to_wait_has_its_price_where_nothing_of_use_is_computed(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    fresh = {"began_ns": NOW_NS - MINUTE_NS, "noticed_ns": NOW_NS}
    spare = {**ELASTIC, "spares": 1}
    still = only(cluster(incident(mechanism="gpu-fault", slowdown=1e9, **fresh), run=spare))
    assert still.action == "migrate"  # not `rebalance`: no lane mends that
    assert only(cluster(incident(slowdown=1.01, **fresh), run=spare)).action != "migrate"


def test_a_young_incident_is_left_to_the_run_that_moves_lanes(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    young = incident(began_ns=NOW_NS - MINUTE_NS, noticed_ns=NOW_NS - MINUTE_NS)
    decision = only(cluster(young, run={**ELASTIC, "spares": 1}))
    assert decision.action == "rebalance"
    assert prices(decision)["rebalance"] == pytest.approx(0.12 * 8 * 24)
    held = {one.action: one.not_now for one in decision.alternatives}
    assert held["migrate"] == "the incident is too young"


def test_a_node_nobody_uses_is_drained_for_who_comes_next(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    bad = incident("n40", mechanism="gpu-fault", slowdown=1.0)
    decision = only(cluster(bad))
    assert (decision.action, decision.run) == ("drain-when-done", "")


def test_low_confidence_leaves_the_harmless_or_a_person(incident: MakeIncident, cluster: MakeCluster) -> None:
    unsure = incident(confidence=0.3)
    assert only(cluster(unsure, run={"gpus": 8})).action == "watch"
    decision = only(cluster(unsure))
    assert decision.action == "call-a-person"
    refused = {one.action: one.not_now for one in decision.alternatives}
    assert "30.0 % sure, and this needs 80%" in refused["drain-now"]


def test_suspect_telemetry_moves_no_node(incident: MakeIncident, cluster: MakeCluster) -> None:
    decision = only(cluster(incident(quality=0.4)))
    assert decision.action == "call-a-person"
    assert "the telemetry is suspect" in {one.not_now for one in decision.alternatives}


def test_what_is_beneath_many_nodes_drains_none(incident: MakeIncident, cluster: MakeCluster) -> None:
    flow = incident(subject="cdu-1", kind="loop", mechanism="coolant-flow", path=("cdu-1", "n17", "pretrain"))
    decision = only(cluster(flow))
    assert (decision.action, decision.target) == ("call-a-person", "cdu-1")
    assert not {one.action for one in decision.alternatives} & {"drain-now", "drain-when-done", "migrate"}


def test_a_run_that_hangs_is_requeued(incident: MakeIncident, cluster: MakeCluster) -> None:
    hang = incident(subject="pretrain", kind="run", mechanism="hang", path=("pretrain",), slowdown=1e9)
    decision = only(cluster(hang, run={"saved_ns": NOW_NS - 20 * MINUTE_NS}))
    assert (decision.action, decision.target) == ("requeue", "pretrain")


def test_the_one_process_that_a_run_waits_for_is_replaced(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    def hang(*affected: str) -> Incident:
        where: dict[str, Any] = {"subject": "pretrain", "kind": "run", "mechanism": "hang"}
        return incident(**where, path=("pretrain",), slowdown=1e9, affected=affected)

    decision = only(cluster(hang("pretrain/n17.0"), run=ELASTIC))
    assert (decision.action, decision.member) == ("replace", "n17.0")
    assert only(cluster(hang("pretrain/n17.0", "pretrain/n18.0"), run=ELASTIC)).action == "call-a-person"


def test_a_node_that_may_fail_is_a_reason_to_checkpoint(incident: MakeIncident, cluster: MakeCluster) -> None:
    risky = incident(mechanism="memory-errors", slowdown=1.0, confidence=0.5)
    decision = only(cluster(risky, run={"saved_ns": NOW_NS - 9 * HOUR_NS}))
    assert decision.action == "checkpoint"


def test_many_symptoms_of_a_node_are_one_decision(incident: MakeIncident, cluster: MakeCluster) -> None:
    both = (incident(), incident(name="pretrain/s2", subject="n17", kind="node", mechanism="node-cooling"))
    decision = only(cluster(*both))
    assert decision.incidents == ("pretrain/n17", "pretrain/s2")


def test_a_node_that_a_run_has_left_is_drained_for_what_it_cost_that_run(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    """12 % of its own 8 GPUs would not be worth it."""
    elsewhere = {**ELASTIC, "nodes": frozenset({"n10"})}
    assert only(cluster(incident(), run=elsewhere)).action == "watch"
    moved = only(cluster(incident(), run={**ELASTIC, "spares": 1}))
    told = msgspec.json.encode(moved).decode()
    first, done = acted("migrate", "n17", ago_ns=HOUR_NS)
    left = ControlHistory([msgspec.structs.replace(first, decision=told), done])
    decision = only(cluster(incident(), run=elsewhere, history=left))
    assert (decision.action, decision.run) == ("drain-when-done", "pretrain")  # which has it back
    assert decision.rate == pytest.approx(0.12 * 128)


def test_a_sure_incident_that_costs_nothing_lends_its_confidence_to_no_other(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    sure = incident(name="pretrain/s1", slowdown=1.0, confidence=0.99)
    grave = incident(name="pretrain/s2", mechanism="slow-node", slowdown=3.0, confidence=0.3, quality=0.2)
    decision = only(cluster(sure, grave))
    assert (decision.action, decision.rule) == ("call-a-person", "slow-node")
    assert decision.incidents == ("pretrain/s1", "pretrain/s2")
    refused = {one.action: one.not_now for one in decision.alternatives}
    assert "30.0 % sure" in refused["drain-now"]


def test_a_job_that_needs_all_nodes_waits_for_the_one_that_is_out(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    """Without a free node 128 GPUs stand still for the four hours that a repair takes."""
    members = frozenset(f"n{number}" for number in range(10, 26))
    free = cluster(incident(slowdown=1.2), run={"saved_ns": NOW_NS})
    full = cluster(
        incident(slowdown=1.2),
        run={"saved_ns": NOW_NS},
        nodes={name: NodeView(name=name) for name in members},
    )
    out_h = 0.95 * 4 + 0.05 * 0.1
    extra = prices(only(full))["drain-now"] - prices(only(free))["drain-now"]
    assert extra == pytest.approx(120 * out_h)
    assert only(free).action == "drain-now"
    assert only(full).action != "drain-now"


def test_jobs_of_others_are_not_requeued_with_the_run(incident: MakeIncident, cluster: MakeCluster) -> None:
    shared = NodeView(name="n17", jobs=("7", "8"))
    decision = only(cluster(incident(), changed=[shared], run={"jobs": ("7",)}))
    refused = {one.action: one.not_now for one in decision.alternatives}
    assert refused["drain-now"] == "a job unknown to control runs there (8)"
    assert decision.action != "drain-now"
    own = msgspec.structs.replace(shared, jobs=("7",))
    assert only(cluster(incident(), changed=[own], run={"jobs": ("7",)})).action == "drain-now"


def test_a_run_that_stays_on_a_node_that_is_out_is_decided_about(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    """It refused to leave; the node is drained already, and nobody waits for a repair under a run."""
    view = cluster(incident(), run={**ELASTIC, "spares": 1}, history=ControlHistory(OUT), changed=[OURS])
    decision = only(view)
    assert decision.action == "migrate"
    refused = {one.action: one.not_now for one in decision.alternatives}
    assert refused["drain-now"] == "it is out already"


def test_jobs_of_which_nothing_is_known_are_not_ended(incident: MakeIncident, cluster: MakeCluster) -> None:
    strange = NodeView(name="n40", jobs=("7",))
    decision = only(cluster(incident("n40", mechanism="gpu-fault"), changed=[strange]))
    assert decision.action == "drain-when-done"
    assert "drain-now" not in {one.action for one in decision.alternatives}


# ---- safety ----------------------------------------------------------------------------------------------


def test_shadow_is_the_default_and_may_differ_by_rule(incident: MakeIncident, cluster: MakeCluster) -> None:
    assert only(cluster(incident()), ControlPolicy()).mode == "shadow"
    acts = ControlPolicy(rules={"gpu-throttle": RulePolicy(mode="act")})
    assert only(cluster(incident()), acts).mode == "act"
    off = ControlPolicy(mode="act", rules={"gpu-throttle": RulePolicy(mode="off")})
    assert only(cluster(incident()), off).action == "watch"
    never = ControlPolicy(mode="act", rules={"gpu-throttle": RulePolicy(never=("drain-now",))})
    assert only(cluster(incident()), never).action != "drain-now"


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (NodeView(name="n17", is_out=True, reason="fan, jane"), "it was taken out by others (fan, jane)"),
        (NodeView(name="n17", maintenance="firmware"), "it is in maintenance (firmware)"),
    ],
)
def test_what_others_have_in_their_hands_is_not_touched(
    incident: MakeIncident, cluster: MakeCluster, node: NodeView, why: str
) -> None:
    decision = only(cluster(incident(), changed=[node]))
    assert decision.action == "watch"
    assert why in decision.reason


def test_what_was_seen_before_a_node_was_started_again_does_not_count(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    started = NodeView(name="n17", since_ns=NOW_NS - MINUTE_NS)
    assert list(decisions(NOW_NS, cluster(incident(), changed=[started]), ACT)) == []


def test_a_node_that_somebody_else_restored_is_theirs_for_a_while(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    theirs = ControlHistory(acted("drain-now", "n17", ago_ns=HOUR_NS, stage="over"))
    assert "others decided" in only(cluster(incident(), history=theirs)).reason
    old = ControlHistory(acted("drain-now", "n17", ago_ns=5 * HOUR_NS, stage="over"))
    assert only(cluster(incident(), history=old)).action == "drain-now"


def test_a_node_cools_down_after_any_action(incident: MakeIncident, cluster: MakeCluster) -> None:
    for stage in ("done", "failed"):
        history = ControlHistory(acted("migrate", "n17", ago_ns=5 * MINUTE_NS, stage=stage))
        decision = only(cluster(incident(), history=history))
        assert decision.action == "watch"  # no person either: what is cheaper only has to wait
        assert "not now: the last action on it was a short while ago" in decision.reason
    under_way = ControlHistory(acted("migrate", "n17", ago_ns=5 * MINUTE_NS, stage="decided"))
    assert "under way" in only(cluster(incident(), history=under_way)).reason


def test_a_person_is_called_once(incident: MakeIncident, cluster: MakeCluster) -> None:
    called = ControlHistory(acted("call-a-person", "n17", ago_ns=HOUR_NS))
    decision = only(cluster(incident(confidence=0.3), history=called))
    assert decision.action == "watch"
    assert "a person was called already" in decision.reason


def out_elsewhere(count: int) -> ControlHistory:
    return ControlHistory(
        event
        for number in range(count)
        for event in acted("drain-now", f"n{30 + number}", ago_ns=HOUR_NS, number=number)
    )


def test_nodes_that_runs_go_on_without_count_as_out(incident: MakeIncident, cluster: MakeCluster) -> None:
    """Without a scheduler a run could otherwise be shrunk node by node to nothing."""
    shrunk = ControlHistory(
        event for number in (20, 21) for event in acted("shrink", f"n{number}", ago_ns=HOUR_NS)
    )
    policy = ControlPolicy(mode="act", out=Bound(nodes=2, percent=100))
    decision = only(cluster(incident(slowdown=2.0), run=ELASTIC, history=shrunk), policy)
    refused = {one.action: one.not_now for one in decision.alternatives}
    assert refused["shrink"] == refused["drain-now"] == "2 of at most 2 nodes are out"
    # The node itself may be drained after its run went on without it: it is not one more.
    left = cluster(
        incident("n20"), run={**ELASTIC, "nodes": frozenset({"n10"})}, history=shrunk, usd_per_gpu_hour=40.0
    )
    assert not {one.action: one.not_now for one in only(left, policy).alternatives}["drain-when-done"]


def test_people_have_a_budget_too(incident: MakeIncident, cluster: MakeCluster) -> None:
    called = ControlHistory(acted("call-a-person", "n40", ago_ns=HOUR_NS))
    policy = ControlPolicy(mode="act", budgets={"call-a-person": Budget(per_day=1)})
    decision = only(cluster(incident(confidence=0.3), history=called), policy)
    assert decision.action == "watch"
    assert "it was done 1 times in 24 hours" in decision.reason


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (ControlPolicy(mode="act", out=Bound(nodes=2, percent=100)), "2 of at most 2 nodes are out"),
        (ControlPolicy(mode="act", out=Bound(nodes=50, percent=4)), "2 of at most 2 nodes are out"),
        (
            ControlPolicy(mode="act", budgets={"drain-now": Budget(nodes=2)}),
            "it holds 2 of the 2 nodes of its budget",
        ),
        (
            ControlPolicy(mode="act", budgets={"drain-now": Budget(per_day=2)}),
            "it was done 2 times in 24 hours",
        ),
    ],
)
def test_budgets_hold(incident: MakeIncident, cluster: MakeCluster, policy: ControlPolicy, why: str) -> None:
    found = [*decisions(NOW_NS, cluster(incident(), history=out_elsewhere(2)), policy)]
    (decision,) = [one for one in found if one.target == "n17"]
    assert decision.action != "drain-now"
    assert why in {one.action: one.not_now for one in decision.alternatives}["drain-now"]


def test_shadow_says_no_more_than_would_be_done(incident: MakeIncident, cluster: MakeCluster) -> None:
    said = [
        ControlActed(
            id=f"s-{node}",
            occurred_ns=NOW_NS,
            subject=node,
            action="drain-now",
            stage="decided",
            mode="shadow",
        )
        for node in ("n17", "n18")
    ]
    policy = ControlPolicy(out=Bound(nodes=2, percent=100), breaker=BreakerBound(nodes=9, percent=100))
    view = cluster(incident("n17"), incident("n18"), incident("n19"), history=ControlHistory(said))
    found = {one.target: one.action for one in decisions(NOW_NS, view, policy)}
    assert found == {"n17": "drain-now", "n18": "drain-now", "n19": "call-a-person"}


def test_a_bound_is_the_lower_of_two_and_at_least_one_node() -> None:
    assert [Bound(nodes=4, percent=5).of(nodes) for nodes in (4, 20, 60, 1000)] == [1, 1, 3, 4]
    assert Bound(nodes=0).of(1000) == 0
    assert Bound(percent=0).of(1000) == 0


def test_the_breaker_trips_when_too_many_look_bad_and_a_person_resets_it(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    fresh = {"noticed_ns": NOW_NS - MINUTE_NS}
    policy = ControlPolicy(mode="act", breaker=BreakerBound(nodes=3, percent=100))
    few = cluster(*(incident(f"n{number}", **fresh) for number in range(1, 4)))
    many = cluster(*(incident(f"n{number}", **fresh) for number in range(1, 5)))
    assert looks_like_a_bad_detector(NOW_NS, few, policy) == ""
    why = looks_like_a_bad_detector(NOW_NS, many, policy)
    assert why == "4 nodes looked bad within 5 minutes, more than 3: n1, n2, n3, n4"
    trip = BreakerChanged(id="b1", occurred_ns=NOW_NS, tripped=True, reason=why)
    tripped = msgspec.structs.replace(many, history=ControlHistory([trip]))
    assert {one.action for one in decisions(NOW_NS, tripped, policy)} == {"watch"}
    reset = BreakerChanged(id="b2", occurred_ns=NOW_NS, tripped=False, reason="jane")
    again = msgspec.structs.replace(many, history=ControlHistory([trip, reset]))
    assert looks_like_a_bad_detector(NOW_NS, again, policy) == ""


def test_the_breaker_counts_what_came_while_nobody_looked(
    incident: MakeIncident, cluster: MakeCluster
) -> None:
    policy = ControlPolicy(mode="act", breaker=BreakerBound(nodes=3, percent=100))

    def noticed(ago_min: int, *numbers: int) -> list[Incident]:
        ago_ns = ago_min * MINUTE_NS
        return [incident(f"n{number}", noticed_ns=NOW_NS - ago_ns - number) for number in numbers]

    burst = cluster(*noticed(90, 1, 2, 3, 4))
    assert looks_like_a_bad_detector(NOW_NS, burst, policy).startswith("4 nodes looked bad within 5 minutes")
    slowly = cluster(*noticed(90, 1), *noticed(60, 2), *noticed(30, 3), *noticed(1, 4))
    assert looks_like_a_bad_detector(NOW_NS, slowly, policy) == ""
    one_node = cluster(
        *(msgspec.structs.replace(one, name=f"pretrain/s{at}") for at in range(9) for one in noticed(1, 1))
    )
    assert looks_like_a_bad_detector(NOW_NS, one_node, policy) == ""


# ---- nodes that we took out ------------------------------------------------------------------------------

OUT = acted("drain-now", "n17", ago_ns=HOUR_NS)
OURS = NodeView(name="n17", is_out=True, reason=f"holdfast: gpu-throttle ({OUT[0].id})")


def about_out(cluster: MakeCluster, *more: ControlActed, node: NodeView = OURS, **fields: Any) -> Any:
    history = ControlHistory([*OUT, *more])
    return only(cluster(history=history, changed=[node], **fields))


def test_a_node_comes_back_by_a_check(cluster: MakeCluster) -> None:
    decision = about_out(cluster)
    assert (decision.action, decision.target, decision.rule) == ("restore", "n17", "gpu-throttle")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (msgspec.structs.replace(OURS, reason="mine now, jane"), "no longer out because of us"),
        (
            msgspec.structs.replace(OURS, reason="holdfast: gpu-throttle (act-other)"),
            "no longer out because of us",
        ),
        (msgspec.structs.replace(OURS, is_out=False, reason=""), "no longer out because of us"),
        (msgspec.structs.replace(OURS, reason=f"{OURS.reason}; wait, jane"), "no longer out because of us"),
        (msgspec.structs.replace(OURS, jobs=("7",)), "still has 1 job"),
        (msgspec.structs.replace(OURS, maintenance="firmware"), "in maintenance"),
    ],
)
def test_only_what_is_ours_and_free_is_restored(cluster: MakeCluster, node: NodeView, why: str) -> None:
    decision = about_out(cluster, node=node)
    assert decision.action == "watch"
    assert why in decision.reason


def test_a_job_that_holds_a_node_for_a_run_elsewhere_does_not_keep_it_out(cluster: MakeCluster) -> None:
    node = msgspec.structs.replace(OURS, jobs=("7",))
    run = {**ELASTIC, "jobs": ("7",), "nodes": frozenset({"n10"})}
    assert about_out(cluster, node=node, run=run).action == "restore"


def test_a_node_that_fails_its_check_is_rebooted_checked_again_and_a_persons(cluster: MakeCluster) -> None:
    failed = acted("restore", "n17", ago_ns=50 * MINUTE_NS, stage="failed")
    assert about_out(cluster, *failed).action == "reboot"
    rebooted = [*failed, *acted("reboot", "n17", ago_ns=40 * MINUTE_NS)]
    assert about_out(cluster, *rebooted).action == "restore"
    again = [*rebooted, *acted("restore", "n17", ago_ns=30 * MINUTE_NS, stage="failed")]
    assert about_out(cluster, *again).action == "call-a-person"
    called = [*again, *acted("call-a-person", "n17", ago_ns=10 * MINUTE_NS)]
    assert about_out(cluster, *called).action == "watch"


def test_a_check_that_could_not_measure_the_cause_is_tried_again_and_a_persons(cluster: MakeCluster) -> None:
    """A reboot would not help."""
    tries = []
    for ago_ns, action in ((50 * MINUTE_NS, "restore"), (30 * MINUTE_NS, "call-a-person")):
        decided, failed = acted("restore", "n17", ago_ns=ago_ns, stage="failed")
        outcome = "not proven: drained for nvlink, and its check has no ..."
        tries += [decided, msgspec.structs.replace(failed, outcome=outcome)]
        decision = about_out(cluster, *tries)
        assert decision.action == action
    assert decision.reason.startswith("n17 stays out, not proven: drained for nvlink")


def test_a_lemon_is_a_persons(cluster: MakeCluster) -> None:
    before = [
        event
        for days in (2, 4)
        for event in (
            *acted("drain-now", "n17", ago_ns=days * DAY_NS),
            *acted("restore", "n17", ago_ns=days * DAY_NS - HOUR_NS),
        )
    ]
    decision = only(cluster(history=ControlHistory([*before, *OUT]), changed=[OURS]))
    assert decision.action == "call-a-person"
    assert decision.reason == "n17 is a lemon: taken out 3 times"


def test_without_a_check_a_person_restores(cluster: MakeCluster) -> None:
    decision = about_out(cluster, can=frozenset({"call-a-person", "drain-now"}))
    assert decision.action == "call-a-person"


def test_every_action_has_its_words() -> None:
    assert len({said(action, "n17") for action in ACTIONS}) == len(ACTIONS)
