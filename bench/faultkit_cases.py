"""The failure types of lm-resiliency's fault kit: how each is made here, or why it is not.

A case is a fault of the kit's manifest. The kit applies some types itself; the others are made by
`bench/workers/faultkit_faults.py`, the same code in the workers of both systems.
"""

from typing import Literal

import msgspec

TARGET = 2
"""The rank that every fault strikes."""
STRIKES_AT = 12
"""The step that it strikes in, for the first time."""
KINDS = Literal["sdc", "straggler", "hang", "process_failure"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One failure type.

    kind    what the kit expects a system to call it
    made    how it is made, in words
    once    it strikes in one step, and not in every step until its process ends
    """

    fault: str
    kind: KINDS
    surface: str
    made: str
    parameters: dict[str, object] = {}
    once: bool = False

    def manifest(self) -> dict[str, object]:
        """The campaign of this fault alone, as the kit reads it."""
        target: dict[str, object] = {"rank": TARGET, "surface": self.surface}
        if self.surface in ("output", "compute"):
            target |= {"component": "transformer_block", "index": 0}
        fault = {"fault_id": self.fault, "type": self.fault, "target": target, "parameters": self.parameters}
        incident = {
            "incident_id": self.fault,
            "trigger": {"at": [STRIKES_AT]},
            "lifetime": {"iterations": 1} if self.once else {"until": "replacement"},
            "faults": [fault],
        }
        return {"schema_version": 1, "name": self.fault, "incidents": [incident]}


def _by_kit(fault: str, made: str, **parameters: object) -> Case:
    return Case(fault=fault, kind="sdc", surface="output", made=made, parameters=parameters)


def _by_us(fault: str, kind: KINDS, surface: str, made: str) -> Case:
    return Case(fault=fault, kind=kind, surface=surface, made=made, once=True)


CASES = (
    _by_kit("tensor_corruption", "the sign of 1 % of a layer's output", operation="sign_flip", scope="1%"),
    _by_kit("stale_state", "a layer's output is that of the pass before", scope="100%"),
    _by_kit("drop", "10 % of a layer's output is lost", scope="10%"),
    _by_kit("duplicate", "a row of a layer's output stands for others", scope="10%"),
    _by_kit("reorder", "a layer's output has its samples in another order"),
    Case(
        fault="delay",
        kind="straggler",
        surface="compute",
        made="a layer takes 0.3 s longer",
        parameters={"delay_ms": 300},
    ),
    _by_us("timeout", "straggler", "process", "a worker stalls for 4 s, then goes on"),
    _by_us("hang", "hang", "process", "a worker waits for ever in its forward pass"),
    _by_us("exception", "process_failure", "process", "a RuntimeError in the forward pass"),
    _by_us("resource_exhaustion", "process_failure", "resource", "memory runs out, by RLIMIT_AS"),
    _by_us("process_termination", "process_failure", "process", "SIGKILL"),
    _by_us("collective_desync", "hang", "collective", "a worker leaves out its backward pass"),
    _by_us("message_drop", "hang", "collective", "no packet reaches a worker for 2 s"),
    _by_us("network_partition", "hang", "collective", "no packet reaches a worker any more"),
    _by_us("config_drift", "sdc", "config", "a worker's learning rate doubles"),
)
NOT_APPLIED = {
    "resource_unavailable": "the kit means a GPU or a network card that is gone; workers here use none",
    "payload_corruption": "the kit ships no code that makes it, and the systems share no transport to change "
    "bytes in; a tensor that is wrong before it is sent is tensor_corruption",
    "checkpoint_corruption": "not measured: the kit ships no code that makes it",
    "checkpoint_truncation": "not measured: the kit ships no code that makes it",
    "checkpoint_missing": "not measured: the kit ships no code that makes it",
    "io_error": "not measured: the kit ships no code that makes it, and only checkpoints use storage here",
}
"""The kit's other types, and why they are left out."""
