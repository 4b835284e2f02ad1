"""The actions of control, the gentlest first, and what kind of step each is."""

from typing import Literal, get_args

ControlAction = Literal[
    "watch",
    "rebalance",
    "checkpoint",
    "replace",
    "migrate",
    "shrink",
    "drain-when-done",
    "drain-now",
    "reboot",
    "requeue",
    "restore",
    "call-a-person",
]

ACTIONS: tuple[ControlAction, ...] = get_args(ControlAction)
"""In order of preference: of two that cost the same, the first is chosen."""

TAKES_OUT: frozenset[ControlAction] = frozenset({"drain-when-done", "drain-now"})
"""The node gets no more work until it is restored."""
LEAVES: frozenset[ControlAction] = frozenset({"migrate", "shrink"})
"""A run leaves the node, which is not mended by that."""
LESS: frozenset[ControlAction] = TAKES_OUT | {"shrink"}
"""Afterwards there are fewer GPUs to compute with: `[out]` of the policy bounds all of these together."""
HARMLESS: frozenset[ControlAction] = frozenset({"watch", "rebalance", "checkpoint", "call-a-person"})
"""No machine leaves and no process ends: confidence is not required, nor a cool-down after other actions."""
TRIALS: frozenset[ControlAction] = frozenset({"replace", "migrate"})
"""Afterwards the run is as large as before and has lost seconds: prices decide, not confidence."""
DRASTIC: frozenset[ControlAction] = frozenset({"shrink", "drain-now", "reboot", "requeue"})
"""They cost a run time that it cannot get back, so they need high confidence. The rest is easily undone."""


def said(action: ControlAction, target: str) -> str:
    """The action as an imperative, such as `drain n17 now`."""
    match action:
        case "watch":
            return "go on"
        case "rebalance":
            return f"let the run move lanes off {target}"
        case "checkpoint":
            return "checkpoint now"
        case "replace":
            return f"replace the process that holds {target} up"
        case "migrate":
            return f"migrate {target} to a spare"
        case "shrink":
            return f"go on without {target}"
        case "drain-when-done":
            return f"drain {target} when its job ends"
        case "drain-now":
            return f"drain {target} now"
        case "reboot":
            return f"reboot {target}"
        case "requeue":
            return f"requeue {target}"
        case "restore":
            return f"check and restore {target}"
        case "call-a-person":
            return "call a person"
