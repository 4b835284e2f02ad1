"""What is simulated: a job on a cluster that breaks, for so long, and how often it saves."""

from math import inf, isinf

import msgspec

from holdfast.economics.cadence.cadence import Costs
from holdfast.economics.cadence.renewal import optimum_s
from holdfast.ledger.flops import Chip
from holdfast.twin.cluster import Layout
from holdfast.twin.failures import Hazards
from holdfast.twin.policies import Policy


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


START_NS = 1_735_689_600 * 10**9
"""Simulated runs begin on 1 January 2025, 00:00 UTC, unless the study says otherwise."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A job, the nodes it runs on, what breaks, and how long to look.

    layout: the job's own nodes; the spares that a policy keeps stand behind them. crews: machines repaired
    at a time; None where repair times include the wait. usd_per_gpu_hour: what every GPU that is held costs.
    """

    name: str
    job: Job
    layout: Layout
    hazards: Hazards
    duration_ns: int
    usd_per_gpu_hour: float
    crews: int | None = None
    start_ns: int = START_NS

    @property
    def nodes_per_member(self) -> int:
        return max(1, self.job.member_gpus // self.layout.gpus_per_node)

    @property
    def reference_gpu_ns(self) -> int:
        return self.job.step_ns * self.job.gpus


def interval_s(study: Study, policy: Policy) -> float:
    """Between the beginnings of two checkpoints."""
    best_s = best_interval_s(study) if policy.finds_interval else None
    return best_s or policy.checkpoint_s or study.job.checkpointing.interval_s


def best_interval_s(study: Study) -> float | None:
    """As `holdfast plan cadence` has it, to whole seconds; None where none stalls."""
    checkpointing = study.job.checkpointing
    if not checkpointing.stall_s or isinf(mtbf_s(study)):
        return None
    costs = Costs(stall_s=checkpointing.stall_s, write_s=checkpointing.write_s)
    return float(round(optimum_s(costs, mtbf_s(study))))


def mtbf_s(study: Study) -> float:
    """Mean time between unplanned failures, of all the job's nodes together."""
    hazards = study.hazards.unplanned()
    failures = sum(hazards.expected(row, study.layout.nodes, study.duration_ns) for row in hazards.classes)
    return study.duration_ns / 1e9 / failures if failures else inf
