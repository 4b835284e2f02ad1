"""What control can do, the gentlest first: a closed set, and what kind of step each is."""

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
"""In order: of two that cost the same, the one that comes first is chosen."""

TAKES_OUT: frozenset[ControlAction] = frozenset({"drain-when-done", "drain-now"})
"""The node gets no more work until it is restored."""
LEAVES: frozenset[ControlAction] = frozenset({"migrate", "shrink"})
"""A run leaves the node, which stays as bad as it is."""
LESS: frozenset[ControlAction] = TAKES_OUT | {"shrink"}
"""There is less to compute with afterwards: `[out]` of the policy bounds all of these together."""
HARMLESS: frozenset[ControlAction] = frozenset({"watch", "rebalance", "checkpoint", "call-a-person"})
"""No machine leaves and no process ends: neither confidence nor a cool-down is asked for."""
TRIALS: frozenset[ControlAction] = frozenset({"replace", "migrate"})
"""Afterwards the run is as large as before and has lost seconds: prices decide, however unsure the cause."""
DRASTIC: frozenset[ControlAction] = frozenset({"shrink", "drain-now", "reboot", "requeue"})
"""What a run feels and nobody gives back: for those who are nearly sure. The rest is easily undone."""


def said(action: ControlAction, target: str) -> str:
    """`drain n17 now`: as the imperative of a sentence."""
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
