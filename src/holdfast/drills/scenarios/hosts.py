"""Nodes: GPUs, memory and processors that get worse before they fail."""

from holdfast.drills.scenarios.stage import Plot, Scenario, Stage, at_gpu, members, slow_members
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
    """Corrected errors that become more, a row remapped, and then the error that ECC cannot correct."""
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
        traces=(MetricTrace(metric="node_pressure_cpu_waiting_seconds_total", subjects=members(affected)),),
        surface=slow_members(affected),
    )


HOSTS = (
    Scenario(
        name="pcie-downgrade",
        found_as="pcie-width",
        title="a GPU's PCIe link trains down, and its copies take longer",
        told="One member has been late in every step since a moment ago. Its GPUs' clocks, temperatures and"
        " utilisation are like everybody's.",
        domain="host",
        surfaces_in="runtime",
        what="steps slow down; one member computes longer, with no throttling",
        mechanism="after bus errors the link comes back narrower, copies from the host take longer",
        owner="hardware",
        seam="gpu-fabric-pool",
        loss="slowdown",
        decides="The link's width against what the device has, and a replay counter that rises.",
        questions=(
            "All eight GPUs show full utilisation. Why does that say nothing?",
            "What does it cost to leave the node in until tonight?",
        ),
        draw=_pcie,
    ),
    Scenario(
        name="hbm-errors",
        found_as="memory-errors",
        title="a GPU's memory degrades behind ECC, then kills a member",
        told="One member has been a little late for a while. Then it died, and a spare took its place.",
        domain="gpu",
        surfaces_in="runtime",
        what="one member gets slower, then dies with an XID; the run regroups and is well again",
        mechanism="corrected errors cost retries and rows are remapped, until an error cannot be contained",
        owner="hardware",
        seam="gpu-fabric-pool",
        loss="slowdown",
        decides="Corrected errors and remapped rows on one GPU, long before the XID.",
        questions=(
            "When could somebody have known? What would you have done then, and what would it have saved?",
            "Is the node to be reset, drained or sent back? Whose rule says so?",
        ),
        draw=_memory,
    ),
    Scenario(
        name="cpu-steal",
        found_as="cpu-contention",
        title="something else takes a rack's processors, and its GPUs wait for launches",
        told="A rack's members are late. It looks like last month's power incident: one rack, all at once.",
        domain="host",
        surfaces_in="gpu",
        what="steps slow down; the members of one rack compute longer, with full clocks",
        mechanism="a backup or monitoring job on the hosts takes CPU time, kernels are launched late",
        owner="platform",
        seam="gpu-fabric-pool",
        loss="slowdown",
        decides="CPU pressure on exactly these hosts, with clocks, power supplies and temperatures as usual.",
        questions=(
            "What is the same as in a power incident, and what is not?",
            "Who can do something to a node of the run without the run's owners knowing?",
        ),
        draw=_cpu,
    ),
)
