"""The job that the simulated cluster trains: how it is cut over GPUs, how long a step takes, how it saves."""

import msgspec

from holdfast.ledger.flops import Chip


class Checkpointing(msgspec.Struct, frozen=True, kw_only=True):
    """How state is kept in storage.

    stall_s    training stands still this long for each checkpoint
    write_s    until it can be restored from; training goes on meanwhile
    restore_s  to read it back
    """

    interval_s: float
    stall_s: float
    write_s: float
    restore_s: float


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One training job.

    member_gpus     GPUs of one replica of the model (tensor x pipeline parallel): what computes lanes
    lanes           slices of every step's batch; at least one per member
    step_ns         one step with every member at full speed
    flops_per_step  of the model, each thing computed once
    steps_total     None: for as long as it is simulated
    """

    model: str
    chip: Chip
    gpus: int
    member_gpus: int
    lanes: int
    step_ns: int
    tokens_per_step: int
    flops_per_step: float
    checkpointing: Checkpointing
    steps_total: int | None = None

    @property
    def members(self) -> int:
        return self.gpus // self.member_gpus
