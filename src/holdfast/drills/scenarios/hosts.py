"""Nodes: GPUs, memory and processors that get worse before they fail."""

from holdfast.drills.scenarios.stage import Draw, Plot, Stage, at_gpu, members, slow_members
from holdfast.drills.scenarios.truth import MetricTrace
from holdfast.drills.training import MemberLoss
from holdfast.drills.world import SimulatedXid
from holdfast.twin.cluster import gpu_name, name

XID_REMAPPED, XID_UNCONTAINED = 63, 95


def _pcie(stage: Stage) -> Plot:
    node, gpu = stage.pick_gpu()
    width = (2.0, 4.0)[stage.one_of(2)]
    return Plot(
        subject=gpu_name(node, gpu),
        turned=(stage.turn("pcie_width", [stage.gpu_number(node, gpu)], width),),
        affected=(node,),
        traces=(
            at_gpu("node_pcidevice_current_link_width", node, gpu),
            at_gpu("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", node, gpu),
        ),
        surface=slow_members((node,)),
    )


def _memory(stage: Stage) -> Plot:
    """A growing number of corrected errors, a remapped row, and then an error that ECC cannot correct."""
    died_ns = stage.end_after(stage.uniform(0.6, 0.75))
    remapped_ns = stage.began_ns + round(stage.uniform(0.3, 0.5) * (died_ns - stage.began_ns))
    node, gpu = stage.pick_gpu()
    number, subject = stage.gpu_number(node, gpu), gpu_name(node, gpu)
    errors = stage.turn("ecc", [number], stage.uniform(35, 60), over_s=120)
    detail = "Uncontained ECC error"
    return Plot(
        subject=subject,
        turned=(errors,),
        affected=(node,),
        traces=(
            at_gpu("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", node, gpu),
            at_gpu("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", node, gpu),
        ),
        surface=slow_members((node,)),
        loss=MemberLoss(
            node=node,
            at_ns=died_ns,
            fault=f"xid-{XID_UNCONTAINED}",
            detail=detail,
            subject=subject,
        ),
        xids=(
            SimulatedXid(gpu=number, code=XID_REMAPPED, message="Row remapping event", at_ns=remapped_ns),
            SimulatedXid(gpu=number, code=XID_UNCONTAINED, message=detail, at_ns=died_ns),
        ),
    )


def _cpu(stage: Stage) -> Plot:
    rack = stage.pick("rack")
    affected = stage.members_on("rack", rack)
    taken = stage.turn("cpu", affected, stage.uniform(0.5, 0.7), over_s=30)
    return Plot(
        subject=name("rack", rack),
        turned=(taken,),
        affected=affected,
        traces=(MetricTrace("node_pressure_cpu_waiting_seconds_total", members(affected)),),
        surface=slow_members(affected),
    )


HOSTS: dict[str, Draw] = {
    "pcie-downgrade": _pcie,
    "hbm-errors": _memory,
    "cpu-steal": _cpu,
}
