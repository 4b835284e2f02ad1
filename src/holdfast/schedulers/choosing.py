"""Chooses the scheduler and the lead that a policy names."""

from collections.abc import Callable
from typing import assert_never

from holdfast.control.policy import ControlPolicy
from holdfast.record.leading import Lead
from holdfast.schedulers.machines import ClusterMachines, RunMoves
from holdfast.schedulers.slurm import SlurmScheduler


def reached(
    policy: ControlPolicy, moves: RunMoves, is_leading: Callable[[], bool], say: Callable[[str], None]
) -> ClusterMachines:
    """The machines, by the policy's scheduler. say: prints a sentence for the operator. Raises `InputError`
    if the scheduler's address or credentials cannot be used.
    """
    match policy.scheduler:
        case "none":
            return ClusterMachines(policy, None, moves, is_leading)
        case "slurm":
            return ClusterMachines(policy, _slurm(policy, say), moves, is_leading)
        case "kubernetes":
            return _kubernetes(policy, moves, is_leading)
    assert_never(policy.scheduler)


def _slurm(policy: ControlPolicy, say: Callable[[str], None]) -> SlurmScheduler:
    if not policy.slurm.rest:
        return SlurmScheduler(policy.gpus_per_node)
    # Imported here, so that sites that use Slurm's commands load neither TLS nor HTTP.
    from holdfast.schedulers.slurm_rest import SlurmRest

    return SlurmScheduler(policy.gpus_per_node, SlurmRest(policy.slurm, policy.gpus_per_node), say)


def leading(policy: ControlPolicy, by_store: Callable[[], Lead], token: str) -> Lead:
    """The lead, by which only one process acts for a cluster: a Lease if the policy names one, else the
    store's. token: unique to this process.
    """
    if not policy.kubernetes.lease:
        return by_store()
    from holdfast.schedulers.kubernetes_api import KubernetesApi, find_access
    from holdfast.schedulers.kubernetes_lease import LeaseLead, process_name

    return LeaseLead(KubernetesApi(find_access()).impatient(), policy.kubernetes.lease, process_name(token))


def _kubernetes(policy: ControlPolicy, moves: RunMoves, is_leading: Callable[[], bool]) -> ClusterMachines:
    # Imported here, because only sites with Kubernetes need these.
    from holdfast.schedulers.kubernetes import KubernetesScheduler
    from holdfast.schedulers.kubernetes_api import KubernetesApi, find_access

    scheduler = KubernetesScheduler(
        KubernetesApi(find_access()),
        policy.kubernetes,
        policy.gpus_per_node,
        is_acting=lambda: policy.is_acting and is_leading(),
    )
    reboot = scheduler.request_maintenance if policy.kubernetes.reboot == "maintenance-request" else None
    return ClusterMachines(policy, scheduler, moves, is_leading, reboot)
