"""Carries actions out on machines: by Slurm, Kubernetes, a site's own commands, and live runs."""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
    from holdfast.schedulers.kubernetes import KubernetesScheduler
    from holdfast.schedulers.machines import ClusterMachines
    from holdfast.schedulers.scheduler import Scheduler
    from holdfast.schedulers.slurm import SlurmScheduler

__all__ = ["ClusterMachines", "KubernetesScheduler", "Scheduler", "SlurmScheduler"]

_HOMES = {
    "kubernetes": {"KubernetesScheduler"},
    "machines": {"ClusterMachines"},
    "scheduler": {"Scheduler"},
    "slurm": {"SlurmScheduler"},
}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
