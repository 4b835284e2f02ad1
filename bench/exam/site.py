"""A case as a user would have it on disk: a topology file, signals by level, and a record that grows with
time.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import yaml

from bench.exam import exporters
from bench.exam.plan import RUN, Level
from bench.exam.plant import Plant
from holdfast.record.events import (
    ActionTaken,
    AnyEvent,
    CheckpointSaved,
    CostRate,
    Event,
    MemberJoined,
    MemberLost,
    PhaseEntered,
    ReferenceDeclared,
    RunStarted,
    StepCommitted,
)
from holdfast.record.store import Store
from holdfast.record.stores import open_store

BEGIN_NS = 1_772_611_200 * 10**9
"""2026-03-04, 08:00 UTC."""
PAST_STEPS = 1_500


class Site:
    """What lies on disk of one case."""

    def __init__(self, plant: Plant, folder: Path, healthy_step_s: float) -> None:
        self.plant = plant
        self.begin_ns = BEGIN_NS
        self.topology = folder / "topology.yaml"
        self.topology.write_text(yaml.safe_dump(_topology(plant), sort_keys=False), encoding="utf-8")
        self.signals: dict[Level, Path] = exporters.show(plant, self.begin_ns).write(folder)
        self.record = folder / "record.sqlite"
        self.home = folder
        self._events = sorted(
            _events(plant, self.begin_ns, healthy_step_s), key=lambda event: event.occurred_ns
        )
        self._told = 0

    def at_ns(self, at_s: float) -> int:
        return self.begin_ns + round(at_s * 1e9)

    def tell(self, at_s: float) -> None:
        """Put into the record what had happened by then. Times only go forward."""
        end = self._told
        while end < len(self._events) and self._events[end].occurred_ns <= self.at_ns(at_s):
            end += 1
        store: Store
        with open_store(str(self.record), home=self.home) as store:
            store.ingest(self._events[self._told : end])
        self._told = end


def stamp(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat()


def _span(prefix: str, count: int, width: int) -> str:
    return f"{prefix}[{0:0{width}d}-{count - 1:0{width}d}]" if count > 1 else f"{prefix}{0:0{width}d}"


def _topology(plant: Plant) -> dict[str, object]:
    spec = plant.spec
    nodes = _span("n", plant.nodes, 3)
    per_leaf = plant.nodes if spec.rail else max(4, plant.nodes // 4)
    page: dict[str, object] = {
        "nodes": {nodes: {"gpus": 8, "ports": "mlx5_[0-7]"}},
        "racks": {_span("rack-", plant.racks, 2): "4 each"},
        "shelves": {_span("shelf-", plant.racks, 2): "1 each"},
        "leaves": {_span("leaf-", plant.leaves, 2): f"{per_leaf} each" + (" by rail" if spec.rail else "")},
        "spines": {"spine-[00-01]": "all"},
        "mounts": {plant.mount_name(): "all"},
        "circuits": {"water-0": "all"},
    }
    page["loops"] = (
        {_span("cdu-", plant.loops, 2): "2 each"} if spec.cooling == "liquid" else {"crah-00": "all"}
    )
    if spec.member_per == "gpu":
        members = {
            plant.member_label(m): plant.node_name(int(plant.member_node[m])) for m in range(plant.members)
        }
        page["runs"] = {RUN: {"members": members}}
    else:
        page["runs"] = {RUN: {"nodes": _span("n", plant.run_nodes, 3)}}
    if plant.run_nodes < plant.nodes and not plant.pool_nodes:
        others = f"n[{plant.run_nodes:03d}-{plant.nodes - 1:03d}]"
        page["runs"] = {**page["runs"], "other-job": {"nodes": others}}  # type: ignore[dict-item]
    if plant.pool_nodes:
        a, b, c, d = (plant.node_name(node) for node in plant.pool_nodes)
        page["pools"] = {
            "prefill": {"engines": [a, b]},
            "decode": {"engines": [c, d], "receives_from": "prefill"},
        }
        page["runs"][RUN]["pools"] = ["prefill", "decode"]  # type: ignore[index]
    if plant.maintenance:
        page["maintenance"] = [
            {
                "subjects": who,
                "from": stamp(BEGIN_NS + round(a * 1e9)),
                "to": stamp(BEGIN_NS + round(b * 1e9)),
                "reason": why,
            }
            for who, a, b, why in plant.maintenance
        ]
    return page


def _events(plant: Plant, begin_ns: int, healthy_step_s: float) -> Iterator[AnyEvent]:
    number = 0

    def common(at_s: float, subject: str = "") -> dict[str, object]:
        nonlocal number
        number += 1
        at_ns = begin_ns + round(at_s * 1e9)
        return {
            "id": f"exam-{number:08d}",
            "occurred_ns": at_ns,
            "recorded_ns": at_ns,
            "run": RUN,
            "subject": subject,
        }

    def event(kind: type[Event], at_s: float, subject: str = "", **fields: object) -> AnyEvent:
        return kind(**common(at_s, subject), **fields)  # type: ignore[arg-type, return-value]

    past = PAST_STEPS if plant.spec.history else 0
    start_s = -past * healthy_step_s - 60.0
    gpus = 8 if plant.spec.member_per == "node" else 1
    yield event(RunStarted, start_s, gpus=plant.run_gpus)
    yield event(CostRate, start_s, gpus=plant.run_gpus, usd_per_gpu_hour=3.5)
    if plant.spec.reference:
        yield event(ReferenceDeclared, start_s, step_ns=round(healthy_step_s * 1e9), gpus=plant.run_gpus)
    for member in range(plant.members):
        node = plant.node_name(int(plant.member_node[member]))
        yield event(MemberJoined, start_s + 1, plant.member_label(member), gpus=gpus, node=node)
    first = plant.step_base or 1
    for index in range(past):
        jitter = 1 + 0.004 * float(plant.rng.normal())
        yield event(
            StepCommitted, (index - past) * healthy_step_s * jitter - 2.0, step=max(1, first - past + index)
        )
    for index, at_s in enumerate(plant.step_ended):
        yield event(StepCommitted, float(at_s), step=first + index)
    for step, at_s, stall_s in plant.saves:
        yield event(
            CheckpointSaved, at_s, step=first + step, stall_ns=round(stall_s * 1e9), place="/train/ckpt"
        )
    for at_s, pause_s in plant.evals:
        yield event(PhaseEntered, at_s + 1e-3, phase="eval")
        yield event(PhaseEntered, at_s + pause_s, phase="step")
    for at_s, length_s, reason in plant.planned_pauses:
        yield event(ActionTaken, at_s, action="restart", reason=reason)
        yield event(PhaseEntered, at_s, phase="load")
        yield event(PhaseEntered, at_s + length_s, phase="step")
    if plant.replaced:
        old, new, at_s = plant.replaced
        for member in range(plant.members):
            if plant.member_node[member] == old:
                label = plant.member_label(member)
                name = plant.node_name(new)
                yield event(MemberLost, at_s, label, reason="drained on purpose")
                yield event(MemberJoined, at_s + 60, name + label[len(name) :], gpus=gpus, node=name)
        yield event(ActionTaken, at_s, plant.node_name(old), action="replace", reason="planned maintenance")
    for at_s, action, reason in plant.actions:
        yield event(ActionTaken, at_s, action=action, reason=reason)
