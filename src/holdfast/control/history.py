"""The actions of control and their results, folded from the record, so that a restart forgets nothing.

Events may come in any number of batches; the result is the same. Nothing here does I/O.
"""

from collections.abc import Collection, Iterable

import msgspec

from holdfast.control.actions import ACTIONS, HARMLESS, LEAVES, TAKES_OUT, ControlAction
from holdfast.control.decision import ControlDecision
from holdfast.record.events import (
    AnyEvent,
    BreakerChanged,
    ControlActed,
    ControlMode,
    ControlStage,
)
from holdfast.record.untrusted import UNDECODABLE
from holdfast.wording.units import DAY_NS

KINDS = ("control.acted", "breaker.changed")
CLOCKS_APART_NS_MAX = DAY_NS
"""Acts are in the order in which they were written, by machines whose clocks differ by no more than this."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One decision over time.

    name      the id of its first event
    at_ns     when it was decided; changed_ns: when its stage last changed
    decision  None if a newer version wrote it in an unknown form
    """

    name: str
    at_ns: int
    changed_ns: int
    action: ControlAction
    target: str
    mode: ControlMode
    rule: str
    stage: ControlStage
    outcome: str
    decision: ControlDecision | None

    @property
    def is_unsettled(self) -> bool:
        """Whether the machines may still show another stage."""
        return self.stage == "decided" or (self.action in TAKES_OUT and self.stage in ("done", "failed"))

    @property
    def is_under_way(self) -> bool:
        return self.mode == "act" and self.stage == "decided"


class ControlHistory:
    """All acts, the breaker, and the state that follows from them."""

    def __init__(self, events: Iterable[AnyEvent] = ()) -> None:
        self.acts: dict[str, Act] = {}
        self._names: dict[str, list[str]] = {}  # the names of the acts on a target
        self._out: dict[str, Act] | None = None  # cached; None after a change
        self._left: dict[str, Act] | None = None
        self._under_way: list[Act] | None = None
        self._shadows: list[Act] | None = None
        self.tripped_ns: int | None = None
        self.trip_reason = ""
        self.reset_ns = 0
        for event in events:
            self.take(event)

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, BreakerChanged):
            self.tripped_ns = event.occurred_ns if event.tripped else None
            self.trip_reason = event.reason
            self.reset_ns = self.reset_ns if event.tripped else event.occurred_ns
        elif isinstance(event, ControlActed) and event.action in ACTIONS:
            self._acted(event)

    def _acted(self, event: ControlActed) -> None:
        if event.id in self.acts:
            return
        self._out = self._left = self._under_way = self._shadows = None
        if event.stage == "decided":
            self.acts[event.id] = Act(
                name=event.id,
                at_ns=event.occurred_ns,
                changed_ns=event.occurred_ns,
                action=next(one for one in ACTIONS if one == event.action),
                target=event.subject,
                mode=event.mode,
                rule=event.rule,
                stage="decided",
                outcome="",
                decision=_decision(event.decision),
            )
            self._names.setdefault(event.subject, []).append(event.id)
            return
        for cause in event.causes:
            if (act := self.acts.get(cause)) is not None:
                self.acts[cause] = msgspec.structs.replace(
                    act, stage=event.stage, changed_ns=event.occurred_ns, outcome=event.outcome
                )

    # -- the state that follows ----------------------------------------------------------------------

    def of(self, target: str, mode: ControlMode = "act") -> list[Act]:
        """The acts on a target, oldest first."""
        acts = (self.acts[name] for name in self._names.get(target, ()))
        return [act for act in acts if act.mode == mode]

    @property
    def out(self) -> dict[str, Act]:
        """The nodes that we took out and did not restore, with the act that did it. An act that was only
        decided so far counts, too.
        """
        if self._out is None:
            self._out = self._taken_out()
        return self._out

    def _taken_out(self) -> dict[str, Act]:
        found: dict[str, Act] = {}
        for act in self.acts.values():
            if act.mode != "act":
                continue
            if act.action in TAKES_OUT and act.stage in ("decided", "done"):
                found[act.target] = act
            elif act.action == "restore" and act.stage == "done":
                found.pop(act.target, None)
        return found

    @property
    def left(self) -> dict[str, Act]:
        """The nodes that a run left because of us, and on which no act followed: they are still bad, although
        no run is slowed by them.
        """
        if self._left is None:
            self._left = self._left_behind()
        return self._left

    def _left_behind(self) -> dict[str, Act]:
        last = {
            act.target: act
            for act in self.acts.values()
            if act.mode == "act" and act.action not in HARMLESS and act.stage != "failed"
        }
        return {target: act for target, act in last.items() if act.action in LEAVES and act.stage == "done"}

    def since_out(self, target: str, action: ControlAction) -> list[Act]:
        """The acts of this kind on a node since it was last taken out."""
        taken = self.out.get(target)
        if taken is None:
            return []
        return [act for act in self.of(target) if act.action == action and act.at_ns >= taken.at_ns]

    def times_out(self, target: str, since_ns: int) -> int:
        """How often a node was taken out, including the present time."""
        return sum(
            act.action in TAKES_OUT and act.stage in ("done", "over") and act.at_ns >= since_ns
            for act in self.of(target)
        )

    def begun(self, action: ControlAction, mode: ControlMode, since_ns: int, but: str) -> int:
        """How often an action was begun, whatever its result. In shadow mode announced actions count as well,
        except the one that stands for the target `but`.
        """
        found = 0
        for act in reversed(self.acts.values()):
            if act.at_ns < since_ns - CLOCKS_APART_NS_MAX:
                break
            if act.action == action and act.at_ns >= since_ns:
                is_standing = act.target == but and act.stage == "decided"
                found += act.mode == "act" or (mode == "shadow" and not is_standing)
        return found

    def held(self, actions: Collection[ControlAction], mode: ControlMode, but: str) -> set[str]:
        """The targets that these actions hold: nodes that they took out or that a run went on without, and
        targets of actions under way. In shadow mode also those of announced actions, except `but`.
        """
        found = {act.target for act in self.under_way if act.action in actions}
        found |= {target for target, act in self.out.items() if act.action in actions}
        if "shrink" in actions:  # after a migration a spare has the node's place, so nothing is held
            found |= {target for target, act in self.left.items() if act.action == "shrink"}
        if mode == "shadow":
            found |= {act.target for act in self.shadows() if act.action in actions and act.target != but}
        return found

    def standing(self, target: str) -> Act | None:
        """The shadow act on a target that still stands."""
        shadows = [act for act in self.of(target, "shadow") if act.stage == "decided"]
        return shadows[-1] if shadows else None

    def shadows(self) -> list[Act]:
        """The shadow acts that still stand."""
        if self._shadows is None:
            self._shadows = [
                act for act in self.acts.values() if act.mode == "shadow" and act.stage == "decided"
            ]
        return self._shadows

    @property
    def under_way(self) -> list[Act]:
        if self._under_way is None:
            self._under_way = [act for act in self.acts.values() if act.is_under_way]
        return self._under_way


def _decision(text: str) -> ControlDecision | None:
    try:
        return msgspec.json.decode(text, type=ControlDecision)
    except UNDECODABLE:
        return None
