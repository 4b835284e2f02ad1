"""The loop of `holdfast control`: look, decide, record, act, and follow up on the result.

A decision is recorded before it is carried out, so that the next process knows of it after a crash; a
decision that cannot be recorded is not carried out. Nothing is done while the machines cannot be seen, or
after another process has taken the lead. Actions run in threads of their own: a check may take an hour.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import msgspec

from holdfast import wording
from holdfast.control.actions import LEAVES, TAKES_OUT, said
from holdfast.control.cluster import ClusterView, NodeView, node_named
from holdfast.control.deciding import (
    decisions,
    drain_reason,
    is_ours,
    looks_like_a_bad_detector,
    needs_long_check,
)
from holdfast.control.decision import ControlDecision
from holdfast.control.history import KINDS, Act, ControlHistory
from holdfast.control.policy import ControlPolicy
from holdfast.control.seeing import (
    ActionOrder,
    Answered,
    Machines,
    MachinesView,
    open_incidents,
    run_view,
    sized,
)
from holdfast.diagnose.assess import CLUSTER
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange, restored
from holdfast.diagnose.mechanisms import suspected
from holdfast.diagnose.recorded import KIND as DIAGNOSED
from holdfast.economics.pricing.prices import Prices
from holdfast.record.errors import HoldfastError
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    BreakerChanged,
    ControlActed,
    ControlStage,
    IncidentDiagnosed,
)
from holdfast.record.journal import event_id
from holdfast.record.runs import begins_ns, ends_ns
from holdfast.record.store import Selection, Store
from holdfast.wording.units import HOUR_NS, MINUTE_NS

AT_ONCE_MAX = 8
"""Actions that are carried out at the same time."""
OUTCOME_CHARS_MAX = 2_000
RESULT_UNKNOWN = "control ended before the result was known"
SOURCE = "control"


class ControlSetting(msgspec.Struct, frozen=True, kw_only=True):
    """token: unique to this process, for the ids of its events. is_leading: asked right before each action.
    take_in: moves events recorded on this machine into the store. say: prints a sentence for the operator.
    maintenance: which of these nodes have planned work at a moment, and why.
    """

    store: Store
    machines: Machines
    policy: ControlPolicy
    prices: Prices
    token: str
    is_leading: Callable[[], bool]
    take_in: Callable[[], None]
    say: Callable[[str], None]
    maintenance: Callable[[int, tuple[str, ...]], Mapping[str, str]] = lambda now_ns, nodes: {}


class Controlling:
    """`turn` is called every few seconds."""

    def __init__(self, setting: ControlSetting, pool: Executor | None = None) -> None:
        """pool: runs the actions; without one, control starts its own threads."""
        self._setting = setting
        self.history = ControlHistory()
        self.standing = ""
        """What the last turn was about."""
        self._incidents: dict[str, IncidentChange] = {}
        self._blamed: dict[str, dict[str, Incident]] = {}
        """By incident and subject: the incident as it was when it last blamed that subject."""
        self._cursor = 0
        self._numbers = count()
        self._pool = pool or ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="holdfast-control")
        self._doing: dict[str, Future[Answered]] = {}

    def close(self) -> None:
        """Leave the actions that are under way to the next process, which will see their results."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def wait(self, now_ns: int) -> None:
        """Wait until all actions that are under way are done and recorded."""
        for future in list(self._doing.values()):
            future.exception()
        self._collect(now_ns)

    def turn(self, now_ns: int) -> list[ControlDecision]:
        """Decide about every target, and act. Raises `HoldfastError`, and then nothing more is done."""
        self._setting.take_in()
        self._read()
        self._collect(now_ns)  # before the look, which then shows the results of these actions
        told = self._setting.machines.look(now_ns)
        told = self._with_maintenance(now_ns, told)
        self._settle(now_ns, told)
        cluster = self._cluster(now_ns, told)
        self.standing = _standing(cluster, self._setting.policy)
        self._settle_leaving(now_ns, cluster)
        self._notice_returns(now_ns, cluster)
        self._mind_breaker(now_ns, cluster)
        found = []
        for decision in decisions(now_ns, cluster, self._setting.policy):
            found.append(decision)
            self._carry_out(now_ns, decision, cluster)
        self._judge(now_ns, cluster)
        return found

    # -- reading -------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the new events of the record. Events of this process come again here, and change nothing."""
        end = self._setting.store.end()
        selection = Selection(kinds=(*KINDS, DIAGNOSED))
        resolved: set[str] = set()
        for cursor, event in self._setting.store.since(self._cursor, selection):
            end = max(end, cursor)
            if isinstance(event, IncidentDiagnosed):
                for change in restored([event]):
                    incident = change.incident
                    self._incidents[incident.name] = change
                    if change.state == "resolved":
                        resolved.add(incident.name)
                    if incident.verdict == "cause":
                        self._blamed.setdefault(incident.name, {})[incident.cause.subject] = incident
            else:
                self.history.take(event)
        self._cursor = end
        for name in resolved - self._acted_on() if resolved else ():
            if self._incidents[name].state == "resolved":
                self._blamed.pop(name, None)

    def _acted_on(self) -> set[str]:
        """The incidents because of which a run left a node: the subject that they blamed is needed later."""
        left = (one for one in self.history.acts.values() if one.action in LEAVES)
        return {name for one in left if one.decision is not None for name in one.decision.incidents}

    def _cluster(self, now_ns: int, told: MachinesView) -> ClusterView:
        setting = self._setting
        last = self._incidents.values()
        runs = {change.incident.run for change in last if change.state != "resolved"}
        acts = [*self.history.out.values(), *self._unsettled_leaving(now_ns)]
        runs |= {act.decision.run for act in acts if act.decision is not None}
        runs -= {CLUSTER, ""}
        ended = ends_ns(setting.store, runs, now_ns)
        prices = setting.prices
        person_usd = prices.labour_usd_per_hour.value * prices.follow_up_hours.value
        begun = begins_ns(setting.store, runs - ended.keys(), now_ns)
        incidents = open_incidents(last, ended, begun, now_ns)
        incidents += list(self._left_behind(incidents, told.nodes))
        gpus = setting.policy.gpus_per_node
        seen = [
            sized(run_view(setting.store, run, now_ns, prices, told.jobs), incidents, gpus)
            for run in runs
            if run not in ended
        ]
        known = {node: NodeView(name=node, gpus=gpus) for run in seen for node in run.nodes}
        return ClusterView(
            nodes=told.nodes or known,
            runs={
                run.name: msgspec.structs.replace(run, can_move=setting.machines.reaches(run.name))
                for run in seen
            },
            incidents=tuple(incidents),
            history=self.history,
            can=setting.machines.can,
            usd_per_gpu_hour=prices.usd_per_gpu_hour.value,
            person_usd=person_usd,
        )

    def _left_behind(self, known: list[Incident], nodes: Mapping[str, NodeView]) -> Iterator[Incident]:
        """Incidents of nodes that a run has left: they ended for the run, or blame another node by now, but
        nothing was mended on the node.
        """
        names = {one.name for one in known}
        blamed = {node.name for one in known if (node := node_named(one, nodes)) is not None}
        for target, act in self.history.left.items():
            for name in act.decision.incidents if act.decision else ():
                then = [one for one in self._blamed.get(name, {}).values() if _is_about(one, target, nodes)]
                if then and target not in blamed:
                    yield then[-1]
                elif name not in names and name in self._incidents:
                    yield self._incidents[name].incident

    def _with_maintenance(self, now_ns: int, told: MachinesView) -> MachinesView:
        """Add the maintenance that the topology file has planned for now."""
        planned = self._setting.maintenance(now_ns, tuple(told.nodes))
        nodes = {
            name: msgspec.structs.replace(node, maintenance=node.maintenance or planned.get(name, ""))
            for name, node in told.nodes.items()
        }
        return msgspec.structs.replace(told, nodes=nodes) if planned else told

    # -- acting --------------------------------------------------------------------------------------

    def _carry_out(self, now_ns: int, decision: ControlDecision, cluster: ClusterView) -> None:
        if decision.action == "watch":
            return
        if decision.mode == "shadow":
            self._say_in_shadow(now_ns, decision)
            return
        if not self._setting.is_leading():
            raise HoldfastError("Another process has taken the lead.", hint="This one waits for its turn.")
        name = self._decided(now_ns, decision)
        order = ActionOrder(
            decision=decision,
            reason=drain_reason(name, decision.rule),
            node=cluster.nodes.get(decision.target),
            run=cluster.runs.get(decision.run),
            is_long_check=needs_long_check(now_ns, decision.target, cluster, self._setting.policy),
            part=suspected(decision.rule),
        )
        self._doing[name] = self._pool.submit(self._do, order)

    def _do(self, order: ActionOrder) -> Answered:
        """Check breaker and lead again: the action may have waited long for other actions."""
        if self.history.tripped_ns is not None:
            return Answered(ok=False, outcome="the breaker tripped before it was begun")
        try:
            if not self._setting.is_leading():
                return Answered(ok=False, outcome="another process took the lead before it was begun")
            return self._setting.machines.do(order)
        except HoldfastError as error:
            return Answered(ok=False, outcome=error.sentence)
        except Exception as error:  # a defect of ours must not pass for an action that was done
            return Answered(ok=False, outcome=f"{type(error).__name__}: {error}")

    def _collect(self, now_ns: int) -> None:
        for name, future in list(self._doing.items()):
            if future.done():
                del self._doing[name]
                answered = future.result()
                self._told(
                    now_ns, self.history.acts[name], "done" if answered.ok else "failed", answered.outcome
                )

    def _say_in_shadow(self, now_ns: int, decision: ControlDecision) -> None:
        """Record a shadow decision once, until it changes."""
        standing = self.history.standing(decision.target)
        if standing is not None and standing.action == decision.action:
            return
        if standing is not None:
            self._told(
                now_ns, standing, "over", f"it would now be to {said(decision.action, decision.target)}"
            )
        self._decided(now_ns, decision)

    # -- results -------------------------------------------------------------------------------------

    def _settle(self, now_ns: int, told: MachinesView) -> None:
        """Compare the record with the machines: they differ after a crash, and if others acted."""
        # Restores first: a node that one of them restored was not taken from us.
        acts = [act for act in self.history.acts.values() if act.mode == "act" and act.is_unsettled]
        for act in sorted(acts, key=lambda one: one.action != "restore"):
            if act.name in self._doing or act.action in LEAVES:
                continue
            taken_by = self.history.out.get(act.target)
            if stage := _seen(act, told, taken_by):
                self._told(now_ns, act, *stage)

    def _unsettled_leaving(self, now_ns: int) -> list[Act]:
        """Acts that should have moved a run off a node, and may have done so: their result is missing after a
        crash, or because the answer did not come in time.
        """
        since_ns = now_ns - round(self._setting.policy.waits.cool_down_min * MINUTE_NS)
        return [
            act
            for act in self.history.acts.values()
            if act.mode == "act"
            and act.action in LEAVES
            and (act.stage == "decided" or (act.stage == "failed" and act.changed_ns >= since_ns))
            and act.name not in self._doing
        ]

    def _settle_leaving(self, now_ns: int, cluster: ClusterView) -> None:
        """Settle acts by the run's nodes: if the run is no longer on the node, it left, even without an
        answer.
        """
        for act in self._unsettled_leaving(now_ns):
            run = cluster.runs.get(act.decision.run) if act.decision is not None else None
            if run is not None and run.nodes and act.target not in run.nodes:
                self._told(now_ns, act, "done", "the run is no longer on it")
            elif act.stage == "decided":
                self._told(now_ns, act, "failed", RESULT_UNKNOWN)

    def _notice_returns(self, now_ns: int, cluster: ClusterView) -> None:
        """Notice runs that are back on a node that they were moved off."""
        since_ns = now_ns - round(self._setting.policy.waits.cool_down_min * MINUTE_NS)
        for target, act in list(self.history.left.items()):
            has_it = any(target in run.nodes for run in cluster.runs.values())
            if has_it and act.changed_ns < since_ns and act.target not in self._busy:
                self._told(now_ns, act, "over", "the run has it again")

    @property
    def _busy(self) -> set[str]:
        return {act.target for act in self.history.under_way}

    def _judge(self, now_ns: int, cluster: ClusterView) -> None:
        """Tell what shadow actions would have saved or cost, once their incidents are over."""
        open_names = {incident.name for incident in cluster.incidents}
        for act in list(self.history.shadows()):
            decision = act.decision
            if decision is None or open_names & {*decision.incidents} or act.target in self.history.out:
                continue
            went_on = decision.rate * (now_ns - act.at_ns) / HOUR_NS
            self._told(now_ns, act, "over", _brought(went_on, decision.own_gpu_hours))

    def _mind_breaker(self, now_ns: int, cluster: ClusterView) -> None:
        if self.history.tripped_ns is not None:
            return
        if why := looks_like_a_bad_detector(now_ns, cluster, self._setting.policy):
            self._write(BreakerChanged(**self._envelope(now_ns), tripped=True, reason=why))
            self._setting.say(
                f"The breaker has tripped: {why}. `holdfast control --reset-breaker` resets it."
            )

    # -- the record ----------------------------------------------------------------------------------

    def _decided(self, now_ns: int, decision: ControlDecision) -> str:
        event = ControlActed(
            **self._envelope(now_ns),
            subject=decision.target,
            action=decision.action,
            stage="decided",
            mode=decision.mode,
            rule=decision.rule,
            decision=msgspec.json.encode(decision).decode(),
        )
        self._write(event)
        return event.id

    def _told(self, now_ns: int, act: Act, stage: ControlStage, outcome: str) -> None:
        """Record the result of an act; for a drain or a restore, also the event that the ledger reads."""
        outcome = wording.short(outcome, OUTCOME_CHARS_MAX)
        event = ControlActed(
            **self._envelope(now_ns),
            subject=act.target,
            causes=(act.name,),
            action=act.action,
            stage=stage,
            mode=act.mode,
            rule=act.rule,
            outcome=outcome,
        )
        self._write(event)
        if act.mode == "act" and stage == "done" and (act.action in TAKES_OUT or act.action == "restore"):
            self._write(
                ActionTaken(
                    **self._envelope(now_ns),
                    subject=act.target,
                    causes=(event.id,),
                    action="restore" if act.action == "restore" else "drain",
                    reason=f"holdfast control: {act.rule}",
                )
            )
        shadow = " (shadow)" if act.mode == "shadow" else ""
        self._setting.say(f"{wording.opening(said(act.action, act.target))}{shadow}: {stage}. {outcome}")

    def _envelope(self, now_ns: int) -> dict[str, Any]:
        return {
            "id": event_id(self._setting.token, next(self._numbers)),
            "occurred_ns": now_ns,
            "recorded_ns": now_ns,
            "source": SOURCE,
        }

    def _write(self, event: AnyEvent) -> None:
        self._setting.store.ingest([event])
        self.history.take(event)


def _is_about(incident: Incident, target: str, nodes: Mapping[str, NodeView]) -> bool:
    node = node_named(incident, nodes)
    return node is not None and node.name == target


def _seen(act: Act, told: MachinesView, taken_by: Act | None) -> tuple[ControlStage, str] | None:
    """The stage that the machines show for an act that this process does not carry out; None if nothing is
    new. taken_by: the act by which the node is out, according to the record.
    """
    node = told.nodes.get(act.target)
    if act.action in TAKES_OUT:
        is_out = node is not None and is_ours(node, act)
        if act.stage in ("decided", "failed") and is_out:
            return "done", "the scheduler shows it"
        if act.stage == "done" and taken_by == act and not is_out and told.nodes:
            if node is None:
                return "over", "the scheduler no longer knows it"
            why = f"it is out for: {node.reason}" if node.is_out else "it was restored by others"
            return "over", why
    if act.stage == "decided":
        if act.action == "restore" and taken_by is not None and node is not None and not node.is_out:
            return "done", "the scheduler shows it"
        return "failed", RESULT_UNKNOWN
    return None


def _brought(went_on: float, own: float) -> str:
    saved = went_on - own
    word = "saved" if saved >= 0 else "cost"
    return (
        f"would have {word} {wording.rough(round(abs(saved), 1))} GPU-hours: going on lost "
        f"{wording.rough(round(went_on, 1))}, the action takes {wording.rough(round(own, 1))}"
    )


def reset_breaker(store: Store, now_ns: int, token: str, reason: str) -> bool:
    """Let control act again, on a person's order. Returns whether the breaker had tripped."""
    history = ControlHistory(store.select(Selection(kinds=KINDS)))
    if history.tripped_ns is None:
        return False
    identity = event_id(token, 0)
    store.ingest(
        [BreakerChanged(id=identity, occurred_ns=now_ns, recorded_ns=now_ns, tripped=False, reason=reason)]
    )
    return True


def _standing(cluster: ClusterView, policy: ControlPolicy) -> str:
    what = wording.many(len(cluster.incidents), "open incident")
    where = f"{wording.many(len(cluster.runs), 'run')} on {wording.many(len(cluster.nodes), 'node')}"
    return f"{what}, {where}" + ("" if policy.is_acting else " (in shadow: actions are only announced)")


def acts_in(store: Store) -> Iterator[Act]:
    """All acts, also those in shadow mode, the newest first."""
    history = ControlHistory(store.select(Selection(kinds=KINDS)))
    return reversed(history.acts.values())
