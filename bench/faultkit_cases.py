"""The failure types of lm-resiliency's fault kit: how each is made here, or why it is not.

A case is a fault of the kit's manifest. The kit applies some types itself; `bench/workers/faultkit_faults.py`
makes the others, with the same code in the workers of both systems. `bench/faultkit_storage.py` damages
checkpoints, between two starts of a run.
"""

from typing import Literal

import msgspec

TARGET = 2
"""The rank that every fault strikes."""
STRIKES_AT = 12
"""The step that it strikes in, for the first time."""
CHECKPOINT_EVERY = 5
"""The steps from one checkpoint to the next, where checkpoints are damaged."""
NEWEST = STRIKES_AT // CHECKPOINT_EVERY * CHECKPOINT_EVERY
"""The step of the newest checkpoint then."""
KINDS = Literal["sdc", "straggler", "hang", "process_failure"]
Damage = Literal["none", "flip", "truncate", "remove", "unreadable"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One failure type.

    kind    the kit's name for it, which a system should report
    made    how it is made, in words
    once    it strikes in one step, and not in every step until its process ends
    damage  done to the newest checkpoint, after all processes were killed and before the run is started again
    type    by the kit's name, unless that is the fault's
    """

    fault: str
    kind: KINDS
    surface: str
    made: str
    parameters: dict[str, object] = {}
    once: bool = False
    damage: Damage | None = None
    type: str = ""

    def manifest(self) -> dict[str, object]:
        """The campaign of this fault alone, as the kit reads it."""
        target: dict[str, object] = {"rank": TARGET, "surface": self.surface}
        if self.damage is not None:
            target = {"resource": resource_of(NEWEST), "surface": self.surface}
        if self.surface in ("output", "compute"):
            target |= {"component": "transformer_block", "index": 0}
        fault = {
            "fault_id": self.fault,
            "type": self.type or self.fault,
            "target": target,
            "parameters": self.parameters,
        }
        incident = {
            "incident_id": self.fault,
            "trigger": {"at": [STRIKES_AT]},
            "lifetime": {"iterations": 1} if self.once else {"until": "replacement"},
            "faults": [fault],
        }
        return {"schema_version": 1, "name": self.fault, "incidents": [incident]}


def resource_of(step: int) -> str:
    """The name of a checkpoint in the kit's results."""
    return f"step-{step}"


def _by_kit(fault: str, made: str, **parameters: object) -> Case:
    return Case(fault=fault, kind="sdc", surface="output", made=made, parameters=parameters)


def _by_us(fault: str, kind: KINDS, surface: str, made: str) -> Case:
    return Case(fault=fault, kind=kind, surface=surface, made=made, once=True)


def _of_checkpoint(fault: str, damage: Damage, made: str) -> Case:
    return Case(fault=fault, kind="sdc", surface="checkpoint", made=made, once=True, damage=damage)


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
    _of_checkpoint("checkpoint_corruption", "flip", "a byte in the middle of a file is another"),
    _of_checkpoint("checkpoint_truncation", "truncate", "a file ends after half of it"),
    _of_checkpoint("checkpoint_missing", "remove", "a file is gone"),
    _of_checkpoint("io_error", "unreadable", "every read of a file ends with an input/output error"),
)
UNDAMAGED = Case(
    fault="no damage",
    kind="sdc",
    surface="checkpoint",
    made="all processes are killed and the run is started again, with every checkpoint whole",
    once=True,
    damage="none",
    type="checkpoint_missing",
)
"""A restart without damage, for its messages and its time. It only uses the kit's schedule."""
NOT_APPLIED = {
    "resource_unavailable": "the kit means a GPU or a network card that is gone; workers here use none",
    "payload_corruption": "the kit ships no code that makes it, and the systems share no transport to change "
    "bytes in; a tensor that is wrong before it is sent is tensor_corruption",
}
"""The kit's other types, and why they are left out."""
