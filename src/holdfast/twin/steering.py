"""Simulate a job on a cluster with gray failures, under one way to act on them.

The failures, the detectors' alarms and the repair times are the same for every way; only the actions differ.
`control` is the production code: the same `decisions` on the same views, with its history folded from the
same events. The simulation jumps from one event to the next.

There is one synchronous job, on all nodes but the spares. Without elasticity it goes as fast as its slowest
node, stops for every change, and goes back to its last checkpoint. An elastic job moves lanes off slow
replicas by itself, stops for seconds, and loses nothing.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import msgspec
import numpy as np

from holdfast.control.actions import LESS, TAKES_OUT, ControlAction
from holdfast.control.cluster import ClusterView, NodeView, RunView
from holdfast.control.deciding import (
    decisions,
    drain_reason,
    is_ours,
    looks_like_a_bad_detector,
)
from holdfast.control.decision import ControlDecision
from holdfast.control.history import Act, ControlHistory
from holdfast.control.policy import ControlPolicy, Times
from holdfast.diagnose.incident import Cause, Incident
from holdfast.record.events import BreakerChanged, ControlActed, ControlStage
from holdfast.twin.agenda import Agenda
from holdfast.twin.failures import Failure, draw
from holdfast.twin.gray import (
    MECHANISMS,
    MINDER,
    PASSING_H,
    PASSING_SIGMA,
    PRESET,
    REPAIR_H,
    SLOWDOWNS,
    AilmentKind,
    DetectorModel,
    gray_hazards,
    kind_of_ailment,
)
from holdfast.twin.policies import cold_s, group_s
from holdfast.twin.presets import preset, resized
from holdfast.twin.study import START_NS
from holdfast.wording.units import DAY_NS, HOUR_NS, MINUTE_NS, SECOND_NS

Way = Literal["none", "first-error", "sure-error", "shadow", "control"]
"""none: people find the node after a day. first-error: a node that a detector names is drained at once.
sure-error: only if the detector is 80 % sure, three minutes later. shadow, control: `holdfast control`.
"""

RUN = "pretrain"
PEOPLE_H = 24.0
"""How long people take to find a failure that nothing reports; the same as control's own horizon."""
CORRUPT_H = 6.0
"""How long until a loss curve shows wrong numbers; assumed."""
CALLED_H = 1.0
CHECK_H = 0.1
REBOOT_H = 0.25
REBOOT_MENDS = 0.3
"""The share of nodes failing their check that a reboot repairs; assumed."""
CRASH_S = 90.0
"""To see a crash and find its node, as under the twin's policy `restart`."""
RESET_H = 4.0
"""Until a person resets a tripped breaker; assumed."""
NO_SLOWDOWN = 1e9
"""The slowdown of a run whose numbers are wrong: none of its steps is useful."""
SURE, SURE_MIN = 0.8, 3
ALARM_LOOKS = (0.0, 3.1, 10.1, 60.0)
ACT_LOOKS = (15.1, 60.0)
LOOK_NS = 10 * SECOND_NS
"""ALARM_LOOKS, ACT_LOOKS: minutes after an alarm or an action at which control looks, as its waits are over
then. Looks are rounded up to a multiple of LOOK_NS."""


class BadDetector(msgspec.Struct, frozen=True, kw_only=True):
    """False alarms with high confidence: on `nodes` nodes, one every `every_min` minutes, from `day` on."""

    nodes: int
    every_min: float
    day: float = 5.0
    lasts_h: float = 6.0
    confidence: float = 0.95
    slowdown: float = 1.3


class SteeringStudy(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated cluster. spares: nodes in addition to the job's."""

    gpus: int = 16_384
    spares: int = 32
    days: float = 54.0
    is_elastic: bool = False
    detector: DetectorModel = MINDER
    bad: tuple[BadDetector, ...] = ()


class SteeringFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one way.

    useful_gpu_hours  the job's computation that was kept
    drains            nodes that it took out, or that the run left; false_drains: healthy ones among them
    out_max           the most nodes that it had out at once
    trips             how often the breaker tripped
    calls             how often people were called
    would_save        GPU-hours that shadow's actions would have saved, by its own estimate
    looks             how often it examined the cluster
    """

    way: Way
    seed: int
    useful_gpu_hours: float
    paid_gpu_hours: float
    drains: int
    false_drains: int
    out_max: int
    trips: int
    calls: int
    would_save: float
    looks: int


class Ailment(msgspec.Struct, kw_only=True):
    """A gray failure of a node. done: the job's work when it began to do harm; None: no harm yet.
    is_missed: no detector reports it.
    """

    node: str
    kind: AilmentKind
    slowdown: float
    began_ns: int
    repair_ns: int
    done: float | None = None
    is_missed: bool = False


class RaisedAlarm(msgspec.Struct, kw_only=True):
    """A detector's alarm. ailment: its cause; None: a false alarm."""

    incident: Incident
    ailment: Ailment | None

    @property
    def node(self) -> str:
        return self.incident.cause.subject


def steer(study: SteeringStudy, way: Way, seed: int, policy: ControlPolicy | None = None) -> SteeringFigures:
    """Simulate to the end. The same seed gives the same failures under every way."""
    return _Steered(study, way, seed, policy or steering_policy()).play()


def steering_policy() -> ControlPolicy:
    """Control's defaults, with the published restart time."""
    return ControlPolicy(mode="act", scheduler="slurm", times=Times(restart_h=_restart_s() / 3_600))


def _restart_s(gpus: int = 16_384) -> float:
    return cold_s(gpus) + preset(PRESET).job.checkpointing.restore_s


class _Steered:
    """One run of the job. Times are nanoseconds from its beginning, work is GPU-nanoseconds."""

    def __init__(self, study: SteeringStudy, way: Way, seed: int, policy: ControlPolicy) -> None:
        self.study, self.way, self.policy = study, way, policy
        if way == "shadow":
            self.policy = msgspec.structs.replace(policy, mode="shadow")
        usual = preset(PRESET)
        self.preset = usual if study.gpus == usual.job.gpus else resized(usual, study.gpus)
        self.node_gpus = self.preset.layout.gpus_per_node
        self.end_ns = round(study.days * DAY_NS)
        self.agenda = Agenda()
        self.rng = np.random.default_rng([seed, 1])  # failures have their own generator
        places = self.preset.layout.nodes
        names = [f"n{number}" for number in range(places + study.spares)]
        self.nodes = {name: NodeView(name=name, gpus=self.node_gpus) for name in names}
        self.members = dict.fromkeys(names[:places])
        self.free = dict.fromkeys(names[places:])
        self.places = places
        self.ailments: dict[str, Ailment] = {}
        self.alarms: dict[str, RaisedAlarm] = {}
        self.incidents: dict[str, Incident] = {}  # all that were ever raised
        self._planned: set[int] = set()  # times of planned looks
        self.history = ControlHistory()
        self._run: RunView | None = None
        self._numbers = iter(range(1 << 40))
        self.now_ns = self.up_ns = self.saved_ns = 0
        self.done = 0.0
        self.is_waiting = False
        self.drains = self.false_drains = self.out_max = self.trips = self.calls = self.looks = 0
        self.would_save = 0.0
        self._plan_failures(seed)

    def play(self) -> SteeringFigures:
        while (at_ns := self.agenda.next_ns) is not None and at_ns < self.end_ns:
            at_ns, happens = self.agenda.pop()
            self._advance(at_ns)
            happens(at_ns)
        self._advance(self.end_ns)
        return SteeringFigures(
            way=self.way,
            seed=self.seed,
            useful_gpu_hours=self.done / HOUR_NS,
            paid_gpu_hours=len(self.nodes) * self.node_gpus * self.end_ns / HOUR_NS,
            drains=self.drains,
            false_drains=self.false_drains,
            out_max=self.out_max,
            trips=self.trips,
            calls=self.calls,
            would_save=self.would_save,
            looks=self.looks,
        )

    # ---- failures ----------------------------------------------------------------------------------------

    def _plan_failures(self, seed: int) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        layout = msgspec.structs.replace(self.preset.layout, gpus=len(self.nodes) * self.node_gpus)
        for failure in draw(gray_hazards(), layout, self.end_ns, rng):
            if failure.kind == "gray":
                self._plan_ailment(failure, rng)
            else:
                self.agenda.plan(failure.at_ns, partial(self._crash, failure))
        detector = self.study.detector
        for at in rng.random(rng.poisson(detector.false_per_day * self.study.days)):
            self._plan_false_alarm(round(at * self.end_ns), rng)
        for bad in self.study.bad:
            for number, place in enumerate(rng.permutation(self.places)[: bad.nodes]):
                at_ns = round(bad.day * DAY_NS + number * bad.every_min * MINUTE_NS)
                node, sure = f"n{place}", bad.confidence
                self.agenda.plan(
                    at_ns, partial(self._cry_wolf, node, sure, bad.slowdown, round(bad.lasts_h * HOUR_NS))
                )

    def _plan_ailment(self, failure: Failure, rng: np.random.Generator) -> None:
        kind = kind_of_ailment(failure.row)
        ailment = Ailment(
            node=f"n{failure.node}",
            kind=kind,
            slowdown=float(rng.uniform(*SLOWDOWNS[kind])),
            began_ns=failure.at_ns,
            repair_ns=failure.repair_ns or round(REPAIR_H * HOUR_NS),
            is_missed=bool(rng.random() > self.study.detector.recall),
        )
        passes_h = PASSING_H * np.exp(PASSING_SIGMA * rng.standard_normal())
        self.agenda.plan(failure.at_ns, partial(self._fall_ill, ailment))
        if failure.is_transient and kind != "corrupt":
            self.agenda.plan(failure.at_ns + round(passes_h * HOUR_NS), partial(self._recover, ailment))

    def _plan_false_alarm(self, at_ns: int, rng: np.random.Generator) -> None:
        node = f"n{rng.integers(self.places)}"
        sure = self.study.detector.confidence(is_right=False, rng=rng)
        lasts_ns = round(rng.exponential(self.study.detector.false_h) * HOUR_NS)
        slowdown = float(rng.uniform(*SLOWDOWNS["throttle"]))
        self.agenda.plan(at_ns, partial(self._cry_wolf, node, sure, slowdown, lasts_ns))

    def _crash(self, failure: Failure, now_ns: int) -> None:
        """The job stops. Broken machines go to repair under every way; only gray failures differ."""
        struck = [f"n{number}" for number in range(failure.node, failure.node + failure.nodes)]
        hit = [name for name in struck if name in self.members]
        for name in struck:
            if not failure.is_transient and not self.nodes[name].is_out:
                self._take_out(name, "down", now_ns)
                self.agenda.plan(now_ns + failure.repair_ns, partial(self._come_back, name))
        if hit:
            self._stop(now_ns, seen_s=CRASH_S)

    def _fall_ill(self, ailment: Ailment, now_ns: int) -> None:
        if ailment.node not in self.ailments and not self.nodes[ailment.node].is_out:
            self.ailments[ailment.node] = ailment
            self._mind_ailments(now_ns)

    def _recover(self, ailment: Ailment, now_ns: int) -> None:
        if self.ailments.get(ailment.node) is ailment:
            del self.ailments[ailment.node]
            self._close_alarms(now_ns)

    def _mind_ailments(self, now_ns: int) -> None:
        """For ailments that begin to do harm, plan when a detector reports them or people find them."""
        for ailment in self.ailments.values():
            if ailment.done is None and ailment.node in self.members:
                ailment.done, ailment.began_ns = self.done, now_ns
                found_h = CORRUPT_H if ailment.kind == "corrupt" else PEOPLE_H
                self.agenda.plan(now_ns + round(found_h * HOUR_NS), partial(self._people_find, ailment))
                self._plan_notice(ailment, now_ns)

    def _plan_notice(self, ailment: Ailment, now_ns: int) -> None:
        if not ailment.is_missed and self.way != "none":
            self.agenda.plan(
                now_ns + round(self.study.detector.notice_s * SECOND_NS), partial(self._notice, ailment)
            )

    def _people_find(self, ailment: Ailment, now_ns: int) -> None:
        if self.ailments.get(ailment.node) is ailment and ailment.node in self.members:
            self._to_workshop(ailment.node, now_ns)

    def _to_workshop(self, node: str, now_ns: int, by: str = "person") -> None:
        """Take the node out. A sick node is repaired; a healthy one returns after its check."""
        repair_ns = self.ailments[node].repair_ns if node in self.ailments else round(CHECK_H * HOUR_NS)
        self._remove(node, by, now_ns)
        self.agenda.plan(now_ns + repair_ns, partial(self._come_back, node))

    # ---- the job -----------------------------------------------------------------------------------------

    @property
    def pace(self) -> float:
        """The work per time, in healthy GPUs."""
        factors = [one.slowdown for one in self.ailments.values() if one.node in self.members]
        gpus = len(self.members) * self.node_gpus
        if not self.study.is_elastic:
            return gpus / max(factors, default=1.0)
        lost = sum(1 - 1 / factor for factor in factors) * self.preset.job.member_gpus
        return max(0.0, gpus - lost)

    def _advance(self, to_ns: int) -> None:
        begin_ns = max(self.now_ns, self.up_ns)
        if not self.is_waiting and to_ns > begin_ns:
            self.done += self.pace * (to_ns - begin_ns)
            interval_ns = round(self.preset.job.checkpointing.interval_s * SECOND_NS)
            self.saved_ns += (to_ns - self.saved_ns) // interval_ns * interval_ns
        self.now_ns = to_ns

    def _stop(self, now_ns: int, *, seen_s: float = 0.0) -> None:
        """The job loses or gains nodes, and continues after a while."""
        if self.study.is_elastic:
            self._fill()
            self.up_ns = max(self.up_ns, now_ns) + round(group_s(self.study.gpus) * SECOND_NS)
            self._mind_ailments(now_ns)
            return
        if not self.is_waiting and now_ns > self.up_ns:
            self.done -= self.pace * (now_ns - max(self.saved_ns, self.up_ns))
        self._fill()
        self.is_waiting = len(self.members) < self.places
        self.up_ns = now_ns + round((seen_s + _restart_s(self.study.gpus)) * SECOND_NS)
        self.saved_ns = self.up_ns
        self._mind_ailments(now_ns)
        self._close_alarms(now_ns)

    def _fill(self) -> None:
        while len(self.members) < self.places and self.free:
            name = next(iter(self.free))
            del self.free[name]
            self.members[name] = None
        self._run = None

    def _forget_wrong_work(self, ailment: Ailment) -> None:
        """Discard all work since a node began to compute wrong numbers."""
        if ailment.kind == "corrupt" and ailment.done is not None:
            self.done = min(self.done, ailment.done)
            for other in self.ailments.values():
                other.done = None if other.done is None else min(other.done, self.done)

    # ---- machines ----------------------------------------------------------------------------------------

    def _take_out(self, node: str, reason: str, now_ns: int) -> None:
        """Take the node out and discard its wrong work. The job does not stop yet."""
        if node in self.members and (ailment := self.ailments.get(node)) is not None:
            self._forget_wrong_work(ailment)
            ailment.done = None
        self.members.pop(node, None)
        self.free.pop(node, None)
        self._run = None
        self.nodes[node] = msgspec.structs.replace(self.nodes[node], is_out=True, reason=reason)

    def _remove(self, node: str, reason: str, now_ns: int) -> None:
        was_member = node in self.members
        self._take_out(node, reason, now_ns)
        if was_member:
            self._stop(now_ns)
        self._close_alarms(now_ns)

    def _come_back(self, node: str, now_ns: int) -> None:
        """People repaired the node."""
        self.ailments.pop(node, None)
        self._put_back(node, now_ns)

    def _put_back(self, node: str, now_ns: int) -> None:
        self.nodes[node] = msgspec.structs.replace(self.nodes[node], is_out=False, reason="")
        self.free[node] = None
        if self.is_waiting or (self.study.is_elastic and len(self.members) < self.places):
            self._stop(now_ns)
        self._settle(now_ns)

    # ---- alarms ------------------------------------------------------------------------------------------

    def _notice(self, ailment: Ailment, now_ns: int) -> None:
        is_told = any(alarm.ailment is ailment for alarm in self.alarms.values())
        if self.ailments.get(ailment.node) is not ailment or ailment.node not in self.members or is_told:
            return
        is_right = bool(self.rng.random() < self.study.detector.precision)
        others = [name for name in self.members if name != ailment.node]
        node = ailment.node if is_right else others[int(self.rng.integers(len(others)))]
        sure = self.study.detector.confidence(is_right=is_right, rng=self.rng)
        slowdown = NO_SLOWDOWN
        if ailment.kind != "corrupt":
            slowdown = len(self.members) * self.node_gpus / max(1.0, self.pace)
        self._raise(node, MECHANISMS[ailment.kind], sure, slowdown, ailment, now_ns)

    def _cry_wolf(self, node: str, sure: float, slowdown: float, lasts_ns: int, now_ns: int) -> None:
        if node in self.members and self.way != "none":
            name = self._raise(node, MECHANISMS["throttle"], sure, slowdown, None, now_ns)
            self.agenda.plan(now_ns + lasts_ns, partial(self._close, name))

    def _raise(
        self, node: str, mechanism: str, sure: float, slowdown: float, ailment: Ailment | None, now_ns: int
    ) -> str:
        name = f"{RUN}/s{next(self._numbers)}"
        at_ns = START_NS + now_ns
        began_ns = at_ns if ailment is None else START_NS + ailment.began_ns
        incident = _incident(name, node, mechanism, sure, slowdown, began_ns, at_ns)
        self.incidents[name] = incident
        self.alarms[name] = RaisedAlarm(incident=incident, ailment=ailment)
        if self.way == "first-error":
            self._rule_drains(name, now_ns)
        elif self.way == "sure-error" and sure >= SURE:
            self.agenda.plan(now_ns + SURE_MIN * MINUTE_NS, partial(self._rule_drains, name))
        self._look_later(now_ns, ALARM_LOOKS)
        return name

    def _close(self, name: str, now_ns: int) -> None:
        if self.alarms.pop(name, None) is not None and self.way == "shadow":
            self._judge_shadow(now_ns)

    def _close_alarms(self, now_ns: int) -> None:
        """Close alarms on nodes that left the job or about ailments that ended. Others are noticed again."""
        for name, alarm in list(self.alarms.items()):
            ailment = alarm.ailment
            is_over = ailment is not None and self.ailments.get(ailment.node) is not ailment
            if is_over or alarm.node not in self.members:
                self._close(name, now_ns)
                if not is_over and ailment is not None and ailment.node in self.members:
                    self._plan_notice(ailment, now_ns)

    # ---- actions -----------------------------------------------------------------------------------------

    def _rule_drains(self, name: str, now_ns: int) -> None:
        """Drain by a fixed rule."""
        alarm = self.alarms.get(name)
        if alarm is None or alarm.node not in self.members:
            return
        self._count_drain(alarm.node)
        self._to_workshop(alarm.node, now_ns, by="rule")
        self._count_out("rule")

    def _count_drain(self, node: str) -> None:
        self.drains += 1
        self.false_drains += node not in self.ailments

    def _count_out(self, prefix: str) -> None:
        out = sum(node.is_out and node.reason.startswith(prefix) for node in self.nodes.values())
        self.out_max = max(self.out_max, out)

    def _look_later(self, now_ns: int, minutes: tuple[float, ...] = ACT_LOOKS) -> None:
        for at in minutes if self.way in ("shadow", "control") else ():
            at_ns = -(-(now_ns + round(at * MINUTE_NS)) // LOOK_NS) * LOOK_NS
            if at_ns not in self._planned:
                self._planned.add(at_ns)
                self.agenda.plan(at_ns, self._look)

    def _look(self, now_ns: int) -> None:
        self._planned.discard(now_ns)
        if not self.alarms and not self.history.out and not self.history.left:
            return
        self.looks += 1
        cluster = self._view()
        at_ns = START_NS + now_ns
        if self.history.tripped_ns is None and (
            why := looks_like_a_bad_detector(at_ns, cluster, self.policy)
        ):
            self._breaker(now_ns, tripped=True, reason=why)
            self.agenda.plan(now_ns + round(RESET_H * HOUR_NS), self._person_resets)
        for decision in decisions(at_ns, cluster, self.policy):
            if decision.action == "watch":
                continue
            if decision.mode == "shadow":
                self._say(decision, now_ns)
                continue
            self._act(decision, now_ns)
            self._look_later(now_ns, (0.0,))  # the view is out of date now
            return

    def _breaker(self, now_ns: int, *, tripped: bool, reason: str) -> None:
        self.trips += tripped
        self.history.take(
            BreakerChanged(id=self._id(), occurred_ns=START_NS + now_ns, tripped=tripped, reason=reason)
        )

    def _person_resets(self, now_ns: int) -> None:
        self._breaker(now_ns, tripped=False, reason="a person looked at it")
        self._look_later(now_ns, (0.0,))

    def _view(self) -> ClusterView:
        if self._run is None:
            self._run = RunView(
                name=RUN,
                gpus=self.study.gpus,
                nodes=frozenset(self.members),
                is_elastic=self.study.is_elastic,
                can_move=self.study.is_elastic,
                spares=len(self.free) if self.study.is_elastic else 0,
                began_ns=START_NS,
            )
        run = msgspec.structs.replace(self._run, saved_ns=START_NS + min(self.saved_ns, self.now_ns))
        return ClusterView(
            nodes=self.nodes,
            runs={RUN: run},
            incidents=(*(alarm.incident for alarm in self.alarms.values()), *self._left_behind()),
            history=self.history,
            can=_CAN | (_MOVES if self.study.is_elastic else frozenset()),
            usd_per_gpu_hour=USD_PER_GPU_HOUR,
            person_usd=PERSON_USD,
        )

    def _left_behind(self) -> Iterator[Incident]:
        """Incidents that are over for the job because it left the node, but not for the node."""
        for act in self.history.left.values():
            for name in act.decision.incidents if act.decision else ():
                if name not in self.alarms:
                    yield self.incidents[name]

    def _act(self, decision: ControlDecision, now_ns: int) -> None:
        node = decision.target
        is_left = node in self.history.left  # if so, it was counted then
        act = self._decided(decision, now_ns)
        if (decision.action in LESS or decision.action == "migrate") and not is_left:
            self._count_drain(node)
        match decision.action:
            case "drain-now" | "drain-when-done" | "shrink" | "migrate":
                takes_out = decision.action in TAKES_OUT
                self._told(act, "done", now_ns)
                self._remove(node, drain_reason(act.name, act.rule) if takes_out else "", now_ns)
                if not takes_out:  # the node idles, still held by the job
                    self.nodes[node] = msgspec.structs.replace(self.nodes[node], is_out=False)
                self._count_out("holdfast")
            case "restore":
                self.agenda.plan(now_ns + round(CHECK_H * HOUR_NS), partial(self._checked, act))
            case "reboot":
                self.agenda.plan(now_ns + round(REBOOT_H * HOUR_NS), partial(self._rebooted, act))
            case "call-a-person":
                self.calls += 1
                self._told(act, "done", now_ns)
                self.agenda.plan(now_ns + round(CALLED_H * HOUR_NS), partial(self._person_comes, act))
            case _:
                self._told(act, "done", now_ns)
        self._look_later(now_ns)

    def _checked(self, act: Act, now_ns: int) -> None:
        is_fine = act.target not in self.ailments
        if not self._has(act.target):
            self._told(act, "failed", now_ns)
            return
        self._told(act, "done" if is_fine else "failed", now_ns)
        if is_fine:
            self._put_back(act.target, now_ns)
        self._look_later(now_ns)

    def _rebooted(self, act: Act, now_ns: int) -> None:
        if self._has(act.target) and self.rng.random() < REBOOT_MENDS:
            self.ailments.pop(act.target, None)
        self._told(act, "done", now_ns)
        self._look_later(now_ns)

    def _has(self, node: str) -> bool:
        taken = self.history.out.get(node)
        return taken is not None and is_ours(self.nodes[node], taken)

    def _person_comes(self, act: Act, now_ns: int) -> None:
        """The person takes out sick nodes, closes false alarms, and repairs what control could not."""
        node = act.target
        if self._has(node):
            repair_ns = self.ailments[node].repair_ns if node in self.ailments else 0
            self.agenda.plan(now_ns + repair_ns, partial(self._come_back, node))
            return
        if node in self.history.left:
            self._to_workshop(node, now_ns)
        names = act.decision.incidents if act.decision else ()
        for name in names:
            alarm = self.alarms.get(name)
            if alarm is not None and alarm.ailment is None:
                self._close(name, now_ns)
            elif alarm is not None and alarm.ailment is not None and alarm.ailment.node in self.members:
                self._to_workshop(alarm.ailment.node, now_ns)

    def _settle(self, now_ns: int) -> None:
        """Nodes that others returned to service are no longer under control's care."""
        for target, act in [*self.history.out.items(), *self.history.left.items()]:
            if not self.nodes[target].is_out and act.stage == "done" and not self._is_under_way(target):
                self._told(act, "over", now_ns)

    def _is_under_way(self, target: str) -> bool:
        return any(act.target == target for act in self.history.under_way)

    # ---- shadow ------------------------------------------------------------------------------------------

    def _say(self, decision: ControlDecision, now_ns: int) -> None:
        standing = self.history.standing(decision.target)
        if standing is None or standing.action != decision.action:
            if standing is not None:
                self._told(standing, "over", now_ns)
            self._decided(decision, now_ns)

    def _judge_shadow(self, now_ns: int) -> None:
        for act in list(self.history.shadows()):
            decision = act.decision
            if decision is not None and not self.alarms.keys() & {*decision.incidents}:
                hours = (START_NS + now_ns - act.at_ns) / HOUR_NS
                self.would_save += decision.rate * hours - decision.own_gpu_hours
                self._told(act, "over", now_ns)

    # ---- its record --------------------------------------------------------------------------------------

    def _id(self) -> str:
        return f"steer-{next(self._numbers)}"

    def _decided(self, decision: ControlDecision, now_ns: int) -> Act:
        event = ControlActed(
            id=self._id(),
            occurred_ns=START_NS + now_ns,
            subject=decision.target,
            action=decision.action,
            stage="decided",
            mode=decision.mode,
            rule=decision.rule,
            decision=msgspec.json.encode(decision).decode(),
        )
        self.history.take(event)
        return self.history.acts[event.id]

    def _told(self, act: Act, stage: ControlStage, now_ns: int) -> None:
        self.history.take(
            ControlActed(
                id=self._id(),
                occurred_ns=START_NS + now_ns,
                subject=act.target,
                causes=(act.name,),
                action=act.action,
                stage=stage,
                mode=act.mode,
                rule=act.rule,
            )
        )


USD_PER_GPU_HOUR = 3.99
PERSON_USD = 700.0
"""The default prices."""
_CAN: frozenset[ControlAction] = frozenset(
    {"watch", "drain-now", "drain-when-done", "restore", "reboot", "call-a-person"}
)
_MOVES: frozenset[ControlAction] = frozenset({"rebalance", "migrate", "shrink"})


def _incident(
    name: str, node: str, mechanism: str, sure: float, slowdown: float, began_ns: int, noticed_ns: int
) -> Incident:
    cause = Cause(subject=node, kind="node", mechanism=mechanism, title=mechanism, domain="gpu", owner="ml")
    return Incident(
        name=name,
        run=RUN,
        verdict="cause",
        cause=cause,
        domain="gpu",
        owner="ml",
        seam="none",
        path=(node, RUN),
        confidence=sure,
        quality=1.0,
        flaws=(),
        began_ns=began_ns,
        noticed_ns=noticed_ns,
        ended_ns=None,
        what="",
        slowdown=slowdown,
        affected=(),
        evidence=(),
        alternatives=(),
        decides="",
        action="",
        runbook="",
        cost=None,
    )
