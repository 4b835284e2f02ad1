"""One schedule from its seed: run it, judge it, and print it."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.run.happenings import (
    Effect,
    Expect,
    FromMember,
    FromNode,
    Happening,
    Record,
    Say,
    ToMembers,
    ToNode,
)
from holdfast.run.membership import advance
from holdfast.run.wire import MemberBeat, NodeBeat
from tests.simulation.checks import Outcome, violations
from tests.simulation.history import Note, Told
from tests.simulation.member import Script
from tests.simulation.setting import Setting, drawn
from tests.simulation.world import START_NS, Advance, World


class Failure(NamedTuple):
    """The violations in the schedule of this seed."""

    seed: int
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        told = "; ".join(self.wrong[:3])
        return f"seed {self.seed}: {told}\n  replay: python -m tests.simulation --seed {self.seed}"


def run_one(
    seed: int,
    *,
    setting: Setting | None = None,
    step: Advance = advance,
    script: type[Script] = Script,
    is_told: bool = False,
) -> tuple[World, Failure | None]:
    """Run a schedule to its end. Return it and its failure, if any. setting: replaces the seed's."""
    setting = drawn(seed) if setting is None else setting
    world = World(setting, seed, step=step, script=script, is_told=is_told)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"replay: python -m tests.simulation --seed {seed}")
        raise
    kinds = (*world.faults.kinds, *(("lag",) if setting.spikes else ()))
    outcome = Outcome(kinds, tuple(world.faults.away))
    wrong = violations(world.notes, setting, outcome)
    return world, Failure(seed, tuple(wrong)) if wrong else None


def run_many(seeds: Sequence[int]) -> list[Failure]:
    return [failure for seed in seeds if (failure := run_one(seed)[1]) is not None]


def story(seed: int) -> tuple[str, Failure | None]:
    """All events of a schedule, line by line, and its failure, if any."""
    world, failure = run_one(seed, is_told=True)
    setting = world.setting
    lines = [f"seed {seed}: {setting}", *(f"  fault: {fault}" for fault in setting.faults)]
    lines += [line for note in world.notes for line in _told(note)]
    if failure is None:
        lines.append("nothing is wrong")
    else:
        lines += [f"WRONG: {wrong}" for wrong in failure.wrong]
    return "\n".join(lines), failure


def _told(note: Note) -> list[str]:
    at = f"{(note.at_ns - START_NS) / 1e9:10.4f}"
    if not isinstance(note, Told):
        fields = ", ".join(f"{name}={value}" for name, value in zip(note._fields[1:], note[1:], strict=True))
        return [f"{at}      {type(note).__name__}: {fields}"]
    said = note.happening.message if isinstance(note.happening, FromNode | FromMember) else None
    if isinstance(said, NodeBeat | MemberBeat) and not note.effects:
        return []
    return [
        f"{at}  {_happening(note.happening)}",
        *(f"{'':10}    > {line}" for line in map(_effect, note.effects) if line),
    ]


def _happening(happening: Happening) -> str:
    match happening:
        case FromNode(name, message) | FromMember(name, message):
            return f"{name}: {_brief(message)}"
    return _brief(happening)


def _effect(effect: Effect) -> str:
    match effect:
        case ToNode(name, message):
            return f"to {name}: {_brief(message)}"
        case ToMembers(members, message):
            return f"to {', '.join(members)}: {_brief(message)}"
        case Say(text):
            return f"says: {text}"
        case Record(event):
            return f"records: {_brief(event)}"
        case Expect():
            return ""
    return _brief(effect)


_LEFT_OUT = frozenset({"environment", "id", "occurred_ns", "setup", "parts_s", "member", "faults"})


def _brief(thing: msgspec.Struct) -> str:
    kind = type(thing)
    fields = [
        f"{field}={value}"
        for field, default in zip(kind.__struct_fields__, _defaults(kind), strict=True)
        if field not in _LEFT_OUT and (value := getattr(thing, field)) != default
    ]
    return f"{kind.__name__} {' '.join(fields)}".strip()


def _defaults(kind: type[msgspec.Struct]) -> list[object]:
    given = list(kind.__struct_defaults__)
    return [msgspec.NODEFAULT] * (len(kind.__struct_fields__) - len(given)) + given
