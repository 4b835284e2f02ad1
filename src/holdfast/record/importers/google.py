"""Events of Google's resiliency tracker (AI-Hypercomputer/resiliency): one JSON object a line, in no order.

Every node reports its own `job_started`, so a launch is a wave of them; checkpoints are reported once. Times
have no zone and are taken as UTC. The GPUs are held from the first event on: nothing in these logs gives them
back.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.record import events
from holdfast.record.importers import intake

KEYS = frozenset({"event_type", "job_name", "timestamp"})
"""The keys every line has, by which the format is recognised."""

GPUS_PER_NODE = 8
"""GPUs of a node unless the user gives another number: the tracker was published for 8-GPU nodes (A3)."""

_SOURCE = "google-resiliency"
_TYPES = (
    "user_scheduled",
    "job_started",
    "checkpoint_loaded",
    "checkpoint_saved",
    "user_terminated",
    "job_terminated",
)
_ORDER = {name: order for order, name in enumerate(_TYPES)}
"""The order of events at the same moment, as in the tracker's own calculator."""

_NUMBER_KEY = {
    "job_started": "node_rank",
    "job_terminated": "node_rank",
    "checkpoint_loaded": "step",
    "checkpoint_saved": "step",
}
_NODE_RANK_MAX = 2**20
_STEP_MAX = 2**53


class _Line(msgspec.Struct, frozen=True, gc=False):
    event_type: str
    job_name: str
    timestamp: str
    node_rank: float | None = None
    step: float | None = None


class _Fact(NamedTuple):
    """A line in sortable form. number: the node's rank or the step, whichever the type has."""

    occurred_ns: int
    order: int
    number: int
    job_name: str


_line = msgspec.json.Decoder(_Line)


def read(lines: intake.Lines, options: intake.Options) -> intake.FileReading:
    """The events of every job in the file, each job a run."""
    runs: dict[str, set[_Fact]] = {}
    for number, content in lines:
        try:
            fact = _fact(_line.decode(content))
        except (ValueError, RecursionError) as error:
            lines.skip(number, intake.reason_of(error))
            continue
        # A set, because two equal lines with the same microsecond are one event that was delivered twice.
        runs.setdefault(options.run or fact.job_name, set()).add(fact)
    found = (event for run, facts in runs.items() for event in _events(run, sorted(facts), options))
    return intake.FileReading("google-resiliency", lines, found)


def _fact(line: _Line) -> _Fact:
    if line.event_type not in _ORDER:
        raise ValueError(f"event_type {line.event_type[:40]!r} is not one of {', '.join(_TYPES)}")
    if not line.job_name:
        raise ValueError("job_name is empty")
    intake.require_name("job_name", line.job_name)
    key = _NUMBER_KEY.get(line.event_type)
    number = 0 if key is None else _whole(key, line.step if key == "step" else line.node_rank)
    return _Fact(intake.time_ns(line.timestamp), _ORDER[line.event_type], number, line.job_name)


def _whole(key: str, value: float | None) -> int:
    """The number under this key. The tracker's path through protobuf turns every number into a float."""
    limit = _STEP_MAX if key == "step" else _NODE_RANK_MAX
    if value is None or not value.is_integer() or not 0 <= value <= limit:
        raise ValueError(f"{key} has to be a whole number from 0 to {limit}, and is {value}")
    return int(value)


def _events(run: str, facts: list[_Fact], options: intake.Options) -> Iterator[events.AnyEvent]:
    node_orders = {_ORDER[name] for name, key in _NUMBER_KEY.items() if key == "node_rank"}
    gpus_per_node = options.gpus_per_node or GPUS_PER_NODE
    nodes = {fact.number for fact in facts if fact.order in node_orders}
    gpus = len(nodes) * gpus_per_node or options.gpus or 0
    yield from intake.declarations(run, facts[0].occurred_ns, options, _SOURCE, gpus=gpus, held=True)
    yield from _Story(run, gpus, gpus_per_node).told(facts)


class _Story:
    """Builds the events of one run from its facts in order of time.

    A launch begins with a `job_started` after any other event, or of a node that this launch has started
    already. It is over when one of its own nodes terminates; a node that terminates late does not affect the
    next launch.
    """

    def __init__(self, run: str, gpus: int, gpus_per_node: int) -> None:
        self._run = run
        self._gpus = gpus
        self._gpus_per_node = gpus_per_node
        self._launch = ("", 0)
        self._launched: set[int] = set()
        self._launching = False
        self._ended = True

    def told(self, facts: Iterable[_Fact]) -> Iterator[events.AnyEvent]:
        for fact in facts:
            match _TYPES[fact.order]:
                case "user_scheduled":
                    yield self._event(events.RunSubmitted, fact, gpus=self._gpus, name=fact.job_name)
                case "job_started":
                    yield from self._node_started(fact)
                case "checkpoint_loaded":
                    yield self._event(events.CheckpointLoaded, fact, step=fact.number)
                case "checkpoint_saved":
                    yield self._event(events.CheckpointSaved, fact, step=fact.number)
                case "user_terminated":
                    yield self._over(fact, "stopped")
                case "job_terminated":
                    yield from self._node_terminated(fact)
            if _NUMBER_KEY.get(_TYPES[fact.order]) != "node_rank":
                self._launching = False

    def _event(self, kind: type[events.KnownEvent], fact: _Fact, **fields: Any) -> events.KnownEvent:
        facts = intake.said(self._run, events.tag_of(kind), fact.number, fact.job_name)
        return intake.made(kind, _SOURCE, self._run, fact.occurred_ns, facts, **fields)

    def _node_started(self, fact: _Fact) -> Iterator[events.AnyEvent]:
        if not self._launching or fact.number in self._launched:
            started = self._event(events.RunStarted, fact, gpus=self._gpus, name=fact.job_name)
            self._launch = (started.id, fact.occurred_ns)
            self._launched, self._ended = set(), False
            yield started
        self._launching = True
        self._launched.add(fact.number)
        launch_id, launch_ns = self._launch
        causes = (launch_id,) if fact.occurred_ns == launch_ns else ()  # else the clock gives the order
        node = f"node-{fact.number}"
        yield self._event(events.MemberJoined, fact, subject=node, causes=causes, gpus=self._gpus_per_node)

    def _node_terminated(self, fact: _Fact) -> Iterator[events.AnyEvent]:
        lost = self._event(events.MemberLost, fact, subject=f"node-{fact.number}", reason="job_terminated")
        yield lost
        if fact.number in self._launched and not self._ended:
            yield self._over(fact, "failed", causes=(lost.id,))

    def _over(self, fact: _Fact, outcome: events.Outcome, causes: tuple[str, ...] = ()) -> events.KnownEvent:
        self._launching, self._ended = False, True
        return self._event(events.RunEnded, fact, causes=causes, outcome=outcome, reason=_TYPES[fact.order])
