"""A decision: what to do about one target, why, what it costs, and what else could be done at which price."""

import msgspec

from holdfast.control.actions import ControlAction
from holdfast.record.events import ControlMode

UNPROVEN = "not proven: "
"""How the outcome of a restore begins whose check could not measure what the node was taken out for: to
reboot it or to check it again tells no more, and a person has to see to it.
"""


class ActionPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What is lost until the horizon if this is done: GPU-time, and money with people's work in it."""

    gpu_hours: float
    usd: float


class PricedAction(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that could be done. own_gpu_hours: what of its price the action itself takes, right or wrong.
    not_now: why it is not to be done now; empty: it may be.
    """

    action: ControlAction
    price: ActionPrice
    own_gpu_hours: float
    not_now: str = ""


class ControlDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now about a target.

    target      a node; where nothing about a single node is wrong, the subject of the cause
    reason      prices side by side, and what holds an action back
    evidence    what the incidents' causes rest on, and how sure they are
    mode        shadow: only said
    rule        the mechanism that it is decided for
    incidents   all that are wrong with the target: one decision, however many
    rate        GPU-hours lost in an hour while nothing is done
    member      the only one of the run that is affected, if there is one: what `replace` replaces
    """

    action: ControlAction
    target: str
    run: str
    reason: str
    evidence: tuple[str, ...]
    price: ActionPrice
    alternatives: tuple[PricedAction, ...]
    mode: ControlMode
    rule: str
    incidents: tuple[str, ...]
    rate: float = 0.0
    member: str = ""

    @property
    def own_gpu_hours(self) -> float:
        return next((one.own_gpu_hours for one in self.alternatives if one.action == self.action), 0.0)
