"""What is simulated: a job on a cluster that breaks, for so long."""

import msgspec

from holdfast.twin.cluster import Layout
from holdfast.twin.failures import Hazards
from holdfast.twin.job import Job

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
