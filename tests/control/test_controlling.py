"""The loop, on a real store: what is written down before and after an action, and what a restart knows."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from waiting import until

from holdfast.control.cluster import NodeView
from holdfast.control.controlling import Controlling, ControlSetting, acts_in, reset_breaker
from holdfast.control.history import Act
from holdfast.control.policy import BreakerBound, ControlPolicy
from holdfast.control.seeing import ActionOrder, Answered, MachinesView, PlacedJob, in_maintenance, run_view
from holdfast.diagnose.assess import price
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.record import events
from holdfast.record.errors import HoldfastError
from holdfast.record.store import Selection, Store
from holdfast.record.stores import open_store
from holdfast.topology import file
from holdfast.wording.units import HOUR_NS, MINUTE_NS

from .conftest import NOW_NS
from .simulation import SimulatedMachines

MakeIncident = Callable[..., Incident]
POLICY = ControlPolicy(mode="act")


class Machines(SimulatedMachines):
    """Sixteen nodes; answers what it is told to."""

    def __init__(self) -> None:
        super().__init__(Random(0), POLICY)
        self.nodes = {f"n{number}": NodeView(name=f"n{number}") for number in range(10, 26)}
        self.answer = Answered(ok=True, outcome="drained")
        self.orders: list[ActionOrder] = []
        self.gate = threading.Event()
        self.gate.set()
        self.moves = False

    def reaches(self, run: str) -> bool:
        return self.moves

    def look(self, now_ns: int) -> MachinesView:
        return MachinesView(nodes=dict(self.nodes))

    def do(self, order: ActionOrder) -> Answered:
        self.orders.append(order)
        self.gate.wait()
        if self.answer.ok and order.decision.action.startswith("drain"):
            self.set(order.decision.target, is_out=True, reason=order.reason)
        if self.answer.ok and order.decision.action == "restore":
            self.set(order.decision.target, is_out=False, reason="")
        return self.answer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "record.sqlite"), tmp_path) as store:
        yield store


@pytest.fixture
def machines() -> Iterator[Machines]:
    made = Machines()
    yield made
    made.gate.set()


class Desk:
    """Starts control on the store as often as wanted."""

    def __init__(self, store: Store, machines: Machines) -> None:
        self.store = store
        self.machines = machines
        self.said: list[str] = []
        self.leads = True
        self.planned: dict[str, str] = {}
        self._starts = 0

    def start(self, policy: ControlPolicy = POLICY, pool: Executor | None = None) -> Controlling:
        self._starts += 1
        return Controlling(
            ControlSetting(
                store=self.store,
                machines=self.machines,
                policy=policy,
                prices=DEFAULTS,
                token=f"control-{self._starts}",
                is_leading=lambda: self.leads,
                take_in=lambda: None,
                say=self.said.append,
                maintenance=lambda now_ns, nodes: self.planned,
            ),
            pool,
        )

    def tell(self, incident: Incident, state: events.IncidentState = "open", at_ns: int = NOW_NS) -> None:
        event = events.IncidentDiagnosed(
            id=f"{incident.name}-{state}-{at_ns}",
            occurred_ns=at_ns,
            run=incident.run,
            incident=incident.name,
            state=state,
            diagnosis=diagnosis(incident),
        )
        self.store.ingest([event])

    def acts(self) -> list[tuple[str, str, str, str]]:
        return [(act.action, act.target, act.mode, act.stage) for act in acts_in(self.store)]

    @property
    def newest(self) -> Act:
        return next(acts_in(self.store))


@pytest.fixture
def desk(store: Store, machines: Machines) -> Desk:
    started = events.RunStarted(id="start", occurred_ns=NOW_NS - 10 * HOUR_NS, run="pretrain", gpus=128)
    saved = events.CheckpointSaved(id="saved", occurred_ns=NOW_NS - MINUTE_NS, run="pretrain", step=7)
    store.ingest([started, saved])
    return Desk(store, machines)


def settled(control: Controlling, now_ns: int = NOW_NS) -> list[Any]:
    found = control.turn(now_ns)
    control.wait(now_ns)
    return found


def test_an_action_is_written_down_done_and_known_after_a_restart(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    (decision,) = settled(desk.start())
    assert desk.acts() == [("drain-now", "n17", "act", "done")]
    assert desk.newest.decision == decision
    assert machines.nodes["n17"].reason == f"holdfast: gpu-throttle ({desk.newest.name})"
    taken = [*desk.store.select(Selection(kinds=("action.taken",)))]
    assert [(one.subject, one.action) for one in taken if isinstance(one, events.ActionTaken)] == [
        ("n17", "drain")
    ]
    (later,) = settled(desk.start(), NOW_NS + MINUTE_NS)
    assert later.action == "watch"
    assert "a short while ago" in later.reason
    assert len(machines.orders) == 1
    (back,) = settled(desk.start(), NOW_NS + HOUR_NS)
    assert back.action == "restore"
    assert desk.acts()[0] == ("restore", "n17", "act", "done")
    assert not machines.nodes["n17"].is_out


def test_a_decision_is_in_the_record_before_the_machines_hear_of_it(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    machines.gate.clear()
    control = desk.start()
    control.turn(NOW_NS)
    until(lambda: bool(machines.orders), lambda: "nothing was asked for")
    assert desk.acts() == [("drain-now", "n17", "act", "decided")]
    (again,) = control.turn(NOW_NS + MINUTE_NS)
    assert "under way" in again.reason
    machines.gate.set()
    control.wait(NOW_NS + MINUTE_NS)
    assert desk.acts() == [("drain-now", "n17", "act", "done")]


@pytest.mark.parametrize("did_reach", [True, False])
def test_who_comes_after_a_crash_sees_what_came_of_it(
    desk: Desk, machines: Machines, incident: MakeIncident, did_reach: bool
) -> None:
    desk.tell(incident())
    machines.gate.clear()
    desk.start().turn(NOW_NS)  # and it is never heard of again
    if did_reach:
        machines.set("n17", is_out=True, reason=machines.orders[0].reason)
    later = desk.start()
    later.turn(NOW_NS + 20)
    stage = "done" if did_reach else "failed"
    assert desk.acts() == [("drain-now", "n17", "act", stage)]


def test_what_is_done_while_the_machines_are_looked_at_is_not_taken_for_undone(
    store: Store, incident: MakeIncident
) -> None:
    class SlowToLook(Machines):
        """Shows what was there when the look began, and lets an action through meanwhile."""

        def look(self, now_ns: int) -> MachinesView:
            seen = super().look(now_ns)
            if self.orders and not self.gate.is_set():
                self.gate.set()
                until(lambda: self.nodes["n17"].is_out)
            return seen

    machines = SlowToLook()
    machines.gate.clear()
    desk = Desk(store, machines)
    desk.tell(incident(mechanism="gpu-fault", run="cluster"))
    control = desk.start()
    assert [one.action for one in control.turn(NOW_NS)] == ["drain-when-done"]
    until(lambda: machines.orders)
    control.turn(NOW_NS + 1)
    control.wait(NOW_NS + 2)
    control.turn(NOW_NS + 3)
    assert desk.acts() == [("drain-when-done", "n17", "act", "done")]


def test_what_somebody_else_restored_is_theirs(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    control = desk.start()
    settled(control)
    machines.set("n17", is_out=False, reason="")
    (decision,) = settled(control, NOW_NS + HOUR_NS)
    assert "others decided" in decision.reason
    assert desk.newest.stage == "over"
    assert desk.newest.outcome == "it was restored by others"


def test_shadow_says_once_what_it_would_do_and_later_what_that_had_brought(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    control = desk.start(ControlPolicy())
    settled(control)
    settled(control, NOW_NS + MINUTE_NS)
    assert desk.acts() == [("drain-now", "n17", "shadow", "decided")]
    desk.tell(incident(), "resolved", NOW_NS + 10 * HOUR_NS)
    settled(desk.start(ControlPolicy()), NOW_NS + 10 * HOUR_NS)
    assert desk.acts() == [("drain-now", "n17", "shadow", "over")]
    assert desk.newest.outcome.startswith("would have saved 8")
    assert "going on lost 154" in desk.newest.outcome
    assert machines.orders == []


def test_an_action_that_fails_is_told_and_tried_again_after_a_while(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    machines.answer = Answered(ok=False, outcome="scontrol failed: no permission")
    control = desk.start()
    settled(control)
    assert desk.newest.stage == "failed"
    assert desk.newest.outcome == "scontrol failed: no permission"
    settled(control, NOW_NS + 20 * MINUTE_NS)
    assert [one.decision.action for one in machines.orders] == ["drain-now", "drain-now"]


def test_who_does_not_lead_does_nothing(desk: Desk, machines: Machines, incident: MakeIncident) -> None:
    desk.tell(incident())
    desk.leads = False
    with pytest.raises(HoldfastError, match="lead"):
        desk.start().turn(NOW_NS)
    assert machines.orders == []
    assert desk.acts() == []


def test_the_breaker_stops_everything_also_after_a_restart_until_a_person_resets_it(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    policy = msgspec.structs.replace(POLICY, breaker=BreakerBound(nodes=2, percent=100))
    for node in ("n17", "n18", "n19"):
        desk.tell(incident(node, noticed_ns=NOW_NS - 4 * MINUTE_NS))
    assert {one.action for one in settled(desk.start(policy))} == {"watch"}
    assert {one.action for one in settled(desk.start(policy), NOW_NS + HOUR_NS)} == {"watch"}
    assert any("The breaker has tripped: 3 nodes" in sentence for sentence in desk.said)
    assert reset_breaker(desk.store, NOW_NS + HOUR_NS, "jane-1", "a bad exporter")
    assert not reset_breaker(desk.store, NOW_NS + HOUR_NS, "jane-2", "again")
    saved = events.CheckpointSaved(id="again", occurred_ns=NOW_NS + HOUR_NS - 1, run="pretrain", step=8)
    desk.store.ingest([saved])
    found = settled(desk.start(policy), NOW_NS + HOUR_NS)
    assert "drain-now" in {one.action for one in found}


def test_incidents_of_a_run_that_ended_or_that_nobody_watches_do_not_count(
    desk: Desk, incident: MakeIncident
) -> None:
    desk.tell(incident(run="other", name="other/s1"))
    end = events.RunEnded(id="end", occurred_ns=NOW_NS - 1, run="other", outcome="completed")
    desk.store.ingest([end])
    assert settled(desk.start()) == []
    priced = incident(cost=price(1.2, 60, 128, DEFAULTS.usd_per_gpu_hour), began_ns=NOW_NS - 4 * HOUR_NS)
    desk.tell(priced, at_ns=NOW_NS - 3 * HOUR_NS)
    assert settled(desk.start()) == []
    desk.tell(priced, "changed", NOW_NS - MINUTE_NS)
    assert [one.target for one in settled(desk.start())] == ["n17"]


def test_incidents_without_a_price_are_forgotten_after_a_day(desk: Desk, incident: MakeIncident) -> None:
    free = incident("n18", mechanism="gpu-fault", run="cluster", name="cluster/s1")
    desk.tell(free, at_ns=NOW_NS - 25 * HOUR_NS)
    assert settled(desk.start()) == []
    desk.tell(free, "changed", NOW_NS - 23 * HOUR_NS)
    assert [one.target for one in settled(desk.start())] == ["n18"]


def test_incidents_from_before_a_run_was_started_again_do_not_count(
    desk: Desk, incident: MakeIncident
) -> None:
    desk.tell(incident(), at_ns=NOW_NS - 10 * MINUTE_NS)
    end = events.RunEnded(
        id="end", occurred_ns=NOW_NS - 9 * MINUTE_NS, run="pretrain", outcome="stopped", reason=""
    )
    again = events.RunStarted(id="again", occurred_ns=NOW_NS - 8 * MINUTE_NS, run="pretrain", gpus=128)
    desk.store.ingest([end, again])
    assert settled(desk.start()) == []
    desk.tell(incident(), "changed", NOW_NS - MINUTE_NS)
    assert [one.target for one in settled(desk.start())] == ["n17"]


def test_a_restore_that_was_done_before_a_crash_is_ours(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    settled(desk.start())
    machines.gate.clear()
    desk.start().turn(NOW_NS + HOUR_NS)  # and it is never heard of again
    until(lambda: len(machines.orders) == 2, lambda: "nothing was asked for")
    machines.set("n17", is_out=False, reason="")
    desk.start().turn(NOW_NS + HOUR_NS + MINUTE_NS)
    assert desk.acts()[-2:] == [("restore", "n17", "act", "done"), ("drain-now", "n17", "act", "done")]


def test_a_node_that_the_scheduler_forgot_holds_no_budget(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    control = desk.start()
    settled(control)
    del machines.nodes["n17"]
    settled(control, NOW_NS + HOUR_NS)
    (first, *_) = reversed([*acts_in(desk.store)])
    assert (first.stage, first.outcome) == ("over", "the scheduler no longer knows it")
    assert control.history.out == {}


class Late(Executor):
    """Begins nothing until it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.waiting.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future


@pytest.mark.parametrize("what", ["lead", "breaker"])
def test_what_had_to_wait_is_not_begun_after_the_lead_or_the_breaker_changed(
    desk: Desk, machines: Machines, incident: MakeIncident, what: str
) -> None:
    late = Late()
    desk.tell(incident())
    control = desk.start(pool=late)
    control.turn(NOW_NS)
    if what == "lead":
        desk.leads = False
    else:
        trip = events.BreakerChanged(id="b", occurred_ns=NOW_NS, tripped=True, reason="5 nodes")
        desk.store.ingest([trip])
        control.turn(NOW_NS + 1)
    for begin in late.waiting:
        begin()
    control.wait(NOW_NS + 2)
    assert machines.orders == []
    assert desk.newest.stage == "failed"
    assert "before it was begun" in desk.newest.outcome


def test_planned_work_of_the_topology_is_respected(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    desk.tell(incident())
    desk.planned = {"n17": "new fans"}
    (decision,) = settled(desk.start())
    assert "it is in maintenance (new fans)" in decision.reason
    assert machines.orders == []


def test_who_is_in_maintenance_by_the_topology_file() -> None:
    text = (Path(file.__file__).parent / "example.yaml").read_text()
    page = file.read(text, source="example.yaml")
    described = page.described(page.survey)
    begin_ns = described.maintenance[0].from_ns
    nodes = [f"n{number:05}" for number in range(64)]
    found = in_maintenance(described, begin_ns, nodes)
    assert sorted(found) == nodes[32:]
    assert set(found.values()) == {"filter change"}
    assert in_maintenance(described, begin_ns - 1, nodes) == {}


def record_generation(desk: Desk) -> None:
    """An hour ago the run began on n17 and n18; a process on n19 is ready."""
    told: dict[str, Any] = {"occurred_ns": NOW_NS - HOUR_NS, "run": "pretrain"}
    members = [
        events.MemberJoined(id=f"m{number}", subject=f"m{number}", node=f"n{number}", **told)
        for number in (17, 18, 19)
    ]
    desk.store.ingest([*members, events.GenerationOpened(id="g1", members=("m17", "m18"), **told)])


def record_move(desk: Desk) -> None:
    """The run has left n17 for n19."""
    members = ("m18", "m19")
    desk.store.ingest(
        [events.GenerationOpened(id="g2", members=members, occurred_ns=NOW_NS + 1, run="pretrain")]
    )


def test_a_run_that_has_a_node_again_holds_it_out_no_more(
    desk: Desk, machines: Machines, incident: MakeIncident
) -> None:
    record_generation(desk)
    machines.moves = True
    desk.tell(incident())
    control = desk.start()
    assert [one.action for one in settled(control)] == ["migrate"]
    settled(control, NOW_NS + 20 * MINUTE_NS)
    assert ("migrate", "n17", "act", "over") in desk.acts()


@pytest.mark.parametrize("is_over", [True, False])
def test_a_node_that_a_run_was_moved_off_is_drained_though_the_run_is_well_again(
    desk: Desk, machines: Machines, incident: MakeIncident, is_over: bool
) -> None:
    """Or has something else by now, of which its incident tells."""
    record_generation(desk)
    machines.moves = True
    desk.tell(incident())
    assert [one.action for one in settled(desk.start())] == ["migrate"]
    record_move(desk)
    if is_over:
        desk.tell(incident(), "resolved", NOW_NS + MINUTE_NS)
    else:
        desk.tell(msgspec.structs.replace(incident(), verdict="unknown"), "changed", NOW_NS + MINUTE_NS)

    def about(at_ns: int) -> list[tuple[str, str]]:
        found = settled(desk.start(), at_ns)
        return [(one.action, one.run) for one in found if one.target == "n17"]

    later_ns = NOW_NS + 20 * MINUTE_NS
    assert about(later_ns) == [("drain-when-done", "pretrain")]
    assert machines.nodes["n17"].is_out
    back_ns = later_ns + 20 * MINUTE_NS
    assert about(back_ns) == [("restore", "pretrain")]
    assert about(back_ns + HOUR_NS) == []


@pytest.mark.parametrize("has_crashed", [True, False])
@pytest.mark.parametrize("has_left", [True, False])
def test_whether_a_run_left_a_node_is_seen_by_the_run_where_its_answer_was_not_heard(
    desk: Desk, machines: Machines, incident: MakeIncident, has_left: bool, has_crashed: bool
) -> None:
    """Else more nodes would be left than the budget allows. The incident is over: the run has left."""
    record_generation(desk)
    machines.moves = True
    desk.tell(incident())
    control = desk.start()
    if has_crashed:
        machines.gate.clear()
        control.turn(NOW_NS)  # and it is never heard of again
    else:
        machines.answer = Answered(ok=False, outcome="it took too long")
        settled(control)
    if has_left:
        record_move(desk)
    desk.tell(incident(), "resolved", NOW_NS + 1)
    later = desk.start() if has_crashed else control
    later.turn(NOW_NS + MINUTE_NS)
    assert desk.acts()[-1] == ("migrate", "n17", "act", "done" if has_left else "failed")
    assert [*later.history.left] == (["n17"] if has_left else [])


def test_what_ended_and_was_never_acted_on_is_forgotten(desk: Desk, incident: MakeIncident) -> None:
    control = desk.start()
    states: list[tuple[events.IncidentState, bool]] = [("open", True), ("resolved", False), ("open", True)]
    for number, (state, kept) in enumerate(states):
        desk.tell(incident(), state, NOW_NS + number)
        control._read()
        assert (incident().name in control._blamed) == kept


def test_a_run_is_seen_by_its_record_and_its_job(store: Store) -> None:
    told: dict[str, Any] = {"occurred_ns": NOW_NS, "run": "pretrain"}
    store.ingest(
        [
            events.RunStarted(id="1", name="llama", **told),
            events.MemberJoined(id="2", subject="a", gpus=8, node="n1", **told),
            events.MemberJoined(id="3", subject="b", gpus=8, node="n2", **told),
            events.MemberJoined(id="4", subject="c", gpus=8, node="n3", role="spare", **told),
            events.MemberJoined(id="4b", subject="d", gpus=0, node="n4", role="spare", **told),
            events.GenerationOpened(id="5", members=("a", "b"), **told),
            events.CheckpointSaved(id="6", step=3, **told),
            events.ReferenceDeclared(id="7", step_ns=10**9, **told),
            events.StepCommitted(id="8", step=400, **told),
        ]
    )
    planned = {"llama": msgspec.structs.replace(DEFAULTS.usd_per_gpu_hour, value=4_000)}
    prices = msgspec.structs.replace(DEFAULTS, planned_steps=planned)
    jobs = [PlacedJob(job="7", name="pretrain", nodes=("n1", "n2", "n3"))]
    seen = run_view(store, "pretrain", NOW_NS, prices, jobs)
    assert (seen.gpus, seen.spares, seen.is_elastic, seen.jobs) == (16, 1, True, ("7",))
    assert seen.nodes == {"n1", "n2"}
    assert seen.remaining_h == 1.0
    assert seen.saved_ns == NOW_NS
