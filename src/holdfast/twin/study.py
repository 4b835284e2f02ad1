"""A study to simulate: a job on a cluster with failures, its duration, and its checkpoints."""

from math import inf, isinf

import msgspec

from holdfast.economics.cadence.cadence import Costs
from holdfast.economics.cadence.renewal import optimum_s
from holdfast.ledger.flops import Chip
from holdfast.twin.cluster import Layout
from holdfast.twin.failures import Hazards
from holdfast.twin.policies import Policy


class Checkpointing(msgspec.Struct, frozen=True, kw_only=True):
    """How state is saved to storage.

    stall_s    training stops this long for each checkpoint
    write_s    until the checkpoint can be loaded; training goes on meanwhile
    restore_s  to read it back
    """

    interval_s: float
    stall_s: float
    write_s: float
    restore_s: float


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One training job.

    member_gpus     GPUs of one replica of the model (tensor x pipeline parallel), which computes lanes
    lanes           slices of every step's batch; at least one per member
    step_ns         one step with every member at full speed
    flops_per_step  of the model, without recomputation
    steps_total     None: as many as fit in the study's duration
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
    """A job, its nodes, their failures, and the duration to simulate.

    layout: the job's own nodes; a policy's spares are numbered after them. crews: machines repaired at a
    time; None: repair times include the wait. usd_per_gpu_hour: the price of every held GPU.
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
    """As `holdfast plan cadence` computes it, in whole seconds; None without stalls or failures."""
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
