"""A decision: the action for one target, its reason and price, and the alternatives with theirs."""

import msgspec

from holdfast.control.actions import ControlAction
from holdfast.record.events import ControlMode

UNPROVEN = "not proven: "
"""The beginning of a restore's outcome if the check could not measure the part that the node was taken out
for. A reboot or another check would tell no more, so a person has to look at it.
"""


class ActionPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The loss until the horizon if this is done: GPU-time, and money with people's work in it."""

    gpu_hours: float
    usd: float


class PricedAction(msgspec.Struct, frozen=True, kw_only=True):
    """One action with its price. own_gpu_hours: the part of the price that the action itself takes, whether
    the cause is right or wrong. not_now: why it may not be done now; empty if it may.
    """

    action: ControlAction
    price: ActionPrice
    own_gpu_hours: float
    not_now: str = ""


class ControlDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The action to take now about a target.

    target      a node, or the subject of the cause if that is not a single node
    reason      the prices compared, and why other actions may not be taken
    evidence    of the incidents' causes, and how sure they are
    mode        shadow: announced, not carried out
    rule        the mechanism that caused the decision
    incidents   all of the target: there is one decision, however many they are
    rate        GPU-hours lost in an hour while nothing is done
    member      the run's only affected member, which `replace` replaces; empty if several are affected
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
