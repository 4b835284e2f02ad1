"""A simulated cluster under control: random incidents, restarts, crashes and people who act by themselves.
In most sequences a run is there that moves lanes and members when it is asked to.

The loop and all decisions are those of the product; the store, the machines and the clock are here. Every
action is held against the rules at the moment at which it reaches the machines.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

import msgspec

from holdfast.control.actions import ACTIONS, HARMLESS, LESS, TAKES_OUT, ControlAction
from holdfast.control.cluster import NodeView
from holdfast.control.controlling import Controlling, ControlSetting, reset_breaker
from holdfast.control.history import KINDS
from holdfast.control.policy import Bound, BreakerBound, Budget, ControlPolicy, RulePolicy, SiteCommands
from holdfast.control.seeing import ActionOrder, Answered, MachinesView
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import diagnosis
from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.record.errors import HoldfastError
from holdfast.record.events import (
    AnyEvent,
    BreakerChanged,
    GenerationOpened,
    IncidentDiagnosed,
    IncidentState,
    MemberJoined,
    MemberLost,
    RunStarted,
    kind_of,
)
from holdfast.record.store import EVERYTHING, NO_MARKS, Ingested, Selection
from holdfast.wording.units import DAY_NS, HOUR_NS, MINUTE_NS, SECOND_NS

START_NS = 1_800_000_000 * SECOND_NS
RUN = "run"
ELASTIC_SHARE = 0.6
"""Of the sequences, in which the run can be asked to move."""
RULES = ("gpu-throttle", "gpu-fault", "slow-node", "memory-errors")
SHADOW_RULE = "memory-errors"
POLICY = ControlPolicy(
    mode="act",
    out=Bound(nodes=3, percent=20),
    breaker=BreakerBound(nodes=4, percent=30),
    budgets={
        "drain-when-done": Budget(nodes=2, percent=50, per_day=6),
        "drain-now": Budget(nodes=1, percent=50, per_day=3),
        "shrink": Budget(nodes=1, percent=50, per_day=2),
        "migrate": Budget(nodes=2, percent=50, per_day=4),
        "rebalance": Budget(per_day=6),
        "reboot": Budget(per_day=3),
    },
    rules={
        SHADOW_RULE: RulePolicy(mode="shadow"),
        "slow-node": RulePolicy(never=("drain-now",)),
        "gpu-throttle": RulePolicy(never=("drain-now", "migrate")),
    },
    commands=SiteCommands(check="check {node}", reboot="reboot {node}"),
)


class Killed(BaseException):
    """The process was killed in the middle of an action."""


class Broken(BaseException):
    """A rule was broken by an action."""


class MemoryStore:
    """All that control asks of a store."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self._ids: set[str] = set()

    def ingest(self, events: Iterable[AnyEvent], *, marks: Any = NO_MARKS) -> Ingested:
        new = [event for event in events if event.id not in self._ids]
        self.events += new
        self._ids |= {event.id for event in new}
        return Ingested(new=len(new), known=0, conflicting=0)

    def select(self, selection: Selection = EVERYTHING, *, limit: int | None = None) -> Iterator[AnyEvent]:
        return (event for _, event in self.since(0, selection))

    def since(self, cursor: int, selection: Selection = EVERYTHING) -> Iterator[tuple[int, AnyEvent]]:
        for place, event in enumerate(self.events[cursor:], cursor + 1):
            is_kind = not selection.kinds or kind_of(event) in selection.kinds
            if is_kind and selection.run in (None, event.run):
                yield place, event

    def end(self) -> int:
        return len(self.events)

    def marks(self) -> dict[str, int]:
        return {}

    def runs(self) -> list[Any]:
        return []

    def close(self) -> None: ...

    def __enter__(self) -> "MemoryStore":
        return self

    def __exit__(self, *_: object) -> None: ...


class Inline(Executor):
    """Does at once what it is given; a kill goes through to whoever asked."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class ElasticRun:
    """A run that goes on without a node, or moves to a spare. tell: puts what it records into the store."""

    def __init__(self, nodes: list[str], spares: int, tell: Callable[[AnyEvent], None]) -> None:
        self._tell = tell
        self._told = 0
        self._joined: dict[str, str] = {}
        self.now_ns = START_NS
        self._write(RunStarted)
        for node in nodes:
            self._join(node)
        self.nodes, self.spares = nodes[spares:], nodes[:spares]
        self._open()

    def _write(self, kind: Callable[..., AnyEvent], **fields: Any) -> None:
        self._told += 1
        self._tell(kind(id=f"run{self._told}", occurred_ns=self.now_ns, run=RUN, **fields))

    def _join(self, node: str) -> None:
        self._joined[node] = f"{node}.0+{self._told}"
        self._write(MemberJoined, subject=self._joined[node], node=node, gpus=8)

    def _open(self) -> None:
        self._write(GenerationOpened, members=tuple(self._joined[node] for node in self.nodes))

    def leaves(self, node: str) -> bool:
        if node not in self.nodes or len(self.nodes) < 2:
            return False
        self.nodes.remove(node)
        self._write(MemberLost, subject=self._joined.pop(node))
        self._open()
        return True

    def moves(self, node: str) -> bool:
        if node not in self.nodes or not self.spares:
            return False
        self.nodes.append(self.spares.pop())
        return self.leaves(node)

    def comes(self, node: str) -> None:
        """Back, or a new one."""
        if node not in self._joined:
            self._join(node)
            self.nodes.append(node)
            self._open()

    def waits(self, node: str) -> None:
        """As a spare."""
        if node not in self._joined:
            self._join(node)
            self.spares.append(node)


class SimulatedMachines:
    """The cluster. rules: what every action is held against, whatever control believes it may do.

    ours: nodes that we took out; without: those that the run goes on without because of us.
    """

    def __init__(self, random: Random, rules: ControlPolicy) -> None:
        self.random = random
        self.rules = rules
        self.now_ns = START_NS
        count = random.choice((4, 10, 30))
        self.nodes = {f"n{number}": NodeView(name=f"n{number}") for number in range(count)}
        self.ours: dict[str, ControlAction] = {}
        self.without: set[str] = set()
        self.run: ElasticRun | None = None
        self.is_sick: set[str] = set()
        self.is_stopped = False
        self.done: list[tuple[int, ControlAction, str]] = []

    can = frozenset(ACTIONS)

    def look(self, now_ns: int) -> MachinesView:
        if self.random.random() < 0.02:
            raise HoldfastError("The scheduler does not answer.")
        return MachinesView(nodes=dict(self.nodes))

    def reaches(self, run: str) -> bool:
        return self.run is not None and run == RUN

    def set(self, node: str, **fields: Any) -> None:
        self.nodes[node] = msgspec.structs.replace(self.nodes[node], **fields)

    def do(self, order: ActionOrder) -> Answered:
        if self.random.random() < 0.05:
            raise Killed  # before it reached the machines
        self._judge(order)
        answered = self._apply(order)
        if self.random.random() < 0.05:
            raise Killed  # after that, and before it was written down
        if self.random.random() < 0.05:
            raise HoldfastError("It took too long.")
        return answered

    def theirs(self, node: str) -> None:
        """Somebody else has decided about it."""
        self.ours.pop(node, None)
        self.without.discard(node)

    def _apply(self, order: ActionOrder) -> Answered:
        action, node = order.decision.action, order.decision.target
        self.done.append((self.now_ns, action, node))
        if action in TAKES_OUT:
            self.set(node, is_out=True, reason=order.reason)
            self.ours[node] = action
            self.without.discard(node)  # the drain has it now
            if action == "drain-now" and self.run is not None:
                self.run.leaves(node)
        elif action == "migrate":
            is_moved = self.run is not None and self.run.moves(node)
            return Answered(ok=is_moved, outcome="moved" if is_moved else "no spare is ready")
        elif action == "shrink":
            is_left = self.run is not None and self.run.leaves(node)
            self.without |= {node} if is_left else set()
            return Answered(ok=is_left, outcome="left" if is_left else "it is the last one")
        elif action == "reboot":
            self.set(node, since_ns=self.now_ns)
            if self.random.random() < 0.5:
                self.is_sick.discard(node)
        elif action == "restore":
            if node in self.is_sick:
                return Answered(ok=False, outcome="gpu0.product 12 TFLOP/s, wanted 500")
            self.set(node, is_out=False, reason="")
            self.theirs(node)
            if self.run is not None and self.random.random() < 0.7:
                self.random.choice((self.run.comes, self.run.waits))(node)
        return Answered(ok=True, outcome="done")

    def _judge(self, order: ActionOrder) -> None:
        action, target = order.decision.action, order.decision.target
        node = self.nodes[target]
        self._require(order.decision.mode == "act" and order.decision.rule != SHADOW_RULE, "shadow", order)
        self._require(not self.is_stopped, "the breaker has tripped", order)
        self._require(not node.maintenance, "maintenance", order)
        if action in TAKES_OUT:
            self._require(not node.is_out, "it is out already", order)
        if action in LESS:
            most = self.rules.out.of(len(self.nodes))
            less = (self.ours.keys() | self.without) - {target}
            self._require(len(less) < most, f"more than {most} nodes out", order)
            own = [*self.ours.values()].count(action) if action in TAKES_OUT else len(self.without)
            self._require(own < self.rules.budget(action).of(len(self.nodes)), "the action's budget", order)
        if action in ("migrate", "shrink"):
            self._require(not node.is_out or target in self.ours, "somebody else took it out", order)
            is_there = self.run is not None and target in self.run.nodes
            self._require(is_there, "the run is not on it", order)
        if action in ("restore", "reboot"):
            self._require(node.is_out and target in self.ours, "it is not out by us", order)
        day = [one for at_ns, one, _ in self.done if at_ns > self.now_ns - DAY_NS]
        self._require(day.count(action) < self.rules.budget(action).per_day, "the day's budget", order)
        hour = [one for at_ns, one, node in self.done if node == target and at_ns > self.now_ns - HOUR_NS]
        felt = [one for one in hour if one not in HARMLESS]
        most = round(60 / POLICY.waits.cool_down_min)
        self._require(action in HARMLESS or len(felt) < most, "flapping", order)
        self._require(len(hour) < 3 * most, "flapping", order)

    def _require(self, holds: bool, rule: str, order: ActionOrder) -> None:
        if not holds:
            raise Broken(f"{order.decision.action} {order.decision.target}: {rule}")


class Simulation:
    """One sequence. policy: what control believes it may do; rules: what it may; forgets: it does not know
    what it did before.
    """

    def __init__(
        self,
        seed: int,
        sample: Incident,
        *,
        policy: ControlPolicy = POLICY,
        rules: ControlPolicy = POLICY,
        forgets: bool = False,
        machines: type[SimulatedMachines] = SimulatedMachines,
    ) -> None:
        self.random = Random(seed)
        self.sample = sample
        self.policy = policy
        self.forgets = forgets
        self.machines = machines(self.random, rules)
        self.store = MemoryStore()
        if self.random.random() < ELASTIC_SHARE:
            nodes = [*self.machines.nodes][: self.random.choice((3, 8))]
            spares = self.random.choice((0, 1, 2)) if len(nodes) > 3 else 0
            self.machines.run = ElasticRun(nodes, spares, lambda event: self._recorded(event))
        self.open: dict[str, Incident] = {}
        self.starts = 0
        self.told = 0
        self._start()

    def _recorded(self, event: AnyEvent) -> None:
        self.store.ingest([event])

    def _start(self) -> None:
        self.starts += 1
        if self.forgets:
            mine = [event for event in self.store.events if kind_of(event) not in KINDS]
            self.store = MemoryStore()
            self.store.ingest(mine)
        self.control = Controlling(
            ControlSetting(
                store=self.store,
                machines=self.machines,
                policy=self.policy,
                prices=DEFAULTS,
                token=f"s{self.starts}",
                is_leading=lambda: True,
                take_in=lambda: None,
                say=lambda sentence: None,
            ),
            Inline(),
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.machines.now_ns += round(self.random.choice((0.2, 1, 5, 20, 120)) * MINUTE_NS)
            if self.machines.run is not None:
                self.machines.run.now_ns = self.machines.now_ns
            for _ in range(self.random.randrange(3)):
                self._happens()
            self._turn()

    def _turn(self) -> None:
        try:
            self.control.turn(self.machines.now_ns)
        except HoldfastError:
            pass
        except Killed:
            self._start()
        trips = (event for event in reversed(self.store.events) if isinstance(event, BreakerChanged))
        self.machines.is_stopped = next((event.tripped for event in trips), False)

    def _happens(self) -> None:
        node = self.random.choice([*self.machines.nodes])
        what = self.random.choices(
            [
                self._opens,
                self._closes,
                self._many_open,
                self._person_drains,
                self._person_annotates,
                self._person_restores,
                self._imaged,
                self._maintained,
                self._restarted,
                self._reset,
                self._comes,
                self._is_lost,
            ],
            [8, 4, 0.5, 2, 1, 2, 1, 1, 1, 1, 1, 0.5],
        )[0]
        what(node)

    def _tell(self, incident: Incident, state: IncidentState) -> None:
        self.told += 1
        self.store.ingest(
            [
                IncidentDiagnosed(
                    id=f"i{self.told}",
                    occurred_ns=self.machines.now_ns,
                    run=incident.run,
                    incident=incident.name,
                    state=state,
                    diagnosis=diagnosis(incident),
                )
            ]
        )

    def _opens(self, node: str) -> None:
        self._closes(node)
        now_ns, run = self.machines.now_ns, self.random.choice(("cluster", RUN))
        cause = msgspec.structs.replace(
            self.sample.cause, subject=f"{node}.0", kind="gpu", mechanism=self.random.choice(RULES)
        )
        incident = msgspec.structs.replace(
            self.sample,
            name=f"{run}/{node}",
            run=run,
            verdict="cause",
            cause=cause,
            path=(cause.subject, node),
            confidence=self.random.choice((0.3, 0.7, 0.95)),
            quality=self.random.choice((0.3, 1.0, 1.0)),
            began_ns=now_ns - MINUTE_NS,
            noticed_ns=now_ns,
            slowdown=self.random.choice((1.0, 1.2, 3.0)),
            cost=None,
            evidence=(),
        )
        self.open[node] = incident
        self.machines.is_sick |= {node} if self.random.random() < 0.7 else set()
        self._tell(incident, "open")

    def _many_open(self, _: str) -> None:
        for node in self.random.sample([*self.machines.nodes], len(self.machines.nodes) * 2 // 3):
            self._opens(node)

    def _closes(self, node: str) -> None:
        if (incident := self.open.pop(node, None)) is not None:
            self.machines.is_sick -= {node} if self.random.random() < 0.5 else set()
            self._tell(incident, "resolved")

    def _person_drains(self, node: str) -> None:
        """One that is free, or ours, which then is theirs."""
        self.machines.set(
            node, is_out=True, reason=self.random.choice(("fan, jane", "", "holdfast is wrong"))
        )
        self.machines.theirs(node)

    def _person_annotates(self, node: str) -> None:
        """A word more in the reason, and the node is theirs."""
        if self.machines.nodes[node].is_out:
            self.machines.set(node, reason=f"{self.machines.nodes[node].reason}; wait, jane")
            self.machines.theirs(node)

    def _person_restores(self, node: str) -> None:
        self.machines.set(node, is_out=False, reason="")
        self.machines.theirs(node)

    def _comes(self, node: str) -> None:
        """A person gives the run a node, or one back to it."""
        if self.machines.run is not None and not self.machines.nodes[node].is_out:
            self.random.choice((self.machines.run.comes, self.machines.run.waits))(node)
            self.machines.without.discard(node)

    def _is_lost(self, node: str) -> None:
        """The run loses a node by itself."""
        if self.machines.run is not None:
            self.machines.run.leaves(node)

    def _imaged(self, node: str) -> None:
        self.machines.set(node, since_ns=self.machines.now_ns)

    def _maintained(self, node: str) -> None:
        self.machines.set(node, maintenance="" if self.machines.nodes[node].maintenance else "firmware")

    def _restarted(self, _: str) -> None:
        self._start()

    def _reset(self, _: str) -> None:
        reset_breaker(self.store, self.machines.now_ns, f"r{self.machines.now_ns}-{self.told}", "jane")
        self.machines.is_stopped = False


class Forgiving(SimulatedMachines):
    """A broken rule: a node that somebody else has taken over still looks as we left it."""

    def look(self, now_ns: int) -> MachinesView:
        nodes = super().look(now_ns).nodes
        return MachinesView(
            nodes={
                name: msgspec.structs.replace(node, reason=self.written[name])
                if node.is_out and name in self.written
                else node
                for name, node in nodes.items()
            }
        )

    def _apply(self, order: ActionOrder) -> Answered:
        self.written = {**self.written, order.decision.target: order.reason}
        return super()._apply(order)

    written: Mapping[str, str] = {}


class Blind(SimulatedMachines):
    """A broken rule: nobody's reason counts, what others took out looks like any other node."""

    def look(self, now_ns: int) -> MachinesView:
        nodes = super().look(now_ns).nodes
        return MachinesView(
            nodes={
                name: node if name in self.ours else msgspec.structs.replace(node, is_out=False, reason="")
                for name, node in nodes.items()
            }
        )
